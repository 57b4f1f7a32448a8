//! What a page in the cache looks like, and one that was pushed out.

use superhue_model::{BASE_PAGE_SIZE, PageCount};

use super::random::Random;
use super::{DiscoverError, Lines, Probe};
use crate::Page;

/// How a target came out of a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
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

/// Targets timed together: few enough that they push each other out of no cache with some ways and colors.
const BATCH: usize = 32;

/// Pages that push everything out: 8 MiB for private caches of up to 2.
const FLOOD: PageCount = PageCount(8 * 1024 * 1024 / BASE_PAGE_SIZE);

/// Batches of each kind, one after the other in turn.
const ROUNDS: usize = 3;

/// Trials begun again until one of them is undisturbed.
pub(super) const RETRIES: usize = 40;

impl Contrast {
    /// Times pages that nothing has pushed, and pages that everything else of `pool` has.
    ///
    /// # Errors
    /// [`DiscoverError::NoContrast`] with what was seen.
    pub(super) fn measure(
        probe: &mut impl Probe,
        pool: &[Page],
        random: &mut Random,
    ) -> Result<Self, DiscoverError> {
        let no_contrast = |what: String| Err(DiscoverError::NoContrast(what));
        let lines = Lines::group(0);
        let mut pages = pool.to_vec();
        let (mut kept, mut evicted) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            random.shuffle(&mut pages);
            let (targets, others) = pages.split_at(BATCH.min(pages.len() / 2));
            let flood = others.get(..FLOOD.0 as usize).unwrap_or(others);
            for (evictors, times) in [(&[][..], &mut kept), (flood, &mut evicted)] {
                let mut batch = vec![0; targets.len()];
                let undisturbed =
                    (0..RETRIES).any(|_| probe.trial(&lines, targets, evictors, &mut batch));
                if !undisturbed {
                    return no_contrast("the thread lost its CPU in every trial".to_owned());
                }
                times.append(&mut batch);
            }
        }
        kept.sort_unstable();
        evicted.sort_unstable();
        let of = |times: &[u32], percent: usize| {
            times.get(times.len() * percent / 100).copied().unwrap_or(0)
        };
        // The slowest kept and the fastest evicted are single accidents; what lies apart must be the bulk.
        let (high, low) = (of(&kept, 80), of(&evicted, 20));
        let contrast = Self {
            kept: of(&kept, 50),
            evicted: of(&evicted, 50),
        };
        if high >= low || contrast.evicted < contrast.kept + contrast.kept / 4 {
            return no_contrast(format!(
                "{} loads take {} ticks at once, and {} after {} other pages were read",
                Lines::COUNT,
                contrast.kept,
                contrast.evicted,
                FLOOD.0.min(pool.len() as u64),
            ));
        }
        Ok(contrast)
    }

    /// What a time means.
    ///
    /// Eight lines are eight witnesses: what lies between the two times is a page whose lines disagree. Much longer than
    /// beyond the cache is beyond the next one too, which says the same, or an interrupt, which says nothing.
    pub(super) fn verdict(self, ticks: u32) -> Verdict {
        let gap = self.evicted.saturating_sub(self.kept);
        let ceiling = self.evicted.saturating_mul(16);
        if ticks <= self.kept.saturating_add(gap * 2 / 5) {
            Verdict::Kept
        } else if ticks >= self.kept.saturating_add(gap * 3 / 5) && ticks <= ceiling {
            Verdict::Evicted
        } else {
            Verdict::Unsure
        }
    }
}

/// A probe with what its times mean: experiments that end in verdicts.
#[derive(Debug)]
pub(super) struct Bench<'a, P> {
    pub(super) probe: &'a mut P,
    pub(super) contrast: Contrast,
    pub(super) lines: Lines,
    times: Vec<u32>,
}

impl<'a, P: Probe> Bench<'a, P> {
    pub(super) const fn new(probe: &'a mut P, contrast: Contrast, lines: Lines) -> Self {
        Self {
            probe,
            contrast,
            lines,
            times: Vec::new(),
        }
    }

    /// One undisturbed trial: a verdict for each target. All are unsure when every trial is disturbed.
    pub(super) fn verdicts(
        &mut self,
        targets: &[Page],
        evictors: &[Page],
    ) -> impl Iterator<Item = Verdict> + use<'_, P> {
        self.times.clear();
        self.times.resize(targets.len(), 0);
        let undisturbed = (0..RETRIES).any(|_| {
            self.probe
                .trial(&self.lines, targets, evictors, &mut self.times)
        });
        let contrast = self.contrast;
        self.times.iter().map(move |&ticks| {
            if undisturbed {
                contrast.verdict(ticks)
            } else {
                Verdict::Unsure
            }
        })
    }

    /// What one trial says of one target.
    pub(super) fn verdict(&mut self, target: Page, evictors: &[Page]) -> Verdict {
        let mut verdicts = self.verdicts(&[target], evictors);
        verdicts.next().unwrap_or(Verdict::Unsure)
    }

    /// What two trials of up to five agree on, with neither opposed.
    pub(super) fn agreed(&mut self, target: Page, evictors: &[Page]) -> Verdict {
        let (mut kept, mut evicted) = (0, 0);
        for _ in 0..5 {
            match self.verdict(target, evictors) {
                Verdict::Kept => kept += 1,
                Verdict::Evicted => evicted += 1,
                Verdict::Unsure => {}
            }
            if kept >= evicted + 2 {
                return Verdict::Kept;
            }
            if evicted >= kept + 2 {
                return Verdict::Evicted;
            }
        }
        Verdict::Unsure
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_or_far_beyond_is_unsure() {
        let contrast = Contrast {
            kept: 180,
            evicted: 310,
        };
        let verdicts = [0, 180, 231, 235, 257, 259, 310, 4_900, 6_000].map(|t| contrast.verdict(t));
        use Verdict::{Evicted, Kept, Unsure};
        let expected = [
            Kept, Kept, Kept, Unsure, Unsure, Evicted, Evicted, Evicted, Unsure,
        ];
        assert_eq!(verdicts, expected);
    }
}
