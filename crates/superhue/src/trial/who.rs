//! Processes of a trial: a set that may change, or one process that must stay.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use superhue_model::ProcessId;
use superhue_procfs::ReadError;
use superhue_procfs::Roots;
use superhue_procfs::cgroup::{Cgroup, CgroupError};
use superhue_procfs::process::{descendants, identify, still_is, still_runs};

use crate::targets::{Population, others};

/// Processes of a trial, as the user names them.
#[derive(Debug, Clone)]
pub enum TrialTargets {
    /// A process, and its descendants.
    Process(u32),
    /// The processes of a control group: its path below the mount or in full.
    Cgroup(PathBuf),
    /// The processes of a systemd unit, by name.
    Unit(String),
    /// The processes of an effective user.
    User(u32),
    /// All processes except superhue.
    All,
    /// The processes of a rule of the daemon.
    Rule(RuleProcesses),
}

/// Function that returns the present processes of a rule, or the reason why the rule cannot be tried any more.
type FindProcesses = dyn FnMut() -> Result<Vec<ProcessId>, String> + Send;

/// Processes of a rule, as the daemon finds them. Clones share the search.
#[derive(Clone)]
pub struct RuleProcesses {
    rule: String,
    find: Arc<Mutex<FindProcesses>>,
}

impl RuleProcesses {
    /// Makes the processes of the rule with this name. The trial calls `find` several times a second, so it must not wait.
    pub fn new(
        rule: &str,
        find: impl FnMut() -> Result<Vec<ProcessId>, String> + Send + 'static,
    ) -> Self {
        Self {
            rule: rule.to_owned(),
            find: Arc::new(Mutex::new(find)),
        }
    }

    fn now(&self, roots: &Roots) -> Result<Vec<ProcessId>, String> {
        let mut find = self.find.lock().unwrap_or_else(PoisonError::into_inner);
        let mut found = (*find)()?;
        let own = std::process::id();
        found.retain(|id| id.pid != own && still_is(roots, *id));
        Ok(found)
    }
}

impl fmt::Debug for RuleProcesses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RuleProcesses").field(&self.rule).finish()
    }
}

/// Error in finding the processes.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// The process cannot be inspected.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The control group cannot be found.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
}

/// Search for the present processes of a trial.
#[derive(Debug)]
pub(super) struct TargetSearch {
    roots: Roots,
    targets: TrialTargets,
    follow: bool,
    found: ResolvedTarget,
    /// The processes that the last search found.
    last: Vec<ProcessId>,
}

#[derive(Debug)]
enum ResolvedTarget {
    Process(ProcessId),
    Group(Cgroup),
    /// All processes, or those of a user.
    Everybody(Population),
    Rule(RuleProcesses),
}

impl TargetSearch {
    pub(super) fn new(
        roots: &Roots,
        targets: &TrialTargets,
        follow: bool,
    ) -> Result<Self, TargetError> {
        Ok(Self {
            found: find(roots, targets)?,
            roots: roots.clone(),
            targets: targets.clone(),
            follow,
            last: Vec::new(),
        })
    }

    /// Returns the target's name as the user gave it.
    pub(super) fn name(&self) -> String {
        match &self.targets {
            TrialTargets::Process(pid) => pid.to_string(),
            TrialTargets::Cgroup(path) => path.display().to_string(),
            TrialTargets::Unit(name) => name.clone(),
            TrialTargets::User(user) => format!("user {user}"),
            TrialTargets::All => "all processes".to_owned(),
            TrialTargets::Rule(processes) => format!("rule {}", processes.rule),
        }
    }

    /// Returns the name of the rule, if they are those of one.
    pub(super) fn rule(&self) -> Option<String> {
        match &self.targets {
            TrialTargets::Rule(processes) => Some(processes.rule.clone()),
            _ => None,
        }
    }

    /// Returns the file that counts CPU time for all of them, if there is a control group.
    pub(super) fn cpu_file(&self) -> Option<PathBuf> {
        match &self.found {
            ResolvedTarget::Process(_) | ResolvedTarget::Everybody(_) | ResolvedTarget::Rule(_) => {
                None
            }
            ResolvedTarget::Group(group) => Some(group.folder().join("cpu.stat")),
        }
    }

    /// Returns the present processes: none for a group that is empty or gone, which may come back, and those of the last search if they cannot be
    /// listed this time.
    ///
    /// # Errors
    /// The reason why there will be none any more: a process that was given by number has ended, or a rule cannot be tried any more.
    pub(super) fn members(&mut self) -> Result<Vec<ProcessId>, String> {
        if let Some(found) = self.search()? {
            self.last = found;
        }
        Ok(self.last.clone())
    }

    /// Searches the processes; returns `None` if they cannot be listed this time.
    fn search(&mut self) -> Result<Option<Vec<ProcessId>>, String> {
        Ok(Some(match &self.found {
            ResolvedTarget::Process(id) => {
                if !still_runs(&self.roots, *id) {
                    return Err(format!(
                        "process {} has ended (--unit or --cgroup goes on with the one that takes its place)",
                        id.pid
                    ));
                }
                let children = if self.follow {
                    descendants(&self.roots, id.pid).unwrap_or_default()
                } else {
                    Vec::new()
                };
                let children = children.into_iter().filter(|pid| *pid != id.pid);
                let mut members = others(&self.roots, children);
                members.push(*id);
                members
            }
            ResolvedTarget::Everybody(all) => match all.search(&self.roots) {
                Ok(found) => found.members,
                Err(_) => return Ok(None),
            },
            ResolvedTarget::Rule(processes) => processes.now(&self.roots)?,
            ResolvedTarget::Group(group) => match group.members() {
                Ok(members) => others(&self.roots, members.pids),
                Err(CgroupError::Gone { .. }) => {
                    // The service has stopped; a start makes another group of the same name.
                    if let Ok(found) = find(&self.roots, &self.targets) {
                        self.found = found;
                    }
                    Vec::new()
                }
                Err(_) => return Ok(None),
            },
        }))
    }
}

fn find(roots: &Roots, targets: &TrialTargets) -> Result<ResolvedTarget, TargetError> {
    Ok(match targets {
        TrialTargets::Process(pid) => ResolvedTarget::Process(identify(roots, *pid)?),
        TrialTargets::Cgroup(path) => ResolvedTarget::Group(Cgroup::find(roots, path)?),
        TrialTargets::Unit(name) => ResolvedTarget::Group(Cgroup::of_unit(roots, name)?),
        TrialTargets::User(user) => {
            ResolvedTarget::Everybody(Population::Everybody { user: Some(*user) })
        }
        TrialTargets::All => ResolvedTarget::Everybody(Population::Everybody { user: None }),
        TrialTargets::Rule(processes) => ResolvedTarget::Rule(processes.clone()),
    })
}
