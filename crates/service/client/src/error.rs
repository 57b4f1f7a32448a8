//! Errors of the library.

use rustix::io::Errno;

/// Error of a call; its text includes the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The socket could not be reached.
    #[error("cannot reach the service at {path} ({errno}): {}", reach_remedy(*.errno))]
    Unreachable {
        /// Path of the socket.
        path: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// The service did not answer in time.
    #[error("the service at {path} did not answer in time; is it stopped or overloaded?")]
    Silent {
        /// Path of the socket.
        path: String,
    },
    /// The service answered something else than this version expects.
    #[error(
        "the service speaks another protocol ({what}): use the superhue that this library came with"
    )]
    Protocol {
        /// Fault in the answer.
        what: &'static str,
    },
    /// The service refused, or it ended the tracking.
    #[error("{reason}")]
    Refused {
        /// Error number that classifies the reason.
        errno: Errno,
        /// Reason and remedy, in the service's words.
        reason: String,
    },
    /// The service is gone: stopped, restarted or killed.
    #[error("the service has ended; enable tracking again once it runs")]
    ServiceGone,
    /// Tracking was switched off by another thread.
    #[error("tracking was disabled")]
    Disabled,
    /// The caller is a forked child of the process that is tracked.
    #[error("this process is a forked child and not tracked: enable tracking in it")]
    Forked,
    /// The list was being replaced each time it was read.
    #[error("the list is just being replaced: there will be another notice")]
    Busy,
    /// A signal handler ran while waiting.
    #[error("interrupted by a signal handler")]
    Interrupted,
    /// An argument is invalid.
    #[error("{0}")]
    Invalid(&'static str),
    /// Another operation failed.
    #[error("{what}: {errno}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

fn reach_remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT | Errno::CONNREFUSED => "start it with `superhue track` as root",
        Errno::ACCESS | Errno::PERM => "the socket's or its folder's permissions forbid it",
        _ => "see errno(3)",
    }
}

impl ClientError {
    /// The error number that the C interface returns for it (positive).
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Unreachable { errno, .. }
            | Self::Refused { errno, .. }
            | Self::System { errno, .. } => *errno,
            Self::Silent { .. } => Errno::TIMEDOUT,
            Self::Protocol { .. } => Errno::PROTO,
            Self::ServiceGone => Errno::PIPE,
            Self::Disabled => Errno::NOTCONN,
            Self::Forked => Errno::SRCH,
            Self::Busy => Errno::AGAIN,
            Self::Interrupted => Errno::INTR,
            Self::Invalid(_) => Errno::INVAL,
        }
    }
}
