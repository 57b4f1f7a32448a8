//! CPU time.

use std::time::{Duration, Instant};

pub use superhue_sys::process::thread_cpu_time as cpu_time;

/// Measures a piece of work of the calling thread.
pub(crate) struct Work {
    begun: Instant,
    cpu: Duration,
}

impl Work {
    pub(crate) fn begin() -> Self {
        Self {
            begun: Instant::now(),
            cpu: cpu_time(),
        }
    }

    /// Returns the time that passed, and the CPU time it took.
    pub(crate) fn end(self) -> (Duration, Duration) {
        (self.begun.elapsed(), cpu_time().saturating_sub(self.cpu))
    }
}
