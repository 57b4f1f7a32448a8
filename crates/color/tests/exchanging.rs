//! Memory of one's own is exchanged by any user; what cannot be is left and counted.

mod support;

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::act::{Access, Guard, Keep, Refusal, Replace, ReplaceError, Unguarded};
use superhue_model::PageCount;
use support::{FakeOracle, Memory, mappings, placer, pool, walk};

const COLORS: usize = 8;

const OWN: Replace = Replace {
    access: Access::Exclusive,
    keep: Keep::None,
    batch: 16,
};

fn filled(pages: usize) -> Memory {
    let memory = Memory::new(pages);
    for page in 0..pages {
        for word in 0..512 {
            memory
                .word(page, word)
                .store((page * 512 + word) as u64, Relaxed);
        }
    }
    memory
}

fn is_intact(memory: &Memory) -> bool {
    (0..memory.pages).all(|page| {
        (0..512).all(|word| memory.word(page, word).load(Relaxed) == (page * 512 + word) as u64)
    })
}

#[test]
fn memory_of_ones_own_gets_other_frames_and_keeps_its_bytes() {
    let _unshared = support::unshared();
    let Some(mut placer) = placer(pool(128, 16384, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = filled(100);
    let before = mappings(memory.range());
    let mut walk = walk("spread", COLORS);
    let replaced = placer
        .replace(memory.range(), &mut walk, &mut oracle, &mut Unguarded, OWN)
        .unwrap();
    assert_eq!(replaced.pages.placed, PageCount(100), "{replaced:?}");
    assert!(is_intact(&memory));
    assert_eq!(mappings(memory.range()), before);
    if oracle.frame(memory.page(0)).is_some() {
        let colors: Vec<usize> = (0..100)
            .map(|page| usize::from(oracle.color(memory.page(page)).0))
            .collect();
        let wanted: Vec<usize> = (0..100).map(|page| page % COLORS).collect();
        assert_eq!(colors, wanted, "{replaced:?}");
    }
}

#[test]
fn pages_that_are_right_keep_their_frames() {
    let _unshared = support::unshared();
    let Some(mut placer) = placer(pool(128, 16384, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = filled(64);
    if oracle.frame(memory.page(0)).is_none() {
        superhue_testing::skip("root", "frame numbers are not shown");
        return;
    }
    let mut half = walk("0-3", COLORS);
    let how = Replace {
        keep: Keep::Allowed,
        ..OWN
    };
    let right = (0..64)
        .filter(|page| oracle.color(memory.page(*page)).0 < 4)
        .count() as u64;
    for already in [right, 64] {
        let replaced = placer
            .replace(memory.range(), &mut half, &mut oracle, &mut Unguarded, how)
            .unwrap();
        assert_eq!(replaced.pages.already, PageCount(already));
        assert_eq!(replaced.pages.placed, PageCount(64 - already));
        assert!(is_intact(&memory));
    }
}

#[test]
fn pages_shared_with_a_child_stay() {
    let _unshared = support::unshared();
    let Some(mut placer) = placer(pool(128, 16384, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let memory = filled(32);
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written to `ends`.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    // SAFETY: the child waits for the pipe to be closed, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: the child's own descriptors and variable.
        unsafe {
            libc::close(ends[1]);
            libc::read(ends[0], std::ptr::from_mut(&mut byte).cast(), 1);
            libc::_exit(0);
        }
    }
    // Written since, and its own again.
    memory.word(5, 511).store(5 * 512 + 511, Relaxed);
    let mut walk = walk("spread", COLORS);
    let replaced = placer
        .replace(memory.range(), &mut walk, &mut oracle, &mut Unguarded, OWN)
        .unwrap();
    // SAFETY: closes our descriptors and waits for our child.
    unsafe {
        libc::close(ends[1]);
        libc::close(ends[0]);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
    }
    assert_eq!(replaced.pages.placed, PageCount(1));
    assert_eq!(
        replaced.pages.refused.get(&Refusal::SharedOrPinned),
        Some(&PageCount(31))
    );
    assert!(is_intact(&memory));
}

struct Never;

impl Guard for Never {
    fn enter(&mut self) -> bool {
        false
    }
}

#[test]
fn what_may_not_be_held_or_has_no_page_is_counted() {
    let _unshared = support::unshared();
    let Some(mut placer) = placer(pool(64, 256, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    let memory = filled(8);
    let replaced = placer
        .replace(memory.range(), &mut walk, &mut oracle, &mut Never, OWN)
        .unwrap();
    assert_eq!(
        replaced.pages.refused.get(&Refusal::NotHeld),
        Some(&PageCount(8))
    );
    let Some(mut tiny) = support::placer(pool(64, 0, COLORS)) else {
        return;
    };
    let refused = tiny.replace(memory.range(), &mut walk, &mut oracle, &mut Unguarded, OWN);
    assert!(matches!(refused, Err(ReplaceError::Pool(_))), "{refused:?}");
    assert!(is_intact(&memory));
}

#[test]
fn an_ordinary_user_may_exchange_its_own_memory_alone() {
    let _unshared = support::unshared();
    if !superhue_testing::is_root() {
        let Some(mut placer) = placer(pool(64, 256, COLORS)) else {
            return;
        };
        let (mut oracle, mut walk) = (FakeOracle::new(COLORS), walk("spread", COLORS));
        let memory = filled(8);
        let shared = Replace {
            access: Access::Shared,
            ..OWN
        };
        let tried = placer.replace(
            memory.range(),
            &mut walk,
            &mut oracle,
            &mut Unguarded,
            shared,
        );
        assert!(
            matches!(
                tried,
                Ok(_) | Err(ReplaceError::Userfault(_) | ReplaceError::ForksUnseen)
            ),
            "{tried:?}"
        );
        assert!(is_intact(&memory));
        return;
    }
    support::as_nobody();
}
