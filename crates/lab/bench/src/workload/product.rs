//! Textbook product of two matrices.

use std::hint::black_box;

use rand::rngs::Xoshiro256PlusPlus;

use super::{Figure, Point, Sweep, Workload, by_dimension, index};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// `C = A * B` with three loops, rows by columns, without blocking, like a program that ignores caches (Papadopoulos
/// multiplied 1000 by 1000). Colors do not affect a blocked product.
#[derive(Debug)]
pub(super) struct Product;

impl Workload for Product {
    fn name(&self) -> &'static str {
        "product"
    }

    fn about(&self) -> &'static str {
        "matrix product, rows by columns, not blocked"
    }

    fn figure(&self) -> Figure {
        Figure::millions("Mflop/s")
    }

    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point> {
        let percents: &[f64] = match sweep {
            Sweep::Quick => &[85.0],
            Sweep::Full => &[50.0, 85.0, 94.0, 120.0, 250.0],
        };
        by_dimension(caches, 2, 3, percents)
    }

    fn prepare(
        &mut self,
        _: &Point,
        memory: &mut Buffer,
        _: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError> {
        for (number, value) in (0_u32..).zip(memory.doubles()) {
            *value = f64::from(number % 17);
        }
        Ok(())
    }

    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64) {
        let dim = index(point.parameter);
        let (a, rest) = memory.doubles().split_at_mut(dim * dim);
        let (b, c) = rest.split_at_mut(dim * dim);
        for _ in 0..times {
            for (row, out) in a.chunks_exact(dim).zip(c.chunks_exact_mut(dim)) {
                for (column, sum) in out.iter_mut().enumerate() {
                    let down = b[column..].iter().step_by(dim);
                    *sum = row.iter().zip(down).map(|(x, y)| x * y).sum();
                }
            }
            black_box(&mut *c);
        }
    }

    fn amount(&self, point: &Point) -> f64 {
        (2 * point.parameter * point.parameter * point.parameter) as f64
    }
}
