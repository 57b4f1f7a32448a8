//! Reads the data to show, in a thread of its own.
//!
//! Reading a process waits for its memory map, which the process can keep locked for as long as it likes. A reader that is held up for
//! [`HELD_UP`] is abandoned, and a new one starts, which no longer reads the memory of that process; if that does not help, it reads nothing of
//! the process.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use superhue::ceiling::apart;
use superhue::heat::{Sampler, Sampling};
use superhue::model::{ByteCount, ProcessId};
use superhue::procfs::Roots;
use superhue::survey::{self, Survey};
use superhue::trackers::{HeatMap, HotSet, Scope, TrackError, choose, foreign};
use superhue::{MAX_LOCK_DEFAULT, SharedObject, Targets, cpu_time, shared_objects, status_of};

use crate::output::{FAILED, Failure};
use crate::top_args::{TopArgs, ViewName};

use super::daemon::{DaemonSample, DaemonState, ask_once};
use super::gathered::{Detail, Heat, OwnCpu, TopSnapshot};
use super::machine::Rates;
use super::own_cpu;

/// Shares of the CPU limit: all processes, mappings, objects, tracking. Requests to the daemon have their own share, drawing the rest.
const SURVEY: f64 = 0.45;
const DETAIL: f64 = 0.1;
const OBJECTS: f64 = 0.1;
const SAMPLES: f64 = 0.15;
const HOT_SETS: f64 = 0.05;
/// Share for publishing the results.
const PUBLISHING: f64 = 0.1;

/// Longest time for reading one process, and for all shared objects.
const HELD_UP: Duration = Duration::from_secs(1);
const HELD_UP_BY_ALL: Duration = Duration::from_secs(60);
/// Most readers that are abandoned.
const MOST_LEFT: usize = 16;
/// Time over which own CPU time is averaged.
const AVERAGE: Duration = Duration::from_secs(10);
/// Interval at which results are published while there is much to read.
const FILLING: Duration = Duration::from_millis(250);
/// Longest sleep of a reader.
const MAX_READER_SLEEP: Duration = Duration::from_secs(1);
/// Sampling intervals, as of `heat --follow`.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Data that the screen needs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DataRequest {
    /// Processes on the screen, or those of the services there, the largest first.
    pub processes: Vec<u32>,
    /// The same processes, as far as sampling their accesses makes sense.
    pub tracked: Vec<ProcessId>,
    /// The process whose mappings are shown.
    pub detail: Option<u32>,
    /// True if shared objects are shown.
    pub objects: bool,
}

/// Reads until it is dropped.
pub struct Reader {
    shared: Arc<SharedState>,
    roots: Roots,
    /// Longest time for one process.
    patience: Duration,
    args: TopArgs,
    targets: Targets,
    begun: Instant,
    avoided: BTreeSet<u32>,
    shunned: BTreeSet<u32>,
    left: usize,
}

#[derive(Default)]
struct SharedState {
    state: Mutex<State>,
    nudge: Condvar,
}

#[derive(Default)]
struct State {
    latest: Arc<TopSnapshot>,
    wishes: Arc<DataRequest>,
    is_nudged: bool,
    /// The process that is being read, and the start time.
    reading: Option<(u32, Instant)>,
    /// The reader that may write here; others end.
    turn: usize,
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Starts the reader of these processes.
    #[must_use]
    pub fn start(args: &TopArgs, targets: Targets) -> Self {
        Self::of(Roots::default(), args, targets, HELD_UP)
    }

    fn of(roots: Roots, args: &TopArgs, targets: Targets, patience: Duration) -> Self {
        let reader = Self {
            shared: Arc::default(),
            roots,
            patience,
            args: args.clone(),
            targets,
            begun: Instant::now(),
            avoided: BTreeSet::new(),
            shunned: BTreeSet::new(),
            left: 0,
        };
        reader.begin();
        reader
    }

    fn begin(&self) {
        let (shared, args) = (Arc::clone(&self.shared), self.args.clone());
        let (begun, avoided) = (self.begun, (self.avoided.clone(), self.shunned.clone()));
        let (turn, roots, targets) = (self.left, self.roots.clone(), self.targets.clone());
        let started = std::thread::Builder::new()
            .name("superhue-read".to_owned())
            .spawn(move || {
                let survey = Survey::new(roots.clone(), args.interval, args.max_overhead * SURVEY);
                let survey = survey.about(targets.clone());
                ReaderThread::new(&shared, &args, (roots, targets), survey, (begun, turn))
                    .avoiding(avoided)
                    .run();
            });
        if let Err(error) = started {
            let gathered = TopSnapshot {
                trouble: Some(format!("no thread to read from: {error}")),
                ..TopSnapshot::default()
            };
            self.shared.lock().latest = Arc::new(gathered);
        }
    }

    /// Time since these results were read.
    #[must_use]
    pub fn age(&self, gathered: &TopSnapshot) -> Duration {
        self.begun.elapsed().saturating_sub(gathered.at)
    }

    /// Returns the last results, with the process that holds up the reader now.
    #[must_use]
    pub fn latest(&self) -> Arc<TopSnapshot> {
        Arc::clone(&self.shared.lock().latest)
    }

    /// Sets the data to read.
    pub fn wish(&self, wishes: DataRequest) {
        let mut state = self.shared.lock();
        if *state.wishes != wishes {
            // A newly opened view is read at once; rows that scrolled into view can wait for their turn.
            let is_opened =
                state.wishes.detail != wishes.detail || state.wishes.objects != wishes.objects;
            state.wishes = Arc::new(wishes);
            state.is_nudged |= is_opened;
            self.shared.nudge.notify_all();
        }
    }

    /// Abandons a reader that is held up.
    pub fn mind(&mut self) {
        let mut state = self.shared.lock();
        let Some((pid, since)) = state.reading else {
            return;
        };
        if since.elapsed() >= MAX_READER_SLEEP {
            let mut latest = TopSnapshot::clone(&state.latest);
            latest.held_up_by = Some((pid, since.elapsed()));
            state.latest = Arc::new(latest);
        }
        let patience = if pid == 0 {
            HELD_UP_BY_ALL
        } else {
            self.patience
        };
        if since.elapsed() < patience || self.left >= MOST_LEFT {
            return;
        }
        if !self.avoided.insert(pid) {
            self.shunned.insert(pid);
        }
        self.left += 1;
        state.turn = self.left;
        state.reading = None;
        drop(state);
        self.begin();
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Does not join the reader: it may be held up.
        self.shared.lock().turn = usize::MAX;
        self.shared.nudge.notify_all();
    }
}

/// A thread that reads.
struct ReaderThread<'a> {
    shared: &'a SharedState,
    args: &'a TopArgs,
    roots: Roots,
    targets: Targets,
    begun: Instant,
    turn: usize,
    survey: Survey,
    watched: Rates,
    avoided: BTreeSet<u32>,
    objects: Option<(Duration, Result<Vec<superhue::SharedObject>, String>)>,
    next_objects: Duration,
    detail: Option<Detail>,
    next_detail: Duration,
    tracking: Option<Result<Tracking, String>>,
    own: VecDeque<(Duration, Duration)>,
    next: Duration,
    next_publish: Duration,
}

impl<'a> ReaderThread<'a> {
    fn new(
        shared: &'a SharedState,
        args: &'a TopArgs,
        (roots, targets): (Roots, Targets),
        survey: Survey,
        (begun, turn): (Instant, usize),
    ) -> Self {
        Self {
            shared,
            args,
            survey,
            roots,
            targets,
            begun,
            turn,
            watched: Rates::default(),
            avoided: BTreeSet::new(),
            objects: None,
            next_objects: Duration::ZERO,
            detail: None,
            next_detail: Duration::ZERO,
            tracking: None,
            own: VecDeque::new(),
            next: Duration::ZERO,
            next_publish: Duration::ZERO,
        }
    }

    /// Leaves out processes that held up a reader before: the memory of the first, and the second altogether.
    fn avoiding(mut self, (avoided, shunned): (BTreeSet<u32>, BTreeSet<u32>)) -> Self {
        self.survey = self.survey.avoiding(avoided.clone()).shunning(shunned);
        self.avoided = avoided;
        self
    }

    fn run(mut self) {
        if self.args.track {
            self.tracking = Some(Tracking::start(&self.roots, self.args));
        }
        loop {
            let wishes = {
                let mut state = self.shared.lock();
                if state.turn != self.turn {
                    return;
                }
                state.is_nudged = false;
                Arc::clone(&state.wishes)
            };
            let mut trouble = None;
            let at = self.begun.elapsed();
            let mut is_more = false;
            if at >= self.next {
                let (shared, turn) = (self.shared, self.turn);
                let mut told = |it: Option<survey::ProcessRead>| {
                    note_reading(shared, turn, it.map(|it| it.pid))
                };
                let stepped = self.survey.step(at, &wishes.processes, &mut told);
                match stepped {
                    Ok(more) => is_more = more,
                    Err(error) => trouble = Some(error.to_string()),
                }
                if !is_more {
                    self.next = at + self.args.interval;
                }
            }
            let is_other = self.read_detail(&wishes) | self.read_objects(&wishes);
            let at = self.begun.elapsed();
            if let Some(Ok(tracking)) = &mut self.tracking {
                tracking.step(at, &wishes.tracked);
            }
            // Samples come much more often than a user can read.
            if is_other || trouble.is_some() || at >= self.next_publish {
                let begun = cpu_time();
                if !self.publish(trouble) {
                    return;
                }
                let soon = if is_more { FILLING } else { self.args.interval };
                let cost = cpu_time().saturating_sub(begun);
                let apart = apart(cost, self.args.max_overhead * PUBLISHING);
                self.next_publish = at + soon.max(apart);
            }
            self.sleep(is_more);
        }
    }

    /// Sleeps until something is due, or the wishes change.
    fn sleep(&self, is_more: bool) {
        let at = self.begun.elapsed();
        let sample = match &self.tracking {
            Some(Ok(tracking)) => tracking.sampler.due(),
            _ => None,
        };
        let due = if is_more { at } else { self.next };
        let until = due.min(sample.unwrap_or(Duration::MAX));
        let pause = until
            .saturating_sub(at)
            .clamp(Duration::from_millis(1), MAX_READER_SLEEP);
        let state = self.shared.lock();
        let sleeps = |state: &mut State| !state.is_nudged && state.turn == self.turn;
        drop(self.shared.nudge.wait_timeout_while(state, pause, sleeps));
    }

    /// Reads the mappings of the shown process if they are due; returns true if it is another process than before.
    fn read_detail(&mut self, wishes: &DataRequest) -> bool {
        let at = self.begun.elapsed();
        let Some(pid) = wishes.detail else {
            (self.detail, self.next_detail) = (None, Duration::ZERO);
            return false;
        };
        let is_other = self.detail.as_ref().is_none_or(|detail| detail.pid != pid);
        if !is_other && at < self.next_detail {
            return false;
        }
        let begun = cpu_time();
        let status = if self.avoided.contains(&pid) {
            Err("it took too long to read before".to_owned())
        } else {
            note_reading(self.shared, self.turn, Some(pid));
            let status = status_of(&self.roots, pid).map_err(|error| error.to_string());
            note_reading(self.shared, self.turn, None);
            status
        };
        let heat = match (&self.tracking, &status) {
            (Some(Ok(tracking)), Ok(status)) => tracking.by_mapping(pid, status),
            _ => BTreeMap::new(),
        };
        let cost = cpu_time().saturating_sub(begun);
        let apart = apart(cost, self.args.max_overhead * DETAIL);
        self.next_detail = at + self.args.interval.max(apart);
        self.detail = Some(Detail {
            pid,
            at,
            status,
            heat,
        });
        is_other
    }

    /// Reads the shared objects if they are due; returns true if it has read them.
    fn read_objects(&mut self, wishes: &DataRequest) -> bool {
        let at = self.begun.elapsed();
        if !wishes.objects || at < self.next_objects {
            return false;
        }
        let begun = cpu_time();
        // The process that holds up this reading is unknown: the number 0, which no process has, stands for it.
        let found = if self.avoided.contains(&0) {
            Err("they took too long to read before".to_owned())
        } else {
            note_reading(self.shared, self.turn, Some(0));
            let found = objects_of(&self.roots, &self.targets, &self.survey);
            note_reading(self.shared, self.turn, None);
            found
        };
        let cost = cpu_time().saturating_sub(begun);
        let apart = apart(cost, self.args.max_overhead * OBJECTS);
        self.next_objects = at + self.args.interval.max(apart);
        self.objects = Some((at, found));
        true
    }

    /// Publishes the results; returns false if another reader has replaced this one.
    fn publish(&mut self, trouble: Option<String>) -> bool {
        let at = self.begun.elapsed();
        let gathered = TopSnapshot {
            at,
            processes: self.survey.processes().cloned().collect(),
            unlisted: self.survey.unlisted(),
            trouble,
            machine: self.watched.look(&self.roots, at),
            objects: self.objects.clone(),
            detail: self.detail.clone(),
            heat: match &self.tracking {
                None => Heat::default(),
                Some(Ok(tracking)) => tracking.heat.clone(),
                Some(Err(why)) => Heat {
                    tracker: Some(Err(why.clone())),
                    ..Heat::default()
                },
            },
            own: self.own_cpu(at),
            held_up_by: None,
            avoided: self.avoided.len() as u64,
        };
        let mut state = self.shared.lock();
        let is_wanted = state.turn == self.turn;
        if is_wanted {
            state.latest = Arc::new(gathered);
        }
        is_wanted
    }

    fn own_cpu(&mut self, at: Duration) -> OwnCpu {
        let total = own_cpu();
        while self.own.len() > 1 && self.own.front().is_some_and(|it| at - it.0 > AVERAGE) {
            self.own.pop_front();
        }
        let share = self.own.front().and_then(|&(then, before)| {
            let passed = at.saturating_sub(then).as_secs_f64();
            (passed >= 1.0).then(|| total.saturating_sub(before).as_secs_f64() / passed)
        });
        self.own.push_back((at, total));
        OwnCpu { total, share }
    }
}

fn note_reading(shared: &SharedState, turn: usize, pid: Option<u32>) {
    let mut state = shared.lock();
    if state.turn == turn {
        state.reading = pid.map(|pid| (pid, Instant::now()));
    }
}

/// Samples accesses of the processes on the screen.
struct Tracking {
    sampler: Sampler,
    roots: Roots,
    heat: Heat,
    next: Duration,
    share: f64,
}

impl Tracking {
    fn start(roots: &Roots, args: &TopArgs) -> Result<Self, String> {
        let chosen = choose(roots, args.tracker, Scope::All).map_err(|error| error.to_string())?;
        let name = chosen.tracker.kind().name().to_owned();
        let sampling = Sampling {
            max_overhead: args.max_overhead,
            own_part: SAMPLES,
            shortest: MIN_SAMPLE_INTERVAL,
            longest: MAX_SAMPLE_INTERVAL,
            scope: Scope::All,
            settle: false,
            by_cpu_time: false,
            // What is only looked at should not notice.
            max_lock: Some(MAX_LOCK_DEFAULT),
            max_real_time: Duration::ZERO,
        };
        Ok(Self {
            sampler: Sampler::new(roots.clone(), chosen.tracker, sampling),
            roots: roots.clone(),
            heat: Heat {
                tracker: Some(Ok(name)),
                ..Heat::default()
            },
            next: Duration::ZERO,
            share: args.max_overhead,
        })
    }

    fn step(&mut self, at: Duration, wanted: &[ProcessId]) {
        self.sampler.retain(|id| wanted.contains(&id));
        for &id in wanted {
            // A process has one tracker: if another tracker has it already, that one stays.
            if self.sampler.map(id).is_none() && foreign(&self.roots, id).is_none() {
                self.sampler.add(id);
            }
        }
        for sampled in self.sampler.step(at) {
            match sampled.result {
                // The process executed another program, or is gone: neither is a failure.
                Ok(_) | Err(TrackError::Replaced(_)) => {}
                Err(TrackError::Read(error)) if error.is_vanished() => {}
                Err(error) => {
                    let (count, why) = (self.heat.failed.len(), error.to_string());
                    if count < 16 || self.heat.failed.contains_key(&why) {
                        *self.heat.failed.entry(why).or_default() += 1;
                    }
                }
            }
        }
        if at < self.next {
            return;
        }
        let begun = cpu_time();
        self.heat.hot_sets = (wanted.iter())
            .filter_map(|&id| Some((id, hot_set(&self.sampler.map(id)?.hot_set())?)))
            .collect();
        let mut by_cgroup: BTreeMap<String, Vec<&HeatMap>> = BTreeMap::new();
        for &id in wanted {
            if let Some(map) = self.sampler.map(id) {
                by_cgroup
                    .entry(super::rows::service_of(&self.roots, id.pid))
                    .or_default()
                    .push(map);
            }
        }
        let of_all = |maps: Vec<&HeatMap>| hot_set(&HotSet::of_all(maps));
        self.heat.by_cgroup = (by_cgroup.into_iter())
            .filter_map(|(service, maps)| Some((service, of_all(maps)?)))
            .collect();
        let cost = cpu_time().saturating_sub(begun);
        self.next = at + MAX_SAMPLE_INTERVAL.max(apart(cost, self.share * HOT_SETS));
    }

    /// Returns the share of its pages that a sample finds accessed, for each mapping of a process.
    fn by_mapping(
        &self,
        pid: u32,
        status: &superhue::ProcessStatus,
    ) -> BTreeMap<superhue::model::VirtAddr, f64> {
        let mut found = BTreeMap::new();
        let Some((id, _)) = self.heat.hot_sets.iter().find(|(id, _)| id.pid == pid) else {
            return found;
        };
        let Some(map) = self.sampler.map(*id) else {
            return found;
        };
        let mut mappings: Vec<_> = status.mappings.iter().map(|it| it.range).collect();
        mappings.sort_by_key(|range| range.start);
        let mut sums: BTreeMap<superhue::model::VirtAddr, (f64, f64)> = BTreeMap::new();
        for range in map.ranges() {
            let before = mappings.partition_point(|it| it.start <= range.range.start);
            let Some(mapping) = before.checked_sub(1).and_then(|index| mappings.get(index)) else {
                continue;
            };
            if range.range.start < mapping.end {
                #[allow(clippy::cast_precision_loss, reason = "a share")]
                let bytes = range.range.len().0 as f64;
                let sum = sums.entry(mapping.start).or_default();
                sum.0 += bytes * f64::from(range.rate);
                sum.1 += bytes;
            }
        }
        for (start, (hot, all)) in sums {
            found.insert(start, hot / all.max(1.0));
        }
        found
    }
}

fn hot_set(curve: &HotSet) -> Option<[ByteCount; 3]> {
    let [half, most, nearly_all] = [0.5, 0.9, 0.99].map(|share| curve.bytes_for(share));
    Some([half?, most?, nearly_all?])
}

/// All data, read once.
pub struct SingleReading {
    /// The data that was read.
    pub gathered: TopSnapshot,
    /// The daemon's answer.
    pub asked: DaemonState,
}

/// Returns the shared objects that the processes of a survey map.
fn objects_of(
    roots: &Roots,
    targets: &Targets,
    survey: &Survey,
) -> Result<Vec<SharedObject>, String> {
    let pids: Vec<u32> = match targets {
        // Without numbers all processes are meant.
        Targets::All => Vec::new(),
        _ => survey.processes().map(|process| process.id.pid).collect(),
    };
    if *targets != Targets::All && pids.is_empty() {
        return Ok(Vec::new());
    }
    shared_objects(roots, &pids).map_err(|error| error.to_string())
}

/// Waits, and samples accesses meanwhile.
fn sample_until(
    begun: Instant,
    until: Duration,
    mut tracking: Option<&mut Tracking>,
    tracked: &[ProcessId],
) {
    while begun.elapsed() < until {
        let mut next = until;
        if let Some(tracking) = &mut tracking {
            tracking.step(begun.elapsed(), tracked);
            next = next.min(tracking.sampler.due().unwrap_or(until));
        }
        let left = next.saturating_sub(begun.elapsed());
        std::thread::sleep(left.clamp(Duration::from_millis(1), Duration::from_millis(100)));
    }
}

/// Reads everything, and after the interval the data of rates again.
pub fn gather_once(
    roots: &Roots,
    args: &TopArgs,
    targets: &Targets,
) -> Result<SingleReading, Failure> {
    let begun = Instant::now();
    let fail = |error: superhue::procfs::ReadError| Failure::new(FAILED, error);
    let mut survey = Survey::new(roots.clone(), args.interval, 1e6).about(targets.clone());
    let mut watched = Rates::default();
    let first = ask_once(&args.socket, None);
    watched.look(roots, begun.elapsed());
    survey
        .look_at_all(begun.elapsed(), &mut |_| {})
        .map_err(fail)?;
    let objects = (args.json || args.view == ViewName::Objects)
        .then(|| (begun.elapsed(), objects_of(roots, targets, &survey)));
    let mut tracking = args.track.then(|| Tracking::start(roots, args));
    let mut largest: Vec<_> = survey.processes().map(|it| (it.resident, it.id)).collect();
    largest.sort_unstable_by_key(|&(resident, id)| (std::cmp::Reverse(resident), id));
    let tracked: Vec<ProcessId> = largest.into_iter().map(|(_, id)| id).take(32).collect();
    // A hot set takes a few samples.
    let pause = if args.track {
        args.interval.max(MAX_SAMPLE_INTERVAL * 2)
    } else {
        args.interval
    };
    let sampled = tracking.as_mut().and_then(|it| it.as_mut().ok());
    sample_until(begun, begun.elapsed() + pause, sampled, &tracked);
    survey
        .look_at_all(begun.elapsed(), &mut |_| {})
        .map_err(fail)?;
    let asked = match &first {
        DaemonState::Here(before) => ask_once(&args.socket, Some(before as &DaemonSample)),
        _ => first,
    };
    let heat = match tracking {
        None => Heat::default(),
        Some(Err(why)) => Heat {
            tracker: Some(Err(why)),
            ..Heat::default()
        },
        Some(Ok(mut tracking)) => {
            tracking.next = Duration::ZERO;
            tracking.step(begun.elapsed(), &tracked);
            tracking.heat
        }
    };
    let at = begun.elapsed();
    let total = own_cpu();
    let gathered = TopSnapshot {
        at,
        processes: survey.processes().cloned().collect(),
        unlisted: survey.unlisted(),
        machine: watched.look(roots, at),
        objects,
        heat,
        own: OwnCpu {
            total,
            share: Some(total.as_secs_f64() / at.as_secs_f64().max(1e-3)),
        },
        ..TopSnapshot::default()
    };
    Ok(SingleReading { gathered, asked })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;
    use crate::targets_args::{TargetArgs, WideArgs};

    /// A process whose memory map never ends: in its place is a FIFO without a writer.
    #[test]
    fn a_process_that_holds_a_reader_up_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        for pid in [7, 8] {
            let process = folder.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&process).unwrap();
            let zeroes = "0 ".repeat(40);
            let stat = format!("{pid} (it) S 1 1 1 0 -1 0 {zeroes}\n");
            fs::write(process.join("stat"), stat).unwrap();
            fs::write(process.join("statm"), "9000 900 0 0 0 0 0\n").unwrap();
            let memory = "1000-2000 ---p 00000000 00:00 0 [rollup]\nRss: 3600 kB\nPss: 3600 kB\n";
            fs::write(process.join("smaps_rollup"), memory).unwrap();
        }
        let blocked = folder.path().join("proc/7/smaps_rollup");
        fs::remove_file(&blocked).unwrap();
        mknodat(CWD, &blocked, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let args = TopArgs {
            view: ViewName::Processes,
            targets: TargetArgs::default(),
            width: WideArgs::default(),
            interval: Duration::from_millis(10),
            once: false,
            json: false,
            track: false,
            tracker: None,
            max_overhead: 1.0,
            socket: "/nowhere".into(),
            record: None,
            record_limit: ByteCount(1 << 20),
            replay: None,
            at: None,
        };
        let roots = Roots::under(folder.path());
        let mut reader = Reader::of(roots, &args, Targets::All, Duration::from_millis(50));
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            reader.mind();
            let latest = reader.latest();
            let is_read = latest.processes.iter().any(|it| it.memory().is_some());
            if latest.avoided == 1 && is_read {
                assert_eq!(latest.processes.len(), 2);
                break;
            }
            assert!(Instant::now() < deadline, "{latest:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Releases the first reader, too.
        drop(reader);
        let _ = fs::write(&blocked, "");
    }
}
