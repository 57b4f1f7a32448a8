//! Timing of translations: a chase through one line of each of many pages, in random order, in which each load waits for the one before.
//!
//! The pages are addresses of few lines ([`SharedRegion`]), so that the lines stay in the caches however many pages there are:
//!
//! ```text
//!   slot          0      1           15     16     17
//!   base view    |0     |1     | .. |15    |0     |1     | ..      windows of 16 pages, at odd places
//!   line           0      4           60     1      5              each slot has a line of its own
//!
//!   control      |0     |1     | .. |15    |                       the same lines in the same order, through one page, or few
//!   huge view    |0 ............... |1 ....                        slot after slot in huge pages of their own
//! ```
//!
//! The control has the same cache misses. So the difference of the two is the cost of translations.
//!
//! A window begins one page behind an aligned address. Processors that keep translations of neighbouring pages in one entry need pages and frames
//! that are aligned alike; these never are, so every page takes an entry.

mod rounds;

pub use rounds::{ChaseTimes, LEAST_ROUNDS, Rounds};

use std::hint::black_box;
use std::time::Instant;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Random};
use superhue_sys::aliases::{Piece, SharedRegion, View};

const PAGE: usize = BASE_PAGE_SIZE as usize;
const HUGE: usize = HUGE_PAGE_SIZE as usize;
const LINE: usize = 64;
const WORD: usize = size_of::<u64>();

/// Pages of the region that a window shows; that many also hold the lines of the smallest chase in the control.
const WINDOW: usize = 16;

/// Lines of a base page.
const LINES: usize = PAGE / LINE;

/// Slots that share the pages of a window: each takes one of their lines.
const GROUP: usize = WINDOW * LINES;

/// Slots of the base view at most. A step shows if the pages double behind it: so second TLBs of up to 5,700 entries do.
pub const MOST_PAGES: usize = 12_288;

/// Slots of the huge view at most.
pub const MOST_HUGE: usize = 4_096;

/// Slots of a view for full walks at most: each takes two page tables, 48 MiB together.
pub const MOST_FULL: usize = 6_144;

/// Loads that are timed together, at least, and before that loads that bring lines and translations in.
const LOADS: usize = 4_096;

/// Distance of slots of a view for full walks: the memory of a page table of the third level.
const FAR: usize = 1 << 30;

/// Pages that alias few lines, and chases through them.
#[derive(Debug)]
pub struct PageChase {
    region: SharedRegion,
    base: View,
    /// `None` if the region is no huge page.
    huge: Option<View>,
    random: Random,
}

/// Way through the slots. Each has a word of its own in every line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Base,
    Control,
    Huge,
    Spread,
    Full,
}

impl PageChase {
    /// Maps the views; the huge one only if the kernel makes a huge page of the region.
    ///
    /// # Errors
    /// `ENOMEM` past a limit on address space or on the number of mappings; those of `memfd_create(2)`.
    pub fn new() -> Result<Self, Errno> {
        let mut region = SharedRegion::new()?;
        let is_huge = region.collapse().is_ok();
        let windows = (0..MOST_PAGES / WINDOW).map(|window| Piece {
            at: (1 + window * WINDOW) * PAGE,
            from: window * WINDOW / GROUP * WINDOW * PAGE,
            length: WINDOW * PAGE,
        });
        let base = region.view((1 + MOST_PAGES) * PAGE, windows)?;
        let regions = (0..MOST_HUGE).map(|slot| Piece {
            at: slot * HUGE,
            from: 0,
            length: HUGE,
        });
        let huge = match is_huge {
            // The limit on address space or mappings may be lower; base pages are measured all the same.
            true => region.view(MOST_HUGE * HUGE, regions).ok(),
            false => None,
        };
        Ok(Self {
            region,
            base,
            huge,
            random: Random::new(1),
        })
    }

    /// True if there are huge pages to measure.
    pub const fn has_huge(&self) -> bool {
        self.huge.is_some()
    }

    /// Returns nanoseconds per load of a chase through `slots` base pages, at most [`MOST_PAGES`], and of its control.
    pub fn time_base(&mut self, slots: usize) -> [f64; 2] {
        let order = self.order(slots.min(MOST_PAGES));
        self.link(&order, Way::Base, base_word);
        let base = chase(&self.base, first(&order, Way::Base, base_word), order.len());
        [base, self.time_control(&order)]
    }

    /// Returns nanoseconds per load of a chase through `slots` huge pages, at most [`MOST_HUGE`], and of its control; `None` if there are none.
    pub fn time_huge(&mut self, slots: usize) -> Option<[f64; 2]> {
        let order = self.order(slots.min(MOST_HUGE));
        self.link(&order, Way::Huge, huge_word);
        let first = first(&order, Way::Huge, huge_word);
        let huge = chase(self.huge.as_ref()?, first, order.len());
        Some([huge, self.time_control(&order)])
    }

    /// Returns nanoseconds per load of a chase through `slots` lines of one huge page, at most 512, each in a part of it that a base page would map,
    /// and of its control; `None` if there is none. Both cost the same if one translation serves the whole page.
    pub fn time_spread(&mut self, slots: usize) -> Option<[f64; 2]> {
        self.huge.as_ref()?;
        let order = self.order(slots.min(HUGE / PAGE));
        let word = Way::Spread as usize;
        for (slot, next) in pairs(&order) {
            let word_of = |slot| spread_word(slot) + word;
            self.region.store_word(word_of(slot), word_of(next) as u64);
        }
        let first = order.first().map_or(0, |&slot| spread_word(slot) + word);
        let spread = chase(self.region.whole(), first, order.len());
        Some([spread, self.time_control(&order)])
    }

    /// Maps `slots` pages, at most [`MOST_FULL`], that share no page table of the last two levels. Returns nanoseconds per load of chases through them
    /// and of their controls, one pair for each round.
    ///
    /// # Errors
    /// `ENOMEM` past a limit on address space or on the number of mappings.
    pub fn time_full(&mut self, slots: usize, rounds: usize) -> Result<Vec<[f64; 2]>, Errno> {
        let slots = slots.min(MOST_FULL);
        let pages = (0..slots).map(|slot| Piece {
            at: full_page(slot),
            from: line_of(slot) / PAGE * PAGE,
            length: PAGE,
        });
        let view = self.region.view((slots + 1) * FAR, pages)?;
        let place = |slot| (full_page(slot) + line_of(slot) % PAGE) / WORD;
        let rounds = (0..rounds).map(|_| {
            let order = self.order(slots);
            self.link(&order, Way::Full, place);
            let full = chase(&view, first(&order, Way::Full, place), slots);
            [full, self.time_control(&order)]
        });
        Ok(rounds.collect())
    }

    fn time_control(&mut self, order: &[usize]) -> f64 {
        self.link(order, Way::Control, control_word);
        let first = first(order, Way::Control, control_word);
        chase(self.region.whole(), first, order.len())
    }

    fn order(&mut self, slots: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..slots).collect();
        self.random.shuffle(&mut order);
        order
    }

    /// Writes into the line of each slot the place of the next one in a view.
    fn link(&mut self, order: &[usize], way: Way, place: impl Fn(usize) -> usize) {
        for (slot, next) in pairs(order) {
            let (at, word) = (line_of(slot) / WORD, way as usize);
            self.region
                .store_word(at + word, (place(next) + word) as u64);
        }
    }
}

fn pairs(order: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let next = order.iter().cycle().skip(1);
    order.iter().copied().zip(next.copied())
}

fn first(order: &[usize], way: Way, place: impl Fn(usize) -> usize) -> usize {
    order.first().map_or(0, |&slot| place(slot) + way as usize)
}

/// Offset in the region of the line that a slot has to itself. Any 64 slots in turn use all sets of a first cache, whose index lies within a page.
fn line_of(slot: usize) -> usize {
    let (group, inside) = (slot / GROUP, slot % GROUP);
    let (window, page) = (inside / WINDOW, inside % WINDOW);
    let line = (window + LINES / WINDOW * page) % LINES;
    (group * WINDOW + page) * PAGE + line * LINE
}

fn control_word(slot: usize) -> usize {
    line_of(slot) / WORD
}

fn base_word(slot: usize) -> usize {
    ((1 + slot) * PAGE + line_of(slot) % PAGE) / WORD
}

fn huge_word(slot: usize) -> usize {
    (slot * HUGE + line_of(slot)) / WORD
}

/// A line of base page `slot` of the region.
fn spread_word(slot: usize) -> usize {
    (slot * PAGE + (slot + slot / LINES) % LINES * LINE) / WORD
}

/// Offset of a page in a view for full walks: a gigabyte each, at places whose entries lie in different lines of the page tables.
fn full_page(slot: usize) -> usize {
    let entry = (8 * slot + slot / LINES) % 512;
    slot * FAR + entry * HUGE + entry * PAGE
}

/// Follows the links from word `first`; nanoseconds per load, in whole turns through all slots.
fn chase(view: &View, first: usize, slots: usize) -> f64 {
    let loads = LOADS.div_ceil(slots.max(1)) * slots;
    let mut at = first;
    let mut follow = || {
        for _ in 0..loads {
            at = view.load_word(at) as usize;
        }
        at = black_box(at);
    };
    follow();
    let begun = Instant::now();
    follow();
    begun.elapsed().as_secs_f64() * 1e9 / loads.max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_slot_has_its_own_line_and_sets_are_used_alike() {
        let lines: BTreeSet<usize> = (0..MOST_PAGES).map(line_of).collect();
        assert_eq!(lines.len(), MOST_PAGES);
        assert!(lines.iter().all(|line| line % LINE == 0 && *line < HUGE));
        for slots in [64, 256, 1024, MOST_PAGES] {
            let mut sets = [0_usize; LINES];
            for slot in 0..slots {
                sets[line_of(slot) % PAGE / LINE] += 1;
            }
            assert_eq!(sets, [slots / LINES; LINES], "{slots}");
        }
        let spread: BTreeSet<usize> = (0..512).map(spread_word).collect();
        assert_eq!(spread.len(), 512);
    }

    #[test]
    fn a_control_touches_few_pages() {
        for slots in [16, 64, 1024, 4096, MOST_PAGES] {
            let pages: BTreeSet<usize> = (0..slots).map(|slot| line_of(slot) / PAGE).collect();
            assert_eq!(pages.len(), WINDOW.max(slots / LINES), "{slots}");
        }
    }

    #[test]
    fn full_walks_share_no_page_table() {
        let tables: BTreeSet<usize> = (0..MOST_FULL).map(|slot| full_page(slot) / HUGE).collect();
        assert_eq!(tables.len(), MOST_FULL);
        let next: BTreeSet<usize> = (0..MOST_FULL).map(|slot| full_page(slot) / FAR).collect();
        assert_eq!(next.len(), MOST_FULL);
    }

    /// Follows the links by hand: a chase that missed a slot would time fewer pages than it says.
    #[test]
    fn a_chase_goes_through_every_slot() {
        let mut pages = PageChase::new().unwrap();
        let slots = 3000;
        for time in pages.time_base(slots) {
            assert!(time > 0.0 && time.is_finite());
        }
        let mut seen = BTreeSet::new();
        let mut at = base_word(0);
        while seen.insert(at) {
            at = pages.base.load_word(at) as usize;
        }
        let all: BTreeSet<usize> = (0..slots).map(base_word).collect();
        assert_eq!((seen, at), (all, base_word(0)));
        let full = pages.time_full(100, 2).unwrap();
        assert_eq!(full.len(), 2);
        assert!(full.as_flattened().iter().all(|ns| *ns > 0.0));
        if !pages.has_huge() {
            superhue_testing::skip(
                "shared-collapse",
                "the kernel makes no huge page of shared memory",
            );
            return;
        }
        for times in [pages.time_huge(40), pages.time_spread(40)] {
            assert!(times.unwrap().iter().all(|ns| *ns > 0.0));
        }
    }
}
