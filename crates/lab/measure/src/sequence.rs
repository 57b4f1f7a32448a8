//! Stopping rule of a trial in pairs, valid after any number of looks: a test by betting.
//!
//! In each pair of blocks the policy is on in one and off in the other, in an order that a fair coin decides. The *difference* of a pair is
//! `D = ln(on / off)`. If the policy changes nothing, the two values would have been the same in either order, and the coin alone decided the sign of
//! `D`: given `|D|` and all earlier pairs, positive and negative signs are equally likely. This is exact for any noise: the noise may drift, have
//! heavy tails, and depend on its past.
//!
//! ```text
//!   capital 1 ──> stake a share λ of it on "D is positive" ──> capital · (1 + λ · sign D)
//!                 λ in (0, 1), from |D| and from earlier pairs
//! ```
//!
//! A player without knowledge of the sign cannot win such a game: that the capital ever reaches 1/α happens with probability α at most
//! (Ville's inequality), so one may look after every pair. Two players bet, one on each side, with half of α each.
//!
//! *How much is staked.* For a normal `D` with mean μ and spread σ the best stake is `tanh(μ|D|/σ²)`: much on large differences, little on
//! small ones, which are decided by chance. The mean is unknown, so the capital is divided among several means (`MEANS`, in spreads), and among two
//! bounds (`CLIPS`) on the size of one difference, because with heavy tails large differences mean less. The spread is estimated from earlier
//! pairs, by their median deviation. A badly chosen stake makes the test slower, but no less valid.
//!
//! *The interval.* If the effect is θ (on the log scale, in all pairs alike), it is `D - θ` that is fair. So each θ of a grid is tested in this way; the
//! interval is those that were never rejected. It holds the effect at all times together with probability 1 - α.
//!
//! *Beside it.* [`MeanEffect`] is the effect on the sum of all blocks, which one bad block moves. [`Evidence`] joins the two into the stopping rule of a
//! trial, and corrects the estimates for having stopped.
//!
//! *Again.* A second trial of the same program can begin with the pairs of the first: the capital that these won is not lost, and the guarantee holds
//! for both trials together.
//!
//! Rejected: *signs alone* (the same test with equal stakes takes 1.4 times as many pairs under normal noise), *t tests with corrections for looking*
//! (their level holds only under normal noise), *bootstrap intervals* (wrong for few pairs, and under repeated looks).

mod evidence;
mod mean;

use std::f64::consts::LN_2;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::stats::quantile::{median, sorted};

pub use evidence::{CorrectedEstimates, Evidence};
pub use mean::MeanEffect;

/// Means on which players bet, in spreads of a difference.
const MEANS: [f64; 4] = [0.2, 0.45, 1.0, 2.2];

/// Largest size of a difference that counts, in spreads.
const CLIPS: [f64; 2] = [1.5, 3.0];

/// Players on each side.
const PLAYERS: usize = MEANS.len() * CLIPS.len();

/// Largest share of the capital that a player stakes: a player who loses all of it can never win again.
const MAX_STAKE: f64 = 0.95;

/// Fewest pairs that give an estimate of the spread; with fewer, the largest difference seen stands for it.
const PAIRS_FOR_SPREAD: usize = 3;

/// Factor from a median absolute deviation to the standard deviation of a normal distribution.
const NORMAL: f64 = 1.4826;

/// Coin that decides which block of a pair is first.
#[derive(Debug)]
pub struct Coin(StdRng);

impl Coin {
    /// Makes a coin; the same seed gives the same tosses.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Tosses the coin: both results have the same probability, whatever came before.
    pub fn toss(&mut self) -> bool {
        self.0.random()
    }
}

/// Result that a sequence has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// The effect is above 0.
    Above,
    /// The effect is below 0.
    Below,
    /// The effect, in either direction, is smaller than what counts.
    Small,
}

/// Effects that are not ruled out, on the log scale; `None` where there is no bound yet.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Range {
    /// Lower bound.
    pub low: Option<f64>,
    /// Upper bound.
    pub high: Option<f64>,
}

/// Players who bet on one supposed effect.
#[derive(Debug, Clone)]
struct Table {
    effect: f64,
    /// Logarithms of the players' capitals: of those who bet on a positive `D - effect`, and on a negative one.
    above: [f64; PLAYERS],
    below: [f64; PLAYERS],
    /// Side that won enough first to rule out the effect.
    ruled_out: Option<Shown>,
}

/// Test that continues as long as pairs come.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Logarithm of the capital that decides.
    enough: f64,
    within: f64,
    tables: Vec<Table>,
    /// Index of the table for no effect.
    none: usize,
    seen: Vec<f64>,
    /// The same differences, ascending.
    ascending: Vec<f64>,
    last: Range,
}

impl Sequence {
    /// Makes a test that is wrong with probability `alpha` at most, both sides together; effects that change a value by less than the share
    /// `within` (0.02 is 2 %) do not count.
    ///
    /// Clamps its arguments: `alpha` to 1e-9 to 0.5, `within` to 1e-4 to 1.
    #[must_use]
    pub fn new(alpha: f64, within: f64) -> Self {
        Self::over(alpha, within, &grid())
    }

    /// Makes the same test for given effects (on the log scale), beside 0 and the bounds of `within`: fewer effects give a coarser interval for less
    /// work.
    #[must_use]
    pub fn over(alpha: f64, within: f64, effects: &[f64]) -> Self {
        let alpha = if alpha > 1e-9 { alpha.min(0.5) } else { 1e-9 };
        let within = if within > 1e-4 { within.min(1.0) } else { 1e-4 };
        let within = within.ln_1p();
        let finite = effects.iter().copied().filter(|effect| effect.is_finite());
        let mut effects: Vec<f64> = finite.chain([-within, 0.0, within]).collect();
        effects.sort_by(f64::total_cmp);
        effects.dedup_by(|a, b| *a == *b);
        let none = effects.partition_point(|&effect| effect < 0.0);
        let table = |effect| Table {
            effect,
            above: [0.0; PLAYERS],
            below: [0.0; PLAYERS],
            ruled_out: None,
        };
        Self {
            // Each side has half of alpha.
            enough: LN_2 - alpha.ln(),
            within,
            tables: effects.into_iter().map(table).collect(),
            none,
            seen: Vec::new(),
            ascending: Vec::new(),
            last: Range::default(),
        }
    }

    /// Adds the difference of the next pair, `ln(on / off)`. Ignores values that are not finite.
    pub fn add(&mut self, difference: f64) {
        if !difference.is_finite() {
            return;
        }
        let spread = self.spread();
        for table in &mut self.tables {
            let surplus = difference - table.effect;
            // The spread may use the size of this difference, but not its sign.
            let spread = spread.unwrap_or_else(|| {
                let sizes = self.seen.iter().map(|seen| (seen - table.effect).abs());
                sizes.fold(surplus.abs(), f64::max)
            });
            table.bet(surplus, spread.max(f64::MIN_POSITIVE), self.enough);
        }
        self.seen.push(difference);
        let place = self
            .ascending
            .partition_point(|&seen| seen.total_cmp(&difference).is_lt());
        self.ascending.insert(place, difference);
        self.last = self.remaining();
    }

    /// Returns the spread of the differences so far; `None` for too few pairs.
    fn spread(&self) -> Option<f64> {
        if self.seen.len() < PAIRS_FOR_SPREAD {
            return None;
        }
        let centre = median(&self.ascending)?;
        let distance = median_distance(&self.ascending, centre)?;
        let count = self.seen.len() as f64;
        // The median of few deviations is too small as often as too large, and a spread that is too small costs more.
        Some(distance * NORMAL * (1.0 + 2.0 / count))
    }

    /// Returns the nearest effects that are ruled out below and above those that are not; the previous range if all are ruled out.
    fn remaining(&self) -> Range {
        let left = |table: &Table| table.ruled_out.is_none();
        let (Some(first), Some(last)) = (
            self.tables.iter().position(left),
            self.tables.iter().rposition(left),
        ) else {
            return self.last;
        };
        let effect = |index: usize| self.tables.get(index).map(|table| table.effect);
        Range {
            low: first.checked_sub(1).and_then(effect),
            high: effect(last + 1),
        }
    }

    /// Returns the effects that are not ruled out, valid for all looks together.
    #[must_use]
    pub const fn range(&self) -> Range {
        self.last
    }

    /// Returns the result, once one is shown.
    #[must_use]
    pub fn shown(&self) -> Option<Shown> {
        if let Some(shown) = self.tables.get(self.none).and_then(|it| it.ruled_out) {
            return Some(shown);
        }
        let range = self.last;
        let is_small = range.low.is_some_and(|low| low >= -self.within)
            && range.high.is_some_and(|high| high <= self.within);
        is_small.then_some(Shown::Small)
    }

    /// Returns the effect that fits best: the median of the means of all two differences (Hodges and Lehmann). `None` before the first pair.
    #[must_use]
    pub fn estimate(&self) -> Option<f64> {
        // The last 1000 pairs are enough.
        let from = self.seen.len().saturating_sub(1000);
        hodges_lehmann(self.seen.get(from..).unwrap_or_default())
    }

    /// Returns the number of pairs added.
    #[must_use]
    pub const fn pairs(&self) -> usize {
        self.seen.len()
    }
}

impl Table {
    fn bet(&mut self, surplus: f64, spread: f64, enough: f64) {
        if self.ruled_out.is_some() || surplus == 0.0 {
            return;
        }
        let size = surplus.abs() / spread;
        let mut player = 0;
        for mean in MEANS {
            for clip in CLIPS {
                let stake = (mean * size.min(clip))
                    .tanh()
                    .min(MAX_STAKE)
                    .copysign(surplus);
                self.above[player] += stake.ln_1p();
                self.below[player] += (-stake).ln_1p();
                player += 1;
            }
        }
        if together(&self.above) >= enough {
            self.ruled_out = Some(Shown::Above);
        } else if together(&self.below) >= enough {
            self.ruled_out = Some(Shown::Below);
        }
    }
}

/// Returns the median of the means of all two values (Hodges and Lehmann). `None` without values.
fn hodges_lehmann(values: &[f64]) -> Option<f64> {
    let means = values.iter().enumerate().flat_map(|(index, a)| {
        let others = values.iter().skip(index);
        others.map(move |b| f64::midpoint(*a, *b))
    });
    median(&sorted(&means.collect::<Vec<f64>>()))
}

/// Returns the median distance of ascending values from a centre, in linear time: the nearest value on either side is the next in order.
fn median_distance(ascending: &[f64], centre: f64) -> Option<f64> {
    let last = ascending.len().checked_sub(1)?;
    let middle = [last / 2, last.div_ceil(2)];
    let mut above = ascending.partition_point(|&value| value < centre);
    let mut below = above;
    let mut found = [0.0; 2];
    for index in 0..=last.div_ceil(2) {
        let left = below.checked_sub(1).and_then(|at| ascending.get(at));
        let left = left.map(|value| centre - value);
        let right = ascending.get(above).map(|value| value - centre);
        let distance = match (left, right) {
            (Some(left), right) if right.is_none_or(|right| left < right) => {
                below -= 1;
                left
            }
            (_, Some(right)) => {
                above += 1;
                right
            }
            (_, None) => return None,
        };
        for (found, at) in found.iter_mut().zip(middle) {
            if at == index {
                *found = distance;
            }
        }
    }
    Some(f64::midpoint(found[0], found[1]))
}

/// Returns the logarithm of the mean capital, from the logarithms of the players' capitals.
fn together(players: &[f64; PLAYERS]) -> f64 {
    let most = players.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = players.iter().map(|player| (player - most).exp()).sum();
    most + (sum / PLAYERS as f64).ln()
}

/// Returns the effects that are tested: close together where they are small.
fn grid() -> Vec<f64> {
    const STEPS: [(f64, usize); 5] = [
        (0.0005, 100),
        (0.001, 50),
        (0.005, 40),
        (0.02, 30),
        (0.1, 20),
    ];
    let mut effects = Vec::new();
    let mut effect = 0.0;
    for (step, count) in STEPS {
        for _ in 0..count {
            effect += step;
            effects.extend([-effect, effect]);
        }
    }
    effects
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fed(sequence: &mut Sequence, differences: &[f64]) {
        for &difference in differences {
            sequence.add(difference);
        }
    }

    #[test]
    fn no_pair_shows_anything_alone() {
        let mut sequence = Sequence::new(0.025, 0.02);
        assert_eq!((sequence.shown(), sequence.estimate()), (None, None));
        sequence.add(5.0);
        assert_eq!(sequence.shown(), None);
        assert_eq!(sequence.estimate(), Some(5.0));
        fed(&mut sequence, &[f64::NAN, f64::INFINITY]);
        assert_eq!(sequence.pairs(), 1);
    }

    #[test]
    fn what_is_always_the_same_is_shown_soon() {
        for (difference, expected) in [
            (0.05, Shown::Above),
            (-0.05, Shown::Below),
            (0.001, Shown::Small),
        ] {
            let mut sequence = Sequence::new(0.025, 0.02);
            let jitter = [0.0, 1e-3, -1e-3, 5e-4, -2e-4];
            let mut pairs = 0;
            while sequence.shown().is_none() {
                let sign = if expected == Shown::Small && pairs % 2 == 0 {
                    -1.0
                } else {
                    1.0
                };
                sequence.add(sign * difference + jitter[pairs % jitter.len()]);
                pairs += 1;
                assert!(pairs < 20, "{difference}: {:?}", sequence.range());
            }
            assert_eq!(sequence.shown(), Some(expected));
            assert!(
                pairs >= 7,
                "{pairs}: fewer coins cannot show it at this level"
            );
        }
    }

    #[test]
    fn differences_of_nothing_show_nothing_but_that() {
        let mut sequence = Sequence::new(0.025, 0.02);
        fed(&mut sequence, &[0.0; 20]);
        assert_eq!(sequence.shown(), Some(Shown::Small));
        // The players on an effect above 0 have as much capital as those on an effect below 0.
        let table = &sequence.tables[sequence.none];
        assert_eq!(together(&table.above), together(&table.below));
    }

    #[test]
    fn one_wild_pair_does_not_ruin_what_others_show() {
        let mut sequence = Sequence::new(0.025, 0.02);
        for index in 0..40 {
            let jitter = f64::from(index % 7 - 3) * 0.004;
            sequence.add(if index == 5 { -3.0 } else { 0.03 + jitter });
        }
        assert_eq!(sequence.shown(), Some(Shown::Above));
    }

    proptest! {
        #[test]
        fn the_median_distance_is_that_of_sorted_distances(
            values in prop::collection::vec(-2.0..2.0f64, 1..40),
        ) {
            let ascending = sorted(&values);
            let expected = crate::stats::quantile::mad(&ascending);
            let centre = median(&ascending).unwrap();
            prop_assert_eq!(median_distance(&ascending, centre), expected);
        }

        /// A player's expected capital after a fair coin equals the capital before it, whatever came before: the whole guarantee.
        #[test]
        fn the_game_is_fair(
            past in prop::collection::vec(-0.2..0.2f64, 0..30),
            size in 0.0..0.5f64,
            effect in -0.05..0.05f64,
        ) {
            let mut sequence = Sequence::over(1e-9, 0.02, &[effect]);
            fed(&mut sequence, &past);
            let at = |sequence: &Sequence| {
                let table = sequence.tables.iter().find(|it| it.effect == effect).unwrap();
                (together(&table.above).exp(), together(&table.below).exp())
            };
            let before = at(&sequence);
            prop_assume!(sequence.tables.iter().all(|table| table.ruled_out.is_none()));
            let [up, down] = [1.0, -1.0].map(|sign| {
                let mut next = sequence.clone();
                next.add(effect + sign * size);
                at(&next)
            });
            let mean = |a: f64, b: f64| f64::midpoint(a, b);
            prop_assert!((mean(up.0, down.0) / before.0 - 1.0).abs() < 1e-6);
            prop_assert!((mean(up.1, down.1) / before.1 - 1.0).abs() < 1e-6);
        }

        #[test]
        fn what_is_turned_around_is_shown_turned_around(
            differences in prop::collection::vec(-0.1..0.2f64, 1..40),
        ) {
            let mut plain = Sequence::over(0.025, 0.02, &[]);
            let mut turned = plain.clone();
            fed(&mut plain, &differences);
            fed(&mut turned, &differences.iter().map(|it| -it).collect::<Vec<_>>());
            let around = |shown| match shown {
                Shown::Above => Shown::Below,
                Shown::Below => Shown::Above,
                Shown::Small => Shown::Small,
            };
            prop_assert_eq!(plain.shown(), turned.shown().map(around));
            prop_assert_eq!(plain.range().low, turned.range().high.map(|it| -it));
        }

        #[test]
        fn the_range_only_narrows_and_holds_the_estimate_of_steady_pairs(
            effect in -0.3..0.3f64, noise in prop::collection::vec(-0.01..0.01f64, 40),
        ) {
            let mut sequence = Sequence::new(0.025, 0.02);
            let mut before = Range::default();
            for noise in noise {
                sequence.add(effect + noise);
                let now = sequence.range();
                prop_assert!(before.low.is_none() || now.low >= before.low);
                prop_assert!(before.high.is_none() || now.high.is_some() && now.high <= before.high);
                before = now;
            }
            let (low, high) = (before.low.unwrap(), before.high.unwrap());
            prop_assert!(low <= effect + 0.01 && effect - 0.01 <= high, "{low} {effect} {high}");
            let estimate = sequence.estimate().unwrap();
            prop_assert!((estimate - effect).abs() <= 0.01);
        }
    }
}
