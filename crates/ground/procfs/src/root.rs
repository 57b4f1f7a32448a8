//! Mount points of the kernel's file systems: the real ones, or a recorded tree.

use std::path::{Path, PathBuf};

use superhue_sys::busy;

/// Directories below which every reader works.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Roots {
    /// Mount point of procfs.
    pub proc: PathBuf,
    /// Mount point of sysfs.
    pub sys: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
        }
    }
}

impl Roots {
    /// Uses a recorded tree with `proc` and `sys` below `root`.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
        }
    }

    /// Translates an absolute path of the running system, such as a mount point, to these roots.
    #[must_use]
    pub fn below(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/sys") {
            Ok(rest) => self.sys.join(rest),
            Err(_) => path.to_owned(),
        }
    }

    /// Returns `/proc/PID/NAME`. For a process that is to be left alone it returns a path that does not exist, as if the process had ended.
    ///
    /// Every path of a process comes from here, so this function records the process with which the thread is busy (see [`busy`]): an operation
    /// on the path may wait for that process.
    #[must_use]
    pub fn of_process(&self, pid: u32, name: &str) -> PathBuf {
        if busy::is_left_alone(pid) {
            return self.proc.join("0").join(name);
        }
        busy::note(pid);
        self.proc.join(pid.to_string()).join(name)
    }
}
