//! Memory to try oracles on.

use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, Random};

use super::contrast::Contrast;
use super::{DiscoverError, Probe};
use crate::Page;

/// Page size of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Backing {
    /// Base pages, from frames of the kernel's choice.
    BasePages,
    /// Huge pages, if the system has them.
    HugePages,
}

/// Pages of our own, all in memory, all zero.
///
/// The memory goes back to the kernel when the sample is dropped, but its addresses stay mapped: a page copied out
/// of the sample may be read for ever.
#[derive(Debug)]
pub struct Sample {
    /// The mapping, which is 2 MiB longer.
    base: NonNull<c_void>,
    start: NonNull<c_void>,
    length: usize,
    pages: Vec<Page>,
}

// SAFETY: the memory is only read, and the addresses stay mapped.
unsafe impl Send for Sample {}

impl Sample {
    /// Maps at least `size` bytes, rounded up to 2 MiB, and has them in memory.
    ///
    /// # Errors
    /// `EINVAL` for 0 bytes; `ENOMEM`; `EINVAL` before Linux 5.14, which cannot populate.
    pub fn new(size: ByteCount, backing: Backing) -> Result<Self, Errno> {
        Self::in_parts(size, backing, 1, &mut |_| {})
    }

    /// Does the same as [`Self::new`], but populates `parts` parts of equally many pages, ascending; the last part also
    /// takes the remainder. Calls `before` with each part's number, on this thread; it may change which pages the
    /// thread gets.
    ///
    /// # Errors
    /// Errors of [`Self::new`]; `EINVAL` for no parts, or more than there are pages.
    pub fn in_parts(
        size: ByteCount,
        backing: Backing,
        parts: usize,
        before: &mut dyn FnMut(usize),
    ) -> Result<Self, Errno> {
        const ALIGNMENT: usize = HUGE_PAGE_SIZE as usize;
        let size = usize::try_from(size.0).map_err(|_| Errno::NOMEM)?;
        let length = (size.checked_next_multiple_of(ALIGNMENT)).ok_or(Errno::NOMEM)?;
        let whole = length.checked_add(ALIGNMENT).ok_or(Errno::NOMEM)?;
        let pages_of_part = (length / BASE_PAGE_SIZE as usize).checked_div(parts);
        let part_length = pages_of_part.unwrap_or(0) * BASE_PAGE_SIZE as usize;
        if part_length == 0 {
            return Err(Errno::INVAL);
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), whole, protection, MapFlags::PRIVATE)? };
        // `align_offset` counts bytes, as `c_void` is one byte long.
        let start = base.wrapping_byte_add(base.align_offset(ALIGNMENT));
        let advice = match backing {
            Backing::BasePages => Advice::LinuxNoHugepage,
            Backing::HugePages => Advice::LinuxHugepage,
        };
        // SAFETY: `length` bytes from the first multiple of 2 MiB lie in the mapping just made; none of these calls
        // changes their contents.
        unsafe {
            // Without huge pages in the kernel, all pages are base pages. The oracle finds that out.
            let _ = madvise(start, length, advice);
            let _ = madvise(start, length, Advice::LinuxDontFork);
        }
        for part in 0..parts {
            before(part);
            let offset = part * part_length;
            let part_length = if part + 1 == parts {
                length - offset
            } else {
                part_length
            };
            // SAFETY: a part of the same bytes.
            unsafe {
                let part = start.wrapping_byte_add(offset);
                madvise(part, part_length, Advice::LinuxPopulateWrite)?;
            }
        }
        let first = start.addr();
        let addresses = (first..first + length).step_by(BASE_PAGE_SIZE as usize);
        // SAFETY: mapped above and never unmapped.
        let pages = addresses.filter_map(|address| unsafe { Page::at(address) });
        Ok(Self {
            base: NonNull::new(base).ok_or(Errno::NOMEM)?,
            start: NonNull::new(start).ok_or(Errno::NOMEM)?,
            length,
            pages: pages.collect(),
        })
    }

    /// All pages, ascending.
    #[must_use]
    pub fn pages(&self) -> &[Page] {
        &self.pages
    }
}

/// Times loads from pages that are in the cache, and from pages that `size` of other pages pushed out of it. Leaves
/// nothing mapped.
///
/// # Errors
/// That of [`Sample::new`]; inside, [`DiscoverError::NoContrast`] with the measured times.
pub fn contrast<P: Probe>(
    probe: &mut P,
    size: ByteCount,
) -> Result<Result<Contrast, DiscoverError>, Errno> {
    let sample = Sample::new(size, Backing::BasePages)?;
    let mut random = Random::new(sample.pages.len() as u64);
    let found = Contrast::measure(probe, &sample.pages, &mut random);
    let (base, length) = (sample.base, sample.length + HUGE_PAGE_SIZE as usize);
    drop(sample);
    // SAFETY: the sample's whole mapping. Only this function had its pages, and only numbers are kept.
    let _ = unsafe { munmap(base.as_ptr(), length) };
    Ok(found)
}

impl Drop for Sample {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no code depends on its contents. A later read returns zero, as
        // before.
        let _ = unsafe { madvise(self.start.as_ptr(), self.length, Advice::LinuxDontNeed) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracles::pagemap::{HugePages, Pagemap};

    #[test]
    fn a_sample_of_base_pages_has_no_huge_page() {
        let sample = Sample::new(ByteCount(1), Backing::BasePages).unwrap();
        assert_eq!(sample.pages().len(), 512);
        let mut pagemap = Pagemap::open().unwrap();
        let huge = pagemap.is_in_huge_page(sample.pages()[0]);
        assert_ne!(huge, Ok(true));
        assert!(Sample::new(ByteCount(0), Backing::BasePages).is_err());
        assert!(Sample::new(ByteCount(u64::MAX), Backing::HugePages).is_err());
    }
}
