//! Cost of tracking.

use std::time::Duration;

/// Cost of tracking so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrackingCost {
    /// CPU time of Superhue's thread, and of the kernel's threads that track for it.
    pub own: Duration,
    /// Estimated time for which the target was held up: its page tables locked, its TLB refilled.
    pub target: Duration,
    /// Wall time since tracking began.
    pub wall: Duration,
    /// Targets that could run, and be held up, at the same time: at most the number of CPUs.
    pub abreast: u32,
    /// True if every sample flushed the TLB.
    pub flushed: bool,
}

impl Default for TrackingCost {
    fn default() -> Self {
        Self {
            own: Duration::ZERO,
            target: Duration::ZERO,
            wall: Duration::ZERO,
            abreast: 1,
            flushed: true,
        }
    }
}

impl TrackingCost {
    /// Returns the larger of the two costs as a share of the wall time, 0 if there was none. Several targets have several times the wall time, as far
    /// as there are CPUs for them.
    #[must_use]
    pub fn overhead(&self) -> f64 {
        if self.wall.is_zero() {
            return 0.0;
        }
        let target = self.target / self.abreast.max(1);
        self.own.max(target).as_secs_f64() / self.wall.as_secs_f64()
    }

    /// Adds the cost of one step.
    pub(super) fn add(&mut self, own: Duration, target: Duration) {
        self.own += own;
        self.target += target;
    }
}
