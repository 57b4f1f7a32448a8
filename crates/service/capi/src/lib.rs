//! libsuperhue: `include/hps.h`, a thin layer over `superhue-client`, and `include/superhue.h`, one over
//! `superhue-arena` (`color`).
//!
//! ```c
//! #include <hps.h>
//! #include <stdio.h>
//!
//! int main(void)
//! {
//!     setlinebuf(stdout);
//!     int pages = hps_enable_track(NULL);
//!     /* Of regions in which many pages are active, it makes huge pages. */
//!     while (pages >= 0 && (pages = hps_wait_signal(-1)) >= 0)
//!         printf("%d pages are active\n", pages);
//!     fprintf(stderr, "%s\n", hps_strerror(pages));
//!     return 1;
//! }
//! ```
//!
//! Before the first call, only the handlers of fork are registered (`color`). No lock is held while callbacks run, and what the header calls
//! async-signal-safe neither allocates nor locks.

#![allow(
    unsafe_code,
    reason = "a C interface: its arguments are raw pointers throughout"
)]
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "the headers are the documentation; not visible from Rust"
)]

mod color;
mod errno;
mod functions;
mod layout;
mod slot;
mod words;

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::ptr::{NonNull, null_mut};
use std::time::Duration;

use rustix::io::Errno;
use superhue_client::{
    ClientError, DEFAULT_SOCKET, Decision, HugeMemory, Outcome, RegionPages, Tracking,
    TrackingOptions, act_on,
};
use superhue_sys::anonymous::AnonymousMemory;

use crate::errno::ErrnoGuard;
use crate::functions::{Compact, Decide, Functions};
use crate::layout::{
    HPS_COLLAPSE, HPS_COMPACT, HPS_LEAVE, HpsOptions, HpsOutcome, HpsPage, HpsRegion,
    HpsStatistics, copy_in, copy_out, has_valid_size,
};
use crate::slot::Slot;
use crate::words::{forget_reason, note_reason, text};

static SLOT: Slot = Slot::new();

const fn negative(errno: Errno) -> c_int {
    -errno.raw_os_error()
}

/// Returns the negative error number of a failure without a reason of its own; that of an earlier one would mislead.
fn failed_silently(errno: Errno) -> c_int {
    forget_reason();
    negative(errno)
}

/// Notes the reason for `hps_reason` and returns the negative error number.
fn failed(error: &ClientError) -> c_int {
    note_reason(error.to_string());
    negative(error.errno())
}

fn count(n: u64) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

unsafe extern "C" {
    /// `secure_getenv(3)`: null in setuid programs.
    safe fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// Returns the path in a C string.
unsafe fn path(text: *const c_char) -> std::path::PathBuf {
    // SAFETY: the caller of the interface passes a terminated string, as does `getenv`.
    OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()).into()
}

unsafe fn options(raw: *const HpsOptions) -> Option<TrackingOptions> {
    const NONE: HpsOptions = HpsOptions {
        size: size_of::<HpsOptions>(),
        socket: std::ptr::null(),
        threshold: 0,
        signo: 0,
        min_heat: 0,
        pid: 0,
        timeout_ms: 0,
    };
    let raw = if raw.is_null() {
        NONE
    } else {
        // SAFETY: the caller of the interface passes a structure that begins with its size.
        unsafe { copy_in(raw, NONE)? }
    };
    let named = if raw.socket.is_null() {
        secure_getenv(c"SUPERHUE_TRACK_SOCKET".as_ptr())
    } else {
        raw.socket
    };
    let mut options = TrackingOptions {
        socket: if named.is_null() {
            DEFAULT_SOCKET.into()
        } else {
            // SAFETY: not null.
            unsafe { path(named) }
        },
        signal: (raw.signo != 0).then_some(raw.signo),
        pid: (raw.pid != 0).then_some(raw.pid),
        ..TrackingOptions::default()
    };
    if raw.threshold != 0 {
        options.threshold = raw.threshold;
    }
    if raw.min_heat != 0 {
        options.min_heat = raw.min_heat;
    }
    if raw.timeout_ms != 0 {
        options.timeout = Duration::from_millis(u64::try_from(raw.timeout_ms).ok()?);
    }
    Some(options)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_enable_track(raw: *const HpsOptions) -> c_int {
    let _errno = ErrnoGuard::new();
    // SAFETY: the header's contract.
    let Some(options) = (unsafe { options(raw) }) else {
        let why = "size is not that of a struct hps_options, or a field is out of range";
        return failed(&ClientError::Invalid(why));
    };
    let opening = match SLOT.open() {
        Ok(opening) => opening,
        Err(errno) => {
            note_reason(text(negative(errno)).to_string_lossy().into_owned());
            return negative(errno);
        }
    };
    match Tracking::enable(&options) {
        Ok(tracking) => {
            opening.fill(tracking);
            0
        }
        Err(error) => failed(&error),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_disable_track() -> c_int {
    let _errno = ErrnoGuard::new();
    if let Err(error) = SLOT.close() {
        return failed(&error);
    }
    // Threads inside leave at once, so that the process can enable again when this returns. One in a
    // handler that interrupted this very thread cannot, hence the bound.
    for _ in 0..200 {
        if SLOT.reap() {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_set_functions(
    decide: Option<Decide>,
    compact: Option<Compact>,
    user: *mut c_void,
) -> c_int {
    let _errno = ErrnoGuard::new();
    let functions = Functions {
        decide,
        compact,
        user,
    };
    functions.set().map_or_else(failed_silently, |()| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn hps_wait_signal(timeout_ms: c_int) -> c_int {
    let _errno = ErrnoGuard::new();
    let timeout = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
    let waited = SLOT.enter().and_then(|entered| {
        let tracking = entered.tracking().ok_or(ClientError::Disabled)?;
        let Some(notice) = tracking.wait(timeout)? else {
            return Ok(None);
        };
        let pages = match tracking.fetch_all() {
            Ok(pages) => pages,
            // The next list brings its own notice.
            Err(ClientError::Busy) => Vec::new(),
            Err(error) => return Err(error),
        };
        Ok(Some((notice, pages, tracking.is_of_caller())))
    });
    // The callbacks run outside the slot: they may never return.
    match waited {
        Err(error) => failed(&error),
        Ok(None) => 0,
        Ok(Some((notice, pages, own))) => {
            if own && let Err(error) = decide_and_act(&pages) {
                return failed(&error);
            }
            count(notice.active)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_fetch(
    pages: *mut HpsPage,
    capacity: usize,
    available: *mut usize,
) -> c_int {
    let _errno = ErrnoGuard::new();
    let room = if capacity == 0 {
        &mut []
    } else if pages.is_null() || capacity > isize::MAX as usize / size_of::<HpsPage>() {
        return failed_silently(Errno::INVAL);
    } else {
        // SAFETY: the caller passes memory for `capacity` pages. Any bytes are a valid `HpsPage`,
        // and they are only written.
        unsafe { std::slice::from_raw_parts_mut(pages, capacity) }
    };
    let fetched = SLOT.enter().and_then(|entered| {
        let tracking = entered.tracking().ok_or(ClientError::Disabled)?;
        tracking.fetch(room)
    });
    match fetched {
        // No reason is noted, as that would allocate.
        Err(error) => failed_silently(error.errno()),
        Ok(fetched) => {
            if !available.is_null() {
                // SAFETY: not null, so the caller's.
                unsafe { available.write(fetched.available) };
            }
            c_int::try_from(fetched.count).unwrap_or(c_int::MAX)
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_process(
    pages: *const HpsPage,
    count: usize,
    outcome: *mut HpsOutcome,
) -> c_int {
    let _errno = ErrnoGuard::new();
    let pages = if count == 0 {
        &[]
    } else if pages.is_null() || count > isize::MAX as usize / size_of::<HpsPage>() {
        return failed(&ClientError::Invalid("there are no pages at that address"));
    } else {
        // SAFETY: the caller passes `count` pages.
        unsafe { std::slice::from_raw_parts(pages, count) }
    };
    let wrong_size = ClientError::Invalid("size is not that of a struct hps_outcome");
    // Before anything is done.
    // SAFETY: null, or the caller's, and begins with its size.
    if !unsafe { has_valid_size(outcome) } {
        return failed(&wrong_size);
    }
    let done = match decide_and_act(pages) {
        Ok(done) => done,
        Err(error) => return failed(&error),
    };
    if outcome.is_null() {
        return 0;
    }
    let told = HpsOutcome {
        size: size_of::<HpsOutcome>(),
        regions: done.regions,
        collapsed: done.collapsed,
        failed: done.failed,
        compacted: done.compacted,
        left: done.left,
    };
    // SAFETY: not null, so the caller's, and begins with its size.
    match unsafe { copy_out(outcome, &told) } {
        Some(()) => 0,
        None => failed(&wrong_size),
    }
}

fn decide_and_act(pages: &[HpsPage]) -> Result<Outcome, ClientError> {
    let functions = Functions::current();
    act_on(
        pages,
        |region| match (ask(&functions, region), functions.compact) {
            (Decision::Compact, None) => Decision::Leave,
            (decision, _) => decision,
        },
        |sparse| {
            if let Some(compact) = functions.compact {
                // SAFETY: the application's function, called as the header says.
                unsafe { compact(sparse.as_ptr(), sparse.len(), functions.user) };
            }
        },
    )
}

fn ask(functions: &Functions, region: &RegionPages<'_>) -> Decision {
    let Some(decide) = functions.decide else {
        return region.suggestion;
    };
    let told = HpsRegion {
        size: size_of::<HpsRegion>(),
        address: region.address,
        pages: region.pages.as_ptr(),
        count: region.pages.len(),
        heat: region.heat,
        flags: region.flags.bits(),
        suggestion: match region.suggestion {
            Decision::Leave => HPS_LEAVE,
            Decision::Collapse => HPS_COLLAPSE,
            Decision::Compact => HPS_COMPACT,
        },
        reserved: 0,
    };
    // SAFETY: the application's function, called as the header says.
    match unsafe { decide(&raw const told, functions.user) } {
        HPS_COLLAPSE => Decision::Collapse,
        HPS_COMPACT => Decision::Compact,
        _ => Decision::Leave,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_get_statistics(statistics: *mut HpsStatistics) -> c_int {
    let _errno = ErrnoGuard::new();
    if statistics.is_null() {
        return failed_silently(Errno::INVAL);
    }
    let told = SLOT.enter().and_then(|entered| {
        let tracking = entered.tracking().ok_or(ClientError::Disabled)?;
        tracking.statistics()
    });
    let told = match told {
        Ok(told) => HpsStatistics {
            size: size_of::<HpsStatistics>(),
            published: told.published,
            superseded: told.superseded,
            active: told.active,
            cut: told.cut,
        },
        Err(error) => return failed(&error),
    };
    // SAFETY: not null, so the caller's, and begins with its size.
    match unsafe { copy_out(statistics, &told) } {
        Some(()) => 0,
        None => failed(&ClientError::Invalid(
            "size is not that of a struct hps_statistics",
        )),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_huge_alloc(size: usize, huge: *mut usize) -> *mut c_void {
    let _errno = ErrnoGuard::new();
    let Ok(memory) = HugeMemory::new(size) else {
        forget_reason();
        return null_mut();
    };
    if !huge.is_null() {
        // SAFETY: not null, so the caller's.
        unsafe { huge.write(memory.huge_bytes().unwrap_or(usize::MAX)) };
    }
    memory.into_memory().into_raw().as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hps_huge_free(memory: *mut c_void, size: usize) -> c_int {
    let _errno = ErrnoGuard::new();
    let Some(memory) = NonNull::new(memory) else {
        return 0;
    };
    // SAFETY: the caller passes what `hps_huge_alloc` returned, and does not use it any more.
    match unsafe { AnonymousMemory::from_raw(memory, size) } {
        Ok(memory) => {
            drop(memory);
            0
        }
        Err(errno) => failed_silently(errno),
    }
}
