//! Control groups and swap: the swap that a process may still use, and the groups that have no room to take their swapped memory back.
//!
//! *Out.* Version 2 limits swap by itself: past `memory.swap.max` no page is swapped out; past `memory.swap.high` the kernel slows the
//! program down at each of its allocations ("cgroup-v2.rst"). Version 1 has no such limit. Its `memory.memsw.limit_in_bytes` limits memory
//! and swap together, and a swapped page counts as before (tried: of 100 pages in a group at its limit, 100 were swapped out).
//! `memory.swappiness` applies to reclaim by the kernel itself; `MADV_PAGEOUT` swaps pages out even if it is 0 (tried).
//!
//! *In.* `swapoff(2)` charges every page to its group again. If the group reaches its limit, the OOM killer ends a program of the group:
//! one with 30 MiB, 10 of them swapped, in a group of 20 MiB, was ended at once, and the call failed with `ENOMEM`. So code that switches
//! an area off calls [`short_of_room`] before.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_model::ByteCount;
use superhue_sys::cgroup::groups;

use crate::Roots;

/// Limit on the memory that zswap takes for a group under version 2, and that memory. Past the limit pages go to the swap device.
const ZSWAP: (&str, &str) = ("memory.zswap.max", "memory.zswap.current");

/// Limits on swap under version 2; [`SWAPPED`] holds the usage.
const BOUNDS: [&str; 2] = ["memory.swap.max", "memory.swap.high"];
const SWAPPED: &str = "memory.swap.current";

/// Hard limit on memory and its usage, under version 2 and 1. Reaching `memory.high` ends no program.
const MEMORY: [(&str, &str); 2] = [
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
];

/// Version 1: usage of memory and swap together, and of memory alone.
const MEMORY_AND_SWAP: [&str; 2] = ["memory.memsw.usage_in_bytes", "memory.usage_in_bytes"];

/// Value above which a limit of version 1 means no limit: the kernel writes the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// Bytes that must remain free: 1 MiB, or this part of the limit. The programs of the group continue to run meanwhile.
const LEAST_LEFT: u64 = 1 << 20;
const PART_LEFT: u64 = 64;

/// Divisor: the part of its cached files that a group can surely give back. Other cached files are dirty, locked or in use.
const PART_OF_CACHE: u64 = 2;

/// Returns the bytes of swap that the control groups of process `pid` still allow. `None` without a limit, or if no limit can be read; 0 if a group is
/// not visible.
#[must_use]
pub fn swap_room(roots: &Roots, pid: u32) -> Option<ByteCount> {
    let Some(folders) = groups(&roots.proc, &roots.sys, &pid.to_string()) else {
        return Some(ByteCount(0));
    };
    let left = folders.iter().filter_map(|folder| {
        let bound = BOUNDS
            .iter()
            .filter_map(|name| number(folder, name))
            .min()?;
        let swapped = number(folder, SWAPPED)?;
        Some(ByteCount(bound.saturating_sub(swapped)))
    });
    left.min()
}

/// Returns the bytes that zswap may still take for pages of process `pid`, by the limits of its control groups. `None` without a limit, or if no
/// limit can be read; 0 if a group is not visible.
#[must_use]
pub fn zswap_room(roots: &Roots, pid: u32) -> Option<ByteCount> {
    let Some(folders) = groups(&roots.proc, &roots.sys, &pid.to_string()) else {
        return Some(ByteCount(0));
    };
    let (limit, used) = ZSWAP;
    let left = folders.iter().filter_map(|folder| {
        let limit = number(folder, limit)?;
        Some(ByteCount(limit.saturating_sub(number(folder, used)?)))
    });
    left.min()
}

/// Control group that has no room for its swapped memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortGroup {
    /// Directory of the group.
    pub folder: PathBuf,
    /// Swapped memory of the group and the groups below it; `None` if the kernel does not count it.
    pub swapped: Option<ByteCount>,
    /// Memory that the group can take before it reaches its limit.
    pub room: ByteCount,
}

/// Returns the first control group that has no room to take its swapped memory back, of which at most `most` comes back.
///
/// The search covers the groups that the caller's mounts show.
#[must_use]
pub fn short_of_room(roots: &Roots, most: ByteCount) -> Option<ShortGroup> {
    if most.0 == 0 {
        return None;
    }
    let root = roots.sys.join("fs/cgroup");
    let mut to_visit = vec![root.join("memory")];
    if root.join("cgroup.procs").is_file() {
        to_visit.push(root);
    }
    while let Some(folder) = to_visit.pop() {
        let swapped = swapped(&folder);
        // The count includes the groups below.
        if swapped == Some(0) {
            continue;
        }
        if let Some(room) = room(&folder) {
            let back = swapped.unwrap_or(u64::MAX).min(most.0);
            if room.left < back.saturating_add(room.margin) {
                return Some(ShortGroup {
                    folder,
                    swapped: swapped.map(ByteCount),
                    room: ByteCount(room.left),
                });
            }
        }
        // A group removed meanwhile has nothing swapped.
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        to_visit.extend(folders.map(|entry| entry.path()));
    }
    None
}

/// Returns the swapped memory of the group at `folder` and the groups below it, in bytes.
fn swapped(folder: &Path) -> Option<u64> {
    // Version 1 counts memory, and memory and swap together. Its `memory.stat` lags behind by two seconds.
    let first = || {
        let [both, memory] = MEMORY_AND_SWAP.map(|name| number(folder, name));
        Some(both?.saturating_sub(memory?))
    };
    number(folder, SWAPPED).or_else(first)
}

/// Room below a limit, in bytes.
struct Headroom {
    left: u64,
    margin: u64,
}

/// Returns the room below the hard limit of the group at `folder`; `None` without a limit.
fn room(folder: &Path) -> Option<Headroom> {
    let bounds = MEMORY.iter().filter_map(|(limit, used)| {
        let limit = number(folder, limit).filter(|limit| *limit < NO_LIMIT)?;
        Some((limit, number(folder, used)?))
    });
    let (limit, used) = bounds.min_by_key(|(limit, used)| limit.saturating_sub(*used))?;
    let stat = stat(folder);
    // Version 1 has separate lines for the sums.
    let cached = |prefix: &str| entry(&stat, &format!("{prefix}inactive_file "));
    let cached = cached("total_").or_else(|| cached("")).unwrap_or(0);
    let used = used.saturating_sub(cached / PART_OF_CACHE);
    Some(Headroom {
        left: limit.saturating_sub(used),
        margin: LEAST_LEFT.max(limit / PART_LEFT),
    })
}

fn stat(folder: &Path) -> String {
    let text = fs::read(folder.join("memory.stat")).unwrap_or_default();
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the number after `name` at the beginning of a line.
fn entry(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    lines.find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

/// Reads the number in a file; `None` for `max`, which means no limit.
fn number(folder: &Path, name: &str) -> Option<u64> {
    fs::read_to_string(folder.join(name))
        .ok()?
        .trim()
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Recorded tree with a process in the group `a/b`.
    struct Fake {
        _folder: tempfile::TempDir,
        roots: Roots,
    }

    impl Fake {
        fn new(membership: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots::under(folder.path());
            fs::create_dir_all(roots.proc.join("7")).unwrap();
            fs::write(roots.proc.join("7/cgroup"), membership).unwrap();
            Self {
                _folder: folder,
                roots,
            }
        }

        fn write(&self, group: &str, name: &str, text: impl ToString) {
            let folder = self.roots.sys.join("fs/cgroup").join(group);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(name), text.to_string()).unwrap();
        }

        fn room(&self) -> Option<u64> {
            swap_room(&self.roots, 7).map(|room| room.0)
        }

        fn short(&self, most: u64) -> Option<ShortGroup> {
            short_of_room(&self.roots, ByteCount(most))
        }
    }

    #[test]
    fn the_tightest_bound_on_swap_decides() {
        let fake = Fake::new("0::/a/b\n");
        assert_eq!(fake.room(), None);
        fake.write("a/b", "memory.swap.max", "max\n");
        fake.write("a/b", "memory.swap.high", "max\n");
        fake.write("a/b", "memory.swap.current", "4096\n");
        assert_eq!(fake.room(), None);
        fake.write("a", "memory.swap.max", 10 * MIB);
        fake.write("a", "memory.swap.current", 4 * MIB);
        assert_eq!(fake.room(), Some(6 * MIB));
        fake.write("a/b", "memory.swap.high", 2 * MIB + 4096);
        assert_eq!(fake.room(), Some(2 * MIB), "it would be slowed down");
        fake.write("a/b", "memory.swap.max", "0\n");
        assert_eq!(fake.room(), Some(0));
        assert_eq!(swap_room(&fake.roots, 8), None, "no process");
    }

    #[test]
    fn the_tightest_bound_on_zswap_decides() {
        let fake = Fake::new("0::/a/b\n");
        let room = || zswap_room(&fake.roots, 7).map(|room| room.0);
        assert_eq!(room(), None);
        fake.write("a/b", "memory.zswap.max", "max\n");
        fake.write("a/b", "memory.zswap.current", 3 * MIB);
        assert_eq!(room(), None);
        fake.write("a", "memory.zswap.max", 10 * MIB);
        fake.write("a", "memory.zswap.current", 3 * MIB);
        assert_eq!(room(), Some(7 * MIB));
        fake.write("a/b", "memory.zswap.max", "0\n");
        assert_eq!(room(), Some(0));
    }

    #[test]
    fn version_1_has_no_bound_on_swap() {
        let fake = Fake::new("4:memory:/a/b\n");
        for name in ["memory.limit_in_bytes", "memory.usage_in_bytes"] {
            fake.write("memory/a/b", name, MIB);
        }
        for name in ["memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"] {
            fake.write("memory/a/b", name, MIB);
        }
        fake.write("memory/a/b", "memory.swappiness", 0);
        assert_eq!(fake.room(), None);
    }

    #[test]
    fn a_group_at_its_limit_has_no_room_for_what_it_has_swapped() {
        let fake = Fake::new("0::/a/b\n");
        fake.write("", "cgroup.procs", "");
        fake.write("a", "memory.swap.current", 4 * MIB);
        fake.write("a", "memory.max", 64 * MIB);
        fake.write("a", "memory.current", 58 * MIB);
        fake.write("a/b", "memory.swap.current", 4 * MIB);
        fake.write("a/b", "memory.max", "max");
        fake.write("a/b", "memory.current", 58 * MIB);
        assert_eq!(fake.short(64 * MIB), None, "4 MiB, and one more");
        fake.write("a", "memory.current", 60 * MIB);
        let short = fake.short(64 * MIB).unwrap();
        assert!(short.folder.ends_with("fs/cgroup/a"), "{short:?}");
        assert_eq!(short.swapped, Some(ByteCount(4 * MIB)));
        assert_eq!(short.room, ByteCount(4 * MIB));
        assert_eq!(fake.short(2 * MIB), None, "what comes back is less");
        assert_eq!(fake.short(0), None);
        fake.write("a", "memory.stat", format!("inactive_file {}\n", 2 * MIB));
        assert_eq!(fake.short(64 * MIB), None, "files can go");
        // A limit of the group below.
        fake.write("a/b", "memory.max", 58 * MIB);
        assert!(fake.short(64 * MIB).unwrap().folder.ends_with("a/b"));
        // No page of it is swapped.
        fake.write("a/b", "memory.swap.current", 0);
        assert_eq!(fake.short(64 * MIB), None);
    }

    #[test]
    fn version_1_tells_what_is_swapped_by_a_difference() {
        let fake = Fake::new("4:memory:/a\n");
        let unlimited = 9_223_372_036_854_771_712_u64;
        let write = |group: &str, limit: u64, memory: u64, swapped: u64| {
            fake.write(group, "memory.limit_in_bytes", limit);
            fake.write(group, "memory.usage_in_bytes", memory);
            fake.write(group, "memory.memsw.usage_in_bytes", memory + swapped);
        };
        write("memory", unlimited, 50 * MIB, MIB);
        write("memory/a", 20 * MIB, 20 * MIB, MIB);
        assert!(fake.short(64 * MIB).unwrap().folder.ends_with("memory/a"));
        write("memory/a", 20 * MIB, 20 * MIB, 0);
        assert_eq!(fake.short(64 * MIB), None);
        // A kernel that does not count swap: as if all were this group's.
        let folder = fake.roots.sys.join("fs/cgroup/memory/a");
        fs::remove_file(folder.join("memory.memsw.usage_in_bytes")).unwrap();
        let short = fake.short(64 * MIB).unwrap();
        assert_eq!((short.swapped, short.room), (None, ByteCount(0)));
        fake.write("memory/a", "memory.usage_in_bytes", 2 * MIB);
        assert_eq!(fake.short(8 * MIB), None);
    }

    #[test]
    fn the_running_machine_is_asked() {
        let roots = Roots::default();
        let room = swap_room(&roots, std::process::id());
        assert!(room.is_none_or(|room| room.0 < NO_LIMIT));
        assert_eq!(short_of_room(&roots, ByteCount(0)), None);
        drop(short_of_room(&roots, ByteCount(4096)));
    }
}
