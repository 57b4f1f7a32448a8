//! Counting what became of plans.

use std::collections::BTreeMap;
use std::time::Duration;

use superhue_model::{Action, Effect, Errno, Outcome, SkipReason};

/// What became of every collapse so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: BTreeMap<Errno, u64>,
    pub(crate) skipped: BTreeMap<SkipReason, u64>,
    pub(crate) vanished: u64,
    pub(crate) took: Duration,
    pub(crate) longest: Duration,
}

impl Tally {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        for result in &outcome.results {
            if !matches!(result.action, Action::Collapse { .. }) {
                continue;
            }
            self.took += result.took;
            self.longest = self.longest.max(result.took);
            match result.effect {
                Effect::Done => self.done += 1,
                Effect::Failed { errno } => *self.failed.entry(errno).or_default() += 1,
                Effect::Skipped { reason } => *self.skipped.entry(reason).or_default() += 1,
                Effect::Vanished => self.vanished += 1,
            }
        }
    }

    /// Collapses that were really asked of a kernel.
    pub(crate) fn tried(&self) -> u64 {
        self.done + self.failed.values().sum::<u64>() + self.vanished
    }
}
