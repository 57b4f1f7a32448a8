//! Pure functions that compute the rates at which pages are touched, and the rate at which a TLB must then miss.
//!
//! The input is windows: the number of pages watched, the CPU time that the program had meanwhile, and the number of pages it touched. A page with
//! touch rate *r* is touched within *t* with probability 1 - exp(-r t). Pages differ in their rates, so a mixture of rates explains the windows; its
//! shares are fitted (expectation maximisation, which finds the likeliest):
//!
//! ```text
//!   distinct pages in t     w(t) = n * sum share_k * (1 - exp(-rate_k * t))
//!
//!   w |                 ______.-----    all pages
//!     |          __.---'
//!   C |.......--'                       a TLB of C entries holds what was touched within T
//!     |     .':
//!     |   /   :
//!     +-------+-------------------- t
//!             T
//! ```
//!
//! A TLB that evicts the entry not used for longest keeps the pages touched within the last T, with w(T) = C; a touch of another page misses. So
//! misses come at the rate dw/dt at T: Denning's working-set theory, for independent touches Che's approximation.
//! Time is the program's CPU time, so that sleeping costs nothing and a process on two CPUs has twice the time.

/// Slowest and fastest rate of the mixture, in touches of a page per CPU second, and the number of rates in a factor of ten.
const SLOWEST: f64 = 0.1;
const FASTEST: f64 = 1e6;
const PER_DECADE: f64 = 4.0;

/// Windows whose CPU time differs by less than this factor are taken together.
const BIN: f64 = 1.2;

/// A window is short if it is no longer than the time for which the TLB remembers a page, or than this many seconds.
const SHORTEST: f64 = 50e-6;

/// Number of touches with which the order of touches is as likely as not to show.
const FEW: f64 = 10.0;

/// Rounds of the fit.
const ROUNDS: usize = 400;

/// Pages watched over a window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// CPU time of the program in it, in seconds.
    pub seconds: f64,
    /// Pages watched.
    pub pages: f64,
    /// Pages that were touched.
    pub touched: f64,
    /// Pairs of neighbouring pages that were watched.
    pub pairs: f64,
    /// Pairs of which both pages were touched.
    pub both: f64,
}

/// Distribution of the pages over touch rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    /// Touches of one page per CPU second, and the share of the pages with it; the shares add up to 1.
    parts: Vec<(f64, f64)>,
}

/// Misses of a TLB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Misses {
    /// Per CPU second.
    pub per_second: f64,
    /// Number of pages that the misses are spread over: pages of equal rate that would cause as many misses.
    pub pages: f64,
    /// CPU seconds for which the TLB remembers a page; `None` if it holds all of them.
    pub memory_seconds: Option<f64>,
}

impl Rates {
    /// Returns the mixture that explains the windows best; `None` without a window that has pages and time.
    #[must_use]
    pub fn fit(windows: &[Window]) -> Option<Self> {
        let bins = bins(windows);
        if bins.is_empty() {
            return None;
        }
        let steps = ((FASTEST / SLOWEST).log10() * PER_DECADE).round();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "some dozens"
        )]
        let steps = steps as u32;
        let rates = (0..=steps).map(|step| SLOWEST * 10_f64.powf(f64::from(step) / PER_DECADE));
        let rates: Vec<f64> = std::iter::once(0.0).chain(rates).collect();
        // The probability that a page of each rate is touched in each bin.
        let touched: Vec<Vec<f64>> = bins
            .iter()
            .map(|bin| {
                rates
                    .iter()
                    .map(|rate| -(-rate * bin.seconds).exp_m1())
                    .collect()
            })
            .collect();
        let all: f64 = bins.iter().map(|bin| bin.pages).sum();
        let mut shares = vec![1.0 / rates.len() as f64; rates.len()];
        for _ in 0..ROUNDS {
            let mut next = vec![0.0; shares.len()];
            for (bin, touched) in bins.iter().zip(&touched) {
                let expected: f64 = shares.iter().zip(touched).map(|(s, q)| s * q).sum();
                let hit = if expected > 0.0 {
                    bin.touched / expected
                } else {
                    0.0
                };
                let rest = 1.0 - expected;
                let missed = if rest > 0.0 {
                    (bin.pages - bin.touched) / rest
                } else {
                    0.0
                };
                for ((next, share), q) in next.iter_mut().zip(&shares).zip(touched) {
                    *next += share * (hit * q + missed * (1.0 - q));
                }
            }
            let sum: f64 = next.iter().sum();
            if sum <= 0.0 || !sum.is_finite() || all <= 0.0 {
                break;
            }
            shares = next.into_iter().map(|share| share / sum).collect();
        }
        Some(Self {
            parts: rates.into_iter().zip(shares).collect(),
        })
    }

    /// Makes a mixture of (rate, share); shares are scaled to add up to 1.
    #[must_use]
    pub fn of(parts: &[(f64, f64)]) -> Self {
        let sum: f64 = parts.iter().map(|(_, share)| share).sum();
        Self {
            parts: parts
                .iter()
                .map(|&(rate, share)| (rate, share / sum))
                .collect(),
        }
    }

    /// Returns the share of the pages that is touched within `seconds` of CPU time, 0 to 1.
    #[must_use]
    pub fn touched_within(&self, seconds: f64) -> f64 {
        let sum: f64 = self
            .parts
            .iter()
            .map(|(rate, share)| share * -(-rate * seconds).exp_m1())
            .sum();
        sum.clamp(0.0, 1.0)
    }

    /// Returns touches of a page that was not touched within the last `seconds`, per page and CPU second: the slope of
    /// [`touched_within`](Self::touched_within).
    #[must_use]
    pub fn fresh_touches(&self, seconds: f64) -> f64 {
        self.parts
            .iter()
            .map(|(rate, share)| share * rate * (-rate * seconds).exp())
            .sum()
    }

    /// Returns the misses of a TLB with `entries`, if the program has `pages` pages with these rates.
    #[must_use]
    pub fn misses(&self, pages: f64, entries: f64) -> Misses {
        let memory = self.memory(pages, entries);
        let Some(seconds) = memory else {
            return Misses {
                per_second: 0.0,
                pages: 0.0,
                memory_seconds: None,
            };
        };
        let per_page = self.fresh_touches(seconds);
        let squares: f64 = self
            .parts
            .iter()
            .map(|(rate, share)| share * (rate * (-rate * seconds).exp()).powi(2))
            .sum();
        Misses {
            per_second: pages * per_page,
            pages: if squares > 0.0 {
                pages * per_page * per_page / squares
            } else {
                0.0
            },
            memory_seconds: memory,
        }
    }

    /// Returns the CPU time for which a TLB with `entries` remembers a page: until `entries` other pages were touched. `None` if all pages that are
    /// ever touched fit.
    fn memory(&self, pages: f64, entries: f64) -> Option<f64> {
        let (mut low, mut high) = (0.0_f64, 100.0 / SLOWEST);
        if pages * self.touched_within(high) <= entries {
            return None;
        }
        // w is concave and grows: halve the interval, on a scale that suits times from nanoseconds to minutes.
        for _ in 0..200 {
            let middle = if low > 0.0 {
                (low * high).sqrt()
            } else {
                high / 16.0
            };
            if pages * self.touched_within(middle) < entries {
                low = middle;
            } else {
                high = middle;
            }
            if low > 0.0 && high / low < 1.0 + 1e-9 || high < 1e-12 {
                break;
            }
        }
        Some(high)
    }
}

/// Returns the share of touches that come page after page, 0 to 1: scans.
///
/// In a window no longer than the `memory_seconds` of the TLB few pages are touched. A scan also touches the neighbour of each of them, however short
/// the window is. In any other order the neighbour is touched no more often than any page that is as hot.
#[must_use]
pub fn in_order(windows: &[Window], memory_seconds: f64) -> f64 {
    let longest = memory_seconds.max(SHORTEST);
    let short = windows.iter().filter(|window| window.seconds <= longest);
    let (pages, touched, pairs, both) = short.fold((0.0, 0.0, 0.0, 0.0), |(n, t, p, b), window| {
        (
            n + window.pages,
            t + window.touched,
            p + window.pairs,
            b + window.both,
        )
    });
    let share = touched / pages;
    let found = (both / pairs / share - share) / (1.0 - share);
    let sure = touched / (touched + FEW);
    if found.is_finite() {
        (found * sure).clamp(0.0, 1.0)
    } else {
        0.0
    }
}

/// Merges windows of about the same length, at their mean length.
fn bins(windows: &[Window]) -> Vec<Window> {
    let mut sorted: Vec<Window> = windows
        .iter()
        .copied()
        .filter(|window| window.pages > 0.0 && window.seconds > 0.0 && window.seconds.is_finite())
        .collect();
    sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    let mut bins: Vec<(f64, Window)> = Vec::new();
    for window in sorted {
        match bins.last_mut() {
            Some((first, bin)) if window.seconds < *first * BIN => {
                let pages = bin.pages + window.pages;
                bin.seconds = (bin.seconds * bin.pages + window.seconds * window.pages) / pages;
                bin.pages = pages;
                bin.touched += window.touched;
                bin.pairs += window.pairs;
                bin.both += window.both;
            }
            _ => bins.push((window.seconds, window)),
        }
    }
    bins.into_iter().map(|(_, bin)| bin).collect()
}

#[cfg(test)]
mod tests;
