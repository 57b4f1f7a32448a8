//! Finding the colors of a pool of pages by group testing.
//!
//! ```text
//!   fresh     pages that no set found so far evicts: of colors not yet known
//!   target    one of them; the other fresh pages evict it together
//!   reduce    leave groups of them away as long as the rest still does: some ways + 1 remain, nearly all of its color
//!   collect   fresh pages that these evict: the eviction set proper, each page tested against the others
//! ```
//!
//! until hundreds of pages are all evicted by the sets found. A group that another set evicts is the same color again,
//! and dropped. The idea of leaving ways + 1 groups away in turn is Vila, Köpf and Morales' ("Theory and Practice of
//! Finding Eviction Sets", 2019).

use superhue_model::Color;

use super::contrast::{Bench, Contrast, Verdict};
use super::curve;
use super::random::Random;
use super::{DiscoverError, Lines, Palette, Probe, Search};
use crate::Page;

/// Ways assumed where nobody says: only a first guess of how finely to divide.
const WAYS: usize = 8;

/// Pages tested in one trial against the sets found.
const BATCH: usize = 32;

/// Fresh pages that are tried on the first target.
const FIRST: usize = 256;

/// Pages that must all be evicted by the sets found before these are taken for all there are: a color that
/// 1 page in 64 has goes unseen with probability 3 in 10,000.
const ENOUGH: usize = 512;

/// Attempts on one color that may fail, and targets that may be given up, before the search is.
const FAILURES: usize = 64;

/// Rounds of the final test of all sets.
const FINAL_ROUNDS: usize = 3;

/// Members of each color that are gathered, as a multiple of the ways: what sizes of sets are tried on.
const MEMBERS: usize = 3;

/// See [`Palette::discover`].
pub(super) fn discover<P: Probe>(
    probe: &mut P,
    pool: &[Page],
    search: &Search,
) -> Result<Palette, DiscoverError> {
    let mut random = Random::new(pool.first().map_or(0, |page| page.address() as u64));
    let contrast = Contrast::measure(probe, pool, &mut random)?;
    let mut hunt = Hunt::new(probe, contrast, pool, search, random);
    hunt.run()?;
    hunt.finish()
}

/// A search under way.
struct Hunt<'a, P> {
    bench: Bench<'a, P>,
    random: Random,
    /// Groups that a set is divided into is a multiple of these.
    ways: usize,
    /// All pages, in random order.
    pool: Vec<Page>,
    /// How many of `pool` have been looked at.
    seen: usize,
    /// Pages of `pool` that were seen and that no set evicts.
    fresh: Vec<Page>,
    /// One for each color.
    sets: Vec<Vec<Page>>,
    /// Fresh pages that the next target is tried with.
    wanted: usize,
    /// Targets given up.
    odd: usize,
}

impl<'a, P: Probe> Hunt<'a, P> {
    fn new(
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
        }
    }

    fn incomplete(&self, reason: &str) -> DiscoverError {
        DiscoverError::Incomplete {
            found: self.sets.len(),
            pages: self.pool.len(),
            reason: reason.to_owned(),
        }
    }

    /// Finds set after set.
    fn run(&mut self) -> Result<(), DiscoverError> {
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
            if self.bench.agreed(target, &self.union()) != Verdict::Kept {
                continue;
            }
            if self.bench.agreed(target, &self.fresh) != Verdict::Evicted {
                // Too few others of its color yet. More, or it is a straggler itself.
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
            return Err(self.incomplete("too many pages are evicted by no set: more pages are needed"));
        }
        Ok(())
    }

    /// Everything known to evict.
    fn union(&self) -> Vec<Page> {
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
            let end = self.pool.len().min(self.seen + BATCH);
            let batch = self.pool.get(self.seen..end).unwrap_or_default().to_vec();
            self.seen = end;
            if union.is_empty() {
                self.fresh.extend(batch);
            } else {
                let kept = self.bench.verdicts(&batch, &union);
                let kept = batch.iter().zip(kept);
                let fresh = kept.filter(|(_, verdict)| *verdict != Verdict::Evicted);
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
        let members = self.collect(target, &few);
        let members = self.purify(members);
        if members.len() <= few.len().min(self.ways) {
            return false;
        }
        self.fresh.retain(|page| !members.contains(page));
        let union = self.union();
        let mut known = 0;
        for &member in members.iter().take(5) {
            known += usize::from(self.bench.verdict(member, &union) == Verdict::Evicted);
        }
        if known >= 3 {
            // The same color again.
            return true;
        }
        self.drop_fresh_of(&members);
        self.sets.push(members);
        // The next search begins with no more pages than this one needed: there is one color less among them.
        self.wanted = (self.wanted * 15 / 16).max(4 * self.ways);
        true
    }

    /// Some fresh pages that evict `target`, as few as can be found by leaving groups away.
    fn reduce(&mut self, target: Page) -> Option<Vec<Page>> {
        let mut few = self.fresh.clone();
        self.random.shuffle(&mut few);
        loop {
            let groups = few.len().min(2 * self.ways);
            let before = few.len();
            let size = before.div_ceil(groups.max(1)).max(1);
            let mut at = 0;
            while at < few.len() {
                let end = few.len().min(at + size);
                let (head, tail) = (few.get(..at)?, few.get(end..)?);
                let rest = [head, tail].concat();
                if self.bench.verdict(target, &rest) == Verdict::Evicted {
                    few = rest;
                } else {
                    at = end;
                }
            }
            if few.len() == before && size == 1 {
                break;
            }
            if few.len() == before && before > 8 * self.ways {
                // Coarse groups all matter: nothing will come of it.
                return None;
            }
            if few.len() == before {
                // Once more by single pages.
                let mut at = 0;
                while at < few.len() {
                    let mut rest = few.clone();
                    rest.remove(at);
                    if self.bench.verdict(target, &rest) == Verdict::Evicted {
                        few = rest;
                    } else {
                        at += 1;
                    }
                }
                break;
            }
        }
        (self.bench.agreed(target, &few) == Verdict::Evicted).then_some(few)
    }

    /// Pages of the target's color: those that `few` evict, from the fresh ones.
    fn collect(&mut self, target: Page, few: &[Page]) -> Vec<Page> {
        let wanted = (few.len() * 2).max(self.ways * 2);
        let mut members = vec![target];
        let mut candidates: Vec<Page> = self.fresh.clone();
        candidates.retain(|page| !few.contains(page));
        // Those pages of the set itself come last: they are tested by what was found besides them.
        let unseen = self.pool.get(self.seen..).unwrap_or_default();
        candidates.extend(unseen.iter().copied().take(128 * self.ways));
        for batch in candidates.chunks(BATCH) {
            if members.len() >= wanted {
                break;
            }
            let verdicts = self.bench.verdicts(batch, few);
            let evicted = batch.iter().zip(verdicts);
            let evicted: Vec<Page> = evicted
                .filter_map(|(page, verdict)| (verdict == Verdict::Evicted).then_some(*page))
                .collect();
            for page in evicted {
                if self.bench.verdict(page, few) == Verdict::Evicted {
                    members.push(page);
                }
            }
        }
        members
    }

    /// Those members that the others evict.
    fn purify(&mut self, members: Vec<Page>) -> Vec<Page> {
        let mut pure = Vec::new();
        for &member in &members {
            let others: Vec<Page> = members.iter().filter(|page| **page != member).copied().collect();
            if self.bench.agreed(member, &others) == Verdict::Evicted {
                pure.push(member);
            }
        }
        pure
    }

    /// Fresh pages no longer are once a set evicts them.
    fn drop_fresh_of(&mut self, set: &[Page]) {
        let fresh = std::mem::take(&mut self.fresh);
        for batch in fresh.chunks(BATCH) {
            let verdicts = self.bench.verdicts(batch, set);
            let kept = batch.iter().zip(verdicts);
            let kept = kept.filter(|(_, verdict)| *verdict != Verdict::Evicted);
            self.fresh.extend(kept.map(|(page, _)| *page));
        }
    }

    /// Measures the ways, gives every color a set of the size that is certain to evict, and tests all of them.
    fn finish(mut self) -> Result<Palette, DiscoverError> {
        let contrast = self.bench.contrast;
        let draft = Palette::new(self.sets.clone(), Some(self.ways as u32), contrast);
        let gathered = self.gather(&draft);
        let ways = curve::ways(self.bench.probe, &gathered);
        let size = self.certain_size(&gathered);
        let sets = gathered.into_iter().map(|mut members| {
            members.truncate(size);
            members
        });
        let palette = Palette::new(sets.collect(), ways, contrast);
        let test = palette.self_test(self.bench.probe, FINAL_ROUNDS);
        if test.passed() {
            return Ok(palette);
        }
        self.sets = palette.sets().to_vec();
        Err(self.incomplete(&format!(
            "in the test at the end {} of {} pages stayed though their own color pushed, and {} of {} went though another did",
            test.own_kept, test.own, test.foreign_evicted, test.foreign
        )))
    }

    /// Members of every color, first those of its set.
    fn gather(&mut self, draft: &Palette) -> Vec<Vec<Page>> {
        let wanted = MEMBERS * self.ways.max(self.sets.iter().map(Vec::len).min().unwrap_or(0) / 2);
        let mut gathered = draft.sets().to_vec();
        let chunk = (draft.colors() * self.ways * 2).max(BATCH);
        for pages in self.pool.chunks(chunk) {
            if gathered.iter().all(|members| members.len() >= wanted) {
                break;
            }
            let mut colors = vec![None; pages.len()];
            draft.classify(self.bench.probe, pages, &mut colors);
            for (&page, color) in pages.iter().zip(colors) {
                let Some(Color(color)) = color else { continue };
                if let Some(members) = gathered.get_mut(usize::from(color))
                    && members.len() < wanted
                    && !members.contains(&page)
                {
                    members.push(page);
                }
            }
        }
        gathered
    }

    /// The fewest pages of a color that evicted every page tried, and a quarter more.
    fn certain_size(&mut self, gathered: &[Vec<Page>]) -> usize {
        let most = gathered.iter().map(Vec::len).min().unwrap_or(0);
        let certain = |hunt: &mut Self, size: usize| {
            gathered.iter().all(|members| {
                let Some((&target, others)) = members.split_last() else {
                    return false;
                };
                let set = others.get(..size).unwrap_or(others);
                (0..2).all(|_| hunt.bench.verdict(target, set) == Verdict::Evicted)
            })
        };
        let mut size = 2;
        while size + 1 < most && !certain(self, size) {
            size += 1;
        }
        (size + size.div_ceil(4)).min(most)
    }
}
