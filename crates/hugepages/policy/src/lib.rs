//! Snapshot to Plan: which regions deserve a superpage, and when.
//!
//! A collapse is not free. The kernel copies what is resident, zeroes what is not, and from then on
//! the program pays for 2 MiB even if it only ever touched 4 KiB of it. `MADV_COLLAPSE` ignores the
//! `max_ptes_*` limits that hold khugepaged back, so the restraint has to come from here. It comes
//! in steps. Where to read: a promotion from beginning to end stands in `promoter.rs`, a split in `split.rs`; which regions
//! are wanted in `resident.rs` and `hot.rs`.
//!
//! ```text
//!   Snapshot  [ 512 ][ 480 ][  3  ][ huge ][ 450 ][ 512 ][ 512 |    ]
//!                |      |      |      |       |      |      x      record.rs    leaves its VMA
//!                |      |      x      x       x      |             resident.rs  sparse, done,
//!                |      |                            |                            still growing
//!                |      |                            x             backoff.rs   failed just now
//!                v      v                                          quota.rs     as many as the rate
//!   Plan      collapse collapse                                                   and the process's patience
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
//! `record.rs` and `memory.rs` hold what is known from earlier looks. What was planned is in
//! flight, and not planned again, until its outcome has been learned.
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
//!    |      (30 s to 1 h)                done            planned (hot only)
//!    |
//!    +--- its VMA changed --- refused  (EINVAL)
//! ```
//!
//! A split that fails leaves the region done, and waiting. One that took effect counts in the ledger
//! when a look has shown it, with the pages that are gone.
//!
//! Only regions about which there is something to know are remembered: a sparse region and one that
//! is huge already take no memory between looks, and everything about a region or process that a
//! snapshot no longer shows is dropped. A process missing from one snapshot is therefore a new
//! process if it returns.
//!
//! # Growth and its budget
//!
//! Promoting a region with `n` resident pages charges `512 - n` pages. While the region stays huge
//! the charge stays, even if the program comes to use the pages: who would have touched what cannot
//! be told from outside. When the region is seen split again, the charge is what is resident beyond
//! `n`, and nothing once a split of ours has given pages of zeroes back; when it is gone, nothing. The budget is
//! a share of the anonymous memory *now*: should it fall below what is charged already for a second, huge pages
//! are split until it is not (`overdrawn.rs`). A region that loses pages between the look and the collapse grows by more than was
//! charged; no policy can see that.
//!
//! # Heat
//!
//! `hot` promotes on accesses rather than residency, so it acts only where a snapshot has heat, and
//! only on samples: looking twice at the same sample proves nothing, and where sampling has stopped
//! everything stays as it is. What keeps it from flapping:
//!
//! * Two samples before a promotion that costs memory.
//! * A superpage is kept for a third of `cold_after`; and it is cold only after `cold_after` of
//!   *watched* time and five samples in a row without any access.
//! * What was split by us is not promoted again for 30 s, then 60 s, doubling up to an hour, and each
//!   time needs half as many active pages more (up to three quarters of the region).
//! * Nobody gives way to what is less than twice as hot, while in use to what is less than sixteen
//!   times, nor in vain.
//!
//! # Order, and fairness
//!
//! `resident` and `always` know nothing of what a promotion is worth. Candidates are taken by least growth, then longest quiet, then process, then address. Nothing
//! rotates between processes: full regions cost no memory, so whoever has them goes first, and
//! among equals the one that has waited longest does. A program that filled fresh regions faster
//! than the rate allows would make the partly filled regions of others wait, which is the cheap
//! side to err on.
//!
//! `hot` takes the most heat per page of growth first, and what adds nothing before all of that, by
//! heat; one that does not fit the budget is passed over for others that do. The budget is shared by
//! heat alone, in pages touched per second, so that it does not matter how often a process is sampled:
//! once it is used up, what has cooled down gives way to what is twice as hot, whosesoever it is
//! (`split.rs`). The rate is shared by heat and waiting: for each quarter of a second that
//! all of a process's candidates have waited for the rate limit they count as twice as hot. Equals
//! take turns, and even the coldest has its turn in the end.
//!
//! # Time
//!
//! Everything here is pure: no I/O, no clock, no randomness. Time is what [`Snapshot::at`] and
//! [`Policy::learn`] say it is; a stamp older than the newest one known reads as that one, so
//! neither looks that arrive late nor a clock that stands still can settle a region or refill the
//! rate limit.

mod backoff;
mod candidate;
mod clock;
mod hot;
mod ledger;
mod memory;
mod overdrawn;
mod promoter;
mod quota;
mod record;
mod resident;
mod scheme;
mod split;
mod torn;
mod warmth;

use std::time::Duration;

use superhue_model::{Outcome, PageCount, Plan, ProcessId, Region, Share, Snapshot};

use hot::Hot;
use promoter::Promoter;
use resident::{AnyPage, NearlyFull};

pub use ledger::{Account, Compaction, Durations, GivenUp, Ledger, Tracked, Waiting};
pub use scheme::{Active, Pattern, Quota, Resident, Scheme, Split, StallBound};

/// What turns looks into plans.
///
/// The loop is: look, [`decide`](Self::decide), act, [`learn`](Self::learn), and sleep for no
/// longer than [`wants_look_within`](Self::wants_look_within). The same calls with the same
/// arguments always lead to the same plans.
pub trait Policy {
    /// What should be done about what `snapshot` shows.
    ///
    /// The plan names no region twice, and none whose last planned action has not been learned
    /// about: such a region is in flight. An outcome that has not come after 10 s is given up.
    fn decide(&mut self, snapshot: &Snapshot) -> Plan;

    /// Takes in what became of a plan; `at` is the time since the watch began, as in
    /// [`Snapshot::at`].
    ///
    /// Results may come in any order and in several outcomes. Those for actions that this policy
    /// did not plan are ignored.
    fn learn(&mut self, at: Duration, outcome: &Outcome);

    /// How soon after the last call another look would let this policy do something it cannot do
    /// now: a region will have settled, a back-off ended, the rate limit refilled. `None`: only a
    /// change in the processes can.
    fn wants_look_within(&self) -> Option<Duration>;

    /// Superpages of which the policy has to know how many of their pages hold nothing but zeroes,
    /// the most urgent first; at most 64.
    ///
    /// Each question is put by one [`decide`](Self::decide) only, and again after a minute at the soonest: an answer
    /// ([`learn_zeroes`](Self::learn_zeroes)) means reading 2 MiB. That the reading itself may count as an access is allowed for.
    fn wants_zeroes(&self) -> Vec<(ProcessId, Region)> {
        Vec::new()
    }

    /// Takes in that `zero` pages of a superpage hold nothing but zeroes; that time is the last one known. Ignored where nothing
    /// was asked.
    fn learn_zeroes(&mut self, _process: ProcessId, _region: Region, _zero: PageCount) {}

    /// Has growth keep to another budget from now on. What is charged already stays charged.
    fn allow(&mut self, _budget: Option<Share>) {}

    /// The account of everything up to the last call. There is no other: reports are read from it.
    fn ledger(&self) -> &Ledger;
}

impl Scheme {
    /// A policy by this scheme that has seen nothing yet.
    #[must_use]
    pub fn policy(&self) -> Box<dyn Policy + Send> {
        match &self.pattern {
            Pattern::Nothing => Box::<LooksOn>::default(),
            Pattern::AnyPage => Box::new(Promoter::new(AnyPage, &self.quota)),
            Pattern::Resident(resident) => {
                Box::new(Promoter::new(NearlyFull::of(resident), &self.quota))
            }
            Pattern::Active(active) => Box::new(Hot::new(active, &self.quota)),
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

/// [`superhue_model::PAGES_PER_REGION`] in the width that records count in.
pub(crate) const FULL: u16 = 512;

const _: () = assert!(FULL as u64 == superhue_model::PAGES_PER_REGION);
