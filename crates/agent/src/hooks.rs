//! Functions of libc that tell when placing by color has to stop.
//!
//! A range can have one userfaultfd only, so a program that makes its own must find its memory free. A seccomp
//! filter may end the process for a call it does not know, and may be laid on every thread. Before either, the
//! agent's thread ends. Programs that make these calls without libc are not seen: the first finds its memory busy
//! (`EBUSY`), the second's filter does not bind threads that exist unless it says so.
//!
//! `syscall`, `ioctl` and `prctl` take as many arguments as they like; in the calling conventions of x86-64 and
//! AArch64 a function with the most there can be reads them as they are, and passes them on unread.

use std::ffi::{c_int, c_long, c_ulong};

use superhue_mailbox::Aside;

use crate::{color, raw};

/// `UFFDIO_API` and `USERFAULTFD_IOC_NEW` of `linux/userfaultfd.h`.
const UFFDIO_API: c_ulong = 0xc018_aa3f;
const USERFAULTFD_IOC_NEW: c_ulong = 0xaa00;

/// What libc's functions do with what the kernel returns.
fn returned(result: isize) -> c_long {
    if !(-4095..0).contains(&result) {
        return result as c_long;
    }
    // SAFETY: libc's own location for the calling thread.
    unsafe { *libc::__errno_location() = c_int::try_from(-result).unwrap_or(libc::EINVAL) };
    -1
}

/// `syscall(2)`.
///
/// # Safety
/// That of the call `number`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        libc::SYS_userfaultfd => color::step_aside(Aside::OwnUserfaultfd),
        // 0 and 1 install something, the other operations ask.
        libc::SYS_seccomp if a <= 1 => color::step_aside(Aside::Seccomp),
        libc::SYS_mlockall => color::step_aside(Aside::LocksAll),
        _ => {}
    }
    // SAFETY: the caller's promise.
    returned(unsafe { raw::syscall(number, [a, b, c, d, e, f]) })
}

/// `ioctl(2)`.
///
/// # Safety
/// That of the request.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int {
    if request == UFFDIO_API || request == USERFAULTFD_IOC_NEW {
        color::step_aside(Aside::OwnUserfaultfd);
    }
    let arguments = [fd as usize, request as usize, argument, 0, 0, 0];
    // SAFETY: the caller's promise.
    let result = returned(unsafe { raw::syscall(libc::SYS_ioctl, arguments) });
    result as c_int
}

/// `prctl(2)`.
///
/// # Safety
/// That of the operation.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn prctl(
    operation: c_int,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
) -> c_int {
    if operation == libc::PR_SET_SECCOMP {
        color::step_aside(Aside::Seccomp);
    }
    let arguments = [operation as usize, a, b, c, d, 0];
    // SAFETY: the caller's promise.
    let result = returned(unsafe { raw::syscall(libc::SYS_prctl, arguments) });
    result as c_int
}

/// `mlockall(2)`.
///
/// # Safety
/// That of `mlockall(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    // A page moves only between mappings that are locked alike.
    color::step_aside(Aside::LocksAll);
    let arguments = [flags as usize, 0, 0, 0, 0, 0];
    // SAFETY: the caller's promise.
    let result = returned(unsafe { raw::syscall(libc::SYS_mlockall, arguments) });
    result as c_int
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_passed_on_as_libc_does() {
        // SAFETY: libc's own location for the calling thread.
        let errno = || unsafe { *libc::__errno_location() };
        assert_eq!(returned(-(libc::EBADF as isize)), -1);
        assert_eq!(errno(), libc::EBADF);
        for plain in [0, 1, isize::MAX, -4096, isize::MIN] {
            assert_eq!(returned(plain), plain as c_long);
        }
        // SAFETY: asks for nothing but numbers.
        unsafe {
            assert_eq!(
                syscall(libc::SYS_getpid, 0, 0, 0, 0, 0, 0),
                c_long::from(libc::getpid())
            );
            assert_eq!(ioctl(-1, 0, 0), -1);
            assert_eq!(errno(), libc::EBADF);
            assert_eq!(mlockall(0), -1);
            assert_eq!(errno(), libc::EINVAL);
            assert_eq!(prctl(libc::PR_GET_SECCOMP, 0, 0, 0, 0), 0);
        }
    }
}
