//! `include/superhue.h`: a thin layer over `superhue-arena`.

mod layout;
mod registry;

use std::alloc::Layout;
use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use superhue_arena::{ColorError, ColorSet, Colors, gate};

use crate::errno::ErrnoGuard;
use crate::layout::{VersionedLayout, copy_out, has_valid_size};
use crate::words::{copy_reason, note_reason};
use layout::{CPlacement, CVerdict};

/// Least alignment of memory from `superhue_color_alloc`: a cache line, so that two objects never
/// share one.
const ALIGNMENT: usize = 64;

/// Registers the handlers of fork when the library is loaded: before the program can register its own, so that a fork calls the
/// program's `prepare` first. That handler may wait for a lock whose holder allocates or frees; a closed gate would stop the holder.
#[used]
#[unsafe(link_section = ".init_array")]
static GUARD_FORKS: extern "C" fn() = {
    extern "C" fn guard_forks() {
        // `Colors` repeats the error.
        let _ = gate::install();
    }
    guard_forks
};

thread_local! {
    /// Result of this thread's last allocation: 0, or a negative error number.
    static RESULT: Cell<c_int> = const { Cell::new(0) };
}

/// Notes the reason for `superhue_color_reason` and returns the negative error number.
fn failed(error: &ColorError) -> c_int {
    note_reason(error.to_string());
    -error.errno().raw_os_error()
}

/// Returns the set that a C string names.
///
/// # Safety
/// It is null or terminated.
unsafe fn set(colors: &Colors, text: *const c_char) -> Result<ColorSet, ColorError> {
    if text.is_null() {
        return Err(ColorError::Invalid("no set of colors is named: it is NULL"));
    }
    // SAFETY: not null, so terminated.
    let text = unsafe { CStr::from_ptr(text) };
    colors.set(&text.to_string_lossy())
}

/// Checks the memory that a caller passes: not null, and at most `isize::MAX` bytes.
fn memory(start: *const c_void, size: usize) -> Result<NonNull<u8>, ColorError> {
    if isize::try_from(size).is_err() {
        return Err(ColorError::TooLarge);
    }
    let none = ColorError::Invalid("there is no memory at NULL");
    NonNull::new(start.cast_mut().cast()).ok_or(none)
}

const WRONG_SIZE: ColorError = ColorError::Invalid("size is not that of the structure");

/// Checks the size of a structure that the caller may want, before anything is done.
///
/// # Safety
/// `to` is null, or readable for a word.
unsafe fn check_size<T: VersionedLayout>(to: *const T) -> Result<(), ColorError> {
    // SAFETY: the caller's promise.
    let valid = unsafe { has_valid_size(to) };
    valid.then_some(()).ok_or(WRONG_SIZE)
}

/// Copies a structure to the caller, if the caller wants it.
///
/// # Safety
/// `to` is null, or writable for the size in its first word.
unsafe fn tell<T: VersionedLayout>(to: *mut T, value: &T) -> Result<(), ColorError> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: not null, so the caller's.
    unsafe { copy_out(to, value) }.ok_or(WRONG_SIZE)
}

#[unsafe(no_mangle)]
pub extern "C" fn superhue_color_open() -> c_int {
    let _errno = ErrnoGuard::new();
    match registry::reopen() {
        Ok(_) => 0,
        Err(error) => failed(&error),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn superhue_color_count() -> c_int {
    let _errno = ErrnoGuard::new();
    match registry::colors() {
        Ok(colors) => c_int::try_from(colors.count()).unwrap_or(c_int::MAX),
        Err(error) => failed(&error),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn superhue_color_alloc(
    text: *const c_char,
    size: usize,
    flags: c_uint,
) -> *mut c_void {
    let _errno = ErrnoGuard::new();
    // SAFETY: the header's contract.
    let (memory, result) = match unsafe { allocate(text, size, flags) } {
        Ok(memory) => (memory.as_ptr().cast(), 0),
        Err(error) => (null_mut(), failed(&error)),
    };
    // The variable is gone while the thread ends; the result is not needed then.
    let _ = RESULT.try_with(|last| last.set(result));
    memory
}

unsafe fn allocate(
    text: *const c_char,
    size: usize,
    flags: c_uint,
) -> Result<NonNull<u8>, ColorError> {
    let layout = Layout::from_size_align(size, ALIGNMENT).map_err(|_| ColorError::TooLarge)?;
    let colors = registry::colors()?;
    // SAFETY: the header's contract.
    let set = unsafe { set(&colors, text)? };
    let memory: NonNull<u8> = registry::arena(&colors, set, flags)?
        .allocate(layout)?
        .cast();
    // SAFETY: `size` bytes were just allocated, and no other code has their address.
    unsafe { memory.write_bytes(0, size) };
    Ok(memory)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn superhue_color_free(memory: *mut c_void) -> c_int {
    let _errno = ErrnoGuard::new();
    let Some(memory) = NonNull::new(memory.cast()) else {
        return 0;
    };
    // SAFETY: the header's contract.
    if unsafe { registry::free(memory) } {
        0
    } else {
        failed(&ColorError::Invalid(
            "no memory of superhue_color_alloc() begins there, or it was given back before",
        ))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn superhue_color_place(
    text: *const c_char,
    start: *mut c_void,
    size: usize,
    placement: *mut CPlacement,
) -> c_int {
    let _errno = ErrnoGuard::new();
    let place = || -> Result<(), ColorError> {
        // SAFETY: the header's contract.
        unsafe { check_size(placement)? };
        let memory = memory(start, size)?;
        let colors = registry::colors()?;
        // SAFETY: the header's contract.
        unsafe {
            let set = set(&colors, text)?;
            let done = colors.place_raw(memory, size, &set)?;
            tell(placement, &CPlacement::from(&done))
        }
    };
    place().map_or_else(|error| failed(&error), |()| 0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn superhue_color_verify(
    text: *const c_char,
    start: *const c_void,
    size: usize,
    verdict: *mut CVerdict,
) -> c_int {
    let _errno = ErrnoGuard::new();
    let verify = || -> Result<c_int, ColorError> {
        // SAFETY: the header's contract.
        unsafe { check_size(verdict)? };
        let memory = memory(start, size)?;
        let colors = registry::colors()?;
        // SAFETY: the header's contract.
        unsafe {
            let set = set(&colors, text)?;
            let found = colors.verify_raw(memory, size, &set)?;
            tell(verdict, &CVerdict::from(&found))?;
            let per_mille = found.right.0 * 1000 / found.tested.0.max(1);
            Ok(c_int::try_from(per_mille).unwrap_or(1000))
        }
    };
    verify().unwrap_or_else(|error| failed(&error))
}

#[unsafe(no_mangle)]
pub extern "C" fn superhue_color_error() -> c_int {
    RESULT.try_with(Cell::get).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn superhue_color_reason(buffer: *mut c_char, size: usize) -> usize {
    // SAFETY: the header's contract.
    unsafe { copy_reason(buffer, size) }
}

#[unsafe(no_mangle)]
pub extern "C" fn superhue_color_strerror(result: c_int) -> *const c_char {
    text(result).as_ptr()
}

fn text(result: c_int) -> &'static CStr {
    if result >= 0 {
        return c"no error";
    }
    if result < -4095 {
        return c"no result of these functions";
    }
    match Errno::from_raw_os_error(-result) {
        Errno::INVAL => c"an argument that cannot be: see superhue_color_reason()",
        Errno::RANGE => c"this cache has no such colors",
        Errno::OVERFLOW => c"no memory is that large",
        Errno::OPNOTSUPP => {
            c"colors cannot be told or pages not be moved here: see superhue_color_reason()"
        }
        Errno::NOMEM => c"memory is short, or a limit is reached: see superhue_color_reason()",
        Errno::NOSPC => c"not enough pages of these colors could be had",
        Errno::PERM => c"the memory may not be locked: raise RLIMIT_MEMLOCK",
        Errno::STALE => c"the machine's colors have changed: call superhue_color_open() again",
        Errno::SRCH => c"this is a forked child, and the memory stayed with its parent",
        _ => c"the kernel refused: see superhue_color_reason() and errno(3)",
    }
}
