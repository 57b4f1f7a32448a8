//! `/proc/kpageflags`: the kernel's use of a page frame.
//!
//! Format: `Documentation/admin-guide/mm/pagemap.rst`, bits in `include/uapi/linux/kernel-page-flags.h` and, for bits without a stable
//! interface, `include/linux/kernel-page-flags.h`.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use superhue_model::Pfn;

use crate::{ReadError, Roots};

/// Bytes in a word.
const WORD: usize = 8;

/// Flags of a page frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageFlags(u64);

impl PageFlags {
    const ANON: u64 = 1 << 12;
    const SWAP_BACKED: u64 = 1 << 14;
    const HEAD: u64 = 1 << 15;
    const TAIL: u64 = 1 << 16;
    const COMPOUND: u64 = Self::HEAD | Self::TAIL;
    const HUGE: u64 = 1 << 17 | 1 << 22;
    const UNEVICTABLE: u64 = 1 << 18;
    const KSM: u64 = 1 << 21;
    const ZERO_PAGE: u64 = 1 << 24;
    const MLOCKED: u64 = 1 << 33;

    const fn has(self, bits: u64) -> bool {
        self.0 & bits != 0
    }

    /// Returns true if the frame holds anonymous memory.
    #[must_use]
    pub const fn is_anonymous(self) -> bool {
        self.has(Self::ANON)
    }

    /// Returns true if the kernel would write the page to swap to free it: anonymous memory, or memory of tmpfs. Other anonymous memory has
    /// been freed lazily (`MADV_FREE`, `folio_mark_lazyfree` in `mm/swap.c`).
    #[must_use]
    pub const fn is_swap_backed(self) -> bool {
        self.has(Self::SWAP_BACKED)
    }

    /// Returns true if the page is part of a folio of several pages.
    #[must_use]
    pub const fn is_part_of_larger(self) -> bool {
        self.has(Self::COMPOUND | Self::HUGE)
    }

    /// Returns true for the first page of a folio of several pages.
    #[must_use]
    pub const fn is_head(self) -> bool {
        self.has(Self::HEAD)
    }

    /// Returns true for any other page of such a folio.
    #[must_use]
    pub const fn is_tail(self) -> bool {
        self.has(Self::TAIL)
    }

    /// Returns true if the page is locked in memory.
    #[must_use]
    pub const fn is_locked(self) -> bool {
        self.has(Self::UNEVICTABLE | Self::MLOCKED)
    }

    /// Returns true if KSM has merged the page. Linux 6.12 sets the bit for every anonymous page (`stable_page_flags` in `fs/proc/page.c`
    /// tests two bits for either).
    #[must_use]
    pub const fn is_merged(self) -> bool {
        self.has(Self::KSM)
    }

    /// Returns true for the shared zero page.
    #[must_use]
    pub const fn is_zero_page(self) -> bool {
        self.has(Self::ZERO_PAGE)
    }
}

/// Open `/proc/kpageflags`. Needs `CAP_SYS_ADMIN`.
#[derive(Debug)]
pub struct PageFlagsFile {
    file: File,
    path: PathBuf,
}

impl PageFlagsFile {
    /// Opens the file.
    ///
    /// # Errors
    /// [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `CONFIG_PROC_PAGE_MONITOR`; [`ReadError::Io`].
    pub fn open(roots: &Roots) -> Result<Self, ReadError> {
        let path = roots.proc.join("kpageflags");
        let meaning = "this kernel was built without CONFIG_PROC_PAGE_MONITOR";
        match File::open(&path) {
            Ok(file) => Ok(Self { file, path }),
            Err(source) => Err(ReadError::of_system(&path, source, meaning)),
        }
    }

    /// Returns the flags of one frame; `None` if the kernel keeps none (device memory).
    ///
    /// # Errors
    /// [`ReadError::Io`].
    pub fn of(&self, frame: Pfn) -> Result<Option<PageFlags>, ReadError> {
        let mut word = [0; WORD];
        match self.file.read_at(&mut word, frame.0 * WORD as u64) {
            Ok(WORD) => Ok(Some(PageFlags(u64::from_ne_bytes(word)))),
            Ok(_) => Ok(None),
            // The frame is past the last one.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => {
                Ok(None)
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    /// Returns the flags of `count` consecutive frames from `first` on; fewer if the kernel keeps none.
    ///
    /// # Errors
    /// [`ReadError::Io`].
    pub fn of_run(
        &self,
        first: Pfn,
        count: usize,
    ) -> Result<impl Iterator<Item = PageFlags> + use<>, ReadError> {
        let mut bytes = vec![0; count * WORD];
        let read = match self.file.read_at(&mut bytes, first.0 * WORD as u64) {
            Ok(read) => read,
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) => 0,
            Err(source) => return Err(self.failed(source)),
        };
        bytes.truncate(read);
        let words = (0..read / WORD).map(move |at| {
            let word = bytes.get(at * WORD..(at + 1) * WORD);
            let word = word
                .and_then(|word| word.try_into().ok())
                .unwrap_or_default();
            PageFlags(u64::from_ne_bytes(word))
        });
        Ok(words)
    }

    fn failed(&self, source: io::Error) -> ReadError {
        ReadError::Io {
            path: self.path.clone(),
            source,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn flags_are_read_by_frame() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        fs::create_dir_all(&roots.proc).unwrap();
        assert!(PageFlagsFile::open(&roots).is_err());
        let words = [0, PageFlags::ANON, PageFlags::COMPOUND];
        let bytes: Vec<u8> = words.iter().flat_map(|it: &u64| it.to_ne_bytes()).collect();
        fs::write(roots.proc.join("kpageflags"), bytes).unwrap();
        let file = PageFlagsFile::open(&roots).unwrap();
        let lazily_freed = file.of(Pfn(1)).unwrap().unwrap();
        assert!(lazily_freed.is_anonymous());
        assert!(!lazily_freed.is_swap_backed() && !lazily_freed.is_part_of_larger());
        assert!(file.of(Pfn(2)).unwrap().unwrap().is_part_of_larger());
        assert_eq!(file.of(Pfn(3)).unwrap(), None);
        let run: Vec<PageFlags> = file.of_run(Pfn(1), 4).unwrap().collect();
        assert_eq!(
            run,
            [PageFlags(PageFlags::ANON), PageFlags(PageFlags::COMPOUND)]
        );
    }
}
