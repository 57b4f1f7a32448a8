//! `/proc/buddyinfo`: free memory by the size of its blocks.
//!
//! The page allocator keeps free memory in blocks of 2^order base pages. A superpage needs a block
//! of order 9 or more; memory that is free in smaller blocks is of no use to it until compaction has
//! joined them:
//!
//! ```text
//!   order       0    1    2   ...   8  |   9   10
//!   Node 0   1148  336  997   ... 146  | 101  476
//!                  unusable            |  101 + 476 * 2 superpages
//! ```
//!
//! Columns are described in `Documentation/filesystems/proc.rst`. Block sizes in bytes take base
//! pages of 4 KiB, as everywhere in this crate.

use std::collections::BTreeMap;

use serde::Serialize;
use superhue_model::{BASE_PAGE_SHIFT, ByteCount, HUGE_PAGE_SHIFT, PageCount};

use super::parse::quote;
use super::{ParseError, file};
use crate::{ReadError, Roots};

/// Order of the block that makes one superpage.
pub const SUPERPAGE_ORDER: usize = (HUGE_PAGE_SHIFT - BASE_PAGE_SHIFT) as usize;

/// More orders than any configuration has (the largest, arm64 with 64 KiB pages, has 14).
const MOST_ORDERS: usize = 20;

/// More pages than physical addresses reach: those have at most 52 bits, on x86 as on arm64.
const MOST_PAGES: PageCount = PageCount(1 << (52 - BASE_PAGE_SHIFT));

/// One zone (a range of frames managed together) of one NUMA node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Zone {
    /// NUMA node.
    pub node: u32,
    /// The kernel's name: `DMA`, `DMA32`, `Normal`, `Movable`, `Device`.
    pub name: String,
    /// Free blocks of each order; entry `o` counts blocks of 2^`o` base pages.
    pub free_blocks: Vec<u64>,
}

impl Zone {
    /// Free base pages in blocks of at least the given order.
    #[must_use]
    pub fn free_pages_from(&self, order: usize) -> PageCount {
        self.free_blocks
            .iter()
            .enumerate()
            .skip(order)
            .map(|(order, &blocks)| PageCount(blocks.saturating_mul(1 << order)))
            .sum()
    }
}

/// One reading of `/proc/buddyinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct BuddyInfo {
    /// Zones in the kernel's order; only those that have memory.
    pub zones: Vec<Zone>,
}

impl BuddyInfo {
    /// Reads `/proc/buddyinfo`.
    ///
    /// # Errors
    /// When the file is missing, may not be read or is malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("buddyinfo"),
            "procfs is not mounted here",
            Self::parse,
        )
    }

    /// Reads lines like `Node 0, zone   Normal   1148    336    997 ...`.
    ///
    /// # Errors
    /// When a line is of another form.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let zones = text
            .lines()
            .enumerate()
            .map(|(index, line)| {
                parse_zone(line).ok_or_else(|| {
                    ParseError::in_line(index, format!("{} is no zone", quote(line)))
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { zones })
    }

    /// All free memory.
    #[must_use]
    pub fn free_bytes(&self) -> ByteCount {
        self.free_pages_from(0).bytes()
    }

    /// Superpages that could be handed out at once, without compaction.
    ///
    /// An upper bound: the kernel keeps some blocks back (watermarks, `lowmem_reserve_ratio`).
    #[must_use]
    pub fn free_superpages(&self) -> u64 {
        self.free_pages_from(SUPERPAGE_ORDER).0 >> SUPERPAGE_ORDER
    }

    /// Superpages that could be handed out at once on each NUMA node.
    #[must_use]
    pub fn free_superpages_by_node(&self) -> BTreeMap<u32, u64> {
        let mut pages: BTreeMap<u32, PageCount> = BTreeMap::new();
        for zone in &self.zones {
            *pages.entry(zone.node).or_default() += zone.free_pages_from(SUPERPAGE_ORDER);
        }
        let superpages = |(node, pages): (u32, PageCount)| (node, pages.0 >> SUPERPAGE_ORDER);
        pages.into_iter().map(superpages).collect()
    }

    /// The share of free memory that a request of `order` cannot use, 0 (none) to 1 (all).
    ///
    /// The *unusable free space index* of Gorman and Whitcroft, "The What, The Why and the Where To
    /// of Anti-Fragmentation" (OLS 2006):
    ///
    /// ```text
    ///             free - sum(blocks[i] * 2^i, i >= order)
    ///   F(order) = ---------------------------------------
    ///                              free
    /// ```
    ///
    /// The kernel computes the same per zone for `extfrag/unusable_index` in debugfs
    /// (`mm/vmstat.c`, `unusable_free_index`); as there, no free memory at all counts as 1.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a share of page counts below 2^52"
    )]
    pub fn unusable_free_index(&self, order: usize) -> f64 {
        let free = self.free_pages_from(0);
        if free.0 == 0 {
            return 1.0;
        }
        (free - self.free_pages_from(order)).0 as f64 / free.0 as f64
    }

    fn free_pages_from(&self, order: usize) -> PageCount {
        self.zones
            .iter()
            .map(|zone| zone.free_pages_from(order))
            .sum()
    }
}

fn parse_zone(line: &str) -> Option<Zone> {
    let (node, zone) = line.strip_prefix("Node ")?.split_once(", zone ")?;
    let mut words = zone.split_whitespace();
    let name = words.next()?.to_owned();
    let free_blocks: Vec<u64> = words.map(|word| word.parse().ok()).collect::<Option<_>>()?;
    let zone = Zone {
        node: node.parse().ok()?,
        name,
        free_blocks,
    };
    let plausible = (1..=MOST_ORDERS).contains(&zone.free_blocks.len())
        && zone.free_pages_from(0) <= MOST_PAGES;
    plausible.then_some(zone)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TWO_NODES: &str = "\
Node 0, zone      DMA      0      0      0      0      0      0      0      0      1      1      3
Node 0, zone   Normal     64      0      0      0      0      0      0      0      1      2      4
Node 1, zone   Normal    512      0      0      0      0      0      0      0      0      0      0
";

    #[test]
    fn free_memory_is_counted_by_order() {
        let info = BuddyInfo::parse(TWO_NODES).unwrap();
        assert_eq!(info.zones.len(), 3);
        assert_eq!(
            (info.zones[1].node, info.zones[1].name.as_str()),
            (0, "Normal")
        );
        // DMA 256 + 512 + 3 * 1024, Normal 64 + 256 + 2 * 512 + 4 * 1024, node 1 512 pages.
        assert_eq!(info.free_bytes(), PageCount(3840 + 5440 + 512).bytes());
        assert_eq!(info.free_superpages(), (1 + 3 * 2) + (2 + 4 * 2));
        assert_eq!(
            info.free_superpages_by_node(),
            BTreeMap::from([(0, 17), (1, 0)])
        );
    }

    #[test]
    fn the_unusable_share_is_that_of_smaller_blocks() {
        let info = BuddyInfo::parse(TWO_NODES).unwrap();
        let small = 256.0 + 64.0 + 256.0 + 512.0;
        let expected = small / (3840.0 + 5440.0 + 512.0);
        assert!((info.unusable_free_index(SUPERPAGE_ORDER) - expected).abs() < 1e-12);
        assert!(info.unusable_free_index(0).abs() < f64::EPSILON);
        assert!(
            (info.unusable_free_index(11) - 1.0).abs() < f64::EPSILON,
            "no such order"
        );
    }

    #[test]
    fn without_free_memory_all_of_it_is_unusable() {
        let none = BuddyInfo::parse("Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 0\n").unwrap();
        assert!((none.unusable_free_index(0) - 1.0).abs() < f64::EPSILON);
        assert_eq!(none.free_superpages(), 0);
    }

    #[test]
    fn fewer_orders_than_a_superpage_needs_mean_no_superpages() {
        let small = BuddyInfo::parse("Node 0, zone Normal 5 5 5\n").unwrap();
        assert_eq!(small.free_superpages(), 0);
        assert!((small.unusable_free_index(SUPERPAGE_ORDER) - 1.0).abs() < f64::EPSILON);
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = BuddyInfo::parse("Node 0, zone DMA 1\nNode x, zone DMA 1\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: \"Node x, zone DMA 1\" is no zone"
        );
        let many = format!("Node 0, zone DMA {}", "1 ".repeat(MOST_ORDERS + 1));
        for text in [
            "Node 0, zone DMA",
            "Node 0, zone DMA 1 -2",
            "zone DMA 1",
            "\n",
            &many,
            "Node 0, zone DMA 1099511627777",
        ] {
            assert!(BuddyInfo::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*") {
            let _ = BuddyInfo::parse(&text);
        }

        #[test]
        fn any_zone_has_consistent_sums(blocks in prop::collection::vec(0..500_u64, 1..=MOST_ORDERS)) {
            let words: Vec<String> = blocks.iter().map(u64::to_string).collect();
            let info = BuddyInfo::parse(&format!("Node 0, zone Normal {}", words.join(" "))).unwrap();
            let mut before = 0.0;
            for order in 0..=MOST_ORDERS {
                let index = info.unusable_free_index(order);
                prop_assert!((0.0..=1.0).contains(&index));
                prop_assert!(index >= before, "more is unusable to larger requests");
                before = index;
            }
            prop_assert!(info.free_superpages() <= info.free_bytes().0);
        }
    }
}
