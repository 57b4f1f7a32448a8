//! Free runs of pages within one chunk.

use std::collections::BTreeMap;

/// Page size in bytes, as `usize`.
pub const PAGE: usize = superhue_model::BASE_PAGE_SIZE as usize;

/// Free pages of a chunk: runs that never touch each other.
#[derive(Debug)]
pub struct Runs {
    /// Address of the first page -> number of pages.
    free: BTreeMap<usize, usize>,
    start: usize,
    pages: usize,
}

impl Runs {
    /// Makes a chunk whose pages are all free.
    pub fn new(start: usize, pages: usize) -> Self {
        let free = BTreeMap::from([(start, pages)]);
        Self { free, start, pages }
    }

    /// Returns true if an address lies in the chunk.
    pub const fn contains(&self, address: usize) -> bool {
        self.start <= address && address - self.start < self.pages * PAGE
    }

    /// Returns true if no page is used.
    pub fn is_free(&self) -> bool {
        self.free.get(&self.start) == Some(&self.pages)
    }

    /// Takes the first free run of `pages` pages that begins at a multiple of `align` (a power of two).
    pub fn take(&mut self, pages: usize, align: usize) -> Option<usize> {
        let fit = |(&start, &length): (&usize, &usize)| {
            let at = start.checked_next_multiple_of(align.max(PAGE))?;
            let skipped = (at - start) / PAGE;
            (skipped < length && length - skipped >= pages).then_some((start, length, skipped, at))
        };
        let (start, length, skipped, at) = self.free.iter().find_map(fit)?;
        self.free.remove(&start);
        if skipped > 0 {
            self.free.insert(start, skipped);
        }
        let rest = length - skipped - pages;
        if rest > 0 {
            self.free.insert(at + pages * PAGE, rest);
        }
        Some(at)
    }

    /// Gives back pages that [`Self::take`] returned.
    pub fn give(&mut self, mut start: usize, mut pages: usize) {
        if let Some((&before, &length)) = self.free.range(..start).next_back()
            && before + length * PAGE == start
        {
            self.free.remove(&before);
            start = before;
            pages += length;
        }
        if let Some(length) = self.free.remove(&(start + pages * PAGE)) {
            pages += length;
        }
        self.free.insert(start, pages);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_split_and_joined_again() {
        let mut runs = Runs::new(0x10000, 10);
        let first = runs.take(3, 1).unwrap();
        let second = runs.take(2, 0x8000).unwrap();
        let third = runs.take(1, 1).unwrap();
        assert_eq!((first, second, third), (0x10000, 0x18000, 0x13000));
        assert_eq!(runs.take(5, 1), None, "the rest is in two pieces");
        runs.give(first, 3);
        runs.give(third, 1);
        assert!(!runs.is_free());
        runs.give(second, 2);
        assert!(runs.is_free());
        assert!(runs.contains(0x19fff) && !runs.contains(0x1a000) && !runs.contains(0xffff));
    }
}
