//! Summary of the samples of a size.

use serde::{Deserialize, Serialize};
use superhue_measure::Interval;
use superhue_measure::stats::bootstrap::{medians, middle};
use superhue_measure::stats::quantile::{median, quantile, sorted};
use superhue_measure::summary::FEWEST;

use super::{ArmResult, PointResult};
use crate::arm::Arm;
use crate::workload::Figure;

/// Resamples for an interval.
const RESAMPLES: usize = 4000;
/// Least number of allocations for a spread.
const FEW: usize = 5;

/// Estimate with its uncertainty (95 %, percentile bootstrap).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// Interval of the estimate; `None` with fewer than four values, or where an end is not finite.
    pub interval: Option<Interval>,
}

/// Summary of the allocations of one arm at one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    /// Median of the figures of allocations, in the workload's unit.
    pub median: Estimate,
    /// The 5th percentile of allocations.
    pub p5: f64,
    /// The 95th.
    pub p95: f64,
    /// `p95 / p5`: the spread between allocations, 1 if all allocations are equally fast. `None` for fewer than five
    /// allocations.
    pub spread: Option<f64>,
    /// Gain over the kernel's median, as a factor: above 1 is better. `None` for the kernel itself.
    pub gain: Option<Estimate>,
    /// Gain over the kernel's unlucky tenth, as a factor: the median against the quantile that nine of ten allocations
    /// of the kernel beat.
    pub gain_unlucky: Option<f64>,
}

/// The figure of each allocation: that of its best pass. All passes of an allocation have the same pages. All that
/// differs between them (interrupts, time slices of other threads on this CPU, which fill its caches) makes them
/// slower.
#[must_use]
pub fn figures(figure: &Figure, arm: &ArmResult) -> Vec<f64> {
    let best = |a: &f64, b: &f64| {
        if figure.lower_is_better {
            a.total_cmp(b)
        } else {
            b.total_cmp(a)
        }
    };
    let of = |passes: &Vec<f64>| passes.iter().copied().min_by(best);
    sorted(&arm.samples.iter().filter_map(of).collect::<Vec<f64>>())
}

/// Computes the summaries of all arms.
pub(crate) fn summarise(figure: &Figure, point: &mut PointResult) {
    let kernel = point
        .arms
        .iter()
        .find(|arm| arm.arm == Arm::Kernel)
        .map(|arm| figures(figure, arm));
    for (seed, arm) in (1..).zip(&mut point.arms) {
        let kernel = kernel.as_deref().filter(|_| arm.arm != Arm::Kernel);
        arm.summary = summary(figure, &figures(figure, arm), kernel, seed);
    }
}

/// Returns the interval of a resampled estimate, if it rests on at least [`FEWEST`] allocations.
fn interval(resampled: Vec<f64>, fewest: usize) -> Option<Interval> {
    (fewest >= FEWEST).then(|| middle(resampled)).flatten()
}

fn summary(figure: &Figure, ours: &[f64], kernel: Option<&[f64]>, seed: u64) -> Option<ArmSummary> {
    let resampled = medians(ours, RESAMPLES, seed);
    let centre = median(ours)?;
    let (p5, p95) = (quantile(ours, 0.05)?, quantile(ours, 0.95)?);
    let gain = kernel.and_then(|kernel| {
        let gains = resampled.iter().zip(medians(kernel, RESAMPLES, seed + 100));
        let gains = gains
            .map(|(ours, kernel)| figure.gain(*ours, kernel))
            .collect();
        Some(Estimate {
            value: figure.gain(centre, median(kernel)?),
            interval: interval(gains, ours.len().min(kernel.len())),
        })
    });
    let unlucky = kernel.and_then(|kernel| {
        let worst = if figure.lower_is_better { 0.9 } else { 0.1 };
        quantile(kernel, worst)
    });
    Some(ArmSummary {
        median: Estimate {
            value: centre,
            interval: interval(resampled, ours.len()),
        },
        p5,
        p95,
        spread: (ours.len() >= FEW).then_some(p95 / p5),
        gain,
        gain_unlucky: unlucky.map(|unlucky| figure.gain(centre, unlucky)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(lower_is_better: bool) -> Figure {
        Figure {
            unit: "u".to_owned(),
            lower_is_better,
            per: 1.0,
        }
    }

    #[test]
    fn gains_are_against_the_median_and_the_unlucky_tenth() {
        let kernel: Vec<f64> = (10..=20).map(f64::from).collect();
        let ours = vec![10.0; 11];
        let summary = summary(&figure(true), &ours, Some(&kernel), 1).unwrap();
        assert_eq!(summary.gain.unwrap().value, 1.5);
        assert_eq!(summary.gain_unlucky, Some(1.9));
        assert_eq!(summary.spread, Some(1.0));
        let interval = summary.gain.unwrap().interval.unwrap();
        assert!(interval.low < 1.5 && 1.5 < interval.high);
    }

    #[test]
    fn of_rates_the_unlucky_tenth_is_the_slow_one() {
        let kernel: Vec<f64> = (10..=20).map(f64::from).collect();
        let summary = summary(&figure(false), &[22.0; 5], Some(&kernel), 1).unwrap();
        assert_eq!(summary.gain_unlucky, Some(2.0));
    }

    #[test]
    fn few_allocations_have_no_spread_and_none_no_summary() {
        let few = summary(&figure(true), &[1.0, 2.0], None, 1).unwrap();
        assert_eq!((few.spread, few.gain, few.gain_unlucky), (None, None, None));
        assert!(summary(&figure(true), &[], None, 1).is_none());
        assert_eq!(few.median.interval, None);
        let (three, four) = ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 4.0]);
        let gain = |ours: &[f64], kernel: &[f64]| {
            let summary = summary(&figure(true), ours, Some(kernel), 1).unwrap();
            summary.gain.unwrap().interval
        };
        assert!(gain(&three, &four).is_none() && gain(&four, &three).is_none());
        assert!(gain(&four, &four).is_some());
    }
}
