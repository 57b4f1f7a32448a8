//! Processes that a watch of running processes begins with, and processes that join it.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use superhue_model::ProcessId;
use superhue_procfs::cgroup::{Cgroup, CgroupError};
use superhue_procfs::process::{effective_user, identify, identities};
use superhue_procfs::{ReadError, Roots};

/// Running processes to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Targets {
    /// Processes by number, and their descendants. The watch ends with the last of them.
    Processes(Vec<u32>),
    /// Processes in a cgroup and in the cgroups below it, at any time. The path is one below a
    /// cgroup mount (`system.slice/foo.service`) or a full one. The watch waits while the cgroup is
    /// empty, and ends when it is removed.
    Cgroup(PathBuf),
    /// Processes of a systemd unit, by name (`redis.service`, or `redis`). The watch waits while the unit is stopped, and continues when it
    /// starts again.
    Unit(String),
    /// Processes with this effective user. The watch waits for them.
    User(u32),
    /// All processes.
    All,
}

/// A set of processes that changes by itself.
#[derive(Debug)]
pub(crate) enum Population {
    Cgroup(Cgroup),
    /// A unit, and its present cgroup: each start makes a new one.
    Unit {
        roots: Roots,
        name: String,
        found: RefCell<Cgroup>,
    },
    /// All processes, or the processes of one user.
    Everybody {
        user: Option<u32>,
    },
}

/// Result of a search.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    pub(crate) members: Vec<ProcessId>,
    /// Number of processes of other PID namespaces.
    pub(crate) unreachable: u64,
    /// True if no more processes can come.
    pub(crate) is_over: bool,
}

/// Reason why the present members are not known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SearchError {
    /// The processes cannot be listed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The cgroup exists and cannot be read.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

impl Population {
    /// Returns the set that the targets mean; `None` for named processes.
    pub(crate) fn of(targets: &Targets, roots: &Roots) -> Result<Option<Self>, CgroupError> {
        Ok(match targets {
            Targets::Processes(_) => None,
            Targets::Cgroup(path) => Some(Self::Cgroup(Cgroup::find(roots, path)?)),
            Targets::Unit(name) => Some(Self::Unit {
                roots: roots.clone(),
                name: name.clone(),
                found: RefCell::new(Cgroup::of_unit(roots, name)?),
            }),
            Targets::User(user) => Some(Self::Everybody { user: Some(*user) }),
            Targets::All => Some(Self::Everybody { user: None }),
        })
    }

    /// Returns the interval between searches. A cgroup lists its members; finding the other sets
    /// takes reading every process.
    pub(crate) const fn search_every(&self) -> Duration {
        match self {
            Self::Cgroup(_) | Self::Unit { .. } => Duration::from_millis(200),
            Self::Everybody { .. } => Duration::from_secs(1),
        }
    }

    /// Returns the present members, without Superhue itself and without kernel threads. A set that has ended or stands still has none.
    ///
    /// # Errors
    /// The set cannot be read this time, for lack of descriptors for example: its members are those of the last search.
    pub(crate) fn search(&self, roots: &Roots) -> Result<Matches, SearchError> {
        let of_cgroup = |cgroup: &Cgroup| {
            cgroup.members().map(|members| Matches {
                members: others(roots, members.pids),
                unreachable: members.unreachable,
                is_over: false,
            })
        };
        match self {
            Self::Cgroup(cgroup) => match of_cgroup(cgroup) {
                Err(CgroupError::Gone { .. }) => Ok(Matches {
                    is_over: true,
                    ..Matches::default()
                }),
                found => Ok(found?),
            },
            Self::Unit {
                roots: tree,
                name,
                found,
            } => {
                let members = of_cgroup(&found.borrow());
                match members {
                    // The unit has stopped.
                    Err(CgroupError::Gone { .. }) => {}
                    found => return Ok(found?),
                }
                match Cgroup::of_unit(tree, name) {
                    Ok(group) => {
                        found.replace(group);
                    }
                    Err(CgroupError::NoUnit { .. } | CgroupError::Gone { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
                Ok(Matches::default())
            }
            Self::Everybody { user } => {
                let own = std::process::id();
                let mut members = identities(roots)?;
                members.retain(|id| {
                    let is_theirs =
                        user.is_none_or(|user| effective_user(roots, id.pid) == Some(user));
                    is_theirs && id.pid != own
                });
                Ok(Matches {
                    members,
                    ..Matches::default()
                })
            }
        }
    }
}

/// Returns the identities of those `pids` that can be identified, without Superhue itself.
pub(crate) fn others(roots: &Roots, pids: impl IntoIterator<Item = u32>) -> Vec<ProcessId> {
    let own = std::process::id();
    pids.into_iter()
        .filter(|pid| *pid != own)
        .filter_map(|pid| identify(roots, pid).ok())
        .collect()
}
