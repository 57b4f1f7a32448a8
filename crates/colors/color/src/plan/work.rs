//! Limit on the work of a search, counted rather than timed: the same problem gives the same plan on every machine.

/// Steps that a search may still take.
#[derive(Debug, Clone)]
pub(super) struct Work {
    left: u64,
}

impl Work {
    pub(super) const fn new(steps: u64) -> Self {
        Self { left: steps }
    }

    /// Takes some steps; returns false once there are none left, and from then on.
    pub(super) const fn spend(&mut self, steps: u64) -> bool {
        self.left = self.left.saturating_sub(steps);
        self.left > 0
    }

    /// Returns true if the search had to stop.
    pub(super) const fn is_out(&self) -> bool {
        self.left == 0
    }
}
