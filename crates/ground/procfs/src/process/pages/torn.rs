//! Torn huge pages: the program has given back a part of them (`MADV_DONTNEED`, `munmap(2)`).
//!
//! The kernel maps the rest by base pages and keeps the huge page whole until its rest is freed or memory is short
//! (`deferred_split_folio` in `mm/huge_memory.c`). Until the split, the whole huge page is charged.
//!
//! ```text
//!   pagemap      which frame does each page of a 2 MiB window have?
//!   kpageflags   does it belong to a folio of 512 pages?                 head at its first frame, tail in its middle
//!   fewer than 512 of these are mapped: torn
//! ```
//!
//! The code assumes that page N of a 2 MiB window lies in frame N of its folio. It does not find a huge page that `mremap(2)` moved to
//! an address with another N.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;

use superhue_model::{
    BASE_PAGE_SHIFT, HUGE_PAGE_SHIFT, PAGES_PER_REGION, PageCount, Pfn, ProcessId, Region,
    RegionView, TornPage, VirtAddr, Vma, VmaKind,
};

use super::words::{WORD, page_words, region_words};
use crate::system::PageFlagsFile;
use crate::{ReadError, Roots};

/// Maximum number of mappings whose edges are inspected: a process with more of them maps mostly small objects.
const MOST_MAPPINGS: usize = 4096;

/// Finder of torn huge pages, by the flags of page frames. Needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct TornPages {
    flags: PageFlagsFile,
}

impl TornPages {
    /// Opens the flags of page frames; `None` if the caller may not read them, or the frame numbers.
    #[must_use]
    pub fn new(roots: &Roots) -> Option<Self> {
        let flags = PageFlagsFile::open(roots).ok()?;
        let here = [1_u8; 8];
        let at = (std::hint::black_box(&here).as_ptr().addr() as u64 >> BASE_PAGE_SHIFT) * WORD;
        let mut word = [0; WORD as usize];
        let pagemap = File::open(roots.proc.join("self/pagemap")).ok()?;
        pagemap.read_exact_at(&mut word, at).ok()?;
        // Without `CAP_SYS_ADMIN` all frame numbers read as zero.
        page_words(&word).next()?.frame()?;
        Some(Self { flags })
    }

    /// Returns the 2 MiB windows that may hold torn huge pages: regions that no huge page maps, and windows that mappings cover in part.
    #[must_use]
    pub fn windows(vmas: &[Vma], regions: &[RegionView]) -> BTreeSet<Region> {
        let small = regions.iter().filter(|view| view.huge != Some(true));
        let mut found: BTreeSet<Region> = small.map(|view| view.region).collect();
        let private = |vma: &&Vma| matches!(vma.kind, VmaKind::Anonymous | VmaKind::Heap);
        if vmas.len() <= MOST_MAPPINGS {
            for vma in vmas.iter().filter(private) {
                let (first, last) = (vma.range.start, VirtAddr(vma.range.end.0.saturating_sub(1)));
                for window in [Region::containing(first), Region::containing(last)] {
                    if !vma.range.contains(&window.range()) {
                        found.insert(window);
                    }
                }
            }
        }
        found
    }

    /// Returns the torn huge pages in `windows`.
    ///
    /// # Errors
    /// [`ReadError::Vanished`], [`ReadError::Denied`], [`ReadError::Io`].
    pub fn find(
        &self,
        roots: &Roots,
        id: ProcessId,
        windows: impl IntoIterator<Item = Region>,
    ) -> Result<Vec<TornPage>, ReadError> {
        let (path, pagemap) = super::open(roots, id)?;
        let mut found = Vec::new();
        for region in windows {
            let words = region_words(&pagemap, region);
            let words = words.map_err(|error| ReadError::of_process(id.pid, &path, error))?;
            let mapped = |(at, word): (u64, super::PageWord)| {
                let frame = word.frame().filter(|_| !word.is_file())?;
                (frame.0 % PAGES_PER_REGION == at).then_some((frame, word.is_exclusive()))
            };
            let mut mapped: Vec<(Pfn, bool)> = (0..).zip(words).filter_map(mapped).collect();
            mapped.sort_by_key(|(frame, _)| *frame);
            for folio in mapped.chunk_by(|a, b| block_of(a.0) == block_of(b.0)) {
                let Some(&(frame, _)) = folio.first() else {
                    continue;
                };
                let pages = u64::try_from(folio.len()).unwrap_or(u64::MAX);
                // A huge page shared with another process since a fork is not split for one of them.
                let is_ours = folio.iter().all(|(_, exclusive)| *exclusive);
                if pages < PAGES_PER_REGION && is_ours && self.is_huge(frame)? {
                    let held = PageCount(PAGES_PER_REGION - pages);
                    found.push(TornPage { region, held });
                    break;
                }
            }
        }
        Ok(found)
    }

    /// Returns true if a frame belongs to a folio of 512 pages.
    fn is_huge(&self, frame: Pfn) -> Result<bool, ReadError> {
        let first = Pfn(block_of(frame) * PAGES_PER_REGION);
        let middle = Pfn(first.0 + PAGES_PER_REGION / 2);
        let is_head = self.flags.of(first)?.is_some_and(|flags| flags.is_head());
        Ok(is_head && self.flags.of(middle)?.is_some_and(|flags| flags.is_tail()))
    }
}

/// Returns the number of the 2 MiB block of physical memory that holds a frame.
const fn block_of(frame: Pfn) -> u64 {
    frame.0 >> (HUGE_PAGE_SHIFT - BASE_PAGE_SHIFT)
}
