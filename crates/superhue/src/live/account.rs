//! What a watch that still goes on has to say: plain data, for whoever shows it or counts it.
//!
//! Counters only grow for as long as the watch lasts (`done`, `failed`, `skipped`, `*_seconds` and what is called `seen`); everything else
//! is how it is at the moment. Bytes and seconds; `None` is "not known here", never 0.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use superhue_model::ByteCount;

use crate::{ColorsReport, Pages};

/// Processes that an account lists one by one: those with most memory.
pub const PROCESSES_LISTED: usize = 256;

/// Services that an account tells apart; what further ones come to is in the sums only.
pub const SERVICES_LISTED: usize = 1024;

/// A watch as it is now. See [`LiveWatch::account`](super::LiveWatch::account).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WatchAccount {
    /// Seconds since the watch began at which this was so.
    pub at_seconds: f64,
    /// The policy that is followed; `None` as long as no process had memory that superpages could be made of.
    pub pages: Option<Pages>,
    /// Why this policy and this tracker, or why none yet.
    pub pages_because: String,
    /// What tracks accesses (`ptwalk`, `idle`, `damon`).
    pub tracker: Option<String>,
    /// Whether it only looks on until told to go on.
    pub paused: bool,
    /// Why it cannot do what it was asked for; the processes are left alone then.
    pub trouble: Option<String>,
    /// What is said about how the policy is brought about.
    pub notes: Vec<String>,
    /// Memory of all its processes.
    pub memory: LiveMemory,
    /// Processes that ever belonged to it.
    pub processes_seen: u64,
    /// Processes that Superhue may not look at.
    pub processes_denied: u64,
    /// Processes whose pages could not be recolored when last tried, by reason.
    pub left_alone: BTreeMap<String, u64>,
    /// Programs whose memory could not be read, with the reason; some of them, if there are many.
    pub unreadable: BTreeMap<String, String>,
    /// Programs whose accesses could not be tracked, likewise.
    pub untracked: BTreeMap<String, String>,
    /// What became of collapses.
    pub collapses: LiveActions,
    /// What became of splits.
    pub splits: LiveActions,
    /// Regions that wait, by what for, at the last decision.
    pub waiting: BTreeMap<String, u64>,
    /// Memory that collapses have added over all time.
    pub growth_bytes: ByteCount,
    /// What of that is charged to the budget now.
    pub charged_bytes: ByteCount,
    /// What may be charged; `None` without a limit.
    pub budget_bytes: Option<ByteCount>,
    /// For how long programs were held up.
    pub stalls: LiveStalls,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses.
    pub hot_set_bytes: Option<[ByteCount; 3]>,
    /// What became of page colors; `None` if none were asked for.
    pub colors: Option<LiveColors>,
    /// What the watch itself cost.
    pub own: LiveCost,
    /// By service (the label that processes were fed with): at most [`SERVICES_LISTED`].
    pub services: BTreeMap<String, ServiceAccount>,
    /// The largest processes, at most [`PROCESSES_LISTED`].
    pub processes: Vec<ProcessAccount>,
}

/// Memory of some processes, as their last looks showed it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveMemory {
    /// How many processes.
    pub processes: u64,
    /// Their resident memory, added up: what they share counts for each.
    pub resident_bytes: ByteCount,
    /// Resident anonymous memory.
    pub anonymous_bytes: ByteCount,
    /// The part of it that superpages map; `None` where the kernel does not tell.
    pub huge_bytes: Option<ByteCount>,
    /// What the kernel holds and charges beside what is resident: huge pages of which parts were given back, until they are split. `None`
    /// where it cannot be told.
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

    /// Enters the memory of other processes. What is not known of one of them is not known of all.
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

/// What became of actions of one kind.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveActions {
    /// Done.
    pub done: u64,
    /// Refused by the kernel, by errno.
    pub failed: BTreeMap<String, u64>,
    /// Left undone on purpose, by reason.
    pub skipped: BTreeMap<String, u64>,
    /// Asked of a process that was gone.
    pub vanished: u64,
    /// Seconds the kernel took over all of them.
    pub seconds: f64,
    /// 99 of a hundred took it no longer.
    pub p99_seconds: f64,
    /// Seconds it took over the longest.
    pub longest_seconds: f64,
    /// How many took how long, by [`DURATION_BOUNDS_SECONDS`]; the last one is about those above all bounds.
    #[serde(default)]
    pub buckets: Vec<DurationBucket>,
}

/// Bounds of durations in an account, in seconds.
pub const DURATION_BOUNDS_SECONDS: [f64; 12] = [
    1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0,
];

/// Those that took longer than the bound before, and no longer than this one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DurationBucket {
    /// The bound, in seconds; `None` for those above all bounds.
    pub at_most_seconds: Option<f64>,
    /// How many.
    pub count: u64,
}

/// For how long programs were held up.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveStalls {
    /// Seconds that collapses and splits took, in which a process can neither map nor fault in memory.
    pub collapsing_seconds: f64,
    /// Seconds by which tracking held programs up, as estimated.
    pub tracking_seconds: f64,
}

/// What became of page colors so far, over all processes. See [`ColorsReport`] for each.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveColors {
    /// As the user wrote it.
    pub request: String,
    /// How many colors there are; 0 where that could not be told.
    pub colors: u64,
    /// How many of them were wanted.
    pub wanted: u64,
    /// What told colors; `none` where nothing could.
    pub oracle: String,
    /// Why programs run without colors, if they do.
    pub without: Option<String>,
    /// Accessed memory that was looked at.
    pub resident_bytes: ByteCount,
    /// The share of it on wanted colors, 0 to 1; `None` without any.
    pub share: Option<f64>,
    /// Pages that were given a frame of a wanted color.
    pub recolored_pages: u64,
}

impl From<ColorsReport> for LiveColors {
    fn from(report: ColorsReport) -> Self {
        Self {
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

/// What a watch itself cost.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LiveCost {
    /// Seconds of CPU, collapses made from outside included.
    pub cpu_seconds: f64,
    /// Of these, seconds in tracking.
    pub tracking_seconds: f64,
    /// Seconds of wall time spent looking.
    pub looking_seconds: f64,
    /// Looks, of any kind.
    pub looks: u64,
    /// Looks at the page tables of a process.
    pub full_looks: u64,
    /// The bound on CPU that holds now, as a share of one CPU.
    pub max_overhead: f64,
}

/// One service: the processes that were fed with one label.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceAccount {
    /// Its memory now.
    pub memory: LiveMemory,
    /// What was done to its processes, those that have ended included. Kept while it is known; a service that has had no process for
    /// long is forgotten.
    pub actions: ServiceActions,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses of its processes; some seconds old.
    #[serde(default)]
    pub hot_set_bytes: Option<[ByteCount; 3]>,
}

/// What was done to the processes of one service.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceActions {
    /// Collapses done.
    pub collapses_done: u64,
    /// Collapses that the kernel refused.
    pub collapses_failed: u64,
    /// Collapses left undone on purpose.
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
    /// Its number.
    pub pid: u32,
    /// Clock ticks after boot at which it started, which tells it from others that had its number.
    pub start_ticks: u64,
    /// Command name at the last full look.
    pub name: String,
    /// Its service.
    pub service: String,
    /// Its memory; `processes` is 1.
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
