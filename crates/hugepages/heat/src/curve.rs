//! Concentration of accesses.
//!
//! The more of its accesses a program makes to a small part of its memory, the more a few huge pages there are worth.

use serde::{Deserialize, Serialize};
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HotPoint {
    /// Bytes of the hottest memory.
    pub bytes: ByteCount,
    /// Share of all sampled accesses that this memory receives: above 0, at most 1.
    pub share: f64,
}

/// The hot-set curve: the bytes of memory that receive each share of the sampled accesses.
///
/// The *sampled accesses* of a base page are its count: the number of samples that found it touched. (A sample does not show how often a page was
/// accessed.) A huge page has one accessed bit, so its count stands for each of its 512 pages; the same holds for the pages of a DAMON range. Pages
/// are ordered by count, hottest first; both coordinates of the curve add up along that order.
///
/// ```text
///   share
///     1 |                 ______.-------------     the last point: all that was ever touched
///       |         __.----'
///       |     _.-'                                 one point for each count that occurs,
///       |   .'                                     straight between them: pages of the same
///       | /                                        count are alike
///     0 +------------------------------------- bytes
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct HotSet {
    /// The corners of the curve, ascending in both coordinates, after (0, 0). Empty if no memory was touched.
    pub points: Vec<HotPoint>,
}

impl HotSet {
    /// Returns the curve of memory given as (accesses to each page, bytes of such pages), in any order.
    pub(super) fn of(memory: impl Iterator<Item = (f64, ByteCount)>) -> Self {
        let mut memory: Vec<_> = memory
            .filter(|&(count, bytes)| count > 0.0 && bytes.0 > 0)
            .collect();
        memory.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        let weight = |&(count, bytes): &(f64, ByteCount)| count * bytes.0 as f64;
        let total: f64 = memory.iter().map(weight).sum();
        let mut points: Vec<HotPoint> = Vec::new();
        let (mut bytes, mut accesses) = (ByteCount(0), 0.0);
        for alike in memory.chunk_by(|(a, _), (b, _)| a.total_cmp(b).is_eq()) {
            bytes += alike.iter().map(|&(_, bytes)| bytes).sum();
            accesses += alike.iter().map(weight).sum::<f64>();
            let share = (accesses / total).min(1.0);
            // A count that is lost in the rounding of such a long sum makes no corner.
            if points.last().is_none_or(|last| last.share < share) {
                points.push(HotPoint { bytes, share });
            }
        }
        if let Some(last) = points.last_mut() {
            last.share = 1.0;
        }
        Self { points }
    }

    /// Returns the least memory that receives 50, 90 and 99 % of the sampled accesses; `None` if no memory was touched.
    #[must_use]
    pub fn usual_bytes(&self) -> Option<[ByteCount; 3]> {
        let [half, most, nearly_all] = [0.5, 0.9, 0.99].map(|share| self.bytes_for(share));
        Some([half?, most?, nearly_all?])
    }

    /// Returns the least memory that receives `share` (0 to 1) of the sampled accesses, in whole pages.
    ///
    /// `None` if no memory was touched, or if `share` is not above 0 and at most 1.
    #[must_use]
    pub fn bytes_for(&self, share: f64) -> Option<ByteCount> {
        if !(share > 0.0 && share <= 1.0) {
            return None;
        }
        let index = self.points.partition_point(|point| point.share < share);
        let end = self.points.get(index)?;
        let start = match index
            .checked_sub(1)
            .and_then(|before| self.points.get(before))
        {
            Some(point) => *point,
            None => HotPoint {
                bytes: ByteCount(0),
                share: 0.0,
            },
        };
        let part = (share - start.share) / (end.share - start.share);
        let pages = (end.bytes - start.bytes).0 as f64 / BASE_PAGE_SIZE as f64 * part;
        // The rounding error of the sum must not become a page.
        let pages = (pages - 1e-6).ceil().max(0.0) as u64;
        Some((start.bytes + ByteCount(pages.saturating_mul(BASE_PAGE_SIZE))).min(end.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn mib(n: u64) -> ByteCount {
        ByteCount(n << 20)
    }

    fn curve(memory: &[(f64, ByteCount)]) -> HotSet {
        HotSet::of(memory.iter().copied())
    }

    #[test]
    fn equal_pages_share_evenly() {
        let set = curve(&[(3.0, mib(60)), (3.0, mib(40)), (0.0, mib(900))]);
        assert_eq!(set.points.len(), 1);
        assert_eq!(set.bytes_for(0.5), Some(mib(50)));
        assert_eq!(set.bytes_for(0.01), Some(mib(1)));
        assert_eq!(set.bytes_for(1.0), Some(mib(100)));
    }

    #[test]
    fn the_hottest_come_first() {
        // 9 * 10 + 1 * 10 = 100 weights.
        let set = curve(&[(1.0, mib(10)), (9.0, mib(10))]);
        assert_eq!(set.bytes_for(0.9), Some(mib(10)));
        assert_eq!(set.bytes_for(0.45), Some(mib(5)));
        assert_eq!(set.bytes_for(0.95), Some(mib(15)));
        assert_eq!(set.bytes_for(1.0), Some(mib(20)));
    }

    #[test]
    fn what_hardly_counts_beside_the_rest_is_no_corner() {
        let set = curve(&[(1.0, mib(4)), (1e-30, mib(4)), (0.5, mib(8))]);
        assert_eq!(set.points.len(), 2);
        assert_eq!(set.bytes_for(1.0), Some(mib(12)));
    }

    #[test]
    fn nothing_touched_and_nonsense_have_no_answer() {
        assert_eq!(curve(&[(0.0, mib(5))]).bytes_for(0.5), None);
        let set = curve(&[(1.0, mib(5))]);
        for share in [0.0, -1.0, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(set.bytes_for(share), None);
        }
    }

    proptest! {
        #[test]
        fn it_agrees_with_counting_page_by_page(
            counts in proptest::collection::vec(0_u32..20, 1..200),
            percent in 1_u32..=100,
        ) {
            let pages = counts.iter().map(|&count| (f64::from(count), ByteCount(BASE_PAGE_SIZE)));
            let set = HotSet::of(pages);
            prop_assert!(set.points.is_sorted_by(|a, b| a.bytes < b.bytes && a.share < b.share));
            let mut sorted = counts.clone();
            sorted.sort_unstable_by(|a, b| b.cmp(a));
            let total: u32 = sorted.iter().sum();
            let mut sum = 0;
            let needed = sorted.iter().position(|count| {
                sum += count;
                sum * 100 >= total * percent && total > 0
            });
            let expected = needed.map(|index| ByteCount((index as u64 + 1) * BASE_PAGE_SIZE));
            prop_assert_eq!(set.bytes_for(f64::from(percent) / 100.0), expected);
        }
    }
}
