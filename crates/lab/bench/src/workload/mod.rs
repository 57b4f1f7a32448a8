//! What is measured: one file each.

mod chase;
mod copy;
mod fft;
pub(crate) mod gather;
mod product;
mod transpose;

use rand::rngs::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};
use superhue_model::ByteCount;

use crate::Trouble;
use crate::buffer::Buffer;
use crate::machine::Caches;

/// How a figure is told.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its unit.
    pub unit: String,
    /// Less is better: a time per unit of work. Otherwise work per time.
    pub lower_is_better: bool,
    /// Units of work in one of these: 1e6 for MB/s.
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

    /// The figure of `work` units in so many seconds.
    #[must_use]
    pub fn of(&self, work: f64, seconds: f64) -> f64 {
        if self.lower_is_better {
            seconds * 1e9 / work / self.per
        } else {
            work / seconds / self.per
        }
    }

    /// How much better `figure` is than `than`, as a factor: above 1 is better, whichever way the unit goes.
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
    /// What to call it: `94 %`, `dim 245`.
    pub label: String,
    /// What the size is made of: matrix dimension, points of an FFT; bytes where there is nothing else.
    pub parameter: u64,
    /// Working set in bytes.
    pub bytes: u64,
    /// The cache it is a fraction of.
    pub level: u32,
    /// That fraction of the cache.
    pub share: f64,
}

impl Point {
    /// How much memory it works on.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount(self.bytes)
    }
}

/// How thoroughly to sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sweep {
    /// A few sizes around the capacity.
    Quick,
    /// All of them.
    Full,
}

/// A piece of work on a buffer.
pub trait Workload {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// What it does, in a line.
    fn about(&self) -> &'static str;

    /// How its figures are told.
    fn figure(&self) -> Figure;

    /// The sizes to measure, ascending.
    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point>;

    /// Gets ready for work of this size on `memory`, and fills it.
    ///
    /// # Errors
    /// What is missing, and how to get it.
    fn prepare(
        &mut self,
        point: &Point,
        memory: &mut Buffer,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Result<(), Trouble>;

    /// Puts the contents of `memory` back in order before each pass; not timed.
    fn refresh(&mut self, _memory: &mut Buffer) {}

    /// Does the work `times` times over; at most 100 times.
    fn work(&mut self, point: &Point, memory: &mut Buffer, times: u64);

    /// Units of work (loads, bytes, floating point operations) in doing it once.
    fn amount(&self, point: &Point) -> f64;
}

/// All of them, in the order of help.
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

/// Bytes in a cache line of every processor this is written for.
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

/// Square matrices of doubles, `matrices` of them together as large as the given percentages of a level. Dimensions are odd, as
/// in the papers: a power of two for a row would let its columns fall on few sets of the L1, which no color can help.
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

/// Indexes are words of memory that `prepare` wrote or sizes that `points` chose.
fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
