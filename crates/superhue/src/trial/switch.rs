//! Switches a policy on and off in running processes.
//!
//! ```text
//!   on     the policy's watch runs; the regions that it had made huge are collapsed again
//!   off    the watch stands still; those regions are split, and their pages exchange frames if frames had been scattered before
//! ```
//!
//! A collapse makes only pages that the policy would have made, and the bytes are the same in all states. So the target can stay in any of them,
//! and does if superhue is killed. Memory that was huge before the trial stays as it is, since the switch remembers only the policy's own
//! collapses; with `present` it is switched, too, and is huge again at the end. A program that starts makes such memory little by little, so the
//! switch looks for it until the policy has learned enough.
//!
//! *Zeroes.* Since Linux 6.12 a split maps pages that hold only zeroes to one shared page, which is always in the cache. A program that uses such
//! pages would be faster in *off* for that alone. So regions that lose more pages in a split than the collapse had added stay huge in both states.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue_act::Actuator;
use superhue_model::{Action, PAGES_PER_REGION, PageCount, ProcessId};
use superhue_procfs::Roots;
use superhue_procfs::process::{
    PageScanner, is_huge_mapped, resident_pages, still_is, swapped_pages, view,
};

use super::frames::{Neighbors, neighbors_in};
use super::pauses::{Failures, SleepFn, perform_all, scatter_all};
use super::recording::{CollapsedRegions, FramesBefore, Key, RecordingActuator};
use super::scatter::{Scatterer, SwapMover};
use crate::Config;
use crate::live::{LiveWatch, Members, WatchAccount};
use crate::means::Means;
use crate::session::new_actuator;
use crate::watch::Mappings;

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

/// Pages of zeroes that a region may lose in a split beyond those that the collapse had added: more would make *off* faster.
const MOST_ZEROES: u64 = 32;

/// Frames count as scattered if a smaller share of neighboring pages have neighboring frames.
const SCATTERED: f64 = 0.5;

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
    /// Number of these regions that are not huge again; `None` where the kernel does not show it.
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
    /// Starts a watch that follows the policy: on. It switches by `means`.
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

    /// Ends the watch. With `keep` the policy's pages stay or are made again, else they are split: with pauses as during the trial or, if `at_once`,
    /// without. Regions that were huge before become huge again. `nap` must not return true.
    pub(super) fn finish(&mut self, keep: bool, at_once: bool, nap: &mut SleepFn<'_>) -> Remains {
        if keep {
            self.switch(true, nap);
        }
        self.hold(nap);
        let all: BTreeSet<Key> = self.made.lock().keys().copied().collect();
        // Regions that the policy itself has split are in `found` only; with `keep` they stay split.
        let mut found: Vec<Key> = self.found.iter().copied().collect();
        found.retain(|key| !keep || all.contains(key));
        let made: Vec<Key> = all.difference(&self.found).copied().collect();
        let mut unsplit = 0;
        if !keep {
            // Also after a switch that was broken off.
            let max_stall = self.max_stall.filter(|_| !at_once);
            unsplit = self.split(&made, max_stall, nap);
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
        // The earlier frames of regions that were huge before are unknown. With `make_swap` the user wants frames as the kernel hands them out.
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

/// Returns a sample of regions, evenly over all.
fn sample(regions: &[Key]) -> impl Iterator<Item = Key> {
    let step = regions.len().div_ceil(SAMPLE).max(1);
    regions.iter().copied().step_by(step)
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

    use superhue_model::{Effect, Errno, Outcome, Plan, Region};

    use super::super::fakes::{CountingActuator, outcome_of, regions};
    use super::*;

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
            PolicySwitch::new(&Config::from(&options), &Means::Own, options_of_switch).unwrap();
        let performed = Arc::new(AtomicU64::new(0));
        switch.actuator = Box::new(CountingActuator(Arc::clone(&performed)));
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
        let remains = switch.finish(false, false, &mut nap);
        assert_eq!((remains.huge, remains.unsplit), (Some(0), 0));
        assert_eq!(performed.load(Ordering::Relaxed), 0);

        // A region that may be huge is split: nothing is known of a process that has ended.
        switch.made.lock().insert(regions(1)[0], PageCount(5));
        switch.finish(false, false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 1);
    }

    /// Actuator whose actions take 20 ms each.
    struct SlowActuator;

    impl Actuator for SlowActuator {
        fn perform(&mut self, plan: &Plan, _: &dyn Fn() -> bool) -> Outcome {
            let mut outcome = outcome_of(plan.actions.iter().map(|it| (*it, Effect::Done)));
            for result in &mut outcome.results {
                result.took = Duration::from_millis(20);
            }
            outcome
        }
    }

    #[test]
    fn the_end_keeps_to_the_bound_unless_it_is_urgent() {
        for at_once in [false, true] {
            let mut switch = own_switch().0;
            switch.actuator = Box::new(SlowActuator);
            switch.max_stall = Some(Duration::from_millis(10));
            let made = regions(20).into_iter().map(|key| (key, PageCount(5)));
            switch.made.lock().extend(made);
            let mut pauses = Duration::ZERO;
            switch.finish(false, at_once, &mut |pause| {
                // The watch is waited for with shorter ones.
                pauses += pause.saturating_sub(Duration::from_millis(2));
                false
            });
            assert_eq!(pauses.is_zero(), at_once, "{pauses:?}");
        }
    }

    #[test]
    fn nothing_is_split_while_the_watch_does_not_stand_still() {
        let (mut switch, performed) = own_switch();
        let (begin, begins) = std::sync::mpsc::channel::<()>();
        let config = Config::from(&crate::PlacementOptions::default());
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
        switch.finish(false, false, &mut nap);
        assert_eq!(performed.load(Ordering::Relaxed), 1);
        assert_eq!(switch.not_held(), Some(trouble.as_str()));
        drop(begin);
    }

    /// Actuator that fails with `EAGAIN` a number of times (the second field) before it does an action.
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
            outcome_of(results)
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
