//! Mean effect of a policy: the ratio of the sums over all blocks, with an interval that holds at all times together.
//!
//! The usual effect ([`Sequence`](super::Sequence)) is robust: it does not see that one block in twenty takes three times as long. The sum
//! of all blocks does, and the sum is what a machine pays. So a trial says `no difference` only if the mean shows none either.
//!
//! *The interval* is an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2021, Theorem 2.2): a normal
//! approximation as in a t test, made wide enough for looks after every pair. With the ratio `R` of the sums, pair `i` contributes `on - R ·
//! off`, whose mean is 0 and whose spread gives the width. The coin makes the order of blocks fair, so drift of the load cancels in the mean.
//!
//! An exact interval for a mean without a bound on the values does not exist. Therefore the mean only holds a verdict back, and never makes one.

use super::Range;

/// Number of pairs for which the interval is narrowest.
const NARROWEST_AT: f64 = 40.0;

/// Mean effect of the pairs so far.
#[derive(Debug, Clone)]
pub struct MeanEffect {
    alpha: f64,
    /// Values with the policy on and off.
    pairs: Vec<(f64, f64)>,
}

impl MeanEffect {
    /// Makes an estimate whose interval fails to hold the mean effect with probability `alpha` (1e-9 to 0.5), all looks together.
    #[must_use]
    pub fn new(alpha: f64) -> Self {
        Self {
            alpha: if alpha > 1e-9 { alpha.min(0.5) } else { 1e-9 },
            pairs: Vec::new(),
        }
    }

    /// Adds the values of a pair. Ignores values that are not finite.
    pub fn add(&mut self, on: f64, off: f64) {
        if on.is_finite() && off.is_finite() {
            self.pairs.push((on, off));
        }
    }

    /// Returns the pairs so far.
    #[must_use]
    pub fn pairs(&self) -> &[(f64, f64)] {
        &self.pairs
    }

    /// Returns the change of the mean as a share of the mean without the policy; `None` before the first pair.
    #[must_use]
    pub fn estimate(&self) -> Option<f64> {
        ratio_of_sums(&self.pairs).map(|ratio| ratio - 1.0)
    }

    /// Returns the changes of the mean that are not ruled out, as shares; without bounds before the second pair.
    #[must_use]
    pub fn range(&self) -> Range {
        let Some(ratio) = ratio_of_sums(&self.pairs).filter(|_| self.pairs.len() > 1) else {
            return Range::default();
        };
        let count = self.pairs.len() as f64;
        let off: f64 = self.pairs.iter().map(|(_, off)| off).sum();
        let squares = self
            .pairs
            .iter()
            .map(|(on, off)| (on - ratio * off).powi(2));
        let spread = (squares.sum::<f64>() / (count - 1.0)).sqrt() / (off / count).abs();
        let half = spread * self.width(count);
        Range {
            low: Some(ratio - 1.0 - half),
            high: Some(ratio - 1.0 + half),
        }
    }

    /// Returns true if changes of at least the share `within` are ruled out in both directions.
    #[must_use]
    pub fn is_within(&self, within: f64) -> bool {
        let Range { low, high } = self.range();
        low.is_some_and(|low| low >= -within) && high.is_some_and(|high| high <= within)
    }

    /// Half of the interval's width after `count` pairs, in spreads of one pair.
    fn width(&self, count: f64) -> f64 {
        let log = -2.0 * self.alpha.ln();
        // The scale that makes the interval narrowest there (equation 12 of the paper).
        let scale = (log + log.ln() + 1.0) / NARROWEST_AT;
        let grown = count * scale + 1.0;
        (2.0 * grown / (count * count * scale) * (grown.sqrt() / self.alpha).ln()).sqrt()
    }
}

/// Returns the sum with the policy on, divided by the sum with it off; `None` without pairs, or if the result is no number.
pub(super) fn ratio_of_sums(pairs: &[(f64, f64)]) -> Option<f64> {
    let (on, off) = pairs
        .iter()
        .fold((0.0, 0.0), |sums, pair| (sums.0 + pair.0, sums.1 + pair.1));
    let ratio: f64 = on / off;
    ratio.is_finite().then_some(ratio)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(f64, f64)]) -> MeanEffect {
        let mut mean = MeanEffect::new(0.025);
        for &(on, off) in pairs {
            mean.add(on, off);
        }
        mean
    }

    #[test]
    fn equal_pairs_have_an_exact_mean() {
        assert_eq!(of(&[]).estimate(), None);
        assert_eq!(of(&[(2.0, 1.0)]).range(), Range::default());
        let mean = of(&[(1.1, 1.0), (2.2, 2.0)]);
        let (low, high) = (mean.range().low.unwrap(), mean.range().high.unwrap());
        assert!(
            (low - 0.1).abs() < 1e-9 && (high - 0.1).abs() < 1e-9,
            "{low} {high}"
        );
        assert!(
            of(&[(f64::NAN, 1.0), (1.0, f64::INFINITY)])
                .pairs()
                .is_empty()
        );
    }

    #[test]
    fn a_rare_slow_block_shows_in_the_mean() {
        // Nineteen of twenty pairs are equal but for a little noise; in one, the block with the policy takes three times as long.
        let pairs: Vec<(f64, f64)> = (0..40)
            .map(|index| {
                let noise = f64::from(index % 5 - 2) * 1e-3;
                (if index % 20 == 7 { 3.0 } else { 1.0 + noise }, 1.0)
            })
            .collect();
        let mean = of(&pairs);
        assert!((mean.estimate().unwrap() - 0.1).abs() < 0.01);
        assert!(!mean.is_within(0.02) && !mean.is_within(0.1));
        let even: Vec<(f64, f64)> = pairs.iter().map(|&(on, off)| (on.min(1.01), off)).collect();
        assert!(of(&even).is_within(0.02));
    }

    #[test]
    fn the_interval_narrows_about_as_fast_as_that_of_the_usual_effect() {
        let mean = MeanEffect::new(0.025);
        // Spreads of one pair: 0.52 after 40 pairs, where a t interval for one look alone has 0.37.
        assert!(
            (mean.width(40.0) - 0.52).abs() < 0.01,
            "{}",
            mean.width(40.0)
        );
        assert!(mean.width(160.0) < 0.6 * mean.width(40.0));
    }
}
