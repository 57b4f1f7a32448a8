//! The interface of all oracles.

use superhue_model::Color;

use crate::Page;

/// Source of an oracle's colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OracleKind {
    /// Frame numbers from pagemap and the bits of the cache's index. Privileged; bare metal.
    Pfn,
    /// The position inside a huge page. Unprivileged; bare metal.
    Offset,
    /// Conflicts found by timing. Unprivileged; anywhere.
    Measured,
    /// The patched kernel (`kernel/`), which deals pages by color.
    Kernel,
}

impl OracleKind {
    /// All of them in the order in which they are tried: the cheapest first, for callers that classify a million pages.
    ///
    /// A kernel that deals pages by color comes first: programs get the pages that it deals.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Pfn, Self::Offset, Self::Measured];

    /// Returns the name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pfn => "pfn",
            Self::Offset => "offset",
            Self::Measured => "measured",
            Self::Kernel => "kernel",
        }
    }
}

/// Reason why an oracle has no colors.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// The caller lacks the permission to read the oracle's source.
    #[error("{0}")]
    NotAllowed(String),
    /// The oracle's source does not exist here.
    #[error("{0}")]
    Unavailable(String),
    /// The colors it was built on are no longer those of the machine.
    #[error("the colors have changed: {0}")]
    Drifted(String),
}

/// Finds the colors of pages of this process.
///
/// Colors of two oracles are unrelated, but for one oracle equal colors mean: these pages compete for the same sets.
pub trait Oracle {
    /// Returns the source of its colors.
    fn kind(&self) -> OracleKind;

    /// Returns the number of colors.
    fn colors(&self) -> usize;

    /// Returns true if it needs pages inside huge pages (a pool then takes those).
    fn wants_huge_pages(&self) -> bool {
        false
    }

    /// Finds the colors of `pages`; `None` for a page of which it is not sure. Reads the pages, never writes them.
    /// `colors` has the length of `pages`.
    ///
    /// # Errors
    /// If it cannot find the color of any page; `colors` is then all `None`.
    fn classify(&mut self, pages: &[Page], colors: &mut [Option<Color>])
    -> Result<(), OracleError>;
}
