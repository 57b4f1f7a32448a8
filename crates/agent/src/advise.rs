//! `mmap` that asks for superpages, for the `always` policy under the system-wide mode `madvise`.
//!
//! libc's own allocator maps memory without passing here; Superhue has it ask for itself by the
//! tunable `glibc.malloc.hugetlb=1`. This function serves the allocators and programs that call
//! `mmap` themselves.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use crate::{color, raw};

/// Mappings of this size are placed by color before the program can touch them.
const LARGE: usize = 256 << 10;

static ADVISE: AtomicBool = AtomicBool::new(false);

/// From now on, new private anonymous mappings are advised.
pub(crate) fn begin() {
    ADVISE.store(true, Relaxed);
}

/// `mmap(2)`.
///
/// # Safety
/// That of `mmap(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap(
    address: *mut c_void,
    length: libc::size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    // SAFETY: the caller's promise; `syscall` sets errno as libc's `mmap` does.
    let mapped = unsafe {
        libc::syscall(
            libc::SYS_mmap,
            address,
            length,
            protection,
            flags,
            fd,
            offset,
        ) as *mut c_void
    };
    if mapped != libc::MAP_FAILED && ADVISE.load(Relaxed) && is_plain_memory(flags) {
        let advice = libc::MADV_HUGEPAGE as usize;
        // SAFETY: advice about the mapping just made; made without libc, so that a refusal leaves
        // the program's errno alone.
        unsafe {
            raw::syscall(
                libc::SYS_madvise,
                [mapped as usize, length, advice, 0, 0, 0],
            )
        };
    }
    // Smaller ones are found by themselves; asking costs about as much as ten page faults.
    if mapped != libc::MAP_FAILED && length >= LARGE && is_plain_memory(flags) {
        color::mapped(mapped as usize, length);
    }
    mapped
}

/// `mmap64(3)`: the same on 64-bit machines.
///
/// # Safety
/// That of `mmap(2)`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn mmap64(
    address: *mut c_void,
    length: libc::size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: the caller's promise.
    unsafe { mmap(address, length, protection, flags, fd, offset) }
}

/// Whether system-wide `always` would give such a mapping superpages.
fn is_plain_memory(flags: c_int) -> bool {
    const NEEDED: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    const EXCLUDED: c_int = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    flags & NEEDED == NEEDED && flags & EXCLUDED == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_memory_is_advised() {
        assert!(is_plain_memory(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS));
        assert!(is_plain_memory(
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE
        ));
        assert!(!is_plain_memory(libc::MAP_PRIVATE));
        assert!(!is_plain_memory(libc::MAP_SHARED | libc::MAP_ANONYMOUS));
        assert!(!is_plain_memory(
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_HUGETLB
        ));
    }
}
