//! Conditions of a gate, as the user writes them, and what becomes of them; [`gate`](crate::gate) judges them.

use serde::{Deserialize, Serialize};

use crate::design::{Arm, arms_per_value};
use crate::human::{clean, listed};
use crate::metric::Metric;
use crate::summary::Estimate;

/// Rule by which a condition fails the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// Fails the comparison if the condition is shown to hold.
    FailIf,
    /// Fails the comparison unless the condition is shown to hold.
    FailUnless,
}

impl Demand {
    /// Returns the option's name: `--fail-if`.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::FailIf => "--fail-if",
            Self::FailUnless => "--fail-unless",
        }
    }
}

/// Side of the threshold on which the ratio must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// `<`
    Below,
    /// `>`
    Above,
}

/// Condition that was parsed; its metric and arms exist.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    pub(crate) text: String,
    pub(crate) demand: Demand,
    pub(crate) metric: String,
    pub(crate) side: Side,
    /// Threshold of the ratio: 0.98 for -2 %.
    pub(crate) threshold: f64,
    /// Indices of the arms to which it applies; at least one.
    pub(crate) arms: Vec<usize>,
}

/// Reason why a condition cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// The condition is not of the form `METRIC < PERCENT%`.
    #[error("`{0}` is no condition: write [ARM:]METRIC < PERCENT% or > PERCENT%, e.g. 'ops < -2%'")]
    Form(String),
    /// The text after `<` or `>` is not a percentage above -100 %.
    #[error("`{condition}`: `{text}` is no percentage above -100% (e.g. -2%, 0%, +5%)")]
    Percentage {
        /// The whole condition.
        condition: String,
        /// Text after `<` or `>`.
        text: String,
    },
    /// There is no such metric.
    #[error("`{condition}`: there is no metric `{name}`; there are {known}")]
    Metric {
        /// The whole condition.
        condition: String,
        /// The given name.
        name: String,
        /// Names of the metrics that exist.
        known: String,
    },
    /// There is no such arm.
    #[error("`{condition}`: there is no arm `{name}`; there are {known}")]
    Arm {
        /// The whole condition.
        condition: String,
        /// The given name.
        name: String,
        /// Names of the arms that exist.
        known: String,
    },
    /// The named arm is the reference.
    #[error(
        "`{condition}`: `{name}` is what the other arms are compared with; name one of {known}"
    )]
    Reference {
        /// The whole condition.
        condition: String,
        /// The given name.
        name: String,
        /// Names of the other arms.
        known: String,
    },
}

/// Condition and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateResult {
    /// Rule by which it fails the comparison.
    pub demand: Demand,
    /// The condition as the user wrote it.
    pub condition: String,
    /// Name of the metric.
    pub metric: String,
    /// Side of the threshold on which the ratio must lie for the condition to hold.
    pub side: Side,
    /// Threshold of the ratio to the reference: 0.98 for -2 %.
    pub threshold: f64,
    /// Result of the gate.
    pub outcome: Outcome,
    /// Reason why it was not judged; `None` if it was.
    pub why_not_judged: Option<String>,
    /// Findings, one for each arm to which the condition applies.
    pub findings: Vec<Finding>,
}

/// Result of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The gate does not fail the comparison.
    Passed,
    /// The gate fails the comparison.
    Failed,
    /// The result of the comparison is incomplete, and the values that it has do not fail it.
    NotJudged,
}

/// Result of a condition for one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Index of the arm.
    pub arm: usize,
    /// Judgement on whether the condition holds for the arm.
    pub judgement: Judgement,
    /// Reason why it was not judged; `None` if it was.
    pub why_not_judged: Option<String>,
    /// Ratio of the arm's median to that of its reference, with its 95 % interval.
    pub ratio: Option<Estimate>,
    /// Two-sided rank-sum p-value of the arm against the reference times the threshold.
    pub p: Option<f64>,
    /// The same p-value, Holm-corrected over all questions that the gates ask.
    pub p_corrected: Option<f64>,
    /// Ratio beyond the threshold that this many runs, with the spread that they had, show to be beyond it in four of five cases; `None` where the
    /// spread is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detectable: Option<f64>,
}

/// Judgement on whether a condition holds for an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// The condition is shown to hold.
    Holds,
    /// The condition is shown not to hold.
    DoesNotHold,
    /// Neither is shown.
    Undecided,
    /// There are no values, or too few, or no ratio.
    NotJudged,
}

impl Condition {
    /// Parses `[ARM:]METRIC < PERCENT%` or `>`. Without an arm it applies to all arms but the reference.
    ///
    /// # Errors
    /// Fails if the text has another form, or names a metric or an arm that does not exist.
    pub fn parse(
        text: &str,
        demand: Demand,
        arms: &[Arm],
        metrics: &[Metric],
        reference: usize,
    ) -> Result<Self, ConditionError> {
        let form = || ConditionError::Form(text.to_owned());
        let at = text.rfind(['<', '>']).ok_or_else(form)?;
        let (left, right) = (text[..at].trim(), text[at + 1..].trim());
        if left.is_empty() || right.is_empty() || right.starts_with('=') {
            return Err(form());
        }
        let side = if text[at..].starts_with('<') {
            Side::Below
        } else {
            Side::Above
        };
        let percent = percentage(right).ok_or_else(|| ConditionError::Percentage {
            condition: text.to_owned(),
            text: right.to_owned(),
        })?;
        let names = Names {
            condition: text,
            arms,
            metrics,
            reference,
        };
        let (arms, metric) = names.resolve(left)?;
        Ok(Self {
            text: text.trim().to_owned(),
            demand,
            metric,
            side,
            threshold: 1.0 + percent / 100.0,
            arms,
        })
    }

    /// Returns the number of questions that it asks: one for each arm to which it applies.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.arms.len()
    }
}

/// Parses `-2%` as -2; `None` if the text cannot be the change of a positive value.
fn percentage(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (number.is_finite() && number > -100.0 && number <= 1e6).then_some(number)
}

/// Names that a condition may use.
struct Names<'a> {
    condition: &'a str,
    arms: &'a [Arm],
    metrics: &'a [Metric],
    reference: usize,
}

impl Names<'_> {
    /// Returns the arms and the metric of `METRIC` or `ARM:METRIC`. Both names may contain colons.
    fn resolve(&self, left: &str) -> Result<(Vec<usize>, String), ConditionError> {
        let each = arms_per_value(self.arms);
        let all = || (0..self.arms.len()).filter(|arm| arm % each != self.reference);
        if self.has_metric(left) {
            return Ok((all().collect(), left.to_owned()));
        }
        let halves = || {
            left.match_indices(':')
                .map(|(at, _)| (left[..at].trim(), left[at + 1..].trim()))
        };
        let known = |name: &str| self.arms[..each].iter().any(|arm| arm.name == name);
        let found = halves()
            .find(|(arm, metric)| known(arm) && self.has_metric(metric))
            .or_else(|| halves().find(|(arm, metric)| known(arm) || self.has_metric(metric)));
        let Some((arm, metric)) = found else {
            return Err(self.no_metric(left));
        };
        if !known(arm) {
            return Err(self.no_arm(arm));
        }
        if !self.has_metric(metric) {
            return Err(self.no_metric(metric));
        }
        let arms: Vec<usize> = all()
            .filter(|&index| self.arms[index].name == arm)
            .collect();
        if arms.is_empty() {
            return Err(ConditionError::Reference {
                condition: self.condition.to_owned(),
                name: arm.to_owned(),
                known: self.names_of_arms(|index| index != self.reference),
            });
        }
        Ok((arms, metric.to_owned()))
    }

    fn has_metric(&self, name: &str) -> bool {
        self.metrics.iter().any(|metric| metric.name == name)
    }

    fn no_metric(&self, name: &str) -> ConditionError {
        let known: Vec<String> = self.metrics.iter().map(|m| clean(&m.name)).collect();
        ConditionError::Metric {
            condition: self.condition.to_owned(),
            name: name.to_owned(),
            known: listed(&known, "and"),
        }
    }

    fn no_arm(&self, name: &str) -> ConditionError {
        ConditionError::Arm {
            condition: self.condition.to_owned(),
            name: name.to_owned(),
            known: self.names_of_arms(|_| true),
        }
    }

    fn names_of_arms(&self, wanted: impl Fn(usize) -> bool) -> String {
        let each = arms_per_value(self.arms);
        let names = (0..each).filter(|index| wanted(*index));
        let names: Vec<String> = names.map(|index| clean(&self.arms[index].name)).collect();
        listed(&names, "and")
    }
}
