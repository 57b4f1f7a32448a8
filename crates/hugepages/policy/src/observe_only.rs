//! `--pages kernel` and `--pages never`: look, but leave the placement to the kernel.

use std::time::Duration;

use superhue_model::{Outcome, Plan, Snapshot};

use crate::{Ledger, Policy};

/// A policy that never plans anything.
///
/// It stands for both `kernel` (the kernel's own settings rule) and `never` (superpages were
/// switched off for the process when it started): in either case there is nothing to do while the
/// program runs, but coverage and RSS are observed all the same.
#[derive(Debug, Clone, Default)]
pub struct ObserveOnlyPolicy {
    ledger: Ledger,
}

impl Policy for ObserveOnlyPolicy {
    fn decide(&mut self, _snapshot: &Snapshot) -> Plan {
        Plan::default()
    }

    fn learn(&mut self, _at: Duration, _outcome: &Outcome) {}

    fn wants_look_within(&self) -> Option<Duration> {
        None
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}
