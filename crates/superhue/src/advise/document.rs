//! Advice as a document: the machine, processes and services.

use serde::Serialize;
use superhue_color::walks::WalkCost;
use superhue_model::ByteCount;

use super::estimate::{Estimate, Interval};
use super::verdict::{NoGain, State, Verdict};
use crate::tlb::TlbReport;
use crate::why::{Machine, Reason};

/// The version of the document.
pub const SCHEMA: &str = "superhue-advise/1";

/// Complete output of `superhue advise`.
#[derive(Debug, Serialize)]
pub struct Advice {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Facts on the processor and the kernel.
    pub machine: MachineFacts,
    /// Advice by process, the greatest likely gain first.
    pub processes: Vec<ProcessAdvice>,
    /// Advice by service, where that is known.
    pub services: Vec<ServiceAdvice>,
}

/// Facts on the machine.
#[derive(Debug, Serialize)]
pub struct MachineFacts {
    /// Bytes that the last TLB reaches with base pages; `None` if it is not known.
    pub tlb_reach_base_bytes: Option<ByteCount>,
    /// Bytes that the last TLB reaches with huge pages; `None` if it is not known.
    pub tlb_reach_huge_bytes: Option<ByteCount>,
    /// Reason if the reaches are not known.
    pub tlb_unknown_because: Option<String>,
    /// Entries of the TLB, their source, and costs.
    pub tlb: TlbReport,
    /// True on a virtual machine, where walks pass through the host's tables too.
    pub virtual_machine: bool,
    /// Cost of a miss by footprint; empty if nothing could be estimated, or the cost could not be measured.
    pub walks: Vec<WalkFacts>,
    /// Reason if the cost of walks was not measured although processes were watched.
    pub walks_unknown_because: Option<String>,
    /// Reason if the figures do not come from the processor's own counters of TLB misses; `None` where they can.
    pub miss_counters_unknown_because: Option<String>,
    /// Method of tracking accesses; `None` if they could not be tracked.
    pub tracker: Option<&'static str>,
    /// Reason if `tracker` is `None`.
    pub tracker_unknown_because: Option<String>,
    /// The kernel's own settings for huge pages.
    pub huge_pages: Machine,
}

/// Cost of a TLB miss, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WalkFacts {
    /// Bytes of memory over which the loads were spread.
    pub footprint_bytes: ByteCount,
    /// True if neighbouring pages lay in neighbouring frames; false if they lay anywhere.
    pub together: bool,
    /// If loads do not wait for each other.
    pub apart_seconds: f64,
    /// If each waits for the one before.
    pub chained_seconds: f64,
    /// For a page that is read in order.
    pub in_order_seconds: f64,
    /// The share of the time that huge pages saved if loads did not wait for each other, and nothing else was done.
    pub apart_gain: f64,
    /// The same if each load waited for the one before.
    pub chained_gain: f64,
    /// The same for pages in order.
    pub in_order_gain: f64,
}

/// Memory that is not huge, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    /// The reason, as in `superhue status --why`.
    pub reason: Reason,
    /// In words.
    pub text: &'static str,
    /// Resident bytes.
    pub bytes: ByteCount,
}

/// One process.
#[derive(Debug, Serialize)]
pub struct ProcessAdvice {
    /// Process number.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Real user.
    pub uid: u32,
    /// The service it belongs to.
    pub service: Option<String>,
    /// CPUs it uses, 1 for one all the time.
    pub cpus: f64,
    /// Resident memory of every kind.
    pub rss_bytes: Option<ByteCount>,
    /// Resident anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// Memory that huge pages map now, of every kind.
    pub huge_bytes: Option<ByteCount>,
    /// Memory that could be huge at once (`superhue status --why`).
    pub possible_bytes: Option<ByteCount>,
    /// Bytes that would become resident if `possible_bytes` became huge.
    pub growth_bytes: Option<ByteCount>,
    /// Page tables.
    pub page_table_bytes: Option<ByteCount>,
    /// The most that its huge pages hold beyond what it touched.
    pub bloat_bound_bytes: Option<ByteCount>,
    /// Memory that it touches within 1 ms of its CPU time; an estimate.
    pub hot_1ms_bytes: Option<ByteCount>,
    /// The same for 100 ms.
    pub hot_100ms_bytes: Option<ByteCount>,
    /// The part of the watched memory that was not touched in the longest windows; an estimate.
    pub untouched_bytes: Option<ByteCount>,
    /// Obstacles, the one with most memory first.
    pub obstacles: Vec<Obstacle>,
    /// Reason if sizes, obstacles or the estimate are missing.
    pub unknown_because: Option<String>,
    /// True if the caller may not read its page tables.
    #[serde(skip)]
    pub is_denied: bool,
    /// Extent of the watching; `None` if it was not watched.
    pub watched: Option<WatchExtent>,
    /// Gain from huge pages; `None` if it could not be watched, or the reach of the TLB is not known.
    pub estimate: Option<Estimate>,
    /// State: an estimate, or the reason for having none.
    pub state: State,
    /// Verdict on that gain.
    pub verdict: Verdict,
    /// Reason why there is nothing to gain, if that is the verdict.
    pub no_gain: Option<NoGain>,
    /// The verdict in a sentence.
    pub because: String,
    /// Suggestions: commands, or a rule for the daemon.
    #[serde(rename = "try")]
    pub attempts: Vec<String>,
}

impl ProcessAdvice {
    /// Returns the advice on a process of which nothing is known yet.
    pub(super) fn unseen(pid: u32) -> Self {
        Self {
            pid,
            name: String::new(),
            uid: 0,
            service: None,
            cpus: 0.0,
            rss_bytes: None,
            anonymous_bytes: None,
            huge_bytes: None,
            possible_bytes: None,
            growth_bytes: None,
            page_table_bytes: None,
            bloat_bound_bytes: None,
            hot_1ms_bytes: None,
            hot_100ms_bytes: None,
            untouched_bytes: None,
            obstacles: Vec::new(),
            unknown_because: None,
            is_denied: false,
            watched: None,
            estimate: None,
            state: State::Unknown,
            verdict: Verdict::Unknown,
            no_gain: None,
            because: String::new(),
            attempts: Vec::new(),
        }
    }
}

/// Extent of the observations of a process.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct WatchExtent {
    /// Seconds.
    pub seconds: f64,
    /// Windows.
    pub windows: usize,
    /// Base pages in the memory that was watched.
    pub pages: u64,
    /// The share of them in regions that could be huge as a whole.
    pub possible: f64,
}

/// The processes of one service.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServiceAdvice {
    /// Name of the service.
    pub service: String,
    /// Processes.
    pub processes: usize,
    /// State of its busy processes, else of its largest one.
    pub state: State,
    /// CPUs they use.
    pub cpus: f64,
    /// Resident memory, that shared by several counted for each; `None` if that of a process is not known.
    pub rss_bytes: Option<ByteCount>,
    /// Memory that huge pages map; `None` if that of a process is not known.
    pub huge_bytes: Option<ByteCount>,
    /// Memory that could be huge; `None` if that of a process is not known.
    pub possible_bytes: Option<ByteCount>,
    /// The share of their CPU time that would be saved; `None` unless its busy processes have an estimate.
    pub gain: Option<Interval>,
    /// Reason if `gain` is `None`.
    pub gain_unknown_because: Option<String>,
    /// The rule to try.
    #[serde(rename = "try")]
    pub attempts: Vec<String>,
}

pub(super) fn walk_facts(cost: &WalkCost, together: bool) -> WalkFacts {
    WalkFacts {
        footprint_bytes: cost.footprint,
        together,
        apart_seconds: cost.apart_ns * 1e-9,
        chained_seconds: cost.chained_ns * 1e-9,
        in_order_seconds: cost.in_order_ns * 1e-9,
        apart_gain: cost.apart_gain,
        chained_gain: cost.chained_gain,
        in_order_gain: cost.in_order_gain,
    }
}
