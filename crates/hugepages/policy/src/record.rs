//! One region in a look, and its history from look to look.
//!
//! The crate's documentation draws the stages. All page counts are 0 to 512.
//!
//! Of a look only those regions count that lie wholly in one promotable range: a VMA, or the mapped part of an object.
//!
//! ```text
//!   VMAs      |--- anonymous ------------|---- read-only ----|   |- heap --|
//!   regions  [  ?  ][  ok  ][  ok  ][  ?  ][  ?  ]             [ ? ][  ok  ]
//! ```
//!
//! A snapshot promises to list no others. This module checks it nevertheless: maps and pagemap are read one after the other and may not fit
//! together, and no plan may reach beyond a VMA.

use std::time::Duration;

use superhue_model::{Action, Memory, PageCount, Region, VirtRange};

use crate::backoff::{REGION, REST, Wait};
use crate::candidate::{PromotionReadiness, Rule};
use crate::clock::Tick;
use crate::{FEW_HOLES, FULL};

/// Time for which an outcome may be outstanding. Acting takes milliseconds.
pub(crate) const OUTCOME_TIMEOUT: Duration = Duration::from_secs(10);

/// One region as one look showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RegionState {
    /// The region.
    pub(crate) region: Region,
    /// The VMA around it, or the mapped part of an object.
    pub(crate) vma: VirtRange,
    /// Base pages present, 1 to 512.
    pub(crate) resident: u16,
    /// True if one page-table entry maps it whole; `None` if that is not known.
    pub(crate) huge: Option<bool>,
    /// True for a huge page of which parts were given back. It counts as whole until it is split: it is charged whole.
    pub(crate) torn: bool,
    /// Time of the look, if it is older than the snapshot.
    pub(crate) looked: Option<Tick>,
}

/// Returns the regions of `memory` that count, in ascending order and each once.
///
/// Skips regions and VMAs out of order rather than sort them: they show that the look was torn.
pub(crate) fn eligible<'a>(memory: &Memory<'a>) -> impl Iterator<Item = RegionState> + use<'a> {
    let mut vmas = memory.promotable().peekable();
    let mut previous = None;
    let torn = memory.torn;
    let looked = memory.looked.map(|at| Tick::START.after(at));
    memory.regions.iter().filter_map(move |seen| {
        let region = seen.region;
        let whole = region.range();
        while vmas.next_if(|vma| vma.end <= whole.start).is_some() {}
        let vma = *vmas.peek()?;
        // A region number beyond the address space would wrap around to an address of another.
        let is_sound = Region::containing(whole.start) == region && previous < Some(region);
        if !is_sound || !vma.contains(&whole) || seen.resident.0 == 0 {
            return None;
        }
        previous = Some(region);
        let torn = torn
            .binary_search_by_key(&region, |torn| torn.region)
            .is_ok();
        Some(RegionState {
            region,
            vma,
            resident: if torn { FULL } else { clamp(seen.resident) },
            huge: if torn { Some(true) } else { seen.huge },
            torn,
            looked,
        })
    })
}

/// Returns the number of pages, at most a full region.
fn clamp(pages: PageCount) -> u16 {
    u16::try_from(pages.0).map_or(FULL, |pages| pages.min(FULL))
}

/// Stage of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Not promoted by us, or no longer.
    Watching,
    /// Planned, outcome not known.
    InFlight {
        /// Time of the plan.
        planned: Tick,
        /// Part of `charged` that this plan added.
        growth: u16,
    },
    /// Promoted, or found huge and left so.
    Done {
        /// Time of the outcome. Looks up to then may show the state before.
        at: Tick,
        /// True if we promoted it, and that added few pages or none.
        had_few_holes: bool,
    },
    /// Split planned, outcome not known.
    Splitting {
        /// Time of the plan.
        planned: Tick,
    },
    /// Split, but no look has shown it yet.
    Split {
        /// Time of the outcome.
        at: Tick,
    },
    /// Would have been promoted (dry run).
    Listed,
    /// `EINVAL`: hopeless until the VMA changes. Kernels before 6.18 also say so of pages that are all write-protected since a fork, which passes.
    Refused {
        /// Time of the next attempt.
        until: Tick,
    },
}

/// Changes that a look shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RegionChange {
    /// An outstanding outcome was given up.
    pub(crate) expired: bool,
    /// Number of pages gone, if our split has taken effect.
    pub(crate) was_split: Option<u16>,
}

/// History of one region, with the notes of its rule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record<N> {
    pub(crate) region: Region,
    /// The VMA around it; while in flight, the one it had when planned.
    vma: VirtRange,
    /// Time at which the number of resident pages, or its being huge, was last seen to change.
    pub(crate) since: Tick,
    /// Failures, and relapses after success.
    pub(crate) trouble: Wait,
    stage: Stage,
    resident: u16,
    /// Resident pages owed to promotion.
    charged: u16,
    /// Resident pages not owed to it: those from before the first promotion that is still charged.
    baseline: u16,
    huge: Option<bool>,
    /// True if it has lost pages since it was last full: the program gives memory back, the kernel reclaims it, or a split freed pages of zeroes.
    has_shrunk: bool,
    pub(crate) note: N,
}

// A program of 8 GiB has 4096 regions, a machine may have a hundred such programs.
const _: () = assert!(size_of::<Record<()>>() <= 72);

impl<N: Copy + Default> Record<N> {
    /// Makes the record of a region seen for the first time.
    pub(crate) fn new(seen: &RegionState, now: Tick) -> Self {
        Self {
            region: seen.region,
            vma: seen.vma,
            since: now,
            trouble: Wait::NONE,
            stage: Stage::Watching,
            resident: seen.resident,
            charged: 0,
            baseline: 0,
            huge: seen.huge,
            has_shrunk: false,
            note: N::default(),
        }
    }

    /// Takes in another look.
    pub(crate) fn see(&mut self, seen: &RegionState, now: Tick) -> RegionChange {
        if (self.resident, self.huge) != (seen.resident, seen.huge) {
            self.since = now;
            self.has_shrunk =
                seen.resident < self.resident || (self.has_shrunk && seen.resident < FULL);
            self.resident = seen.resident;
            self.huge = seen.huge;
        }
        // A refused region waits for longer than that.
        if self.refused_until().is_none() {
            self.trouble.forget(now, &REGION);
        }
        // What an action has done shows in a look that began after it.
        let looked = seen.looked.map_or(now, |looked| looked.min(now));
        let mut news = RegionChange::default();
        match self.stage {
            Stage::InFlight { planned, .. } | Stage::Splitting { planned }
                if now.since(planned) < OUTCOME_TIMEOUT =>
            {
                return news;
            }
            Stage::InFlight { .. } => {
                news.expired = true;
                if self.is_whole() {
                    self.done(now);
                } else {
                    // It may have been promoted and split again since. So its charge shrinks to the pages that have become resident meanwhile.
                    self.stage = Stage::Watching;
                    self.trouble.fail(now, &REGION);
                }
            }
            Stage::Done { at, .. } if looked > at && !self.is_whole() => {
                // The kernel has split it, or the program has given pages back. Promoting it again at once would fight that, so it counts as
                // trouble.
                self.stage = Stage::Watching;
                self.trouble.fail(now, &REGION);
            }
            Stage::Splitting { .. } => {
                news.expired = true;
                self.stage = Stage::Split { at: now };
                news.was_split = self.settle_split(now);
            }
            Stage::Split { at } if looked > at => news.was_split = self.settle_split(now),
            Stage::Refused { until } if self.vma != seen.vma || now >= until => {
                self.stage = Stage::Watching;
                // The next attempt may have to wait for its turn.
                self.trouble.keep(now);
            }
            _ => {}
        }
        self.vma = seen.vma;
        if matches!(self.stage, Stage::Watching | Stage::Refused { .. }) && self.huge != Some(true)
        {
            let grown = self.resident.saturating_sub(self.baseline);
            self.charged = self.charged.min(grown);
        }
        news
    }

    /// Judges a split by the look after it. Returns the number of pages gone, if it took effect.
    fn settle_split(&mut self, now: Tick) -> Option<u16> {
        if self.huge == Some(false) {
            self.stage = Stage::Watching;
            if self.resident < FULL {
                // The kernel has freed the pages of zeroes. The program has written the rest.
                self.charged = 0;
            }
            return Some(FULL - self.resident);
        }
        // Another agent makes huge pages here; splitting again at once would fight it.
        self.stage = Stage::Done {
            at: now,
            had_few_holes: false,
        };
        self.trouble.fail(now, &REGION);
        None
    }

    /// Returns true if the look agrees with the region being one huge page. If the kernel does not show that, a full region counts as one: it is
    /// promoted once, and again only if its content has changed.
    fn is_whole(&self) -> bool {
        self.huge.unwrap_or(self.resident == FULL)
    }

    /// Returns the time at which `rule` allows promoting it; `None`: not in its present state.
    pub(crate) fn ripe_at(&self, rule: &impl Rule<Note = N>) -> Option<Tick> {
        match self.ripeness(rule) {
            PromotionReadiness::Never | PromotionReadiness::Unproven => None,
            PromotionReadiness::AtOnce => Some(self.since),
            // The same look twice is not two looks.
            PromotionReadiness::AfterQuiet(quiet) | PromotionReadiness::WithoutEvidence(quiet) => {
                Some(self.since.after(quiet).max(self.since.after_nanos(1)))
            }
        }
    }

    /// Returns the ripeness of its present state by `rule`.
    pub(crate) fn ripeness(&self, rule: &impl Rule<Note = N>) -> PromotionReadiness {
        if self.stage != Stage::Watching || self.huge == Some(true) {
            return PromotionReadiness::Never;
        }
        match rule.ripeness(self.resident, &self.note) {
            PromotionReadiness::WithoutEvidence(_) if self.has_shrunk => {
                PromotionReadiness::Unproven
            }
            readiness => readiness,
        }
    }

    /// Returns true if forgetting it would change any later decision or the account.
    pub(crate) fn is_worth_keeping(&self, rule: &impl Rule<Note = N>, now: Tick) -> bool {
        self.stage != Stage::Watching
            || self.charged > 0
            || self.trouble.is_troubled()
            || rule.keeps(&self.note, now)
            || self.ripeness(rule) != PromotionReadiness::Never
    }

    /// Returns true if it is a huge page that may be split now, ours or not.
    pub(crate) fn is_splittable(&self, now: Tick) -> bool {
        self.huge == Some(true)
            && self.trouble.until() <= now
            && matches!(self.stage, Stage::Watching | Stage::Done { .. })
    }

    /// Returns true if it is being split or, by `rule`, may be.
    pub(crate) fn may_split(&self, rule: &impl Rule<Note = N>, now: Tick) -> bool {
        self.is_splitting()
            || (self.is_splittable(now)
                && rule.may_split(&self.note, now.since(self.since), self.charged))
    }

    /// Returns the pages that promoting it would add.
    pub(crate) const fn growth(&self) -> u16 {
        FULL - self.resident
    }

    /// Returns the resident pages owed to promotion, a planned promotion included.
    pub(crate) const fn charged(&self) -> u16 {
        self.charged
    }

    /// Returns true if promotion made it huge and added few pages or none: a split would give back as little.
    pub(crate) const fn costs_little(&self) -> bool {
        let had_few_holes = match self.stage {
            Stage::InFlight { growth, .. } => growth <= FEW_HOLES,
            Stage::Done { had_few_holes, .. } => had_few_holes,
            _ => false,
        };
        had_few_holes && self.charged <= FEW_HOLES
    }

    /// Returns the time of the plan, if the outcome is outstanding.
    pub(crate) const fn in_flight_since(&self) -> Option<Tick> {
        match self.stage {
            Stage::InFlight { planned, .. } | Stage::Splitting { planned } => Some(planned),
            _ => None,
        }
    }

    /// Returns true if the outcome of this action is outstanding.
    pub(crate) const fn awaits(&self, action: &Action) -> bool {
        matches!(
            (self.stage, action),
            (Stage::InFlight { .. }, Action::Collapse { .. })
                | (Stage::Splitting { .. }, Action::Split { .. })
        )
    }

    /// Returns true if it was split, and no look has shown it yet.
    pub(crate) const fn is_split(&self) -> bool {
        matches!(self.stage, Stage::Split { .. })
    }

    /// Returns true if its split is under way, up to the look that shows the pages freed.
    pub(crate) const fn is_splitting(&self) -> bool {
        matches!(self.stage, Stage::Splitting { .. } | Stage::Split { .. })
    }

    /// Plans its promotion, and charges its growth.
    pub(crate) fn launch(&mut self, now: Tick) {
        let growth = self.growth();
        self.baseline = self.resident.saturating_sub(self.charged);
        self.charged = (self.charged + growth).min(FULL);
        self.stage = Stage::InFlight {
            planned: now,
            growth,
        };
    }

    /// Plans its split. The charge stays until a look shows what is left.
    pub(crate) const fn launch_split(&mut self, now: Tick) {
        self.stage = Stage::Splitting { planned: now };
    }

    /// Takes back the plan, which was not carried out. Returns the growth taken off the charge.
    pub(crate) fn withdraw(&mut self) -> u16 {
        match self.stage {
            Stage::InFlight { growth, .. } => {
                self.stage = Stage::Watching;
                self.charged -= growth;
                growth
            }
            // Still huge, as far as is known: the next look will show it.
            Stage::Splitting { planned } => {
                self.stage = Stage::Done {
                    at: planned,
                    had_few_holes: false,
                };
                0
            }
            _ => 0,
        }
    }

    /// Records that the plan was carried out; the charge stays.
    pub(crate) const fn done(&mut self, now: Tick) {
        self.stage = match self.stage {
            Stage::Splitting { .. } => Stage::Split { at: now },
            Stage::InFlight { growth, .. } => Stage::Done {
                at: now,
                had_few_holes: growth <= FEW_HOLES,
            },
            _ => Stage::Done {
                at: now,
                had_few_holes: false,
            },
        };
    }

    /// Records a promotion whose outcome, and charge, had been given up. Returns the pages charged again.
    pub(crate) fn done_late(&mut self, growth: u16, now: Tick) -> u16 {
        if self.stage != Stage::Watching {
            return 0;
        }
        let growth = growth.min(FULL - self.charged);
        self.baseline = FULL - self.charged - growth;
        self.charged += growth;
        self.stage = Stage::Done {
            at: now,
            had_few_holes: growth <= FEW_HOLES,
        };
        growth
    }

    /// Records that the action was listed instead of carried out: from here on the region counts as promoted.
    pub(crate) const fn list(&mut self) {
        self.stage = Stage::Listed;
    }

    /// Returns the time of the next attempt, if the kernel refused the last one.
    pub(crate) const fn refused_until(&self) -> Option<Tick> {
        match self.stage {
            Stage::Refused { until } => Some(until),
            _ => None,
        }
    }

    /// Records that the kernel refused to collapse it. Returns the growth taken off the charge.
    pub(crate) fn refuse(&mut self, now: Tick) -> u16 {
        let growth = self.withdraw();
        // The VMA of a heap that grows by a page at a time changes every time.
        self.trouble.fail(now, &REGION);
        self.stage = Stage::Refused {
            until: now.after(self.trouble.on(&REST)),
        };
        growth
    }

    /// Records that its process is gone. Returns all pages that were charged.
    pub(crate) fn release(&mut self) -> u16 {
        if let Stage::InFlight { growth, .. } = &mut self.stage {
            *growth = 0;
        }
        std::mem::take(&mut self.charged)
    }
}

#[cfg(test)]
mod tests {
    mod look {
        use super::super::*;
        use serde::Deserialize;
        use serde::de::IntoDeserializer;
        use serde::de::value::{Error, U64Deserializer};
        use superhue_model::{ProcessId, ProcessView, RegionView, VirtAddr, Vma, VmaKind};

        fn vma(from_mib: u64, to_mib: u64, kind: VmaKind, writable: bool) -> Vma {
            Vma {
                range: VirtRange::new(VirtAddr(from_mib << 20), VirtAddr(to_mib << 20)).unwrap(),
                kind,
                writable,
            }
        }

        fn region(mib: u64, resident: u64) -> RegionView {
            RegionView {
                region: Region::containing(VirtAddr(mib << 20)),
                resident: PageCount(resident),
                huge: Some(false),
            }
        }

        fn eligible_mib(vmas: Vec<Vma>, regions: Vec<RegionView>) -> Vec<(u64, u16)> {
            let view = ProcessView {
                vmas,
                regions,
                ..ProcessView::unread(ProcessId {
                    pid: 1,
                    start_ticks: 1,
                })
            };
            eligible(&Memory::of_process(&view))
                .map(|seen| (seen.region.start().0 >> 20, seen.resident))
                .collect()
        }

        #[test]
        fn only_whole_regions_of_promotable_vmas_count() {
            let vmas = vec![
                vma(3, 9, VmaKind::Anonymous, true),
                vma(9, 14, VmaKind::Anonymous, false),
                vma(16, 18, VmaKind::Stack, true),
                vma(21, 24, VmaKind::Heap, true),
                vma(24, 26, VmaKind::Heap, true),
            ];
            let regions = (0..30).step_by(2).map(|mib| region(mib, 7)).collect();
            assert_eq!(
                eligible_mib(vmas, regions),
                [(4, 7), (6, 7), (22, 7), (24, 7)]
            );
        }

        #[test]
        fn a_region_beyond_the_address_space_is_no_other() {
            // Times 2 MiB, this wraps around to the number 4.
            let beyond: U64Deserializer<Error> = ((1u64 << 43) + 4).into_deserializer();
            let mut view = region(2, 5);
            view.region = Region::deserialize(beyond).unwrap();
            assert_eq!(view.region.start(), VirtAddr(8 << 20));
            let vmas = vec![vma(0, 100, VmaKind::Anonymous, true)];
            assert_eq!(eligible_mib(vmas, vec![region(2, 5), view]), [(2, 5)]);
        }

        #[test]
        fn nonsense_is_passed_over() {
            let vmas = || vec![vma(0, 100, VmaKind::Anonymous, true)];
            let regions = vec![
                region(2, 0),
                region(4, 600),
                region(4, 5),
                region(2, 5),
                region(8, u64::MAX),
            ];
            assert_eq!(eligible_mib(vmas(), regions), [(4, 512), (8, 512)]);
            assert_eq!(eligible_mib(Vec::new(), vec![region(2, 5)]), []);
            // Two VMAs side by side do not make one.
            let split = vec![
                vma(0, 5, VmaKind::Anonymous, true),
                vma(5, 10, VmaKind::Anonymous, true),
            ];
            assert_eq!(
                eligible_mib(split, vec![region(2, 1), region(4, 1), region(6, 1)]),
                [(2, 1), (6, 1)]
            );
        }
    }

    mod history {
        use super::super::*;
        use superhue_model::VirtAddr;

        struct Always;

        impl Rule for Always {
            type Note = ();

            fn ripeness(&self, _: u16, (): &()) -> PromotionReadiness {
                PromotionReadiness::AtOnce
            }
        }

        fn seen(resident: u16, huge: impl Into<Option<bool>>) -> RegionState {
            RegionState {
                region: Region::containing(VirtAddr(4 << 20)),
                vma: VirtRange::new(VirtAddr(0), VirtAddr(64 << 20)).unwrap(),
                resident,
                huge: huge.into(),
                torn: false,
                looked: None,
            }
        }

        fn ms(ms: u64) -> Tick {
            Tick::default().after(Duration::from_millis(ms))
        }

        fn promoted(resident: u16) -> Record<()> {
            let mut record = Record::new(&seen(resident, false), ms(0));
            record.launch(ms(1));
            record.done(ms(2));
            record
        }

        #[test]
        fn charge_follows_what_is_left_of_the_growth() {
            let mut record = promoted(400);
            assert_eq!(record.charged(), 112);
            record.see(&seen(512, true), ms(10));
            assert_eq!(record.charged(), 112);
            // Split with every page kept: the growth is still there.
            record.see(&seen(512, false), ms(20));
            assert_eq!(record.charged(), 112);
            record.see(&seen(450, false), ms(30));
            assert_eq!(record.charged(), 50);
            // Pages that the program adds afterwards are its own.
            record.see(&seen(512, false), ms(40));
            assert_eq!(record.charged(), 50);
            record.see(&seen(300, false), ms(50));
            assert_eq!(record.charged(), 0);
        }

        #[test]
        fn promoting_again_adds_to_what_is_left() {
            let mut record = promoted(400);
            record.see(&seen(450, false), ms(10));
            assert_eq!(record.charged(), 50);
            record.launch(ms(200));
            assert_eq!(record.charged(), 112);
            assert_eq!(record.withdraw(), 62);
            assert_eq!(record.charged(), 50);
            record.launch(ms(300));
            record.done(ms(301));
            record.see(&seen(402, false), ms(310));
            assert_eq!(record.charged(), 2);
        }

        #[test]
        fn only_our_own_huge_page_of_a_nearly_full_region_costs_little() {
            assert!(promoted(512).costs_little());
            assert!(promoted(FULL - FEW_HOLES).costs_little());
            assert!(!promoted(FULL - FEW_HOLES - 1).costs_little());
            let mut record = promoted(512);
            record.see(&seen(512, true), ms(10));
            assert!(record.costs_little());
            // Split, emptied in part, and made huge again by khugepaged, for example.
            record.see(&seen(200, false), ms(20));
            assert!(!record.costs_little());
            record.see(&seen(512, true), ms(30));
            record.launch_split(ms(31));
            record.withdraw();
            assert!(!record.costs_little());
            let mut kept = promoted(512);
            kept.launch_split(ms(3));
            kept.done(ms(4));
            kept.see(&seen(512, true), ms(10));
            assert!(!kept.costs_little(), "somebody else makes huge pages here");
        }

        #[test]
        fn a_look_from_before_the_outcome_proves_nothing() {
            let mut record = promoted(400);
            record.see(&seen(400, false), ms(2));
            assert_eq!(record.charged(), 112);
            assert_eq!(record.ripe_at(&Always), None);
            record.see(&seen(400, false), ms(3));
            assert_eq!(record.charged(), 0);
            assert!(record.ripe_at(&Always).is_some());
            assert!(record.trouble.until() > ms(3));
        }

        #[test]
        fn where_huge_is_not_told_only_a_change_counts() {
            let mut record = Record::new(&seen(512, None), ms(0));
            assert!(record.ripe_at(&Always).is_some());
            record.launch(ms(1));
            record.done(ms(2));
            record.see(&seen(512, None), ms(100_000));
            assert_eq!(record.ripe_at(&Always), None);
            record.see(&seen(511, None), ms(100_001));
            assert!(record.ripe_at(&Always).is_some());
        }

        #[test]
        fn a_missing_outcome_is_judged_by_the_next_look() {
            let late = ms(1).after(OUTCOME_TIMEOUT);
            let launched = || {
                let mut record: Record<()> = Record::new(&seen(400, false), ms(0));
                record.launch(ms(1));
                record
            };
            let mut record = launched();
            assert!(!record.see(&seen(512, true), ms(10_000)).expired);
            assert!(record.in_flight_since().is_some());
            assert!(record.see(&seen(512, true), late).expired);
            assert_eq!((record.in_flight_since(), record.charged()), (None, 112));

            // If the kernel does not show huge pages, a full region counts as success.
            let mut full: Record<()> = Record::new(&seen(400, None), ms(0));
            full.launch(ms(1));
            assert!(full.see(&seen(512, None), late).expired);
            assert_eq!((full.ripe_at(&Always), full.charged()), (None, 112));

            let mut record = launched();
            assert!(record.see(&seen(400, false), late).expired);
            assert_eq!((record.in_flight_since(), record.charged()), (None, 0));
            assert!(record.trouble.until() > late);
            // Promoted, split and partly freed in the meantime:
            let mut split = launched();
            split.see(&seen(450, false), late);
            assert_eq!(split.charged(), 50);
            // And if it happens after all:
            assert_eq!(record.done_late(112, late), 112);
            assert_eq!(record.done_late(112, late), 0);
            assert_eq!(record.charged(), 112);
        }

        #[test]
        fn a_look_from_before_an_action_does_not_judge_it() {
            let looked = |resident, huge, at| RegionState {
                looked: Some(at),
                ..seen(resident, huge)
            };
            let mut record: Record<()> = Record::new(&seen(400, false), ms(0));
            record.launch(ms(1));
            record.done(ms(2));
            // A decision without a new look.
            record.see(&looked(512, true, ms(3)), ms(4));
            record.launch_split(ms(5));
            record.done(ms(6));
            assert_eq!(
                record.see(&looked(512, true, ms(3)), ms(100)).was_split,
                None
            );
            assert_eq!(record.trouble.until(), ms(0));
            let news = record.see(&looked(400, false, ms(101)), ms(102));
            assert_eq!((news.was_split, record.charged()), (Some(112), 0));
        }

        #[test]
        fn refusal_lasts_until_the_vma_changes_or_half_a_minute() {
            let mut record = Record::new(&seen(400, false), ms(0));
            record.launch(ms(1));
            assert_eq!(record.refuse(ms(2)), 112);
            assert_eq!(record.refused_until(), Some(ms(30_002)));
            record.see(&seen(500, false), ms(30_001));
            assert_eq!(record.ripe_at(&Always), None);
            let mut later = record;
            later.see(&seen(500, false), ms(30_002));
            assert!(later.ripe_at(&Always).is_some());
            later.launch(ms(30_003));
            later.refuse(ms(30_004));
            assert_eq!(later.refused_until(), Some(ms(90_004)));
            let mut grown = seen(500, false);
            grown.vma.end = VirtAddr(66 << 20);
            record.see(&grown, ms(30_001));
            assert!(record.ripe_at(&Always).is_some());

            // The VMA at the time of the plan counts, not the first one ever.
            record.launch(ms(30_002));
            record.refuse(ms(30_003));
            record.see(&grown, ms(60_000));
            assert_eq!(record.ripe_at(&Always), None);
        }
    }
}
