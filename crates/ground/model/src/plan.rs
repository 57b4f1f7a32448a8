//! Changes that a policy wants.

use serde::{Deserialize, Serialize};

use crate::{Owner, PageCount, Region};

/// One change to the memory of one process or one shared object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Promote: replace the region's base pages by one huge page (`MADV_COLLAPSE`).
    Collapse {
        /// Owner of the memory.
        #[serde(flatten)]
        owner: Owner,
        /// The region.
        region: Region,
        /// Base pages that the collapse adds to it, computed from the resident pages at the time of the decision.
        growth: PageCount,
    },
    /// Split the huge page into base pages; no page is lost or moved.
    Split {
        /// Owner of the memory.
        #[serde(flatten)]
        owner: Owner,
        /// The region.
        region: Region,
    },
}

impl Action {
    /// Owner of the memory that the action changes.
    #[must_use]
    pub const fn owner(&self) -> Owner {
        match *self {
            Self::Collapse { owner, .. } | Self::Split { owner, .. } => owner,
        }
    }

    /// Base pages that the action adds; 0 for a split.
    #[must_use]
    pub const fn growth(&self) -> PageCount {
        match *self {
            Self::Collapse { growth, .. } => growth,
            Self::Split { .. } => PageCount(0),
        }
    }

    /// Region that the action changes.
    #[must_use]
    pub const fn region(&self) -> Region {
        match *self {
            Self::Collapse { region, .. } | Self::Split { region, .. } => region,
        }
    }
}

/// Actions, in the order in which to try them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// The actions; no two name the same region of the same memory.
    pub actions: Vec<Action>,
}
