//! What a watch keeps of a process between looks, and when it is looked at again.

use std::time::Duration;

use superhue_model::{PageCount, VirtAddr};
use superhue_procfs::process::Activity;

use super::growth::Growth;
use super::superpages::Superpages;

/// A process that has neither run nor faulted since is looked at in full again after this long, or as long as it has slept by then, and after this
/// long at most: others may have changed its memory (khugepaged, reclaim). What changes its size by much is seen before that.
const FULL_LOOK_OF_SLEEPERS: Duration = Duration::from_secs(30);
const FULL_LOOK_AT_MOST: Duration = Duration::from_secs(600);

/// The sizes of a process that stands still are read again after this share of the time for which it has, and after this long at most.
const STILL_SHARE: u32 = 8;
const STILL_AT_MOST: Duration = Duration::from_secs(8);

/// Sizes that are due within this share of their time are read with those that are due now.
const STILL_TOGETHER: u32 = 4;

/// What a first look in full costs, before it is known.
const FIRST_LOOK: Duration = Duration::from_micros(200);

/// What is kept of a process between looks, beside its view in the snapshot.
#[derive(Debug)]
pub(super) struct Known {
    /// When it was first seen.
    pub(super) since: Duration,
    pub(super) resident: PageCount,
    pub(super) growth: Growth,
    pub(super) looked: Duration,
    pub(super) cost: Duration,
    /// Its processor time and faults by then.
    pub(super) activity: Option<Activity>,
    /// The last time its sizes were read, and the time since which they stand still and it has not been seen to run.
    pub(super) glanced: Duration,
    pub(super) still_since: Duration,
    /// The last time it was found not to have run since the last full look.
    pub(super) asleep_at: Duration,
    /// The last attempt was refused; worth another one, but not at once.
    pub(super) refused: bool,
    /// A collapse found its memory other than it was seen.
    pub(super) is_stale: bool,
    pub(super) superpages: Superpages,
    /// Collapses of its memory that were done, and how long they took.
    pub(super) collapses: (u64, Duration),
    /// What it is called; of interest only where somebody may ask while the watch goes on.
    pub(super) name: String,
    /// Where its stack ends: the same in all that were forked from one process and have not executed another program since, as
    /// good as never in others.
    pub(super) stack: Option<VirtAddr>,
}

impl Known {
    /// Returns what is known of a process whose first full look is put off.
    pub(super) fn unseen(at: Duration, resident: PageCount) -> Self {
        Self {
            since: at,
            resident,
            growth: Growth::new(at, resident),
            looked: at,
            cost: FIRST_LOOK,
            activity: None,
            glanced: at,
            still_since: at,
            asleep_at: at,
            refused: false,
            is_stale: false,
            superpages: Superpages::NONE,
            collapses: (0, Duration::ZERO),
            name: String::new(),
            stack: None,
        }
    }

    /// Returns the time at which its sizes are to be read again.
    pub(super) fn next_glance(&self) -> Duration {
        self.glanced + self.between_glances()
    }

    /// Says whether its sizes are to be read now, on account of others that are due.
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

    /// Notes that something was done to its memory, or is to be.
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

    fn known(looked: u64, glanced: u64) -> Known {
        Known {
            looked: seconds(looked),
            glanced: seconds(glanced),
            ..Known::unseen(Duration::ZERO, PageCount(100))
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
        let busy = Known::unseen(seconds(7), PageCount(1));
        assert!(busy.is_glanced_at(seconds(7)));
    }
}
