//! CPU time of a thread.

use superhue_sys::process::thread_cpu_time;

/// CPU time of the calling thread in nanoseconds. Unlike wall time it does not count the CPU's work for other threads,
/// nor, where the hypervisor reports steal time to the kernel, time that the hypervisor took away.
pub(crate) fn cpu_time() -> u64 {
    u64::try_from(thread_cpu_time().as_nanos()).unwrap_or(u64::MAX)
}
