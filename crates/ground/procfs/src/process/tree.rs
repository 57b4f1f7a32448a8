//! Lists of processes, and their parents and children.
//!
//! None of this is a snapshot: processes start and exit during the read. One read may miss a child that
//! the next one finds; a returned PID may be gone when it is used. Take the
//! [`identify`](super::identify) of a returned PID before trusting it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use superhue_model::ProcessId;

use crate::{ReadError, Roots};

use super::file::malformed;
use super::stat::{ProcStat, stat};
use super::text::{self, ParseError};

/// Returns every user process, ascending: no kernel threads, no zombies.
///
/// # Errors
/// If the process directory itself cannot be listed.
pub fn all(roots: &Roots) -> Result<Vec<u32>, ReadError> {
    Ok(live(roots)?.map(|(pid, _)| pid).collect())
}

/// Returns the PID of every process, ascending, including kernel threads and zombies. Reads one directory and no file of a process.
///
/// # Errors
/// If that directory cannot be listed.
pub fn numbers(roots: &Roots) -> Result<Vec<u32>, ReadError> {
    // The caller itself is in the list.
    let some = |found: Vec<u32>| match found.is_empty() {
        true => Err(io::ErrorKind::NotFound.into()),
        false => Ok(found),
    };
    numbered(&roots.proc)
        .and_then(some)
        .map_err(|error| ReadError::of_system(&roots.proc, error, "procfs is not mounted here"))
}

/// Like [`all`], each with its identity, from the same reads.
///
/// # Errors
/// As for [`all`].
pub fn identities(roots: &Roots) -> Result<Vec<ProcessId>, ReadError> {
    Ok(live(roots)?
        .map(|(pid, stat)| identity(pid, &stat))
        .collect())
}

/// Returns the effective user of process `pid`: the owner of `/proc/PID` (`proc_pid(5)`). The user owns that directory
/// even if the process is not dumpable and its other files belong to root. `None` if the process is
/// gone.
#[must_use]
pub fn effective_user(roots: &Roots, pid: u32) -> Option<u32> {
    fs::metadata(roots.of_process(pid, ""))
        .ok()
        .map(|about| about.uid())
}

/// Returns every user process of the `sessions`, each with its session, ascending: no zombies. Reads every process once, however many
/// sessions there are.
///
/// The descendants of a program stay in its session unless they call `setsid(2)`, even after the
/// parent in between has exited and [`descendants`] no longer reach them.
///
/// # Errors
/// As for [`all`].
pub fn session_members(
    roots: &Roots,
    sessions: &BTreeSet<u32>,
) -> Result<Vec<(ProcessId, u32)>, ReadError> {
    let member = |(pid, stat): (u32, ProcStat)| {
        let session = stat.session.filter(|session| sessions.contains(session))?;
        Some((identity(pid, &stat), session))
    };
    Ok(live(roots)?.filter_map(member).collect())
}

/// Returns the children of `root`, their children and so on, ascending and without `root` itself.
///
/// Follows `/proc/PID/task/TID/children` (a kernel built with `CONFIG_PROC_CHILDREN`), which reads
/// only the processes in question. Without such a file, it reads the parent of every process
/// on the machine once.
///
/// # Errors
/// [`ReadError::Vanished`] when `root` is gone; others as for [`all`].
pub fn descendants(roots: &Roots, root: u32) -> Result<Vec<u32>, ReadError> {
    let mut found = BTreeSet::new();
    let mut to_visit = match children(roots, root)? {
        Some(children) => children,
        None => return by_parent(roots, root),
    };
    while let Some(pid) = to_visit.pop() {
        // The check also ends a cycle, which only a recorded tree can contain.
        if pid != root && found.insert(pid) {
            match children(roots, pid) {
                Ok(children) => to_visit.extend(children.unwrap_or_default()),
                Err(error) if error.is_vanished() => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(found.into_iter().collect())
}

/// Parses `/proc/PID/task/TID/children`: PIDs, each followed by a blank.
///
/// # Errors
/// If something is not a PID.
pub fn parse_children(text: &[u8]) -> Result<Vec<u32>, ParseError> {
    let mut rest = text.trim_ascii();
    let mut found = Vec::new();
    while let Some(field) = text::next_field(&mut rest) {
        let pid = text::decimal(field)
            .and_then(|pid| u32::try_from(pid).ok())
            .ok_or(ParseError::new(1, "a child is not a PID"))?;
        found.push(pid);
    }
    Ok(found)
}

/// Returns the children of every thread of `pid`; `None` if the kernel keeps no such list.
fn children(roots: &Roots, pid: u32) -> Result<Option<Vec<u32>>, ReadError> {
    let tasks = roots.of_process(pid, "task");
    let sort = |path: &Path, error| ReadError::of_process(pid, path, error);
    let mut found = Vec::new();
    for thread in numbered(&tasks).map_err(|error| sort(&tasks, error))? {
        let path = tasks.join(thread.to_string()).join("children");
        match fs::read(&path).map_err(|error| sort(&path, error)) {
            Ok(text) => {
                found.extend(parse_children(&text).map_err(|error| malformed(&path, error))?);
            }
            // Either the thread has ended, or this kernel has no such file at all.
            Err(error) if error.is_vanished() => {
                if thread == pid && stat(roots, pid).is_ok() {
                    return Ok(None);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(Some(found))
}

/// Returns the descendants from one read of every process's parent.
fn by_parent(roots: &Roots, root: u32) -> Result<Vec<u32>, ReadError> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (pid, stat) in stats(roots)? {
        children.entry(stat.parent).or_default().push(pid);
    }
    let mut found = BTreeSet::new();
    let mut to_visit = vec![root];
    while let Some(parent) = to_visit.pop() {
        for child in children.remove(&parent).unwrap_or_default() {
            if child != root && found.insert(child) {
                to_visit.push(child);
            }
        }
    }
    Ok(found.into_iter().collect())
}

const fn identity(pid: u32, stat: &ProcStat) -> ProcessId {
    ProcessId {
        pid,
        start_ticks: stat.start_ticks,
    }
}

/// Returns the processes that have memory of their own.
fn live(roots: &Roots) -> Result<impl Iterator<Item = (u32, ProcStat)>, ReadError> {
    Ok(stats(roots)?.filter(|(_, stat)| !stat.is_kernel_thread() && !stat.is_zombie()))
}

/// Returns every process that can still be read, ascending.
fn stats(roots: &Roots) -> Result<impl Iterator<Item = (u32, ProcStat)>, ReadError> {
    Ok(numbers(roots)?
        .into_iter()
        .filter_map(move |pid| Some((pid, stat(roots, pid).ok()?))))
}

/// Returns the entries of a directory whose names are numbers, ascending.
fn numbered(directory: &Path) -> io::Result<Vec<u32>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        found.extend(text::decimal(name.as_bytes()).and_then(|pid| u32::try_from(pid).ok()));
    }
    found.sort_unstable();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn children_are_read_back(pids: Vec<u32>) {
            let text: String = pids.iter().map(|pid| format!("{pid} ")).collect();
            prop_assert_eq!(parse_children(text.as_bytes()), Ok(pids));
        }

        #[test]
        fn nonsense_never_panics(text: Vec<u8>) {
            let _ = parse_children(&text);
        }
    }

    #[test]
    fn what_is_not_a_pid_is_refused() {
        assert_eq!(parse_children(b""), Ok(vec![]));
        for text in [&b"1 x "[..], b"-1", b"4294967296"] {
            assert!(parse_children(text).is_err());
        }
    }
}
