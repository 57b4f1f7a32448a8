//! The thread that collapses and splits this process's memory when Superhue asks.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use superhue_mailbox::{Advice, Operation, Slot};

use crate::raw::{self, Descriptors, Shared};

/// Bytes of the thread's stack; a guard page lies below.
const STACK: usize = 64 * 1024;
const GUARD: usize = 4096;

/// How long the thread sleeps before it looks whether Superhue still lives.
const PATIENCE_SECONDS: i64 = 30;

/// Top of the stack mapping; 0 before the first thread.
static STACK_TOP: AtomicUsize = AtomicUsize::new(0);
/// The claimed slot, for the thread to find.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// The mailbox, for the child of a fork to find.
static MAILBOX: AtomicUsize = AtomicUsize::new(0);

/// Claims a slot and starts the thread, here and in every child this process forks.
pub(crate) fn begin(mailbox: Shared) {
    let header: *const superhue_mailbox::Header = mailbox.header();
    MAILBOX.store(header as usize, Relaxed);
    if !make_stack() || !start(mailbox) {
        return;
    }
    // SAFETY: registers a handler that makes system calls only.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
}

fn make_stack() -> bool {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
    // SAFETY: new memory at an address of the kernel's choice.
    let base = unsafe { raw::map(STACK + GUARD, libc::PROT_READ | libc::PROT_WRITE, flags, -1) };
    let Ok(base) = usize::try_from(base) else {
        return false;
    };
    // SAFETY: the lowest page of the mapping just made.
    unsafe { raw::syscall(libc::SYS_mprotect, [base, GUARD, 0, 0, 0, 0]) };
    STACK_TOP.store(base + GUARD + STACK, Relaxed);
    true
}

fn start(mailbox: Shared) -> bool {
    let Some(slot) = mailbox.claim(raw::process_number()) else {
        return false;
    };
    // Whatever was asked of a former program in this process (before an exec) is void.
    slot.answered.store(slot.asked.load(Acquire), Release);
    SLOT.store(std::ptr::from_ref(slot) as usize, Relaxed);
    let before = raw::set_signal_mask(u64::MAX);
    // SAFETY: the stack is ours, aligned, and used by this one thread: a second one is started only
    // in the child of a fork, which has its own copy. `run` calls no libc function.
    let started =
        unsafe { raw::start_thread(STACK_TOP.load(Relaxed), Descriptors::Shared, None, run) };
    raw::set_signal_mask(before);
    if started < 0 {
        slot.owner.store(0, Release);
    }
    started >= 0
}

/// In the child of a fork the thread is gone, and the slot is the parent's.
extern "C" fn after_fork() {
    let address = MAILBOX.load(Relaxed);
    if address != 0 {
        // SAFETY: the address of the header of the mailbox, which stays mapped across a fork.
        let mailbox = unsafe { Shared::at(address) };
        if mailbox.header().closing.load(Relaxed) == 0 {
            start(mailbox);
        }
    }
}

/// The thread.
extern "C" fn run() -> ! {
    // SAFETY: `start` stored the slot's address before it started this thread.
    let slot: &'static Slot = unsafe { &*(SLOT.load(Relaxed) as *const Slot) };
    // SAFETY: `begin` stored the mailbox's address before.
    let header = unsafe { Shared::at(MAILBOX.load(Relaxed)) }.header();
    let mut heartbeat = header.heartbeat.load(Relaxed);
    loop {
        let answered = slot.answered.load(Relaxed);
        if slot.asked.load(Acquire) == answered {
            raw::futex_wait(slot.asked.as_ptr(), answered, PATIENCE_SECONDS);
            if slot.asked.load(Acquire) == answered {
                // A signal cannot have woken us, so the time is over or somebody calls it a day.
                let now = header.heartbeat.load(Relaxed);
                if now == heartbeat || header.closing.load(Relaxed) != 0 {
                    break;
                }
                heartbeat = now;
            }
            continue;
        }
        let asked = slot.asked.load(Acquire);
        let done = match Operation::of_number(slot.operation.load(Relaxed)) {
            Some(operation) => perform(operation, slot.region.load(Relaxed)),
            None => libc::ENOSYS,
        };
        slot.result.store(done, Relaxed);
        slot.answered.store(asked, Release);
        raw::futex_wake(slot.answered.as_ptr());
    }
    slot.owner.store(0, Release);
    raw::end_thread()
}

/// Does something to the numbered region; 0 or the errno.
fn perform(operation: Operation, region: u64) -> i32 {
    const SIZE: usize = 2 << 20;
    let Advice {
        offset,
        length,
        advice,
    } = operation.advice();
    let Some(address) = usize::try_from(region)
        .ok()
        .and_then(|n| n.checked_mul(SIZE))
        .map(|start| start + offset)
    else {
        return libc::EINVAL;
    };
    // SAFETY: both operations change how the bytes of the region are mapped, never the bytes,
    // whatever they belong to; an unmapped address is an error.
    let done = unsafe {
        let advice = usize::try_from(advice).unwrap_or(0);
        raw::syscall(libc::SYS_madvise, [address, length, advice, 0, 0, 0])
    };
    i32::try_from(-done).unwrap_or(libc::EINVAL)
}
