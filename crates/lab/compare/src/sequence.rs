//! When a trial in pairs may end, however often somebody looks: a test by betting.
//!
//! Each pair of blocks has the policy on in one and off in the other, in an order that a fair coin decides. Its *difference* is
//! `D = ln(on / off)`. If the policy changes nothing, then the two values would have been the same in either order, and the coin decided
//! the sign of `D` and nothing else: given `|D|` and all that came before, it is as likely to be positive as negative. That is exact whatever the
//! noise looks like: it may drift, have heavy tails, depend on its past.
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
//! small ones, which chance decides. The mean is not known, so the capital is spread over several (`MEANS`, in spreads), and over two bounds
//! (`CLIPS`) to what one difference may count, since with heavy tails large ones mean less. The spread is that of earlier pairs, by
//! their median deviation. What is staked may be chosen badly; then the test takes longer, and is as right as before.
//!
//! *The interval.* If the effect is θ (on the log scale, in all pairs alike), it is `D - θ` that is fair. So each θ of a grid is tested in this way; the
//! interval is those that were never rejected. It holds the effect at all times together with probability 1 - α.
//!
//! Rejected: *signs alone* (the same test with equal stakes takes 1.4 times as many pairs under normal noise), *t tests with corrections for looking*
//! (their level is that of a noise nobody has promised), *bootstrap intervals* (wrong for few pairs, and for looks).

use std::f64::consts::LN_2;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::stats::quantile::{median, sorted};

/// Means that are betted on, in spreads of a difference.
const MEANS: [f64; 4] = [0.2, 0.45, 1.0, 2.2];

/// No difference counts as more spreads than this.
const CLIPS: [f64; 2] = [1.5, 3.0];

/// Players on each side.
const PLAYERS: usize = MEANS.len() * CLIPS.len();

/// The largest share of the capital that is staked: a player who loses all can never win again.
const MOST: f64 = 0.95;

/// So many pairs show how far differences spread; before, the largest one seen stands for it.
const PAIRS_FOR_SPREAD: usize = 3;

/// Turns a median absolute deviation into the spread of a normal law.
const NORMAL: f64 = 1.4826;

/// The coin that decides which block of a pair is first.
#[derive(Debug)]
pub struct Coin(StdRng);

impl Coin {
    /// The same tosses for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(StdRng::seed_from_u64(seed))
    }

    /// Either way with the same probability, whatever came before.
    pub fn toss(&mut self) -> bool {
        self.0.random()
    }
}

/// What a sequence has shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shown {
    /// The effect is above 0.
    Above,
    /// It is below 0.
    Below,
    /// It is smaller than what counts, one way or the other.
    Small,
}

/// Effects that are not ruled out, on the log scale; `None` where there is no bound yet.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Range {
    /// The lowest.
    pub low: Option<f64>,
    /// The highest.
    pub high: Option<f64>,
}

/// The players who bet on one supposed effect.
#[derive(Debug, Clone)]
struct Table {
    effect: f64,
    /// Logarithms of their capitals: on `D - effect` being positive, and negative.
    above: [f64; PLAYERS],
    below: [f64; PLAYERS],
    /// Which side won so much first that the effect is ruled out.
    ruled_out: Option<Shown>,
}

/// A test that goes on for as long as pairs come.
#[derive(Debug, Clone)]
pub struct Sequence {
    /// Logarithm of the capital that decides.
    enough: f64,
    within: f64,
    tables: Vec<Table>,
    /// Index of the table for no effect.
    none: usize,
    seen: Vec<f64>,
    last: Range,
}

impl Sequence {
    /// A test that is wrong with probability `alpha` at most, both sides together; effects that change a value by less than the share `within`
    /// (0.02 is 2 %) do not count.
    ///
    /// Values outside of what makes sense are moved to its ends: `alpha` to 1e-9 to 0.5, `within` to 1e-4 to 1.
    #[must_use]
    pub fn new(alpha: f64, within: f64) -> Self {
        Self::over(alpha, within, &grid())
    }

    /// The same with effects of one's own to test (on the log scale), beside 0 and what does not count: a coarser interval for less work.
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
            // Half of it for each side.
            enough: LN_2 - alpha.ln(),
            within,
            tables: effects.into_iter().map(table).collect(),
            none,
            seen: Vec::new(),
            last: Range::default(),
        }
    }

    /// Takes in the difference of the next pair, `ln(on / off)`. Anything but a finite number is left out.
    pub fn add(&mut self, difference: f64) {
        if !difference.is_finite() {
            return;
        }
        let spread = self.spread();
        for table in &mut self.tables {
            let surplus = difference - table.effect;
            // The sign of this one must not be used, only its size.
            let spread = spread.unwrap_or_else(|| {
                let sizes = self.seen.iter().map(|seen| (seen - table.effect).abs());
                sizes.fold(surplus.abs(), f64::max)
            });
            table.bet(surplus, spread.max(f64::MIN_POSITIVE), self.enough);
        }
        self.seen.push(difference);
        self.last = self.remaining();
    }

    /// How far differences have spread so far; `None` with too few.
    fn spread(&self) -> Option<f64> {
        if self.seen.len() < PAIRS_FOR_SPREAD {
            return None;
        }
        let centre = median(&sorted(&self.seen))?;
        let distances: Vec<f64> = self.seen.iter().map(|seen| (seen - centre).abs()).collect();
        let count = self.seen.len() as f64;
        // The median of few is too small as often as too large, and too small costs more.
        Some(median(&sorted(&distances))? * NORMAL * (1.0 + 2.0 / count))
    }

    /// From the lowest to the highest effect that is not ruled out, with the nearest that are; as before if none is left.
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

    /// The effects that are not ruled out, at all looks together.
    #[must_use]
    pub const fn range(&self) -> Range {
        self.last
    }

    /// What is shown, if anything is.
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

    /// The middle of all means of two differences (Hodges and Lehmann): the effect that fits best. `None` before the first pair.
    #[must_use]
    pub fn estimate(&self) -> Option<f64> {
        // Of very many pairs the last ones do.
        let from = self.seen.len().saturating_sub(1000);
        let seen = &self.seen[from..];
        let means = seen.iter().enumerate().flat_map(|(index, a)| {
            let others = seen[index..].iter();
            others.map(move |b| f64::midpoint(*a, *b))
        });
        median(&sorted(&means.collect::<Vec<f64>>()))
    }

    /// Pairs that were taken in.
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
                let stake = (mean * size.min(clip)).tanh().min(MOST).copysign(surplus);
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

/// The logarithm of the mean of capitals, from theirs.
fn together(players: &[f64; PLAYERS]) -> f64 {
    let most = players.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = players.iter().map(|player| (player - most).exp()).sum();
    most + (sum / PLAYERS as f64).ln()
}

/// Effects that are tested: close together where they are small.
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
        // Who bet on an effect above 0 has as much as who bet on one below.
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
        /// A player's expected capital after a fair coin is what it was, whatever came before: the whole guarantee.
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
