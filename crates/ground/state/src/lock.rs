//! Locks of files: bounded wait, and release.

use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Time between two tries to take a lock.
const AGAIN: Duration = Duration::from_millis(10);

/// Takes the lock of an open file. Returns false if another process still holds it after `patience`.
///
/// # Errors
/// Errors of `flock(2)`, other than `EWOULDBLOCK` and `EINTR`.
pub fn lock_within(file: impl AsFd, patience: Duration) -> Result<bool, Errno> {
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let rest = patience.saturating_sub(begun.elapsed());
        if rest.is_zero() {
            return Ok(false);
        }
        thread::sleep(rest.min(AGAIN));
    }
}

/// An open file that the caller has locked (`flock(2)`). Dropping it unlocks it. To close it would not do: a child that a thread has just forked has it
/// open until it executes its program.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Takes the file.
    #[must_use]
    pub const fn of(file: File) -> Self {
        Self(file)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}
