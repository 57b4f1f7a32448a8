//! Switches a policy on and off in running processes.
//!
//! ```text
//!   on     the policy's watch runs; the regions that it had made huge are collapsed again
//!   off    the watch stands still; those regions are split, and no others
//! ```
//!
//! A split loses and moves nothing, and a collapse makes only pages that the policy would have made: the bytes are the same in all states. So
//! the target can stay in any of them, and does if superhue is killed. Memory that was huge before the trial stays as it is, since the lever
//! remembers only the policy's own collapses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use superhue_act::Actuator;
use superhue_model::{
    Action, ActionResult, Effect, Errno, Outcome, Owner, PAGES_PER_REGION, PageCount, Plan,
    ProcessId, Region,
};
use superhue_procfs::Roots;
use superhue_procfs::process::{is_huge_mapped, resident_pages, still_is};

use crate::Config;
use crate::live::{LiveWatch, Members, WatchAccount};
use crate::means::Means;
use crate::session::new_actuator;
use crate::watch::Mappings;

/// Actions between two checks for a stop.
const CHUNK: usize = 8;

/// Longest time to wait for the watch to stand still: it first completes the action in progress.
const HOLD_TIMEOUT: Duration = Duration::from_secs(30);

/// Regions that are checked to measure how far a switch took effect.
const SAMPLE: usize = 128;

/// Period of which collapses may take a part (see [`Config::max_stall`]).
const WINDOW: Duration = Duration::from_millis(100);

/// Function that sleeps, and returns true to stop.
pub(super) type SleepFn<'a> = dyn FnMut(Duration) -> bool + 'a;

/// The regions that the policy made huge, with the pages that this added.
#[derive(Debug, Default, Clone)]
struct CollapsedRegions(Arc<Mutex<BTreeMap<(ProcessId, Region), PageCount>>>);

impl CollapsedRegions {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(ProcessId, Region), PageCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(&self, result: &ActionResult) {
        let Some(process) = result.action.owner().process() else {
            return;
        };
        let key = (process, result.action.region());
        match (result.effect, result.action) {
            (Effect::Done, Action::Collapse { growth, .. }) => {
                self.lock().insert(key, growth);
            }
            (Effect::Done, Action::Split { .. }) => {
                self.lock().remove(&key);
            }
            _ => {}
        }
    }
}

/// Actuator that passes actions to another one, and remembers the regions that become huge.
struct RecordingActuator {
    actuator: Box<dyn Actuator>,
    made: CollapsedRegions,
}

impl Actuator for RecordingActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        // Shared memory is left alone: a split in one process would not split the mappings of other processes. The policy sees the same
        // error as from a kernel that cannot collapse it.
        let is_private = |action: &Action| matches!(action.owner(), Owner::Process(_));
        let private = plan.actions.iter().copied().filter(is_private).collect();
        let done = self.actuator.perform(&Plan { actions: private }, stop);
        done.results
            .iter()
            .for_each(|result| self.made.enter(result));
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

/// Switches a policy on and off.
pub(super) struct PolicySwitch {
    roots: Roots,
    watch: LiveWatch,
    made: CollapsedRegions,
    /// Absent pages of each region after it was split.
    absent: BTreeMap<(ProcessId, Region), PageCount>,
    actuator: Box<dyn Actuator>,
    max_stall: Option<Duration>,
    is_on: bool,
    /// Switches nothing really: a trial of the trial.
    is_dummy: bool,
    pub(super) switched: SwitchCounts,
}

impl PolicySwitch {
    /// Starts a watch that follows the policy: on. The lever switches by `means`.
    ///
    /// # Errors
    /// The system cannot start a thread for it.
    pub(super) fn new(config: &Config, means: &Means, is_dummy: bool) -> std::io::Result<Self> {
        let made = CollapsedRegions::default();
        let theirs = made.clone();
        let watch = LiveWatch::start_with(config, "superhue-watch", |actuator| {
            Box::new(RecordingActuator {
                actuator,
                made: theirs,
            })
        })?;
        let config = config.for_running();
        Ok(Self {
            actuator: new_actuator(&config, means, Mappings::default()),
            roots: config.roots,
            watch,
            made,
            max_stall: config.max_stall.map(|bound| bound.allowed),
            is_on: true,
            absent: BTreeMap::new(),
            is_dummy,
            switched: SwitchCounts::default(),
        })
    }

    /// Sets the processes of the target.
    pub(super) fn feed(&self, members: Members) {
        self.watch.feed(members);
    }

    /// Returns the last account of the watch.
    pub(super) fn account(&self) -> Arc<WatchAccount> {
        self.watch.account()
    }

    /// Returns the number of regions that the policy made huge.
    pub(super) fn regions(&self) -> usize {
        self.made.lock().len()
    }

    /// Forgets regions of processes that have ended; returns the numbers of regions before and after.
    pub(super) fn forget_the_dead(&self) -> (usize, usize) {
        let mut made = self.made.lock();
        let before = made.len();
        let processes: BTreeSet<ProcessId> = made.keys().map(|(process, _)| *process).collect();
        let dead = |process: &ProcessId| !still_is(&self.roots, *process);
        let dead: BTreeSet<ProcessId> = processes.into_iter().filter(dead).collect();
        if !dead.is_empty() {
            made.retain(|(process, _), _| !dead.contains(process));
        }
        (before, made.len())
    }

    /// Switches; returns the time that it took. A stop in the middle leaves a state in between, which harms no process.
    pub(super) fn switch(&mut self, on: bool, nap: &mut SleepFn<'_>) -> Duration {
        let begun = Instant::now();
        if on == self.is_on || self.is_dummy {
            return begun.elapsed();
        }
        self.is_on = on;
        if on {
            let failed = self.collapse_all(nap);
            self.switched.not_collapsed += failed;
            self.watch.hold(false);
        } else {
            self.hold(nap);
            self.switched.not_split += self.split_all(self.max_stall, nap);
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

    /// Ends the watch. With `keep` the policy's pages stay or are made again, else they are split. Returns the number of regions that are huge.
    pub(super) fn finish(&mut self, keep: bool) -> u64 {
        let mut nap = |time: Duration| {
            std::thread::sleep(time);
            false
        };
        if keep {
            self.switch(true, &mut nap);
        }
        self.hold(&mut nap);
        if !keep {
            // Also after a switch that was broken off; without pauses, since nothing is measured any more.
            self.split_all(None, &mut nap);
            self.is_on = false;
        }
        self.watch.stop();
        self.huge()
    }

    /// Waits until the watch stands still.
    fn hold(&self, nap: &mut SleepFn<'_>) {
        self.watch.hold(true);
        let begun = Instant::now();
        while !self.watch.stands_still() && begun.elapsed() < HOLD_TIMEOUT {
            if nap(Duration::from_millis(2)) {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    fn collapse_all(&mut self, nap: &mut SleepFn<'_>) -> u64 {
        let made = self.made.lock().clone();
        let actions = made.into_iter().map(|((process, region), growth)| {
            let absent = self.absent.get(&(process, region)).copied();
            Action::Collapse {
                owner: process.into(),
                region,
                growth: growth.max(absent.unwrap_or_default()),
            }
        });
        self.perform(actions.collect(), self.max_stall, nap)
    }

    fn split_all(&mut self, max_stall: Option<Duration>, nap: &mut SleepFn<'_>) -> u64 {
        let made: Vec<(ProcessId, Region)> = self.made.lock().keys().copied().collect();
        let actions = made.iter().map(|&(process, region)| Action::Split {
            owner: process.into(),
            region,
        });
        let failed = self.perform(actions.collect(), max_stall, nap);
        // A split drops all pages of zeroes: the absent pages now are the growth of the next collapse.
        self.absent = made
            .into_iter()
            .filter_map(|(process, region)| {
                let resident = resident_pages(&self.roots, process, region).ok()?;
                let absent = PAGES_PER_REGION.saturating_sub(resident.0);
                Some(((process, region), PageCount(absent)))
            })
            .collect();
        failed
    }

    /// Performs all actions, with pauses so that they keep within `max_stall`; returns the number of failures.
    fn perform(
        &mut self,
        actions: Vec<Action>,
        max_stall: Option<Duration>,
        nap: &mut SleepFn<'_>,
    ) -> u64 {
        let mut failed = 0;
        let (mut window, mut spent) = (Instant::now(), Duration::ZERO);
        for actions in actions.chunks(CHUNK) {
            let plan = Plan {
                actions: actions.to_vec(),
            };
            let outcome = self.actuator.perform(&plan, &|| false);
            for result in &outcome.results {
                spent += result.took;
                failed += u64::from(!matches!(result.effect, Effect::Done | Effect::Vanished));
            }
            let elapsed = window.elapsed();
            let rest = match max_stall {
                Some(allowed) if spent >= allowed => WINDOW
                    .mul_f64(spent.as_secs_f64() / allowed.as_secs_f64().max(1e-6))
                    .saturating_sub(elapsed),
                _ => Duration::ZERO,
            };
            if nap(rest) {
                break;
            }
            if elapsed >= WINDOW || !rest.is_zero() {
                (window, spent) = (Instant::now(), Duration::ZERO);
            }
        }
        failed
    }

    /// Returns the share of its regions that are huge, from a sample; `None` without regions, or where the kernel does not show it.
    pub(super) fn huge_share(&self) -> Option<f64> {
        let made = self.made.lock();
        let step = made.len().div_ceil(SAMPLE).max(1);
        let some: Vec<(ProcessId, Region)> = made.keys().copied().step_by(step).collect();
        drop(made);
        let seen = some
            .iter()
            .filter_map(|&(process, region)| is_huge_mapped(&self.roots, process, region).ok()?);
        let seen: Vec<bool> = seen.collect();
        let huge = seen.iter().filter(|huge| **huge).count();
        #[allow(clippy::cast_precision_loss, reason = "a share of a hundred")]
        (!seen.is_empty()).then(|| huge as f64 / seen.len() as f64)
    }

    /// Returns the number of its regions that are huge.
    fn huge(&self) -> u64 {
        let made = self.made.lock().clone();
        let huge = made.into_keys().filter(|&(process, region)| {
            is_huge_mapped(&self.roots, process, region).is_ok_and(|huge| huge == Some(true))
        });
        huge.count() as u64
    }

    /// Returns the reason why the watch cannot work here, if it cannot.
    pub(super) fn trouble(&self) -> Option<String> {
        self.account().trouble.clone()
    }
}

impl Drop for PolicySwitch {
    /// Stops the watch, and lets it run on to its end if it stands still. Regions stay as they are.
    fn drop(&mut self) {
        self.watch.stop();
        self.watch.hold(false);
    }
}
