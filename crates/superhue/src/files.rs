//! Check whether a region of a mapped file may be collapsed: only a region that is in memory in full and written to the disk.
//!
//! The kernel collapses clean pages of a file. It first writes dirty pages and waits for the disk, and it reads missing pages (`collapse_file`,
//! `collapse_single_pmd` in `mm/khugepaged.c`). The program has requested neither. So Superhue asks the page cache right before each collapse
//! (`cachestat(2)`), and where it may not ask, it does nothing.

use superhue_act::Target;
use superhue_model::{PAGES_PER_REGION, SkipReason, VmaKind};
use superhue_procfs::Roots;
use superhue_procfs::process::{Mapper, cached_region, maps};
use superhue_sys::collapse::collapses_files;

/// Returns the objection to the collapse of `target` if it is a file.
pub(crate) fn objection(roots: &Roots, target: &Target) -> Option<SkipReason> {
    let object = target.object?;
    if !collapses_files() {
        return None;
    }
    let region = target.region.range();
    // The collapse itself reports a process that is gone.
    let maps = maps(roots, target.process.pid).ok()?;
    let vma = maps.into_iter().find(|vma| vma.range.contains(&region))?;
    let VmaKind::File(part) = vma.kind else {
        return None;
    };
    let mapper = Mapper {
        process: target.process,
        range: vma.range,
        part,
        is_file: true,
    };
    // The file was mapped anew since the look.
    if part.object != object {
        return Some(SkipReason::Unmapped);
    }
    match cached_region(roots, &mapper, target.region) {
        Some(cached) if cached.unwritten.0 > 0 => Some(SkipReason::NotWritten),
        Some(cached) if cached.pages.0 < PAGES_PER_REGION => Some(SkipReason::GivenBack),
        Some(_) => None,
        None => Some(SkipReason::NotWritten),
    }
}
