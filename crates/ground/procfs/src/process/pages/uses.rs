//! Use of each aligned 2 MiB window of each VMA, whatever backs it: for explaining why memory is not huge.
//!
//! Unlike the regions of policies, windows may be cut by the ends of their VMA, and every kind of memory has them. So
//! every resident page is in one of them:
//!
//! ```text
//!   VMA          |----------------------------------|------------|      two VMAs that touch
//!   windows      [head][  whole  ][  whole  ][ tail ][head][tail]       the middle window is two
//! ```

use std::fs::File;
use std::io;

use rustix::io::Errno;
use superhue_model::{
    BASE_PAGE_SHIFT, BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount,
    Region, VirtAddr, VirtRange,
};
use superhue_sys::pagemap::{
    PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PAGE_IS_SWAPPED, PageCategories, PageRegion,
    for_each_run,
};

use super::super::smaps::{MemoryUse, VmaUse};
use super::words::{CHUNK, SPARSE, WORD, page_words, read_up_to};

/// Start of the kernel's half of the address space; `[vsyscall]` lies there, and cannot be scanned.
const KERNEL_HALF: VirtAddr = VirtAddr(1 << 63);

/// The part of one VMA in one aligned 2 MiB window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowUse {
    /// Index of the VMA in the list.
    pub vma: usize,
    /// Aligned 2 MiB window.
    pub region: Region,
    /// Present pages of this VMA in the window, without the shared zero page.
    pub resident: PageCount,
    /// Pages of this VMA in the window that are swapped out.
    pub swapped: PageCount,
    /// True if one entry of the page table maps the whole window.
    pub huge: bool,
}

/// Returns the windows of `vmas`, by `PAGEMAP_SCAN`. `runs` is scratch space.
pub(super) fn scanned(
    pagemap: &File,
    vmas: &[VmaUse],
    runs: &mut [PageRegion],
) -> Result<Vec<WindowUse>, Errno> {
    let mut tally = UseCounts::new(vmas);
    let mut users = vmas
        .iter()
        .filter(|vma| vma.vma.range.start < KERNEL_HALF)
        .map(|vma| vma.vma.range);
    let (Some(first), Some(last)) = (users.clone().next(), users.next_back()) else {
        return Ok(Vec::new());
    };
    // Empty parts of the page table cost nothing, so one walk covers all VMAs.
    let range = VirtRange {
        start: first.start,
        end: last.end,
    };
    let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
    let used = PageCategories::Any(PAGE_IS_PRESENT | PAGE_IS_SWAPPED);
    for_each_run(pagemap, range, used, told, runs, |run| {
        tally.add(run);
        true
    })?;
    Ok(tally.windows)
}

/// Sums of runs, which come in ascending order, by window.
struct UseCounts<'a> {
    vmas: &'a [VmaUse],
    /// First VMA that a later run can reach.
    at: usize,
    windows: Vec<WindowUse>,
}

impl<'a> UseCounts<'a> {
    fn new(vmas: &'a [VmaUse]) -> Self {
        Self {
            vmas,
            at: 0,
            windows: Vec::new(),
        }
    }

    /// Counts the parts of a run that lie in a VMA. The kernel merges equal neighbours into one run, even across VMAs.
    fn add(&mut self, run: &PageRegion) {
        let is_zero = run.categories & PAGE_IS_PFNZERO != 0;
        let present = run.categories & PAGE_IS_PRESENT != 0 && !is_zero;
        let swapped = run.categories & PAGE_IS_SWAPPED != 0;
        let huge = present && run.categories & PAGE_IS_HUGE != 0;
        while let Some(vma) = self.vmas.get(self.at) {
            let here = vma.vma.range;
            let (start, end) = (VirtAddr(run.start), VirtAddr(run.end));
            let part = VirtRange::new(start.max(here.start), end.min(here.end));
            // Entries that are not present may hold other marks (guard pages); then no page is swapped out.
            let swapped = swapped && vma.memory.swap != Some(ByteCount(0));
            if let Some(part) = part.filter(|_| present || swapped) {
                self.add_within(part, present, huge);
            }
            if here.end > end {
                return;
            }
            self.at += 1;
        }
    }

    /// Counts the pages of `range`, which lies in the VMA at index `at`.
    fn add_within(&mut self, range: VirtRange, present: bool, huge: bool) {
        for (region, piece) in range.cut() {
            let pages = piece.len().whole_pages();
            let window = window_of(&mut self.windows, self.at, region);
            if present {
                window.resident += pages;
                window.huge |= huge;
            } else {
                window.swapped += pages;
            }
        }
    }
}

/// Returns the last window of the list if it is this one, else a new one behind it.
fn window_of(windows: &mut Vec<WindowUse>, vma: usize, region: Region) -> &mut WindowUse {
    let is_last = windows
        .last()
        .is_some_and(|last| (last.vma, last.region) == (vma, region));
    if !is_last {
        windows.push(WindowUse {
            vma,
            region,
            resident: PageCount(0),
            swapped: PageCount(0),
            huge: false,
        });
    }
    let last = windows.len() - 1;
    &mut windows[last]
}

/// Returns the windows of `vmas`, by the words of `/proc/PID/pagemap` and the values of `smaps`.
pub(super) fn read(pagemap: &File, vmas: &[VmaUse]) -> io::Result<Vec<WindowUse>> {
    let mut windows = Vec::new();
    let mut buffer = vec![0; CHUNK];
    for (place, vma) in vmas.iter().enumerate() {
        let is_hugetlb = vma
            .kernel_page_size
            .is_some_and(|size| size.0 > BASE_PAGE_SIZE);
        let is_empty = |size| size == Some(ByteCount(0));
        let MemoryUse { rss, swap, .. } = vma.memory;
        let has_nothing = is_empty(rss) && is_empty(swap) && !is_hugetlb;
        if has_nothing || vma.vma.range.start >= KERNEL_HALF {
            continue;
        }
        let first = windows.len();
        let common = read_one(pagemap, place, vma, &mut buffer, &mut windows)?;
        conclude(vma, &mut windows[first..], &common);
    }
    windows.retain(|window| window.resident.0 > 0 || window.swapped.0 > 0);
    Ok(windows)
}

/// Counts the pages of one VMA. Returns for each new window the number of pages that other processes map as well, or that are the zero page.
fn read_one(
    pagemap: &File,
    place: usize,
    vma: &VmaUse,
    buffer: &mut [u8],
    windows: &mut Vec<WindowUse>,
) -> io::Result<Vec<u64>> {
    let first = windows.len();
    let range = vma.vma.range;
    let pages = |size: Option<ByteCount>| size.map(|size| size.whole_pages().0);
    let (rss, swap) = (pages(vma.memory.rss), pages(vma.memory.swap));
    let mut common: Vec<u64> = Vec::new();
    let (mut own, mut swapped) = (0, 0);
    let mut at = range.start.0;
    while at < range.end.0 {
        let words = (range.end.0 - at) >> BASE_PAGE_SHIFT;
        let bytes = usize::try_from(words * WORD).unwrap_or(usize::MAX);
        let chunk = &mut buffer[..bytes.min(CHUNK)];
        let wanted = chunk.len();
        let count = read_up_to(pagemap, chunk, (at >> BASE_PAGE_SHIFT) * WORD)?;
        for (page, word) in page_words(&chunk[..count]).enumerate() {
            let is_swapped = word.is_swapped() && swap != Some(0);
            if !word.is_present() && !is_swapped {
                continue;
            }
            let address = VirtAddr(at + ((page as u64) << BASE_PAGE_SHIFT));
            let window = window_of(windows, place, Region::containing(address));
            if word.is_present() {
                window.resident += PageCount(1);
            } else {
                window.swapped += PageCount(1);
                swapped += 1;
            }
            common.resize(windows.len() - first, 0);
            let is_common = word.is_present() && !word.is_exclusive() && !word.is_file();
            if let Some(last) = common.last_mut().filter(|_| is_common) {
                *last += 1;
            } else if word.is_present() {
                own += 1;
            }
        }
        let found_all =
            rss.is_some_and(|rss| own >= rss) && swap.is_some_and(|swap| swapped >= swap);
        if count < wanted || (found_all && range.len() >= SPARSE) {
            break;
        }
        at += wanted as u64 / WORD * BASE_PAGE_SIZE;
    }
    Ok(common)
}

/// Subtracts the zero pages if `Rss` shows them, and marks as many windows huge as `smaps` has huge bytes (see `words.rs`).
fn conclude(vma: &VmaUse, windows: &mut [WindowUse], common: &[u64]) {
    let present: u64 = windows.iter().map(|window| window.resident.0).sum();
    let beyond_rss = vma
        .memory
        .rss
        .and_then(|rss| present.checked_sub(rss.whole_pages().0));
    if beyond_rss == Some(common.iter().sum()) {
        for (window, &zeroes) in windows.iter_mut().zip(common) {
            window.resident = window.resident - PageCount(zeroes);
        }
    }
    let huge = [
        vma.memory.anon_huge,
        vma.memory.shmem_huge,
        vma.memory.file_huge,
    ];
    let huge: ByteCount = huge.into_iter().flatten().sum();
    let count = usize::try_from(huge.0 / HUGE_PAGE_SIZE).unwrap_or(usize::MAX);
    let full = windows
        .iter_mut()
        .filter(|window| window.resident.0 == PAGES_PER_REGION);
    for window in full.take(count) {
        window.huge = true;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use proptest::prelude::*;
    use superhue_model::{ObjectId, ObjectPart, Vma, VmaKind};

    use super::*;

    const PRESENT: u64 = 1 << 63;
    const EXCLUSIVE: u64 = PRESENT | 1 << 56;
    const SWAPPED: u64 = 1 << 62;

    fn vma(first: u64, end: u64, memory: MemoryUse) -> VmaUse {
        let at = |page| VirtAddr(page * BASE_PAGE_SIZE);
        VmaUse {
            vma: Vma {
                range: VirtRange::new(at(first), at(end)).unwrap(),
                kind: VmaKind::Anonymous,
                writable: true,
            },
            name: None,
            part: ObjectPart {
                object: ObjectId {
                    device: (0, 0),
                    inode: 0,
                },
                offset: 0,
            },
            memory,
            kernel_page_size: None,
            mmu_page_size: None,
            thp_eligible: None,
            flags: None,
        }
    }

    fn memory(rss: u64, swap: u64, huge: u64) -> MemoryUse {
        let pages = |count| Some(PageCount(count).bytes());
        MemoryUse {
            rss: pages(rss),
            swap: pages(swap),
            anon_huge: pages(huge),
            ..MemoryUse::default()
        }
    }

    fn short(windows: &[WindowUse]) -> Vec<(usize, u64, u64, u64, bool)> {
        windows
            .iter()
            .map(|window| {
                (
                    window.vma,
                    window.region.start().0 / HUGE_PAGE_SIZE,
                    window.resident.0,
                    window.swapped.0,
                    window.huge,
                )
            })
            .collect()
    }

    fn run(first: u64, end: u64, categories: u64) -> PageRegion {
        PageRegion {
            start: first * BASE_PAGE_SIZE,
            end: end * BASE_PAGE_SIZE,
            categories,
        }
    }

    #[test]
    fn runs_are_cut_at_vmas_and_windows() {
        let vmas = [
            vma(500, 1030, memory(1, 1, 0)),
            vma(1030, 1040, memory(1, 0, 0)),
        ];
        let mut tally = UseCounts::new(&vmas);
        tally.add(&run(0, 400, PAGE_IS_PRESENT));
        tally.add(&run(510, 514, PAGE_IS_PRESENT));
        tally.add(&run(514, 520, PAGE_IS_PRESENT | PAGE_IS_PFNZERO));
        tally.add(&run(520, 522, PAGE_IS_SWAPPED));
        tally.add(&run(1028, 1032, PAGE_IS_PRESENT));
        // A guard mark: no page of this VMA is swapped out.
        tally.add(&run(1032, 1036, PAGE_IS_SWAPPED));
        assert_eq!(
            short(&tally.windows),
            [
                (0, 0, 2, 0, false),
                (0, 1, 2, 2, false),
                (0, 2, 2, 0, false),
                (1, 2, 2, 0, false)
            ]
        );
    }

    #[test]
    fn words_say_the_same_as_far_as_they_can() {
        let file = tempfile::tempfile().unwrap();
        let put = |page: u64, word: u64| {
            file.write_all_at(&word.to_ne_bytes(), page * WORD).unwrap();
        };
        for page in 512..1536 {
            put(page, EXCLUSIVE);
        }
        put(3, PRESENT);
        put(5, EXCLUSIVE);
        put(6, SWAPPED);
        let vmas = [
            vma(2, 1536, memory(1025, 1, 512)),
            vma(1536, 1600, memory(0, 0, 0)),
        ];
        assert_eq!(
            short(&read(&file, &vmas).unwrap()),
            [
                (0, 0, 1, 1, false),
                (0, 1, 512, 0, true),
                (0, 2, 512, 0, false)
            ]
        );
    }

    proptest! {
        /// For any layout of VMAs and runs, every present page of a VMA counts once.
        #[test]
        fn every_page_counts_once(
            areas in proptest::collection::vec((0..700_u64, 1..1500_u64), 1..8),
            pages in proptest::collection::vec((0..4_u64, 1..900_u64), 1..12),
        ) {
            let mut vmas = Vec::new();
            let mut at = 0;
            for (gap, length) in areas {
                vmas.push(vma(at + gap, at + gap + length, memory(1, 1, 0)));
                at += gap + length;
            }
            let mut tally = UseCounts::new(&vmas);
            let mut expected = 0;
            let mut at = 0;
            for (kind, length) in pages {
                let end = at + length;
                if kind > 0 {
                    let categories = if kind == 3 { PAGE_IS_SWAPPED } else { PAGE_IS_PRESENT };
                    tally.add(&run(at, end, categories));
                }
                if kind == 1 || kind == 2 {
                    let inside = |vma: &VmaUse| {
                        let range = vma.vma.range;
                        let from = range.start.0.max(at * BASE_PAGE_SIZE);
                        range.end.0.min(end * BASE_PAGE_SIZE).saturating_sub(from)
                    };
                    expected += vmas.iter().map(inside).sum::<u64>();
                }
                at = end;
            }
            let found: PageCount = tally.windows.iter().map(|window| window.resident).sum();
            prop_assert_eq!(found.bytes().0, expected);
            let order = tally.windows.iter().map(|window| (window.vma, window.region));
            prop_assert!(order.is_sorted());
            let most = tally.windows.iter().map(|window| window.resident.0 + window.swapped.0).max();
            prop_assert!(most <= Some(PAGES_PER_REGION));
        }
    }
}
