//! Random gather: independent loads from random lines.

use std::hint::black_box;

use rand::rngs::Xoshiro256PlusPlus;

use super::{Figure, LINE, LINE_WORDS, Point, Sweep, Workload, by_share, index, usual_percents};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// Loads that overlap as far as the processor can, as in a hash join or a sparse product.
#[derive(Debug, Default)]
pub(super) struct Gather {
    /// Loads so far.
    count: u64,
}

/// Marsaglia's xorshift64.
pub(crate) const fn xorshift(mut state: u64) -> u64 {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    state
}

/// A random number for each count. A generator computes each number from the one before; that chain of operations would
/// take longer than overlapping loads, and hide them.
const fn scattered(count: u64) -> u64 {
    let mixed = count.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

/// A number below `below`, from a random one.
pub(crate) const fn below(random: u64, below: u64) -> u64 {
    ((random as u128 * below as u128) >> 64) as u64
}

impl Workload for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn about(&self) -> &'static str {
        "independent loads from random lines of a working set"
    }

    fn figure(&self) -> Figure {
        Figure::nanoseconds("ns/load")
    }

    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point> {
        by_share(caches, usual_percents(sweep))
    }

    fn prepare(
        &mut self,
        _: &Point,
        memory: &mut Buffer,
        _: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError> {
        for (number, word) in (0..).zip(memory.words()) {
            *word = number;
        }
        self.count = 0;
        Ok(())
    }

    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64) {
        let words = memory.words();
        let lines = point.bytes / LINE;
        let (first, mut sum) = (self.count, 0_u64);
        let last = first + times * lines;
        for count in first..last {
            sum = sum.wrapping_add(words[index(below(scattered(count), lines)) * LINE_WORDS]);
        }
        self.count = last;
        black_box(sum);
    }

    fn amount(&self, point: &Point) -> f64 {
        (point.bytes / LINE) as f64
    }
}
