//! From a pool of pages to a palette: a hunt for the colors, then sets of the right size, then a test.

use superhue_model::{Color, Random};

use super::contrast::{Contrast, EvictionOutcome};
use super::curve;
use super::hunt::{BATCH, Hunt, STRONG};
use super::{DiscoverError, Palette, Probe, Search};
use crate::Page;

/// Searches after which the best result so far is taken.
const ATTEMPTS: usize = 3;

/// Pages for each color in the test for a color with more than its share.
const SHARE: usize = 128;

/// Rounds of the final test of all sets.
const FINAL_ROUNDS: usize = 3;

/// Members of each color that are gathered, as a multiple of the ways: the sizes of sets are tried on these.
const MEMBERS: usize = 3;

/// See [`Palette::discover`].
///
/// A search restarts if it ends without all colors, with fewer than the machine reports, or with two colors that look
/// like one: the disturbance may have ended. See [`Choice::add`] for the result that counts.
pub(super) fn discover<P: Probe>(
    probe: &mut P,
    pool: &[Page],
    search: &Search,
) -> Result<Palette, DiscoverError> {
    let seed = pool.first().map_or(0, |page| page.address() as u64);
    let mut random = Random::new(seed.wrapping_add(pool.len() as u64));
    let mut choice = Choice::new(search.colors, pool.len());
    for _ in 0..ATTEMPTS {
        let found = attempt(probe, pool, search, &mut random);
        let plausible = found
            .as_ref()
            .is_ok_and(|palette| is_plausible(probe, palette, pool));
        if choice.add(found, plausible) {
            break;
        }
    }
    choice.best
}

/// Choice among the results of several searches.
pub(super) struct Choice {
    /// Result with the most colors so far; an error as long as none is to be trusted.
    pub(super) best: Result<Palette, DiscoverError>,
    /// Number of colors that the machine reports, 0 if it reports none.
    said: usize,
    /// Numbers of colors of the palettes that were not plausible.
    doubtful: Vec<usize>,
    /// Pages that were searched.
    pages: usize,
}

impl Choice {
    /// Begins a choice for a machine that reports `said` colors.
    pub(super) fn new(said: Option<u32>, pages: usize) -> Self {
        let best = Err(DiscoverError::Incomplete {
            found: 0,
            pages,
            reason: "nothing was tried".to_owned(),
        });
        Self {
            best,
            said: said.map_or(0, |colors| colors as usize),
            doubtful: Vec::new(),
            pages,
        }
    }

    /// Adds the result of a search; returns true if no other search is needed. A palette that is not plausible counts only if another search
    /// found the same number of colors: a disturbance hardly misleads two searches in the same way.
    pub(super) fn add(&mut self, found: Result<Palette, DiscoverError>, plausible: bool) -> bool {
        let colors = found.as_ref().map_or(0, Palette::colors);
        let doubted = found.is_ok() && !plausible;
        let found = if doubted && !self.doubtful.contains(&colors) {
            self.doubtful.push(colors);
            Err(DiscoverError::Incomplete {
                found: colors,
                pages: self.pages,
                reason: "too few pages have one of these colors, or one color has many times its share of them".to_owned(),
            })
        } else {
            found
        };
        let better = match (&found, &self.best) {
            (Ok(new), Ok(old)) => new.colors() > old.colors(),
            (new, old) => new.is_ok() || old.is_err(),
        };
        if better {
            self.best = found;
        }
        plausible && colors >= self.said
    }
}

/// Returns true if nearly all pages have a color, and none has many times its share of them.
///
/// A set of two colors passes the test at the end if it has enough pages of both; but then twice as many pages have its
/// color. The kernel takes the pages from nearly random places, and six standard deviations are beyond chance.
pub(super) fn is_plausible<P: Probe>(probe: &mut P, palette: &Palette, pool: &[Page]) -> bool {
    // A page of a set cannot be pushed out by its own set: it is read together with that set.
    let mut members: Vec<Page> = palette.sets().iter().flatten().copied().collect();
    members.sort_unstable();
    let others = pool
        .iter()
        .filter(|page| members.binary_search(page).is_err());
    let pages: Vec<Page> = others.take(SHARE * palette.colors()).copied().collect();
    let mut colors = vec![None; pages.len()];
    palette.classify(probe, &pages, &mut colors);
    let mut counts = vec![0_usize; palette.colors()];
    for color in colors.into_iter().flatten() {
        if let Some(count) = counts.get_mut(usize::from(color.0)) {
            *count += 1;
        }
    }
    let known: usize = counts.iter().sum();
    let share = known / counts.len().max(1);
    let most = counts.iter().max().copied().unwrap_or(0);
    known * 100 >= pages.len() * 95 && most <= share + 6 * share.isqrt()
}

/// One search from the start.
fn attempt<P: Probe>(
    probe: &mut P,
    pool: &[Page],
    search: &Search,
    random: &mut Random,
) -> Result<Palette, DiscoverError> {
    let contrast = Contrast::measure(probe, pool, random)?;
    let random = Random::new(random.next_bits());
    let mut hunt = Hunt::new(probe, contrast, pool, search, random);
    hunt.run()?;
    hunt.finish()
}

impl<P: Probe> Hunt<'_, P> {
    /// Measures the ways, gives every color a set of the size that certainly evicts, and tests all sets.
    fn finish(mut self) -> Result<Palette, DiscoverError> {
        let contrast = self.bench.contrast;
        let draft = Palette::new(self.sets.clone(), Some(self.ways as u32), STRONG, contrast);
        let gathered = self.gather(&draft);
        let ways = curve::ways(self.bench.probe, &gathered);
        let (size, strength) = self.certain_push(&gathered);
        let mut reason = String::new();
        for more in [size.div_ceil(4), size.div_ceil(2), size] {
            let sets = gathered.iter().map(|members| {
                let set = members.get(..size + more);
                set.unwrap_or(members).to_vec()
            });
            let mut palette = Palette::new(sets.collect(), ways, strength, contrast);
            palette.calibrate(self.bench.probe);
            let test = palette.self_test(self.bench.probe, FINAL_ROUNDS);
            if test.passed() {
                return Ok(palette);
            }
            reason = format!(
                "in the test at the end {} of {} pages stayed though their own color pushed, and {} of {} went though another did",
                test.own_kept, test.own, test.foreign_evicted, test.foreign
            );
        }
        Err(self.incomplete(&reason))
    }

    /// Finds new members for every color: pages that the known sets classify, and that are in none of them. So a page
    /// that entered a set by mistake is in none of the new ones.
    fn gather(&mut self, draft: &Palette) -> Vec<Vec<Page>> {
        let least = draft.sets().iter().map(Vec::len).min().unwrap_or(0);
        let wanted = MEMBERS * self.ways.max(least / 2);
        let mut gathered = vec![Vec::new(); draft.colors()];
        let mut used = self.union();
        used.sort_unstable();
        let chunk = (draft.colors() * self.ways * 2).max(BATCH);
        let mut others = self.pool.clone();
        others.retain(|page| used.binary_search(page).is_err());
        for pages in others.chunks(chunk) {
            if gathered.iter().all(|members| members.len() >= wanted) {
                break;
            }
            let mut colors = vec![None; pages.len()];
            draft.classify(self.bench.probe, pages, &mut colors);
            for (&page, color) in pages.iter().zip(colors) {
                let Some(Color(color)) = color else { continue };
                if let Some(members) = gathered.get_mut(usize::from(color))
                    && members.len() < wanted
                {
                    members.push(page);
                }
            }
        }
        for (members, set) in gathered.iter_mut().zip(draft.sets()) {
            if members.len() < set.len() {
                // A small pool: the first members have to do.
                members.extend_from_slice(set);
            }
        }
        gathered
    }

    /// Returns the number of pages of a color that evict every other page of it, and the number of passes that takes:
    /// the least of both that worked on every color.
    fn certain_push(&mut self, gathered: &[Vec<Page>]) -> (usize, usize) {
        let most = gathered
            .iter()
            .map(Vec::len)
            .min()
            .unwrap_or(0)
            .saturating_sub(1);
        let strengths = [1, 2, 4, STRONG];
        let strength = strengths
            .into_iter()
            .find(|strength| self.is_certain(gathered, most, *strength));
        let strength = strength.unwrap_or(STRONG);
        let size = (2..most).find(|size| self.is_certain(gathered, *size, strength));
        let size = size.unwrap_or(most);
        (size, strength)
    }

    /// Returns true if `size` pages of every color evicted other pages of it, every time.
    fn is_certain(&mut self, gathered: &[Vec<Page>], size: usize, strength: usize) -> bool {
        self.bench.strength = strength;
        let certain = gathered.iter().all(|members| {
            let (set, others) = members.split_at(size.min(members.len()));
            let targets = others.iter().chain(others).take(2);
            targets
                .into_iter()
                .all(|target| self.bench.fate(*target, set) == EvictionOutcome::Evicted)
        });
        self.bench.strength = 1;
        certain
    }
}
