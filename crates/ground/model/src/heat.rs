//! Memory accesses, as far as sampled accessed bits can show them.
//!
//! The processor sets a bit in a page-table entry when it first walks to a page. A *sample* clears the bits, waits for
//! an interval, and reads them: a page is *touched* in a sample if its bit was set. One bit cannot count the accesses
//! within the interval, so heat is the share of recent samples that found a page touched. Newer samples weigh more.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{PAGES_PER_REGION, PageCount, Region};

const WORDS: usize = PAGES_PER_REGION as usize / 64;

/// A set of base pages of one region: page `i` lies `i * 4096` bytes after the region's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct PageSet([u64; WORDS]);

impl PageSet {
    /// No page.
    pub const EMPTY: Self = Self([0; WORDS]);
    /// All 512 pages.
    pub const FULL: Self = Self([u64::MAX; WORDS]);

    /// The set with these bits; page `64 * w + b` is bit `b` of word `w`.
    #[must_use]
    pub const fn from_words(words: [u64; WORDS]) -> Self {
        Self(words)
    }

    /// The bits; see [`Self::from_words`].
    #[must_use]
    pub const fn words(&self) -> &[u64; WORDS] {
        &self.0
    }

    /// Adds a page. Ignores indexes from 512 on.
    pub fn insert(&mut self, page: usize) {
        if let Some(word) = self.0.get_mut(page / 64) {
            *word |= 1 << (page % 64);
        }
    }

    /// Returns true if the set holds `page`.
    #[must_use]
    pub fn contains(&self, page: usize) -> bool {
        self.0
            .get(page / 64)
            .is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// Number of pages in the set, 0 to 512.
    #[must_use]
    pub fn len(&self) -> PageCount {
        PageCount(self.0.iter().map(|word| u64::from(word.count_ones())).sum())
    }

    /// Returns true if the set holds no page.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// The pages that are in both sets.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The pages that are in either set.
    #[must_use]
    pub fn or(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().enumerate().flat_map(|(index, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                (left != 0).then(|| {
                    let bit = left.trailing_zeros() as usize;
                    left &= left - 1;
                    index * 64 + bit
                })
            })
        })
    }
}

/// Result of recent samples of one region.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RegionHeat {
    /// The region.
    pub region: Region,
    /// Pages that at least one recent sample found touched, 0 to 512. `None` where one entry maps the whole region, or
    /// the tracker knows ranges only: the number cannot be known there.
    pub active: Option<PageCount>,
    /// True if the tracker knows ranges only.
    pub is_range: bool,
    /// Pages touched per sample, newer samples weighing more: 0 to 512. Where `active` is `None`,
    /// the share of samples that found the region touched at all, 0 to 1.
    pub rate: f32,
    /// Lower bound of pages touched per second. A page that is touched twice between two samples counts once, so
    /// samples in which nearly all pages were touched prove no more than the shortest of them. Where `active` is
    /// `None`, touches per second of the region, or of a page of the range.
    pub per_second: f32,
    /// Time from the newest sample that found any page of the region touched to the last sample; from the first sample
    /// if no sample found one.
    pub idle: Duration,
}

/// Result of recent samples of one process.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct ProcessHeat {
    /// Samples so far; a region says little before the second.
    pub samples: u64,
    /// Time for which accesses have been watched: the sum of the intervals.
    pub watched: Duration,
    /// Regions with resident pages, ascending.
    pub regions: Vec<RegionHeat>,
}

impl ProcessHeat {
    /// The heat of `region`, if it had resident pages at the last sample.
    #[must_use]
    pub fn of(&self, region: Region) -> Option<&RegionHeat> {
        let index = self
            .regions
            .binary_search_by_key(&region, |heat| heat.region)
            .ok()?;
        self.regions.get(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_page_set_is_a_set(pages in proptest::collection::btree_set(0usize..600, 0..80)) {
            let mut set = PageSet::EMPTY;
            for &page in &pages {
                set.insert(page);
            }
            let inside: Vec<usize> = pages.iter().copied().filter(|&page| page < 512).collect();
            prop_assert_eq!(set.iter().collect::<Vec<_>>(), inside.clone());
            prop_assert_eq!(set.len().0, inside.len() as u64);
            prop_assert_eq!(set.is_empty(), inside.is_empty());
            for page in 0..600 {
                prop_assert_eq!(set.contains(page), inside.contains(&page));
            }
            prop_assert_eq!(set.and(&PageSet::FULL), set);
            prop_assert_eq!(set.or(&PageSet::EMPTY), set);
        }
    }

    #[test]
    fn heat_is_found_by_region() {
        let heat = |n| RegionHeat {
            region: Region::containing(crate::VirtAddr(n << 21)),
            active: Some(PageCount(n)),
            is_range: false,
            rate: 0.5,
            per_second: 0.5,
            idle: Duration::ZERO,
        };
        let process = ProcessHeat {
            samples: 3,
            watched: Duration::from_secs(1),
            regions: vec![heat(1), heat(5), heat(9)],
        };
        assert_eq!(process.of(heat(5).region), Some(&heat(5)));
        assert_eq!(process.of(heat(6).region), None);
    }
}
