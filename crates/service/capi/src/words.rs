//! Results in words.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int};

use rustix::io::Errno;

thread_local! {
    /// Reason for the last failure in this thread that had one. It has a destructor, so its first use in a thread allocates:
    /// no signal handler may use it.
    static REASON: RefCell<String> = const { RefCell::new(String::new()) };
    /// True if a later call failed without a reason. It has no destructor, so signal handlers may use it.
    static STALE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps a reason for `hps_reason`.
pub fn note_reason(text: String) {
    // The variable is gone while the thread ends; the reason is not needed then.
    let _ = REASON.try_with(|reason| reason.replace(text));
    STALE.set(false);
}

/// Forgets the reason of an earlier call. Async-signal-safe: it only sets a flag.
pub fn forget_reason() {
    STALE.set(true);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_reason(buffer: *mut c_char, size: usize) -> usize {
    // SAFETY: the header's contract.
    unsafe { copy_reason(buffer, size) }
}

/// Copies the reason, cut to the buffer. Returns its full length in bytes.
///
/// # Safety
/// `size` bytes may be written at `buffer`, if it is not null.
pub unsafe fn copy_reason(buffer: *mut c_char, size: usize) -> usize {
    let told = REASON.try_with(|reason| {
        let reason = reason.borrow();
        let reason = if STALE.get() { "" } else { reason.as_str() };
        if size > 0 && !buffer.is_null() {
            let length = reason.len().min(size - 1);
            // SAFETY: the caller passes `size` bytes.
            unsafe {
                std::ptr::copy_nonoverlapping(reason.as_ptr(), buffer.cast(), length);
                buffer.add(length).write(0);
            }
        }
        reason.len()
    });
    told.unwrap_or(0)
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_strerror(result: c_int) -> *const c_char {
    text(result).as_ptr()
}

/// Returns a result in words.
pub fn text(result: c_int) -> &'static CStr {
    if result >= 0 {
        return c"no error";
    }
    if result < -4095 {
        return c"no result of these functions";
    }
    match Errno::from_raw_os_error(-result) {
        Errno::ALREADY => c"this process is tracked already",
        Errno::BUSY => {
            c"another thread is enabling or disabling tracking, or somebody else watches this memory"
        }
        Errno::NOENT => c"no service: the socket does not exist; start `superhue track`",
        Errno::CONNREFUSED => c"no service: nobody listens at the socket; start `superhue track`",
        Errno::TIMEDOUT => c"the service did not answer in time",
        Errno::PROTO => c"the service speaks another version of the protocol",
        Errno::PERM => c"the service refused: see hps_reason()",
        Errno::ACCESS => c"the permissions of the socket or its folder forbid it",
        Errno::USERS => c"the service has as many clients as it takes",
        Errno::OPNOTSUPP => c"the service cannot track on this machine: see hps_reason()",
        Errno::NOTCONN => c"this process is not tracked",
        Errno::SRCH => c"this is a forked child, which is not tracked, or the process is gone",
        Errno::PIPE => c"the service has ended; enable tracking again once it runs",
        Errno::AGAIN => c"the list is just being replaced; there will be another notice",
        Errno::INTR => c"a signal handler ran",
        Errno::INVAL => c"an argument that cannot be: see hps_reason()",
        Errno::NOMEM => c"memory is short, here or in the service: see hps_reason()",
        _ => c"the kernel refused: see hps_reason() and errno(3)",
    }
}
