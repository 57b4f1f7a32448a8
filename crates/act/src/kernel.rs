//! The actuator that really acts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue_model::{Action, ActionResult, Effect, Errno, Outcome, Plan, SkipReason};

use crate::Actuator;
use crate::agent_host::AgentHost;
use crate::collapse::Collapser;
pub use crate::collapse::IdentityCheck;
use crate::split::{SplitError, Splitter};

/// Carries out plans on the running kernel.
pub struct KernelActuator {
    collapser: Collapser,
    splitter: Option<Splitter>,
}

impl KernelActuator {
    /// An actuator that asks `is_still` whether a process is the one meant, and `agents`, if any,
    /// to do what the caller may not do from outside.
    #[must_use]
    pub fn new(is_still: IdentityCheck, agents: Option<Arc<AgentHost>>) -> Self {
        Self {
            collapser: Collapser::new(is_still, agents),
            splitter: None,
        }
    }

    /// Allows splits, through the given interface.
    #[must_use]
    pub fn with_splitter(mut self, splitter: Splitter) -> Self {
        self.splitter = Some(splitter);
        self
    }

    fn perform_one(&mut self, action: &Action) -> Effect {
        match *action {
            Action::Collapse {
                process, region, ..
            } => self.collapser.collapse(process, region),
            Action::Split { process, region } => match &self.splitter {
                None => Effect::Failed {
                    errno: Errno::ENOSYS,
                },
                Some(splitter) => match splitter.split(process.pid, region.range()) {
                    Ok(()) => Effect::Done,
                    Err(SplitError::Vanished { .. }) => Effect::Vanished,
                    Err(error) => Effect::Failed {
                        errno: error.errno(),
                    },
                },
            },
        }
    }
}

impl Actuator for KernelActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        let results = plan.actions.iter().map(|action| {
            if stop() {
                let effect = Effect::Skipped {
                    reason: SkipReason::Cancelled,
                };
                return ActionResult {
                    action: *action,
                    effect,
                    took: Duration::ZERO,
                };
            }
            let begun = Instant::now();
            let effect = self.perform_one(action);
            ActionResult {
                action: *action,
                effect,
                took: begun.elapsed(),
            }
        });
        Outcome {
            results: results.collect(),
        }
    }

    fn housekeep(&mut self) {
        self.collapser.housekeep();
    }
}
