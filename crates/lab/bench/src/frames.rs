//! Shuffles free page frames, so that a fresh allocation gets fresh frames.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};

use crate::buffer::Buffer;

/// Holder of page frames. The kernel deals freed memory again at once and in the same order (its per-CPU lists are
/// stacks). Without this type, twenty "fresh" allocations would be one allocation twenty times over; or, worse for a
/// comparison, the kernel would deal the very pages that another arm had chosen for their colors.
///
/// So this type holds several times as many pages as an allocation takes. Before each allocation it takes in all freed
/// pages, and gives back random ones of all that it holds, one by one: the kernel deals those next.
#[derive(Debug, Default)]
pub struct FrameShuffler {
    held: Vec<Buffer>,
    superpages: Vec<Buffer>,
}

/// Huge pages held.
const SUPERPAGES: usize = 16;
/// Pages in a buffer.
const PAGES: u64 = 1024;
/// Pages held, as a multiple of those of the next allocation.
const TIMES: u64 = 6;
/// Upper limit of buffers held: an allocation larger than a sixth of that gets the rest of its pages from elsewhere.
const MAX_HELD_BUFFERS: u64 = 16;

impl FrameShuffler {
    /// Shuffles for an allocation of `size`. Shuffles less where there is not enough memory.
    pub fn shuffle(&mut self, size: ByteCount, rng: &mut Xoshiro256PlusPlus) {
        self.shuffle_superpages(rng);
        let needed = size.0.div_ceil(BASE_PAGE_SIZE);
        let wanted = (needed * TIMES).div_ceil(PAGES).clamp(1, MAX_HELD_BUFFERS);
        // Replaces one buffer, so that the set of circulating frames changes over time.
        if !self.held.is_empty() {
            self.held.swap_remove(rng.random_range(0..self.held.len()));
        }
        while (self.held.len() as u64) < wanted {
            let Ok(mut buffer) = Buffer::new(ByteCount(PAGES * BASE_PAGE_SIZE)) else {
                break;
            };
            let _ = buffer.advise_superpages(buffer.mapped(), false);
            self.held.push(buffer);
        }
        // Makes pages resident again that an earlier call gave back.
        self.held.iter_mut().for_each(Buffer::touch);
        let most = self.held.len() as u64 * PAGES / 2;
        for _ in 0..(needed + needed / 4).min(most) {
            let at = rng.random_range(0..self.held.len());
            if let Some(buffer) = self.held.get_mut(at) {
                let _ = buffer.discard(rng.random_range(0..PAGES));
            }
        }
    }

    /// Takes one more huge page and gives a random one back, which the kernel deals next. Otherwise it would deal the
    /// same one every time.
    fn shuffle_superpages(&mut self, rng: &mut Xoshiro256PlusPlus) {
        while self.superpages.len() <= SUPERPAGES {
            let Ok(mut buffer) = Buffer::new(ByteCount(HUGE_PAGE_SIZE)) else {
                return;
            };
            let range = buffer.mapped();
            if buffer
                .advise_superpages(range, true)
                .and_then(|()| buffer.populate(range))
                .is_err()
            {
                return;
            }
            self.superpages.push(buffer);
        }
        self.superpages
            .swap_remove(rng.random_range(0..self.superpages.len()));
    }
}
