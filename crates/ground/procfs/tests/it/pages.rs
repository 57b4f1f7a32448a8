//! Tests of both methods of counting pages, on memory whose pages are known.
//!
//! A single test in a process of its own: other tests would allocate in the same VMA and change the counts.

use std::fs;
use std::hint::black_box;

use superhue_model::{
    BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, ProcessId, Region, RegionView,
    VirtAddr, VirtRange,
};
use superhue_procfs::Roots;
use superhue_procfs::process::{
    PageScanner, ScanMethod, WindowUse, identify, maps, memory_use, parse_maps, view, vma_uses,
};
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;
use superhue_testing::{passed_in_own_process, skip};

const HUGE: usize = HUGE_PAGE_SIZE as usize;
const PAGE: usize = BASE_PAGE_SIZE as usize;

/// Zeroed memory that has not been touched. It is so large that the allocator maps it afresh.
struct Memory {
    bytes: Vec<u8>,
    /// Offset of the first whole region.
    first: usize,
}

impl Memory {
    fn new() -> Self {
        let bytes = black_box(vec![0; 64 << 20]);
        let start = bytes.as_ptr().addr();
        Self {
            first: start.next_multiple_of(HUGE) - start,
            bytes,
        }
    }

    fn region(&self, index: usize) -> Region {
        let start = self.bytes.as_ptr().addr() + self.first + index * HUGE;
        Region::containing(VirtAddr(start as u64))
    }

    /// Writes to pages of a region, which makes them resident.
    fn write(&mut self, index: usize, pages: impl Iterator<Item = usize>) {
        for page in pages {
            self.bytes[self.first + index * HUGE + page * PAGE] = 1;
        }
        black_box(&mut self.bytes);
    }

    /// Reads from pages of a region, which maps the shared zero page where no page is present.
    fn read(&self, index: usize, pages: impl Iterator<Item = usize>) {
        for page in pages {
            black_box(black_box(&self.bytes)[self.first + index * HUGE + page * PAGE]);
        }
    }

    /// Returns the regions of `views` that lie in this memory, by index.
    fn own(&self, views: &[RegionView]) -> Vec<(usize, u64, Option<bool>)> {
        let first = self.region(0);
        let base = first.start().0;
        let end = VirtAddr(self.bytes.as_ptr().addr() as u64 + self.bytes.len() as u64);
        let own = VirtRange::new(first.start(), end).unwrap();
        views
            .iter()
            .filter(|view| own.contains(&view.region.range()))
            .map(|view| {
                let index = (view.region.start().0 - base) / HUGE_PAGE_SIZE;
                (index as usize, view.resident.0, view.huge)
            })
            .collect()
    }
}

struct ScanFixture {
    roots: Roots,
    id: ProcessId,
    scan: PageScanner,
    words: PageScanner,
}

impl ScanFixture {
    /// Returns the results of both methods, after checking that they agree: the second may know less about huge
    /// mappings, but no count may differ, and no known mapping.
    fn look(&mut self, memory: &Memory) -> [Vec<(usize, u64, Option<bool>)>; 2] {
        let vmas = maps(&self.roots, self.id.pid).unwrap();
        let by_scan = self.scan.regions(&self.roots, self.id, &vmas).unwrap();
        let by_words = self.words.regions(&self.roots, self.id, &vmas).unwrap();
        assert_eq!(self.words.method(), Some(ScanMethod::PagemapFile));
        let [by_scan, by_words] = [memory.own(&by_scan), memory.own(&by_words)];
        assert_eq!(by_scan.len(), by_words.len());
        for (scan, words) in by_scan.iter().zip(&by_words) {
            assert_eq!((scan.0, scan.1), (words.0, words.1));
            assert!(
                words.2.is_none() || scan.2.is_none() || words.2 == scan.2,
                "{scan:?} {words:?}"
            );
        }
        [by_scan, by_words]
    }
}

#[test]
fn both_methods_find_the_pages_that_are_there() {
    if passed_in_own_process(module_path!(), "both_methods_find_the_pages_that_are_there") {
        return;
    }
    let setting = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if setting
        .as_deref()
        .unwrap_or("[always]")
        .contains("[always]")
    {
        // The first touch of a region would allocate a huge page.
        return skip(
            "base-pages",
            "huge pages are `always` here, or nobody knows",
        );
    }
    let roots = Roots::default();
    let id = identify(&roots, std::process::id()).unwrap();
    let mut looker = ScanFixture {
        roots,
        id,
        scan: PageScanner::new(),
        words: PageScanner::starting_with(ScanMethod::PagemapFile),
    };
    let mut memory = Memory::new();

    // Region 0 is never touched. Base pages, all and some; reads of nothing; both mixed.
    memory.write(1, 0..512);
    memory.write(2, 7..8);
    memory.write(3, (0..512).step_by(2));
    memory.read(4, 0..512);
    memory.write(5, 0..256);
    memory.read(5, 256..512);
    memory.write(6, 0..512);
    memory.write(8, 500..512);
    // First more runs than the kernel's own buffer holds (512), then more than ours holds.
    let scattered = 11..29;
    for index in scattered.clone() {
        memory.write(index, (0..512).step_by(2));
    }
    let base = Some(false);
    let mut expected = vec![
        (1, 512, base),
        (2, 1, base),
        (3, 256, base),
        (5, 256, base),
        (6, 512, base),
        (8, 12, base),
    ];
    expected.extend(scattered.map(|index| (index, 256, base)));
    let [by_scan, by_words] = looker.look(&memory);
    assert_eq!(by_words, expected);
    if looker.scan.method() == Some(ScanMethod::PagemapScan) {
        assert_eq!(by_scan, expected);
    } else {
        skip("pagemap-scan", "the kernel has no PAGEMAP_SCAN (Linux 6.7)");
    }

    windows_agree(&mut looker, &memory);
    collapse_some(&mut looker, &mut memory);
    windows_agree(&mut looker, &memory);
    zero_huge_pages_are_not_resident(&mut looker);
    view_agrees(&mut looker, &memory);
}

/// Checks that both methods find the same pages in the same windows of the memory, and the same number of huge windows.
fn windows_agree(looker: &mut ScanFixture, memory: &Memory) {
    let vmas = vma_uses(&looker.roots, looker.id.pid).unwrap();
    let first = memory.region(0);
    let place = vmas
        .iter()
        .position(|vma| vma.vma.range.contains(&first.range()))
        .unwrap();
    let of = |scanner: &mut PageScanner| {
        let windows = scanner
            .window_uses(&looker.roots, looker.id, &vmas)
            .unwrap();
        let own = windows.into_iter().filter(|window| window.vma == place);
        own.collect::<Vec<WindowUse>>()
    };
    let [by_scan, by_words] = [of(&mut looker.scan), of(&mut looker.words)];
    let pages = |windows: &[WindowUse]| {
        let pages = windows
            .iter()
            .map(|window| (window.region, window.resident, window.swapped));
        pages.collect::<Vec<_>>()
    };
    assert_eq!(pages(&by_scan), pages(&by_words));
    let huge = |windows: &[WindowUse]| windows.iter().filter(|window| window.huge).count();
    assert_eq!(huge(&by_scan), huge(&by_words));
    let rss = vmas[place].memory.rss.unwrap();
    let found: PageCount = by_scan.iter().map(|window| window.resident).sum();
    assert_eq!(found.bytes(), rss);
}

// Makes huge pages from full regions, and from one that is not full.
fn collapse_some(looker: &mut ScanFixture, memory: &mut Memory) {
    for index in [1, 6, 8] {
        if let Err(errno) = own_collapse(memory.region(index)) {
            return skip("collapse", &format!("MADV_COLLAPSE failed: {errno}"));
        }
    }
    let (base, huge) = (Some(false), Some(true));
    let expected = [
        (1, 512, huge),
        (2, 1, base),
        (3, 256, base),
        (5, 256, base),
        (6, 512, huge),
        (8, 512, huge),
    ];
    let before_scattered = |mut found: Vec<_>| {
        found.truncate(expected.len());
        found
    };
    let [by_scan, by_words] = looker.look(memory).map(before_scattered);
    // Every full region is huge-mapped, which AnonHugePages alone proves.
    assert_eq!(by_words, expected);
    if looker.scan.method() == Some(ScanMethod::PagemapScan) {
        assert_eq!(by_scan, expected);
    }

    // One full region is not huge-mapped: now the words cannot show which.
    memory.write(9, 0..512);
    let [by_scan, by_words] = looker.look(memory);
    let of = |found: &[(usize, u64, Option<bool>)]| -> Vec<_> {
        found
            .iter()
            .filter(|view| view.1 == 512)
            .map(|view| (view.0, view.2))
            .collect()
    };
    assert_eq!(of(&by_words), [(1, None), (6, None), (8, None), (9, None)]);
    if looker.scan.method() == Some(ScanMethod::PagemapScan) {
        assert_eq!(of(&by_scan), [(1, huge), (6, huge), (8, huge), (9, base)]);
    }
}

/// Reading advised memory maps the huge zero page.
fn zero_huge_pages_are_not_resident(looker: &mut ScanFixture) {
    let mut scratch = Scratch::untouched(2 * HUGE).unwrap();
    if let Err(errno) = scratch.advise_huge() {
        return skip("huge-pages", &format!("MADV_HUGEPAGE failed: {errno}"));
    }
    assert_eq!(scratch.peek(), 0);
    let first = scratch.region();
    let mut resident = || {
        let vmas = maps(&looker.roots, looker.id.pid).unwrap();
        [&mut looker.scan, &mut looker.words].map(|scanner| {
            let views = scanner.regions(&looker.roots, looker.id, &vmas).unwrap();
            views
                .iter()
                .find(|view| view.region == first)
                .map(|view| view.resident)
        })
    };
    assert_eq!(resident(), [None; 2]);
    scratch.touch();
    let [by_scan, by_words] = resident();
    assert_eq!(by_scan, by_words);
    assert!(by_scan.is_some_and(|pages| pages >= PageCount(1)));
}

/// The view agrees with its parts.
fn view_agrees(looker: &mut ScanFixture, memory: &Memory) {
    let seen = view(&looker.roots, &mut looker.scan, looker.id).unwrap();
    let [by_scan, _] = looker.look(memory);
    assert_eq!(memory.own(&seen.regions), by_scan);
    let text = fs::read(looker.roots.of_process(looker.id.pid, "maps")).unwrap();
    assert_eq!(seen.vmas.len(), parse_maps(&text).unwrap().len());
    assert!(
        seen.regions
            .windows(2)
            .all(|pair| pair[0].region < pair[1].region)
    );
    assert!(
        seen.regions
            .iter()
            .all(|view| (1..=PAGES_PER_REGION).contains(&view.resident.0))
    );
    // Our count of huge-mapped memory equals the kernel's own sum.
    if let Some(huge) = seen.huge_mapped() {
        let total = memory_use(&looker.roots, looker.id.pid).unwrap();
        assert_eq!(total.anon_huge, Some(huge));
    }
}
