//! Loses a byte whoever moves pages wrongly: threads that use memory in every way, know what each byte must be, and look.
//!
//! Every worker owns certain words of the pages (or whole pages), keeps what it wrote there elsewhere, and compares before
//! it writes again. The mover meanwhile exchanges all frames, over and over.

#![allow(dead_code, reason = "test and example use different parts")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, Mutex};

use superhue_color::act::{Access, Guard, Keep, Placer, Replace, Replaced};
use superhue_color::decide::Walk;
use superhue_color::observe::Oracle;
use superhue_model::{PageCount, VirtRange};

use crate::support::{Memory, PAGE};

mod forks;
mod io;
mod mappings;
mod threads;
mod words;

/// What all of them found.
#[derive(Debug, Default)]
pub struct Tally {
    pub writes: AtomicU64,
    pub calls: AtomicU64,
    pub direct: AtomicU64,
    pub mappings: AtomicU64,
    pub forks: AtomicU64,
    pub threads: AtomicU64,
    /// Bytes that were not what they must be.
    pub corrupted: AtomicU64,
    /// Calls that failed, or children that did.
    pub errors: AtomicU64,
}

/// What the workers share.
#[derive(Debug)]
pub struct Shared {
    pub tally: Tally,
    pub stop: AtomicBool,
    /// Held while threads are started.
    pub starting: Mutex<()>,
    /// A thread that is started maps memory, which must not be where a block is away.
    started: Barrier,
}

/// Threads that wait for each other at first.
const WORKERS: usize = 10;

impl Shared {
    fn new() -> Self {
        Self {
            tally: Tally::default(),
            stop: AtomicBool::new(false),
            starting: Mutex::new(()),
            started: Barrier::new(WORKERS),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Relaxed)
    }

    fn expect(&self, fine: bool) {
        if !fine {
            self.tally.errors.fetch_add(1, Relaxed);
        }
    }

    fn expect_word(&self, found: u64, expected: u64) {
        if found != expected {
            let wrong = (found ^ expected).to_ne_bytes();
            let wrong = wrong.iter().filter(|byte| **byte != 0).count() as u64;
            self.tally.corrupted.fetch_add(wrong, Relaxed);
        }
    }
}

/// Keeps threads from being started while pages are out: those that are there are known.
struct Starting<'a> {
    lock: &'a Mutex<()>,
    held: Option<std::sync::MutexGuard<'a, ()>>,
}

impl Guard for Starting<'_> {
    fn enter(&mut self) -> bool {
        self.held = self.lock.try_lock().ok();
        self.held.is_some()
    }

    fn leave(&mut self) {
        self.held = None;
    }
}

/// What the mover did.
#[derive(Debug, Default)]
pub struct Moves {
    pub replaced: Replaced,
    /// Page moves, out and in, that succeeded.
    pub moves: u64,
    /// Those that the kernel said had failed.
    pub denied: u64,
    pub rounds: u64,
    pub failures: Vec<String>,
}

/// The memory that everything happens in. Words of `words` are used by threads, system calls and children, those of `busy`,
/// which no child gets, by threads and calls; `direct` by O_DIRECT, `maps` is mapped anew all the time, and threads have
/// their stacks in `stacks`.
pub struct Arena {
    pub words: Memory,
    pub busy: Memory,
    pub direct: Memory,
    pub maps: Memory,
    pub stacks: Memory,
}

impl Arena {
    pub fn new() -> Self {
        let arena = Self {
            words: Memory::new(512),
            busy: Memory::new(4096),
            direct: Memory::new(64),
            maps: Memory::new(mappings::PAGES),
            stacks: Memory::new(threads::PAGES),
        };
        for memory in [&arena.busy, &arena.direct] {
            memory.advise(libc::MADV_DONTFORK);
        }
        forks::prepare(&arena.words);
        arena
    }

    fn ranges(&self) -> [VirtRange; 5] {
        [
            &self.words,
            &self.busy,
            &self.direct,
            &self.maps,
            &self.stacks,
        ]
        .map(Memory::range)
    }
}

/// Moves pages until `moves` of them have been, with everything going on meanwhile.
pub fn run(
    moves: u64,
    placer: &mut Placer,
    walk: &mut Walk,
    oracle: &mut dyn Oracle,
) -> (Moves, Tally) {
    let arena = Arena::new();
    let shared = Shared::new();
    let mut done = Moves::default();
    std::thread::scope(|scope| {
        let (shared, arena) = (&shared, &arena);
        let start = |work: &'static (dyn Fn(&Shared, &Arena) + Sync)| {
            scope.spawn(move || {
                // They need not be fast; the mover should have its share.
                // SAFETY: about the calling thread alone.
                unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 15) };
                shared.started.wait();
                work(shared, arena);
            });
        };
        start(&|shared, arena| words::write(shared, &arena.words, 0));
        start(&|shared, arena| words::write(shared, &arena.busy, 1));
        start(&|shared, arena| words::write(shared, &arena.busy, 2));
        start(&|shared, arena| io::through_pipes_and_files(shared, &arena.words, 3));
        start(&|shared, arena| io::through_pipes_and_files(shared, &arena.busy, 4));
        start(&|shared, arena| io::direct(shared, &arena.direct));
        start(&|shared, arena| forks::fork(shared, &arena.words));
        start(&|shared, arena| mappings::change(shared, &arena.maps));
        start(&|shared, arena| threads::start_and_join(shared, &arena.stacks));
        shared.started.wait();
        move_pages(moves, arena, shared, placer, walk, oracle, &mut done);
        shared.stop.store(true, Relaxed);
    });
    words::check(&shared, &arena.words);
    (done, shared.tally)
}

fn move_pages(
    moves: u64,
    arena: &Arena,
    shared: &Shared,
    placer: &mut Placer,
    walk: &mut Walk,
    oracle: &mut dyn Oracle,
    done: &mut Moves,
) {
    let mut guard = Starting {
        lock: &shared.starting,
        held: None,
    };
    while done.moves < moves && done.failures.len() < 10 {
        done.rounds += 1;
        // Once in a while the color of a page is told while it is out, and some stay.
        let keep = if done.rounds.is_multiple_of(8) {
            Keep::Wanted
        } else {
            Keep::None
        };
        for range in arena.ranges() {
            let how = Replace {
                access: Access::Shared,
                keep,
                batch: 16,
            };
            match placer.replace(range, walk, oracle, &mut guard, how) {
                Ok(replaced) => {
                    let PageCount(placed) = replaced.pages.placed + replaced.pages.already;
                    done.moves += 2 * placed + replaced.faults.0;
                    done.replaced.pages.add(&replaced.pages);
                    done.replaced.faults += replaced.faults;
                    done.replaced.lost += replaced.lost;
                }
                Err(error) => done.failures.push(error.to_string()),
            }
        }
        // Lets those who wait for the processor, or for the lock, have it.
        std::thread::yield_now();
    }
    done.denied = placer.denied();
}

/// A fast generator of one's own: what is random here must not wait for anything.
struct Random(u64);

impl Random {
    fn new(seed: usize) -> Self {
        Self((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    #[allow(
        clippy::cast_possible_truncation,
        reason = "64-bit machines alone have pages to move"
    )]
    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// The first word of worker `worker`, who has a line of 64 bytes in each page.
const fn line(worker: usize) -> usize {
    worker * 8
}

const _: () = assert!(line(6) + 8 <= PAGE / 8);
