//! Anonymous memory that is aligned to superpages, for callers who hold raw memory.
//!
//! See `mmap(2)`, `madvise(2)`.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use superhue_model::{HUGE_PAGE_SIZE, VirtAddr, VirtRange};

const ALIGNMENT: usize = HUGE_PAGE_SIZE as usize;

/// Maps `length` bytes (a multiple of 2 MiB, not 0) of zeroes at a multiple of 2 MiB, and asks for
/// superpages.
///
/// ```text
///   mapped    |-----[====== length ======]--------|     length + 2 MiB
///   returned        [====== length ======]              the rest is unmapped again
/// ```
///
/// # Errors
/// `ENOMEM`, `EINVAL` for another length.
fn map_aligned(length: usize) -> Result<NonNull<c_void>, Errno> {
    if length == 0 || !length.is_multiple_of(ALIGNMENT) {
        return Err(Errno::INVAL);
    }
    let whole = length.checked_add(ALIGNMENT).ok_or(Errno::NOMEM)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let base = unsafe { mmap_anonymous(null_mut(), whole, protection, MapFlags::PRIVATE)? };
    let head = base.align_offset(ALIGNMENT);
    let start = base.wrapping_byte_add(head);
    let end = start.wrapping_byte_add(length);
    // SAFETY: head and tail belong to the mapping just made, which nobody else knows. `align_offset`
    // counts bytes, as `c_void` is one byte long.
    unsafe {
        if head > 0 {
            let _ = munmap(base, head);
        }
        if ALIGNMENT > head {
            let _ = munmap(end, ALIGNMENT - head);
        }
        // Where superpages are compiled out the memory is good all the same.
        let _ = madvise(start, length, Advice::LinuxHugepage);
    }
    NonNull::new(start).ok_or(Errno::NOMEM)
}

/// Mapped memory at a multiple of 2 MiB, unmapped on drop.
#[derive(Debug)]
pub struct AlignedMemory {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only holds the addresses; access to the bytes is the caller's affair.
unsafe impl Send for AlignedMemory {}
// SAFETY: as above.
unsafe impl Sync for AlignedMemory {}

impl AlignedMemory {
    /// At least `size` bytes of zeroes, rounded up to 2 MiB, asking for superpages.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`.
    pub fn new(size: usize) -> Result<Self, Errno> {
        let length = size
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(Errno::NOMEM)?;
        let start = map_aligned(length)?;
        Ok(Self { start, length })
    }

    /// Takes ownership (again) of memory that [`Self::into_raw`] gave away and that was asked with
    /// `size`.
    ///
    /// # Errors
    /// `EINVAL` for an address that is not a multiple of 2 MiB, or size 0.
    ///
    /// # Safety
    /// The address is from `into_raw`, asked with this size, and nothing else owns it.
    pub unsafe fn from_raw(start: NonNull<c_void>, size: usize) -> Result<Self, Errno> {
        let length = size
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(Errno::INVAL)?;
        if length == 0 || !(start.as_ptr() as usize).is_multiple_of(ALIGNMENT) {
            return Err(Errno::INVAL);
        }
        Ok(Self { start, length })
    }

    /// Gives up ownership: the memory stays.
    #[must_use]
    pub const fn into_raw(self) -> NonNull<c_void> {
        let start = self.start;
        std::mem::forget(self);
        start
    }

    /// Where it is.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = self.start.as_ptr() as u64;
        VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(start + self.length as u64),
        }
    }

    /// Its first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Has every page in memory now (`MADV_POPULATE_WRITE`, Linux 5.14).
    ///
    /// # Errors
    /// `EINVAL` before 5.14; `ENOMEM`.
    pub fn populate(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own and writable; populating changes no contents.
        unsafe { madvise(self.start.as_ptr(), self.length, Advice::LinuxPopulateWrite) }
    }
}

impl Drop for AlignedMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the value is gone.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_zeroed_and_can_change_hands() {
        let memory = AlignedMemory::new(3 << 20).unwrap();
        assert_eq!(memory.range().len().0, 4 << 20);
        assert_eq!(memory.range().start.0 % HUGE_PAGE_SIZE, 0);
        memory.populate().unwrap();
        // SAFETY: within the mapping, which nobody else knows.
        unsafe {
            let last = memory.start().as_ptr().cast::<u8>().add((4 << 20) - 1);
            assert_eq!(last.read(), 0);
            last.write(1);
        }
        let start = memory.into_raw();
        // SAFETY: given away just now.
        unsafe {
            assert!(AlignedMemory::from_raw(start, 0).is_err());
            assert!(AlignedMemory::from_raw(start.byte_add(4096), 1).is_err());
            drop(AlignedMemory::from_raw(start, 3 << 20).unwrap());
        }
        assert_eq!(AlignedMemory::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(AlignedMemory::new(usize::MAX).unwrap_err(), Errno::NOMEM);
        let too_much = usize::MAX - (ALIGNMENT - 1);
        assert_eq!(AlignedMemory::new(too_much).unwrap_err(), Errno::NOMEM);
    }
}
