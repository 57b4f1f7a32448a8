//! Where the kernel's file systems are: the real ones, or a recorded tree.

use std::path::{Path, PathBuf};

/// The roots under which every reader looks.
#[derive(Debug, Clone, PartialEq, Eq)]
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

    /// `/proc/PID/NAME`.
    #[must_use]
    pub fn of_process(&self, pid: u32, name: &str) -> PathBuf {
        self.proc.join(pid.to_string()).join(name)
    }
}
