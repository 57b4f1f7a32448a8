//! `MADV_COLD` of one base page of a huge page: splits that huge page into base pages.
//!
//! See `madvise(2)`, `process_madvise(2)` and `mm/madvise.c` (`madvise_cold_or_pageout_pte_range`).
//! [`Operation::advice`] explains the choice of the page. Since Linux 6.12 the split maps
//! pages that hold only zeroes to the shared zero page, so that their memory returns to the system
//! (`try_to_map_unused_to_zeropage` in `mm/migrate.c`).

use std::os::fd::AsFd;

use rustix::io::Errno;
use superhue_model::Region;

use crate::advise::{Operation, own_advise, process_advise};

/// Splits the huge page that maps one region of the process behind `pidfd`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// The call is advice: `Ok` means that the kernel took it, not that it split anything. The huge page stays
/// whole if another process maps it as well (after `fork`), if it is pinned (I/O in flight), or
/// if it is the huge zero page. Check the result. A region that base pages map
/// loses only the accessed bit of its last page.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` the VMA is locked in memory (`mlock`) or of
/// hugetlbfs; `ENOMEM` the address is not mapped; `ENOSYS` before Linux 5.10.
pub fn process_split(pidfd: impl AsFd, region: Region) -> Result<(), Errno> {
    process_advise(pidfd, Operation::Split, region)
}

/// Splits torn huge pages in one region of the process behind `pidfd`, which base pages map because the program gave parts of them back:
/// the kernel frees the unmapped pages.
///
/// The call is advice, as [`process_split`] is. One huge page that maps the whole region stays as it is.
///
/// # Errors
/// As for [`process_split`], except `ENOMEM`: if parts of the region are not mapped, the kernel splits the others all the same.
pub fn process_release(pidfd: impl AsFd, region: Region) -> Result<(), Errno> {
    match process_advise(pidfd, Operation::Release, region) {
        Err(Errno::NOMEM) => Ok(()),
        done => done,
    }
}

/// Splits the huge page that maps one region of the calling process; unprivileged.
///
/// # Errors
/// As for [`process_split`], without those about permission.
pub fn own_split(region: Region) -> Result<(), Errno> {
    own_advise(Operation::Split, region)
}
