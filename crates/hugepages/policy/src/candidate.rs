//! Which regions may be promoted, and the best of them.
//!
//! A [`Rule`] is the one point in which the promoting policies differ: which region is ripe, when, and before which others. What it
//! lets pass is a [`Candidate`]; a [`Shortlist`] holds the best of many of them, without keeping them all.
//! On the first look at a large machine every region may be a candidate, of which the rate limit
//! lets a few hundred pass. So no more than twice those are kept at any time, and once the list has
//! been cut, most others fail a single comparison with the worst one kept.

use std::cmp::Reverse;
use std::fmt::Debug;
use std::time::Duration;

use superhue_model::RegionHeat;

use crate::clock::Tick;

/// When a region with so many resident pages may be promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ripeness {
    /// Not as it is.
    Never,
    /// Perhaps, but more samples have to show it.
    Unproven,
    /// At the first look that shows it.
    AtOnce,
    /// Once looks this far apart have shown the same; always at least two looks.
    AfterQuiet(Duration),
}

/// What a look says about the accesses to one region.
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
    /// Whether this look saw one entry map it whole, if that is known.
    pub(crate) huge: Option<bool>,
    /// When the look was taken.
    pub(crate) now: Tick,
}

/// A promotion rule. It decides on the number of resident pages and on a note that it makes at each
/// look, so that regions it does not want need not be remembered: their history cannot matter.
pub(crate) trait Rule {
    /// What it notes about a region beyond what is resident.
    type Note: Copy + Debug + Default;

    /// Takes in what a look says about accesses.
    fn absorb(&self, _note: &mut Self::Note, _look: &RegionLook<'_>) {}

    /// A look has shown that our split took effect.
    fn was_split(&self, _note: &mut Self::Note, _now: Tick) {}

    /// Judges a region that is not huge and has `resident` (1 to 512) pages.
    fn ripeness(&self, resident: u16, note: &Self::Note) -> Ripeness;

    /// How much promoting it is worth; with all the same, the cheapest go first.
    fn worth(&self, _growth: u16, _note: &Self::Note) -> Worth {
        Worth::default()
    }

    /// What a huge page is worth that would give `pages` back, the least first; with all the same, the dearest give way first.
    fn worth_kept(&self, _pages: u16, _note: &Self::Note) -> Worth {
        Worth::default()
    }

    /// Until when it may not be promoted, however ripe it is.
    fn barred_until(&self, _note: &Self::Note) -> Tick {
        Tick::START
    }

    /// Whether a superpage that has been one for `age`, and to which `charged` pages are owed, may be
    /// split, as far as it alone decides.
    fn may_split(&self, _note: &Self::Note, _age: Duration, _charged: u16) -> bool {
        false
    }

    /// Whether the note has to outlast the look.
    fn keeps(&self, _note: &Self::Note, _now: Tick) -> bool {
        false
    }

    /// The pages of a region whose accesses crowd on a few pages.
    fn crowded(&self, _note: &Self::Note) -> Option<u16> {
        None
    }

    /// Whether regions are taken by worth, so that one that does not fit the budget says nothing
    /// about those after it.
    fn is_by_worth(&self) -> bool {
        false
    }
}

/// How much a promotion is worth, as far as the rule can tell; nothing by default.
///
/// Made for heat per byte: a finer number than anybody should believe, so that what lies within a
/// factor of two counts as equal and other things (whose turn it is) come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Worth(pub(crate) u64);

impl Worth {
    /// Equal for those that are about equal.
    const fn magnitude(self) -> u32 {
        match self.0.checked_ilog2() {
            Some(log) => log + 1,
            None => 0,
        }
    }

    /// Whether it is at least twice `other`.
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
    /// Last change.
    pub(crate) since: Tick,
    /// Pages it would add.
    pub(crate) growth: u16,
    /// Failures held against it.
    pub(crate) level: u8,
    /// What it is worth.
    pub(crate) worth: Worth,
    /// By how many doublings of its worth the waiting of its process moves it up.
    pub(crate) lift: u32,
    /// Since when its process has waited for the rate limit.
    pub(crate) served: Tick,
}

impl Candidate {
    /// Most worth first, which waiting adds to, and among those about equal the process that has
    /// waited longest;
    /// where nothing is known of worth, cheapest first, then longest quiet. At last by process and
    /// address.
    pub(crate) fn order(&self) -> impl Ord + use<> {
        (
            Reverse(self.worth.magnitude() + self.lift),
            self.served,
            Reverse(self.worth),
            (self.growth, self.since, self.owner, self.record),
        )
    }

    /// The same, but those without failures before all others: who should try whether trouble has
    /// passed.
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
    /// Those from here on need not apply.
    bar: Option<Candidate>,
}

impl Shortlist {
    /// Will keep `limit` candidates.
    pub(crate) const fn new(limit: usize) -> Self {
        Self {
            limit,
            offered: 0,
            kept: Vec::new(),
            bar: None,
        }
    }

    /// Takes in one more.
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

    /// How many were offered.
    pub(crate) const fn offered(&self) -> usize {
        self.offered
    }

    /// The best, best first.
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
                    level: 0,
                    worth: Worth(u64::from(index % 5)),
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
