//! `--dry-run`: reports each action as listed only.

use std::time::Duration;

use superhue_model::{ActionResult, Effect, Outcome, Plan, SkipReason};

use crate::Actuator;

/// An actuator that carries out no action.
#[derive(Debug, Clone, Copy, Default)]
pub struct DryRun;

impl Actuator for DryRun {
    fn perform(&mut self, plan: &Plan, _stop: &dyn Fn() -> bool) -> Outcome {
        let reason = SkipReason::DryRun;
        let listed = plan.actions.iter().map(|&action| ActionResult {
            action,
            effect: Effect::Skipped { reason },
            took: Duration::ZERO,
        });
        Outcome {
            results: listed.collect(),
        }
    }
}
