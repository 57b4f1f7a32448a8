//! From touches and the cost of a walk to a gain, with its interval: pure.
//!
//! ```text
//!   windows ──fit──> rates ──TLB──> misses per CPU second   x   cost of a miss at that footprint   =   share of CPU time
//!      |                                  |                            |
//!      +--- drawn again and again --------+-- sampling error           +-- from overlapped to exposed
//! ```

use serde::Serialize;
use superhue_color::walks::WalkCost;
use superhue_model::ByteCount;

use super::rates::{Rates, Window};

/// No program spends more of its time than this on walks.
const MOST: f64 = 0.9;

/// The part of the cost that stays if other work hides as much of it as it did in any synthetic mixture but one.
const HIDDEN: f64 = 0.5;

/// How often the windows are drawn again.
const DRAWS: u64 = 60;

/// What was seen of a program.
#[derive(Debug, Clone, PartialEq)]
pub struct Observed {
    /// Its windows: each is a set of pages watched together.
    pub windows: Vec<Window>,
    /// Base pages that the TLB has to hold.
    pub pages: f64,
    /// The share of them that could be in superpages, 0 to 1.
    pub possible: f64,
}

/// A figure with the bounds between which it is believed to lie.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// At least.
    pub low: f64,
    /// Most likely.
    pub likely: f64,
    /// At most.
    pub high: f64,
}

/// What a miss costs, in seconds, depending on what the program does meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Bounds {
    /// If loads do not wait for each other.
    pub apart: f64,
    /// If each waits for the one before.
    pub chained: f64,
}

/// What superpages would bring.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The share of the program's CPU time that would be saved, 0 to 1.
    pub gain: Interval,
    /// TLB misses per second of its CPU time.
    pub misses_per_second: Interval,
    /// What one of them costs, in seconds.
    pub miss_seconds: Bounds,
    /// The memory over which the misses are spread.
    pub missing_bytes: ByteCount,
    /// Memory touched within 1 ms and within 100 ms of CPU time.
    pub hot_1ms_bytes: ByteCount,
    /// The same for 100 ms.
    pub hot_100ms_bytes: ByteCount,
}

/// The gain of a program whose TLB holds `entries` base pages, on a machine where walks cost `costs` (ascending by footprint).
///
/// `None` without windows or costs.
#[must_use]
pub fn estimate(seen: &Observed, entries: f64, costs: &[WalkCost]) -> Option<Estimate> {
    let likely = Rates::fit(&seen.windows)?;
    let misses = likely.misses(seen.pages, entries);
    let cost = cost_at(costs, misses.pages)?;
    let mut drawn: Vec<f64> = (0..DRAWS)
        .filter_map(|draw| {
            let rates = Rates::fit(&redrawn(&seen.windows, draw))?;
            Some(rates.misses(seen.pages, entries).per_second)
        })
        .collect();
    drawn.sort_by(f64::total_cmp);
    let at = |share: f64| quantile(&drawn, share).unwrap_or(misses.per_second);
    let rate = Interval {
        low: at(0.025).min(misses.per_second),
        likely: misses.per_second,
        high: at(0.975).max(misses.per_second),
    };
    let Interval {
        low,
        likely: middle,
        high,
    } = gains(rate, &cost);
    let gain = |share: f64| (share * seen.possible).clamp(0.0, MOST);
    let bytes = |seconds| pages_bytes(seen.pages * likely.touched_within(seconds));
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
        },
        missing_bytes: pages_bytes(misses.pages),
        hot_1ms_bytes: bytes(1e-3),
        hot_100ms_bytes: bytes(0.1),
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

/// The cost of a miss among `pages` pages; between the footprints that were measured it is taken to go with the logarithm of the
/// footprint, beyond them to stay.
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
    let between = |figure: fn(&WalkCost) -> f64| figure(one) * (1.0 - part) + figure(other) * part;
    Some(WalkCost {
        footprint: other.footprint,
        apart_ns: between(|cost| cost.apart_ns),
        chained_ns: between(|cost| cost.chained_ns),
        in_order_ns: between(|cost| cost.in_order_ns),
        apart_gain: between(|cost| cost.apart_gain),
        chained_gain: between(|cost| cost.chained_gain),
        in_order_gain: between(|cost| cost.in_order_gain),
    })
}

/// Misses times their cost. Misses that come so fast that the program could do nothing else overlap: then superpages save what they save a
/// program that does nothing else.
///
/// ```text
///   gain |        ______________  most, if loads wait       high
///        |      .'
///        |    .'    ____________  most, if they overlap
///        |  .'__.--'
///        |.:-'
///        +---------------------- misses per second
/// ```
///
/// Likely is halfway between both bounds, each reached at the cost of a miss that is waited for: between its accesses a program works,
/// and what waits for the misses is that work. At least it is half of that, if other work hides the rest. So it came out on synthetic
/// mixtures of loads, scans and work, and was kept for real programs.
fn gains(rate: Interval, cost: &WalkCost) -> Interval {
    let most = cost.apart_gain.max(cost.chained_gain);
    let waited = |rate: f64, bound: f64| (rate * cost.chained_ns * 1e-9).min(bound);
    let halfway = |rate: f64| {
        f64::midpoint(
            waited(rate, cost.chained_gain),
            waited(rate, cost.apart_gain),
        )
    };
    let (low, likely) = (halfway(rate.low) * HIDDEN, halfway(rate.likely));
    Interval {
        low: low.min(likely),
        likely,
        high: waited(rate.high, most).max(likely),
    }
}

/// As many windows, drawn from them at random: what another look at the program might have shown.
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
