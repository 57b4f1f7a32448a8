//! `--pages hot`: superpages where the accesses are.
//!
//! A region earns a superpage when enough of its pages are accessed: a quarter by default, as in the
//! paper on HPS. What is resident does not matter, except for the price:
//!
//! ```text
//!   pages      ........................................   512 of a region
//!   resident   ##############################              300: promoting it adds 212
//!   active     ###  ######## ####   ###                    140 >= 128: ripe
//!
//!   worth = pages touched per second / pages added         best first; what adds none goes first
//! ```
//!
//! One sample proves little: a page that was touched once at start may never be again. So two are
//! wanted, which at the sampler's shortest interval are there after a tenth of a second. A region
//! that is wholly resident needs one: it costs no memory, only the copying, so the worst that an
//! early decision can do is a copy in vain.
//!
//! In large memory that is accessed at random no interval between two samples is long enough to see a quarter of a region: each sample
//! shows other pages. So a region that is wholly resident is ripe, too, if a sixteenth of it was seen active lately, and pages of it
//! are touched 64 times a second, not always the same ones. At that rate it has paid for its copying in a minute: a collapse takes
//! 0.5 ms, and a page that is touched again after others costs 50 to 200 ns more by base pages. (Both follow from `min_active`.)
//!
//! Where a tracker knows ranges only (DAMON), the rate of the range times what is resident stands in
//! for the active pages. A range may hide a cold region between hot ones, so unless full a region
//! has to be resident to three quarters then: a wrong guess adds a quarter of a superpage at most.
//! And two samples are wanted in any case.
//!
//! Regions with fewer active pages that are hot all the same are left alone and counted, as
//! candidates for compaction by the program itself.
//!
//! What became of a superpage is the subject of `demoter.rs`.

use std::time::Duration;

use superhue_model::{
    ByteCount, Outcome, Owner, PageCount, Plan, ProcessId, Region, Share, Snapshot,
};

use crate::clock::Tick;
use crate::demoter::Demoter;
use crate::promoter::Promoter;
use crate::rule::{RegionLook, Ripeness, Rule};
use crate::shortlist::Worth;
use crate::warmth::Warmth;
use crate::{FULL, Ledger, Policy, StallBound, pages_of_a_region};

/// Samples that have to show a region before it is promoted at the cost of memory.
const ENOUGH_SAMPLES: u16 = 2;

/// Pages that have to be resident where accesses are known by range only, and the most that are
/// asked to be active after demotions.
const MOST: u16 = FULL / 4 * 3;

/// The knobs of [`HotPolicy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HotConfig {
    /// How much of a region has to be active: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 25 % (128 pages) by default.
    pub min_active: Share,
    /// How much memory promotion may add, in total: a share of the anonymous resident memory of all
    /// processes. 5 % by default.
    pub budget: Share,
    /// How many bytes of superpages may be made per second, with half a second's worth at once;
    /// `None` for no limit. 2 GiB/s by default.
    pub rate: Option<ByteCount>,
    /// How long collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound, the default. A
    /// process that fills its memory, larger than it ever was by an eighth in a second, is not held to it.
    pub max_stall: Option<StallBound>,
    /// How long a superpage has to have been watched without an access before it may be split; at
    /// least five samples in any case. 30 s by default. A superpage is kept for a third of it
    /// whatever happens.
    pub cold_after: Duration,
    /// How much of such a superpage has to be zeroes: a share of 2 MiB, rounded up to whole pages
    /// and brought between 1 and 512 of them. 50 % by default.
    pub min_zero: Share,
    /// Whether superpages are split at all. Yes by default.
    pub demote: bool,
}

impl Default for HotConfig {
    fn default() -> Self {
        Self {
            min_active: Share::BasisPoints(2_500),
            budget: Share::BasisPoints(500),
            rate: Some(crate::DEFAULT_RATE),
            max_stall: None,
            cold_after: Duration::from_secs(30),
            min_zero: Share::BasisPoints(5_000),
            demote: true,
        }
    }
}

/// The rule of promotion.
#[derive(Debug)]
pub(crate) struct ActivePages {
    min_active: u16,
    cold_after: Duration,
}

impl ActivePages {
    /// Pages that have to be active: half as many again for each split held against the region.
    fn threshold(&self, warmth: &Warmth) -> u16 {
        let more = self.min_active / 2 * u16::from(warmth.rest().level());
        let raised = self.min_active.saturating_add(more);
        raised.min(self.min_active.max(MOST))
    }

    /// Whether accesses go to so many pages that each sample sees other ones, and often enough to pay for a copy.
    fn is_scattered(&self, warmth: &Warmth) -> bool {
        let threshold = self.threshold(warmth);
        !warmth.is_ranged()
            && !warmth.is_crowded()
            && warmth.active() >= threshold.div_ceil(4)
            && warmth.per_second() >= threshold.div_ceil(2)
    }
}

impl Rule for ActivePages {
    type Note = Warmth;

    fn absorb(&self, warmth: &mut Warmth, look: &RegionLook<'_>) {
        warmth.absorb(look, self.cold_after);
    }

    fn demoted(&self, warmth: &mut Warmth, now: Tick) {
        warmth.demoted(now);
    }

    fn ripeness(&self, resident: u16, warmth: &Warmth) -> Ripeness {
        if warmth.is_stale() {
            return Ripeness::Unproven;
        }
        let is_full = resident >= FULL;
        let is_guess = warmth.is_ranged();
        let is_active = warmth.active() >= self.threshold(warmth);
        let is_wanted = is_active || (is_full && self.is_scattered(warmth));
        if warmth.samples() == 0 || !is_wanted || (is_guess && resident < MOST) {
            return Ripeness::Never;
        }
        if warmth.samples() >= ENOUGH_SAMPLES || (is_active && is_full && !is_guess) {
            Ripeness::AtOnce
        } else {
            Ripeness::Unproven
        }
    }

    fn worth(&self, growth: u16, warmth: &Warmth) -> Worth {
        warmth.worth(growth)
    }

    fn barred_until(&self, warmth: &Warmth) -> Tick {
        warmth.rest().until()
    }

    fn may_split(&self, warmth: &Warmth, age: Duration, charged: u16) -> bool {
        age >= self.cold_after / 3
            && (warmth.is_cold(self.cold_after) || (charged > 0 && warmth.is_known()))
    }

    fn keeps(&self, warmth: &Warmth, now: Tick) -> bool {
        warmth.is_worth_keeping(now)
    }

    fn crowded(&self, warmth: &Warmth) -> Option<u16> {
        let active = warmth.active();
        (warmth.is_crowded() && (1..self.min_active).contains(&active)).then_some(active)
    }

    fn is_by_worth(&self) -> bool {
        true
    }
}

/// Promotes regions with enough active pages, hottest for their price first, and demotes superpages
/// that have gone cold.
///
/// It needs snapshots with heat; a process without is left alone.
#[derive(Debug)]
pub struct HotPolicy {
    engine: Promoter<ActivePages>,
    demoter: Option<Demoter>,
}

impl HotPolicy {
    /// A policy that has seen nothing yet.
    #[must_use]
    pub fn new(config: HotConfig) -> Self {
        let rule = ActivePages {
            min_active: pages_of_a_region(config.min_active),
            cold_after: config.cold_after,
        };
        let min_zero = pages_of_a_region(config.min_zero);
        Self {
            engine: Promoter::new(rule, Some(config.budget), config.rate)
                .with_max_stall(config.max_stall),
            demoter: config
                .demote
                .then(|| Demoter::new(config.cold_after, min_zero)),
        }
    }
}

impl Policy for HotPolicy {
    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = self.engine.decide(snapshot);
        if let Some(demoter) = &mut self.demoter {
            plan.actions.extend(demoter.decide(&mut self.engine));
        }
        plan
    }

    fn learn(&mut self, at: Duration, outcome: &Outcome) {
        self.engine.learn(at, outcome);
    }

    fn wants_look_within(&self) -> Option<Duration> {
        self.engine.wants_look_within()
    }

    fn wants_zeroes(&self) -> Vec<(ProcessId, Region)> {
        self.demoter
            .as_ref()
            .map(|demoter| demoter.questions().to_vec())
            .unwrap_or_default()
    }

    fn learn_zeroes(&mut self, process: ProcessId, region: Region, zero: PageCount) {
        let now = self.engine.now();
        if let Some(record) = self.engine.find_mut(Owner::Process(process), region) {
            record.note.learn_zeroes(now, zero);
        }
    }

    fn ledger(&self) -> &Ledger {
        self.engine.ledger()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_split_raises_the_threshold_up_to_three_quarters() {
        let rule = |min_active| ActivePages {
            min_active,
            cold_after: Duration::ZERO,
        };
        let mut warmth = Warmth::default();
        let mut thresholds = Vec::new();
        for _ in 0..7 {
            thresholds.push(rule(128).threshold(&warmth));
            warmth.demoted(warmth.rest().until());
        }
        assert_eq!(thresholds, [128, 192, 256, 320, 384, 384, 384]);
        assert_eq!(rule(500).threshold(&warmth), 500);
        assert_eq!(rule(1).threshold(&warmth), 1);
    }
}
