//! The live account of the daemon: what `superhue ctl status --json` prints and what metrics are made from.
//!
//! ```text
//!   DaemonAccount
//!     own cost, configuration, how services are found
//!     rules: RuleAccount            in the order of the configuration, those that have or had processes
//!       watch: superhue::live::WatchAccount
//!         memory, collapses, splits, stalls, cost
//!         services: ServiceAccount  by unit or cgroup
//!         processes: ProcessAccount the largest
//! ```
//!
//! Whoever runs in the daemon gets it by [`AccountHandle::latest`], which costs a lock and no copy. Others ask at the control socket.

use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use superhue::live::WatchAccount;
use superhue_model::ByteCount;

/// Name and version of the account's layout. Fields may be added to a version, never changed.
pub const SCHEMA: &str = "superhue-daemon/1";

/// Everything about a daemon at one moment, at most about a second old. Bytes and seconds; `None` is "not known here", never 0.
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
    /// Whether it only looks on until told to resume.
    pub paused: bool,
    /// Which rules are in force, and why no others.
    pub config: ConfigAccount,
    /// How services are found.
    pub discovery: DiscoveryAccount,
    /// What the daemon itself costs.
    pub own: OwnAccount,
    /// Where metrics are served.
    #[serde(default)]
    pub metrics: MetricsAccount,
    /// The service for users.
    #[serde(default)]
    pub users: UsersAccount,
    /// The processes that read and change others for the daemon.
    #[serde(default)]
    pub workers: WorkersAccount,
    /// How many rules there are; those that have never had a process are not in `rules`.
    pub rules_total: u64,
    /// The rules that have or had processes, in the order of the configuration.
    pub rules: Vec<RuleAccount>,
}

/// Where the rules in force come from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ConfigAccount {
    /// The files that they were read from, in order.
    pub files: Vec<String>,
    /// How often rules were read anew since the start, and accepted.
    pub reloads: u64,
    /// How often what was read was refused.
    pub refused: u64,
    /// Why the last reading was refused: the rules before it are in force then.
    pub error: Option<String>,
}

/// How services and processes are found.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DiscoveryAccount {
    /// `cgroups` (told by the kernel: inotify on the tree of version 2) or `processes` (all of them are read over and over).
    pub how: String,
    /// Why not the better way, or what is missing of it.
    pub limited_because: Option<String>,
    /// Cgroups that are known.
    pub cgroups: u64,
    /// Of these, those that some rule could be about.
    pub cgroups_of_interest: u64,
    /// Seconds of CPU that finding took so far.
    pub cpu_seconds: f64,
    /// Processes that wait to be looked at.
    #[serde(default)]
    pub behind: u64,
    /// Workers that read processes and were given up, because a process held them up.
    #[serde(default)]
    pub readers_given_up: u64,
    /// Those that were given up and have not ended.
    #[serde(default)]
    pub readers_left_behind: u64,
    /// Processes that are left alone for a while, because they held up whoever read them.
    #[serde(default)]
    pub left_alone: Vec<HeldUpAccount>,
    /// What the kubelet says of pods; `None` if it is not asked.
    #[serde(default)]
    pub pods: Option<PodsAccount>,
}

/// What the kubelet says of pods.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PodsAccount {
    /// Pods that it has named; `None` if it has not answered yet.
    pub known: Option<u64>,
    /// Seconds since it answered last.
    pub age_seconds: Option<f64>,
    /// How often it was asked.
    pub requests: u64,
    /// Of these, without an answer that could be read.
    pub failed: u64,
    /// Why the last request failed.
    pub error: Option<String>,
}

/// What the daemon itself costs.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct OwnAccount {
    /// Seconds of CPU, all threads; collapses made from outside included.
    pub cpu_seconds: f64,
    /// Resident memory now.
    pub rss_bytes: Option<ByteCount>,
    /// The bound on CPU over all rules, as a share of one CPU.
    pub max_overhead: f64,
    /// Requests at the control socket.
    pub requests: u64,
    /// Of these, those refused: malformed, too many, too slow.
    pub requests_refused: u64,
}

/// Where metrics are served to Prometheus.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MetricsAccount {
    /// The address or the path of the socket; `None` if the configuration names none.
    pub address: Option<String>,
    /// Why they are not served there now.
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
    /// Why users are not served although the configuration allows some.
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
    /// Those that were given up and have not ended.
    pub left_behind: Vec<HeldUpAccount>,
    /// Processes that are left alone for a while, because they held up a worker.
    pub left_alone: Vec<HeldUpAccount>,
    /// Seconds of CPU of all workers so far, those that have ended included; part of the daemon's.
    pub cpu_seconds: f64,
    /// Their anonymous memory, as far as they have said; pages that several share are divided by their number (`Pss_Anon`). Part of the daemon's.
    pub memory_bytes: ByteCount,
}

/// A process that has held up a worker.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HeldUpAccount {
    /// The rule whose watch it was; `None` if it was read to find out what it is.
    pub rule: Option<String>,
    /// Whose process it is.
    pub tenant: String,
    /// Its number; `None` if that is not known.
    pub process: Option<u32>,
    /// The number of the worker, if it has not ended.
    pub worker: Option<u32>,
    /// For how long that is known, in seconds.
    pub seconds: f64,
}

/// One rule.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct RuleAccount {
    /// Its name.
    pub name: String,
    /// Whether it leaves its processes alone.
    pub off: bool,
    /// Processes that belong to it now.
    pub processes: u64,
    /// What its watch says; `None` if it leaves its processes alone, or could not be started.
    pub watch: Option<Arc<WatchAccount>>,
}

/// The latest account, for others in the same process. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct AccountHandle(Arc<Mutex<Arc<DaemonAccount>>>);

impl AccountHandle {
    /// How the daemon stood a moment ago.
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
