//! `seccomp(2)`: trials of calls that a filter may forbid.
//!
//! A filter may answer a call with an error, or by killing the caller (systemd's
//! `SystemCallFilter=` does so by default). Only a trial in a
//! disposable process can detect the second.

/// System call that filters for services and containers often forbid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RiskyCall {
    /// `bpf(2)`.
    Bpf,
    /// `perf_event_open(2)`.
    PerfEventOpen,
    /// `process_madvise(2)`.
    ProcessMadvise,
    /// `swapoff(2)`.
    Swapoff,
    /// `swapon(2)`.
    Swapon,
    /// `userfaultfd(2)`.
    Userfaultfd,
}

impl RiskyCall {
    /// All of these calls.
    pub const ALL: [Self; 6] = [
        Self::Bpf,
        Self::PerfEventOpen,
        Self::ProcessMadvise,
        Self::Swapoff,
        Self::Swapon,
        Self::Userfaultfd,
    ];

    /// Returns the name in man pages and filter settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::PerfEventOpen => "perf_event_open",
            Self::ProcessMadvise => "process_madvise",
            Self::Swapoff => "swapoff",
            Self::Swapon => "swapon",
            Self::Userfaultfd => "userfaultfd",
        }
    }

    /// Returns the number on this architecture.
    #[must_use]
    pub const fn number(self) -> libc::c_long {
        match self {
            Self::Bpf => libc::SYS_bpf,
            Self::PerfEventOpen => libc::SYS_perf_event_open,
            Self::ProcessMadvise => libc::SYS_process_madvise,
            Self::Swapoff => libc::SYS_swapoff,
            Self::Swapon => libc::SYS_swapon,
            Self::Userfaultfd => libc::SYS_userfaultfd,
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue_testing::{Answer, forbid, skip};

    use super::*;

    #[test]
    fn a_killing_filter_is_found_out_and_survived() {
        // In a thread of its own, because the filter never goes away.
        let found = std::thread::spawn(|| {
            forbid(RiskyCall::Bpf.number(), Answer::Kill)?;
            forbid(RiskyCall::Userfaultfd.number(), Answer::NotPermitted)?;
            Ok::<_, String>(RiskyCall::ALL.map(RiskyCall::is_survived))
        });
        match found.join().unwrap() {
            Ok([bpf, others @ ..]) => {
                assert_eq!(bpf, Ok(false));
                assert_eq!(others, [Ok(true); 5]);
            }
            Err(reason) => skip("seccomp", &reason),
        }
    }
}
