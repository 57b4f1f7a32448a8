//! Children, made by the library and by the bare system call, that must find every page. So must their children.

use std::sync::atomic::Ordering::Relaxed;

use super::{Shared, line};
use crate::support::Memory;

/// The line that children look at.
const LINE: usize = line(6);

fn mark(page: usize) -> u64 {
    0xabcd_ef00_0000_0000 + page as u64
}

pub fn prepare(memory: &Memory) {
    for page in 0..memory.pages {
        memory.word(page, LINE).store(mark(page), Relaxed);
    }
}

pub fn fork(shared: &Shared, memory: &Memory) {
    let mut round = 0;
    while shared.goes_on() {
        round += 1;
        let child = if round % 2 == 0 {
            bare_fork()
        } else {
            library_fork()
        };
        if child == 0 {
            in_child(memory, round % 4 == 0);
        }
        shared.expect(child > 0);
        let failed = wait(child);
        shared.tally.corrupted.fetch_add(failed, Relaxed);
        shared.tally.forks.fetch_add(1, Relaxed);
        // Pages are shared after a fork, and do not move until they are written. Let that happen.
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// Looks, and ends with the number of wrong pages (250 at most).
fn in_child(memory: &Memory, has_child: bool) -> ! {
    let child = if has_child { bare_fork() } else { -1 };
    let wrong = (0..memory.pages)
        .filter(|page| memory.word(*page, LINE).load(Relaxed) != mark(*page))
        .count();
    let inherited = if child > 0 { wait(child) } else { 0 };
    let code = i32::try_from(inherited + wrong as u64)
        .unwrap_or(250)
        .min(250);
    // SAFETY: ends a child that has nothing to clean up.
    unsafe { libc::_exit(code) }
}

/// The code a child ended with; 1000 if it did not end by itself.
fn wait(child: i32) -> u64 {
    let mut status = 0;
    // SAFETY: waits for a child of our own.
    let waited = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
    if waited == child && libc::WIFEXITED(status) {
        u64::try_from(libc::WEXITSTATUS(status)).unwrap_or(1000)
    } else {
        1000
    }
}

fn library_fork() -> i32 {
    // SAFETY: the child reads memory and ends.
    unsafe { libc::fork() }
}

/// Past every handler that the library would call.
fn bare_fork() -> i32 {
    let flags = libc::SIGCHLD;
    // SAFETY: as above; no stack is given, so that it goes on with a copy of ours.
    let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
    i32::try_from(child).unwrap_or(-1)
}
