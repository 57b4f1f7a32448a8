//! Remembers the regions that a policy makes huge, so that a trial can split them and collapse them again.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use superhue_act::Actuator;
use superhue_model::{
    Action, ActionResult, Effect, Errno, Outcome, Owner, PageCount, Plan, ProcessId, Region,
};
use superhue_procfs::Roots;

use super::frames::{Neighbors, neighbors_in};

/// Regions whose frames are recorded before they are collapsed.
const MOST_RECORDED: usize = 1024;

/// A region of a process.
pub(super) type Key = (ProcessId, Region);

/// The regions that the policy made huge, with the pages that this added.
#[derive(Debug, Default, Clone)]
pub(super) struct CollapsedRegions(Arc<Mutex<BTreeMap<Key, PageCount>>>);

impl CollapsedRegions {
    pub(super) fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, PageCount>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters regions before they are collapsed, so that a look meanwhile does not take them for memory that is huge already. Returns the new
    /// ones.
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
pub(super) struct FramesBefore(Arc<Mutex<(Neighbors, usize)>>);

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

    pub(super) fn share(&self) -> Option<f64> {
        self.lock().0.share()
    }

    /// Records no more.
    pub(super) fn end(&self) {
        self.lock().1 = MOST_RECORDED;
    }
}

/// Actuator that passes actions to another one, and remembers the regions that become huge.
pub(super) struct RecordingActuator {
    pub(super) actuator: Box<dyn Actuator>,
    pub(super) roots: Roots,
    pub(super) made: CollapsedRegions,
    pub(super) before: FramesBefore,
}

impl Actuator for RecordingActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        // Shared memory is left alone: a split in one process would not split the mappings of other processes. The policy sees the same
        // error as from a kernel that cannot collapse it.
        // Memory that was huge before is left alone too, where the trial does not switch it: the trial would not undo a split.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::fakes::{CountingActuator, outcome_of, regions};
    use super::*;

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
            outcome_of(plan.actions.iter().copied().zip(effects))
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
            actuator: Box::new(CountingActuator(Arc::clone(&performed))),
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
}
