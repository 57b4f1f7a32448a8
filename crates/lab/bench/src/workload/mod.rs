//! Workloads: one file each.

mod chase;
mod copy;
mod fft;
pub(crate) mod gather;
mod product;
mod transpose;

use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use superhue_model::ByteCount;

use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// Unit and direction of a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Unit of the figure.
    pub unit: String,
    /// True if less is better: a time per unit of work. Otherwise the figure is work per time.
    pub lower_is_better: bool,
    /// Units of work in one unit of the figure: 1e6 for MB/s.
    pub per: f64,
}

impl Figure {
    /// Nanoseconds for each unit of work.
    fn nanoseconds(unit: &str) -> Self {
        Self {
            unit: unit.to_owned(),
            lower_is_better: true,
            per: 1.0,
        }
    }

    /// Millions of units of work per second.
    fn millions(unit: &str) -> Self {
        Self {
            unit: unit.to_owned(),
            lower_is_better: false,
            per: 1e6,
        }
    }

    /// The figure of `work` units done in `seconds`.
    #[must_use]
    pub fn of(&self, work: f64, seconds: f64) -> f64 {
        if self.lower_is_better {
            seconds * 1e9 / work / self.per
        } else {
            work / seconds / self.per
        }
    }

    /// Gain of `figure` over `than`, as a factor: above 1 is better, in either direction of the unit.
    #[must_use]
    pub fn gain(&self, figure: f64, than: f64) -> f64 {
        if self.lower_is_better {
            than / figure
        } else {
            figure / than
        }
    }
}

/// One size of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Label of the size: `94 %`, `dim 245`.
    pub label: String,
    /// Parameter of the size: matrix dimension, points of an FFT; otherwise bytes.
    pub parameter: u64,
    /// Working set in bytes.
    pub bytes: u64,
    /// Level of the cache of which it is a fraction.
    pub level: u32,
    /// That fraction of the cache.
    pub share: f64,
}

impl Point {
    /// Working set of the point.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount(self.bytes)
    }
}

/// Thoroughness of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sweep {
    /// A few sizes around the capacity.
    Quick,
    /// All of them.
    Full,
}

/// Work on a buffer.
pub trait Workload {
    /// Returns the name on the command line.
    fn name(&self) -> &'static str;

    /// Description of the work, in a line.
    fn about(&self) -> &'static str;

    /// Unit and direction of its figures.
    fn figure(&self) -> Figure;

    /// The sizes to measure, ascending.
    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point>;

    /// Prepares work of this size on `memory`, and fills it.
    ///
    /// # Errors
    /// The missing requirement, and a way to get it.
    fn prepare(
        &mut self,
        point: &Point,
        memory: &mut Buffer,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError>;

    /// Restores the contents of `memory` before each pass; not timed.
    fn refresh(&mut self, _memory: &mut Buffer) {}

    /// Does the work `times` times, at most 100.
    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64);

    /// Units of work (loads, bytes, floating point operations) in one repetition.
    fn amount(&self, point: &Point) -> f64;
}

/// All workloads, in the order of the help text.
#[must_use]
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(chase::Chase::default()),
        Box::new(gather::Gather::default()),
        Box::new(copy::Copy),
        Box::new(transpose::Transpose {
            stride: transpose::Stride::Load,
        }),
        Box::new(transpose::Transpose {
            stride: transpose::Stride::Store,
        }),
        Box::new(fft::Fft::default()),
        Box::new(product::Product),
    ]
}

/// Bytes in a cache line of every supported processor.
const LINE: u64 = 64;
/// Words in a line.
const LINE_WORDS: usize = 8;

/// Points at fractions of the colored cache, in whole pages.
fn by_share(caches: &Caches, percents: &[f64]) -> Vec<Point> {
    let level = 2;
    let cache = caches.colored_bytes();
    let page = superhue_model::BASE_PAGE_SIZE;
    let mut points: Vec<Point> = Vec::new();
    for percent in percents {
        let bytes = ((cache as f64 * percent / 100.0) as u64 / page * page).max(page);
        if points.last().is_none_or(|last| last.bytes < bytes) {
            let share = bytes as f64 / cache as f64;
            let label = format!("{percent} %");
            points.push(Point {
                label,
                parameter: bytes,
                bytes,
                level,
                share,
            });
        }
    }
    points
}

/// Fractions of the L2 at which memory-bound work is measured, in percent.
fn usual_percents(sweep: Sweep) -> &'static [f64] {
    match sweep {
        Sweep::Quick => &[50.0, 85.0, 94.0, 125.0],
        Sweep::Full => &[
            12.5, 25.0, 37.5, 50.0, 62.5, 75.0, 80.0, 85.0, 90.0, 94.0, 97.0, 100.0, 112.5, 125.0,
            150.0, 200.0,
        ],
    }
}

/// Square matrices of doubles, `matrices` of them together as large as the given percentages of a cache level.
/// Dimensions are odd, as in the papers: with a power of two, the columns would fall on few sets of the L1, and no
/// color can help there.
fn by_dimension(caches: &Caches, level: u32, matrices: u64, percents: &[f64]) -> Vec<Point> {
    let Some(cache) = caches.level(level) else {
        return Vec::new();
    };
    let mut points: Vec<Point> = Vec::new();
    for percent in percents {
        let room = cache.bytes as f64 * percent / 100.0;
        let dim = ((room / (matrices * 8) as f64).sqrt() as u64).max(3);
        let dim = if dim.is_multiple_of(2) { dim - 1 } else { dim };
        if points.last().is_none_or(|last| last.parameter < dim) {
            let bytes = matrices * 8 * dim * dim;
            let share = bytes as f64 / cache.bytes as f64;
            let label = format!("dim {dim}");
            points.push(Point {
                label,
                parameter: dim,
                bytes,
                level,
                share,
            });
        }
    }
    points
}

/// Converts an index: a word of memory that `prepare` wrote, or a size that `points` chose.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
