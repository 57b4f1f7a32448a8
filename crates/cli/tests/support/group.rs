//! A memory group for tests.

use std::fs;
use std::path::{Path, PathBuf};

use superhue_testing::skip;

/// A control group that is removed at the end. Its version decides the names of its files.
pub(crate) struct Group {
    pub(crate) folder: PathBuf,
    is_unified: bool,
}

impl Group {
    /// Makes one whose memory can be limited; `None`, with a visible skip, where that is impossible.
    pub(crate) fn new(name: &str) -> Option<Self> {
        let root = Path::new("/sys/fs/cgroup");
        let name = format!("superhue-test-{name}-{}", std::process::id());
        for (parent, is_unified) in [(root.to_owned(), true), (root.join("memory"), false)] {
            let folder = parent.join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self { folder, is_unified };
            if group.folder.join(group.limit()).exists() {
                return Some(group);
            }
            // Dropped, and so removed: on a machine with several hierarchies, this is not the one of memory.
        }
        skip(
            "cgroup-memory",
            "no control group can be made here whose memory is limited",
        );
        None
    }

    const fn limit(&self) -> &'static str {
        if self.is_unified {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        }
    }

    pub(crate) fn set_limit(&self, bytes: u64) {
        fs::write(self.folder.join(self.limit()), bytes.to_string()).unwrap();
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.folder.join(name)).ok()
    }

    /// Returns the bytes that are charged to it now.
    pub(crate) fn charged(&self) -> Option<u64> {
        let name = if self.is_unified {
            "memory.current"
        } else {
            "memory.usage_in_bytes"
        };
        self.read(name)?.trim().parse().ok()
    }

    /// Returns the most bytes that were charged.
    pub(crate) fn peak(&self) -> Option<u64> {
        let name = if self.is_unified {
            "memory.peak"
        } else {
            "memory.max_usage_in_bytes"
        };
        self.read(name)?.trim().parse().ok()
    }

    /// Returns the counters of its limit events; every number is 0 if it never reached its limit.
    pub(crate) fn events(&self) -> Vec<(String, u64)> {
        let names = ["high", "max", "oom", "oom_kill"];
        let (counts, others) = if self.is_unified {
            ("memory.events", None)
        } else {
            ("memory.oom_control", Some("memory.failcnt"))
        };
        let lines = self.read(counts).unwrap();
        let lines = lines.lines().filter_map(|line| line.split_once(' '));
        let counted = lines.filter(|(name, _)| names.contains(name));
        let counted = counted.map(|(name, count)| (name.to_owned(), count.parse().unwrap()));
        let failures = others.map(|name| {
            let count = self.read(name).unwrap();
            (name.to_owned(), count.trim().parse().unwrap())
        });
        counted.chain(failures).collect()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.folder);
    }
}
