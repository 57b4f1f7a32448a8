//! Finding the colors of a pool of pages by group testing.
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

use super::contrast::{Bench, Contrast, Fate};
use super::random::Random;
use super::{DiscoverError, Lines, Probe, Search};
use crate::Page;

/// Ways assumed where nobody says: only a first guess of how finely to divide.
const WAYS: usize = 8;

/// Pages tested in one trial against the sets found.
pub(super) const BATCH: usize = 32;

/// Fresh pages that are tried on the first target.
const FIRST: usize = 256;

/// Pages that must all be evicted by the sets found before these are taken for all there are: a color that
/// 1 page in 64 has goes unseen with probability 3 in 10,000.
const ENOUGH: usize = 512;

/// Attempts on one color that may fail, and targets that may be given up, before the search is.
const FAILURES: usize = 64;

/// How often few pages push where that must be certain. Replacement is seldom true LRU: one page more than there are
/// ways pushes out half the time at first, and nearly always in the end.
pub(super) const STRONG: usize = 6;

/// Rounds of leaving groups away that may have to be done again for one target.
const LOST: usize = 5;

/// A search under way.
pub(super) struct Hunt<'a, P> {
    pub(super) bench: Bench<'a, P>,
    random: Random,
    /// Groups that a set is divided into is a multiple of these.
    pub(super) ways: usize,
    /// All pages, in random order.
    pub(super) pool: Vec<Page>,
    /// How many of `pool` have been looked at.
    seen: usize,
    /// Pages of `pool` that were seen and that no set evicts.
    fresh: Vec<Page>,
    /// One for each color.
    pub(super) sets: Vec<Vec<Page>>,
    /// Fresh pages that the next target is tried with.
    wanted: usize,
    /// Targets given up.
    odd: usize,
    /// How many pages were found to evict each target, ascending.
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
                // A few stragglers among so many pages are errors, not a color.
                break;
            }
            let union = self.union();
            self.bench.strength = 2;
            let known = self.bench.agreed(target, &union) != Fate::Kept;
            self.bench.strength = 1;
            if known {
                continue;
            }
            let fresh = self.fresh.clone();
            if self.bench.agreed(target, &fresh) != Fate::Evicted {
                // Too few others of its color yet. More, or it is a straggler itself.
                if self.wanted > self.pool.len() / 4 {
                    // What is taken for kept and for evicted must be wrong: to be measured again. Trials with ever more
                    // pages would only take ever longer, and never be undisturbed on a busy machine.
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

    /// Whether pages push the target out if they try hard.
    fn evicts_for_certain(&mut self, target: Page, pages: &[Page]) -> bool {
        if self.bench.agreed(target, pages) == Fate::Evicted {
            return true;
        }
        let before = std::mem::replace(&mut self.bench.strength, STRONG);
        let evicted = self.bench.agreed(target, pages) == Fate::Evicted;
        self.bench.strength = before;
        evicted
    }

    /// Everything known to evict.
    pub(super) fn union(&self) -> Vec<Page> {
        self.sets.iter().flatten().copied().collect()
    }

    /// Looks at pages until enough are fresh; how many were looked at.
    fn refill(&mut self) -> usize {
        let union = self.union();
        let begin = self.seen;
        while self.fresh.len() < self.wanted && self.seen < self.pool.len() {
            if self.seen - begin >= ENOUGH && self.fresh.len() * 100 < self.seen - begin {
                break;
            }
            // No more together than would push each other out if there were hardly more colors than are known.
            let together = BATCH.min(2 * self.sets.len() + 4);
            let end = self.pool.len().min(self.seen + together);
            let batch = self.pool.get(self.seen..end).unwrap_or_default().to_vec();
            self.seen = end;
            if union.is_empty() {
                self.fresh.extend(batch);
            } else {
                let kept = self.bench.fates(&batch, &union);
                let kept = batch.iter().zip(kept);
                let fresh = kept.filter(|(_, fate)| *fate != Fate::Evicted);
                self.fresh.extend(fresh.map(|(page, _)| *page));
            }
        }
        self.seen - begin
    }

    /// Finds the color of `target`, which the fresh pages evict; whether that worked.
    fn find(&mut self, target: Page) -> bool {
        let Some(few) = self.reduce(target) else {
            return false;
        };
        // All caches of a color have the same ways. Twice as many pages are those of two colors: too few of the target's
        // color were there to tell them apart.
        // The middle of all so far is what is usual: the least may have been an accident.
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
            known += usize::from(self.bench.fate(member, &union) == Fate::Evicted);
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

    /// Some fresh pages that evict `target`, as few as can be found by leaving groups away.
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
                // Many that are all needed are two colors at least, neither of which evicts.
                return Some(few).filter(|few| few.len() <= 4 * self.ways);
            }
            if rest.len() * 4 > few.len() * 3 {
                // Nearly every group holds pages that are needed.
                groups *= 2;
            }
            few = rest;
        }
        None
    }

    /// What remains when each of so many groups is left away, one after the other, unless the target then stays.
    fn leave_away(&mut self, target: Page, pages: &[Page], groups: usize) -> Option<Vec<Page>> {
        let size = pages.len().div_ceil(groups.max(1)).max(1);
        let mut few = pages.to_vec();
        let mut at = 0;
        while at < few.len() {
            let end = few.len().min(at + size);
            let rest = [few.get(..at)?, few.get(end..)?].concat();
            // The fewer push, the harder they must: else the last pages of the target's color seem not to be enough, and
            // those of another cannot be told from them.
            self.bench.strength = if rest.len() <= 8 * self.ways {
                STRONG
            } else {
                1
            };
            // A line may also be pushed out by what else the machine does: once is no evidence.
            if (0..2).all(|_| self.bench.fate(target, &rest) == Fate::Evicted) {
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
                .filter_map(|(page, fate)| (fate == Fate::Evicted).then_some(*page))
                .collect();
            for page in evicted {
                if self.bench.fate(page, few) == Fate::Evicted {
                    members.push(page);
                }
            }
        }
        members
    }

    /// Those members that the other half evicts, whichever the halves are.
    ///
    /// Two colors that the target's search could not part do not survive this: half of them is too few of either.
    fn purify(&mut self, mut members: Vec<Page>) -> Vec<Page> {
        for _ in 0..2 {
            self.random.shuffle(&mut members);
            let (left, right) = members.split_at(members.len() / 2);
            let mut pure = Vec::with_capacity(members.len());
            for (asked, pushing) in [(left, right), (right, left)] {
                for &member in asked {
                    if self.bench.agreed(member, pushing) == Fate::Evicted {
                        pure.push(member);
                    }
                }
            }
            members = pure;
        }
        members
    }

    /// Fresh pages no longer are once a set evicts them.
    ///
    /// They are of few colors at the end, and then push each other out: who seems evicted is asked again, alone.
    fn drop_fresh_of(&mut self, set: &[Page]) {
        let fresh = std::mem::take(&mut self.fresh);
        for batch in fresh.chunks(BATCH / 2) {
            let fates: Vec<Fate> = self.bench.fates(batch, set).collect();
            for (&page, fate) in batch.iter().zip(fates) {
                if fate != Fate::Evicted || self.bench.fate(page, set) != Fate::Evicted {
                    self.fresh.push(page);
                }
            }
        }
    }
}
