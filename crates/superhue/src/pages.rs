//! The policies for superpages that a user can choose from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `--pages`: which memory gets superpages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Regions that are full, as soon as their program has stopped filling them, and others that are accessed. Huge pages that lie idle and
    /// hold mostly zeroes are given back. The default.
    Auto,
    /// Whatever the kernel gives by its own settings; Superhue only looks.
    Kernel,
    /// None.
    Never,
    /// All that the system-wide mode `always` would give, for this process only.
    Always,
    /// Regions that are (nearly) all resident already, so that memory hardly grows.
    Resident,
    /// Regions that are accessed; cold superpages that hold mostly zeroes are given back.
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

    /// Whether the policy promotes anything itself.
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
