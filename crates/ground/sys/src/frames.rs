//! Private anonymous memory that exists for its page frames, which will be moved elsewhere.
//!
//! See `mmap(2)`, `madvise(2)`, `mlock2(2)`. Children of `fork(2)` do not inherit it: a frame shared with a child cannot be
//! moved.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap_anonymous, munlock, munmap,
};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, VirtAddr, VirtRange};

/// Mapping of zeroes, unmapped on drop. No page is resident at first.
#[derive(Debug)]
pub struct Frames {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only holds the addresses, and has no access to the bytes.
unsafe impl Send for Frames {}
// SAFETY: as above.
unsafe impl Sync for Frames {}

/// Page size of the mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grain {
    /// Base pages only.
    Base,
    /// Huge pages, if the kernel has free ones; start and length of the mapping are multiples of the huge page size.
    Super,
}

impl Frames {
    /// Maps `length` bytes, rounded up to whole pages of the grain.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`, also when a limit (`RLIMIT_AS`, the number of mappings) is reached.
    pub fn map(length: ByteCount, grain: Grain) -> Result<Self, Errno> {
        let unit = match grain {
            Grain::Base => BASE_PAGE_SIZE,
            Grain::Super => HUGE_PAGE_SIZE,
        };
        let length = length.0.checked_next_multiple_of(unit);
        let length = length.and_then(|length| usize::try_from(length).ok());
        let (length, unit) = (length.ok_or(Errno::NOMEM)?, unit as usize);
        if length == 0 {
            return Err(Errno::INVAL);
        }
        let spare = match grain {
            Grain::Base => 0,
            Grain::Super => unit,
        };
        let whole = length.checked_add(spare).ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), whole, protection, flags)? };
        let head = if spare == 0 {
            0
        } else {
            base.align_offset(unit)
        };
        let start = base.wrapping_byte_add(head);
        // SAFETY: head and tail belong to the mapping just made, to which no other code has a pointer.
        unsafe {
            if head > 0 {
                let _ = munmap(base, head);
            }
            if spare > head {
                let _ = munmap(start.wrapping_byte_add(length), spare - head);
            }
        }
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let frames = Self { start, length };
        frames.advise(Advice::LinuxDontFork)?;
        // A kernel without huge pages returns `EINVAL`; then there are none.
        let _ = frames.advise(match grain {
            Grain::Base => Advice::LinuxNoHugepage,
            Grain::Super => Advice::LinuxHugepage,
        });
        // KSM would merge pages of zeroes, and shared pages do not move. `EINVAL` where the kernel has no KSM.
        let _ = frames.advise(Advice::LinuxUnmergeable);
        // `mlockall(MCL_FUTURE)` may have locked and filled it; pages move only between mappings with the same `VM_LOCKED`,
        // and only to holes.
        // SAFETY: no byte changes.
        let _ = unsafe { munlock(frames.start.as_ptr(), frames.length) };
        frames.discard(frames.range())?;
        Ok(frames)
    }

    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = self.start.as_ptr() as u64;
        VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(start + self.length as u64),
        }
    }

    /// Keeps pages in memory once they are faulted in (`MLOCK_ONFAULT`, Linux 4.4).
    ///
    /// # Errors
    /// `ENOMEM` beyond `RLIMIT_MEMLOCK`, `EPERM` if that is 0.
    pub fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own, and no byte changes.
        unsafe { mlock_with(self.start.as_ptr(), self.length, MlockFlags::ONFAULT) }
    }

    /// Fills all holes with pages of zeroes (`MADV_POPULATE_WRITE`, Linux 5.14): unlike a fault, it
    /// returns an error when there is no memory.
    ///
    /// # Errors
    /// `ENOMEM`, with some holes filled; `EINVAL` before 5.14.
    pub fn populate(&self) -> Result<(), Errno> {
        loop {
            match self.advise(Advice::LinuxPopulateWrite) {
                Err(Errno::INTR | Errno::AGAIN) => {}
                done => return done,
            }
        }
    }

    /// Gives the pages of a part back to the kernel, which leaves holes.
    ///
    /// # Errors
    /// `EINVAL` if the range is not inside.
    pub fn discard(&self, part: VirtRange) -> Result<(), Errno> {
        let whole = self.range();
        if !whole.contains(&part) {
            return Err(Errno::INVAL);
        }
        let offset = usize::try_from((part.start.0).saturating_sub(whole.start.0));
        let length = usize::try_from(part.len().0);
        let (Ok(offset), Ok(length)) = (offset, length) else {
            return Err(Errno::INVAL);
        };
        let start = self.start.as_ptr().wrapping_byte_add(offset);
        // The second call is for locked memory (Linux 5.18).
        // SAFETY: inside the mapping, which is this value's own; later reads return zeroes.
        unsafe {
            madvise(start, length, Advice::LinuxDontNeed)
                .or_else(|_| madvise(start, length, Advice::LinuxDontneedLocked))
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own, and none of the advice given here changes contents.
        unsafe { madvise(self.start.as_ptr(), self.length, advice) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the value is gone.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

/// Copies a base page.
///
/// # Safety
/// Both are whole base pages, mapped and different. No other code writes the source, or reads or writes the destination.
pub unsafe fn copy_page(to: VirtAddr, from: VirtAddr) {
    let to = std::ptr::with_exposed_provenance_mut::<u8>(to.0 as usize);
    let from = std::ptr::with_exposed_provenance::<u8>(from.0 as usize);
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, BASE_PAGE_SIZE as usize) }
}

/// Returns the NUMA node of the frame of a page of this process (`move_pages(2)` without nodes); `None` if the page is not in memory, or the kernel
/// does not say.
#[must_use]
pub fn node_of(address: VirtAddr) -> Option<u32> {
    let page: *const c_void = std::ptr::without_provenance(usize::try_from(address.0).ok()?);
    let mut status: libc::c_int = -1;
    // SAFETY: one page and one status; without nodes the call moves nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            0,
            1_usize,
            &raw const page,
            std::ptr::null::<libc::c_int>(),
            &raw mut status,
            0,
        )
    };
    (done == 0).then(|| u32::try_from(status).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_in_memory_has_a_node() {
        let frames = Frames::map(ByteCount(1), Grain::Base).unwrap();
        assert_eq!(node_of(frames.range().start), None);
        frames.populate().unwrap();
        // A kernel without NUMA, or a filter of calls, does not say.
        let node = node_of(frames.range().start);
        assert!(node.is_none_or(|node| node < 1024), "{node:?}");
    }

    #[test]
    fn a_mapping_has_whole_pages_and_starts_at_one() {
        let frames = Frames::map(ByteCount(4097), Grain::Base).unwrap();
        assert_eq!(frames.range().len(), ByteCount(8192));
        frames.populate().unwrap();
        frames.discard(frames.range()).unwrap();
        let outside = VirtRange {
            start: frames.range().start,
            end: VirtAddr(frames.range().end.0 + BASE_PAGE_SIZE),
        };
        assert_eq!(frames.discard(outside), Err(Errno::INVAL));
        let frames = Frames::map(ByteCount(1), Grain::Super).unwrap();
        assert_eq!(frames.range().len(), ByteCount(HUGE_PAGE_SIZE));
        assert!(frames.range().start.0.is_multiple_of(HUGE_PAGE_SIZE));
        assert_eq!(
            Frames::map(ByteCount(0), Grain::Base).unwrap_err(),
            Errno::INVAL
        );
        assert_eq!(
            Frames::map(ByteCount(u64::MAX), Grain::Super).unwrap_err(),
            Errno::NOMEM
        );
    }
}
