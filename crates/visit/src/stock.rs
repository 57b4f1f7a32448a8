//! Page frames of known colors, ready to be dealt to programs.
//!
//! What a visit needs most of its time for is finding pages of the right colors. So they are found beforehand, in memory of
//! the visitor's own, and handed over by way of the kernel: a page of the stock's file is given back by the program's own
//! thread, on its own CPU, and its next fresh page gets the frame that was freed last (`mm/page_alloc.c`, lists per CPU).
//! That is likely, not certain: the colors of what it got are measured all the same.
//!
//! ```text
//!   stock    |3|1|7|-|2|?|...     a file in memory; -: dealt   ?: no color that could be told
//!   deal     fallocate(PUNCH_HOLE) of a 7, touch a fresh page: a 7
//! ```
//!
//! Pages of colors that nobody wants are held on to, up to a limit: given back, they would be the very ones that the kernel
//! hands out next.

use rustix::fd::OwnedFd;
use rustix::fs::{
    FallocateFlags, MemfdFlags, Mode, SealFlags, fallocate, fchmod, fcntl_add_seals, ftruncate,
    memfd_create,
};
use rustix::io::Errno;
use superhue_color::Page;
use superhue_color::observe::{HardwareProbe, Mapping, MeasuredOracle, Oracle};
use superhue_model::{BASE_PAGE_SIZE, Color, PageCount};
use superhue_sys::advise::drain_new_pages;

/// Pages looked at in one go.
const CHUNK: u32 = 64;

/// Address space of the stock; resident is what was looked at and not dealt.
const LARGEST: u32 = 1 << 18;

/// Pages sorted by color.
#[derive(Debug)]
pub(crate) struct Stock {
    file: OwnedFd,
    mapping: Mapping,
    /// Numbers of pages of each color.
    by_color: Vec<Vec<u32>>,
    /// Pages that were looked at and are still there.
    held: u32,
    /// The first page that was not looked at.
    next: u32,
}

impl Stock {
    pub(crate) fn new(colors: usize) -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("superhue-stock", flags)?;
        let length = u64::from(LARGEST) * BASE_PAGE_SIZE;
        ftruncate(&file, length)?;
        // Programs are handed it for the time of a visit: they cannot pull it away from under us, and no other user can
        // open it. What they write there is never read.
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        let mapping = Mapping::new(&file, usize::try_from(length).map_err(|_| Errno::NOMEM)?)?;
        Ok(Self {
            file,
            mapping,
            by_color: vec![Vec::new(); colors],
            held: 0,
            next: 0,
        })
    }

    pub(crate) const fn file(&self) -> &OwnedFd {
        &self.file
    }

    /// Looks at more pages until each color has as many as `wanted` says, or `limit` pages are held.
    pub(crate) fn provide(
        &mut self,
        oracle: &mut MeasuredOracle<HardwareProbe>,
        wanted: &[usize],
        limit: PageCount,
    ) {
        let limit = u32::try_from(limit.0).unwrap_or(u32::MAX).min(LARGEST);
        let mut searched = 0;
        while self.lacks(wanted) && searched < limit {
            if self.next + CHUNK > LARGEST || self.held + CHUNK > limit {
                // What is held has no use, else it would not be lacking: other frames, perhaps.
                self.give_back();
            }
            self.look(oracle);
            searched += CHUNK;
        }
    }

    fn lacks(&self, wanted: &[usize]) -> bool {
        let mut both = wanted.iter().zip(&self.by_color);
        both.any(|(wanted, have)| have.len() < *wanted)
    }

    fn look(&mut self, oracle: &mut MeasuredOracle<HardwareProbe>) {
        let first = self.next;
        let numbers: Vec<u32> = (first..first + CHUNK).collect();
        let pages: Vec<Page> = (numbers.iter())
            .filter_map(|number| self.mapping.page(*number))
            .collect();
        self.next += CHUNK;
        self.held += CHUNK;
        let mut colors = vec![None; pages.len()];
        // The first touch is the reading.
        let told = oracle.classify(&pages, &mut colors);
        self.mapping.forget(first, CHUNK);
        // Else the kernel holds on to them for a while, and they would not be free when they are given back.
        drain_new_pages();
        if told.is_err() {
            return;
        }
        for (number, color) in numbers.into_iter().zip(colors) {
            let list = color.and_then(|Color(color)| self.by_color.get_mut(usize::from(color)));
            if let Some(list) = list {
                list.push(number);
            }
        }
    }

    /// Where in the file a page of this color is; it counts as dealt.
    pub(crate) fn take(&mut self, color: Color) -> Option<u64> {
        let number = self.by_color.get_mut(usize::from(color.0))?.pop()?;
        self.held = self.held.saturating_sub(1);
        Some(u64::from(number) * BASE_PAGE_SIZE)
    }

    /// Pages there are of a color.
    pub(crate) fn count(&self, color: Color) -> usize {
        let list = self.by_color.get(usize::from(color.0));
        list.map_or(0, Vec::len)
    }

    /// Gives all memory back to the kernel.
    pub(crate) fn give_back(&mut self) {
        let length = u64::from(LARGEST) * BASE_PAGE_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // What cannot be given back stays ours.
        let _ = fallocate(&self.file, punch, 0, length);
        self.by_color.iter_mut().for_each(Vec::clear);
        (self.held, self.next) = (0, 0);
    }
}
