//! Waiting for a lock, but not for ever.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How often somebody who waits looks again.
const AGAIN: Duration = Duration::from_millis(10);

/// Takes the lock of an open file; whether that came true within `patience`.
///
/// # Errors
/// Those of `flock(2)`.
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
