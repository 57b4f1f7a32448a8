//! Private anonymous mapping of whole regions.

use std::ffi::c_void;
use std::io;
use std::ptr;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, bail};
use rustix::mm::Advice;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE, VirtAddr, VirtRange};

use crate::procfs;
use crate::random::mix;

/// 8-byte words in a base page.
pub const WORDS_PER_PAGE: usize = (BASE_PAGE_SIZE / 8) as usize;

/// Private anonymous memory with both ends aligned to 2 MiB, so that huge pages can map every byte of it. Unmapped when
/// dropped.
///
/// Programs reach the memory as [`AtomicU64`] words, and access them `Relaxed`. On every machine that Superhue
/// supports, such an access is a plain load or store. Threads may share the words. The compiler may not assume that
/// memory still holds the value last written: `verify` tests exactly that.
#[derive(Debug)]
pub struct Mapping {
    start: *mut c_void,
    len: usize,
}

impl Mapping {
    /// Maps `size` bytes, rounded up to whole regions. Nothing is resident yet.
    ///
    /// # Errors
    /// If the kernel refuses (`ENOMEM`).
    pub fn new(size: ByteCount) -> Result<Self> {
        let len = size.0.div_ceil(HUGE_PAGE_SIZE) * HUGE_PAGE_SIZE;
        // Map one region more than needed and give back what lies outside the aligned part:
        //
        //   start      aligned                              end
        //     |--head----|===================================|--tail--|
        let start = map_anonymous(to_usize(len + HUGE_PAGE_SIZE)?)
            .with_context(|| format!("cannot map {}", ByteCount(len)))?;
        let head = to_usize((start as u64).next_multiple_of(HUGE_PAGE_SIZE) - start as u64)?;
        let len = to_usize(len)?;
        let aligned = start.wrapping_byte_add(head);
        unmap(start, head);
        unmap(
            aligned.wrapping_byte_add(len),
            HUGE_PAGE_SIZE as usize - head,
        );
        Ok(Self {
            start: aligned,
            len,
        })
    }

    /// Does the same as [`Mapping::new`], for memory all of which will be filled.
    ///
    /// # Errors
    /// If less memory is available, or the kernel refuses the mapping.
    pub fn to_fill(size: ByteCount) -> Result<Self> {
        ensure_available(size)?;
        Self::new(size)
    }

    /// Returns the memory as 8-byte words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64] {
        // SAFETY: `start` is the start of `len` mapped, readable, writable bytes that live as long as `self`, page
        // aligned and zero at first, and any bytes make a valid `u64`. No other code hands out references to them.
        unsafe { slice::from_raw_parts(self.start.cast(), self.len / 8) }
    }

    /// The pages of the mapping: slices of [`WORDS_PER_PAGE`] words.
    pub fn pages(&self) -> slice::ChunksExact<'_, AtomicU64> {
        self.words().chunks_exact(WORDS_PER_PAGE)
    }

    /// Returns the address range.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = VirtAddr(self.start as u64);
        VirtRange {
            start,
            end: VirtAddr(start.0 + self.len as u64),
        }
    }

    /// Returns the size; a multiple of 2 MiB.
    #[must_use]
    pub fn size(&self) -> ByteCount {
        self.range().len()
    }

    /// Makes every page resident.
    pub fn fill(&self) {
        for (number, page) in (0..).zip(self.pages()) {
            touch(page, number);
        }
    }

    /// Gives one page back to the kernel (`MADV_DONTNEED`): not resident, and zero at the next access.
    ///
    /// # Errors
    /// Errors of `madvise(2)`.
    pub fn discard(&self, page: usize) -> rustix::io::Result<()> {
        let words = self.pages().nth(page).ok_or(rustix::io::Errno::INVAL)?;
        let start = words.as_ptr().cast_mut().cast();
        // SAFETY: the range is one page of this private mapping. Its words turn to zero; code with a reference to these
        // atomics must expect such a change by other threads anyway.
        unsafe { rustix::mm::madvise(start, size_of_val(words), Advice::LinuxDontNeed) }
    }

    /// Asks the kernel for huge pages here (`MADV_HUGEPAGE`): at the next faults, and by khugepaged.
    ///
    /// # Errors
    /// `EINVAL` on a kernel without transparent huge pages.
    pub fn advise_huge(&self) -> rustix::io::Result<()> {
        // SAFETY: this advice changes the backing of the range from now on, never its contents.
        unsafe { rustix::mm::madvise(self.start, self.len, Advice::LinuxHugepage) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

/// Refuses to fill memory that the machine does not have; otherwise the kernel's OOM killer would act halfway.
///
/// # Errors
/// If less than `size` is available.
pub fn ensure_available(size: ByteCount) -> Result<()> {
    match procfs::available() {
        Some(available) if size > available => {
            bail!("{size} asked for, but only {available} of memory are available: lower the size")
        }
        _ => Ok(()),
    }
}

/// Makes one page resident by writing a word that is never zero.
///
/// A zero would make the page resident too, but the kernel's splitter of underused huge pages treats pages that are all
/// zero as unused.
pub fn touch(page: &[AtomicU64], number: u64) {
    if let Some(word) = page.first() {
        word.store(mix(number) | 1, Relaxed);
    }
}

/// Maps private anonymous memory.
fn map_anonymous(len: usize) -> io::Result<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a fresh private mapping at an address of the kernel's choice overlaps nothing.
    let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(start)
}

/// Unmaps a part of a mapping made here; does nothing if `len` is 0.
fn unmap(start: *mut c_void, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: callers pass ranges that `map_anonymous` returned and to which no reference is left.
    // A failure (no memory to split the VMA) leaves the range mapped and unused.
    let _ = unsafe { rustix::mm::munmap(start, len) };
}

fn to_usize(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).with_context(|| format!("{} cannot be addressed", ByteCount(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_whole_regions() {
        for (asked, got) in [(1, 1), (2 << 20, 1), ((2 << 20) + 1, 2), (64 << 20, 32)] {
            let mapping = Mapping::new(ByteCount(asked)).unwrap();
            assert_eq!(mapping.range().start.0 % HUGE_PAGE_SIZE, 0);
            assert_eq!(mapping.size(), ByteCount(got * HUGE_PAGE_SIZE));
            assert_eq!(mapping.range().regions().count() as u64, got);
            mapping.fill();
            assert!(mapping.pages().all(|page| page[0].load(Relaxed) != 0));
            assert!(mapping.pages().all(|page| page[511].load(Relaxed) == 0));
        }
    }

    #[test]
    fn discarded_pages_are_zero_and_only_those() {
        let mapping = Mapping::new(ByteCount(2 << 20)).unwrap();
        mapping.fill();
        mapping.discard(3).unwrap();
        for (number, page) in mapping.pages().enumerate() {
            assert_eq!(page[0].load(Relaxed) == 0, number == 3, "page {number}");
        }
        assert!(mapping.discard(512).is_err());
    }

    #[test]
    fn more_than_there_is_is_refused() {
        let error = Mapping::to_fill(ByteCount(1 << 44)).unwrap_err();
        assert!(error.to_string().contains("lower the size"), "{error}");
    }
}
