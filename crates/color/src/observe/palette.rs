//! The colors of one cache, each with pages that fill its sets.

use superhue_model::Color;

use super::Probe;
use crate::Page;

/// What is known beforehand; nothing of it is believed without measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Search {
    /// Ways the cache is said to have.
    pub ways: Option<u32>,
    /// Colors it is said to have.
    pub colors: Option<u32>,
}

/// Why no colors were found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoverError {
    /// Pages never evict each other, or always.
    #[error("timing shows no cache of which pages take parts: {0}")]
    NoContrast(String),
    /// Something is there, but not all of it was found.
    #[error("found {found} colors in {pages} pages, and not all of them: {reason}")]
    Incomplete {
        /// Colors found.
        found: usize,
        /// Pages searched.
        pages: usize,
        /// What was missing.
        reason: String,
    },
}

/// The colors of one cache, each with an eviction set: pages that together push every other page of that color out.
#[derive(Debug, Clone)]
pub struct Palette {
    sets: Vec<Vec<Page>>,
}

/// How well classification agrees with an independent test at other lines of the same pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Agreement {
    /// Pages tested.
    pub tested: usize,
    /// Those evicted by their own color.
    pub own: usize,
    /// Those evicted by another color.
    pub foreign: usize,
}

impl Palette {
    /// Finds the colors that `pool` has.
    ///
    /// # Errors
    /// See [`DiscoverError`].
    pub fn discover(
        _probe: &mut impl Probe,
        pool: &[Page],
        _search: &Search,
    ) -> Result<Self, DiscoverError> {
        Err(DiscoverError::Incomplete {
            found: 0,
            pages: pool.len(),
            reason: "not written".to_owned(),
        })
    }

    /// How many colors there are.
    #[must_use]
    pub fn colors(&self) -> usize {
        self.sets.len()
    }

    /// The color of each page; `None` where it is not sure.
    pub fn classify(
        &self,
        _probe: &mut impl Probe,
        _pages: &[Page],
        _colors: &mut [Option<Color>],
    ) {
    }

    /// Tests pages whose colors are claimed, at lines that classification does not use.
    pub fn agreement(&self, _probe: &mut impl Probe, _pages: &[(Page, Color)]) -> Agreement {
        Agreement::default()
    }
}
