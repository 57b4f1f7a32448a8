//! Why a call failed.

use rustix::io::Errno;

/// Why a call failed, with what to do about it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The socket could not be reached.
    #[error("cannot reach the service at {path} ({errno}): {}", reach_remedy(*.errno))]
    Unreachable {
        /// Where.
        path: String,
        /// The kernel's reason.
        errno: Errno,
    },
    /// It did not answer in time.
    #[error("the service at {path} did not answer in time; is it stopped or overloaded?")]
    Silent {
        /// Where.
        path: String,
    },
    /// It answered something else than this version expects.
    #[error(
        "the service speaks another protocol ({what}): use the superhue that this library came with"
    )]
    Protocol {
        /// What was wrong.
        what: &'static str,
    },
    /// It refused, or it ended the tracking; in its own words.
    #[error("{reason}")]
    Refused {
        /// What kind of reason.
        errno: Errno,
        /// Why, and what to do.
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
    /// An argument that cannot be.
    #[error("{0}")]
    Invalid(&'static str),
    /// The kernel refused something else.
    #[error("{what}: {errno}")]
    System {
        /// What was tried.
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
