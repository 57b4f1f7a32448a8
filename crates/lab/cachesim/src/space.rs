//! Pages of a program that is replayed while it runs: the pages that it will touch are not known beforehand.
//!
//! ```text
//!   address ──> Space ──> offset ──> Deal: the frame that a draw dealt ──> System
//!               (one for all draws: pages in the order of their first touch)
//! ```
//!
//! A [`Space`] numbers each page at its first touch, as kernels do with frames, and translates an address to an offset
//! in the memory so numbered. A [`Deal`] has a frame for each number. A huge page has consecutive numbers for all its
//! base pages; base pages that become a huge page get new numbers, because their bytes move to other frames.

use std::collections::{HashMap, HashSet};

use crate::placement::Pages;
use crate::random::Random;

/// Size of the first half of physical memory, from which base pages come; huge pages come from the third quarter, page
/// tables from the last. 16 GiB in all, which the models' tags hold.
const HALF: u64 = 8 << 30;
const QUARTER: u64 = 4 << 30;
/// Largest share of either part that is dealt, in units of 1 / `OF`: beyond it, the search for a free frame would take
/// too long.
const FULLEST: u64 = 7;
const OF: u64 = 8;
/// Entries of the table for recent pages.
const QUICK: usize = 4096;
const NOWHERE: (u64, u64) = (u64::MAX, 0);

/// Error: the program has used up the modelled physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the program touches more memory than is modelled (7 GiB of base pages, 3.5 GiB of superpages)"
)]
pub struct Full;

/// Pages in the order of their first touch.
#[derive(Debug, Clone)]
pub struct Space {
    page_shift: u32,
    super_shift: u32,
    /// By number: virtual page number << 1 | 1 if it is part of a huge page.
    pages: Vec<u64>,
    numbers: HashMap<u64, u64>,
    /// Entries of `numbers` for recent pages, by the last bits of their virtual page number.
    quick: Vec<(u64, u64)>,
    /// Base pages, and base pages in huge pages, that are dealt.
    dealt: [u64; 2],
}

impl Space {
    /// Makes a space without pages.
    #[must_use]
    pub fn new(page: u64, superpage: u64) -> Self {
        Self {
            page_shift: page.trailing_zeros(),
            super_shift: superpage.trailing_zeros(),
            pages: Vec::new(),
            numbers: HashMap::new(),
            quick: vec![NOWHERE; QUICK],
            dealt: [0; 2],
        }
    }

    /// The offset of an address, if its page was touched.
    #[inline]
    pub fn find(&mut self, address: u64) -> Option<u64> {
        let page = address >> self.page_shift;
        let slot = (page as usize) % QUICK;
        let inside = address & ((1 << self.page_shift) - 1);
        let (held, number) = self.quick[slot];
        if held == page {
            return Some(number << self.page_shift | inside);
        }
        let number = *self.numbers.get(&page)?;
        self.quick[slot] = (page, number);
        Some(number << self.page_shift | inside)
    }

    /// Numbers the page of an address, and returns the address's offset.
    ///
    /// # Errors
    /// If the modelled memory is used up.
    pub fn touch(&mut self, address: u64) -> Result<u64, Full> {
        let page = address >> self.page_shift;
        let number = self.pages.len() as u64;
        if self.dealt[0] * OF >= (HALF >> self.page_shift) * FULLEST {
            return Err(Full);
        }
        self.dealt[0] += 1;
        self.pages.push(page << 1);
        self.numbers.insert(page, number);
        self.quick[(page as usize) % QUICK] = (page, number);
        Ok(number << self.page_shift | address & ((1 << self.page_shift) - 1))
    }

    /// Makes the huge page around an address, and replaces the pages that were there.
    ///
    /// # Errors
    /// If the modelled memory is used up.
    pub fn promote(&mut self, address: u64) -> Result<(), Full> {
        let each = 1u64 << (self.super_shift - self.page_shift);
        if (self.dealt[1] + each) * OF > (QUARTER >> self.page_shift) * FULLEST {
            return Err(Full);
        }
        self.dealt[1] += each;
        let first = address >> self.super_shift << (self.super_shift - self.page_shift);
        for page in first..first + each {
            self.numbers.insert(page, self.pages.len() as u64);
            self.pages.push(page << 1 | 1);
        }
        self.quick.fill(NOWHERE);
        Ok(())
    }

    /// Number of touched base pages in the huge page's range around an address; true if a huge page maps the range.
    #[must_use]
    pub fn around(&self, address: u64) -> (u64, bool) {
        let each = 1u64 << (self.super_shift - self.page_shift);
        let first = address >> self.super_shift << (self.super_shift - self.page_shift);
        let numbers = (first..first + each).filter_map(|page| self.numbers.get(&page));
        let (mut count, mut large) = (0, false);
        for number in numbers {
            count += 1;
            large |= self.pages[*number as usize] & 1 == 1;
        }
        (count, large)
    }

    /// Removes every page that has a byte in the range.
    pub fn forget(&mut self, start: u64, bytes: u64) {
        for page in self.touched(start, bytes) {
            self.numbers.remove(&page);
        }
        self.quick.fill(NOWHERE);
    }

    /// Moves the pages of a range to other addresses, in the same frames, and removes the pages that were there.
    /// Removes pages that are part of a huge page: the huge page is split.
    pub fn rename(&mut self, start: u64, bytes: u64, to: u64) {
        let (from, to) = (start >> self.page_shift, to >> self.page_shift);
        let moved: Vec<(u64, u64)> = (self.touched(start, bytes).into_iter())
            .filter_map(|page| Some((page - from + to, self.numbers.remove(&page)?)))
            .collect();
        self.forget(to << self.page_shift, bytes);
        for (page, number) in moved {
            if self.pages[number as usize] & 1 == 0 {
                self.pages[number as usize] = page << 1;
                self.numbers.insert(page, number);
            }
        }
        self.quick.fill(NOWHERE);
    }

    /// Virtual page numbers of a range that have a number.
    fn touched(&self, start: u64, bytes: u64) -> Vec<u64> {
        if bytes == 0 {
            return Vec::new();
        }
        let first = start >> self.page_shift;
        let end = start.saturating_add(bytes).div_ceil(1 << self.page_shift);
        // The range may cover all of memory.
        if end - first.min(end) < self.numbers.len() as u64 {
            return (first..end)
                .filter(|page| self.numbers.contains_key(page))
                .collect();
        }
        let inside = self
            .numbers
            .keys()
            .filter(|page| (first..end).contains(page));
        inside.copied().collect()
    }

    /// Base pages touched, and base pages in huge pages, including those removed since.
    #[must_use]
    pub const fn dealt(&self) -> [u64; 2] {
        self.dealt
    }
}

/// Rule by which a draw deals frames to base pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Any frame.
    Any,
    /// Number of colors, in turn.
    Colors(u64),
}

/// The frames of a draw.
#[derive(Debug, Clone)]
pub struct Deal {
    rule: Rule,
    random: Random,
    next: u64,
    used: HashSet<u64>,
    /// By number: frame << 1 | 1 if it is part of a huge page.
    frames: Vec<u64>,
    tables: u64,
}

impl Deal {
    /// Makes a draw that has dealt nothing yet.
    #[must_use]
    pub fn new(rule: Rule, mut random: Random) -> Self {
        let next = random.bits() >> 32;
        let tables = random.bits();
        Self {
            rule,
            random,
            next,
            used: HashSet::new(),
            frames: Vec::new(),
            tables,
        }
    }

    /// Deals frames to the pages of a space that have no frame yet.
    pub fn extend(&mut self, space: &Space) {
        let each = 1u64 << (space.super_shift - space.page_shift);
        while let Some(page) = space.pages.get(self.frames.len()) {
            if page & 1 == 0 {
                let frame = self.base(space.page_shift);
                self.frames.push(frame << 1);
                continue;
            }
            let block = loop {
                let block =
                    (HALF >> space.super_shift) + self.random.below(QUARTER >> space.super_shift);
                if self.used.insert(block | 1 << 63) {
                    break block;
                }
            };
            self.frames
                .extend((0..each).map(|inside| (block * each + inside) << 1 | 1));
        }
    }

    fn base(&mut self, page_shift: u32) -> u64 {
        let all = HALF >> page_shift;
        let color = match self.rule {
            Rule::Any => None,
            Rule::Colors(colors) => {
                self.next += 1;
                Some((colors, self.next % colors))
            }
        };
        loop {
            let frame = match color {
                None => self.random.below(all),
                Some((colors, color)) => self.random.below(all / colors) * colors + color,
            };
            if self.used.insert(frame) {
                return frame;
            }
        }
    }

    /// The space's pages in the frames of this draw, for a [`System`](crate::System).
    #[must_use]
    pub const fn of<'a>(&'a self, space: &'a Space) -> DealtPages<'a> {
        DealtPages { deal: self, space }
    }
}

/// The pages of a space in the frames of a draw.
#[derive(Debug, Clone, Copy)]
pub struct DealtPages<'a> {
    deal: &'a Deal,
    space: &'a Space,
}

impl DealtPages<'_> {
    #[inline]
    fn virtual_page(&self, at: u64) -> u64 {
        self.space.pages[(at >> self.space.page_shift) as usize] >> 1
    }
}

impl Pages for DealtPages<'_> {
    #[inline]
    fn translate(&self, at: u64) -> (u64, bool) {
        let shift = self.space.page_shift;
        let frame = self.deal.frames[(at >> shift) as usize];
        let inside = at & ((1 << shift) - 1);
        ((frame >> 1) << shift | inside, frame & 1 == 1)
    }

    #[inline]
    fn address(&self, at: u64) -> u64 {
        let shift = self.space.page_shift;
        self.virtual_page(at) << shift | at & ((1 << shift) - 1)
    }

    #[inline]
    fn page_number(&self, at: u64, superpage: bool) -> u64 {
        let page = self.virtual_page(at);
        if superpage {
            page >> (self.space.super_shift - self.space.page_shift)
        } else {
            page
        }
    }

    fn entries(&self, at: u64, entry: u64) -> (u64, u64) {
        let page = 1u64 << self.space.page_shift;
        let each = page / entry;
        let number = self.virtual_page(at);
        // Computes the frame of a table, at random in the last quarter of memory: always the same one, so it need not
        // be stored.
        let table = |of: u64, level: u64| {
            let frames = QUARTER / page;
            let mixed = Random::new(self.deal.tables ^ (of << 2 | level)).below(frames);
            (HALF + QUARTER) / page + mixed
        };
        let (leaf, directory) = (number / each, number / each / each);
        (
            table(leaf, 0) * page + number % each * entry,
            table(directory, 1) * page + leaf % each * entry,
        )
    }
}
