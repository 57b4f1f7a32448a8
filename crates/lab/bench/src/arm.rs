//! How memory may be placed.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A way of placing a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Base pages as the kernel deals them.
    Kernel,
    /// Superpages.
    Superpage,
    /// Base pages that walk through all colors.
    Colored,
    /// Superpages for the whole regions, colored base pages for the rest (Hayasaka and Shimizu, section 4).
    Both,
}

impl Arm {
    /// All of them, the one to compare with first.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Superpage, Self::Colored, Self::Both];

    /// Its name in options, documents and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Superpage => "superpage",
            Self::Colored => "colored",
            Self::Both => "both",
        }
    }

    /// Whether it needs to know colors.
    #[must_use]
    pub const fn is_colored(self) -> bool {
        matches!(self, Self::Colored | Self::Both)
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
