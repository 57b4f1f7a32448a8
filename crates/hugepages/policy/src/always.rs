//! `--pages always`: what the system-wide setting `always` would come to, for these processes only.
//!
//! The rival to compare with, with its bloat: one resident page is reason enough for a superpage.
//! The kernel would place it at the page fault; from outside it comes one look later. Rate limit
//! and back-off are those of the other policies.

use std::time::Duration;

use superhue_model::{ByteCount, Outcome, Plan, Share, Snapshot};

use crate::promoter::Promoter;
use crate::rule::{Ripeness, Rule};
use crate::{Ledger, Policy, StallBound};

/// The knobs of [`AlwaysPolicy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AlwaysConfig {
    /// How much memory promotion may add, in total: a share of the anonymous resident memory of all
    /// processes. `None`, no limit, by default.
    pub budget: Option<Share>,
    /// How many bytes of superpages may be made per second, with half a second's worth at once;
    /// `None` for no limit. 2 GiB/s by default.
    pub rate: Option<ByteCount>,
    /// How long collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound, the default. A
    /// process that fills its memory, larger than it ever was by an eighth in a second, is not held to it.
    pub max_stall: Option<StallBound>,
}

impl Default for AlwaysConfig {
    fn default() -> Self {
        Self {
            budget: None,
            rate: Some(crate::DEFAULT_RATE),
            max_stall: None,
        }
    }
}

#[derive(Debug)]
struct AnyPage;

impl Rule for AnyPage {
    type Note = ();

    fn ripeness(&self, _resident: u16, (): &()) -> Ripeness {
        Ripeness::AtOnce
    }
}

/// Promotes every region with at least one resident page, at once.
#[derive(Debug)]
pub struct AlwaysPolicy(Promoter<AnyPage>);

impl AlwaysPolicy {
    /// A policy that has seen nothing yet.
    #[must_use]
    pub fn new(config: AlwaysConfig) -> Self {
        let engine = Promoter::new(AnyPage, config.budget, config.rate);
        Self(engine.with_max_stall(config.max_stall))
    }
}

impl Policy for AlwaysPolicy {
    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        self.0.decide(snapshot)
    }

    fn learn(&mut self, at: Duration, outcome: &Outcome) {
        self.0.learn(at, outcome);
    }

    fn wants_look_within(&self) -> Option<Duration> {
        self.0.wants_look_within()
    }

    fn ledger(&self) -> &Ledger {
        self.0.ledger()
    }
}
