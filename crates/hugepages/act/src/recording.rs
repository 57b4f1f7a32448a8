//! An actuator that only writes down what it was asked.

use std::time::Duration;

use superhue_model::{Action, ActionResult, Effect, Outcome, Plan, SkipReason};

use crate::Actuator;

/// Records actions instead of doing them: for `--dry-run` and for tests.
#[derive(Debug, Default)]
pub struct RecordingActuator {
    recorded: Vec<Action>,
}

impl RecordingActuator {
    /// The actions so far, in order.
    #[must_use]
    pub fn recorded(&self) -> &[Action] {
        &self.recorded
    }
}

impl Actuator for RecordingActuator {
    fn perform(&mut self, plan: &Plan, _stop: &dyn Fn() -> bool) -> Outcome {
        self.recorded.extend(&plan.actions);
        let results = plan
            .actions
            .iter()
            .map(|&action| ActionResult {
                action,
                effect: Effect::Skipped {
                    reason: SkipReason::DryRun,
                },
                took: Duration::ZERO,
            })
            .collect();
        Outcome { results }
    }
}
