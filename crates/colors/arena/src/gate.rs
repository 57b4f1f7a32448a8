//! Keeps forks out while arena code runs.
//!
//! A child of `fork` gets one thread and a copy of the memory at that moment. If another thread holds a lock, the child's copy
//! stays locked for ever. If a page is being moved, the child sees the hole in its place, which reads as
//! zeroes. So the gate counts the threads inside, and a fork waits until the count is 0. Threads that arrive meanwhile wait for
//! the fork. The C library's `malloc` does the same.
//!
//! State is one word: the lower half counts threads inside, the upper half counts forks that wait or happen.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use rustix::thread::futex;

const FORK: u32 = 1 << 16;

static STATE: AtomicU32 = AtomicU32::new(0);

/// Number of forks between the program's first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// A process, for telling a child from its parent. The number alone does not: both may be process 1 of a PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessIdentity {
    pid: Pid,
    forks: u32,
}

impl ProcessIdentity {
    /// Returns that of this process.
    #[must_use]
    pub fn own() -> Self {
        Self {
            pid: getpid(),
            forks: FORKS.load(Ordering::Relaxed),
        }
    }
}

/// Guard: while it lives, the C library does not fork.
#[derive(Debug)]
pub struct ForkGuard(());

/// Makes forks wait from now on.
///
/// A fork calls the `prepare` handlers in reverse order, so those registered before this call run while the gate is closed. Such
/// a handler must not wait for a thread that allocates or frees: libsuperhue calls this when it is loaded.
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

/// Waits for a fork that happens, then keeps further forks from happening. A thread inside the gate must not call it: with a fork
/// that begins to wait between the two calls, both would wait for ever.
pub fn enter() -> ForkGuard {
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
            Ok(_) => return ForkGuard(()),
            Err(other) => now = other,
        }
    }
}

impl Drop for ForkGuard {
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

/// Resets the gate: only the forking thread exists in the child.
extern "C" fn child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    STATE.store(0, Ordering::Release);
}

fn wait_while(value: u32) {
    // The caller checks the word again, whatever the wait returned (changed already, a signal).
    let _ = futex::wait(&STATE, futex::Flags::PRIVATE, value, None);
}

fn wake_all() {
    let _ = futex::wake(&STATE, futex::Flags::PRIVATE, i32::MAX as u32);
}
