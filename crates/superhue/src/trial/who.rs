//! Whose memory a trial is about: processes that come and go, or one that must stay.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_model::ProcessId;
use superhue_procfs::ReadError;
use superhue_procfs::Roots;
use superhue_procfs::cgroup::{Cgroup, CgroupError};
use superhue_procfs::process::{descendants, identify, stat};

use crate::targets::others;

/// Whom a trial is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrialTargets {
    /// A process, and those that it starts.
    Process(u32),
    /// The processes of a control group: its path below the mount or in full.
    Cgroup(PathBuf),
    /// The processes of a unit of systemd, by name.
    Unit(String),
}

/// They cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum WhoError {
    /// The process cannot be looked at.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The control group cannot.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// There is no control group of that name.
    #[error(
        "no control group `{0}` below system.slice, user.slice or machine.slice: is the unit running (systemctl status {0})? \
         --cgroup takes any control group"
    )]
    NoUnit(String),
}

/// Who belongs to it now.
#[derive(Debug)]
pub(super) struct Who {
    roots: Roots,
    targets: TrialTargets,
    follow: bool,
    found: Found,
}

#[derive(Debug)]
enum Found {
    Process(ProcessId),
    Group(Cgroup),
}

/// Folders of the control group tree in which units lie.
const SLICES: [&str; 3] = ["system.slice", "user.slice", "machine.slice"];

/// Folders that are looked into for a unit.
const MOST_FOLDERS: usize = 10_000;

impl Who {
    pub(super) fn new(
        roots: &Roots,
        targets: &TrialTargets,
        follow: bool,
    ) -> Result<Self, WhoError> {
        Ok(Self {
            found: find(roots, targets)?,
            roots: roots.clone(),
            targets: targets.clone(),
            follow,
        })
    }

    /// As the user named it.
    pub(super) fn name(&self) -> String {
        match &self.targets {
            TrialTargets::Process(pid) => pid.to_string(),
            TrialTargets::Cgroup(path) => path.display().to_string(),
            TrialTargets::Unit(name) => name.clone(),
        }
    }

    /// The file that counts CPU time for all of them, if there is a control group.
    pub(super) fn cpu_file(&self) -> Option<PathBuf> {
        match &self.found {
            Found::Process(_) => None,
            Found::Group(group) => Some(group.folder().join("cpu.stat")),
        }
    }

    /// The processes there are now; none of a group that is empty or gone, and may come back. `None` once a process is gone that was
    /// named by its number.
    pub(super) fn members(&mut self) -> Option<Vec<ProcessId>> {
        match &self.found {
            Found::Process(id) => {
                // One that has ended and was not waited for keeps its number.
                let stat = stat(&self.roots, id.pid).ok();
                stat.filter(|stat| stat.start_ticks == id.start_ticks && !stat.is_zombie())?;
                let children = if self.follow {
                    descendants(&self.roots, id.pid).unwrap_or_default()
                } else {
                    Vec::new()
                };
                let children = children.into_iter().filter(|pid| *pid != id.pid);
                let mut members = others(&self.roots, children);
                members.push(*id);
                Some(members)
            }
            Found::Group(group) => match group.members() {
                Ok(members) => Some(others(&self.roots, members.pids)),
                Err(_) => {
                    // Stopped; a start makes another one of the same name.
                    if let Ok(found) = find(&self.roots, &self.targets) {
                        self.found = found;
                    }
                    Some(Vec::new())
                }
            },
        }
    }
}

fn find(roots: &Roots, targets: &TrialTargets) -> Result<Found, WhoError> {
    Ok(match targets {
        TrialTargets::Process(pid) => Found::Process(identify(roots, *pid)?),
        TrialTargets::Cgroup(path) => Found::Group(Cgroup::find(roots, path)?),
        TrialTargets::Unit(name) => Found::Group(find_unit(roots, name)?),
    })
}

/// The control group of a unit: the first folder of its name below the slices, breadth first.
fn find_unit(roots: &Roots, name: &str) -> Result<Cgroup, WhoError> {
    let full = if name.contains('.') {
        name.to_owned()
    } else {
        format!("{name}.service")
    };
    let is_name = !full.is_empty() && !full.contains('/') && !full.starts_with('.');
    let mut folders = std::collections::VecDeque::new();
    for slice in SLICES {
        match Cgroup::find(roots, Path::new(slice)) {
            Ok(slice) => folders.push_back(slice.folder().to_owned()),
            Err(CgroupError::NotMounted) => return Err(CgroupError::NotMounted.into()),
            Err(_) => {}
        }
    }
    let mut seen = 0;
    while let Some(folder) = folders
        .pop_front()
        .filter(|_| is_name && seen < MOST_FOLDERS)
    {
        seen += 1;
        if folder.file_name().is_some_and(|it| it == full.as_str()) {
            return Ok(Cgroup::find(roots, &folder)?);
        }
        // What lies below a service was made by whoever it was delegated to, under any name.
        let is_slice = folder.extension().is_some_and(|kind| kind == "slice");
        if is_slice {
            let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            folders.extend(below.map(|entry| entry.path()));
        }
    }
    Err(WhoError::NoUnit(full))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree with a unified mount.
    fn tree() -> (tempfile::TempDir, Roots) {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let mount = folder.path().join("sys/fs/cgroup");
        let groups = [
            "system.slice/a.service/b.service",
            "system.slice/x.slice/c.service",
            "user.slice/d.scope",
        ];
        for group in groups {
            fs::create_dir_all(mount.join(group)).unwrap();
            let mut path = mount.join(group);
            while path.starts_with(&mount) {
                fs::write(path.join("cgroup.procs"), "").unwrap();
                path.pop();
            }
        }
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        let line = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        fs::write(roots.proc.join("self/mountinfo"), line).unwrap();
        (folder, roots)
    }

    #[test]
    fn units_are_found_below_slices_and_nowhere_else() {
        let (_folder, roots) = tree();
        let found = |name: &str| {
            let group = find_unit(&roots, name).ok()?;
            let name = group.folder().file_name().unwrap().to_str().unwrap();
            Some(name.to_owned())
        };
        assert_eq!(found("a").as_deref(), Some("a.service"));
        assert_eq!(found("c.service").as_deref(), Some("c.service"));
        assert_eq!(found("d.scope").as_deref(), Some("d.scope"));
        assert_eq!(found("b"), None, "made inside of a service");
        for wrong in ["", "..", "a/b", "e", "system.slice/a.service"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }
}
