//! Summary of the samples: numbers, comparisons, verdicts. [`verdict`](crate::verdict) explains the computation.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::design::Settings;
use crate::stats::bootstrap::Interval;

/// Risk of any false finding in a whole comparison.
///
/// Half of the customary 5 %: a user who compares a program with itself twenty times should nearly always see at most one false finding; at 5 % the
/// user sees more than one every fourth time.
pub const LEVEL: f64 = 0.025;

/// Fewest values that give an interval or a difference: the least and greatest of three values enclose the median in 3 of 4 cases only.
pub const FEWEST: usize = 4;

/// Verdict on one arm on one metric, compared with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Verdict {
    /// The arm is better.
    Better,
    /// The arm is worse.
    Worse,
    /// The arm is higher, on a metric without a direction.
    Higher,
    /// The arm is lower, on a metric without a direction.
    Lower,
    /// No difference was shown. That does not mean that the arms are equal.
    NoDifferenceShown,
    /// With this few good runs even the largest difference could not have been shown.
    TooFewRuns {
        /// Fewest good runs of each arm with which it could.
        needed: usize,
    },
    /// One of the two arms has no value at all.
    NotMeasured,
}

impl Verdict {
    /// Returns true if a difference was shown.
    #[must_use]
    pub const fn is_difference(self) -> bool {
        matches!(
            self,
            Self::Better | Self::Worse | Self::Higher | Self::Lower
        )
    }
}

/// Number and its uncertainty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Best estimate.
    pub value: f64,
    /// 95 % bootstrap interval; `None` with fewer than [`FEWEST`] values.
    pub interval: Option<Interval>,
}

/// Values of one arm on one metric, in the unit of the metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Description {
    /// Median, with its interval.
    pub median: Estimate,
    /// First and third quartile.
    pub quartiles: Interval,
    /// Least and greatest value.
    pub range: Interval,
    /// Median absolute deviation, unscaled.
    pub mad: f64,
}

/// Comparison of an arm with the reference on one metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ReferenceComparison {
    /// Verdict.
    pub verdict: Verdict,
    /// Ratio of the arm's median to that of the reference, after removal of round effects. `None` where it has no meaning: a value is negative, or
    /// the median of the reference is 0 (or could well be).
    pub ratio: Option<Estimate>,
    /// Median over the rounds of the ratio within the round; `None` also if no round has both values.
    pub paired_ratio: Option<Estimate>,
    /// Difference of the arm's median and that of the reference, in the unit of the metric.
    pub difference: Option<Estimate>,
    /// Share of the round effects, as estimated from the other arms, that was removed from both arms; it cancels out of the paired ratio.
    /// 0 (nothing, or fewer than four other arms) to 1.
    #[serde(default)]
    pub evened: f64,
    /// Two-sided rank-sum p-value.
    pub p: Option<f64>,
    /// The same p-value, Holm-corrected over the comparison; `None` if the pair does not count as a question (see [`verdict`](crate::verdict)).
    pub p_corrected: Option<f64>,
}

impl ReferenceComparison {
    /// Returns true if there is a difference beyond chance, however small. If this is true of a [`NoDifferenceShown`](Verdict::NoDifferenceShown),
    /// the difference is below [`Settings::smallest`].
    #[must_use]
    pub fn is_beyond_chance(&self) -> bool {
        // One interval excludes 1 exactly if the other excludes 0, but the shown interval decides.
        let (shown, none) = match self.ratio {
            Some(ratio) => (ratio.interval, 1.0),
            None => (self.difference.and_then(|d| d.interval), 0.0),
        };
        let excluded = shown.is_some_and(|interval| interval.excludes(none));
        excluded && self.p_corrected.is_some_and(|p| p <= LEVEL)
    }
}

/// Summary of one arm on one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    /// Index of the arm.
    pub arm: usize,
    /// Number of good runs that measured the metric.
    pub measured: usize,
    /// Number of good runs that did not.
    pub missing: usize,
    /// Reason of the first run that did not.
    pub why_missing: Option<String>,
    /// Description of the values; `None` if there are none.
    pub values: Option<Description>,
    /// Comparison with the reference; `None` for the reference itself.
    pub against: Option<ReferenceComparison>,
}

/// Summary of all arms on one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// Name of the metric.
    pub metric: String,
    /// Summaries of the arms, in their order.
    pub arms: Vec<ArmSummary>,
}
