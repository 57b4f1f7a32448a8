//! How much memory a pool of pages may take.
//!
//! Of the machine, `MemAvailable`; of each control group the caller is in, `memory.max` (or `memory.high`)
//! less `memory.current` ("cgroup-v2.rst"): a pool that makes the group reach its limit would have the kernel
//! kill the program that the pool is for.

use std::fs;
use std::path::Path;

use superhue_model::ByteCount;
use superhue_observe::Roots;
use superhue_observe::system::MemInfo;

/// A pool takes at most this part of what is free.
const PART: u64 = 16;

/// Bytes that pools may take together; `None` if nothing is known.
pub(crate) fn for_pools(roots: &Roots) -> Option<ByteCount> {
    let machine = MemInfo::read(roots).ok().and_then(|info| info.available);
    let group = in_groups(roots);
    let free = match (machine, group) {
        (Some(machine), Some(group)) => machine.min(group),
        (machine, group) => machine.or(group)?,
    };
    Some(ByteCount(free.0 / PART))
}

/// The least that a control group above this process leaves; `None` without a limit.
fn in_groups(roots: &Roots) -> Option<ByteCount> {
    let groups = fs::read_to_string(roots.proc.join("self/cgroup")).ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = roots.sys.join("fs/cgroup");
    let mut folder = root.join(path);
    let mut least: Option<u64> = None;
    while folder.starts_with(&root) {
        if let Some(left) = left_in(&folder) {
            least = Some(least.map_or(left, |least| least.min(left)));
        }
        if !folder.pop() {
            break;
        }
    }
    least.map(ByteCount)
}

fn left_in(group: &Path) -> Option<u64> {
    let number = |name: &str| -> Option<u64> {
        let text = fs::read_to_string(group.join(name)).ok()?;
        text.trim().parse().ok()
    };
    // `max` is no number.
    let limit = [number("memory.max"), number("memory.high")];
    let limit = limit.into_iter().flatten().min()?;
    Some(limit.saturating_sub(number("memory.current")?))
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
        assert_eq!(for_pools(&roots), Some(ByteCount(64 << 20)));
        write(&inner.join("memory.max"), "max\n");
        write(&inner.join("memory.current"), "1048576\n");
        assert_eq!(for_pools(&roots), Some(ByteCount(64 << 20)), "no limit");
        let outer = roots.sys.join("fs/cgroup/a");
        write(&outer.join("memory.max"), "33554432\n");
        write(&outer.join("memory.current"), "1048576\n");
        assert_eq!(for_pools(&roots), Some(ByteCount((31 << 20) / 16)));
        write(&outer.join("memory.current"), "99999999\n");
        assert_eq!(for_pools(&roots), Some(ByteCount(0)));
    }
}
