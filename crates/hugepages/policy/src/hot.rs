//! `--pages hot`: huge pages where the accesses are.
//!
//! A region earns a huge page when enough of its pages are accessed: a quarter by default, as in the paper on HPS. Residency does not matter,
//! except for the price:
//!
//! ```text
//!   pages      ........................................   512 of a region
//!   resident   ##############################              300: promoting it adds 212
//!   active     ###  ######## ####   ###                    140 >= 128: ripe
//!
//!   worth = pages touched per second / pages added         best first; what adds none goes first
//! ```
//!
//! One sample proves little: a page that was touched once at start may never be touched again. So the rule wants two samples, which the sampler's
//! shortest interval gives after a tenth of a second. A region that is wholly resident needs one: it costs no memory, only the copying, so an early
//! decision wastes a copy at worst.
//!
//! In large memory with random accesses, no interval between two samples is long enough to see a quarter of a region: each sample shows other
//! pages. So a region that is wholly resident is ripe, too, if a sixteenth of it was active lately, and its pages are touched 64 times a second,
//! not always the same ones. At that rate it has paid for its copying in a minute: a collapse takes 0.5 ms, and a page that is touched again after
//! others costs 50 to 200 ns more with base pages. (Both follow from `min_active`.)
//!
//! Under `auto` a region that is wholly resident needs no sample at all, nor does one with at most 16 holes that has stopped growing and gave no page
//! back: a page of growth buys more there than anywhere else. Such regions may use half of the budget; what evidence has shown has the rest. A region
//! waits until its program has stopped filling memory ([`Quota::spares_filling`]), as every region does there. `evidence.rs` chooses the memory that
//! `auto` samples.
//!
//! If a tracker knows ranges only (DAMON), the rate of the range times the resident pages stands in for the active pages. A range may hide a cold
//! region between hot ones. So three quarters of a region must be resident then: a wrong guess adds a quarter of a huge page at most. And the rule
//! wants two samples in any case.
//!
//! Samples begin when the program has stopped filling memory: earlier ones show where it fills, and not what it uses (`evidence.rs`).
//!
//! The rule leaves alone regions with fewer active pages that are hot all the same, and counts them as candidates for compaction by the program
//! itself.
//!
//! `warmth.rs` keeps the notes of samples on a region; `promoter.rs` explains how the promoting policies plan; `split.rs` chooses the huge pages to
//! split again.

use std::time::Duration;

use superhue_model::{Memory, Outcome, Owner, PageCount, Plan, ProcessId, Region, Share, Snapshot};

use crate::candidate::{PromotionReadiness, PromotionValue, RegionLook, Rule};
use crate::clock::Tick;
use crate::evidence;
use crate::memory::OwnedMemory;
use crate::promoter::Promoter;
use crate::scheme::{SETTLE, pages_of_a_region};
use crate::split::{self, Splitter};
use crate::warmth::AccessHistory;
use crate::{Active, FEW_HOLES, FULL, Ledger, MemoryAge, Policy, Quota};

/// Number of samples that have to show a region before it is promoted at the cost of memory.
const ENOUGH_SAMPLES: u16 = 2;

/// Pages that have to be resident where accesses are known by range only, and the largest threshold of active pages after splits.
const MAX_ACTIVE_PAGES: u16 = FULL / 4 * 3;

/// The rule of promotion.
#[derive(Debug)]
pub(crate) struct ActivePages {
    /// Pages that have to be active.
    pub(crate) min_active: u16,
    /// Watched time without an access after which a huge page is cold.
    pub(crate) cold_after: Duration,
    /// True if a region that is full, or has few holes, needs no evidence.
    pub(crate) full_at_once: bool,
}

impl ActivePages {
    /// Returns the pages that have to be active: half as many again for each split held against the region.
    fn threshold(&self, warmth: &AccessHistory) -> u16 {
        let more = self.min_active / 2 * u16::from(warmth.rest().level());
        let raised = self.min_active.saturating_add(more);
        raised.min(self.min_active.max(MAX_ACTIVE_PAGES))
    }

    /// Returns true if accesses go to more pages than one sample sees, and often enough to pay for a copy.
    fn is_scattered(&self, warmth: &AccessHistory) -> bool {
        let threshold = self.threshold(warmth);
        !warmth.is_ranged()
            && warmth.is_crowded() == Some(false)
            && warmth.active() >= threshold.div_ceil(4)
            && warmth.per_second() >= threshold.div_ceil(2)
    }

    /// Returns true if the region needs no evidence although it is not full.
    const fn has_few_holes(&self, resident: u16) -> bool {
        self.full_at_once && resident < FULL && resident >= FULL - FEW_HOLES
    }

    /// Returns the readiness of a region by the samples alone.
    fn by_evidence(&self, resident: u16, warmth: &AccessHistory) -> PromotionReadiness {
        let is_full = resident >= FULL;
        if warmth.is_stale() {
            return PromotionReadiness::Unproven;
        }
        let is_guess = warmth.is_ranged();
        let is_active = warmth.active() >= self.threshold(warmth);
        let is_wanted = is_active || (is_full && self.is_scattered(warmth));
        if warmth.samples() == 0 || !is_wanted || (is_guess && resident < MAX_ACTIVE_PAGES) {
            return PromotionReadiness::Never;
        }
        if warmth.samples() >= ENOUGH_SAMPLES || (is_active && is_full && !is_guess) {
            PromotionReadiness::AtOnce
        } else {
            PromotionReadiness::Unproven
        }
    }
}

impl Rule for ActivePages {
    type Note = AccessHistory;

    fn absorb(&self, warmth: &mut AccessHistory, look: &RegionLook<'_>) {
        warmth.absorb(look, self.cold_after);
    }

    fn knows_zeroes(&self, warmth: &AccessHistory) -> bool {
        warmth.zero_since_quiet().is_some_and(|zero| zero > 0)
    }

    fn was_split(&self, warmth: &mut AccessHistory, now: Tick) {
        warmth.was_split(now);
    }

    fn ripeness(&self, resident: u16, warmth: &AccessHistory) -> PromotionReadiness {
        if resident >= FULL && self.full_at_once {
            return PromotionReadiness::AtOnce;
        }
        match self.by_evidence(resident, warmth) {
            PromotionReadiness::AtOnce => PromotionReadiness::AtOnce,
            _ if self.has_few_holes(resident) => PromotionReadiness::WithoutEvidence(SETTLE),
            other => other,
        }
    }

    fn worth(&self, growth: u16, warmth: &AccessHistory) -> PromotionValue {
        warmth.worth(growth)
    }

    fn worth_kept(&self, pages: u16, warmth: &AccessHistory) -> PromotionValue {
        warmth.worth_kept(pages)
    }

    fn barred_until(&self, warmth: &AccessHistory) -> Tick {
        warmth.rest().until()
    }

    fn may_split(&self, warmth: &AccessHistory, age: Duration, charged: u16) -> bool {
        split::is_due(warmth, age, charged, self.cold_after)
    }

    fn keeps(&self, warmth: &AccessHistory, now: Tick) -> bool {
        warmth.is_worth_keeping(now)
    }

    fn crowded(&self, warmth: &AccessHistory) -> Option<u16> {
        let active = warmth.active();
        (warmth.is_crowded() == Some(true) && (1..self.min_active).contains(&active))
            .then_some(active)
    }

    fn is_by_worth(&self) -> bool {
        true
    }
}

/// The policy: promotes by accesses, and splits huge pages that are cold or have to give way.
#[derive(Debug)]
pub(crate) struct HotPolicy {
    promoter: Promoter<ActivePages>,
    splitter: Option<Splitter>,
}

impl HotPolicy {
    pub(crate) fn new(active: &Active, quota: &Quota, ledger: Ledger) -> Self {
        let cold_after = active.cold_after;
        let rule = ActivePages {
            min_active: pages_of_a_region(active.min_active),
            cold_after,
            full_at_once: active.full_at_once,
        };
        Self {
            promoter: Promoter::new(rule, quota).with_ledger(ledger),
            splitter: active
                .split
                .as_ref()
                .map(|split| Splitter::new(cold_after, pages_of_a_region(split.min_zero))),
        }
    }
}

impl Policy for HotPolicy {
    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let mut plan = self.promoter.decide(snapshot);
        if let Some(splitter) = &mut self.splitter {
            plan.actions.extend(splitter.decide(&mut self.promoter));
        }
        plan
    }

    fn learn(&mut self, at: Duration, outcome: &Outcome) {
        self.promoter.learn(at, outcome);
    }

    fn resume(&mut self, at: Duration) -> Plan {
        self.promoter.resume(at)
    }

    fn resumes_within(&self) -> Option<Duration> {
        self.promoter.resumes_within()
    }

    fn wants_heat(&self, memory: &Memory<'_>, age: MemoryAge) -> bool {
        let rule = self.promoter.rule();
        if !rule.full_at_once {
            return !evidence::is_too_early(memory, age);
        }
        let Some(room) = self.promoter.allowed_growth() else {
            return false;
        };
        if evidence::of_holes(memory, rule.min_active, room, age) {
            return true;
        }
        let mut cheap = (self.promoter.owner(memory.owner)).map(OwnedMemory::with_little_cost);
        let costs_little = |region| cheap.as_mut().is_some_and(|is_cheap| is_cheap(region));
        self.splitter.is_some()
            && evidence::of_huge_pages(memory, rule.cold_after, age, costs_little)
    }

    fn allow(&mut self, budget: Option<Share>) {
        self.promoter.allow(budget);
    }

    fn wants_look_within(&self) -> Option<Duration> {
        self.promoter.wants_look_within()
    }

    fn wants_zeroes(&self) -> Vec<(ProcessId, Region)> {
        self.splitter
            .as_ref()
            .map(|splitter| splitter.questions().to_vec())
            .unwrap_or_default()
    }

    fn learn_zeroes(&mut self, process: ProcessId, region: Region, zero: PageCount) {
        let now = self.promoter.now();
        if let Some(record) = self.promoter.find_mut(Owner::Process(process), region) {
            record.note.learn_zeroes(now, zero);
        }
    }

    fn ledger(&self) -> &Ledger {
        self.promoter.ledger()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn under_auto_a_region_with_few_holes_needs_no_evidence() {
        let rule = |full_at_once| ActivePages {
            min_active: 128,
            cold_after: Duration::ZERO,
            full_at_once,
        };
        let unseen = AccessHistory::default();
        let ripeness = |resident| rule(true).ripeness(resident, &unseen);
        assert_eq!(ripeness(512), PromotionReadiness::AtOnce);
        let quiet = PromotionReadiness::WithoutEvidence(SETTLE);
        assert_eq!((ripeness(511), ripeness(496)), (quiet, quiet));
        assert_ne!(ripeness(495), quiet);
        assert_ne!(rule(false).ripeness(511, &unseen), quiet);
    }

    #[test]
    fn each_split_raises_the_threshold_up_to_three_quarters() {
        let rule = |min_active| ActivePages {
            min_active,
            cold_after: Duration::ZERO,
            full_at_once: false,
        };
        let mut warmth = AccessHistory::default();
        let mut thresholds = Vec::new();
        for _ in 0..7 {
            thresholds.push(rule(128).threshold(&warmth));
            warmth.was_split(warmth.rest().until());
        }
        assert_eq!(thresholds, [128, 192, 256, 320, 384, 384, 384]);
        assert_eq!(rule(500).threshold(&warmth), 500);
        assert_eq!(rule(1).threshold(&warmth), 1);
    }
}
