//! State of a running watch, as plain data for display and for metrics.
//!
//! Counters only grow while the watch lasts (`done`, `failed`, `skipped`, `*_seconds` and names that end in `seen`); all other fields show
//! the present state. Bytes and seconds; `None` means "not known here", never 0.

mod cost;
mod counts;
mod merge;
mod tally;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use superhue_model::{ByteCount, ProcessId};

pub use cost::OwnCost;
pub(crate) use counts::{nonzero, waiting};
pub(crate) use merge::note_reason;
pub(crate) use tally::Tallies;

use crate::{ColorsReport, Pages};

/// The members of a watch, each with the service that it belongs to.
pub type Members = BTreeMap<ProcessId, Arc<str>>;

/// Processes that an account lists one by one: those with most memory.
pub const PROCESSES_LISTED: usize = 256;

/// Services that an account lists; further ones count in the sums only.
pub const SERVICES_LISTED: usize = 1024;

/// A watch as it is now. See [`LiveWatch::account`](crate::live::LiveWatch::account).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WatchAccount {
    /// Seconds between the beginning of the watch and this account.
    pub at_seconds: f64,
    /// The policy in effect; `None` until a process has memory that huge pages could be made of.
    pub pages: Option<Pages>,
    /// Reason for this policy and this tracker, or for having none yet.
    pub pages_because: String,
    /// Tracker of accesses (`ptwalk`, `idle`, `damon`).
    pub tracker: Option<String>,
    /// True while the owner has paused the watch: it observes and does not act.
    pub paused: bool,
    /// Reason why the configuration cannot work here; the watch does not touch the processes then.
    pub trouble: Option<String>,
    /// Notes on the means by which the policy acts.
    pub notes: Vec<String>,
    /// Memory of all its processes.
    pub memory: LiveMemory,
    /// Processes that ever belonged to it.
    pub processes_seen: u64,
    /// Processes of it that Superhue might not look at, including those that have ended.
    pub processes_denied: u64,
    /// Processes whose pages could not be recolored when last tried, by reason.
    pub left_alone: BTreeMap<String, u64>,
    /// Programs whose memory could not be read, with the reason; some of them, if there are many.
    pub unreadable: BTreeMap<String, String>,
    /// Programs whose accesses could not be tracked, likewise.
    pub untracked: BTreeMap<String, String>,
    /// Results of collapses.
    pub collapses: ActionCounts,
    /// Results of splits.
    pub splits: ActionCounts,
    /// Regions that wait, by the reason for waiting, at the last decision.
    pub waiting: BTreeMap<String, u64>,
    /// Memory that collapses have added over all time.
    pub growth_bytes: ByteCount,
    /// Part of `growth_bytes` that is charged to the budget now.
    pub charged_bytes: ByteCount,
    /// Upper bound on the charge; `None` without a limit.
    pub budget_bytes: Option<ByteCount>,
    /// Time for which programs were held up.
    pub stalls: LiveStalls,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses.
    pub hot_set_bytes: Option<[ByteCount; 3]>,
    /// Result of page coloring; `None` if the configuration names no colors.
    pub colors: Option<LiveColors>,
    /// Cost of the watch itself.
    pub own: OwnCost,
    /// By service (the label that the owner gives with each process): at most [`SERVICES_LISTED`].
    pub services: BTreeMap<String, ServiceAccount>,
    /// The largest processes, at most [`PROCESSES_LISTED`].
    pub processes: Vec<ProcessAccount>,
}

/// Memory of some processes, as their last looks showed it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveMemory {
    /// Number of processes.
    pub processes: u64,
    /// Sum of their resident memory: shared memory counts for each process.
    pub resident_bytes: ByteCount,
    /// Resident anonymous memory.
    pub anonymous_bytes: ByteCount,
    /// Part of `anonymous_bytes` that huge pages map; `None` where the kernel does not report it.
    pub huge_bytes: Option<ByteCount>,
    /// Memory that the kernel holds and charges beside what is resident: parts of huge pages that the program gave back, until the kernel
    /// splits these pages. `None` where it cannot be measured.
    #[serde(default)]
    pub held_bytes: Option<ByteCount>,
    /// Coverage, 0 to 1: `huge_bytes` of `anonymous_bytes`; `None` if unknown or nothing is resident.
    pub coverage: Option<f64>,
}

impl LiveMemory {
    /// Enters one process.
    pub(crate) fn add(
        &mut self,
        resident: ByteCount,
        anonymous: ByteCount,
        huge: Option<ByteCount>,
        held: Option<ByteCount>,
    ) {
        self.merge(&Self {
            processes: 1,
            resident_bytes: resident,
            anonymous_bytes: anonymous,
            huge_bytes: huge,
            held_bytes: held,
            coverage: None,
        });
    }

    /// Enters the memory of other processes. A value that is unknown for one of them is unknown for the sum.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.processes == 0 {
            return;
        }
        let is_first = self.processes == 0;
        let add = |sum: Option<ByteCount>, one: Option<ByteCount>| match is_first {
            true => one,
            false => sum.zip(one).map(|(sum, one)| sum + one),
        };
        self.huge_bytes = add(self.huge_bytes, other.huge_bytes);
        self.held_bytes = add(self.held_bytes, other.held_bytes);
        self.processes += other.processes;
        self.resident_bytes += other.resident_bytes;
        self.anonymous_bytes += other.anonymous_bytes;
        self.coverage = self.covered();
    }

    #[allow(
        clippy::cast_precision_loss,
        reason = "a share of byte counts below 2^52"
    )]
    pub(super) fn covered(&self) -> Option<f64> {
        let huge = self.huge_bytes?;
        let all = self.anonymous_bytes.0;
        (all > 0).then(|| (huge.0 as f64 / all as f64).min(1.0))
    }
}

/// Outcomes of actions of one kind, and the time that they took.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ActionCounts {
    /// Done.
    pub done: u64,
    /// Refused by the kernel, by errno.
    pub failed: BTreeMap<String, u64>,
    /// Skipped on purpose, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Requested for a process that had ended.
    pub vanished: u64,
    /// Seconds that the kernel took for all of them.
    pub seconds: f64,
    /// Seconds within which the kernel finished 99 of 100.
    pub p99_seconds: f64,
    /// Seconds that the longest took.
    pub longest_seconds: f64,
    /// Number of actions by duration, bounded by [`DURATION_BOUNDS_SECONDS`]; the last bucket holds the actions above all bounds. Empty in
    /// the report of a run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<DurationBucket>,
}

/// Bounds of durations in an account, in seconds.
pub const DURATION_BOUNDS_SECONDS: [f64; 12] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0,
];

/// Actions that took longer than the bound before, and no longer than this one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DurationBucket {
    /// The bound, in seconds; `None` for the bucket above all bounds.
    pub at_most_seconds: Option<f64>,
    /// Number of actions in this bucket.
    pub count: u64,
}

/// Time for which programs were held up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveStalls {
    /// Seconds that collapses and splits took, in which a process can neither map nor fault in memory.
    pub collapsing_seconds: f64,
    /// Seconds by which tracking held programs up, estimated.
    pub tracking_seconds: f64,
}

/// Result of page coloring so far, over all processes. See [`ColorsReport`] for each field.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveColors {
    /// The colors, as the user wrote them.
    pub request: String,
    /// Number of colors on this machine; 0 where it is not known.
    pub colors: u64,
    /// Number of wanted colors.
    pub wanted: u64,
    /// Oracle that finds the colors of pages; `none` where there is no oracle.
    pub oracle: String,
    /// Reason why programs run without colors, if they do.
    pub without: Option<String>,
    /// Accessed memory that Superhue looked at.
    pub resident_bytes: ByteCount,
    /// The part of it whose color is known.
    #[serde(default)]
    pub known_bytes: ByteCount,
    /// Share of that part on wanted colors, 0 to 1; `None` without any.
    pub share: Option<f64>,
    /// Pages that received a frame of a wanted color.
    pub recolored_pages: u64,
}

impl From<ColorsReport> for LiveColors {
    fn from(report: ColorsReport) -> Self {
        Self {
            known_bytes: report.known_bytes(),
            colors: report.colors as u64,
            wanted: report.wanted_count as u64,
            request: report.request,
            oracle: report.oracle,
            without: report.without,
            resident_bytes: report.resident_bytes,
            share: report.share,
            recolored_pages: report.recoloring.map_or(0, |it| it.recolored_pages),
        }
    }
}

/// One service: the processes with one label.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceAccount {
    /// Memory of the service's processes now.
    pub memory: LiveMemory,
    /// Actions on its processes, including processes that have ended. A service without a process for long is dropped, with its counts, when
    /// there are more than [`SERVICES_LISTED`].
    pub actions: ServiceActions,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses of its processes; some seconds old.
    #[serde(default)]
    pub hot_set_bytes: Option<[ByteCount; 3]>,
}

/// Actions on the processes of one service.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceActions {
    /// Collapses done.
    pub collapses_done: u64,
    /// Collapses that the kernel refused.
    pub collapses_failed: u64,
    /// Collapses skipped on purpose.
    pub collapses_skipped: u64,
    /// Splits done.
    pub splits_done: u64,
    /// Seconds that collapses and splits took.
    pub collapsing_seconds: f64,
    /// Memory that collapses added.
    pub growth_bytes: ByteCount,
}

/// One process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessAccount {
    /// Process number.
    pub pid: u32,
    /// Clock ticks from boot to its start, which distinguish it from other processes with the same number.
    pub start_ticks: u64,
    /// Command name at the last full look.
    pub name: String,
    /// Label of the service that the process belongs to.
    pub service: String,
    /// Memory of the process; `processes` is 1.
    pub memory: LiveMemory,
    /// Memory that receives 50, 90 and 99 % of its sampled accesses; some seconds old.
    #[serde(default)]
    pub hot_set_bytes: Option<[ByteCount; 3]>,
    /// Collapses of its private memory that were done.
    #[serde(default)]
    pub collapses_done: u64,
    /// Seconds that they took.
    #[serde(default)]
    pub collapsing_seconds: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_hides_is_not_known_of_all() {
        let mib = |n: u64| ByteCount(n << 20);
        let mut memory = LiveMemory::default();
        assert_eq!((memory.huge_bytes, memory.coverage), (None, None));
        memory.add(mib(20), mib(10), Some(mib(4)), Some(mib(1)));
        assert_eq!(memory.coverage, Some(0.4));
        memory.add(mib(10), mib(10), Some(mib(6)), Some(mib(2)));
        assert_eq!(memory.held_bytes, Some(mib(3)));
        assert_eq!((memory.processes, memory.coverage), (2, Some(0.5)));
        memory.add(mib(1), mib(1), None, None);
        assert_eq!(memory.held_bytes, None);
        assert_eq!((memory.huge_bytes, memory.coverage), (None, None));
        memory.add(mib(1), mib(1), Some(mib(1)), Some(mib(1)));
        assert_eq!(memory.huge_bytes, None, "unknown stays unknown");
        assert_eq!(memory.resident_bytes, mib(32));
    }
}
