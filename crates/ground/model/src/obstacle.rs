//! Why a process is not visited.

use serde::{Deserialize, Serialize};

/// Why what must be done from inside a process was not: it was left alone, for now or for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Obstacle {
    /// Another process traces it: a debugger, `strace`.
    Traced,
    /// It is stopped, by job control or a signal.
    Stopped,
    /// A thread did not stop in time: it is in a `vfork`, or waits for a device.
    Unstoppable,
    /// Another process shares its memory without being one of its threads.
    SharedMemory,
    /// The kernel works on its memory while its threads stand still: io_uring, AIO, KVM, vhost.
    KernelWorks,
    /// A thread is in the middle of a transfer that would come out short if it were stopped: a long write to a pipe.
    Transfers,
    /// It runs under a seccomp filter, which might end it for a call that is not its own.
    Seccomp,
    /// The caller may not trace it.
    NotPermitted,
    /// It is no program of this architecture (32-bit, or another processor's).
    Foreign,
    /// It may not map the little memory that a visit takes: a limit, or a rule against new code.
    NoRoom,
    /// The machine was so busy that the visit had to be given up.
    Busy,
    /// The time that it may be stopped in is used up; later there will be more.
    Paced,
    /// It was gone, or is about to end.
    Gone,
    /// This kernel lacks what the work takes.
    Kernel,
    /// The visiting process cannot be started, or ended.
    NoVisitor,
}

impl Obstacle {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Traced,
        Self::Stopped,
        Self::Unstoppable,
        Self::SharedMemory,
        Self::KernelWorks,
        Self::Transfers,
        Self::Seccomp,
        Self::NotPermitted,
        Self::Foreign,
        Self::NoRoom,
        Self::Busy,
        Self::Paced,
        Self::Gone,
        Self::Kernel,
        Self::NoVisitor,
    ];

    /// A few words for a report, to be read after "left alone:".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Traced => "a debugger traces it",
            Self::Stopped => "it is stopped",
            Self::Unstoppable => "a thread did not stop within 10 ms (vfork, or a device)",
            Self::SharedMemory => "another process shares its memory (clone with CLONE_VM)",
            Self::KernelWorks => "the kernel works on its memory by itself (io_uring, AIO, KVM)",
            Self::Transfers => "a stop would cut a transfer short (a long write to a pipe)",
            Self::Seccomp => "it runs under a seccomp filter",
            Self::NotPermitted => {
                "the caller may not trace it (CAP_SYS_PTRACE, or kernel.yama.ptrace_scope=0)"
            }
            Self::Foreign => "it is not a program of this architecture",
            Self::NoRoom => {
                "it may not map memory for a visit (a limit, or a rule against new code)"
            }
            Self::Busy => "the machine was too busy to do it in time",
            Self::Paced => "the time in which it may be stopped is used up",
            Self::Gone => "it ended",
            Self::Kernel => "this kernel lacks what a visit takes",
            Self::NoVisitor => "the visiting process could not be started",
        }
    }

    /// Whether it may pass, so that it is worth trying again later.
    #[must_use]
    pub const fn may_pass(self) -> bool {
        match self {
            Self::Traced
            | Self::Stopped
            | Self::Unstoppable
            | Self::SharedMemory
            | Self::KernelWorks
            | Self::Transfers
            | Self::NoRoom
            | Self::Busy
            | Self::Paced => true,
            Self::Seccomp
            | Self::NotPermitted
            | Self::Foreign
            | Self::Gone
            | Self::Kernel
            | Self::NoVisitor => false,
        }
    }
}
