//! The time series of a process, in bounded memory.
//!
//! ```text
//!    region   columns (time) ->
//!      |      [ 1 1 2 9 9 1 ][ ... ]        a cell: 2^shift pages in one column
//!      v      [ 0 0 1 1 1 1 ][ ... ]
//! ```
//!
//! With too many columns, the recorder joins neighbours in time, two by two; with too many cells, neighbours in memory. Both keep touched memory
//! distinct from untouched memory.

use std::collections::BTreeSet;
use std::time::Duration;

use superhue_model::{PAGES_PER_REGION, PageSet, Region};

/// Largest number of columns.
const COLUMNS: usize = 240;
/// Number of columns that are kept however large the process is.
const COLUMNS_AT_LEAST: usize = 8;
/// Largest number of cells, of one byte each.
const CELLS: usize = 32 << 20;

/// Result of one sample for one region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleReading {
    /// Pages that were touched.
    Pages {
        /// Region.
        region: Region,
        /// True if a huge page-table entry maps it whole.
        huge: bool,
        /// Pages that are present.
        present: PageSet,
        /// Pages that were touched, all of them present.
        touched: PageSet,
    },
    /// Rate at which some pages of the region were touched, for all of them together.
    Rate {
        /// Region.
        region: Region,
        /// Pages of the region.
        pages: PageSet,
        /// Share of samples that found them touched, 0 to 1.
        rate: f32,
    },
}

impl SampleReading {
    fn region(&self) -> Region {
        match self {
            Self::Pages { region, .. } | Self::Rate { region, .. } => *region,
        }
    }
}

/// Level of some pages in one column: 0 not resident, 1 not touched, 2 to 255 from hardly to always touched.
type Level = u8;

/// Time in which one or several samples were taken.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) from: Duration,
    pub(crate) to: Duration,
    pub(crate) samples: u32,
    /// Regions, ascending; each has `512 >> shift` cells.
    pub(crate) regions: Vec<Region>,
    pub(crate) cells: Vec<Level>,
}

/// Recorder of the samples of one process.
#[derive(Debug)]
pub struct Recorder {
    pub(crate) frames: Vec<Frame>,
    /// Base-2 logarithm of the pages of a cell, 0 to 9.
    pub(crate) shift: u32,
    /// Regions that a single entry mapped at the last sample.
    pub(crate) huge: BTreeSet<Region>,
    limits: (usize, usize),
    /// True if the recorder drops the oldest columns instead of joining columns.
    forget: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            frames: Vec::new(),
            shift: 0,
            huge: BTreeSet::new(),
            limits: (COLUMNS, CELLS),
            forget: false,
        }
    }
}

impl Recorder {
    /// Makes a recorder without samples.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a recorder that keeps only the last `columns` samples, and at most `cells` bytes.
    #[must_use]
    pub fn of_recent(columns: usize, cells: usize) -> Self {
        Self {
            limits: (columns, cells),
            forget: true,
            ..Self::default()
        }
    }

    /// Returns the number of columns.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.frames.len()
    }

    /// Adds a sample: accesses between `from` and `to` (of any clock, ascending from sample to sample). `seen` must ascend by region; several entries
    /// of one region are joined.
    pub fn add(
        &mut self,
        from: Duration,
        to: Duration,
        seen: impl IntoIterator<Item = SampleReading>,
    ) {
        let mut frame = Frame {
            from,
            to: to.max(from),
            samples: 1,
            regions: Vec::new(),
            cells: Vec::new(),
        };
        let per_region = self.per_region();
        self.huge.clear();
        for one in seen {
            let region = one.region();
            match frame.regions.last() {
                Some(&last) if last == region => {}
                // Ignores regions out of order, which no tracker reports.
                Some(&last) if last > region => continue,
                _ => {
                    frame.regions.push(region);
                    frame.cells.resize(frame.cells.len() + per_region, 0);
                }
            }
            if matches!(one, SampleReading::Pages { huge: true, .. }) {
                self.huge.insert(region);
            }
            let at = frame.cells.len() - per_region;
            for (index, cell) in frame.cells[at..].iter_mut().enumerate() {
                *cell = (*cell).max(level(&one, index, self.shift));
            }
        }
        self.frames.push(frame);
        self.keep_within_limits();
    }

    pub(crate) fn per_region(&self) -> usize {
        (PAGES_PER_REGION >> self.shift) as usize
    }

    fn keep_within_limits(&mut self) {
        let (columns, cells) = self.limits;
        if self.frames.len() > columns && self.forget {
            self.frames.drain(..self.frames.len() - columns);
        } else if self.frames.len() > columns {
            self.join_columns();
        }
        while self
            .frames
            .iter()
            .map(|frame| frame.cells.len())
            .sum::<usize>()
            > cells
        {
            if self.shift < 9 {
                self.join_pages();
            } else if self.frames.len() > COLUMNS_AT_LEAST {
                self.join_columns();
            } else {
                break;
            }
        }
    }

    fn join_columns(&mut self) {
        let per_region = self.per_region();
        let mut joined = Vec::with_capacity(self.frames.len().div_ceil(2));
        let mut old = std::mem::take(&mut self.frames).into_iter();
        while let Some(first) = old.next() {
            joined.push(match old.next() {
                Some(second) => join(&first, &second, per_region),
                None => first,
            });
        }
        self.frames = joined;
    }

    fn join_pages(&mut self) {
        for frame in &mut self.frames {
            frame.cells = (frame.cells.chunks(2))
                .map(|pair| mean(pair.iter().map(|&level| (level, 1))))
                .collect();
        }
        self.shift += 1;
    }
}

/// Returns the level of cell `index` of a region.
fn level(seen: &SampleReading, index: usize, shift: u32) -> Level {
    let (present, touched, rate) = match seen {
        SampleReading::Pages {
            present, touched, ..
        } => (present, touched, None),
        SampleReading::Rate { pages, rate, .. } => (pages, pages, Some(*rate)),
    };
    let present = count(present, index, shift);
    match (present, rate) {
        (0, _) => 0,
        (_, Some(rate)) => of_heat(f64::from(rate)),
        (_, None) => of_heat(f64::from(count(touched, index, shift)) / f64::from(present)),
    }
}

/// Counts the pages of a set that lie in cell `index`.
fn count(set: &PageSet, index: usize, shift: u32) -> u32 {
    let words = set.words();
    if shift >= 6 {
        let span = 1 << (shift - 6);
        let words = words.iter().skip(index * span).take(span);
        return words.map(|word| word.count_ones()).sum();
    }
    let bit = index << shift;
    let mask = (1u64 << (1 << shift)) - 1;
    words
        .get(bit / 64)
        .map_or(0, |word| (word >> (bit % 64) & mask).count_ones())
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "clamped to 2..=255"
)]
fn of_heat(heat: f64) -> Level {
    if heat > 0.0 {
        (2.0 + heat * 253.0).round().clamp(2.0, 255.0) as Level
    } else {
        1
    }
}

/// Returns the heat of a level; `None` if nothing is resident. It is never 0 for touched pages.
pub(crate) fn heat_of(level: Level) -> Option<f32> {
    match level {
        0 => None,
        1 => Some(0.0),
        level => Some(((f32::from(level) - 2.0) / 253.0).max(1e-3)),
    }
}

/// Returns the weighted mean of levels, over those with resident pages.
fn mean(levels: impl Iterator<Item = (Level, u32)>) -> Level {
    let (mut sum, mut weights) = (0.0, 0);
    for (level, weight) in levels {
        if let Some(heat) = heat_of(level) {
            sum += f64::from(heat) * f64::from(weight);
            weights += weight;
        }
    }
    if weights == 0 {
        0
    } else {
        of_heat(sum / f64::from(weights))
    }
}

fn join(first: &Frame, second: &Frame, per_region: usize) -> Frame {
    let mut joined = Frame {
        from: first.from,
        to: second.to,
        samples: first.samples + second.samples,
        regions: Vec::with_capacity(first.regions.len().max(second.regions.len())),
        cells: Vec::new(),
    };
    let none = vec![0; per_region];
    let (mut a, mut b) = (0, 0);
    while let Some(&region) = match (first.regions.get(a), second.regions.get(b)) {
        (Some(x), Some(y)) => Some(x.min(y)),
        (x, y) => x.or(y),
    } {
        let take = |frame: &Frame, at: &mut usize| -> std::ops::Range<usize> {
            if frame.regions.get(*at) == Some(&region) {
                *at += 1;
                (*at - 1) * per_region..*at * per_region
            } else {
                0..0
            }
        };
        let (x, y) = (take(first, &mut a), take(second, &mut b));
        let x = if x.is_empty() {
            &none[..]
        } else {
            &first.cells[x]
        };
        let y = if y.is_empty() {
            &none[..]
        } else {
            &second.cells[y]
        };
        joined.regions.push(region);
        joined.cells.extend(
            (x.iter().zip(y))
                .map(|(&x, &y)| mean([(x, first.samples), (y, second.samples)].into_iter())),
        );
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::VirtAddr;

    fn seen(
        number: u64,
        present: std::ops::Range<usize>,
        touched: std::ops::Range<usize>,
    ) -> SampleReading {
        let set = |pages: std::ops::Range<usize>| {
            let mut set = PageSet::EMPTY;
            pages.for_each(|page| set.insert(page));
            set
        };
        SampleReading::Pages {
            region: Region::containing(VirtAddr(number << 21)),
            huge: false,
            present: set(present),
            touched: set(touched),
        }
    }

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn columns_are_joined_in_time_and_stay_few() {
        let mut recorder = Recorder {
            limits: (8, CELLS),
            ..Recorder::default()
        };
        for n in 0..100 {
            recorder.add(
                ms(n * 10),
                ms(n * 10 + 10),
                [seen(4, 0..8, 0..1), seen(5, 0..4, 0..0)],
            );
            assert!(recorder.frames.len() <= 8);
        }
        assert_eq!(
            recorder
                .frames
                .iter()
                .map(|frame| frame.samples)
                .sum::<u32>(),
            100
        );
        assert_eq!(
            (recorder.frames[0].from, recorder.frames.last().unwrap().to),
            (ms(0), ms(1000))
        );
        for frame in &recorder.frames {
            assert_eq!(&frame.cells[..10], [255, 1, 1, 1, 1, 1, 1, 1, 0, 0]);
            assert_eq!(&frame.cells[512..517], [1, 1, 1, 1, 0]);
        }
    }

    #[test]
    fn the_recent_past_can_be_kept_alone() {
        let mut recorder = Recorder::of_recent(5, 1 << 20);
        for n in 0..100 {
            recorder.add(ms(n), ms(n + 1), [seen(4, 0..8, 0..1)]);
        }
        let kept: Vec<Duration> = recorder.frames.iter().map(|frame| frame.from).collect();
        assert_eq!(kept, [95, 96, 97, 98, 99].map(ms));
    }

    #[test]
    fn one_hot_page_survives_all_joining() {
        let mut recorder = Recorder {
            limits: (2, 64),
            ..Recorder::default()
        };
        for n in 0..40 {
            let regions = (0..4).map(|r| seen(r, 0..512, 0..usize::from(r == 2 && n == 3)));
            recorder.add(ms(n), ms(n + 1), regions.collect::<Vec<_>>());
        }
        assert!(
            recorder
                .frames
                .iter()
                .map(|frame| frame.cells.len())
                .sum::<usize>()
                <= 64
        );
        let heat = |region: usize| {
            let per = recorder.per_region();
            (recorder.frames.iter())
                .flat_map(|frame| &frame.cells[region * per..(region + 1) * per])
                .any(|&level| level > 1)
        };
        assert!(heat(2));
        assert!(!heat(1) && !heat(3));
    }

    #[test]
    fn a_region_that_comes_or_goes_is_absent_meanwhile_only() {
        let first = Frame {
            from: ms(0),
            to: ms(1),
            samples: 1,
            regions: vec![Region::containing(VirtAddr(0))],
            cells: vec![255, 0],
        };
        let second = Frame {
            from: ms(1),
            to: ms(2),
            samples: 3,
            regions: vec![Region::containing(VirtAddr(1 << 21))],
            cells: vec![1, 2],
        };
        let joined = join(&first, &second, 2);
        assert_eq!(joined.regions.len(), 2);
        assert_eq!(joined.cells, [255, 0, 1, 2]);
        assert_eq!(joined.samples, 4);
    }

    #[test]
    fn cells_count_the_pages_that_lie_in_them() {
        let mut set = PageSet::EMPTY;
        [0, 1, 63, 64, 300, 511]
            .into_iter()
            .for_each(|page| set.insert(page));
        for shift in 0..=9 {
            let counts: Vec<u32> = (0..512usize >> shift)
                .map(|i| count(&set, i, shift))
                .collect();
            assert_eq!(counts.iter().sum::<u32>(), 6, "{shift}");
            assert!(counts[300 >> shift] > 0);
        }
    }

    #[test]
    fn rates_count_for_all_their_pages() {
        let mut recorder = Recorder::new();
        let region = Region::containing(VirtAddr(8 << 21));
        let rate = SampleReading::Rate {
            region,
            pages: PageSet::FULL,
            rate: 0.5,
        };
        recorder.add(ms(0), ms(5), [rate]);
        assert!(
            recorder.frames[0]
                .cells
                .iter()
                .all(|&level| level == of_heat(0.5))
        );
    }
}
