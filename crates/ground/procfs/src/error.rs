//! Reasons why a kernel file could not be used.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Reason why a kernel file could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The process exited (or never existed, or `/proc` hides it). Usually counted, not reported.
    #[error("process {pid} does not exist, has exited, or is hidden (/proc mounted hidepid=)")]
    Vanished {
        /// Process id.
        pid: u32,
    },
    /// A kernel thread, which has no user memory.
    #[error("process {pid} is a kernel thread: it has no memory of its own to place")]
    KernelThread {
        /// Process id.
        pid: u32,
    },
    /// The numbers in `/proc` belong to another PID namespace.
    #[error(
        "{} belongs to another PID namespace, where a number means another process: mount the one \
         of this namespace (unshare --mount-proc does)",
        proc.display()
    )]
    ForeignProc {
        /// Mount point of procfs.
        proc: PathBuf,
    },
    /// The kernel offers no such file here.
    #[error("{} does not exist: {meaning}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// Meaning of its absence for the user.
        meaning: &'static str,
    },
    /// The caller may not open the file.
    #[error("may not open {}: {remedy}", path.display())]
    Denied {
        /// The file.
        path: PathBuf,
        /// Change that would allow it.
        remedy: &'static str,
    },
    /// The file was read, but is not in the format that the kernel documents.
    #[error("{} is not understood: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Fault, and its place in the file.
        what: String,
    },
    /// Any other failure to read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Advice for reading another process's memory map.
pub const PROCESS_REMEDY: &str =
    "run as the process's owner or with CAP_SYS_PTRACE (and a /proc not mounted hidepid=)";

impl ReadError {
    /// Converts an I/O error on a file of process `pid`.
    #[must_use]
    pub fn of_process(pid: u32, path: &Path, source: io::Error) -> Self {
        match Errno::from_io_error(&source) {
            Some(Errno::NOENT | Errno::SRCH) => Self::Vanished { pid },
            Some(Errno::ACCESS | Errno::PERM) => Self::Denied {
                path: path.to_owned(),
                remedy: PROCESS_REMEDY,
            },
            _ => Self::Io {
                path: path.to_owned(),
                source,
            },
        }
    }

    /// Converts an I/O error on a system-wide file, whose absence has the given meaning.
    pub(crate) fn of_system(path: &Path, source: io::Error, meaning: &'static str) -> Self {
        match source.kind() {
            io::ErrorKind::NotFound => Self::Missing {
                path: path.to_owned(),
                meaning,
            },
            io::ErrorKind::PermissionDenied => Self::Denied {
                path: path.to_owned(),
                remedy: "run as root",
            },
            _ => Self::Io {
                path: path.to_owned(),
                source,
            },
        }
    }

    /// Returns true if the process does not exist any more, or is hidden.
    #[must_use]
    pub const fn is_vanished(&self) -> bool {
        matches!(self, Self::Vanished { .. })
    }
}
