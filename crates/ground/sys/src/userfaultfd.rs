//! `userfaultfd(2)`: page faults of a range as events, holes filled and pages moved atomically.
//!
//! See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and `linux/userfaultfd.h`. Two kinds exist: one
//! receives faults from user mode only (open to every user), the other also receives
//! faults from kernel mode, when a system call touches the range (a privilege).

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use superhue_model::{ByteCount, VirtAddr, VirtRange};

pub mod abi;
mod trial;

use abi::{Api, Range, Register, Transfer};

/// `UFFDIO_MOVE` is available (`UFFD_FEATURE_MOVE`, Linux 6.8).
pub const FEATURE_MOVE: u64 = 1 << 16;

/// `UFFD_FEATURE_*` of `linux/userfaultfd.h` by bit number, without the prefix.
pub const FEATURES: [&str; 17] = [
    "PAGEFAULT_FLAG_WP",
    "EVENT_FORK",
    "EVENT_REMAP",
    "EVENT_REMOVE",
    "MISSING_HUGETLBFS",
    "MISSING_SHMEM",
    "EVENT_UNMAP",
    "SIGBUS",
    "THREAD_ID",
    "MINOR_HUGETLBFS",
    "MINOR_SHMEM",
    "EXACT_ADDRESS",
    "WP_HUGETLBFS_SHMEM",
    "WP_UNPOPULATED",
    "POISON",
    "WP_ASYNC",
    "MOVE",
];

/// Mode of the faults that a [`Userfault`] receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Faults from user mode; a system call that touches a hole fails with `EFAULT`.
    User,
    /// Faults from kernel mode too.
    All,
}

impl Faults {
    fn flags(self) -> UserfaultfdFlags {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        match self {
            Self::User => flags | UserfaultfdFlags::from_bits_retain(abi::UFFD_USER_MODE_ONLY),
            Self::All => flags,
        }
    }
}

/// Events for which a registered range is watched. Pages can be moved into it in either mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A touch of a hole waits until a thread fills the hole (`UFFDIO_REGISTER_MODE_MISSING`).
    Missing,
    /// Writes to single write-protected pages, of which there are none here: the kernel fills the holes,
    /// and no thread ever waits (`UFFDIO_REGISTER_MODE_WP`).
    Nothing,
}

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

/// An open userfaultfd for the memory of a process; closing it unregisters all its ranges and wakes the threads that wait on them.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `ioctl(USERFAULTFD_IOC_NEW)`: flags in, a descriptor out.
struct New(u32);

// SAFETY: the request takes an integer in place of a pointer and touches no memory of the caller.
unsafe impl Ioctl for New {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        abi::USERFAULTFD_IOC_NEW
    }

    fn as_ptr(&mut self) -> *mut std::ffi::c_void {
        std::ptr::without_provenance_mut(self.0 as usize)
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _: *mut std::ffi::c_void,
    ) -> rustix::io::Result<IoctlOutput> {
        Ok(output)
    }
}

impl Userfault {
    /// Opens a userfaultfd (`userfaultfd(2)`).
    ///
    /// # Errors
    /// `EPERM` for [`Faults::All`] without `CAP_SYS_PTRACE` unless `vm.unprivileged_userfaultfd` is
    /// 1, or from a seccomp filter; `ENOSYS`; `EINVAL` for [`Faults::User`] before Linux 5.11.
    pub fn open(faults: Faults) -> Result<Self, Errno> {
        // SAFETY: the functions below guard the effects of the descriptor on memory.
        unsafe { userfaultfd(faults.flags()) }.map(Self)
    }

    /// Opens a userfaultfd by `ioctl(USERFAULTFD_IOC_NEW)` on an open `/dev/userfaultfd`. The right to open that file
    /// stands for the right to receive kernel faults (Linux 6.1).
    ///
    /// # Errors
    /// `ENOTTY` when it is another file.
    pub fn open_by_device(device: impl AsFd, faults: Faults) -> Result<Self, Errno> {
        // SAFETY: see `New`.
        let fd = unsafe { ioctl(device, New(faults.flags().bits())) }?;
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Performs the handshake (`UFFDIO_API`), which must come first. It enables no optional feature and returns those that
    /// the kernel has, as bits whose names are [`FEATURES`].
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

    /// Watches a range of whole pages of this process, and lets pages be moved into it (`UFFDIO_REGISTER`).
    ///
    /// Splits mappings that lie in it partly, until it is unregistered. In [`Mode::Missing`] a thread that touches a
    /// hole waits for the thread that reads the events, which must not touch a hole itself.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has a part of it; `EINVAL` if the range is not mapped, or cannot be
    /// watched (a device, private file pages); `EPERM` if it may never be written; `ENOMEM` past the limit on mappings.
    pub fn register(&self, range: VirtRange, mode: Mode) -> Result<(), Errno> {
        let mut register = Register {
            range: range.into(),
            mode: match mode {
                Mode::Missing => abi::MODE_MISSING,
                Mode::Nothing => 2,
            },
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_register`, whose layout is asserted. No byte of the range
        // changes.
        unsafe { self.update::<{ abi::UFFDIO_REGISTER }, _>(&mut register) }
    }

    /// Unregisters a range (`UFFDIO_UNREGISTER`): the kernel fills its holes again. Wakes the waiting threads.
    ///
    /// # Errors
    /// `EINVAL` when the range cannot be registered.
    pub fn unregister(&self, range: VirtRange) -> Result<(), Errno> {
        let mut range = Range::from(range);
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_UNREGISTER }, _>(&mut range) }
    }

    /// Wakes the threads that wait on the range, so that they retry the access (`UFFDIO_WAKE`).
    ///
    /// # Errors
    /// `EINVAL` for a range outside user space.
    pub fn wake(&self, range: VirtRange) -> Result<(), Errno> {
        let mut range = Range::from(range);
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_WAKE }, _>(&mut range) }
    }

    /// Fills holes of the descriptor's process from memory of the calling process (`UFFDIO_COPY`). Wakes the waiting threads. It ignores
    /// the protection of the holes.
    ///
    /// # Errors
    /// `EEXIST` where there is no hole; `ENOENT` when it is not registered; `EAGAIN` while mappings change (an event
    /// waits to be read) or after a part; `ENOMEM`; `ESRCH` when the process is gone; `EFAULT` if the source cannot be
    /// read.
    ///
    /// # Safety
    /// The holes stand for these bytes.
    pub unsafe fn copy_range(
        &self,
        to: VirtAddr,
        from: VirtAddr,
        length: ByteCount,
    ) -> TransferResult {
        let mut transfer = transfer(to, from, length);
        // SAFETY: the caller vouches for the bytes; the layout is asserted.
        let result = unsafe { self.update::<{ abi::UFFDIO_COPY }, _>(&mut transfer) };
        TransferResult::new(result, transfer.done, length)
    }

    /// Moves page frames of the calling process to holes of the same process, and leaves holes (`UFFDIO_MOVE`, Linux 6.8). Wakes the waiting
    /// threads.
    ///
    /// Do not trust its errors. Linux 6.18 repeats a step that met `EAGAIN` without forgetting that error. So it
    /// does the step once more after having done it, and returns `EEXIST`: pages past [`TransferResult::bytes`] are then
    /// moved, and the threads that wait for them are not woken. Check both ends (pagemap), and wake.
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
    fn features_stand_where_the_kernel_header_has_them() {
        assert_eq!(FEATURES[FEATURE_MOVE.trailing_zeros() as usize], "MOVE");
    }

    #[test]
    fn a_negative_count_is_nothing_done() {
        let failed = TransferResult::new(Err(Errno::BUSY), -16, ByteCount(8192));
        assert_eq!(failed.bytes, ByteCount(0));
        assert_eq!(failed.into_result(), Err(Errno::BUSY));
    }
}
