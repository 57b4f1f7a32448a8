//! `madvise(2)` and `process_madvise(2)` about a part of one region.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
pub use superhue_mailbox::{Advice, Operation};
use superhue_model::Region;

use crate::pagemap::last_errno;

/// The address of the part of `region` that the operation names, and the rest of the call.
fn call(operation: Operation, region: Region) -> (libc::iovec, libc::c_int) {
    let Advice {
        offset,
        length,
        advice,
    } = operation.advice();
    let part = libc::iovec {
        iov_base: (region.start().0 + offset as u64) as *mut libc::c_void,
        iov_len: length,
    };
    (part, advice)
}

/// Does it to the process behind `pidfd`.
pub(crate) fn process_advise(
    pidfd: impl AsFd,
    operation: Operation,
    region: Region,
) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    // SAFETY: the kernel reads one iovec, which lives across the call. The address belongs to the
    // other process; every operation changes how its bytes are mapped, never the bytes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            pidfd.as_fd().as_raw_fd(),
            &raw const part,
            1_usize,
            advice,
            0_u32,
        )
    };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Does it to the calling process.
pub(crate) fn own_advise(operation: Operation, region: Region) -> Result<(), Errno> {
    let (part, advice) = call(operation, region);
    // SAFETY: every operation changes how the bytes of the range are mapped, never the bytes,
    // whatever they belong to; an unmapped address is an error.
    let done = unsafe { libc::madvise(part.iov_base, part.iov_len, advice) };
    if done < 0 { Err(last_errno()) } else { Ok(()) }
}
