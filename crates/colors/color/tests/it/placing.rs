//! Holes are filled with pages of the wanted colors, and nothing else changes.

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::place::{PoolError, Refusal};
use superhue_model::{Color, PageCount};
use superhue_testing::shared;

use crate::support::{self, FakeOracle, Memory, PAGE, as_nobody, mappings, placer, pool, walk};

const COLORS: usize = 8;

#[test]
fn consecutive_holes_get_consecutive_colors() {
    let _shared = shared();
    let Some(mut placer) = placer(pool(256, 16384, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = Memory::new(200);
    // Two pages are in memory already, and stay.
    memory.word(17, 3).store(42, Relaxed);
    memory.word(100, 0).store(43, Relaxed);
    let (before, frame) = (mappings(memory.range()), oracle.frame(memory.page(17)));
    let mut walk = walk("spread", COLORS);
    let placed = placer.fill(memory.range(), &mut walk, &mut oracle).unwrap();
    assert_eq!(placed.placed, PageCount(198));
    assert!(placed.refused.is_empty(), "{placed:?}");
    assert_eq!(mappings(memory.range()), before);
    assert_eq!(oracle.frame(memory.page(17)), frame);
    assert_eq!(memory.word(17, 3).load(Relaxed), 42);
    let pages = (0..200).filter(|page| ![17, 100].contains(page));
    for (index, page) in pages.enumerate() {
        if oracle.frame(memory.page(page)).is_some() {
            assert_eq!(
                oracle.color(memory.page(page)),
                Color((index % COLORS) as u16),
                "page {page}"
            );
        }
        for word in 0..PAGE / 8 {
            assert_eq!(memory.word(page, word).load(Relaxed), 0);
        }
    }
}

#[test]
fn a_set_gets_its_colors_only_and_the_pool_never_more_than_its_limit() {
    let _shared = shared();
    let Some(mut placer) = placer(pool(128, 512, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = Memory::new(64);
    let mut walk = walk("1,4-5", COLORS);
    let placed = placer.fill(memory.range(), &mut walk, &mut oracle).unwrap();
    assert_eq!(placed.placed, PageCount(64));
    assert!(placer.pool().held() <= PageCount(512));
    for page in 0..64 {
        if oracle.frame(memory.page(page)).is_some() {
            let color = oracle.color(memory.page(page)).0;
            assert!([1, 4, 5].contains(&color), "{color}");
        }
    }
    placer.pool().discard(|color| color.0 == 1);
    assert_eq!(placer.pool().count(Color(0)), 0);
    placer.pool().trim(PageCount(0));
    assert_eq!(placer.pool().held(), PageCount(0));
}

#[test]
fn without_pages_of_the_colors_holes_are_left_and_counted() {
    let _shared = shared();
    let Some(mut placer) = placer(pool(16, 16, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = Memory::new(4096);
    // No page fits: nothing is placed at all.
    let Some(mut tiny) = support::placer(pool(16, 0, COLORS)) else {
        return;
    };
    let mut spread = walk("spread", COLORS);
    let refused = tiny.fill(memory.range(), &mut spread, &mut oracle);
    assert!(
        matches!(refused, Err(PoolError::Limit(_) | PoolError::Memory(_))),
        "{refused:?}"
    );
    // A pool of 16 pages is used several times over.
    let placed = placer
        .fill(memory.range(), &mut spread, &mut oracle)
        .unwrap();
    let missing = placed
        .refused
        .get(&Refusal::NoPage)
        .copied()
        .unwrap_or_default();
    assert_eq!(placed.placed + missing, PageCount(4096));
    assert!(placed.placed > PageCount(0));
}

#[test]
fn what_takes_no_pages_is_left_with_the_reason() {
    let _shared = shared();
    let Some(mut placer) = placer(pool(64, 256, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    let memory = Memory::new(8);
    // SAFETY: the mapping is the test's own, and not accessed until it is writable again.
    let protect = |protection| unsafe {
        assert_eq!(
            libc::mprotect(memory.start as *mut _, 8 * PAGE, protection),
            0
        );
    };
    protect(libc::PROT_READ);
    let placed = placer.fill(memory.range(), &mut walk, &mut oracle).unwrap();
    assert_eq!(placed.refused.get(&Refusal::Protected), Some(&PageCount(8)));
    protect(libc::PROT_READ | libc::PROT_WRITE);
    // SAFETY: locks the test's own mapping.
    let locked = unsafe { libc::mlock2(memory.start as *const _, 8 * PAGE, 1) };
    if locked == 0 {
        let placed = placer.fill(memory.range(), &mut walk, &mut oracle).unwrap();
        assert_eq!(
            placed.refused.get(&Refusal::Locked),
            Some(&PageCount(8)),
            "{placed:?}"
        );
    }
    let mut file = Memory::new(8);
    // SAFETY: replaces the test's own mapping by shared memory.
    unsafe {
        libc::munmap(file.start as *mut _, 8 * PAGE);
        let shared = libc::mmap(
            file.start as *mut _,
            8 * PAGE,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        );
        file.start = shared as usize;
    }
    let placed = placer.fill(file.range(), &mut walk, &mut oracle).unwrap();
    assert_eq!(
        placed.refused.get(&Refusal::NotAnonymous),
        Some(&PageCount(8)),
        "{placed:?}"
    );
}

#[test]
fn an_ordinary_user_may_too() {
    if !superhue_testing::is_root() {
        return superhue_testing::skip("root", "only root can become another user");
    }
    as_nobody("placing");
}
