//! Conditions that decide an exit status: `--fail-if 'ops < -2%'`, for a gate in continuous
//! integration.
//!
//! A condition speaks of the ratio of an arm's median to that of its reference: `ops < -2%` is "the
//! median of ops is more than 2 % below that of the reference", a ratio below 0.98. It is about every
//! arm but the reference, at every value of the parameters, unless it names an arm (`hot: ops < -2%`).
//!
//! What counts is what is *shown*, not the point estimate: of a thing compared with itself the
//! estimate is below 0 % every second time, and a gate that fails by chance is soon ignored. As with
//! verdicts, two things must hold:
//!
//! 1. the 95 % interval of the ratio lies wholly on the condition's side of the threshold;
//! 2. the rank-sum test between the arm and the reference *times the threshold*, Holm-corrected over
//!    all that the gates of this comparison ask, gives at most 0.025. The interval alone is too narrow
//!    when runs are few, and is not corrected for many questions.
//!
//! So each condition is found to hold, not to hold, or neither can be told. There are two ways to
//! use that, for the two errors that one may want to avoid:
//!
//! | demand        | fails when the condition         | noise makes it |
//! |---------------|----------------------------------|----------------|
//! | `fail-if`     | is shown to hold                 | pass           |
//! | `fail-unless` | is not shown to hold             | fail           |
//!
//! No gate passes on an incomplete result: with failed runs, missing values, or stopped early, what
//! is left may be a flattering selection. It is then *not judged*, unless what is there suffices to
//! fail it.

use serde::{Deserialize, Serialize};

use crate::design::{Arm, arms_per_value};
use crate::human::{clean, listed, ratio};
use crate::metric::Metric;
use crate::result::Comparison;
use crate::stats::bootstrap::Interval;
use crate::stats::holm::holm;
use crate::stats::rank_sum::rank_sum;
use crate::summary::Estimate;
use crate::verdict::{LEVEL, runs_needed};

/// When a condition makes the comparison fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// When it is shown to hold.
    FailIf,
    /// When it is not shown to hold.
    FailUnless,
}

impl Demand {
    /// The option's name: `--fail-if`.
    #[must_use]
    pub const fn option(self) -> &'static str {
        match self {
            Self::FailIf => "--fail-if",
            Self::FailUnless => "--fail-unless",
        }
    }
}

/// On which side of the threshold the ratio must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// `<`
    Below,
    /// `>`
    Above,
}

/// A condition that was understood: the metric is there, and so are the arms.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    text: String,
    demand: Demand,
    metric: String,
    side: Side,
    /// Of the ratio: 0.98 for -2 %.
    threshold: f64,
    /// Indices of the arms it is about; at least one.
    arms: Vec<usize>,
}

/// Why a condition was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConditionError {
    /// It is not of the form `METRIC < PERCENT%`.
    #[error("`{0}` is no condition: write [ARM:]METRIC < PERCENT% or > PERCENT%, e.g. 'ops < -2%'")]
    Form(String),
    /// What should be a percentage is none.
    #[error("`{condition}`: `{text}` is no percentage above -100% (e.g. -2%, 0%, +5%)")]
    Percentage {
        /// The whole condition.
        condition: String,
        /// What stands behind `<` or `>`.
        text: String,
    },
    /// There is no such metric.
    #[error("`{condition}`: there is no metric `{name}`; there are {known}")]
    Metric {
        /// The whole condition.
        condition: String,
        /// The name given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// There is no such arm.
    #[error("`{condition}`: there is no arm `{name}`; there are {known}")]
    Arm {
        /// The whole condition.
        condition: String,
        /// The name given.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// The arm is what the others are compared with.
    #[error(
        "`{condition}`: `{name}` is what the other arms are compared with; name one of {known}"
    )]
    Reference {
        /// The whole condition.
        condition: String,
        /// The name given.
        name: String,
        /// The others.
        known: String,
    },
}

/// A condition and what was found about it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GateResult {
    /// When it fails.
    pub demand: Demand,
    /// The condition as the user wrote it.
    pub condition: String,
    /// Name of the metric.
    pub metric: String,
    /// On which side of the threshold the ratio must lie for the condition to hold.
    pub side: Side,
    /// Threshold of the ratio to the reference: 0.98 for -2 %.
    pub threshold: f64,
    /// What it comes to.
    pub outcome: Outcome,
    /// Why it was not judged; `None` if it was.
    pub why_not_judged: Option<String>,
    /// One for each arm that it is about.
    pub findings: Vec<Finding>,
}

/// What a gate comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing against it.
    Passed,
    /// It fails the comparison.
    Failed,
    /// The result is incomplete, and what is there does not fail it.
    NotJudged,
}

/// What was found about a condition for one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Index of the arm.
    pub arm: usize,
    /// Whether the condition holds for it.
    pub judgement: Judgement,
    /// Why that was not judged; `None` if it was.
    pub why_not_judged: Option<String>,
    /// Median of the arm over that of its reference, with its 95 % interval.
    pub ratio: Option<Estimate>,
    /// Two-sided rank-sum p-value of the arm against the reference times the threshold.
    pub p: Option<f64>,
    /// The same, Holm-corrected over all that the gates ask.
    pub p_corrected: Option<f64>,
}

/// Whether a condition holds for an arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Judgement {
    /// It is shown to hold.
    Holds,
    /// It is shown not to hold.
    DoesNotHold,
    /// Neither is shown.
    Undecided,
    /// There is nothing, or too little, to judge by.
    NotJudged,
}

impl Condition {
    /// Reads `[ARM:]METRIC < PERCENT%` or `>`. Without an arm it is about all but the reference.
    ///
    /// # Errors
    /// If it is of another form, or names a metric or an arm that is not there.
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

    /// How many questions it asks: one for each arm that it is about.
    #[must_use]
    pub fn questions(&self) -> usize {
        self.arms.len()
    }
}

/// `-2%` as -2; `None` of what cannot be the change of something positive.
fn percentage(text: &str) -> Option<f64> {
    let number: f64 = text.strip_suffix('%')?.trim().parse().ok()?;
    (number.is_finite() && number > -100.0 && number <= 1e6).then_some(number)
}

/// What a condition may name.
struct Names<'a> {
    condition: &'a str,
    arms: &'a [Arm],
    metrics: &'a [Metric],
    reference: usize,
}

impl Names<'_> {
    /// The arms and the metric of `METRIC` or `ARM:METRIC`. Both may contain colons.
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

/// How many good runs of each arm it takes for these conditions to be shown to hold at all.
#[must_use]
pub fn needed(conditions: &[Condition]) -> usize {
    let questions: usize = conditions.iter().map(Condition::questions).sum();
    runs_needed(questions.max(1))
}

/// Finds out about all conditions together.
pub(crate) fn check_conditions(
    comparison: &Comparison,
    conditions: &[Condition],
) -> Vec<GateResult> {
    let needed = needed(conditions);
    let mut findings: Vec<Vec<Finding>> = (conditions.iter())
        .map(|condition| {
            let arms = condition.arms.iter();
            arms.map(|arm| look(comparison, condition, *arm, needed))
                .collect()
        })
        .collect();
    correct(findings.iter_mut().flatten());
    (conditions.iter().zip(findings))
        .map(|(condition, mut findings)| {
            for finding in &mut findings {
                decide(finding, condition);
            }
            result(comparison, condition, findings)
        })
        .collect()
}

/// Values of an arm that count, with what keeps them from being judged.
fn values(comparison: &Comparison, metric: &str, arm: usize) -> Vec<f64> {
    let records = comparison.samples.iter();
    (records.filter(|record| record.arm == arm && record.counts()))
        .filter_map(|record| record.sample.get(metric))
        .collect()
}

/// What there is to judge by, without the judgement.
fn look(comparison: &Comparison, condition: &Condition, arm: usize, needed: usize) -> Finding {
    let reference = comparison.reference_of(arm);
    let [ours, theirs] = [arm, reference].map(|arm| values(comparison, &condition.metric, arm));
    let mut finding = Finding {
        arm,
        judgement: Judgement::NotJudged,
        why_not_judged: None,
        ratio: None,
        p: None,
        p_corrected: None,
    };
    let fewest = ours.len().min(theirs.len());
    let lacking = if ours.len() <= theirs.len() {
        arm
    } else {
        reference
    };
    finding.ratio = ratio_of(comparison, &condition.metric, arm, &ours, &theirs);
    finding.why_not_judged = if fewest == 0 {
        Some(why_nothing(comparison, &condition.metric, lacking))
    } else if fewest < needed {
        let name = comparison.title(lacking);
        Some(format!("{name} has {fewest} values, and it takes {needed}"))
    } else if finding.ratio.and_then(|ratio| ratio.interval).is_none() {
        let name = comparison.title(reference);
        Some(format!(
            "there is no ratio to {name}, whose median is 0 or could well be, or to negative values"
        ))
    } else {
        None
    };
    if finding.why_not_judged.is_none() {
        let scaled: Vec<f64> = theirs.iter().map(|v| v * condition.threshold).collect();
        finding.p = rank_sum(&ours, &scaled).map(|test| test.p);
    }
    finding
}

/// The ratio of the document; of two arms that are always nothing, exactly 1.
fn ratio_of(
    comparison: &Comparison,
    metric: &str,
    arm: usize,
    ours: &[f64],
    theirs: &[f64],
) -> Option<Estimate> {
    let known = comparison.against(metric, arm)?.ratio;
    let both_nothing = !ours.is_empty() && ours.iter().chain(theirs).all(|value| *value == 0.0);
    known.or(both_nothing.then_some(Estimate {
        value: 1.0,
        interval: Some(Interval {
            low: 1.0,
            high: 1.0,
        }),
    }))
}

fn why_nothing(comparison: &Comparison, metric: &str, arm: usize) -> String {
    let name = comparison.title(arm);
    let tally = comparison.tally(arm);
    let why_missing = comparison
        .summary(metric, arm)
        .and_then(|summary| summary.why_missing.as_deref());
    match (tally.good, tally.why_failed, why_missing) {
        (0, Some(why), _) => format!("{name} has no good run: {}", clean(why)),
        (_, _, Some(why)) => format!("{name} has no value: {}", clean(why)),
        _ => format!("{name} has no value"),
    }
}

/// Corrects the p-values for being looked at together.
fn correct<'a>(findings: impl Iterator<Item = &'a mut Finding>) {
    let mut asked: Vec<&mut Finding> = findings.filter(|finding| finding.p.is_some()).collect();
    let raw: Vec<f64> = asked.iter().filter_map(|finding| finding.p).collect();
    for (finding, p) in asked.iter_mut().zip(holm(&raw)) {
        finding.p_corrected = Some(p);
    }
}

fn decide(finding: &mut Finding, condition: &Condition) {
    let interval = finding.ratio.and_then(|ratio| ratio.interval);
    let (Some(interval), Some(p)) = (interval, finding.p_corrected) else {
        return;
    };
    let below = interval.high < condition.threshold;
    let above = condition.threshold < interval.low;
    finding.judgement = match condition.side {
        _ if p > LEVEL => Judgement::Undecided,
        Side::Below if below => Judgement::Holds,
        Side::Above if above => Judgement::Holds,
        _ if below || above => Judgement::DoesNotHold,
        _ => Judgement::Undecided,
    };
}

fn result(comparison: &Comparison, condition: &Condition, findings: Vec<Finding>) -> GateResult {
    let has = |wanted: Judgement| findings.iter().any(|f| f.judgement == wanted);
    let fails = match condition.demand {
        Demand::FailIf => has(Judgement::Holds),
        Demand::FailUnless => has(Judgement::DoesNotHold) || has(Judgement::Undecided),
    };
    let why_not_judged = if fails {
        None
    } else {
        let missing = || findings.iter().find_map(|f| f.why_not_judged.clone());
        let early = stopped_early(comparison).or_else(missing);
        early.or_else(|| incomplete(comparison, condition))
    };
    GateResult {
        demand: condition.demand,
        condition: condition.text.clone(),
        metric: condition.metric.clone(),
        side: condition.side,
        threshold: condition.threshold,
        outcome: match (fails, &why_not_judged) {
            (true, _) => Outcome::Failed,
            (false, Some(_)) => Outcome::NotJudged,
            (false, None) => Outcome::Passed,
        },
        why_not_judged,
        findings,
    }
}

/// Why not all runs took place, if they did not.
fn stopped_early(comparison: &Comparison) -> Option<String> {
    let given_up = comparison.aborted.as_ref();
    let given_up = given_up.map(|why| format!("given up before the end: {}", clean(why)));
    let interrupted = comparison.interrupted;
    given_up.or_else(|| interrupted.then(|| "interrupted before the end".to_owned()))
}

/// Why the values that a condition rests on may be a flattering selection, if they may.
fn incomplete(comparison: &Comparison, condition: &Condition) -> Option<String> {
    let arms = condition.arms.iter();
    arms.flat_map(|&arm| [comparison.reference_of(arm), arm])
        .find_map(|arm| {
            let name = comparison.title(arm);
            let failed = comparison.tally(arm).failed;
            let missing = comparison.summary(&condition.metric, arm)?.missing;
            match (failed, missing) {
                (0, 0) => None,
                (0, missing) => Some(format!("{name} lacks {missing} values")),
                (failed, _) => Some(format!("{failed} runs of {name} failed")),
            }
        })
}

impl GateResult {
    /// For people: `` `--fail-if 'ops < -2%'`: FAILED. ``, and a line for each arm.
    pub(crate) fn sentences(&self, comparison: &Comparison) -> Vec<String> {
        let option = self.demand.option();
        let outcome = match (self.outcome, &self.why_not_judged) {
            (Outcome::Passed, _) => "passed".to_owned(),
            (Outcome::Failed, _) => "FAILED".to_owned(),
            (Outcome::NotJudged, Some(why)) => format!("not judged: {why}"),
            (Outcome::NotJudged, None) => "not judged".to_owned(),
        };
        let first = format!("`{option} '{}'`: {outcome}.", clean(&self.condition));
        let lines = (self.findings.iter()).map(|finding| self.sentence(finding, comparison));
        std::iter::once(first).chain(lines).collect()
    }

    /// `` `hot, size=10`: 0.951 times `never` (0.940 to 0.962), shown to be below 0.980. ``
    fn sentence(&self, finding: &Finding, comparison: &Comparison) -> String {
        let name = comparison.title(finding.arm);
        if let Some(why) = &finding.why_not_judged {
            return format!("  {name}: not judged: {why}.");
        }
        let reference = comparison.name(comparison.reference_of(finding.arm));
        let shown = finding.ratio.map_or(String::new(), |estimate| {
            let ends = estimate.interval.map_or(String::new(), |interval| {
                format!(" ({} to {})", ratio(interval.low), ratio(interval.high))
            });
            format!("{} times {reference}{ends}", ratio(estimate.value))
        });
        let side = match self.side {
            Side::Below => "below",
            Side::Above => "above",
        };
        let threshold = ratio(self.threshold);
        let judgement = match finding.judgement {
            Judgement::Holds => format!("shown to be {side} {threshold}"),
            Judgement::DoesNotHold => format!("shown not to be {side} {threshold}"),
            _ => format!("undecided whether it is {side} {threshold}"),
        };
        format!("  {name}: {shown}, {judgement}.")
    }
}
