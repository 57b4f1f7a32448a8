//! Parameters of sampling.

use std::time::Duration;

use superhue_heat::Scope;

/// Parameters of the sampling of processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Bound on the share of time that tracking may cost: of each target's time, of that of all CPUs for the targets together, and of one CPU's for
    /// Superhue: 0 to 1.
    pub max_overhead: f64,
    /// The part of this share that Superhue's own time in sampling may take, 0 to 1; the rest is for its other work.
    pub own_part: f64,
    /// The shortest interval of a sample.
    pub shortest: Duration,
    /// The longest interval of a sample.
    pub longest: Duration,
    /// Memory that is sampled.
    pub scope: Scope,
    /// True if sampling stops, except for a rare glance, once samples stay the same.
    pub settle: bool,
    /// True if a sample of a process that waits for a CPU lasts longer, up to four times: by what it waited.
    pub by_cpu_time: bool,
    /// Longest time for which one sample may hold `mmap_lock` of a process: clearing the accessed bits takes it for all page tables at once
    /// (`clear_refs_write` in fs/proc/task_mmu.c). A process with more page-table entries than that allows is not sampled. `None` is no bound.
    pub max_lock: Option<Duration>,
    /// Accessed bits are cleared in real time if that takes no longer than this, or 10 ms, so that the lock is not held for longer because others
    /// have the CPU.
    pub max_real_time: Duration,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_overhead: 0.01,
            own_part: 1.0,
            shortest: Duration::from_millis(50),
            longest: Duration::from_secs(10),
            scope: Scope::Anonymous,
            settle: true,
            by_cpu_time: false,
            max_lock: None,
            max_real_time: Duration::ZERO,
        }
    }
}
