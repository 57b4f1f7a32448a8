//! Placing this process's memory by page colors, by a thread of our own.
//!
//! ```text
//!   begin      the thread starts on its own stack, with a table of descriptors of its own, which it empties at once:
//!              what the program closes, or counts on being closed, is not its own then
//!   run        looks for new memory, registers it, answers page faults, moves what was there before
//!   bell       how the program's threads, in the functions of libc we stand before, reach it
//! ```
//!
//! The child of a fork begins anew: it has none of the agent's memory (`MADV_DONTFORK`), and not the thread.

mod bell;
mod count;
mod known;
mod maps;
mod oracle;
mod run;
mod survey;
mod tools;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};

use superhue_mailbox::{Aside, ColorSlot};

pub(crate) use bell::{ending, mapped, step_aside};

use crate::heap::{self, HEAP};
use crate::raw::{self, Descriptors, Shared};

/// Bytes of the thread's stack; a guard page lies below.
const STACK: usize = 256 * 1024;
const GUARD: usize = 4096;

/// The mailbox, for the thread and for the child of a fork.
static MAILBOX: AtomicUsize = AtomicUsize::new(0);
/// The slot this process has.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// Nonzero once the thread has a table of descriptors without the program's.
static APART: AtomicU32 = AtomicU32::new(0);

/// Starts placing, here and in every child this process forks.
pub(crate) fn begin(mailbox: Shared) {
    let header: *const superhue_mailbox::Header = mailbox.header();
    MAILBOX.store(header as usize, Relaxed);
    start(mailbox);
    // SAFETY: registers a handler that makes system calls only.
    unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
}

fn start(mailbox: Shared) {
    let Some(own) = mailbox.claim_colors(raw::process_number()) else {
        return;
    };
    own.clear_states();
    own.aside.store(0, Relaxed);
    enter_name(own);
    if let Some(reason) = obstacle(mailbox) {
        own.aside.store(reason as u32, Relaxed);
        return;
    }
    SLOT.store(std::ptr::from_ref(own) as usize, Relaxed);
    let Some(top) = make_stack() else {
        own.aside.store(Aside::Memory as u32, Relaxed);
        return;
    };
    APART.store(0, Relaxed);
    let before = raw::set_signal_mask(u64::MAX);
    // SAFETY: a new stack for this thread alone; `run::run` calls no libc function that uses thread-local storage.
    let started =
        unsafe { raw::start_thread(top, Descriptors::Copied, Some(&bell::THREAD), run::run) };
    raw::set_signal_mask(before);
    if started < 0 {
        own.aside.store(Aside::Failed as u32, Relaxed);
        return;
    }
    // Until then it holds copies of the program's descriptors open.
    while APART.load(Acquire) == 0 {
        raw::futex_wait(APART.as_ptr(), 0, 1);
    }
}

/// What there is to keep from beginning at all.
fn obstacle(mailbox: Shared) -> Option<Aside> {
    const FILTERED: isize = 2;
    let get = libc::PR_GET_SECCOMP as usize;
    // SAFETY: asks for a number.
    let mode = unsafe { raw::syscall(libc::SYS_prctl, [get, 0, 0, 0, 0, 0]) };
    // In a container both run under the container's filter.
    let more = mode == FILTERED && run::seccomp_filters() > mailbox.color().filters.load(Relaxed);
    more.then_some(Aside::Seccomp)
}

fn enter_name(slot: &ColorSlot) {
    let mut name = [0_u64; 2];
    let get = libc::PR_GET_NAME as usize;
    let to = name.as_mut_ptr() as usize;
    // SAFETY: the kernel writes 16 bytes.
    unsafe { raw::syscall(libc::SYS_prctl, [get, to, 0, 0, 0, 0]) };
    for (word, text) in slot.name.iter().zip(name) {
        word.store(text, Relaxed);
    }
}

/// The upper end of a new stack; `None` without memory. Never given back: the thread ends on it.
fn make_stack() -> Option<usize> {
    let base = heap::map(STACK + GUARD);
    if base == 0 {
        return None;
    }
    // SAFETY: the lowest page of the mapping just made.
    unsafe { raw::syscall(libc::SYS_mprotect, [base, GUARD, 0, 0, 0, 0]) };
    Some(base + GUARD + STACK)
}

/// In the child of a fork the thread is gone, its memory too, and the slot is the parent's.
extern "C" fn after_fork() {
    bell::forget();
    HEAP.forget();
    let address = MAILBOX.load(Relaxed);
    if address != 0 {
        // SAFETY: the address of the header of the mailbox, which stays mapped across a fork.
        let mailbox = unsafe { Shared::at(address) };
        if mailbox.header().closing.load(Relaxed) == 0 {
            start(mailbox);
        }
    }
}

/// The mailbox, from the thread.
fn mailbox() -> Shared {
    // SAFETY: `begin` stored the address before the thread started.
    unsafe { Shared::at(MAILBOX.load(Relaxed)) }
}

/// The slot, from the thread.
fn slot() -> &'static ColorSlot {
    // SAFETY: `start` stored the address before it started the thread; the mailbox stays mapped.
    unsafe { &*(SLOT.load(Relaxed) as *const ColorSlot) }
}

/// Tells whoever started the thread that it has none of the program's descriptors any more.
fn is_apart() {
    APART.store(1, Release);
    raw::futex_wake(APART.as_ptr());
}
