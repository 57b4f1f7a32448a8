//! The color that a page is to get, and the result.

use superhue_model::{Color, ColorSet};

/// The colors that pages are to have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetColors {
    /// One color for each page, in order; as many colors as pages.
    Each(Vec<Color>),
    /// Any color of the set. Larger folios are split for it: a huge page spans all colors.
    Within(ColorSet),
}

impl TargetColors {
    /// Returns true if `color` suits the requested page at index `at`.
    #[must_use]
    pub fn accepts(&self, at: usize, color: Color) -> bool {
        match self {
            Self::Each(wanted) => wanted.get(at) == Some(&color),
            Self::Within(set) => set.contains(color),
        }
    }
}

/// Result of one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecolorResult {
    /// A new frame, of this color.
    Recolored(Color),
    /// No move: the frame had a wanted color already.
    Already(Color),
    /// A move whose frame is not known yet: it shows once the program uses the page.
    Unmapped,
    /// A new frame of unknown color: the dealt frame went to another page.
    Missed,
    /// No move, for this reason.
    Kept(KeptReason),
}

/// Reason why a page was left in its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeptReason {
    /// Page not in memory: never touched, given back, or swapped out.
    Absent,
    /// Part of a larger folio, which would have to be split.
    Large,
    /// Page that other processes map as well: since a fork, or as shared memory.
    Shared,
    /// Page locked in memory (`mlock(2)`).
    Locked,
    /// Page that KSM has merged with equal pages.
    Merged,
    /// Page that the program has freed lazily (`MADV_FREE`); taking it out would drop it.
    FreedLazily,
    /// Page of a file, a device or the kernel.
    Other,
    /// Page that the kernel did not take out: pinned, in use by I/O, or without room in swap.
    InUse,
    /// No frame of a wanted color in time.
    NoFrame,
}

impl KeptReason {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Absent,
        Self::Large,
        Self::Shared,
        Self::Locked,
        Self::Merged,
        Self::FreedLazily,
        Self::Other,
        Self::InUse,
        Self::NoFrame,
    ];

    /// A few words for a report.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Absent => "not in memory any more",
            Self::Large => "part of a larger folio",
            Self::Shared => "mapped by other processes too",
            Self::Locked => "locked in memory",
            Self::Merged => "merged with equal pages (KSM)",
            Self::FreedLazily => "freed lazily (MADV_FREE)",
            Self::Other => "of a file or a device",
            Self::InUse => "kept by the kernel (pinned, in use by I/O, or no room in swap)",
            Self::NoFrame => "no frame of a wanted color was found in time",
        }
    }
}
