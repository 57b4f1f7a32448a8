//! Drives one tracker over many processes, each at its own pace.
//!
//! ```text
//!   resting ---- due: arm ----> armed ---- due: read ----> absorbed, paced
//!      ^                                                        |
//!      +------------------ until the pace says so --------------+
//! ```
//!
//! The loop that owns a sampler sleeps until [`Sampler::due`] and calls [`Sampler::step`]. The sampler itself never sleeps, and no process waits for
//! another one's interval.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use superhue_heat::Allowance;
use superhue_heat::{
    ArmingResult, Change, HeatMap, HotSet, Reading, RefillCost, SampleCost, Scope, TargetLock,
    TrackError, Tracker, TrackerKind, clearing_cost, foreign,
};
use superhue_model::{HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, ProcessId, VirtRange};
use superhue_procfs::process::{maps, memory_use, resident_now, waited_for_cpu};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::busy;
use superhue_sys::urgency::Urgent;

use super::target::{Phase, SampleInterval, Target};
use super::{Sampling, TrackingCost};
use crate::cpu::Work;

/// Time for which a process that could not be tracked is left alone before another attempt.
const AFTER_TROUBLE: Duration = Duration::from_secs(10);

/// Number of samples below which each lasts longer, and the part of the time that all of them together may last.
const FEW_SAMPLES: u32 = 8;
const WATCHED_PART: f64 = 0.8;

/// Time that `clear_refs` takes for one entry of a page table at most: 512 MiB of base pages in 14.5 ms, with two threads (docs/results/big.md).
const CLEARING: Duration = Duration::from_nanos(110);

/// Time that it takes at least, where a sample has to change many bits: an earlier one may have found most of them clear.
const QUICK_CLEARING: Duration = Duration::from_nanos(30);

/// Upper bound on the time for which the thread clears accessed bits in real time. Other threads wait for the CPU meanwhile.
const LONGEST_CLEARING: Duration = Duration::from_millis(10);

/// Longest interval of few samples: as of samples that show too little (see [`superhue_heat::Pace`]).
const LONGEST_OF_FEW: Duration = Duration::from_secs(1);

/// A sample as the tracker read it.
#[derive(Debug)]
pub struct Sample<'a> {
    /// The sampled process.
    pub process: ProcessId,
    /// Times of arming and of reading, on the clock of [`Sampler::step`].
    pub interval: std::ops::Range<Duration>,
    /// Pages accessed in between.
    pub reading: &'a Reading,
}

/// Result of one attempt to sample a process.
#[derive(Debug)]
pub struct SampleOutcome {
    /// The process.
    pub process: ProcessId,
    /// Change of its accesses, or the reason why there is no sample.
    pub result: Result<Change, TrackError>,
}

/// A tracker at work on any number of processes.
pub struct Sampler {
    roots: Roots,
    tracker: Box<dyn Tracker>,
    config: Sampling,
    refill: RefillCost,
    targets: BTreeMap<ProcessId, Target>,
    /// Our own CPU time that may be spent on all of them.
    allowance: Allowance,
    /// Time for which all targets together may be held up, and the number of CPUs.
    held_up: Allowance,
    cpus: u32,
    /// The dearest of the recent samples.
    expected: SampleCost,
    /// True if no sample may begin.
    is_held: bool,
    /// The most targets at a time.
    most: usize,
    samples: u64,
    /// CPU time of the kernel's own threads that no caller has collected yet.
    elsewhere: Duration,
    /// Cost of targets that are gone.
    past: TrackingCost,
    begun: Option<Duration>,
    now: Duration,
}

impl std::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sampler")
            .field("tracker", &self.tracker.kind())
            .field("config", &self.config)
            .field("targets", &self.targets.len())
            .finish_non_exhaustive()
    }
}

impl Sampler {
    /// Makes a sampler without targets.
    #[must_use]
    pub fn new(roots: Roots, tracker: Box<dyn Tracker>, config: Sampling) -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let cpus = u32::try_from(cpus).unwrap_or(u32::MAX);
        let of_all = config.max_overhead * f64::from(cpus);
        Self {
            roots,
            tracker,
            config,
            refill: RefillCost::measure(),
            targets: BTreeMap::new(),
            allowance: Allowance::new(config.max_overhead * config.own_part, Duration::ZERO),
            held_up: Allowance::new(of_all, Duration::ZERO),
            cpus,
            expected: SampleCost::default(),
            is_held: false,
            most: 0,
            samples: 0,
            elsewhere: Duration::ZERO,
            past: TrackingCost::default(),
            begun: None,
            now: Duration::ZERO,
        }
    }

    /// Bounds the cost of tracking from now on (see [`Sampling::max_overhead`]), except for the time that each process added before may be held up.
    pub fn limit(&mut self, max_overhead: f64) {
        self.config.max_overhead = max_overhead;
        self.allowance.allow(max_overhead * self.config.own_part);
        self.held_up.allow(max_overhead * f64::from(self.cpus));
    }

    /// Fits the samples of processes that are added from now on to a watch of `time`. `entries` are the page-table entries that a process can touch
    /// again after a sample.
    ///
    /// A sample of much memory in base pages costs its program so much that few of them stay within the bound on the cost: of 512 MiB two in 5 s,
    /// at 1 %. Of such few samples each lasts longer, up to a second, so that they show memory that is accessed now and then as well. A sample costs
    /// little more for that: it costs by the memory that is touched.
    pub fn fit(&mut self, time: Duration, entries: u64) {
        let cost = self.refill.of(entries);
        let mut allowance = Allowance::new(self.config.max_overhead, Duration::ZERO);
        let (mut at, mut count) = (Duration::ZERO, 0);
        while count < FEW_SAMPLES {
            at = allowance.when(at, cost);
            if at >= time && count > 0 {
                break;
            }
            allowance.spend(at, cost);
            count += 1;
        }
        if count < FEW_SAMPLES {
            let part = time.mul_f64(WATCHED_PART) / count;
            self.config.shortest = self.config.shortest.max(part.min(LONGEST_OF_FEW));
            self.config.longest = self.config.longest.max(self.config.shortest);
        }
    }

    /// Returns the kind of tracker that it drives.
    #[must_use]
    pub fn tracker(&self) -> TrackerKind {
        self.tracker.kind()
    }

    /// Adds a process; does nothing if it was added before. Its first sample is due at once.
    pub fn add(&mut self, process: ProcessId) {
        let (config, now) = (&self.config, self.now);
        self.targets
            .entry(process)
            .or_insert_with(|| Target::new(config, now));
        self.most = self.most.max(self.targets.len());
    }

    /// Returns true if a process was added and not removed.
    #[must_use]
    pub fn has(&self, process: ProcessId) -> bool {
        self.targets.contains_key(&process)
    }

    /// Removes a process.
    pub fn remove(&mut self, process: ProcessId) {
        if let Some(target) = self.targets.remove(&process) {
            self.past.add(target.cost.own, target.cost.target);
            self.past.flushed &= target.cost.flushed;
            self.tracker.release(process);
        }
    }

    /// Removes every process that is no longer wanted.
    pub fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        let gone: Vec<ProcessId> = self.targets.keys().copied().collect();
        for process in gone.into_iter().filter(|&process| !wanted(process)) {
            self.remove(process);
        }
    }

    /// Makes a process due for sampling again soon, after a plan or a client has acted on it.
    pub fn resample_soon(&mut self, process: ProcessId) {
        let now = self.now;
        if let Some(target) = self.targets.get_mut(&process) {
            target.resample = true;
            if target.pace.is_settled() {
                target.pace.rearm(now);
            }
        }
    }

    /// Begins no sample while `held`; those that have begun end as usual.
    pub fn hold(&mut self, held: bool) {
        self.is_held = held;
    }

    /// Drops the samples that are being taken, since the time that follows must not count, and lets another sampler track the processes meanwhile
    /// (except by DAMON, which this one keeps). The samples are taken again when due.
    pub fn put_off(&mut self) {
        for (&process, target) in &mut self.targets {
            if matches!(target.phase, Phase::Armed(_)) {
                target.phase = Phase::Resting;
            }
            if target.lock.take().is_some() {
                self.tracker.release(process);
            }
        }
    }

    /// Sets how much memory of a process is resident, and how many huge pages are among it. If it grew notably since sampling stopped, sampling
    /// starts again. A huge page is one entry to touch again, so promotion makes samples cheap.
    pub fn resident(&mut self, process: ProcessId, pages: PageCount, huge_pages: u64) {
        let (now, refill) = (self.now, self.refill);
        if let Some(target) = self.targets.get_mut(&process) {
            target.pace.resident(now, pages);
            target.spared = huge_pages.saturating_mul(PAGES_PER_REGION - 1);
            let entries = pages.0.saturating_sub(target.spared);
            target
                .pace
                .costs_target_at_most(target.locked + refill.of(entries));
        }
    }

    /// Returns the time at which [`Self::step`] has something to do next; `None` without targets, or while it is held and no sample has begun.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let due = |target: &Target| match target.phase {
            Phase::Resting => self.affordable(target.due()),
            _ => target.due(),
        };
        let has_begun = |target: &&Target| matches!(target.phase, Phase::Armed(_));
        let targets = self.targets.values();
        let targets = targets.filter(|target| !self.is_held || has_begun(target));
        targets.map(due).min()
    }

    /// Does the work that is due at `at`, on a clock that never goes back: reads armed targets, and arms targets that have rested. Returns the
    /// samples read, and the failures.
    pub fn step(&mut self, at: Duration) -> Vec<SampleOutcome> {
        self.step_with(at, &mut |_| {})
    }

    /// Does the same; calls `see` with each sample before it is dropped.
    pub fn step_with(
        &mut self,
        at: Duration,
        see: &mut dyn FnMut(&Sample<'_>),
    ) -> Vec<SampleOutcome> {
        let begun = Instant::now();
        self.now = self.now.max(at);
        self.begun.get_or_insert(self.now);
        let start = self.now;
        let mut sampled = Vec::new();
        // The process that has waited longest goes first: where there is not enough for all, each gets its turn.
        let due = |(&process, target): (&ProcessId, &Target)| (target.due(), process);
        let mut processes: Vec<_> = self.targets.iter().map(due).collect();
        processes.retain(|&(due, _)| due <= self.now);
        processes.sort_unstable();
        for (_, process) in processes {
            self.now = start + begun.elapsed();
            let Some(mut target) = self.targets.remove(&process) else {
                continue;
            };
            let result = self.advance(process, &mut target, see);
            self.targets.insert(process, target);
            if let Some(result) = result {
                sampled.push(SampleOutcome { process, result });
            }
        }
        sampled
    }

    /// Advances one process as far as possible now.
    fn advance(
        &mut self,
        process: ProcessId,
        target: &mut Target,
        see: &mut dyn FnMut(&Sample<'_>),
    ) -> Option<Result<Change, TrackError>> {
        if target.due() > self.now {
            return None;
        }
        // Trackers keep files of the process open.
        busy::note(process.pid);
        let mut result = None;
        match std::mem::replace(&mut target.phase, Phase::Resting) {
            Phase::Armed(mut armed) => {
                if self.puts_off(process, &mut armed) {
                    target.phase = Phase::Armed(armed);
                    return None;
                }
                result = Some(self.read(process, target, armed, see));
            }
            Phase::Resting | Phase::Troubled { .. } => {}
        }
        let rests = matches!(target.phase, Phase::Resting) && target.pace.next().arm > self.now;
        let is_poor = self.is_held || self.affordable(self.now) > self.now;
        let in_trouble = matches!(&result, Some(Err(_)));
        if rests || is_poor || in_trouble {
            return result;
        }
        match self.arm(process, target) {
            Ok(()) => result,
            Err(error) => {
                target.phase = self.trouble();
                Some(Err(error))
            }
        }
    }

    /// Puts the end of a sample off if its process has waited for a CPU; returns true if it did.
    fn puts_off(&self, process: ProcessId, armed: &mut SampleInterval) -> bool {
        let Some(before) = armed.waited else {
            return false;
        };
        waited_for_cpu(&self.roots, process.pid)
            .is_ok_and(|now| armed.put_off(self.now, now.saturating_sub(before)))
    }

    fn trouble(&self) -> Phase {
        Phase::Troubled {
            until: self.now + AFTER_TROUBLE,
        }
    }

    /// Keeps other trackers away from a process, unless that is done already.
    fn lock(&self, process: ProcessId, target: &mut Target) -> Result<(), TrackError> {
        if target.lock.is_none() {
            if let Some(error) = foreign(&self.roots, process) {
                return Err(error);
            }
            target.lock = Some(TargetLock::take(&self.roots, process)?);
        }
        Ok(())
    }

    fn arm(&mut self, process: ProcessId, target: &mut Target) -> Result<(), TrackError> {
        let work = Work::begin();
        if let Err(error) = self.lock(process, target) {
            let (took, own) = work.end();
            self.now += took;
            self.pay(target, own, Duration::ZERO);
            return Err(error);
        }
        let ranges = self.ranges(process).map_err(TrackError::from);
        let now = resident_now(&self.roots, process.pid).ok();
        let resident = now.map_or(PageCount(0), |now| now.total);
        // Bits of files and shared memory are left as they are, unless such memory is in scope.
        let has_objects = ranges.as_ref().is_ok_and(|it| it.has_objects);
        let cleared = match self.config.scope == Scope::All || has_objects {
            true => resident,
            false => now.map_or(PageCount(0), |now| now.anonymous()),
        };
        // Huge pages may have been split since the last look, by a fork for example, and a watch without looks knows of none.
        if (self.config.max_lock).is_some_and(|most| self.held(target, cleared.0) > most) {
            target.spared = spared_entries(&self.roots, process.pid);
        }
        let entries = cleared.0.saturating_sub(target.spared);
        let held = self.held(target, entries);
        let urgent = self.urgency(entries, held);
        let armed = ranges.and_then(|ranges| {
            self.object(process, entries, held)?;
            Ok((ranges.ranges, self.tracker.arm(process)?))
        });
        drop(urgent);
        let (took, own) = work.end();
        self.now += took;
        let (ranges, armed) = match armed {
            Ok(armed) => armed,
            Err(error) => {
                let cost = SampleCost {
                    own,
                    ..SampleCost::default()
                };
                self.pay(target, own, Duration::ZERO);
                self.expected = cost.or_recent(self.expected);
                target.pace.failed(self.now, cost);
                return Err(error);
            }
        };
        // At once: many targets may be armed in one step, and some end before they are read.
        self.pay(target, own + armed.elsewhere, armed.locked);
        self.elsewhere += armed.elsewhere;
        let interval = target.pace.next().interval;
        let waited = match self.config.by_cpu_time {
            true => waited_for_cpu(&self.roots, process.pid).ok(),
            false => None,
        };
        target.phase = Phase::Armed(SampleInterval {
            since: self.now,
            until: self.now + interval,
            wanted: interval,
            waited,
            ranges,
            armed: ArmingResult { took: own, ..armed },
            resident,
            entries,
        });
        Ok(())
    }

    /// Returns the time for which a sample of `entries` is to hold `mmap_lock`: by the last one, or else by what clearing takes in this process, twice.
    fn held(&self, target: &Target, entries: u64) -> Duration {
        let each = match target.locked_entries {
            0 => first_clearing(&self.roots),
            before => divided(target.locked, before).clamp(QUICK_CLEARING, CLEARING),
        };
        let each = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(each.saturating_mul(entries))
    }

    /// Returns an error if a sample may not hold `mmap_lock` for so long.
    fn object(
        &self,
        process: ProcessId,
        entries: u64,
        expected: Duration,
    ) -> Result<(), TrackError> {
        match self.config.max_lock {
            Some(allowed) if expected > allowed && self.tracker.kind() == TrackerKind::Ptwalk => {
                Err(TrackError::TooLong {
                    process,
                    entries,
                    expected,
                    allowed,
                })
            }
            _ => Ok(()),
        }
    }

    /// Schedules the thread before others while it clears `entries` accessed bits, for which the kernel holds `mmap_lock` for `held`; 0 entries are not
    /// known.
    fn urgency(&self, entries: u64, held: Duration) -> Urgent {
        let bound = self.config.max_real_time;
        let is_short = entries > 0 && held <= bound.min(LONGEST_CLEARING);
        match is_short && self.tracker.kind() == TrackerKind::Ptwalk {
            true => Urgent::first(),
            false => Urgent::raised(),
        }
    }

    /// Returns the mappings in scope, as they are now.
    fn ranges(&self, process: ProcessId) -> Result<ScopedRanges, ReadError> {
        let vmas = maps(&self.roots, process.pid)?;
        let wanted = vmas.iter().filter(|vma| self.config.scope.includes(vma));
        Ok(ScopedRanges {
            ranges: wanted.map(|vma| vma.range).collect(),
            has_objects: self.config.scope.has_objects(&vmas),
        })
    }

    fn read(
        &mut self,
        process: ProcessId,
        target: &mut Target,
        noting: SampleInterval,
        see: &mut dyn FnMut(&Sample<'_>),
    ) -> Result<Change, TrackError> {
        let work = Work::begin();
        let (interval, armed) = (noting.since..self.now, noting.armed);
        let length = interval.end.saturating_sub(interval.start);
        let urgent = Urgent::raised_for(noting.resident.0.saturating_sub(target.spared));
        let reading = self.tracker.read(process, &noting.ranges);
        drop(urgent);
        // A size that cannot be read is not known to be steady.
        let steady =
            resident_now(&self.roots, process.pid).is_ok_and(|now| now.total <= noting.resident);
        let change = reading.map(|reading| {
            see(&Sample {
                process,
                interval,
                reading: &reading,
            });
            let change = target.map.absorb(&reading, length, steady);
            if !armed.flushed {
                target.map.note_unflushed();
            }
            change
        });
        let (took, own) = work.end();
        self.now += took;
        let touched = change.as_ref().map_or(0, |change| change.entries);
        let refill = self.refill.of(touched);
        let cost = SampleCost {
            own: armed.took + armed.elsewhere + own,
            target: armed.locked + refill,
        };
        // The rest was paid when the sample began.
        self.pay(target, own, refill);
        self.expected = cost.or_recent(self.expected);
        match &change {
            Ok(change) => {
                self.samples += 1;
                target.cost.flushed &= armed.flushed;
                (target.locked, target.locked_entries) = (armed.locked, noting.entries);
                let busy = std::mem::take(&mut target.resample);
                target.pace.sampled(self.now, change, cost, busy);
                tracing::debug!(%process, ?length, moved = change.moved, "sampled");
            }
            // The process has new memory: the map is about memory that no longer exists.
            Err(TrackError::Replaced(_)) => {
                let before = std::mem::replace(&mut target.map, HeatMap::new());
                // Of a program without a sample there is nothing to keep.
                if before.samples() > 0 {
                    target.map_before = Some(before);
                }
                target.pace.rearm(self.now);
            }
            Err(_) => {
                target.pace.failed(self.now, cost);
                target.phase = self.trouble();
            }
        }
        change
    }

    /// Counts CPU time of a sample, and time for which it holds its process up.
    fn pay(&mut self, target: &mut Target, own: Duration, held: Duration) {
        target.cost.add(own, held);
        self.allowance.spend(self.now, own);
        self.held_up.spend(self.now, held);
    }

    /// Counts CPU time of the caller that its use of the samples took: fewer samples are affordable then.
    pub fn spend_beside(&mut self, cost: Duration) {
        self.past.add(cost, Duration::ZERO);
        self.allowance.spend(self.now, cost);
    }

    /// Returns the CPU time that threads of the kernel have spent on samples since the last call.
    pub fn take_elsewhere(&mut self) -> Duration {
        std::mem::take(&mut self.elsewhere)
    }

    /// Returns the earliest time from `at` on at which another sample is affordable.
    fn affordable(&self, at: Duration) -> Duration {
        let own = self.allowance.when(at, self.expected.own);
        own.max(self.held_up.when(at, self.expected.target))
    }

    /// Returns the heat map of a process.
    #[must_use]
    pub fn map(&self, process: ProcessId) -> Option<&HeatMap> {
        Some(&self.targets.get(&process)?.map)
    }

    /// Returns the map of the program that a process executed before the present one, if that had samples.
    #[must_use]
    pub fn map_before(&self, process: ProcessId) -> Option<&HeatMap> {
        self.targets.get(&process)?.map_before.as_ref()
    }

    /// Returns true if sampling of a process has stopped because nothing changes any more.
    #[must_use]
    pub fn is_settled(&self, process: ProcessId) -> bool {
        let target = self.targets.get(&process);
        target.is_some_and(|target| target.pace.is_settled())
    }

    /// Returns the interval of a process's next sample.
    #[must_use]
    pub fn interval(&self, process: ProcessId) -> Option<Duration> {
        Some(self.targets.get(&process)?.pace.next().interval)
    }

    /// Returns the number of samples taken, over all processes.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// Returns the cost of tracking a process so far.
    #[must_use]
    pub fn cost(&self, process: ProcessId) -> Option<TrackingCost> {
        let target = self.targets.get(&process)?;
        Some(TrackingCost {
            wall: self.now.saturating_sub(target.since),
            ..target.cost
        })
    }

    /// Returns the cost of tracking all processes so far, including those that are gone.
    #[must_use]
    pub fn total_cost(&self) -> TrackingCost {
        let mut total = self.past;
        for target in self.targets.values() {
            total.add(target.cost.own, target.cost.target);
            total.flushed &= target.cost.flushed;
        }
        total.wall = self.now.saturating_sub(self.begun.unwrap_or(self.now));
        total.abreast = u32::try_from(self.most).map_or(self.cpus, |most| most.min(self.cpus));
        total
    }

    /// Returns the distribution of accesses of all processes watched now.
    #[must_use]
    pub fn hot_set(&self) -> HotSet {
        HotSet::of_all(self.targets.values().map(|target| &target.map))
    }
}

/// Mappings in scope.
struct ScopedRanges {
    ranges: Vec<VirtRange>,
    /// True if shared objects are among them.
    has_objects: bool,
}

/// Returns the time that clearing a bit should take at most in the first sample of a process: its threads may be at work.
fn first_clearing(roots: &Roots) -> Duration {
    static HERE: OnceLock<Duration> = OnceLock::new();
    let measured = || clearing_cost(roots).map_or(CLEARING, |cost| cost * 2);
    (*HERE.get_or_init(measured)).clamp(QUICK_CLEARING, CLEARING)
}

/// Returns `time` for each of `count`.
fn divided(time: Duration, count: u64) -> Duration {
    let nanos = time.as_nanos() / u128::from(count.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// Returns the entries of page tables that a process does not have because huge pages map its memory; 0 if their number cannot be read.
#[must_use]
pub fn spared_entries(roots: &Roots, pid: u32) -> u64 {
    let huge = memory_use(roots, pid)
        .ok()
        .and_then(|memory| memory.anon_huge);
    huge.map_or(0, |huge| huge.0 / HUGE_PAGE_SIZE * (PAGES_PER_REGION - 1))
}

#[cfg(test)]
mod tests;
