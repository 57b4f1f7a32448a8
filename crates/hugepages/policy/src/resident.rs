//! `--pages resident`: promote what is nearly full and has stopped growing.
//!
//! Without access tracking, residency is the best sign that a superpage will be used: a page is
//! resident because the program touched it. The rule wants most of a region to be there, so that
//! promotion adds little, and it wants the region to be quiet: one that is still being filled will
//! soon be full and then costs nothing at all.
//!
//! ```text
//!   resident
//!    512 |                    +-----------  full: promoted at once, adds nothing
//!        |                   /
//!    384 |-------/----------/--------------  min_resident
//!        |      /  +-------/- - - - - -   stopped at 450: after `settle`, adds 62 pages
//!        |     /  /
//!        |    /  /      +-----------------   stopped at 100: never
//!        +-------------------------------> time
//! ```

use std::time::Duration;

use superhue_model::{ByteCount, Outcome, Plan, Share, Snapshot};

use crate::promoter::Promoter;
use crate::rule::{Ripeness, Rule};
use crate::{FULL, Ledger, Policy, StallBound};

/// The knobs of [`ResidentPolicy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResidentConfig {
    /// How much of a region has to be resident: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 75 % (384 pages) by default.
    pub min_resident: Share,
    /// How long a region that is not full has to have been quiet. 100 ms by default. Even with zero
    /// two looks at different times are needed.
    pub settle: Duration,
    /// How much memory promotion may add, in total: a share of the anonymous resident memory of all
    /// processes. 5 % by default.
    pub budget: Share,
    /// How many bytes of superpages may be made per second, with half a second's worth at once;
    /// `None` for no limit. 2 GiB/s by default.
    pub rate: Option<ByteCount>,
    /// How long collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound, the default. A
    /// process that fills its memory, larger than it ever was by an eighth in a second, is not held to it.
    pub max_stall: Option<StallBound>,
}

impl Default for ResidentConfig {
    fn default() -> Self {
        Self {
            min_resident: Share::BasisPoints(7_500),
            settle: Duration::from_millis(100),
            budget: Share::BasisPoints(500),
            rate: Some(crate::DEFAULT_RATE),
            max_stall: None,
        }
    }
}

#[derive(Debug)]
struct NearlyFull {
    min_resident: u16,
    settle: Duration,
}

impl Rule for NearlyFull {
    type Note = ();

    fn ripeness(&self, resident: u16, (): &()) -> Ripeness {
        if resident >= FULL {
            Ripeness::AtOnce
        } else if resident >= self.min_resident {
            Ripeness::AfterQuiet(self.settle)
        } else {
            Ripeness::Never
        }
    }
}

/// Promotes regions that are nearly full and have stopped growing.
#[derive(Debug)]
pub struct ResidentPolicy(Promoter<NearlyFull>);

impl ResidentPolicy {
    /// A policy that has seen nothing yet.
    #[must_use]
    pub fn new(config: ResidentConfig) -> Self {
        let rule = NearlyFull {
            min_resident: crate::pages_of_a_region(config.min_resident),
            settle: config.settle,
        };
        let engine = Promoter::new(rule, Some(config.budget), config.rate);
        Self(engine.with_max_stall(config.max_stall))
    }
}

impl Policy for ResidentPolicy {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threshold_is_rounded_up_and_kept_in_range() {
        for (share, pages) in [
            ("75%", 384),
            ("0%", 1),
            ("0.1%", 1),
            ("0.2%", 2),
            ("1M", 256),
            ("100%", 512),
            ("1000%", 512),
            ("1T", 512),
        ] {
            let policy = ResidentPolicy::new(ResidentConfig {
                min_resident: share.parse().unwrap(),
                ..ResidentConfig::default()
            });
            assert_eq!(policy.0.rule().min_resident, pages, "{share}");
        }
    }

    #[test]
    fn only_a_full_region_is_ripe_at_once() {
        let rule = NearlyFull {
            min_resident: 384,
            settle: Duration::from_secs(1),
        };
        assert_eq!(rule.ripeness(383, &()), Ripeness::Never);
        let quiet = Ripeness::AfterQuiet(Duration::from_secs(1));
        assert_eq!(rule.ripeness(384, &()), quiet);
        assert_eq!(rule.ripeness(511, &()), quiet);
        assert_eq!(rule.ripeness(512, &()), Ripeness::AtOnce);
    }
}
