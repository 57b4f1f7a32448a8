//! The policies for huge pages that a user can choose from.

use std::fmt;

use serde::{Deserialize, Serialize};

/// `--pages`: policy that decides which memory gets huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pages {
    /// Regions that are full or lack at most 16 pages, once their program has stopped filling them, and other regions that are accessed. Splits
    /// huge pages that lie idle and hold mostly zeroes. The default.
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

    /// Returns the name on the command line.
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

/// Option that only some policies use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyOption {
    /// Share of a region that must be in memory.
    MinResident,
    /// Time for which a region must not have grown.
    Settle,
    /// Share of a region that must be accessed.
    MinActive,
    /// Time without accesses after which a huge page is idle.
    ColdAfter,
    /// Source of accesses.
    Tracker,
}

impl PolicyOption {
    /// Returns the key in a rule; on the command line two dashes precede it.
    #[must_use]
    pub const fn key(self) -> &'static str {
        match self {
            Self::MinResident => "min-resident",
            Self::Settle => "settle",
            Self::MinActive => "min-active",
            Self::ColdAfter => "cold-after",
            Self::Tracker => "tracker",
        }
    }

    /// Returns the names of the policies that use it if `policy` does not. With colors (`colored`) the tracker is used, too.
    #[must_use]
    pub const fn users_without(self, policy: Pages, colored: bool) -> Option<&'static str> {
        let waits = matches!(policy, Pages::Auto | Pages::Resident);
        let samples = matches!(policy, Pages::Auto | Pages::Hot);
        let (is_used, users) = match self {
            Self::MinResident | Self::Settle => (waits, "auto and resident"),
            Self::MinActive | Self::ColdAfter => (samples, "auto and hot"),
            Self::Tracker => (samples || colored, "auto, hot and colors"),
        };
        if is_used { None } else { Some(users) }
    }
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
