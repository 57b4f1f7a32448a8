//! Which pages of a range could be exchanged.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion, pagemap_scan,
};

use crate::act::own::OwnPages;
use crate::act::placer::page_after;
use crate::act::{Placed, Refusal};

/// Runs found by one call.
const RUNS: usize = 64;

/// Runs of resident base pages from the beginning of `range`, appended to `found`; counts those that are none. Returns where
/// the search ended.
///
/// The shared page of zeroes is no memory of the program's, and is passed over.
pub(super) fn find(
    own: &OwnPages,
    range: VirtRange,
    found: &mut Vec<VirtRange>,
    placed: &mut Placed,
) -> Result<VirtAddr, Errno> {
    let mut runs = [PageRegion::default(); RUNS];
    let reported = PAGE_IS_FILE | PAGE_IS_HUGE | PAGE_IS_PFNZERO;
    let (count, stopped) = pagemap_scan(own, range, PAGE_IS_PRESENT, reported, &mut runs)?;
    for run in runs.iter().take(count) {
        let run_range = VirtRange {
            start: VirtAddr(run.start),
            end: VirtAddr(run.end),
        };
        let pages = run_range.len().0 / BASE_PAGE_SIZE;
        if run.categories & PAGE_IS_FILE != 0 {
            placed.refuse(Refusal::NotAnonymous, pages);
        } else if run.categories & PAGE_IS_HUGE != 0 {
            placed.refuse(Refusal::Superpage, pages);
        } else if run.categories & PAGE_IS_PFNZERO == 0 {
            found.push(run_range);
        }
    }
    // Where the walk stopped is to be trusted only when the vector was full (`do_pagemap_scan`, seen on 6.18).
    let last = runs.last().filter(|_| count == RUNS);
    let reached = last.map_or(range.end, |run| VirtAddr(run.end).max(stopped));
    Ok(reached.max(page_after(range.start, 1)).min(range.end))
}
