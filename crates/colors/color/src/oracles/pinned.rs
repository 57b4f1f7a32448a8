//! Pinning of a thread to one CPU for a while.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// Pins the calling thread to its current CPU until this is dropped, which restores the previous affinity.
///
/// Every CPU may have a cache of its own. If the kernel refuses, the thread is not pinned: trials that ran on two CPUs
/// count as disturbed anyway.
#[derive(Debug)]
pub(super) struct CpuPin {
    before: Option<CpuSet>,
}

impl CpuPin {
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

impl Drop for CpuPin {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The old affinity was allowed before; if it no longer is, the kernel has already chosen another.
            let _ = sched_setaffinity(None, before);
        }
    }
}
