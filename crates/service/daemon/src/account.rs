//! The live account of the daemon: the source of `superhue ctl status --json` and of the metrics.
//!
//! ```text
//!   DaemonAccount
//!     own cost, configuration, discovery
//!     rules: RuleAccount            in the order of the configuration, those that have or had processes
//!       watch: superhue::live::WatchAccount
//!         memory, collapses, splits, stalls, cost
//!         services: ServiceAccount  by unit or cgroup
//!         processes: ProcessAccount the largest
//! ```
//!
//! Code in the daemon gets the account by [`AccountHandle::latest`], which costs a lock and no copy. Other processes request it at the control
//! socket.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use superhue::live::WatchAccount;
use superhue_model::ByteCount;

/// Name and version of the account's layout. Fields may be added to a version, never changed.
pub const SCHEMA: &str = "superhue-daemon/1";

/// The state of a daemon at one moment: at most 50 ms old at the control socket, about 5 s in [`AccountHandle::latest`] if there are no requests.
/// Bytes and seconds; `None` means "not known here", never 0.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DaemonAccount {
    /// [`SCHEMA`].
    pub schema: String,
    /// Superhue's version.
    pub version: String,
    /// The daemon's process number.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_seconds: f64,
    /// True if it only observes until `superhue ctl resume`.
    pub paused: bool,
    /// The source of the rules in force, and the reason if newer ones were refused.
    pub config: ConfigAccount,
    /// Discovery of services and processes.
    pub discovery: DiscoveryAccount,
    /// Cost of the daemon itself.
    pub own: OwnAccount,
    /// Endpoint for metrics.
    #[serde(default)]
    pub metrics: MetricsAccount,
    /// The service for users.
    #[serde(default)]
    pub users: UsersAccount,
    /// The processes that watch processes, and change them, for the daemon.
    #[serde(default)]
    pub workers: WorkersAccount,
    /// Number of rules; those that have never had a process are not in `rules`.
    pub rules_total: u64,
    /// The rules that have or had processes, in the order of the configuration.
    pub rules: Vec<RuleAccount>,
    /// The rules that clients hold.
    #[serde(default)]
    pub holds: Vec<HoldAccount>,
}

/// A rule that a client of the control socket holds: the daemon leaves its processes alone until the connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HoldAccount {
    /// The rule's name.
    pub rule: String,
    /// The process that opened the connection; `None` if it is outside of the daemon's PID namespace.
    pub pid: Option<u32>,
    /// The effective user of that process when it connected; `None` if unknown.
    pub uid: Option<u32>,
}

impl HoldAccount {
    /// Returns the process and its user, for people.
    #[must_use]
    pub fn owner(&self) -> String {
        let user = self.uid.map(|uid| format!(" of user {uid}"));
        let user = user.unwrap_or_default();
        match self.pid {
            Some(pid) => format!("process {pid}{user}"),
            None => format!("a process{user} outside of the daemon's PID namespace"),
        }
    }
}

/// Source of the rules in force.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConfigAccount {
    /// The files of the rules, in order.
    pub files: Vec<String>,
    /// Number of reloads since the start that were accepted.
    pub reloads: u64,
    /// Number of reloads since the start that were refused.
    pub refused: u64,
    /// Reason why the last reload was refused: the earlier rules are in force then.
    pub error: Option<String>,
}

/// Discovery of services and processes.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DiscoveryAccount {
    /// `cgroups` (events of the kernel: inotify on the tree of version 2) or `processes` (the daemon reads all of them periodically).
    pub how: String,
    /// Reason why the better way is not in use, or is incomplete.
    pub limited_because: Option<String>,
    /// Cgroups that are known.
    pub cgroups: u64,
    /// Number of these that a rule could match.
    pub cgroups_of_interest: u64,
    /// Seconds of CPU that discovery took so far.
    pub cpu_seconds: f64,
    /// Processes that wait to be read.
    #[serde(default)]
    pub behind: u64,
    /// Workers that read processes and were given up, because a process held them up.
    #[serde(default)]
    pub readers_given_up: u64,
    /// Of these, workers that have not ended.
    #[serde(default)]
    pub readers_left_behind: u64,
    /// Processes that are left alone for a while, because they held up a worker that read them.
    #[serde(default)]
    pub left_alone: Vec<HeldUpAccount>,
    /// Requests to the kubelet for pods; `None` if the daemon sends none.
    #[serde(default)]
    pub pods: Option<PodsAccount>,
}

/// Requests to the kubelet for pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PodsAccount {
    /// Number of pods in its last answer; `None` if it has not answered yet.
    pub known: Option<u64>,
    /// Seconds since its last valid answer.
    pub age_seconds: Option<f64>,
    /// Number of requests.
    pub requests: u64,
    /// Of these, requests without a valid answer.
    pub failed: u64,
    /// Reason why the last request failed; `None` if it did not.
    pub error: Option<String>,
}

/// Cost of the daemon itself.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct OwnAccount {
    /// Seconds of CPU of all threads and workers, including collapses in other processes.
    pub cpu_seconds: f64,
    /// Resident memory now, workers included.
    pub rss_bytes: Option<ByteCount>,
    /// The bound on CPU over all rules, as a share of one CPU.
    pub max_overhead: f64,
    /// Requests at the control socket.
    pub requests: u64,
    /// Of these, those refused: malformed, too many, too slow.
    pub requests_refused: u64,
}

/// The endpoint for Prometheus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MetricsAccount {
    /// The address or the path of the socket; `None` if the configuration names none.
    pub address: Option<String>,
    /// Reason why metrics are not served there now.
    pub error: Option<String>,
    /// Requests since the start.
    pub requests: u64,
    /// Clients refused: malformed, too many, too slow.
    pub requests_refused: u64,
}

/// The service for users (`[users]` of the configuration).
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UsersAccount {
    /// The socket for users; `None` if users are not served.
    pub socket: Option<String>,
    /// Reason why users are not served although the configuration allows some.
    pub error: Option<String>,
    /// Clients now, each with a worker process.
    pub clients: u64,
    /// Workers started so far.
    pub started: u64,
    /// Workers that ended by an error: they could not become their user, or the client sent no order.
    pub failed: u64,
    /// Clients refused: not allowed, too many, or too often.
    pub refused: u64,
}

/// The processes that watch for the daemon: one for each tenant of a rule, where a tenant is a pod, a service, or all that a user runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct WorkersAccount {
    /// Workers now.
    pub running: u64,
    /// Workers started so far.
    pub started: u64,
    /// Workers that were given up so far, because a process held them up.
    pub given_up: u64,
    /// Of these, workers that have not ended.
    pub left_behind: Vec<HeldUpAccount>,
    /// Processes that are left alone for a while, because they held up a worker.
    pub left_alone: Vec<HeldUpAccount>,
    /// Seconds of CPU of all workers so far, those that have ended included; part of the daemon's.
    pub cpu_seconds: f64,
    /// Anonymous memory of the workers, as they reported it last; pages that several share are divided by their number (`Pss_Anon`). Part of the daemon's.
    pub memory_bytes: ByteCount,
}

/// A process that has held up a worker.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HeldUpAccount {
    /// The rule whose watch it was; `None` for a worker that reads processes to find their rule.
    pub rule: Option<String>,
    /// The tenant that the process belongs to.
    pub tenant: String,
    /// Process number; `None` if unknown.
    pub process: Option<u32>,
    /// The number of the worker, if it has not ended.
    pub worker: Option<u32>,
    /// Seconds since it first held up a worker, or since the worker was given up.
    pub seconds: f64,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RuleAccount {
    /// Name of the rule.
    pub name: String,
    /// True if it leaves its processes alone.
    pub off: bool,
    /// Processes that belong to it now.
    pub processes: u64,
    /// The account of its watch; `None` if it leaves its processes alone, or could not be started.
    pub watch: Option<Arc<WatchAccount>>,
    /// Seconds from the start of each service until 95 % of its present huge memory was there, made by superhue or by the kernel. Without services
    /// for which that is unknown: those that had begun before the daemon saw them, and those without huge memory.
    #[serde(default)]
    pub converged_seconds: BTreeMap<String, f64>,
    /// True while a client holds the rule for a trial: the daemon leaves its processes alone until the trial ends.
    #[serde(default)]
    pub held: bool,
    /// The last trial of the rule; `None` if there was none since the rule has been what it is.
    #[serde(default)]
    pub trial: Option<TrialAccount>,
}

/// Longest name of a metric that is kept with a trial, in characters; a command may be any text.
pub const MAX_METRIC_CHARS: usize = 200;

/// Result of a trial of a rule (`superhue ctl trial`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrialAccount {
    /// Conclusion of the trial.
    pub conclusion: TrialConclusion,
    /// Metric: the command or the query, or a short name.
    pub metric: String,
    /// Improvement of the metric by the rule, as a share of its value without the rule: 0.03 is 3 % better, whichever direction is better.
    /// `None` if it is unknown.
    pub gain: Option<f64>,
    /// Least improvement that is not ruled out; `None` without a bound.
    pub gain_low: Option<f64>,
    /// Greatest improvement that is not ruled out; `None` without a bound.
    pub gain_high: Option<f64>,
    /// Number of pairs of blocks that were compared.
    pub pairs: u64,
    /// End of the trial, in seconds since 1970.
    pub ended_at_seconds: u64,
}

#[cfg(test)]
impl TrialAccount {
    /// Makes one with this gain, for tests.
    pub(crate) fn example(gain: f64) -> Self {
        Self {
            conclusion: TrialConclusion::Keep,
            metric: "redis-cli info".to_owned(),
            gain: Some(gain),
            gain_low: Some(0.0125),
            gain_high: None,
            pairs: 40,
            ended_at_seconds: 1_800_000_000,
        }
    }
}

/// Conclusion of a trial of a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrialConclusion {
    /// The rule is better.
    Keep,
    /// The rule is worse.
    Leave,
    /// The rule makes less difference than counts.
    NoDifference,
    /// The time limit came first.
    Undecided,
}

impl TrialConclusion {
    /// Returns the word for it in documents and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Leave => "leave",
            Self::NoDifference => "no difference",
            Self::Undecided => "undecided",
        }
    }
}

/// The latest account, for code in the same process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AccountHandle(Arc<Mutex<Arc<DaemonAccount>>>);

impl AccountHandle {
    /// Returns the latest account.
    #[must_use]
    pub fn latest(&self) -> Arc<DaemonAccount> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&latest)
    }

    pub(crate) fn publish(&self, account: Arc<DaemonAccount>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = account;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_read_back_as_it_was_written() {
        let account = DaemonAccount {
            schema: SCHEMA.to_owned(),
            rules: vec![RuleAccount {
                name: "all".to_owned(),
                watch: Some(Arc::default()),
                converged_seconds: BTreeMap::from([("a.service".to_owned(), 1.5)]),
                ..RuleAccount::default()
            }],
            ..DaemonAccount::default()
        };
        let text = serde_json::to_string(&account).unwrap();
        assert_eq!(
            serde_json::from_str::<DaemonAccount>(&text).unwrap(),
            account
        );
    }
}
