//! Layout of what the visitor and the code inside a program share: `inside/desk.h`.

use superhue_sys::scheduling;

/// The code, a flat image.
pub(crate) static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/inside.bin"));

/// Where things lie from the base of a visit's mapping, in bytes.
pub(crate) const HOME: u64 = 4096;
pub(crate) const DESK: u64 = 2 * 4096;
/// The desk, and the page behind it.
pub(crate) const SIZE: u64 = DESK + 25 * 4096;

/// What the code leaves behind when it goes home by itself: it cannot unmap itself.
pub(crate) const REMAINS: u64 = DESK;

/// `struct home`: general registers in the order of `inside/desk.h`, then `rip`, `rsp`, flags, the signal mask and
/// `struct sched_attr`.
pub(crate) const HOME_WORDS: usize = 19 + scheduling::WORDS;

/// Offsets into `struct desk`, in bytes.
pub(crate) const ASKED: u64 = 0;
pub(crate) const ORDER: u64 = 24;
pub(crate) const PAPER: u64 = 528;
/// Words of paper.
pub(crate) const PAPER_WORDS: usize = 8192;

/// Words from the start of the desk that tell how an order went: all before `kept`.
pub(crate) const ANSWER_WORDS: usize = 17;
/// Of these, which is which.
pub(crate) const AT_ANSWERED: usize = 1;
pub(crate) const AT_LEFT: usize = 2;
pub(crate) const AT_ARGUMENTS: usize = 4;
pub(crate) const AT_RESULT: usize = 12;
pub(crate) const AT_TICKS: usize = 13;
pub(crate) const AT_CPU: usize = 15;

/// `enum order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Order {
    Call = 1,
    Advise = 2,
    Trial = 3,
    Exchange = 4,
    Pair = 5,
    Fetch = 6,
    Deal = 7,
    Clear = 8,
    Look = 9,
}

/// `enum keep`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Keep {
    Nothing = 0,
    Descriptor = 1,
    Mapping = 2,
    DropDescriptor = 3,
}
