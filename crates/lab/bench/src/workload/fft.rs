//! Fourier transforms by FFTW, in place.

use rand::rngs::Xoshiro256PlusPlus;

use super::{Figure, Point, Sweep, Workload};
use crate::BenchError;
use crate::buffer::Buffer;
use crate::fftw::{Library, Plan};
use crate::machine::Caches;

/// Complex transform of as many points as `memory` has room for.
///
/// Only the data is placed: FFTW's own tables lie where its `malloc` finds memory, in every arm alike.
#[derive(Debug, Default)]
pub(super) struct Fft {
    library: Option<Library>,
    plan: Option<Plan>,
}

/// Bytes of a complex number.
const COMPLEX: u64 = 16;
/// Points of Papadopoulos's transform.
const PAPER: u64 = 65_536;

impl Workload for Fft {
    fn name(&self) -> &'static str {
        "fft"
    }

    fn about(&self) -> &'static str {
        "FFTW's complex transform of doubles, in place"
    }

    fn figure(&self) -> Figure {
        Figure::millions("Mflop/s")
    }

    fn points(&self, caches: &Caches, sweep: Sweep) -> Vec<Point> {
        let percents: &[f64] = match sweep {
            Sweep::Quick => &[75.0, 100.0],
            Sweep::Full => &[25.0, 50.0, 62.5, 75.0, 85.0, 94.0, 100.0, 125.0, 200.0],
        };
        let cache = caches.colored_bytes();
        let room = |percent: &f64| (cache as f64 * percent / 100.0) as u64 / COMPLEX;
        let mut sizes: Vec<u64> = percents
            .iter()
            .map(|percent| smooth(room(percent)))
            .collect();
        sizes.push(PAPER);
        sizes.sort_unstable();
        sizes.dedup();
        let point = |points: u64| {
            let bytes = points * COMPLEX;
            Point {
                label: format!("{points}"),
                parameter: points,
                bytes,
                level: 2,
                share: bytes as f64 / cache as f64,
            }
        };
        sizes.into_iter().map(point).collect()
    }

    fn prepare(
        &mut self,
        point: &Point,
        memory: &mut Buffer,
        _: &mut Xoshiro256PlusPlus,
    ) -> Result<(), BenchError> {
        self.plan = None;
        let library = match &mut self.library {
            Some(library) => library,
            none => none.insert(Library::load()?),
        };
        // Planning by measurement overwrites the data, so the plan comes before the data.
        self.plan = Some(library.plan(point.parameter, memory)?);
        self.refresh(memory);
        Ok(())
    }

    /// Resets the numbers: each transform makes them larger by the root of their number, and infinities would take
    /// longer.
    fn refresh(&mut self, memory: &mut Buffer) {
        for (number, value) in (0_u32..).zip(memory.doubles()) {
            *value = f64::from(number % 7);
        }
    }

    fn work(&mut self, _: &Point, memory: &mut Buffer, times: u64) {
        let Some(plan) = &mut self.plan else { return };
        for _ in 0..times {
            plan.execute(memory);
        }
    }

    /// `5 n log2 n`, as FFTW's authors count for every algorithm.
    fn amount(&self, point: &Point) -> f64 {
        let points = point.parameter as f64;
        5.0 * points * points.log2()
    }
}

/// The largest number up to `limit` whose only factors are 2, 3, 5 and 7: sizes that FFTW is fast at.
fn smooth(limit: u64) -> u64 {
    let only_small = |number: &u64| {
        let rest = [2, 3, 5, 7].iter().fold(*number, |mut rest, factor| {
            while rest.is_multiple_of(*factor) {
                rest /= factor;
            }
            rest
        });
        rest == 1
    };
    (1..=limit).rev().find(only_small).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::smooth;

    #[test]
    fn sizes_have_small_factors() {
        assert_eq!(smooth(65_536), 65_536);
        assert_eq!(smooth(61_603), 61_440);
        assert_eq!(smooth(1), 1);
        assert_eq!(smooth(0), 1);
    }
}
