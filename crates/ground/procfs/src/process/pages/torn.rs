//! Huge pages of which the program has given back a part (`MADV_DONTNEED`, `munmap(2)`).
//!
//! The kernel maps what is left by base pages and keeps the huge page whole, in case its parts are wanted no more or memory is short
//! (`deferred_split_folio` in `mm/huge_memory.c`). Until it is split, all of it is charged.
//!
//! ```text
//!   pagemap      which frame does each page of a 2 MiB window have?
//!   kpageflags   does it belong to a folio of 512 pages?                 head at its first frame, tail in its middle
//!   fewer than 512 of these are mapped: torn
//! ```
//!
//! A page of such a folio lies in the frame of its own number: a huge page that was moved by `mremap(2)` to an address of another number
//! is not found.

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

/// Mappings of which edges are looked at, at most: a process with more maps mostly small things.
const MOST_MAPPINGS: usize = 4096;

/// Finds torn huge pages by the flags of frames. Needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct TornPages {
    flags: PageFlagsFile,
}

impl TornPages {
    /// Opens the flags of frames; `None` where they, or the numbers of frames, are not shown to the caller.
    #[must_use]
    pub fn new(roots: &Roots) -> Option<Self> {
        let flags = PageFlagsFile::open(roots).ok()?;
        let here = [1_u8; 8];
        let at = (std::hint::black_box(&here).as_ptr().addr() as u64 >> BASE_PAGE_SHIFT) * WORD;
        let mut word = [0; WORD as usize];
        let pagemap = File::open(roots.proc.join("self/pagemap")).ok()?;
        pagemap.read_exact_at(&mut word, at).ok()?;
        // Without CAP_SYS_ADMIN all numbers read as zero.
        page_words(&word).next()?.frame()?;
        Some(Self { flags })
    }

    /// Windows of 2 MiB in which torn huge pages may be: regions that no huge page maps, and windows that mappings cover in part.
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

    /// Those in `windows`.
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
                // One that others map as well since a fork is not split for one of them.
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

    /// Whether a frame belongs to a folio of 512 pages.
    fn is_huge(&self, frame: Pfn) -> Result<bool, ReadError> {
        let first = Pfn(block_of(frame) * PAGES_PER_REGION);
        let middle = Pfn(first.0 + PAGES_PER_REGION / 2);
        let is_head = self.flags.of(first)?.is_some_and(|flags| flags.is_head());
        Ok(is_head && self.flags.of(middle)?.is_some_and(|flags| flags.is_tail()))
    }
}

/// The number of the 2 MiB of physical memory that a frame lies in.
const fn block_of(frame: Pfn) -> u64 {
    frame.0 >> (HUGE_PAGE_SHIFT - BASE_PAGE_SHIFT)
}
