//! Sets, ways and lines, and the page colors that follow from them.
//!
//! A cache uses some bits of an address to find its set. The kernel chooses the bits above the page offset
//! when it chooses a page frame. Frames that agree in these bits compete for the same sets: they
//! have one *color*.
//!
//! ```text
//!   address   | ............ | color | offset in page   |
//!                            |  set index  | in line   |
//!                            +-- log2(bytes in a way) --+
//! ```
//!
//! With capacity 2^c, ways 2^a and pages 2^p there are 2^(c-a-p) colors (Zhang, Guan, Wang, "A
//! Memory Management Approach Based on Page Coloring for Multi-core Systems", 2014). 2^(c-a) is the
//! size of one way, and only that matters: 10 or 12 ways work like 8 or 16 if a
//! *way* is a power of two.

use serde::Serialize;
use superhue_model::ByteCount;

use super::Cache;

/// Complete dimensions of a cache; none is 0, and their product is the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Geometry {
    /// Capacity.
    pub size: ByteCount,
    /// Lines per set.
    pub ways: u64,
    /// Sets.
    pub sets: u64,
    /// Line size, all lines under one tag together.
    pub line: ByteCount,
    /// Name of the dimension that was inferred from the others; `None` if all four were given.
    pub inferred: Option<&'static str>,
}

/// Reason why a description gives no dimensions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// Too few dimensions are given.
    #[error("it is not known in full: no {}", .missing.join(", no "))]
    Incomplete {
        /// Missing dimensions.
        missing: Vec<&'static str>,
    },
    /// The dimensions do not agree.
    #[error("it contradicts itself: {ways} ways of {sets} sets of {line} are not {size}")]
    Contradiction {
        /// Capacity as claimed.
        size: ByteCount,
        /// Ways as claimed.
        ways: u64,
        /// Sets as claimed.
        sets: u64,
        /// Line size as claimed.
        line: ByteCount,
    },
    /// Three dimensions are given, but no whole fourth completes the product.
    #[error("it contradicts itself: no whole number of {which} makes up {size}")]
    Indivisible {
        /// Dimension to be inferred.
        which: &'static str,
        /// Capacity as claimed.
        size: ByteCount,
    },
    /// The inferred capacity is beyond 64 bits.
    #[error("it cannot be: its ways, sets and lines multiply to more than 2^64 bytes")]
    TooLarge,
    /// The line size is not a power of two.
    #[error("it cannot be: lines of {line} are no power of two")]
    OddLine {
        /// Line size as claimed.
        line: ByteCount,
    },
}

impl Geometry {
    /// Computes the dimensions of a cache; one of the four may be missing and is then inferred.
    ///
    /// # Errors
    /// If two or more are missing, or they do not agree.
    pub fn of(cache: &Cache) -> Result<Self, GeometryError> {
        let size = cache.size.map(|size| size.0);
        let line = cache
            .line
            .map(|line| line.0.saturating_mul(cache.lines_per_tag.unwrap_or(1)));
        let ((size, ways, sets, line), inferred) = match (size, cache.ways, cache.sets, line) {
            (Some(size), Some(ways), Some(sets), Some(line)) => {
                if product(ways, sets, line) != Some(size) {
                    let (size, line) = (ByteCount(size), ByteCount(line));
                    return Err(GeometryError::Contradiction {
                        size,
                        ways,
                        sets,
                        line,
                    });
                }
                ((size, ways, sets, line), None)
            }
            (None, Some(ways), Some(sets), Some(line)) => {
                let size = product(ways, sets, line).ok_or(GeometryError::TooLarge)?;
                ((size, ways, sets, line), Some("size"))
            }
            (Some(size), None, Some(sets), Some(line)) => (
                (size, quotient(size, sets, line, "ways")?, sets, line),
                Some("ways"),
            ),
            (Some(size), Some(ways), None, Some(line)) => (
                (size, ways, quotient(size, ways, line, "sets")?, line),
                Some("sets"),
            ),
            (Some(size), Some(ways), Some(sets), None) => (
                (size, ways, sets, quotient(size, ways, sets, "bytes")?),
                Some("line size"),
            ),
            (size, ways, sets, line) => {
                let given = [
                    ("size", size),
                    ("ways", ways),
                    ("sets", sets),
                    ("line size", line),
                ];
                let missing = given.iter().filter(|(_, value)| value.is_none());
                let missing = missing.map(|(name, _)| *name).collect();
                return Err(GeometryError::Incomplete { missing });
            }
        };
        let (size, line) = (ByteCount(size), ByteCount(line));
        let geometry = Self {
            size,
            ways,
            sets,
            line,
            inferred,
        };
        if geometry.line.0.is_power_of_two() {
            Ok(geometry)
        } else {
            Err(GeometryError::OddLine {
                line: geometry.line,
            })
        }
    }

    /// Returns the bytes in one way: the smallest distance between two addresses of one set, if address bits form the
    /// index.
    #[must_use]
    pub const fn way(&self) -> ByteCount {
        ByteCount(self.sets.saturating_mul(self.line.0))
    }

    /// Returns the page colors of this cache alone, 2^(c-a-p); 1 if a way fits in a page.
    ///
    /// `None` if a way is no power of two: address bits do not form the index then.
    #[must_use]
    pub fn colors(&self, page: ByteCount) -> Option<u64> {
        self.partitions(ByteCount(0), page)
    }

    /// Returns the page colors that divide this cache without dividing those nearer to the CPU:
    /// N = 2^n with n = (c_k - a_k) - max(c_i - a_i), i < k.
    ///
    /// A partition with more colors would also take a part of each task's private
    /// caches. `None` if a way of any of them is no power of two.
    #[must_use]
    pub fn colors_beyond(&self, inner: &[Self], page: ByteCount) -> Option<u64> {
        let powers = inner.iter().all(|cache| cache.way().0.is_power_of_two());
        let widest = inner.iter().map(Self::way).max().unwrap_or_default();
        powers.then(|| self.partitions(widest, page)).flatten()
    }

    fn partitions(&self, inner_way: ByteCount, page: ByteCount) -> Option<u64> {
        let way = self.way().0;
        let unit = inner_way.max(page).0;
        (way.is_power_of_two() && unit.is_power_of_two()).then(|| (way / unit).max(1))
    }
}

fn product(a: u64, b: u64, c: u64) -> Option<u64> {
    a.checked_mul(b)?
        .checked_mul(c)
        .filter(|&product| product > 0)
}

/// Returns the number of `which` that completes the product `size`.
fn quotient(size: u64, a: u64, b: u64, which: &'static str) -> Result<u64, GeometryError> {
    product(a, b, 1)
        .filter(|&others| size > 0 && size.is_multiple_of(others))
        .map(|others| size / others)
        .ok_or(GeometryError::Indivisible {
            which,
            size: ByteCount(size),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Gaps;
    use proptest::prelude::*;

    const PAGE: ByteCount = ByteCount(4096);

    fn cache(size: Option<u64>, ways: Option<u64>, sets: Option<u64>, line: Option<u64>) -> Cache {
        Cache {
            level: Some(2),
            kind: None,
            size: size.map(ByteCount),
            ways,
            sets,
            line: line.map(ByteCount),
            lines_per_tag: None,
            shared_by: None,
            gaps: Gaps::default(),
        }
    }

    fn whole(size: u64, ways: u64) -> Geometry {
        Geometry::of(&cache(Some(size), Some(ways), None, Some(64))).unwrap()
    }

    #[test]
    fn any_one_dimension_follows_from_the_others() {
        let full = [Some(2 << 20), Some(16), Some(2048), Some(64)];
        for (missing, name) in [(0, "size"), (1, "ways"), (2, "sets"), (3, "line size")] {
            let mut given = full;
            given[missing] = None;
            let [size, ways, sets, line] = given;
            let geometry = Geometry::of(&cache(size, ways, sets, line)).unwrap();
            assert_eq!(geometry.inferred, Some(name));
            assert_eq!((geometry.size.0, geometry.ways), (2 << 20, 16));
            assert_eq!((geometry.sets, geometry.line.0), (2048, 64));
        }
        let [size, ways, sets, line] = full;
        assert_eq!(
            Geometry::of(&cache(size, ways, sets, line))
                .unwrap()
                .inferred,
            None
        );
    }

    #[test]
    fn what_cannot_be_is_said_in_words() {
        let say = |size, ways, sets, line| {
            Geometry::of(&cache(size, ways, sets, line))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            say(Some(2 << 20), None, None, Some(64)),
            "it is not known in full: no ways, no sets"
        );
        assert_eq!(
            say(Some(2 << 20), Some(16), Some(1024), Some(64)),
            "it contradicts itself: 16 ways of 1024 sets of 64 B are not 2.0 MiB"
        );
        assert_eq!(
            say(Some(1 << 20), Some(12), None, Some(64)),
            "it contradicts itself: no whole number of sets makes up 1.0 MiB"
        );
        assert_eq!(
            say(Some(48 * 64 * 12), Some(12), Some(64), Some(48)),
            "it cannot be: lines of 48 B are no power of two"
        );
    }

    #[test]
    fn colors_follow_the_formula() {
        // L1d of 48 KiB, 12 ways: a way is one page.
        assert_eq!(whole(48 << 10, 12).colors(PAGE), Some(1));
        // 1.25 MiB, 10 ways and 2 MiB, 16 ways: a way is 128 KiB.
        assert_eq!(whole(1280 << 10, 10).colors(PAGE), Some(32));
        assert_eq!(whole(2 << 20, 16).colors(PAGE), Some(32));
        // A Core 2 of the paper: 2 MiB, 8 ways, 64 colors.
        assert_eq!(whole(2 << 20, 8).colors(PAGE), Some(64));
        // 25 MiB, 10 ways: a way of 2.5 MiB.
        assert_eq!(whole(25 << 20, 10).colors(PAGE), None);
        // Larger pages, fewer colors.
        assert_eq!(whole(2 << 20, 8).colors(ByteCount(64 << 10)), Some(4));
    }

    #[test]
    fn a_partition_spares_the_inner_caches() {
        let (inner, outer) = (whole(256 << 10, 4), whole(8 << 20, 16));
        assert_eq!(outer.colors(PAGE), Some(128));
        assert_eq!(outer.colors_beyond(&[inner], PAGE), Some(8));
        assert_eq!(outer.colors_beyond(&[], PAGE), Some(128));
        // An L1 way smaller than a page limits nothing.
        assert_eq!(outer.colors_beyond(&[whole(16 << 10, 8)], PAGE), Some(128));
        // No color is left where the inner way is the larger one.
        assert_eq!(inner.colors_beyond(&[outer], PAGE), Some(1));
        assert_eq!(outer.colors_beyond(&[whole(25 << 20, 10)], PAGE), None);
    }

    proptest! {
        #[test]
        fn dimensions_multiply_up_or_are_refused(
            size in prop::option::of(1..=u64::MAX), ways in prop::option::of(1..=u64::MAX),
            sets in prop::option::of(1..=u64::MAX), line in prop::option::of(1..=u64::MAX),
        ) {
            if let Ok(found) = Geometry::of(&cache(size, ways, sets, line)) {
                prop_assert_eq!(product(found.ways, found.sets, found.line.0), Some(found.size.0));
                let _ = found.colors(PAGE);
            }
        }

        #[test]
        fn the_formula_of_the_paper_holds(a in 0..6_u32, sets in 0..20_u32, line in 4..8_u32) {
            let c = a + sets + line;
            let colors = Geometry::of(&cache(Some(1 << c), Some(1 << a), Some(1 << sets), Some(1 << line)))
                .unwrap().colors(PAGE);
            prop_assert_eq!(colors, Some(1 << (c - a).saturating_sub(12)));
        }
    }
}
