//! `MADV_COLLAPSE`: make one superpage of the base pages of a range, now (Linux 6.1).
//!
//! See `madvise(2)`, `process_madvise(2)` and `mm/khugepaged.c` (`madvise_collapse`).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use superhue_model::Region;

use crate::pagemap::last_errno;

/// `MADV_COLLAPSE` of `asm-generic/mman-common.h`.
const MADV_COLLAPSE: libc::c_int = 25;

/// Collapses one region of the process behind `pidfd`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` the VMA cannot hold superpages; `ENOMEM` no free
/// superpage or the address is not mapped; `EBUSY`/`EAGAIN` a page was busy.
pub fn process_collapse(pidfd: impl AsFd, region: Region) -> Result<(), Errno> {
    let range = region.range();
    let iov = libc::iovec {
        iov_base: range.start.0 as *mut libc::c_void,
        iov_len: usize::try_from(range.len().0).map_err(|_| Errno::INVAL)?,
    };
    // SAFETY: the kernel reads one iovec, which lives across the call. The address belongs to the
    // other process; collapsing changes how its bytes are mapped, never the bytes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_fd().as_raw_fd(),
            &raw const iov,
            1_usize,
            MADV_COLLAPSE,
            0_u32,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Collapses one region of the calling process.
///
/// # Errors
/// As for [`process_collapse`], without those about permission.
pub fn own_collapse(region: Region) -> Result<(), Errno> {
    let range = region.range();
    let length = usize::try_from(range.len().0).map_err(|_| Errno::INVAL)?;
    // SAFETY: collapsing changes how the bytes of the range are mapped, never the bytes, whatever
    // they belong to; an unmapped address is an error.
    let done = unsafe { libc::madvise(range.start.0 as *mut libc::c_void, length, MADV_COLLAPSE) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}
