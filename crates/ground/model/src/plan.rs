//! What a policy wants done.

use serde::{Deserialize, Serialize};

use crate::{Owner, PageCount, Region};

/// One change to the memory of one process or one shared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Promote: make one superpage of the region's base pages (`MADV_COLLAPSE`).
    Collapse {
        /// Whose memory.
        #[serde(flatten)]
        owner: Owner,
        /// Which 2 MiB.
        region: Region,
        /// Base pages this adds to it, by what was resident when it was decided.
        growth: PageCount,
    },
    /// Split the superpage into base pages; no page is lost or moved.
    Split {
        /// Whose memory.
        #[serde(flatten)]
        owner: Owner,
        /// Which 2 MiB.
        region: Region,
    },
}

impl Action {
    /// Whose memory it changes.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        match *self {
            Self::Collapse { owner, .. } | Self::Split { owner, .. } => owner,
        }
    }

    /// Base pages it adds; none, if it is a split.
    #[must_use]
    pub const fn growth(&self) -> PageCount {
        match *self {
            Self::Collapse { growth, .. } => growth,
            Self::Split { .. } => PageCount(0),
        }
    }

    /// Which region it changes.
    #[must_use]
    pub const fn region(&self) -> Region {
        match *self {
            Self::Collapse { region, .. } | Self::Split { region, .. } => region,
        }
    }
}

/// Actions in the order in which they should be tried.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The actions; no two name the same region of the same memory.
    pub actions: Vec<Action>,
}
