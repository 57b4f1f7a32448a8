//! How much memory superhue itself, or a process that is visited, may take for a moment.
//!
//! Of the machine, `MemAvailable`; of each control group the caller is in, `memory.max` (or `memory.high`)
//! less `memory.current` ("cgroup-v2.rst"), under version 1 `memory.limit_in_bytes` less `memory.usage_in_bytes`: a test that makes the
//! group reach its limit would have the kernel kill somebody in it. Cached files are given back before that
//! happens, and fill every group that reads enough: they count as free.

use std::fs;
use std::path::Path;

use superhue_model::ByteCount;
use superhue_observe::Roots;
use superhue_observe::system::MemInfo;

/// At most this part of what is free is taken.
const PART: u64 = 8;

/// Bytes that superhue itself may take for a while; `None` if nothing is known.
pub(super) fn for_ourselves(roots: &Roots) -> Option<ByteCount> {
    part_of_free(roots, "self")
}

/// Bytes that process `pid` may be given for a moment; `None` if nothing is known.
pub(super) fn for_process(roots: &Roots, pid: u32) -> Option<ByteCount> {
    part_of_free(roots, &pid.to_string())
}

/// A part of what the machine and the groups of a process leave.
fn part_of_free(roots: &Roots, process: &str) -> Option<ByteCount> {
    let machine = MemInfo::read(roots).ok().and_then(|info| info.available);
    let free = machine.into_iter().chain(in_groups(roots, process)).min()?;
    Some(ByteCount(free.0 / PART))
}

/// The least that a control group above a process leaves; `None` without a limit.
fn in_groups(roots: &Roots, process: &str) -> Option<ByteCount> {
    let groups = fs::read_to_string(roots.proc.join(process).join("cgroup")).ok()?;
    let root = roots.sys.join("fs/cgroup");
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
        let roots = Roots {
            proc: folder.path().join("proc"),
            sys: folder.path().join("sys"),
        };
        let inner = roots.sys.join("fs/cgroup/a/b");
        fs::create_dir_all(&inner).unwrap();
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        let write = |path: &Path, text: &str| fs::write(path, text).unwrap();
        write(&roots.proc.join("self/cgroup"), "0::/a/b\n");
        write(&roots.proc.join("meminfo"), "MemAvailable: 1048576 kB\n");
        assert_eq!(for_ourselves(&roots), Some(ByteCount(128 << 20)));
        write(&inner.join("memory.max"), "max\n");
        write(&inner.join("memory.current"), "1048576\n");
        assert_eq!(
            for_ourselves(&roots),
            Some(ByteCount(128 << 20)),
            "no limit"
        );
        let outer = roots.sys.join("fs/cgroup/a");
        write(&outer.join("memory.max"), "33554432\n");
        write(&outer.join("memory.current"), "1048576\n");
        assert_eq!(for_ourselves(&roots), Some(ByteCount((31 << 20) / 8)));
        write(&outer.join("memory.current"), "99999999\n");
        assert_eq!(for_ourselves(&roots), Some(ByteCount(0)));
        write(&outer.join("memory.current"), "33554432\n");
        let cached = "anon 31457280\ninactive_file 1048576\nactive_file 1048576\n";
        write(&outer.join("memory.stat"), cached);
        assert_eq!(for_ourselves(&roots), Some(ByteCount((2 << 20) / 8)));
        // Version 1 numbers its hierarchies, and its files have other names.
        let old = roots.sys.join("fs/cgroup/memory/c");
        fs::create_dir_all(&old).unwrap();
        let lines = "9:name=systemd:/c\n4:cpu,memory:/c/gone\n0::/\n";
        write(&roots.proc.join("self/cgroup"), lines);
        write(&old.join("memory.limit_in_bytes"), "33554432\n");
        write(&old.join("memory.usage_in_bytes"), "1048576\n");
        assert_eq!(for_ourselves(&roots), Some(ByteCount((31 << 20) / 8)));
        write(&old.join("memory.usage_in_bytes"), "33554432\n");
        let cached =
            "inactive_file 0\nactive_file 0\ntotal_inactive_file 4096\ntotal_active_file 12288\n";
        write(&old.join("memory.stat"), cached);
        assert_eq!(for_ourselves(&roots), Some(ByteCount(2048)));
    }
}
