//! `MADV_COLLAPSE`: make one superpage of the base pages of a range, now (Linux 6.1).
//!
//! See `madvise(2)`, `process_madvise(2)` and `mm/khugepaged.c` (`madvise_collapse`).

use std::os::fd::AsFd;

use rustix::io::Errno;
use superhue_model::Region;

use crate::advise::{Operation, own_advise, process_advise};

/// Collapses one region of the process behind `pidfd`.
///
/// Needs `CAP_SYS_NICE` and ptrace read access to the process, unless it is the caller itself.
///
/// # Errors
/// `ESRCH` gone; `EPERM` not allowed; `EINVAL` the VMA cannot hold superpages; `ENOMEM` no free
/// superpage or the address is not mapped; `EBUSY`/`EAGAIN` a page was busy.
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
