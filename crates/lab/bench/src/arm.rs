//! Arms: ways of placing memory.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Way of placing a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arm {
    /// Base pages as the kernel deals them.
    Kernel,
    /// Huge pages.
    Superpage,
    /// Base pages that walk through all colors.
    Colored,
    /// Huge pages for the whole regions, colored base pages for the rest (Hayasaka and Shimizu, section 4).
    Both,
}

impl Arm {
    /// All arms; the baseline comes first.
    pub const ALL: [Self; 4] = [Self::Kernel, Self::Superpage, Self::Colored, Self::Both];

    /// Returns the name in options, documents and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Superpage => "superpage",
            Self::Colored => "colored",
            Self::Both => "both",
        }
    }

    /// Returns true if the arm needs to know colors.
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
