//! `--dry-run`: says of every action that it was only listed.

use std::time::Duration;

use superhue_model::{ActionResult, Effect, Outcome, Plan, SkipReason};

use crate::Actuator;

/// Carries nothing out.
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
