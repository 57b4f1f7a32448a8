//! A scheme: which regions get huge pages, which of these lose them again, and what that may cost. Data alone; [`Scheme::policy`] makes it work.
//!
//! As DAMON's schemes (`Documentation/mm/damon/design.rst` in the kernel) it consists of a pattern, what is done about it, and a quota:
//!
//! | `--pages` | [`Pattern`] of what is promoted | split again | [`Quota`] of growth |
//! |---|---|---|---|
//! | `kernel`, `never` | nothing | nothing | |
//! | `always` | one resident page | nothing | none |
//! | `resident` | nearly full, and no longer growing | nothing | 5 % |
//! | `hot` | enough pages accessed | cold and mostly zeroes, or colder than what has no room | 5 % |
//! | `auto` | full, or enough pages accessed; nothing while it is being filled | as `hot` | 5 % |
//!
//! `kernel` and `never` leave the placement to the kernel, whose own setting `never` is for the program; it is looked on all the same.
//! `always` is the rival to compare with, with its bloat: what the machine's setting `always` would come to, for these processes only.
//! The kernel would place the superpage at the page fault; from outside it comes one look later.
//!
//! What each goes by is told in `resident.rs`, `hot.rs` and `split.rs`.

use std::time::Duration;

use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, Share};

use crate::FULL;

/// Which regions get superpages, which of these lose them again, and what that may cost.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheme {
    /// The regions that are promoted. By default none.
    pub pattern: Pattern,
    /// What that may cost.
    pub quota: Quota,
}

/// Which regions are promoted.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pattern {
    /// None.
    #[default]
    Nothing,
    /// Each with at least one resident page, at once.
    AnyPage,
    /// Each that is nearly full and has stopped growing.
    Resident(Resident),
    /// Each with enough active pages, hottest for their price first. Needs snapshots with heat; a process without is left alone.
    Active(Active),
}

/// Regions that are nearly full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// How much of a region has to be resident: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 75 % (384 pages) by default.
    pub min_resident: Share,
    /// How long a region that is not full has to have been quiet. 100 ms by default. Even with zero
    /// two looks at different times are needed.
    pub settle: Duration,
}

impl Default for Resident {
    fn default() -> Self {
        Self {
            min_resident: Share::BasisPoints(7_500),
            settle: Duration::from_millis(100),
        }
    }
}

/// Regions that are accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// How much of a region has to be active: a share of 2 MiB, rounded up to whole pages and
    /// brought between 1 and 512 of them. 25 % (128 pages) by default.
    pub min_active: Share,
    /// How long a superpage has to have been watched without an access to be cold; at
    /// least five samples in any case. 30 s by default. A superpage is kept for a third of it
    /// whatever happens.
    pub cold_after: Duration,
    /// Whether regions that are full are promoted without evidence of accesses: they cost no memory.
    pub full_at_once: bool,
    /// Which superpages are split again; `None`: none, whether cold or to make room.
    pub split: Option<Split>,
}

impl Default for Active {
    fn default() -> Self {
        Self {
            min_active: Share::BasisPoints(2_500),
            cold_after: Duration::from_secs(30),
            full_at_once: false,
            split: Some(Split::default()),
        }
    }
}

/// Superpages that are split again: cold ones that are mostly zeroes, and those that make room for hotter regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// How much of a cold superpage has to be zeroes: a share of 2 MiB, rounded up to whole pages
    /// and brought between 1 and 512 of them. 50 % by default.
    pub min_zero: Share,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            min_zero: Share::BasisPoints(5_000),
        }
    }
}

/// What promotion may cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// How much memory promotion may add, in total: a share of the anonymous resident memory of all
    /// processes; `None` for no limit. 5 % by default.
    pub budget: Option<Share>,
    /// How many bytes of superpages may be made per second, with half a second's worth at once;
    /// `None` for no limit. 2 GiB/s by default, about what one core copies.
    pub rate: Option<ByteCount>,
    /// How long collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound, the default. A
    /// process that fills its memory, larger than it ever was by an eighth in a second, is not held to it.
    pub max_stall: Option<StallBound>,
    /// Whether memory is left alone while its program fills it.
    pub spares_filling: bool,
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            budget: Some(Share::BasisPoints(500)),
            rate: Some(ByteCount(2 << 30)),
            max_stall: None,
            spares_filling: false,
        }
    }
}

/// A bound on the time that collapses take from a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallBound {
    /// Of every 100 ms, one collapse at least.
    pub allowed: Duration,
    /// How long after it was first seen a process is not held to it.
    pub grace: Duration,
}

impl Scheme {
    /// `--pages always`.
    #[must_use]
    pub fn always() -> Self {
        Self {
            pattern: Pattern::AnyPage,
            quota: Quota {
                budget: None,
                ..Quota::default()
            },
        }
    }

    /// `--pages resident`.
    #[must_use]
    pub fn resident() -> Self {
        Self {
            pattern: Pattern::Resident(Resident::default()),
            quota: Quota::default(),
        }
    }

    /// `--pages auto` where accesses are tracked. Where they are not, it is [`resident`](Self::resident) that spares filling.
    #[must_use]
    pub fn auto() -> Self {
        Self {
            pattern: Pattern::Active(Active {
                full_at_once: true,
                ..Active::default()
            }),
            quota: Quota {
                spares_filling: true,
                ..Quota::default()
            },
        }
    }

    /// `--pages hot`.
    #[must_use]
    pub fn hot() -> Self {
        Self {
            pattern: Pattern::Active(Active::default()),
            quota: Quota::default(),
        }
    }
}

/// A share of 2 MiB in whole pages, rounded up and brought between 1 and 512.
pub(crate) fn pages_of_a_region(share: Share) -> u16 {
    let bytes = share.of(ByteCount(HUGE_PAGE_SIZE));
    let pages = bytes.0.div_ceil(BASE_PAGE_SIZE);
    u16::try_from(pages).map_or(FULL, |pages| pages.clamp(1, FULL))
}
