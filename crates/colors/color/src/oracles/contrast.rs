//! Load times of a page in the cache, and of one that was pushed out.

use superhue_model::Random;

use super::{DiscoverError, Lines, Probe};
use crate::Page;

/// Result of a trial for one target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictionOutcome {
    /// Still in the cache, all lines or nearly.
    Kept,
    /// Pushed out, all lines or nearly.
    Evicted,
    /// Some lines were pushed out, or the thread was interrupted.
    Unsure,
}

/// Ticks of the lines of a page ([`Lines::COUNT`] loads), in the cache and beyond it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contrast {
    /// In the cache.
    pub kept: u32,
    /// In the next level.
    pub evicted: u32,
}

/// Targets timed together: more than the ways of the nearer cache, so that it does not hold them, and few enough that
/// they do not push each other out (4 colors of 8 ways are enough for that).
const BATCH: usize = 16;

/// Numbers of other pages read in between, in turn: too few for a cache of 1 MiB, enough, more than enough for 2 MiB.
/// The last must push out nearly everything.
const FLOODS: [usize; 6] = [256, 512, 512, 1024, 1024, 1536];

/// Attempts at one trial until one is undisturbed.
pub(super) const RETRIES: usize = 40;

impl Contrast {
    /// Times pages while nothing has pushed them out, and again after the other pages of `pool` have.
    ///
    /// # Errors
    /// [`DiscoverError::NoContrast`] with the measured times.
    pub(super) fn measure(
        probe: &mut impl Probe,
        pool: &[Page],
        random: &mut Random,
    ) -> Result<Self, DiscoverError> {
        let no_contrast = |what: String| Err(DiscoverError::NoContrast(what));
        let lines = Lines::group(0);
        let mut pages = pool.to_vec();
        let (mut kept, mut flooded, mut last) = (Vec::new(), Vec::new(), Vec::new());
        for flood in FLOODS {
            random.shuffle(&mut pages);
            let (targets, others) = pages.split_at(BATCH.min(pages.len() / 2));
            let flood = others.get(..flood).unwrap_or(others);
            for (evictors, times) in [(&[][..], &mut kept), (flood, &mut flooded)] {
                let mut batch = vec![0; targets.len()];
                let undisturbed =
                    (0..RETRIES).any(|_| probe.trial(&lines, targets, evictors, &mut batch));
                if !undisturbed {
                    return no_contrast("the thread lost its CPU in every trial".to_owned());
                }
                times.extend_from_slice(&batch);
                last = batch;
            }
        }
        let in_cache = percentile(&mut kept, 50);
        let ceiling = percentile(&mut kept, 90).max(in_cache + in_cache / 4);
        flooded.retain(|ticks| *ticks > ceiling);
        last.retain(|ticks| *ticks > ceiling);
        // More than one level lies beyond the cache, and other programs fill the next one too: the nearest level is wanted.
        let contrast = Self {
            kept: in_cache,
            evicted: percentile(&mut flooded, 10),
        };
        let targets = BATCH.min(pool.len() / 2);
        if targets == 0 || last.len() * 10 < targets * 8 || contrast.evicted <= ceiling {
            return no_contrast(format!(
                "{} loads take {} ticks at once; after other pages were read {} of {targets} pages take longer",
                Lines::COUNT,
                contrast.kept,
                last.len(),
            ));
        }
        Ok(contrast)
    }

    /// Adapts the contrast to the times of evicted pages in one trial, if that trial has some. The next cache level has a
    /// clock of its own, which follows the load: within a millisecond it has become twice as fast.
    fn fitted(self, times: &[u32]) -> Self {
        // Fewer may be accidents, and a time little above the usual one is no other level.
        let enough = (times.len() / 4).max(4);
        let ceiling = self.kept.saturating_add(self.kept / 2);
        let mut beyond: Vec<u32> = times
            .iter()
            .copied()
            .filter(|ticks| *ticks > ceiling)
            .collect();
        if beyond.len() < enough {
            return self;
        }
        let least = ceiling.max(self.evicted / 3);
        let evicted = percentile(&mut beyond, 30).max(least).min(self.evicted);
        Self { evicted, ..self }
    }

    /// Returns the fate that a time shows.
    ///
    /// Eight lines are eight witnesses: a time between the two means that the lines of the page disagree. A time far
    /// above `evicted` comes from a level beyond the next one, which also means evicted, or from an interrupt, which
    /// means nothing.
    pub(super) fn fate(self, ticks: u32) -> EvictionOutcome {
        let gap = self.evicted.saturating_sub(self.kept);
        let ceiling = self.evicted.saturating_mul(16);
        if ticks <= self.kept.saturating_add(gap * 7 / 20) {
            EvictionOutcome::Kept
        } else if ticks >= self.kept.saturating_add(gap / 2) && ticks <= ceiling {
            EvictionOutcome::Evicted
        } else {
            EvictionOutcome::Unsure
        }
    }
}

/// The time below which `percent` of the times lie; 0 if there are none.
pub(super) fn percentile(times: &mut [u32], percent: usize) -> u32 {
    times.sort_unstable();
    let at = times.len() * percent / 100;
    times.get(at).copied().unwrap_or(0)
}

/// A probe and the meaning of its times: trials that show the fates of pages.
#[derive(Debug)]
pub(super) struct Bench<'a, P> {
    pub(super) probe: &'a mut P,
    pub(super) contrast: Contrast,
    pub(super) lines: Lines,
    /// Number of passes over the evictors in a trial.
    pub(super) strength: usize,
    /// True in trials that evict a good part of the targets: their times show the current cost of an evicted page.
    fits: bool,
    random: Random,
    times: Vec<u32>,
}

impl<'a, P: Probe> Bench<'a, P> {
    pub(super) const fn new(probe: &'a mut P, contrast: Contrast, lines: Lines) -> Self {
        Self {
            probe,
            contrast,
            lines,
            strength: 1,
            fits: false,
            random: Random::new(1),
            times: Vec::new(),
        }
    }

    /// One undisturbed trial: the fate of each target. All are unsure when every trial is disturbed.
    pub(super) fn fates(
        &mut self,
        targets: &[Page],
        evictors: &[Page],
    ) -> impl Iterator<Item = EvictionOutcome> + use<'_, P> {
        self.times.clear();
        self.times.resize(targets.len(), 0);
        let mut repeated = Vec::new();
        let evictors = if self.strength > 1 {
            repeated.reserve(evictors.len() * self.strength);
            for _ in 0..self.strength {
                let begin = repeated.len();
                repeated.extend_from_slice(evictors);
                // Replacement that is not LRU can go in circles around a line for as long as the order is the same.
                self.random
                    .shuffle(repeated.get_mut(begin..).unwrap_or_default());
            }
            &repeated
        } else {
            evictors
        };
        let undisturbed = (0..RETRIES).any(|_| {
            self.probe
                .trial(&self.lines, targets, evictors, &mut self.times)
        });
        if undisturbed && self.fits {
            self.contrast = self.contrast.fitted(&self.times);
        }
        let contrast = self.contrast;
        self.times.iter().map(move |&ticks| {
            if undisturbed {
                contrast.fate(ticks)
            } else {
                EvictionOutcome::Unsure
            }
        })
    }

    /// Returns the fate of one target in one trial.
    pub(super) fn fate(&mut self, target: Page, evictors: &[Page]) -> EvictionOutcome {
        let mut fates = self.fates(&[target], evictors);
        fates.next().unwrap_or(EvictionOutcome::Unsure)
    }

    /// Marks the following trials as ones that evict a good part of the targets.
    pub(super) const fn fitting(mut self) -> Self {
        self.fits = true;
        self
    }

    /// Sets the number of passes over the evictors for the following trials.
    pub(super) const fn with_strength(mut self, strength: usize) -> Self {
        self.strength = strength;
        self
    }

    /// The fate that leads by two after up to five trials; unsure if none does.
    pub(super) fn agreed(&mut self, target: Page, evictors: &[Page]) -> EvictionOutcome {
        let (mut kept, mut evicted) = (0, 0);
        for _ in 0..5 {
            match self.fate(target, evictors) {
                EvictionOutcome::Kept => kept += 1,
                EvictionOutcome::Evicted => evicted += 1,
                EvictionOutcome::Unsure => {}
            }
            if kept >= evicted + 2 {
                return EvictionOutcome::Kept;
            }
            if evicted >= kept + 2 {
                return EvictionOutcome::Evicted;
            }
        }
        EvictionOutcome::Unsure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_faster_next_level_shows_in_the_trial_itself() {
        let contrast = Contrast {
            kept: 158,
            evicted: 780,
        };
        let fast = [154, 156, 158, 174, 294, 304, 316, 338, 362, 416, 468];
        let fitted = contrast.fitted(&fast);
        assert_eq!(fitted.kept, 158);
        let fates = fast.map(|ticks| fitted.fate(ticks));
        assert_eq!(fates[..4], [EvictionOutcome::Kept; 4]);
        assert_eq!(fates[4..], [EvictionOutcome::Evicted; 7]);
        // A few times change nothing; and `evicted` never becomes nearly as small as `kept`, or larger than before.
        assert_eq!(contrast.fitted(&fast[..7]), contrast);
        assert_eq!(contrast.fitted(&[240; 9]).evicted, 260);
        assert_eq!(contrast.fitted(&[2000; 9]), contrast);
    }

    #[test]
    fn what_lies_between_or_far_beyond_is_unsure() {
        let contrast = Contrast {
            kept: 180,
            evicted: 310,
        };
        let fates = [0, 180, 225, 228, 244, 246, 310, 4_900, 6_000].map(|t| contrast.fate(t));
        use EvictionOutcome::{Evicted, Kept, Unsure};
        let expected = [
            Kept, Kept, Kept, Unsure, Unsure, Evicted, Evicted, Evicted, Unsure,
        ];
        assert_eq!(fates, expected);
    }
}
