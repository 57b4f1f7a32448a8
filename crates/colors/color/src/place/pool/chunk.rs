//! A piece of a pool: one mapping, and the state of each of its pages.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, Color, VirtAddr, VirtRange};
use superhue_sys::frames::{Frames, Grain};

use crate::Page;

/// State of a place for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// No page: it was moved away, or given back.
    Empty,
    /// A taken page whose fate the caller has not reported yet.
    Taken,
    /// A page of unknown color.
    Unsure,
    /// A page of this color.
    Of(Color),
}

#[derive(Debug)]
pub(super) struct Chunk {
    frames: Frames,
    slots: Vec<Slot>,
    empty: usize,
    /// Time at which the oldest of its pages were filled.
    filled: Instant,
}

impl Chunk {
    pub(super) fn map(length: ByteCount, grain: Grain, locked: bool) -> Result<Self, Errno> {
        let frames = Frames::map(length, grain)?;
        if locked {
            frames.lock()?;
        }
        let pages = usize::try_from(frames.range().len().whole_pages().0).unwrap_or(0);
        Ok(Self {
            frames,
            slots: vec![Slot::Empty; pages],
            empty: pages,
            filled: Instant::now(),
        })
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Time since its oldest pages were filled.
    pub(super) fn age(&self) -> Duration {
        self.filled.elapsed()
    }

    /// Places without a page.
    pub(super) fn empty(&self) -> usize {
        self.empty
    }

    pub(super) fn slot(&self, index: usize) -> Slot {
        self.slots.get(index).copied().unwrap_or(Slot::Empty)
    }

    pub(super) fn set(&mut self, index: usize, to: Slot) {
        if let Some(slot) = self.slots.get_mut(index) {
            if *slot == Slot::Empty {
                self.empty = self.empty.saturating_sub(1);
            }
            if to == Slot::Empty {
                self.empty += 1;
            }
            *slot = to;
        }
    }

    /// The page at this place; `None` past the end.
    pub(super) fn page(&self, index: usize) -> Option<Page> {
        if index >= self.slots.len() {
            return None;
        }
        let address = usize::try_from(self.address(index).0).ok()?;
        // SAFETY: it lies in the mapping, which is readable and lives as long as the pool; pages are handed out only
        // together with the pool.
        unsafe { Page::at(address) }
    }

    /// The place of a page of this chunk.
    pub(super) fn index_of(&self, page: Page) -> Option<usize> {
        let offset = page.start().0.checked_sub(self.frames.range().start.0)?;
        let index = usize::try_from(offset / BASE_PAGE_SIZE).ok()?;
        (index < self.slots.len()).then_some(index)
    }

    /// Fills the empty places with pages of zeroes. After an error they are empty.
    pub(super) fn populate(&mut self) -> Result<(), Errno> {
        if self.empty == self.slots.len() {
            self.filled = Instant::now();
        }
        self.frames.populate().inspect_err(|_| {
            self.discard_runs(|slot| slot == Slot::Empty);
        })
    }

    /// Gives back the pages for which `unwanted` is true, in as few calls as possible; returns their number.
    pub(super) fn discard(&mut self, unwanted: impl Fn(Slot) -> bool) -> usize {
        let given = |slot| !matches!(slot, Slot::Empty | Slot::Taken) && unwanted(slot);
        self.discard_runs(given);
        let before = self.empty;
        for index in 0..self.slots.len() {
            if given(self.slot(index)) {
                self.set(index, Slot::Empty);
            }
        }
        self.empty - before
    }

    /// Gives back the page at this place, if any.
    pub(super) fn discard_at(&mut self, index: usize) {
        let _ = self.frames.discard(self.part(index, index + 1));
        self.set(index, Slot::Empty);
    }

    fn discard_runs(&self, unwanted: impl Fn(Slot) -> bool) {
        let mut index = 0;
        while index < self.slots.len() {
            let rest = self.slots.iter().skip(index);
            let run = rest.take_while(|slot| unwanted(**slot)).count();
            if run > 0 {
                // Fails only for a range that is not entirely ours; this one is.
                let _ = self.frames.discard(self.part(index, index + run));
            }
            index += run + 1;
        }
    }

    fn part(&self, from: usize, to: usize) -> VirtRange {
        VirtRange {
            start: self.address(from),
            end: self.address(to),
        }
    }

    fn address(&self, index: usize) -> VirtAddr {
        VirtAddr(self.frames.range().start.0 + index as u64 * BASE_PAGE_SIZE)
    }
}
