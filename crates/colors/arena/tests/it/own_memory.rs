//! Placing existing memory, and the effects of forks, locks and sharing on it. Made-up colors: no assertion depends on timing.

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MlockAllFlags, MsyncFlags, ProtFlags, madvise, mlock, mlockall,
    mmap_anonymous, msync, munmap,
};
use superhue_arena::frames::FrameOracle;
use superhue_arena::{
    ArenaOptions, ByteCount, ColorError, ColoredArena, Colors, PageCount, Refusal,
};
use superhue_testing::{alone, passed_in_own_process, skip};

const PAGE: usize = 4096;

/// Memory of one test, unmapped when the test ends.
struct Memory {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: it owns the memory it points to.
unsafe impl Send for Memory {}

impl Memory {
    fn new(pages: usize, flags: MapFlags) -> Self {
        let length = pages * PAGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, protection, flags) };
        let start = NonNull::new(start.unwrap().cast()).unwrap();
        let memory = Self { start, length };
        // SAFETY: just mapped.
        let _ = unsafe { madvise(start.as_ptr().cast(), length, Advice::LinuxNoHugepage) };
        memory
    }

    /// Maps memory that children of other tests do not inherit.
    fn private(pages: usize) -> Self {
        let memory = Self::new(pages, MapFlags::PRIVATE);
        let start = memory.start.as_ptr().cast();
        // SAFETY: the memory belongs to `memory`.
        unsafe { madvise(start, memory.length, Advice::LinuxDontFork).unwrap() };
        memory
    }

    fn bytes(&mut self) -> &mut [MaybeUninit<u8>] {
        // SAFETY: mapped, and borrowed together with this.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.length) }
    }

    fn write(&mut self, page: usize) {
        for (place, byte) in self.bytes()[page * PAGE..][..PAGE].iter_mut().enumerate() {
            byte.write(pattern(page, place));
        }
    }

    fn is_written(&mut self, page: usize) -> bool {
        let mut bytes = self.bytes()[page * PAGE..][..PAGE].iter().enumerate();
        // SAFETY: mapped memory is initialised.
        bytes.all(|(place, byte)| unsafe { byte.assume_init() } == pattern(page, place))
    }

    fn is_zero(&mut self, page: usize) -> bool {
        let mut bytes = self.bytes()[page * PAGE..][..PAGE].iter();
        // SAFETY: mapped memory is initialised.
        bytes.all(|byte| unsafe { byte.assume_init() } == 0)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the memory belongs to this.
        unsafe { munmap(self.start.as_ptr().cast(), self.length).unwrap() };
    }
}

fn pattern(page: usize, place: usize) -> u8 {
    (page * 31 + place * 7 + 1).to_le_bytes()[0]
}

/// Returns eight made-up colors.
fn colors() -> Option<Colors> {
    let Some(oracle) = FrameOracle::new(8) else {
        skip(
            "frame-numbers",
            "/proc/self/pagemap shows them to root alone",
        );
        return None;
    };
    let colors = Colors::with_oracle(oracle).unwrap();
    let mut memory = Memory::new(1, MapFlags::PRIVATE);
    match colors.place(memory.bytes(), &colors.set("spread").unwrap()) {
        Err(error @ ColorError::NoMoves { .. }) => {
            skip("uffd-move", &error.to_string());
            None
        }
        Err(error) => panic!("{error}"),
        Ok(_) => Some(colors),
    }
}

#[test]
fn contents_stay_and_colors_change() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    for text in ["0-1", "7", "spread"] {
        let set = colors.set(text).unwrap();
        let mut memory = Memory::private(203);
        for page in 0..203 {
            match page % 5 {
                0..3 => memory.write(page),
                // A page that was only read maps the zero page.
                3 => assert!(memory.is_zero(page)),
                _ => {}
            }
        }
        let placed = colors.place(memory.bytes(), &set).unwrap();
        assert_eq!(
            (placed.left(), placed.edges),
            (PageCount(0), ByteCount(0)),
            "{placed:?}"
        );
        assert_eq!(placed.placed.0 + placed.already.0, 203);
        assert!(placed.placed.0 >= 80, "{placed:?}");
        for page in 0..203 {
            let right = if page % 5 < 3 {
                memory.is_written(page)
            } else {
                memory.is_zero(page)
            };
            assert!(right, "page {page}, set {text}");
        }
        let verdict = colors.verify(memory.bytes(), &set).unwrap();
        assert_eq!(verdict.share(), Some(1.0), "{verdict:?}");
        // Every window has every color once.
        let most = 203_u64.div_ceil(set.len() as u64);
        assert!(verdict.commonest.0 <= most + 1, "{verdict:?}");
        let again = colors.place(memory.bytes(), &set).unwrap();
        assert_eq!(
            (again.already, again.placed),
            (PageCount(203), PageCount(0)),
            "{again:?}"
        );
    }
}

#[test]
fn edges_stay_and_are_counted() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let mut memory = Memory::private(4);
    (0..4).for_each(|page| memory.write(page));
    let set = colors.set("3").unwrap();
    let inner = &mut memory.bytes()[100..4 * PAGE - 50];
    let placed = colors.place(inner, &set).unwrap();
    assert_eq!(placed.edges, ByteCount(2 * PAGE as u64 - 150));
    assert_eq!(placed.placed.0 + placed.already.0, 2);
    assert!((0..4).all(|page| memory.is_written(page)));
    let small = colors.place(&mut memory.bytes()[100..200], &set).unwrap();
    assert_eq!((small.edges, small.placed), (ByteCount(100), PageCount(0)));
}

#[test]
fn what_cannot_be_moved_is_left_by_reason() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let set = colors.set("5").unwrap();
    let mut shared = Memory::new(64, MapFlags::SHARED);
    (0..64).for_each(|page| shared.write(page));
    let placed = colors.place(shared.bytes(), &set).unwrap();
    let left = placed
        .refused
        .get(&Refusal::NotAnonymous)
        .copied()
        .unwrap_or_default();
    assert_eq!(left.0 + placed.already.0, 64, "{placed:?}");
    assert!((0..64).all(|page| shared.is_written(page)));

    let mut locked = Memory::private(8);
    (0..8).for_each(|page| locked.write(page));
    // SAFETY: the memory belongs to this test.
    match unsafe { mlock(locked.start.as_ptr().cast(), 8 * PAGE) } {
        Err(errno) => skip("mlock", &errno.to_string()),
        Ok(()) => {
            let placed = colors.place(locked.bytes(), &set).unwrap();
            let left = placed
                .refused
                .get(&Refusal::Locked)
                .copied()
                .unwrap_or_default();
            assert_eq!(left.0 + placed.already.0, 8, "{placed:?}");
        }
    }
    assert!((0..8).all(|page| locked.is_written(page)));
}

/// Returns true if all of the memory is locked.
fn is_locked(memory: NonNull<[u8]>) -> bool {
    let start = memory.cast().as_ptr();
    // SAFETY: mapped anonymous memory, for which the call only tests the lock (`mm/msync.c`).
    unsafe { msync(start, memory.len(), MsyncFlags::INVALIDATE) == Err(Errno::BUSY) }
}

#[test]
fn memory_is_in_its_colors_after_mlockall() {
    let _alone = alone();
    let name = "memory_is_in_its_colors_after_mlockall";
    if passed_in_own_process(module_path!(), name) || colors().is_none() {
        return;
    }
    let mut before = Memory::private(64);
    (0..64).for_each(|page| before.write(page));
    if let Err(errno) = mlockall(MlockAllFlags::FUTURE) {
        return skip("mlockall", &errno.to_string());
    }
    let colors = Colors::with_oracle(FrameOracle::new(8).unwrap()).unwrap();
    let set = colors.set("0-1").unwrap();
    let arena = ColoredArena::new(&colors, &set, ArenaOptions::new().strict(true)).unwrap();
    let layout = std::alloc::Layout::from_size_align(64 * PAGE, PAGE).unwrap();
    let memory = arena.allocate(layout).unwrap();
    let verdict = arena.verify().unwrap();
    assert_eq!(
        (verdict.share(), verdict.absent.0),
        (Some(1.0), 0),
        "{verdict:?}"
    );
    assert!(is_locked(memory), "the arena unlocked its memory");
    // Memory from before is not locked, so it can move.
    let placed = colors.place(before.bytes(), &set).unwrap();
    assert_eq!(placed.left(), PageCount(0), "{placed:?}");
    assert!((0..64).all(|page| before.is_written(page)));
    let verdict = colors.verify(before.bytes(), &set).unwrap();
    assert_eq!(verdict.share(), Some(1.0), "{verdict:?}");
}

/// Prints a message of a child straight to stderr: the test harness would keep captured output.
fn tell(what: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), what.as_bytes());
}

/// Runs `work` in a forked child and returns its exit status.
fn in_child(work: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child allocates, which POSIX forbids after a fork with threads; the C library allows it.
    match unsafe { libc::fork() } {
        -1 => panic!("fork"),
        0 => {
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: ends the child.
            unsafe { libc::_exit(if matches!(done, Ok(true)) { 0 } else { 1 }) }
        }
        child => {
            let mut status = 0;
            // SAFETY: waits for the child just made.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            status
        }
    }
}

#[test]
fn a_child_has_a_copy_and_can_have_colors_of_its_own() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let set = colors.set("0-3").unwrap();
    let arena = ColoredArena::new(&colors, &set, ArenaOptions::new().strict(true)).unwrap();
    let mut numbers = allocator_api2::vec::Vec::new_in(arena.clone());
    numbers.resize(64 * PAGE, 3_u8);
    let status = in_child(|| {
        let before = arena.verify().unwrap();
        // Shared pages keep the parent's colors until they are written.
        let right = before.share() == Some(1.0) && before.shared.0 >= 60;
        numbers.fill(4);
        let written = arena.verify().unwrap();
        // SAFETY: this child has one thread.
        let placed = unsafe { arena.repair() }.unwrap();
        let mended = arena.verify().unwrap();
        let mut more = allocator_api2::vec::Vec::new_in(arena.clone());
        more.resize(300 * PAGE, 5_u8);
        let fresh = arena.verify().unwrap();
        let bytes = numbers.iter().all(|byte| *byte == 4) && more.iter().all(|byte| *byte == 5);
        // No page is wrong if the kernel hands out the very frames that another test gave back.
        let repaired = placed.placed >= written.wrong;
        let done = right && repaired && mended.wrong.0 == 0 && fresh.share() == Some(1.0) && bytes;
        if !done {
            tell(&format!(
                "{before:?}\n{written:?}\n{placed:?}\n{mended:?}\n{fresh:?}"
            ));
        }
        done
    });
    assert_eq!(status, 0);
    assert!(numbers.iter().all(|byte| *byte == 3));
}

#[test]
fn what_is_kept_from_children_stays_the_parents() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let set = colors.set("0-3").unwrap();
    let options = ArenaOptions::new().keep_from_children(true);
    let arena = ColoredArena::new(&colors, &set, options).unwrap();
    let mut numbers = allocator_api2::vec::Vec::new_in(arena.clone());
    numbers.resize(64 * PAGE, 3_u8);
    let status = in_child(|| {
        let refused = arena.allocate(std::alloc::Layout::new::<u64>());
        matches!(refused, Err(ColorError::Child)) && arena.is_left_behind()
    });
    assert_eq!(status, 0);
    numbers.fill(9);
    assert_eq!(arena.verify().unwrap().share(), Some(1.0));
}

#[test]
fn forks_find_no_lock_held_and_no_hole() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let set = colors.set("0-3").unwrap();
    let other = colors.set("4-7").unwrap();
    let arena = ColoredArena::new(&colors, &set, ArenaOptions::new()).unwrap();
    let mut moved = Memory::new(32, MapFlags::PRIVATE);
    (0..32).for_each(|page| moved.write(page));
    let address = moved.start.as_ptr() as usize;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moved = &mut moved;
        let (set, other, colors, stop, arena) = (&set, &other, &colors, &stop, &arena);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                for set in [set, other] {
                    colors.place(moved.bytes(), set).unwrap();
                    // Pages that a child still shares stay where they are.
                    (0..32).for_each(|page| moved.write(page));
                }
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(allocator_api2::boxed::Box::new_in(
                    [1_u8; 3000],
                    arena.clone(),
                ));
            }
        });
        let mut statuses = Vec::new();
        for _ in 0..40 {
            statuses.push(in_child(|| {
                let part = allocator_api2::boxed::Box::new_in([2_u8; 3000], arena.clone());
                // SAFETY: the child's own copy, in which no thread writes.
                let copy = unsafe { std::slice::from_raw_parts(address as *const u8, 32 * PAGE) };
                let whole = copy.iter().enumerate();
                let mut whole = whole.map(|(at, byte)| pattern(at / PAGE, at % PAGE) == *byte);
                whole.all(|right| right) && part.iter().all(|byte| *byte == 2)
            }));
        }
        stop.store(true, Ordering::Relaxed);
        assert!(statuses.iter().all(|status| *status == 0), "{statuses:?}");
    });
    assert!((0..32).all(|page| moved.is_written(page)));
}

#[test]
fn limits_are_errors_with_the_way_out() {
    let _alone = alone();
    let Some(colors) = colors() else { return };
    let set = colors.set("0-3").unwrap();
    let status = in_child(|| {
        let limit = |resource, bytes| {
            let limit = libc::rlimit {
                rlim_cur: bytes,
                rlim_max: bytes,
            };
            // SAFETY: a limit of this child.
            assert_eq!(unsafe { libc::setrlimit(resource, &raw const limit) }, 0);
        };
        // Root may lock any amount.
        // SAFETY: changes this child alone.
        let unprivileged = unsafe { libc::setuid(superhue_testing::NOBODY) } == 0;
        limit(libc::RLIMIT_MEMLOCK, 16 << 10);
        let arena = ColoredArena::new(&colors, &set, ArenaOptions::new().locked(true)).unwrap();
        let layout = std::alloc::Layout::new::<[u8; 1 << 20]>();
        let locked = arena.allocate(layout).unwrap_err();
        let nothing = arena.usage().held == ByteCount(0);
        let arena = ColoredArena::new(&colors, &set, ArenaOptions::new()).unwrap();
        limit(libc::RLIMIT_AS, 32 << 20);
        let large = arena.allocate(layout).unwrap_err();
        let done = unprivileged && nothing && locked.to_string().contains("RLIMIT_MEMLOCK");
        let done = done && matches!(large, ColorError::Memory { .. });
        if !done {
            tell(&format!("{locked} / {large} / {nothing}"));
        }
        done
    });
    assert_eq!(status, 0);
}
