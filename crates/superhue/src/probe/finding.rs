//! Results of trials, and the kernel's errors by symbol.

use rustix::io::Errno;

use super::Availability;
use super::look::ReadFailure;

/// Result of a trial. `Err` is a finding too, of a trial that ended early.
pub(super) type Trial = Result<Finding, Finding>;

/// The part of a [`Capability`](super::Capability) that the trial decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) availability: Availability,
    pub(super) found: String,
    pub(super) remedy: Option<String>,
}

impl Finding {
    fn new(availability: Availability, found: impl Into<String>) -> Self {
        Self {
            availability,
            found: found.into(),
            remedy: None,
        }
    }

    pub(super) fn yes(found: impl Into<String>) -> Self {
        Self::new(Availability::Yes, found)
    }

    pub(super) fn partial(found: impl Into<String>) -> Self {
        Self::new(Availability::Partial, found)
    }

    pub(super) fn no(found: impl Into<String>) -> Self {
        Self::new(Availability::No, found)
    }

    pub(super) fn unknown(found: impl Into<String>) -> Self {
        Self::new(Availability::Unknown, found)
    }

    /// Returns the finding of a trial that could not run for want of `what`.
    pub(super) fn not_tried(what: &str, errno: Errno) -> Self {
        Self::unknown(format!("could not be tried: {what}: {}", symbol(errno)))
    }

    /// Returns the finding of a trial that has no scratch memory.
    pub(super) fn no_scratch(errno: Errno) -> Self {
        Self::not_tried("no scratch memory", errno)
    }

    /// Returns the finding of a trial whose scratch child did not start or stopped answering.
    pub(super) fn no_child(errno: Errno) -> Self {
        Self::not_tried("no scratch child", errno)
    }

    /// Returns the finding of a trial whose effect cannot be seen.
    pub(super) fn unseen(blind: ReadFailure) -> Self {
        Self::unknown(format!("the effect cannot be seen: {blind}"))
    }

    pub(super) fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Returns the symbol of an error, e.g. `EPERM`.
pub(super) fn symbol(errno: Errno) -> String {
    // Errors that trials meet, beyond the errors that Superhue's actions know.
    let name = match errno {
        Errno::BADF => "EBADF",
        Errno::EXIST => "EEXIST",
        Errno::MFILE => "EMFILE",
        Errno::NFILE => "ENFILE",
        Errno::NODEV => "ENODEV",
        Errno::NOSPC => "ENOSPC",
        Errno::NOTDIR => "ENOTDIR",
        Errno::ISDIR => "EISDIR",
        Errno::NOTTY => "ENOTTY",
        Errno::NXIO => "ENXIO",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::PROTO => "EPROTO",
        Errno::TIMEDOUT => "ETIMEDOUT",
        Errno::TOOBIG => "E2BIG",
        // Internal to the kernel by its own rules, but bpf(2) and perf_event_open(2) return it.
        errno if errno.raw_os_error() == 524 => "ENOTSUPP",
        errno => return superhue_model::Errno(errno.raw_os_error()).to_string(),
    };
    name.to_owned()
}

/// Returns the kernel's error behind a failed read or write.
pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
