//! CPU time.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of the calling thread. Wall time would count the work of other threads, and on a busy machine space rationed work far apart.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

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
