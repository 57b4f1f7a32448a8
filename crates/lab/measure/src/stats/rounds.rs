//! Slowness of whole rounds: the round effect of a randomised block design.
//!
//! On a shared machine some minutes are slow, and all runs of a round are slow together. Two arms cannot distinguish that from their own noise,
//! but the *other* arms of the round can. The effect is estimated from them alone, so it is independent of the two compared arms. Removing it from
//! both changes neither which of them is ahead nor how often chance puts one of them there.
//!
//! With x(k, r) the logarithm of what other arm k measured in round r, less the arm's mean over the rounds, the estimate is the
//! median of x(k, r) over k, times a share
//!
//! ```text
//!   1 - M / R     R  mean square of the rounds' means of x        (rounds differ, and noise)
//!                 M  mean square of what is left of x             (noise alone)
//! ```
//!
//! or 0 if that is negative: the best linear prediction of a random effect (G. K. Robinson, Statistical Science 6, 1991). Where rounds differ by no
//! more than noise explains, almost nothing is removed, and the other arms add no noise.

use super::quantile::{median, sorted};

/// Fewest other arms that give an estimate.
pub const FEWEST_OTHERS: usize = 4;

/// Returns the factor by which the round effect multiplies the values of each round, and the share above; `None` with too few other arms, fewer than
/// three rounds, or rounds that do not differ.
///
/// `others` has a list for each other arm, with a positive value for each round, in the same order of rounds.
#[must_use]
pub fn effects(others: &[Vec<f64>]) -> Option<(Vec<f64>, f64)> {
    let rounds = others.first()?.len();
    if others.len() < FEWEST_OTHERS || rounds < 3 {
        return None;
    }
    let (arms, count) = (others.len() as f64, rounds as f64);
    let centred: Vec<Vec<f64>> = (others.iter())
        .map(|values| {
            let mean = values.iter().map(|value| value.ln()).sum::<f64>() / count;
            values.iter().map(|value| value.ln() - mean).collect()
        })
        .collect();
    let round = |at: usize| centred.iter().map(move |values| values[at]);
    let means: Vec<f64> = (0..rounds)
        .map(|at| round(at).sum::<f64>() / arms)
        .collect();
    let between = arms * means.iter().map(|mean| mean * mean).sum::<f64>() / (count - 1.0);
    let squares = |at: usize| round(at).map(|x| (x - means[at]).powi(2)).sum::<f64>();
    let within = (0..rounds).map(squares).sum::<f64>() / ((arms - 1.0) * (count - 1.0));
    let share = 1.0 - within / between;
    // This also covers equal values, where the share is NaN.
    if share.is_nan() || share <= 0.0 {
        return None;
    }
    let effect = |at: usize| {
        let middle = median(&sorted(&round(at).collect::<Vec<_>>()))?;
        Some((share * middle).exp())
    };
    Some(((0..rounds).map(effect).collect::<Option<_>>()?, share))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_all_arms_share_is_found() {
        let slow = [1.0, 2.0, 1.0, 0.5, 1.0];
        let others = [3.0, 5.0, 7.0, 11.0].map(|arm| slow.map(|slow| arm * slow).to_vec());
        let (effects, share) = effects(&others).unwrap();
        assert!((share - 1.0).abs() < 1e-9, "{share}");
        for (effect, slow) in effects.iter().zip(slow) {
            assert!((effect - slow).abs() < 1e-9, "{effects:?}");
        }
    }

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(effects(&vec![vec![2.0; 8]; 9]), None);
        assert_eq!(effects(&[]), None);
        // Too few other arms, or too few rounds.
        let differ = vec![1.0, 2.0, 4.0];
        assert!(effects(&vec![differ.clone(); 4]).is_some());
        assert_eq!(effects(&vec![differ; 3]), None);
        assert_eq!(effects(&vec![vec![1.0, 2.0]; 4]), None);
        // Arms that are slow in turns: all rounds have the same mean.
        let turns = |arm: usize| (0..5).map(move |round| if arm == round { 2.0 } else { 1.0 });
        let others: Vec<Vec<f64>> = (0..5).map(|arm| turns(arm).collect()).collect();
        assert_eq!(effects(&others), None);
    }
}
