//! Splitting through debugfs, for callers whose kernel or capabilities leave no better way.
//!
//! `mm/huge_memory.c`, `split_huge_pages_write`: one line `PID,START,END` splits every huge page of the process in the range. No page is lost. It
//! needs root, a mounted debugfs and no kernel lockdown, and it takes a process by number alone. So [`KernelActuator`](crate::KernelActuator) first
//! tries the advice by pidfd (see `superhue_sys::split`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno as RawErrno;
use superhue_model::{Errno, VirtRange};

/// Reason for a failure to split a range.
#[derive(Debug, thiserror::Error)]
pub enum SplitError {
    /// The kernel file is not there.
    #[error(
        "{} does not exist: mount debugfs (mount -t debugfs none /sys/kernel/debug) on a kernel \
         with CONFIG_TRANSPARENT_HUGEPAGE", path.display()
    )]
    Unavailable {
        /// The file.
        path: PathBuf,
    },
    /// The caller may not write the file.
    #[error("may not write {}: run as root", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
    },
    /// The process was gone.
    #[error("process {pid} has exited")]
    Vanished {
        /// Process number.
        pid: u32,
    },
    /// The kernel refused.
    #[error("process {pid}: splitting {range} failed: {errno}")]
    Refused {
        /// Number of the process.
        pid: u32,
        /// Address range to split.
        range: VirtRange,
        /// Error of the kernel.
        errno: Errno,
    },
}

impl SplitError {
    /// The error as a number, for an outcome.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Unavailable { .. } => Errno::ENOENT,
            Self::Denied { .. } => Errno::EACCES,
            Self::Vanished { .. } => Errno::ESRCH,
            Self::Refused { errno, .. } => *errno,
        }
    }
}

/// The kernel's splitting interface.
#[derive(Debug, Clone)]
pub struct DebugfsSplitter {
    file: PathBuf,
}

impl DebugfsSplitter {
    /// Opens the interface of the debugfs mounted at `debugfs`, and checks that it exists and can be written.
    ///
    /// # Errors
    /// [`SplitError::Unavailable`] or [`SplitError::Denied`], each with the remedy.
    pub fn at(debugfs: &Path) -> Result<Self, SplitError> {
        let file = debugfs.join("split_huge_pages");
        match fs::OpenOptions::new().write(true).open(&file) {
            Ok(_) => Ok(Self { file }),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                Err(SplitError::Denied { path: file })
            }
            Err(_) => Err(SplitError::Unavailable { path: file }),
        }
    }

    /// Splits every huge page of process `pid` that `range` touches.
    ///
    /// As with any advice, success does not mean that a huge page was split.
    ///
    /// # Errors
    /// See [`SplitError`].
    pub fn split(&self, pid: u32, range: VirtRange) -> Result<(), SplitError> {
        let line = format!("{pid},{:#x},{:#x}", range.start.0, range.end.0);
        fs::write(&self.file, line).map_err(|error| match RawErrno::from_io_error(&error) {
            Some(RawErrno::SRCH) => SplitError::Vanished { pid },
            Some(RawErrno::ACCESS | RawErrno::PERM) => SplitError::Denied {
                path: self.file.clone(),
            },
            Some(RawErrno::NOENT) => SplitError::Unavailable {
                path: self.file.clone(),
            },
            errno => SplitError::Refused {
                pid,
                range,
                errno: errno.map_or(Errno::EIO, |errno| Errno(errno.raw_os_error())),
            },
        })
    }
}
