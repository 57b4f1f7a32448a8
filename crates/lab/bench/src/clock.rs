//! CPU time of a thread.

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread in nanoseconds. Unlike wall time it does not count the CPU's work for other threads,
/// nor, where the hypervisor reports steal time to the kernel, time that the hypervisor took away.
pub(crate) fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap_or(0)
}
