//! A file in memory, mapped for reading.

use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags, madvise, mlock_with, mmap, munmap};
use superhue_model::BASE_PAGE_SIZE;

use crate::Page;

/// A file mapped for reading, unmapped on drop.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

// SAFETY: it only holds the addresses, and no thread writes there.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes of a file (whole pages, at least one), shared: the frames are the file's own.
    ///
    /// # Errors
    /// Errors of `mmap(2)`.
    pub fn new(file: impl AsFd, length: usize) -> Result<Self, Errno> {
        let (anywhere, flags) = (std::ptr::null_mut(), MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { mmap(anywhere, length, ProtFlags::READ, flags, file, 0)? };
        let start = NonNull::new(start).ok_or(Errno::NOMEM)?;
        #[cfg(test)]
        live::add(start.as_ptr() as usize, length);
        Ok(Self { start, length })
    }

    /// Locks the pages that are touched from now on in memory, if the limits allow that. Pages that are never touched
    /// are holes, and stay holes.
    pub(super) fn lock(&self) {
        // SAFETY: changes nothing about what the memory holds.
        let _ = unsafe { mlock_with(self.start.as_ptr(), self.length, MlockFlags::ONFAULT) };
    }

    /// Returns the length in bytes.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length
    }

    /// A page by its number in the file.
    #[must_use]
    pub fn page(&self, number: u32) -> Option<Page> {
        let offset = usize::try_from(u64::from(number) * BASE_PAGE_SIZE).ok()?;
        if offset >= self.length {
            return None;
        }
        // SAFETY: inside the mapping, which users of its pages keep alive. Only a trusted owner can shorten the file.
        unsafe { Page::at(self.start.as_ptr() as usize + offset) }
    }

    /// Unmaps `count` pages from page `first` on: they stay in the file, and a read maps them again. A process that
    /// gives them back then does not have to notify this one.
    pub fn forget(&self, first: u32, count: u32) {
        let offset = u64::from(first) * BASE_PAGE_SIZE;
        let length = u64::from(count) * BASE_PAGE_SIZE;
        let inside = offset.saturating_add(length) <= self.length as u64;
        if let (true, Ok(offset), Ok(length)) =
            (inside, usize::try_from(offset), usize::try_from(length))
        {
            let start = self.start.as_ptr().wrapping_byte_add(offset);
            // SAFETY: inside the mapping, which is shared: the file keeps the contents.
            let _ = unsafe { madvise(start, length, Advice::LinuxDontNeed) };
        }
    }

    /// The number of a page of it.
    pub(super) fn number(&self, page: Page) -> Option<u32> {
        let offset = page.address().checked_sub(self.start.as_ptr() as usize)?;
        u32::try_from(offset as u64 / BASE_PAGE_SIZE).ok()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before the addresses may become another mapping's.
        #[cfg(test)]
        live::remove(self.start.as_ptr() as usize);
        // SAFETY: made by `new`, and pages of it are used no longer than it.
        let _ = unsafe { munmap(self.start.as_ptr(), self.length) };
    }
}

/// The mappings of this process, for models in which a page's color depends on its number in the file.
#[cfg(test)]
pub(super) mod live {
    use std::collections::BTreeMap;
    use std::sync::RwLock;

    use superhue_model::BASE_PAGE_SIZE;

    use crate::Page;

    /// Length in bytes by start.
    static LIVE: RwLock<BTreeMap<usize, usize>> = RwLock::new(BTreeMap::new());

    pub(super) fn add(start: usize, length: usize) {
        LIVE.write().unwrap().insert(start, length);
    }

    pub(super) fn remove(start: usize) {
        LIVE.write().unwrap().remove(&start);
    }

    /// Returns the number of a page in the file that is mapped there now; `None` outside all of them.
    pub(in super::super) fn number(page: Page) -> Option<usize> {
        let live = LIVE.read().unwrap();
        let (start, length) = live.range(..=page.address()).next_back()?;
        let offset = page.address() - start;
        (offset < *length).then_some(offset / BASE_PAGE_SIZE as usize)
    }
}
