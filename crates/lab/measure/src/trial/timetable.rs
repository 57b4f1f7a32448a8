//! Lengths of a trial's blocks, and of the settling time before each.
//!
//! ```text
//!   | settle |    block    | settle |    block    |      settle: the switch, and what follows it; not measured
//!     ^ switch               ^ switch                    both of a pair alike, fixed before the coin is tossed
//! ```
//!
//! *Settling* takes as long as recent switches took, each counting half as much as the next, plus a quarter. It must not depend on the direction of
//! the switch, or the two orders of a pair would be measured at different times.
//!
//! *Blocks* begin at four times that, so that four fifths of the time count. Longer blocks average more of their own noise, but are farther
//! apart, and drift makes them differ more. Measurements show which weighs more: differences of the halves of a block, with no switch between
//! them, against differences of pairs. A model of noise without memory (`a`) and of a walk (`b`) is fitted to the two. Then the timetable takes the
//! length that makes the trial shortest: half as long, twice as long, or unchanged.

use crate::stats::quantile::{median, sorted};

/// Shortest settling time in seconds: caches and TLBs fill again.
const LEAST_SETTLE: f64 = 0.1;

/// Shortest block in seconds: clocks and counters are coarse.
const LEAST_BLOCK: f64 = 0.5;

/// Longest block in seconds.
const MOST_BLOCK: f64 = 120.0;

/// Number of pairs of one length after which the length is reconsidered.
const PAIRS: usize = 8;

/// Number of pairs for which a trial must have room.
const ROOM: f64 = 16.0;

/// A change of length must save this share of the time.
const WORTH: f64 = 0.15;

/// Lengths of blocks and of the settling times between them, in seconds.
#[derive(Debug, Clone)]
pub struct Timetable {
    given: Option<f64>,
    limit: f64,
    /// Shortest block that suits the metric, in seconds.
    least: f64,
    block: f64,
    settle: f64,
    /// Differences at the present length: of pairs, and of the halves of blocks.
    pairs: Vec<f64>,
    halves: Vec<f64>,
    /// Means over `thoughts` estimates of the two kinds of noise: variance times seconds, and variance per second.
    white: f64,
    walk: f64,
    thoughts: f64,
    /// Number of successive blocks in which the metric did not move.
    stale: u32,
}

impl Timetable {
    /// Makes the timetable of a trial of `limit` seconds, with blocks of `given` seconds or of a suitable length. A reading of the metric takes
    /// `reading` seconds.
    #[must_use]
    pub fn new(given: Option<f64>, limit: f64, reading: f64) -> Self {
        // The time of a reading is uncertain by its duration, which is therefore a hundredth of the block at most.
        let least = (reading * 100.0).clamp(LEAST_BLOCK, 5.0);
        let mut timetable = Self {
            given,
            limit,
            least,
            block: given.unwrap_or(least.max(1.0)),
            settle: LEAST_SETTLE,
            pairs: Vec::new(),
            halves: Vec::new(),
            white: 0.0,
            walk: 0.0,
            thoughts: 0.0,
            stale: 0,
        };
        timetable.bound();
        timetable
    }

    /// Returns the seconds of each block that count.
    #[must_use]
    pub const fn block(&self) -> f64 {
        self.block
    }

    /// Returns the seconds before each block that do not count.
    #[must_use]
    pub const fn settle(&self) -> f64 {
        self.settle
    }

    /// Records the duration of a switch, the longer direction of the two. The first duration also sets the length of blocks.
    pub fn switched(&mut self, seconds: f64) {
        let needed = (seconds * 1.25 + LEAST_SETTLE / 2.0).max(LEAST_SETTLE);
        if self.settle <= LEAST_SETTLE {
            // This is the first switch, or all were quicker than the least settling time.
            self.settle = needed;
            self.change(self.block.max(4.0 * needed));
            return;
        }
        // A single late switch moves its block, but does not make all later settling as long.
        self.settle = f64::midpoint(self.settle, needed);
        if self.block < 2.0 * self.settle {
            self.change(2.0 * self.settle);
        }
    }

    /// Records that the metric had the same value at the start and at the end of a block: its source is updated less often than that. The second
    /// time in a row, blocks become longer if they can. Returns true if they did.
    pub fn did_not_move(&mut self) -> bool {
        self.stale += 1;
        if self.stale < 2 {
            return false;
        }
        let before = self.block;
        self.least = (self.block * 2.0).min(MOST_BLOCK);
        self.change(self.least);
        self.block > before
    }

    /// Adds a pair: its difference, and those of the halves of its blocks.
    pub fn add(&mut self, difference: f64, halves: &[f64]) {
        self.stale = 0;
        self.pairs.push(difference);
        self.halves.extend(halves);
        if self.pairs.len() >= PAIRS && self.halves.len() >= PAIRS {
            self.think();
        }
    }

    /// Changes the length if that is worth it.
    fn think(&mut self) {
        let (Some(of_pairs), Some(of_halves)) = (variance(&self.pairs), variance(&self.halves))
        else {
            return;
        };
        let (block, settle) = (self.block, self.settle);
        // of_halves = 4a/block + b block/3, of_pairs = 2a/block + b (2 block/3 + settle)
        // This few pairs may well show twice the true variance: a smaller surplus is no sign of a walk.
        let walk = if of_pairs > of_halves {
            (of_pairs - of_halves / 2.0) / (block / 2.0 + settle)
        } else {
            0.0
        };
        let white = ((of_halves - walk * block / 3.0) * block / 4.0).max(0.0);
        // The noise is the same at all lengths, so all estimates so far count.
        self.thoughts += 1.0;
        self.white += (white - self.white) / self.thoughts;
        self.walk += (walk - self.walk) / self.thoughts;
        let (white, walk) = (self.white, self.walk);
        let cost = |block: f64| {
            let variance = 2.0 * white / block + walk * (2.0 * block / 3.0 + settle);
            variance * (block + settle)
        };
        let now = cost(block);
        let others = [block / 2.0, block * 2.0];
        let best = others.into_iter().filter(|&it| it >= 2.0 * settle);
        let best = best.min_by(|a, b| cost(*a).total_cmp(&cost(*b)));
        if let Some(best) = best.filter(|&best| cost(best) < now * (1.0 - WORTH)) {
            self.change(best);
        } else {
            self.pairs.clear();
            self.halves.clear();
        }
    }

    fn change(&mut self, block: f64) {
        let before = self.block;
        self.block = block;
        self.bound();
        if self.block.total_cmp(&before).is_ne() {
            self.pairs.clear();
            self.halves.clear();
            self.stale = 0;
        }
    }

    fn bound(&mut self) {
        if let Some(given) = self.given {
            self.block = given;
            return;
        }
        let room = self.limit / ROOM / 2.0 - self.settle;
        let most = room.clamp(self.least, MOST_BLOCK);
        self.block = self.block.clamp(self.least, most);
    }
}

/// Returns the variance of differences, estimated from their median absolute deviation.
fn variance(differences: &[f64]) -> Option<f64> {
    let centre = median(&sorted(differences))?;
    let sizes: Vec<f64> = differences.iter().map(|it| (it - centre).abs()).collect();
    let spread = median(&sorted(&sizes))? * 1.4826;
    Some(spread * spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_grow_until_a_slow_counter_moves() {
        let mut table = Timetable::new(None, 1e6, 0.001);
        assert!(!table.did_not_move(), "once says little");
        let mut grown = 0;
        while table.block() < 15.0 {
            let before = table.block();
            if table.did_not_move() {
                assert!(table.block() > before);
                grown += 1;
            }
        }
        assert_eq!(grown, 4);
        // A block that the user gave stays.
        let mut given = Timetable::new(Some(2.0), 1e6, 0.001);
        assert!(!given.did_not_move() && !given.did_not_move());
        assert!(!given.did_not_move());
    }

    /// Returns values that look random and are the same each time.
    fn noise(index: usize) -> f64 {
        (index as f64 * 12.9898).sin() * 43758.5453 % 1.0
    }

    fn after(pairs: usize, of_pair: f64, of_half: f64) -> Timetable {
        let mut timetable = Timetable::new(None, 600.0, 0.0);
        timetable.switched(0.5);
        for index in 0..pairs {
            let halves = [noise(2 * index) * of_half, noise(2 * index + 1) * of_half];
            timetable.add(noise(index + 1000) * of_pair, &halves);
        }
        timetable
    }

    #[test]
    fn blocks_follow_from_how_long_switching_takes() {
        let mut timetable = Timetable::new(None, 600.0, 0.0);
        assert!((timetable.block() - 1.0).abs() < 1e-9);
        timetable.switched(0.01);
        assert!((timetable.block() - 1.0).abs() < 1e-9);
        timetable.switched(2.0);
        assert!(timetable.settle() >= 2.5 && timetable.block() >= 10.0);
        timetable.switched(60.0);
        assert!(timetable.settle() >= 37.0, "whatever room is left");
        for _ in 0..100 {
            timetable.switched(0.01);
        }
        assert!(timetable.settle() < 0.2);
    }

    #[test]
    fn noise_without_memory_wants_longer_blocks_only_against_settling() {
        // White noise: a pair differs by 1/1.4 of the difference between halves of a block.
        let white = after(40, 0.014, 0.02);
        assert!(white.block() >= 2.0, "{}", white.block());
        let drifting = after(40, 0.08, 0.02);
        assert!(drifting.block() <= 1.5, "{}", drifting.block());
    }

    #[test]
    fn a_metric_that_stands_still_gets_longer_blocks() {
        let mut timetable = Timetable::new(None, 600.0, 0.0);
        let before = timetable.block();
        timetable.did_not_move();
        assert!((timetable.block() - before).abs() < 1e-9, "once is chance");
        timetable.did_not_move();
        assert!((timetable.block() - 2.0 * before).abs() < 1e-9);
        let mut given = Timetable::new(Some(3.0), 600.0, 1.0);
        given.did_not_move();
        given.did_not_move();
        given.switched(9.0);
        assert!(
            (given.block() - 3.0).abs() < 1e-9,
            "what was asked for stays"
        );
    }
}
