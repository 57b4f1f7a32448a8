//! Which processes a watch of running processes begins with, and which join it.

use std::path::PathBuf;
use std::time::Duration;

use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::cgroup::{Cgroup, CgroupError};
use superhue_procfs::process::{effective_user, identify, identities};

/// Which running processes are to be watched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// These, by number, and their descendants. The watch ends with the last of them.
    Processes(Vec<u32>),
    /// Those in a cgroup and the cgroups below it, whoever comes and goes. The path is one below a
    /// cgroup mount (`system.slice/foo.service`) or a full one. The watch waits while it is empty,
    /// and ends when it is removed.
    Cgroup(PathBuf),
    /// Those with this effective user. The watch waits for them.
    User(u32),
    /// All.
    All,
}

/// A set of processes that changes by itself.
#[derive(Debug)]
pub(crate) enum Population {
    Cgroup(Cgroup),
    /// All, or those of one user.
    Everybody {
        user: Option<u32>,
    },
}

/// What a search found.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    pub(crate) members: Vec<ProcessId>,
    /// Processes of other PID namespaces.
    pub(crate) unreachable: u64,
    /// There will be no more.
    pub(crate) is_over: bool,
}

impl Population {
    /// The set that the targets mean; `None` for named processes.
    pub(crate) fn of(targets: &Targets, roots: &Roots) -> Result<Option<Self>, CgroupError> {
        Ok(match targets {
            Targets::Processes(_) => None,
            Targets::Cgroup(path) => Some(Self::Cgroup(Cgroup::find(roots, path)?)),
            Targets::User(user) => Some(Self::Everybody { user: Some(*user) }),
            Targets::All => Some(Self::Everybody { user: None }),
        })
    }

    /// How often it is searched. A cgroup tells its members at once, the others are known only from
    /// reading every process.
    pub(crate) const fn search_every(&self) -> Duration {
        match self {
            Self::Cgroup(_) => Duration::from_millis(200),
            Self::Everybody { .. } => Duration::from_secs(1),
        }
    }

    /// Who belongs to it now. Never Superhue itself, never a kernel thread.
    ///
    /// What cannot be read this time is empty this time.
    pub(crate) fn search(&self, roots: &Roots) -> Matches {
        match self {
            Self::Cgroup(cgroup) => match cgroup.members() {
                Ok(members) => Matches {
                    members: others(roots, members.pids),
                    unreachable: members.unreachable,
                    is_over: false,
                },
                Err(error) => Matches {
                    is_over: matches!(error, CgroupError::Gone { .. }),
                    ..Matches::default()
                },
            },
            Self::Everybody { user } => {
                let own = std::process::id();
                let mut members = identities(roots).unwrap_or_default();
                members.retain(|id| {
                    let is_theirs =
                        user.is_none_or(|user| effective_user(roots, id.pid) == Some(user));
                    is_theirs && id.pid != own
                });
                Matches {
                    members,
                    ..Matches::default()
                }
            }
        }
    }
}

/// Those of `pids` that can be identified, without ourselves.
pub(crate) fn others(roots: &Roots, pids: impl IntoIterator<Item = u32>) -> Vec<ProcessId> {
    let own = std::process::id();
    pids.into_iter()
        .filter(|pid| *pid != own)
        .filter_map(|pid| identify(roots, pid).ok())
        .collect()
}
