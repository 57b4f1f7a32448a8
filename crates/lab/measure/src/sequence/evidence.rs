//! Evidence of a trial: the test of the usual effect, the mean that `no difference` needs too, and estimates that account for the stopping rule.
//!
//! A trial that ends as soon as an effect is shown ends more easily after pairs that happen to exaggerate it: the plain estimate leans away
//! from 0. Undoing that needs no model of the noise. The pairs of a trial are exchangeable, and the first `k` of them are measured whatever
//! they show (nothing can be shown by fewer). So their estimate does not lean. Of all orders in which the same pairs could have come, some
//! would have ended the trial at the same pair with the same result; the mean of the first `k` pairs' estimates over these orders leans as
//! little, and uses all pairs (Rao and Blackwell).
//!
//! ```text
//!   pairs as measured   d c a f b e g │ stop       first k ──> estimate
//!   other orders        a f c d g b e │ stop       first k ──> estimate      mean of these: corrected
//!                       c a d │ would have stopped earlier: does not count
//! ```

use std::f64::consts::LN_2;

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

use super::mean::{MeanEffect, ratio_of_sums};
use super::{MAX_STAKE, Range, Sequence, Shown, hodges_lehmann};

/// Orders that end alike, beyond which more of them change the estimate little.
const ENOUGH_ORDERS: usize = 200;

/// Fewest orders that give an estimate.
const LEAST_ORDERS: usize = 20;

/// Most pairs that are replayed in all: about half a second.
const MOST_REPLAYED: usize = 200_000;

/// Pairs and what they show.
#[derive(Debug, Clone)]
pub struct Evidence {
    alpha: f64,
    within: f64,
    usual: Sequence,
    mean: MeanEffect,
}

/// Estimates of the change by the policy, as shares, corrected for the rule by which the trial ended.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CorrectedEstimates {
    /// Usual change.
    pub usual: f64,
    /// Change of the mean.
    pub mean: f64,
    /// Number of orders of the pairs that they rest on.
    pub orders: usize,
}

impl Evidence {
    /// Makes a test that is wrong with probability `alpha` at most; effects below the share `within` do not count. See [`Sequence::new`].
    #[must_use]
    pub fn new(alpha: f64, within: f64) -> Self {
        Self::with(alpha, within, Sequence::new(alpha, within))
    }

    /// Makes the same test without an interval, which is much less work.
    fn without_interval(alpha: f64, within: f64) -> Self {
        Self::with(alpha, within, Sequence::over(alpha, within, &[]))
    }

    fn with(alpha: f64, within: f64, usual: Sequence) -> Self {
        Self {
            alpha,
            within,
            usual,
            mean: MeanEffect::new(alpha),
        }
    }

    /// Adds the values of a pair. Ignores pairs whose ratio is no positive number.
    pub fn add(&mut self, on: f64, off: f64) {
        let difference = (on / off).ln();
        if difference.is_finite() {
            self.usual.add(difference);
            self.mean.add(on, off);
        }
    }

    /// Returns the result, once one is shown. [`Shown::Small`] needs that the mean is small, too.
    #[must_use]
    pub fn shown(&self) -> Option<Shown> {
        let shown = self.usual.shown()?;
        (shown != Shown::Small || self.mean.is_within(self.within)).then_some(shown)
    }

    /// Returns true if the usual effect is shown to be small, and the mean effect is not.
    #[must_use]
    pub fn only_usual_is_small(&self) -> bool {
        self.usual.shown() == Some(Shown::Small) && self.shown().is_none()
    }

    /// Returns the test of the usual effect.
    #[must_use]
    pub const fn usual(&self) -> &Sequence {
        &self.usual
    }

    /// Returns the mean effect.
    #[must_use]
    pub const fn mean(&self) -> &MeanEffect {
        &self.mean
    }

    /// Returns the usual effect's estimate and interval as shares, without a correction.
    #[must_use]
    pub fn usual_shares(&self) -> (Option<f64>, Range) {
        let share = |log: Option<f64>| log.map(f64::exp_m1);
        let Range { low, high } = self.usual.range();
        let range = Range {
            low: share(low),
            high: share(high),
        };
        (share(self.usual.estimate()), range)
    }

    /// Returns estimates corrected for the stopping rule. `None` if too few orders of the pairs end alike, or before the first pair.
    /// The same pairs and seed give the same result.
    #[must_use]
    pub fn corrected(&self, seed: u64) -> Option<CorrectedEstimates> {
        let mut order = self.mean.pairs().to_vec();
        let pairs = order.len();
        let ended = self.end_of(&order);
        // The test without an interval may have shown a small effect a little earlier.
        if pairs == 0 || ended.1 < pairs {
            return None;
        }
        let first = self.pairs_without_result().min(pairs);
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let (mut usual, mut mean, mut orders, mut replayed) = (0.0, 0.0, 0, 0);
        while orders < ENOUGH_ORDERS && replayed < MOST_REPLAYED {
            order.shuffle(&mut random);
            let end = self.end_of(&order);
            replayed += end.1;
            if end != ended {
                continue;
            }
            let first = order.get(..first)?;
            let logs: Vec<f64> = first.iter().map(|(on, off)| (on / off).ln()).collect();
            usual += hodges_lehmann(&logs)?;
            mean += ratio_of_sums(first)?;
            orders += 1;
        }
        let count = orders as f64;
        (orders >= LEAST_ORDERS).then(|| CorrectedEstimates {
            usual: (usual / count).exp_m1(),
            mean: mean / count - 1.0,
            orders,
        })
    }

    /// Returns the result that these pairs show in this order, and the number of pairs until then.
    fn end_of(&self, pairs: &[(f64, f64)]) -> (Option<Shown>, usize) {
        let mut replay = Self::without_interval(self.alpha, self.within);
        for (index, &(on, off)) in pairs.iter().enumerate() {
            replay.add(on, off);
            let shown = replay.shown();
            if shown.is_some() {
                return (shown, index + 1);
            }
        }
        (None, pairs.len())
    }

    /// Returns the number of pairs that are measured in any case: the largest stakes, all won, do not show anything before the last of them.
    fn pairs_without_result(&self) -> usize {
        let enough = LN_2 - self.alpha.clamp(1e-9, 0.5).ln();
        let fastest = MAX_STAKE.ln_1p();
        (enough / fastest).floor() as usize + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(f64, f64)]) -> Evidence {
        let mut evidence = Evidence::new(0.025, 0.02);
        for &(on, off) in pairs {
            evidence.add(on, off);
        }
        evidence
    }

    /// Pairs of a policy that changes nothing, but for one block in ten that takes twice as long.
    fn rarely_slow(pairs: usize) -> Vec<(f64, f64)> {
        let noise = |index: usize| ((index * 7 % 11) as f64 - 5.0) * 2e-4;
        let slow = |index: usize| if index % 10 == 9 { 2.0 } else { 1.0 };
        (0..pairs)
            .map(|index| (slow(index) + noise(index), 1.0))
            .collect()
    }

    #[test]
    fn no_difference_needs_the_mean_too() {
        let evidence = of(&rarely_slow(60));
        assert_eq!(evidence.usual().shown(), Some(Shown::Small));
        assert!(evidence.only_usual_is_small());
        assert_eq!(evidence.shown(), None);
        assert!((evidence.mean().estimate().unwrap() - 0.1).abs() < 0.01);
        let even: Vec<(f64, f64)> = rarely_slow(60)
            .into_iter()
            .filter(|(on, _)| *on < 1.5)
            .collect();
        let evidence = of(&even);
        assert_eq!(evidence.shown(), Some(Shown::Small));
        assert!(!evidence.only_usual_is_small());
    }

    #[test]
    fn a_trial_that_ends_at_the_first_chance_needs_no_correction() {
        // Nothing can be shown before the seventh pair at this level.
        assert_eq!(of(&[]).pairs_without_result(), 7);
        let pairs: Vec<(f64, f64)> = (0..7)
            .map(|index| (1.1 + f64::from(index) * 1e-4, 1.0))
            .collect();
        let evidence = of(&pairs);
        let (usual, _) = evidence.usual_shares();
        let corrected = evidence.corrected(1).unwrap();
        assert!(
            (corrected.usual - usual.unwrap()).abs() < 1e-9,
            "{corrected:?}"
        );
        assert!((corrected.mean - evidence.mean().estimate().unwrap()).abs() < 1e-9);
    }

    #[test]
    fn without_pairs_there_is_no_estimate() {
        assert_eq!(of(&[]).corrected(1), None);
        let mut evidence = Evidence::new(0.025, 0.02);
        evidence.add(0.0, 1.0);
        evidence.add(1.0, 0.0);
        evidence.add(f64::NAN, 1.0);
        assert_eq!(
            (evidence.usual().pairs(), evidence.mean().pairs().len()),
            (0, 0)
        );
        assert_eq!(evidence.corrected(1), None);
    }
}
