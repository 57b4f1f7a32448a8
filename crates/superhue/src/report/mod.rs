//! The final report of a watch: for programs as JSON, for people in a few lines.

mod lines;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use superhue_act::RestoreReport;
use superhue_heat::TrackerKind;
use superhue_model::{Action, ByteCount};
use superhue_policy::StallCounts;
use superhue_sys::process::own_usage;

use crate::account::{ActionCounts, OwnCost, WatchAccount, nonzero};
use crate::allocator::AllocatorReport;
use crate::colors::ColorsReport;
use crate::cpu::own_cpu_time;
use crate::shared_report::{ObjectReport, objects_report};
use crate::watch::WatchResults;
use crate::{Config, Mechanism, Pages, Sample, ceiling};

/// Name and version of the report's layout.
pub const SCHEMA: &str = "superhue-run/1";

/// Commit of this build.
pub(crate) const COMMIT: Option<&str> = option_env!("SUPERHUE_COMMIT");

/// Everything about one watch. Bytes and seconds; `None` means "not known", with the reason beside it.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// Superhue's version.
    pub version: &'static str,
    /// Commit that it was built from, where the build knows (environment variable `SUPERHUE_COMMIT`).
    pub commit: Option<&'static str>,
    /// The command, or empty for processes that Superhue attached to.
    pub command: Vec<String>,
    /// The policy.
    pub pages: Pages,
    /// Reason for this policy and its tracker.
    pub pages_because: String,
    /// Means by which the policy acted.
    pub mechanism: Mechanism,
    /// Exit status or signal of the command; `None` for processes that Superhue attached to.
    pub ending: Option<Ending>,
    /// Seconds from start to end.
    pub wall_seconds: f64,
    /// CPU time and faults; `None` for a population, and if a named process has ended: its CPU time went with it.
    pub cpu: Option<CpuReport>,
    /// Resident memory.
    pub memory: MemoryReport,
    /// Coverage.
    pub coverage: CoverageReport,
    /// Collapses.
    pub collapses: CollapseReport,
    /// Huge pages that were split.
    pub splits: SplitReport,
    /// Shared objects that had at least a huge page's worth of memory, largest first.
    pub objects: Vec<ObjectReport>,
    /// Tracking of accesses; `None` where nothing was tracked.
    pub tracking: Option<TrackingReport>,
    /// Page colors; `None` where the configuration names none.
    pub colors: Option<ColorsReport>,
    /// Request to the command's own allocator for huge pages; `None` where the configuration leaves it alone.
    pub allocator: Option<AllocatorReport>,
    /// Processes.
    pub processes: ProcessesReport,
    /// Resources that Superhue itself used.
    pub superhue: CostReport,
    /// Machine settings that were restored, and swap in memory that was removed.
    pub settings: RestoreReport,
    /// Earlier attempts, of which the report has nothing else: a process held Superhue up, and the verb began again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub earlier: Option<EarlierAttempts>,
    /// Actions that a dry run planned (`--dry-run`), in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub planned: Vec<Action>,
}

/// Attempts of a verb that ended because a process held Superhue up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct EarlierAttempts {
    /// Seconds from the begin of the first to the begin of the last attempt.
    pub seconds: f64,
    /// Memory that they charged to the budget.
    pub charged_bytes: ByteCount,
}

/// Ending of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(tag = "how", rename_all = "kebab-case")]
pub enum Ending {
    /// By itself.
    Exited {
        /// Exit status of the command.
        status: i32,
    },
    /// By a signal.
    Killed {
        /// Number of the signal.
        signal: i32,
    },
}

/// CPU time and page faults of a command and the descendants it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CpuReport {
    /// Seconds in user space.
    pub user_seconds: f64,
    /// Seconds in the kernel.
    pub system_seconds: f64,
    /// Page faults without I/O; `None` for processes that Superhue attached to.
    pub minor_faults: Option<u64>,
    /// Page faults with I/O; likewise.
    pub major_faults: Option<u64>,
}

/// Resident memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct MemoryReport {
    /// The largest resident set of any one process of the command (`ru_maxrss`).
    pub max_rss_bytes: Option<ByteCount>,
    /// The largest sum over all watched processes seen at a look.
    pub peak_rss_seen_bytes: Option<ByteCount>,
    /// The most memory that the kernel was seen to hold and charge for parts of huge pages that programs had given back. It is not part of any
    /// resident set. `None` where it could not be measured: that takes `CAP_SYS_ADMIN`, if there are such huge pages on the machine.
    pub peak_held_seen_bytes: Option<ByteCount>,
    /// The highest charge that was seen on the control group of the processes. `None` where no group accounts memory, or other processes are in
    /// it.
    pub peak_charged_seen_bytes: Option<ByteCount>,
    /// Memory that promotion added, as decided: pages of promoted regions that were not resident.
    pub growth_bytes: ByteCount,
    /// Budget of that growth at the last look; `None` without a limit.
    pub budget_bytes: Option<ByteCount>,
    /// The most memory that huge pages, the kernel's own included, held beyond touched pages.
    pub bloat_bound_bytes: Option<ByteCount>,
}

/// Coverage: the huge-mapped share of anonymous resident memory, 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CoverageReport {
    /// Highest.
    pub peak: Option<f64>,
    /// Mean over time.
    pub mean: Option<f64>,
    /// At the last look.
    pub last: Option<f64>,
    /// At the last look with at least half of the most anonymous memory.
    pub settled: Option<f64>,
    /// Seconds from the first look until 95 % of that was reached.
    pub seconds_to_95_percent_of_last: Option<f64>,
    /// Reason why some of these are not known.
    pub unknown_because: Option<&'static str>,
    /// The looks.
    pub samples: Vec<Sample>,
}

/// Results of collapses.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CollapseReport {
    /// Requests to the kernel.
    pub tried: u64,
    /// Outcomes.
    #[serde(flatten)]
    pub counts: ActionCounts,
    /// Regions that waited in the end, by the reason for waiting.
    pub waiting: BTreeMap<String, u64>,
    /// Delays of processes.
    pub stall: StallReport,
}

/// Delay of processes by collapses: the longest sum over any 100 ms, for the private memory of one process or for one shared object.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StallReport {
    /// The bound (`--max-stall`), in seconds; `None` without one.
    pub max_seconds: Option<f64>,
    /// Seconds of collapses to which the bound applied.
    pub bounded_seconds: f64,
    /// Seconds of collapses to which no bound applied.
    pub unbounded_seconds: f64,
}

impl StallReport {
    fn new(config: &Config, counts: StallCounts) -> Self {
        Self {
            max_seconds: config
                .stall_bound()
                .map(|bound| bound.allowed.as_secs_f64()),
            bounded_seconds: counts.bounded.as_secs_f64(),
            unbounded_seconds: counts.unbounded.as_secs_f64(),
        }
    }

    /// Returns true if collapses took longer than the bound allows.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.max_seconds
            .is_some_and(|max| self.bounded_seconds > max)
    }
}

/// Results of splits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SplitReport {
    /// Outcomes.
    #[serde(flatten)]
    pub counts: ActionCounts,
    /// Memory that splits returned, by the looks after them: pages of zeroes.
    pub returned_bytes: ByteCount,
}

/// Tracking of accesses, and its cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TrackingReport {
    /// Tracker that was used.
    pub tracker: TrackerKind,
    /// Samples, over all processes.
    pub samples: u64,
    /// True if the TLB was flushed for every sample. If not, the tracker missed pages whose
    /// translations stayed in the TLB.
    pub flushed: bool,
    /// Seconds of Superhue's CPU time that tracking took.
    pub cpu_seconds: f64,
    /// Seconds by which tracking held the targets up, estimated: page tables locked, TLB refilled.
    pub estimated_target_seconds: f64,
    /// The larger of the two as a share of the time watched.
    pub overhead: f64,
    /// The bound on that share.
    pub max_overhead: f64,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses.
    pub hot_set_bytes: Option<[ByteCount; 3]>,
    /// Regions with few but very hot pages: a huge page would not pay, compaction by the program would.
    pub compaction_regions: u64,
    /// Programs whose accesses could not be tracked, and why.
    pub untracked: BTreeMap<String, String>,
}

/// The watched processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProcessesReport {
    /// Number of processes that were watched.
    pub seen: u64,
    /// Processes of a cgroup, a user or all that the caller may not look at.
    pub denied: u64,
    /// Processes of a cgroup that have no number here, because they are in another PID namespace.
    pub unreachable: u64,
    /// Programs whose memory could not be read, and why.
    pub unreadable: BTreeMap<String, String>,
    /// Processes given up permanently, by reason.
    pub given_up: BTreeMap<String, u64>,
}

/// Resources that Superhue itself used: those of the whole command, also before and after the watch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct CostReport {
    /// CPU time and looks.
    #[serde(flatten)]
    pub counts: OwnCost,
    /// Seconds of watching that `--max-overhead` allows in this time, and in 10 s at least.
    pub max_watching_seconds: f64,
    /// Largest resident set.
    pub max_rss_bytes: ByteCount,
}

impl CostReport {
    fn new(config: &Config, account: &WatchAccount, frame: &RunFacts) -> Self {
        let cpu = own_cpu_time().saturating_sub(frame.own_cpu_before);
        Self {
            counts: OwnCost {
                cpu_seconds: cpu.as_secs_f64(),
                watching_seconds: (cpu.as_secs_f64() - account.own.acting_seconds).max(0.0),
                max_overhead: config.options.max_overhead,
                ..account.own
            },
            max_watching_seconds: config.options.max_overhead
                * frame.wall.max(ceiling::PERIOD).as_secs_f64(),
            max_rss_bytes: ByteCount::from_kib(own_usage().max_rss_kib),
        }
    }

    /// Returns true if watching took more than `--max-overhead` allows.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.counts.watching_seconds > self.max_watching_seconds
    }
}

/// Reason where a watch gave no results.
const MISSING: &str = "the results of the watch are missing";

/// Facts that the caller of a watch knows.
#[derive(Debug)]
pub(crate) struct RunFacts {
    pub(crate) command: Vec<String>,
    pub(crate) ending: Option<Ending>,
    pub(crate) wall: Duration,
    pub(crate) cpu: Option<CpuReport>,
    pub(crate) max_rss: Option<ByteCount>,
    pub(crate) own_cpu_before: Duration,
    pub(crate) settings: RestoreReport,
}

fn tracking_report(config: &Config, watched: &WatchResults) -> Option<TrackingReport> {
    let tracked = &watched.tracked;
    let tracker = tracked.tracker?;
    let cost = &tracked.cost;
    Some(TrackingReport {
        tracker,
        samples: tracked.samples,
        flushed: cost.flushed,
        cpu_seconds: cost.own.as_secs_f64(),
        estimated_target_seconds: cost.target.as_secs_f64(),
        overhead: cost.overhead(),
        max_overhead: config.options.max_overhead,
        hot_set_bytes: watched.account.hot_set_bytes,
        compaction_regions: watched.ledger.compaction.regions,
        untracked: tracked.untracked.clone(),
    })
}

impl Report {
    pub(crate) fn new(
        config: &Config,
        mechanism: Mechanism,
        watched: WatchResults,
        frame: RunFacts,
    ) -> Self {
        let account = &watched.account;
        let timeline = &watched.timeline;
        let unknown_because = if account.pages_because.is_empty() {
            Some(MISSING)
        } else if account.own.full_looks == 0 {
            Some("it ended before the first look")
        } else if timeline.samples().is_empty() {
            Some("no look succeeded (see processes.unreadable)")
        } else if timeline.peak().is_none() {
            Some(
                "this kernel does not tell which pages are huge, or nothing anonymous was resident",
            )
        } else {
            None
        };
        let ledger = &watched.ledger;
        let superhue = CostReport::new(config, account, &frame);
        let pages_because = match account.pages_because.as_str() {
            "" => MISSING,
            because => because,
        };
        Self {
            schema: SCHEMA,
            version: env!("CARGO_PKG_VERSION"),
            commit: COMMIT,
            command: frame.command,
            pages: account.pages.unwrap_or_else(|| config.likely_pages()),
            pages_because: pages_because.to_owned(),
            mechanism,
            ending: frame.ending,
            wall_seconds: frame.wall.as_secs_f64(),
            cpu: frame.cpu,
            memory: MemoryReport {
                max_rss_bytes: frame.max_rss,
                peak_rss_seen_bytes: watched.peak_rss,
                peak_held_seen_bytes: watched.peak_held,
                peak_charged_seen_bytes: watched.peak_charged,
                growth_bytes: account.growth_bytes,
                budget_bytes: account.budget_bytes,
                bloat_bound_bytes: watched.bloat_bound,
            },
            coverage: CoverageReport {
                peak: timeline.peak(),
                mean: timeline.mean(),
                last: timeline.last(),
                settled: timeline.settled(),
                seconds_to_95_percent_of_last: timeline.seconds_to_95_percent(),
                unknown_because,
                samples: timeline.samples(),
            },
            collapses: CollapseReport {
                tried: ledger.collapses.tried(),
                counts: account.collapses.clone().without_buckets(),
                waiting: account.waiting.clone(),
                stall: StallReport::new(config, ledger.stalls),
            },
            splits: SplitReport {
                counts: account.splits.clone().without_buckets(),
                returned_bytes: ledger.returned.bytes(),
            },
            objects: objects_report(&watched.objects),
            tracking: tracking_report(config, &watched),
            colors: None,
            allocator: None,
            processes: ProcessesReport {
                seen: account.processes_seen,
                denied: account.processes_denied,
                unreachable: watched.processes_unreachable,
                unreadable: account.unreadable.clone(),
                given_up: nonzero([("not permitted", ledger.given_up.not_permitted)]),
            },
            superhue,
            settings: frame.settings,
            earlier: None,
            planned: watched.planned,
        }
    }

    /// Returns true if the watch gave no results: its counts are not known.
    fn is_missing(&self) -> bool {
        self.coverage.unknown_because == Some(MISSING)
    }

    pub(crate) fn with_colors(mut self, colors: Option<ColorsReport>) -> Self {
        self.colors = colors;
        self
    }

    pub(crate) fn with_allocator(mut self, allocator: Option<AllocatorReport>) -> Self {
        self.allocator = allocator;
        self
    }
}

#[cfg(test)]
mod tests {
    use superhue_procfs::system::thp::ThpMode;

    use super::*;

    fn report(config: &Config, watched: WatchResults) -> Report {
        let frame = RunFacts {
            command: vec!["true".to_owned()],
            ending: Some(Ending::Exited { status: 0 }),
            wall: Duration::from_secs(20),
            cpu: None,
            max_rss: None,
            own_cpu_before: Duration::ZERO,
            settings: RestoreReport::default(),
        };
        let mechanism = Mechanism::plan(Pages::Auto, Some(ThpMode::Madvise), true);
        Report::new(config, mechanism, watched, frame)
    }

    #[test]
    fn results_that_are_missing_are_not_shown_as_zero() {
        let missing = report(&Config::default(), WatchResults::default());
        assert_eq!(missing.coverage.unknown_because, Some(MISSING));
        let text = missing.lines().join("\n");
        for word in ["collapses", "watching", "--max-overhead"] {
            assert!(!text.contains(word), "{text}");
        }
        assert!(
            text.contains(MISSING) && text.contains("own cost: "),
            "{text}"
        );
        let mut there = WatchResults::default();
        there.account.pages_because = "it is the default".to_owned();
        let text = report(&Config::default(), there).lines().join("\n");
        assert!(text.contains("collapses: 0 tried"), "{text}");
        assert!(text.contains("it ended before the first look"), "{text}");
    }

    #[test]
    fn bounds_that_were_not_kept_are_named() {
        let config = Config::default();
        let mut watched = WatchResults::default();
        watched.account.pages_because = "it is the default".to_owned();
        let kept = report(&config, watched);
        assert!(!kept.collapses.stall.is_broken(), "{kept:?}");
        let broken = StallReport {
            max_seconds: Some(0.01),
            bounded_seconds: 0.0101,
            unbounded_seconds: 0.0,
        };
        assert!(broken.is_broken() && broken.describe().contains("more than the 10.0 ms"));
        let unbounded = StallReport {
            max_seconds: None,
            ..broken
        };
        assert!(!unbounded.is_broken());
        let mut cost = kept.superhue;
        cost.max_watching_seconds = 0.2;
        cost.counts.watching_seconds = 0.19;
        assert!(!cost.is_broken() && cost.line(20.0, false).contains(" of the 0.20 s"));
        cost.counts.watching_seconds = 0.21;
        assert!(cost.is_broken() && cost.line(20.0, false).contains(" more than the 0.20 s"));
    }
}
