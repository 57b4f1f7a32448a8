//! Kernel error numbers, with their meaning for Superhue's actions.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Positive Linux error number (`errno(3)`), the same on every architecture that Superhue supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(1);
    /// No such file.
    pub const ENOENT: Self = Self(2);
    /// No such process.
    pub const ESRCH: Self = Self(3);
    /// Interrupted by a signal.
    pub const EINTR: Self = Self(4);
    /// Input/output error.
    pub const EIO: Self = Self(5);
    /// Resource temporarily unavailable.
    pub const EAGAIN: Self = Self(11);
    /// Out of memory; for a collapse: no free huge page.
    pub const ENOMEM: Self = Self(12);
    /// Permission denied.
    pub const EACCES: Self = Self(13);
    /// Bad address.
    pub const EFAULT: Self = Self(14);
    /// Busy; for a collapse: a page is locked, pinned, or not on the LRU list.
    pub const EBUSY: Self = Self(16);
    /// Invalid argument; for a collapse: the VMA cannot hold huge pages.
    pub const EINVAL: Self = Self(22);
    /// Read-only file system.
    pub const EROFS: Self = Self(30);
    /// Function not implemented.
    pub const ENOSYS: Self = Self(38);

    /// The symbol of the error, e.g. `EBUSY`; `None` for an error that Superhue does not expect.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::EPERM => "EPERM",
            Self::ENOENT => "ENOENT",
            Self::ESRCH => "ESRCH",
            Self::EINTR => "EINTR",
            Self::EIO => "EIO",
            Self::EAGAIN => "EAGAIN",
            Self::ENOMEM => "ENOMEM",
            Self::EACCES => "EACCES",
            Self::EFAULT => "EFAULT",
            Self::EBUSY => "EBUSY",
            Self::EINVAL => "EINVAL",
            Self::EROFS => "EROFS",
            Self::ENOSYS => "ENOSYS",
            _ => return None,
        })
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}
