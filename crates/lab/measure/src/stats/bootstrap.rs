//! Percentile bootstrap of medians.
//!
//! A *resample* draws as many values as there are, with replacement; the spread of the medians of
//! many resamples stands for the spread that repeating the experiment would show (Efron 1979).
//!
//! The intervals are percentile intervals, not BCa: BCa takes its acceleration from the jackknife, which is inconsistent for the median
//! (Efron & Tibshirani, *An Introduction to the Bootstrap*, 1993, chapter 11), so the refinement would rest on a wrong number.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

/// Level of every interval: 95 %.
pub const LEVEL: f64 = 0.95;

/// A closed interval, `low <= high`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Interval {
    /// Returns true if `value` lies outside.
    #[must_use]
    pub fn excludes(&self, value: f64) -> bool {
        value < self.low || self.high < value
    }
}

/// Returns the medians of `resamples` resamples of the ascending values, in the order drawn.
///
/// Equal arguments give equal medians. Empty for no values.
#[must_use]
pub fn medians(ascending: &[f64], resamples: usize, seed: u64) -> Vec<f64> {
    let n = ascending.len();
    if n == 0 {
        return Vec::new();
    }
    if ascending[0] == ascending[n - 1] {
        return vec![ascending[0]; resamples];
    }
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let mut times_drawn = vec![0usize; n];
    // The value of rank `rank` (from 0) of the resample, found by counting instead of sorting.
    let ranked = |times_drawn: &[usize], rank: usize| {
        let mut seen = 0;
        let place = times_drawn.iter().position(|times| {
            seen += times;
            seen > rank
        });
        ascending[place.unwrap_or(n - 1)]
    };
    (0..resamples)
        .map(|_| {
            times_drawn.fill(0);
            for _ in 0..n {
                times_drawn[rng.random_range(0..n)] += 1;
            }
            let (low, high) = ((n - 1) / 2, n / 2);
            f64::midpoint(ranked(&times_drawn, low), ranked(&times_drawn, high))
        })
        .collect()
}

/// Returns the interval of the ratio of the first values' mean to the second ones', by resampling the pairs: what slows both values of a pair cancels.
///
/// Equal arguments give equal intervals. `None` for no pairs, or means that are zero.
#[must_use]
pub fn mean_ratio(pairs: &[(f64, f64)], resamples: usize, seed: u64) -> Option<Interval> {
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(seed);
    let ratios = (0..resamples).map(|_| {
        let drawn = (0..pairs.len()).filter_map(|_| pairs.get(rng.random_range(0..pairs.len())));
        let (first, second) = drawn.fold((0.0, 0.0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        first / second
    });
    (!pairs.is_empty()).then(|| middle(ratios.collect()))?
}

/// Returns the interval that holds the middle [`LEVEL`] of the values, its ends rounded outwards to values that occurred. `None` for no values, or
/// where an end is not finite (a ratio to a median that is zero in too many resamples).
#[must_use]
pub fn middle(mut values: Vec<f64>) -> Option<Interval> {
    let last = values.len().checked_sub(1)?;
    values.sort_by(f64::total_cmp);
    let tail = (1.0 - LEVEL) / 2.0;
    let low = values[(tail * last as f64).floor() as usize];
    let high = values[((1.0 - tail) * last as f64).ceil() as usize];
    (low.is_finite() && high.is_finite()).then_some(Interval { low, high })
}

/// Returns `a / b` for values that are not negative; 1 for 0/0, because two zeros do not differ.
#[must_use]
pub fn ratio(a: f64, b: f64) -> f64 {
    if a == b { 1.0 } else { a / b }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_of_means_shows_what_a_median_hides() {
        let even = [(1.0, 2.0), (2.0, 4.0), (4.0, 8.0)];
        let halves = mean_ratio(&even, 100, 1).unwrap();
        assert_eq!((halves.low, halves.high), (0.5, 0.5));
        let slow: Vec<(f64, f64)> = (0..24)
            .map(|round| (if round % 4 == 0 { 2.0 } else { 1.0 }, 1.0))
            .collect();
        let interval = mean_ratio(&slow, 2000, 1).unwrap();
        assert!(interval.low > 1.05 && interval.high < 1.5, "{interval:?}");
        assert_eq!(mean_ratio(&[], 100, 1), None);
        assert_eq!(mean_ratio(&[(1.0, 0.0)], 100, 1), None);
    }

    /// Compares with the exact chance that the median of a resample of five is the smallest value: at least three of five draws, each with chance
    /// 1/5.
    #[test]
    fn agrees_with_the_exact_distribution_for_five_values() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0];
        let drawn = medians(&values, 100_000, 1);
        let share = |value: f64| {
            drawn.iter().filter(|median| **median == value).count() as f64 / drawn.len() as f64
        };
        let lowest =
            10.0 * 0.2f64.powi(3) * 0.8f64.powi(2) + 5.0 * 0.2f64.powi(4) * 0.8 + 0.2f64.powi(5);
        assert!((share(1.0) - lowest).abs() < 0.004, "{}", share(1.0));
        assert!((share(5.0) - lowest).abs() < 0.004, "{}", share(5.0));
        assert!((0.35..0.38).contains(&share(3.0)), "{}", share(3.0));
    }

    #[test]
    fn even_counts_take_the_midpoint_of_the_middle_two() {
        let drawn = medians(&[1.0, 3.0], 10_000, 3);
        assert!(drawn.iter().all(|median| [1.0, 2.0, 3.0].contains(median)));
        let middle = drawn.iter().filter(|median| **median == 2.0).count();
        assert!((4700..5300).contains(&middle), "{middle}");
    }

    #[test]
    fn the_interval_is_the_middle_part() {
        let interval = middle((0..=1000).map(f64::from).collect()).unwrap();
        assert_eq!((interval.low, interval.high), (25.0, 975.0));
        assert!(interval.excludes(24.9) && !interval.excludes(25.0));
        assert_eq!(middle(vec![]), None);
        assert_eq!(middle(vec![f64::INFINITY; 100]), None);
    }

    #[test]
    fn the_seed_decides() {
        let values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0];
        assert_eq!(medians(&values, 50, 9), medians(&values, 50, 9));
        assert_ne!(medians(&values, 50, 9), medians(&values, 50, 10));
        assert!(medians(&[], 10, 0).is_empty());
        assert_eq!(medians(&[2.0, 2.0], 3, 0), [2.0; 3]);
    }
}
