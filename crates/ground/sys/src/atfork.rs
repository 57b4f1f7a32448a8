//! Handlers around `fork(2)`. See `pthread_atfork(3)`.

use rustix::io::Errno;

/// Makes every `fork` of the C library call these functions from now on: before it, and after it in the parent and in the
/// child. A bare `clone` does not call them.
///
/// # Errors
/// `ENOMEM`.
///
/// # Safety
/// The functions may be called in any thread at any time, and `child` in a process where only one thread of several is left. They
/// use only operations that are safe there (atomics, futexes).
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
