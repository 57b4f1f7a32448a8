//! `userfaultfd(2)`: pages of this process moved atomically. No faults are handled.
//!
//! See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and `linux/userfaultfd.h`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use superhue_model::{ByteCount, VirtAddr, VirtRange};

pub mod abi;
mod trial;

use abi::{Api, Range, Register, Transfer};

/// `UFFDIO_MOVE` is available (`UFFD_FEATURE_MOVE`, Linux 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

/// Progress of a call until its error, if there was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferResult {
    /// Bytes from the beginning of the range. After an error of `UFFDIO_MOVE` there may be more (see
    /// [`Userfault::move_range`]).
    pub bytes: ByteCount,
    /// Reason why it stopped; `None` if it completed.
    pub error: Option<Errno>,
}

impl TransferResult {
    fn new(result: Result<(), Errno>, done: i64, asked: ByteCount) -> Self {
        match result {
            Ok(()) => Self {
                bytes: asked,
                error: None,
            },
            // A negative count repeats the error.
            Err(errno) => Self {
                bytes: ByteCount(u64::try_from(done).unwrap_or(0).min(asked.0)),
                error: Some(errno),
            },
        }
    }

    /// Returns success only if the whole range was transferred.
    ///
    /// # Errors
    /// The error with which it ended.
    pub fn into_result(self) -> Result<(), Errno> {
        self.error.map_or(Ok(()), Err)
    }
}

/// An open userfaultfd for the memory of a process; closing it unregisters all its ranges.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Userfault {
    /// Opens a userfaultfd for faults of user mode (`userfaultfd(2)`), which needs no privilege.
    ///
    /// # Errors
    /// `EPERM` from a seccomp filter; `ENOSYS`; `EINVAL` before Linux 5.11.
    pub fn open() -> Result<Self, Errno> {
        let flags = UserfaultfdFlags::CLOEXEC
            | UserfaultfdFlags::NONBLOCK
            | UserfaultfdFlags::from_bits_retain(abi::UFFD_USER_MODE_ONLY);
        // SAFETY: the functions below guard the effects of the descriptor on memory.
        unsafe { userfaultfd(flags) }.map(Self)
    }

    /// Performs the handshake (`UFFDIO_API`), which must come first. It enables no optional feature and returns those that
    /// the kernel has, as bits (`UFFD_FEATURE_*` of `linux/userfaultfd.h`).
    ///
    /// # Errors
    /// `EINVAL` when done before.
    pub fn handshake(&self) -> Result<u64, Errno> {
        let mut api = Api {
            api: abi::UFFD_API,
            features: 0,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_api`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_API }, _>(&mut api) }?;
        Ok(api.features)
    }

    /// Lets pages be moved into a range of whole pages of this process (`UFFDIO_REGISTER`). Splits mappings that lie in it partly, until it
    /// is unregistered.
    ///
    /// The mode is that of writes to single write-protected pages (`UFFDIO_REGISTER_MODE_WP`), of which there are none here: the kernel
    /// fills the holes, and no thread ever waits.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has a part of it; `EINVAL` if the range is not mapped, or cannot be
    /// watched (a device, private file pages); `EPERM` if it may never be written; `ENOMEM` past the limit on mappings.
    pub fn register(&self, range: VirtRange) -> Result<(), Errno> {
        let mut register = Register {
            range: range.into(),
            mode: abi::MODE_WP,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_register`, whose layout is asserted. No byte of the range
        // changes.
        unsafe { self.update::<{ abi::UFFDIO_REGISTER }, _>(&mut register) }
    }

    /// Unregisters a range (`UFFDIO_UNREGISTER`).
    ///
    /// # Errors
    /// `EINVAL` when the range cannot be registered.
    pub fn unregister(&self, range: VirtRange) -> Result<(), Errno> {
        let mut range = Range::from(range);
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_UNREGISTER }, _>(&mut range) }
    }

    /// Moves page frames of the calling process to holes of the same process, and leaves holes (`UFFDIO_MOVE`, Linux 6.8).
    ///
    /// Do not trust its errors. Linux 6.18 repeats a step that met `EAGAIN` without forgetting that error. So it
    /// does the step once more after having done it, and returns `EEXIST`: pages past [`TransferResult::bytes`] are then
    /// moved. Check both ends (pagemap).
    ///
    /// # Errors
    /// `EEXIST` where there is no hole; `ENOENT` for a hole in the source, or nothing mapped; `EBUSY` for a page
    /// that is shared since a fork, or pinned; `EINVAL` if the two mappings differ in protection or locking, are not
    /// private anonymous, not writable, or the destination is not registered; `EAGAIN` while mappings change
    /// (an event waits to be read) or after a part.
    ///
    /// # Safety
    /// The holes stand for the bytes of the source, and no other code relies on the source.
    pub unsafe fn move_range(
        &self,
        to: VirtAddr,
        from: VirtAddr,
        length: ByteCount,
    ) -> TransferResult {
        let mut transfer = transfer(to, from, length);
        // SAFETY: the caller vouches for the bytes; the layout is asserted.
        let result = unsafe { self.update::<{ abi::UFFDIO_MOVE }, _>(&mut transfer) };
        TransferResult::new(result, transfer.done, length)
    }

    /// # Safety
    /// `argument` must have the type that the request takes, and the request's effects on other memory must be sound.
    unsafe fn update<const REQUEST: Opcode, T>(&self, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the caller vouches for it.
        unsafe { ioctl(&self.0, Updater::<REQUEST, T>::new(argument)) }
    }
}

fn transfer(to: VirtAddr, from: VirtAddr, length: ByteCount) -> Transfer {
    Transfer {
        dst: to.0,
        src: from.0,
        len: length.0,
        mode: 0,
        done: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_negative_count_is_nothing_done() {
        let failed = TransferResult::new(Err(Errno::BUSY), -16, ByteCount(8192));
        assert_eq!(failed.bytes, ByteCount(0));
        assert_eq!(failed.into_result(), Err(Errno::BUSY));
    }
}
