//! Changes that a policy wants.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Outcome, Owner, PageCount, Region};

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
    /// Bounds on the time of collapses. An owner without one has no bound.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bounds: Vec<CollapseBound>,
}

/// The time that all collapses of one owner in a plan may take together: once it has passed, the rest of them is skipped. The first one is always
/// tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollapseBound {
    /// Owner of the memory.
    #[serde(flatten)]
    pub owner: Owner,
    /// Time that its collapses may still take.
    pub left: Duration,
}

impl Plan {
    /// Makes a plan without bounds.
    #[must_use]
    pub const fn of(actions: Vec<Action>) -> Self {
        Self {
            actions,
            bounds: Vec::new(),
        }
    }

    /// Makes a plan of some of the actions, under the bounds that are left.
    #[must_use]
    pub fn part(&self, actions: &[Action]) -> Self {
        Self {
            actions: actions.to_vec(),
            bounds: self.bounds.clone(),
        }
    }

    /// Returns the time that collapses of an owner may still take; `None` for no bound.
    #[must_use]
    pub fn left(&self, owner: Owner) -> Option<Duration> {
        let mut bounds = self.bounds.iter();
        bounds.find(|it| it.owner == owner).map(|bound| bound.left)
    }

    /// Takes the time of all collapses in an outcome off the bounds of their owners.
    pub fn spend_all(&mut self, outcome: &Outcome) {
        for result in &outcome.results {
            if matches!(result.action, Action::Collapse { .. }) {
                self.spend(result.action.owner(), result.took);
            }
        }
    }

    /// Takes the time of a collapse off the bound of its owner.
    pub fn spend(&mut self, owner: Owner, took: Duration) {
        for bound in self.bounds.iter_mut().filter(|it| it.owner == owner) {
            bound.left = bound.left.saturating_sub(took);
        }
    }
}
