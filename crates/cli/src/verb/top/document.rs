//! Everything as JSON.

use std::time::Duration;

use serde::Serialize;
use superhue::SharedObject;
use superhue_daemon::account::DaemonAccount;

use super::daemon::DaemonState;
use super::gathered::TopSnapshot;
use super::machine::Machine;
use super::rows::{Row, Rows, Subject};

/// Name and version of the layout.
const SCHEMA: &str = "superhue-top/1";

/// JSON document of `superhue top --json`.
#[derive(Debug, Serialize)]
pub struct Document<'a> {
    schema: &'static str,
    /// Seconds from the first look to the last.
    seconds: f64,
    machine: &'a Machine,
    processes_denied: u64,
    processes_failed: u64,
    processes_unlisted: u64,
    /// The account of the daemon, if one answers.
    daemon: Option<Daemon<'a>>,
    daemon_missing_because: Option<&'a str>,
    tracker: Option<&'a str>,
    tracker_missing_because: Option<&'a str>,
    services: Vec<&'a Row>,
    processes: Vec<Process<'a>>,
    objects: &'a [SharedObject],
    objects_missing_because: Option<&'a str>,
    own: Own,
    /// Time of the snapshot, if it is one of a record: seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded_at_seconds: Option<f64>,
}

/// The daemon as a whole; its actions for services and processes stand with these.
#[derive(Debug, Serialize)]
struct Daemon<'a> {
    pid: u32,
    paused: bool,
    rules_total: u64,
    cpu_seconds: f64,
    cpu_share: Option<f64>,
    rss_bytes: Option<superhue::model::ByteCount>,
    rules: Vec<Rule<'a>>,
}

#[derive(Debug, Serialize)]
struct Rule<'a> {
    name: &'a str,
    processes: u64,
    hot_set_bytes: Option<[superhue::model::ByteCount; 3]>,
    collapses_per_second: Option<f64>,
    splits_per_second: Option<f64>,
    stalled_share: Option<f64>,
    trouble: Option<&'a str>,
    gain: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Process<'a> {
    pid: u32,
    start_ticks: u64,
    service: &'a str,
    #[serde(flatten)]
    row: &'a Row,
}

#[derive(Debug, Serialize)]
struct Own {
    cpu_seconds: f64,
}

impl<'a> Document<'a> {
    /// Builds the document.
    #[must_use]
    pub fn of(gathered: &'a TopSnapshot, asked: &'a DaemonState, rows: &'a Rows) -> Self {
        let mut services: Vec<&Row> = rows.services.iter().collect();
        services.sort_by_key(|row| (std::cmp::Reverse(row.resident_bytes), row.subject.clone()));
        let processes = rows.processes.iter().filter_map(|row| match row.subject {
            Subject::Process(id) => Some(Process {
                pid: id.pid,
                start_ticks: id.start_ticks,
                service: &row.service,
                row,
            }),
            _ => None,
        });
        let (tracker, no_tracker) = match &gathered.heat.tracker {
            Some(Ok(name)) => (Some(name.as_str()), None),
            Some(Err(why)) => (None, Some(why.as_str())),
            None => (None, Some("--track was not given")),
        };
        let no_objects = match &gathered.objects {
            Some((_, Err(why))) => Some(why.as_str()),
            _ => None,
        };
        Self {
            schema: SCHEMA,
            seconds: gathered.at.as_secs_f64(),
            machine: &gathered.machine,
            processes_denied: rows.denied,
            processes_failed: rows.failed,
            processes_unlisted: gathered.unlisted,
            daemon: of_daemon(asked),
            daemon_missing_because: match asked {
                DaemonState::NotYet => Some("it was not asked"),
                DaemonState::Absent(why) => Some(why),
                DaemonState::Here(_) => None,
            },
            tracker,
            tracker_missing_because: no_tracker,
            services,
            processes: processes.collect(),
            objects: &rows.objects,
            objects_missing_because: no_objects,
            own: Own {
                cpu_seconds: gathered.own.total.as_secs_f64(),
            },
            recorded_at_seconds: None,
        }
    }

    /// Adds the time of a snapshot that comes from a record.
    #[must_use]
    pub fn recorded_at(mut self, time: Duration) -> Self {
        self.recorded_at_seconds = Some(time.as_secs_f64());
        self
    }
}

fn of_daemon(asked: &DaemonState) -> Option<Daemon<'_>> {
    let answered = asked.answered()?;
    let account: &DaemonAccount = &answered.account;
    let rules = account.rules.iter().map(|rule| {
        let rate = answered.rules.get(&rule.name);
        let watch = rule.watch.as_deref();
        Rule {
            name: &rule.name,
            processes: rule.processes,
            hot_set_bytes: watch.and_then(|it| it.hot_set_bytes),
            collapses_per_second: rate.map(|rate| rate.collapses),
            splits_per_second: rate.and_then(|rate| rate.splits),
            stalled_share: rate.map(|rate| rate.stalled),
            trouble: watch.and_then(|it| it.trouble.as_deref()),
            gain: rule.trial.as_ref().and_then(|trial| trial.gain),
        }
    });
    Some(Daemon {
        pid: account.pid,
        paused: account.paused,
        rules_total: account.rules_total,
        cpu_seconds: account.own.cpu_seconds,
        cpu_share: answered.cpu_share,
        rss_bytes: account.own.rss_bytes,
        rules: rules.collect(),
    })
}
