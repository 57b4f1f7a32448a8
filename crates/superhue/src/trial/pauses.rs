//! Performs what a trial switches, with pauses so that the program's waits keep within `--max-stall`.

use std::collections::{BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use superhue_act::Actuator;
use superhue_model::{Action, ActionResult, CollapseBound, Effect, Errno, Owner, Plan, SkipReason};

use super::recording::Key;
use super::scatter::Scatterer;

/// Actions between two checks for a stop.
const CHUNK: usize = 8;

/// Period of which collapses may take a part (see [`Config::stall_bound`](crate::Config::stall_bound)).
const WINDOW: Duration = Duration::from_millis(100);

/// Function that sleeps, and returns true to stop.
pub(super) type SleepFn<'a> = dyn FnMut(Duration) -> bool + 'a;

/// Actions that were not done.
#[derive(Debug, Default)]
pub(super) struct Failures {
    /// Actions that the kernel refused for the moment (`EAGAIN`, `EBUSY`).
    pub(super) again: Vec<Action>,
    /// Number of the other actions.
    pub(super) lasting: u64,
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

    pub(super) const fn count(&self) -> u64 {
        self.again.len() as u64 + self.lasting
    }
}

/// Performs actions in order, with pauses so that what holds the program up keeps within `max_stall`; returns the failures.
///
/// The actuator ends a part once the bound is reached, so that a part that takes longer than expected does not exceed it; what it has left undone
/// comes after the pause.
pub(super) fn perform_all(
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

/// Scatters the pages of all regions, with pauses so that waits of the program keep within `max_stall`.
pub(super) fn scatter_all(
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

#[cfg(test)]
mod tests {
    use superhue_model::{Outcome, PageCount, Region};

    use super::super::fakes::regions;
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
}
