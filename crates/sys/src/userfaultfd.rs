//! `userfaultfd(2)`: page faults of a range as events, holes filled and pages moved atomically.
//!
//! See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and `linux/userfaultfd.h`. Two kinds exist: one
//! that is told of faults from user mode only (open to everybody) and one that is also told of
//! faults from kernel mode, when a system call touches the range (a privilege).
//!
//! Nothing here uses thread-local storage (`errno`): the agent's thread has none.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Updater, ioctl};
use rustix::mm::{UserfaultfdFlags, userfaultfd};
use superhue_model::{ByteCount, VirtAddr, VirtRange};

mod abi;
mod trial;

use abi::{Api, Message, Range, Register, Transfer, ZeroPage};

/// A `fork` of the process is an event, and waits for it to be read (`UFFD_FEATURE_EVENT_FORK`, Linux 4.11). Asking for it
/// needs `CAP_SYS_PTRACE`.
pub const FEATURE_EVENT_FORK: u64 = 1 << 1;
/// So is `mremap(2)` of a registered range (`UFFD_FEATURE_EVENT_REMAP`).
pub const FEATURE_EVENT_REMAP: u64 = 1 << 2;
/// So are `MADV_DONTNEED`, `MADV_FREE` and `MADV_REMOVE` (`UFFD_FEATURE_EVENT_REMOVE`).
pub const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
/// So is `munmap(2)` (`UFFD_FEATURE_EVENT_UNMAP`).
pub const FEATURE_EVENT_UNMAP: u64 = 1 << 6;
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

/// Faults of which mode a [`Userfault`] is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Those from user mode; a system call that touches a hole fails with `EFAULT`.
    User,
    /// Those from kernel mode too.
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

/// What a registered range is watched for. Pages can be moved into it either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Touching a hole waits until somebody fills it (`UFFDIO_REGISTER_MODE_MISSING`).
    Missing,
    /// Writes to pages that were write-protected one by one, which nobody does here: holes stay the kernel's to fill,
    /// nothing ever waits (`UFFDIO_REGISTER_MODE_WP`).
    Nothing,
}

/// What happened to the memory of the process, as `struct uffd_msg` tells it.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a hole, and waits.
    Fault {
        /// First byte of the page.
        address: VirtAddr,
        /// It was going to write.
        write: bool,
    },
    /// The process forked; the same ranges of the child are registered with `child`, until that is closed.
    Fork {
        /// The child's.
        child: Userfault,
    },
    /// `range` was moved so that it starts at `to`.
    Remap {
        /// Where it was.
        range: VirtRange,
        /// Where it starts now.
        to: VirtAddr,
    },
    /// The pages of the range are being given up; the thread does it *after* this was read.
    Remove(VirtRange),
    /// The range was unmapped.
    Unmap(VirtRange),
}

/// How far a call came before its error, if there was one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    /// Bytes from the beginning of the range. After an error of `UFFDIO_MOVE` there may be more (see
    /// [`Userfault::move_range`]).
    pub bytes: ByteCount,
    /// Why it did not go on.
    pub error: Option<Errno>,
}

impl Transferred {
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

    /// All or nothing.
    ///
    /// # Errors
    /// The error that it ended with.
    pub fn into_result(self) -> Result<(), Errno> {
        self.error.map_or(Ok(()), Err)
    }
}

/// An open userfaultfd for the memory of a process; closing it unregisters all its ranges, wakes whoever waits on them
/// and lets go whoever waits for an event to be read.
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
    /// `userfaultfd(2)`.
    ///
    /// # Errors
    /// `EPERM` for [`Faults::All`] without `CAP_SYS_PTRACE` unless `vm.unprivileged_userfaultfd` is
    /// 1, or from a seccomp filter; `ENOSYS`; `EINVAL` for [`Faults::User`] before Linux 5.11.
    pub fn open(faults: Faults) -> Result<Self, Errno> {
        // SAFETY: what the descriptor can do to memory is guarded by the functions below.
        unsafe { userfaultfd(faults.flags()) }.map(Self)
    }

    /// `ioctl(USERFAULTFD_IOC_NEW)` on an open `/dev/userfaultfd`, where the right to open the file
    /// stands for the right to be told of kernel faults (Linux 6.1).
    ///
    /// # Errors
    /// `ENOTTY` when it is another file.
    pub fn open_by_device(device: impl AsFd, faults: Faults) -> Result<Self, Errno> {
        // SAFETY: see `New`.
        let fd = unsafe { ioctl(device, New(faults.flags().bits())) }?;
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Opens one that is told of all faults, whichever way this process may.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), if the device does not help either.
    pub fn open_full() -> Result<Self, Errno> {
        Self::open(Faults::All).or_else(|refused| {
            let flags = OFlags::RDWR | OFlags::CLOEXEC;
            rustix::fs::open(c"/dev/userfaultfd", flags, rustix::fs::Mode::empty())
                .and_then(|device| Self::open_by_device(device, Faults::All))
                .map_err(|_| refused)
        })
    }

    /// `UFFDIO_API`, which must come first: agrees on no optional feature and returns those that
    /// the kernel has, as bits whose names are [`FEATURES`].
    ///
    /// # Errors
    /// `EINVAL` when done before.
    pub fn handshake(&self) -> Result<u64, Errno> {
        self.handshake_with(0)
    }

    /// `UFFDIO_API`, agreeing on these features.
    ///
    /// # Errors
    /// `EINVAL` when done before, or for a feature the kernel lacks; `EPERM` for [`FEATURE_EVENT_FORK`] without
    /// `CAP_SYS_PTRACE`. Another attempt needs another descriptor.
    pub fn handshake_with(&self, features: u64) -> Result<u64, Errno> {
        let mut api = Api {
            api: abi::UFFD_API,
            features,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_api`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_API }, _>(&mut api) }?;
        Ok(api.features)
    }

    /// `UFFDIO_REGISTER`: watches a range of whole pages of this process, and lets pages be moved into it.
    ///
    /// Splits mappings that lie in it partly, until it is unregistered. In [`Mode::Missing`] a thread that touches a
    /// hole waits for whoever reads the events: who does that must not touch one himself.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has a part of it; `EINVAL` if nothing is mapped there, or something that cannot be
    /// watched (a device, private file pages); `EPERM` if it may never be written; `ENOMEM` past the limit on mappings.
    pub fn register(&self, range: VirtRange, mode: Mode) -> Result<(), Errno> {
        let mut register = Register {
            range: range.into(),
            mode: match mode {
                Mode::Missing => 1,
                Mode::Nothing => 2,
            },
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_register`, whose layout is asserted. No byte of the range
        // changes.
        unsafe { self.update::<{ abi::UFFDIO_REGISTER }, _>(&mut register) }
    }

    /// `UFFDIO_UNREGISTER`: holes of the range are the kernel's to fill again; wakes who waits.
    ///
    /// # Errors
    /// `EINVAL` when nothing there can be registered.
    pub fn unregister(&self, range: VirtRange) -> Result<(), Errno> {
        let mut range = Range::from(range);
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_UNREGISTER }, _>(&mut range) }
    }

    /// `UFFDIO_WAKE`: whoever waits on the range looks again.
    ///
    /// # Errors
    /// `EINVAL` for a range outside user space.
    pub fn wake(&self, range: VirtRange) -> Result<(), Errno> {
        let mut range = Range::from(range);
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted.
        unsafe { self.update::<{ abi::UFFDIO_WAKE }, _>(&mut range) }
    }

    /// `UFFDIO_ZEROPAGE`: fills holes of the range with the shared page of zeroes, and wakes who waits. Any hole reads as
    /// zeroes, so that nobody can tell.
    ///
    /// # Errors
    /// `EEXIST` where there is no hole; `ENOENT` when the range is not registered; `EAGAIN` while mappings change.
    pub fn zero(&self, range: VirtRange) -> Result<(), Errno> {
        let mut zero = ZeroPage {
            range: range.into(),
            mode: 0,
            done: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_zeropage`, whose layout is asserted; it fills holes alone.
        unsafe { self.update::<{ abi::UFFDIO_ZEROPAGE }, _>(&mut zero) }
    }

    /// `UFFDIO_COPY`: fills holes of the descriptor's process from memory of the calling one; wakes who waits. Works
    /// whatever the protection of the holes is.
    ///
    /// # Errors
    /// `EEXIST` where there is no hole; `ENOENT` when it is not registered; `EAGAIN` while mappings change (an event
    /// waits to be read) or after a part; `ENOMEM`; `ESRCH` when the process is gone; `EFAULT` if the source cannot be
    /// read.
    ///
    /// # Safety
    /// The bytes that the holes stand for are these.
    pub unsafe fn copy_range(
        &self,
        to: VirtAddr,
        from: VirtAddr,
        length: ByteCount,
    ) -> Transferred {
        let mut transfer = transfer(to, from, length);
        // SAFETY: the caller vouches for the bytes; the layout is asserted.
        let result = unsafe { self.update::<{ abi::UFFDIO_COPY }, _>(&mut transfer) };
        Transferred::new(result, transfer.done, length)
    }

    /// `UFFDIO_MOVE`: moves page frames of the calling process to holes of the same process, leaving holes; wakes who waits
    /// (Linux 6.8).
    ///
    /// Its errors are not to be believed. Linux 6.18 repeats a step that met `EAGAIN` without forgetting that error, so that
    /// it does the step once more after having done it, and says `EEXIST`: pages past [`Transferred::bytes`] are moved
    /// then, and who waits for them is not woken. Look at both ends (pagemap), and wake.
    ///
    /// # Errors
    /// `EEXIST` where there is no hole; `ENOENT` for a hole in the source, or nothing mapped; `EBUSY` for a page
    /// that is shared since a fork, or pinned; `EINVAL` if the two mappings differ in protection or locking, are not
    /// private anonymous, not writable, or the destination is not registered; `EAGAIN` while mappings change
    /// (an event waits to be read) or after a part.
    ///
    /// # Safety
    /// The bytes that the holes stand for are those of the source, and nobody else counts on the source.
    pub unsafe fn move_range(
        &self,
        to: VirtAddr,
        from: VirtAddr,
        length: ByteCount,
    ) -> Transferred {
        let mut transfer = transfer(to, from, length);
        // SAFETY: the caller vouches for the bytes; the layout is asserted.
        let result = unsafe { self.update::<{ abi::UFFDIO_MOVE }, _>(&mut transfer) };
        Transferred::new(result, transfer.done, length)
    }

    /// The next event, if there is one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: there is no descriptor for a child, and the fork goes on waiting; `EPROTO` for an event that was
    /// not asked for; those of `read(2)`.
    pub fn next_event(&self) -> Result<Option<Event>, Errno> {
        let mut bytes = [0_u8; size_of::<Message>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let mut message = MaybeUninit::<Message>::uninit();
        // SAFETY: same size, and any bytes are a valid `Message`.
        let message = unsafe {
            message.as_mut_ptr().cast::<[u8; 32]>().write(bytes);
            message.assume_init()
        };
        let [first, second, third] = message.words;
        let range = |start, end| VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        };
        Ok(Some(match message.event {
            abi::UFFD_EVENT_PAGEFAULT => Event::Fault {
                address: VirtAddr(second & !0xfff),
                write: first & abi::UFFD_PAGEFAULT_FLAG_WRITE != 0,
            },
            abi::UFFD_EVENT_FORK => {
                // The first half of the word in memory.
                let [a, b, c, d, ..] = first.to_ne_bytes();
                // SAFETY: the kernel made this descriptor for us when the event was read.
                let child = unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes([a, b, c, d])) };
                Event::Fork { child: Self(child) }
            }
            abi::UFFD_EVENT_REMAP => Event::Remap {
                range: range(first, first.saturating_add(third)),
                to: VirtAddr(second),
            },
            abi::UFFD_EVENT_REMOVE => Event::Remove(range(first, second)),
            abi::UFFD_EVENT_UNMAP => Event::Unmap(range(first, second)),
            _ => return Err(Errno::PROTO),
        }))
    }

    /// # Safety
    /// `argument` must be what the request takes, and what the request does to other memory must be sound.
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
        for (bit, name) in [
            (FEATURE_EVENT_FORK, "EVENT_FORK"),
            (FEATURE_EVENT_REMAP, "EVENT_REMAP"),
            (FEATURE_EVENT_REMOVE, "EVENT_REMOVE"),
            (FEATURE_EVENT_UNMAP, "EVENT_UNMAP"),
            (FEATURE_MOVE, "MOVE"),
        ] {
            assert_eq!(FEATURES[bit.trailing_zeros() as usize], name);
        }
    }

    #[test]
    fn a_negative_count_is_nothing_done() {
        let failed = Transferred::new(Err(Errno::BUSY), -16, ByteCount(8192));
        assert_eq!(failed.bytes, ByteCount(0));
        assert_eq!(failed.into_result(), Err(Errno::BUSY));
    }
}
