//! Rules that choose a program's pages.

/// Rule that chooses a program's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// The unpatched kernel after boot.
    Fresh,
    /// The unpatched kernel with mixed free lists: the papers call it normal.
    Kernel,
    /// Any frame, as from a kernel whose free lists are fully mixed.
    Random,
    /// The patched kernel: all colors in turn.
    Colored,
    /// The unpatched kernel with huge pages wherever they fit.
    Superpages,
    /// The patched kernel with huge pages and coloring.
    Both,
    /// Half of the colors for one task and half for the other.
    Halves,
    /// Half of the colors, without the rule that leaves the private caches whole.
    NoRule,
}

impl Arm {
    /// Returns the name in tables and documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Kernel => "kernel",
            Self::Random => "random",
            Self::Colored => "colored",
            Self::Superpages => "superpages",
            Self::Both => "both",
            Self::Halves => "halves",
            Self::NoRule => "no-rule",
        }
    }

    /// Description in a few words.
    #[must_use]
    pub const fn about(self) -> &'static str {
        match self {
            Self::Fresh => "unpatched kernel after boot",
            Self::Kernel => "unpatched kernel, aged",
            Self::Random => "any frames (drawn)",
            Self::Colored => "all colors in turn",
            Self::Superpages => "superpages, rest aged",
            Self::Both => "superpages, rest colored",
            Self::Halves => "half of the colors each",
            Self::NoRule => "half of the colors, without the rule",
        }
    }

    /// Returns the number of the arm's ink in pictures.
    #[must_use]
    pub const fn ink(self) -> usize {
        match self {
            Self::Kernel => 1,
            Self::Colored => 0,
            Self::Superpages => 4,
            Self::Both | Self::Halves => 2,
            Self::Fresh => 5,
            Self::Random | Self::NoRule => 3,
        }
    }
}
