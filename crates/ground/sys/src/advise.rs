//! Operations on one region, and the calls that perform them: `madvise(2)`, `process_madvise(2)`.
//!
//! Both sides share one definition: Superhue calls from outside, the client library from inside.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Region, VirtRange};

use crate::pagemap::last_errno;

/// Operation on one region of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Promote: make one huge page of its base pages.
    Collapse,
    /// Split: make base pages of its huge page.
    Split,
    /// Split a torn huge page, which base pages map because the program gave parts back: the kernel frees the unmapped parts.
    Release,
}

/// A `madvise(2)` call about a part of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Advice {
    /// Start of the part, in bytes from the region's start.
    pub offset: usize,
    /// Length in bytes.
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
    /// Returns the call that performs the operation.
    ///
    /// Marking *one* base page of a huge page cold splits the huge page. To treat the part differently
    /// from the rest, the kernel first makes base pages of the whole
    /// (`madvise_cold_or_pageout_pte_range` in `mm/madvise.c`). Marking the whole huge page cold would only
    /// deactivate it and leave it whole.
    ///
    /// ```text
    ///   region  |..............................................|cold|
    ///            stays as active as it was                       the last base page
    /// ```
    ///
    /// The call clears the accessed bit of the cold page and moves it to the inactive list. The page
    /// stays mapped, so the next access costs no fault, and after that access reclaim finds it
    /// active again. The code uses the *last* page, because memory is filled
    /// upwards: allocators keep their own words at the start of a chunk, and the unused part of a huge page
    /// is most often its end. A page of zeroes even loses nothing: since
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
            // Only the kernel knows which pages are parts of it. All remaining pages go to the inactive list, and the next
            // access makes them active again.
            Self::Release => Advice {
                offset: 0,
                length: REGION,
                advice: MADV_COLD,
            },
        }
    }
}

/// Returns the operation's part of `region` and its advice, as arguments of the call.
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

/// Performs the operation on the process behind `pidfd`.
pub(crate) fn process_advise(
    pidfd: impl AsFd,
    operation: Operation,
    region: Region,
) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    process_madvise(pidfd, part, advice)
}

/// Gives advice that leaves bytes as they are, about a part of the process behind `pidfd`.
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
/// of another process Linux 5.10). The bytes stay where they are, mapped. The pages go to the inactive list, where the next access
/// saves them from reclaim.
///
/// The range must hold all or nothing of a huge page or a smaller large folio: the kernel splits one of which it holds a part.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` locked memory or hugetlb pages; `ENOMEM` a part is not mapped.
pub fn process_cool(pidfd: impl AsFd, range: VirtRange) -> Result<(), Errno> {
    process_madvise(pidfd, part_of(range)?, MADV_COLD)
}

/// Makes the kernel reclaim pages of the process behind `pidfd` now (`MADV_PAGEOUT`; of another process Linux 5.10): it writes
/// anonymous memory and memory of tmpfs to swap.
///
/// The call is advice. A page stays if it is pinned, if another process maps it or holds a reference to it, or if swap has no room for it.
/// See `madvise_pageout` in `mm/madvise.c` and `shrink_folio_list` in `mm/vmscan.c`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` locked memory or hugetlb pages; `ENOMEM` a part is not mapped.
pub fn process_page_out(pidfd: impl AsFd, range: VirtRange) -> Result<(), Errno> {
    process_madvise(pidfd, part_of(range)?, MADV_PAGEOUT)
}

/// Makes the kernel read pages of the process behind `pidfd` from swap, without mapping them (`MADV_WILLNEED`; of another process
/// Linux 5.10). It creates no pages: a page that was never touched, or was given back, stays absent.
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

/// Performs the operation on the calling process.
pub(crate) fn own_advise(operation: Operation, region: Region) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    // SAFETY: every operation changes how the bytes of the range are mapped, never the bytes,
    // whatever they belong to; an unmapped address is an error.
    let done = unsafe { libc::madvise(part.iov_base, part.iov_len, advice) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Makes the kernel put the pages that this CPU faulted in last on its LRU lists. Until it does, in batches, it holds a reference to
/// each page, and the page is not free when its last user frees it.
///
/// Any `MADV_COLD` does this, even for an empty range (`madvise_cold` in `mm/madvise.c` begins with `lru_add_drain`).
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
