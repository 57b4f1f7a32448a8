//! What a policy wants done.

use serde::{Deserialize, Serialize};

use crate::{PageCount, ProcessId, Region};

/// One change to one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Action {
    /// Promote: make one superpage of the region's base pages (`MADV_COLLAPSE`).
    Collapse {
        /// Whose memory.
        process: ProcessId,
        /// Which 2 MiB.
        region: Region,
        /// Base pages this adds to the process, by what was resident when it was decided.
        growth: PageCount,
    },
    /// Demote: split the superpage into base pages; no page is lost or moved.
    Split {
        /// Whose memory.
        process: ProcessId,
        /// Which 2 MiB.
        region: Region,
    },
}

impl Action {
    /// Whose memory it changes.
    #[must_use]
    pub const fn process(&self) -> ProcessId {
        match *self {
            Self::Collapse { process, .. } | Self::Split { process, .. } => process,
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
    /// The actions; no two name the same region of the same process.
    pub actions: Vec<Action>,
}
