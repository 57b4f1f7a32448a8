//! Signals that carry a value, and signals read from a descriptor.
//!
//! See `pidfd_send_signal(2)`, `sigqueue(3)`, `signalfd(2)`.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use crate::pagemap::last_errno;
use crate::process::SignalSet;

/// First part of `siginfo_t` for `SI_QUEUE` on 64-bit Linux, up to and including the value.
#[repr(C)]
struct QueuedSignal {
    signo: libc::c_int,
    errno: libc::c_int,
    code: libc::c_int,
    padding: libc::c_int,
    pid: libc::pid_t,
    uid: libc::uid_t,
    /// `union sigval`: the integer in its first four bytes.
    value: [libc::c_int; 2],
}

const _: () = assert!(size_of::<QueuedSignal>() == 32);
const _: () = assert!(size_of::<libc::siginfo_t>() == 128);

/// Sends `signal` with `value` (in `si_value.sival_int`, `si_code` `SI_QUEUE`) to the process
/// behind `pidfd`, as `sigqueue(3)` does.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed (another user's process without `CAP_KILL`); `EAGAIN` its
/// queue of real-time signals is full; `EINVAL` no such signal.
pub fn queue_signal(pidfd: impl AsFd, signal: i32, value: i32) -> Result<(), Errno> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let head = QueuedSignal {
        signo: signal,
        errno: 0,
        code: libc::SI_QUEUE,
        padding: 0,
        // SAFETY: these only read.
        pid: unsafe { libc::getpid() },
        // SAFETY: as above.
        uid: unsafe { libc::getuid() },
        value: [value, 0],
    };
    // SAFETY: `siginfo_t` is larger than the head, whose layout is the kernel's (asserted above, see
    // `asm-generic/siginfo.h`), and at least as strictly aligned; it lives across the call.
    let done = unsafe {
        info.as_mut_ptr().cast::<QueuedSignal>().write(head);
        libc::syscall(
            libc::SYS_pidfd_send_signal,
            pidfd.as_fd().as_raw_fd(),
            signal,
            info.as_ptr(),
            0_u32,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Returns a descriptor that is readable while one of `signals` (which the caller has blocked) is pending.
///
/// # Errors
/// Errors of `signalfd(2)`.
pub fn signal_descriptor(signals: &SignalSet) -> Result<OwnedFd, Errno> {
    let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
    // SAFETY: the set is initialised and lives across the call.
    let fd = unsafe { libc::signalfd(-1, signals.raw(), flags) };
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: the kernel just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Takes one pending signal from a [`signal_descriptor`] and returns its number. `None` if none is pending.
pub fn take_signal(descriptor: &OwnedFd) -> Option<u32> {
    // `struct signalfd_siginfo` begins with the number (signalfd(2)).
    let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let read = rustix::io::read(descriptor, &mut record).ok()?;
    let number = record.first_chunk().filter(|_| read == record.len())?;
    Some(u32::from_ne_bytes(*number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{PidfdFlags, getpid, pidfd_open};

    #[test]
    fn numbers_are_checked_and_nothing_pending_is_nothing_to_read() {
        let descriptor = signal_descriptor(&SignalSet::of(&[12])).unwrap();
        let pidfd = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
        // Signal 0 checks the permission and sends nothing.
        queue_signal(&pidfd, 0, 5).unwrap();
        assert_eq!(queue_signal(&pidfd, 4096, 5).unwrap_err(), Errno::INVAL);
        let mut record = [0_u8; 128];
        let read = rustix::io::read(&descriptor, &mut record);
        assert_eq!(read.unwrap_err(), Errno::AGAIN);
        assert_eq!(take_signal(&descriptor), None);
    }
}
