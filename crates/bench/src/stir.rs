//! Sees to it that a fresh allocation is a fresh deal.

use std::collections::VecDeque;

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::buffer::Buffer;

/// Memory freed is dealt again at once and in the same order (the kernel's per-CPU lists are stacks), so without
/// this twenty "fresh" allocations would be one allocation twenty times over. Before each one, a random amount of memory is
/// taken, and some taken earlier, in pieces, is given back.
#[derive(Debug, Default)]
pub struct Stirrer {
    held: VecDeque<Buffer>,
}

/// Buffers held at most.
const HELD: usize = 12;
/// Pages in each, at most.
const PAGES: u64 = 1024;

impl Stirrer {
    /// Takes and gives back memory. Where there is none, nothing is stirred.
    pub fn stir(&mut self, rng: &mut Xoshiro256PlusPlus) {
        for _ in 0..rng.random_range(1..=3) {
            let pages = rng.random_range(16..=PAGES);
            if let Ok(mut buffer) = Buffer::new(ByteCount(pages * BASE_PAGE_SIZE)) {
                let all = buffer.mapped();
                if buffer.advise_superpages(all, false).is_ok() {
                    buffer.touch();
                }
                self.held.push_back(buffer);
            }
        }
        while self.held.len() > HELD {
            let at = rng.random_range(0..self.held.len());
            self.held.remove(at);
        }
    }
}
