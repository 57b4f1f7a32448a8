//! The highest priority for a thread while it holds a lock of another process.
//!
//! A collapse holds `mmap_lock` of the process whose memory it changes, and so does every look at its page tables. On a busy machine the kernel
//! takes the CPU from the thread in the middle, for milliseconds, and the process waits for as long. With the highest priority the thread keeps
//! the CPU until the lock is free:
//!
//! ```text
//!   nice 0     lock ##|.. others run ..|##|.. others run ..|## unlock      the process waits for all of it
//!   nice -20   lock ###### unlock                                          and here for the work alone
//! ```
//!
//! See `setpriority(2)` and `sched(7)`. The priority counts within the control group of the thread (and its session, with `CONFIG_SCHED_AUTOGROUP`).

use rustix::process::{getpriority_process, setpriority_process};

/// The highest priority: a nice value of -20.
const HIGHEST: i32 = -20;

/// Guard: the calling thread has the highest priority, until it drops the guard.
///
/// Needs `CAP_SYS_NICE`, or `RLIMIT_NICE`; without, the thread keeps its priority.
#[derive(Debug)]
pub struct Urgent {
    /// Nice value before; `None` if it could not be changed.
    before: Option<i32>,
    /// Another thread has a priority of its own.
    _of_this_thread: std::marker::PhantomData<*const ()>,
}

impl Urgent {
    /// Raises the priority of the calling thread.
    #[must_use]
    pub fn begin() -> Self {
        // Of the calling thread: on Linux, each thread has its own.
        let before = getpriority_process(None).ok().filter(|&it| it > HIGHEST);
        Self {
            before: before.filter(|_| setpriority_process(None, HIGHEST).is_ok()),
            _of_this_thread: std::marker::PhantomData,
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // The kernel lets everybody lower their priority.
            let _ = setpriority_process(None, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_is_raised_and_put_back() {
        let before = getpriority_process(None).unwrap();
        let urgent = Urgent::begin();
        let during = getpriority_process(None).unwrap();
        assert_eq!(during, urgent.before.map_or(before, |_| HIGHEST));
        // Other threads keep theirs.
        let other = std::thread::spawn(|| getpriority_process(None).unwrap());
        // A thread inherits the priority of its maker.
        assert_eq!(other.join().unwrap(), during);
        drop(urgent);
        assert_eq!(getpriority_process(None).unwrap(), before);
        if during == before {
            superhue_testing::skip("CAP_SYS_NICE", "the priority cannot be raised here");
        }
    }
}
