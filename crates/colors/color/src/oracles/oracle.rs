//! What tells the colors of pages, whatever it goes by.

use superhue_model::Color;

use crate::Page;

/// What an oracle goes by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum OracleKind {
    /// Frame numbers from pagemap and the bits of the cache's index. Privileged; bare metal.
    Pfn,
    /// The position inside a superpage. Unprivileged; bare metal.
    Offset,
    /// Conflicts found by timing. Unprivileged; anywhere.
    Measured,
    /// The patched kernel (`kernel/`), which knows.
    Kernel,
}

impl OracleKind {
    /// All of them in the order in which they are asked: the cheapest first, as whoever classifies a million pages wants it.
    ///
    /// A kernel that deals pages by color comes before all: what it deals is what programs get.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Pfn, Self::Offset, Self::Measured];

    /// Its name in options and reports.
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

/// Why an oracle tells nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// It may not see what it needs.
    #[error("{0}")]
    NotAllowed(String),
    /// What it goes by is not there.
    #[error("{0}")]
    Unavailable(String),
    /// The colors it was built on are no longer those of the machine.
    #[error("the colors have changed: {0}")]
    Drifted(String),
}

/// Tells the colors of pages of this process.
///
/// Colors of two oracles have nothing to do with each other, but for one oracle equal colors mean: these
/// pages compete for the same sets.
pub trait Oracle {
    /// What it goes by.
    fn kind(&self) -> OracleKind;

    /// How many colors there are.
    fn colors(&self) -> usize;

    /// Whether it needs pages inside superpages (then a pool is filled with those).
    fn wants_superpages(&self) -> bool {
        false
    }

    /// The colors of `pages`, each `None` where it is not sure. Reads the pages, never writes them.
    /// `colors` has the length of `pages`.
    ///
    /// # Errors
    /// When it cannot tell the color of any page; `colors` is then all `None`.
    fn classify(&mut self, pages: &[Page], colors: &mut [Option<Color>])
    -> Result<(), OracleError>;
}
