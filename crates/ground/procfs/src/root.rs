//! Where the kernel's file systems are: the real ones, or a recorded tree.

use std::path::{Path, PathBuf};

use superhue_sys::busy;

/// The roots under which every reader looks.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Roots {
    /// Where procfs is.
    pub proc: PathBuf,
    /// Where sysfs is.
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
    /// A recorded tree with `proc` and `sys` below `root`.
    #[must_use]
    pub fn under(root: &Path) -> Self {
        Self {
            proc: root.join("proc"),
            sys: root.join("sys"),
        }
    }

    /// An absolute path of the running system, such as a mount point, as seen from these roots.
    #[must_use]
    pub fn below(&self, path: &Path) -> PathBuf {
        match path.strip_prefix("/sys") {
            Ok(rest) => self.sys.join(rest),
            Err(_) => path.to_owned(),
        }
    }

    /// `/proc/PID/NAME`. Of a process that is to be left alone it is a path that does not exist, as of one that has ended.
    ///
    /// Every path of a process is made here, so here is told whom this thread is busy with (see [`busy`]): what is done with the path may wait
    /// for that process.
    #[must_use]
    pub fn of_process(&self, pid: u32, name: &str) -> PathBuf {
        if busy::is_left_alone(pid) {
            return self.proc.join("0").join(name);
        }
        busy::note(pid);
        self.proc.join(pid.to_string()).join(name)
    }
}
