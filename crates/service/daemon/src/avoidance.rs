//! Time for which something is left alone, each time for twice as long.

use std::time::Duration;

/// Time for which a process that has held a worker up is left alone: at first, and at most.
pub(crate) const LEFT_ALONE: Duration = Duration::from_secs(10);
pub(crate) const LEFT_ALONE_AT_MOST: Duration = Duration::from_secs(600);

/// Time for which something is left alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avoidance {
    times: u32,
    /// Time of the first trouble.
    pub(crate) since: Duration,
    pub(crate) until: Duration,
}

impl Avoidance {
    /// Returns one that ends at `at`.
    pub(crate) const fn new(at: Duration) -> Self {
        Self {
            times: 0,
            since: at,
            until: at,
        }
    }

    /// Begins again at `at`: for `first`, then each time for twice as long, and for `most` at most.
    pub(crate) fn prolong(&mut self, at: Duration, first: Duration, most: Duration) {
        let pause = first.saturating_mul(1 << self.times.min(10));
        self.until = at + pause.min(most);
        self.times += 1;
    }

    /// Returns true while it lasts.
    pub(crate) fn holds(&self, at: Duration) -> bool {
        at < self.until
    }
}
