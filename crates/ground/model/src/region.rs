//! Virtual address ranges and the aligned 2 MiB windows that huge pages fill.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, HUGE_PAGE_SHIFT, HUGE_PAGE_SIZE, VirtAddr};

/// A half-open range `[start, end)` of virtual addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VirtRange {
    /// First byte.
    pub start: VirtAddr,
    /// First byte after the range; never below `start`.
    pub end: VirtAddr,
}

impl VirtRange {
    /// The range `[start, end)`, or `None` if it would be reversed.
    #[must_use]
    pub fn new(start: VirtAddr, end: VirtAddr) -> Option<Self> {
        (start <= end).then_some(Self { start, end })
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> ByteCount {
        ByteCount(self.end.0.saturating_sub(self.start.0))
    }

    /// Returns true if the ranges have a byte in common.
    #[must_use]
    pub const fn overlaps(&self, other: &Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// Returns true if the range holds no byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start >= self.end
    }

    /// Returns true if `other` lies wholly inside the range.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end <= self.end
    }

    /// The regions that lie wholly inside, in ascending order.
    ///
    /// ```text
    ///   start                                    end
    ///     |--------------------------------------|
    ///   :     [ region ][ region ][ region ]     :      head and tail never take part
    /// ```
    pub fn regions(&self) -> impl DoubleEndedIterator<Item = Region> + use<> {
        let first = self.start.0.div_ceil(HUGE_PAGE_SIZE);
        let last = self.end.0 >> HUGE_PAGE_SHIFT;
        (first..last.max(first)).map(Region)
    }

    /// Pieces of the range, cut at the bounds of regions, in ascending order: each piece with the region that it lies
    /// in.
    pub fn cut(&self) -> impl Iterator<Item = (Region, Self)> + use<> {
        let (mut at, end) = (self.start, self.end);
        std::iter::from_fn(move || {
            let region = Region::containing(at);
            let stop = region.range().end.min(end);
            let piece = Self::new(at, stop).filter(|piece| !piece.is_empty())?;
            at = stop;
            Some((region, piece))
        })
    }
}

impl fmt::Display for VirtRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}-{:x}", self.start.0, self.end.0)
    }
}

/// Aligned 2 MiB window of virtual memory, which one huge page can map.
///
/// Holds the window's number (its start address divided by 2 MiB).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Region(u64);

impl Region {
    /// The region that holds `addr`.
    #[must_use]
    pub const fn containing(addr: VirtAddr) -> Self {
        Self(addr.0 >> HUGE_PAGE_SHIFT)
    }

    /// Returns the first address of the region.
    #[must_use]
    pub const fn start(self) -> VirtAddr {
        VirtAddr(self.0 << HUGE_PAGE_SHIFT)
    }

    /// Returns the address range of the region; always exactly 2 MiB.
    #[must_use]
    pub fn range(self) -> VirtRange {
        let start = self.start();
        VirtRange {
            start,
            end: VirtAddr(start.0.saturating_add(HUGE_PAGE_SIZE)),
        }
    }
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.start().fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_regions_count() {
        let mib = |n: u64| VirtAddr(n << 20);
        let regions = |a, b| VirtRange::new(mib(a), mib(b)).unwrap().regions().count();
        assert_eq!(regions(0, 2), 1);
        assert_eq!(regions(1, 3), 0);
        assert_eq!(regions(1, 4), 1);
        assert_eq!(regions(2, 8), 3);
        assert_eq!(regions(5, 5), 0);
        assert!(VirtRange::new(mib(2), mib(1)).is_none());
    }

    proptest! {
        #[test]
        fn every_byte_is_in_one_piece(start in 0..1u64 << 24, len in 0..1u64 << 24) {
            let range = VirtRange::new(VirtAddr(start), VirtAddr(start + len)).unwrap();
            let mut at = range.start;
            let mut last = None;
            for (region, piece) in range.cut() {
                prop_assert_eq!(piece.start, at);
                prop_assert!(!piece.is_empty() && region.range().contains(&piece));
                prop_assert!(last < Some(region));
                (at, last) = (piece.end, Some(region));
            }
            prop_assert_eq!(at, range.end);
        }

        #[test]
        fn regions_stay_inside_and_do_not_overlap(start in 0..1u64 << 47, len in 0..1u64 << 26) {
            let range = VirtRange::new(VirtAddr(start), VirtAddr(start + len)).unwrap();
            let mut previous_end = range.start;
            for region in range.regions() {
                prop_assert!(range.contains(&region.range()));
                prop_assert!(region.start() >= previous_end);
                prop_assert_eq!(region.start().0 % HUGE_PAGE_SIZE, 0);
                previous_end = region.range().end;
            }
        }
    }
}
