//! `ioctl(PAGEMAP_SCAN)`: page-table contents of a process as ranges, in one call (Linux 6.7).
//!
//! See `Documentation/admin-guide/mm/pagemap.rst` and `ioctl_pagemap_scan(2)`.

use std::ffi::c_void;
use std::mem::size_of;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl, opcode};
use superhue_model::{VirtAddr, VirtRange};

/// The page is one of a file, or of memory shared between processes (`PAGE_IS_FILE`).
pub const PAGE_IS_FILE: u64 = 1 << 2;
/// The page is mapped by a present entry (`PAGE_IS_PRESENT`).
pub const PAGE_IS_PRESENT: u64 = 1 << 3;
/// The page is the shared zero page (`PAGE_IS_PFNZERO`).
pub const PAGE_IS_PFNZERO: u64 = 1 << 5;
/// The page is mapped by a huge entry (`PAGE_IS_HUGE`).
pub const PAGE_IS_HUGE: u64 = 1 << 6;

/// `struct page_region` of `linux/fs.h`: pages with equal categories, `[start, end)` in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct PageRegion {
    /// First byte.
    pub start: u64,
    /// First byte after.
    pub end: u64,
    /// `PAGE_IS_*` bits, those asked for only.
    pub categories: u64,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct PmScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24);
const _: () = assert!(size_of::<PmScanArg>() == 96);

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: Opcode = opcode::read_write::<PmScanArg>(b'f', 16);

/// The call as rustix makes it.
struct Scan<'a>(&'a mut PmScanArg);

// SAFETY: the opcode is that of `PmScanArg`, whose layout is asserted above; the kernel reads and writes
// it through the exclusive reference.
unsafe impl Ioctl for Scan<'_> {
    /// How many runs were found.
    type Output = usize;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        PAGEMAP_SCAN
    }

    fn as_ptr(&mut self) -> *mut c_void {
        (&raw mut *self.0).cast()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> Result<usize, Errno> {
        Ok(usize::try_from(out).unwrap_or(0))
    }
}

/// Fills `found` with the runs of pages in `range` that have every category of `wanted`, each with
/// those of `reported` that hold.
///
/// Returns how many runs were found and the address where the walk stopped; below `range.end` when
/// `found` was full. `pagemap` is an open `/proc/PID/pagemap`.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; `EFAULT`, `EINVAL` for a range outside user space; `EINTR`.
pub fn pagemap_scan(
    pagemap: impl AsFd,
    range: VirtRange,
    wanted: u64,
    reported: u64,
    found: &mut [PageRegion],
) -> Result<(usize, VirtAddr), Errno> {
    let mut arg = PmScanArg {
        size: size_of::<PmScanArg>() as u64,
        start: range.start.0,
        end: range.end.0,
        vec: found.as_mut_ptr() as u64,
        vec_len: found.len() as u64,
        category_mask: wanted,
        return_mask: reported,
        ..PmScanArg::default()
    };
    // SAFETY: `arg` names `found`, of which the kernel writes at most `vec_len` entries; both outlive the
    // call.
    let count = unsafe { ioctl(pagemap, Scan(&mut arg))? };
    Ok((count.min(found.len()), VirtAddr(arg.walk_end)))
}

pub(crate) fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
