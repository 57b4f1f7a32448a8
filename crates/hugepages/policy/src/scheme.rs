//! A scheme: the regions that get huge pages, the huge pages that are split again, and the cost allowed. Data alone; [`Scheme::policy`] makes it
//! work.
//!
//! Like DAMON's schemes (`Documentation/mm/damon/design.rst` in the kernel), it consists of a pattern, an action on it, and a quota:
//!
//! | `--pages` | [`Pattern`] of promoted regions | split again | [`Quota`] of growth |
//! |---|---|---|---|
//! | `kernel`, `never` | nothing | nothing | |
//! | `always` | one resident page | nothing | none |
//! | `resident` | nearly full, and no longer growing | nothing | 5 % |
//! | `hot` | enough pages accessed | cold and mostly zeroes, or colder than a region without room | 5 % |
//! | `auto` | full or with at most 16 holes, or enough pages accessed; nothing while it is being filled | as `hot` | 1 % |
//!
//! `kernel` and `never` leave the placement to the kernel; with `never`, the kernel's own setting `never` applies to the program. Superhue watches
//! it all the same. `always` is the baseline to compare with, bloat included: it has the effect of the machine's setting `always`, for these
//! processes only. The kernel would place the huge page at the page fault; from outside it comes one look later.
//!
//! `resident.rs`, `hot.rs` and `split.rs` explain the criteria.

use std::time::Duration;

use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, Share};

use crate::FULL;

/// The regions that get huge pages, the huge pages that are split again, and the cost allowed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scheme {
    /// The regions that are promoted. By default none.
    pub pattern: Pattern,
    /// Limits of the cost.
    pub quota: Quota,
}

/// Regions to promote.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Pattern {
    /// None.
    #[default]
    Nothing,
    /// Each with at least one resident page, at once.
    AnyPage,
    /// Each that is nearly full and has stopped growing.
    Resident(Resident),
    /// Each with enough active pages, hottest for their price first. Needs snapshots with heat; skips a process without heat.
    Active(Active),
}

/// Quiet time of a region that is not full, by default. One that is still being filled may soon be full, and then costs nothing.
pub(crate) const SETTLE: Duration = Duration::from_millis(100);

/// Regions that are nearly full.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    /// Least resident part of a region: a share of 2 MiB, rounded up to whole pages and limited to 1 to 512 of them. 75 % (384 pages) by default.
    pub min_resident: Share,
    /// Least quiet time of a region that is not full. 100 ms by default. Even with zero, two looks at different times are needed.
    pub settle: Duration,
}

impl Default for Resident {
    fn default() -> Self {
        Self {
            min_resident: Share::BasisPoints(7_500),
            settle: SETTLE,
        }
    }
}

/// Regions that are accessed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Active {
    /// Least active part of a region: a share of 2 MiB, rounded up to whole pages and limited to 1 to 512 of them. 25 % (128 pages) by default.
    pub min_active: Share,
    /// Watched time without an access after which a huge page is cold; at least five samples in any case. 30 s by default. A huge page is always
    /// kept for a third of it.
    pub cold_after: Duration,
    /// True to promote regions that are full, or have at most 16 holes and have stopped growing, without evidence of accesses: they cost little or
    /// no memory.
    pub full_at_once: bool,
    /// Huge pages that are split again; `None`: none, whether cold or to make room.
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

/// Huge pages that are split again: cold ones that are mostly zeroes, and those that make room for hotter regions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Least part of zeroes in a cold huge page: a share of 2 MiB, rounded up to whole pages and limited to 1 to 512 of them. 50 % by default.
    pub min_zero: Share,
}

impl Default for Split {
    fn default() -> Self {
        Self {
            min_zero: Share::BasisPoints(5_000),
        }
    }
}

/// Limits of the cost of promotion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quota {
    /// Memory that promotion may add, in total: a share of the anonymous resident memory of all processes; `None` for no limit. 5 % by default, 1 %
    /// for [`Scheme::auto`].
    pub budget: Option<Share>,
    /// Bytes of huge pages that may be made per second, with half a second's worth at once; `None` for no limit. 2 GiB/s by default, about what one
    /// core copies.
    pub rate: Option<ByteCount>,
    /// Time that collapses may take out of every 100 ms of a process, one collapse at least; `None` for no bound. The command sets 10 ms.
    pub max_stall: Option<StallBound>,
    /// True to leave memory alone while its program fills it.
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

impl Quota {
    /// The price allowed for a policy that the user did not choose: memory that no measurement would notice.
    #[must_use]
    pub fn auto() -> Self {
        Self {
            budget: Some(Share::BasisPoints(100)),
            spares_filling: true,
            ..Self::default()
        }
    }
}

/// A bound on the time that collapses take from a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StallBound {
    /// Time out of every 100 ms, one collapse at least.
    pub allowed: Duration,
    /// Time from the first sight of a process for which the bound does not apply.
    pub grace: Duration,
    /// True if the bound applies to a process that grows fast too: by an eighth beyond its largest size in a second.
    pub while_growing: bool,
}

impl StallBound {
    /// Returns the bound that always applies.
    #[must_use]
    pub const fn always(allowed: Duration) -> Self {
        Self {
            allowed,
            grace: Duration::ZERO,
            while_growing: true,
        }
    }

    /// Returns the bound to plan with: three quarters of the time. The rest is for what else holds the process up in the same 100 ms: the start of a
    /// sample, and waits that are there without Superhue (docs/results/bounds.json).
    #[must_use]
    pub fn with_reserve(self) -> Self {
        Self {
            allowed: self.allowed / 4 * 3,
            ..self
        }
    }
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

    /// `--pages auto` where accesses are tracked. Elsewhere it is [`resident`](Self::resident) with [`Quota::auto`].
    #[must_use]
    pub fn auto() -> Self {
        Self {
            pattern: Pattern::Active(Active {
                full_at_once: true,
                ..Active::default()
            }),
            quota: Quota::auto(),
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

/// Returns a share of 2 MiB in whole pages, rounded up and limited to 1 to 512.
pub(crate) fn pages_of_a_region(share: Share) -> u16 {
    let bytes = share.of(ByteCount(HUGE_PAGE_SIZE));
    let pages = bytes.0.div_ceil(BASE_PAGE_SIZE);
    u16::try_from(pages).map_or(FULL, |pages| pages.clamp(1, FULL))
}
