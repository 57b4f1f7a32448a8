//! From recorded cells to the rows of a picture.
//!
//! ```text
//!   mappings   [ libc text ][ libc data ]      [heap]        [anon            ]      [stack]
//!   resident     ####   ##     #               #######         ####     ######           #
//!   bands      [----------------------- ]      [-----]         [---]....[----]          [-]
//!                neighbours of one name        one             holes are left out     one
//! ```
//!
//! If there are more names than a picture has room for, small neighbours share a band.

use std::collections::BTreeMap;

use superhue_model::{
    BASE_PAGE_SHIFT, BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PAGES_PER_REGION, VirtRange,
};

use crate::cells::{Cell, encode};
use crate::document::{Band, Column, Series};
use crate::record::{Frame, Recorder, heat_of};

/// Label of memory without a name.
const NAMELESS: &str = "anonymous";
/// Largest number of bands: each needs a line of text.
const BANDS: usize = 26;
/// Divisor of the total: neighbours smaller than this part of all pages always share a band.
const SMALL: u64 = 150;
/// Pages between neighbours that may share a band: 256 MiB.
const NEAR: u64 = 1 << 16;
/// Approximate number of rows of all bands together.
const ROWS: u64 = 1200;
/// Least number of rows of a band that has the pages for it, however small it is compared with other bands.
const ROWS_AT_LEAST: u64 = 16;

/// Mapping of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Area {
    /// Address range.
    pub range: VirtRange,
    /// Label: `[heap]`, `libc.so.6`.
    pub label: String,
}

/// Group of neighbouring mappings with resident memory: pages as half-open ranges of page numbers.
struct Group {
    first: String,
    last: String,
    mappings: u32,
    segments: Vec<[u64; 2]>,
    pages: u64,
    /// True if its mappings have different names.
    mixed: bool,
}

impl Recorder {
    /// Returns the recorded samples in the form of the picture. `areas` are the mappings of the process, ascending.
    #[must_use]
    pub fn series(&self, areas: &[Area]) -> Series {
        series(self, areas)
    }
}

fn series(recorder: &Recorder, areas: &[Area]) -> Series {
    let Some(start) = recorder.frames.first().map(|frame| frame.from) else {
        return Series::default();
    };
    let resident = resident(recorder);
    let mut groups = together(by_area(&resident, areas));
    let total: u64 = groups.iter().map(|group| group.pages).sum();
    for group in &mut groups {
        leave_out_holes(group);
    }
    let columns = (recorder.frames.iter())
        .map(|frame| Column {
            from_seconds: frame.from.saturating_sub(start).as_secs_f64(),
            to_seconds: frame.to.saturating_sub(start).as_secs_f64(),
            samples: frame.samples,
        })
        .collect();
    let bands = (groups.iter())
        .map(|group| band(recorder, group, total))
        .collect();
    Series { columns, bands }
}

/// Returns the pages that were ever resident, in runs.
fn resident(recorder: &Recorder) -> Vec<[u64; 2]> {
    let per_region = recorder.per_region();
    let mut ever: BTreeMap<u64, Vec<bool>> = BTreeMap::new();
    for frame in &recorder.frames {
        for (region, cells) in frame.regions.iter().zip(frame.cells.chunks(per_region)) {
            let seen = ever
                .entry(region.start().0 >> BASE_PAGE_SHIFT)
                .or_insert_with(|| vec![false; per_region]);
            for (seen, &cell) in seen.iter_mut().zip(cells) {
                *seen |= cell != 0;
            }
        }
    }
    let span = 1 << recorder.shift;
    let mut runs: Vec<[u64; 2]> = Vec::new();
    for (first, cells) in ever {
        for (index, _) in cells.iter().enumerate().filter(|(_, seen)| **seen) {
            push(
                &mut runs,
                [
                    first + index as u64 * span,
                    first + (index as u64 + 1) * span,
                ],
            );
        }
    }
    runs
}

/// Appends a run, joined to the last run if they touch.
fn push(runs: &mut Vec<[u64; 2]>, run: [u64; 2]) {
    match runs.last_mut() {
        Some(last) if last[1] >= run[0] => last[1] = last[1].max(run[1]),
        _ => runs.push(run),
    }
}

/// Makes a group for each mapping that has resident memory; memory that has been unmapped since gets its own group.
fn by_area(resident: &[[u64; 2]], areas: &[Area]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut add = |area: Option<usize>, run: [u64; 2], last: &mut Option<Option<usize>>| {
        let label = area.map_or("unmapped since", |index| &areas[index].label);
        if *last != Some(area) {
            groups.push(Group {
                first: label.to_owned(),
                last: label.to_owned(),
                mappings: 1,
                segments: Vec::new(),
                pages: 0,
                mixed: false,
            });
            *last = Some(area);
        }
        if let Some(group) = groups.last_mut() {
            group.pages += run[1] - run[0];
            push(&mut group.segments, run);
        }
    };
    let mut last = None;
    let mut next = 0;
    for &[mut at, end] in resident {
        while at < end {
            let page = |address: u64| address >> BASE_PAGE_SHIFT;
            while areas
                .get(next)
                .is_some_and(|area| page(area.range.end.0) <= at)
            {
                next += 1;
            }
            let (area, until) = match areas.get(next) {
                Some(area) if page(area.range.start.0) <= at => {
                    (Some(next), page(area.range.end.0))
                }
                Some(area) => (None, page(area.range.start.0)),
                None => (None, end),
            };
            let until = until.min(end);
            add(area, [at, until], &mut last);
            at = until;
        }
    }
    groups
}

/// Joins neighbours of one name, and then small neighbours, with a growing limit until there are few enough bands. The heap and the stack
/// keep their names as long as possible.
fn together(groups: Vec<Group>) -> Vec<Group> {
    let mut groups = joined(groups, |a, b| {
        a.first == b.first && !a.mixed && !b.mixed && is_near(a, b)
    });
    let total: u64 = groups.iter().map(|group| group.pages).sum();
    let mut small = total / SMALL;
    loop {
        groups = joined(groups, |a, b| {
            let special = |group: &Group| group.first.starts_with('[') && !group.mixed;
            let fits = a.pages <= small && b.pages <= small;
            fits && (small > (total / 8).max(1 << 12) || !(special(a) || special(b)))
        });
        if groups.len() <= BANDS || small > 1 << 40 {
            return groups;
        }
        small = (small * 2).max(8);
    }
}

/// Returns true if two groups lie in the same part of the address space.
fn is_near(a: &Group, b: &Group) -> bool {
    let end = a.segments.last().map_or(0, |run| run[1]);
    let start = b.segments.first().map_or(0, |run| run[0]);
    start.saturating_sub(end) <= NEAR
}

fn joined(groups: Vec<Group>, alike: impl Fn(&Group, &Group) -> bool) -> Vec<Group> {
    let mut joined: Vec<Group> = Vec::new();
    for group in groups {
        match joined.last_mut() {
            Some(last) if alike(last, &group) => {
                last.mixed |= group.mixed || last.first != group.first;
                // A name tells more than `anonymous`.
                if last.first == NAMELESS {
                    last.first.clone_from(&group.first);
                }
                if group.last != NAMELESS || last.last == NAMELESS {
                    last.last = group.last;
                }
                last.mappings += group.mappings;
                last.pages += group.pages;
                for run in group.segments {
                    push(&mut last.segments, run);
                }
            }
            _ => joined.push(group),
        }
    }
    joined
}

/// Joins segments across holes that are too small to be worth a mark.
fn leave_out_holes(group: &mut Group) {
    let small = (group.pages / 128).max(1);
    let mut kept: Vec<[u64; 2]> = Vec::new();
    for &run in &group.segments {
        match kept.last_mut() {
            Some(last) if run[0] - last[1] <= small && !group.mixed => last[1] = run[1],
            _ => kept.push(run),
        }
    }
    group.segments = kept;
}

fn band(recorder: &Recorder, group: &Group, total: u64) -> Band {
    let span: u64 = group.segments.iter().map(|[start, end]| end - start).sum();
    // No more rows than cells, so that each row has cells of its own.
    let most = (span >> recorder.shift).max(1);
    let share = u128::from(ROWS) * u128::from(group.pages) / u128::from(total.max(1));
    let rows = u64::try_from(share)
        .unwrap_or(ROWS)
        .max(ROWS_AT_LEAST)
        .min(most);
    let rows = whole(span, rows);
    let label = match (group.mixed, group.first == group.last) {
        (false, _) => group.first.clone(),
        (true, false) => format!("{} \u{2026} {}", group.first, group.last),
        (true, true) => format!("{} \u{2026}", group.first),
    };
    let huge = recorder.huge.iter().filter(|region| {
        let page = region.start().0 >> BASE_PAGE_SHIFT;
        let behind = group.segments.partition_point(|segment| segment[1] <= page);
        group
            .segments
            .get(behind)
            .is_some_and(|segment| segment[0] <= page)
    });
    Band {
        label,
        mappings: group.mappings,
        bytes: group.pages * BASE_PAGE_SIZE,
        huge_bytes: (huge.count() as u64 * HUGE_PAGE_SIZE).min(group.pages * BASE_PAGE_SIZE),
        segments: (group.segments.iter())
            .map(|run| run.map(|page| page << BASE_PAGE_SHIFT))
            .collect(),
        rows: u32::try_from(rows).unwrap_or(u32::MAX),
        cells: (recorder.frames.iter())
            .map(|frame| column(recorder, frame, &group.segments, span, rows))
            .collect(),
    }
}

/// Returns a number of rows of at most `most`; if possible each row has a power of two of pages, so that huge pages begin and end with rows.
fn whole(span: u64, most: u64) -> u64 {
    let fits = |shift: &u32| span.is_multiple_of(1 << shift) && span >> shift <= most;
    let rows = (0..40).find(fits).map(|shift| span >> shift);
    rows.filter(|rows| rows * 3 >= most).unwrap_or(most)
}

/// Returns one column of a band: the mean heat of the resident pages, row by row.
fn column(
    recorder: &Recorder,
    frame: &Frame,
    segments: &[[u64; 2]],
    span: u64,
    rows: u64,
) -> String {
    let per_region = recorder.per_region() as u64;
    let step = 1u64 << recorder.shift;
    let mut sums = vec![(0.0f64, 0u32); usize::try_from(rows).unwrap_or(0)];
    // Number of pages of the band before this segment.
    let mut before = 0;
    for &[start, end] in segments {
        let mut region_at = frame.regions.partition_point(|region| {
            (region.start().0 >> BASE_PAGE_SHIFT) + PAGES_PER_REGION <= start
        });
        while let Some(region) = frame.regions.get(region_at) {
            let first = region.start().0 >> BASE_PAGE_SHIFT;
            if first >= end {
                break;
            }
            let from = start.saturating_sub(first) / step;
            for index in from..per_region {
                let page = (first + index * step).max(start);
                if page >= end {
                    break;
                }
                let level = frame.cells[region_at * per_region as usize + index as usize];
                if let Some(heat) = heat_of(level) {
                    let row =
                        u128::from(before + page - start) * u128::from(rows) / u128::from(span);
                    if let Some(sum) = usize::try_from(row).ok().and_then(|row| sums.get_mut(row)) {
                        sum.0 += f64::from(heat);
                        sum.1 += 1;
                    }
                }
            }
            region_at += 1;
        }
        before += end - start;
    }
    #[allow(clippy::cast_possible_truncation, reason = "a share")]
    let cell = |&(heat, cells): &(f64, u32)| match cells {
        0 => Cell::Absent,
        cells => Cell::Heat((heat / f64::from(cells)) as f32),
    };
    sums.iter().map(|sum| encode(cell(sum))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::SampleReading;
    use std::time::Duration;
    use superhue_model::{PageSet, Region, VirtAddr};

    fn area(first: u64, last: u64, label: &str) -> Area {
        let address = |page: u64| VirtAddr(page << BASE_PAGE_SHIFT);
        Area {
            range: VirtRange::new(address(first), address(last)).unwrap(),
            label: label.to_owned(),
        }
    }

    /// Records one sample in which `present` pages are resident and `touched` of them touched.
    fn record(recorder: &mut Recorder, present: &[[u64; 2]], touched: &[[u64; 2]]) {
        let mut regions: BTreeMap<u64, (PageSet, PageSet)> = BTreeMap::new();
        for &[a, b] in present {
            (a..b).for_each(|p| {
                regions
                    .entry(p / 512)
                    .or_default()
                    .0
                    .insert(p as usize % 512)
            });
        }
        for &[a, b] in touched {
            (a..b).for_each(|p| {
                regions
                    .entry(p / 512)
                    .or_default()
                    .1
                    .insert(p as usize % 512)
            });
        }
        let at = Duration::from_secs(recorder.columns() as u64);
        let seen = regions
            .into_iter()
            .map(|(number, (present, touched))| SampleReading::Pages {
                region: Region::containing(VirtAddr(number << 21)),
                huge: false,
                present,
                touched,
            });
        recorder.add(at, at + Duration::from_secs(1), seen.collect::<Vec<_>>());
    }

    #[test]
    fn gaps_are_cut_out_and_names_kept() {
        let mut recorder = Recorder::new();
        record(
            &mut recorder,
            &[[10, 14], [512 * 100, 512 * 100 + 8]],
            &[[11, 12]],
        );
        record(
            &mut recorder,
            &[[10, 14], [512 * 100, 512 * 100 + 8]],
            &[[512 * 100, 512 * 100 + 8]],
        );
        let areas = [area(8, 20, "[heap]"), area(512 * 99, 512 * 101, "anon")];
        let series = recorder.series(&areas);
        assert_eq!(series.columns.len(), 2);
        assert_eq!(series.bands.len(), 2);
        let heap = &series.bands[0];
        assert_eq!(
            (heap.label.as_str(), heap.rows, heap.bytes),
            ("[heap]", 4, 4 * 4096)
        );
        assert_eq!(heap.segments, [[10 << 12, 14 << 12]]);
        assert_eq!(heap.cells, ["0z00", "0000"]);
        assert_eq!(series.bands[1].cells, ["00000000", "zzzzzzzz"]);
    }

    #[test]
    fn memory_that_was_unmapped_is_named_so() {
        let mut recorder = Recorder::new();
        record(&mut recorder, &[[0, 2], [3, 4], [50, 60]], &[]);
        let series = recorder.series(&[area(0, 3, "a")]);
        let labels: Vec<&str> = series
            .bands
            .iter()
            .map(|band| band.label.as_str())
            .collect();
        assert_eq!(labels, ["a", "unmapped since"]);
        assert_eq!(series.bands[1].bytes, 11 * 4096);
    }

    #[test]
    fn many_small_mappings_share_bands_and_keep_their_heat() {
        let mut recorder = Recorder::new();
        let runs: Vec<[u64; 2]> = (0..3000).map(|n| [n * 10, n * 10 + 2]).collect();
        record(&mut recorder, &runs, &[[1500 * 10, 1500 * 10 + 1]]);
        let areas: Vec<Area> = (0..3000)
            .map(|n| area(n * 10, n * 10 + 2, &format!("lib{n}.so")))
            .collect();
        let series = recorder.series(&areas);
        assert!(series.bands.len() <= BANDS, "{}", series.bands.len());
        let mappings: u32 = series.bands.iter().map(|band| band.mappings).sum();
        assert_eq!(mappings, 3000);
        let bytes: u64 = series.bands.iter().map(|band| band.bytes).sum();
        assert_eq!(bytes, 6000 * 4096);
        let hot = (series.bands.iter().flat_map(|band| band.cells[0].bytes()))
            .filter(|&letter| letter != b'.' && letter != b'0');
        assert_eq!(hot.count(), 1);
    }

    #[test]
    fn nothing_recorded_is_an_empty_picture() {
        assert_eq!(
            Recorder::new().series(&[area(0, 3, "a")]),
            Series::default()
        );
        let mut recorder = Recorder::new();
        recorder.add(Duration::ZERO, Duration::from_secs(1), []);
        assert!(recorder.series(&[]).bands.is_empty());
    }
}
