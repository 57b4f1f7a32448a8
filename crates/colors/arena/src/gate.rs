//! No fork while anything is under way here.
//!
//! A child of `fork` gets one thread and a copy of everything else as it is in that moment: of a lock that another
//! thread holds, which then nobody ever opens, and, while a page is being moved, of the hole in its place, which reads as
//! zeroes. So whoever works here is counted, and a fork waits until nobody does; who comes meanwhile waits for the fork.
//! The same is done by the C library's `malloc`.
//!
//! One word: how many work, in its lower half, and how many forks wait or happen, in its upper one.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::thread::futex;

const FORK: u32 = 1 << 16;

static STATE: AtomicU32 = AtomicU32::new(0);

/// As long as it lives, no fork of the C library happens.
#[derive(Debug)]
pub struct Inside(());

/// Has forks wait from now on.
///
/// # Errors
/// `ENOMEM`.
pub fn install() -> Result<(), Errno> {
    static INSTALLED: OnceLock<Result<(), Errno>> = OnceLock::new();
    *INSTALLED.get_or_init(|| {
        // SAFETY: all three use one atomic and its futex alone.
        unsafe { superhue_sys::atfork::at_fork(prepare, parent, child) }
    })
}

/// Waits for a fork that happens, then keeps others from happening. Must not be called by who is inside: a fork that
/// begins to wait between the two would wait for ever.
pub fn enter() -> Inside {
    let mut now = STATE.load(Ordering::Relaxed);
    loop {
        if now >= FORK {
            wait_while(now);
            now = STATE.load(Ordering::Relaxed);
            continue;
        }
        let entered =
            STATE.compare_exchange_weak(now, now + 1, Ordering::Acquire, Ordering::Relaxed);
        match entered {
            Ok(_) => return Inside(()),
            Err(other) => now = other,
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if STATE.fetch_sub(1, Ordering::Release) > FORK {
            wake_all();
        }
    }
}

extern "C" fn prepare() {
    let mut now = STATE.fetch_add(FORK, Ordering::Acquire) + FORK;
    while !now.is_multiple_of(FORK) {
        wait_while(now);
        now = STATE.load(Ordering::Acquire);
    }
}

extern "C" fn parent() {
    STATE.fetch_sub(FORK, Ordering::Release);
    wake_all();
}

/// Only the thread that forked is here.
extern "C" fn child() {
    STATE.store(0, Ordering::Release);
}

fn wait_while(value: u32) {
    // Whatever it returns (changed already, a signal), the caller looks again.
    let _ = futex::wait(&STATE, futex::Flags::PRIVATE, value, None);
}

fn wake_all() {
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, i32::MAX as u32);
}
