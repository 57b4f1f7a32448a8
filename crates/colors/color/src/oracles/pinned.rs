//! Staying on one CPU for a while.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The calling thread stays on the CPU it is on until this is dropped; then it may go where it might before.
///
/// Every CPU may have a cache of its own. Where the kernel refuses, the thread stays free: trials that saw two CPUs count
/// as disturbed anyway.
#[derive(Debug)]
pub(super) struct Pinned {
    before: Option<CpuSet>,
}

impl Pinned {
    pub(super) fn here() -> Self {
        let before = sched_getaffinity(None).ok();
        let cpu = sched_getcpu();
        let mut only = CpuSet::new();
        if before.is_none_or(|before| before.count() < 2) || cpu >= CpuSet::MAX_CPU {
            return Self { before: None };
        }
        only.set(cpu);
        let pinned = sched_setaffinity(None, &only).is_ok();
        Self {
            before: before.filter(|_| pinned),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // It was allowed before; if it no longer is, the kernel has chosen already.
            let _ = sched_setaffinity(None, before);
        }
    }
}
