//! What is done around `fork(2)`. See `pthread_atfork(3)`.

use rustix::io::Errno;

/// Has these called by every `fork` of the C library from now on: before it, and after it in the parent and in the
/// child. Not by a bare `clone`.
///
/// # Errors
/// `ENOMEM`.
///
/// # Safety
/// They may be called in any thread at any time, and `child` where only one thread of several is left: they use
/// nothing but what allows that (atomics, futexes).
pub unsafe fn at_fork(
    prepare: unsafe extern "C" fn(),
    parent: unsafe extern "C" fn(),
    child: unsafe extern "C" fn(),
) -> Result<(), Errno> {
    // SAFETY: functions with C calling convention; the rest is the caller's promise.
    match unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) } {
        0 => Ok(()),
        errno => Err(Errno::from_raw_os_error(errno)),
    }
}
