//! `userfaultfd(2)`: page faults of a range as events, holes filled and pages moved atomically.
//!
//! See `userfaultfd(2)`, `ioctl_userfaultfd(2)` and `linux/userfaultfd.h`. Two kinds exist: one
//! that is told of faults from user mode only (open to everybody) and one that is also told of
//! faults from kernel mode, when a system call touches the range (a privilege).

use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use superhue_model::{VirtAddr, VirtRange};

use crate::pagemap::last_errno;
use crate::scratch::Scratch;

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

const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: libc::c_int = 1;
const UFFD_EVENT_PAGEFAULT: u8 = 0x12;
const REGISTER_MODE_MISSING: u64 = 1;

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy` and `struct uffdio_move`, which are laid out alike.
#[repr(C)]
struct Transfer {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    done: i64,
}

/// `struct uffd_msg` with its page fault member.
#[repr(C)]
struct Message {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    thread: u64,
}

const _: () = assert!(size_of::<Api>() == 24);
const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<Register>() == 32);
const _: () = assert!(size_of::<Transfer>() == 40);
const _: () = assert!(size_of::<Message>() == 32);

const READ: libc::c_ulong = 2;
const WRITE: libc::c_ulong = 1;

/// `_IOC(direction, 0xaa, number, size)`.
const fn request(direction: libc::c_ulong, number: libc::c_ulong, size: usize) -> libc::c_ulong {
    (direction << 30) | ((size as libc::c_ulong) << 16) | (0xaa << 8) | number
}

const UFFDIO_API: libc::c_ulong = request(READ | WRITE, 0x3f, size_of::<Api>());
const UFFDIO_REGISTER: libc::c_ulong = request(READ | WRITE, 0x00, size_of::<Register>());
const UFFDIO_UNREGISTER: libc::c_ulong = request(READ, 0x01, size_of::<Range>());
const UFFDIO_COPY: libc::c_ulong = request(READ | WRITE, 0x03, size_of::<Transfer>());
const UFFDIO_MOVE: libc::c_ulong = request(READ | WRITE, 0x05, size_of::<Transfer>());
const USERFAULTFD_IOC_NEW: libc::c_ulong = request(0, 0x00, 0);

/// Faults of which mode a [`Userfault`] is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Faults {
    /// Those from user mode; a system call that touches a hole fails with `EFAULT`.
    User,
    /// Those from kernel mode too.
    All,
}

impl Faults {
    const fn flags(self) -> libc::c_int {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
        match self {
            Self::User => flags | UFFD_USER_MODE_ONLY,
            Self::All => flags,
        }
    }
}

/// An open userfaultfd for the calling process's memory; closing it unregisters all its ranges and
/// wakes whoever waits on them.
#[derive(Debug)]
pub struct Userfault(OwnedFd);

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Userfault {
    /// `userfaultfd(2)`.
    ///
    /// # Errors
    /// `EPERM` for [`Faults::All`] without `CAP_SYS_PTRACE` unless `vm.unprivileged_userfaultfd` is
    /// 1, or from a seccomp filter; `ENOSYS`; `EINVAL` for [`Faults::User`] before Linux 5.11.
    pub fn open(faults: Faults) -> Result<Self, Errno> {
        // SAFETY: takes flags alone.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, faults.flags()) };
        Self::adopt(fd)
    }

    /// `ioctl(USERFAULTFD_IOC_NEW)` on an open `/dev/userfaultfd`, where the right to open the file
    /// stands for the right to be told of kernel faults (Linux 6.1).
    ///
    /// # Errors
    /// `ENOTTY` when it is another file.
    pub fn open_by_device(device: impl AsFd, faults: Faults) -> Result<Self, Errno> {
        let device = device.as_fd().as_raw_fd();
        // SAFETY: the request takes flags alone and touches no memory of the caller.
        let fd = unsafe { libc::ioctl(device, USERFAULTFD_IOC_NEW, faults.flags()) };
        Self::adopt(fd.into())
    }

    fn adopt(fd: libc::c_long) -> Result<Self, Errno> {
        if fd < 0 {
            return Err(last_errno());
        }
        let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
        // SAFETY: the kernel just gave us this descriptor.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// `UFFDIO_API`, which must come first: agrees on no optional feature and returns those that
    /// the kernel has, as bits whose names are [`FEATURES`].
    ///
    /// # Errors
    /// `EINVAL` when done before.
    pub fn handshake(&self) -> Result<u64, Errno> {
        let mut api = Api {
            api: UFFD_API,
            features: 0,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_api`, whose layout is asserted above.
        unsafe { self.ioctl(UFFDIO_API, &raw mut api) }?;
        Ok(api.features)
    }

    /// `UFFDIO_REGISTER` in missing mode: from now on, touching a hole of the scratch waits until
    /// somebody fills it.
    ///
    /// # Errors
    /// `EBUSY` when another userfaultfd has it.
    pub fn register_missing(&self, scratch: &Scratch) -> Result<(), Errno> {
        let mut register = Register {
            range: range(scratch.range()),
            mode: REGISTER_MODE_MISSING,
            ioctls: 0,
        };
        // SAFETY: the kernel reads and writes one `uffdio_register`, whose layout is asserted
        // above.
        unsafe { self.ioctl(UFFDIO_REGISTER, &raw mut register) }
    }

    /// `UFFDIO_UNREGISTER`: holes of the scratch are the kernel's to fill again; wakes who waits.
    ///
    /// # Errors
    /// `EINVAL` when it was not registered.
    pub fn unregister(&self, scratch: &Scratch) -> Result<(), Errno> {
        let mut range = range(scratch.range());
        // SAFETY: the kernel reads one `uffdio_range`, whose layout is asserted above.
        unsafe { self.ioctl(UFFDIO_UNREGISTER, &raw mut range) }
    }

    /// The page of the next fault that waits, if one does.
    ///
    /// # Errors
    /// `EPROTO` for an event other than a page fault; those of `read(2)`.
    pub fn next_fault(&self) -> Result<Option<VirtAddr>, Errno> {
        let mut bytes = [0_u8; size_of::<Message>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // SAFETY: same size, and any bytes are a valid `Message`.
        let message: Message = unsafe { std::mem::transmute::<[u8; 32], Message>(bytes) };
        if message.event != UFFD_EVENT_PAGEFAULT {
            return Err(Errno::PROTO);
        }
        Ok(Some(VirtAddr(message.address)))
    }

    /// `UFFDIO_COPY`: fills `hole`, which is one, with the bytes of `source`; wakes who waits.
    ///
    /// # Errors
    /// `EINVAL` when their lengths differ; `EEXIST` where there was no hole; `ENOENT` when the hole
    /// is not registered.
    pub fn copy(&self, hole: &Scratch, source: &Scratch) -> Result<(), Errno> {
        // SAFETY: both ranges are whole scratches, whose bytes are reached by volatile access only.
        unsafe { self.transfer(UFFDIO_COPY, hole, source) }
    }

    /// `UFFDIO_MOVE`: moves the page frames of `source` into `hole`, which is one, leaving holes;
    /// wakes who waits (Linux 6.8).
    ///
    /// # Errors
    /// As for [`copy`](Self::copy), and `EBUSY` when a page of the source is shared or pinned,
    /// `ENOTTY`/`EINVAL` where the kernel lacks it.
    pub fn move_pages(&self, hole: &Scratch, source: &mut Scratch) -> Result<(), Errno> {
        // SAFETY: both ranges are whole scratches, whose bytes are reached by volatile access only.
        unsafe { self.transfer(UFFDIO_MOVE, hole, source) }
    }

    /// # Safety
    /// `request` must be one that takes a [`Transfer`] and changes no other memory.
    unsafe fn transfer(
        &self,
        request: libc::c_ulong,
        hole: &Scratch,
        source: &Scratch,
    ) -> Result<(), Errno> {
        if hole.len() != source.len() {
            return Err(Errno::INVAL);
        }
        let mut transfer = Transfer {
            dst: hole.range().start.0,
            src: source.range().start.0,
            len: hole.len() as u64,
            mode: 0,
            done: 0,
        };
        // SAFETY: the caller vouches for the request; the layout is asserted above.
        unsafe { self.ioctl(request, &raw mut transfer) }
    }

    /// # Safety
    /// `argument` must be what `request` takes.
    unsafe fn ioctl<T>(&self, request: libc::c_ulong, argument: *mut T) -> Result<(), Errno> {
        // SAFETY: the caller vouches for it.
        let done = unsafe { libc::ioctl(self.0.as_raw_fd(), request, argument) };
        if done < 0 { Err(last_errno()) } else { Ok(()) }
    }
}

fn range(range: VirtRange) -> Range {
    Range {
        start: range.start.0,
        len: range.len().0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_header() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_COPY, 0xc028_aa03);
        assert_eq!(UFFDIO_MOVE, 0xc028_aa05);
        assert_eq!(USERFAULTFD_IOC_NEW, 0xaa00);
        assert_eq!(FEATURES[FEATURE_MOVE.trailing_zeros() as usize], "MOVE");
    }
}
