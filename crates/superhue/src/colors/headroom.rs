//! Memory that superhue itself may take for a moment: an eighth of the smallest room that the machine (`MemAvailable`) and the control groups leave.

use superhue_model::ByteCount;
use superhue_procfs::Roots;
use superhue_procfs::system::MemInfo;
use superhue_sys::cgroup::headroom;

/// Part of the free memory that is taken at most: one in this many.
const PART: u64 = 8;

/// Returns the bytes that superhue itself may take for a while; `None` if nothing is known.
pub(crate) fn for_ourselves(roots: &Roots) -> Option<ByteCount> {
    let machine = MemInfo::read(roots).ok().and_then(|info| info.available);
    let groups = headroom(&roots.proc, &roots.sys, "self");
    let free = machine.into_iter().chain(groups).min()?;
    Some(ByteCount(free.0 / PART))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_part_of_the_least_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots {
            proc: folder.path().join("proc"),
            sys: folder.path().join("sys"),
        };
        let group = roots.sys.join("fs/cgroup/a");
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(roots.proc.join("self")).unwrap();
        assert_eq!(for_ourselves(&roots), None);
        fs::write(roots.proc.join("meminfo"), "MemAvailable: 1048576 kB\n").unwrap();
        assert_eq!(for_ourselves(&roots), Some(ByteCount(128 << 20)));
        fs::write(roots.proc.join("self/cgroup"), "0::/a\n").unwrap();
        fs::write(group.join("memory.max"), "33554432\n").unwrap();
        fs::write(group.join("memory.current"), "1048576\n").unwrap();
        assert_eq!(for_ourselves(&roots), Some(ByteCount((31 << 20) / 8)));
    }
}
