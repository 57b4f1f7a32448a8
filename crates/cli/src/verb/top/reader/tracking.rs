//! Accesses of the processes on the screen.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue::ceiling::apart;
use superhue::heat::{Sampler, Sampling};
use superhue::model::{ProcessId, VirtAddr, VirtRange};
use superhue::procfs::Roots;
use superhue::trackers::{HeatMap, HotSet, Scope, TrackError, choose, foreign};
use superhue::{cpu_time, lock_bound};

use super::super::gathered::Heat;
use super::thread::MAX_READER_SLEEP;
use super::{SharedState, State};
use crate::top_args::TopArgs;

const SAMPLES: f64 = 0.15;
const HOT_SETS: f64 = 0.05;

/// Sampling intervals, as of `heat --follow`.
const MIN_SAMPLE_INTERVAL: Duration = Duration::from_millis(50);
pub(super) const MAX_SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Accesses as the thread publishes them that tracks.
#[derive(Default)]
pub(super) struct TrackedState {
    pub(super) heat: Heat,
    /// The process whose mappings are shown, and the share of samples that found each range of its memory accessed.
    ranges: Option<(u32, Vec<(VirtRange, f32)>)>,
    /// Start of the step in progress.
    since: Option<Instant>,
    is_given_up: bool,
}

impl TrackedState {
    /// Returns true if a step has taken this long.
    pub(super) fn is_held_up_for(&self, time: Duration) -> bool {
        !self.is_given_up && self.since.is_some_and(|since| since.elapsed() >= time)
    }

    #[cfg(test)]
    pub(super) fn step_began(&mut self, at: Instant) {
        self.since = Some(at);
    }

    pub(super) const fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Shows no accesses from now on, and why.
    pub(super) fn give_up(&mut self, why: String) {
        *self = Self {
            heat: Heat {
                tracker: Some(Err(why)),
                ..Heat::default()
            },
            is_given_up: true,
            ..Self::default()
        };
    }

    /// Returns the share of its pages that a sample finds accessed, for each mapping of a process.
    pub(super) fn by_mapping(
        &self,
        pid: u32,
        status: &superhue::ProcessStatus,
    ) -> BTreeMap<VirtAddr, f64> {
        match &self.ranges {
            Some((of, ranges)) if *of == pid => by_mapping(ranges, status),
            _ => BTreeMap::new(),
        }
    }
}

/// Tracks the processes on the screen until the reader is dropped.
pub(super) fn run(shared: &SharedState, roots: &Roots, args: &TopArgs, begun: Instant) {
    shared.tracked().since = Some(Instant::now());
    let mut tracking = match Tracking::start(roots, args) {
        Ok(tracking) => tracking,
        Err(why) => return shared.tracked().give_up(why),
    };
    let mut shown = None;
    loop {
        let state = shared.lock();
        if state.is_over() {
            return;
        }
        let wishes = Arc::clone(&state.wishes);
        drop(state);
        shared.tracked().since = Some(Instant::now());
        let next = tracking.next;
        tracking.step(begun.elapsed(), &wishes.tracked);
        let is_news = tracking.next != next || wishes.detail != shown;
        shown = wishes.detail;
        let ranges = is_news.then(|| shown.and_then(|pid| tracking.ranges(pid)));
        let mut tracked = shared.tracked();
        if tracked.is_given_up {
            return;
        }
        tracked.since = None;
        tracked.heat.failed.clone_from(&tracking.heat.failed);
        if let Some(ranges) = ranges {
            tracked.heat.clone_from(&tracking.heat);
            tracked.ranges = ranges;
        }
        drop(tracked);
        let due = tracking.sampler.due().unwrap_or(Duration::MAX);
        let pause = due.saturating_sub(begun.elapsed());
        let pause = pause.clamp(MIN_SAMPLE_INTERVAL / 2, MAX_READER_SLEEP);
        let goes_on = |state: &mut State| !state.is_over();
        drop(
            shared
                .nudge
                .wait_timeout_while(shared.lock(), pause, goes_on),
        );
    }
}

/// Samples accesses of the processes on the screen.
pub(super) struct Tracking {
    sampler: Sampler,
    roots: Roots,
    pub(super) heat: Heat,
    pub(super) next: Duration,
    share: f64,
}

impl Tracking {
    pub(super) fn start(roots: &Roots, args: &TopArgs) -> Result<Self, String> {
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
            max_lock: lock_bound(None),
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

    pub(super) fn step(&mut self, at: Duration, wanted: &[ProcessId]) {
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
            .filter_map(|&id| Some((id, self.sampler.map(id)?.hot_set().usual_bytes()?)))
            .collect();
        let mut by_cgroup: BTreeMap<String, Vec<&HeatMap>> = BTreeMap::new();
        for &id in wanted {
            if let Some(map) = self.sampler.map(id) {
                by_cgroup
                    .entry(super::super::rows::service_of(&self.roots, id.pid))
                    .or_default()
                    .push(map);
            }
        }
        let of_all = |maps: Vec<&HeatMap>| HotSet::of_all(maps).usual_bytes();
        self.heat.by_cgroup = (by_cgroup.into_iter())
            .filter_map(|(service, maps)| Some((service, of_all(maps)?)))
            .collect();
        let cost = cpu_time().saturating_sub(begun);
        self.next = at + MAX_SAMPLE_INTERVAL.max(apart(cost, self.share * HOT_SETS));
    }

    /// Returns the sampled ranges of a process.
    fn ranges(&self, pid: u32) -> Option<(u32, Vec<(VirtRange, f32)>)> {
        let (id, _) = self.heat.hot_sets.iter().find(|(id, _)| id.pid == pid)?;
        let ranges = self.sampler.map(*id)?.ranges();
        let ranges = ranges.into_iter().map(|it| (it.range, it.rate));
        Some((pid, ranges.collect()))
    }
}

fn by_mapping(
    ranges: &[(VirtRange, f32)],
    status: &superhue::ProcessStatus,
) -> BTreeMap<VirtAddr, f64> {
    let mut mappings: Vec<_> = status.mappings.iter().map(|it| it.range).collect();
    mappings.sort_by_key(|range| range.start);
    let mut sums: BTreeMap<VirtAddr, (f64, f64)> = BTreeMap::new();
    for (range, rate) in ranges {
        let before = mappings.partition_point(|it| it.start <= range.start);
        let Some(mapping) = before.checked_sub(1).and_then(|index| mappings.get(index)) else {
            continue;
        };
        if range.start < mapping.end {
            #[allow(clippy::cast_precision_loss, reason = "a share")]
            let bytes = range.len().0 as f64;
            let sum = sums.entry(mapping.start).or_default();
            sum.0 += bytes * f64::from(*rate);
            sum.1 += bytes;
        }
    }
    sums.into_iter()
        .map(|(start, (hot, all))| (start, hot / all.max(1.0)))
        .collect()
}

/// Waits, and samples accesses meanwhile.
pub(super) fn sample_until(
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
