//! Placement of a program's pages in frames.

use crate::random::Random;

/// Map of a program's memory to page frames, for a [`System`](crate::System). An address in that memory is an offset.
pub trait Pages {
    /// The physical address of an offset; true if a huge page maps it.
    fn translate(&self, at: u64) -> (u64, bool);
    /// The virtual address of an offset.
    fn address(&self, at: u64) -> u64;
    /// The virtual number of the page that holds an offset, in units of the size of that page.
    fn page_number(&self, at: u64, superpage: bool) -> u64;
    /// The physical addresses of the page table's entries for an offset, with `entry` bytes to an entry: the entry of a
    /// base page, and that of the directory.
    fn entries(&self, at: u64, entry: u64) -> (u64, u64);
}

/// Virtual pages, in order, with their frames; some pages are parts of huge pages.
///
/// Offsets count from the first page. Kernels do not report the frames of page tables, so these are drawn at random,
/// unless the caller knows them: [`Placement::with_tables`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    page_shift: u32,
    super_shift: u32,
    /// Virtual number of the first page, in units of base pages.
    first: u64,
    /// Frame number << 1 | 1 if the page is part of a huge page.
    frames: Vec<u64>,
    /// Page frames of 4 KiB of the page tables: the directory, then the tables of entries; drawn.
    tables: Vec<u64>,
}

/// Reason why a kernel cannot have dealt these frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// The frames of a huge page are not neighbouring and aligned.
    #[error("page {0} is part of a superpage whose frames are not contiguous or not aligned")]
    BrokenSuperpage(usize),
    /// Two pages have the same frame.
    #[error("frame {0:#x} is given to two pages")]
    Twice(u64),
    /// Page tables, or an address, that belong to other memory.
    #[error(
        "address {address:#x} and {tables} page tables are not those of {pages} pages that begin {lead} behind a superpage's boundary"
    )]
    OtherTables {
        /// Address of the memory, from the caller.
        address: u64,
        /// Number of tables of entries.
        tables: usize,
        /// Number of base pages.
        pages: usize,
        /// Distance of the memory from a huge page's boundary, in base pages.
        lead: u64,
    },
}

/// Virtual address at which placements begin, in the range that mmap uses.
const FAR: u64 = 0x7f00_0000_0000;
/// Physical memory to draw frames from, in base pages of 4 KiB: 1 GiB.
const FRAMES: u64 = 1 << 18;

impl Placement {
    fn new(page: u64, superpage: u64, lead: u64, frames: Vec<u64>, random: &mut Random) -> Self {
        let page_shift = page.trailing_zeros();
        // A table has at least 512 entries.
        let tables = (0..frames.len() / 512 + 3)
            .map(|_| random.below(FRAMES) | FRAMES)
            .collect();
        Self {
            page_shift,
            super_shift: superpage.trailing_zeros(),
            first: (FAR >> page_shift) + lead,
            frames,
            tables,
        }
    }

    /// Deals frames in sequence, like a kernel right after boot.
    #[must_use]
    pub fn sequential(pages: usize, page: u64, first_frame: u64) -> Self {
        let frames = (0..pages as u64)
            .map(|at| (first_frame + at) << 1)
            .collect();
        Self::new(page, page, 0, frames, &mut Random::new(first_frame))
    }

    /// Deals random frames, as from a fully mixed free list.
    #[must_use]
    pub fn random(pages: usize, page: u64, random: &mut Random) -> Self {
        let frames = distinct(pages, |random| random.below(frames_of(page)), random);
        Self::new(page, page, 0, frames, random)
    }

    /// Deals all colors in turn, beginning with a random one: the rule of the kernel series. The frame within the color
    /// is random.
    #[must_use]
    pub fn colored(pages: usize, page: u64, colors: u64, random: &mut Random) -> Self {
        let all: Vec<u64> = (0..colors).collect();
        Self::colored_set(pages, page, colors, &all, random)
    }

    /// Deals the colors of a set in turn, out of `colors` colors.
    ///
    /// # Panics
    /// If the set is empty.
    #[must_use]
    pub fn colored_set(
        pages: usize,
        page: u64,
        colors: u64,
        set: &[u64],
        random: &mut Random,
    ) -> Self {
        let mut next = random.below(set.len() as u64) as usize;
        let rows = (frames_of(page) / colors).max(pages as u64 * 4);
        let mut used = std::collections::HashSet::new();
        let frames = (0..pages)
            .map(|_| {
                let color = set[next % set.len()];
                next += 1;
                loop {
                    let frame = random.below(rows) * colors + color;
                    if used.insert(frame) {
                        break frame << 1;
                    }
                }
            })
            .collect();
        Self::new(page, page, 0, frames, random)
    }

    /// Deals a random huge page wherever a whole one fits; the pages before and behind them keep the frames of `rest`.
    ///
    /// The first page lies `lead` pages behind the beginning of a huge page.
    #[must_use]
    pub fn superpages(
        pages: usize,
        (page, superpage): (u64, u64),
        lead: u64,
        rest: &Self,
        random: &mut Random,
    ) -> Self {
        let each = superpage / page;
        let mut used = std::collections::HashSet::new();
        let mut frames: Vec<u64> = rest.frames.iter().take(pages).copied().collect();
        let head = (each - lead % each) % each;
        let mut at = head as usize;
        while at + each as usize <= pages {
            let block = loop {
                let block = random.below(frames_of(page) / each) + frames_of(page) * 2 / each;
                if used.insert(block) {
                    break block;
                }
            };
            for inside in 0..each {
                frames[at + inside as usize] = (block * each + inside) << 1 | 1;
            }
            at += each as usize;
        }
        Self::new(page, superpage, lead % each, frames, random)
    }

    /// Takes the frames that a real kernel dealt: base pages of 4 KiB, huge pages of 2 MiB; `frames` as in
    /// [`crate::dump`]. The first page lies `lead` pages behind a boundary of 2 MiB.
    ///
    /// # Errors
    /// Frames that no kernel deals in this way.
    pub fn dealt(frames: &[u32], lead: u64, random: &mut Random) -> Result<Self, PlacementError> {
        const SUPERPAGE: u32 = 1 << 31;
        let mut used = std::collections::HashSet::new();
        for (index, word) in frames.iter().enumerate() {
            let frame = word & !SUPERPAGE;
            if !used.insert(frame) {
                return Err(PlacementError::Twice(u64::from(frame)));
            }
            if word & SUPERPAGE == 0 {
                continue;
            }
            let inside = (lead + index as u64) % 512;
            let start = index as u64 - inside.min(index as u64);
            let whole = inside <= index as u64 && start + 512 <= frames.len() as u64;
            let begin = frames.get(start as usize).copied().unwrap_or_default();
            if !whole
                || u64::from(frame) % 512 != inside
                || u64::from(frame) != u64::from(begin & !SUPERPAGE) + inside
            {
                return Err(PlacementError::BrokenSuperpage(index));
            }
        }
        let frames = frames
            .iter()
            .map(|word| u64::from(word & !SUPERPAGE) << 1 | u64::from(word >> 31))
            .collect();
        Ok(Self::new(4096, 2 << 20, lead, frames, random))
    }

    /// Sets the virtual address of the memory, and the frames of 4 KiB of its page tables: the directory, and for each
    /// 2 MiB of addresses the table of entries of 8 bytes (any frame, if a huge page maps them).
    ///
    /// # Errors
    /// If address or tables belong to other memory.
    pub fn with_tables(
        mut self,
        address: u64,
        directory: u64,
        tables: &[u64],
    ) -> Result<Self, PlacementError> {
        let each = self.page() / 8;
        let (lead, first) = (self.first % each, address >> self.page_shift);
        let needed = (lead + self.frames.len() as u64).div_ceil(each);
        if first % each != lead
            || !address.is_multiple_of(self.page())
            || tables.len() as u64 != needed
        {
            return Err(PlacementError::OtherTables {
                address,
                tables: tables.len(),
                pages: self.frames.len(),
                lead,
            });
        }
        self.first = first;
        self.tables = std::iter::once(directory)
            .chain(tables.iter().copied())
            .collect();
        Ok(self)
    }

    /// Keeps the first `pages` pages alone. Huge pages that are cut become base pages.
    #[must_use]
    pub fn prefix(&self, pages: usize) -> Self {
        let mut short = self.clone();
        short.frames.truncate(pages);
        let each = 1u64 << (self.super_shift - self.page_shift);
        let end = self.first + short.frames.len() as u64;
        let cut = end % each;
        if cut != 0 && each > 1 {
            let from = short.frames.len().saturating_sub(cut as usize);
            for frame in &mut short.frames[from..] {
                *frame &= !1;
            }
        }
        short
    }

    /// Moves the pages to other memory: adds `by` to each frame number. If `by` is a multiple of the number of frames
    /// after which the sets of every cache repeat, the colors stay.
    #[must_use]
    pub fn moved(&self, by: u64) -> Self {
        let mut moved = self.clone();
        for frame in &mut moved.frames {
            *frame += by << 1;
        }
        for table in &mut moved.tables {
            *table += by;
        }
        moved
    }

    /// Number of base pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Returns true if it has no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Bytes of a base page.
    #[must_use]
    pub fn page(&self) -> u64 {
        1 << self.page_shift
    }

    /// The frame of a page, in units of base pages.
    #[must_use]
    pub fn frame(&self, page: usize) -> u64 {
        self.frames[page] >> 1
    }

    /// The physical address of an offset; true if a huge page maps it.
    ///
    /// # Panics
    /// If the offset lies behind the last page.
    #[inline]
    #[must_use]
    pub fn translate(&self, at: u64) -> (u64, bool) {
        let frame = self.frames[(at >> self.page_shift) as usize];
        let inside = at & ((1 << self.page_shift) - 1);
        ((frame >> 1) << self.page_shift | inside, frame & 1 == 1)
    }

    /// The virtual address of an offset.
    #[inline]
    #[must_use]
    pub fn address(&self, at: u64) -> u64 {
        (self.first << self.page_shift) + at
    }
}

impl Pages for Placement {
    #[inline]
    fn translate(&self, at: u64) -> (u64, bool) {
        Self::translate(self, at)
    }

    #[inline]
    fn address(&self, at: u64) -> u64 {
        Self::address(self, at)
    }

    #[inline]
    fn page_number(&self, at: u64, superpage: bool) -> u64 {
        let shift = if superpage {
            self.super_shift
        } else {
            self.page_shift
        };
        self.address(at) >> shift
    }

    #[inline]
    fn entries(&self, at: u64, entry: u64) -> (u64, u64) {
        let each = self.page() / entry;
        let number = self.first + (at >> self.page_shift);
        let table = (number / each - self.first / each) as usize;
        let leaf = self.tables[(table + 1) % self.tables.len()];
        (
            (leaf << 12) + number % each * entry,
            (self.tables[0] << 12) + number / each % each * entry,
        )
    }
}

fn frames_of(page: u64) -> u64 {
    FRAMES * 4096 / page
}

fn distinct(
    pages: usize,
    mut one: impl FnMut(&mut Random) -> u64,
    random: &mut Random,
) -> Vec<u64> {
    let mut used = std::collections::HashSet::new();
    (0..pages)
        .map(|_| {
            loop {
                let frame = one(random);
                if used.insert(frame) {
                    break frame << 1;
                }
            }
        })
        .collect()
}
