//! From samples to verdicts.
//!
//! An arm is called better or worse than the reference on a metric only if three things hold:
//!
//! 1. the 95 % interval of the ratio of medians excludes 1 (how large is it?);
//! 2. the rank-sum p-value, Holm-corrected over all metrics and arms of the comparison (in a scan of
//!    parameters also over all values), is at most 0.025 (could it be chance?);
//! 3. the difference is at least [`Settings::smallest`] (does it matter?).
//!
//! # The interval
//!
//! The primary interval resamples the two arms independently. Resampling whole rounds uses the pairing and is much tighter on a drifting machine;
//! the result has that interval, too ([`ReferenceComparison::paired_ratio`], the median of the ratios within rounds), but it decides nothing:
//!
//! - It is too narrow with few runs. In simulated comparisons of equal arms (20,000 for each number of rounds; normal and heavy-tailed noise
//!   alike) it covered the true ratio in 94 % of them with 5 rounds, 88 % with 7, 91 % with 8 and 93 % with 10. The independent interval
//!   covered it in 96 % to 97 % of them, and in 93 % with the least number of rounds, 4.
//! - A failed run breaks its pair, and leaves fewer values than either arm has.
//! - The independent interval errs towards caution: rounds spread drift over both arms, which
//!   widens it and shifts neither median much.
//!
//! [`bootstrap`] has the reason against BCa intervals.
//!
//! # Slow rounds
//!
//! With [`FEWEST_OTHERS`](crate::stats::rounds::FEWEST_OTHERS) or more other arms, the effect of slow rounds is first removed from both arms of a
//! question, as far as the other arms show it ([`rounds`]); [`ReferenceComparison::evened`] has the removed share. In a suite of ten arms on a noisy machine
//! intervals became 0.7 times as wide (median of 27), which is worth twice as many runs. The promise above does not change: the effect comes from
//! arms outside the question, and the order within a round is random. `tests/it/false_alarms.rs` tests this.
//!
//! # Questions
//!
//! Holm's correction divides the 2.5 % among the questions asked. A question whose answer cannot be "yes" for any assignment of the values to
//! the arms (both arms always 0; a single odd value among ties) carries no risk and takes no share (R. E. Tarone, Biometrics 46, 1990). Whether a
//! pair of arms counts as a question depends on the pooled values of both arms, not on their assignment.
//!
//! # Limits
//!
//! A sample that lacks a value does not count for that metric. If values are missing *because* of an arm (it never reached 95 % coverage), the
//! remaining values are a flattering selection: readers should check the counts [`ArmSummary::measured`] and [`ArmSummary::missing`]. And the
//! intervals hold for one number each; only the verdicts are corrected for many questions.

use std::borrow::Cow;

use crate::design::Settings;
use crate::metric::{Better, Metric};
use crate::run::Record;
use crate::stats::bootstrap::{self, Interval};
use crate::stats::holm::holm;
use crate::stats::quantile::{mad, median, quantile, sorted};
use crate::stats::rank_sum::{RankSum, least_p_without_ties, rank_sum};
use crate::stats::rounds;
use crate::summary::{
    ArmSummary, Description, Estimate, FEWEST, LEVEL, MetricSummary, ReferenceComparison, Verdict,
};

/// Summarises every metric and computes the verdicts.
///
/// Compares each arm with the one that [`references`](crate::design::references) names for it. Ignores warm-ups and failed runs. The result
/// depends on the arguments alone.
#[must_use]
pub fn summarise(
    metrics: &[Metric],
    references: &[usize],
    settings: &Settings,
    records: &[Record],
) -> Vec<MetricSummary> {
    let columns: Vec<Vec<Column>> = (metrics.iter().enumerate())
        .map(|(index, metric)| {
            (0..references.len())
                .map(|arm| Column::new(metric, arm, index, settings, records))
                .collect()
        })
        .collect();
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    for (metric, columns) in metrics.iter().zip(&columns) {
        let arms = 0..columns.len();
        pairs.extend(arms.filter_map(|arm| Pair::of(metric, arm, columns, references, settings)));
    }
    let mut verdicts = verdicts_on(&pairs, settings).into_iter();
    (metrics.iter().zip(&columns))
        .map(|(metric, columns)| MetricSummary {
            metric: metric.name.clone(),
            arms: (columns.iter())
                .map(|column| {
                    let against = (references.get(column.arm) != Some(&column.arm))
                        .then(|| verdicts.next())
                        .flatten();
                    column.summary(against)
                })
                .collect(),
        })
        .collect()
}

/// Returns the values of an arm and of its reference on a metric, without the effects of slow rounds: those that the summary compares. `None` for the
/// reference itself.
pub(crate) fn compared_values(
    metric: &Metric,
    arm: usize,
    references: &[usize],
    settings: &Settings,
    records: &[Record],
) -> Option<[Vec<f64>; 2]> {
    // The caller needs no interval.
    let settings = Settings {
        resamples: 0,
        ..settings.clone()
    };
    let columns: Vec<Column> = (0..references.len())
        .map(|arm| Column::new(metric, arm, 0, &settings, records))
        .collect();
    let pair = Pair::of(metric, arm, &columns, references, &settings)?;
    Some([&pair.arm, &pair.reference].map(|column| column.ascending.clone()))
}

/// Values of one arm on one metric.
#[derive(Clone)]
struct Column {
    arm: usize,
    /// Round and value of every good run that measured the metric, in the order of the runs.
    values: Vec<(usize, f64)>,
    ascending: Vec<f64>,
    /// Medians of resamples.
    resampled: Vec<f64>,
    missing: usize,
    why_missing: Option<String>,
    /// Seed for more resamples.
    seed: u64,
}

impl Column {
    fn new(
        metric: &Metric,
        arm: usize,
        index: usize,
        settings: &Settings,
        records: &[Record],
    ) -> Self {
        let mut values = Vec::new();
        let mut missing = 0;
        let mut why_missing = None;
        for record in records.iter().filter(|r| r.arm == arm && r.counts()) {
            if let Some(value) = record.sample.get(&metric.name) {
                values.push((record.round, value));
            } else {
                missing += 1;
                why_missing = why_missing
                    .or_else(|| record.sample.why_missing(&metric.name).map(str::to_owned));
            }
        }
        // Any two columns must draw differently, because equal draws would correlate the arms.
        let stream = (index as u64) << 32 | arm as u64;
        let seed = settings.seed ^ stream.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let column = Self {
            arm,
            values,
            ascending: Vec::new(),
            resampled: Vec::new(),
            missing,
            why_missing,
            seed,
        };
        column.resample(settings.resamples)
    }

    /// Recomputes the sorted values and the resampled medians.
    fn resample(mut self, resamples: usize) -> Self {
        self.ascending = sorted(&self.values.iter().map(|(_, v)| *v).collect::<Vec<_>>());
        self.resampled = bootstrap::medians(&self.ascending, resamples, self.seed);
        self
    }

    fn value_in(&self, round: usize) -> Option<f64> {
        let mut values = self.values.iter();
        values
            .find(|(other, _)| *other == round)
            .map(|(_, value)| *value)
    }

    /// Returns the column with each round's values divided by the round's effect.
    fn without(&self, effects: &[(usize, f64)], resamples: usize) -> Self {
        let mut even = self.clone();
        for (round, value) in &mut even.values {
            let effect = effects.iter().find(|(other, _)| other == round);
            *value /= effect.map_or(1.0, |(_, by)| *by);
        }
        even.resample(resamples)
    }

    fn describe(&self) -> Option<Description> {
        let at = |q| quantile(&self.ascending, q);
        Some(Description {
            median: Estimate {
                value: median(&self.ascending)?,
                interval: (self.ascending.len() >= FEWEST)
                    .then(|| bootstrap::middle(self.resampled.clone()))
                    .flatten(),
            },
            quartiles: Interval {
                low: at(0.25)?,
                high: at(0.75)?,
            },
            range: Interval {
                low: at(0.0)?,
                high: at(1.0)?,
            },
            mad: mad(&self.ascending)?,
        })
    }

    fn summary(&self, against: Option<ReferenceComparison>) -> ArmSummary {
        ArmSummary {
            arm: self.arm,
            measured: self.values.len(),
            missing: self.missing,
            why_missing: self.why_missing.clone(),
            values: self.describe(),
            against,
        }
    }

    fn estimate(&self, reference: &Self, how: impl Fn(f64, f64) -> f64) -> Option<Estimate> {
        let value = how(median(&self.ascending)?, median(&reference.ascending)?);
        let fewest = self.ascending.len().min(reference.ascending.len());
        let both = self.resampled.iter().zip(&reference.resampled);
        estimate(value, fewest, both.map(|(a, b)| how(*a, *b)).collect())
    }

    fn ratio(&self, reference: &Self) -> Option<Estimate> {
        self.has_ratio_to(reference)
            .then(|| self.estimate(reference, bootstrap::ratio))
            .flatten()
    }

    fn has_ratio_to(&self, reference: &Self) -> bool {
        let not_negative = |column: &Self| column.ascending.first().is_some_and(|v| *v >= 0.0);
        not_negative(self)
            && not_negative(reference)
            && median(&reference.ascending).is_some_and(|median| median > 0.0)
    }

    fn paired_ratio(&self, reference: &Self, resamples: usize) -> Option<Estimate> {
        if !self.has_ratio_to(reference) {
            return None;
        }
        let ratios: Vec<f64> = (self.values.iter())
            .filter_map(|(round, value)| {
                Some(bootstrap::ratio(*value, reference.value_in(*round)?))
            })
            .collect();
        let ascending = sorted(&ratios);
        let value = median(&ascending)?;
        let resampled = bootstrap::medians(&ascending, resamples, !self.seed);
        estimate(value, ascending.len(), resampled)
    }
}

/// Returns an estimate that rests on `fewest` values, with an interval if these suffice for one. `None` if the value or the interval is not
/// finite.
fn estimate(value: f64, fewest: usize, resampled: Vec<f64>) -> Option<Estimate> {
    let interval = if fewest < FEWEST {
        None
    } else {
        Some(bootstrap::middle(resampled)?)
    };
    value.is_finite().then_some(Estimate { value, interval })
}

/// Returns the effects of the rounds in which one of two arms was measured, estimated from all other arms that have a positive value in each
/// of these rounds, and the share of the effects that is removed.
fn effects(pair: [&Column; 2], others: &[&Column]) -> Option<(Vec<(usize, f64)>, f64)> {
    let mut measured: Vec<usize> = (pair.iter())
        .flat_map(|column| column.values.iter().map(|(round, _)| *round))
        .collect();
    measured.sort_unstable();
    measured.dedup();
    let of = |other: &&Column| -> Option<Vec<f64>> {
        let values = measured.iter().map(|round| other.value_in(*round));
        values
            .map(|value| value.filter(|value| *value > 0.0))
            .collect()
    };
    let others: Vec<Vec<f64>> = others.iter().filter_map(of).collect();
    let (effects, share) = rounds::effects(&others)?;
    Some((measured.into_iter().zip(effects).collect(), share))
}

/// Question whether an arm differs from the reference on a metric.
struct Pair<'a> {
    better: Better,
    arm: Cow<'a, Column>,
    reference: Cow<'a, Column>,
    /// Share of the rounds' effects that was removed from both arms.
    evened: f64,
    test: Option<RankSum>,
    /// Least p-value that this many values can give.
    least_p: f64,
}

impl<'a> Pair<'a> {
    /// Makes the question about an arm; `None` for a reference.
    fn of(
        metric: &Metric,
        arm: usize,
        columns: &'a [Column],
        references: &[usize],
        settings: &Settings,
    ) -> Option<Self> {
        let of = *references.get(arm)?;
        let reference = columns.get(of).filter(|_| of != arm)?;
        // The other arms of the same reference; in a scan, those of the same values.
        let same = columns.iter().filter(|other| references[other.arm] == of);
        let others: Vec<&Column> = same
            .filter(|other| other.arm != arm && other.arm != of)
            .collect();
        let column = columns.get(arm)?;
        Some(Self::new(
            metric.better,
            column,
            reference,
            &others,
            settings,
        ))
    }

    fn new(
        better: Better,
        arm: &'a Column,
        reference: &'a Column,
        others: &[&Column],
        settings: &Settings,
    ) -> Self {
        let (arm, reference, evened) = match effects([arm, reference], others) {
            None => (Cow::Borrowed(arm), Cow::Borrowed(reference), 0.0),
            Some((effects, share)) => {
                let even = |column: &Column| column.without(&effects, settings.resamples);
                (Cow::Owned(even(arm)), Cow::Owned(even(reference)), share)
            }
        };
        Self {
            better,
            evened,
            test: rank_sum(&arm.ascending, &reference.ascending),
            least_p: least_p_without_ties(arm.ascending.len(), reference.ascending.len()),
            arm,
            reference,
        }
    }

    /// Returns true if some assignment of the values to the arms could have shown a difference.
    fn is_question(&self) -> bool {
        self.test.is_some_and(|test| test.least_p <= LEVEL)
    }

    /// Returns true if more runs of the same kind might show a difference.
    fn varies(&self) -> bool {
        self.test
            .is_some_and(|test| test.least_p < 1.0 || self.least_p >= 1.0)
    }

    fn decide(&self, against: &ReferenceComparison, smallest: f64) -> Verdict {
        let Some(difference) = against.difference else {
            return Verdict::NoDifferenceShown;
        };
        let whole = median(&self.reference.ascending).map_or(0.0, f64::abs);
        // Compares with a product: with a reference of 0 any difference is large enough.
        let matters = difference.value != 0.0 && difference.value.abs() >= smallest * whole;
        if !(against.is_beyond_chance() && matters) {
            return Verdict::NoDifferenceShown;
        }
        match (self.better, difference.value > 0.0) {
            (Better::Neither, true) => Verdict::Higher,
            (Better::Neither, false) => Verdict::Lower,
            (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
            (Better::Higher, false) | (Better::Lower, true) => Verdict::Worse,
        }
    }
}

fn verdicts_on(pairs: &[Pair<'_>], settings: &Settings) -> Vec<ReferenceComparison> {
    let questions: Vec<usize> = (0..pairs.len())
        .filter(|index| pairs[*index].is_question())
        .collect();
    let correct = |p: &dyn Fn(&Pair<'_>) -> f64| {
        let raw: Vec<f64> = questions.iter().map(|index| p(&pairs[*index])).collect();
        let mut all = vec![None; pairs.len()];
        for (index, p) in questions.iter().zip(holm(&raw)) {
            all[*index] = Some(p);
        }
        all
    };
    let corrected = correct(&|pair| pair.test.map_or(1.0, |test| test.p));
    // Holm's result if every question had been answered as clearly as its number of runs allows: a pair that fails even then has too few
    // runs.
    let clearest = correct(&|pair| pair.least_p);
    let asked = pairs.iter().filter(|pair| pair.varies()).count();
    let needed = runs_needed(asked.max(1));

    (pairs.iter().enumerate())
        .map(|(index, pair)| {
            let mut against = ReferenceComparison {
                verdict: Verdict::NotMeasured,
                ratio: pair.arm.ratio(&pair.reference),
                paired_ratio: pair.arm.paired_ratio(&pair.reference, settings.resamples),
                difference: pair.arm.estimate(&pair.reference, |a, b| a - b),
                evened: pair.evened,
                p: pair.test.map(|test| test.p),
                p_corrected: corrected[index],
            };
            let fewest = pair.arm.ascending.len().min(pair.reference.ascending.len());
            let hopeless = fewest < FEWEST
                || pair.least_p > LEVEL
                || clearest[index].is_some_and(|p| p > LEVEL);
            against.verdict = if pair.test.is_none() {
                Verdict::NotMeasured
            } else if hopeless {
                Verdict::TooFewRuns { needed }
            } else {
                pair.decide(&against, settings.smallest)
            };
            against
        })
        .collect()
}

/// Returns the number of good runs of each arm with which `questions` questions can all be answered.
///
/// Exact for the rank-sum test: with fewer runs, even arms without any overlap have a p-value that the correction leaves above [`LEVEL`], for each
/// of the questions.
#[must_use]
pub fn runs_needed(questions: usize) -> usize {
    (FEWEST..)
        .find(|runs| questions_answered(*runs) >= questions)
        .unwrap_or(usize::MAX)
}

/// Returns the number of questions that `runs` good runs of each arm can answer together; the inverse of [`runs_needed`].
#[must_use]
pub fn questions_answered(runs: usize) -> usize {
    if runs < FEWEST {
        return 0;
    }
    // The conversion saturates; no comparison has more than 2^53 questions.
    (LEVEL / least_p_without_ties(runs, runs)).floor() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runs_needed_are_the_least_that_the_exact_test_lets_pass() {
        // 2 / C(10, 5) = 0.0079 is the first below 2.5 %; 4 runs have 2 / C(8, 4) = 0.029.
        assert_eq!(runs_needed(1), 5);
        for questions in [1, 3, 4, 9, 90, 1000] {
            let needed = runs_needed(questions);
            let least_p = |runs: usize| {
                let low: Vec<f64> = (0..runs).map(|i| i as f64).collect();
                let high: Vec<f64> = low.iter().map(|v| v + 1e3).collect();
                let p = rank_sum(&low, &high).unwrap().p;
                holm(&vec![p; questions])[0]
            };
            assert!(least_p(needed) <= LEVEL, "{questions}: {needed}");
            assert!(least_p(needed - 1) > LEVEL, "{questions}: {needed}");
            assert!(questions_answered(needed) >= questions);
            assert!(questions_answered(needed - 1) < questions);
        }
        assert_eq!(questions_answered(3), 0);
    }
}
