//! `linux/userfaultfd.h`: layouts and request numbers.

use std::mem::size_of;

use rustix::ioctl::Opcode;
use superhue_model::VirtRange;

/// Version of the interface, an argument of `UFFDIO_API`.
pub const UFFD_API: u64 = 0xaa;
/// Flag of `userfaultfd(2)`: the descriptor receives no faults of the kernel (Linux 5.11).
pub const UFFD_USER_MODE_ONLY: u32 = 1;
/// Mode of `UFFDIO_REGISTER`: the descriptor receives faults of writes to write-protected pages.
pub const MODE_WP: u64 = 2;

/// `struct uffdio_api`.
#[repr(C)]
pub(super) struct Api {
    pub(super) api: u64,
    pub(super) features: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) len: u64,
}

impl From<VirtRange> for Range {
    fn from(range: VirtRange) -> Self {
        Self {
            start: range.start.0,
            len: range.len().0,
        }
    }
}

/// `struct uffdio_register`.
#[repr(C)]
pub(super) struct Register {
    pub(super) range: Range,
    pub(super) mode: u64,
    pub(super) ioctls: u64,
}

/// `struct uffdio_move`.
#[repr(C)]
pub(super) struct Transfer {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) mode: u64,
    pub(super) done: i64,
}

const _: () = assert!(size_of::<Api>() == 24);
const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<Register>() == 32);
const _: () = assert!(size_of::<Transfer>() == 40);

const READ: Opcode = 2;
const WRITE: Opcode = 1;

/// `_IOC(direction, 0xaa, number, size)`.
#[allow(
    clippy::cast_possible_truncation,
    reason = "the layouts above have less than 64 bytes"
)]
const fn request(direction: Opcode, number: Opcode, size: usize) -> Opcode {
    (direction << 30) | ((size as Opcode) << 16) | (0xaa << 8) | number
}

/// Handshake about features; takes `struct uffdio_api`.
pub const UFFDIO_API: Opcode = request(READ | WRITE, 0x3f, size_of::<Api>());
/// Watches a range; takes `struct uffdio_register`.
pub const UFFDIO_REGISTER: Opcode = request(READ | WRITE, 0x00, size_of::<Register>());
pub(super) const UFFDIO_UNREGISTER: Opcode = request(READ, 0x01, size_of::<Range>());
pub(super) const UFFDIO_MOVE: Opcode = request(READ | WRITE, 0x05, size_of::<Transfer>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_header() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_MOVE, 0xc028_aa05);
    }
}
