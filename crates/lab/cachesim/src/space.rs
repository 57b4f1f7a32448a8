//! Pages of a program that is replayed while it runs: nobody knows beforehand which it will touch.
//!
//! ```text
//!   address ──> Space ──> offset ──> Deal: the frame that a draw dealt ──> System
//!               (one for all draws: pages in the order of their first touch)
//! ```
//!
//! A [`Space`] gives each page a number when it is touched first, as kernels do with frames, and says at which offset of the
//! memory so numbered an address lies. A [`Deal`] has a frame for each number. A superpage has numbers for all its base
//! pages, one after the other; base pages that become one get new numbers, because their bytes move to other frames.

use std::collections::{HashMap, HashSet};

use crate::placement::Pages;
use crate::random::Random;

/// Base pages come from the first half of physical memory, superpages from the third quarter, page tables from the last:
/// 16 GiB in all, which the models' tags hold.
const HALF: u64 = 8 << 30;
const QUARTER: u64 = 4 << 30;
/// More than this of either part is not dealt: the last frames would be looked for too long.
const FULLEST: u64 = 7;
const OF: u64 = 8;
/// Entries of the table that is looked at first.
const QUICK: usize = 4096;
const NOWHERE: (u64, u64) = (u64::MAX, 0);

/// Physical memory is used up.
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
    /// By number: virtual page number << 1 | whether it is part of a superpage.
    pages: Vec<u64>,
    numbers: HashMap<u64, u64>,
    /// What `numbers` says of pages used lately, by the last bits of their virtual page number.
    quick: Vec<(u64, u64)>,
    /// Base pages, and base pages in superpages, that are dealt.
    dealt: [u64; 2],
}

impl Space {
    /// Without pages.
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

    /// Gives the page of an address a number; its offset.
    ///
    /// # Errors
    /// If memory is used up.
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

    /// Makes the superpage of an address, whatever pages it had.
    ///
    /// # Errors
    /// If memory is used up.
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

    /// How many base pages of the superpage around an address were touched, and whether it is one.
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

    /// The pages that a range has a byte of are no longer there.
    pub fn forget(&mut self, start: u64, bytes: u64) {
        for page in self.touched(start, bytes) {
            self.numbers.remove(&page);
        }
        self.quick.fill(NOWHERE);
    }

    /// The pages of a range are somewhere else now, in the same frames, and what was there is gone; what is part of a superpage
    /// is split.
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
        // A range may be all of memory.
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

    /// Base pages that were touched, and base pages in superpages, those included that are gone.
    #[must_use]
    pub const fn dealt(&self) -> [u64; 2] {
        self.dealt
    }
}

/// How a draw deals frames to base pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Any.
    Any,
    /// So many colors in turn.
    Colors(u64),
}

/// The frames of a draw.
#[derive(Debug, Clone)]
pub struct Deal {
    rule: Rule,
    random: Random,
    next: u64,
    used: HashSet<u64>,
    /// By number: frame << 1 | whether it is part of a superpage.
    frames: Vec<u64>,
    tables: u64,
}

impl Deal {
    /// Nothing is dealt yet.
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

    /// Deals frames to the pages of a space that have none yet.
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

    /// As placed pages, for a [`System`](crate::System).
    #[must_use]
    pub const fn of<'a>(&'a self, space: &'a Space) -> Dealt<'a> {
        Dealt { deal: self, space }
    }
}

/// The pages of a space in the frames of a draw.
#[derive(Debug, Clone, Copy)]
pub struct Dealt<'a> {
    deal: &'a Deal,
    space: &'a Space,
}

impl Dealt<'_> {
    #[inline]
    fn virtual_page(&self, at: u64) -> u64 {
        self.space.pages[(at >> self.space.page_shift) as usize] >> 1
    }
}

impl Pages for Dealt<'_> {
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
        // A table is in any frame of the last quarter of memory: always in the same one, and nothing has to be kept.
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
