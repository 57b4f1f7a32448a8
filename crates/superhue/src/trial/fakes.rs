//! Regions and actuators for the tests of a trial.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use superhue_act::Actuator;
use superhue_model::{Action, ActionResult, Effect, Outcome, Plan, ProcessId, Region, VirtAddr};

use super::recording::Key;

/// Returns regions that lie side by side, of a process that does not exist.
pub(super) fn regions(count: u64) -> Vec<Key> {
    let process = ProcessId {
        pid: u32::MAX,
        start_ticks: 1,
    };
    let region = |index: u64| Region::containing(VirtAddr(0x7f00_0000_0000 + (index << 21)));
    (0..count).map(|index| (process, region(index))).collect()
}

/// Actuator that does everything, and counts.
pub(super) struct CountingActuator(pub(super) Arc<AtomicU64>);

impl Actuator for CountingActuator {
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

/// Returns the outcome of actions that took no time.
pub(super) fn outcome_of(effects: impl Iterator<Item = (Action, Effect)>) -> Outcome {
    let results = effects.map(|(action, effect)| ActionResult {
        action,
        effect,
        took: Duration::ZERO,
    });
    Outcome {
        results: results.collect(),
    }
}
