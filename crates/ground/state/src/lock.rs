//! Bounded wait for a lock.

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
