//! `errno` of the calling thread, which no function of the library changes.

use std::ffi::c_int;

/// Restores `errno` on drop: the system calls in between set it.
pub(crate) struct ErrnoGuard(c_int);

impl ErrnoGuard {
    pub(crate) fn new() -> Self {
        // SAFETY: this thread's own.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for ErrnoGuard {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = self.0 };
    }
}
