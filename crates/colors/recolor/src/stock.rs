//! Page frames of known colors, ready to be dealt.
//!
//! ```text
//!   stock    |3|1|7|-|2|?|...     a file in memory; -: dealt   ?: no color that could be measured        Stock::measure
//!   deal     fallocate(PUNCH_HOLE) of a 7: its frame is the next that this CPU hands out                 Stock::deal
//! ```
//!
//! Frames of unwanted colors are kept, up to a limit: if given back, they would be the very ones that the kernel hands
//! out next.

use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, ftruncate, memfd_create};
use rustix::io::Errno;
use superhue_color::Page;
use superhue_color::oracles::{
    Frames, HardwareProbe, Mapping, MeasuredOracle, Oracle, OracleError, Pagemap,
};
use superhue_model::{BASE_PAGE_SIZE, Color, PageCount, Pfn};
use superhue_sys::advise::drain_new_pages;

use crate::FrameColors;

/// Pages looked at in one step.
const CHUNK: u32 = 64;

/// Address space of the stock, in pages; resident are the pages that were looked at and not dealt.
const STOCK_PAGES: u32 = 1 << 20;

/// Most pages looked at in one call; and most steps in a row in which no color could be measured.
const MAX_PAGES_PER_CALL: u32 = 1 << 15;
const MAX_UNMEASURED_STEPS: u32 = 4;

/// More than `LARGE_STOCK_PAGES` pages are not kept if fewer than `FEW` are wanted.
const LARGE_STOCK_PAGES: u32 = 1 << 12;
const FEW: usize = 64;

/// A frame of the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StockFrame {
    /// Number of its page in the file.
    number: u32,
    /// The frame.
    pub(crate) frame: Pfn,
    /// Color of the frame.
    pub(crate) color: Color,
}

/// Frames sorted by color.
#[derive(Debug)]
pub(crate) struct Stock {
    oracle: MeasuredOracle<HardwareProbe>,
    pagemap: Pagemap,
    file: OwnedFd,
    mapping: Mapping,
    by_color: Vec<Vec<StockFrame>>,
    /// Number of pages that were looked at and are still there.
    held: u32,
    /// The first page that was not looked at yet.
    next: u32,
}

impl Stock {
    pub(crate) fn new(oracle: MeasuredOracle<HardwareProbe>) -> Result<Self, OracleError> {
        let unavailable = |errno: Errno| {
            OracleError::Unavailable(format!("no memory for frames of known colors: {errno}"))
        };
        let file = memfd_create("superhue-stock", MemfdFlags::CLOEXEC).map_err(unavailable)?;
        let length = u64::from(STOCK_PAGES) * BASE_PAGE_SIZE;
        ftruncate(&file, length).map_err(unavailable)?;
        let mapped = usize::try_from(length).map_err(|_| Errno::NOMEM);
        let mapping = mapped
            .and_then(|length| Mapping::new(&file, length))
            .map_err(unavailable)?;
        let colors = oracle.palette().colors();
        Ok(Self {
            oracle,
            pagemap: Pagemap::open()?,
            file,
            mapping,
            by_color: vec![Vec::new(); colors],
            held: 0,
            next: 0,
        })
    }

    /// Returns the number of colors.
    pub(crate) fn colors(&self) -> usize {
        self.by_color.len()
    }

    /// Number of frames of a color.
    pub(crate) fn count(&self, color: Color) -> usize {
        self.by_color.get(usize::from(color.0)).map_or(0, Vec::len)
    }

    /// Looks at more pages until each color has the number of frames in `wanted`, or `limit` pages are held. Enters the
    /// measurements into `known`.
    ///
    /// # Errors
    /// If colors have changed, or frame numbers are hidden.
    pub(crate) fn provide(
        &mut self,
        wanted: &[usize],
        limit: PageCount,
        known: &mut FrameColors,
        now: Duration,
    ) -> Result<(), OracleError> {
        let limit = u32::try_from(limit.0).unwrap_or(u32::MAX).min(STOCK_PAGES);
        let (mut searched, mut in_vain) = (0, 0);
        let is_too_much = self.held > LARGE_STOCK_PAGES && wanted.iter().sum::<usize>() < FEW;
        if is_too_much || self.held > limit {
            self.give_back();
        }
        while self.lacks(wanted)
            && searched < limit.min(MAX_PAGES_PER_CALL)
            && in_vain < MAX_UNMEASURED_STEPS
        {
            if self.next + CHUNK > STOCK_PAGES || self.held + CHUNK > limit {
                // The held frames lack a wanted color: give them back, in the hope of others.
                self.give_back();
            }
            in_vain = match self.look(known, now)? {
                0 => in_vain + 1,
                _ => 0,
            };
            searched += CHUNK;
        }
        Ok(())
    }

    fn lacks(&self, wanted: &[usize]) -> bool {
        let mut both = wanted.iter().zip(&self.by_color);
        both.any(|(wanted, have)| have.len() < *wanted)
    }

    /// Looks at the next pages; returns the number of those whose color could be measured.
    fn look(&mut self, known: &mut FrameColors, now: Duration) -> Result<usize, OracleError> {
        let numbers: Vec<u32> = (self.next..self.next + CHUNK).collect();
        let found = self.measure(&numbers)?;
        self.mapping.forget(self.next, CHUNK);
        // Else the kernel keeps them in its batches for a while, and they would not be free after they are given back.
        drain_new_pages();
        self.next += CHUNK;
        self.held += CHUNK;
        let told = found.len();
        for held in found {
            known.learn(held.frame, held.color, now);
            self.sort(held);
        }
        Ok(told)
    }

    fn sort(&mut self, held: StockFrame) {
        if let Some(list) = self.by_color.get_mut(usize::from(held.color.0)) {
            list.push(held);
        }
    }

    /// Returns those pages of the file whose frame and color can be found.
    fn measure(&mut self, numbers: &[u32]) -> Result<Vec<StockFrame>, OracleError> {
        let pages: Vec<Page> = numbers
            .iter()
            .filter_map(|number| self.mapping.page(*number))
            .collect();
        // Reading touches the pages for the first time. Measures twice: a frame with a wrong color is worse than none.
        let mut first = vec![None; pages.len()];
        let mut again = vec![None; pages.len()];
        self.oracle.classify(&pages, &mut first)?;
        self.oracle.classify(&pages, &mut again)?;
        let mut frames = vec![None; pages.len()];
        self.pagemap.frames(&pages, &mut frames)?;
        let told = first.into_iter().zip(again).zip(frames).zip(numbers);
        Ok(told
            .filter_map(|(((first, again), frame), &number)| {
                let color = first.filter(|_| first == again)?;
                let frame = frame?;
                Some(StockFrame {
                    number,
                    frame,
                    color,
                })
            })
            .collect())
    }

    /// Frees a frame of this color on the CPU of the calling thread; returns the frame.
    pub(crate) fn deal(&mut self, color: Color) -> Option<StockFrame> {
        let dealt = self.by_color.get_mut(usize::from(color.0))?.pop()?;
        self.held = self.held.saturating_sub(1);
        let offset = u64::from(dealt.number) * BASE_PAGE_SIZE;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, hole, offset, BASE_PAGE_SIZE).ok()?;
        Some(dealt)
    }

    /// Makes room in the file for frames to catch; returns true if all frames had to be given back for that.
    pub(crate) fn make_room(&mut self, frames: usize) -> bool {
        let room = STOCK_PAGES.saturating_sub(self.next);
        let is_full = usize::try_from(room).is_ok_and(|room| room < frames);
        if is_full {
            self.give_back();
        }
        is_full
    }

    /// Takes the frame that this CPU hands out next, the one that was freed last, into the stock's memory.
    /// [`Self::measure_caught`] sorts it later.
    ///
    /// # Errors
    /// Without memory, or without room in the file (see [`Self::make_room`]), or if frame numbers are hidden.
    pub(crate) fn catch(&mut self) -> Result<UnmeasuredFrame, OracleError> {
        let number = self.next;
        let offset = u64::from(number) * BASE_PAGE_SIZE;
        let taken = fallocate(&self.file, FallocateFlags::empty(), offset, BASE_PAGE_SIZE);
        let page = self.mapping.page(number);
        if let (Ok(()), Some(page)) = (taken, page) {
            self.next += 1;
            self.held += 1;
            // The page must be mapped for its frame to show.
            let mut frame = [None];
            page.touch();
            self.pagemap.frames(&[page], &mut frame)?;
            let [frame] = frame;
            return Ok(UnmeasuredFrame { number, frame });
        }
        Err(OracleError::Unavailable("no memory".to_owned()))
    }

    /// Measures caught frames: the frame that was measured and its color, `None` if it cannot be measured. Sorts the measured ones into the stock.
    ///
    /// # Errors
    /// As for [`Self::provide`].
    pub(crate) fn measure_caught(
        &mut self,
        caught: &[UnmeasuredFrame],
    ) -> Result<Vec<Option<(Pfn, Color)>>, OracleError> {
        let numbers: Vec<u32> = caught.iter().map(|it| it.number).collect();
        let found = self.measure(&numbers)?;
        for number in &numbers {
            self.mapping.forget(*number, 1);
        }
        drain_new_pages();
        let colors = caught.iter().map(|it| {
            let found = found.iter().find(|held| held.number == it.number);
            found.map(|held| (held.frame, held.color))
        });
        let colors = colors.collect();
        for held in found {
            self.sort(held);
        }
        Ok(colors)
    }

    /// Gives all memory back to the kernel.
    pub(crate) fn give_back(&mut self) {
        if self.held == 0 && self.next == 0 {
            return;
        }
        let length = u64::from(STOCK_PAGES) * BASE_PAGE_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Memory that cannot be given back stays ours.
        let _ = fallocate(&self.file, punch, 0, length);
        self.by_color.iter_mut().for_each(Vec::clear);
        (self.held, self.next) = (0, 0);
    }
}

/// A frame taken off the CPU's list, not measured yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UnmeasuredFrame {
    number: u32,
    /// The frame; `None` if it is unknown.
    pub(crate) frame: Option<Pfn>,
}
