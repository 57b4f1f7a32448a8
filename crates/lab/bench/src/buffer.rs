//! Memory of a workload.

use std::ffi::c_void;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr, VirtRange};
use superhue_sys::anonymous::AnonymousMemory;

/// Private anonymous memory at a multiple of 2 MiB, so that the virtual addresses are equally good in every arm. Zero
/// at first, unmapped on drop.
#[derive(Debug)]
pub struct Buffer {
    memory: AnonymousMemory,
    length: usize,
}

impl Buffer {
    /// Maps `size` bytes, rounded up to base pages; nothing is resident yet.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`.
    pub fn new(size: ByteCount) -> Result<Self, Errno> {
        let length = size.0.next_multiple_of(BASE_PAGE_SIZE);
        let length = usize::try_from(length).map_err(|_| Errno::NOMEM)?;
        let memory = AnonymousMemory::aligned(length)?;
        Ok(Self { memory, length })
    }

    /// Addresses of its bytes.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        let start = self.memory.range().start;
        let end = VirtAddr(start.0 + self.length as u64);
        VirtRange { start, end }
    }

    /// All mapped addresses: its bytes, and the rest of the last region.
    #[must_use]
    pub fn mapped(&self) -> VirtRange {
        self.memory.range()
    }

    /// Advises the kernel to back `range`, a part of the mapping, with huge pages from now on, or with base pages if
    /// not `wanted`.
    ///
    /// # Errors
    /// `EINVAL` for a range outside, and on a kernel without huge pages.
    pub fn advise_superpages(&mut self, range: VirtRange, wanted: bool) -> Result<(), Errno> {
        let advice = if wanted {
            Advice::LinuxHugepage
        } else {
            Advice::LinuxNoHugepage
        };
        self.advise(range, advice)
    }

    /// Makes the pages of `range`, a part of the mapping, resident.
    ///
    /// # Errors
    /// `EINVAL` for a range outside; `ENOMEM`.
    pub fn populate(&mut self, range: VirtRange) -> Result<(), Errno> {
        self.advise(range, Advice::LinuxPopulateWrite)
    }

    /// Gives one page back to the kernel: it reads as zero at the next access.
    ///
    /// # Errors
    /// `EINVAL` for a page beyond the end.
    pub fn discard(&mut self, page: u64) -> Result<(), Errno> {
        let start = VirtAddr(self.range().start.0 + page * BASE_PAGE_SIZE);
        let end = VirtAddr(start.0 + BASE_PAGE_SIZE);
        self.advise(VirtRange { start, end }, Advice::LinuxDontNeed)
    }

    fn advise(&mut self, range: VirtRange, advice: Advice) -> Result<(), Errno> {
        if !self.mapped().contains(&range) {
            return Err(Errno::INVAL);
        }
        let length = usize::try_from(range.len().0).map_err(|_| Errno::INVAL)?;
        // SAFETY: the range belongs to this value's own mapping, to which no reference exists while `self` is borrowed.
        // Advice changes the backing of its bytes; `discard` turns them to zero, a valid byte.
        unsafe { madvise(range.start.0 as *mut c_void, length, advice) }
    }

    /// Returns the memory as bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let start = self.memory.start().as_ptr().cast();
        // SAFETY: `length` bytes from the start are mapped and writable for as long as `self` lives, and no other
        // reference exists while this borrow of `self` lasts.
        unsafe { std::slice::from_raw_parts_mut(start, self.length) }
    }

    /// Returns the memory as 8-byte words.
    pub fn words(&mut self) -> &mut [u64] {
        let start = self.memory.start().as_ptr().cast();
        // SAFETY: as for `bytes`; the start is aligned to a page, and any bytes are words.
        unsafe { std::slice::from_raw_parts_mut(start, self.length / size_of::<u64>()) }
    }

    /// Returns the memory as floating-point numbers.
    pub fn doubles(&mut self) -> &mut [f64] {
        let start = self.memory.start().as_ptr().cast();
        // SAFETY: as for `words`: any bytes are a number, or not-a-number.
        unsafe { std::slice::from_raw_parts_mut(start, self.length / size_of::<f64>()) }
    }

    /// Writes one byte of each page, in order, like a program that fills its memory for the first time.
    pub fn touch(&mut self) {
        for byte in self.bytes().iter_mut().step_by(BASE_PAGE_SIZE as usize) {
            *byte = 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_of_the_same_bytes_and_advice_stays_inside() {
        let mut buffer = Buffer::new(ByteCount(5000)).unwrap();
        assert_eq!(buffer.range().len().0, 8192);
        assert_eq!(buffer.mapped().len().0, 2 << 20);
        let range = buffer.range();
        buffer.populate(range).unwrap();
        buffer.words()[1] = 0x0101;
        assert_eq!(buffer.bytes()[8..10], [1, 1]);
        buffer.doubles()[0] = 1.0;
        assert_eq!(buffer.words()[0], 1.0_f64.to_bits());
        let outside = VirtRange {
            start: range.start,
            end: VirtAddr(range.start.0 + (4 << 20)),
        };
        assert_eq!(buffer.populate(outside), Err(Errno::INVAL));
        buffer.discard(0).unwrap();
        assert_eq!(buffer.words()[1], 0);
        assert_eq!(buffer.discard(1 << 20), Err(Errno::INVAL));
        assert!(Buffer::new(ByteCount(0)).is_err());
    }
}
