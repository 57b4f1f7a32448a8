//! The thread that reads for the screen.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue::ceiling::apart;
use superhue::procfs::Roots;
use superhue::survey::{self, Survey};
use superhue::{SharedObject, Targets, cpu_time, shared_objects, status_of};

use super::super::gathered::{Detail, OwnCpu, TopSnapshot};
use super::super::machine::Rates;
use super::super::own_cpu;
use super::{DataRequest, SharedState, State, note_reading};
use crate::top_args::TopArgs;

/// Shares of the CPU limit: all processes, mappings, objects, tracking. Requests to the daemon have their own share, drawing the rest.
pub(super) const SURVEY: f64 = 0.45;
const DETAIL: f64 = 0.1;
const OBJECTS: f64 = 0.1;

/// Share for publishing the results.
const PUBLISHING: f64 = 0.1;

/// Time over which own CPU time is averaged.
const AVERAGE: Duration = Duration::from_secs(10);

/// Interval at which results are published while there is much to read.
const FILLING: Duration = Duration::from_millis(250);

/// Longest sleep of a reader.
pub(super) const MAX_READER_SLEEP: Duration = Duration::from_secs(1);

/// A thread that reads.
pub(super) struct ReaderThread<'a> {
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
    own: VecDeque<(Duration, Duration)>,
    next: Duration,
    next_publish: Duration,
}

impl<'a> ReaderThread<'a> {
    pub(super) fn new(
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
            own: VecDeque::new(),
            next: Duration::ZERO,
            next_publish: Duration::ZERO,
        }
    }

    /// Leaves out processes that held up a reader before: the memory of the first, and the second altogether.
    pub(super) fn avoiding(mut self, (avoided, shunned): (BTreeSet<u32>, BTreeSet<u32>)) -> Self {
        self.survey = self.survey.avoiding(avoided.clone()).shunning(shunned);
        self.avoided = avoided;
        self
    }

    pub(super) fn run(mut self) {
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
        let due = if is_more { at } else { self.next };
        let pause = due
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
        let heat = match &status {
            Ok(status) => self.shared.tracked().by_mapping(pid, status),
            Err(_) => BTreeMap::new(),
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
            heat: self.shared.tracked().heat.clone(),
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

/// Returns the shared objects that the processes of a survey map.
pub(super) fn objects_of(
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
