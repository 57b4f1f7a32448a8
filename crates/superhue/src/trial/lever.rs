//! Switches a policy on and off in running processes.
//!
//! ```text
//!   on     the policy's watch runs; the regions that it had made huge are collapsed again
//!   off    the watch stands still; those regions are split, and their pages exchange frames if frames had been scattered before
//! ```
//!
//! A collapse makes only pages that the policy would have made, and the bytes are the same in all states. So the target can stay in any of them,
//! and does if superhue is killed. Memory that was huge before the trial stays as it is, since the lever remembers only the policy's own
//! collapses; with `present` it is switched, too, and is huge again at the end. A program that starts makes such memory little by little, so the
//! lever looks for it until the policy has learned enough.
//!
//! *Zeroes.* Since Linux 6.12 a split maps pages that hold only zeroes to one shared page, which is always in the cache. A program that uses such
//! pages would be faster in *off* for that alone. So regions that lose more pages in a split than the collapse had added stay huge in both states.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use superhue_act::Actuator;
use superhue_model::{
    Action, ActionResult, CollapseBound, Effect, Errno, Outcome, Owner, PAGES_PER_REGION,
    PageCount, Plan, ProcessId, Region, SkipReason,
};
use superhue_procfs::Roots;
use superhue_procfs::process::{
    PageScanner, is_huge_mapped, resident_pages, still_is, swapped_pages, view,
};

use super::frames::{Neighbors, neighbors_in};
use super::scatter::{Scatterer, SwapMover};
use crate::Config;
use crate::live::{LiveWatch, Members, WatchAccount};
use crate::means::Means;
use crate::session::new_actuator;
use crate::watch::Mappings;

/// Actions between two checks for a stop.
const CHUNK: usize = 8;

/// Time between two looks for memory that is huge already, at least, and as a multiple of the time that a look takes.
const ADOPTED_EVERY: Duration = Duration::from_secs(1);
const ADOPTION_PAUSE: u32 = 10;

/// Longest time to wait for the watch to stand still: it first completes the action in progress.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);

/// Further attempts at a collapse that the kernel refused for the moment, and the pause before each.
const COLLAPSE_RETRIES: usize = 3;
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Regions that are checked to measure how far a switch took effect.
const SAMPLE: usize = 128;

/// Period of which collapses may take a part (see [`Config::stall_bound`]).
const WINDOW: Duration = Duration::from_millis(100);

/// Pages of zeroes that a region may lose in a split beyond those that the collapse had added: more would make *off* faster.
const MOST_ZEROES: u64 = 32;

/// Frames count as scattered if a smaller share of neighboring pages have neighboring frames.
const SCATTERED: f64 = 0.5;

/// Regions whose frames are recorded before they are collapsed.
const MOST_RECORDED: usize = 1024;

/// A region of a process.
type Key = (ProcessId, Region);

/// Function that sleeps, and returns true to stop.
pub(super) type SleepFn<'a> = dyn FnMut(Duration) -> bool + 'a;

/// The regions that the policy made huge, with the pages that this added.
#[derive(Debug, Default, Clone)]
struct CollapsedRegions(Arc<Mutex<BTreeMap<Key, PageCount>>>);

impl CollapsedRegions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, PageCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters regions before they are collapsed, so that a look meanwhile does not take them for memory that is huge already. Returns those that were
    /// not there.
    fn begin(&self, actions: &[Action]) -> BTreeSet<Key> {
        let mut made = self.lock();
        let mut begun = BTreeSet::new();
        for action in actions {
            let (Action::Collapse { growth, .. }, Some(key)) = (*action, key_of(*action)) else {
                continue;
            };
            if let Entry::Vacant(entry) = made.entry(key) {
                entry.insert(growth);
                begun.insert(key);
            }
        }
        begun
    }

    /// Enters results, and forgets regions of `begun` that were not collapsed.
    fn enter(&self, results: &[ActionResult], mut begun: BTreeSet<Key>) {
        let mut made = self.lock();
        let done = results
            .iter()
            .filter(|result| result.effect == Effect::Done);
        for action in done.map(|result| result.action) {
            let Some(key) = key_of(action) else { continue };
            match action {
                Action::Collapse { growth, .. } => {
                    made.insert(key, growth);
                    begun.remove(&key);
                }
                Action::Split { .. } => {
                    made.remove(&key);
                }
            }
        }
        for key in &begun {
            made.remove(key);
        }
    }
}

/// Returns the region that an action is about; `None` for shared memory.
fn key_of(action: Action) -> Option<Key> {
    Some((action.owner().process()?, action.region()))
}

/// Frames of regions right before the policy collapsed them.
#[derive(Debug, Default, Clone)]
struct FramesBefore(Arc<Mutex<(Neighbors, usize)>>);

impl FramesBefore {
    fn lock(&self) -> MutexGuard<'_, (Neighbors, usize)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, roots: &Roots, action: Action) {
        if let (Action::Collapse { region, .. }, Some(process)) = (action, action.owner().process())
        {
            let mut recorded = self.lock();
            if recorded.1 < MOST_RECORDED {
                recorded.0.add(neighbors_in(roots, process, region));
                recorded.1 += 1;
            }
        }
    }

    fn share(&self) -> Option<f64> {
        self.lock().0.share()
    }

    /// Records no more.
    fn end(&self) {
        self.lock().1 = MOST_RECORDED;
    }
}

/// Actuator that passes actions to another one, and remembers the regions that become huge.
struct RecordingActuator {
    actuator: Box<dyn Actuator>,
    roots: Roots,
    made: CollapsedRegions,
    before: FramesBefore,
}

impl Actuator for RecordingActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        // Shared memory is left alone: a split in one process would not split the mappings of other processes. The policy sees the same
        // error as from a kernel that cannot collapse it.
        // So is memory that was huge before, where the trial does not switch it: a split that nobody takes back would be a change.
        let ours: BTreeSet<Key> = self.made.lock().keys().copied().collect();
        let is_private = |action: &Action| match *action {
            Action::Collapse { owner, .. } => matches!(owner, Owner::Process(_)),
            Action::Split { .. } => key_of(*action).is_some_and(|key| ours.contains(&key)),
        };
        let private: Vec<Action> = plan.actions.iter().copied().filter(is_private).collect();
        for action in &private {
            self.before.record(&self.roots, *action);
        }
        let begun = self.made.begin(&private);
        let done = self.actuator.perform(&plan.part(&private), stop);
        self.made.enter(&done.results, begun);
        let mut done = done.results.into_iter();
        let results = plan.actions.iter().filter_map(|&action| {
            if is_private(&action) {
                return done.next();
            }
            let errno = Errno::EINVAL;
            Some(ActionResult {
                action,
                effect: Effect::Failed { errno },
                took: Duration::ZERO,
            })
        });
        Outcome {
            results: results.collect(),
        }
    }

    fn housekeep(&mut self) {
        self.actuator.housekeep();
    }
}

/// Counts and longest times of switching.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct SwitchCounts {
    pub(super) times_on: u64,
    pub(super) times_off: u64,
    pub(super) longest_on: Option<Duration>,
    pub(super) longest_off: Option<Duration>,
    pub(super) not_collapsed: u64,
    pub(super) not_split: u64,
}

/// Options of a switch beside those of its policy.
#[derive(Debug, Clone, Copy)]
pub(super) struct SwitchOptions {
    /// Switches nothing really: a trial of the trial.
    pub(super) is_dummy: bool,
    /// Switches memory that is huge already, too.
    pub(super) present: bool,
    /// May make swap in memory, to scatter frames.
    pub(super) make_swap: bool,
    /// Decides the order in which pages are scattered.
    pub(super) seed: u64,
}

/// Means of scattering frames.
enum Scattering {
    /// Not needed so far.
    Wanted,
    Ready(Scatterer),
    /// Impossible here, for this reason.
    Failed(String),
}

/// Frames of the switched memory, as far as they are known.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct FrameSurvey {
    /// Share of neighboring pages with neighboring frames before the policy's collapses, and with the policy off.
    pub(super) before: Option<f64>,
    pub(super) off: Option<f64>,
    /// Number of pages moved, and the area that they went through.
    pub(super) moved: u64,
    pub(super) through: Option<String>,
    /// Reason why pages were not moved.
    pub(super) why_not: Option<String>,
}

/// State of the policy's regions after the trial.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Remains {
    /// Regions of the policy that are huge; `None` where the kernel does not show it.
    pub(super) huge: Option<u64>,
    /// Number of failed splits of them at the end.
    pub(super) unsplit: u64,
    /// Regions that were huge already and were switched.
    pub(super) found: u64,
    /// Number of those that are not huge again; `None` where the kernel does not show it.
    pub(super) found_not_restored: Option<u64>,
}

/// Regions by how they are mapped.
#[derive(Debug, Default, Clone, Copy)]
struct HugeCounts {
    huge: u64,
    base: u64,
    unknown: u64,
}

impl HugeCounts {
    /// Returns the regions that huge pages map and the others; `None` if one is unknown.
    const fn known(self) -> Option<(u64, u64)> {
        match self.unknown {
            0 => Some((self.huge, self.base)),
            _ => None,
        }
    }
}

/// Switches a policy on and off.
pub(super) struct PolicySwitch {
    roots: Roots,
    watch: LiveWatch,
    made: CollapsedRegions,
    /// Regions that were huge already.
    found: BTreeSet<Key>,
    /// Processes of the target, and the time of the next look for such regions in them.
    members: BTreeSet<ProcessId>,
    next_adoption: Instant,
    /// Regions that stay huge in both states, because a split would drop pages of zeroes.
    zeroed: BTreeSet<Key>,
    /// Absent pages of each region after its last split.
    absent: BTreeMap<Key, PageCount>,
    before: FramesBefore,
    off: Neighbors,
    scattering: Scattering,
    actuator: Box<dyn Actuator>,
    max_stall: Option<Duration>,
    is_on: bool,
    hold_timeout: Duration,
    /// Error of a watch that did not stand still when it last had to.
    not_held: Option<String>,
    options: SwitchOptions,
    pub(super) switched: SwitchCounts,
}

impl PolicySwitch {
    /// Starts a watch that follows the policy: on. The lever switches by `means`.
    ///
    /// # Errors
    /// The system cannot start a thread for it.
    pub(super) fn new(
        config: &Config,
        means: &Means,
        options: SwitchOptions,
    ) -> std::io::Result<Self> {
        let (made, before) = (CollapsedRegions::default(), FramesBefore::default());
        let theirs = (made.clone(), before.clone());
        let roots = config.roots.clone();
        let watch = LiveWatch::start_with(config, "superhue-watch", |actuator| {
            let (made, before) = theirs;
            Box::new(RecordingActuator {
                actuator,
                roots,
                made,
                before,
            })
        })?;
        let config = config.for_running();
        let scattering = match means {
            Means::Own => Scattering::Wanted,
            Means::Service(_) => Scattering::Failed(
                "the daemon acts for this user, and moves no pages: run the trial as root"
                    .to_owned(),
            ),
        };
        Ok(Self {
            actuator: new_actuator(&config, means, Mappings::default()),
            roots: config.roots.clone(),
            watch,
            made,
            found: BTreeSet::new(),
            members: BTreeSet::new(),
            next_adoption: Instant::now(),
            zeroed: BTreeSet::new(),
            max_stall: (config.stall_bound()).map(|bound| bound.with_reserve().allowed),
            is_on: true,
            hold_timeout: HOLD_TIMEOUT,
            not_held: None,
            absent: BTreeMap::new(),
            before,
            off: Neighbors::default(),
            scattering,
            options,
            switched: SwitchCounts::default(),
        })
    }

    /// Sets the processes of the target.
    pub(super) fn feed(&mut self, members: Members) {
        let now: BTreeSet<ProcessId> = members.keys().copied().collect();
        let before = std::mem::replace(&mut self.members, now);
        // Before the watch makes more of them huge.
        let new: Vec<ProcessId> = self.members.difference(&before).copied().collect();
        self.adopt_in(&new);
        self.watch.feed(members);
    }

    /// Takes regions that have become huge without the policy since the last look, if another look is due.
    pub(super) fn adopt_again(&mut self) {
        if Instant::now() >= self.next_adoption {
            let all: Vec<ProcessId> = self.members.iter().copied().collect();
            self.adopt_in(&all);
        }
    }

    /// Takes the regions of processes that are huge already.
    fn adopt_in(&mut self, processes: &[ProcessId]) {
        if !self.options.present || self.options.is_dummy {
            return;
        }
        let begun = Instant::now();
        processes.iter().for_each(|&process| self.adopt(process));
        let pause = ADOPTED_EVERY.max(begun.elapsed() * ADOPTION_PAUSE);
        self.next_adoption = Instant::now() + pause;
    }

    fn adopt(&mut self, process: ProcessId) {
        // The watch reports processes that cannot be read.
        let Ok(view) = view(&self.roots, &mut PageScanner::new(), process) else {
            return;
        };
        let huge = view.regions.iter().filter(|it| it.huge == Some(true));
        let mut made = self.made.lock();
        for region in huge.map(|it| it.region) {
            if let Entry::Vacant(entry) = made.entry((process, region)) {
                entry.insert(PageCount(0));
                self.found.insert((process, region));
            }
        }
    }

    /// Returns the last account of the watch.
    pub(super) fn account(&self) -> Arc<WatchAccount> {
        self.watch.account()
    }

    /// Returns the number of regions that the policy made huge, or that were huge already.
    pub(super) fn regions(&self) -> usize {
        self.made.lock().len()
    }

    /// Returns the regions that are switched, with the pages that their collapses added.
    fn switched_regions(&self) -> Vec<(Key, PageCount)> {
        let made = self.made.lock();
        let switched = made.iter().filter(|(key, _)| !self.zeroed.contains(key));
        switched.map(|(key, growth)| (*key, *growth)).collect()
    }

    /// Returns the same regions alone.
    fn switched_keys(&self) -> Vec<Key> {
        let switched = self.switched_regions().into_iter();
        switched.map(|(key, _)| key).collect()
    }

    /// Returns the numbers of regions that are switched, and that stay huge in both states for their pages of zeroes.
    pub(super) fn switched_and_zeroed(&self) -> (usize, usize) {
        let all = self.regions();
        let switched = self.switched_regions().len();
        (switched, all.saturating_sub(switched))
    }

    /// Forgets regions of processes that have ended; returns the numbers of regions before and after.
    pub(super) fn forget_the_dead(&mut self) -> (usize, usize) {
        let mut made = self.made.lock();
        let before = made.len();
        let all = made.keys().chain(&self.found);
        let processes: BTreeSet<ProcessId> = all.map(|(process, _)| *process).collect();
        let dead = |process: &ProcessId| !still_is(&self.roots, *process);
        let dead: BTreeSet<ProcessId> = processes.into_iter().filter(dead).collect();
        if !dead.is_empty() {
            made.retain(|(process, _), _| !dead.contains(process));
            self.found.retain(|(process, _)| !dead.contains(process));
        }
        (before, made.len())
    }

    /// Switches; returns the time that it took. A stop in the middle leaves a state in between, which harms no process. Nothing is split if the watch
    /// does not stand still: [`Self::trouble`] has the reason then.
    pub(super) fn switch(&mut self, on: bool, nap: &mut SleepFn<'_>) -> Duration {
        let begun = Instant::now();
        if on == self.is_on || self.options.is_dummy {
            return begun.elapsed();
        }
        self.is_on = on;
        if on {
            self.switched.not_collapsed += self.collapse(self.switched_regions(), nap);
            self.watch.hold(false);
        } else {
            if !self.hold(nap) {
                self.is_on = true;
                return begun.elapsed();
            }
            // Frames after the first split are not those of before.
            self.before.end();
            let switched = self.switched_keys();
            // Pages that are absent in these were not dropped by the split.
            let was_split: BTreeSet<Key> = self.without_huge_page(&switched).into_iter().collect();
            self.switched.not_split += self.split(&switched, self.max_stall, nap);
            if !nap(Duration::ZERO) {
                self.leave_out_zeroes(&was_split, nap);
                self.scatter(nap);
            }
        }
        let took = begun.elapsed();
        let (times, longest) = if on {
            (&mut self.switched.times_on, &mut self.switched.longest_on)
        } else {
            (&mut self.switched.times_off, &mut self.switched.longest_off)
        };
        *times += 1;
        *longest = (*longest).max(Some(took));
        took
    }

    /// Ends the watch. With `keep` the policy's pages stay or are made again, else they are split. Regions that were huge before become huge again.
    /// `nap` must not return true.
    pub(super) fn finish(&mut self, keep: bool, nap: &mut SleepFn<'_>) -> Remains {
        if keep {
            self.switch(true, nap);
        }
        self.hold(nap);
        let all: BTreeSet<Key> = self.made.lock().keys().copied().collect();
        // Those that the policy itself has split are in `found` only; with `keep` that is its business.
        let mut found: Vec<Key> = self.found.iter().copied().collect();
        found.retain(|key| !keep || all.contains(key));
        let made: Vec<Key> = all.difference(&self.found).copied().collect();
        let mut unsplit = 0;
        if !keep {
            // Also after a switch that was broken off; without pauses, since nothing is measured any more.
            unsplit = self.split(&made, None, nap);
            self.is_on = false;
        }
        let lost = self.without_huge_page(&found);
        if !keep && !lost.is_empty() && !self.options.is_dummy {
            let absent = |key| self.absent_now(key).unwrap_or_default();
            let lost = lost.into_iter().map(|key| (key, absent(key)));
            self.collapse(lost.collect(), nap);
        }
        self.watch.stop();
        let left = self.count_huge(&made);
        let restored = self.count_huge(&found);
        Remains {
            huge: left.known().map(|(huge, _)| huge),
            unsplit,
            found: found.len() as u64,
            found_not_restored: restored.known().map(|(_, base)| base),
        }
    }

    /// Returns the absent pages of a region now; `None` if its process has ended or cannot be read.
    fn absent_now(&self, (process, region): Key) -> Option<PageCount> {
        let resident = resident_pages(&self.roots, process, region).ok()?;
        Some(PageCount(PAGES_PER_REGION.saturating_sub(resident.0)))
    }

    /// Counts the regions that huge pages map. A region of a process that has ended counts as not huge.
    fn count_huge(&self, regions: &[Key]) -> HugeCounts {
        let mut counts = HugeCounts::default();
        for &(process, region) in regions {
            match is_huge_mapped(&self.roots, process, region) {
                Ok(Some(true)) => counts.huge += 1,
                Ok(Some(false)) => counts.base += 1,
                Err(_) if !still_is(&self.roots, process) => counts.base += 1,
                Ok(None) | Err(_) => counts.unknown += 1,
            }
        }
        counts
    }

    /// Returns those of the regions that no huge page maps.
    fn without_huge_page(&self, regions: &[Key]) -> Vec<Key> {
        let is_huge = |(process, region): Key| {
            is_huge_mapped(&self.roots, process, region).is_ok_and(|huge| huge == Some(true))
        };
        let mut regions = regions.to_vec();
        regions.retain(|key| !is_huge(*key));
        regions
    }

    /// Waits until the watch stands still; returns false if it has not within the timeout.
    fn hold(&mut self, nap: &mut SleepFn<'_>) -> bool {
        self.not_held = None;
        self.watch.hold(true);
        let begun = Instant::now();
        while !self.watch.stands_still() {
            if begun.elapsed() >= self.hold_timeout {
                self.not_held = Some(format!(
                    "the policy could not be switched off: its watch has not stood still within {} s and may still collapse regions; \
                     the machine may be short of CPUs or memory, so try again when it is less busy",
                    self.hold_timeout.as_secs()
                ));
                return false;
            }
            if nap(Duration::from_millis(2)) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        true
    }

    /// Collapses regions; each grows by the number of pages given, or by its absent pages if those are more. Returns the number of failures.
    fn collapse(&mut self, regions: Vec<(Key, PageCount)>, nap: &mut SleepFn<'_>) -> u64 {
        let actions = regions.into_iter().map(|((process, region), growth)| {
            let absent = self.absent.get(&(process, region)).copied();
            // After the frames were scattered pages may still be in swap: the collapse brings them in, and they were not given back.
            let swapped = swapped_pages(&self.roots, process, region).unwrap_or_default();
            Action::Collapse {
                owner: process.into(),
                region,
                growth: PageCount(growth.max(absent.unwrap_or_default()).0 + swapped.0),
            }
        });
        let mut failures = self.perform(actions.collect(), self.max_stall, nap);
        // A page that the kernel or another thread holds for a moment stops a collapse.
        for _ in 0..COLLAPSE_RETRIES {
            if failures.again.is_empty() || nap(RETRY_PAUSE) {
                break;
            }
            let again = self.perform(failures.again, self.max_stall, nap);
            failures.again = again.again;
            failures.lasting += again.lasting;
        }
        failures.count()
    }

    /// Splits those of the regions that base pages do not map; returns the number of failures.
    fn split(
        &mut self,
        regions: &[Key],
        max_stall: Option<Duration>,
        nap: &mut SleepFn<'_>,
    ) -> u64 {
        // The actuator takes a region that base pages map for a torn huge page and marks all its pages as cold: the kernel would evict the
        // program's hot pages first.
        let has_base_pages = |(process, region): Key| {
            is_huge_mapped(&self.roots, process, region).is_ok_and(|huge| huge == Some(false))
        };
        let to_split = regions.iter().filter(|key| !has_base_pages(**key));
        let actions = to_split.map(|&(process, region)| Action::Split {
            owner: process.into(),
            region,
        });
        let failed = self.perform(actions.collect(), max_stall, nap).count();
        // A split drops all pages of zeroes: the absent pages now are the growth of the next collapse.
        let absent = regions
            .iter()
            .map(|&key| Some((key, self.absent_now(key)?)));
        let absent: Vec<(Key, PageCount)> = absent.flatten().collect();
        self.absent.extend(absent);
        failed
    }

    /// Makes those regions huge again, and leaves them so in both states, that have lost pages of zeroes in the split.
    fn leave_out_zeroes(&mut self, was_split: &BTreeSet<Key>, nap: &mut SleepFn<'_>) {
        let mut zeroed = self.switched_regions();
        zeroed.retain(|(key, growth)| {
            let absent = self.absent.get(key).copied().unwrap_or_default();
            !was_split.contains(key) && absent.0.saturating_sub(growth.0) > MOST_ZEROES
        });
        if zeroed.is_empty() {
            return;
        }
        self.zeroed.extend(zeroed.iter().map(|(key, _)| *key));
        self.switched.not_collapsed += self.collapse(zeroed, nap);
    }

    /// Lets the pages of the split regions exchange frames, if these had been scattered before the policy.
    fn scatter(&mut self, nap: &mut SleepFn<'_>) {
        let regions = self.switched_keys();
        let was_scattered = self.before.share().is_some_and(|share| share < SCATTERED);
        // Nobody knows how frames lay that were in huge pages before. A user who asks for swap wants them as the kernel hands them out one by one.
        let is_wanted = |key: &&Key| match self.found.contains(key) {
            true => self.options.make_swap,
            false => was_scattered,
        };
        let chosen: Vec<Key> = regions.iter().filter(is_wanted).copied().collect();
        if !chosen.is_empty() {
            if matches!(self.scattering, Scattering::Wanted) {
                let mover = SwapMover::new(&self.roots, self.options.make_swap);
                self.scattering = match mover {
                    Ok(mover) => {
                        Scattering::Ready(Scatterer::new(Box::new(mover), self.options.seed))
                    }
                    Err(why) => Scattering::Failed(why),
                };
            }
            if let Scattering::Ready(scatterer) = &mut self.scattering {
                scatter_all(scatterer, &chosen, self.max_stall, nap);
            }
        }
        for (process, region) in sample(&regions) {
            self.off.add(neighbors_in(&self.roots, process, region));
        }
    }

    /// Returns the frames of the switched memory, as far as they are known.
    pub(super) fn frames(&self) -> FrameSurvey {
        let (moved, through, why_not) = match &self.scattering {
            Scattering::Wanted => (0, None, None),
            Scattering::Ready(it) if it.moved() == 0 => {
                let why = format!("no page could be moved through {}", it.describe());
                (0, None, Some(why))
            }
            Scattering::Ready(it) => (it.moved(), Some(it.describe()), None),
            Scattering::Failed(why) => (0, None, Some(why.clone())),
        };
        FrameSurvey {
            before: self.before.share(),
            off: self.off.share(),
            moved,
            through,
            why_not,
        }
    }

    /// Removes swap that was made to scatter frames; returns a sentence for each part that was left.
    pub(super) fn finish_scattering(&mut self) -> Vec<String> {
        let ended = Scattering::Failed("the trial has ended".to_owned());
        match std::mem::replace(&mut self.scattering, ended) {
            Scattering::Ready(scatterer) => {
                let left = scatterer.finish().left.into_iter();
                left.map(|it| {
                    format!(
                        "{} was left as it is: {}; `superhue restore` puts it back",
                        it.path.display(),
                        it.reason
                    )
                })
                .collect()
            }
            Scattering::Wanted | Scattering::Failed(_) => Vec::new(),
        }
    }

    /// Performs all actions, with pauses so that they keep within `max_stall`; returns the number of failures.
    fn perform(
        &mut self,
        actions: Vec<Action>,
        max_stall: Option<Duration>,
        nap: &mut SleepFn<'_>,
    ) -> Failures {
        perform_all(self.actuator.as_mut(), actions, max_stall, nap)
    }

    /// Returns the share of its regions that are huge, from a sample; `None` without regions, or where the kernel does not show it.
    pub(super) fn huge_share(&self) -> Option<f64> {
        let regions = self.switched_keys();
        let seen = sample(&regions)
            .filter_map(|(process, region)| is_huge_mapped(&self.roots, process, region).ok()?);
        let seen: Vec<bool> = seen.collect();
        let huge = seen.iter().filter(|huge| **huge).count();
        #[allow(clippy::cast_precision_loss, reason = "a share of a hundred")]
        (!seen.is_empty()).then(|| huge as f64 / seen.len() as f64)
    }

    /// Returns the reason why the watch cannot work here or does not stand still, if there is one.
    pub(super) fn trouble(&self) -> Option<String> {
        let not_held = self.not_held.clone();
        not_held.or_else(|| self.account().trouble.clone())
    }

    /// Returns the error of a watch that did not stand still when it last had to.
    pub(super) fn not_held(&self) -> Option<&str> {
        self.not_held.as_deref()
    }
}

/// Actions that were not done.
#[derive(Debug, Default)]
struct Failures {
    /// Those that the kernel refused for the moment (`EAGAIN`, `EBUSY`).
    again: Vec<Action>,
    /// Number of the others.
    lasting: u64,
}

impl Failures {
    fn add(&mut self, result: &ActionResult) {
        match result.effect {
            Effect::Failed {
                errno: Errno::EAGAIN | Errno::EBUSY,
            } => self.again.push(result.action),
            _ => self.lasting += 1,
        }
    }

    const fn count(&self) -> u64 {
        self.again.len() as u64 + self.lasting
    }
}

/// Performs actions in order, with pauses so that what holds the program up keeps within `max_stall`; returns the failures.
///
/// The actuator ends a part once the bound is reached, so that a part that takes longer than expected does not exceed it; what it has left undone
/// comes after the pause.
fn perform_all(
    actuator: &mut dyn Actuator,
    actions: Vec<Action>,
    max_stall: Option<Duration>,
    nap: &mut SleepFn<'_>,
) -> Failures {
    let mut failures = Failures::default();
    let mut pacer = Pacer::new(max_stall);
    let mut left = VecDeque::from(actions);
    while !left.is_empty() {
        let actions: Vec<Action> = left.drain(..left.len().min(CHUNK)).collect();
        let plan = Plan {
            bounds: pacer.bounds(&actions),
            actions,
        };
        let outcome = actuator.perform(&plan, &|| false);
        let mut spent = Duration::ZERO;
        let mut undone = Vec::new();
        for result in &outcome.results {
            spent += result.took;
            match result.effect {
                Effect::Done | Effect::Vanished => {}
                Effect::Skipped {
                    reason: SkipReason::Cancelled,
                } if max_stall.is_some() => undone.push(result.action),
                _ => failures.add(result),
            }
        }
        // The first action of an owner is always tried, so a part makes progress; one that does not would come again for ever.
        if undone.len() == plan.actions.len() {
            failures.lasting += undone.len() as u64;
            undone.clear();
        }
        undone
            .into_iter()
            .rev()
            .for_each(|action| left.push_front(action));
        if nap(pacer.rest(spent, Instant::now())) {
            break;
        }
    }
    failures
}

/// Returns a sample of regions, evenly over all.
fn sample(regions: &[Key]) -> impl Iterator<Item = Key> {
    let step = regions.len().div_ceil(SAMPLE).max(1);
    regions.iter().copied().step_by(step)
}

/// Scatters the pages of all regions, with pauses so that waits of the program keep within `max_stall`.
fn scatter_all(
    scatterer: &mut Scatterer,
    regions: &[Key],
    max_stall: Option<Duration>,
    nap: &mut SleepFn<'_>,
) {
    scatterer.begin(regions);
    let mut pacer = Pacer::new(max_stall);
    while let Some(held_up) = scatterer.step() {
        if nap(pacer.rest(held_up, Instant::now())) {
            return;
        }
    }
}

/// Pauses between actions that hold a program up, so that this takes at most `allowed` of each [`WINDOW`].
struct Pacer {
    allowed: Option<Duration>,
    window: Option<Instant>,
    spent: Duration,
}

impl Pacer {
    const fn new(allowed: Option<Duration>) -> Self {
        Self {
            allowed,
            window: None,
            spent: Duration::ZERO,
        }
    }

    /// Returns what collapses may still take in this window, for each owner of the actions; empty without a bound.
    fn bounds(&self, actions: &[Action]) -> Vec<CollapseBound> {
        let Some(allowed) = self.allowed else {
            return Vec::new();
        };
        let left = allowed.saturating_sub(self.spent);
        let owners: BTreeSet<Owner> = actions.iter().map(|action| action.owner()).collect();
        let bounds = owners
            .into_iter()
            .map(|owner| CollapseBound { owner, left });
        bounds.collect()
    }

    /// Returns the pause after an action that ended `now` and held the program up for `took`.
    fn rest(&mut self, took: Duration, now: Instant) -> Duration {
        let begun = *self
            .window
            .get_or_insert(now.checked_sub(took).unwrap_or(now));
        self.spent += took;
        let elapsed = now.saturating_duration_since(begun);
        let rest = match self.allowed {
            Some(allowed) if self.spent >= allowed => WINDOW
                .mul_f64(self.spent.as_secs_f64() / allowed.as_secs_f64().max(1e-6))
                .saturating_sub(elapsed),
            _ => Duration::ZERO,
        };
        if elapsed >= WINDOW || !rest.is_zero() {
            (self.window, self.spent) = (now.checked_add(rest), Duration::ZERO);
        }
        rest
    }
}

impl Drop for PolicySwitch {
    /// Stops the watch, and lets it run on to its end if it stands still. Regions stay as they are.
    fn drop(&mut self) {
        self.watch.stop();
        self.watch.hold(false);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use superhue_model::VirtAddr;

    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn pauses_keep_what_holds_the_program_up_within_the_bound() {
        let begun = Instant::now();
        let mut pacer = Pacer::new(Some(10 * MILLISECOND));
        assert_eq!(
            pacer.rest(4 * MILLISECOND, begun + 4 * MILLISECOND),
            Duration::ZERO
        );
        // Twice the bound in 20 ms: the window grows to 200 ms.
        let rest = pacer.rest(16 * MILLISECOND, begun + 20 * MILLISECOND);
        assert_eq!(rest, 180 * MILLISECOND);
        // The next window begins after the pause.
        let after = begun + 200 * MILLISECOND;
        assert_eq!(
            pacer.rest(9 * MILLISECOND, after + 9 * MILLISECOND),
            Duration::ZERO
        );
        assert_eq!(
            pacer.rest(MILLISECOND, after + 100 * MILLISECOND),
            Duration::ZERO
        );
        assert_eq!(
            pacer.rest(9 * MILLISECOND, after + 110 * MILLISECOND),
            Duration::ZERO
        );
        let mut unbound = Pacer::new(None);
        assert_eq!(unbound.rest(Duration::from_secs(9), begun), Duration::ZERO);
    }

    fn regions(count: u64) -> Vec<Key> {
        let process = ProcessId {
            pid: u32::MAX,
            start_ticks: 1,
        };
        let region = |index: u64| Region::containing(VirtAddr(0x7f00_0000_0000 + (index << 21)));
        (0..count).map(|index| (process, region(index))).collect()
    }

    #[test]
    fn a_sample_is_spread_over_all_regions() {
        let all = regions(1000);
        let sampled: Vec<Key> = sample(&all).collect();
        assert!((100..=SAMPLE).contains(&sampled.len()), "{}", sampled.len());
        assert_eq!(sampled[0], all[0]);
        assert!(sampled[sampled.len() - 1] >= all[990]);
        assert_eq!(sample(&all[..3]).count(), 3);
        assert_eq!(sample(&[]).count(), 0);
    }

    /// Actuator that does everything, and counts.
    struct FakeActuator(Arc<AtomicU64>);

    impl Actuator for FakeActuator {
        fn perform(&mut self, plan: &Plan, _: &dyn Fn() -> bool) -> Outcome {
            let result = |&action: &Action| {
                self.0.fetch_add(1, Ordering::Relaxed);
                ActionResult {
                    action,
                    effect: Effect::Done,
                    took: Duration::ZERO,
                }
            };
            Outcome {
                results: plan.actions.iter().map(result).collect(),
            }
        }
    }

    fn nap(time: Duration) -> bool {
        std::thread::sleep(time);
        false
    }

    /// A switch over this process, with an actuator that counts actions, and a policy that makes nothing huge.
    fn own_switch() -> (PolicySwitch, Arc<AtomicU64>) {
        let options = crate::PlacementOptions {
            pages: Some(crate::Pages::Kernel),
            ..crate::PlacementOptions::default()
        };
        let options_of_switch = SwitchOptions {
            is_dummy: false,
            present: false,
            make_swap: false,
            seed: 1,
        };
        let mut switch =
            PolicySwitch::new(&options.config(), &Means::Own, options_of_switch).unwrap();
        let performed = Arc::new(AtomicU64::new(0));
        switch.actuator = Box::new(FakeActuator(Arc::clone(&performed)));
        (switch, performed)
    }

    #[test]
    fn regions_in_base_pages_are_not_split_again() {
        let (mut switch, performed) = own_switch();
        let roots = Roots::default();
        let own = superhue_procfs::process::identify(&roots, std::process::id()).unwrap();
        let mut scratch = superhue_sys::scratch::Scratch::in_base_pages(2 << 20).unwrap();
        for page in 0..100 {
            scratch.touch_page(page);
        }
        let key = (own, scratch.region());
        if is_huge_mapped(&roots, own, key.1).unwrap().is_none() {
            return superhue_testing::skip("pagemap-scan", "this kernel does not show huge pages");
        }
        switch.made.lock().insert(key, PageCount(412));
        switch.switch(false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 0);
        // The pages that are absent now are the growth of the next collapse all the same.
        assert_eq!(switch.absent[&key], PageCount(412));
        let remains = switch.finish(false, &mut nap);
        assert_eq!((remains.huge, remains.unsplit), (Some(0), 0));
        assert_eq!(performed.load(Ordering::Relaxed), 0);

        // A region that may be huge is split: nothing is known of a process that has ended.
        switch.made.lock().insert(regions(1)[0], PageCount(5));
        switch.finish(false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn nothing_is_split_while_the_watch_does_not_stand_still() {
        let (mut switch, performed) = own_switch();
        let (begin, begins) = std::sync::mpsc::channel::<()>();
        let config = crate::PlacementOptions::default().config();
        // It is held up before its first step.
        switch.watch = LiveWatch::start_with(&config, "test", move |actuator| {
            let _ = begins.recv();
            actuator
        })
        .unwrap();
        switch.hold_timeout = Duration::ZERO;
        switch.made.lock().insert(regions(1)[0], PageCount(5));
        assert_eq!(switch.trouble(), None);
        switch.switch(false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 0);
        assert_eq!((switch.is_on, switch.switched.times_off), (true, 0));
        let trouble = switch.trouble().unwrap();
        assert!(trouble.contains("not stood still"), "{trouble}");
        // At the end all the same: otherwise the regions would stay huge for certain.
        switch.finish(false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 1);
        assert_eq!(switch.not_held(), Some(trouble.as_str()));
        drop(begin);
    }

    /// Actuator whose collapses take 3 ms each, and which keeps to the bounds of a plan.
    #[derive(Default)]
    struct BoundedActuator {
        plans: Vec<Vec<CollapseBound>>,
        done: Vec<Region>,
    }

    impl Actuator for BoundedActuator {
        fn perform(&mut self, plan: &Plan, _: &dyn Fn() -> bool) -> Outcome {
            self.plans.push(plan.bounds.clone());
            let mut left = plan
                .actions
                .first()
                .and_then(|action| plan.left(action.owner()));
            let result = |&action: &Action| {
                if left == Some(Duration::ZERO) {
                    let reason = SkipReason::Cancelled;
                    return ActionResult {
                        action,
                        effect: Effect::Skipped { reason },
                        took: Duration::ZERO,
                    };
                }
                self.done.push(action.region());
                left = left.map(|left| left.saturating_sub(3 * MILLISECOND));
                ActionResult {
                    action,
                    effect: Effect::Done,
                    took: 3 * MILLISECOND,
                }
            };
            Outcome {
                results: plan.actions.iter().map(result).collect(),
            }
        }
    }

    #[test]
    fn a_switch_keeps_to_the_bound_and_leaves_nothing_undone() {
        let regions = regions(20);
        let collapse = |&(process, region): &Key| Action::Collapse {
            owner: process.into(),
            region,
            growth: PageCount(5),
        };
        let all: Vec<Action> = regions.iter().map(collapse).collect();
        let wanted: Vec<Region> = regions.iter().map(|(_, region)| *region).collect();

        let mut actuator = BoundedActuator::default();
        let mut pauses = Vec::new();
        let mut nap = |pause: Duration| {
            pauses.push(pause);
            false
        };
        let failed = perform_all(&mut actuator, all.clone(), Some(6 * MILLISECOND), &mut nap);
        assert_eq!((failed.count(), &actuator.done), (0, &wanted));
        // Two collapses of each eight fit, and a pause follows.
        assert_eq!(actuator.plans.len(), 10);
        assert!(
            actuator
                .plans
                .iter()
                .all(|bounds| bounds[0].left == 6 * MILLISECOND)
        );
        assert!(
            pauses.iter().all(|pause| *pause > 50 * MILLISECOND),
            "{pauses:?}"
        );

        let mut actuator = BoundedActuator::default();
        let failed = perform_all(&mut actuator, all, None, &mut |_| false);
        assert_eq!((failed.count(), &actuator.done), (0, &wanted));
        assert_eq!(actuator.plans, [const { Vec::new() }; 3]);
    }

    /// Returns the outcome of actions that took no time.
    fn at_once(effects: impl Iterator<Item = (Action, Effect)>) -> Outcome {
        let results = effects.map(|(action, effect)| ActionResult {
            action,
            effect,
            took: Duration::ZERO,
        });
        Outcome {
            results: results.collect(),
        }
    }

    /// Actuator that fails with `EAGAIN` so many times before it does an action.
    struct BusyActuator(BTreeMap<Region, usize>, usize);

    impl Actuator for BusyActuator {
        fn perform(&mut self, plan: &Plan, _: &dyn Fn() -> bool) -> Outcome {
            let results = plan.actions.iter().map(|&action| {
                let tries = self.0.entry(action.region()).or_default();
                *tries += 1;
                let errno = Errno::EAGAIN;
                let effect = match *tries > self.1 {
                    true => Effect::Done,
                    false => Effect::Failed { errno },
                };
                (action, effect)
            });
            at_once(results)
        }
    }

    #[test]
    fn a_collapse_refused_for_the_moment_is_tried_again() {
        let mut switch = own_switch().0;
        let wanted = || regions(3).into_iter().map(|key| (key, PageCount(1)));
        for (busy, left) in [(0, 0), (3, 0), (4, 3)] {
            switch.actuator = Box::new(BusyActuator(BTreeMap::new(), busy));
            let failed = switch.collapse(wanted().collect(), &mut |_| false);
            assert_eq!(failed, left, "busy {busy} times");
        }
    }

    /// Actuator that does the second action, fails the first, and does not come to the others.
    struct SecondOnly(CollapsedRegions);

    impl Actuator for SecondOnly {
        fn perform(&mut self, plan: &Plan, _: &dyn Fn() -> bool) -> Outcome {
            let made = self.0.lock();
            let mut keys = plan.actions.iter().filter_map(|action| key_of(*action));
            assert!(
                keys.all(|key| made.contains_key(&key)),
                "a look now would take them for huge already"
            );
            let errno = Errno::EAGAIN;
            let effects = [Effect::Failed { errno }, Effect::Done];
            at_once(plan.actions.iter().copied().zip(effects))
        }
    }

    #[test]
    fn regions_count_as_the_policy_s_while_it_collapses_them_and_not_if_that_fails() {
        let made = CollapsedRegions::default();
        let mut recording = RecordingActuator {
            actuator: Box::new(SecondOnly(made.clone())),
            roots: Roots::default(),
            made: made.clone(),
            before: FramesBefore::default(),
        };
        let regions = regions(4);
        // Collapsed earlier: it is the policy's, even if it cannot be collapsed again.
        made.lock().insert(regions[3], PageCount(9));
        let collapses = regions.iter().map(|&(process, region)| Action::Collapse {
            owner: process.into(),
            region,
            growth: PageCount(5),
        });
        let actions = collapses.collect();
        recording.perform(&Plan::of(actions), &|| false);
        let left: Vec<(Key, PageCount)> = made.lock().iter().map(|(key, it)| (*key, *it)).collect();
        assert_eq!(
            left,
            [(regions[1], PageCount(5)), (regions[3], PageCount(9))]
        );
    }

    #[test]
    fn the_policy_s_own_collapses_are_remembered_until_it_splits_them() {
        let performed = Arc::new(AtomicU64::new(0));
        let made = CollapsedRegions::default();
        let before = FramesBefore::default();
        let mut recording = RecordingActuator {
            actuator: Box::new(FakeActuator(Arc::clone(&performed))),
            roots: Roots::default(),
            made: made.clone(),
            before: before.clone(),
        };
        let regions = regions(3);
        let collapses = regions.iter().map(|&(process, region)| Action::Collapse {
            owner: process.into(),
            region,
            growth: PageCount(5),
        });
        let plan = Plan::of(collapses.collect());
        let outcome = recording.perform(&plan, &|| false);
        assert_eq!(outcome.results.len(), 3);
        assert_eq!(
            made.lock().values().copied().collect::<Vec<_>>(),
            [PageCount(5); 3]
        );
        // No such process: nothing is known of its frames.
        assert_eq!((before.share(), before.lock().1), (None, 3));
        let (process, region) = regions[1];
        let split = Action::Split {
            owner: process.into(),
            region,
        };
        recording.perform(&Plan::of(vec![split]), &|| false);
        assert_eq!(
            made.lock().keys().copied().collect::<Vec<_>>(),
            [regions[0], regions[2]]
        );
        assert_eq!(performed.load(Ordering::Relaxed), 4);

        // It is not the policy's any more, or was huge before: the trial would not put it back.
        let outcome = recording.perform(&Plan::of(vec![split]), &|| false);
        let errno = Errno::EINVAL;
        assert_eq!(outcome.results[0].effect, Effect::Failed { errno });
        assert_eq!(performed.load(Ordering::Relaxed), 4);
    }

    #[test]
    fn what_the_kernel_does_not_show_is_not_counted_as_base_pages() {
        let counts = |huge, base, unknown| HugeCounts {
            huge,
            base,
            unknown,
        };
        assert_eq!(counts(3, 2, 0).known(), Some((3, 2)));
        assert_eq!(counts(3, 2, 1).known(), None);
    }
}
