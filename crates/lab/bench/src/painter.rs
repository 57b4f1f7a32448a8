//! Placement of memory on requested colors.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use superhue_model::{ColorSet, VirtRange};

use crate::BenchError;

/// Placement of the pages of a buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FillCounts {
    /// Base pages on a requested color.
    pub placed: u64,
    /// Base pages left to the kernel, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Huge pages.
    pub superpages: u64,
    /// Base pages that were requested as such and dealt by the kernel.
    pub dealt: u64,
}

impl FillCounts {
    /// Adds the counts of another buffer.
    pub fn add(&mut self, other: &Self) {
        self.placed += other.placed;
        self.superpages += other.superpages;
        self.dealt += other.dealt;
        for (reason, pages) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += pages;
        }
    }
}

/// Service that places pages by color. The real one uses `superhue-color`; tests have a fake.
pub trait Painter {
    /// Number of colors.
    fn colors(&self) -> usize;

    /// Source of the colors, in a word.
    fn oracle(&self) -> String;

    /// Backs the empty pages of `range` with pages whose colors walk through `set`, beginning `start` colors into it.
    /// Pages that could not be placed stay empty for the kernel to fill; the result counts them.
    ///
    /// # Errors
    /// If no page at all can be placed.
    fn fill(
        &mut self,
        range: VirtRange,
        set: &ColorSet,
        start: usize,
    ) -> Result<FillCounts, BenchError>;
}
