//! `seccomp(2)`: finding out what a filter would do to a call, and putting one in force.
//!
//! A filter may answer a call with an error, or by killing the caller (systemd's
//! `SystemCallFilter=` does so by default). The second cannot be found out by trying, except in a
//! process that may be lost.

use rustix::io::Errno;

use crate::pagemap::last_errno;

/// A system call that filters for services and containers often forbid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RiskyCall {
    /// `bpf(2)`.
    Bpf,
    /// `perf_event_open(2)`.
    PerfEventOpen,
    /// `process_madvise(2)`.
    ProcessMadvise,
    /// `userfaultfd(2)`.
    Userfaultfd,
}

impl RiskyCall {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Bpf,
        Self::PerfEventOpen,
        Self::ProcessMadvise,
        Self::Userfaultfd,
    ];

    /// Its name in man pages and filter settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "bpf",
            Self::PerfEventOpen => "perf_event_open",
            Self::ProcessMadvise => "process_madvise",
            Self::Userfaultfd => "userfaultfd",
        }
    }

    pub(crate) const fn number(self) -> libc::c_long {
        match self {
            Self::Bpf => libc::SYS_bpf,
            Self::PerfEventOpen => libc::SYS_perf_event_open,
            Self::ProcessMadvise => libc::SYS_process_madvise,
            Self::Userfaultfd => libc::SYS_userfaultfd,
        }
    }
}

/// What a filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Kills the process, as systemd does.
    Kill,
    /// `EPERM`, as container engines do.
    NotPermitted,
}

/// Forbids a call to the calling thread and to all that it starts from now on. There is no way
/// back; setuid programs lose their effect too (`PR_SET_NO_NEW_PRIVS`).
///
/// Superhue itself never does this: it is how its tests see what becomes of it under a filter. Not
/// a security boundary, for it does not look at the calling convention.
///
/// # Errors
/// `EINVAL` on a kernel without `CONFIG_SECCOMP_FILTER`.
pub fn forbid(call: RiskyCall, answer: Answer) -> Result<(), Errno> {
    const OFFSET_OF_NUMBER: u32 = 0; // in struct seccomp_data
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let number = u32::try_from(call.number()).map_err(|_| Errno::INVAL)?;
    let answer = match answer {
        Answer::Kill => libc::SECCOMP_RET_KILL_PROCESS,
        Answer::NotPermitted => libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
    };
    let instruction = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut filter = [
        instruction(LOAD, 0, 0, OFFSET_OF_NUMBER),
        instruction(JUMP_IF_EQUAL, 0, 1, number),
        instruction(RETURN, 0, 0, answer),
        instruction(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_mut_ptr(),
    };
    let (one, zero): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the first takes plain integers; of the second the kernel copies the program, which
    // outlives the call.
    let done = unsafe {
        if libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) < 0 {
            return Err(last_errno());
        }
        libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program)
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killing_filter_is_found_out_and_survived() {
        // In a thread of its own: the filter never goes away.
        let found = std::thread::spawn(|| {
            forbid(RiskyCall::Bpf, Answer::Kill)?;
            forbid(RiskyCall::Userfaultfd, Answer::NotPermitted)?;
            Ok::<_, Errno>(RiskyCall::ALL.map(RiskyCall::is_survived))
        });
        match found.join().unwrap() {
            Ok(survived) => assert_eq!(survived, [Ok(false), Ok(true), Ok(true), Ok(true)]),
            Err(errno) => superhue_testing::skip("seccomp", &errno.to_string()),
        }
    }
}
