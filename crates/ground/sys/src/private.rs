//! Private anonymous memory in base pages.
//!
//! See `mmap(2)`, `madvise(2)`, `mlock(2)`.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous, munmap};
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};

const PAGE: usize = BASE_PAGE_SIZE as usize;

/// Mapped zeroes that never become superpages, unmapped on drop. Nothing of it is resident at first.
#[derive(Debug)]
pub struct PrivateMemory {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only holds the addresses; access to the bytes is the caller's affair.
unsafe impl Send for PrivateMemory {}
// SAFETY: as above.
unsafe impl Sync for PrivateMemory {}

impl PrivateMemory {
    /// `pages` pages at an address of the kernel's choice.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`, also when a limit (`RLIMIT_AS`, the number of mappings) is reached.
    pub fn new(pages: usize) -> Result<Self, Errno> {
        let length = pages.checked_mul(PAGE).ok_or(Errno::NOMEM)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE)? };
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        let memory = Self { start, length };
        // Where superpages are compiled out (EINVAL) there are none to be had anyway.
        let _ = memory.advise(Advice::LinuxNoHugepage);
        Ok(memory)
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
    pub const fn start(&self) -> NonNull<u8> {
        self.start.cast()
    }

    /// Has the kernel fill all holes now (`MADV_POPULATE_WRITE`, Linux 5.14).
    ///
    /// # Errors
    /// `ENOMEM`; `EINVAL` before 5.14.
    pub fn populate(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxPopulateWrite)
    }

    /// Keeps its pages in memory from now on (`mlock(2)`), filling holes.
    ///
    /// # Errors
    /// `ENOMEM` beyond `RLIMIT_MEMLOCK`, `EPERM` if that is 0.
    pub fn lock(&self) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own; locking changes no contents.
        unsafe { mlock(self.start.as_ptr(), self.length) }
    }

    /// Leaves it out of forked children (`MADV_DONTFORK`).
    ///
    /// # Errors
    /// Those of `madvise(2)`.
    pub fn keep_from_children(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontFork)
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        // SAFETY: the mapping is this value's own, and none of the advice given here changes contents.
        unsafe { madvise(self.start.as_ptr(), self.length, advice) }
    }
}

impl Drop for PrivateMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and the value is gone.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zeroed_and_given_back() {
        let memory = PrivateMemory::new(3).unwrap();
        assert_eq!(memory.range().len().0, 3 * BASE_PAGE_SIZE);
        memory.populate().unwrap();
        memory.keep_from_children().unwrap();
        // SAFETY: within the mapping, which nobody else knows.
        unsafe {
            let last = memory.start().as_ptr().add(3 * PAGE - 1);
            assert_eq!(last.read(), 0);
            last.write(1);
        }
        assert_eq!(PrivateMemory::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(PrivateMemory::new(usize::MAX).unwrap_err(), Errno::NOMEM);
        assert_eq!(
            PrivateMemory::new(usize::MAX / PAGE).unwrap_err(),
            Errno::NOMEM
        );
    }
}
