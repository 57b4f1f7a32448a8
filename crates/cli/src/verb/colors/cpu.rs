//! The CPU whose caches are measured.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use superhue::procfs::hardware::CpuList;

use crate::output::{Failure, UNABLE, USAGE};

/// Keeps the calling thread on one CPU: `wanted`, or the one it is on. Returns its number.
///
/// Every CPU may have a cache of its own, with other pages in it.
pub(super) fn stay_on(wanted: Option<u32>, online: Option<&CpuList>) -> Result<u32, Failure> {
    let allowed = allowed();
    let cpu = match wanted {
        None => u32::try_from(sched_getcpu()).unwrap_or_default(),
        Some(cpu) if online.is_some_and(|online| !online.contains(cpu)) => {
            let online = online.map(ToString::to_string).unwrap_or_default();
            return Err(Failure::new(
                USAGE,
                format!("there is no CPU {cpu}, or it is offline; online are {online}"),
            ));
        }
        Some(cpu) => cpu,
    };
    let refused = |error: &str| {
        Failure::new(
            UNABLE,
            format!(
                "cannot stay on CPU {cpu}: {error}; this process may run on {allowed} (taskset, \
                 cgroup cpuset)"
            ),
        )
    };
    if !allowed.contains(cpu) {
        return Err(refused("it is not allowed to"));
    }
    let mut set = CpuSet::new();
    if let Ok(number) = usize::try_from(cpu)
        && number < CpuSet::MAX_CPU
    {
        set.set(number);
    }
    sched_setaffinity(None, &set).map_err(|error: Errno| refused(&error.to_string()))?;
    Ok(cpu)
}

/// The CPUs this thread may run on.
fn allowed() -> CpuList {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let numbers = (0..CpuSet::MAX_CPU).filter(|&number| set.is_set(number));
    numbers
        .filter_map(|number| u32::try_from(number).ok())
        .collect()
}
