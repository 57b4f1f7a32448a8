//! No byte is lost while pages are exchanged under a program that does everything it can.

mod checker;
mod support;

use std::sync::atomic::Ordering::Relaxed;

use superhue_color::act::ReplaceError;
use support::heap::Heap;
use support::{FakeOracle, placer, pool, walk};

#[global_allocator]
static HEAP: Heap = Heap::new();

#[test]
fn no_byte_is_lost() {
    const COLORS: usize = 8;
    let Some(mut placer) = placer(pool(512, 4096, COLORS)) else {
        return;
    };
    let mut oracle = FakeOracle::new(COLORS);
    let mut walk = walk("spread", COLORS);
    let memory = support::Memory::new(1);
    memory.word(0, 0).store(1, Relaxed);
    let tried = placer.replace(
        memory.range(),
        &mut walk,
        &mut oracle,
        &mut superhue_color::act::Unguarded,
        superhue_color::act::Replace {
            access: superhue_color::act::Access::Shared,
            keep: superhue_color::act::Keep::None,
            batch: 1,
        },
    );
    match tried {
        Err(error @ (ReplaceError::Userfault(_) | ReplaceError::ForksUnseen)) => {
            superhue_testing::skip("uffd-full", &error.to_string());
            return;
        }
        other => assert_eq!(other.unwrap().pages.placed.0, 1),
    }
    let (moves, tally) = checker::run(20_000, &mut placer, &mut walk, &mut oracle);
    println!("{moves:?}\n{tally:?}");
    assert_eq!(moves.failures, [""; 0]);
    assert!(moves.moves >= 20_000);
    assert_eq!(moves.replaced.lost, 0);
    assert_eq!(tally.corrupted.load(Relaxed), 0);
    assert_eq!(tally.errors.load(Relaxed), 0);
}
