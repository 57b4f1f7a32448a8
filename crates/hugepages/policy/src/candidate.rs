//! Candidates for promotion, and the best of them.
//!
//! A [`Rule`] is the one point in which the promoting policies differ: it decides which region is ripe, when, and in which order. A region that it
//! lets pass is a [`Candidate`]; a [`Shortlist`] holds the best of many candidates without keeping all. On the first look at a large machine every
//! region may be a candidate, and the rate limit lets a few hundred pass. So the list keeps at most twice those at any time, and after the first
//! cut most others fail a single comparison with the worst one kept.

use std::cmp::Reverse;
use std::fmt::Debug;
use std::time::Duration;

use superhue_model::RegionHeat;

use crate::clock::Tick;

/// Readiness of a region for promotion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PromotionReadiness {
    /// Not in its present state.
    Never,
    /// Perhaps, but more samples have to show it.
    Unproven,
    /// At the first look that shows it.
    AtOnce,
    /// Once looks this far apart have shown the same state; always at least two looks.
    AfterQuiet(Duration),
    /// As [`AfterQuiet`](Self::AfterQuiet), for a region that neither is full nor has evidence: only in memory of a process that gave no page of it
    /// back, and within half of the budget.
    WithoutEvidence(Duration),
}

/// Information of a look about the accesses to one region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionLook<'a> {
    /// By the last sample; `None` where accesses are not watched or the region is too new.
    pub(crate) heat: Option<&'a RegionHeat>,
    /// Samples taken so far.
    pub(crate) total: u64,
    /// Samples taken since the last look.
    pub(crate) samples: u64,
    /// The sum of their intervals.
    pub(crate) watched: Duration,
    /// Time since the last look.
    pub(crate) elapsed: Duration,
    /// Base pages present at this look, 1 to 512.
    pub(crate) resident: u16,
    /// True if this look saw one entry map it whole; `None` if that is not known.
    pub(crate) huge: Option<bool>,
    /// Time of the look.
    pub(crate) now: Tick,
}

/// A promotion rule. It decides on the number of resident pages, and on a note that it makes at each look. So regions that it does not want need no
/// history: it cannot matter.
pub(crate) trait Rule {
    /// Notes of the rule about a region, beyond the resident pages.
    type Note: Copy + Debug + Default;

    /// Takes in a look's information about accesses.
    fn absorb(&self, _note: &mut Self::Note, _look: &RegionLook<'_>) {}

    /// Takes in that a look has shown the effect of our split.
    fn was_split(&self, _note: &mut Self::Note, _now: Tick) {}

    /// Returns true if a huge page was read, and held pages of zeroes.
    fn knows_zeroes(&self, _note: &Self::Note) -> bool {
        false
    }

    /// Judges a region that is not huge and has `resident` (1 to 512) pages.
    fn ripeness(&self, resident: u16, note: &Self::Note) -> PromotionReadiness;

    /// Returns the worth of promoting it; if all are worth the same, the cheapest go first.
    fn worth(&self, _growth: u16, _note: &Self::Note) -> PromotionValue {
        PromotionValue::default()
    }

    /// Returns the worth of a huge page whose split would free `pages`; the least goes first. If all are worth the same, the largest charge goes
    /// first.
    fn worth_kept(&self, _pages: u16, _note: &Self::Note) -> PromotionValue {
        PromotionValue::default()
    }

    /// Returns the time until which it may not be promoted, even if it is ripe.
    fn barred_until(&self, _note: &Self::Note) -> Tick {
        Tick::START
    }

    /// Returns true if a huge page of this `age`, to which `charged` pages are owed, may be split as far as the rule decides.
    fn may_split(&self, _note: &Self::Note, _age: Duration, _charged: u16) -> bool {
        false
    }

    /// Returns true if the note has to outlast the look.
    fn keeps(&self, _note: &Self::Note, _now: Tick) -> bool {
        false
    }

    /// Returns the active pages of a region whose accesses crowd on a few pages; `None` for other regions.
    fn crowded(&self, _note: &Self::Note) -> Option<u16> {
        None
    }

    /// Returns true if regions are taken by worth. Then a region that does not fit the budget does not rule out the ones after it.
    fn is_by_worth(&self) -> bool {
        false
    }
}

/// Worth of a promotion, as far as the rule knows it; 0 by default.
///
/// The number is made for heat per byte, and has more digits than precision. So values within a factor of two count as equal, and other criteria
/// (the turn of a process) come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct PromotionValue(pub(crate) u64);

impl PromotionValue {
    /// Returns a number that is equal for values that are about equal.
    const fn magnitude(self) -> u32 {
        match self.0.checked_ilog2() {
            Some(log) => log + 1,
            None => 0,
        }
    }

    /// Returns true if it is at least twice `other`.
    pub(crate) const fn is_twice(self, other: Self) -> bool {
        self.0 > 0 && self.0 / 2 >= other.0
    }
}

/// A region that may be promoted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Candidate {
    /// Index of the owner, in the order of identities.
    pub(crate) owner: u32,
    /// Index of its record, in the order of addresses.
    pub(crate) record: u32,
    /// Time of the last change.
    pub(crate) since: Tick,
    /// Pages it would add.
    pub(crate) growth: u16,
    /// True if it is promoted on evidence, or full.
    pub(crate) is_proven: bool,
    /// Number of failures held against it.
    pub(crate) level: u8,
    /// Worth of the promotion.
    pub(crate) worth: PromotionValue,
    /// Number of doublings of its worth for the time that its process has waited.
    pub(crate) lift: u32,
    /// Time since which its process has waited for the rate limit.
    pub(crate) served: Tick,
}

impl Candidate {
    /// Returns the key of the order: most worth first, which waiting raises, and among those about equal the process that has waited longest; where
    /// no worth is known, cheapest first, then longest quiet. Last by process and address.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        (
            Reverse(self.worth.magnitude() + self.lift),
            self.served,
            Reverse(self.worth),
            (self.growth, self.since, self.owner, self.record),
        )
    }

    /// Returns the same order, but with the fewest failures first: for the probe that finds out whether trouble has passed.
    pub(crate) fn probe_order(&self) -> impl Ord + use<> {
        (self.level, self.order())
    }
}

/// The first few candidates in [`Candidate::order`].
#[derive(Debug)]
pub(crate) struct Shortlist {
    limit: usize,
    offered: usize,
    kept: Vec<Candidate>,
    /// Candidates from this one on are not among the best.
    bar: Option<Candidate>,
}

impl Shortlist {
    /// Makes a list that keeps `limit` candidates.
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            limit,
            offered: 0,
            kept: Vec::new(),
            bar: None,
        }
    }

    /// Takes in one more candidate.
    pub(crate) fn offer(&mut self, candidate: Candidate) {
        self.offered += 1;
        if self.limit == 0 || self.bar.is_some_and(|bar| candidate.order() >= bar.order()) {
            return;
        }
        self.kept.push(candidate);
        if self.kept.len() / 2 >= self.limit {
            let (_, worst, _) = self
                .kept
                .select_nth_unstable_by_key(self.limit - 1, Candidate::order);
            self.bar = Some(*worst);
            self.kept.truncate(self.limit);
        }
    }

    /// Returns the number of candidates offered.
    pub(crate) const fn offered(&self) -> usize {
        self.offered
    }

    /// Returns the best ones, best first.
    pub(crate) fn into_sorted(mut self) -> Vec<Candidate> {
        self.kept.sort_unstable_by_key(Candidate::order);
        self.kept.truncate(self.limit);
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_keeps_what_sorting_everything_would(
            growths in prop::collection::vec(0u16..6, 0..200),
            limit in prop_oneof![0usize..20, Just(usize::MAX)],
        ) {
            let mut all: Vec<Candidate> = (0u32..)
                .zip(growths)
                .map(|(index, growth)| Candidate {
                    owner: index % 3,
                    record: index,
                    since: Tick::START.after_nanos(u64::from(index % 7)),
                    growth,
                    is_proven: true,
                    level: 0,
                    worth: PromotionValue(u64::from(index % 5)),
                    lift: index % 2,
                    served: Tick::START.after_nanos(u64::from(index % 3)),
                })
                .collect();
            let mut shortlist = Shortlist::new(limit);
            all.iter().for_each(|candidate| shortlist.offer(*candidate));
            prop_assert_eq!(shortlist.offered(), all.len());
            all.sort_by_key(Candidate::order);
            all.truncate(limit);
            prop_assert_eq!(shortlist.into_sorted(), all);
        }
    }
}
