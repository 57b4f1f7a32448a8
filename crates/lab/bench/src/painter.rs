//! Memory on the colors wanted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use superhue_model::{ColorSet, VirtRange};

use crate::Trouble;

/// What became of the pages of a buffer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filled {
    /// Base pages on a color that was wanted.
    pub placed: u64,
    /// Base pages left to the kernel, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Superpages.
    pub superpages: u64,
    /// Base pages asked for and dealt by the kernel.
    pub dealt: u64,
}

impl Filled {
    /// Adds what became of another buffer.
    pub fn add(&mut self, other: &Self) {
        self.placed += other.placed;
        self.superpages += other.superpages;
        self.dealt += other.dealt;
        for (reason, pages) in &other.refused {
            *self.refused.entry(reason.clone()).or_default() += pages;
        }
    }
}

/// Who can place pages by color. The real one works with `superhue-color`; tests have one that pretends.
pub trait Painter {
    /// How many colors there are.
    fn colors(&self) -> usize;

    /// How the colors are told apart, in a word.
    fn oracle(&self) -> String;

    /// Backs the empty pages of `range` with pages whose colors walk through `set`, beginning `start` colors into it.
    /// Pages that could not be placed stay empty, for the kernel to fill, and are counted.
    ///
    /// # Errors
    /// When no page at all can be placed.
    fn fill(&mut self, range: VirtRange, set: &ColorSet, start: usize) -> Result<Filled, Trouble>;
}
