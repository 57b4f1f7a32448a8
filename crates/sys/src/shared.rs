//! Memory shared between processes, and waiting on a word of it.
//!
//! See `mmap(2)` and `futex(2)`.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A `T` in memory shared through a file, unmapped on drop.
///
/// `T` is a structure of atomics only: other processes change it at any time, to anything.
#[derive(Debug)]
pub struct SharedMapping<T: Sync> {
    address: NonNull<T>,
    _holds: PhantomData<T>,
}

// SAFETY: all access goes through `&T`, and `T` is `Sync`.
unsafe impl<T: Sync> Send for SharedMapping<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for SharedMapping<T> {}

impl SharedMapping<superhue_mailbox::Mailbox> {
    /// Maps the start of `file`, which must be at least as long as a mailbox.
    ///
    /// # Errors
    /// Those of `mmap(2)`.
    pub fn new(file: impl AsFd) -> Result<Self, Errno> {
        let size = superhue_mailbox::MAILBOX_SIZE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice. A mailbox consists of
        // atomics, for which any bytes are valid, and needs no more than page alignment.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                size,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )?
        };
        let address = NonNull::new(address.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self {
            address,
            _holds: PhantomData,
        })
    }
}

impl<T: Sync> SharedMapping<T> {
    /// The shared structure.
    #[must_use]
    pub const fn get(&self) -> &T {
        // SAFETY: mapped in `new` and until drop.
        unsafe { self.address.as_ref() }
    }
}

impl<T: Sync> Drop for SharedMapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; nobody can hold a reference any more.
        let _ = unsafe { munmap(self.address.as_ptr().cast::<c_void>(), size_of::<T>()) };
    }
}

/// Sleeps while `word` holds `value`, at most `timeout`; may return earlier.
pub fn futex_wait(word: &AtomicU32, value: u32, timeout: Duration) {
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(timeout.subsec_nanos()),
    };
    // SAFETY: the word and the timeout outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            value,
            &raw const timeout,
        )
    };
}

/// Wakes whoever sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}
