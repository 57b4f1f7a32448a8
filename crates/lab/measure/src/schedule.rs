//! The order of the runs.
//!
//! No two runs meet the same machine: clocks throttle, neighbours come and go, the page cache fills. Running all of A and then all of B turns every
//! such drift into a difference between A and B. So the runs come in *rounds*, with every arm once in each, and drift affects all arms alike.
//! Within a round the order changes, so that no arm always runs first, or always right after the arm that leaves the caches cold.
//!
//! Shuffling each round on its own would balance positions only on average, and with ten rounds the average is poor. Instead the rounds come
//! from randomly relabelled *Williams squares*:
//!
//! ```text
//!   4 arms, 4 rounds:   a b d c      each arm once in each column: every position once
//!                       b c a d      each ordered pair of neighbours once: every arm
//!                       c d b a      follows every other equally often
//!                       d a c b
//! ```
//!
//! A scan of parameters takes all values in each round, in an order from such a square; the arms of one value stay side by side, because they
//! are compared with each other.
//!
//! With an odd number of arms the neighbours balance over two squares, of which the second is the first read backwards. (E. J. Williams,
//! "Experimental designs balanced for the estimation of residual effects of treatments", Australian J. of Scientific Research A 2, 1949.)

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

/// One scheduled run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScheduledRun {
    /// Index of the arm.
    pub arm: usize,
    /// Round, from 0; warm-up rounds and measured rounds are counted apart.
    pub round: usize,
    /// Place in the round, from 0.
    pub position: usize,
    /// True if the run only warms up the machine and does not count.
    pub warmup: bool,
}

/// The whole order: `warmup` rounds first, then `runs` measured rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    turns: Vec<ScheduledRun>,
}

impl Schedule {
    /// Makes the rounds for `arms` arms; the same arguments always give the same order.
    ///
    /// After every `arms` measured rounds each arm has been at each position equally often.
    #[must_use]
    pub fn new(arms: usize, runs: usize, warmup: usize, seed: u64) -> Self {
        Self::scan(arms, 1, runs, warmup, seed)
    }

    /// Makes the rounds of a scan: `arms` arms at each of `values` values. Arm number `a` of value number `v` has the index `v * arms + a`.
    #[must_use]
    pub fn scan(arms: usize, values: usize, runs: usize, warmup: usize, seed: u64) -> Self {
        let mut dealers = Dealers::new(arms, values, seed);
        let phases = [(true, warmup), (false, runs)];
        let turns = phases
            .into_iter()
            .flat_map(|(warmup, rounds)| (0..rounds).map(move |round| (warmup, round)))
            .flat_map(|(warmup, round)| {
                if round == 0 {
                    // Each phase starts its own squares, so that its positions balance.
                    dealers.start_over();
                }
                let order = dealers.deal();
                (order.into_iter().enumerate()).map(move |(position, arm)| ScheduledRun {
                    arm,
                    round,
                    position,
                    warmup,
                })
            })
            .collect();
        Self { turns }
    }

    /// Returns the runs in their order; `arms * (warmup + runs)` of them.
    #[must_use]
    pub fn turns(&self) -> &[ScheduledRun] {
        &self.turns
    }
}

/// Source of the rounds of a scan: the order of the values, and within each value the order of its arms.
struct Dealers {
    arms: usize,
    values: Dealer,
    /// Dealers of arms, one for each value.
    of_value: Vec<Dealer>,
}

impl Dealers {
    fn new(arms: usize, values: usize, seed: u64) -> Self {
        // The first value's arms use the seed itself, so that a scan of one value has the order of no scan.
        let of_value = (0..values as u64).map(|value| {
            Dealer::new(
                arms,
                seed.wrapping_add(value.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            )
        });
        Self {
            arms,
            values: Dealer::new(values, !seed),
            of_value: of_value.collect(),
        }
    }

    fn start_over(&mut self) {
        self.values.start_over();
        self.of_value.iter_mut().for_each(Dealer::start_over);
    }

    fn deal(&mut self) -> Vec<usize> {
        let mut round = Vec::new();
        for value in self.values.deal() {
            let order = self.of_value.get_mut(value).map(Dealer::deal);
            let arms = order.unwrap_or_default().into_iter();
            round.extend(arms.map(|arm| value * self.arms + arm));
        }
        round
    }
}

/// Source of rounds, from one square after the other.
struct Dealer {
    arms: usize,
    rng: Xoshiro256PlusPlus,
    /// Square from which the rounds come: an arm per row and position.
    square: Vec<Vec<usize>>,
    /// True if `square` is already the mirror image of its predecessor.
    mirrored: bool,
    /// Rows of `square` that are still unused.
    left: Vec<Vec<usize>>,
}

impl Dealer {
    fn new(arms: usize, seed: u64) -> Self {
        Self {
            arms,
            rng: Xoshiro256PlusPlus::seed_from_u64(seed),
            square: Vec::new(),
            mirrored: true,
            left: Vec::new(),
        }
    }

    fn start_over(&mut self) {
        self.mirrored = true;
        self.left.clear();
    }

    fn deal(&mut self) -> Vec<usize> {
        if self.left.is_empty() {
            if self.arms % 2 == 1 && !self.mirrored {
                self.square.iter_mut().for_each(|row| row.reverse());
                self.mirrored = true;
            } else {
                self.square = williams(self.arms, &mut self.rng);
                self.mirrored = false;
            }
            self.left.clone_from(&self.square);
            self.left.shuffle(&mut self.rng);
        }
        self.left.pop().unwrap_or_default()
    }
}

/// Makes a Williams square with its arms relabelled at random: `arms` rows of `arms` arms.
fn williams(arms: usize, rng: &mut Xoshiro256PlusPlus) -> Vec<Vec<usize>> {
    // 0, 1, k-1, 2, k-2, ...: neighbours differ by every non-zero amount modulo an even k.
    let zigzag = (0..arms).map(|place| {
        if place % 2 == 1 {
            place.div_ceil(2)
        } else {
            (arms - place / 2) % arms
        }
    });
    let zigzag: Vec<usize> = zigzag.collect();
    let mut labels: Vec<usize> = (0..arms).collect();
    labels.shuffle(rng);
    (0..arms)
        .map(|row| {
            (zigzag.iter())
                .map(|step| labels[(step + row) % arms])
                .collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn rounds(schedule: &Schedule, arms: usize) -> Vec<Vec<usize>> {
        (schedule.turns().chunks(arms))
            .map(|round| round.iter().map(|turn| turn.arm).collect())
            .collect()
    }

    #[test]
    fn every_arm_follows_every_other_equally_often() {
        for (arms, runs, times) in [(2, 2, 1), (4, 4, 1), (6, 12, 2), (3, 6, 2), (5, 10, 2)] {
            let mut pairs = BTreeMap::new();
            for round in rounds(&Schedule::new(arms, runs, 0, 7), arms) {
                for pair in round.windows(2) {
                    *pairs.entry((pair[0], pair[1])).or_insert(0) += 1;
                }
            }
            assert_eq!(pairs.len(), arms * (arms - 1), "{arms} arms");
            assert!(
                pairs.values().all(|n| *n == times),
                "{arms} arms: {pairs:?}"
            );
        }
    }

    #[test]
    fn the_seed_decides() {
        let order = |seed| Schedule::new(4, 8, 1, seed);
        assert_eq!(order(1), order(1));
        let different: std::collections::HashSet<_> =
            (0..50).map(|seed| order(seed).turns().to_vec()).collect();
        assert!(different.len() > 45, "{}", different.len());
    }

    #[test]
    fn both_orders_of_two_arms_come_first_equally_often() {
        let first = |seed| Schedule::new(2, 1, 0, seed).turns()[0].arm;
        let zeros = (0..1000).filter(|seed| first(*seed) == 0).count();
        assert!((450..550).contains(&zeros), "{zeros}");
    }

    #[test]
    fn a_scan_keeps_the_arms_of_a_value_side_by_side_and_balances_both() {
        let (arms, values, runs) = (2, 3, 12);
        let schedule = Schedule::scan(arms, values, runs, 1, 11);
        assert_eq!(schedule.turns().len(), arms * values * (runs + 1));
        let mut first_values = vec![0; values];
        let mut first_arms = vec![0; arms * values];
        for round in rounds(&schedule, arms * values).iter().skip(1) {
            let mut seen = round.clone();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..arms * values), "{round:?}");
            first_values[round[0] / arms] += 1;
            for pair in round.chunks(arms) {
                assert_eq!(pair[0] / arms, pair[1] / arms, "{round:?}");
                first_arms[pair[0]] += 1;
            }
        }
        assert_eq!(first_values, [4; 3]);
        assert_eq!(first_arms, [6; 6]);
        assert_eq!(Schedule::scan(3, 1, 7, 1, 5), Schedule::new(3, 7, 1, 5));
    }

    #[test]
    fn nothing_to_do_is_an_empty_schedule() {
        assert!(Schedule::new(0, 5, 1, 0).turns().is_empty());
        assert!(Schedule::new(3, 0, 0, 0).turns().is_empty());
        assert_eq!(Schedule::new(1, 2, 1, 0).turns().len(), 3);
    }

    proptest! {
        #[test]
        fn rounds_are_complete_and_positions_balanced(
            arms in 1..7usize, runs in 0..25usize, warmup in 0..4usize, seed: u64
        ) {
            let schedule = Schedule::new(arms, runs, warmup, seed);
            prop_assert_eq!(schedule.turns().len(), arms * (runs + warmup));
            let mut places = vec![vec![0usize; arms]; arms];
            for (index, round) in schedule.turns().chunks(arms).enumerate() {
                let mut seen: Vec<usize> = round.iter().map(|turn| turn.arm).collect();
                seen.sort_unstable();
                prop_assert!(seen.iter().copied().eq(0..arms));
                for (position, turn) in round.iter().enumerate() {
                    prop_assert_eq!(turn.position, position);
                    prop_assert_eq!(turn.warmup, index < warmup);
                    let start = if turn.warmup { 0 } else { warmup };
                    prop_assert_eq!(turn.round, index - start);
                    if !turn.warmup {
                        places[turn.arm][position] += 1;
                    }
                }
            }
            for counts in &places {
                let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                prop_assert!(most - least <= 1, "{:?}", places);
                if runs % arms == 0 {
                    prop_assert_eq!(least, most);
                }
            }
        }
    }
}
