//! Latency against number of pages, and the number at which the cache is full.

use super::Probe;
use crate::Page;

/// Latency with a number of pages in use.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CurvePoint {
    /// Pages that are read in turn.
    pub pages: usize,
    /// Ticks per load, the median of the repetitions.
    pub ticks_per_load: f64,
    /// The lowest repetition.
    pub low: f64,
    /// The highest repetition.
    pub high: f64,
}

/// Latency against number of pages, all drawn in the same way.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Description of the way the pages were drawn.
    pub label: String,
    /// By ascending number of pages.
    pub points: Vec<CurvePoint>,
}

/// Loads of one measurement: enough for the grain of the clock not to matter, short enough not to lose the CPU often.
const LOADS: u64 = 4_096;

impl Curve {
    /// Measures with the first `size` of `pages` for every size in `sizes`; sizes above the number of pages are left
    /// out. Every size gets `repetitions` measurements, in turn.
    pub fn measure(
        probe: &mut impl Probe,
        label: &str,
        pages: &[Page],
        sizes: &[usize],
        repetitions: usize,
    ) -> Self {
        let mut times: Vec<(usize, Vec<f64>)> = (sizes.iter())
            .filter(|size| (1..=pages.len()).contains(*size))
            .map(|size| (*size, Vec::new()))
            .collect();
        for _ in 0..repetitions {
            for (size, times) in &mut times {
                times.extend(probe.chase(pages.get(..*size).unwrap_or_default(), LOADS));
            }
        }
        let point = |(pages, mut times): (usize, Vec<f64>)| {
            times.sort_unstable_by(f64::total_cmp);
            Some(CurvePoint {
                pages,
                ticks_per_load: *times.get(times.len() / 2)?,
                low: *times.first()?,
                high: *times.last()?,
            })
        };
        let mut points: Vec<CurvePoint> = times.into_iter().filter_map(point).collect();
        points.sort_unstable_by_key(|point| point.pages);
        Self {
            label: label.to_owned(),
            points,
        }
    }

    fn low(&self, pages: usize) -> Option<f64> {
        let mut points = self.points.iter();
        points
            .find(|point| point.pages == pages)
            .map(|point| point.low)
    }
}

/// The pages of some colors in turn, one of each, until the shortest list ends: as many as can be spread evenly.
#[must_use]
pub fn in_turn(by_color: &[&[Page]]) -> Vec<Page> {
    let rounds = by_color.iter().map(|pages| pages.len()).min().unwrap_or(0);
    let round = |at: usize| {
        by_color
            .iter()
            .filter_map(move |pages| pages.get(at).copied())
    };
    (0..rounds).flat_map(round).collect()
}

/// Returns the least number of pages at which pages of `one` color no longer fit: ways + 1. `None` if there is no cliff.
///
/// `spread` has the latencies of equally many pages of all colors in turn. It differs from `one` only by conflicts, so
/// the effects of a nearer cache (8 pages fit into an L1 of 8 ways as well) and of address translation cancel out.
///
/// *Criterion.* Pages that fit never miss, whatever the replacement. With one page more than fit, read round in any
/// order, at
/// least one per round must miss in every set: with true LRU all of them do, with the best possible replacement one in
/// `pages`. So the cliff is the least number from which on the excess over `spread` is always at least half of that least
/// share, 1 / (2 pages) of the excess that far too many pages show. The other half is for noise. Of several repetitions
/// the lowest counts: a disturbance only adds time.
#[must_use]
pub fn cliff(one: &Curve, spread: &Curve) -> Option<usize> {
    let excess = |pages: usize| Some(one.low(pages)? - spread.low(pages)?);
    let sizes: Vec<usize> = one.points.iter().map(|point| point.pages).collect();
    let full = sizes
        .iter()
        .filter_map(|pages| excess(*pages))
        .fold(0.0, f64::max);
    let base = sizes
        .iter()
        .filter_map(|pages| spread.low(*pages))
        .fold(0.0, f64::max);
    if full < base / 4.0 || full <= 0.0 {
        return None;
    }
    let misses = |pages: &usize| {
        #[expect(clippy::cast_precision_loss, reason = "a number of pages")]
        let least = full / (2 * pages) as f64;
        excess(*pages).is_some_and(|excess| excess >= least)
    };
    let beyond = sizes.iter().rev().take_while(|pages| misses(pages));
    // At the smallest measured size, pages that do not fit would look the same.
    beyond
        .last()
        .copied()
        .filter(|cliff| sizes.first() != Some(cliff))
}

/// Colors whose cliff is looked for.
const COLORS: usize = 5;

/// Measurements of each number of pages.
const REPETITIONS: usize = 7;

/// Returns the number of ways that most of the tested colors show; `by_color` has pages of every color.
pub(super) fn ways(probe: &mut impl Probe, by_color: &[Vec<Page>]) -> Option<u32> {
    let all: Vec<&[Page]> = by_color.iter().map(Vec::as_slice).collect();
    let spread = in_turn(&all);
    let sizes: Vec<usize> = (2..=all.iter().map(|pages| pages.len()).min()?).collect();
    let spread = Curve::measure(probe, "all colors", &spread, &sizes, REPETITIONS);
    let mut found = Vec::new();
    for pages in all.iter().take(COLORS) {
        let one = Curve::measure(probe, "one color", pages, &sizes, REPETITIONS);
        found.extend(cliff(&one, &spread));
    }
    found.sort_unstable();
    let middle = found.get(found.len() / 2)?;
    u32::try_from(middle - 1).ok()
}
