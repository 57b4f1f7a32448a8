//! What the samples come to: numbers, comparisons, verdicts. How they are computed is told in
//! [`verdict`](crate::verdict).

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use crate::design::Settings;
use crate::stats::bootstrap::Interval;
#[cfg(doc)]
use crate::verdict::FEWEST;
use crate::verdict::LEVEL;

/// What is said about one arm on one metric, compared with the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "kebab-case")]
pub enum Verdict {
    /// The arm is better.
    Better,
    /// The arm is worse.
    Worse,
    /// The arm is higher, on a metric that does not judge.
    Higher,
    /// The arm is lower, on a metric that does not judge.
    Lower,
    /// No difference was shown. That is not the same as "they are equal".
    NoDifferenceShown,
    /// So few good runs could not have shown even the largest difference.
    TooFewRuns {
        /// Good runs of each arm from which on they could.
        needed: usize,
    },
    /// One of the two arms has no value at all.
    NotMeasured,
}

impl Verdict {
    /// Whether a difference was shown.
    #[must_use]
    pub const fn is_difference(self) -> bool {
        matches!(
            self,
            Self::Better | Self::Worse | Self::Higher | Self::Lower
        )
    }
}

/// A number and how far it could be off.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// The best guess.
    pub value: f64,
    /// The 95 % bootstrap interval; `None` of fewer than [`FEWEST`] values.
    pub interval: Option<Interval>,
}

/// The values of one arm on one metric, in the unit of the metric.
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

/// An arm compared with the reference on one metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Against {
    /// What is said.
    pub verdict: Verdict,
    /// Median of the arm over that of the reference, rounds evened out. `None` where that has no meaning: a value is
    /// negative, or the median of the reference is 0 (or could well be).
    pub ratio: Option<Estimate>,
    /// Median over the rounds of the ratio within the round; `None` also where no round has both.
    pub paired_ratio: Option<Estimate>,
    /// Median of the arm minus that of the reference, in the unit of the metric.
    pub difference: Option<Estimate>,
    /// How much of what slowed whole rounds, as the other arms tell it, was taken out of both arms before all but the paired ratio was
    /// computed: 0 (nothing, or fewer than four other arms) to 1.
    #[serde(default)]
    pub evened: f64,
    /// Two-sided rank-sum p-value.
    pub p: Option<f64>,
    /// The same, Holm-corrected over the comparison; `None` where the question was none (see
    /// [`verdict`](crate::verdict)).
    pub p_corrected: Option<f64>,
}

impl Against {
    /// Whether there is a difference beyond chance, however small: what is left of a
    /// [`NoDifferenceShown`](Verdict::NoDifferenceShown) if this is true is that the difference is
    /// below [`Settings::smallest`].
    #[must_use]
    pub fn is_beyond_chance(&self) -> bool {
        // One interval excludes 1 just where the other excludes 0, but the one shown decides.
        let (shown, none) = match self.ratio {
            Some(ratio) => (ratio.interval, 1.0),
            None => (self.difference.and_then(|d| d.interval), 0.0),
        };
        let excluded = shown.is_some_and(|interval| interval.excludes(none));
        excluded && self.p_corrected.is_some_and(|p| p <= LEVEL)
    }
}

/// One arm on one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ArmSummary {
    /// Index of the arm.
    pub arm: usize,
    /// Good runs that measured the metric.
    pub measured: usize,
    /// Good runs that did not.
    pub missing: usize,
    /// Why the first of these did not.
    pub why_missing: Option<String>,
    /// The values; `None` if there are none.
    pub values: Option<Description>,
    /// The comparison; `None` for the reference itself.
    pub against: Option<Against>,
}

/// All arms on one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MetricSummary {
    /// Name of the metric.
    pub metric: String,
    /// One for every arm, in their order.
    pub arms: Vec<ArmSummary>,
}
