//! Watching one process.

use std::fs;
use std::time::{Duration, Instant};

use superhue::heat::{Sampler, Sampling, spared_entries};
use superhue::lock_bound;
use superhue::model::{ProcessId, counted};
use superhue::procfs::process::{
    NamedVma, identify, named_maps, numbers_are_ours, resident_now, stat, status,
};
use superhue::procfs::{ReadError, Roots};
use superhue::sys::process::SignalSet;
use superhue::trackers::{HeatMap, Scope, TrackError, choose, foreign};
use superhue_plot::{
    Cost, EndReason, Heat, HotSet, Observation, Process, Recorder, SCHEMA, Series, Target,
};

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, UNABLE, USAGE, note};
use crate::verb::members::code_of_read;

use super::document::{areas, hot_set, mappings, resident, unseen_share};
use super::record::Record;

/// Default time to watch.
const DURATION: Duration = Duration::from_secs(5);
/// Longest wait between two checks that the process still exists.
const GLANCE: Duration = Duration::from_millis(200);
/// Interval at which mappings are read again, for their names.
const NAMES: Duration = Duration::from_secs(1);
/// Bounds of the default interval.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(10);
/// Longest interval if a user waits for the next sample.
const LONGEST_LIVE: Duration = Duration::from_secs(2);
/// Fewest samples that there should be.
const FEWEST: u32 = 8;
/// Capacity of the terminal's record of the recent past.
const RECENT: (usize, usize) = (240, 2 << 20);
/// Longest command line that is kept.
const COMMAND: usize = 4096;

/// Prepares to watch process `pid` for the time in `args`.
pub(super) fn watch(args: &HeatArgs, pid: u32) -> Result<WatchedProcess, Failure> {
    let limit = match (args.duration, args.follow) {
        (None, true) => None,
        (duration, _) => Some(duration.unwrap_or(DURATION)),
    };
    if let (Some(interval), Some(limit)) = (args.interval, limit)
        && interval >= limit
    {
        return Err(Failure::new(
            USAGE,
            format!(
                "--interval {} is not shorter than the {} to watch: no sample would be taken",
                superhue_plot::time(interval.as_secs_f64()),
                superhue_plot::time(limit.as_secs_f64())
            ),
        ));
    }
    WatchedProcess::start(args, pid, limit)
}

/// A process that is being watched.
pub(super) struct WatchedProcess {
    roots: Roots,
    id: ProcessId,
    process: Process,
    target: Target,
    sampler: Sampler,
    record: Record,
    vmas: Vec<NamedVma>,
    named: Duration,
    begun: Instant,
    limit: Option<Duration>,
    /// True if recent samples are recorded by themselves, for the terminal.
    is_live: bool,
    /// Number of programs that the process executed meanwhile, and the time of the last.
    executed: (u64, Duration),
    /// True after it has executed one, until there is a sample of that: the record is still about the one before.
    is_stale: bool,
    /// Reason why the process can no longer be read.
    unreadable: Option<Failure>,
}

/// Returns the recorders of a watch: one for the result, and for the terminal one of the recent past.
fn recorders(is_live: bool) -> Vec<Recorder> {
    let mut recorders = vec![Recorder::new()];
    if is_live {
        recorders.push(Recorder::of_recent(RECENT.0, RECENT.1));
    }
    recorders
}

impl WatchedProcess {
    fn start(args: &HeatArgs, pid: u32, limit: Option<Duration>) -> Result<Self, Failure> {
        let roots = Roots::default();
        let read = |error: ReadError| Failure::new(code_of_read(&error), error);
        numbers_are_ours(&roots).map_err(read)?;
        let id = identify(&roots, pid).map_err(read)?;
        let vmas = named_maps(&roots, pid).map_err(read)?;
        let name = status(&roots, pid).map_err(read)?.name;
        let scope = if args.anonymous {
            Scope::Anonymous
        } else {
            Scope::All
        };
        let chosen = choose(&roots, args.tracking.tracker, scope)
            .map_err(|error| Failure::new(UNABLE, error))?;
        if let Some(error) = foreign(&roots, id) {
            return Err(Failure::new(FAILED, error));
        }
        let record = Record::new(recorders(args.follow));
        let target = Target {
            name: chosen.tracker.kind().name().to_owned(),
            why: chosen.why,
            scope: if args.anonymous { "anonymous" } else { "all" }.to_owned(),
        };
        let sampling = sampling(args, scope, limit);
        let mut sampler = Sampler::new(roots.clone(), chosen.tracker, sampling);
        if let Some(limit) = limit.filter(|_| args.interval.is_none() && !args.follow) {
            sampler.fit(limit, entries(&roots, pid));
        }
        sampler.add(id);
        Ok(Self {
            process: Process {
                pid,
                name,
                command: command(&roots, pid),
            },
            roots,
            id,
            target,
            sampler,
            record,
            vmas,
            named: Duration::ZERO,
            begun: Instant::now(),
            limit,
            is_live: args.follow,
            executed: (0, Duration::ZERO),
            is_stale: false,
            unreadable: None,
        })
    }

    /// Watches without a terminal; `signals` are blocked.
    pub(super) fn run(mut self, signals: &SignalSet) -> Result<Heat, Failure> {
        let ended = loop {
            self.step()?;
            if let Some(ended) = self.ended() {
                break ended;
            }
            if signals.wait(self.pause()).is_some() {
                break EndReason::Interrupted;
            }
        };
        self.finish(ended)
    }

    /// Does the work that is due; returns true if there is a new sample.
    pub(super) fn step(&mut self) -> Result<bool, Failure> {
        let now = self.begun.elapsed();
        let (mut is_new, mut is_replaced) = (false, false);
        let (record, is_live, was_stale) = (&mut self.record, self.is_live, self.is_stale);
        let is_stale = &mut self.is_stale;
        let sampled = self.sampler.step_with(now, &mut |sample| {
            if std::mem::take(is_stale) {
                *record = Record::new(recorders(is_live));
            }
            record.add(sample);
        });
        if was_stale && !self.is_stale {
            self.read_program();
        }
        for sampled in sampled {
            match sampled.result {
                Ok(_) => is_new = true,
                Err(TrackError::Read(error)) if error.is_vanished() => {}
                Err(TrackError::Replaced(_)) => is_replaced = true,
                Err(TrackError::Read(error)) => {
                    self.unreadable = Some(Failure::new(code_of_read(&error), error));
                }
                Err(error @ TrackError::Unusable { .. }) => {
                    self.unreadable = Some(Failure::new(UNABLE, error));
                }
                Err(error @ (TrackError::Foreign { .. } | TrackError::TooLong { .. })) => {
                    self.unreadable = Some(Failure::new(FAILED, error));
                }
            }
        }
        if is_replaced {
            self.is_stale = true;
            self.executed = (self.executed.0 + 1, now);
        }
        if self.record.first.is_none()
            && let Some(failure) = self.unreadable.take()
        {
            return Err(failure);
        }
        if is_new && !self.is_stale && now.saturating_sub(self.named) >= NAMES {
            self.read_names();
        }
        Ok(is_new)
    }

    /// Returns the map of the program that the record is about.
    fn map(&self) -> Option<&HeatMap> {
        match self.is_stale {
            true => self.sampler.map_before(self.id),
            false => self.sampler.map(self.id),
        }
    }

    /// Reads the name, the command and the mappings of the program that the process executes now.
    fn read_program(&mut self) {
        if let Ok(status) = status(&self.roots, self.id.pid) {
            self.process.name = status.name;
        }
        self.process.command = command(&self.roots, self.id.pid);
        self.read_names();
    }

    /// Returns the reason why watching has ended; `None` if it has not.
    pub(super) fn ended(&self) -> Option<EndReason> {
        let is_there = stat(&self.roots, self.id.pid)
            .is_ok_and(|stat| stat.start_ticks == self.id.start_ticks && !stat.is_zombie());
        if !is_there {
            return Some(EndReason::Exited);
        }
        if self.unreadable.is_some() {
            return Some(EndReason::Unreadable);
        }
        let is_over = self
            .limit
            .is_some_and(|limit| self.begun.elapsed() >= limit);
        is_over.then_some(EndReason::Duration)
    }

    /// Returns the time until there is work to do.
    pub(super) fn pause(&self) -> Duration {
        let now = self.begun.elapsed();
        let next = [self.sampler.due(), self.limit].into_iter().flatten().min();
        next.map_or(GLANCE, |next| next.saturating_sub(now).min(GLANCE))
    }

    fn read_names(&mut self) {
        // If the process is gone, its last names are good enough.
        if let Ok(vmas) = named_maps(&self.roots, self.id.pid) {
            self.vmas = vmas;
        }
        self.named = self.begun.elapsed();
    }

    /// Returns the document for the terminal: the recent past, and no counts.
    pub(super) fn recent(&self) -> Heat {
        let series = self.series(1);
        self.document(EndReason::Duration, series, false)
    }

    fn series(&self, recorder: usize) -> Series {
        let areas = areas(&self.vmas);
        let recorder = self.record.recorders.get(recorder);
        recorder.map_or_else(Series::default, |recorder| recorder.series(&areas))
    }

    /// Returns the document of all samples.
    pub(super) fn finish(mut self, ended: EndReason) -> Result<Heat, Failure> {
        if !self.is_stale && !matches!(ended, EndReason::Exited | EndReason::Unreadable) {
            self.read_names();
        }
        if let (programs @ 1.., at) = self.executed {
            note(&format!(
                "the process executed {} meanwhile, the last after {}: the result is about `{}` alone",
                counted(programs, "program"),
                superhue_plot::time(at.as_secs_f64()),
                self.process.name
            ));
        }
        if let Some(failure) = &self.unreadable {
            note(&format!(
                "watched until it could no longer be read: {}",
                failure.text
            ));
        }
        let heat = self.document(ended, self.series(0), true);
        if heat.watched.samples == 0 {
            let why = match ended {
                EndReason::Exited => "it exited before the first one was complete",
                EndReason::Interrupted => "interrupted before the first one was complete",
                EndReason::Unreadable => "it could not be read",
                EndReason::Duration => {
                    "none was complete in time: give it more by --for, or raise --max-overhead"
                }
            };
            return Err(Failure::new(
                FAILED,
                format!("no sample of {} was taken: {why}", self.id),
            ));
        }
        Ok(heat)
    }

    fn document(&self, ended: EndReason, series: Series, with_counts: bool) -> Heat {
        let map = self.map();
        let (shortest, longest) = self.record.intervals.unwrap_or_default();
        // For the recent past it is unknown, and not needed.
        let elapsed = match self.record.first {
            Some(first) if with_counts => self.begun.elapsed().saturating_sub(first),
            _ => Duration::ZERO,
        };
        Heat {
            schema: SCHEMA.to_owned(),
            process: self.process.clone(),
            tracker: self.target.clone(),
            watched: Observation {
                samples: map.map_or(0, |map| map.samples()),
                seconds: map.map_or(0.0, |map| map.watched().as_secs_f64()),
                elapsed_seconds: elapsed.as_secs_f64(),
                shortest_interval_seconds: shortest.as_secs_f64(),
                longest_interval_seconds: longest.as_secs_f64(),
                ended,
                unseen_share: map.and_then(|map| unseen_share(map.samples(), map.ranges())),
            },
            hot_set: map.map_or_else(HotSet::default, |map| {
                hot_set(&map.hot_set(), resident(map.ranges()))
            }),
            cost: self.sampler.cost(self.id).map(|cost| {
                let wall = cost.wall.as_secs_f64().max(1e-9);
                Cost {
                    own_cpu_seconds: cost.own.as_secs_f64(),
                    own_cpu_share: cost.own.as_secs_f64() / wall,
                    target_slowdown: cost.target.as_secs_f64() / wall,
                }
            }),
            mappings: match map {
                Some(map) if with_counts => mappings(&self.vmas, map.ranges()),
                _ => Vec::new(),
            },
            series,
        }
    }
}

/// Returns the number of page-table entries that a process can touch again after a sample: a huge page has one.
fn entries(roots: &Roots, pid: u32) -> u64 {
    let resident = resident_now(roots, pid).map_or(0, |now| now.total.0);
    resident.saturating_sub(spared_entries(roots, pid))
}

fn sampling(args: &HeatArgs, scope: Scope, limit: Option<Duration>) -> Sampling {
    let most = match (args.follow, limit) {
        (true, _) => LONGEST_LIVE,
        (false, limit) => limit.map_or(MAX_SAMPLE_INTERVAL, |limit| {
            (limit / FEWEST).min(MAX_SAMPLE_INTERVAL)
        }),
    };
    let shortest = MIN_SAMPLE_INTERVAL.min(most);
    let (shortest, longest) = args
        .interval
        .map_or((shortest, most), |interval| (interval, interval));
    Sampling {
        max_overhead: args.tracking.max_overhead,
        own_part: 1.0,
        shortest,
        longest,
        scope,
        settle: false,
        by_cpu_time: false,
        max_lock: lock_bound(args.max_stall),
        max_real_time: Duration::ZERO,
    }
}

/// Returns the arguments of a process; none if they cannot be read.
fn command(roots: &Roots, pid: u32) -> Vec<String> {
    let mut bytes = fs::read(roots.of_process(pid, "cmdline")).unwrap_or_default();
    bytes.truncate(COMMAND);
    let words = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    if words.is_empty() {
        return Vec::new();
    }
    (words.split(|&byte| byte == 0))
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}
