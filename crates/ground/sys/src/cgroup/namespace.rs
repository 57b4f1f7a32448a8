//! Groups outside the cgroup namespace of this process.
//!
//! `/proc/PID/cgroup` gives paths relative to the root of the reader's namespace (`cgroup_namespaces(7)`). A container has a namespace of its own,
//! and may see the tree of the host all the same:
//!
//! ```text
//!   /proc/self/cgroup   0::/                         this process, in the group kubepods/a of the host
//!   /proc/7/cgroup      0::/../b                     a process in the group kubepods/b
//!   /sys/fs/cgroup      the tree of the host         cgroup.procs of kubepods/a lists this process: the paths begin there
//! ```

use std::collections::{HashMap, VecDeque};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use superhue_model::words;

use super::{folder_below, memberships, memory_tree};

/// Maximum number of groups that are searched for this process.
const MOST_SEARCHED: usize = 20_000;

/// Roots of this process's namespace, by the mounted tree. A process does not leave its namespace.
static ROOTS: Mutex<Option<HashMap<PathBuf, Option<PathBuf>>>> = Mutex::new(None);

/// Returns the folder of the group with this path, which begins with `/..`, in the tree that is mounted at `mount`, one of those at `trees`. `None`
/// if it is outside the tree.
pub(super) fn folder_of(proc: &Path, trees: &Path, mount: &Path, path: &str) -> Option<PathBuf> {
    let mut roots = ROOTS.lock().unwrap_or_else(PoisonError::into_inner);
    let roots = roots.get_or_insert_default();
    if !roots.contains_key(mount) {
        roots.insert(mount.to_owned(), find_root(proc, trees, mount));
    }
    let root = roots.get(mount)?.as_deref()?;
    resolve(mount, root, path)
}

/// Follows a path that begins at `root`, inside `mount`.
fn resolve(mount: &Path, root: &Path, path: &str) -> Option<PathBuf> {
    let mut folder = root.to_owned();
    let path = folder_below(Path::new("/"), path);
    for component in path.components() {
        match component {
            Component::ParentDir => {
                if folder == mount || !folder.pop() {
                    return None;
                }
            }
            Component::Normal(name) => folder.push(name),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Some(folder)
}

/// Finds the folder in which the paths of `/proc/PID/cgroup` begin: that of this process's own group, less its own path.
fn find_root(proc: &Path, trees: &Path, mount: &Path) -> Option<PathBuf> {
    let lines = fs::read(proc.join("self/cgroup")).ok()?;
    let lines = words::of_bytes(&lines);
    let mut own = memberships(&lines);
    let (_, own) = own.find(|(controllers, _)| {
        memory_tree(trees, controllers).is_some_and(|tree| tree == mount)
    })?;
    let mut root = find_own(mount)?;
    let below = folder_below(Path::new("/"), own);
    for name in below.components().rev() {
        if let Component::Normal(name) = name
            && !(root != mount && root.ends_with(name) && root.pop())
        {
            return None;
        }
    }
    Some(root)
}

/// Finds the group of this process in a tree, the nearest to its root first.
fn find_own(mount: &Path) -> Option<PathBuf> {
    let own = std::process::id().to_string();
    let mut waiting = VecDeque::from([mount.to_owned()]);
    let mut searched = 0;
    while let Some(folder) = waiting.pop_front() {
        searched += 1;
        if searched > MOST_SEARCHED {
            return None;
        }
        let processes = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
        if processes.lines().any(|line| line == own) {
            return Some(folder);
        }
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        waiting.extend(folders.map(|entry| entry.path()));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::groups;
    use super::*;

    #[test]
    fn a_container_sees_the_groups_beside_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        let tree = sys.join("fs/cgroup");
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write(proc.join("self/cgroup"), "0::/worker\n");
        write(proc.join("7/cgroup"), "0::/../b/c\n");
        write(proc.join("8/cgroup"), "0::/../../../b\n");
        write(proc.join("9/cgroup"), "0::/worker\n");
        write(tree.join("pods/b/c/cgroup.procs"), "7\n");
        let own = format!("1\n{}\n", std::process::id());
        write(tree.join("pods/a/worker/cgroup.procs"), &own);
        let of = |process| groups(&proc, &sys, process);
        let expected = ["pods/b/c", "pods/b", "pods", ""];
        let expected = expected.map(|name| tree.join(name).components().collect::<PathBuf>());
        assert_eq!(of("7").as_deref(), Some(&expected[..]));
        assert_eq!(of("8"), None, "above the tree");
        assert!(of("9").is_some());
    }

    #[test]
    fn a_tree_without_this_process_says_nothing_about_groups_outside() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        fs::create_dir_all(sys.join("fs/cgroup/a")).unwrap();
        fs::create_dir_all(proc.join("self")).unwrap();
        fs::create_dir_all(proc.join("7")).unwrap();
        fs::write(proc.join("self/cgroup"), "0::/\n").unwrap();
        fs::write(proc.join("7/cgroup"), "0::/../b\n").unwrap();
        assert_eq!(groups(&proc, &sys, "7"), None);
        fs::write(proc.join("7/cgroup"), "0::/b\n").unwrap();
        assert!(groups(&proc, &sys, "7").is_some());
    }
}
