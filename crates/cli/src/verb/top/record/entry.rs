//! Entries of a record: snapshots as lines of JSON.
//!
//! ```text
//!   {"schema":"superhue-top-record/1","segment":3,"interval_seconds":1.0}        header of a segment
//!   {"at_ms":1795861805123,"full":true,"up_ms":5012,...,"set":[every process]}   full entry
//!   {"at_ms":1795861806125,"up_ms":6014,...,"set":[812 and 815],"gone":[790]}    processes whose figures differ from the entry before
//! ```
//!
//! Most processes are looked at every 15 intervals, so most of them have the same figures in the next entry. An entry means something after those
//! back to the last full one; each segment begins with a full entry. Unknown figures are left out, sums are not kept.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue::SharedObject;
use superhue::live::WatchAccount;
use superhue::model::{ByteCount, ObjectId, ProcessId};
use superhue_daemon::account::{DaemonAccount, RuleAccount, TrialAccount};

use super::super::daemon::{DaemonSample, DaemonState, Rate};
use super::super::gathered::{Heat, OwnCpu, TopSnapshot};
use super::super::machine::Machine;
use super::super::rows::{Row, Rows, Subject, covered, sums};

/// Name of the layout, and its version. Fields may be added to a version, never changed.
pub const SCHEMA_NAME: &str = "superhue-top-record/";
pub const SCHEMA_VERSION: u64 = 1;

/// First line of a segment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// [`SCHEMA_NAME`] and [`SCHEMA_VERSION`].
    pub schema: String,
    /// Number of the segment, in the order of time.
    pub segment: u64,
    /// Requested time between entries.
    pub interval_seconds: f64,
}

impl Header {
    /// Makes the header of a segment.
    pub fn new(segment: u64, interval: Duration) -> Self {
        Self {
            schema: format!("{SCHEMA_NAME}{SCHEMA_VERSION}"),
            segment,
            interval_seconds: interval.as_secs_f64(),
        }
    }
}

/// The part of an entry by which it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct EntryHead {
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// True for an entry that needs none before it.
    #[serde(default)]
    pub full: bool,
}

/// A snapshot, as far as it differs from the one before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    at_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    full: bool,
    /// Milliseconds since the start of reading, on the clock of `read_ms`.
    up_ms: u64,
    machine: Machine,
    daemon: RecordedDaemon,
    own_cpu_ms: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    own_share: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    trouble: Option<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    unlisted: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    denied: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    failed: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    not_yet: u64,
    #[serde(default, skip_serializing_if = "is_default")]
    avoided: u64,
    /// The process that has been read for long, and that time in milliseconds.
    #[serde(default, skip_serializing_if = "is_default")]
    held_up_by: Option<(u32, u64)>,
    #[serde(default, skip_serializing_if = "is_default")]
    tracker: Option<Result<String, String>>,
    #[serde(default, skip_serializing_if = "is_default")]
    samples_failed: BTreeMap<String, u64>,
    /// New processes, and processes with other figures.
    #[serde(default, skip_serializing_if = "is_default")]
    set: Vec<RecordedProcess>,
    /// Numbers of processes that are not there any more.
    #[serde(default, skip_serializing_if = "is_default")]
    gone: Vec<u32>,
    /// All services of which the daemon or the tracker knows more; `None` if nothing has changed.
    #[serde(default, skip_serializing_if = "is_default")]
    services: Option<Vec<RecordedService>>,
    /// The shared objects; `None` if they were not read again.
    #[serde(default, skip_serializing_if = "is_default")]
    objects: Option<RecordedObjects>,
}

/// Leaves out figures that are unknown, and counts of 0.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Figures of one process. Coverage follows from the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedProcess {
    pid: u32,
    /// Clock ticks after boot.
    start: u64,
    name: Arc<str>,
    service: Arc<str>,
    rss: ByteCount,
    #[serde(default, skip_serializing_if = "is_default")]
    denied: bool,
    #[serde(default, skip_serializing_if = "is_default")]
    pss: Option<ByteCount>,
    #[serde(default, skip_serializing_if = "is_default")]
    anon: Option<ByteCount>,
    #[serde(default, skip_serializing_if = "is_default")]
    huge: Option<ByteCount>,
    #[serde(default, skip_serializing_if = "is_default")]
    cpu: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    gain: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    hot: Option<[ByteCount; 3]>,
    #[serde(default, skip_serializing_if = "is_default")]
    coll: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    stall: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    rules: Vec<String>,
    /// Time of the look at its memory, on the clock of `up_ms`; `None` if no look succeeded.
    #[serde(default, skip_serializing_if = "is_default")]
    read_ms: Option<u64>,
}

impl RecordedProcess {
    /// Returns the figures of a row about a process, at the time `at`.
    fn of(row: &Row, at: Duration) -> Option<Self> {
        let Subject::Process(id) = row.subject else {
            return None;
        };
        Some(Self {
            pid: id.pid,
            start: id.start_ticks,
            name: Arc::clone(&row.name),
            service: Arc::clone(&row.service),
            rss: row.resident_bytes,
            denied: row.processes_denied > 0,
            pss: row.pss_bytes,
            anon: row.anonymous_bytes,
            huge: row.huge_bytes,
            cpu: rounded(row.cpu_share),
            gain: rounded(row.gain_per_second),
            hot: row.hot_set_bytes,
            coll: rounded(row.collapses_per_second),
            stall: rounded(row.stalled_share),
            rules: row.rules.clone(),
            read_ms: row.age.map(|age| milliseconds(at.saturating_sub(age))),
        })
    }

    /// Returns the row, at the time `at`.
    fn row(&self, at: Duration) -> Row {
        let read_at = self.read_ms.map(Duration::from_millis);
        Row {
            subject: Subject::Process(ProcessId {
                pid: self.pid,
                start_ticks: self.start,
            }),
            name: Arc::clone(&self.name),
            service: Arc::clone(&self.service),
            processes: 1,
            processes_read: u64::from(read_at.is_some()),
            processes_denied: u64::from(self.denied),
            resident_bytes: self.rss,
            pss_bytes: self.pss,
            anonymous_bytes: self.anon,
            huge_bytes: self.huge,
            coverage: covered(self.huge, self.anon),
            cpu_share: self.cpu,
            gain_per_second: self.gain,
            hot_set_bytes: self.hot,
            collapses_per_second: self.coll,
            stalled_share: self.stall,
            rules: self.rules.clone(),
            age: read_at.map(|read_at| at.saturating_sub(read_at)),
        }
    }
}

/// Figures of a service that are not sums of those of its processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedService {
    name: Arc<str>,
    #[serde(default, skip_serializing_if = "is_default")]
    hot: Option<[ByteCount; 3]>,
    #[serde(default, skip_serializing_if = "is_default")]
    coll: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    stall: Option<f64>,
    #[serde(default, skip_serializing_if = "is_default")]
    rules: Vec<String>,
}

impl RecordedService {
    /// Returns `None` for a service that is the sum of its processes.
    fn of(row: &Row) -> Option<Self> {
        let found = Self {
            name: Arc::clone(&row.name),
            hot: row.hot_set_bytes,
            coll: rounded(row.collapses_per_second),
            stall: rounded(row.stalled_share),
            rules: row.rules.clone(),
        };
        let is_more = found.hot.is_some() || found.coll.is_some() || !found.rules.is_empty();
        is_more.then_some(found)
    }

    fn complete(&self, row: &mut Row) {
        row.hot_set_bytes = self.hot;
        row.collapses_per_second = self.coll;
        row.stalled_share = self.stall;
        row.rules.clone_from(&self.rules);
    }
}

/// The shared objects, and the time at which they were read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedObjects {
    read_ms: u64,
    found: Result<Vec<RecordedObject>, String>,
}

/// [`SharedObject`], which can be read back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedObject {
    name: String,
    object: ObjectId,
    mappers: u64,
    is_file: bool,
    resident: ByteCount,
    is_exact: bool,
    misaligned_by: Option<u64>,
    huge: BTreeMap<u32, ByteCount>,
    tables_saved: ByteCount,
}

impl From<&SharedObject> for RecordedObject {
    fn from(it: &SharedObject) -> Self {
        Self {
            name: it.name.clone(),
            object: it.object,
            mappers: it.mappers,
            is_file: it.is_file,
            resident: it.resident_bytes,
            is_exact: it.resident_is_exact,
            misaligned_by: it.misaligned_by_bytes,
            huge: it.huge_mapped_bytes.clone(),
            tables_saved: it.page_tables_saved_bytes,
        }
    }
}

impl From<&RecordedObject> for SharedObject {
    fn from(it: &RecordedObject) -> Self {
        Self {
            name: it.name.clone(),
            object: it.object,
            mappers: it.mappers,
            is_file: it.is_file,
            resident_bytes: it.resident,
            resident_is_exact: it.is_exact,
            misaligned_by_bytes: it.misaligned_by,
            huge_mapped_bytes: it.huge.clone(),
            page_tables_saved_bytes: it.tables_saved,
        }
    }
}

/// Answer of the daemon, as far as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
enum RecordedDaemon {
    NotYet,
    Absent(String),
    Here(RecordedAccount),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedAccount {
    pid: u32,
    paused: bool,
    rules_total: u64,
    config_error: Option<String>,
    cpu_seconds: f64,
    cpu_share: Option<f64>,
    rss: Option<ByteCount>,
    rules: Vec<RecordedRule>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct RecordedRule {
    name: String,
    processes: u64,
    rate: Option<Rate>,
    hot: Option<[ByteCount; 3]>,
    trouble: Option<String>,
    /// The last trial of the rule.
    #[serde(default, skip_serializing_if = "is_default")]
    trial: Option<TrialAccount>,
}

impl From<&DaemonState> for RecordedDaemon {
    fn from(asked: &DaemonState) -> Self {
        match asked {
            DaemonState::NotYet => Self::NotYet,
            DaemonState::Absent(why) => Self::Absent(why.clone()),
            DaemonState::Here(answered) => Self::Here(RecordedAccount::from(&**answered)),
        }
    }
}

impl From<&DaemonSample> for RecordedAccount {
    fn from(answered: &DaemonSample) -> Self {
        let account = &answered.account;
        let rules = account.rules.iter().map(|rule| {
            let watch = rule.watch.as_deref();
            RecordedRule {
                name: rule.name.clone(),
                processes: rule.processes,
                rate: answered.rules.get(&rule.name).copied(),
                hot: watch.and_then(|it| it.hot_set_bytes),
                trouble: watch.and_then(|it| it.trouble.clone()),
                trial: rule.trial.clone().map(|trial| TrialAccount {
                    // A command may hold a secret, and records are passed on.
                    metric: String::new(),
                    ..trial
                }),
            }
        });
        Self {
            pid: account.pid,
            paused: account.paused,
            rules_total: account.rules_total,
            config_error: account.config.error.clone(),
            cpu_seconds: account.own.cpu_seconds,
            cpu_share: rounded(answered.cpu_share),
            rss: account.own.rss_bytes,
            rules: rules.collect(),
        }
    }
}

impl From<&RecordedDaemon> for DaemonState {
    fn from(recorded: &RecordedDaemon) -> Self {
        match recorded {
            RecordedDaemon::NotYet => Self::NotYet,
            RecordedDaemon::Absent(why) => Self::Absent(why.clone()),
            RecordedDaemon::Here(account) => Self::Here(Box::new(account.into())),
        }
    }
}

impl From<&RecordedAccount> for DaemonSample {
    fn from(recorded: &RecordedAccount) -> Self {
        let mut account = DaemonAccount {
            pid: recorded.pid,
            paused: recorded.paused,
            rules_total: recorded.rules_total,
            rules: recorded.rules.iter().map(RuleAccount::from).collect(),
            ..DaemonAccount::default()
        };
        account.config.error.clone_from(&recorded.config_error);
        account.own.cpu_seconds = recorded.cpu_seconds;
        account.own.rss_bytes = recorded.rss;
        let rates = recorded.rules.iter();
        Self {
            account: Arc::new(account),
            rules: rates
                .filter_map(|rule| Some((rule.name.clone(), rule.rate?)))
                .collect(),
            cpu_share: recorded.cpu_share,
            ..Self::default()
        }
    }
}

impl From<&RecordedRule> for RuleAccount {
    fn from(recorded: &RecordedRule) -> Self {
        let watch = WatchAccount {
            hot_set_bytes: recorded.hot,
            trouble: recorded.trouble.clone(),
            ..WatchAccount::default()
        };
        Self {
            name: recorded.name.clone(),
            processes: recorded.processes,
            watch: Some(Arc::new(watch)),
            trial: recorded.trial.clone(),
            ..Self::default()
        }
    }
}

/// Returns a figure with five decimals: more than is shown, in half the digits.
fn rounded(figure: Option<f64>) -> Option<f64> {
    figure.map(|figure| (figure * 1e5).round() / 1e5)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A snapshot as the screen shows it: of this moment, or from a record.
#[derive(Debug, Clone, Copy)]
pub struct ShownView<'a> {
    pub gathered: &'a TopSnapshot,
    pub asked: &'a DaemonState,
    pub rows: &'a Rows,
}

/// Makes entries of snapshots: remembers the last one.
#[derive(Debug, Default)]
pub struct Encoder {
    processes: BTreeMap<u32, RecordedProcess>,
    services: Vec<RecordedService>,
    /// Time at which the objects of the last entry were read.
    objects_at: Option<Duration>,
}

impl Encoder {
    /// Returns the entry of a snapshot; with everything in it if it is to be full.
    pub fn entry(&mut self, at_ms: u64, shown: ShownView<'_>, full: bool) -> Entry {
        let (gathered, rows) = (shown.gathered, shown.rows);
        if full {
            *self = Self::default();
        }
        let (set, gone) = self.changed(rows, gathered.at);
        let (tracker, samples_failed) = (&gathered.heat.tracker, &gathered.heat.failed);
        let held_up_by = gathered.held_up_by;
        Entry {
            at_ms,
            full,
            up_ms: milliseconds(gathered.at),
            machine: gathered.machine,
            daemon: shown.asked.into(),
            own_cpu_ms: milliseconds(gathered.own.total),
            own_share: rounded(gathered.own.share),
            trouble: gathered.trouble.clone(),
            unlisted: gathered.unlisted,
            denied: rows.denied,
            failed: rows.failed,
            not_yet: rows.not_yet,
            avoided: gathered.avoided,
            held_up_by: held_up_by.map(|(pid, time)| (pid, milliseconds(time))),
            tracker: tracker.clone(),
            samples_failed: samples_failed.clone(),
            set,
            gone,
            services: self.changed_services(rows),
            objects: self.changed_objects(gathered, rows),
        }
    }

    /// Returns processes with other figures than in the last entry, and the numbers of those that are not there any more.
    fn changed(&mut self, rows: &Rows, at: Duration) -> (Vec<RecordedProcess>, Vec<u32>) {
        let mut set = Vec::new();
        let mut gone: BTreeSet<u32> = self.processes.keys().copied().collect();
        for now in rows
            .processes
            .iter()
            .filter_map(|row| RecordedProcess::of(row, at))
        {
            gone.remove(&now.pid);
            if self.processes.get(&now.pid) != Some(&now) {
                self.processes.insert(now.pid, now.clone());
                set.push(now);
            }
        }
        self.processes.retain(|pid, _| !gone.contains(pid));
        (set, gone.into_iter().collect())
    }

    fn changed_services(&mut self, rows: &Rows) -> Option<Vec<RecordedService>> {
        let found = rows.services.iter().filter_map(RecordedService::of);
        let found: Vec<RecordedService> = found.collect();
        if found == self.services {
            return None;
        }
        self.services.clone_from(&found);
        Some(found)
    }

    fn changed_objects(&mut self, gathered: &TopSnapshot, rows: &Rows) -> Option<RecordedObjects> {
        let (at, found) = gathered.objects.as_ref()?;
        if self.objects_at.replace(*at) == Some(*at) {
            return None;
        }
        Some(RecordedObjects {
            read_ms: milliseconds(*at),
            found: match found {
                Ok(_) => Ok(rows.objects.iter().map(Into::into).collect()),
                Err(why) => Err(why.clone()),
            },
        })
    }
}

/// A snapshot of a record.
#[derive(Debug, Clone, Default)]
pub struct Moment {
    /// Time since 1970.
    pub at: Duration,
    pub gathered: TopSnapshot,
    pub asked: DaemonState,
    pub rows: Rows,
}

impl Moment {
    /// The part that the screen shows.
    pub fn shown(&self) -> ShownView<'_> {
        ShownView {
            gathered: &self.gathered,
            asked: &self.asked,
            rows: &self.rows,
        }
    }
}

/// Makes snapshots of entries, in their order.
#[derive(Debug, Default)]
pub struct Decoder {
    processes: BTreeMap<u32, RecordedProcess>,
    services: Vec<RecordedService>,
    objects: Option<RecordedObjects>,
    last: Option<Entry>,
}

impl Decoder {
    /// Applies the next entry. The first one must be full.
    pub fn apply(&mut self, mut entry: Entry) {
        if entry.full {
            *self = Self::default();
        }
        for pid in &entry.gone {
            self.processes.remove(pid);
        }
        for process in std::mem::take(&mut entry.set) {
            self.processes.insert(process.pid, process);
        }
        if let Some(services) = entry.services.take() {
            self.services = services;
        }
        if let Some(objects) = entry.objects.take() {
            self.objects = Some(objects);
        }
        self.last = Some(entry);
    }

    /// Returns the snapshot of the last entry; an empty one before the first.
    pub fn moment(&self) -> Moment {
        let Some(entry) = &self.last else {
            return Moment::default();
        };
        Moment {
            at: Duration::from_millis(entry.at_ms),
            gathered: self.gathered(entry),
            asked: (&entry.daemon).into(),
            rows: self.rows(entry),
        }
    }

    fn gathered(&self, entry: &Entry) -> TopSnapshot {
        let objects = self.objects.as_ref().map(|it| {
            let found = it.found.as_ref();
            // The objects themselves are rows.
            let found = found.map(|_| Vec::new()).map_err(Clone::clone);
            (Duration::from_millis(it.read_ms), found)
        });
        let held_up_by = entry.held_up_by;
        TopSnapshot {
            at: Duration::from_millis(entry.up_ms),
            machine: entry.machine,
            trouble: entry.trouble.clone(),
            unlisted: entry.unlisted,
            avoided: entry.avoided,
            held_up_by: held_up_by.map(|(pid, time)| (pid, Duration::from_millis(time))),
            own: OwnCpu {
                total: Duration::from_millis(entry.own_cpu_ms),
                share: entry.own_share,
            },
            heat: Heat {
                tracker: entry.tracker.clone(),
                failed: entry.samples_failed.clone(),
                ..Heat::default()
            },
            objects,
            ..TopSnapshot::default()
        }
    }

    fn rows(&self, entry: &Entry) -> Rows {
        let at = Duration::from_millis(entry.up_ms);
        let processes: Vec<Row> = self.processes.values().map(|it| it.row(at)).collect();
        let mut services = sums(&processes);
        for more in &self.services {
            if let Some(row) = services.get_mut(&more.name) {
                more.complete(row);
            }
        }
        let objects = self.objects.as_ref().and_then(|it| it.found.as_ref().ok());
        Rows {
            services: services.into_values().collect(),
            processes,
            objects: objects.into_iter().flatten().map(Into::into).collect(),
            denied: entry.denied,
            failed: entry.failed,
            not_yet: entry.not_yet,
        }
    }
}

#[cfg(test)]
mod tests;
