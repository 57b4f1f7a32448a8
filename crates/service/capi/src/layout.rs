//! The structures of `include/hps.h`. The tests compile that header and compare.

use std::ffi::c_char;

pub use superhue_client::Page as HpsPage;

/// `struct hps_options`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HpsOptions {
    pub size: usize,
    pub socket: *const c_char,
    pub threshold: u64,
    pub signo: i32,
    pub min_heat: u32,
    pub pid: u32,
    pub timeout_ms: i32,
}

/// `struct hps_region`.
#[repr(C)]
pub struct HpsRegion {
    pub size: usize,
    pub address: u64,
    pub pages: *const HpsPage,
    pub count: usize,
    pub heat: u32,
    pub flags: u32,
    pub suggestion: i32,
    pub reserved: u32,
}

/// `struct hps_outcome`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HpsOutcome {
    pub size: usize,
    pub regions: usize,
    pub collapsed: usize,
    pub failed: usize,
    pub compacted: usize,
    pub left: usize,
}

/// `struct hps_statistics`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HpsStatistics {
    pub size: usize,
    pub published: u64,
    pub superseded: u64,
    pub active: u64,
    pub cut: u64,
}

pub const HPS_LEAVE: i32 = 0;
pub const HPS_COLLAPSE: i32 = 1;
pub const HPS_COMPACT: i32 = 2;

const _: () = assert!(size_of::<HpsPage>() == 16);
const _: () = assert!(size_of::<HpsOptions>() == 40);
const _: () = assert!(size_of::<HpsRegion>() == 48);
const _: () = assert!(size_of::<HpsOutcome>() == 48);
const _: () = assert!(size_of::<HpsStatistics>() == 40);

/// A structure that begins with its size, as its caller knows it.
pub trait VersionedLayout: Copy {
    /// The size of the first version.
    const OLDEST: usize;
}

impl VersionedLayout for HpsOptions {
    const OLDEST: usize = 40;
}
impl VersionedLayout for HpsOutcome {
    const OLDEST: usize = 48;
}
impl VersionedLayout for HpsStatistics {
    const OLDEST: usize = 40;
}

/// Copies a structure from a caller, whose header may be older or newer than this library. Fields
/// that an older caller does not know stay as in `value`; the further fields of a newer caller must
/// be zero. Returns `None` if they are not, or if the size is out of range.
///
/// # Safety
/// `from` is readable for the size in its first word.
pub unsafe fn copy_in<T: VersionedLayout>(from: *const T, mut value: T) -> Option<T> {
    // SAFETY: the caller's promise; the size is the first member of every such structure.
    let size = unsafe { from.cast::<usize>().read_unaligned() };
    if size < T::OLDEST || size > 4096 {
        return None;
    }
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are within both.
    unsafe {
        std::ptr::copy_nonoverlapping(from.cast::<u8>(), (&raw mut value).cast(), known);
        let more = from.cast::<u8>().wrapping_add(known);
        let unknown = std::slice::from_raw_parts(more, size - known);
        unknown.iter().all(|&byte| byte == 0).then_some(value)
    }
}

/// Returns false if a caller's structure is smaller than its first version. A caller that wants no structure passes null.
///
/// # Safety
/// `to` is null, or readable for a word.
pub unsafe fn has_valid_size<T: VersionedLayout>(to: *const T) -> bool {
    // SAFETY: the caller's promise.
    to.is_null() || unsafe { to.cast::<usize>().read_unaligned() } >= T::OLDEST
}

/// Copies a structure to a caller: as many bytes as its size covers. The size stays as the caller
/// set it. Returns `None` if the size is less than that of the first version.
///
/// # Safety
/// `to` is writable for the size in its first word.
pub unsafe fn copy_out<T: VersionedLayout>(to: *mut T, value: &T) -> Option<()> {
    // SAFETY: the caller's promise.
    let size = unsafe { to.cast::<usize>().read_unaligned() };
    if size < T::OLDEST {
        return None;
    }
    let skip = size_of::<usize>();
    let known = size.min(size_of::<T>());
    // SAFETY: `known` bytes are within both.
    unsafe {
        std::ptr::copy_nonoverlapping(
            std::ptr::from_ref(value).cast::<u8>().add(skip),
            to.cast::<u8>().add(skip),
            known - skip,
        );
    }
    Some(())
}
