//! Memory that is unmapped, mapped, moved, protected, locked and given up while its pages are exchanged.
//!
//! ```text
//!   |block|block|...|block|      each mapped on its own or together, as the kernel merges them; one is away at a time,
//!   ^ its pages: zero, or a pattern that says which                     so that another can move there
//! ```

use std::sync::atomic::Ordering::Relaxed;

use super::{Random, Shared};
use crate::support::{Memory, PAGE};

const BLOCK: usize = 16;
const BLOCKS: usize = 16;
pub const PAGES: usize = BLOCK * BLOCKS;
const BYTES: usize = BLOCK * PAGE;
const HALF: usize = BYTES / 2;

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;
const FRESH: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;

struct Blocks<'a> {
    shared: &'a Shared,
    memory: &'a Memory,
    /// What the pages of each block say; `None` for zeroes.
    seeds: Vec<[u64; BLOCK]>,
}

pub fn change(shared: &Shared, memory: &Memory) {
    let mut random = Random::new(4242);
    let mut blocks = Blocks {
        shared,
        memory,
        seeds: vec![[0; BLOCK]; BLOCKS],
    };
    // The block that is not mapped.
    let mut away = 0;
    blocks.unmap(away);
    while shared.goes_on() {
        let block = (away + 1 + random.below(BLOCKS - 1)) % BLOCKS;
        blocks.check(block);
        match random.below(9) {
            0 => {
                blocks.call(block, |at| unsafe {
                    libc::madvise(at, BYTES, libc::MADV_DONTNEED)
                });
                blocks.seeds[block] = [0; BLOCK];
            }
            1 => {
                blocks.unmap(block);
                blocks.map(block);
            }
            2 => {
                blocks.map_over(block);
            }
            3 => {
                blocks.move_to(block, away);
                away = block;
            }
            4 => blocks.shrink_and_grow(block),
            5 => {
                blocks.call(block, |at| unsafe {
                    libc::mprotect(at, BYTES, libc::PROT_READ)
                });
                blocks.check(block);
                blocks.call(block, |at| unsafe { libc::mprotect(at, BYTES, BOTH) });
            }
            6 => {
                blocks.call(block, |at| unsafe {
                    libc::mprotect(at, BYTES, libc::PROT_NONE)
                });
                blocks.call(block, |at| unsafe { libc::mprotect(at, BYTES, BOTH) });
            }
            7 => {
                blocks.call(block, |at| unsafe { libc::mlock(at, HALF) });
                blocks.call(block, |at| unsafe { libc::munlock(at, HALF) });
            }
            _ => blocks.write(block, &mut random),
        }
        blocks.check(block);
        if random.below(2) == 0 && block != away {
            blocks.write(block, &mut random);
        }
        shared.tally.mappings.fetch_add(1, Relaxed);
    }
    for block in (0..BLOCKS).filter(|block| *block != away) {
        blocks.check(block);
    }
    // The whole is unmapped at the end, as if it had never been cut.
    blocks.map(away);
}

impl Blocks<'_> {
    fn at(&self, block: usize) -> *mut libc::c_void {
        self.memory.page(block * BLOCK) as *mut _
    }

    fn call(&self, block: usize, call: impl FnOnce(*mut libc::c_void) -> i32) {
        self.shared.expect(call(self.at(block)) == 0);
    }

    fn write(&mut self, block: usize, random: &mut Random) {
        for page in 0..BLOCK {
            let seed = random.next() | 1;
            self.seeds[block][page] = seed;
            for word in (0..PAGE / 8).step_by(37) {
                let value = seed.wrapping_mul(word as u64 + 1);
                self.memory
                    .word(block * BLOCK + page, word)
                    .store(value, Relaxed);
            }
        }
    }

    fn check(&self, block: usize) {
        for (page, seed) in self.seeds[block].iter().enumerate() {
            // A block that moved away is not there to be looked at.
            for word in (0..PAGE / 8).step_by(37) {
                if *seed == AWAY {
                    return;
                }
                let found = self.memory.word(block * BLOCK + page, word).load(Relaxed);
                self.shared
                    .expect_word(found, seed.wrapping_mul(word as u64 + 1));
            }
        }
    }

    fn unmap(&mut self, block: usize) {
        // SAFETY: a block of the test's own memory, which is not touched until it is mapped again.
        self.call(block, |at| unsafe { libc::munmap(at, BYTES) });
        self.seeds[block] = [AWAY; BLOCK];
    }

    fn map(&mut self, block: usize) {
        // As another thread may take the place for a mapping of its own, never over something.
        let flags = FRESH | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: maps what `unmap` has unmapped.
        let mapped = unsafe { libc::mmap(self.at(block), BYTES, BOTH, flags, -1, 0) };
        self.shared.expect(mapped == self.at(block));
        self.seeds[block] = [0; BLOCK];
    }

    fn map_over(&mut self, block: usize) {
        // SAFETY: replaces a block of the test's own memory by zeroes.
        let mapped = unsafe { libc::mmap(self.at(block), BYTES, BOTH, FRESH, -1, 0) };
        self.shared.expect(mapped == self.at(block));
        self.seeds[block] = [0; BLOCK];
    }

    fn move_to(&mut self, block: usize, free: usize) {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: moves a block of the test's own memory to where it has unmapped one.
        let moved = unsafe { libc::mremap(self.at(block), BYTES, BYTES, flags, self.at(free)) };
        self.shared.expect(moved == self.at(free));
        self.seeds[free] = self.seeds[block];
        self.seeds[block] = [AWAY; BLOCK];
        self.check(free);
    }

    /// What is cut off comes back as zeroes.
    fn shrink_and_grow(&mut self, block: usize) {
        // SAFETY: the second half of a block of the test's own memory goes, and comes again at its place.
        unsafe {
            let shrunk = libc::mremap(self.at(block), BYTES, HALF, 0);
            self.shared.expect(shrunk == self.at(block));
            let grown = libc::mremap(self.at(block), HALF, BYTES, 0);
            self.shared.expect(grown == self.at(block));
        }
        self.seeds[block][BLOCK / 2..].fill(0);
    }
}

/// In place of a seed: the block is not mapped.
const AWAY: u64 = 0xa3a3_0000_0000_0000;
