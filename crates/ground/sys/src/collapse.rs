//! `MADV_COLLAPSE`: makes one huge page of the base pages of a range, now (Linux 6.1).
//!
//! See `madvise(2)`, `process_madvise(2)` and `mm/khugepaged.c` (`madvise_collapse`).

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr::null_mut;
use std::sync::OnceLock;

use rustix::fs::fstatfs;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use superhue_model::{HUGE_PAGE_SIZE, Region, VirtAddr};

use crate::advise::{Operation, own_advise, process_advise};

/// Collapses one region of the process behind `pidfd`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` the VMA cannot hold huge pages; `ENOMEM` no free
/// huge page or the address is not mapped; `EBUSY`/`EAGAIN` a page was busy.
pub fn process_collapse(pidfd: impl AsFd, region: Region) -> Result<(), Errno> {
    process_advise(pidfd, Operation::Collapse, region)
}

/// Collapses one region of the calling process.
///
/// # Errors
/// As for [`process_collapse`], without those about permission.
pub fn own_collapse(region: Region) -> Result<(), Errno> {
    own_advise(Operation::Collapse, region)
}

/// Returns true if the kernel makes huge pages of files on disks (Linux 7.2, on file systems with large folios). The first call tries it on the
/// first 2 MiB of the program's own file: their cached pages may be one huge page afterwards.
#[must_use]
pub fn collapses_files() -> bool {
    static WORKS: OnceLock<bool> = OnceLock::new();
    *WORKS.get_or_init(|| collapse_own_file().is_ok())
}

fn collapse_own_file() -> Result<(), Errno> {
    let file = File::open("/proc/self/exe")
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let size = HUGE_PAGE_SIZE as usize;
    let length = file.metadata().map_or(0, |about| about.len());
    // A file on tmpfs shows nothing about other files.
    if length < HUGE_PAGE_SIZE || is_in_memory(&file)? {
        return Err(Errno::INVAL);
    }
    // Maps twice the needed size; the file takes the aligned part.
    // SAFETY: no other code uses the addresses that the kernel picks.
    let place =
        unsafe { mmap_anonymous(null_mut(), 2 * size, ProtFlags::empty(), MapFlags::PRIVATE) }?;
    let start = (place as usize).next_multiple_of(size);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: the range lies within the mapping made above.
    let mapped = unsafe { mmap(start as *mut _, size, ProtFlags::READ, flags, &file, 0) };
    let done = mapped.and_then(|_| own_collapse(Region::containing(VirtAddr(start as u64))));
    // SAFETY: the mapping made above, to which nothing refers any more.
    let _ = unsafe { munmap(place, 2 * size) };
    done
}

/// Returns true if a file is memory: on tmpfs or ramfs (`linux/magic.h`).
///
/// # Errors
/// Errors of `fstatfs(2)`.
pub fn is_in_memory(file: impl AsFd) -> Result<bool, Errno> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    const RAMFS_MAGIC: u64 = 0x8584_58f6;
    let about = fstatfs(file)?;
    #[expect(clippy::cast_sign_loss, reason = "a magic number")]
    let magic = about.f_type as u64;
    Ok([TMPFS_MAGIC, RAMFS_MAGIC].contains(&magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_stays_the_same_and_nothing_stays_mapped() {
        // Other tests map memory meanwhile, but no file as shared and read-only.
        let mappings = || {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            maps.lines().filter(|line| line.contains(" r--s ")).count()
        };
        let first = collapses_files();
        let before = mappings();
        assert_eq!(collapse_own_file().is_ok(), first);
        assert_eq!(mappings(), before);
    }
}
