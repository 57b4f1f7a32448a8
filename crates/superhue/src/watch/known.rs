//! State of a process between looks, and the time of its next look.

use std::time::Duration;

use superhue_model::{PageCount, VirtAddr};
use superhue_policy::MemoryAge;
use superhue_procfs::process::{Activity, StatmPages};

use super::growth::MemoryGrowth;
use super::huge_pages::HugePages;

/// Shortest and longest time until the next full look at a process that has neither run nor faulted since the last one; in between, the time
/// for which it had slept by then. Other parties may have changed its memory (khugepaged, reclaim). A large change of its size shows earlier.
const FULL_LOOK_OF_SLEEPERS: Duration = Duration::from_secs(30);
const FULL_LOOK_AT_MOST: Duration = Duration::from_secs(600);

/// Sizes of a process that stand still are read again after this share of the time for which they have, and after `STILL_AT_MOST` at most.
const STILL_SHARE: u32 = 8;
const STILL_AT_MOST: Duration = Duration::from_secs(8);

/// Sizes that are due within this share of their interval are read together with sizes that are due now.
const STILL_TOGETHER: u32 = 4;

/// Estimated cost of a first full look.
pub(super) const FIRST_LOOK: Duration = Duration::from_micros(200);

/// State of a process between looks, beside its view in the snapshot.
#[derive(Debug)]
pub(super) struct ProcessState {
    /// Time at which it was first seen.
    pub(super) since: Duration,
    pub(super) resident: PageCount,
    pub(super) growth: MemoryGrowth,
    pub(super) looked: Duration,
    pub(super) cost: Duration,
    /// CPU time and page faults up to the last full look.
    pub(super) activity: Option<Activity>,
    /// Time of the last read of its sizes; `still_since` is the time since which they stand still and it has not been seen to run.
    pub(super) glanced: Duration,
    pub(super) still_since: Duration,
    /// Last time at which it had not run since the last full look.
    pub(super) asleep_at: Duration,
    /// True if the last attempt was refused; worth another one, but not at once.
    pub(super) refused: bool,
    /// Last time at which its lazily freed pages were counted.
    pub(super) lazy_counted: Duration,
    /// True if a collapse found its memory other than in the last look.
    pub(super) is_stale: bool,
    pub(super) huge_pages: HugePages,
    /// Number of collapses of its memory that were done, and their total time.
    pub(super) collapses: (u64, Duration),
    /// Command name; kept only where accounts may show it while the watch runs.
    pub(super) name: String,
    /// End of its stack: the same in all processes that were forked from one process and have not executed another program since, and
    /// almost never in other processes.
    pub(super) stack: Option<VirtAddr>,
}

impl ProcessState {
    /// Returns the state of a process whose first full look is put off.
    pub(super) fn unseen(at: Duration, resident: StatmPages) -> Self {
        Self {
            since: at,
            resident: resident.total,
            growth: MemoryGrowth::new(at, resident),
            looked: at,
            cost: FIRST_LOOK,
            activity: None,
            glanced: at,
            still_since: at,
            asleep_at: at,
            refused: false,
            lazy_counted: at,
            is_stale: false,
            huge_pages: HugePages::NONE,
            collapses: (0, Duration::ZERO),
            name: String::new(),
            stack: None,
        }
    }

    /// Returns its age at `at`.
    pub(super) fn age(&self, at: Duration) -> MemoryAge {
        MemoryAge {
            watched: at.saturating_sub(self.since),
            settled: at.saturating_sub(self.since.max(self.growth.filled_until())),
        }
    }

    /// Returns the time at which its sizes are to be read again.
    pub(super) fn next_glance(&self) -> Duration {
        self.glanced + self.between_glances()
    }

    /// Returns true if its sizes should be read now, together with those of other processes that are due.
    pub(super) fn is_glanced_at(&self, now: Duration) -> bool {
        now + self.between_glances() / STILL_TOGETHER >= self.next_glance()
    }

    fn between_glances(&self) -> Duration {
        let still = self.glanced.saturating_sub(self.still_since);
        (still / STILL_SHARE).min(STILL_AT_MOST)
    }

    /// Returns the longest time between two full looks at it while it sleeps.
    pub(super) fn full_look_within(&self) -> Duration {
        let slept = self.looked.saturating_sub(self.still_since);
        slept.clamp(FULL_LOOK_OF_SLEEPERS, FULL_LOOK_AT_MOST)
    }

    /// Notes that an action has changed its memory, or will.
    pub(super) const fn stir(&mut self, at: Duration) {
        self.still_since = at;
        self.glanced = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    const RESIDENT: StatmPages = StatmPages {
        total: PageCount(100),
        shared: PageCount(0),
    };

    fn known(looked: u64, glanced: u64) -> ProcessState {
        ProcessState {
            looked: seconds(looked),
            glanced: seconds(glanced),
            ..ProcessState::unseen(Duration::ZERO, RESIDENT)
        }
    }

    #[test]
    fn a_sleeper_is_looked_at_less_and_less() {
        let within = |looked| known(looked, looked).full_look_within();
        assert_eq!(within(0), seconds(30));
        assert_eq!(within(30), seconds(30));
        assert_eq!(within(120), seconds(120));
        assert_eq!(within(100_000), seconds(600));
    }

    #[test]
    fn sizes_that_are_due_soon_are_read_with_others() {
        let known = known(0, 32);
        assert_eq!(known.next_glance(), seconds(36));
        assert!(!known.is_glanced_at(seconds(34)));
        assert!(known.is_glanced_at(seconds(35)));
        assert_eq!(self::known(0, 6400).next_glance(), seconds(6408));
        let busy = ProcessState::unseen(seconds(7), RESIDENT);
        assert!(busy.is_glanced_at(seconds(7)));
    }
}
