//! One region of shared memory that is mapped at many addresses.
//!
//! ```text
//!   region      |0|1|2|3|...                2 MiB of a memfd
//!
//!   view        |0|1|0|1|0|1|   |3|   ...   read-only; pieces of the region, again and again
//! ```
//!
//! Each address of a view needs a translation of its own, while the bytes behind it are a few lines that stay in the cache. So loads through a view
//! cost translations and nothing else, and a view of gigabytes needs memory only for its page tables.
//!
//! See `memfd_create(2)`, `mmap(2)`.

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE, Region, VirtAddr};

use crate::collapse::own_collapse;

const HUGE: usize = HUGE_PAGE_SIZE as usize;
const PAGE: usize = BASE_PAGE_SIZE as usize;
const WORD: usize = size_of::<u64>();

/// Part of a region that a view shows, in bytes. All three are multiples of the base page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Offset in the view.
    pub at: usize,
    /// Offset in the region.
    pub from: usize,
    /// Length.
    pub length: usize,
}

/// Addresses through which one can read; unmapped when dropped.
#[derive(Debug)]
pub struct View {
    reserved: *mut c_void,
    reserved_length: usize,
    start: *mut u8,
    length: usize,
}

impl View {
    /// Reserves `length` bytes, the first of which is aligned to a huge page. Until pieces are mapped they read as zeroes.
    fn reserve(length: usize) -> Result<Self, Errno> {
        if length == 0 || !length.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let reserved_length = length.checked_add(HUGE).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let reserved =
            unsafe { mmap_anonymous(null_mut(), reserved_length, ProtFlags::READ, flags)? };
        let start = reserved.cast::<u8>();
        Ok(Self {
            reserved,
            reserved_length,
            start: start.wrapping_add(start.addr().next_multiple_of(HUGE) - start.addr()),
            length,
        })
    }

    /// Maps a piece of the file, with its pages present if the kernel can.
    fn map(&self, file: &OwnedFd, piece: Piece, access: ProtFlags) -> Result<(), Errno> {
        let ends = [(piece.at, self.length), (piece.from, HUGE)];
        let is_inside = ends.into_iter().all(|(start, most)| {
            start.is_multiple_of(PAGE)
                && start
                    .checked_add(piece.length)
                    .is_some_and(|end| end <= most)
        });
        if !is_inside || piece.length == 0 || !piece.length.is_multiple_of(PAGE) {
            return Err(Errno::INVAL);
        }
        let address = self.start.wrapping_add(piece.at).cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        // SAFETY: the range lies in this view's own reservation, to which no code holds a reference.
        unsafe {
            mmap(
                address,
                piece.length,
                access,
                flags,
                file,
                piece.from as u64,
            )?
        };
        Ok(())
    }

    /// Reads the word with this index, from 0; past the end 0. Inlined, so that a timing of loads measures nothing else: the check of the index
    /// is a branch that the processor foresees, not a step between one load and the next.
    #[inline]
    #[must_use]
    pub fn load_word(&self, index: usize) -> u64 {
        if index >= self.length / WORD {
            return 0;
        }
        // SAFETY: in bounds, aligned, readable while `self` lives, and any bytes are a valid u64.
        unsafe { self.start.cast::<u64>().wrapping_add(index).read_volatile() }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: the mapping is this view's own, and no code holds a reference to it.
        let _ = unsafe { munmap(self.reserved, self.reserved_length) };
    }
}

/// 2 MiB of shared memory.
#[derive(Debug)]
pub struct SharedRegion {
    file: OwnedFd,
    whole: View,
}

impl SharedRegion {
    /// Makes a region of zeroes, all of them present.
    ///
    /// # Errors
    /// `ENOMEM`; those of `memfd_create(2)`.
    pub fn new() -> Result<Self, Errno> {
        let file = memfd_create("superhue-region", MemfdFlags::CLOEXEC)?;
        ftruncate(&file, HUGE_PAGE_SIZE)?;
        let whole = View::reserve(HUGE)?;
        let all = Piece {
            at: 0,
            from: 0,
            length: HUGE,
        };
        whole.map(&file, all, ProtFlags::READ | ProtFlags::WRITE)?;
        let mut region = Self { file, whole };
        for page in 0..HUGE / PAGE {
            region.store_word(page * PAGE / WORD, 0);
        }
        Ok(region)
    }

    /// Makes one huge page of it, if it is none yet.
    ///
    /// # Errors
    /// `EINVAL` where the kernel makes no huge pages of shared memory (before Linux 6.1, `shmem_enabled` is `deny`); `ENOMEM` without a free
    /// huge page; `EAGAIN`, `EBUSY`.
    pub fn collapse(&mut self) -> Result<(), Errno> {
        own_collapse(Region::containing(VirtAddr(self.whole.start.addr() as u64)))
    }

    /// Returns the region in the order of its bytes.
    #[must_use]
    pub const fn whole(&self) -> &View {
        &self.whole
    }

    /// Writes the word with this index; past the end nothing.
    pub fn store_word(&mut self, index: usize, word: u64) {
        if index < HUGE / WORD {
            // SAFETY: in bounds, aligned, writable, and reached through `&mut self` alone: views only read, by volatile access.
            unsafe {
                let first = self.whole.start.cast::<u64>();
                first.wrapping_add(index).write_volatile(word);
            }
        }
    }

    /// Maps pieces of the region into a view of `length` bytes, aligned to a huge page. The rest of the view reads as zeroes.
    ///
    /// A piece is on a huge page if it is a whole one, aligned in the view, and the region is one.
    ///
    /// # Errors
    /// `EINVAL` for a piece outside of the region or the view, or not of whole pages; `ENOMEM` past a limit on address space or on the number of
    /// mappings.
    pub fn view(
        &self,
        length: usize,
        pieces: impl IntoIterator<Item = Piece>,
    ) -> Result<View, Errno> {
        let view = View::reserve(length)?;
        for piece in pieces {
            view.map(&self.file, piece, ProtFlags::READ)?;
        }
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(at: usize, from: usize) -> Piece {
        let [at, from] = [at, from].map(|page| page * PAGE);
        Piece {
            at,
            from,
            length: PAGE,
        }
    }

    const WORDS: usize = PAGE / WORD;

    #[test]
    fn a_view_shows_the_pieces_wherever_they_are_mapped() {
        let mut region = SharedRegion::new().unwrap();
        let view = region
            .view(8 * PAGE, [page(1, 3), page(2, 3), page(7, 511)])
            .unwrap();
        region.store_word(3 * WORDS + 5, 42);
        region.store_word(511 * WORDS, 7);
        region.store_word(512 * WORDS, 9);
        assert_eq!(view.load_word(WORDS + 5), 42);
        assert_eq!(view.load_word(2 * WORDS + 5), 42);
        assert_eq!(view.load_word(7 * WORDS), 7);
        let (elsewhere, past) = (view.load_word(5), view.load_word(8 * WORDS));
        assert_eq!((elsewhere, past), (0, 0));
        assert_eq!(region.whole().load_word(3 * WORDS + 5), 42);
        assert_eq!(region.whole().load_word(512 * WORDS), 0, "past the end");
    }

    #[test]
    fn pieces_outside_are_refused() {
        let region = SharedRegion::new().unwrap();
        let refused = |length, piece: Piece| region.view(length, [piece]).unwrap_err();
        assert_eq!(refused(PAGE, page(1, 0)), Errno::INVAL);
        assert_eq!(refused(PAGE, page(0, 512)), Errno::INVAL);
        let odd = |at, from, length| Piece { at, from, length };
        for piece in [
            odd(8, 0, PAGE),
            odd(0, 8, PAGE),
            odd(0, 0, 8),
            odd(0, 0, 0),
            odd(0, usize::MAX - PAGE + 1, PAGE),
        ] {
            assert_eq!(refused(4 * PAGE, piece), Errno::INVAL, "{piece:?}");
        }
        assert_eq!(refused(0, page(0, 0)), Errno::INVAL);
        assert_eq!(refused(usize::MAX & !(PAGE - 1), page(0, 0)), Errno::NOMEM);
    }

    #[test]
    fn a_collapse_leaves_the_bytes() {
        let mut region = SharedRegion::new().unwrap();
        region.store_word(77, 1234);
        if let Err(errno) = region.collapse() {
            superhue_testing::skip("shared-collapse", &errno.to_string());
            return;
        }
        assert_eq!(region.whole().load_word(77), 1234);
        let view = region.view(HUGE, [page(3, 0)]).unwrap();
        assert_eq!(view.load_word(3 * WORDS + 77), 1234);
    }
}
