//! Pure functions that find the steps of a curve: the time that translations add to a load, by the number of pages that are loaded from in turns.
//!
//! ```text
//!   ns |                        .------   every load walks the page tables
//!      |                        |
//!      |                        |
//!      |        .---------------'         every load misses the first TLB and hits the second
//!      |--------'
//!      +--------+---------------+------   pages
//!               first           second    entries
//! ```
//!
//! The rule. The curve is read as y = ln(1 + ns / hit), where *hit* is the time of a load that adds nothing: both steps then have about the same
//! height, although a walk takes many times as long as a hit in the second TLB.
//!
//!  1. Each point takes the median of itself and its two neighbours.
//!  2. A step is where y rises by [`MIN_RISE`] or more while the pages double. Of overlapping candidates the one with the greatest rise counts.
//!  3. Its TLB has as many entries as there are pages where the curve has risen by [`FOOT`] of the step. The foot, not the middle: a TLB that
//!     evicts its oldest entry loses all of them within a few pages more than it holds, one that evicts at random loses half at 1.4 times as many.
//!
//! A curve whose points lie further from the line through their neighbours than [`MOST_NOISE`] in the median shows nothing: its noise would look like
//! steps. A curve that rises slowly (page tables leave a cache) has no step by this rule, nor has one that rises once and falls again.

/// Least rise of y: 1.5 times the time of a load. A hit in a second TLB adds 1.4 times that time or more (7 cycles to 5), a walk still more; the
/// slow rise behind a step stays below 1.25 times.
const MIN_RISE: f64 = 0.405;

/// Part of a step after which its TLB counts as full. A TLB that evicts at random misses so often with 1.12 times as many pages as it has entries.
const FOOT: f64 = 0.2;

/// Most noise, a share of the time of a load. A quiet machine has 0.01; at three times this bound first levels are found in wrong places.
pub(super) const MOST_NOISE: f64 = 0.08;

/// Level of a TLB with fewer entries: the first. The largest first TLB for data has 160 entries, the smallest second one behind a first 256 (of
/// those with fewer, both steps are found).
const MOST_FIRST: f64 = 256.0;

/// Point of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    /// Pages that are loaded from in turns.
    pub(super) pages: u32,
    /// Nanoseconds that translations add to each load.
    pub(super) ns: f64,
}

/// Step of a curve.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Step {
    /// Pages at its foot.
    entries: f64,
    /// Place of the last point before it.
    from: usize,
    /// Place of the first point with twice as many pages.
    to: usize,
}

/// Steps of a curve, by level.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Levels {
    /// Entries of the first TLB.
    pub(super) first: Option<f64>,
    /// Entries of the last TLB: a miss walks.
    pub(super) last: Option<f64>,
}

impl Levels {
    /// Finds the levels of a curve; none if it is too noisy. A single step of few entries is that of the first TLB: the second reaches beyond the
    /// curve.
    pub(super) fn of(curve: &[Point], hit_ns: f64) -> Self {
        if noise(curve).is_none_or(|ns| ns > MOST_NOISE * hit_ns) {
            return Self::default();
        }
        let steps = steps(curve, hit_ns);
        let entries = |place: usize| steps.get(place).map(|step| step.entries);
        match entries(0) {
            Some(one) if one < MOST_FIRST => Self {
                first: Some(one),
                last: entries(1),
            },
            last => Self { first: None, last },
        }
    }

    /// Keeps the levels that two other measurements found too, each within `error` of them, a share; returns the middle one of the three. Noise that
    /// moves one of them moves that no farther than the others lie.
    pub(super) fn confirmed(self, others: [Self; 2], error: f64) -> Self {
        let keep = |level: fn(&Self) -> Option<f64>| {
            let entries = level(&self)?;
            let [one, two] = others.each_ref().map(level);
            let mut found = [entries, one?, two?];
            let is_near = |found: &f64| (found / entries).ln().abs() <= error.ln_1p();
            if !found.iter().all(is_near) {
                return None;
            }
            found.sort_by(f64::total_cmp);
            Some(found[1])
        };
        Self {
            first: keep(|levels| levels.first),
            last: keep(|levels| levels.last),
        }
    }
}

/// Finds the steps of a curve whose points ascend by pages; `hit_ns` is the time of a load that adds nothing.
fn steps(curve: &[Point], hit_ns: f64) -> Vec<Step> {
    let curve = smooth(curve);
    let y = |point: &Point| (point.ns.max(0.0) / hit_ns).ln_1p();
    let rises = curve.iter().enumerate().filter_map(|(from, point)| {
        let to = curve.partition_point(|other| other.pages < point.pages.saturating_mul(2));
        let rise = y(curve.get(to)?) - y(point);
        (rise >= MIN_RISE).then_some((from, to, rise))
    });
    let mut rises: Vec<(usize, usize, f64)> = rises.collect();
    rises.sort_by(|a, b| b.2.total_cmp(&a.2).then(a.0.cmp(&b.0)));
    let mut steps: Vec<Step> = Vec::new();
    for (from, to, _) in rises {
        let is_apart = |step: &Step| to <= step.from || from >= step.to;
        if steps.iter().all(is_apart)
            && let Some(entries) = foot(&curve, from, to)
        {
            steps.push(Step { entries, from, to });
        }
    }
    steps.sort_by_key(|step| step.from);
    steps
}

/// Returns the median distance of a point from the line through its neighbours, in nanoseconds; `None` with fewer than three points.
pub(super) fn noise(curve: &[Point]) -> Option<f64> {
    let bends = curve.windows(3).filter_map(|three| {
        let [one, two, three] = three else {
            return None;
        };
        Some((two.ns - f64::midpoint(one.ns, three.ns)).abs())
    });
    let mut bends: Vec<f64> = bends.collect();
    bends.sort_by(f64::total_cmp);
    bends.get(bends.len() / 2).copied()
}

/// Median of each point and its neighbours.
fn smooth(curve: &[Point]) -> Vec<Point> {
    let at = |place: usize| {
        let window = curve.get(place.saturating_sub(1)..(place + 2).min(curve.len()));
        let mut ns: Vec<f64> = window
            .unwrap_or_default()
            .iter()
            .map(|one| one.ns)
            .collect();
        ns.sort_by(f64::total_cmp);
        // Of the two points at an end the lower one: a step begins at its foot.
        ns.get((ns.len().saturating_sub(1)) / 2).copied()
    };
    let smoothed = curve.iter().enumerate().map(|(place, point)| Point {
        ns: at(place).unwrap_or(point.ns),
        ..*point
    });
    smoothed.collect()
}

/// Returns the pages at which the curve has risen by [`FOOT`] of the step between two places, between points by their logarithm.
fn foot(curve: &[Point], from: usize, to: usize) -> Option<f64> {
    let (low, high) = (curve.get(from)?.ns, curve.get(to)?.ns);
    let wanted = low + FOOT * (high - low);
    let place = (from..=to).find(|&place| curve.get(place).is_some_and(|one| one.ns >= wanted))?;
    let (before, after) = (curve.get(place.checked_sub(1)?)?, curve.get(place)?);
    let part = (wanted - before.ns) / (after.ns - before.ns);
    let [one, other] = [before, after].map(|point| f64::from(point.pages).ln());
    let entries = (one + part.clamp(0.0, 1.0) * (other - one)).exp();
    entries.is_finite().then_some(entries)
}

/// Median of the curve between two numbers of pages; that of the point nearest to their middle if there is none between. `None` without points.
pub(super) fn level(curve: &[Point], from: f64, to: f64) -> Option<f64> {
    let is_between = |point: &&Point| (from..=to).contains(&f64::from(point.pages));
    let mut ns: Vec<f64> = curve.iter().filter(is_between).map(|one| one.ns).collect();
    ns.sort_by(f64::total_cmp);
    ns.get(ns.len() / 2).copied().or_else(|| {
        let middle = (from * to).sqrt().ln();
        let far = |point: &Point| (f64::from(point.pages).ln() - middle).abs();
        let nearest = curve.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
        nearest.map(|point| point.ns)
    })
}

#[cfg(test)]
mod tests;
