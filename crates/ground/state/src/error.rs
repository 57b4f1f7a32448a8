//! Why a file or folder is not used.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;

/// Why a file or folder is not used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Somebody else may have made it or written to it.
    #[error("{} is not used: {reason}; {remedy}", path.display())]
    Untrusted {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        remedy: &'static str,
    },
    /// Somebody holds the lock.
    #[error(
        "{} is still locked after {} s{}: end whoever holds it (`fuser -v` of that file tells who), then try again",
        path.display(), waited.as_secs(), told(*holder)
    )]
    Locked {
        /// The lock.
        path: PathBuf,
        /// For how long it was waited for.
        waited: Duration,
        /// Who holds it, if that is known.
        holder: Option<u32>,
    },
    /// The kernel says no.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

fn told(holder: Option<u32>) -> String {
    holder.map_or_else(String::new, |pid| format!(" by process {pid}"))
}

impl StateError {
    /// Whether the caller simply may not.
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
