//! Counting what became of plans.

use std::collections::BTreeMap;

use superhue_model::{Action, ActionResult, Effect, Errno, Outcome, SkipReason};

use crate::durations::Durations;

/// What became of every collapse and every split so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tallies {
    pub(crate) collapses: Tally,
    pub(crate) splits: Tally,
}

impl Tallies {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        for result in &outcome.results {
            match result.action {
                Action::Collapse { .. } => self.collapses.add(result),
                Action::Split { .. } => self.splits.add(result),
            }
        }
    }
}

/// What became of every action of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) failed: BTreeMap<Errno, u64>,
    pub(crate) skipped: BTreeMap<SkipReason, u64>,
    pub(crate) vanished: u64,
    /// What the kernel took over those that were asked of it.
    pub(crate) took: Durations,
}

impl Tally {
    fn add(&mut self, result: &ActionResult) {
        if !matches!(result.effect, Effect::Skipped { .. }) {
            self.took.add(result.took);
        }
        match result.effect {
            Effect::Done => self.done += 1,
            Effect::Failed { errno } => *self.failed.entry(errno).or_default() += 1,
            Effect::Skipped { reason } => *self.skipped.entry(reason).or_default() += 1,
            Effect::Vanished => self.vanished += 1,
        }
    }

    /// Those that were really asked of a kernel.
    pub(crate) fn tried(&self) -> u64 {
        self.done + self.failed.values().sum::<u64>() + self.vanished
    }

    /// Refusals by the names of their errors.
    pub(crate) fn failed_by_name(&self) -> BTreeMap<String, u64> {
        let failed = self.failed.iter();
        failed.map(|(errno, &n)| (errno.to_string(), n)).collect()
    }

    /// Those left undone, by reason.
    pub(crate) fn skipped_by_reason(&self) -> BTreeMap<&'static str, u64> {
        let skipped = self.skipped.iter();
        skipped.map(|(reason, &n)| (reason.describe(), n)).collect()
    }
}
