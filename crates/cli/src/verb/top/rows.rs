//! Turns the data that was read into rows: one for each service, process, shared object.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use superhue::model::{ByteCount, ProcessId};
use superhue::procfs::Roots;
use superhue::survey::{Look, Memory, ProcessEntry};
use superhue::{SharedObject, model::ObjectId};
use superhue_daemon::rules::GroupFacts;

use super::daemon::{DaemonSample, DaemonState, Rate};
use super::gathered::TopSnapshot;

/// Subject of a row.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Subject {
    /// A service, by its label in the daemon.
    Service(Arc<str>),
    /// A process.
    Process(ProcessId),
    /// A shared object.
    Object(ObjectId),
}

/// Memory figures of a row. `None` is "not known here", never 0.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Service, process or shared object of the row.
    #[serde(skip)]
    pub subject: Subject,
    /// Command name, or the service's.
    pub name: Arc<str>,
    /// The service; its own name for a service.
    #[serde(skip)]
    pub service: Arc<str>,
    /// Number of processes.
    pub processes: u64,
    /// Processes whose memory was read: the figures below are about these, except for the resident memory.
    pub processes_read: u64,
    /// Processes that the caller may not read.
    pub processes_denied: u64,
    /// Resident memory of all; what they share counts for each.
    pub resident_bytes: ByteCount,
    /// Each page divided by the number of processes that map it.
    pub pss_bytes: Option<ByteCount>,
    /// Resident anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// The part of it in huge pages.
    pub huge_bytes: Option<ByteCount>,
    /// Coverage: `huge_bytes` of `anonymous_bytes`.
    pub coverage: Option<f64>,
    /// CPU time between the last two reads, as a share of one CPU; of the processes of which it is known.
    pub cpu_share: Option<f64>,
    /// Huge pages that were gained per second (lost, if below 0), between the last two looks.
    pub gain_per_second: Option<f64>,
    /// Memory that receives 50, 90 and 99 % of the sampled accesses.
    pub hot_set_bytes: Option<[ByteCount; 3]>,
    /// Collapses by the daemon.
    pub collapses_per_second: Option<f64>,
    /// The share of time that these took.
    pub stalled_share: Option<f64>,
    /// Names of the daemon's rules that apply to it.
    pub rules: Vec<String>,
    /// Age of the oldest of these figures.
    #[serde(serialize_with = "in_seconds", rename = "age_seconds")]
    pub age: Option<Duration>,
}

#[allow(clippy::ref_option, reason = "what serde hands over")]
fn in_seconds<S: serde::Serializer>(age: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    age.map(|age| age.as_secs_f64()).serialize(to)
}

/// All rows that can be shown as tables.
#[derive(Debug, Clone, Default)]
pub struct Rows {
    /// By service.
    pub services: Vec<Row>,
    /// By process.
    pub processes: Vec<Row>,
    /// Shared objects.
    pub objects: Vec<SharedObject>,
    /// Processes that the caller may not read, and those that could not be read.
    pub denied: u64,
    pub failed: u64,
    /// Processes that were not read yet.
    pub not_yet: u64,
}

impl Rows {
    /// Builds the rows from the data that was read.
    #[must_use]
    pub fn of(gathered: &TopSnapshot, asked: &DaemonState) -> Self {
        let mut rows = Self::default();
        let told = AccountIndex::of(asked.answered());
        let mut names: HashMap<Arc<str>, Arc<str>> = HashMap::new();
        for process in &gathered.processes {
            match process.look {
                Look::NotYet => rows.not_yet += 1,
                Look::Denied => rows.denied += 1,
                Look::Failed => rows.failed += 1,
                Look::Done(..) => {}
            }
            let service = names.entry(Arc::clone(&process.cgroup)).or_insert_with(|| {
                // Without the daemon's name for a cgroup, its own label is the service.
                GroupFacts::new(&process.cgroup).label().into()
            });
            let row = of_process(gathered, &told, process, service);
            rows.processes.push(row);
        }
        let mut services = sums(&rows.processes);
        for (name, row) in &mut services {
            told.complete_service(gathered, name, row);
        }
        rows.services = services.into_values().collect();
        if let Some((_, Ok(objects))) = &gathered.objects {
            rows.objects.clone_from(objects);
        }
        rows
    }

    /// Returns true if any row has a figure that only a daemon or tracker knows: else there are no columns for it.
    #[must_use]
    pub fn has(&self, of: impl Fn(&Row) -> bool) -> bool {
        self.services.iter().chain(&self.processes).any(of)
    }
}

/// Returns the current service of a process.
#[must_use]
pub fn service_of(roots: &Roots, pid: u32) -> String {
    let group = GroupFacts::of_process(roots, pid);
    group.unwrap_or_else(|| GroupFacts::new("/")).label()
}

fn of_process(
    gathered: &TopSnapshot,
    told: &AccountIndex<'_>,
    process: &ProcessEntry,
    service: &Arc<str>,
) -> Row {
    let memory = process.memory();
    let of = |field: fn(&Memory) -> Option<ByteCount>| memory.and_then(|(_, memory)| field(memory));
    let (anonymous, huge) = (of(|it| it.anonymous), of(|it| it.anon_huge));
    let key = (process.id.pid, process.id.start_ticks);
    let (daemon, rule) = told.processes.get(&key).copied().unzip();
    let rate = told.answered.and_then(|it| it.processes.get(&key));
    let own_hot = gathered.heat.hot_sets.get(&process.id).copied();
    Row {
        subject: Subject::Process(process.id),
        name: Arc::clone(&process.name),
        service: Arc::clone(service),
        processes: 1,
        processes_read: u64::from(memory.is_some()),
        processes_denied: u64::from(process.look == Look::Denied),
        resident_bytes: of(|it| it.rss).unwrap_or(process.resident),
        pss_bytes: of(|it| it.pss),
        anonymous_bytes: anonymous,
        huge_bytes: huge,
        coverage: covered(huge, anonymous),
        cpu_share: process.cpu_share,
        gain_per_second: process.gain,
        hot_set_bytes: own_hot.or(daemon.and_then(|it| it.hot_set_bytes)),
        collapses_per_second: rate.map(|rate| rate.collapses),
        stalled_share: rate.map(|rate| rate.stalled),
        rules: rule.map(str::to_owned).into_iter().collect(),
        age: memory.map(|(at, _)| gathered.at.saturating_sub(at)),
    }
}

/// Adds a process to its service.
fn add(sum: &mut Row, row: &Row) {
    let either = |a: Option<ByteCount>, b: Option<ByteCount>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    sum.processes += row.processes;
    sum.processes_read += row.processes_read;
    sum.processes_denied += row.processes_denied;
    sum.resident_bytes += row.resident_bytes;
    sum.pss_bytes = either(sum.pss_bytes, row.pss_bytes);
    sum.anonymous_bytes = either(sum.anonymous_bytes, row.anonymous_bytes);
    sum.huge_bytes = either(sum.huge_bytes, row.huge_bytes);
    sum.coverage = covered(sum.huge_bytes, sum.anonymous_bytes);
    let sum_of = |a: Option<f64>, b: Option<f64>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    sum.cpu_share = sum_of(sum.cpu_share, row.cpu_share);
    sum.gain_per_second = sum_of(sum.gain_per_second, row.gain_per_second);
    sum.age = sum.age.max(row.age);
}

/// Adds processes up by service. Figures that only a daemon or tracker knows are unknown: those of a service are not the sum of those of its
/// listed processes.
pub fn sums(processes: &[Row]) -> BTreeMap<Arc<str>, Row> {
    let mut services: BTreeMap<Arc<str>, Row> = BTreeMap::new();
    for row in processes {
        if let Some(sum) = services.get_mut(&row.service) {
            add(sum, row);
            continue;
        }
        let sum = Row {
            subject: Subject::Service(Arc::clone(&row.service)),
            name: Arc::clone(&row.service),
            hot_set_bytes: None,
            collapses_per_second: None,
            stalled_share: None,
            rules: Vec::new(),
            ..row.clone()
        };
        services.insert(Arc::clone(&row.service), sum);
    }
    services
}

#[allow(
    clippy::cast_precision_loss,
    reason = "a share of byte counts below 2^52"
)]
pub(super) fn covered(huge: Option<ByteCount>, anonymous: Option<ByteCount>) -> Option<f64> {
    let (huge, anonymous) = (huge?.0, anonymous?.0);
    (anonymous > 0).then(|| (huge as f64 / anonymous as f64).min(1.0))
}

/// The daemon's account, indexed for the rows.
struct AccountIndex<'a> {
    answered: Option<&'a DaemonSample>,
    processes: HashMap<(u32, u64), (&'a superhue::live::ProcessAccount, &'a str)>,
    services: HashMap<&'a str, Vec<(&'a superhue::live::ServiceAccount, &'a str)>>,
}

impl<'a> AccountIndex<'a> {
    fn of(answered: Option<&'a DaemonSample>) -> Self {
        let mut told = Self {
            answered,
            processes: HashMap::new(),
            services: HashMap::new(),
        };
        for rule in answered.iter().flat_map(|it| &it.account.rules) {
            let Some(watch) = &rule.watch else { continue };
            for process in &watch.processes {
                let key = (process.pid, process.start_ticks);
                told.processes.insert(key, (process, &rule.name));
            }
            for (label, service) in &watch.services {
                if service.memory.processes > 0 {
                    let rules = told.services.entry(label).or_default();
                    rules.push((service, &rule.name));
                }
            }
        }
        told
    }

    fn complete_service(&self, gathered: &TopSnapshot, name: &str, row: &mut Row) {
        let rules = self.services.get(name).map_or(&[][..], Vec::as_slice);
        row.rules = rules.iter().map(|(_, rule)| (*rule).to_owned()).collect();
        let rate: Option<&Rate> = self.answered.and_then(|it| it.services.get(name));
        row.collapses_per_second = rate.map(|rate| rate.collapses);
        row.stalled_share = rate.map(|rate| rate.stalled);
        let own = gathered.heat.by_cgroup.get(name).copied();
        // Hot sets of several rules cannot be added up.
        let daemon = match rules {
            [(service, _)] => service.hot_set_bytes,
            _ => None,
        };
        row.hot_set_bytes = own.or(daemon);
    }
}
