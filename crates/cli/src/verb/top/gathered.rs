//! What the reader has found out: plain data.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue::model::{ByteCount, ProcessId, VirtAddr};
use superhue::survey::Surveyed;
use superhue::{ProcessStatus, SharedObject};

use super::machine::Machine;

/// Everything that was found out, at one moment. Times are since superhue began to read.
#[derive(Debug, Clone, Default)]
pub struct Gathered {
    /// When.
    pub at: Duration,
    /// Every process that is known.
    pub processes: Vec<Surveyed>,
    /// Processes that are too many to be kept track of.
    pub unlisted: u64,
    /// Why processes cannot be listed.
    pub trouble: Option<String>,
    /// The machine.
    pub machine: Machine,
    /// The shared objects, if they were asked for, and when they were read.
    pub objects: Option<(Duration, Result<Vec<SharedObject>, String>)>,
    /// The process that was asked for.
    pub detail: Option<Detail>,
    /// What a tracker of superhue's own has found.
    pub heat: Heat,
    /// CPU time of superhue so far, and its share of the last seconds.
    pub own: OwnCpu,
    /// The process that is being read for long, and for how long.
    pub held_up_by: Option<(u32, Duration)>,
    /// Processes that took so long to read that they are not looked at any more.
    pub avoided: u64,
}

/// What superhue itself takes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct OwnCpu {
    /// Since it began.
    pub total: Duration,
    /// Of one CPU, over the last 10 s; `None` at the beginning.
    pub share: Option<f64>,
}

/// The mappings of one process.
#[derive(Debug, Clone)]
pub struct Detail {
    /// Its number.
    pub pid: u32,
    /// When they were read.
    pub at: Duration,
    /// They, or why they cannot be read.
    pub status: Result<ProcessStatus, String>,
    /// How hot each is, by where it begins: the share of its pages that a sample finds accessed.
    pub heat: BTreeMap<VirtAddr, f64>,
}

/// What was sampled.
#[derive(Debug, Clone, Default)]
pub struct Heat {
    /// The tracker that is used, or why none is.
    pub tracker: Option<Result<String, String>>,
    /// Memory that receives 50, 90 and 99 % of the accesses, by process.
    pub hot_sets: BTreeMap<ProcessId, [ByteCount; 3]>,
    /// The same of those processes together, by cgroup.
    pub by_cgroup: BTreeMap<String, [ByteCount; 3]>,
    /// Why processes could not be sampled: a reason, and for how many.
    pub failed: BTreeMap<String, u64>,
}
