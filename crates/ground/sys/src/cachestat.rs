//! `cachestat(2)`: the pages of a file that are in memory (Linux 6.5).

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use superhue_model::{ByteCount, PageCount};

use crate::pagemap::last_errno;

/// Number of the call, the same on every architecture but alpha ("syscall_64.tbl").
const SYS_CACHESTAT: libc::c_long = 451;

/// `struct cachestat_range` of `linux/mman.h`.
#[repr(C)]
struct Range {
    offset: u64,
    length: u64,
}

/// `struct cachestat` of `linux/mman.h`, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<Counts>() == 40);

/// Pages of a file in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CachedPages {
    /// All pages in memory.
    pub pages: PageCount,
    /// Pages that are not written to the disk yet, or are just being written.
    pub unwritten: PageCount,
}

/// Counts the pages of `[offset, offset + length)` of an open file that are in memory. A length of 0 means up to the end.
///
/// # Errors
/// `ENOSYS` before Linux 6.5; `EPERM` for a file that the caller neither owns nor may write to (Linux 6.14); `EOPNOTSUPP` for
/// hugetlbfs.
pub fn cached_pages(
    file: impl AsFd,
    offset: ByteCount,
    length: ByteCount,
) -> Result<CachedPages, Errno> {
    let range = Range {
        offset: offset.0,
        length: length.0,
    };
    let mut counts = Counts::default();
    // SAFETY: int cachestat(unsigned int fd, struct cachestat_range *, struct cachestat *, unsigned int flags); both structures
    // have the kernel's layout and outlive the call.
    let done = unsafe {
        libc::syscall(
            SYS_CACHESTAT,
            file.as_fd().as_raw_fd(),
            &raw const range,
            &raw mut counts,
            0_u32,
        )
    };
    if done == 0 {
        Ok(CachedPages {
            pages: PageCount(counts.cached),
            unwritten: PageCount(counts.dirty + counts.writeback),
        })
    } else {
        Err(last_errno())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use rustix::io::pwrite;

    #[test]
    fn what_was_written_is_cached_and_holes_are_not() {
        let file = memfd_create("cached", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 20).unwrap();
        pwrite(&file, &[1; 5 * 4096], 8 * 4096).unwrap();
        let look = |offset, length| {
            let found = cached_pages(&file, ByteCount(offset), ByteCount(length));
            found.map(|found| found.pages)
        };
        match look(0, 0) {
            Err(Errno::NOSYS) => superhue_testing::skip("cachestat", "this kernel lacks it"),
            found => {
                assert_eq!(found, Ok(PageCount(5)));
                assert_eq!(look(10 * 4096, 4096), Ok(PageCount(1)));
                assert_eq!(look(0, 8 * 4096), Ok(PageCount(0)));
            }
        }
    }
}
