//! Page frames of known colors, ready to be dealt to programs.
//!
//! What a visit needs most of its time for is finding pages of the right colors. So they are found beforehand, in memory of
//! the visitor's own, and handed over by way of the kernel: a page of the stock's file is given back by the program's own
//! thread, on its own CPU, and its next fresh page gets the frame that was freed last (`mm/page_alloc.c`, lists per CPU).
//! That is likely, not certain. So in some visits what was got is measured: as long as it is what was dealt, that is
//! believed in the others, which are over several times sooner.
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
use superhue_color::oracles::{HardwareProbe, Mapping, MeasuredOracle, Oracle};
use superhue_model::{BASE_PAGE_SIZE, Color, PageCount};
use superhue_sys::advise::drain_new_pages;

/// Pages looked at in one go.
const CHUNK: u32 = 64;

/// Address space of the stock; resident is what was looked at and not dealt.
const LARGEST: u32 = 1 << 20;

/// Pages looked at for one visit, at most; and times in a row that no color can be told.
const AT_ONCE: u32 = 1 << 15;
const IN_VAIN: u32 = 4;

/// More pages than this are not kept for the sake of fewer than that.
const MUCH: u32 = 1 << 12;
const FEW: usize = 64;

/// What was dealt is believed once so many were compared, and four of five were right ...
const COMPARED: u32 = 48;

/// ... for so many visits in a row.
const BELIEVED: u32 = 16;

/// A page of the stock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Card {
    /// Where in the file it is.
    pub(crate) offset: u64,
    pub(crate) color: Color,
}

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
    trust: Trust,
}

/// How often a fresh page was measured to have the color that was dealt.
#[derive(Debug, Default)]
struct Trust {
    compared: u32,
    right: u32,
    /// Visits since it was measured last.
    believed: u32,
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
            trust: Trust::default(),
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
        let (mut searched, mut in_vain) = (0, 0);
        if self.held > MUCH && wanted.iter().sum::<usize>() < FEW {
            self.give_back();
        }
        if self.trust.compared == 0 && limit >= 2 * CHUNK && wanted.iter().any(|wanted| *wanted > 0)
        {
            self.look(oracle);
            self.try_dealing(oracle);
        }
        while self.lacks(wanted) && searched < limit.min(AT_ONCE) && in_vain < IN_VAIN {
            if self.next + CHUNK > LARGEST || self.held + CHUNK > limit {
                // What is held has no use, else it would not be lacking: other frames, perhaps.
                self.give_back();
            }
            in_vain = if self.look(oracle) == 0 {
                in_vain + 1
            } else {
                0
            };
            searched += CHUNK;
        }
    }

    fn lacks(&self, wanted: &[usize]) -> bool {
        let mut both = wanted.iter().zip(&self.by_color);
        both.any(|(wanted, have)| have.len() < *wanted)
    }

    /// Looks at the pages that follow; of how many the color could be told.
    fn look(&mut self, oracle: &mut MeasuredOracle<HardwareProbe>) -> usize {
        // The first touch is the reading.
        let colors = self.measure(oracle, CHUNK);
        // Once more: a page that is taken for one of another color is worth less than none.
        let again = self.measure(oracle, CHUNK);
        let mut told = 0;
        for ((number, color), again) in (self.next..).zip(colors).zip(again) {
            if let Some(color) = color.filter(|color| again == Some(*color)) {
                self.sort(number, color);
                told += 1;
            }
        }
        self.advance(CHUNK);
        told
    }

    fn sort(&mut self, number: u32, color: Color) {
        if let Some(list) = self.by_color.get_mut(usize::from(color.0)) {
            list.push(number);
        }
    }

    /// The colors of so many pages of the file that follow.
    fn measure(
        &self,
        oracle: &mut MeasuredOracle<HardwareProbe>,
        count: u32,
    ) -> Vec<Option<Color>> {
        let pages: Vec<Page> = (self.next..self.next + count)
            .filter_map(|number| self.mapping.page(number))
            .collect();
        let mut colors = vec![None; pages.len()];
        if oracle.classify(&pages, &mut colors).is_err() {
            colors.fill(None);
        }
        colors
    }

    /// Goes on behind so many pages that were looked at.
    fn advance(&mut self, count: u32) {
        self.mapping.forget(self.next, count);
        // Else the kernel holds on to them for a while, and they would not be free when they are given back.
        drain_new_pages();
        self.next += count;
        self.held += count;
    }

    /// Deals pages to this process itself, and measures what it got: what programs get need not all be measured then.
    fn try_dealing(&mut self, oracle: &mut MeasuredOracle<HardwareProbe>) {
        let colors = 0..u16::try_from(self.by_color.len()).unwrap_or(u16::MAX);
        let mut cards = Vec::new();
        for color in colors.map(Color) {
            while cards.len() < CHUNK as usize
                && let Some(card) = self.take(color)
            {
                cards.push(card);
            }
        }
        let first = u64::from(self.next) * BASE_PAGE_SIZE;
        let offsets = (first..).step_by(BASE_PAGE_SIZE as usize);
        for (card, offset) in cards.iter().zip(offsets) {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let dealt = fallocate(&self.file, hole, card.offset, BASE_PAGE_SIZE).and_then(|()| {
                fallocate(&self.file, FallocateFlags::empty(), offset, BASE_PAGE_SIZE)
            });
            if dealt.is_err() {
                return;
            }
        }
        let count = u32::try_from(cards.len()).unwrap_or(CHUNK);
        let got = self.measure(oracle, count);
        for ((number, card), color) in (self.next..).zip(cards).zip(got) {
            if let Some(color) = color {
                self.compare(card, color);
                self.sort(number, color);
            }
        }
        self.advance(count);
    }

    /// A page of this color; it counts as dealt.
    pub(crate) fn take(&mut self, color: Color) -> Option<Card> {
        let number = self.by_color.get_mut(usize::from(color.0))?.pop()?;
        self.held = self.held.saturating_sub(1);
        let offset = u64::from(number) * BASE_PAGE_SIZE;
        Some(Card { offset, color })
    }

    /// Whether programs get what is dealt, so that it need not be measured in this visit.
    pub(crate) fn is_believed(&mut self) -> bool {
        self.trust.is_earned()
    }

    /// Learns what a program got.
    pub(crate) fn compare(&mut self, dealt: Card, got: Color) {
        self.trust.compare(dealt.color == got);
    }

    /// Pages there are of a color.
    pub(crate) fn count(&self, color: Color) -> usize {
        let list = self.by_color.get(usize::from(color.0));
        list.map_or(0, Vec::len)
    }

    /// Gives all memory back to the kernel.
    pub(crate) fn give_back(&mut self) {
        if self.held == 0 && self.next == 0 {
            return;
        }
        let length = u64::from(LARGEST) * BASE_PAGE_SIZE;
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // What cannot be given back stays ours.
        let _ = fallocate(&self.file, punch, 0, length);
        self.by_color.iter_mut().for_each(Vec::clear);
        (self.held, self.next) = (0, 0);
    }
}

impl Trust {
    fn compare(&mut self, is_right: bool) {
        /// What was long ago counts less.
        const MANY: u32 = 512;
        self.believed = 0;
        self.compared += 1;
        self.right += u32::from(is_right);
        if self.compared >= MANY {
            self.compared /= 2;
            self.right /= 2;
        }
    }

    fn is_earned(&mut self) -> bool {
        let is_right = self.compared >= COMPARED && self.right * 5 >= self.compared * 4;
        self.believed += 1;
        is_right && self.believed <= BELIEVED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(right: u32, wrong: u32) -> Trust {
        let mut trust = Trust::default();
        for at in 0..right + wrong {
            trust.compare(at < right);
        }
        trust
    }

    #[test]
    fn what_was_dealt_is_believed_while_it_is_measured_to_be_right() {
        assert!(!after(0, 0).is_earned());
        assert!(!after(COMPARED - 1, 0).is_earned());
        assert!(!after(70, 30).is_earned());
        let mut trust = after(90, 10);
        let visits = (0..100).take_while(|_| trust.is_earned()).count();
        assert_eq!(visits, BELIEVED as usize);
        trust.compare(true);
        assert!(trust.is_earned());
    }

    #[test]
    fn trust_is_lost_when_the_kernel_deals_otherwise() {
        let mut trust = after(100_000, 0);
        assert!(trust.is_earned());
        for _ in 0..200 {
            trust.compare(false);
        }
        assert!(!trust.is_earned());
    }
}
