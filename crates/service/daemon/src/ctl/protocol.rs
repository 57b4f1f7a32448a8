//! One request, one answer, each a line of JSON; then the connection ends.
//!
//! ```text
//!   {"version":1,"request":"why","pid":4711}
//!   {"version":1,"answer":"why",...}
//! ```
//!
//! Only [`Request::Hold`] keeps the connection open: the daemon leaves a rule's processes alone until it ends, or for [`LEASE`] after the last request
//! on it. The same request again extends that, and its answer has the present processes. [`Request::TrialEnded`] is the last request of such a
//! connection: the daemon keeps the result and shows it with the rule.
//!
//! A request has at most [`LONGEST_REQUEST`] bytes, an answer [`LONGEST_ANSWER`]. Each side refuses versions that it does not know, and names its
//! own. `socat - UNIX-CONNECT:/run/superhue/ctl.sock` works as a client, too.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue::PlacementOptions;
use superhue_model::ProcessId;

use crate::account::{DaemonAccount, TrialAccount};
use crate::metrics::Format;
use crate::rules::Rule;

/// Default path of the control socket.
pub const DEFAULT_SOCKET: &str = "/run/superhue/ctl.sock";

/// Version of the protocol.
pub const VERSION: u32 = 1;

/// Bytes of a request, the end of the line included.
pub const LONGEST_REQUEST: usize = 4096;

/// Bytes of an answer, likewise.
pub const LONGEST_ANSWER: usize = 16 << 20;

/// Time for which a rule is held after the last request of the client that holds it. A trial is silent while it looks at all regions of its
/// processes after a switch, which takes a system call for each.
pub const LEASE: Duration = Duration::from_secs(60);

/// Request to the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// The account of the daemon. Answer: [`Answer::Status`].
    Status,
    /// The rules in force, in order. Answer: [`Answer::Rules`].
    Rules,
    /// The rule that a process belongs to, and the reason.
    Why {
        /// The process.
        pid: u32,
    },
    /// The metrics.
    Metrics {
        /// The format.
        #[serde(default)]
        format: Format,
    },
    /// Only observe from now on, also after a restart of the daemon, until `Resume` or a reboot.
    Pause,
    /// Act again.
    Resume,
    /// Read the configuration again.
    Reload,
    /// Leave the processes of a rule alone while this connection lives, or extend that. Answer: [`Answer::Held`].
    Hold {
        /// The rule's name.
        rule: String,
    },
    /// Keep the result of a trial of the rule that this connection holds; the hold ends. Answer: [`Answer::Done`].
    TrialEnded {
        /// The rule's name.
        rule: String,
        /// The result.
        trial: TrialAccount,
    },
}

/// Answer of the daemon.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "kebab-case")]
pub enum Answer {
    /// Answer to [`Request::Status`].
    Status {
        /// The account of the daemon.
        status: Box<DaemonAccount>,
    },
    /// Answer to [`Request::Rules`].
    Rules {
        /// The rules in force, in order.
        rules: Vec<RuleSummary>,
    },
    /// Answer to [`Request::Why`].
    Why(Why),
    /// Answer to [`Request::Metrics`].
    Metrics {
        /// The text that Prometheus would receive.
        text: String,
    },
    /// Answer to [`Request::Hold`].
    Held(HeldRule),
    /// The daemon has done it.
    Done {
        /// The result, for people.
        text: String,
    },
    /// The daemon has not done it.
    Refused {
        /// The reason, and the remedy.
        text: String,
    },
}

/// A rule, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleSummary {
    /// Name of the rule.
    pub name: String,
    /// Place of the rule in the files: `FILE:LINE`.
    pub place: String,
    /// Conditions of the rule, in words.
    pub conditions: String,
    /// The placement of its processes, in words.
    pub placement: String,
    /// Processes that belong to it now.
    pub processes: u64,
}

impl RuleSummary {
    /// Describes a rule that has this number of processes; `None` becomes 0.
    #[must_use]
    pub fn of(rule: &Rule, processes: Option<u64>) -> Self {
        Self {
            name: rule.name.to_string(),
            place: rule.place.clone(),
            conditions: rule.conditions.to_string(),
            placement: rule.placed(),
            processes: processes.unwrap_or_default(),
        }
    }
}

/// A rule whose processes the daemon leaves alone for the client.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldRule {
    /// The rule, and the number of its processes.
    pub rule: RuleSummary,
    /// Placement of its processes.
    pub policy: PlacementOptions,
    /// Processes of the rule now, without those that hold up workers of the daemon.
    pub processes: Vec<ProcessId>,
    /// Seconds until the hold ends without another request.
    pub lease_seconds: u64,
    /// True if the daemon is paused: the end of the hold then changes nothing.
    pub paused: bool,
}

/// The rule that a process belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The process.
    pub pid: u32,
    /// Cgroup of the process; `None` if unknown.
    pub cgroup: Option<String>,
    /// The rule that matches; `None` if none does.
    pub rule: Option<String>,
    /// The placement by the rule, or a sentence that no rule matches.
    pub placement: String,
    /// True if the rule's watch has the process.
    pub watched: bool,
    /// Reason why the watch cannot fully apply the rule, if one is known.
    pub trouble: Option<String>,
    /// The rules tried before, in order, each with the reason why it does not match; only the last ones, if there are many.
    pub passed: Vec<PassedRule>,
    /// Number of these rules that are not listed.
    pub passed_unlisted: u64,
}

/// Reason why a rule does not match a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PassedRule {
    /// The rule.
    pub rule: String,
    /// The first condition that does not hold.
    pub because: String,
}

#[derive(Serialize)]
pub(super) struct VersionedMessage<T> {
    version: u32,
    #[serde(flatten)]
    body: T,
}

/// Returns a message as a line of JSON.
pub(crate) fn written<T: Serialize>(body: T) -> String {
    let version = VERSION;
    let line = serde_json::to_string(&VersionedMessage { version, body });
    // Writing fails only for a map whose keys are no text, and there is none.
    let mut line = line.unwrap_or_default();
    line.push('\n');
    line
}

/// Parses a request.
pub(crate) fn read_request(line: &[u8]) -> Result<Request, String> {
    let value: serde_json::Value = serde_json::from_slice(line).map_err(|error| {
        format!("this is no request: {error}; try {{\"version\":{VERSION},\"request\":\"status\"}}")
    })?;
    match value.get("version").and_then(serde_json::Value::as_u64) {
        Some(version) if version == u64::from(VERSION) => {}
        Some(version) => {
            return Err(format!(
                "this daemon speaks version {VERSION} of the protocol, not {version}"
            ));
        }
        None => {
            return Err(format!(
                "the request has no \"version\": {VERSION} is spoken"
            ));
        }
    }
    serde_json::from_value(value).map_err(|error| format!("this is no request: {error}"))
}

/// Parses an answer.
pub(super) fn read_answer(line: &[u8]) -> Result<Answer, String> {
    #[derive(Deserialize)]
    struct Head {
        version: u32,
    }
    let head: Head = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if head.version != VERSION {
        return Err(format!(
            "it speaks version {} of the protocol, and this is version {VERSION}",
            head.version
        ));
    }
    serde_json::from_slice(line).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_back() {
        let rule = "redis".to_owned();
        for request in [
            Request::Status,
            Request::Why { pid: 7 },
            Request::Reload,
            Request::Hold { rule },
        ] {
            let line = written(&request);
            assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
            assert_eq!(read_request(line.as_bytes()), Ok(request));
        }
        assert_eq!(
            written(Request::Why { pid: 7 }),
            "{\"version\":1,\"request\":\"why\",\"pid\":7}\n"
        );
        let status = Box::new(DaemonAccount::default());
        for answer in [
            Answer::Done {
                text: "two\nlines".to_owned(),
            },
            Answer::Status { status },
        ] {
            let line = written(&answer);
            assert_eq!(line.matches('\n').count(), 1);
            assert_eq!(read_answer(line.as_bytes()), Ok(answer));
        }
    }

    #[test]
    fn what_is_no_request_is_refused_with_what_is_one() {
        for (line, expected) in [
            ("", "try {\"version\":1"),
            ("{}", "has no \"version\""),
            ("[]", "has no \"version\""),
            (
                "{\"version\":\"1\",\"request\":\"status\"}",
                "has no \"version\"",
            ),
            (
                "{\"version\":2,\"request\":\"status\"}",
                "version 1 of the protocol, not 2",
            ),
            (
                "{\"version\":1,\"request\":\"explode\"}",
                "unknown variant `explode`",
            ),
            ("{\"version\":1,\"request\":\"why\"}", "missing field `pid`"),
            (
                "{\"version\":1,\"request\":\"why\",\"pid\":-1}",
                "this is no request",
            ),
        ] {
            let told = read_request(line.as_bytes()).unwrap_err();
            assert!(told.contains(expected), "{line}: {told}");
        }
        assert!(
            read_answer(b"{\"version\":9}")
                .unwrap_err()
                .contains("version 9")
        );
    }
}
