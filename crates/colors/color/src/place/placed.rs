//! Results for the pages of a range.

use std::collections::BTreeMap;

use rustix::io::Errno;
use superhue_model::PageCount;

/// Reason why a page was left in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The pool has no page of the wanted colors.
    NoPage,
    /// Shared with another process since a fork, or pinned for I/O (`EBUSY`).
    SharedOrPinned,
    /// Locked while the pool is not, or the reverse.
    Locked,
    /// Not private anonymous memory.
    NotAnonymous,
    /// Not readable and writable, or executable too: pages move between equal protections only.
    Protected,
    /// Part of a huge page.
    HugePage,
    /// The mapping disappeared or changed meanwhile.
    Changed,
    /// Watched by a userfaultfd of the program's own.
    Watched,
    /// In swap, or a guard page.
    Absent,
    /// On another NUMA node than the pages of the pool.
    OtherNode,
    /// The oracle is not sure of its color.
    Unsure,
    /// Something else.
    Other,
}

impl Refusal {
    /// Returns the name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NoPage => "no-page",
            Self::SharedOrPinned => "shared-or-pinned",
            Self::Locked => "locked",
            Self::NotAnonymous => "not-anonymous",
            Self::Protected => "protected",
            Self::HugePage => "huge-page",
            Self::Changed => "changed",
            Self::Watched => "watched",
            Self::Absent => "absent",
            Self::OtherNode => "other-node",
            Self::Unsure => "unsure",
            Self::Other => "other",
        }
    }

    /// Returns the reason behind an error of registering a range.
    #[must_use]
    pub const fn of_registering(errno: Errno) -> Self {
        match errno {
            Errno::BUSY => Self::Watched,
            Errno::INVAL => Self::NotAnonymous,
            Errno::PERM => Self::Protected,
            _ => Self::Other,
        }
    }
}

/// Results for the pages of a range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlacementCounts {
    /// Pages that now have a frame of a wanted color.
    pub placed: PageCount,
    /// Pages that already had one.
    pub already: PageCount,
    /// Pages that were left in place, by reason.
    pub refused: BTreeMap<Refusal, PageCount>,
}

impl PlacementCounts {
    /// Counts pages that were left in place.
    pub fn refuse(&mut self, why: Refusal, pages: u64) {
        if pages > 0 {
            *self.refused.entry(why).or_default() += PageCount(pages);
        }
    }

    /// Adds the results for other pages.
    pub fn add(&mut self, other: &Self) {
        self.placed += other.placed;
        self.already += other.already;
        for (why, pages) in &other.refused {
            self.refuse(*why, pages.0);
        }
    }
}
