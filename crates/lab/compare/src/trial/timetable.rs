//! How long the blocks of a trial are, and how long one waits before each.
//!
//! ```text
//!   | settle |    block    | settle |    block    |      settle: the switch, and what follows it; not measured
//!     ^ switch               ^ switch                    both of a pair alike, fixed before the coin is tossed
//! ```
//!
//! *Settling* is as long as switches took of late, each counting half as much as the next, and a quarter more. It must not depend on which way is switched, or the two orders of a pair
//! would be measured at different times.
//!
//! *Blocks* begin at four times that, so that four fifths of the time count. Longer ones average more noise of their own but are farther apart, and
//! what drifts differs more. Which weighs more is seen: differences of the halves of a block, which nothing was switched between, against
//! differences of pairs. Noise without memory (`a`) and a walk (`b`) are fitted to the two, and the length taken for which a trial
//! is shortest: half as long, or twice, or as it is.

use crate::stats::quantile::{median, sorted};

/// What one waits at least: caches and TLBs fill again.
const LEAST_SETTLE: f64 = 0.1;

/// No block is shorter: clocks and counters are coarse.
const LEAST_BLOCK: f64 = 0.5;

/// Nor longer.
const MOST_BLOCK: f64 = 120.0;

/// Pairs of one length after which it is thought over.
const PAIRS: usize = 8;

/// A trial must have room for so many pairs.
const ROOM: f64 = 16.0;

/// A change of length must save this share of the time.
const WORTH: f64 = 0.15;

/// Lengths of blocks and of what lies between them, in seconds.
#[derive(Debug, Clone)]
pub struct Timetable {
    given: Option<f64>,
    limit: f64,
    /// What blocks must not be shorter than, for the metric's sake.
    least: f64,
    block: f64,
    settle: f64,
    /// Differences at the present length: of pairs, and of the halves of blocks.
    pairs: Vec<f64>,
    halves: Vec<f64>,
    /// The two kinds of noise, by so many estimates: variance times seconds, and variance per second.
    white: f64,
    walk: f64,
    thoughts: f64,
    /// Blocks of late in which the metric did not move.
    stale: u32,
}

impl Timetable {
    /// For a trial of `limit` seconds, with blocks of `given` seconds or such as suit. A reading of the metric takes `reading` seconds.
    #[must_use]
    pub fn new(given: Option<f64>, limit: f64, reading: f64) -> Self {
        // A reading is somewhere within the time that it takes: a hundredth of the block at most.
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

    /// Seconds that count, of each block.
    #[must_use]
    pub const fn block(&self) -> f64 {
        self.block
    }

    /// Seconds before each block that do not.
    #[must_use]
    pub const fn settle(&self) -> f64 {
        self.settle
    }

    /// Says how long switching took, the longer way. Before the first pair the blocks follow.
    pub fn switched(&mut self, seconds: f64) {
        let needed = (seconds * 1.25 + LEAST_SETTLE / 2.0).max(LEAST_SETTLE);
        if self.settle <= LEAST_SETTLE {
            // The first, or quicker than one waits anyway.
            self.settle = needed;
            self.change(self.block.max(4.0 * needed));
            return;
        }
        // One that is late moves its block, which is no reason to wait as long ever after.
        self.settle = f64::midpoint(self.settle, needed);
        if self.block < 2.0 * self.settle {
            self.change(2.0 * self.settle);
        }
    }

    /// Says that the metric was the same at the start and at the end of a block: whoever counts tells it less often.
    pub fn did_not_move(&mut self) {
        self.stale += 1;
        if self.stale >= 2 {
            self.least = (self.block * 2.0).min(MOST_BLOCK);
            self.change(self.least);
        }
    }

    /// Takes in a pair: its difference, and those of the halves of its blocks.
    pub fn add(&mut self, difference: f64, halves: &[f64]) {
        self.stale = 0;
        self.pairs.push(difference);
        self.halves.extend(halves);
        if self.pairs.len() >= PAIRS && self.halves.len() >= PAIRS {
            self.think();
        }
    }

    /// Takes another length if that is worth it.
    fn think(&mut self) {
        let (Some(of_pairs), Some(of_halves)) = (variance(&self.pairs), variance(&self.halves))
        else {
            return;
        };
        let (block, settle) = (self.block, self.settle);
        // of_halves = 4a/block + b block/3, of_pairs = 2a/block + b (2 block/3 + settle)
        // So few pairs may well show twice the variance that there is: less is no sign of a walk.
        let walk = if of_pairs > of_halves {
            (of_pairs - of_halves / 2.0) / (block / 2.0 + settle)
        } else {
            0.0
        };
        let white = ((of_halves - walk * block / 3.0) * block / 4.0).max(0.0);
        // They are the same at all lengths, so all that was seen so far counts.
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

/// The variance of what is about 0, by its median size.
fn variance(differences: &[f64]) -> Option<f64> {
    let centre = median(&sorted(differences))?;
    let sizes: Vec<f64> = differences.iter().map(|it| (it - centre).abs()).collect();
    let spread = median(&sorted(&sizes))? * 1.4826;
    Some(spread * spread)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values that look random and are the same each time.
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
        // As white noise: a pair differs by a 1.4th of what halves of a block do.
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
