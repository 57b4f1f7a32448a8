//! Conditions that decide an exit status: `--fail-if 'ops < -2%'`, for a gate in continuous
//! integration.
//!
//! A condition is about the ratio of an arm's median to that of its reference: `ops < -2%` is "the median of ops is more than 2 % below that of
//! the reference", a ratio below 0.98. It applies to every arm but the reference, at every parameter value, unless it names an arm
//! (`hot: ops < -2%`).
//!
//! A gate judges by what is *shown*, not by the point estimate: if a program is compared with itself, the estimate is below 0 % every second
//! time, and users soon ignore a gate that fails by chance. As with verdicts, two things must hold:
//!
//! 1. the 95 % interval of the ratio lies wholly on the condition's side of the threshold;
//! 2. the rank-sum test between the arm and the reference *times the threshold*, Holm-corrected over
//!    all questions that the gates of this comparison ask, gives at most 0.025. The interval alone is too narrow
//!    when runs are few, and is not corrected for many questions.
//!
//! The result of each condition is that it holds, that it does not hold, or that it is undecided. Two demands use this, for the two errors
//! that a user may want to avoid:
//!
//! | demand        | fails when the condition         | noise makes it |
//! |---------------|----------------------------------|----------------|
//! | `fail-if`     | is shown to hold                 | pass           |
//! | `fail-unless` | is not shown to hold             | fail           |
//!
//! A `fail-if` that passes may have missed a loss. So each finding has the smallest ratio beyond the threshold that the runs show in four of five cases
//! ([`power`]), by the spread that the runs had.
//!
//! No gate passes on an incomplete result: with failed runs, missing values or an early stop, the remaining values may be a flattering
//! selection. The gate is then *not judged*, unless these values suffice to fail it.

use std::collections::BTreeMap;

use superhue_model::counted;

use crate::condition::{Condition, Demand, Finding, GateResult, Judgement, Outcome, Side};
use crate::design::references;
use crate::human::{clean, ratio};
use crate::power;
use crate::result::Comparison;
use crate::stats::bootstrap::Interval;
use crate::stats::holm::holm;
use crate::stats::rank_sum::rank_sum;
use crate::summary::{Estimate, LEVEL};
use crate::verdict::{compared_values, runs_needed};

/// Returns the number of good runs of each arm that these conditions need to be shown to hold at all.
#[must_use]
pub fn needed(conditions: &[Condition]) -> usize {
    runs_needed(questions(conditions))
}

/// Returns the number of questions that these conditions ask together, at least 1.
#[must_use]
pub fn questions(conditions: &[Condition]) -> usize {
    let asked: usize = conditions.iter().map(Condition::questions).sum();
    asked.max(1)
}

impl Comparison {
    /// Judges the conditions and stores the results in [`gates`](Self::gates), replacing earlier ones.
    pub fn check_conditions(&mut self, conditions: &[Condition]) {
        self.gates = judge(self, conditions);
    }
}

/// Judges all conditions together.
fn judge(comparison: &Comparison, conditions: &[Condition]) -> Vec<GateResult> {
    let questions = questions(conditions);
    let needed = runs_needed(questions);
    // A simulation for each number of runs.
    let mut known = BTreeMap::new();
    let mut detectable =
        |runs: usize| *(known.entry(runs)).or_insert_with(|| power::detectable(runs, questions));
    let mut findings: Vec<Vec<Finding>> = (conditions.iter())
        .map(|condition| {
            let arms = condition.arms.iter();
            arms.map(|arm| look(comparison, condition, *arm, needed, &mut detectable))
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

/// Returns the values of an arm's runs that count, on one metric.
fn values(comparison: &Comparison, metric: &str, arm: usize) -> Vec<f64> {
    let records = comparison.samples.iter();
    (records.filter(|record| record.arm == arm && record.counts()))
        .filter_map(|record| record.sample.get(metric))
        .collect()
}

/// Collects ratio and p-value for an arm, or the reason why it cannot be judged; without the judgement.
fn look(
    comparison: &Comparison,
    condition: &Condition,
    arm: usize,
    needed: usize,
    detectable: &mut dyn FnMut(usize) -> Option<f64>,
) -> Finding {
    let reference = comparison.reference_of(arm);
    let [ours, theirs] = [arm, reference].map(|arm| values(comparison, &condition.metric, arm));
    let mut finding = Finding {
        arm,
        judgement: Judgement::NotJudged,
        why_not_judged: None,
        ratio: None,
        p: None,
        p_corrected: None,
        detectable: None,
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
        let values = counted(fewest as u64, "value");
        Some(format!("{name} has {values}, and it takes {needed}"))
    } else if finding.ratio.and_then(|ratio| ratio.interval).is_none() {
        let name = comparison.title(reference);
        Some(format!(
            "there is no ratio to {name}, whose median is 0 or could well be, or to negative values"
        ))
    } else {
        None
    };
    if finding.why_not_judged.is_some() || is_nothing(&ours, &theirs) {
        return finding;
    }
    // The values of which the ratio is made.
    let metric = comparison
        .metrics
        .iter()
        .find(|metric| metric.name == condition.metric);
    let references = references(&comparison.arms, comparison.settings.reference);
    let compared = metric.and_then(|metric| {
        let (settings, samples) = (&comparison.settings, &comparison.samples);
        compared_values(metric, arm, &references, settings, samples)
    });
    if let Some([ours, theirs]) = compared {
        let scaled: Vec<f64> = theirs.iter().map(|v| v * condition.threshold).collect();
        finding.p = rank_sum(&ours, &scaled).map(|test| test.p);
        let spread = power::spread([&ours, &theirs]).filter(|spread| *spread > 0.0);
        let shown = spread.zip(detectable(fewest));
        finding.detectable = shown.map(|(spread, deviations)| {
            let factor = (spread * deviations).exp();
            match condition.side {
                Side::Above => condition.threshold * factor,
                Side::Below => condition.threshold / factor,
            }
        });
    }
    finding
}

/// Returns true if both arms have values, all of them 0.
fn is_nothing(ours: &[f64], theirs: &[f64]) -> bool {
    !ours.is_empty() && ours.iter().chain(theirs).all(|value| *value == 0.0)
}

/// Returns the ratio of the document; exactly 1 if all values of both arms are 0.
fn ratio_of(
    comparison: &Comparison,
    metric: &str,
    arm: usize,
    ours: &[f64],
    theirs: &[f64],
) -> Option<Estimate> {
    let known = comparison.against(metric, arm)?.ratio;
    known.or(is_nothing(ours, theirs).then_some(Estimate {
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

/// Corrects the p-values for the number of questions asked together.
fn correct<'a>(findings: impl Iterator<Item = &'a mut Finding>) {
    let mut asked: Vec<&mut Finding> = findings.filter(|finding| finding.p.is_some()).collect();
    let raw: Vec<f64> = asked.iter().filter_map(|finding| finding.p).collect();
    for (finding, p) in asked.iter_mut().zip(holm(&raw)) {
        finding.p_corrected = Some(p);
    }
}

fn decide(finding: &mut Finding, condition: &Condition) {
    let interval = finding.ratio.and_then(|ratio| ratio.interval);
    let (Some(interval), None) = (interval, &finding.why_not_judged) else {
        return;
    };
    // Where both arms are always 0, there is no p-value, and nothing is left to chance.
    let is_certain = interval.low == interval.high;
    let may_be_chance = finding.p_corrected.map_or(!is_certain, |p| p > LEVEL);
    let below = interval.high < condition.threshold;
    let above = condition.threshold < interval.low;
    finding.judgement = match condition.side {
        _ if may_be_chance => Judgement::Undecided,
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

/// Returns the reason why not all runs took place; `None` if they did.
fn stopped_early(comparison: &Comparison) -> Option<String> {
    let given_up = comparison.aborted.as_ref();
    let given_up = given_up.map(|why| format!("given up before the end: {}", clean(why)));
    let interrupted = comparison.interrupted;
    given_up.or_else(|| interrupted.then(|| "interrupted before the end".to_owned()))
}

/// Returns the reason why the values of a condition may be a flattering selection: failed runs or missing values; `None` without either.
fn incomplete(comparison: &Comparison, condition: &Condition) -> Option<String> {
    let arms = condition.arms.iter();
    arms.flat_map(|&arm| [comparison.reference_of(arm), arm])
        .find_map(|arm| {
            let name = comparison.title(arm);
            let failed = comparison.tally(arm).failed;
            let missing = comparison.summary(&condition.metric, arm)?.missing;
            match (failed, missing) {
                (0, 0) => None,
                (0, missing) => Some(format!("{name} lacks {}", counted(missing as u64, "value"))),
                (failed, _) => Some(format!(
                    "{} of {name} failed",
                    counted(failed as u64, "run")
                )),
            }
        })
}

impl GateResult {
    /// Formats the result for people: `` `--fail-if 'ops < -2%'`: FAILED. ``, and a line for each arm.
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

    /// Formats a finding: `` `hot, size=10`: 0.951 times `never` (0.940 to 0.962), shown to be below 0.980. ``
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
        let missed = finding
            .detectable
            .filter(|_| finding.judgement != Judgement::Holds)
            .map_or(String::new(), |least| {
                let least = ratio(least);
                format!("; runs like these show {least} to be {side} it in 4 of 5 cases")
            });
        format!("  {name}: {shown}, {judgement}{missed}.")
    }
}
