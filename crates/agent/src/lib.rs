//! The agent: what must be done from inside the process.
//!
//! Superhue preloads this library (`LD_PRELOAD`) only when something cannot be done from outside:
//!
//! * **serve**: an ordinary user may not collapse or split another process's memory, but a process
//!   may do so to its own. A thread waits for requests in a shared mailbox (`superhue-mailbox`).
//! * **advise**: under the system-wide mode `madvise`, the `always` policy needs every private
//!   anonymous mapping to ask for superpages when it is made;
//! * **color**: pages can be moved, and their colors measured, only from inside. A thread with descriptors and memory of
//!   its own does both (`color`).
//!
//! The program must not be able to tell. So:
//!
//! * the variables that brought the agent in are taken out of the environment before `main`, and put
//!   back, for the loader only, whenever the program executes another that can load the agent
//!   (never a static, setuid or foreign one);
//! * no descriptor stays open and no signal is handled; the thread is made by a bare `clone` that
//!   libc does not know of, blocks every signal, and touches neither `errno` nor the heap;
//! * whatever is not as expected makes the agent step aside: the program runs as without it.

#![allow(
    unsafe_code,
    reason = "lives inside a foreign C program: its interface is raw pointers throughout"
)]

mod advise;
mod color;
mod environment;
mod exec;
mod heap;
mod hooks;
mod raw;
mod serve;

use std::ffi::{c_char, c_int};

use superhue_mailbox::{WISH_ADVISE, WISH_COLOR, WISH_SERVE};

/// Run by the dynamic loader before `main`.
extern "C" fn begin(_argc: c_int, _argv: *const *const c_char, _envp: *const *const c_char) {
    exec::find_real_functions();
    let Some(ticket) = environment::take() else {
        return;
    };
    let Some(mailbox) = raw::Shared::open(ticket) else {
        return;
    };
    let wishes = mailbox.wishes();
    if wishes & WISH_ADVISE != 0 {
        advise::begin();
    }
    if wishes & WISH_COLOR != 0 {
        color::begin(mailbox);
    }
    if wishes & WISH_SERVE != 0 {
        serve::begin(mailbox);
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = begin;

/// Run by libc when the program returns from `main` or calls `exit`.
extern "C" fn end() {
    color::ending();
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;
