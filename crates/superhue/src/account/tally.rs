//! Sums of actions on the processes of each service.
//!
//! The sums over a whole watch are in the policy's ledger; this breaks the same outcomes down by the label of the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use superhue_model::{Action, ActionResult, Effect, ProcessId};

use super::{Members, SERVICES_LISTED, ServiceActions};

/// Breaks outcomes down by service. Bounded: it first drops the services that have had no process for longest.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    services: BTreeMap<Arc<str>, ServiceSums>,
    /// Number of the present round, which tells when a service last had a process.
    round: u64,
}

#[derive(Debug, Default)]
struct ServiceSums {
    actions: ServiceActions,
    last_seen: u64,
}

impl Tallies {
    /// Enters the outcome of an action for a process.
    pub(crate) fn enter(&mut self, members: &Members, id: ProcessId, result: &ActionResult) {
        let Some(label) = members.get(&id) else {
            return;
        };
        let tally = self.services.entry(label.clone()).or_default();
        tally.last_seen = self.round;
        let actions = &mut tally.actions;
        if !matches!(result.effect, Effect::Skipped { .. }) {
            actions.collapsing_seconds += result.took.as_secs_f64();
        }
        match (result.action, result.effect) {
            (Action::Collapse { growth, .. }, Effect::Done) => {
                actions.collapses_done += 1;
                actions.growth_bytes += growth.bytes();
            }
            (Action::Collapse { .. }, Effect::Failed { .. }) => actions.collapses_failed += 1,
            (Action::Collapse { .. }, Effect::Skipped { .. }) => actions.collapses_skipped += 1,
            (Action::Split { .. }, Effect::Done) => actions.splits_done += 1,
            _ => {}
        }
    }

    /// Records which services have processes now, and drops the oldest ones until at most [`SERVICES_LISTED`] are left.
    pub(crate) fn seen(&mut self, members: &Members) {
        self.round += 1;
        for label in members.values() {
            if let Some(tally) = self.services.get_mut(label) {
                tally.last_seen = self.round;
            }
        }
        while self.services.len() > SERVICES_LISTED {
            let oldest = self.services.iter().min_by_key(|(_, it)| it.last_seen);
            let Some(oldest) = oldest.map(|(label, _)| label.clone()) else {
                return;
            };
            self.services.remove(&oldest);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Arc<str>, ServiceActions)> {
        self.services.iter().map(|(label, it)| (label, it.actions))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use superhue_model::{Errno, Owner, PageCount, Region, SkipReason, VirtAddr};

    use super::*;

    fn result(effect: Effect) -> ActionResult {
        let id = ProcessId {
            pid: 1,
            start_ticks: 1,
        };
        ActionResult {
            action: Action::Collapse {
                owner: Owner::Process(id),
                region: Region::containing(VirtAddr(7 << 21)),
                growth: PageCount(3),
            },
            effect,
            took: Duration::from_millis(2),
        }
    }

    #[test]
    fn outcomes_are_entered_under_the_label_of_their_process() {
        let id = |pid| ProcessId {
            pid,
            start_ticks: 1,
        };
        let members: Members = [(id(1), "a".into()), (id(2), "b".into())].into();
        let mut tallies = Tallies::default();
        let errno = Errno(11);
        let reason = SkipReason::Shared;
        for effect in [
            Effect::Done,
            Effect::Failed { errno },
            Effect::Skipped { reason },
        ] {
            tallies.enter(&members, id(1), &result(effect));
        }
        tallies.enter(&members, id(9), &result(Effect::Done));
        let told: Vec<_> = tallies.iter().collect();
        assert_eq!(told.len(), 1, "nobody knows process 9");
        let actions = told[0].1;
        assert_eq!(
            (
                actions.collapses_done,
                actions.collapses_failed,
                actions.collapses_skipped
            ),
            (1, 1, 1)
        );
        assert_eq!(actions.growth_bytes, PageCount(3).bytes());
        assert!((actions.collapsing_seconds - 0.004).abs() < 1e-12);
    }

    #[test]
    fn a_million_services_do_not_pile_up() {
        let mut tallies = Tallies::default();
        let lasting = ProcessId {
            pid: 1,
            start_ticks: 1,
        };
        for number in 0..5000_u64 {
            let passing = ProcessId {
                pid: 2,
                start_ticks: number,
            };
            let label = format!("run-{number}").into();
            let members: Members = [(lasting, "lasting".into()), (passing, label)].into();
            tallies.enter(&members, lasting, &result(Effect::Done));
            tallies.enter(&members, passing, &result(Effect::Done));
            tallies.seen(&members);
        }
        assert_eq!(tallies.services.len(), SERVICES_LISTED);
        let lasting = &tallies.services["lasting"];
        assert_eq!(lasting.actions.collapses_done, 5000);
    }
}
