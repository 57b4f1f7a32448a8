//! Drives one tracker over many processes, each at its own pace.
//!
//! ```text
//!   resting ---- due: arm ----> armed ---- due: read ----> absorbed, paced
//!      ^                                                        |
//!      +------------------ until the pace says so --------------+
//! ```
//!
//! The loop that owns a sampler sleeps until [`Sampler::due`] and calls [`Sampler::step`]. Nothing
//! here sleeps, and no process waits for another one's interval.

use std::collections::BTreeMap;
use std::num::NonZero;
use std::time::{Duration, Instant};

use superhue_model::{PAGES_PER_REGION, PageCount, ProcessId, VirtRange};
use superhue_observe::heat::{
    Allowance, Armed, Change, HeatMap, HotSet, Pace, PaceLimits, RefillCost, SampleCost, Scope,
    TargetLock, TrackError, Tracker, TrackerKind, foreign,
};
use superhue_observe::process::{maps, resident_now};
use superhue_observe::{ReadError, Roots};

use super::TrackingCost;
use crate::cpu::Work;

/// How long a process that could not be tracked is left alone before another attempt.
const AFTER_TROUBLE: Duration = Duration::from_secs(10);

/// How processes are to be sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Bound on the share of time that tracking may cost: of each target's time, of that of all CPUs
    /// for the targets together, and of one CPU's for Superhue: 0 to 1.
    pub max_overhead: f64,
    /// The part of that which Superhue's own time in sampling may take, the rest being for other work
    /// it does: 0 to 1.
    pub own_part: f64,
    /// The shortest interval of a sample.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
    /// Which memory.
    pub scope: Scope,
    /// Whether to stop, but for a rare glance, once samples stay the same.
    pub settle: bool,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            max_overhead: 0.01,
            own_part: 1.0,
            shortest: Duration::from_millis(50),
            longest: Duration::from_secs(10),
            scope: Scope::Anonymous,
            settle: true,
        }
    }
}

/// What became of one attempt to sample a process.
#[derive(Debug)]
pub struct Sampled {
    /// Which process.
    pub process: ProcessId,
    /// How its accesses have changed, or why there is no sample.
    pub result: Result<Change, TrackError>,
}

#[derive(Debug)]
enum Phase {
    /// Until the pace wants the next sample.
    Resting,
    /// Accesses are being noted.
    Armed {
        since: Duration,
        until: Duration,
        ranges: Vec<VirtRange>,
        armed: Armed,
        resident: PageCount,
    },
    /// Not to be tracked before this time.
    Troubled { until: Duration },
}

struct Target {
    phase: Phase,
    map: HeatMap,
    pace: Pace,
    cost: TrackingCost,
    since: Duration,
    /// Something was done about the process since its last sample.
    stirred: bool,
    /// How long the last sample held its page tables locked.
    locked: Duration,
    /// Keeps others from clearing the same accessed bits; taken with the first sample.
    lock: Option<TargetLock>,
}

impl Target {
    fn new(config: &Sampling, at: Duration) -> Self {
        let limits = PaceLimits {
            shortest: config.shortest,
            longest: config.longest,
            max_overhead: config.max_overhead,
            settle: config.settle,
        };
        Self {
            phase: Phase::Resting,
            map: HeatMap::new(),
            pace: Pace::new(limits, at),
            cost: TrackingCost::default(),
            since: at,
            stirred: false,
            locked: Duration::ZERO,
            lock: None,
        }
    }

    fn due(&self) -> Duration {
        match self.phase {
            Phase::Resting => self.pace.next().arm,
            Phase::Armed { until, .. } | Phase::Troubled { until } => until,
        }
    }
}

/// A tracker at work on any number of processes.
pub struct Sampler {
    roots: Roots,
    tracker: Box<dyn Tracker>,
    config: Sampling,
    refill: RefillCost,
    targets: BTreeMap<ProcessId, Target>,
    /// What may be spent of our own CPU time on all of them.
    allowance: Allowance,
    /// What all targets together may be held up, and on how many CPUs.
    held_up: Allowance,
    cpus: u32,
    /// The dearest of the recent samples.
    expected: SampleCost,
    /// The most targets there were at a time.
    most: usize,
    samples: u64,
    /// What was spent on targets that are gone.
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
    /// A sampler without targets.
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
            allowance: Allowance::new(config.max_overhead, Duration::ZERO).in_part(config.own_part),
            held_up: Allowance::new(of_all, Duration::ZERO),
            cpus,
            expected: SampleCost::default(),
            most: 0,
            samples: 0,
            past: TrackingCost::default(),
            begun: None,
            now: Duration::ZERO,
        }
    }

    /// Which tracker it drives.
    #[must_use]
    pub fn tracker(&self) -> TrackerKind {
        self.tracker.kind()
    }

    /// Takes a process in; nothing if it is in already. Its first sample is due at once.
    pub fn add(&mut self, process: ProcessId) {
        let (config, now) = (&self.config, self.now);
        self.targets
            .entry(process)
            .or_insert_with(|| Target::new(config, now));
        self.most = self.most.max(self.targets.len());
    }

    /// Lets a process go.
    pub fn remove(&mut self, process: ProcessId) {
        if let Some(target) = self.targets.remove(&process) {
            self.past.add(target.cost.own, target.cost.target);
            self.past.flushed &= target.cost.flushed;
            self.tracker.release(process);
        }
    }

    /// Lets every process go that is not wanted any more.
    pub fn retain(&mut self, wanted: impl Fn(ProcessId) -> bool) {
        let gone: Vec<ProcessId> = self.targets.keys().copied().collect();
        for process in gone.into_iter().filter(|&process| !wanted(process)) {
            self.remove(process);
        }
    }

    /// Says that something was done about a process, so that it is worth sampling again soon.
    pub fn stir(&mut self, process: ProcessId) {
        let now = self.now;
        if let Some(target) = self.targets.get_mut(&process) {
            target.stirred = true;
            if target.pace.is_settled() {
                target.pace.rearm(now);
            }
        }
    }

    /// Says how much memory of a process is resident, and how many superpages are among it. If it
    /// grew notably since sampling stopped, sampling is taken up again. A superpage is one entry to
    /// touch again, so what was promoted makes samples cheap.
    pub fn resident(&mut self, process: ProcessId, pages: PageCount, superpages: u64) {
        let (now, refill) = (self.now, self.refill);
        if let Some(target) = self.targets.get_mut(&process) {
            target.pace.resident(now, pages);
            let spared = superpages.saturating_mul(PAGES_PER_REGION - 1);
            let entries = pages.0.saturating_sub(spared);
            target
                .pace
                .costs_target_at_most(target.locked + refill.of(entries));
        }
    }

    /// When [`Self::step`] has something to do next; `None` without targets.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        let due = |target: &Target| match target.phase {
            Phase::Resting => self.affordable(target.due()),
            _ => target.due(),
        };
        self.targets.values().map(due).min()
    }

    /// Does what is due at `at`, on a clock that never goes back: reads what was armed, arms what
    /// has rested. Returns the samples read, and what failed.
    pub fn step(&mut self, at: Duration) -> Vec<Sampled> {
        let begun = Instant::now();
        self.now = self.now.max(at);
        self.begun.get_or_insert(self.now);
        let start = self.now;
        let mut sampled = Vec::new();
        // Who has waited longest goes first: where there is not enough for all, everybody's turn
        // comes.
        let due = |(&process, target): (&ProcessId, &Target)| (target.due(), process);
        let mut processes: Vec<_> = self.targets.iter().map(due).collect();
        processes.retain(|&(due, _)| due <= self.now);
        processes.sort_unstable();
        for (_, process) in processes {
            self.now = start + begun.elapsed();
            let Some(mut target) = self.targets.remove(&process) else {
                continue;
            };
            let result = self.advance(process, &mut target);
            self.targets.insert(process, target);
            if let Some(result) = result {
                sampled.push(Sampled { process, result });
            }
        }
        sampled
    }

    /// Takes one process as far as it can go now.
    fn advance(
        &mut self,
        process: ProcessId,
        target: &mut Target,
    ) -> Option<Result<Change, TrackError>> {
        if target.due() > self.now {
            return None;
        }
        let mut result = None;
        match std::mem::replace(&mut target.phase, Phase::Resting) {
            Phase::Armed {
                since,
                ranges,
                armed,
                resident,
                ..
            } => {
                result = Some(self.read(process, target, since, &ranges, armed, resident));
            }
            Phase::Resting | Phase::Troubled { .. } => {}
        }
        let rests = matches!(target.phase, Phase::Resting) && target.pace.next().arm > self.now;
        let is_poor = self.affordable(self.now) > self.now;
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

    fn trouble(&self) -> Phase {
        Phase::Troubled {
            until: self.now + AFTER_TROUBLE,
        }
    }

    fn arm(&mut self, process: ProcessId, target: &mut Target) -> Result<(), TrackError> {
        if target.lock.is_none() {
            if let Some(error) = foreign(&self.roots, process) {
                return Err(error);
            }
            target.lock = Some(TargetLock::take(&self.roots, process)?);
        }
        let work = Work::begin();
        let ranges = self.ranges(process).map_err(TrackError::from);
        let resident = self.resident_pages(process);
        let armed = ranges.and_then(|ranges| Ok((ranges, self.tracker.arm(process)?)));
        let (took, own) = work.end();
        self.now += took;
        let (ranges, armed) = match armed {
            Ok(armed) => armed,
            Err(error) => {
                let cost = SampleCost {
                    own,
                    ..SampleCost::default()
                };
                self.spend(target, cost);
                target.pace.failed(self.now, cost);
                return Err(error);
            }
        };
        let interval = target.pace.next().interval;
        target.phase = Phase::Armed {
            since: self.now,
            until: self.now + interval,
            ranges,
            armed: Armed { took: own, ..armed },
            resident,
        };
        Ok(())
    }

    /// The mappings in scope, as they are now.
    fn ranges(&self, process: ProcessId) -> Result<Vec<VirtRange>, ReadError> {
        let vmas = maps(&self.roots, process.pid)?;
        let all = self.config.scope == Scope::All;
        let wanted = vmas.iter().filter(|vma| all || vma.is_promotable());
        Ok(wanted.map(|vma| vma.range).collect())
    }

    /// Pages resident now; as if there were none where that cannot be read.
    fn resident_pages(&self, process: ProcessId) -> PageCount {
        resident_now(&self.roots, process.pid).map_or(PageCount(0), |now| now.total)
    }

    fn read(
        &mut self,
        process: ProcessId,
        target: &mut Target,
        since: Duration,
        ranges: &[VirtRange],
        armed: Armed,
        resident: PageCount,
    ) -> Result<Change, TrackError> {
        let work = Work::begin();
        let interval = self.now.saturating_sub(since);
        let reading = self.tracker.read(process, ranges);
        let steady = self.resident_pages(process) <= resident;
        let change = reading.map(|reading| target.map.absorb(&reading, interval, steady));
        let (took, own) = work.end();
        self.now += took;
        let touched = change.as_ref().map_or(0, |change| change.entries);
        let cost = SampleCost {
            own: armed.took + own,
            target: armed.locked + self.refill.of(touched),
        };
        self.spend(target, cost);
        match &change {
            Ok(change) => {
                self.samples += 1;
                target.cost.flushed &= armed.flushed;
                target.locked = armed.locked;
                let busy = std::mem::take(&mut target.stirred);
                target.pace.sampled(self.now, change, cost, busy);
            }
            // Other memory now: what was known is about memory that is no more.
            Err(TrackError::Replaced(_)) => {
                target.map = HeatMap::new();
                target.pace.rearm(self.now);
            }
            Err(_) => {
                target.pace.failed(self.now, cost);
                target.phase = self.trouble();
            }
        }
        change
    }

    fn spend(&mut self, target: &mut Target, cost: SampleCost) {
        target.cost.add(cost.own, cost.target);
        self.allowance.spend(self.now, cost.own);
        self.held_up.spend(self.now, cost.target);
        self.expected = cost.or_recent(self.expected);
    }

    /// When there is enough for another sample, at the earliest; not before `at`.
    fn affordable(&self, at: Duration) -> Duration {
        let own = self.allowance.when(at, self.expected.own);
        own.max(self.held_up.when(at, self.expected.target))
    }

    /// What is known of a process.
    #[must_use]
    pub fn map(&self, process: ProcessId) -> Option<&HeatMap> {
        Some(&self.targets.get(&process)?.map)
    }

    /// Whether sampling of a process has stopped because nothing changes any more.
    #[must_use]
    pub fn is_settled(&self, process: ProcessId) -> bool {
        let target = self.targets.get(&process);
        target.is_some_and(|target| target.pace.is_settled())
    }

    /// The interval of a process's next sample.
    #[must_use]
    pub fn interval(&self, process: ProcessId) -> Option<Duration> {
        Some(self.targets.get(&process)?.pace.next().interval)
    }

    /// Samples taken, over all processes.
    #[must_use]
    pub const fn samples(&self) -> u64 {
        self.samples
    }

    /// What tracking a process has cost so far.
    #[must_use]
    pub fn cost(&self, process: ProcessId) -> Option<TrackingCost> {
        let target = self.targets.get(&process)?;
        Some(TrackingCost {
            wall: self.now.saturating_sub(target.since),
            ..target.cost
        })
    }

    /// What tracking all processes has cost so far, those gone included.
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

    /// Where the accesses of all processes watched now are.
    #[must_use]
    pub fn hot_set(&self) -> HotSet {
        HotSet::of_all(self.targets.values().map(|target| &target.map))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use superhue_model::{PageSet, Region, VirtAddr};
    use superhue_observe::heat::{Reading, RegionBits};
    use superhue_observe::process::identify;

    use super::*;

    /// What a tracker was asked, and what it is to answer.
    #[derive(Debug, Default)]
    struct Script {
        armed: u64,
        read: u64,
        released: Vec<ProcessId>,
        touched: usize,
        replaced: bool,
        unusable: bool,
        costs: Duration,
    }

    #[derive(Clone, Default)]
    struct Fake(Arc<Mutex<Script>>);

    impl Fake {
        fn with<T>(&self, change: impl FnOnce(&mut Script) -> T) -> T {
            change(&mut self.0.lock().unwrap())
        }
    }

    impl Tracker for Fake {
        fn kind(&self) -> TrackerKind {
            TrackerKind::Ptwalk
        }

        fn arm(&mut self, _: ProcessId) -> Result<Armed, TrackError> {
            self.with(|script| {
                script.armed += 1;
                if script.unusable {
                    return Err(TrackError::Unusable {
                        kind: TrackerKind::Ptwalk,
                        why: "it is only a test".to_owned(),
                    });
                }
                Ok(Armed {
                    took: script.costs,
                    locked: script.costs,
                    flushed: true,
                })
            })
        }

        fn read(&mut self, id: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
            assert!(!ranges.is_empty());
            self.with(|script| {
                script.read += 1;
                if std::mem::take(&mut script.replaced) {
                    return Err(TrackError::Replaced(id));
                }
                let mut accessed = PageSet::EMPTY;
                (0..script.touched).for_each(|page| accessed.insert(page));
                Ok(Reading::Pages(vec![RegionBits {
                    region: Region::containing(VirtAddr(1 << 30)),
                    huge: false,
                    present: PageSet::FULL,
                    accessed,
                }]))
            })
        }

        fn release(&mut self, process: ProcessId) {
            self.with(|script| script.released.push(process));
        }
    }

    /// A child that lives as long as the test: what is sampled must exist.
    struct Child(std::process::Child);

    impl Child {
        fn start() -> (Self, ProcessId) {
            let child = std::process::Command::new("sleep").arg("600").spawn();
            let child = child.unwrap();
            let id = identify(&Roots::default(), child.id()).unwrap();
            (Self(child), id)
        }
    }

    impl Drop for Child {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn sampler(fake: &Fake) -> Sampler {
        let config = Sampling {
            scope: Scope::All,
            ..Sampling::default()
        };
        Sampler::new(Roots::default(), Box::new(fake.clone()), config)
    }

    /// Steps whenever something is due until `until`.
    fn run(sampler: &mut Sampler, until: Duration) -> Vec<Sampled> {
        let mut sampled = Vec::new();
        while let Some(due) = sampler.due().filter(|due| *due <= until) {
            sampled.extend(sampler.step(due));
        }
        sampled
    }

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn sampling_settles_and_is_taken_up_again() {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.touched = 100);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        sampler.add(id);
        let sampled = run(&mut sampler, MINUTE);
        assert!(sampled.iter().all(|sampled| sampled.result.is_ok()));
        assert!(sampler.is_settled(id));
        // Five make sure; then there is a probe every other second.
        let before = sampler.samples();
        assert!((25..=40).contains(&before), "{before}");
        let heat = sampler.map(id).unwrap().heat();
        assert_eq!(heat.regions[0].active, Some(PageCount(100)));
        assert_eq!(
            sampler.hot_set().bytes_for(1.0),
            Some(PageCount(100).bytes())
        );

        sampler.stir(id);
        assert!(!sampler.is_settled(id));
        run(&mut sampler, 2 * MINUTE);
        assert!(sampler.is_settled(id));
        assert!(sampler.samples() > before + 25);

        sampler.retain(|_| false);
        assert_eq!(sampler.due(), None);
        assert_eq!(fake.with(|script| script.released.clone()), [id]);
        assert!(sampler.total_cost().own > Duration::ZERO);
    }

    #[test]
    fn what_it_costs_stays_below_the_ceiling() {
        let children: Vec<_> = (0..4).map(|_| Child::start()).collect();
        let fake = Fake::default();
        fake.with(|script| script.costs = Duration::from_millis(20));
        let mut sampler = sampler(&fake);
        sampler.config.settle = false;
        children.iter().for_each(|(_, id)| sampler.add(*id));
        let until = 20 * MINUTE;
        let sampled = run(&mut sampler, until);
        assert!(sampled.len() > 100, "{}", sampled.len());
        let cost = sampler.total_cost();
        // One per cent, and as much as ten seconds of it in advance, and one sample.
        let most = until.mul_f64(0.01) + Duration::from_millis(200);
        assert!(cost.own <= most, "{:?}", cost.own);
        for (_, id) in &children {
            let cost = sampler.cost(*id).unwrap();
            assert!(cost.target <= most, "{:?}", cost.target);
        }
    }

    #[test]
    fn a_process_that_replaced_its_memory_is_looked_at_anew() {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.touched = 7);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        run(&mut sampler, Duration::from_secs(5));
        assert!(sampler.map(id).unwrap().samples() > 2);
        sampler.stir(id);
        fake.with(|script| script.replaced = true);
        let sampled = run(&mut sampler, Duration::from_millis(5_500));
        let replaced = |sampled: &&Sampled| matches!(sampled.result, Err(TrackError::Replaced(_)));
        assert_eq!(sampled.iter().filter(replaced).count(), 1);
        let samples = sampler.map(id).unwrap().samples();
        assert!(samples as usize <= sampled.len(), "{samples}");
        run(&mut sampler, MINUTE);
        assert!(sampler.is_settled(id));
    }

    #[test]
    fn trouble_is_told_and_not_asked_for_again_at_once() {
        let (_child, id) = Child::start();
        let fake = Fake::default();
        fake.with(|script| script.unusable = true);
        let mut sampler = sampler(&fake);
        sampler.add(id);
        let sampled = run(&mut sampler, MINUTE);
        assert!(sampled.iter().all(|sampled| sampled.result.is_err()));
        assert!((5..8).contains(&sampled.len()), "{}", sampled.len());
    }

    #[test]
    fn one_process_is_not_tracked_twice() {
        let (_child, id) = Child::start();
        let (one, two) = (Fake::default(), Fake::default());
        let (mut first, mut second) = (sampler(&one), sampler(&two));
        first.add(id);
        second.add(id);
        assert!(first.step(Duration::ZERO).is_empty());
        let refused = second.step(Duration::ZERO);
        assert!(matches!(refused[0].result, Err(TrackError::Foreign { .. })));
        assert_eq!(two.with(|script| script.armed), 0);
        first.remove(id);
        run(&mut second, MINUTE);
        assert!(two.with(|script| script.read) > 0);
    }
}
