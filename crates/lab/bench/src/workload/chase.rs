//! A pointer chase: every load waits for the one before.

use std::hint::black_box;

use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;

use super::{Figure, LINE, LINE_WORDS, Point, Sweep, Workload, by_share, index, usual_percents};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// One random cycle through all lines: the purest view of a cache, because loads cannot overlap or be prefetched.
#[derive(Debug, Default)]
pub(super) struct Chase {
    at: u64,
}

impl Workload for Chase {
    fn name(&self) -> &'static str {
        "chase"
    }

    fn about(&self) -> &'static str {
        "pointer chase through all lines of a working set, in random order"
    }

    fn figure(&self) -> Figure {
        Figure::nanoseconds("ns/load")
    }

    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point> {
        by_share(caches, usual_percents(sweep))
    }

    fn prepare(
        &mut self,
        point: &Point,
        memory: &mut Buffer,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError> {
        let mut order: Vec<u64> = (0..point.bytes / LINE)
            .map(|line| line * LINE_WORDS as u64)
            .collect();
        order.shuffle(rng);
        let words = memory.words();
        for (at, next) in order.iter().zip(order.iter().cycle().skip(1)) {
            words[index(*at)] = *next;
        }
        self.at = 0;
        Ok(())
    }

    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64) {
        let words = memory.words();
        let mut at = self.at;
        for _ in 0..times * (point.bytes / LINE) {
            at = words[index(at)];
        }
        self.at = black_box(at);
    }

    fn amount(&self, point: &Point) -> f64 {
        (point.bytes / LINE) as f64
    }
}
