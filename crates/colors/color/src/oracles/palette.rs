//! The colors of one cache, each with pages that fill its sets.

use std::sync::Arc;

use superhue_model::{Color, Random};

use super::code::Code;
use super::contrast::{Bench, Contrast, EvictionOutcome, percentile};
use super::discover;
use super::mapping::Mapping;
use super::{Lines, Probe};
use crate::Page;

/// Known properties of the cache; every one is checked by measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Search {
    /// Ways that the machine reports.
    pub ways: Option<u32>,
    /// Colors that the machine reports.
    pub colors: Option<u32>,
}

/// Reason why no colors were found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// Pages never evict each other, or always.
    #[error("timing shows no cache of which pages take parts: {0}")]
    NoContrast(String),
    /// Something is there, but not all of it was found.
    #[error("found {found} colors in {pages} pages, and not all of them: {reason}")]
    Incomplete {
        /// Colors found.
        found: usize,
        /// Pages searched.
        pages: usize,
        /// The missing part.
        reason: String,
    },
    /// See [`PaletteConfig::patience`](super::PaletteConfig::patience).
    #[error(
        "no colors were found in {} s of CPU time: timing shows something else every time, as in an emulator",
        .0.as_secs()
    )]
    TooLong(std::time::Duration),
}

/// The colors of one cache, each with an eviction set: pages that together evict every other page of that color.
#[derive(Debug, Clone)]
pub struct Palette {
    sets: Vec<Vec<Page>>,
    ways: Option<u32>,
    /// Number of passes over a set that evict.
    strength: usize,
    contrast: Contrast,
    code: Code,
    /// The mapping that the pages lie in, if the palette must keep it alive.
    keeper: Option<Arc<Mapping>>,
}

/// Agreement of classification with an independent test at other lines of the same pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Pages tested.
    pub tested: usize,
    /// Pages evicted by their own color.
    pub own: usize,
    /// Pages evicted by another color, drawn at random for each.
    pub foreign: usize,
}

/// Result of a test of the eviction sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SelfTest {
    /// Number of pages of a set that were tested against the rest of it.
    pub own: usize,
    /// Number of these pages that the set did not evict.
    pub own_kept: usize,
    /// Number of pages of a set that were tested against another set.
    pub foreign: usize,
    /// Number of these pages that the set evicted.
    pub foreign_evicted: usize,
    /// Colors of which more than one page was kept by its own set.
    pub broken: Vec<Color>,
}

impl SelfTest {
    /// Returns true if the sets are reliable: at most 2 % of either test failed (or a single page of a few, which may
    /// be an accident), and no color failed as a whole.
    #[must_use]
    pub const fn passed(&self) -> bool {
        self.own > 0
            && (self.own_kept <= 1 || self.own_kept * 50 <= self.own)
            && (self.foreign_evicted <= 1 || self.foreign_evicted * 50 <= self.foreign)
            && self.broken.is_empty()
    }
}

impl Palette {
    /// Finds the colors of `pool`. Its pages must be in memory already: untouched private pages would all share the one
    /// frame of zeroes.
    ///
    /// # Errors
    /// See [`DiscoverError`].
    pub fn discover(
        probe: &mut impl Probe,
        pool: &[Page],
        search: &Search,
    ) -> Result<Self, DiscoverError> {
        discover::discover(probe, pool, search)
    }

    pub(super) fn new(
        sets: Vec<Vec<Page>>,
        ways: Option<u32>,
        strength: usize,
        contrast: Contrast,
    ) -> Self {
        let code = Code::new(sets.len());
        Self {
            sets,
            ways,
            strength,
            contrast,
            code,
            keeper: None,
        }
    }

    /// Keeps `mapping` alive, in which the pages lie.
    pub(super) fn kept_by(mut self, mapping: Arc<Mapping>) -> Self {
        self.keeper = Some(mapping);
        self
    }

    /// Returns the number of passes over a set that evict.
    #[must_use]
    pub const fn strength(&self) -> usize {
        self.strength
    }

    /// Times pages of the sets again that are known to be kept or to be evicted: later the processor may run at another
    /// frequency, or its next level be slower. Keeps the previous contrast if the times show none any more: the test
    /// that follows then fails.
    pub(super) fn calibrate(&mut self, probe: &mut impl Probe) {
        /// Targets in one trial, each of another color.
        const TARGETS: usize = 16;
        let lines = Lines::group(2);
        let targets: Vec<Page> = self
            .sets
            .iter()
            .filter_map(|set| set.first().copied())
            .take(TARGETS)
            .collect();
        let (mut kept, mut evicted) = (Vec::new(), Vec::new());
        for (own, set) in self.sets.iter().enumerate().take(TARGETS) {
            let set = set.get(1..).unwrap_or_default().repeat(self.strength);
            let mut times = vec![0; targets.len()];
            if !probe.trial(&lines, &targets, &set, &mut times) {
                continue;
            }
            for (at, ticks) in times.into_iter().enumerate() {
                if at == own {
                    evicted.push(ticks);
                } else {
                    kept.push(ticks);
                }
            }
        }
        let contrast = Contrast {
            kept: percentile(&mut kept, 50),
            evicted: percentile(&mut evicted, 40),
        };
        if contrast.kept > 0 && contrast.evicted > contrast.kept + contrast.kept / 4 {
            self.contrast = contrast;
        }
    }

    /// Returns the number of colors.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.sets.len()
    }

    /// The eviction set of each color.
    #[must_use]
    pub fn sets(&self) -> &[Vec<Page>] {
        &self.sets
    }

    /// Ways of the cache as measured; `None` if there was no cliff ([`cliff`](super::cliff)).
    #[must_use]
    pub const fn ways(&self) -> Option<u32> {
        self.ways
    }

    /// Returns the times of kept and evicted pages on this machine.
    #[must_use]
    pub const fn contrast(&self) -> Contrast {
        self.contrast
    }

    /// Finds the color of each page; `None` for a page of which it is not sure. `colors` has the length of `pages`.
    ///
    /// Tries unsure pages again, fewer at a time and at other lines: pages of one color that are tested together push
    /// each other out.
    pub fn classify(&self, probe: &mut impl Probe, pages: &[Page], colors: &mut [Option<Color>]) {
        colors.fill(None);
        let mut order: Vec<(Page, &mut Option<Color>)> =
            pages.iter().copied().zip(colors.iter_mut()).collect();
        // Neighbours may all be of one color: the pages that are tested together come from places far apart.
        Random::new(pages.len() as u64).shuffle(&mut order);
        let all = self.company();
        let mut contrast = self.contrast;
        for (group, company, harder) in [(1, all, 1), (3, all / 4, 1), (5, 2, 2), (7, 1, 3)] {
            let mut bench = Bench::new(probe, contrast, Lines::group(group))
                .with_strength(harder * self.strength)
                .fitting();
            for batch in order.chunks_mut(company.max(1)) {
                if bench.probe.is_over() {
                    return;
                }
                self.classify_batch(&mut bench, batch);
            }
            // Passes that test a few pages at a time cannot show the current contrast: they keep that of the larger batches.
            contrast = bench.contrast;
            order.retain(|(_, color)| color.is_none());
        }
    }

    /// Number of pages that can be tested together: two of each color on average, where eight would push each other out.
    fn company(&self) -> usize {
        let ways = self.ways.map_or(8, |ways| ways as usize);
        (self.colors() * ways / 4).clamp(4, 64)
    }

    fn classify_batch(
        &self,
        bench: &mut Bench<'_, impl Probe>,
        batch: &mut [(Page, &mut Option<Color>)],
    ) {
        let targets: Vec<Page> = batch.iter().map(|(page, _)| *page).collect();
        let mut words = vec![Some(0_u64); targets.len()];
        let mut evictors = Vec::new();
        for test in 0..self.code.tests() {
            if bench.probe.is_over() {
                return;
            }
            evictors.clear();
            for color in self.code.pushing(test) {
                evictors.extend(self.sets.get(color).into_iter().flatten().copied());
            }
            for (word, fate) in words.iter_mut().zip(bench.fates(&targets, &evictors)) {
                match fate {
                    EvictionOutcome::Evicted => *word = word.map(|word| word | 1 << test),
                    EvictionOutcome::Kept => {}
                    EvictionOutcome::Unsure => *word = None,
                }
            }
        }
        for ((_, color), word) in batch.iter_mut().zip(words) {
            **color = word.and_then(|word| self.code.decode(word));
        }
    }

    /// Tests the claimed colors of pages, at lines that classification does not use ([`Lines::HELD_OUT`]), one page at
    /// a time.
    pub fn agreement(&self, probe: &mut impl Probe, pages: &[(Page, Color)]) -> Agreement {
        let mut bench =
            Bench::new(probe, self.contrast, Lines::HELD_OUT).with_strength(self.strength);
        let mut random = Random::new(pages.len() as u64);
        let mut agreement = Agreement::default();
        for &(page, color) in pages {
            let Some(own) = self.sets.get(usize::from(color.0)) else {
                continue;
            };
            agreement.tested += 1;
            agreement.own += usize::from(bench.agreed(page, own) == EvictionOutcome::Evicted);
            let others = self.colors() - 1;
            let other = (usize::from(color.0) + 1 + random.below(others)) % self.colors();
            if let Some(other) = self.sets.get(other).filter(|_| others > 0) {
                agreement.foreign +=
                    usize::from(bench.agreed(page, other) == EvictionOutcome::Evicted);
            }
        }
        agreement
    }

    /// Tests `rounds` pages of every set: the rest of its set must evict it, and no other set of the up to 32 that are tested together.
    pub fn self_test(&self, probe: &mut impl Probe, rounds: usize) -> SelfTest {
        /// Targets in one trial, each of another color.
        const TOGETHER: usize = 32;
        let mut result = SelfTest::default();
        let mut missing = vec![0_usize; self.colors()];
        let mut bench =
            Bench::new(probe, self.contrast, Lines::group(2)).with_strength(self.strength);
        for round in 0..rounds {
            let targets: Vec<Page> = (self.sets.iter())
                .filter_map(|set| set.get(round % set.len().max(1)).copied())
                .collect();
            for (together, colors) in targets.chunks(TOGETHER).zip(0_usize..) {
                let first = colors * TOGETHER;
                for own in 0..together.len() {
                    let target = together.get(own);
                    let evictors: Vec<Page> = (self.sets.get(first + own).into_iter().flatten())
                        .filter(|page| Some(*page) != target)
                        .copied()
                        .collect();
                    for (at, fate) in bench.fates(together, &evictors).enumerate() {
                        let evicted = fate == EvictionOutcome::Evicted;
                        if at == own {
                            result.own += 1;
                            result.own_kept += usize::from(!evicted);
                            if let Some(missing) = missing.get_mut(first + own) {
                                *missing += usize::from(!evicted);
                            }
                        } else {
                            result.foreign += 1;
                            result.foreign_evicted += usize::from(evicted);
                        }
                    }
                }
            }
        }
        let numbered = (0_u16..).map(Color).zip(missing);
        result.broken = numbered
            .filter_map(|(color, missing)| (missing > 1).then_some(color))
            .collect();
        result
    }
}
