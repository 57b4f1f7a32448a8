//! Transposing one matrix into another.

use std::hint::black_box;

use rand::rngs::Xoshiro256PlusPlus;

use super::{Figure, Point, Sweep, Workload, by_dimension, index};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// Matrix that the loop walks down its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stride {
    /// The source.
    Load,
    /// The target.
    Store,
}

/// Two `dim` by `dim` matrices of doubles, side by side (Hayasaka and Shimizu, Table 2).
#[derive(Debug)]
pub(super) struct Transpose {
    pub(super) stride: Stride,
}

impl Workload for Transpose {
    fn name(&self) -> &'static str {
        match self.stride {
            Stride::Load => "transpose-load",
            Stride::Store => "transpose-store",
        }
    }

    fn about(&self) -> &'static str {
        match self.stride {
            Stride::Load => "transpose of a matrix of doubles, reading down the columns",
            Stride::Store => "transpose of a matrix of doubles, writing down the columns",
        }
    }

    fn figure(&self) -> Figure {
        Figure::millions("MB/s")
    }

    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point> {
        if sweep == Sweep::Quick {
            return by_dimension(caches, 2, 2, &[50.0, 90.0, 98.0, 125.0]);
        }
        let mut points = by_dimension(caches, 1, 2, &[50.0, 95.0, 150.0]);
        points.extend(by_dimension(
            caches,
            2,
            2,
            &[
                12.5, 25.0, 50.0, 70.0, 80.0, 85.0, 90.0, 94.0, 98.0, 105.0, 125.0, 150.0, 200.0,
            ],
        ));
        points.extend(by_dimension(caches, 3, 2, &[12.5, 40.0, 80.0, 120.0]));
        points.sort_by_key(|point| point.bytes);
        points.dedup_by_key(|point| point.bytes);
        points
    }

    fn prepare(
        &mut self,
        _: &Point,
        memory: &mut Buffer,
        _: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError> {
        for (number, value) in (0_u32..).zip(memory.doubles()) {
            *value = f64::from(number);
        }
        Ok(())
    }

    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64) {
        let dim = index(point.parameter);
        let (to, from) = memory.doubles().split_at_mut(dim * dim);
        for _ in 0..times {
            match self.stride {
                Stride::Load => {
                    for (column, row) in to.chunks_exact_mut(dim).enumerate() {
                        for (into, value) in row.iter_mut().zip(from[column..].iter().step_by(dim))
                        {
                            *into = *value;
                        }
                    }
                }
                Stride::Store => {
                    for (column, row) in from.chunks_exact(dim).take(dim).enumerate() {
                        for (into, value) in to[column..].iter_mut().step_by(dim).zip(row) {
                            *into = *value;
                        }
                    }
                }
            }
            black_box(&mut *to);
        }
    }

    /// Bytes read and written.
    fn amount(&self, point: &Point) -> f64 {
        (16 * point.parameter * point.parameter) as f64
    }
}
