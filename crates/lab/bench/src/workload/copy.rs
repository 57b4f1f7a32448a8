//! Copying one half of a working set over the other.

use std::hint::black_box;

use rand::rngs::Xoshiro256PlusPlus;

use super::{Figure, Point, Sweep, Workload, by_share, usual_percents};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// The C library's own `memcpy`, as Papadopoulos measured it: bandwidth by working set.
#[derive(Debug)]
pub(super) struct Copy;

impl Workload for Copy {
    fn name(&self) -> &'static str {
        "copy"
    }

    fn about(&self) -> &'static str {
        "copy of one half of a working set over the other"
    }

    fn figure(&self) -> Figure {
        Figure::millions("MB/s")
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
        memory.bytes().fill(7);
        Ok(())
    }

    fn work(&mut self, _: &Point, memory: &mut Buffer, times: u64) {
        let bytes = memory.bytes();
        let (from, to) = bytes.split_at_mut(bytes.len() / 2);
        for _ in 0..times {
            to[..from.len()].copy_from_slice(black_box(&*from));
            black_box(&mut *to);
        }
    }

    /// Bytes copied; each is read once and written once.
    fn amount(&self, point: &Point) -> f64 {
        (point.bytes / 2) as f64
    }
}
