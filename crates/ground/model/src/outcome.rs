//! Result of a plan.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Action, Errno};

/// Reason why Superhue did not try an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// Only recorded (`--dry-run`).
    DryRun,
    /// Other processes map pages of the region too, copy-on-write (`fork(2)`): a collapse would use that memory twice.
    Shared,
    /// The program has given back pages of the region after the plan was made, so a huge page would add more memory
    /// than planned.
    GivenBack,
    /// The program has freed pages of the region lazily (`MADV_FREE`); the plan did not count them as memory that a
    /// huge page adds.
    FreedLazily,
    /// The program, or the kernel for the stack of a thread, forbids huge pages there (`MADV_NOHUGEPAGE`).
    Forbidden,
    /// Huge pages are switched off for the process (`PR_SET_THP_DISABLE`).
    Disabled,
    /// A userfaultfd watches the memory.
    Userfaultfd,
    /// The program has installed guard pages in the region (`MADV_GUARD_INSTALL`).
    Guarded,
    /// The region's pages are interleaved between NUMA nodes, and a huge page would put them all on one.
    Interleaved,
    /// Pages are pinned: buffers of I/O.
    Pinned,
    /// The memory is of a kind that is never huge.
    OtherKind,
    /// The file system of shared memory has no room for the memory that the huge page would add.
    NoRoomOnTmpfs,
    /// Pages of the file are not yet written to the disk, or their state is unknown. The kernel would write them first.
    NotWritten,
    /// A control group of the process has no room for a huge page beside the base pages that it replaces.
    NoHeadroom,
    /// A control group of the process has room for that, but not for the memory that the huge page would add.
    NoRoomToGrow,
    /// Programs of its control group wait for memory, or have just reached a limit.
    MemoryPressure,
    /// The daemon acts for a user, and the huge page would add more memory than the daemon allows.
    UserBudget,
    /// The daemon acts for a user, and the user's rate for this second is used up.
    UserRate,
    /// The daemon acts for a user, and does not answer any more.
    ServiceLost,
    /// The process unmapped the memory after the plan was made, or changed the mapping so that it is no longer one.
    Unmapped,
    /// The watch ended before the action's turn, the plan had become outdated, or earlier collapses took the time of its owner
    /// ([`CollapseBound`](crate::CollapseBound)).
    Cancelled,
}

impl SkipReason {
    /// A few words for a report.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::DryRun => "dry run",
            Self::Shared => "shared copy-on-write with another process",
            Self::GivenBack => "pages of it were given back meanwhile",
            Self::FreedLazily => "pages of it were freed lazily (MADV_FREE)",
            Self::Forbidden => {
                "forbidden there by the program, or for a thread's stack (MADV_NOHUGEPAGE)"
            }
            Self::Disabled => "switched off for the process (prctl)",
            Self::Userfaultfd => "watched by a userfaultfd",
            Self::Guarded => "guard pages lie in it (MADV_GUARD_INSTALL)",
            Self::Interleaved => "interleaved between NUMA nodes",
            Self::Pinned => "pages of it are pinned (buffers of I/O)",
            Self::OtherKind => "of a kind of memory that is never huge",
            Self::NoRoomOnTmpfs => "its tmpfs has no room for what a huge page would add",
            Self::NotWritten => "pages of the file are not written to the disk yet",
            Self::NoHeadroom => "its control group has no room for a huge page",
            Self::NoRoomToGrow => "its control group has no room for what a huge page would add",
            Self::MemoryPressure => "its control group is short of memory",
            Self::UserBudget => "the daemon's budget for a user is used up",
            Self::UserRate => "the daemon's rate for a user is used up",
            Self::ServiceLost => "the daemon that acts for users does not answer",
            Self::Unmapped => "unmapped or cut up meanwhile",
            Self::Cancelled => "its turn did not come",
        }
    }
}

/// Result of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "effect", rename_all = "kebab-case")]
pub enum Effect {
    /// The kernel did the action.
    Done,
    /// The kernel refused.
    Failed {
        /// With this error.
        errno: Errno,
    },
    /// The process was gone. Superhue counts this; it is no error.
    Vanished,
    /// Superhue did not try, on purpose.
    Skipped {
        /// For this reason.
        reason: SkipReason,
    },
}

/// One action and its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionResult {
    /// The action.
    pub action: Action,
    /// Result of the action.
    #[serde(flatten)]
    pub effect: Effect,
    /// Time that the kernel needed for it.
    pub took: Duration,
}

/// Results in the order of the plan, one for every action of it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// The results.
    pub results: Vec<ActionResult>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectId, Owner, PageCount, ProcessId, Region, VirtAddr};

    /// Plans and outcomes travel between processes as JSON.
    #[test]
    fn every_outcome_is_read_back_as_it_was_written() {
        let process = ProcessId {
            pid: 7,
            start_ticks: u64::MAX,
        };
        let object = ObjectId {
            device: (0, 5),
            inode: 1 << 40,
        };
        let region = Region::containing(VirtAddr(0x7f00_0000_0000));
        let growth = PageCount(12);
        let mut effects = vec![
            Effect::Done,
            Effect::Vanished,
            Effect::Failed { errno: Errno(524) },
        ];
        effects.extend(SkipReason::EXAMPLES.map(|reason| Effect::Skipped { reason }));
        let owners: [Owner; 2] = [process.into(), object.into()];
        let results = owners.into_iter().flat_map(|owner| {
            let collapse = Action::Collapse {
                owner,
                region,
                growth,
            };
            let split = Action::Split { owner, region };
            effects.iter().flat_map(move |&effect| {
                [collapse, split].map(|action| ActionResult {
                    action,
                    effect,
                    took: Duration::from_nanos(1_500_000_001),
                })
            })
        });
        let outcome = Outcome {
            results: results.collect(),
        };
        let text = serde_json::to_string(&outcome).unwrap();
        assert_eq!(serde_json::from_str::<Outcome>(&text).unwrap(), outcome);
    }

    impl SkipReason {
        const EXAMPLES: [Self; 21] = [
            Self::DryRun,
            Self::Shared,
            Self::Forbidden,
            Self::Disabled,
            Self::Userfaultfd,
            Self::Guarded,
            Self::Interleaved,
            Self::Pinned,
            Self::OtherKind,
            Self::GivenBack,
            Self::FreedLazily,
            Self::NoRoomOnTmpfs,
            Self::NotWritten,
            Self::NoHeadroom,
            Self::NoRoomToGrow,
            Self::MemoryPressure,
            Self::UserBudget,
            Self::UserRate,
            Self::ServiceLost,
            Self::Unmapped,
            Self::Cancelled,
        ];
    }
}
