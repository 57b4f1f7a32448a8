//! Snapshot to Plan: chooses the regions that get a huge page, and the time.
//!
//! A collapse is not free. The kernel copies the resident pages, zeroes the others, and from then on the program pays for 2 MiB even if it only
//! ever touched 4 KiB of it. `MADV_COLLAPSE` ignores the `max_ptes_*` limits that restrain khugepaged, so the restraint has to come from here. It
//! comes in steps. `promoter.rs` describes a promotion from beginning to end, `split.rs` a split; `resident.rs` and `hot.rs` choose the regions.
//!
//! ```text
//!   Snapshot  [ 512 ][ 480 ][  3  ][ huge ][ 450 ][ 512 ][ 512 |    ]
//!                |      |      |      |       |      |      x      record.rs    leaves its VMA
//!                |      |      x      x       x      |             resident.rs  sparse, done,
//!                |      |                            |                            still growing
//!                |      |                            x             backoff.rs   failed just now
//!                v      v                                          quota.rs     as many as the rate
//!   Plan      collapse collapse                                                   and the process's stalls
//!                                                                  promoter.rs    and budget allow
//!
//!   with heat
//!   resident  [ 512 ][ 480 ][ 300 ][ huge ][ huge ][ 450 ]
//!   active    [ 400 ][  90 ][ 140 ][ cold ][ warm ][   7 ]
//!                |      x      |      |       x       x            hot.rs       too few are active
//!                |             |      |               |                         (7 hot ones: a case
//!                |             |      |               |                          for compaction)
//!                v             v      v                            split.rs     mostly zeroes?
//!   Plan      collapse     collapse split
//! ```
//!
//! ```
//! use superhue_model::Snapshot;
//! use superhue_policy::Scheme;
//!
//! let mut policy = Scheme::resident().policy();
//! let plan = policy.decide(&Snapshot::default());
//! assert!(plan.actions.is_empty(), "where there is no process nothing is to be done");
//! ```
//!
//! `record.rs` and `memory.rs` hold the history from earlier looks. A planned action is in flight, and is not planned again, until its outcome is
//! known.
//!
//! # The life of a region
//!
//! ```text
//!              planned             done
//!   watching ----------> in flight -----> done ---- still huge: nothing to do
//!    ^  ^  ^                 |             |
//!    |  |  +-- failed, late -+             |   seen split or with pages gone:
//!    |  |      (charge back)               |   the charge shrinks to what is left
//!    |  +----------------------------------+   of the growth; counts as trouble
//!    |  ^
//!    |  +-- seen split: rests ------ split <-- splitting <---- done, or huge by anyone
//!    |      (30 s to 1 h)                done            planned
//!    |
//!    +--- its VMA changed, or 30 s to 1 h --- refused  (EINVAL)
//! ```
//!
//! A split that fails leaves the region done, and waiting. One that took effect counts in the ledger once a look has shown it, with the pages that
//! are gone.
//!
//! The policy remembers only regions whose history matters: a sparse region, and one that is already huge, take no memory between looks. It drops
//! the history of every region or process that a snapshot no longer shows. So a process missing from one snapshot is a new process if it returns.
//!
//! # Growth and its budget
//!
//! Promoting a region with `n` resident pages charges `512 - n` pages. While the region stays huge, the charge stays, even if the program comes to
//! use the pages: an observer from outside cannot know which pages the program would have touched. When a look shows the region split again, the
//! charge becomes the number of resident pages beyond `n`, and 0 once a split of ours has freed pages of zeroes; when the region is gone, it is 0.
//! The budget is a share of the anonymous memory *now*: if it is below the charge for a second, huge pages are split until it covers the charge
//! (`promoter/overdrawn.rs`). A region that loses pages between the look and the collapse grows by more than was charged; no policy can see that.
//!
//! # Heat
//!
//! `hot` promotes on accesses rather than residency. So it acts only where a snapshot has heat, and only on new samples: looking twice at the same
//! sample proves nothing, and where sampling has stopped, everything stays as it is. These rules keep it from flapping:
//!
//! * Two samples before a promotion that costs memory.
//! * A huge page is kept for a third of `cold_after`; and it is cold only after `cold_after` of *watched* time and five samples in a row without
//!   any access.
//! * A region that we split is not promoted again for 30 s, then 60 s, doubling up to an hour, and each time it needs half as many active pages
//!   more (up to three quarters of the region).
//! * A huge page gives way only to a region that is at least twice as hot, or sixteen times as hot while it is in use, and only if that makes room.
//!
//! # Order, and fairness
//!
//! `resident` and `always` do not know the worth of a promotion. They take candidates by least growth, then longest quiet, then process, then
//! address. Processes do not take turns: full regions cost no memory, so they go first, and among equals the region that has waited longest does.
//! If a program fills new regions faster than the rate allows, the partly filled regions of other programs wait. That is the cheaper error.
//!
//! `hot` takes the most heat per page of growth first; regions that add nothing come before all others, by heat. It passes over a region that does
//! not fit the budget for others that do. Heat alone shares the budget, in pages touched per second, so the number of samples of a process does not
//! matter: once the budget is used up, huge pages that have cooled down give way to regions that are twice as hot, in any process (`split.rs`).
//! Heat and waiting share the rate: for each quarter of a second that all of a process's candidates have waited for the rate limit, they count as
//! twice as hot. Equals take turns, and even the coldest has its turn in the end.
//!
//! # Time
//!
//! This crate is pure: no I/O, no clock, no randomness. It takes the time from [`Snapshot::at`] and [`Policy::learn`]. A stamp older than the
//! newest one known counts as that one, so neither late looks nor a clock that stands still can settle a region or refill the rate limit.

mod backoff;
mod candidate;
mod clock;
mod evidence;
mod hot;
mod ledger;
mod memory;
mod promoter;
mod quota;
mod record;
mod resident;
mod scheme;
mod split;
mod torn;
mod warmth;

use std::time::Duration;

use superhue_model::{Memory, Outcome, PageCount, Plan, ProcessId, Region, Share, Snapshot};

use hot::HotPolicy;
use promoter::Promoter;
use resident::{AnyPage, NearlyFull};

pub use evidence::MemoryAge;
pub use ledger::{
    Account, Compaction, Durations, GivenUpCounts, Ledger, StallCounts, TrackedCounts,
    WaitingCounts,
};
pub use memory::LONGEST_FILLING;
pub use scheme::{Active, Pattern, Quota, Resident, Scheme, Split, StallBound};

/// An interface that turns looks into plans.
///
/// The loop is: look, [`decide`](Self::decide), act, [`learn`](Self::learn), and sleep for no
/// longer than [`wants_look_within`](Self::wants_look_within). Between two looks,
/// [`resume`](Self::resume) plans more of what was decided, once
/// [`resumes_within`](Self::resumes_within) has passed. The same calls with the same arguments
/// always lead to the same plans.
pub trait Policy {
    /// Returns the plan for a snapshot.
    ///
    /// The plan names no region twice, and no region whose last planned action has no outcome yet: such a region is in flight. An outcome that has
    /// not come after 10 s is given up.
    fn decide(&mut self, snapshot: &Snapshot) -> Plan;

    /// Takes in the outcome of a plan; `at` is the time since the watch began, as in [`Snapshot::at`].
    ///
    /// Results may come in any order and in several outcomes. The policy ignores those of actions that it did not plan.
    fn learn(&mut self, at: Duration, outcome: &Outcome);

    /// Returns the time from the last call after which another look would let this policy do something it cannot do now: a region will have
    /// settled, a back-off ended, the rate limit refilled. `None`: only a change in the processes can.
    fn wants_look_within(&self) -> Option<Duration>;

    /// Returns the next part of what the last decision found, as far as it waited only for [`Quota::max_stall`]; `at` is as in [`learn`](Self::learn).
    /// It costs much less than a decision, and takes into account what was learned since, but no look.
    fn resume(&mut self, _at: Duration) -> Plan {
        Plan::default()
    }

    /// Returns the time from the last call after which [`resume`](Self::resume) has something to plan. `None`: never before a decision.
    fn resumes_within(&self) -> Option<Duration> {
        None
    }

    /// Returns the huge pages of which the policy needs to know the number of pages of zeroes, the most urgent first; at most 64.
    ///
    /// Only one [`decide`](Self::decide) asks each question; the policy asks again after a minute at the soonest, because an answer
    /// ([`learn_zeroes`](Self::learn_zeroes)) means reading 2 MiB. The policy allows for the reading itself to show as an access.
    fn wants_zeroes(&self) -> Vec<(ProcessId, Region)> {
        Vec::new()
    }

    /// Takes in that `zero` pages of a huge page hold only zeroes, at the last known time. Ignored if the policy did not ask.
    fn learn_zeroes(&mut self, _process: ProcessId, _region: Region, _zero: PageCount) {}

    /// Returns true if samples of the accesses to `memory` could change what this policy does with it. Until then the samples need not be taken.
    fn wants_heat(&self, _memory: &Memory<'_>, _age: MemoryAge) -> bool {
        false
    }

    /// Replaces the budget of growth. Pages already charged stay charged.
    fn allow(&mut self, _budget: Option<Share>) {}

    /// Returns the account of everything up to the last call. Reports read no other account.
    fn ledger(&self) -> &Ledger;
}

impl Scheme {
    /// Makes a policy by this scheme, without a history.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Policy + Send> {
        self.policy_after(Ledger::default())
    }

    /// Makes a policy by this scheme that continues the account of another one. It does not know the regions of that one.
    #[must_use]
    pub fn policy_after(&self, mut ledger: Ledger) -> Box<dyn Policy + Send> {
        // The new policy takes no outcome of a plan that is not its own.
        ledger.expired += std::mem::take(&mut ledger.in_flight);
        match &self.pattern {
            Pattern::Nothing => Box::new(NullPolicy { ledger }),
            Pattern::AnyPage => Box::new(Promoter::new(AnyPage, &self.quota).with_ledger(ledger)),
            Pattern::Resident(resident) => {
                let rule = NearlyFull::of(resident);
                Box::new(Promoter::new(rule, &self.quota).with_ledger(ledger))
            }
            Pattern::Active(active) => Box::new(HotPolicy::new(active, &self.quota, ledger)),
        }
    }
}

/// A policy that plans nothing.
#[derive(Debug, Default)]
struct NullPolicy {
    ledger: Ledger,
}

impl Policy for NullPolicy {
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

/// [`superhue_model::PAGES_PER_REGION`] in the integer type that records use.
pub(crate) const FULL: u16 = 512;

const _: () = assert!(FULL as u64 == superhue_model::PAGES_PER_REGION);

/// Holes, in pages, of a region that `auto` makes huge without evidence, and does not watch for a split. CPython (3.10 and later) leaves 4 pages of
/// each arena of 1 MiB unused, because its pools are aligned to 16 KiB and its arenas are not (`Objects/obmalloc.c`): 8 in a region.
pub(crate) const FEW_HOLES: u16 = FULL / 32;

#[cfg(test)]
mod tests {
    use superhue_model::{
        ActionResult, ByteCount, Effect, HUGE_PAGE_SIZE, ProcessView, RegionView, VirtAddr,
        VirtRange, Vma, VmaKind,
    };

    use super::*;

    /// Returns a process whose regions have these numbers of resident pages, at this time.
    fn snapshot(seconds: u64, resident: &[u64]) -> Snapshot {
        let start = VirtAddr(HUGE_PAGE_SIZE);
        let end = VirtAddr((1 + resident.len() as u64) * HUGE_PAGE_SIZE);
        let view = |(number, &pages): (u64, &u64)| RegionView {
            region: Region::containing(VirtAddr(number * HUGE_PAGE_SIZE)),
            resident: PageCount(pages),
            huge: Some(false),
        };
        let process = ProcessView {
            rss_anon: Some(ByteCount(64 << 20)),
            vmas: vec![Vma {
                range: VirtRange::new(start, end).unwrap(),
                kind: VmaKind::Anonymous,
                writable: true,
            }],
            regions: (1..).zip(resident).map(view).collect(),
            ..ProcessView::unread(ProcessId {
                pid: 1,
                start_ticks: 1,
            })
        };
        Snapshot {
            at: Duration::from_secs(seconds),
            processes: vec![process],
            objects: Vec::new(),
        }
    }

    #[test]
    fn what_an_earlier_policy_has_charged_stays_charged() {
        let mut budgeted = Scheme::resident();
        budgeted.quota.budget = Some(Share::Bytes(PageCount(100).bytes()));
        let pages = |count| PageCount(count).bytes();
        let ledger = Ledger {
            charged: pages(90),
            ..Ledger::default()
        };
        // The last region is huge.
        let huge = |seconds, resident: &[u64]| {
            let mut snapshot = snapshot(seconds, resident);
            if let Some(last) = snapshot.processes[0].regions.last_mut() {
                last.huge = Some(true);
            }
            snapshot
        };
        let planned = |ledger: &Ledger, resident: &[u64]| {
            let mut policy = budgeted.policy_after(ledger.clone());
            policy.decide(&huge(1, resident));
            let plan = policy.decide(&huge(2, resident));
            (plan.actions.len(), policy.ledger().charged)
        };
        assert_eq!(
            planned(&Ledger::default(), &[500, 500, 512]),
            (2, pages(24))
        );
        assert_eq!(planned(&ledger, &[500, 500, 512]), (0, pages(90)));
        assert_eq!(planned(&ledger, &[505, 512]), (1, pages(97)));

        // Its process may be left alone for a while.
        let mut policy = budgeted.policy_after(ledger.clone());
        policy.decide(&Snapshot::default());
        assert_eq!(policy.ledger().charged, pages(90));
        policy.decide(&huge(1, &[512]));
        assert_eq!(policy.ledger().charged, pages(90));
        policy.decide(&Snapshot::default());
        assert_eq!(policy.ledger().charged, pages(0), "it has ended");
        // What is charged is in huge pages.
        let mut policy = budgeted.policy_after(ledger);
        policy.decide(&snapshot(1, &[512]));
        assert_eq!(policy.ledger().charged, pages(0));
    }

    #[test]
    fn another_policy_continues_the_account() {
        let mut first = Scheme::auto().policy();
        let planned = first.decide(&snapshot(1, &[512, 500])).actions.len();
        assert_eq!(planned, 1, "the other may still grow");
        assert_eq!(first.ledger().in_flight, 1);

        let mut next = Scheme::resident().policy_after(first.ledger().clone());
        let ledger = next.ledger();
        assert_eq!(
            (ledger.planned, ledger.expired, ledger.in_flight),
            (1, 1, 0)
        );
        next.decide(&snapshot(2, &[512, 500]));
        let more = next.decide(&snapshot(3, &[512, 500])).actions.len() as u64;
        assert_eq!(
            more, 1,
            "nearly full and settled; the full one is under way"
        );
        let ledger = next.ledger();
        assert_eq!(ledger.planned, 3);
        assert_eq!(ledger.in_flight, 2);
    }

    #[test]
    fn regions_with_few_holes_use_half_of_the_budget() {
        let mut auto = Scheme::auto().policy();
        let planned = |auto: &mut Box<dyn Policy + Send>, seconds, resident: &[u64]| {
            auto.decide(&snapshot(seconds, resident)).actions.len()
        };
        assert_eq!(planned(&mut auto, 1, &[504; 16]), 0, "they may still grow");
        // 1 % of 64 MiB are 163 pages.
        assert_eq!(planned(&mut auto, 2, &[504; 16]), 10);
        assert_eq!(planned(&mut auto, 3, &[504; 16]), 0);
        assert_eq!(auto.ledger().charged, PageCount(80).bytes());
        let waiting = &auto.ledger().waiting;
        assert_eq!((waiting.settling, waiting.budget), (6, 0));
        auto.allow(Some(Share::BasisPoints(200)));
        assert_eq!(planned(&mut auto, 4, &[504; 16]), 6);
    }

    #[test]
    fn a_region_that_gave_pages_back_needs_evidence() {
        let mut auto = Scheme::auto().policy();
        let mut planned = |seconds, resident| auto.decide(&snapshot(seconds, &[resident]));
        for (seconds, resident) in [(1, 508), (2, 500), (3, 500), (9, 501)] {
            assert!(planned(seconds, resident).actions.is_empty(), "{resident}");
        }
        assert_eq!(planned(10, 512).actions.len(), 1, "it is full");
    }

    #[test]
    fn heat_is_wanted_where_it_can_decide() {
        let old = MemoryAge::MAX;
        let holes = snapshot(1, &[400; 8]);
        let memory = Memory::of_process(&holes.processes[0]);
        let mut auto = Scheme::auto().policy();
        assert!(
            !auto.wants_heat(&memory, old),
            "its budget is not known yet"
        );
        auto.decide(&holes);
        // 1 % of 64 MiB are 163 pages, which pay for one region of 112.
        assert!(auto.wants_heat(&memory, old));
        assert!(!auto.wants_heat(&memory, MemoryAge::default()));
        auto.allow(Some(Share::BasisPoints(0)));
        auto.decide(&holes);
        assert!(!auto.wants_heat(&memory, old));
        let hot = Scheme::hot().policy();
        assert!(hot.wants_heat(&memory, old));
        let settled = Duration::from_millis(500);
        for (settled, is_wanted) in [(Duration::ZERO, false), (settled, true)] {
            let age = MemoryAge {
                watched: settled,
                settled,
            };
            assert_eq!(hot.wants_heat(&memory, age), is_wanted, "{settled:?}");
        }
        assert!(!Scheme::resident().policy().wants_heat(&memory, old));
    }

    #[test]
    fn huge_pages_of_full_regions_need_no_samples() {
        let mut auto = Scheme::auto().policy();
        auto.decide(&snapshot(1, &[512, 512]));
        let plan = auto.decide(&snapshot(2, &[512, 512]));
        let results = (plan.actions.into_iter())
            .map(|action| ActionResult {
                action,
                effect: Effect::Done,
                took: Duration::from_millis(1),
            })
            .collect();
        auto.learn(Duration::from_secs(2), &Outcome { results });
        let mut huge = snapshot(3, &[512, 512]);
        for view in &mut huge.processes[0].regions {
            view.huge = Some(true);
        }
        let mut other = Scheme::auto().policy();
        for policy in [&mut auto, &mut other] {
            policy.decide(&huge);
        }
        let memory = Memory::of_process(&huge.processes[0]);
        assert!(!auto.wants_heat(&memory, MemoryAge::MAX));
        assert!(
            other.wants_heat(&memory, MemoryAge::MAX),
            "somebody else made them"
        );
    }
}
