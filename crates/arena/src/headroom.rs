//! What the control group still allows.
//!
//! Memory past the limit of a control group is no error of a system call: the kernel ends the program. So it is looked at before
//! memory is filled.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_model::ByteCount;

/// Bytes that this process's control groups (version 2) still allow, file cache counted as free; `None` without a
/// limit, or where none can be seen.
pub fn headroom() -> Option<ByteCount> {
    below(
        Path::new("/sys/fs/cgroup"),
        &fs::read_to_string("/proc/self/cgroup").ok()?,
    )
}

/// The least of what the groups of a process allow. `own` is its `/proc/PID/cgroup`.
fn below(root: &Path, own: &str) -> Option<ByteCount> {
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let mut folder: PathBuf = root.join(path);
    let mut least: Option<u64> = None;
    while folder.starts_with(root) {
        if let Some(free) = free(&folder) {
            least = Some(least.map_or(free, |least| least.min(free)));
        }
        if !folder.pop() {
            break;
        }
    }
    least.map(ByteCount)
}

/// What one group allows; `None` without a limit.
fn free(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok();
    let number = |text: String| text.trim().parse::<u64>().ok();
    let limit = read("memory.max").and_then(number)?;
    let used = read("memory.current").and_then(number)?;
    let statistics = read("memory.stat").unwrap_or_default();
    let cache = |name: &str| {
        let mut lines = statistics.lines();
        lines.find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    let cached = cache("inactive_file ").unwrap_or(0) + cache("active_file ").unwrap_or(0);
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let group = root.path().join("outer/inner");
        fs::create_dir_all(&group).unwrap();
        let write = |folder: &str, name: &str, text: &str| {
            fs::write(root.path().join(folder).join(name), text).unwrap();
        };
        let look = || below(root.path(), "1:cpu:/x\n0::/outer/inner\n").map(|bytes| bytes.0);
        assert_eq!(look(), None);
        write("outer/inner", "memory.max", "max\n");
        write("outer/inner", "memory.current", "1000\n");
        assert_eq!(look(), None);
        write("outer", "memory.max", "5000\n");
        write("outer", "memory.current", "4000\n");
        assert_eq!(look(), Some(1000));
        write(
            "outer",
            "memory.stat",
            "anon 3700\ninactive_file 200\nactive_file 100\n",
        );
        assert_eq!(look(), Some(1300));
        write("outer/inner", "memory.max", "1200\n");
        assert_eq!(look(), Some(200));
        write("outer/inner", "memory.current", "9000\n");
        assert_eq!(look(), Some(0));
        assert_eq!(below(root.path(), "nonsense"), None);
    }
}
