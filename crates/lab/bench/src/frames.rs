//! Sees to it that a fresh allocation is a fresh deal.

use rand::RngExt;
use rand::rngs::Xoshiro256PlusPlus;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};

use crate::buffer::Buffer;

/// Memory freed is dealt again at once and in the same order (the kernel's per-CPU lists are stacks), so without this
/// twenty "fresh" allocations would be one allocation twenty times over; or, worse for a comparison, the kernel would
/// deal the very pages that another arm had chosen for their colors.
///
/// So pages are held, several times as many as an allocation takes. Before each allocation all that was just freed is
/// taken in, and pages at random among all that are held are given back, one by one: those are dealt next.
#[derive(Debug, Default)]
pub struct FrameShuffler {
    held: Vec<Buffer>,
    superpages: Vec<Buffer>,
}

/// Superpages held.
const SUPERPAGES: usize = 16;
/// Pages in a buffer.
const PAGES: u64 = 1024;
/// Pages held, as a multiple of those of the next allocation.
const TIMES: u64 = 6;
/// Buffers held at most: larger allocations than a sixth of this take what is left from elsewhere.
const MOST: u64 = 16;

impl FrameShuffler {
    /// Shuffles for an allocation of `size`. Where there is no memory, less is shuffled.
    pub fn shuffle(&mut self, size: ByteCount, rng: &mut Xoshiro256PlusPlus) {
        self.shuffle_superpages(rng);
        let needed = size.0.div_ceil(BASE_PAGE_SIZE);
        let wanted = (needed * TIMES).div_ceil(PAGES).clamp(1, MOST);
        // One of them anew, so that what circulates does not stay the same for ever.
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
        // Also those given back before.
        self.held.iter_mut().for_each(Buffer::touch);
        let most = self.held.len() as u64 * PAGES / 2;
        for _ in 0..(needed + needed / 4).min(most) {
            let at = rng.random_range(0..self.held.len());
            if let Some(buffer) = self.held.get_mut(at) {
                let _ = buffer.discard(rng.random_range(0..PAGES));
            }
        }
    }

    /// Takes one more and gives a random one back, which is dealt next: one and the same would be otherwise.
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
