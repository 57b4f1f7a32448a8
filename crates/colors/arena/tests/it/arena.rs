//! Arenas on made-up colors, so that nothing depends on timing.

use std::alloc::Layout;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use allocator_api2::alloc::Allocator;
use allocator_api2::boxed::Box;
use allocator_api2::vec::Vec;
use superhue_arena::frames::FrameOracle;
use superhue_arena::{
    ArenaOptions, ByteCount, Color, ColorError, ColoredArena, Colors, Judge, Oracle, OracleError,
    OracleKind, PageCount,
};
use superhue_color::Page;
use superhue_color::oracles::Agreement;
use superhue_testing::{shared, skip};

const PAGE: usize = 4096;

/// Eight made-up colors.
fn colors() -> Option<Colors> {
    let Some(oracle) = FrameOracle::new(8) else {
        skip(
            "frame-numbers",
            "/proc/self/pagemap shows them to root alone",
        );
        return None;
    };
    let colors = Colors::with_oracle(oracle).unwrap();
    let set = colors.set("spread").unwrap();
    let arena = ColoredArena::new(&colors, &set, ArenaOptions::new().strict(true)).unwrap();
    match arena.allocate(Layout::new::<u8>()) {
        Err(error @ ColorError::NoMoves { .. }) => {
            skip("uffd-move", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
        Ok(_) => Some(colors),
    }
}

fn arena(colors: &Colors, set: &str, options: ArenaOptions) -> ColoredArena {
    ColoredArena::new(colors, &colors.set(set).unwrap(), options).unwrap()
}

#[test]
fn memory_is_in_its_colors_from_the_first_touch() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    for set in ["spread", "0-1", "3", "50%"] {
        let arena = arena(&colors, set, ArenaOptions::new().strict(true));
        let mut numbers: Vec<u64, _> = Vec::new_in(arena.clone());
        numbers.extend(0..100_000);
        let boxed = Box::new_in([7_u8; 9000], arena.clone());
        assert!(numbers.iter().copied().eq(0..100_000) && boxed.iter().all(|byte| *byte == 7));
        let verdict = arena.verify().unwrap();
        assert_eq!(verdict.share(), Some(1.0), "{set}: {verdict:?}");
        let usage = arena.usage();
        assert_eq!(
            (usage.fallback, verdict.absent),
            (PageCount(0), PageCount(0))
        );
        assert!(
            usage.used.0 >= 800_000 && usage.held.0 >= usage.used.0,
            "{usage:?}"
        );
    }
}

#[test]
fn an_arena_is_idle_while_nothing_and_nobody_uses_it() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let mut arena = arena(&colors, "0-3", ArenaOptions::new());
    assert!(arena.is_idle());
    let memory = arena.allocate(Layout::new::<u64>()).unwrap();
    assert!(!arena.is_idle());
    // SAFETY: no code uses it.
    assert!(unsafe { arena.deallocate(memory.cast()) });
    assert!(arena.is_idle());
    let other = arena.clone();
    assert!(!arena.is_idle());
    drop(other);
    assert!(arena.is_idle());
}

#[test]
fn consecutive_pages_take_the_colors_in_turn() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let arena = arena(&colors, "2-5", ArenaOptions::new().strict(true).start(1));
    let mut memory: Vec<MaybeUninit<u8>, _> = Vec::with_capacity_in(16 * PAGE, arena.clone());
    memory.resize(16 * PAGE, MaybeUninit::new(1));
    for page in 0..16 {
        let color = ["2", "3", "4", "5"][(page + 1) % 4];
        let part = &memory[page * PAGE..][..PAGE];
        let verdict = colors.verify(part, &colors.set(color).unwrap()).unwrap();
        assert_eq!(verdict.right, PageCount(1), "page {page}: {verdict:?}");
    }
}

#[test]
fn everything_is_given_back() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let arena = arena(&colors, "spread", ArenaOptions::new());
    for round in 0..20 {
        let large = Layout::from_size_align((round + 1) * 100_000, 1 << (round % 15)).unwrap();
        let first = arena.allocate(large).unwrap();
        let second = arena.allocate(large).unwrap();
        assert!((first.cast::<u8>().as_ptr() as usize).is_multiple_of(large.align()));
        // SAFETY: no code uses them.
        unsafe {
            assert!(arena.deallocate(first.cast()) && arena.deallocate(second.cast()));
            assert!(!arena.deallocate(first.cast()));
        }
    }
    let usage = arena.usage();
    assert_eq!(usage.used, ByteCount(0));
    assert!(usage.held.0 <= 8 << 20, "one chunk stays: {usage:?}");
    drop(arena);
}

#[test]
fn threads_share_an_arena() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let arena = arena(&colors, "0-3", ArenaOptions::new().strict(true));
    std::thread::scope(|scope| {
        for thread in 0..4_u8 {
            let arena = arena.clone();
            scope.spawn(move || {
                let mut kept = std::vec::Vec::new();
                for round in 0..300_usize {
                    let mut part = Vec::with_capacity_in(1 + round * 37 % 6000, arena.clone());
                    part.resize(part.capacity(), thread);
                    kept.push(part);
                    if round % 3 == 0 {
                        drop(kept.swap_remove(round % kept.len()));
                    }
                }
                assert!(kept.iter().flatten().all(|byte| *byte == thread));
            });
        }
    });
    assert_eq!(arena.usage().used, ByteCount(0));
    assert_eq!(arena.verify().unwrap().share(), Some(1.0));
}

/// Bounds a test that fails.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// Sender that reports the stop, and receiver of the message that ends it.
type Stop = (Sender<()>, Receiver<()>);

/// Oracle that stops once while it classifies pages.
#[derive(Debug)]
struct Stops {
    oracle: FrameOracle,
    stop: Arc<Mutex<Option<Stop>>>,
}

impl Oracle for Stops {
    fn kind(&self) -> OracleKind {
        self.oracle.kind()
    }

    fn colors(&self) -> usize {
        self.oracle.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        self.oracle.classify(pages, colors)?;
        let stop = self.stop.lock().unwrap().take();
        if let Some((stopped, continues)) = stop {
            stopped.send(()).unwrap();
            let _ = continues.recv_timeout(STOP_LIMIT);
        }
        Ok(())
    }
}

impl Judge for Stops {
    fn agreement(&mut self, pages: &[(Page, Color)]) -> Result<Agreement, OracleError> {
        self.oracle.agreement(pages)
    }

    fn retest(&mut self) -> Result<(), OracleError> {
        self.oracle.retest()
    }
}

#[test]
fn a_thread_that_frees_does_not_wait_for_a_search() {
    let _shared = shared();
    if colors().is_none() {
        return;
    }
    let stop = Arc::new(Mutex::new(None));
    let oracle = Stops {
        oracle: FrameOracle::new(8).unwrap(),
        stop: Arc::clone(&stop),
    };
    let colors = Colors::with_oracle(oracle).unwrap();
    let arena = arena(&colors, "0", ArenaOptions::new());
    let page = Layout::new::<[u8; PAGE]>();
    let memory = arena.allocate(page).unwrap();
    let (stopped, has_stopped) = channel();
    let (goes_on, continues) = channel();
    *stop.lock().unwrap() = Some((stopped, continues));
    std::thread::scope(|scope| {
        // More pages of the color than the pool can have at hand.
        let search = || arena.allocate(Layout::new::<[u8; 4 << 20]>()).map(|_| ());
        let search = scope.spawn(search);
        has_stopped.recv_timeout(STOP_LIMIT).unwrap();
        // SAFETY: no code uses it.
        assert!(unsafe { arena.deallocate(memory.cast()) });
        // What is free is handed out meanwhile.
        arena.allocate(page).unwrap();
        assert!(goes_on.send(()).is_ok(), "the search waited in vain");
        search.join().unwrap().unwrap();
    });
}

#[test]
fn growing_keeps_contents_and_zeroes_are_zeroes() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let arena = arena(&colors, "spread", ArenaOptions::new());
    for (old, new) in [
        (10, 16),
        (10, 100),
        (5000, 6000),
        (5000, 50_000),
        (50_000, 10),
    ] {
        let [old, new] = [old, new].map(|size| Layout::from_size_align(size, 16).unwrap());
        let api: &dyn Allocator = &arena;
        let memory = api.allocate(old).unwrap();
        // SAFETY: within what was allocated, with its layout.
        unsafe {
            memory.cast::<u8>().as_ptr().write_bytes(0xab, memory.len());
            let moved = if new.size() > old.size() {
                api.grow_zeroed(memory.cast(), old, new).unwrap()
            } else {
                api.shrink(memory.cast(), old, new).unwrap()
            };
            let bytes = moved.as_ref();
            let kept = old.size().min(new.size());
            assert!(bytes[..kept].iter().all(|byte| *byte == 0xab));
            let zeroed = &bytes[kept..new.size()];
            assert!(new.size() < old.size() || zeroed.iter().all(|byte| *byte == 0));
            api.deallocate(moved.cast(), new);
            let again = api.allocate_zeroed(new).unwrap();
            assert!(again.as_ref().iter().all(|byte| *byte == 0));
            api.deallocate(again.cast(), new);
        }
    }
    let empty: Box<[u8; 0], _> = Box::new_in([], arena.clone());
    drop(empty);
    assert_eq!(arena.usage().used, ByteCount(0));
}

#[test]
fn nonsense_is_refused_with_the_reason() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    for (text, says) in [
        ("", "names no colors"),
        ("off", "ordinary memory"),
        ("3-1", "goes down"),
        ("0-3,2", "comes after"),
        ("0-8", "there is no color 8"),
        ("1%", "ask for at least"),
    ] {
        let error = colors.set(text).unwrap_err().to_string();
        assert!(error.contains(says), "{text}: {error}");
    }
    let other = Colors::with_oracle(FrameOracle::new(4).unwrap()).unwrap();
    let set = other.set("0-1").unwrap();
    let error = ColoredArena::new(&colors, &set, ArenaOptions::new()).unwrap_err();
    assert_eq!(error, ColorError::OtherCache { set: 4, here: 8 });
    let arena = arena(&colors, "0", ArenaOptions::new());
    let error = arena.allocate(Layout::new::<()>()).unwrap_err();
    assert!(matches!(error, ColorError::Invalid(_)));
    let huge = Layout::from_size_align(isize::MAX as usize / 2, 1).unwrap();
    let error = arena.allocate(huge).unwrap_err();
    assert!(matches!(error, ColorError::Memory { .. }), "{error}");
    assert_eq!(arena.usage().held, ByteCount(0), "nothing stays");
}

#[test]
fn an_arena_keeps_its_limit() {
    let _shared = shared();
    let Some(colors) = colors() else { return };
    let arena = arena(
        &colors,
        "0",
        ArenaOptions::new().limit(ByteCount(256 << 10)),
    );
    let page = Layout::new::<[u8; PAGE]>();
    for _ in 0..64 {
        arena.allocate(page).unwrap();
    }
    let error = arena.allocate(page).unwrap_err();
    assert!(matches!(error, ColorError::Limit { .. }), "{error}");
    assert_eq!(arena.usage().held, ByteCount(256 << 10));
}

#[test]
fn when_the_colors_change_an_arena_goes_on_and_says_so() {
    let _shared = shared();
    let Some(_) = colors() else { return };
    let oracle = FrameOracle::new(8).unwrap();
    let drift = oracle.drift();
    let colors = Colors::with_oracle(oracle).unwrap();
    let lenient = arena(&colors, "0-3", ArenaOptions::new());
    let strict = arena(&colors, "0-3", ArenaOptions::new().strict(true));
    let layout = Layout::new::<[u8; 64 << 10]>();
    lenient.allocate(layout).unwrap();
    let before = strict.allocate(layout).unwrap();
    // SAFETY: just allocated.
    unsafe { before.cast::<u8>().as_ptr().write_bytes(3, 64 << 10) };
    drift.store(true, Ordering::Relaxed);
    // Pages of the pool are still handed out; once it is empty, the kernel chooses the pages.
    while lenient.usage().fallback == PageCount(0) {
        lenient.allocate(layout).unwrap();
    }
    assert!(lenient.usage().trouble.unwrap().contains("changed"));
    while strict.allocate(layout).is_ok() {}
    let error = strict.allocate(layout).unwrap_err();
    assert!(matches!(error, ColorError::Drifted(_)), "{error}");
    assert!(matches!(strict.verify(), Err(ColorError::Drifted(_))));
    assert!(matches!(colors.retest(), Err(ColorError::Drifted(_))));
    // SAFETY: initialised above.
    assert!(unsafe { before.as_ref() }.iter().all(|byte| *byte == 3));
}
