//! Smallest difference that a number of runs shows in four of five cases.
//!
//! A verdict and a gate ask two things of a difference: the interval of the ratio must exclude 1 (or the threshold), and the rank-sum test, corrected
//! for all questions, must leave chance out. If all values of an arm are larger by a factor, both hold from some factor on. The factor is computed
//! for simulated arms without a difference, whose values have normal logarithms of standard deviation 1:
//!
//! - a shift of an arm's logarithms shifts the interval by as much, so the shift must exceed the distance of the interval's lower end from 0;
//! - a shift brings pairs of values, one of each arm, in order, and the test needs a number of such pairs (Mann-Whitney U).
//!
//! The larger of the two shifts is that of one simulated comparison. The result is the shift that suffices in four of five of them: in units of the
//! standard deviation that the runs of one arm have. Of several questions it is that of the hardest case, in which no other one has an answer: Holm's
//! correction asks less of the rest once one is answered.

use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

use crate::stats::bootstrap;
use crate::stats::quantile::{quantile, sorted};
use crate::stats::rank_sum::{least_p_without_ties, rank_sum};
use crate::summary::{FEWEST, LEVEL};

/// Share of the comparisons that show the difference.
const SHARE: f64 = 0.8;

/// Simulated comparisons.
const CASES: usize = 400;

/// Resamples for each interval.
const RESAMPLES: usize = 400;

/// Runs up to which comparisons are simulated. Beyond, the difference falls with the square root of the runs.
const MOST_RUNS: usize = 64;

const SEED: u64 = 0x5eed_0f9a_11e1_c0de;

/// Returns the smallest difference of two arms that `runs` runs of each show in four of five cases with `questions` questions: a difference of
/// logarithms, in standard deviations of the logarithms of one arm's values. `None` if so few runs can show no difference.
#[must_use]
pub fn detectable(runs: usize, questions: usize) -> Option<f64> {
    let simulated = runs.min(MOST_RUNS);
    let pairs = pairs_needed(simulated, questions)?;
    let mut rng = Xoshiro256PlusPlus::seed_from_u64(SEED);
    let mut shift = |case: usize| {
        let [arm, reference] = [(), ()]
            .map(|()| sorted(&(0..simulated).map(|_| normal(&mut rng)).collect::<Vec<_>>()));
        let [ours, theirs] = [(&arm, 2 * case), (&reference, 2 * case + 1)]
            .map(|(values, stream)| bootstrap::medians(values, RESAMPLES, SEED ^ stream as u64));
        let differences = ours.iter().zip(&theirs).map(|(a, b)| a - b);
        let by_interval = bootstrap::middle(differences.collect()).map_or(0.0, |it| -it.low);
        let apart: Vec<f64> = (reference.iter())
            .flat_map(|theirs| arm.iter().map(move |ours| theirs - ours))
            .collect();
        let by_ranks = sorted(&apart).get(pairs - 1).copied().unwrap_or_default();
        by_interval.max(by_ranks)
    };
    let shifts: Vec<f64> = (0..CASES).map(&mut shift).collect();
    let found = quantile(&sorted(&shifts), SHARE)?;
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let more = (simulated as f64 / runs as f64).sqrt();
    Some(found * more)
}

/// Returns the number of pairs, of all `runs` times `runs`, in which the arm must have the larger value for the test to be certain after Holm's
/// correction for this many questions. `None` if all do not suffice.
fn pairs_needed(runs: usize, questions: usize) -> Option<usize> {
    #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
    let level = LEVEL / questions.max(1) as f64;
    if runs < FEWEST || least_p_without_ties(runs, runs) > level {
        return None;
    }
    let all = runs * runs;
    let is_short = |pairs: &usize| p_of(runs, *pairs) > level;
    let candidates: Vec<usize> = (all / 2..=all).collect();
    candidates
        .get(candidates.partition_point(is_short))
        .copied()
}

/// Returns the p-value of two arms of `runs` values without ties, of which `pairs` pairs have the larger value in the first arm.
#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
fn p_of(runs: usize, pairs: usize) -> f64 {
    let reference: Vec<f64> = (0..runs).map(|index| index as f64).collect();
    let arm: Vec<f64> = (0..runs)
        .map(|index| {
            let below = pairs / runs + usize::from(index < pairs % runs);
            // Above `below` values of the reference, and no two alike.
            below as f64 - 0.5 + index as f64 / (4 * runs) as f64
        })
        .collect();
    rank_sum(&arm, &reference).map_or(1.0, |test| test.p)
}

/// Draws from the standard normal distribution (Box and Muller 1958).
fn normal(rng: &mut Xoshiro256PlusPlus) -> f64 {
    let [radius, angle] = [(), ()].map(|()| 1.0 - rng.random::<f64>());
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

/// Returns the standard deviation of the logarithms of the values of two arms, each about its own mean. `None` with fewer than two values in an arm, or
/// with values that are not above 0.
#[must_use]
pub fn spread(arms: [&[f64]; 2]) -> Option<f64> {
    let variance = |values: &[f64]| {
        if values.len() < 2 || values.iter().any(|value| *value <= 0.0) {
            return None;
        }
        #[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
        let count = values.len() as f64;
        let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
        let squares = values.iter().map(|value| (value.ln() - mean).powi(2));
        Some(squares.sum::<f64>() / (count - 1.0))
    };
    let [ours, theirs] = arms.map(variance);
    Some(((ours? + theirs?) / 2.0).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::runs_needed;

    #[test]
    fn more_runs_show_smaller_differences_and_more_questions_larger_ones() {
        let of = |runs, questions| detectable(runs, questions).unwrap();
        assert!(of(5, 1) > of(8, 1) && of(8, 1) > of(16, 1) && of(16, 1) > of(64, 1));
        assert!(of(8, 10) > of(8, 1));
        assert!((of(256, 1) - of(64, 1) / 2.0).abs() < 1e-12);
        for questions in [1, 9, 90] {
            let needed = runs_needed(questions);
            assert!(detectable(needed, questions).is_some());
            assert_eq!(detectable(needed - 1, questions), None);
        }
        assert_eq!(detectable(0, 1), None);
    }

    #[test]
    fn the_pairs_are_those_of_the_tables() {
        // Two-sided at 2.5 % with 8 and 8 values: U = 11 is significant (p = 0.0281 at 11 + 1 is not), so 53 of 64 pairs at least.
        let needed = pairs_needed(8, 1).unwrap();
        assert!(p_of(8, needed) <= LEVEL && p_of(8, needed - 1) > LEVEL);
        assert_eq!(pairs_needed(5, 1), Some(24));
        assert_eq!(pairs_needed(4, 1), None);
    }

    #[test]
    fn the_spread_is_that_of_the_logarithms() {
        let even = [1.0, 1.0, 1.0];
        assert_eq!(spread([&even, &even]), Some(0.0));
        let found = spread([&[1.0, 1.0_f64.exp()], &[1.0, 1.0_f64.exp()]]).unwrap();
        assert!((found - 0.5_f64.sqrt()).abs() < 1e-12, "{found}");
        assert_eq!(spread([&[1.0], &even]), None);
        assert_eq!(spread([&[0.0, 1.0], &even]), None);
    }
}
