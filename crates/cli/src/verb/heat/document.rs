//! Builds the document that is shown from the tracked accesses.

use superhue::model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE};
use superhue::procfs::process::NamedVma;
use superhue::trackers::{HotSet as Curve, PageSize, RangeHeat};
use superhue_plot::{Area, HotPoint, HotSet, Mapping, Run};

/// Most points of the hot-set curve that are kept: more than a picture can show.
const POINTS: usize = 256;

/// Returns the mappings under their names in the picture.
pub(super) fn areas(vmas: &[NamedVma]) -> Vec<Area> {
    (vmas.iter())
        .map(|named| Area {
            range: named.vma.range,
            label: named.label().to_owned(),
        })
        .collect()
}

/// Returns the counts by mapping. Leaves out memory that is no longer mapped.
pub(super) fn mappings(vmas: &[NamedVma], ranges: impl Iterator<Item = RangeHeat>) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = (vmas.iter())
        .map(|named| Mapping {
            start: named.vma.range.start.0,
            end: named.vma.range.end.0,
            name: named.name.clone(),
            permissions: String::from_utf8_lossy(&named.permissions).into_owned(),
            ..Mapping::default()
        })
        .collect();
    let mut at = 0;
    for range in ranges {
        let (start, end) = (range.range.start.0, range.range.end.0);
        while mappings.get(at).is_some_and(|mapping| mapping.end <= start) {
            at += 1;
        }
        // A huge page lies in one mapping; a range of DAMON may span several.
        for mapping in mappings[at..].iter_mut().take_while(|one| one.start < end) {
            let run = Run {
                start: start.max(mapping.start),
                end: end.min(mapping.end),
                count: u64::from(range.count),
            };
            match range.pages {
                PageSize::Huge => mapping.huge_bytes += run.end - run.start,
                PageSize::Base => mapping.base_bytes += run.end - run.start,
                PageSize::Range => {}
            }
            match mapping.runs.last_mut() {
                Some(last) if last.end == run.start && last.count == run.count => {
                    last.end = run.end;
                }
                _ => mapping.runs.push(run),
            }
        }
    }
    mappings
}

/// Returns the hot set, with the points that make a difference in a picture.
pub(super) fn hot_set(curve: &Curve, resident_bytes: u64) -> HotSet {
    let bytes = |share: f64| curve.bytes_for(share).map(|bytes| bytes.0);
    let mut points: Vec<HotPoint> = Vec::new();
    let every = curve.points.len().div_ceil(POINTS).max(1);
    for (index, point) in curve.points.iter().enumerate() {
        if index % every == 0 || index + 1 == curve.points.len() {
            points.push(HotPoint {
                bytes: point.bytes.0,
                share: point.share,
            });
        }
    }
    HotSet {
        resident_bytes,
        bytes_50: bytes(0.5),
        bytes_90: bytes(0.9),
        bytes_99: bytes(0.99),
        points,
    }
}

/// Estimates the share of accesses to memory that no sample found accessed.
///
/// Memory that a single sample found accessed is like memory that none did. If much of what was seen was seen once, and little twice, another
/// sample would find as much again. The estimate is that of Chao and Jost for samples that note presence ("Coverage-based rarefaction and
/// extrapolation", Ecology 93(12), 2012), with bytes in the place of individuals:
///
/// ```text
///   unseen = once/all * (n-1)*once / ((n-1)*once + 2*twice)      all: bytes times samples in which they were accessed
/// ```
///
/// `None` with fewer than two samples, without any access, and for a tracker that does not tell pages apart.
#[allow(clippy::cast_precision_loss, reason = "a share of byte counts")]
pub(super) fn unseen_share(samples: u64, ranges: impl Iterator<Item = RangeHeat>) -> Option<f64> {
    let (mut once, mut twice, mut all) = (0.0, 0.0, 0.0);
    for range in ranges {
        if range.pages == PageSize::Range {
            return None;
        }
        let bytes = range.range.len().0 as f64;
        match range.count {
            1 => once += bytes,
            2 => twice += bytes,
            _ => {}
        }
        all += bytes * f64::from(range.count);
    }
    if samples < 2 || all <= 0.0 {
        return None;
    }
    if once <= 0.0 {
        return Some(0.0);
    }
    let repeated = (samples - 1) as f64 * once;
    Some(once / all * repeated / (repeated + 2.0 * twice))
}

/// Returns the bytes of resident memory.
pub(super) fn resident(ranges: impl Iterator<Item = RangeHeat>) -> u64 {
    ranges
        .map(|range| match range.pages {
            PageSize::Base => BASE_PAGE_SIZE,
            PageSize::Huge => HUGE_PAGE_SIZE,
            PageSize::Range => range.range.len().0,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue::model::{VirtAddr, VirtRange};
    use superhue::procfs::process::parse_named_maps;

    fn range(start: u64, end: u64, pages: PageSize, count: u32) -> RangeHeat {
        RangeHeat {
            range: VirtRange::new(VirtAddr(start), VirtAddr(end)).unwrap(),
            pages,
            count,
            rate: 0.0,
        }
    }

    #[test]
    fn what_one_sample_alone_saw_tells_what_none_saw() {
        let page = |at: u64, count| range(at << 12, (at + 1) << 12, PageSize::Base, count);
        let seen = |counts: &[u32], samples| {
            let pages = counts.iter().zip(0..);
            unseen_share(samples, pages.map(|(&count, at)| page(at, count)))
        };
        assert_eq!(
            seen(&[9, 9, 9, 0], 9),
            Some(0.0),
            "the same pages each time"
        );
        // Two samples that have nothing in common: most is still unseen.
        assert_eq!(seen(&[1; 100], 2), Some(1.0));
        // Half of the accesses of each of two samples of 100 pages are to pages that both saw.
        let half: Vec<u32> = [vec![1; 100], vec![2; 50]].concat();
        let share = seen(&half, 2).unwrap();
        assert!((share - 0.25).abs() < 1e-9, "{share}");
        for unknown in [seen(&[1, 1], 1), seen(&[0, 0], 5), seen(&[], 5)] {
            assert_eq!(unknown, None);
        }
        let rates = [range(0, 4096, PageSize::Range, 1)];
        assert_eq!(unseen_share(9, rates.into_iter()), None);
    }

    #[test]
    fn counts_go_to_their_mappings_and_equal_neighbours_are_joined() {
        let maps = b"1000-5000 rw-p 00000000 00:00 0 [heap]\n\
                     5000-9000 r--s 00000000 08:01 7 /lib/x.so\n\
                     200000-400000 rw-p 00000000 00:00 0\n";
        let vmas = parse_named_maps(maps).unwrap();
        let ranges = [
            range(0x1000, 0x2000, PageSize::Base, 3),
            range(0x2000, 0x3000, PageSize::Base, 3),
            range(0x3000, 0x4000, PageSize::Base, 2),
            range(0x4000, 0x6000, PageSize::Range, 2),
            range(0x10_0000, 0x10_1000, PageSize::Base, 9),
            range(0x20_0000, 0x40_0000, PageSize::Huge, 1),
        ];
        assert_eq!(resident(ranges.into_iter()), 4 * 4096 + 0x2000 + (2 << 20));
        let mappings = mappings(&vmas, ranges.into_iter());
        let runs = |index: usize| -> Vec<(u64, u64, u64)> {
            let runs = mappings[index].runs.iter();
            runs.map(|run| (run.start, run.end, run.count)).collect()
        };
        assert_eq!(runs(0), [(0x1000, 0x3000, 3), (0x3000, 0x5000, 2)]);
        assert_eq!(runs(1), [(0x5000, 0x6000, 2)]);
        assert_eq!(runs(2), [(0x20_0000, 0x40_0000, 1)]);
        assert_eq!(
            (mappings[0].base_bytes, mappings[2].huge_bytes),
            (0x3000, 2 << 20)
        );
        assert_eq!(mappings[1].permissions, "r--s");
        assert_eq!(mappings[2].name, None);
    }
}
