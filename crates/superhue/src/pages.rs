//! The policies for superpages that a user can choose from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `--pages`: which memory gets superpages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
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
    pub const ALL: [Self; 5] = [
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
        matches!(self, Self::Always | Self::Resident | Self::Hot)
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
