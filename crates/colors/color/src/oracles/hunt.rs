//! Search for the colors of a pool of pages by group testing.
//!
//! ```text
//!   fresh     pages that no set found so far evicts: of colors not yet known
//!   target    one of them; the other fresh pages evict it together
//!   reduce    leave groups of them away as long as the rest still does: some ways + 1 remain, nearly all of its color
//!   collect   fresh pages, and pages not seen yet, that these evict
//!   purify    of them those that the others evict, whichever half of the others: the eviction set
//! ```
//!
//! until hundreds of pages are all evicted by the sets found. A group that another set evicts is the same color again,
//! and dropped. The idea of leaving ways + 1 groups away in turn is Vila, Köpf and Morales' ("Theory and Practice of
//! Finding Eviction Sets", 2019).

use superhue_model::Random;

use super::contrast::{Bench, Contrast, EvictionOutcome};
use super::{DiscoverError, Lines, Probe, Search};
use crate::Page;

/// Ways assumed if the machine reports none: only a first guess of how finely to divide.
const WAYS: usize = 8;

/// Pages tested in one trial against the sets found.
pub(super) const BATCH: usize = 32;

/// Fresh pages that are tried on the first target.
const FIRST: usize = 256;

/// Number of pages that the known sets must all evict before the search counts as complete: a color that 1 page in 64
/// has goes unseen with probability 3 in 10,000.
const ENOUGH: usize = 512;

/// Failed attempts on one color, and abandoned targets, after which the search fails.
const FAILURES: usize = 64;

/// Passes of few pages in a trial that must evict. Replacement is seldom true LRU: one page more than there are ways
/// evicts in half of the trials with one pass, and nearly always with this many.
pub(super) const STRONG: usize = 6;

/// Repeated rounds of leaving groups out that one target may cost.
const LOST: usize = 5;

/// A search under way.
pub(super) struct Hunt<'a, P> {
    pub(super) bench: Bench<'a, P>,
    random: Random,
    /// The number of groups that a set is divided into is a multiple of this.
    pub(super) ways: usize,
    /// All pages, in random order.
    pub(super) pool: Vec<Page>,
    /// Number of pages of `pool` that have been tested.
    seen: usize,
    /// Pages of `pool` that were seen and that no set evicts.
    fresh: Vec<Page>,
    /// One for each color.
    pub(super) sets: Vec<Vec<Page>>,
    /// Number of fresh pages that the next target is tried with.
    wanted: usize,
    /// Number of abandoned targets.
    odd: usize,
    /// Number of pages that were found to evict each target, ascending.
    sizes: Vec<usize>,
}

impl<'a, P: Probe> Hunt<'a, P> {
    pub(super) fn new(
        probe: &'a mut P,
        contrast: Contrast,
        pool: &[Page],
        search: &Search,
        mut random: Random,
    ) -> Self {
        let mut pool = pool.to_vec();
        random.shuffle(&mut pool);
        Self {
            bench: Bench::new(probe, contrast, Lines::group(0)),
            random,
            ways: search.ways.map_or(WAYS, |ways| ways.clamp(2, 64) as usize),
            pool,
            seen: 0,
            fresh: Vec::new(),
            sets: Vec::new(),
            wanted: FIRST,
            odd: 0,
            sizes: Vec::new(),
        }
    }

    pub(super) fn incomplete(&self, reason: &str) -> DiscoverError {
        DiscoverError::Incomplete {
            found: self.sets.len(),
            pages: self.pool.len(),
            reason: reason.to_owned(),
        }
    }

    /// Finds set after set.
    pub(super) fn run(&mut self) -> Result<(), DiscoverError> {
        let mut failures = 0;
        loop {
            let scanned = self.refill();
            let Some(target) = self.fresh.pop() else {
                break;
            };
            if scanned >= ENOUGH && self.fresh.len() * 100 < scanned {
                // A few stragglers among `scanned` pages are errors, not a color.
                break;
            }
            let union = self.union();
            self.bench.strength = 2;
            let known = self.bench.agreed(target, &union) != EvictionOutcome::Kept;
            self.bench.strength = 1;
            if known {
                continue;
            }
            let fresh = self.fresh.clone();
            if self.bench.agreed(target, &fresh) != EvictionOutcome::Evicted {
                // Too few other pages of its color so far. Take more; or the target is a straggler itself.
                if self.wanted > self.pool.len() / 4 {
                    // The thresholds for kept and evicted must be wrong: measure them again. Trials with ever more
                    // pages would only take ever longer, and on a busy machine all would be disturbed.
                    return Err(self.incomplete("most pages do not evict the others"));
                }
                if self.seen < self.pool.len() {
                    self.wanted = self.wanted * 2 + BATCH;
                    self.fresh.insert(0, target);
                } else {
                    self.odd += 1;
                }
                continue;
            }
            if self.find(target) {
                continue;
            }
            failures += 1;
            self.fresh.insert(0, target);
            if failures > FAILURES + self.sets.len() {
                return Err(self.incomplete("pages evict each other today and not tomorrow"));
            }
        }
        if self.sets.is_empty() {
            return Err(self.incomplete("no page is evicted by the others: more pages are needed"));
        }
        if self.odd * 50 > self.pool.len() {
            return Err(
                self.incomplete("too many pages are evicted by no set: more pages are needed")
            );
        }
        Ok(())
    }

    /// Returns true if `pages` evict the target, with more passes if one is not enough.
    fn evicts_for_certain(&mut self, target: Page, pages: &[Page]) -> bool {
        if self.bench.agreed(target, pages) == EvictionOutcome::Evicted {
            return true;
        }
        let before = std::mem::replace(&mut self.bench.strength, STRONG);
        let evicted = self.bench.agreed(target, pages) == EvictionOutcome::Evicted;
        self.bench.strength = before;
        evicted
    }

    /// Returns the pages of all known sets.
    pub(super) fn union(&self) -> Vec<Page> {
        self.sets.iter().flatten().copied().collect()
    }

    /// Tests pages of the pool until enough are fresh; returns the number tested.
    fn refill(&mut self) -> usize {
        let union = self.union();
        let begin = self.seen;
        while self.fresh.len() < self.wanted && self.seen < self.pool.len() {
            if self.seen - begin >= ENOUGH && self.fresh.len() * 100 < self.seen - begin {
                break;
            }
            // At most as many together as would not evict each other if there were hardly more colors than the known ones.
            let together = BATCH.min(2 * self.sets.len() + 4);
            let end = self.pool.len().min(self.seen + together);
            let batch = self.pool.get(self.seen..end).unwrap_or_default().to_vec();
            self.seen = end;
            if union.is_empty() {
                self.fresh.extend(batch);
            } else {
                let kept = self.bench.fates(&batch, &union);
                let kept = batch.iter().zip(kept);
                let fresh = kept.filter(|(_, fate)| *fate != EvictionOutcome::Evicted);
                self.fresh.extend(fresh.map(|(page, _)| *page));
            }
        }
        self.seen - begin
    }

    /// Finds the color of `target`, which the fresh pages evict; returns true if that worked.
    fn find(&mut self, target: Page) -> bool {
        let Some(few) = self.reduce(target) else {
            return false;
        };
        // All caches of a color have the same ways. Twice as many pages mean two colors: too few of the target's color
        // were among the pages to separate them. The median of all sizes so far is the usual size: the least may have
        // been an accident.
        self.sizes.push(few.len());
        self.sizes.sort_unstable();
        let usual = self.sizes.get(self.sizes.len() / 2).copied().unwrap_or(0);
        if few.len() > usual.saturating_mul(3) / 2 {
            self.wanted += BATCH;
            return false;
        }
        self.bench.strength = STRONG;
        let members = self.collect(target, &few);
        let members = self.purify(members);
        self.bench.strength = 1;
        if members.len() <= few.len().min(self.ways) {
            return false;
        }
        self.fresh.retain(|page| !members.contains(page));
        let union = self.union();
        let mut known = 0;
        for &member in members.iter().take(5) {
            known += usize::from(self.bench.fate(member, &union) == EvictionOutcome::Evicted);
        }
        if known >= 3 {
            return true;
        }
        self.drop_fresh_of(&members);
        self.sets.push(members);
        // The next search begins with no more pages than this one needed: there is one color less among them.
        self.wanted = (self.wanted * 15 / 16).max(4 * self.ways);
        true
    }

    /// Returns some fresh pages that evict `target`, as few as leaving groups out can find.
    ///
    /// Every step may be wrong: each round is checked, and done again in another order if it lost something.
    fn reduce(&mut self, target: Page) -> Option<Vec<Page>> {
        let mut few = self.fresh.clone();
        let mut groups = 2 * self.ways;
        let mut lost = 0;
        while lost < LOST {
            self.random.shuffle(&mut few);
            let rest = self.leave_away(target, &few, groups)?;
            if !self.evicts_for_certain(target, &rest) {
                lost += 1;
                continue;
            }
            if rest.len() == few.len() && groups >= few.len() {
                // Many pages that are all needed are of two colors at least, neither of which evicts alone.
                return Some(few).filter(|few| few.len() <= 4 * self.ways);
            }
            if rest.len() * 4 > few.len() * 3 {
                // Nearly every group holds pages that are needed. Beside other load, rounds of single pages may each lose one.
                groups = (groups * 2).min(few.len());
            }
            few = rest;
        }
        None
    }

    /// Leaves out each of `groups` groups, one after the other, unless the target then stays; returns the remaining pages.
    fn leave_away(&mut self, target: Page, pages: &[Page], groups: usize) -> Option<Vec<Page>> {
        let size = pages.len().div_ceil(groups.max(1)).max(1);
        let mut few = pages.to_vec();
        let mut at = 0;
        while at < few.len() {
            let end = few.len().min(at + size);
            let rest = [few.get(..at)?, few.get(end..)?].concat();
            // The fewer pages there are, the more passes they need: else the last pages of the target's color seem too
            // few, and look like pages of another color.
            self.bench.strength = if rest.len() <= 8 * self.ways {
                STRONG
            } else {
                1
            };
            // Other activity on the machine may also evict a line: once is no evidence.
            if (0..2).all(|_| self.bench.fate(target, &rest) == EvictionOutcome::Evicted) {
                few = rest;
            } else {
                at = end;
            }
        }
        self.bench.strength = 1;
        Some(few)
    }

    /// Pages of the target's color: those that `few` evict, from the fresh ones.
    fn collect(&mut self, target: Page, few: &[Page]) -> Vec<Page> {
        let wanted = (3 * few.len()).max(4 * self.ways);
        let mut members = vec![target];
        let mut candidates: Vec<Page> = self.fresh.clone();
        candidates.retain(|page| !few.contains(page));
        let unseen = self.pool.get(self.seen..).unwrap_or_default();
        candidates.extend(unseen.iter().copied().take(256 * self.ways));
        for batch in candidates.chunks(BATCH) {
            if members.len() >= wanted {
                break;
            }
            let fates = self.bench.fates(batch, few);
            let evicted = batch.iter().zip(fates);
            let evicted: Vec<Page> = evicted
                .filter_map(|(page, fate)| (fate == EvictionOutcome::Evicted).then_some(*page))
                .collect();
            for page in evicted {
                if self.bench.fate(page, few) == EvictionOutcome::Evicted {
                    members.push(page);
                }
            }
        }
        members
    }

    /// Returns those members that the other half evicts, for two random divisions into halves.
    ///
    /// Two colors that the target's search could not separate do not survive this: half of them is too few of either.
    fn purify(&mut self, mut members: Vec<Page>) -> Vec<Page> {
        for _ in 0..2 {
            self.random.shuffle(&mut members);
            let (left, right) = members.split_at(members.len() / 2);
            let mut pure = Vec::with_capacity(members.len());
            for (asked, pushing) in [(left, right), (right, left)] {
                for &member in asked {
                    if self.bench.agreed(member, pushing) == EvictionOutcome::Evicted {
                        pure.push(member);
                    }
                }
            }
            members = pure;
        }
        members
    }

    /// Removes the pages from the fresh ones that a set evicts.
    ///
    /// At the end they are of few colors, and then evict each other: a page that seems evicted is tested again, alone.
    fn drop_fresh_of(&mut self, set: &[Page]) {
        let fresh = std::mem::take(&mut self.fresh);
        for batch in fresh.chunks(BATCH / 2) {
            let fates: Vec<EvictionOutcome> = self.bench.fates(batch, set).collect();
            for (&page, fate) in batch.iter().zip(fates) {
                if fate != EvictionOutcome::Evicted
                    || self.bench.fate(page, set) != EvictionOutcome::Evicted
                {
                    self.fresh.push(page);
                }
            }
        }
    }
}
