//! `/proc/buddyinfo`: free memory by block size.
//!
//! The page allocator keeps free memory in blocks of 2^order base pages. A huge page needs a block
//! of order 9 or more; memory in smaller blocks is of no use to it until compaction has
//! joined them:
//!
//! ```text
//!   order       0    1    2   ...   8  |   9   10
//!   Node 0   1148  336  997   ... 146  | 101  476
//!                  unusable            |  101 + 476 * 2 huge pages
//! ```
//!
//! `Documentation/filesystems/proc.rst` describes the columns. Block sizes in bytes assume base
//! pages of 4 KiB, as everywhere in this crate.

use serde::Serialize;
use superhue_model::{BASE_PAGE_SHIFT, HUGE_PAGE_SHIFT, PageCount};

use super::parse::quote;
use super::{ParseError, file};
use crate::{ReadError, Roots};

/// Order of a block of one huge page.
pub const HUGE_PAGE_ORDER: usize = (HUGE_PAGE_SHIFT - BASE_PAGE_SHIFT) as usize;

/// Limit above the orders of any configuration (the largest, arm64 with 64 KiB pages, has 14).
const MOST_ORDERS: usize = 20;

/// Limit above the pages that physical addresses reach: these have at most 52 bits, on x86 and on arm64.
const MOST_PAGES: PageCount = PageCount(1 << (52 - BASE_PAGE_SHIFT));

/// One zone (a range of page frames managed together) of one NUMA node.
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
    /// Returns the free base pages in blocks of at least the given order.
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
    /// Zones with memory, in the kernel's order.
    pub zones: Vec<Zone>,
}

impl BuddyInfo {
    /// Reads `/proc/buddyinfo`.
    ///
    /// # Errors
    /// If the file is missing, may not be read or is malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("buddyinfo"),
            "procfs is not mounted here",
            Self::parse,
        )
    }

    /// Parses lines like `Node 0, zone   Normal   1148    336    997 ...`.
    ///
    /// # Errors
    /// If a line has another form.
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

    /// Returns the number of huge pages that the kernel could allocate at once, without compaction.
    ///
    /// An upper bound: the kernel keeps some blocks back (watermarks, `lowmem_reserve_ratio`).
    #[must_use]
    pub fn free_huge_pages(&self) -> u64 {
        self.free_pages_from(HUGE_PAGE_ORDER).0 >> HUGE_PAGE_ORDER
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
        assert_eq!(info.free_pages_from(0), PageCount(3840 + 5440 + 512));
        assert_eq!(info.free_huge_pages(), (1 + 3 * 2) + (2 + 4 * 2));
        let none = BuddyInfo::parse("Node 0, zone Normal 0 0 0 0 0 0 0 0 0 0 0\n").unwrap();
        assert_eq!(none.free_huge_pages(), 0);
    }

    #[test]
    fn fewer_orders_than_a_huge_page_needs_mean_no_huge_pages() {
        let small = BuddyInfo::parse("Node 0, zone Normal 5 5 5\n").unwrap();
        assert_eq!(small.free_huge_pages(), 0);
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
            let mut before = PageCount(u64::MAX);
            for order in 0..=MOST_ORDERS {
                let free = info.free_pages_from(order);
                prop_assert!(free <= before, "larger requests can use less");
                before = free;
            }
            prop_assert!(info.free_huge_pages() << HUGE_PAGE_ORDER <= info.free_pages_from(0).0);
        }
    }
}
