//! Threads that come and go, on stacks whose pages are exchanged.

use std::sync::atomic::Ordering::Relaxed;

use super::Shared;
use crate::support::{Memory, PAGE};

const STACK: usize = 16;
const STACKS: usize = 4;
pub const PAGES: usize = STACK * STACKS;

extern "C" fn work(argument: *mut libc::c_void) -> *mut libc::c_void {
    // Some pages of stack, whose bytes must still be there afterwards.
    let mut local = [0_u64; 3 * PAGE / 8];
    for (index, word) in local.iter_mut().enumerate() {
        *word = index as u64 ^ argument as u64;
    }
    std::thread::yield_now();
    let local = std::hint::black_box(local);
    let wrong = (local.iter().enumerate())
        .filter(|(index, word)| **word != *index as u64 ^ argument as u64)
        .count();
    wrong as *mut libc::c_void
}

pub fn start_and_join(shared: &Shared, memory: &Memory) {
    while shared.goes_on() {
        let mut threads = [0; STACKS];
        let Ok(starting) = shared.starting.lock() else {
            return;
        };
        for (index, thread) in threads.iter_mut().enumerate() {
            // SAFETY: each thread has a stack of its own, until it has been joined; it uses nothing else.
            unsafe {
                let mut attributes = std::mem::zeroed();
                libc::pthread_attr_init(&raw mut attributes);
                let stack = memory.page(index * STACK) as *mut _;
                shared.expect(
                    libc::pthread_attr_setstack(&raw mut attributes, stack, STACK * PAGE) == 0,
                );
                let argument = (index * 1000) as *mut _;
                shared.expect(
                    libc::pthread_create(thread, &raw const attributes, work, argument) == 0,
                );
                libc::pthread_attr_destroy(&raw mut attributes);
            }
        }
        drop(starting);
        for thread in threads {
            let mut wrong = std::ptr::null_mut();
            // SAFETY: a thread that was started above and is joined once.
            shared.expect(unsafe { libc::pthread_join(thread, &raw mut wrong) } == 0);
            shared.tally.corrupted.fetch_add(wrong as u64 * 8, Relaxed);
            shared.tally.threads.fetch_add(1, Relaxed);
        }
        // Pages are not moved while the lock is held.
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}
