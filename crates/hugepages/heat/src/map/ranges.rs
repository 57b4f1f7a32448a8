//! Heat from DAMON: ranges that it splits and joins as it goes.
//!
//! ```text
//!   before   |--------- A, 0.8 ---------|---- B, 0 ----|
//!   now      |-- A1, 1.0 --|-- A2, 0 --|------ C, 0 -------|
//!              from A         from A       from A, B and nothing, by how much of C each covers
//! ```

use std::time::Duration;

use superhue_model::{ByteCount, HUGE_PAGE_SIZE, Region, RegionHeat, VirtAddr, VirtRange};

use super::super::RangeRate;
use super::pages::MIN_INTERVAL_SECONDS;
use super::{PageSize, RangeHeat};

/// Weight of a new sample in the decayed rate: half of the old value is left after two samples.
const NEW: f32 = 1.0 - std::f32::consts::FRAC_1_SQRT_2;

/// Number of regions reported at most, so that ranges over terabytes of reserved addresses do no harm (they make up 2 TiB).
const MOST_REGIONS: usize = 1 << 20;

/// A range, with its share of the history of former ranges.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) range: VirtRange,
    /// Sum of the rates of all samples, halved now and then.
    pub(super) total: f32,
    /// Decayed rate.
    rate: f32,
    /// Rate at the last sample.
    pub(super) last: f32,
    touched_at: Duration,
}

impl Span {
    fn heat(&self) -> RangeHeat {
        RangeHeat {
            range: self.range,
            pages: PageSize::Range,
            count: self.total.round() as u32,
            rate: self.rate,
        }
    }
}

/// Returns the readings ascending and disjoint, without empty ones, and with every rate from 0 to 1.
fn cleaned(readings: &[RangeRate]) -> Vec<RangeRate> {
    let mut ranges: Vec<_> = readings.to_vec();
    if !ranges.is_sorted_by_key(|reading| reading.range.start) {
        ranges.sort_by_key(|reading| reading.range.start);
    }
    let mut end = VirtAddr(0);
    ranges.retain_mut(|reading| {
        reading.range.start = reading.range.start.max(end);
        // NaN is not above 0.
        reading.rate = if reading.rate > 0.0 {
            reading.rate.min(1.0)
        } else {
            0.0
        };
        let kept = !reading.range.is_empty();
        if kept {
            end = reading.range.end;
        }
        kept
    });
    ranges
}

/// Calls `each` with every pair of spans that overlap: index of the new, the old, bytes in common.
fn overlaps<T>(
    new: &[RangeRate],
    old: &[T],
    range: impl Fn(&T) -> VirtRange,
    mut each: impl FnMut(usize, &T, u64),
) {
    let mut first = 0;
    for (index, reading) in new.iter().enumerate() {
        while old
            .get(first)
            .is_some_and(|old| range(old).end <= reading.range.start)
        {
            first += 1;
        }
        for old in &old[first..] {
            let VirtRange { start, end } = range(old);
            if start >= reading.range.end {
                break;
            }
            let common = end.min(reading.range.end).0 - start.max(reading.range.start).0;
            each(index, old, common);
        }
    }
}

/// Returns the spans after a sample, and true if there are addresses that no span held before.
pub(super) fn absorb(
    old: &[Span],
    readings: &[RangeRate],
    before: Duration,
    watched: Duration,
) -> (Vec<Span>, bool) {
    #[derive(Clone, Copy)]
    struct InheritedRate {
        bytes: u64,
        total: f64,
        rate: f64,
        touched_at: Duration,
    }
    let ranges = cleaned(readings);
    let nothing = InheritedRate {
        bytes: 0,
        total: 0.0,
        rate: 0.0,
        touched_at: Duration::ZERO,
    };
    let mut inherited = vec![nothing; ranges.len()];
    overlaps(
        &ranges,
        old,
        |span| span.range,
        |index, span, common| {
            let Some(all) = inherited.get_mut(index) else {
                return;
            };
            all.bytes += common;
            all.total += common as f64 * f64::from(span.total);
            all.rate += common as f64 * f64::from(span.rate);
            all.touched_at = all.touched_at.max(span.touched_at);
        },
    );
    let mut grew = false;
    let spans = ranges.iter().zip(&inherited).map(|(reading, from)| {
        let bytes = reading.range.len().0;
        let mean = |sum: f64| (sum / bytes as f64) as f32;
        grew |= from.bytes < bytes;
        let fresh = from.bytes == 0;
        Span {
            range: reading.range,
            total: mean(from.total) + reading.rate,
            rate: if fresh {
                reading.rate
            } else {
                (mean(from.rate) * (1.0 - NEW) + reading.rate * NEW).clamp(0.0, 1.0)
            },
            last: reading.rate,
            touched_at: match (reading.rate > 0.0, fresh) {
                (true, _) => watched,
                (false, true) => before,
                (false, false) => from.touched_at,
            },
        }
    });
    let spans = spans.collect();
    (spans, grew)
}

/// Returns the touched weight of two samples by stretch of addresses: bytes times rate, then and now.
pub(super) fn weights(old: &[Span], new: &[Span]) -> Vec<(f64, f64)> {
    let mut cuts: Vec<u64> = old
        .iter()
        .chain(new)
        .flat_map(|span| [span.range.start.0, span.range.end.0])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let (mut old, mut new) = (Cursor(old), Cursor(new));
    let pairs = cuts.windows(2).map(|cut| {
        let bytes = (cut[1] - cut[0]) as f64;
        (bytes * old.rate_at(cut[0]), bytes * new.rate_at(cut[0]))
    });
    pairs.collect()
}

/// Finds spans by ascending address.
struct Cursor<'a>(&'a [Span]);

impl Cursor<'_> {
    fn rate_at(&mut self, address: u64) -> f64 {
        while let [first, rest @ ..] = self.0 {
            if first.range.end.0 > address {
                let inside = first.range.start.0 <= address;
                return if inside { f64::from(first.last) } else { 0.0 };
            }
            self.0 = rest;
        }
        0.0
    }
}

pub(super) fn ranges(spans: &[Span]) -> impl Iterator<Item = RangeHeat> + '_ {
    spans.iter().map(Span::heat)
}

/// Returns every region that a span overlaps, ascending; of several spans the hottest counts.
pub(super) fn regions(spans: &[Span], watched: Duration, interval: Duration) -> Vec<RegionHeat> {
    let first = |span: &Span| span.range.start.0 / HUGE_PAGE_SIZE;
    let end = |span: &Span| span.range.end.0.div_ceil(HUGE_PAGE_SIZE);
    let total = spans.iter().map(|span| end(span) - first(span));
    let all = total.fold(0, u64::saturating_add) <= MOST_REGIONS as u64;
    let mut regions: Vec<RegionHeat> = Vec::new();
    for span in spans.iter().filter(|span| all || span.total > 0.0) {
        for number in first(span)..end(span) {
            let heat = RegionHeat {
                region: Region::containing(VirtAddr(number * HUGE_PAGE_SIZE)),
                active: None,
                is_range: true,
                rate: span.rate,
                per_second: span.rate / interval.as_secs_f32().max(MIN_INTERVAL_SECONDS),
                idle: watched.saturating_sub(span.touched_at),
            };
            if let Some(last) = regions.last_mut()
                && last.region == heat.region
            {
                last.rate = last.rate.max(heat.rate);
                last.per_second = last.per_second.max(heat.per_second);
                last.idle = last.idle.min(heat.idle);
            } else if regions.len() == MOST_REGIONS {
                return regions;
            } else {
                regions.push(heat);
            }
        }
    }
    regions
}

/// Returns the total of the rates and the bytes of each span, for the hot-set curve.
pub(super) fn tally(spans: &[Span]) -> impl Iterator<Item = (f64, ByteCount)> + '_ {
    let weighed = spans.iter().filter(|span| span.total > 0.0);
    weighed.map(|span| (f64::from(span.total), span.range.len()))
}
