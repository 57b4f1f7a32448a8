//! Tests of counting the zeroes in huge pages of a living process.

use std::time::Instant;

use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, PageCount, ProcessId, Region, VirtAddr};
use superhue_procfs::process::{UnreadZeroes, ZeroPages, Zeroes, identify, is_huge_mapped};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::collapse::own_collapse;
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::{Backing, ScratchChild};
use superhue_testing::skip;

const HUGE: usize = HUGE_PAGE_SIZE as usize;
const PAGE: usize = BASE_PAGE_SIZE as usize;
const ALL: PageCount = PageCount(0);

fn region_of(bytes: &[u8]) -> Region {
    Region::containing(VirtAddr(bytes.as_ptr().addr() as u64))
}

/// Returns one aligned region of `bytes`.
fn aligned(bytes: &mut [u8]) -> &mut [u8] {
    let start = bytes.as_ptr().addr();
    let first = start.next_multiple_of(HUGE) - start;
    &mut bytes[first..first + HUGE]
}

#[test]
fn the_pages_that_were_never_written_are_counted() {
    let roots = Roots::default();
    let id = identify(&roots, std::process::id()).unwrap();
    let mut zeroes = ZeroPages::new(roots.clone());
    for used in [0..0, 0..1, 100..200, 0..512_usize] {
        // A new buffer each time, so large that the allocator maps it afresh.
        let mut bytes = std::hint::black_box(vec![0_u8; 64 << 20]);
        let memory = aligned(&mut bytes);
        memory[PAGE * 511] = u8::from(used.end == 512);
        for page in used.clone() {
            memory[page * PAGE + page * 8 % PAGE] = 1;
        }
        let region = region_of(memory);
        let unmapped = zeroes.count(id, region, ALL);
        if is_huge_mapped(&roots, id, region).unwrap() == Some(false) {
            // The counter does not read base pages: there might be holes.
            assert!(
                matches!(unmapped, Err(UnreadZeroes::NotHuge { .. })),
                "{unmapped:?}"
            );
        }
        if used.is_empty() {
            continue;
        }
        if let Err(errno) = own_collapse(region) {
            return skip("collapse", &errno.to_string());
        }
        if is_huge_mapped(&roots, id, region).unwrap().is_none() {
            return skip("pagemap-scan", "this kernel does not tell huge pages (6.7)");
        }
        let begun = Instant::now();
        let counted = zeroes.count(id, region, ALL).unwrap();
        println!("{used:?}: {counted:?} in {:?}", begun.elapsed());
        assert_eq!(counted, Zeroes::Counted(PageCount(512 - used.len() as u64)));
        let begun = Instant::now();
        let half = zeroes.count(id, region, PageCount(256)).unwrap();
        println!("{used:?}: {half:?} in {:?}", begun.elapsed());
        if used.len() == 512 {
            // Most samples miss the one byte that each page has here; so the region may be counted or not.
            assert!(matches!(half, Zeroes::Few | Zeroes::Counted(PageCount(0))));
        } else {
            assert_eq!(half, counted);
        }
    }
}

#[test]
fn a_full_huge_page_is_left_after_a_few_samples() {
    let roots = Roots::default();
    let id = identify(&roots, std::process::id()).unwrap();
    let mut scratch = Scratch::in_base_pages(HUGE).unwrap();
    scratch.fill(5);
    if let Err(errno) = own_collapse(scratch.region()) {
        return skip("collapse", &errno.to_string());
    }
    let mut zeroes = ZeroPages::new(roots);
    match zeroes.count(id, scratch.region(), PageCount(1)) {
        Err(error @ UnreadZeroes::NotHuge { .. }) => skip("pagemap-scan", &error.to_string()),
        found => assert_eq!(found.unwrap(), Zeroes::Few),
    }
    assert!(scratch.is_intact(5));
}

/// Reading by pinning would unshare the huge page: split it, and copy the read part.
#[test]
fn a_huge_page_shared_since_a_fork_stays_as_it_is() {
    let roots = Roots::default();
    let id = identify(&roots, std::process::id()).unwrap();
    let mut bytes = std::hint::black_box(vec![0_u8; 64 << 20]);
    let memory = aligned(&mut bytes);
    memory[0] = 1;
    let region = region_of(memory);
    if let Err(errno) = own_collapse(region) {
        return skip("collapse", &errno.to_string());
    }
    let child = ScratchChild::start().unwrap();
    match ZeroPages::new(roots.clone()).count(id, region, PageCount(256)) {
        Err(error @ UnreadZeroes::NotHuge { .. }) => skip("pagemap-scan", &error.to_string()),
        found => {
            assert_eq!(found.unwrap(), Zeroes::Counted(PageCount(511)));
            assert_eq!(is_huge_mapped(&roots, id, region).unwrap(), Some(true));
        }
    }
    drop(child);
}

#[test]
fn another_process_is_read_and_a_gone_one_counted() {
    let roots = Roots::default();
    let mut zeroes = ZeroPages::new(roots.clone());
    let child = ScratchChild::start().unwrap();
    let region = child.map(Backing::BasePages).unwrap();
    child.touch().unwrap();
    let id = identify(&roots, child.pid()).unwrap();
    if let Err(errno) = child.collapse() {
        return skip("collapse", &errno.to_string());
    }
    match zeroes.count(id, region, PageCount(256)) {
        Err(error @ UnreadZeroes::NotHuge { .. }) => {
            return skip("pagemap-scan", &error.to_string());
        }
        Err(UnreadZeroes::Read(error @ ReadError::Denied { .. })) => {
            return skip("ptrace", &error.to_string());
        }
        found => assert_eq!(found.unwrap(), Zeroes::Counted(PageCount(511))),
    }
    let vanished = |found| matches!(found, Err(UnreadZeroes::Read(ReadError::Vanished { .. })));
    let other = ProcessId {
        start_ticks: id.start_ticks + 1,
        ..id
    };
    assert!(vanished(zeroes.count(other, region, ALL)));
    drop(child);
    assert!(vanished(zeroes.count(id, region, ALL)));
}
