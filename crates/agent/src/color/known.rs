//! Which pages are on a color that is wanted: one bit each.

use std::collections::BTreeMap;

use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, VirtAddr, VirtRange};

const WORDS: usize = (HUGE_PAGE_SIZE / BASE_PAGE_SIZE / 64) as usize;

/// A set of base pages, by 2 MiB regions: 80 bytes for 2 MiB of memory.
#[derive(Debug, Default)]
pub(crate) struct KnownPages {
    regions: BTreeMap<u64, [u64; WORDS]>,
}

/// Region, word and bit of the page at `address`.
const fn place(address: u64) -> (u64, usize, u64) {
    let page = address % HUGE_PAGE_SIZE / BASE_PAGE_SIZE;
    (
        address / HUGE_PAGE_SIZE,
        (page / 64) as usize,
        1 << (page % 64),
    )
}

fn pages(range: VirtRange) -> impl Iterator<Item = u64> {
    (range.start.0..range.end.0).step_by(BASE_PAGE_SIZE as usize)
}

impl KnownPages {
    /// Whether the page that begins at `address` belongs to it.
    pub(crate) fn has(&self, address: VirtAddr) -> bool {
        let (region, word, bit) = place(address.0);
        let word = self.regions.get(&region).and_then(|words| words.get(word));
        word.is_some_and(|word| word & bit != 0)
    }

    /// Takes the pages of `range` in.
    pub(crate) fn insert(&mut self, range: VirtRange) {
        for address in pages(range) {
            let (region, word, bit) = place(address);
            let words = self.regions.entry(region).or_default();
            if let Some(word) = words.get_mut(word) {
                *word |= bit;
            }
        }
    }

    /// Lets the pages of `range` go, however long it is.
    pub(crate) fn remove(&mut self, range: VirtRange) {
        let regions = range.start.0 / HUGE_PAGE_SIZE..range.end.0.div_ceil(HUGE_PAGE_SIZE);
        if regions.is_empty() {
            return;
        }
        self.regions.retain(|&region, words| {
            if !regions.contains(&region) {
                return true;
            }
            let start = (region * HUGE_PAGE_SIZE).max(range.start.0);
            let end = ((region + 1) * HUGE_PAGE_SIZE).min(range.end.0);
            for address in (start..end).step_by(BASE_PAGE_SIZE as usize) {
                let (_, word, bit) = place(address);
                if let Some(word) = words.get_mut(word) {
                    *word &= !bit;
                }
            }
            words.iter().any(|&word| word != 0)
        });
    }

    /// How many of the pages of `range` belong to it.
    pub(crate) fn count(&self, range: VirtRange) -> u64 {
        let counted = pages(range).filter(|&address| self.has(VirtAddr(address)));
        counted.count() as u64
    }

    /// How many there are.
    pub(crate) fn len(&self) -> u64 {
        let words = self.regions.values().flatten();
        words.map(|word| u64::from(word.count_ones())).sum()
    }

    /// The `number`th page, in ascending order of addresses.
    pub(crate) fn nth(&self, mut number: u64) -> Option<VirtAddr> {
        for (&region, words) in &self.regions {
            for (place, &word) in (0_u64..).zip(words) {
                let ones = u64::from(word.count_ones());
                if number >= ones {
                    number -= ones;
                    continue;
                }
                let mut rest = word;
                for _ in 0..number {
                    rest &= rest.wrapping_sub(1);
                }
                let page = place * 64 + u64::from(rest.trailing_zeros());
                return Some(VirtAddr(region * HUGE_PAGE_SIZE + page * BASE_PAGE_SIZE));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn range(from: u64, to: u64) -> VirtRange {
        VirtRange::new(VirtAddr(from * 4096), VirtAddr(to * 4096)).unwrap()
    }

    #[test]
    fn it_is_a_set_of_pages() {
        let mut known = KnownPages::default();
        let mut model = BTreeSet::new();
        let mut number = 7_u64;
        for _ in 0..2_000 {
            number = number.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let from = (number >> 40) % 2_000;
            let to = from + 1 + (number >> 30) % 40;
            if number >> 63 == 0 {
                known.insert(range(from, to));
                model.extend(from..to);
            } else {
                known.remove(range(from, to));
                model.retain(|page| !(from..to).contains(page));
            }
        }
        assert_eq!(known.len(), model.len() as u64);
        for page in 0..2_100 {
            assert_eq!(known.has(VirtAddr(page * 4096)), model.contains(&page));
        }
        for (place, page) in (0..).zip(&model) {
            assert_eq!(known.nth(place), Some(VirtAddr(page * 4096)));
        }
        assert_eq!(known.nth(known.len()), None);
        known.remove(range(0, 1 << 35));
        assert_eq!(known.len(), 0);
    }
}
