//! Errors of colored memory, and their remedies.

use rustix::io::Errno;
use superhue_color::oracles::OracleError;
use superhue_model::{ByteCount, ColorSetError, PageCount, ParseColorsError};

/// Reason why memory was not colored, or not inspected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ColorError {
    /// Text that names no colors.
    #[error(transparent)]
    Text(#[from] ParseColorsError),
    /// Colors that this cache does not have.
    #[error(transparent)]
    Set(#[from] ColorSetError),
    /// Set that was made for another number of colors.
    #[error("the set was made for {set} colors, and here there are {here}: make it anew")]
    OtherCache {
        /// Colors of the set's cache.
        set: usize,
        /// Colors of this one.
        here: usize,
    },
    /// Invalid argument.
    #[error("{0}")]
    Invalid(&'static str),
    /// Size beyond the address space.
    #[error("no memory is that large")]
    TooLarge,
    /// The machine's colors are not known and were not found.
    #[error("the colors of this machine are not known: {0}; `superhue colors` shows the reason")]
    Unknown(String),
    /// The kernel does not support moving pages.
    #[error("pages cannot be moved ({errno}): {}", remedy(*errno))]
    NoMoves {
        /// The kernel's error.
        errno: Errno,
    },
    /// The kernel has no memory, or a limit is reached.
    #[error(
        "no memory for {bytes} ({errno}): the machine's, RLIMIT_AS (ulimit -v) or the control group's is used up"
    )]
    Memory {
        /// Requested size.
        bytes: ByteCount,
        /// The kernel's error.
        errno: Errno,
    },
    /// The arena's own limit is reached.
    #[error("the arena holds {held} and may hold {limit}: {wanted} more do not fit")]
    Limit {
        /// Memory that the arena holds.
        held: ByteCount,
        /// Memory that the arena may hold.
        limit: ByteCount,
        /// Additional memory that was needed.
        wanted: ByteCount,
    },
    /// The process may not lock this memory.
    #[error(
        "{bytes} cannot be locked in memory ({errno}): raise RLIMIT_MEMLOCK (ulimit -l, LimitMEMLOCK=) or do not ask for it"
    )]
    NotLocked {
        /// Size of the memory.
        bytes: ByteCount,
        /// The kernel's error.
        errno: Errno,
    },
    /// The pool has too few pages of the colors, and the arena is strict.
    #[error("{} of {} pages could be had in these colors: {why}", .got.0, .wanted.0)]
    NotInColors {
        /// Pages needed.
        wanted: PageCount,
        /// Pages found.
        got: PageCount,
        /// Reason why the other pages are missing.
        why: String,
    },
    /// The oracle can no longer classify pages.
    #[error("{0}; open the colors again")]
    Drifted(String),
    /// Use in a forked child of an arena that stayed with the parent.
    #[error("this arena stayed with the parent of this process: make one here")]
    Child,
}

impl ColorError {
    /// Returns the matching `errno`, for the C interface.
    #[must_use]
    pub const fn errno(&self) -> Errno {
        match self {
            Self::Text(_) | Self::OtherCache { .. } | Self::Invalid(_) => Errno::INVAL,
            Self::Set(_) => Errno::RANGE,
            Self::TooLarge => Errno::OVERFLOW,
            Self::Unknown(_) | Self::NoMoves { .. } => Errno::OPNOTSUPP,
            Self::Memory { .. } => Errno::NOMEM,
            Self::Limit { .. } => Errno::DQUOT,
            Self::NotLocked { .. } => Errno::PERM,
            Self::NotInColors { .. } => Errno::NOSPC,
            Self::Drifted(_) => Errno::STALE,
            Self::Child => Errno::SRCH,
        }
    }

    /// Builds the error for unreadable residence.
    pub(crate) fn unseen(errno: Errno) -> Self {
        Self::Unknown(format!(
            "/proc/self/pagemap does not tell which pages are resident ({errno}): that takes /proc and Linux 6.7"
        ))
    }
}

/// Returns advice for a kernel that cannot move pages.
const fn remedy(errno: Errno) -> &'static str {
    match errno {
        Errno::PERM | Errno::ACCESS => {
            "a seccomp filter forbids userfaultfd(2): allow it (containers: a profile of their own)"
        }
        Errno::NOSYS => "this kernel was built without userfaultfd(2)",
        Errno::NOTTY | Errno::INVAL => "UFFDIO_MOVE came with Linux 6.8",
        Errno::MFILE | Errno::NFILE => "too many open files: raise RLIMIT_NOFILE (ulimit -n)",
        _ => "see userfaultfd(2)",
    }
}

impl From<OracleError> for ColorError {
    fn from(error: OracleError) -> Self {
        match error {
            OracleError::Drifted(_) => Self::Drifted(error.to_string()),
            OracleError::NotAllowed(why) | OracleError::Unavailable(why) => Self::Unknown(why),
        }
    }
}
