//! Test of oracles against real conflicts.
//!
//! An oracle claims: these pages are of one color, those of other colors. So enough pages of one color must evict any
//! further page of it, and no page of another color. Both are tested, by timing, on lines that no oracle has used.
//!
//! ```text
//!   color 3   | evictors: 2 x ways | own: must go |
//!   others    | one page of each: must stay                  evicted, again and again: that color is color 3 too
//! ```
//!
//! A calculation that is wrong by one bit gives half of the right conflicts, so the threshold is nearly all.

use superhue_model::{Color, Random};

use super::contrast::{Bench, Contrast, EvictionOutcome};
use super::{Lines, Oracle, OracleKind, Probe};
use crate::Page;

/// Colors tried, evenly spaced.
const COLORS: usize = 32;
/// Pages of its own color that are tried against each.
const OWN: usize = 8;
/// Pages of other colors that are tried against each.
const FOREIGN: usize = 32;
/// Trials of which the majority counts.
const TRIALS: usize = 3;
/// Passes over the evictors: where replacement is not LRU, one pass does not evict everything.
const STRENGTH: usize = 4;
/// Fewer predictions than this, of either kind, do not make a test.
const FEWEST: usize = 24;
/// Pages of a color that seems to be another one, and how many of them must be evicted.
const SAME: (usize, usize) = (4, 3);
/// Pairs of colors that are tested for being the same color.
const SUSPECTS: usize = 64;

/// `hits` out of `of` pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// Number of pages with the property.
    pub hits: usize,
    /// Number of all pages.
    pub of: usize,
}

impl Share {
    const fn add(&mut self, hit: bool) {
        self.hits += hit as usize;
        self.of += 1;
    }

    /// The share, 0 to 1; `None` if there are no pages.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of pages tried")]
    pub fn value(self) -> Option<f64> {
        (self.of > 0).then(|| self.hits as f64 / self.of as f64)
    }

    /// The interval in which the true share lies with 95 % confidence (Wilson 1927); 0 to 1 if there are no pages.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "counts of pages tried")]
    pub fn interval(self) -> (f64, f64) {
        /// Standard deviations that hold 95 %.
        const Z: f64 = 1.96;
        let Some(share) = self.value() else {
            return (0.0, 1.0);
        };
        let n = self.of as f64;
        let scale = 1.0 + Z * Z / n;
        let middle = (share + Z * Z / (2.0 * n)) / scale;
        let half = Z / scale * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
        ((middle - half).max(0.0), (middle + half).min(1.0))
    }

    /// Returns true if the share is at least `percent` percent.
    const fn reaches(self, percent: usize) -> bool {
        self.hits * 100 >= self.of * percent
    }
}

/// Verdict on an oracle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// The oracle's predictions match the measurement.
    Trusted,
    /// The oracle's predictions do not match; the reason.
    Refuted(String),
    /// The test could not decide; the reason.
    Untested(String),
}

impl Trust {
    /// Returns the verdict as a word, for reports.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Trusted => "trusted",
            Self::Refuted(_) => "refuted",
            Self::Untested(_) => "untested",
        }
    }
}

/// Result of the test of an oracle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Judgement {
    /// The oracle.
    pub kind: OracleKind,
    /// Number of its colors; 0 if it has none.
    pub colors: usize,
    /// Share of the pages predicted to be evicted that were evicted.
    pub own: Share,
    /// Share of the pages predicted to stay that were evicted.
    pub foreign: Share,
    /// Pages whose trials did not agree; they count for nothing.
    pub unsure: usize,
    /// The verdict.
    pub trust: Trust,
}

impl Judgement {
    /// An oracle that could not be used at all.
    #[must_use]
    pub fn untested(kind: OracleKind, why: String) -> Self {
        Self {
            kind,
            colors: 0,
            own: Share::default(),
            foreign: Share::default(),
            unsure: 0,
            trust: Trust::Untested(why),
        }
    }

    /// Right predictions out of all.
    #[must_use]
    pub const fn right(&self) -> Share {
        Share {
            hits: self.own.hits + self.foreign.of - self.foreign.hits,
            of: self.own.of + self.foreign.of,
        }
    }

    /// Returns true if the oracle is trusted.
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.trust == Trust::Trusted
    }
}

/// Tests `oracle` on `pages`, which are in memory, for a cache of `ways` ways.
///
/// 4,096 pages are enough for 32 colors of 16 ways. The thread should stay on one CPU. Takes some milliseconds.
pub fn judge<P: Probe>(
    probe: &mut P,
    oracle: &mut dyn Oracle,
    pages: &[Page],
    ways: usize,
) -> Judgement {
    let kind = oracle.kind();
    let mut random = Random::new(pages.len() as u64);
    let contrast = match Contrast::measure(probe, pages, &mut random) {
        Ok(contrast) => contrast,
        Err(error) => return Judgement::untested(kind, error.to_string()),
    };
    let mut colors = vec![None; pages.len()];
    if let Err(error) = oracle.classify(pages, &mut colors) {
        return Judgement::untested(kind, error.to_string());
    }
    let mut members = vec![Vec::new(); oracle.colors()];
    for (&page, color) in pages.iter().zip(&colors) {
        if let Some(color) = color
            && let Some(members) = members.get_mut(usize::from(color.0))
        {
            members.push(page);
        }
    }
    for members in &mut members {
        random.shuffle(members);
    }
    let mut trial = Trial {
        bench: Bench::new(probe, contrast, Lines::HELD_OUT).with_strength(STRENGTH),
        evictors: ways.saturating_mul(2),
        members,
        found: Judgement {
            kind,
            colors: oracle.colors(),
            own: Share::default(),
            foreign: Share::default(),
            unsure: 0,
            trust: Trust::Trusted,
        },
        suspects: Vec::new(),
    };
    trial.run(&mut random);
    let same = trial.same();
    let told = colors.iter().flatten().count();
    let mut found = trial.found;
    found.trust = trust(&found, same, told, pages.len());
    found
}

fn trust(found: &Judgement, same: Option<(Color, Color)>, told: usize, pages: usize) -> Trust {
    let (own, foreign) = (found.own, found.foreign);
    if found.colors < 2 {
        Trust::Untested("there is one color only".to_owned())
    } else if told == 0 {
        Trust::Untested(format!("it tells the color of none of {pages} pages"))
    } else if own.of < FEWEST || foreign.of < FEWEST {
        Trust::Untested(format!(
            "of {pages} pages only {} of a color and {} of others could be tried",
            own.of, foreign.of
        ))
    } else if found.unsure * 2 > own.of + foreign.of {
        // Tests that gave an answer may be a selection.
        let (unsure, sure) = (found.unsure, own.of + foreign.of);
        Trust::Untested(format!(
            "{unsure} tests gave no clear answer, and {sure} did"
        ))
    } else if !own.reaches(95) {
        let (hits, of) = (own.hits, own.of);
        Trust::Refuted(format!("of {of} pages predicted to conflict {hits} did"))
    } else if foreign.hits * 100 > foreign.of * 5 {
        let (hits, of) = (foreign.hits, foreign.of);
        Trust::Refuted(format!(
            "of {of} pages predicted not to conflict {hits} did"
        ))
    } else if let Some((one, other)) = same {
        Trust::Refuted(format!(
            "colors {one} and {other} conflict: it tells more colors apart than there are"
        ))
    } else {
        Trust::Trusted
    }
}

struct Trial<'a, P> {
    bench: Bench<'a, P>,
    /// Number of pages that must evict another one.
    evictors: usize,
    members: Vec<Vec<Page>>,
    found: Judgement,
    /// Pairs of colors of which the second was evicted by the first.
    suspects: Vec<(usize, usize)>,
}

impl<P: Probe> Trial<'_, P> {
    /// Tests the colors that have enough pages.
    fn run(&mut self, random: &mut Random) {
        let enough = |members: &Vec<Page>| members.len() > self.evictors;
        let mut tried: Vec<usize> = (self.members.iter().enumerate())
            .filter(|(_, members)| enough(members))
            .map(|(color, _)| color)
            .collect();
        let step = tried.len().div_ceil(COLORS).max(1);
        tried = tried.into_iter().step_by(step).collect();
        for color in tried {
            self.against(color, random);
        }
    }

    /// Tests pages of a color, and pages of other colors, against that color.
    fn against(&mut self, color: usize, random: &mut Random) {
        let all = self.members.get(color).map_or(&[][..], Vec::as_slice);
        let Some((evictors, rest)) = all.split_at_checked(self.evictors) else {
            return;
        };
        let evictors = evictors.to_vec();
        let own = rest.iter().take(OWN).map(|&page| (color, page));
        let mut others: Vec<usize> = (0..self.members.len())
            .filter(|&other| other != color)
            .collect();
        random.shuffle(&mut others);
        let foreign = others.into_iter().filter_map(|other| {
            let members = self.members.get(other)?;
            Some((other, *members.get(random.below(members.len()))?))
        });
        let targets: Vec<(usize, Page)> = own.chain(foreign.take(FOREIGN)).collect();
        let pages: Vec<Page> = targets.iter().map(|&(_, page)| page).collect();
        let mut votes = vec![(0, 0); targets.len()];
        for _ in 0..TRIALS {
            let fates = self.bench.fates(&pages, &evictors);
            for ((kept, evicted), fate) in votes.iter_mut().zip(fates) {
                *kept += usize::from(fate == EvictionOutcome::Kept);
                *evicted += usize::from(fate == EvictionOutcome::Evicted);
            }
        }
        for ((other, _), (kept, evicted)) in targets.into_iter().zip(votes) {
            let was_evicted = evicted * 2 > TRIALS;
            if !was_evicted && kept * 2 <= TRIALS {
                self.found.unsure += 1;
            } else if other == color {
                self.found.own.add(was_evicted);
            } else {
                self.found.foreign.add(was_evicted);
                if was_evicted {
                    self.suspects.push((color, other));
                }
            }
        }
    }

    /// Finds two colors that are the same color.
    fn same(&mut self) -> Option<(Color, Color)> {
        let suspects = std::mem::take(&mut self.suspects);
        for (color, other) in suspects.into_iter().take(SUSPECTS) {
            let (Some(all), Some(others)) = (self.members.get(color), self.members.get(other))
            else {
                continue;
            };
            let evictors = all.get(..self.evictors).unwrap_or(all).to_vec();
            let targets: Vec<Page> = others.iter().take(SAME.0).copied().collect();
            let evicted = (targets.iter())
                .filter(|&&target| self.bench.agreed(target, &evictors) == EvictionOutcome::Evicted)
                .count();
            if evicted >= SAME.1 {
                let named = |color| u16::try_from(color).ok().map(Color);
                return Some((named(color.min(other))?, named(color.max(other))?));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests;
