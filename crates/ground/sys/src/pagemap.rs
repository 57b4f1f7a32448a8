//! `ioctl(PAGEMAP_SCAN)`: page-table contents of a process as ranges, in one call (Linux 6.7).
//!
//! See `Documentation/admin-guide/mm/pagemap.rst` and `ioctl_pagemap_scan(2)`.

use std::ffi::c_void;
use std::mem::size_of;
use std::os::fd::AsFd;

use rustix::io::{Errno, pread};
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use superhue_model::{
    BASE_PAGE_SHIFT, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, Region, VirtAddr, VirtRange,
};

/// The page belongs to a file, or to memory shared between processes (`PAGE_IS_FILE`).
pub const PAGE_IS_FILE: u64 = 1 << 2;
/// A present entry maps the page (`PAGE_IS_PRESENT`).
pub const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The page is swapped out, or its entry holds another mark in place of a page (`PAGE_IS_SWAPPED`).
pub const PAGE_IS_SWAPPED: u64 = 1 << 4;
/// The page is the shared zero page (`PAGE_IS_PFNZERO`).
pub const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// A huge entry maps the page (`PAGE_IS_HUGE`).
pub const PAGE_IS_HUGE: u64 = 1 << 6;
/// A guard page lies there (`PAGE_IS_GUARD`, Linux 6.15).
pub const PAGE_IS_GUARD: u64 = 1 << 8;

/// In a word of `pagemap`: a present entry maps the page.
pub const WORD_PRESENT: u64 = 1 << 63;
/// In a word of `pagemap`: the page is swapped out, or being moved.
pub const WORD_SWAPPED: u64 = 1 << 62;
/// In a word of `pagemap`: the page belongs to a file or to shared memory.
pub const WORD_FILE: u64 = 1 << 61;
/// In a word of `pagemap`: a guard page lies there (`PM_GUARD_REGION`, Linux 6.15).
pub const WORD_GUARDED: u64 = 1 << 58;
/// In a word of `pagemap`: no other process maps the page (Linux 4.2). Never set for the shared zero page.
pub const WORD_EXCLUSIVE: u64 = 1 << 56;

/// Returns true if a word of `pagemap` is no hole: the page is in memory, in swap, or guarded.
#[must_use]
pub const fn is_occupied(word: u64) -> bool {
    word & (WORD_PRESENT | WORD_SWAPPED | WORD_GUARDED) != 0
}

/// `struct page_region` of `linux/fs.h`: pages with equal categories, `[start, end)` in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PageRegion {
    /// First byte.
    pub start: u64,
    /// First byte after the last page.
    pub end: u64,
    /// `PAGE_IS_*` bits, only those that the caller requested.
    pub categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24);
const _: () = assert!(size_of::<PmScanArg>() == 96);

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: Opcode = opcode::read_write::<PmScanArg>(b'f', 16);

/// The call in the form that rustix needs.
struct Scan<'a>(&'a mut PmScanArg);

// SAFETY: the opcode is that of `PmScanArg`, whose layout is asserted above; the kernel reads and writes
// it through the exclusive reference.
unsafe impl Ioctl for Scan<'_> {
    /// Number of runs found.
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<usize, Errno> {
        Ok(usize::try_from(out).unwrap_or(0))
    }
}

/// Fills `found` with the runs of pages in `range` that have every category of `wanted`, each with
/// those of `reported` that hold.
///
/// Returns the number of runs found and the address where the walk stopped; below `range.end` when
/// `found` was full. `pagemap` is an open `/proc/PID/pagemap`.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; `EFAULT`, `EINVAL` for a range outside user space; `EINTR`.
pub fn pagemap_scan(
    pagemap: impl AsFd,
    range: VirtRange,
    wanted: u64,
    reported: u64,
    found: &mut [PageRegion],
) -> Result<(usize, VirtAddr), Errno> {
    let wanted = PmScanArg {
        category_mask: wanted,
        return_mask: reported,
        ..PmScanArg::default()
    };
    scan(pagemap, range, wanted, found)
}

/// Pages that a walk reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageCategories {
    /// Pages that have all of these categories (`PAGE_IS_*`).
    All(u64),
    /// Pages that have at least one of these; the run reports which.
    Any(u64),
}

/// Wanted pages that one call finds at most: 256 MiB, some 2 ms in base pages.
const PAGES_AT_ONCE: u64 = 65_536;

/// Calls `each` with the runs of wanted pages in `range`, ascending, until it returns false. Each run has the categories of `told` that
/// hold. `runs` is scratch space; its length limits the runs read from the kernel at a time.
///
/// The call reports runs until its vector is full, and returns in `walk_end` where it stopped. That address cannot be trusted alone. The
/// kernel collects runs in a buffer of 512, notes the address each time the buffer is full, and after a complete walk leaves
/// the note as it was (`do_pagemap_scan` in `fs/proc/task_mmu.c`, seen on 6.18). A caller that continues there gets the same pages
/// twice. So a vector that is not full ends the walk, and after a full one the walk continues behind the last run.
///
/// The kernel holds `mmap_lock` for reading until it has found 512 runs. A range of equal pages would keep the process from mapping memory for
/// 8 ms in each GiB, so a call ends after 256 MiB of wanted pages (`max_pages`). A long run then comes in parts, which end with regions.
///
/// # Errors
/// As for [`pagemap_scan`].
pub fn for_each_run(
    pagemap: impl AsFd,
    range: VirtRange,
    wanted: PageCategories,
    told: u64,
    runs: &mut [PageRegion],
    mut each: impl FnMut(&PageRegion) -> bool,
) -> Result<(), Errno> {
    let (all, any, told) = match wanted {
        PageCategories::All(all) => (all, 0, told),
        PageCategories::Any(any) => (0, any, any | told),
    };
    let mut rest = range;
    while !rest.is_empty() {
        let masks = PmScanArg {
            category_mask: all,
            category_anyof_mask: any,
            return_mask: told,
            max_pages: PAGES_AT_ONCE,
            ..PmScanArg::default()
        };
        let (count, stopped) = scan(&pagemap, rest, masks, runs)?;
        let is_full = count == runs.len();
        let found = runs.get(..count).unwrap_or_default();
        let reported = found.last().map_or(rest.start, |run| VirtAddr(run.end));
        let pages: u64 = found
            .iter()
            .map(|run| (run.end - run.start) >> BASE_PAGE_SHIFT)
            .sum();
        let mut next = reported.max(stopped);
        let has_all = pages >= PAGES_AT_ONCE;
        if has_all {
            // The call may have ended within a huge page.
            let whole = VirtAddr(reported.0 & !(HUGE_PAGE_SIZE - 1));
            next = if whole > rest.start { whole } else { reported };
        }
        let parts = found.iter().filter(|run| run.start < next.0);
        let mut parts = parts.map(|run| PageRegion {
            end: run.end.min(next.0),
            ..*run
        });
        if !parts.all(|run| each(&run)) {
            break;
        }
        // A walk that stops where it began would never end.
        if !(is_full || has_all) || next <= rest.start {
            break;
        }
        rest.start = next;
    }
    Ok(())
}

/// Scans for the pages that the masks of `wanted` select.
fn scan(
    pagemap: impl AsFd,
    range: VirtRange,
    wanted: PmScanArg,
    found: &mut [PageRegion],
) -> Result<(usize, VirtAddr), Errno> {
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        start: range.start.0,
        end: range.end.0,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        ..wanted
    };
    // SAFETY: `arg` names `found`, of which the kernel writes at most `vec_len` entries; both outlive the
    // call.
    let count = unsafe { ioctl(pagemap, Scan(&mut arg))? };
    Ok((count.min(found.len()), VirtAddr(arg.walk_end)))
}

/// Returns the number of pages of `region` that other processes map as well: a collapse would copy them although the old ones stay in
/// use. Counts anonymous pages only, without the zero page: replacing that copies nothing that another process keeps.
///
/// Reads the words of `pagemap`, an open `/proc/PID/pagemap`: 4 KiB.
///
/// # Errors
/// `EIO` if fewer words can be read; those of reading them and of [`pagemap_scan`].
pub fn shared_pages(pagemap: impl AsFd, region: Region) -> Result<PageCount, Errno> {
    const PAGES: usize = PAGES_PER_REGION as usize;
    let mut words = [0; 8 * PAGES];
    let at = (region.start().0 >> BASE_PAGE_SHIFT) * 8;
    let mut filled = 0;
    while let Some(rest) = words.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match pread(&pagemap, rest, at + filled as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let words = words.as_chunks().0.iter();
    let is_shared = |word: &u64| word & (WORD_PRESENT | WORD_FILE | WORD_EXCLUSIVE) == WORD_PRESENT;
    let shared = words
        .map(|word| u64::from_ne_bytes(*word))
        .filter(is_shared)
        .count() as u64;
    if shared == 0 {
        return Ok(PageCount(0));
    }
    // At worst every page is a run.
    let mut runs = [PageRegion::default(); PAGES];
    let wanted = PAGE_IS_PRESENT | PAGE_IS_PFNZERO;
    let zeroes = match pagemap_scan(pagemap, region.range(), wanted, wanted, &mut runs) {
        Ok((count, _)) => {
            let runs = runs.iter().take(count);
            runs.map(|run| (run.end - run.start) >> BASE_PAGE_SHIFT)
                .sum()
        }
        // Linux before 6.7 does not show zero pages.
        Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno),
    };
    Ok(PageCount(shared.saturating_sub(zeroes)))
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use superhue_model::BASE_PAGE_SIZE;

    use super::*;
    use crate::scratch::Scratch;

    /// Ends a test where the kernel has no `PAGEMAP_SCAN`.
    fn walk(range: VirtRange, runs: &mut [PageRegion]) -> Option<Vec<(u64, u64)>> {
        let pagemap = File::open("/proc/self/pagemap").unwrap();
        let mut found = Vec::new();
        let wanted = PageCategories::All(PAGE_IS_PRESENT);
        let walked = for_each_run(&pagemap, range, wanted, 0, runs, |run| {
            found.push((run.start, run.end));
            true
        });
        match walked {
            Ok(()) => Some(found),
            Err(Errno::NOTTY | Errno::INVAL) => {
                superhue_testing::skip("pagemap-scan", "PAGEMAP_SCAN needs Linux 6.7");
                None
            }
            Err(errno) => panic!("{errno}"),
        }
    }

    #[test]
    fn a_long_run_is_walked_in_parts_and_to_its_end() {
        let pages = 2 * PAGES_AT_ONCE + 700;
        let length = (pages << BASE_PAGE_SHIFT).next_multiple_of(HUGE_PAGE_SIZE);
        let mut scratch = Scratch::untouched(usize::try_from(length).unwrap()).unwrap();
        let range = scratch.range();
        scratch.map_by_base_pages().unwrap();
        assert_eq!(scratch.peek_lines(), 0);
        for most in [1, 2, 100] {
            let mut runs = vec![PageRegion::default(); most];
            for start in [range.start.0, range.start.0 + BASE_PAGE_SIZE] {
                let part = VirtRange {
                    start: VirtAddr(start),
                    end: range.end,
                };
                let Some(found) = walk(part, &mut runs) else {
                    return;
                };
                assert!(found.len() >= 2, "{found:x?}");
                assert_eq!(found[0].0, start);
                assert_eq!(found.last().unwrap().1, range.end.0);
                for two in found.windows(2) {
                    assert_eq!(two[0].1, two[1].0, "{found:x?}");
                    assert_eq!(two[0].1 % HUGE_PAGE_SIZE, 0, "{found:x?}");
                }
            }
        }
    }

    #[test]
    fn gaps_are_walked_in_one_call() {
        // Nothing but a few pages of it is in memory.
        let length = 64 << 30;
        let mut scratch = Scratch::untouched(length).unwrap();
        let start = scratch.range().start.0;
        let pages = [0, 1, 70_000, length / 8192, length / 4096 - 1];
        for page in pages {
            scratch.touch_page(page);
        }
        for most in [1, 2, 100] {
            let mut runs = vec![PageRegion::default(); most];
            let Some(found) = walk(scratch.range(), &mut runs) else {
                return;
            };
            let held = |page: usize| start + 4096 * page as u64;
            let all = found
                .iter()
                .flat_map(|(first, end)| (*first..*end).step_by(4096));
            assert!(all.eq(pages.map(held)), "{found:x?}");
        }
    }
}
