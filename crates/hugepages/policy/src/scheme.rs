//! A scheme: which regions get huge pages, which of these lose them again, and what that may cost. Data; [`Scheme::policy`] makes it work.
//!
//! As DAMON's schemes (`Documentation/mm/damon/design.rst` in the kernel) it consists of a pattern, what is done about it, and a quota:
//!
//! | `--pages` | [`Pattern`] of what is promoted | split again | [`Quota`] of growth |
//! |---|---|---|---|
//! | `kernel`, `never` | nothing | nothing | |
//! | `always` | one resident page | nothing | none |
//! | `resident` | nearly full, and no longer growing | nothing | 5 % |
//! | `hot` | enough pages accessed | cold and mostly zeroes, or colder than what has no room | 5 % |
//!
//! `kernel` and `never` leave the placement to the kernel, whose own setting `never` is for the program; it is looked on all the same.
//! `always` is the rival to compare with, with its bloat: what the machine's setting `always` would come to, for these processes only.
//! The kernel would place the superpage at the page fault; from outside it comes one look later.
//!
//! # `resident`
//!
//! Without access tracking, residency is the best sign that a superpage will be used: a page is
//! resident because the program touched it. The rule wants most of a region to be there, so that
//! promotion adds little, and it wants the region to be quiet: one that is still being filled will
//! soon be full and then costs nothing at all.
//!
//! ```text
//!   resident
//!    512 |                    +-----------  full: promoted at once, adds nothing
//!        |                   /
//!    384 |-------/----------/--------------  min_resident
//!        |      /  +-------/- - - - - -   stopped at 450: after `settle`, adds 62 pages
//!        |     /  /
//!        |    /  /      +-----------------   stopped at 100: never
//!        +-------------------------------> time
//! ```
//!
//! What `hot` goes by is told in `hot.rs` and `split.rs`.

use std::time::Duration;

use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, Outcome, Owner, PageCount, Plan, ProcessId, Region,
    Share, Snapshot,
};

use crate::candidate::{Ripeness, Rule};
use crate::hot::ActivePages;
use crate::promoter::Promoter;
use crate::split::Splitter;
use crate::{FULL, Ledger, Policy};

/// Which regions get superpages, which of these lose them again, and what that may cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheme {
    /// The regions that are promoted. By default none.
    pub pattern: Pattern,
    /// What that may cost.
    pub quota: Quota,
}

/// Which regions are promoted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pattern {
    /// None.
    #[default]
    Nothing,
    /// Each with at least one resident page, at once.
    AnyPage,
    /// Each that is nearly full and has stopped growing.
    Resident(Resident),
    /// Each with enough active pages, hottest for their price first. Needs snapshots with heat; a process without is left alone.
    Active(Active),
}

/// Regions that are nearly full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// How much of a region has to be resident: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 75 % (384 pages) by default.
    pub min_resident: Share,
    /// How long a region that is not full has to have been quiet. 100 ms by default. Even with zero
    /// two looks at different times are needed.
    pub settle: Duration,
}

impl Default for Resident {
    fn default() -> Self {
        Self {
            min_resident: Share::BasisPoints(7_500),
            settle: Duration::from_millis(100),
        }
    }
}

/// Regions that are accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// How much of a region has to be active: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 25 % (128 pages) by default.
    pub min_active: Share,
    /// How long a superpage has to have been watched without an access to be cold; at
    /// least five samples in any case. 30 s by default. A superpage is kept for a third of it
    /// whatever happens.
    pub cold_after: Duration,
    /// Which superpages are split again; `None`: none, whether cold or to make room.
    pub split: Option<Split>,
}

impl Default for Active {
    fn default() -> Self {
        Self {
            min_active: Share::BasisPoints(2_500),
            cold_after: Duration::from_secs(30),
            split: Some(Split::default()),
        }
    }
}

/// Superpages that are split again: cold ones that are mostly zeroes, and those that make room for hotter regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// How much of a cold superpage has to be zeroes: a share of 2 MiB, rounded up to whole pages
    /// and brought between 1 and 512 of them. 50 % by default.
    pub min_zero: Share,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            min_zero: Share::BasisPoints(5_000),
        }
    }
}

/// What promotion may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// How much memory promotion may add, in total: a share of the anonymous resident memory of all
    /// processes; `None` for no limit. 5 % by default.
    pub budget: Option<Share>,
    /// How many bytes of superpages may be made per second, with half a second's worth at once;
    /// `None` for no limit. 2 GiB/s by default, about what one core copies.
    pub rate: Option<ByteCount>,
    /// How long collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound, the default. A
    /// process that fills its memory, larger than it ever was by an eighth in a second, is not held to it.
    pub max_stall: Option<StallBound>,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            budget: Some(Share::BasisPoints(500)),
            rate: Some(ByteCount(2 << 30)),
            max_stall: None,
        }
    }
}

/// A bound on the time that collapses take from a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallBound {
    /// Of every 100 ms, one collapse at least.
    pub allowed: Duration,
    /// How long after it was first seen a process is not held to it.
    pub grace: Duration,
}

impl Scheme {
    /// `--pages always`.
    #[must_use]
    pub fn always() -> Self {
        Self {
            pattern: Pattern::AnyPage,
            quota: Quota {
                budget: None,
                ..Quota::default()
            },
        }
    }

    /// `--pages resident`.
    #[must_use]
    pub fn resident() -> Self {
        Self {
            pattern: Pattern::Resident(Resident::default()),
            quota: Quota::default(),
        }
    }

    /// `--pages hot`.
    #[must_use]
    pub fn hot() -> Self {
        Self {
            pattern: Pattern::Active(Active::default()),
            quota: Quota::default(),
        }
    }

    /// A policy by this scheme that has seen nothing yet.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Policy + Send> {
        match &self.pattern {
            Pattern::Nothing => Box::<LooksOn>::default(),
            Pattern::AnyPage => Box::new(Promoter::new(AnyPage, &self.quota)),
            Pattern::Resident(resident) => {
                Box::new(Promoter::new(NearlyFull::of(resident), &self.quota))
            }
            Pattern::Active(active) => Box::new(WithSplits::new(active, &self.quota)),
        }
    }
}

/// Never plans anything.
#[derive(Debug, Default)]
struct LooksOn {
    ledger: Ledger,
}

impl Policy for LooksOn {
    fn decide(&mut self, _snapshot: &Snapshot) -> Plan {
        Plan::default()
    }

    fn learn(&mut self, _at: Duration, _outcome: &Outcome) {}

    fn wants_look_within(&self) -> Option<Duration> {
        None
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

#[derive(Debug)]
struct AnyPage;

impl Rule for AnyPage {
    type Note = ();

    fn ripeness(&self, _resident: u16, (): &()) -> Ripeness {
        Ripeness::AtOnce
    }
}

#[derive(Debug)]
struct NearlyFull {
    min_resident: u16,
    settle: Duration,
}

impl NearlyFull {
    fn of(resident: &Resident) -> Self {
        Self {
            min_resident: pages_of_a_region(resident.min_resident),
            settle: resident.settle,
        }
    }
}

impl Rule for NearlyFull {
    type Note = ();

    fn ripeness(&self, resident: u16, (): &()) -> Ripeness {
        if resident >= FULL {
            Ripeness::AtOnce
        } else if resident >= self.min_resident {
            Ripeness::AfterQuiet(self.settle)
        } else {
            Ripeness::Never
        }
    }
}

/// Promotes by accesses, and splits what has gone cold or has to give way.
#[derive(Debug)]
struct WithSplits {
    promoter: Promoter<ActivePages>,
    splitter: Option<Splitter>,
}

impl WithSplits {
    fn new(active: &Active, quota: &Quota) -> Self {
        let cold_after = active.cold_after;
        let rule = ActivePages {
            min_active: pages_of_a_region(active.min_active),
            cold_after,
        };
        Self {
            promoter: Promoter::new(rule, quota),
            splitter: active
                .split
                .as_ref()
                .map(|split| Splitter::new(cold_after, pages_of_a_region(split.min_zero))),
        }
    }
}

impl Policy for WithSplits {
    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = self.promoter.decide(snapshot);
        if let Some(splitter) = &mut self.splitter {
            plan.actions.extend(splitter.decide(&mut self.promoter));
        }
        plan
    }

    fn learn(&mut self, at: Duration, outcome: &Outcome) {
        self.promoter.learn(at, outcome);
    }

    fn wants_look_within(&self) -> Option<Duration> {
        self.promoter.wants_look_within()
    }

    fn wants_zeroes(&self) -> Vec<(ProcessId, Region)> {
        self.splitter
            .as_ref()
            .map(|splitter| splitter.questions().to_vec())
            .unwrap_or_default()
    }

    fn learn_zeroes(&mut self, process: ProcessId, region: Region, zero: PageCount) {
        let now = self.promoter.now();
        if let Some(record) = self.promoter.find_mut(Owner::Process(process), region) {
            record.note.learn_zeroes(now, zero);
        }
    }

    fn ledger(&self) -> &Ledger {
        self.promoter.ledger()
    }
}

/// A share of 2 MiB in whole pages, rounded up and brought between 1 and 512.
fn pages_of_a_region(share: Share) -> u16 {
    let bytes = share.of(ByteCount(HUGE_PAGE_SIZE));
    let pages = bytes.0.div_ceil(BASE_PAGE_SIZE);
    u16::try_from(pages).map_or(FULL, |pages| pages.clamp(1, FULL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_rounded_up_and_kept_in_range() {
        for (share, pages) in [
            ("75%", 384),
            ("0%", 1),
            ("0.1%", 1),
            ("0.2%", 2),
            ("1M", 256),
            ("100%", 512),
            ("1000%", 512),
            ("1T", 512),
        ] {
            let rule = NearlyFull::of(&Resident {
                min_resident: share.parse().unwrap(),
                ..Resident::default()
            });
            assert_eq!(rule.min_resident, pages, "{share}");
        }
    }

    #[test]
    fn only_a_full_region_is_ripe_at_once() {
        let rule = NearlyFull {
            min_resident: 384,
            settle: Duration::from_secs(1),
        };
        assert_eq!(rule.ripeness(383, &()), Ripeness::Never);
        let quiet = Ripeness::AfterQuiet(Duration::from_secs(1));
        assert_eq!(rule.ripeness(384, &()), quiet);
        assert_eq!(rule.ripeness(511, &()), quiet);
        assert_eq!(rule.ripeness(512, &()), Ripeness::AtOnce);
    }
}
