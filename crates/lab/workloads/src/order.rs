//! Walks over pages in a given order, with a little work on each page.
//!
//! The work on a page is to read and write back one word in each of a few of its cache lines. The lines differ from
//! page to page: if it were always the first line, all pages would compete for one 64th of the sets of the first-level
//! cache. The fewer lines, the larger the share of address translation in the time: with one line, a pass over pages at
//! random costs a TLB miss and a cache miss per page; with all 64 lines it is a copy, in which a TLB miss is lost in
//! the noise.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use superhue_model::PAGES_PER_REGION;

use crate::memory::{Mapping, WORDS_PER_PAGE, touch};
use crate::random::{XorShift, scale};

/// Words in a cache line of 64 bytes.
const WORDS_PER_LINE: usize = 8;

/// Cache lines in a page.
pub const LINES_PER_PAGE: usize = WORDS_PER_PAGE / WORDS_PER_LINE;

/// Numbers of pages, in the order of access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    pages: Vec<u32>,
}

impl Order {
    /// Makes an order of these pages, as given.
    #[must_use]
    pub fn new(pages: Vec<u32>) -> Self {
        Self { pages }
    }

    /// Shuffles the pages (Fisher and Yates's shuffle).
    #[must_use]
    pub fn shuffled(mut self, rng: &mut XorShift) -> Self {
        for last in (1..self.pages.len()).rev() {
            self.pages.swap(last, scale(rng.next_u64(), last + 1));
        }
        self
    }

    /// Number of pages.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// Returns true if there are no pages.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Part of the order: `count` pages from the `start`th on, fewer at its end.
    #[must_use]
    pub fn part(&self, start: usize, count: usize) -> &[u32] {
        let end = start.saturating_add(count).min(self.len());
        self.pages.get(start..end).unwrap_or_default()
    }

    /// Makes every page resident.
    pub fn fill(&self, mapping: &Mapping) {
        for &page in &self.pages {
            if let Some(words) = page_of(mapping.words(), page) {
                touch(words, u64::from(page));
            }
        }
    }
}

/// Reads and writes `lines` cache lines of each of the pages; skips pages that `words` lacks. Returns the sum of the
/// values read, so that the compiler does not remove the reads.
pub fn access(words: &[AtomicU64], pages: &[u32], lines: usize) -> u64 {
    let mut sum = 0_u64;
    for &number in pages {
        let Some(page) = page_of(words, number) else {
            continue;
        };
        let first = number as usize;
        for line in first..first + lines {
            if let Some(word) = page.get(line % LINES_PER_PAGE * WORDS_PER_LINE) {
                let value = word.load(Relaxed);
                sum = sum.wrapping_add(value);
                // Never zero: the kernel treats a page of zeroes as unused.
                word.store(value.wrapping_add(2) | 1, Relaxed);
            }
        }
    }
    sum
}

/// Does the same for `count` pages of an order, from the `start`th on and from the first again after the last.
pub fn access_round(
    words: &[AtomicU64],
    order: &Order,
    start: usize,
    count: usize,
    lines: usize,
) -> u64 {
    let (mut from, mut done, mut sum) = (start, 0, 0_u64);
    while done < count && !order.is_empty() {
        let part = order.part(from, count - done);
        sum = sum.wrapping_add(access(words, part, lines));
        done += part.len();
        from = 0;
    }
    sum
}

fn page_of(words: &[AtomicU64], page: u32) -> Option<&[AtomicU64]> {
    let start = page as usize * WORDS_PER_PAGE;
    words.get(start..start + WORDS_PER_PAGE)
}

/// The numbers of the pages of some regions.
pub fn pages_of(regions: impl IntoIterator<Item = u32>) -> impl Iterator<Item = u32> {
    #[allow(clippy::cast_possible_truncation, reason = "512")]
    const PAGES: u32 = PAGES_PER_REGION as u32;
    regions
        .into_iter()
        .flat_map(|region| region * PAGES..(region + 1) * PAGES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::ByteCount;

    #[test]
    fn a_shuffle_keeps_every_page_and_moves_most() {
        let order = Order::new(pages_of([1, 3]).collect());
        assert_eq!(order.len(), 1024);
        assert_eq!(order.part(1020, 100), [2044, 2045, 2046, 2047]);
        assert!(order.part(5000, 1).is_empty());
        let shuffled = order.clone().shuffled(&mut XorShift::new(1));
        let stayed = order
            .pages
            .iter()
            .zip(&shuffled.pages)
            .filter(|(a, b)| a == b);
        assert!(stayed.count() < 10);
        let mut sorted = shuffled.pages;
        sorted.sort_unstable();
        assert_eq!(sorted, order.pages);
    }

    #[test]
    fn accesses_change_as_many_lines_as_asked_for_and_no_other_page() {
        for lines in [1, 3, LINES_PER_PAGE] {
            let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
            access(mapping.words(), &[7, 70, 100_000], lines);
            for (number, page) in mapping.pages().enumerate() {
                let changed = page.iter().filter(|word| word.load(Relaxed) != 0).count();
                let wanted = if [7, 70].contains(&number) { lines } else { 0 };
                assert_eq!(changed, wanted, "page {number}");
            }
        }
    }

    #[test]
    fn reads_return_what_was_written() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        assert_eq!(access(mapping.words(), &[0], 1), 0);
        assert_eq!(access(mapping.words(), &[0], 1), 3);
        assert_eq!(access(mapping.words(), &[0], 1), 5);
    }
}
