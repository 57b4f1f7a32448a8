//! The one point in which the promoting policies differ: which region is ripe, when, and before which
//! others.

use std::fmt::Debug;
use std::time::Duration;

use superhue_model::RegionHeat;

use crate::clock::Tick;
use crate::shortlist::Worth;

/// When a region with so many resident pages may be promoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ripeness {
    /// Not as it is.
    Never,
    /// Perhaps, but more samples have to show it.
    Unproven,
    /// At the first look that shows it.
    AtOnce,
    /// Once looks this far apart have shown the same; always at least two looks.
    AfterQuiet(Duration),
}

/// What a look says about the accesses to one region.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RegionLook<'a> {
    /// By the last sample; `None` where accesses are not watched or the region is too new.
    pub(crate) heat: Option<&'a RegionHeat>,
    /// Samples taken so far.
    pub(crate) total: u64,
    /// Samples taken since the last look.
    pub(crate) samples: u64,
    /// The sum of their intervals.
    pub(crate) watched: Duration,
    /// Time since the last look.
    pub(crate) elapsed: Duration,
    /// Base pages present at this look, 1 to 512.
    pub(crate) resident: u16,
    /// Whether this look saw one entry map it whole, if that is known.
    pub(crate) huge: Option<bool>,
    /// When the look was taken.
    pub(crate) now: Tick,
}

/// A promotion rule. It decides on the number of resident pages and on a note that it makes at each
/// look, so that regions it does not want need not be remembered: their history cannot matter.
pub(crate) trait Rule {
    /// What it notes about a region beyond what is resident.
    type Note: Copy + Debug + Default;

    /// Takes in what a look says about accesses.
    fn absorb(&self, _note: &mut Self::Note, _look: &RegionLook<'_>) {}

    /// A look has shown that our split took effect.
    fn demoted(&self, _note: &mut Self::Note, _now: Tick) {}

    /// Judges a region that is not huge and has `resident` (1 to 512) pages.
    fn ripeness(&self, resident: u16, note: &Self::Note) -> Ripeness;

    /// How much promoting it is worth; with all the same, the cheapest go first.
    fn worth(&self, _growth: u16, _note: &Self::Note) -> Worth {
        Worth::default()
    }

    /// Until when it may not be promoted, however ripe it is.
    fn barred_until(&self, _note: &Self::Note) -> Tick {
        Tick::START
    }

    /// Whether a superpage that has been one for `age`, and to which `charged` pages are owed, may be
    /// split, as far as it alone decides.
    fn may_split(&self, _note: &Self::Note, _age: Duration, _charged: u16) -> bool {
        false
    }

    /// Whether the note has to outlast the look.
    fn keeps(&self, _note: &Self::Note, _now: Tick) -> bool {
        false
    }

    /// The pages of a region whose accesses crowd on a few pages.
    fn crowded(&self, _note: &Self::Note) -> Option<u16> {
        None
    }

    /// Whether regions are taken by worth, so that one that does not fit the budget says nothing
    /// about those after it.
    fn is_by_worth(&self) -> bool {
        false
    }
}
