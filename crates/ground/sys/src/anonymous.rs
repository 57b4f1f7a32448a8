//! Private anonymous memory of this process: on huge pages, or in base pages.
//!
//! See `mmap(2)`, `madvise(2)`, `mlock(2)`.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mlock, mmap_anonymous, msync, munlock, munmap,
};
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, VirtAddr, VirtRange};

const ALIGNMENT: usize = HUGE_PAGE_SIZE as usize;
const PAGE: usize = BASE_PAGE_SIZE as usize;

/// Maps `length` bytes (a multiple of 2 MiB, not 0) of zeroes at a multiple of 2 MiB, and requests
/// huge pages.
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
    // SAFETY: head and tail belong to the mapping just made, to which no other code has a pointer. `align_offset`
    // counts bytes, as `c_void` is one byte long.
    unsafe {
        if head > 0 {
            let _ = munmap(base, head);
        }
        if ALIGNMENT > head {
            let _ = munmap(end, ALIGNMENT - head);
        }
        // On a kernel without huge pages the memory is usable all the same.
        let _ = madvise(start, length, Advice::LinuxHugepage);
    }
    NonNull::new(start).ok_or(Errno::NOMEM)
}

/// Mapped zeroes, unmapped on drop. No page is resident at first, except after `mlockall(MCL_FUTURE)`.
#[derive(Debug)]
pub struct AnonymousMemory {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only holds the addresses; the caller is responsible for access to the bytes.
unsafe impl Send for AnonymousMemory {}
// SAFETY: as above.
unsafe impl Sync for AnonymousMemory {}

impl AnonymousMemory {
    /// Maps at least `size` bytes of zeroes, rounded up to 2 MiB, and requests huge pages.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`.
    pub fn aligned(size: usize) -> Result<Self, Errno> {
        let length = size
            .checked_next_multiple_of(ALIGNMENT)
            .ok_or(Errno::NOMEM)?;
        let start = map_aligned(length)?;
        Ok(Self { start, length })
    }

    /// Maps `pages` pages at an address of the kernel's choice, which never become huge pages.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`, also when a limit (`RLIMIT_AS`, the number of mappings) is reached.
    pub fn base_pages(pages: usize) -> Result<Self, Errno> {
        let length = pages.checked_mul(PAGE).ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let memory = Self { start, length };
        // On a kernel without huge pages (`EINVAL`) the advice is not needed.
        let _ = memory.advise(Advice::LinuxNoHugepage);
        Ok(memory)
    }

    /// Takes ownership (again) of memory that [`Self::aligned`] made of `size` and [`Self::into_raw`] gave away.
    ///
    /// # Errors
    /// `EINVAL` for an address that is not a multiple of 2 MiB, or size 0.
    ///
    /// # Safety
    /// The address is from `into_raw` of memory made with this size, and nothing else owns it.
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

    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = self.start.as_ptr() as u64;
        VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(start + self.length as u64),
        }
    }

    /// Returns the address of the first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<c_void> {
        self.start
    }

    /// Makes every page resident now (`MADV_POPULATE_WRITE`, Linux 5.14).
    ///
    /// # Errors
    /// `EINVAL` before 5.14; `ENOMEM`.
    pub fn populate(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Keeps the pages in memory from now on (`mlock(2)`), and fills holes.
    ///
    /// # Errors
    /// `ENOMEM` beyond `RLIMIT_MEMLOCK`, `EPERM` if that is 0.
    pub fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own; locking changes no contents.
        unsafe { mlock(self.start.as_ptr(), self.length) }
    }

    /// Unlocks new memory that `mlockall(MCL_FUTURE)` has locked and filled, and gives its pages back: what it contained is lost. Returns true
    /// if it was locked. Other memory stays as it is.
    ///
    /// # Errors
    /// Errors of `munlock(2)` and `madvise(2)`.
    pub fn unlock_new(&self) -> Result<bool, Errno> {
        let start = self.start.as_ptr();
        // SAFETY: the mapping is this value's own. For anonymous memory the call only tests the lock: `mm/msync.c`.
        match unsafe { msync(start, self.length, MsyncFlags::INVALIDATE) } {
            Ok(()) => return Ok(false),
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(errno),
        }
        // SAFETY: the mapping is this value's own.
        unsafe { munlock(start, self.length)? };
        // SAFETY: as above; later reads return zeroes.
        unsafe { madvise(start, self.length, Advice::LinuxDontNeed)? };
        Ok(true)
    }

    /// Leaves the memory out of forked children (`MADV_DONTFORK`).
    ///
    /// # Errors
    /// Errors of `madvise(2)`.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontFork)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own, and none of the advice given here changes contents.
        unsafe { madvise(self.start.as_ptr(), self.length, advice) }
    }
}

impl Drop for AnonymousMemory {
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
        let memory = AnonymousMemory::aligned(3 << 20).unwrap();
        assert_eq!(memory.range().len().0, 4 << 20);
        assert_eq!(memory.range().start.0 % HUGE_PAGE_SIZE, 0);
        memory.populate().unwrap();
        // SAFETY: within the mapping, to which no other code has a pointer.
        unsafe {
            let last = memory.start().as_ptr().cast::<u8>().add((4 << 20) - 1);
            assert_eq!(last.read(), 0);
            last.write(1);
        }
        let start = memory.into_raw();
        // SAFETY: given away just now.
        unsafe {
            assert!(AnonymousMemory::from_raw(start, 0).is_err());
            assert!(AnonymousMemory::from_raw(start.byte_add(4096), 1).is_err());
            drop(AnonymousMemory::from_raw(start, 3 << 20).unwrap());
        }
        assert_eq!(AnonymousMemory::aligned(0).unwrap_err(), Errno::INVAL);
        assert_eq!(
            AnonymousMemory::aligned(usize::MAX).unwrap_err(),
            Errno::NOMEM
        );
        let too_much = usize::MAX - (ALIGNMENT - 1);
        assert_eq!(
            AnonymousMemory::aligned(too_much).unwrap_err(),
            Errno::NOMEM
        );
    }

    #[test]
    fn locked_memory_becomes_unlocked_and_empty() {
        let memory = AnonymousMemory::base_pages(3).unwrap();
        assert_eq!(memory.unlock_new(), Ok(false));
        if let Err(errno) = memory.lock() {
            return superhue_testing::skip("mlock", &errno.to_string());
        }
        let first = memory.start().as_ptr().cast::<u8>();
        // SAFETY: within the mapping, to which no other code has a pointer.
        unsafe { first.write(1) };
        assert_eq!(memory.unlock_new(), Ok(true));
        // SAFETY: as above.
        assert_eq!(unsafe { first.read() }, 0);
        assert_eq!(memory.unlock_new(), Ok(false));
    }

    #[test]
    fn memory_is_zeroed_and_given_back() {
        let memory = AnonymousMemory::base_pages(3).unwrap();
        assert_eq!(memory.range().len().0, 3 * BASE_PAGE_SIZE);
        memory.populate().unwrap();
        memory.keep_from_children().unwrap();
        // SAFETY: within the mapping, to which no other code has a pointer.
        unsafe {
            let last = memory.start().as_ptr().cast::<u8>().add(3 * PAGE - 1);
            assert_eq!(last.read(), 0);
            last.write(1);
        }
        assert_eq!(AnonymousMemory::base_pages(0).unwrap_err(), Errno::INVAL);
        assert_eq!(
            AnonymousMemory::base_pages(usize::MAX).unwrap_err(),
            Errno::NOMEM
        );
        assert_eq!(
            AnonymousMemory::base_pages(usize::MAX / PAGE).unwrap_err(),
            Errno::NOMEM
        );
    }
}
