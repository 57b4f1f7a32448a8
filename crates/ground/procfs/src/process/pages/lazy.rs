//! Pages that a program has freed lazily (`MADV_FREE`).
//!
//! They stay present until the kernel reclaims them or the program writes to them again, but hold no data in use. A collapse would copy
//! them into the huge page, and the program would stay charged for memory that it has given back.
//!
//! ```text
//!   /proc/vmstat   pglazyfree   pages freed lazily on the whole machine so far          23 us
//!   smaps_rollup   LazyFree     such pages of the process                               walks its page tables
//!   smaps          LazyFree     such pages of each mapping                              likewise
//!   kpageflags                  which pages they are (root alone)                       4 KiB for each region
//! ```
//!
//! If page frames cannot be inspected, all such pages of a mapping may lie in any region of it. The flag of a frame stays after the program
//! has written to the page again, until the kernel looks at it; `smaps` detects the write. So both are upper bounds, and the lower one
//! counts.
//!
//! The kernel marks pages in batches of 31 folios for each CPU, so this code may miss as many.

use std::fs::File;

use superhue_model::{
    ByteCount, PAGES_PER_REGION, PageCount, Pfn, ProcessId, Region, RegionView, VirtRange,
};

use super::super::smaps::{for_each_use, memory_use};
use super::PageWord;
use super::words::region_words;
use crate::system::PageFlagsFile;
use crate::{ReadError, Roots};

/// Maximum number of regions whose frames are inspected in one pass: 8 GiB, some 0.2 s. For other regions only `smaps` counts.
const MOST_LOOKED_UP: usize = 4096;

/// Finder of lazily freed pages.
#[derive(Debug)]
pub struct LazyPages {
    flags: Option<PageFlagsFile>,
}

/// Mapping with lazily freed pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LazyMapping {
    /// Address range.
    pub range: VirtRange,
    /// Number of lazily freed pages in it.
    pub pages: PageCount,
}

impl LazyPages {
    /// Uses the flags of page frames if it may read them, else `smaps` alone.
    #[must_use]
    pub fn new(roots: &Roots) -> Self {
        Self {
            flags: PageFlagsFile::open(roots).ok(),
        }
    }

    /// Returns the mappings of a process with such pages, ascending. Needs ptrace read access.
    ///
    /// # Errors
    /// As for [`memory_use`].
    pub fn mappings(roots: &Roots, id: ProcessId) -> Result<Vec<LazyMapping>, ReadError> {
        let mut found = Vec::new();
        if memory_use(roots, id.pid)?.lazy_free.unwrap_or_default() == ByteCount(0) {
            return Ok(found);
        }
        for_each_use(roots, id.pid, |vma| {
            let pages = vma.memory.lazy_free.unwrap_or_default().whole_pages();
            if pages.0 > 0 {
                let range = vma.vma.range;
                found.push(LazyMapping { range, pages });
            }
        })?;
        Ok(found)
    }

    /// Subtracts such pages from the resident pages in `regions`, and drops regions without any other page.
    ///
    /// # Errors
    /// As for [`PageScanner::regions`](super::PageScanner::regions).
    pub fn take_out(
        &self,
        roots: &Roots,
        id: ProcessId,
        mappings: &[LazyMapping],
        regions: &mut Vec<RegionView>,
    ) -> Result<(), ReadError> {
        if mappings.is_empty() {
            return Ok(());
        }
        let (_, pagemap) = super::open(roots, id)?;
        let mut left = MOST_LOOKED_UP;
        for view in regions.iter_mut().filter(|view| view.huge != Some(true)) {
            let most = most_lazy(mappings, view.region);
            if most.0 == 0 {
                continue;
            }
            let marked = match left {
                0 => None,
                _ => self.marked(&pagemap, view.region),
            };
            left = left.saturating_sub(1);
            let lazy = marked.map_or(most, |marked| marked.min(most));
            view.resident.0 = view.resident.0.saturating_sub(lazy.0);
        }
        regions.retain(|view| view.resident.0 > 0);
        Ok(())
    }

    /// Returns the pages of one region whose frames are marked, an upper bound; `None` if the flags cannot be read.
    ///
    /// # Errors
    /// As for [`PageScanner::regions`](super::PageScanner::regions).
    pub fn marked_in(
        &self,
        roots: &Roots,
        id: ProcessId,
        region: Region,
    ) -> Result<Option<PageCount>, ReadError> {
        if self.flags.is_none() {
            return Ok(None);
        }
        let (_, pagemap) = super::open(roots, id)?;
        Ok(self.marked(&pagemap, region))
    }

    /// Returns the pages of a region whose frames are marked; `None` if the flags cannot be read.
    fn marked(&self, pagemap: &File, region: Region) -> Option<PageCount> {
        let flags = self.flags.as_ref()?;
        let words = region_words(pagemap, region).ok()?;
        let private = words.filter(|word| word.is_present() && !word.is_file());
        let frames: Vec<Pfn> = private.map(PageWord::frame).collect::<Option<_>>()?;
        let mut count = 0;
        for run in frames.chunk_by(|a, b| a.0 + 1 == b.0) {
            let first = run.first().copied().unwrap_or(Pfn(0));
            let flags = flags.of_run(first, run.len()).ok()?;
            let marked = flags.filter(|flags| flags.is_anonymous() && !flags.is_swap_backed());
            // The shared zero page is not anonymous.
            count += u64::try_from(marked.count()).unwrap_or(u64::MAX);
        }
        Some(PageCount(count))
    }
}

/// Returns the maximum number of lazily freed pages in a region, from what is known of the mappings.
#[must_use]
pub fn most_lazy(mappings: &[LazyMapping], region: Region) -> PageCount {
    let range = region.range();
    let holds = |mapping: &&LazyMapping| mapping.range.contains(&range);
    let most = mappings.iter().find(holds).map(|mapping| mapping.pages);
    PageCount(most.unwrap_or_default().0.min(PAGES_PER_REGION))
}
