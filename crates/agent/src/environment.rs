//! Taking Superhue's variables out of the program's environment, and what to give its children.
//!
//! Superhue starts a program with (`+` marks what was added to the user's value, if any)
//!
//! ```text
//!   SUPERHUE_AGENT = TICKET
//!   LD_PRELOAD     = + AGENT : user's
//!   GLIBC_TUNABLES =   user's : + glibc.malloc.hugetlb=1      (policy `always` only)
//! ```
//!
//! The colon is there whenever the user has set the variable, be it to nothing.
//!
//! Before `main` these become the user's values again, so that a program that prints or compares
//! its environment finds what it would have found. What was added is kept for [`crate::exec`].

use std::cell::UnsafeCell;
use std::ffi::c_char;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{Acquire, Release};

use superhue_mailbox::{AGENT_FILE, HEAP_TUNABLE, TICKET_VARIABLE, Ticket};

use crate::raw::bytes_of;

pub(crate) const PRELOAD: &[u8] = b"LD_PRELOAD=";
pub(crate) const TUNABLES: &[u8] = b"GLIBC_TUNABLES=";

/// A text stored once, before `main`, and read ever after.
pub(crate) struct Kept {
    length: AtomicUsize,
    bytes: UnsafeCell<[u8; Self::CAPACITY]>,
}

// SAFETY: the bytes are written once, by the only thread there is before `main`, and read only
// after `length` was published with release ordering.
unsafe impl Sync for Kept {}

impl Kept {
    pub(crate) const CAPACITY: usize = 1024;

    const fn empty() -> Self {
        Self {
            length: AtomicUsize::new(0),
            bytes: UnsafeCell::new([0; Self::CAPACITY]),
        }
    }

    fn keep(&self, text: &[u8]) -> bool {
        if text.is_empty() || text.len() > Self::CAPACITY || self.length.load(Acquire) != 0 {
            return false;
        }
        // SAFETY: nobody reads before the length is published below.
        let bytes = unsafe { &mut *self.bytes.get() };
        bytes[..text.len()].copy_from_slice(text);
        self.length.store(text.len(), Release);
        true
    }

    /// The text; empty when none was kept.
    pub(crate) fn get(&self) -> &[u8] {
        let length = self.length.load(Acquire);
        // SAFETY: bytes below the published length never change again.
        unsafe { &(&*self.bytes.get())[..length] }
    }
}

/// `SUPERHUE_AGENT=TICKET`.
pub(crate) static TICKET: Kept = Kept::empty();
/// The agent's path.
pub(crate) static AGENT: Kept = Kept::empty();
/// [`HEAP_TUNABLE`], when Superhue set it.
pub(crate) static TUNABLE: Kept = Kept::empty();

unsafe extern "C" {
    static mut environ: *mut *mut c_char;
}

/// The environment array as the program sees it now.
pub(crate) fn current() -> *const *const c_char {
    // SAFETY: reads the pointer only; libc declares it so.
    unsafe { environ.cast_const().cast() }
}

/// Restores the user's environment; returns the ticket if Superhue started this program.
pub(crate) fn take() -> Option<Ticket> {
    // SAFETY: before `main` nobody else uses the environment.
    let entries = unsafe { environ };
    if entries.is_null() {
        return None;
    }
    let mut ticket = None;
    let mut to = 0;
    let mut from = 0;
    loop {
        // SAFETY: the array ends in a null pointer, at which this loop ends.
        let entry = unsafe { *entries.add(from) };
        from += 1;
        // SAFETY: entries are C strings, and nobody else changes them now.
        let Some(text) = (unsafe { bytes_of(entry) }) else {
            break;
        };
        let keep = match kind_of(text) {
            Kind::Ticket(value) => {
                let parsed = std::str::from_utf8(value)
                    .ok()
                    .and_then(|value| value.parse().ok());
                ticket = parsed.filter(|_| TICKET.keep(text));
                false
            }
            Kind::Preload(agent) => {
                AGENT.keep(agent);
                let rest = PRELOAD.len() + agent.len() + 1;
                // SAFETY: `entry` is this very string; the rest moves towards its front.
                unsafe { move_value(entry, PRELOAD.len(), text, rest) }
            }
            Kind::Tunables(users) => {
                TUNABLE.keep(HEAP_TUNABLE.as_bytes());
                // SAFETY: shortens the string in place.
                unsafe { *entry.add(TUNABLES.len() + users.unwrap_or(0)) = 0 };
                users.is_some()
            }
            Kind::Other => true,
        };
        if keep {
            // SAFETY: `to` never overtakes `from`.
            unsafe { *entries.add(to) = entry };
            to += 1;
        }
    }
    // SAFETY: at or before the old terminator.
    unsafe { *entries.add(to) = std::ptr::null_mut() };
    ticket
}

/// Moves what stands from `rest` on in `text` to `front`; whether the user had set the variable.
///
/// # Safety
/// `entry` is the C string whose bytes `text` are.
unsafe fn move_value(entry: *mut c_char, front: usize, text: &[u8], rest: usize) -> bool {
    let length = text.len().saturating_sub(rest);
    // SAFETY: both ranges lie in the string, whose terminator moves along.
    unsafe {
        std::ptr::copy(entry.add(rest.min(text.len())), entry.add(front), length);
        *entry.add(front + length) = 0;
    }
    text.len() >= rest
}

/// What an environment entry is to the agent.
enum Kind<'a> {
    /// The ticket's text.
    Ticket(&'a [u8]),
    /// `LD_PRELOAD` that begins with the agent's path, this one.
    Preload(&'a [u8]),
    /// `GLIBC_TUNABLES` with ours at the end; how many bytes of value are the user's, if it is set.
    Tunables(Option<usize>),
    /// The program's own affair.
    Other,
}

fn kind_of(entry: &[u8]) -> Kind<'_> {
    if let Some(value) = entry.strip_prefix(TICKET_VARIABLE.as_bytes())
        && let Some(value) = value.strip_prefix(b"=")
    {
        return Kind::Ticket(value);
    }
    if let Some(value) = entry.strip_prefix(PRELOAD) {
        let first = value.split(|&b| b == b':').next().unwrap_or(value);
        if first.ends_with(AGENT_FILE.as_bytes()) {
            return Kind::Preload(first);
        }
    }
    if let Some(value) = entry.strip_prefix(TUNABLES)
        && let Some(users) = value.strip_suffix(HEAP_TUNABLE.as_bytes())
    {
        return Kind::Tunables(users.strip_suffix(b":").map(<[u8]>::len));
    }
    Kind::Other
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_recognised() {
        assert!(matches!(
            kind_of(b"SUPERHUE_AGENT=1:2:3"),
            Kind::Ticket(b"1:2:3")
        ));
        assert!(matches!(kind_of(b"SUPERHUE_AGENTS=1"), Kind::Other));
        let agent = b"LD_PRELOAD=/x/libsuperhue_agent.so";
        assert!(matches!(
            kind_of(agent),
            Kind::Preload(b"/x/libsuperhue_agent.so")
        ));
        let both = b"LD_PRELOAD=/x/libsuperhue_agent.so:/y/z.so";
        assert!(matches!(
            kind_of(both),
            Kind::Preload(b"/x/libsuperhue_agent.so")
        ));
        assert!(matches!(kind_of(b"LD_PRELOAD=/y/z.so"), Kind::Other));
        assert!(matches!(
            kind_of(b"GLIBC_TUNABLES=glibc.malloc.hugetlb=1"),
            Kind::Tunables(None)
        ));
        assert!(matches!(
            kind_of(b"GLIBC_TUNABLES=a.b=1:glibc.malloc.hugetlb=1"),
            Kind::Tunables(Some(5))
        ));
        assert!(matches!(kind_of(b"GLIBC_TUNABLES=a.b=1"), Kind::Other));
    }

    #[test]
    fn the_users_value_moves_to_the_front() {
        let mut text = *b"LD_PRELOAD=agent:mine.so\0";
        let copy = *b"LD_PRELOAD=agent:mine.so";
        // SAFETY: a C string in a local array.
        let left = unsafe { move_value(text.as_mut_ptr().cast(), 11, &copy, 17) };
        assert!(left);
        assert!(text.starts_with(b"LD_PRELOAD=mine.so\0"));
        // SAFETY: as above.
        let left = unsafe { move_value(text.as_mut_ptr().cast(), 11, b"LD_PRELOAD=mine.so", 19) };
        assert!(!left);
        // SAFETY: as above.
        let left = unsafe { move_value(text.as_mut_ptr().cast(), 11, b"LD_PRELOAD=agent:", 17) };
        assert!(left);
        assert!(text.starts_with(b"LD_PRELOAD=\0"));
    }
}
