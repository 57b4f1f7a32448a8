//! Resident pages of a shared object, and those that are huge-mapped.
//!
//! The object itself knows its resident pages (`cachestat(2)`), including pages that no process maps at present. The call takes an open file,
//! which `/proc/PID/map_files` gives to callers with `CAP_CHECKPOINT_RESTORE`. Without it the union of the pages that the mappers map stands
//! in: a lower bound. Only page tables show which regions are huge-mapped. There may be thousands of mappers, so only some are read.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;

use rustix::fs::{FileType, Mode, OFlags, fstat, major, minor};
use rustix::io::Errno;
use superhue_model::{
    BASE_PAGE_SHIFT, ByteCount, HUGE_PAGE_SIZE, ObjectId, ObjectPart, ObjectView, PAGES_PER_REGION,
    PageCount, PageSet, ProcessId, Region, RegionView, VirtAddr, VirtRange,
};
use superhue_sys::cachestat::{CachedPages, cached_pages};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PRESENT, PageCategories, PageRegion, for_each_run,
};

use super::{RUNS, open};
use crate::{ReadError, Roots};

/// Maximum number of mappers whose page tables are read: reading 1 GiB of base pages takes 8 ms for each.
pub const MAPPERS_READ: usize = 16;

/// One mapping of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mapper {
    /// Mapping process.
    pub process: ProcessId,
    /// Address range of the mapping.
    pub range: VirtRange,
    /// Mapped part of the object.
    pub part: ObjectPart,
    /// True if the object is a file.
    pub is_file: bool,
}

impl Mapper {
    /// Returns the byte range of the object that it maps.
    #[must_use]
    pub fn mapped(&self) -> VirtRange {
        self.part.mapped(self.range)
    }

    fn is_aligned(&self) -> bool {
        self.part.misaligned_by(self.range.start) == 0
    }

    /// Returns true if some region might be collapsed through it.
    fn has_regions(&self) -> bool {
        self.is_aligned() && self.range.regions().next().is_some()
    }

    /// Returns the address at which it maps a region of the object; `None` unless it maps the region whole and aligned.
    #[must_use]
    pub fn region_of(&self, region: Region) -> Option<Region> {
        let is_whole = self.mapped().contains(&region.range());
        let address = self.range.start.0 + region.start().0.checked_sub(self.part.offset)?;
        (is_whole && self.is_aligned()).then(|| Region::containing(VirtAddr(address)))
    }

    /// Returns the region of the object behind a region of its address space; `None` unless it maps the region whole and aligned.
    #[must_use]
    pub fn region_at(&self, region: Region) -> Option<Region> {
        let is_whole = self.range.contains(&region.range());
        let offset = region.start().0.checked_sub(self.range.start.0)? + self.part.offset;
        (is_whole && self.is_aligned()).then(|| Region::containing(VirtAddr(offset)))
    }
}

/// Result of reading an object.
#[derive(Debug, Clone, PartialEq)]
pub struct ObjectLook {
    /// The object.
    pub view: ObjectView,
    /// True if the resident pages are those of the object, not only those that mappers map.
    pub is_exact: bool,
    /// Huge-mapped bytes of the object for each mapper that was read.
    pub huge_mapped: Vec<(ProcessId, ByteCount)>,
}

/// Reads an object through its `mappers`. They need not be aligned: unaligned ones only help to find the resident pages. Reads
/// the page tables of `most` of them, from the first to the last.
///
/// Needs ptrace read access to the mappers. Skips mappers that cannot be read.
///
/// # Errors
/// That of the last mapper, if none can be read: [`ReadError::Vanished`], [`ReadError::Denied`], [`ReadError::Io`].
pub fn object_view(
    roots: &Roots,
    object: ObjectId,
    mappers: &[Mapper],
    most: usize,
) -> Result<ObjectLook, ReadError> {
    let mut pages = BTreeMap::new();
    let mut huge_mapped = BTreeMap::new();
    let mut failed = None;
    let mut runs = vec![PageRegion::default(); RUNS];
    for mapper in evenly(mappers, most) {
        match add_mapped(roots, mapper, &mut runs, &mut pages) {
            Ok(huge) => *huge_mapped.entry(mapper.process).or_default() += huge,
            Err(error) => failed = Some(error),
        }
    }
    if let Some(error) = failed.filter(|_| huge_mapped.is_empty()) {
        return Err(error);
    }
    let aligned = mappers.iter().filter(|it| it.has_regions());
    let mapped = merged(aligned.map(Mapper::mapped).collect());
    let cached = mappers
        .iter()
        .take(MAPPERS_READ)
        .find_map(|mapper| cached(roots, mapper, &mapped));
    let is_exact = cached.is_some();
    let is_file = mappers.iter().any(|mapper| mapper.is_file);
    // A missing page of a file would have to be read from disk.
    let least = if is_file { PAGES_PER_REGION } else { 1 };
    let resident = |counts: &BTreeMap<u64, PageCount>| counts.values().copied().sum::<PageCount>();
    let (counts, resident) = match cached {
        Some((counts, all)) => (counts, all),
        None => {
            let counted = pages.iter().map(|(&number, seen)| (number, seen.set.len()));
            let counts: BTreeMap<u64, PageCount> = counted.collect();
            let all = resident(&counts);
            (counts, all)
        }
    };
    let regions = counts.iter().filter_map(|(&number, &resident)| {
        let region = Region::containing(VirtAddr(number.checked_mul(HUGE_PAGE_SIZE)?));
        let is_whole = mapped.iter().any(|part| part.contains(&region.range()));
        let is_huge = pages.get(&number).is_some_and(|seen| seen.huge);
        (is_whole && resident.0 >= least).then_some(RegionView {
            region,
            resident,
            huge: Some(is_huge),
        })
    });
    let view = ObjectView {
        id: object,
        is_file,
        fills: false,
        resident: resident.bytes(),
        regions: regions.collect(),
        mapped,
        heat: None,
    };
    Ok(ObjectLook {
        view,
        is_exact,
        huge_mapped: huge_mapped.into_iter().collect(),
    })
}

/// Returns at most `most` of the mappers, evenly from the first to the last.
fn evenly(mappers: &[Mapper], most: usize) -> impl Iterator<Item = &Mapper> {
    let step = mappers.len().div_ceil(most).max(1);
    mappers.iter().step_by(step)
}

/// Merges ranges, ascending. Ranges that only touch stay apart, since no huge page spans two mappings.
fn merged(mut ranges: Vec<VirtRange>) -> Vec<VirtRange> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut union: Vec<VirtRange> = Vec::new();
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start < last.end => last.end = last.end.max(range.end),
            _ => union.push(range),
        }
    }
    union
}

/// Pages of a region of the object that some mapper maps.
#[derive(Default)]
struct MappedPages {
    set: PageSet,
    huge: bool,
}

/// Adds the pages that a mapper maps, by region of the object. Returns the huge-mapped bytes.
fn add_mapped(
    roots: &Roots,
    mapper: &Mapper,
    runs: &mut [PageRegion],
    pages: &mut BTreeMap<u64, MappedPages>,
) -> Result<ByteCount, ReadError> {
    let (path, pagemap) = open(roots, mapper.process)?;
    let mut huge_mapped = ByteCount(0);
    let present = PageCategories::All(PAGE_IS_PRESENT);
    let scanned = for_each_run(&pagemap, mapper.range, present, PAGE_IS_HUGE, runs, |run| {
        let huge = run.categories & PAGE_IS_HUGE != 0;
        if huge {
            huge_mapped += ByteCount(run.end - run.start);
        }
        let offset = run.start - mapper.range.start.0 + mapper.part.offset;
        let shown = VirtRange {
            start: VirtAddr(offset),
            end: VirtAddr(offset.saturating_add(run.end - run.start)),
        };
        for (region, piece) in shown.cut() {
            let start = region.start();
            let seen = pages.entry(start.0 / HUGE_PAGE_SIZE).or_default();
            seen.huge |= huge;
            if piece == region.range() {
                seen.set = PageSet::FULL;
            } else {
                let page = |at: VirtAddr| ((at.0 - start.0) >> BASE_PAGE_SHIFT) as usize;
                (page(piece.start)..page(piece.end)).for_each(|page| seen.set.insert(page));
            }
        }
        true
    });
    match scanned {
        Ok(()) => Ok(huge_mapped),
        Err(errno) => Err(ReadError::of_process(
            mapper.process.pid,
            &path,
            errno.into(),
        )),
    }
}

/// Returns the resident pages of the object by region, for the regions in `parts`, and of the whole object; `None` if the object cannot be
/// opened or read.
fn cached(
    roots: &Roots,
    mapper: &Mapper,
    parts: &[VirtRange],
) -> Option<(BTreeMap<u64, PageCount>, PageCount)> {
    let file = file_of(roots, mapper)?;
    let ask = |first: u64, end: u64| {
        let bytes = |regions: u64| ByteCount(regions * HUGE_PAGE_SIZE);
        let found = cached_pages(&file, bytes(first), bytes(end - first));
        found.map(|found| found.pages)
    };
    let all = cached_pages(&file, ByteCount(0), ByteCount(0)).ok()?.pages;
    let mut counts = BTreeMap::new();
    for part in parts {
        let mut regions = part.regions();
        let Some(first) = regions.next() else {
            continue;
        };
        let last = regions.next_back().unwrap_or(first);
        let number = |region: Region| region.start().0 / HUGE_PAGE_SIZE;
        count(&ask, number(first)..number(last) + 1, &mut counts).ok()?;
    }
    Some((counts, all))
}

/// Returns the pages in memory of the object's region behind `region` of the mapper's address space; `None` if the object cannot be
/// opened or read.
#[must_use]
pub fn cached_region(roots: &Roots, mapper: &Mapper, region: Region) -> Option<CachedPages> {
    let shown = mapper.region_at(region)?;
    let file = file_of(roots, mapper)?;
    let offset = ByteCount(shown.start().0);
    cached_pages(file, offset, ByteCount(HUGE_PAGE_SIZE)).ok()
}

/// Opens the object; `None` if the caller has no permission, or another object is mapped there by now.
///
/// Opens it first with `O_PATH`, which touches nothing: a program may have put a device file there, and opening one may do anything.
fn file_of(roots: &Roots, mapper: &Mapper) -> Option<File> {
    let link = format!("map_files/{}", mapper.range);
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let path = roots.of_process(mapper.process.pid, &link);
    let place = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let about = fstat(&place).ok()?;
    let object = mapper.part.object;
    let is_it = (major(about.st_dev), minor(about.st_dev)) == object.device
        && about.st_ino == object.inode
        && FileType::from_raw_mode(about.st_mode) == FileType::RegularFile;
    if !is_it {
        return None;
    }
    let own = format!("/proc/self/fd/{}", place.as_raw_fd());
    // Does not wait for the holder of a lease on the file.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = rustix::fs::open(own, flags, Mode::empty()).ok()?;
    Some(file.into())
}

/// Counts by region; asks for many regions at a time where all pages are present, or none.
fn count(
    ask: &impl Fn(u64, u64) -> Result<PageCount, Errno>,
    regions: Range<u64>,
    counts: &mut BTreeMap<u64, PageCount>,
) -> Result<(), Errno> {
    const PARTS: u64 = 16;
    let length = regions.end.saturating_sub(regions.start);
    if length == 0 {
        return Ok(());
    }
    let found = ask(regions.start, regions.end)?;
    if found.0 == 0 {
        return Ok(());
    }
    if length == 1 || found.0 >= length * PAGES_PER_REGION {
        let each = PageCount(found.0.div_ceil(length).min(PAGES_PER_REGION));
        counts.extend(regions.map(|number| (number, each)));
        return Ok(());
    }
    let step = length.div_ceil(PARTS);
    let mut at = regions.start;
    while at < regions.end {
        let next = (at + step).min(regions.end);
        count(ask, at..next, counts)?;
        at = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn object() -> ObjectId {
        ObjectId {
            device: (0, 1),
            inode: 1,
        }
    }

    fn mapper(start: u64, length: u64, offset: u64) -> Mapper {
        Mapper {
            process: ProcessId {
                pid: 1,
                start_ticks: 1,
            },
            range: VirtRange::new(VirtAddr(start), VirtAddr(start + length)).unwrap(),
            part: ObjectPart {
                object: object(),
                offset,
            },
            is_file: false,
        }
    }

    #[test]
    fn a_region_is_where_all_of_it_is_mapped_aligned() {
        let at = |mapper: Mapper, number: u64| {
            let found = mapper.region_of(Region::containing(VirtAddr(number * 2 * MIB)));
            if let Some(there) = found {
                let back = mapper.region_at(there).unwrap();
                assert_eq!(back.start().0, number * 2 * MIB);
            }
            found.map(|region| region.start().0 / MIB)
        };
        let whole = mapper(64 * MIB, 8 * MIB, 0);
        assert_eq!(
            (at(whole, 0), at(whole, 3), at(whole, 4)),
            (Some(64), Some(70), None)
        );
        let later = mapper(65 * MIB, 6 * MIB, 3 * MIB);
        assert_eq!(
            (at(later, 1), at(later, 2), at(later, 3)),
            (None, Some(66), Some(68))
        );
        assert_eq!(at(later, 4), None);
        assert_eq!(at(mapper(65 * MIB, 6 * MIB, 0), 1), None, "misaligned");
    }

    #[test]
    fn ranges_that_touch_stay_apart() {
        let range = |a, b| VirtRange::new(VirtAddr(a), VirtAddr(b)).unwrap();
        let union = merged(vec![range(5, 9), range(0, 3), range(2, 4), range(4, 5)]);
        assert_eq!(union, [range(0, 4), range(4, 5), range(5, 9)]);
    }

    proptest! {
        #[test]
        fn counting_many_at_a_time_comes_to_the_same(
            pages in proptest::collection::vec(prop_oneof![Just(0), Just(512), 0..513_u64], 0..90),
            from in 0..20_u64,
        ) {
            let ask = |first: u64, end: u64| {
                let these = pages.iter().skip(first as usize).take((end - first) as usize);
                Ok(PageCount(these.sum()))
            };
            let mut counts = BTreeMap::new();
            count(&ask, from..pages.len() as u64, &mut counts).unwrap();
            for (number, &resident) in (0..).zip(&pages) {
                let expected = (number >= from && resident > 0).then_some(PageCount(resident));
                prop_assert_eq!(counts.get(&number).copied(), expected);
            }
        }
    }
}
