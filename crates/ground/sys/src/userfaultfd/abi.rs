//! `linux/userfaultfd.h`: layouts and request numbers.

use std::mem::size_of;

use rustix::ioctl::Opcode;
use superhue_model::VirtRange;

/// Version of the interface, an argument of `UFFDIO_API`.
pub const UFFD_API: u64 = 0xaa;
/// Flag of `userfaultfd(2)`: the descriptor receives no faults of the kernel (Linux 5.11).
pub const UFFD_USER_MODE_ONLY: u32 = 1;
/// Mode of `UFFDIO_REGISTER`: the descriptor receives faults on missing pages.
pub const MODE_MISSING: u64 = 1;
pub(super) const UFFD_EVENT_PAGEFAULT: u8 = 0x12;

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

/// `struct uffdio_copy` and `struct uffdio_move`, which have the same layout.
#[repr(C)]
pub(super) struct Transfer {
    pub(super) dst: u64,
    pub(super) src: u64,
    pub(super) len: u64,
    pub(super) mode: u64,
    pub(super) done: i64,
}

/// `struct uffd_msg`. The three words are those of its largest member; the event determines which of them are valid.
#[repr(C)]
pub(super) struct Message {
    pub(super) event: u8,
    reserved: [u8; 7],
    pub(super) words: [u64; 3],
}

const _: () = assert!(size_of::<Api>() == 24);
const _: () = assert!(size_of::<Range>() == 16);
const _: () = assert!(size_of::<Register>() == 32);
const _: () = assert!(size_of::<Transfer>() == 40);
const _: () = assert!(size_of::<Message>() == 32);

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
pub(super) const UFFDIO_WAKE: Opcode = request(READ, 0x02, size_of::<Range>());
pub(super) const UFFDIO_COPY: Opcode = request(READ | WRITE, 0x03, size_of::<Transfer>());
pub(super) const UFFDIO_MOVE: Opcode = request(READ | WRITE, 0x05, size_of::<Transfer>());
/// Makes a userfaultfd from `/dev/userfaultfd` (Linux 6.1); takes the flags of `userfaultfd(2)`.
pub const USERFAULTFD_IOC_NEW: Opcode = request(0, 0x00, 0);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_numbers_are_those_of_the_kernel_header() {
        assert_eq!(UFFDIO_API, 0xc018_aa3f);
        assert_eq!(UFFDIO_REGISTER, 0xc020_aa00);
        assert_eq!(UFFDIO_UNREGISTER, 0x8010_aa01);
        assert_eq!(UFFDIO_WAKE, 0x8010_aa02);
        assert_eq!(UFFDIO_COPY, 0xc028_aa03);
        assert_eq!(UFFDIO_MOVE, 0xc028_aa05);
        assert_eq!(USERFAULTFD_IOC_NEW, 0xaa00);
    }
}
