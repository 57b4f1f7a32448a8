//! How much memory the control groups of a process still allow.
//!
//! Memory past the limit of a group is no error of a system call: the kernel makes the program wait, or ends it. So it is looked at
//! before memory is taken. Of each group the lower of `memory.max` and `memory.high` less `memory.current` ("cgroup-v2.rst"), under
//! version 1 `memory.limit_in_bytes` less `memory.usage_in_bytes`. Cached files are given back before a limit is reached, and fill
//! every group that reads enough: they count as free.

use std::fs;
use std::path::Path;

use superhue_model::ByteCount;

/// Bytes that the control groups of a process leave it: the least that one of them and those above it does. `None` without a
/// limit, or where none can be seen.
///
/// `process` is its number, or `self`; `proc` and `sys` are where these file systems are mounted.
#[must_use]
pub fn headroom(proc: &Path, sys: &Path, process: &str) -> Option<ByteCount> {
    let groups = fs::read_to_string(proc.join(process).join("cgroup")).ok()?;
    let root = sys.join("fs/cgroup");
    let least = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.is_empty() {
            least_above(&root, path)
        } else if controllers.split(',').any(|name| name == "memory") {
            least_above(&root.join("memory"), path)
        } else {
            None
        }
    });
    least.min().map(ByteCount)
}

/// The least left by the group at `path` below `root` and those above it.
fn least_above(root: &Path, path: &str) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let groups = group.ancestors();
    groups
        .take_while(|folder| folder.starts_with(root))
        .filter_map(left_in)
        .min()
}

fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse().ok()
    };
    // `max` is no number.
    let limits = ["memory.max", "memory.high", "memory.limit_in_bytes"];
    let limit = limits.into_iter().filter_map(number).min()?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"));
    Some(limit.saturating_sub(used?.saturating_sub(cached_in(group))))
}

/// Bytes of cached files that the group is charged with, those of the groups below it included.
fn cached_in(group: &Path) -> u64 {
    let text = fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let entry = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    // Version 1 has the sums in lines of their own.
    let both = |prefix: &str| {
        let inactive = entry(&format!("{prefix}inactive_file "))?;
        Some(inactive + entry(&format!("{prefix}active_file "))?)
    };
    both("total_").or_else(|| both("")).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_decides() {
        let folder = tempfile::tempdir().unwrap();
        let (proc, sys) = (folder.path().join("proc"), folder.path().join("sys"));
        let inner = sys.join("fs/cgroup/a/b");
        let outer = sys.join("fs/cgroup/a");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(proc.join("7")).unwrap();
        let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
        let look = || headroom(&proc, &sys, "7").map(|bytes| bytes.0);
        assert_eq!(look(), None, "no process");
        write(&proc.join("7/cgroup"), "1:cpu:/x\n0::/a/b\n");
        write(&inner.join("memory.max"), "max\n");
        write(&inner.join("memory.current"), "1000\n");
        assert_eq!(look(), None, "no limit");
        write(&outer.join("memory.max"), "5000\n");
        write(&outer.join("memory.current"), "4000\n");
        assert_eq!(look(), Some(1000));
        let cached = "anon 3700\ninactive_file 200\nactive_file 100\n";
        write(&outer.join("memory.stat"), cached);
        assert_eq!(look(), Some(1300));
        write(&outer.join("memory.high"), "4500\n");
        assert_eq!(look(), Some(800), "it would be slowed down");
        write(&inner.join("memory.max"), "1200\n");
        assert_eq!(look(), Some(200));
        write(&inner.join("memory.current"), "9000\n");
        assert_eq!(look(), Some(0));
        write(&proc.join("7/cgroup"), "nonsense");
        assert_eq!(look(), None);
        // Version 1 numbers its hierarchies, and its files have other names.
        let old = sys.join("fs/cgroup/memory/c");
        fs::create_dir_all(&old).unwrap();
        let lines = "9:name=systemd:/c\n4:cpu,memory:/c/gone\n0::/\n";
        write(&proc.join("7/cgroup"), lines);
        write(&old.join("memory.limit_in_bytes"), "5000\n");
        write(&old.join("memory.usage_in_bytes"), "1000\n");
        assert_eq!(look(), Some(4000));
        write(&old.join("memory.usage_in_bytes"), "5000\n");
        let cached =
            "inactive_file 0\nactive_file 0\ntotal_inactive_file 400\ntotal_active_file 100\n";
        write(&old.join("memory.stat"), cached);
        assert_eq!(look(), Some(500));
    }
}
