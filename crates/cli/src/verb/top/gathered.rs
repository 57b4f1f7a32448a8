//! Data that the reader has read: plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue::model::{ByteCount, ProcessId, VirtAddr};
use superhue::survey::ProcessEntry;
use superhue::{ProcessStatus, SharedObject};

use super::machine::Machine;

/// Everything that was read, at one moment. Times count from the start of reading.
#[derive(Debug, Clone, Default)]
pub struct TopSnapshot {
    /// Time of this state.
    pub at: Duration,
    /// Every known process.
    pub processes: Vec<ProcessEntry>,
    /// Number of processes beyond the limit of those that are tracked.
    pub unlisted: u64,
    /// Reason why processes cannot be listed.
    pub trouble: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The shared objects, if the screen shows them, and the time at which they were read.
    pub objects: Option<(Duration, Result<Vec<SharedObject>, String>)>,
    /// The process whose mappings the screen shows.
    pub detail: Option<Detail>,
    /// Results of superhue's own tracker.
    pub heat: Heat,
    /// CPU time of superhue so far, and its share over the last seconds.
    pub own: OwnCpu,
    /// The process that has been read for long, and that time.
    pub held_up_by: Option<(u32, Duration)>,
    /// Number of processes that are no longer read because they took too long.
    pub avoided: u64,
}

/// CPU time of superhue itself.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OwnCpu {
    /// Since it started.
    pub total: Duration,
    /// Share of one CPU, over the last 10 s; `None` at the start.
    pub share: Option<f64>,
}

/// The mappings of one process.
#[derive(Debug, Clone)]
pub struct Detail {
    /// Process number.
    pub pid: u32,
    /// Time at which they were read.
    pub at: Duration,
    /// The mappings, or the reason why they cannot be read.
    pub status: Result<ProcessStatus, String>,
    /// Heat of each mapping, by its start: the share of its pages that a sample finds accessed.
    pub heat: BTreeMap<VirtAddr, f64>,
}

/// Results of sampling.
#[derive(Debug, Clone, Default)]
pub struct Heat {
    /// The tracker in use, or the reason why there is none.
    pub tracker: Option<Result<String, String>>,
    /// Memory that receives 50, 90 and 99 % of the accesses, by process.
    pub hot_sets: BTreeMap<ProcessId, [ByteCount; 3]>,
    /// The same for the sampled processes together, by cgroup.
    pub by_cgroup: BTreeMap<String, [ByteCount; 3]>,
    /// Reasons why processes could not be sampled, each with the number of processes.
    pub failed: BTreeMap<String, u64>,
}
