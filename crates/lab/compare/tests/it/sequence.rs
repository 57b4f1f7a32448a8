//! The promise of trials: if the policy changes nothing, looking after every pair claims an effect in no more than 2.5 % of trials, for any kind of
//! noise; and a real effect is found.
//!
//! Simulations with fixed seeds: the counts are the same on every machine.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rand_distr::{Cauchy, Distribution, Normal, StandardNormal};
use superhue_measure::{Evidence, MeanEffect, Sequence, Shown};

/// Number of trials of each kind.
const TRIALS: u64 = 500;

/// Level of both sides together.
const ALPHA: f64 = 0.025;

/// Kind of noise: course of the metric's logarithm from block to block.
#[derive(Debug, Clone, Copy)]
enum Noise {
    /// Independent normal values.
    Normal,
    /// Independent values of a distribution without a mean.
    Cauchy,
    /// Random walk.
    Walk,
    /// Each block is mostly like the one before.
    Autocorrelated,
    /// A cache that fills: values grow from block to block.
    Drifting,
    /// A load that rises and falls every few blocks.
    Periodic,
    /// Blocks of a busy neighbour, ten times as noisy as the rest.
    Bursts,
    /// Few different values, so that many pairs are equal.
    Coarse,
    /// Work in step with the blocks: each second block is slower, whatever the policy is.
    InStep,
}

impl Noise {
    const ALL: [Self; 9] = [
        Self::Normal,
        Self::Cauchy,
        Self::Walk,
        Self::Autocorrelated,
        Self::Drifting,
        Self::Periodic,
        Self::Bursts,
        Self::Coarse,
        Self::InStep,
    ];

    /// Returns the values of two blocks for each of `pairs` pairs.
    fn blocks(self, pairs: usize, random: &mut StdRng) -> Vec<[f64; 2]> {
        let mut level = 0.0_f64;
        let mut busy = false;
        let mut block = |index: usize| {
            let normal: f64 = StandardNormal.sample(random);
            let normal = normal * 0.02;
            match self {
                Self::Normal => normal,
                Self::Cauchy => Cauchy::new(0.0, 0.01).unwrap().sample(random),
                Self::Walk => {
                    level += normal;
                    level
                }
                Self::Autocorrelated => {
                    level = 0.9 * level + normal;
                    level
                }
                Self::Drifting => {
                    let burst = Normal::new(0.0, 0.003).unwrap().sample(random);
                    index as f64 * 0.01 + burst
                }
                Self::Periodic => (index as f64 * 0.7).sin() * 0.05 + normal * 0.2,
                Self::Bursts => {
                    if random.random_bool(0.1) {
                        busy = !busy;
                    }
                    if busy { normal * 10.0 } else { normal }
                }
                Self::Coarse => (normal * 50.0).round() / 50.0,
                Self::InStep => normal * 0.2 + if index % 2 == 1 { 0.1 } else { 0.0 },
            }
        };
        (0..pairs)
            .map(|pair| [block(2 * pair), block(2 * pair + 1)])
            .collect()
    }

    /// Returns the differences of pairs whose order a coin decides, with an effect of the policy.
    fn differences(self, pairs: usize, effect: f64, seed: u64) -> Vec<f64> {
        let mut random = StdRng::seed_from_u64(seed);
        let blocks = self.blocks(pairs, &mut random);
        let difference = |[first, second]: [f64; 2]| {
            let on_first = random.random::<bool>();
            effect
                + if on_first {
                    first - second
                } else {
                    second - first
                }
        };
        blocks.into_iter().map(difference).collect()
    }
}

/// Returns the first result that a trial shows, and the number of pairs until then.
fn first_shown(differences: &[f64], effects: &[f64]) -> Option<(Shown, usize)> {
    let mut sequence = Sequence::over(ALPHA, 0.02, effects);
    for (index, &difference) in differences.iter().enumerate() {
        sequence.add(difference);
        if let Some(shown) = sequence.shown() {
            return Some((shown, index + 1));
        }
    }
    None
}

#[test]
fn nothing_is_claimed_where_there_is_nothing() {
    for noise in Noise::ALL {
        let mut claims = [0_u64; 2];
        for seed in 0..TRIALS {
            let differences = noise.differences(60, 0.0, seed);
            let mut sequence = Sequence::over(ALPHA, 0.02, &[]);
            // The trial continues to its end, even where "no difference" would have ended it: the level holds for all looks.
            for difference in differences {
                sequence.add(difference);
            }
            match sequence.shown() {
                Some(Shown::Above) => claims[0] += 1,
                Some(Shown::Below) => claims[1] += 1,
                Some(Shown::Small) | None => {}
            }
        }
        let all: u64 = claims.iter().sum();
        assert!(all as f64 <= TRIALS as f64 * ALPHA, "{noise:?}: {claims:?}");
    }
}

#[test]
fn an_effect_is_not_called_small_nor_the_other_way_round() {
    for noise in Noise::ALL {
        for effect in [0.021, -0.021] {
            let wrong = (0..120_u64).filter(|&seed| {
                let differences = noise.differences(60, effect, seed);
                let right = if effect > 0.0 {
                    Shown::Above
                } else {
                    Shown::Below
                };
                first_shown(&differences, &[]).is_some_and(|(shown, _)| shown != right)
            });
            let wrong = wrong.count();
            assert!(
                wrong as f64 <= 120.0 * ALPHA,
                "{noise:?} {effect}: {wrong} of 120"
            );
        }
    }
}

#[test]
fn the_range_holds_the_effect_at_all_times() {
    let effects: Vec<f64> = (-40..=40).map(|step| f64::from(step) * 0.0025).collect();
    for noise in Noise::ALL {
        let lost = (0..80_u64).filter(|&seed| {
            let mut sequence = Sequence::over(ALPHA, 0.02, &effects);
            noise.differences(60, 0.03, seed).into_iter().any(|it| {
                sequence.add(it);
                let range = sequence.range();
                range.low.is_some_and(|low| low > 0.03)
                    || range.high.is_some_and(|high| high < 0.03)
            })
        });
        let lost = lost.count();
        assert!(lost as f64 <= 80.0 * ALPHA, "{noise:?}: {lost} of 80");
    }
}

/// Returns the median number of pairs until the true result is shown, and how many of 100 trials show it.
fn power(noise: Noise, effect: f64, pairs: usize) -> (usize, usize) {
    let right = if effect == 0.0 {
        Shown::Small
    } else {
        Shown::Above
    };
    let mut needed: Vec<usize> = (0..100)
        .map(|seed| {
            let shown = first_shown(&noise.differences(pairs, effect, seed), &[]);
            shown
                .filter(|(shown, _)| *shown == right)
                .map_or(usize::MAX, |(_, pairs)| pairs)
        })
        .collect();
    needed.sort_unstable();
    let found = needed.iter().filter(|&&needed| needed <= pairs).count();
    (needed[50], found)
}

/// Mean of the values, and the standard error of that mean.
fn mean_of(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values
        .iter()
        .map(|value| (value - mean).powi(2))
        .sum::<f64>()
        / (count - 1.0);
    (mean, (variance / count).sqrt())
}

#[test]
fn estimates_of_trials_that_stop_early_do_not_lean() {
    let effect = 0.03;
    let [mut usual, mut mean, mut removed] = [const { Vec::new() }; 3];
    let mut uncorrected = 0;
    for seed in 0..300 {
        let mut evidence = Evidence::new(ALPHA, 0.02);
        for difference in Noise::Normal.differences(40, effect, seed) {
            evidence.add(difference.exp(), 1.0);
            if evidence.shown().is_some() {
                break;
            }
        }
        let Some(corrected) = evidence.corrected(seed) else {
            uncorrected += 1;
            continue;
        };
        usual.push(corrected.usual.ln_1p());
        mean.push(corrected.mean);
        removed.push(evidence.usual().estimate().unwrap() - corrected.usual.ln_1p());
    }
    assert!(uncorrected <= 6, "{uncorrected} of 300");
    let (usual, error) = mean_of(&usual);
    assert!((usual - effect).abs() < 3.0 * error, "{usual} +- {error}");
    // A plain estimate leans away from 0.
    let (removed, error) = mean_of(&removed);
    assert!(removed > 3.0 * error, "{removed} +- {error}");
    // The mean of ratios is above the ratio of means, by half of the variance of a difference.
    let (mean, error) = mean_of(&mean);
    let expected = effect.exp_m1() + 0.028_f64.powi(2) / 2.0;
    assert!((mean - expected).abs() < 3.0 * error, "{mean} +- {error}");
}

#[test]
fn a_mean_effect_is_not_called_small() {
    for noise in Noise::ALL {
        // A normal approximation does not hold for noise without a mean.
        if matches!(noise, Noise::Cauchy) {
            continue;
        }
        let wrong = (0..TRIALS).filter(|&seed| {
            let mut mean = MeanEffect::new(ALPHA);
            let mut is_wrong = false;
            for (index, difference) in noise.differences(60, 0.0, seed).into_iter().enumerate() {
                mean.add((0.025 + difference / 2.0).exp(), (-difference / 2.0).exp());
                // The usual effect shows nothing before the seventh pair.
                is_wrong |= index >= 6 && mean.is_within(0.02);
            }
            is_wrong
        });
        let wrong = wrong.count();
        // An approximation for many pairs: with few it fails more often than it promises.
        assert!(
            wrong as f64 <= TRIALS as f64 * ALPHA * 1.5,
            "{noise:?}: {wrong} of {TRIALS}"
        );
    }
}

#[test]
fn a_second_trial_begins_with_what_the_first_has_won() {
    let right = |pairs: &[f64]| {
        let mut evidence = Evidence::new(ALPHA, 0.02);
        pairs.iter().for_each(|pair| evidence.add(pair.exp(), 1.0));
        evidence.shown()
    };
    let (mut alone, mut together) = (0, 0);
    for seed in 0..100 {
        let pairs = Noise::Normal.differences(16, 0.03, seed);
        alone += u32::from(right(&pairs[8..]).is_some());
        together += u32::from(right(&pairs).is_some());
    }
    assert!(together >= alone + 20, "{alone} {together}");
}

#[test]
fn effects_are_found_about_as_soon_as_can_be() {
    // The spread of a difference is 2.8 %; a test that knew it, and the effect, would need 2 ln(80) (0.028 / effect)² pairs: 18 and 8.
    let (median, found) = power(Noise::Normal, 0.02, 200);
    assert!(median <= 30 && found >= 98, "{median} {found}");
    let (median, found) = power(Noise::Normal, 0.03, 200);
    assert!(median <= 16 && found >= 97, "{median} {found}");
    // To show that there is no effect takes both sides.
    let (median, found) = power(Noise::Normal, 0.0, 200);
    assert!(median <= 45 && found >= 95, "{median} {found}");
    // This noise has no mean or variance, and half of the differences are farther from the effect than the effect is large.
    let (median, found) = power(Noise::Cauchy, 0.02, 200);
    assert!(median <= 55 && found >= 95, "{median} {found}");
}
