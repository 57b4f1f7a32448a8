//! Pure functions that estimate a gain, with its interval, from touches and the cost of a walk.
//!
//! ```text
//!   windows ──fit──> rates ──TLB──> misses per CPU second   x   cost of a miss at that footprint   =   share of CPU time
//!      |                                  |                            |
//!      +--- drawn again and again --------+-- sampling error           +-- from overlapped to exposed
//! ```

use serde::Serialize;
use superhue_color::walks::{WalkCost, WalkCosts};
use superhue_model::ByteCount;

use super::rates::{Rates, Window, in_order};

/// No program spends more of its time than this on walks.
const MAX_WALK_SHARE: f64 = 0.9;

/// The part of the cost that stays if other work hides as much of it as it did in any synthetic mixture but one.
const HIDDEN: f64 = 0.5;

/// A miss that a program waits for costs this many times as much as in a loop that does nothing else: the program's data pushes page tables out of
/// the caches. This and the next two constants are fitted to the programs of `scripts/advise training` and of two validations.
const AMONG_WORK: f64 = 1.8;

/// Miss rates at which misses begin to overlap, and from which on all of them overlap, as multiples of the miss rate of a chain of loads: every
/// program has something to do besides waiting.
const OVERLAPPING: [f64; 2] = [0.85, 1.3];

/// Pages touched in order save a program this part of what they save a loop that does nothing else: while a program works on a page, the processor is
/// ahead of it.
const AHEAD: f64 = 0.25;

/// Misses are taken to be spread over the memory that is touched within this many seconds.
const SPREAD: f64 = 0.1;

/// Largest relative error of counted misses: from the watching itself, and from sharing the hardware's counters.
const COUNTED_ERROR: f64 = 0.1;

/// Number of times the windows are drawn again.
const DRAWS: u64 = 60;

/// Observations of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct AccessObservations {
    /// Windows of observation: each is a set of pages watched together.
    pub windows: Vec<Window>,
    /// TLB misses per CPU second, where the processor counts them.
    pub counted_misses: Option<f64>,
    /// Base pages that the TLB has to hold.
    pub pages: f64,
    /// The share of them that could be in huge pages, 0 to 1.
    pub possible: f64,
    /// The share of the touched ones that lie side by side with their neighbours, 0 to 1.
    pub together: f64,
}

/// A figure with the bounds between which it probably lies.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// At least.
    pub low: f64,
    /// Most likely.
    pub likely: f64,
    /// At most.
    pub high: f64,
}

/// Cost of a miss, in seconds, depending on what the program does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// If loads do not wait for each other.
    pub apart: f64,
    /// If each waits for the one before.
    pub chained: f64,
    /// If they come page after page, where huge pages also let the processor fetch ahead.
    pub in_order: f64,
}

/// Gain from huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The share of the program's CPU time that would be saved, 0 to 1.
    pub gain: Interval,
    /// TLB misses per second of its CPU time.
    pub misses_per_second: Interval,
    /// Cost of one of these misses, in seconds.
    pub miss_seconds: Bounds,
    /// True if the processor counted the misses; otherwise they are modelled from the observed touches.
    pub misses_counted: bool,
    /// The share of them that come page after page, 0 to 1.
    pub in_order_share: f64,
    /// The share of the pages whose frames lie side by side with their neighbours', 0 to 1: their misses are cheaper.
    pub together_share: f64,
    /// The memory over which the misses are spread.
    pub missing_bytes: ByteCount,
}

/// Memory in use at a time; it does not depend on the TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HotMemory {
    /// Touched within 1 ms of CPU time.
    pub within_1ms: ByteCount,
    /// Touched within 100 ms.
    pub within_100ms: ByteCount,
}

impl HotMemory {
    /// Computes it from the observations of a program; `None` without windows.
    #[must_use]
    pub fn of(seen: &AccessObservations) -> Option<Self> {
        let rates = Rates::fit(&seen.windows)?;
        let within = |seconds| pages_bytes(seen.pages * rates.touched_within(seconds));
        Some(Self {
            within_1ms: within(1e-3),
            within_100ms: within(0.1),
        })
    }
}

/// Estimates the gain of a program whose TLB holds `entries` base pages, on a machine where walks cost `costs`.
///
/// `None` without windows or costs.
#[must_use]
pub fn estimate(seen: &AccessObservations, entries: f64, costs: &WalkCosts) -> Option<Estimate> {
    redrawn_estimate(seen, entries, costs, DRAWS)
}

/// Does the same with intervals from `draws` draws; the likely figures do not depend on them.
fn redrawn_estimate(
    seen: &AccessObservations,
    entries: f64,
    costs: &WalkCosts,
    draws: u64,
) -> Option<Estimate> {
    let likely = Rates::fit(&seen.windows)?;
    let misses = likely.misses(seen.pages, entries);
    // Page tables spread over all memory that the program touches, not only over the pages that miss most.
    let spread = seen.pages * likely.touched_within(SPREAD);
    let cost = between(
        &cost_at(&costs.scattered, spread)?,
        &cost_at(&costs.together, spread)?,
        seen.together,
    );
    let mut drawn: Vec<f64> = (0..draws)
        .filter_map(|draw| {
            let rates = Rates::fit(&redrawn(&seen.windows, draw))?;
            Some(rates.misses(seen.pages, entries).per_second)
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| quantile(&drawn, share).unwrap_or(misses.per_second);
    let modelled = Interval {
        low: at(0.025).min(misses.per_second),
        likely: misses.per_second,
        high: at(0.975).max(misses.per_second),
    };
    let rate = seen.counted_misses.map_or(modelled, |counted| Interval {
        low: counted * (1.0 - COUNTED_ERROR),
        likely: counted,
        high: counted * (1.0 + COUNTED_ERROR),
    });
    let in_order_share = misses
        .memory_seconds
        .map_or(0.0, |seconds| in_order(&seen.windows, seconds));
    let Interval {
        low,
        likely: middle,
        high,
    } = gains(rate, in_order_share, &cost);
    let gain = |share: f64| (share * seen.possible).clamp(0.0, MAX_WALK_SHARE);
    Some(Estimate {
        gain: Interval {
            low: gain(low),
            likely: gain(middle),
            high: gain(high),
        },
        misses_per_second: rate,
        miss_seconds: Bounds {
            apart: cost.apart_ns * 1e-9,
            chained: cost.chained_ns * 1e-9,
            in_order: cost.in_order_ns * 1e-9,
        },
        misses_counted: seen.counted_misses.is_some(),
        in_order_share,
        together_share: seen.together,
        missing_bytes: pages_bytes(misses.pages),
    })
}

fn pages_bytes(pages: f64) -> ByteCount {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "clamped"
    )]
    let pages = pages.clamp(0.0, 1e12).round() as u64;
    ByteCount(pages * superhue_model::BASE_PAGE_SIZE)
}

/// Returns the cost of a miss among `pages` pages. Between measured footprints the cost is interpolated over the logarithm of the footprint; beyond
/// them it stays constant.
fn cost_at(costs: &[WalkCost], pages: f64) -> Option<WalkCost> {
    let bytes = pages * superhue_model::BASE_PAGE_SIZE as f64;
    let above = costs
        .iter()
        .position(|cost| cost.footprint.0 as f64 >= bytes);
    let (one, other) = match above {
        Some(0) => (costs.first()?, costs.first()?),
        Some(place) => (costs.get(place - 1)?, costs.get(place)?),
        None => (costs.last()?, costs.last()?),
    };
    let (from, to) = (one.footprint.0 as f64, other.footprint.0 as f64);
    let part = if to > from {
        ((bytes / from).ln() / (to / from).ln()).clamp(0.0, 1.0)
    } else {
        0.0
    };
    Some(between(one, other, part))
}

/// Interpolates between two costs; `part` is 0 at `one` and 1 at `other`.
fn between(one: &WalkCost, other: &WalkCost, part: f64) -> WalkCost {
    let between = |figure: fn(&WalkCost) -> f64| figure(one) * (1.0 - part) + figure(other) * part;
    WalkCost {
        footprint: other.footprint,
        apart_ns: between(|cost| cost.apart_ns),
        chained_ns: between(|cost| cost.chained_ns),
        in_order_ns: between(|cost| cost.in_order_ns),
        apart_gain: between(|cost| cost.apart_gain),
        chained_gain: between(|cost| cost.chained_gain),
        in_order_gain: between(|cost| cost.in_order_gain),
    }
}

/// Multiplies misses by their cost, by the order in which pages are touched.
fn gains(rate: Interval, in_order_share: f64, cost: &WalkCost) -> Interval {
    let (chained_ns, chained_gain) = chained_among_work(cost);
    let most = cost.apart_gain.max(chained_gain).max(cost.in_order_gain);
    let scanned = |rate: f64| (rate * cost.in_order_ns * 1e-9).min(cost.in_order_gain) * AHEAD;
    let of =
        |rate: f64| at_random(rate, cost) * (1.0 - in_order_share) + scanned(rate) * in_order_share;
    let (low, likely) = (of(rate.low) * HIDDEN, of(rate.likely));
    let dearest = chained_ns.max(cost.in_order_ns) * 1e-9;
    Interval {
        low: low.min(likely),
        likely,
        high: (rate.high * dearest).min(most).max(likely),
    }
}

/// Returns the share of CPU time saved by a program that touches pages in no order.
///
/// ```text
///   gain |          . loads that wait
///        |        .' \\
///        |      .'    \\    loads that overlap
///        |    .'       '----------
///        |  .'
///        +----------+--+---------- misses per second
/// ```
///
/// Up to about the rate at which a chain of loads can miss, a miss costs as much as a chain waits for it. At higher rates misses must overlap, and
/// programs that overlap some misses overlap nearly all: their gain is that of loads that do not wait for each other. In real programs a miss costs
/// 40 to 100 ns at 2 to 4 million misses a second, and 6 to 18 ns at more than 6 million (docs/results/advise.md).
fn at_random(rate: f64, cost: &WalkCost) -> f64 {
    let (chained_ns, chained_gain) = chained_among_work(cost);
    let waited = |rate: f64| (rate * chained_ns * 1e-9).min(chained_gain);
    let chain = cost.chained_gain / (cost.chained_ns * 1e-9);
    let [some, all] = OVERLAPPING.map(|times| chain * times);
    if rate > some {
        let part = ((rate / some).ln() / (all / some).ln()).min(1.0);
        waited(some) * (1.0 - part) + cost.apart_gain * part
    } else {
        waited(rate)
    }
}

/// Returns the cost of a miss that a program waits for, in nanoseconds, and the most that a chain of loads can save, if each miss costs
/// [`AMONG_WORK`] times the measured cost.
fn chained_among_work(cost: &WalkCost) -> (f64, f64) {
    let gain = cost.chained_gain;
    (
        cost.chained_ns * AMONG_WORK,
        gain * AMONG_WORK / (1.0 + gain * (AMONG_WORK - 1.0)),
    )
}

/// Draws as many windows from `windows` at random, with replacement: another look at the program might have shown these.
fn redrawn(windows: &[Window], seed: u64) -> Vec<Window> {
    let mut state = seed
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(0x1234_5678_9abc_def1)
        | 1;
    let count = windows.len() as u64;
    (0..count)
        .filter_map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            #[allow(
                clippy::cast_possible_truncation,
                reason = "below the number of windows"
            )]
            let place = ((u128::from(state) * u128::from(count)) >> 64) as usize;
            windows.get(place).copied()
        })
        .collect()
}

fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an index"
    )]
    let place = ((sorted.len().checked_sub(1)?) as f64 * share).round() as usize;
    sorted.get(place).copied()
}

#[cfg(test)]
mod tests;
