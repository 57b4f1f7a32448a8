//! The account of all actions: a policy keeps it, and reports read it.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use superhue_model::{Action, ActionResult, ByteCount, Effect, Errno, PageCount, SkipReason};

use crate::backoff::GiveUp;
use crate::quota::RecentStall;

/// Plans of a policy, their results, and the regions that wait.
///
/// Every planned action ends up in exactly one place: `planned` is the sum of the counts in `collapses` and `splits`, and of `expired`, `vanished`
/// and `in_flight`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ledger {
    /// The growth that may be charged, as of the last look; `None` if there is no limit.
    pub budget: Option<ByteCount>,
    /// The growth that promotion has caused and that still exists, plans in flight included. Above `budget` only if the programs have shrunk since,
    /// or if an outcome came after it had been given up.
    pub charged: ByteCount,
    /// The highest `charged` there was.
    pub peak_charged: ByteCount,
    /// Actions planned.
    pub planned: u64,
    /// Results of collapses whose outcome is known.
    pub collapses: Account,
    /// Results of splits whose outcome is known.
    pub splits: Account,
    /// Actions whose region or process was gone before their outcome came.
    pub vanished: u64,
    /// Actions whose outcome did not come in time.
    pub expired: u64,
    /// Actions whose outcome is awaited.
    pub in_flight: u64,
    /// Pages that collapses have added, whether they still exist or not.
    pub grown: PageCount,
    /// Pages that splits freed, as of the first look after each.
    pub returned: PageCount,
    /// Processes given up permanently.
    pub given_up: GivenUpCounts,
    /// Regions that the last look found fit for promotion, except for one obstacle.
    pub waiting: WaitingCounts,
    /// Size of the history between looks.
    pub tracked: TrackedCounts,
    /// Pages that only the program itself could move together.
    pub compaction: Compaction,
    /// Delays of processes by collapses.
    pub stalls: StallCounts,
}

/// The longest time that collapses took out of any 100 ms of one process's memory, or of one shared object, on a grid of 5 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StallCounts {
    /// Of collapses to which [`Quota::max_stall`](crate::Quota::max_stall) applied.
    pub bounded: Duration,
    /// Of the others.
    pub unbounded: Duration,
}

impl StallCounts {
    /// Enters the sum of a process's recent delays.
    pub(crate) fn enter(&mut self, recent: RecentStall) {
        match recent {
            RecentStall::Bounded(sum) => self.bounded = self.bounded.max(sum),
            RecentStall::Unbounded(sum) => self.unbounded = self.unbounded.max(sum),
        }
    }
}

impl Ledger {
    /// Enters the result of a planned action.
    pub(crate) fn enter(&mut self, result: &ActionResult) {
        self.in_flight = self.in_flight.saturating_sub(1);
        match result.action {
            Action::Collapse { growth, .. } => {
                self.collapses.enter(result);
                if result.effect == Effect::Done {
                    self.grown += growth;
                }
            }
            Action::Split { .. } => self.splits.enter(result),
        }
    }
}

/// Results of actions of one kind.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Account {
    /// Actions that the kernel has carried out.
    pub done: u64,
    /// Actions that the kernel refused, by errno.
    pub failed: BTreeMap<Errno, u64>,
    /// Actions not tried, by reason.
    pub skipped: BTreeMap<SkipReason, u64>,
    /// Actions whose process was gone when they were tried.
    pub vanished: u64,
    /// Durations of all but the skipped ones.
    pub took: Durations,
}

impl Account {
    fn enter(&mut self, result: &ActionResult) {
        if !matches!(result.effect, Effect::Skipped { .. }) {
            self.took.add(result.took);
        }
        match result.effect {
            Effect::Done => self.done += 1,
            Effect::Failed { errno } => *self.failed.entry(errno).or_default() += 1,
            Effect::Skipped { reason } => *self.skipped.entry(reason).or_default() += 1,
            Effect::Vanished => self.vanished += 1,
        }
    }

    /// Returns the number of actions that were tried.
    #[must_use]
    pub fn tried(&self) -> u64 {
        self.done + self.failed.values().sum::<u64>() + self.vanished
    }

    /// Returns the number of all actions.
    #[must_use]
    pub fn known(&self) -> u64 {
        self.tried() + self.skipped.values().sum::<u64>()
    }
}

/// Regions that the last look found accessed all the time, but in too few pages for a huge page.
///
/// If the program moved them to one place (see the library), their active pages would fill a few huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Compaction {
    /// Such regions.
    pub regions: u64,
    /// Active pages of those regions.
    pub active: PageCount,
}

impl Compaction {
    pub(crate) fn add(&mut self, active: u16) {
        self.regions += 1;
        self.active.0 += u64::from(active);
    }
}

/// Processes given up permanently, by reason; counted when given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GivenUpCounts {
    /// The kernel does not allow the caller to act on it (`EPERM`, `EACCES`, `ENOSYS`).
    pub not_permitted: u64,
}

impl GivenUpCounts {
    pub(crate) const fn add(&mut self, why: GiveUp) {
        match why {
            GiveUp::NotPermitted => self.not_permitted += 1,
        }
    }
}

/// Regions that wait, by the first thing they wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitingCounts {
    /// The memory is being filled, the region changed a moment ago, or it lacks samples.
    pub settling: u64,
    /// A failure of the region, its process or the whole machine has to pass.
    pub backing_off: u64,
    /// The growth does not fit the budget.
    pub budget: u64,
    /// The rate limit is used up.
    pub rate: u64,
    /// Collapses have delayed the process for as long as they may.
    pub stall: u64,
}

/// The size of a policy's memory; bounded by what the last snapshot showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackedCounts {
    /// Processes.
    pub processes: u64,
    /// Regions, over all processes.
    pub regions: u64,
}

/// Durations: the longest and the sum exactly, quantiles and counts to two digits. A process may hold many accounts: one takes 2 KiB.
#[derive(Debug, Clone, PartialEq)]
pub struct Durations {
    /// In microseconds.
    histogram: Histogram<u64>,
    total: Duration,
    longest: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        // It grows as needed. Two digits are a valid precision.
        #[allow(clippy::expect_used, reason = "a constant that is valid")]
        let histogram = Histogram::new(2).expect("2 digits");
        Self {
            histogram,
            total: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }
}

impl Durations {
    /// Adds one duration.
    pub fn add(&mut self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Fails only for lack of memory.
        let _ = self.histogram.record(microseconds);
        self.total += duration;
        self.longest = self.longest.max(duration);
    }

    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the number of durations up to this one.
    #[must_use]
    pub fn count_within(&self, duration: Duration) -> u64 {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        self.histogram.count_between(0, microseconds)
    }

    /// Returns the duration that this share of them, 0 to 1, did not exceed; 0 without any.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.histogram.value_at_quantile(quantile)).min(self.longest)
    }

    /// Returns their sum.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// Returns the longest; 0 without any.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }
}
