//! Charge of the control group of the watched programs, if no other process is in the group.
//!
//! The charge is the one figure that counts everything: resident memory, huge pages of which parts were given back, page tables, cached files. It is
//! the programs' figure only if no other process is in the group or below it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use superhue_model::{ByteCount, ProcessId};
use superhue_procfs::Roots;
use superhue_sys::cgroup::{charged, groups};

/// Time between two reads of the group, the longest time between two searches where there is no such group, and the most processes that it may have.
const EVERY: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(30);
const MOST_MEMBERS: usize = 64;

/// Number of folders that are read of one group. The charge of a group with more folders is not read.
const MOST_FOLDERS: usize = 64;

/// Reads the charge of a group that has only members of the watch.
#[derive(Debug)]
pub(crate) struct Charge {
    roots: Roots,
    next: Duration,
    /// Time from the last read or search to the next one.
    wait: Duration,
}

impl Charge {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            next: Duration::ZERO,
            wait: EVERY,
        }
    }

    /// Returns the charge of the group that holds `members` and no other process; `None` if there is no such group, or the last call was less than a
    /// second ago (longer after each call that found none).
    pub(crate) fn look(
        &mut self,
        at: Duration,
        members: &BTreeSet<ProcessId>,
    ) -> Option<ByteCount> {
        if at < self.next || members.is_empty() || members.len() > MOST_MEMBERS {
            return None;
        }
        let charge = self.charge_of(members);
        self.wait = charge.map_or((self.wait * 2).min(AGAIN), |_| EVERY);
        self.next = at + self.wait;
        charge
    }

    fn charge_of(&self, members: &BTreeSet<ProcessId>) -> Option<ByteCount> {
        let folder = self.folder_of(members.first()?)?;
        let mut others: BTreeSet<u32> = members.iter().map(|id| id.pid).collect();
        let mut left = MOST_FOLDERS;
        // The group and its subgroups hold all of them, and no other process.
        (take_out(&folder, &mut others, &mut left) && others.is_empty())
            .then(|| charged(&folder))?
    }

    /// Returns the folder that the memory of a process is charged to.
    fn folder_of(&self, id: &ProcessId) -> Option<PathBuf> {
        let Roots { proc, sys } = &self.roots;
        let all = groups(proc, sys, &id.pid.to_string())?;
        all.into_iter().find(|folder| charged(folder).is_some())
    }
}

/// Removes the processes of a group and of its subgroups from `pids`; returns true if all of them were there.
fn take_out(folder: &Path, pids: &mut BTreeSet<u32>, left: &mut usize) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    let Ok(text) = fs::read_to_string(folder.join("cgroup.procs")) else {
        return false;
    };
    let mut found = text.lines().map(str::parse::<u32>);
    if !found.all(|pid| pid.is_ok_and(|pid| pids.remove(&pid))) {
        return false;
    }
    let Ok(entries) = fs::read_dir(folder) else {
        return false;
    };
    let below = entries.flatten().filter(|entry| {
        let kind = entry.file_type();
        kind.is_ok_and(|kind| kind.is_dir())
    });
    below
        .into_iter()
        .all(|entry| take_out(&entry.path(), pids, left))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_asked_that_has_no_other_processes() {
        let place = tempfile::tempdir().unwrap();
        let roots = Roots {
            proc: place.path().join("proc"),
            sys: place.path().join("sys"),
        };
        let group = roots.sys.join("fs/cgroup/a");
        let below = group.join("b");
        fs::create_dir_all(&below).unwrap();
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        for pid in [7, 8] {
            write(roots.proc.join(format!("{pid}/cgroup")), "0::/a\n");
        }
        write(group.join("cgroup.procs"), "7\n8\n");
        write(below.join("cgroup.procs"), "");
        let ids = |pids: &[u32]| -> BTreeSet<ProcessId> {
            let id = |&pid| ProcessId {
                pid,
                start_ticks: 1,
            };
            pids.iter().map(id).collect()
        };
        let look = |pids: &[u32]| Charge::new(&roots).look(Duration::ZERO, &ids(pids));
        assert_eq!(look(&[7, 8]), None, "no memory controller");
        write(group.join("memory.current"), "4096\n");
        assert_eq!(look(&[7, 8]), Some(ByteCount(4096)));
        assert_eq!(look(&[7]), None, "8 is somebody else");
        write(below.join("cgroup.procs"), "9\n");
        assert_eq!(look(&[7, 8]), None, "9 is charged to it, too");
        write(below.join("cgroup.procs"), "");
        write(group.join("cgroup.procs"), "7\n");
        assert_eq!(look(&[7, 8]), None, "they have no group in common");

        let mut charge = Charge::new(&roots);
        write(group.join("cgroup.procs"), "7\n");
        let one = ids(&[7]);
        assert_eq!(charge.look(Duration::ZERO, &one), Some(ByteCount(4096)));
        assert_eq!(charge.look(EVERY / 2, &one), None);
        assert_eq!(charge.look(EVERY, &one), Some(ByteCount(4096)));
    }
}
