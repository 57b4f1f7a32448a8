//! Result of a placement.

use std::collections::BTreeMap;
use std::ops::AddAssign;

use superhue_color::place::{PlacementCounts, Refusal};
use superhue_model::{ByteCount, PageCount};

/// Result of a placement.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placement {
    /// Pages that the placement moved to a wanted color.
    pub placed: PageCount,
    /// Pages that already had a wanted color.
    pub already: PageCount,
    /// Pages left as they were, by reason.
    pub refused: BTreeMap<Refusal, PageCount>,
    /// Bytes before the first and after the last whole page: left as they were.
    pub edges: ByteCount,
}

impl Placement {
    /// Returns the number of pages left as they were, for any reason.
    #[must_use]
    pub fn left(&self) -> PageCount {
        PageCount(self.refused.values().map(|count| count.0).sum())
    }

    /// Counts `pages` as left.
    pub(crate) fn refuse(&mut self, reason: Refusal, pages: usize) {
        self.refused.entry(reason).or_default().0 += pages as u64;
    }
}

impl From<PlacementCounts> for Placement {
    fn from(placed: PlacementCounts) -> Self {
        Self {
            placed: placed.placed,
            already: placed.already,
            refused: placed.refused,
            edges: ByteCount(0),
        }
    }
}

impl AddAssign for Placement {
    fn add_assign(&mut self, other: Self) {
        self.placed.0 += other.placed.0;
        self.already.0 += other.already.0;
        self.edges.0 += other.edges.0;
        for (reason, count) in other.refused {
            self.refused.entry(reason).or_default().0 += count.0;
        }
    }
}
