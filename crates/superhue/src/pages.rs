//! The policies for huge pages that a user can choose from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `--pages`: policy that decides which memory gets huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Regions that are full, once their program has stopped filling them, and other regions that are accessed. Splits huge pages that lie idle
    /// and hold mostly zeroes. The default.
    Auto,
    /// Only the huge pages that the kernel makes by its own settings; Superhue observes.
    Kernel,
    /// No huge page.
    Never,
    /// Every 2 MiB region with at least one page in memory.
    Always,
    /// Full regions, and regions at least 75 % in memory that have stopped growing.
    Resident,
    /// Regions that are accessed. Splits cold huge pages that hold mostly zeroes.
    Hot,
}

impl Pages {
    /// Every policy, in the order of the documentation.
    pub const ALL: [Self; 6] = [
        Self::Auto,
        Self::Kernel,
        Self::Never,
        Self::Always,
        Self::Resident,
        Self::Hot,
    ];

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kernel => "kernel",
            Self::Never => "never",
            Self::Always => "always",
            Self::Resident => "resident",
            Self::Hot => "hot",
        }
    }

    /// Returns true if the policy promotes memory itself.
    #[must_use]
    pub const fn promotes(self) -> bool {
        matches!(self, Self::Auto | Self::Always | Self::Resident | Self::Hot)
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
