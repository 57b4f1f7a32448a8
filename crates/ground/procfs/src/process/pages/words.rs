//! Counting pages with the words of `/proc/PID/pagemap`, for kernels without `PAGEMAP_SCAN`.
//!
//! A word (`Documentation/admin-guide/mm/pagemap.rst`) shows whether a page is present and whether
//! this process alone maps it. It does not show whether a huge page maps it, nor whether it is the
//! shared zero page. `smaps`, read just before, narrows both down:
//!
//! * **Zero page.** It is present, is never exclusive, and is not part of `Rss`. So if a VMA has
//!   exactly as many pages present beyond its `Rss` as it has pages that are not exclusive, those
//!   pages are zero pages. If it has more that are not exclusive, some are shared with a forked
//!   process. They cannot be distinguished, and all count as resident.
//! * **Huge pages.** Only a region with 512 resident pages can be mapped whole. If a VMA has no
//!   `AnonHugePages`, none is; if it has as many bytes of them as such regions, all are; else
//!   it is not known which.
//!
//! The file is as long as the address space, and reading a hole costs as much as reading pages.
//! `Rss` helps here too: the code does not read a VMA without resident pages, and in a large sparse one
//! it stops when it has seen as many exclusive pages as are resident.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use superhue_model::{
    BASE_PAGE_SHIFT, ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, Pfn, Region,
    RegionView, VirtAddr, VirtRange, Vma,
};
use superhue_sys::pagemap::{WORD_EXCLUSIVE, WORD_FILE, WORD_PRESENT, WORD_SWAPPED};

use crate::{ReadError, Roots};

use super::super::smaps::for_each_use;
use super::windows::window;

/// Bytes in a word.
pub(super) const WORD: u64 = 8;

/// Bytes read at a time: the words of 16 regions.
pub(super) const CHUNK: usize = 16 * (PAGES_PER_REGION * WORD) as usize;

/// Size from which the code leaves a VMA as soon as it has found all resident pages.
pub(super) const SPARSE: ByteCount = ByteCount(1 << 30);

/// One page as `/proc/PID/pagemap` describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageWord(u64);

impl PageWord {
    /// Returns true if a present page-table entry maps it (bit 63).
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & WORD_PRESENT != 0
    }

    /// Returns true if it is swapped out, or being moved (bit 62).
    #[must_use]
    pub const fn is_swapped(self) -> bool {
        self.0 & WORD_SWAPPED != 0
    }

    /// Returns true for a page of a file or of shared memory (bit 61).
    #[must_use]
    pub const fn is_file(self) -> bool {
        self.0 & WORD_FILE != 0
    }

    /// Returns the page frame number (bits 0 to 54); `None` unless present, and for callers without `CAP_SYS_ADMIN`.
    #[must_use]
    pub fn frame(self) -> Option<Pfn> {
        let frame = self.0 & ((1 << 55) - 1);
        (self.is_present() && frame != 0).then_some(Pfn(frame))
    }

    /// Returns true if this process alone maps it (bit 56, Linux 4.2). Always false for the shared zero page.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        self.0 & WORD_EXCLUSIVE != 0
    }
}

/// Splits bytes of `/proc/PID/pagemap` into words, without an incomplete last word.
pub fn page_words(bytes: &[u8]) -> impl Iterator<Item = PageWord> {
    let (words, _) = bytes.as_chunks::<{ WORD as usize }>();
    words.iter().map(|&word| PageWord(u64::from_ne_bytes(word)))
}

/// Reads the words of one region.
pub(super) fn region_words(
    pagemap: &File,
    region: Region,
) -> io::Result<impl Iterator<Item = PageWord>> {
    let mut bytes = [0; (PAGES_PER_REGION * WORD) as usize];
    pagemap.read_exact_at(&mut bytes, (region.start().0 >> BASE_PAGE_SHIFT) * WORD)?;
    let words = (0..PAGES_PER_REGION as usize).map(move |at| {
        let (words, _) = bytes.as_chunks::<{ WORD as usize }>();
        PageWord(u64::from_ne_bytes(
            words.get(at).copied().unwrap_or_default(),
        ))
    });
    Ok(words)
}

/// Values of `smaps` for a VMA.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    range: VirtRange,
    rss: Option<ByteCount>,
    anon_huge: Option<ByteCount>,
}

/// Reads the sizes of the VMAs of `pid` that have a window, ascending; empty if there is no `smaps`.
pub(super) fn sizes(roots: &Roots, pid: u32, vmas: &[Vma]) -> Result<Vec<Sizes>, ReadError> {
    let mut sizes = Vec::new();
    if vmas.iter().all(|vma| window(vma).is_none()) {
        return Ok(sizes);
    }
    let read = for_each_use(roots, pid, |found| {
        if window(&found.vma).is_some() {
            sizes.push(Sizes {
                range: found.vma.range,
                rss: found.memory.rss,
                anon_huge: found.memory.anon_huge,
            });
        }
    });
    match read {
        Ok(()) => Ok(sizes),
        // Without `smaps` less is known; the words themselves still count.
        Err(ReadError::Missing { .. } | ReadError::Denied { .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns the regions of `vmas` with resident pages.
pub(super) fn regions(
    pagemap: &File,
    vmas: &[Vma],
    sizes: &[Sizes],
) -> io::Result<Vec<RegionView>> {
    let mut buffer = vec![0; CHUNK];
    let mut views = Vec::new();
    for vma in vmas {
        let Some(window) = window(vma) else { continue };
        // `smaps` does not count for a VMA that has changed in between.
        let sizes = sizes
            .binary_search_by_key(&vma.range.start, |sizes| sizes.range.start)
            .ok()
            .map(|index| &sizes[index])
            .filter(|sizes| sizes.range == vma.range);
        let rss = sizes
            .and_then(|sizes| sizes.rss)
            .map(ByteCount::whole_pages);
        let anon_huge = sizes.and_then(|sizes| sizes.anon_huge);
        if rss == Some(PageCount(0)) {
            continue;
        }
        let count = Count::of(pagemap, vma.range, rss, &mut buffer)?;
        count.conclude(window, rss, anon_huge, &mut views);
    }
    Ok(views)
}

/// Counts of the pages of one VMA.
#[derive(Debug, Default)]
struct Count {
    present: u64,
    /// Present pages that other processes map too, or that are zero pages.
    shared: u64,
    /// Both counts by region, ascending, without regions that have no present page.
    regions: Vec<(Region, u64, u64)>,
}

impl Count {
    fn of(
        pagemap: &File,
        range: VirtRange,
        rss: Option<PageCount>,
        buffer: &mut [u8],
    ) -> io::Result<Self> {
        let mut count = Self::default();
        let mut at = range.start;
        while at < range.end {
            let words = (range.end.0 - at.0) >> BASE_PAGE_SHIFT;
            let bytes = usize::try_from(words * WORD).unwrap_or(usize::MAX);
            let wanted = bytes.min(buffer.len());
            let chunk = &mut buffer[..wanted];
            let read = read_up_to(pagemap, chunk, (at.0 >> BASE_PAGE_SHIFT) * WORD)?;
            for (page, word) in page_words(&chunk[..read]).enumerate() {
                if word.is_present() {
                    let address = VirtAddr(at.0 + ((page as u64) << BASE_PAGE_SHIFT));
                    count.add(Region::containing(address), word.is_exclusive());
                }
            }
            if read < wanted {
                break;
            }
            at.0 += (wanted as u64 / WORD) << BASE_PAGE_SHIFT;
            let found_all = rss.is_some_and(|rss| count.present - count.shared >= rss.0);
            if found_all && range.len() >= SPARSE {
                break;
            }
        }
        Ok(count)
    }

    fn add(&mut self, region: Region, exclusive: bool) {
        let shared = u64::from(!exclusive);
        self.present += 1;
        self.shared += shared;
        match self.regions.last_mut() {
            Some(last) if last.0 == region => {
                last.1 += 1;
                last.2 += shared;
            }
            _ => self.regions.push((region, 1, shared)),
        }
    }

    /// Applies the rules of the module's description.
    fn conclude(
        self,
        window: VirtRange,
        rss: Option<PageCount>,
        anon_huge: Option<ByteCount>,
        views: &mut Vec<RegionView>,
    ) {
        let beyond_rss = rss.and_then(|rss| self.present.checked_sub(rss.0));
        let shared_are_zero = beyond_rss == Some(self.shared);
        let first = views.len();
        for (region, present, shared) in self.regions {
            let resident = present - if shared_are_zero { shared } else { 0 };
            if resident > 0 && window.contains(&region.range()) {
                views.push(RegionView {
                    region,
                    resident: PageCount(resident),
                    huge: (resident < PAGES_PER_REGION).then_some(false),
                });
            }
        }
        let full = views[first..].iter_mut().filter(|view| view.huge.is_none());
        let full: Vec<_> = full.collect();
        let all = ByteCount((full.len() as u64).saturating_mul(HUGE_PAGE_SIZE));
        let verdict = match anon_huge {
            Some(ByteCount(0)) => Some(false),
            Some(huge) if huge == all => Some(true),
            _ => None,
        };
        for view in full {
            view.huge = verdict;
        }
    }
}

/// Reads until the buffer is full or the file ends. Returns the number of bytes.
pub(super) fn read_up_to(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::VmaKind;

    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = PRESENT | 1 << 56;
    const SWAPPED: u64 = 1 << 62;

    /// Scans a pagemap file of four regions from address 0, and their VMA.
    fn scan(pages: &[(u64, u64)], rss: Option<u64>, huge_regions: Option<u64>) -> Vec<RegionView> {
        let file = tempfile::tempfile().unwrap();
        for &(page, word) in pages {
            file.write_all_at(&word.to_ne_bytes(), page * WORD).unwrap();
        }
        let range = VirtRange::new(VirtAddr(0), VirtAddr(4 * HUGE_PAGE_SIZE)).unwrap();
        let vma = Vma {
            range,
            kind: VmaKind::Anonymous,
            writable: true,
        };
        let sizes = Sizes {
            range,
            rss: rss.map(|pages| PageCount(pages).bytes()),
            anon_huge: huge_regions.map(|regions| ByteCount(regions * HUGE_PAGE_SIZE)),
        };
        regions(&file, &[vma], &[sizes]).unwrap()
    }

    fn short(views: &[RegionView]) -> Vec<(u64, u64, Option<bool>)> {
        views
            .iter()
            .map(|view| {
                (
                    view.region.start().0 / HUGE_PAGE_SIZE,
                    view.resident.0,
                    view.huge,
                )
            })
            .collect()
    }

    fn full(region: u64) -> impl Iterator<Item = (u64, u64)> {
        (region * 512..(region + 1) * 512).map(|page| (page, EXCLUSIVE))
    }

    #[test]
    fn bits_are_where_the_kernel_says() {
        let words: Vec<_> = page_words(&(1_u64 << 63 | 1 << 61).to_ne_bytes()).collect();
        let [word] = words[..] else {
            panic!("one word")
        };
        assert!(word.is_present() && word.is_file());
        assert!(!word.is_swapped() && !word.is_exclusive());
        assert_eq!(page_words(&[0xff; 15]).count(), 1);
    }

    #[test]
    fn swapped_and_absent_pages_are_not_resident() {
        let views = scan(
            &[(0, EXCLUSIVE), (1, SWAPPED), (513, SWAPPED)],
            Some(1),
            Some(0),
        );
        assert_eq!(short(&views), [(0, 1, Some(false))]);
    }

    #[test]
    fn zero_pages_are_told_by_what_rss_lacks() {
        let pages = [(0, EXCLUSIVE), (1, PRESENT), (512, PRESENT), (513, PRESENT)];
        assert_eq!(
            short(&scan(&pages, Some(1), Some(0))),
            [(0, 1, Some(false))]
        );
        // All in RSS: they are shared with a child.
        let shared = [(0, 2, Some(false)), (1, 2, Some(false))];
        assert_eq!(short(&scan(&pages, Some(4), Some(0))), shared);
        // Some of each kind, or nothing known: all count.
        assert_eq!(short(&scan(&pages, Some(2), Some(0))), shared);
        assert_eq!(short(&scan(&pages, None, None)), shared);
    }

    #[test]
    fn huge_mappings_are_told_where_they_can_be() {
        let pages: Vec<_> = full(0).chain(full(2)).chain([(512, EXCLUSIVE)]).collect();
        let with = |huge| short(&scan(&pages, Some(1025), huge));
        let expect = |huge| vec![(0, 512, huge), (1, 1, Some(false)), (2, 512, huge)];
        assert_eq!(with(Some(0)), expect(Some(false)));
        assert_eq!(with(Some(2)), expect(Some(true)));
        assert_eq!(with(Some(1)), expect(None));
        assert_eq!(with(None), expect(None));
    }

    #[test]
    fn a_vma_without_resident_pages_is_not_read() {
        assert_eq!(scan(&[(0, PRESENT)], Some(0), Some(0)), []);
    }

    #[test]
    fn a_sparse_vma_is_left_when_all_has_been_found() {
        let file = tempfile::tempfile().unwrap();
        for page in [0_u64, 1 << 17] {
            file.write_all_at(&EXCLUSIVE.to_ne_bytes(), page * WORD)
                .unwrap();
        }
        let range = VirtRange::new(VirtAddr(0), VirtAddr(SPARSE.0)).unwrap();
        let mut buffer = vec![0; CHUNK];
        let mut present = |rss| {
            Count::of(&file, range, Some(PageCount(rss)), &mut buffer)
                .unwrap()
                .present
        };
        // The second page is behind the first chunk; the code reads that far only while a page is missing.
        assert_eq!(present(1), 1);
        assert_eq!(present(2), 2);
    }
}
