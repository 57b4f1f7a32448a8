//! Reasons why Superhue does not use a file or folder.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// Reason why Superhue does not use a file or folder.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another user may have made it or written to it.
    #[error("{} is not used: {reason}; {remedy}", path.display())]
    Untrusted {
        /// The file or folder.
        path: PathBuf,
        /// Fault of the file or folder.
        reason: String,
        /// Step that the user should take.
        remedy: &'static str,
    },
    /// Another process holds the lock.
    #[error(
        "{} is still locked after {} s{}: end the process that holds it (`fuser -v` of that file names it), then try again",
        path.display(), waited.as_secs(), told(*holder)
    )]
    Locked {
        /// The lock.
        path: PathBuf,
        /// Time for which Superhue waited.
        waited: Duration,
        /// Process that holds the lock, if that is known.
        holder: Option<u32>,
    },
    /// The kernel refused.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// Operation that was tried.
        what: &'static str,
        /// File or folder of the operation.
        path: PathBuf,
        /// Reason of the kernel.
        source: io::Error,
    },
}

fn told(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

impl StateError {
    /// Returns true if the caller lacks the permission.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    pub(crate) fn untrusted(path: &Path, reason: impl Into<String>) -> Self {
        Self::Untrusted {
            path: path.to_owned(),
            reason: reason.into(),
            remedy: "look who made it, and remove it",
        }
    }

    pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(Errno) -> Self {
        let path = path.to_owned();
        move |errno| Self::Io {
            what,
            path,
            source: errno.into(),
        }
    }
}

impl From<StateError> for io::Error {
    fn from(error: StateError) -> Self {
        let kind = match &error {
            StateError::Untrusted { .. } => io::ErrorKind::InvalidData,
            StateError::Locked { .. } => io::ErrorKind::TimedOut,
            StateError::Io { source, .. } => source.kind(),
        };
        Self::new(kind, error)
    }
}
