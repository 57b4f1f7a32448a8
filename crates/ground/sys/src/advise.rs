//! What can be done to one region, and the call that does it: `madvise(2)`, `process_madvise(2)`.
//!
//! One definition for both ends: Superhue makes the call from outside, the client library from inside.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Region, VirtRange};

use crate::pagemap::last_errno;

/// What can be done to one region of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Promote: one superpage of its base pages.
    Collapse,
    /// Split: base pages of its superpage.
    Split,
    /// Split a huge page that is mapped by base pages, since parts of it were given back: what nobody maps is freed.
    Release,
}

/// A `madvise(2)` call about a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// Where the part starts, in bytes from the region's start.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// `MADV_*`.
    pub advice: i32,
}

const REGION: usize = HUGE_PAGE_SIZE as usize;
const BASE_PAGE: usize = BASE_PAGE_SIZE as usize;

/// `MADV_COLD` of `asm-generic/mman-common.h` (Linux 5.4; of another process 5.10).
const MADV_COLD: i32 = 20;

/// `MADV_WILLNEED` of `asm-generic/mman-common.h` (of another process Linux 5.10).
const MADV_WILLNEED: i32 = 3;

/// `MADV_PAGEOUT` of `asm-generic/mman-common.h` (Linux 5.4; of another process 5.10).
const MADV_PAGEOUT: i32 = 21;

/// `MADV_COLLAPSE` of `asm-generic/mman-common.h` (Linux 6.1).
const MADV_COLLAPSE: i32 = 25;

impl Operation {
    /// The call that does it.
    ///
    /// A superpage is split by calling *one* of its base pages cold: to treat the part differently
    /// from the rest, the kernel first makes base pages of the whole
    /// (`madvise_cold_or_pageout_pte_range` in `mm/madvise.c`). Calling all of it cold would only
    /// deactivate the superpage and leave it whole.
    ///
    /// ```text
    ///   region  |..............................................|cold|
    ///            stays as active as it was                       the last base page
    /// ```
    ///
    /// The page named pays for it: its accessed bit is cleared and it goes to the inactive list. It
    /// stays mapped, so the next access costs no fault, and that access is all it takes to be found
    /// active again when the kernel comes to reclaim. It is the *last* page, because memory is filled
    /// upwards: allocators keep their own words at the start of a chunk, and what a superpage
    /// holds without use is most often its end. A page of zeroes has even nothing to lose: since
    /// Linux 6.12 the split gives it back, and the advice then finds the shared zero page, which
    /// is on no list.
    #[must_use]
    pub const fn advice(self) -> Advice {
        match self {
            Self::Collapse => Advice {
                offset: 0,
                length: REGION,
                advice: MADV_COLLAPSE,
            },
            Self::Split => Advice {
                offset: REGION - BASE_PAGE,
                length: BASE_PAGE,
                advice: MADV_COLD,
            },
            // Which of the pages are parts of it, only the kernel knows. All that are left go to the inactive list, and the next
            // access makes them active again.
            Self::Release => Advice {
                offset: 0,
                length: REGION,
                advice: MADV_COLD,
            },
        }
    }
}

/// The address of the part of `region` that the operation names, and the rest of the call.
fn call(operation: Operation, region: Region) -> (libc::iovec, libc::c_int) {
    let Advice {
        offset,
        length,
        advice,
    } = operation.advice();
    let part = libc::iovec {
        iov_base: (region.start().0 + offset as u64) as *mut libc::c_void,
        iov_len: length,
    };
    (part, advice)
}

/// Does it to the process behind `pidfd`.
pub(crate) fn process_advise(
    pidfd: impl AsFd,
    operation: Operation,
    region: Region,
) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    process_madvise(pidfd, part, advice)
}

/// Gives one piece of advice, of those that leave bytes as they are, about a part of the process behind `pidfd`.
fn process_madvise(pidfd: impl AsFd, part: libc::iovec, advice: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the kernel reads one iovec, which lives across the call. The address belongs to the other process; the advice
    // of this file changes how its bytes are mapped, never the bytes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_fd().as_raw_fd(),
            &raw const part,
            1_usize,
            advice,
            0_u32,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Clears the accessed bits of base pages of the process behind `pidfd` and drops their translations from the TLB (`MADV_COLD`;
/// of another process Linux 5.10). The bytes stay where they are, mapped; the pages go to the inactive list, on which the next access
/// saves them from being reclaimed.
///
/// Of a superpage, or a smaller large folio, the range must hold all or nothing: the kernel splits one of which it holds a part.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` locked memory or hugetlb pages; `ENOMEM` a part is not mapped.
pub fn process_cool(pidfd: impl AsFd, range: VirtRange) -> Result<(), Errno> {
    process_madvise(pidfd, part_of(range)?, MADV_COLD)
}

/// Has the kernel reclaim pages of the process behind `pidfd` now (`MADV_PAGEOUT`; of another process Linux 5.10): anonymous
/// memory and that of tmpfs is written to swap.
///
/// It is advice: a page that is pinned, that somebody else holds a reference to or maps, or for which swap has no room, stays.
/// See `madvise_pageout` in `mm/madvise.c` and `shrink_folio_list` in `mm/vmscan.c`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` locked memory or hugetlb pages; `ENOMEM` a part is not mapped.
pub fn process_page_out(pidfd: impl AsFd, range: VirtRange) -> Result<(), Errno> {
    process_madvise(pidfd, part_of(range)?, MADV_PAGEOUT)
}

/// Has the kernel read pages of the process behind `pidfd` from swap, without mapping them (`MADV_WILLNEED`; of another process
/// Linux 5.10). It makes nothing where there is nothing: a page that was never touched, or was given back, stays so.
///
/// See `madvise_willneed` in `mm/madvise.c`. Needs what [`process_page_out`] needs.
///
/// # Errors
/// As for [`process_page_out`]; `EBADF` a mapping of a device.
pub fn process_will_need(pidfd: impl AsFd, range: VirtRange) -> Result<(), Errno> {
    process_madvise(pidfd, part_of(range)?, MADV_WILLNEED)
}

fn part_of(range: VirtRange) -> Result<libc::iovec, Errno> {
    Ok(libc::iovec {
        iov_base: range.start.0 as *mut libc::c_void,
        iov_len: usize::try_from(range.len().0).map_err(|_| Errno::INVAL)?,
    })
}

/// Does it to the calling process.
pub(crate) fn own_advise(operation: Operation, region: Region) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    // SAFETY: every operation changes how the bytes of the range are mapped, never the bytes,
    // whatever they belong to; an unmapped address is an error.
    let done = unsafe { libc::madvise(part.iov_base, part.iov_len, advice) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Has the kernel put pages that this CPU faulted in last on its lists: until it does, in batches, it holds a reference to
/// each, and they are not free when nobody else uses them any more.
///
/// Any `MADV_COLD` does (`madvise_cold` in `mm/madvise.c` begins with `lru_add_drain`), of nothing too.
pub fn drain_new_pages() {
    let page = 0_u8;
    let start = (&raw const page as usize) & !(BASE_PAGE - 1);
    // SAFETY: advice about a page of the caller's own stack, which loses its accessed bit for it.
    let _ = unsafe { libc::madvise(start as *mut libc::c_void, BASE_PAGE, MADV_COLD) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_lies_in_the_region() {
        for operation in [Operation::Collapse, Operation::Split] {
            let Advice { offset, length, .. } = operation.advice();
            assert!(offset + length <= REGION && length > 0);
        }
    }
}
