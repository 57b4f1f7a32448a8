//! Scratch memory: a mapping of our own, for trials without risk to anything else.
//!
//! ```text
//!   reserved, PROT_NONE                                                reserved, PROT_NONE
//!  |..............|============ length, readable and writable ============|...............|
//!                 ^ 2 MiB aligned
//! ```
//!
//! The inaccessible ends keep the kernel from merging the mapping with a neighbour. So it is
//! one entry of `/proc/PID/smaps` by itself, and the values of that entry are about it alone. `fork` never
//! inherits it (`MADV_DONTFORK`), so that no other process can share its pages.
//!
//! The code accesses the bytes by volatile access only, never by reference: the system calls of a trial
//! (`UFFDIO_COPY`, `UFFDIO_MOVE`) change them behind the compiler's back.
//!
//! No function here allocates or locks: a child after `fork` may use all of them.

use std::ptr;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Region, VirtAddr, VirtRange};

use crate::pagemap::last_errno;

const PAGE: usize = BASE_PAGE_SIZE as usize;
const HUGE: usize = HUGE_PAGE_SIZE as usize;
const WORD: usize = size_of::<u64>();

/// Private anonymous mapping that starts at a region's first byte; unmapped when dropped.
#[derive(Debug)]
pub struct Scratch {
    reserved: *mut u8,
    reserved_length: usize,
    start: *mut u8,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and to no thread. A shared reference
// only reads it (or lets the kernel fill in a missing page); writing needs an exclusive
// one.
unsafe impl Send for Scratch {}
// SAFETY: see above.
unsafe impl Sync for Scratch {}

impl Scratch {
    /// Maps `length` bytes, a multiple of the base page size, and touches none of them.
    ///
    /// # Errors
    /// `EINVAL` for a length of zero or not of whole pages (whole 4 KiB pages are not whole pages
    /// of a kernel with larger ones); `ENOMEM` past a limit on address space.
    pub fn untouched(length: usize) -> Result<Self, Errno> {
        let scratch = Self::reserve(length)?;
        scratch.open(length)?;
        Ok(scratch)
    }

    /// Maps `length` bytes, a multiple of the huge page size, such that base pages map every region in it,
    /// whatever the system's huge page mode is. The first page of each region is resident.
    ///
    /// The mapping has no huge page advice, which could not be undone.
    ///
    /// # Errors
    /// As for [`untouched`](Self::untouched).
    pub fn in_base_pages(length: usize) -> Result<Self, Errno> {
        if !length.is_multiple_of(HUGE) {
            return Err(Errno::INVAL);
        }
        let mut scratch = Self::reserve(length)?;
        // The kernel may answer a fault by a huge page only if the mapping spans the whole region. So the code
        // touches each region while the mapping reaches only one page into it. That gives the region a table of
        // base page entries, and later faults can only fill in that table.
        for region in (0..length).step_by(HUGE) {
            scratch.open(region + PAGE)?;
            scratch.write_word(region / WORD, 0);
        }
        scratch.open(length)?;
        Ok(scratch)
    }

    fn reserve(length: usize) -> Result<Self, Errno> {
        if length == 0 || !length.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let reserved_length = length.checked_add(HUGE + 2 * PAGE).ok_or(Errno::NOMEM)?;
        // SAFETY: a new mapping where the kernel chooses disturbs no other.
        let reserved = unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved_length,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        if reserved == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let reserved = reserved.cast::<u8>();
        let after_guard = reserved.addr() + PAGE;
        let offset = after_guard.next_multiple_of(HUGE) - reserved.addr();
        let scratch = Self {
            reserved,
            reserved_length,
            start: reserved.wrapping_add(offset),
            length,
        };
        // SAFETY: the whole range is the mapping just made.
        let done = unsafe { libc::madvise(reserved.cast(), reserved_length, libc::MADV_DONTFORK) };
        if done < 0 {
            Err(last_errno())
        } else {
            Ok(scratch)
        }
    }

    /// Makes the first `length` bytes accessible.
    fn open(&self, length: usize) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range lies in our own mapping, to which no code holds a reference.
        let done = unsafe { libc::mprotect(self.start.cast(), length, access) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Returns the accessible range.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = self.start.addr() as u64;
        VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(start + self.length as u64),
        }
    }

    /// Returns the region with which it starts.
    #[must_use]
    pub fn region(&self) -> Region {
        Region::containing(self.range().start)
    }

    /// Writes a pattern without a zero word to every byte, which faults in every page.
    pub fn fill(&mut self, seed: u64) {
        for index in 0..self.length / WORD {
            self.write_word(index, pattern(seed, index));
        }
    }

    /// Returns true if every byte is as [`fill`](Self::fill) left it.
    #[must_use]
    pub fn is_intact(&self, seed: u64) -> bool {
        (0..self.length / WORD).all(|index| self.read_word(index) == pattern(seed, index))
    }

    /// Returns true if every byte is zero.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        (0..self.length / WORD).all(|index| self.read_word(index) == 0)
    }

    /// Writes to the first page.
    pub fn touch(&mut self) {
        self.write_word(0, 1);
    }

    /// Writes to page `page`, counted from 0. Pages behind the end are ignored.
    pub fn touch_page(&mut self, page: usize) {
        if page < self.length / PAGE {
            self.write_word(page * (PAGE / WORD), 1);
        }
    }

    /// Reads from the first page, which faults it in.
    pub fn peek(&self) -> u64 {
        self.read_word(0)
    }

    /// Requests huge pages at faults (`MADV_HUGEPAGE`).
    ///
    /// # Errors
    /// `EINVAL` on a kernel built without transparent huge pages.
    pub fn advise_huge(&mut self) -> Result<(), Errno> {
        // SAFETY: the range is our own; the advice changes its backing, never its bytes.
        let done = unsafe { libc::madvise(self.start.cast(), self.length, libc::MADV_HUGEPAGE) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Makes base page entries map every region. The pages stay where they are, so those of a huge page remain
    /// contiguous. `mprotect(2)` of one page and back makes the kernel split the entry, not the page.
    ///
    /// # Errors
    /// Errors of `mprotect(2)`: `ENOMEM` past the limit on the number of mappings.
    pub fn map_by_base_pages(&mut self) -> Result<(), Errno> {
        for region in (0..self.length).step_by(HUGE) {
            let start = self.start.wrapping_add(region);
            for access in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                // SAFETY: the page lies in our own mapping, to which no code holds a reference; it is writable again before `self` is free.
                let done = unsafe { libc::mprotect(start.cast(), PAGE, access) };
                if done < 0 {
                    return Err(last_errno());
                }
            }
        }
        Ok(())
    }

    /// Reads a word of every cache line (of 64 bytes), in order. Returns the sum.
    #[must_use]
    pub fn peek_lines(&self) -> u64 {
        (0..self.length / WORD)
            .step_by(64 / WORD)
            .fold(0, |sum: u64, index| sum.wrapping_add(self.read_word(index)))
    }

    /// Clears the accessed bits of the pages and drops their translations from the TLB
    /// (`MADV_COLD`, Linux 5.4). The bytes stay.
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn advise_cold(&mut self) -> Result<(), Errno> {
        // SAFETY: the range is our own; the advice changes no byte.
        let done = unsafe { libc::madvise(self.start.cast(), self.length, libc::MADV_COLD) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Makes the kernel swap the pages out (`MADV_PAGEOUT`, Linux 5.4). It is advice: pages for which there is no room stay. The
    /// next access to a page brings it back with its bytes.
    ///
    /// # Errors
    /// `EINVAL` on an older kernel.
    pub fn page_out(&mut self) -> Result<(), Errno> {
        // SAFETY: the range is our own; the advice changes no byte.
        let done = unsafe { libc::madvise(self.start.cast(), self.length, libc::MADV_PAGEOUT) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }

    /// Reads the word with this index, from 0; past the end the last one. Inlined, so that a timing of loads measures nothing else.
    #[inline]
    #[must_use]
    pub fn load_word(&self, index: u64) -> u64 {
        let last = (self.length / WORD - 1) as u64;
        // SAFETY: in bounds, aligned, and any bytes are a valid u64.
        unsafe {
            self.start
                .cast::<u64>()
                .wrapping_add(index.min(last) as usize)
                .read_volatile()
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    fn read_word(&self, index: usize) -> u64 {
        debug_assert!(index < self.length / WORD);
        // SAFETY: in bounds by the callers above, aligned, and any bytes are a valid u64.
        unsafe { self.start.cast::<u64>().wrapping_add(index).read_volatile() }
    }

    fn write_word(&mut self, index: usize, word: u64) {
        debug_assert!(index < self.length / WORD);
        // SAFETY: in bounds by the callers above, aligned, and reached through `&mut self` alone.
        unsafe {
            self.start
                .cast::<u64>()
                .wrapping_add(index)
                .write_volatile(word)
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no code holds a reference to it. The code cannot handle a failure (past the limit
        // on the number of mappings), which leaves the address space as it was.
        unsafe { libc::munmap(self.reserved.cast(), self.reserved_length) };
    }
}

/// Returns a different word for each index, never zero.
fn pattern(seed: u64, index: usize) -> u64 {
    (index as u64 ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping_of(range: VirtRange) -> Option<String> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let wanted = format!("{:x}-{:x} ", range.start.0, range.end.0);
        maps.lines()
            .find(|line| line.starts_with(&wanted))
            .map(str::to_owned)
    }

    #[test]
    fn a_scratch_is_one_aligned_mapping_of_its_own() {
        for scratch in [
            Scratch::untouched(PAGE).unwrap(),
            Scratch::untouched(3 * HUGE + PAGE).unwrap(),
            Scratch::in_base_pages(2 * HUGE).unwrap(),
        ] {
            let range = scratch.range();
            assert_eq!(range.start, scratch.region().start());
            let line = mapping_of(range).expect("exactly its range");
            assert!(line.contains("rw-p"), "{line}");
        }
        assert_eq!(Scratch::untouched(0).unwrap_err(), Errno::INVAL);
        assert_eq!(Scratch::untouched(PAGE + 1).unwrap_err(), Errno::INVAL);
        assert_eq!(Scratch::in_base_pages(PAGE).unwrap_err(), Errno::INVAL);
        assert_eq!(
            Scratch::untouched(usize::MAX & !(PAGE - 1)).unwrap_err(),
            Errno::NOMEM
        );
    }

    #[test]
    fn what_was_filled_is_intact_until_changed() {
        let mut scratch = Scratch::untouched(2 * PAGE).unwrap();
        assert!(scratch.is_zero());
        scratch.fill(7);
        assert!(scratch.is_intact(7));
        assert!(!scratch.is_intact(8));
        assert!(!scratch.is_zero());
        scratch.touch();
        assert!(!scratch.is_intact(7));
        assert_eq!(scratch.peek(), 1);
        scratch.fill(7);
        scratch.touch_page(1);
        assert!(!scratch.is_intact(7));
        assert_ne!(scratch.peek(), 1);
        scratch.touch_page(2);
    }

    #[test]
    fn pages_that_were_out_are_intact() {
        let mut scratch = Scratch::untouched(16 * PAGE).unwrap();
        scratch.fill(5);
        scratch.page_out().unwrap();
        assert!(scratch.is_intact(5));
    }

    #[test]
    fn base_page_entries_leave_the_bytes() {
        let mut scratch = Scratch::untouched(2 * HUGE).unwrap();
        scratch.fill(3);
        scratch.map_by_base_pages().unwrap();
        assert!(scratch.is_intact(3));
        assert!(mapping_of(scratch.range()).is_some(), "one mapping again");
        scratch.fill(4);
        assert!(scratch.is_intact(4));
    }

    #[test]
    fn dropping_unmaps() {
        let scratch = Scratch::in_base_pages(HUGE).unwrap();
        let range = scratch.range();
        assert!(mapping_of(range).is_some());
        drop(scratch);
        assert!(mapping_of(range).is_none());
    }
}
