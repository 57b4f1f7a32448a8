//! CPU time.

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use superhue_sys::process::{cpu_time_of, own_usage};

pub use superhue_sys::process::thread_cpu_time as cpu_time;

/// Returns the time since boot, by the clock of the kernel's start times of processes.
#[must_use]
pub fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Number of the process that supervises this one; 0 if there is none.
static SUPERVISOR: AtomicU32 = AtomicU32::new(0);

/// Names the process that supervises this one: its CPU time is superhue's, too.
pub fn supervised_by(pid: u32) {
    SUPERVISOR.store(pid, Ordering::Relaxed);
}

/// Returns the CPU time of superhue so far: of all threads of this process, and of the process that supervises it.
#[must_use]
pub fn own_cpu_time() -> Duration {
    let supervisor = cpu_time_of(SUPERVISOR.load(Ordering::Relaxed));
    own_usage().cpu() + supervisor.unwrap_or_default()
}

thread_local! {
    /// CPU time of reads right before actions that no caller has collected yet.
    static READS: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Reads the page tables of a whole process right before an action. The CPU time of such reads is part of watching, not of the action.
pub(crate) fn whole_read<T>(read: impl FnOnce() -> T) -> T {
    let before = cpu_time();
    let result = read();
    READS.set(READS.get() + cpu_time().saturating_sub(before));
    result
}

/// Returns the CPU time of the calling thread's [`whole_read`] since the last call.
pub(crate) fn take_reads() -> Duration {
    READS.take()
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
