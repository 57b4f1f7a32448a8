//! Reads the data to show, in a thread of its own.
//!
//! Reading a process waits for its memory map, which the process can keep locked for as long as it likes. A reader that is held up for
//! [`HELD_UP`] is abandoned, and a new one starts, which no longer reads the memory of that process; if that does not help, it reads nothing of
//! the process. Accesses are tracked in another thread: if a process holds that one up, accesses are shown no more, and all else is.

mod thread;
mod tracking;

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use superhue::Targets;
use superhue::model::ProcessId;
use superhue::procfs::Roots;
use superhue::survey::Survey;
use thread::{MAX_READER_SLEEP, ReaderThread, SURVEY, objects_of};
use tracking::{MAX_SAMPLE_INTERVAL, TrackedState, Tracking, sample_until};

use super::daemon::{DaemonSample, DaemonState, ask_once};
use super::gathered::{Heat, OwnCpu, TopSnapshot};
use super::machine::Rates;
use super::own_cpu;
use crate::output::{FAILED, Failure};
use crate::top_args::{TopArgs, ViewName};

/// Longest time for reading one process, and for all shared objects.
const HELD_UP: Duration = Duration::from_secs(1);
const HELD_UP_BY_ALL: Duration = Duration::from_secs(60);

/// Longest time for one step of the tracker.
const TRACKER_HELD_UP: Duration = Duration::from_secs(5);

/// Most readers that are abandoned.
const MOST_LEFT: usize = 16;

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
    tracker: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct SharedState {
    state: Mutex<State>,
    nudge: Condvar,
    tracked: Mutex<TrackedState>,
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

impl State {
    /// Returns true once the reader is dropped.
    const fn is_over(&self) -> bool {
        self.turn == usize::MAX
    }
}

impl SharedState {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tracked(&self) -> MutexGuard<'_, TrackedState> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    /// Starts the reader of these processes.
    #[must_use]
    pub fn start(args: &TopArgs, targets: Targets) -> Self {
        Self::of(Roots::default(), args, targets, HELD_UP)
    }

    fn of(roots: Roots, args: &TopArgs, targets: Targets, patience: Duration) -> Self {
        let mut reader = Self {
            shared: Arc::default(),
            roots,
            patience,
            args: args.clone(),
            targets,
            begun: Instant::now(),
            avoided: BTreeSet::new(),
            shunned: BTreeSet::new(),
            left: 0,
            tracker: None,
        };
        reader.begin();
        if args.track {
            reader.track();
        }
        reader
    }

    fn track(&mut self) {
        let (shared, args) = (Arc::clone(&self.shared), self.args.clone());
        let (begun, roots) = (self.begun, self.roots.clone());
        let started = std::thread::Builder::new()
            .name("superhue-track".to_owned())
            .spawn(move || tracking::run(&shared, &roots, &args, begun));
        match started {
            Ok(thread) => self.tracker = Some(thread),
            Err(error) => {
                let why = format!("no thread to track accesses: {error}");
                self.shared.tracked().give_up(why);
            }
        }
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

    /// Abandons a reader that is held up, and the tracker.
    pub fn mind(&mut self) {
        let mut tracked = self.shared.tracked();
        if tracked.is_held_up_for(TRACKER_HELD_UP) {
            tracked.give_up("a process holds the tracker up".to_owned());
        }
        drop(tracked);
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
        // A tracker may have settings of the machine to put back.
        let begun = Instant::now();
        let waits = |tracker: &JoinHandle<()>| {
            !tracker.is_finished() && !self.shared.tracked().is_given_up()
        };
        while self.tracker.as_ref().is_some_and(waits) && begun.elapsed() < HELD_UP {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn note_reading(shared: &SharedState, turn: usize, pid: Option<u32>) {
    let mut state = shared.lock();
    if state.turn == turn {
        state.reading = pid.map(|pid| (pid, Instant::now()));
    }
}

/// All data, read once.
pub struct SingleReading {
    /// The data that was read.
    pub gathered: TopSnapshot,
    /// The daemon's answer.
    pub asked: DaemonState,
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
mod tests;
