//! How a thread of the program asks the agent's thread for something, and waits until it is done.
//!
//! The agent's thread sleeps in `poll` on a descriptor that only it has, so nobody else can write to one. But
//! anybody can *touch memory*: the bell is a page with a userfaultfd of its own, and the hole in it is the button.
//!
//! ```text
//!   program's thread                      agent's thread
//!   ASKED += 1
//!   reads the page: a hole, so it waits   poll returns: sees to everything asked, DONE = ASKED
//!   goes on                          <--  fills the hole (which wakes), and makes a new one
//! ```
//!
//! Nothing here sets `errno`, takes a lock or allocates: it may run in a signal handler.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};

use superhue_mailbox::{Aside, ColorSlot};
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::{Faults, Mode, Userfault};

use crate::raw;

/// Address of the page; 0 while there is no bell.
static PAGE: AtomicUsize = AtomicUsize::new(0);
/// The process that the bell belongs to: not the child of a fork, nor one that shares memory until it executes.
static OWNER: AtomicU32 = AtomicU32::new(0);
static ASKED: AtomicU32 = AtomicU32::new(0);
static DONE: AtomicU32 = AtomicU32::new(0);
/// An [`Aside`] that is asked for, or 0.
static ASIDE: AtomicU32 = AtomicU32::new(0);
/// A mapping to be looked at, while `IN_USE`.
static IN_USE: AtomicBool = AtomicBool::new(false);
static START: AtomicUsize = AtomicUsize::new(0);
static LENGTH: AtomicUsize = AtomicUsize::new(0);
/// Mappings were made of which there was no room to tell.
static SCAN: AtomicBool = AtomicBool::new(false);
/// The program is about to end.
static LAST: AtomicBool = AtomicBool::new(false);
/// The process's slot: who looks on from outside declares the agent stuck there.
static SLOT: AtomicUsize = AtomicUsize::new(0);
/// The thread's number, cleared by the kernel once the thread has ended.
pub(super) static THREAD: AtomicU32 = AtomicU32::new(0);

/// What was asked.
#[derive(Debug, Default)]
pub(super) struct Asked {
    /// To stop, for this reason.
    pub(super) aside: Option<Aside>,
    /// To look at this range, which was just mapped.
    pub(super) mapped: Option<VirtRange>,
    /// To look at all mappings.
    pub(super) scan: bool,
    /// To count once more, for the program is about to end.
    pub(super) last: bool,
}

/// The agent's end.
#[derive(Debug)]
pub(super) struct Bell {
    button: Userfault,
    page: VirtRange,
}

impl Bell {
    /// Makes the bell; from now on it can be rung.
    pub(super) fn hang(slot: &'static ColorSlot) -> Option<Self> {
        let button = Userfault::open(Faults::User).ok()?;
        button.handshake().ok()?;
        let length = usize::try_from(BASE_PAGE_SIZE).ok()?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: new memory at an address of the kernel's choice.
        let address = unsafe { raw::map(length, libc::PROT_READ, flags, -1) };
        let address = usize::try_from(address).ok()?;
        raw::keep_from_forks(address, length);
        let start = VirtAddr(address as u64);
        let page = VirtRange::new(start, VirtAddr(start.0 + BASE_PAGE_SIZE))?;
        button.register(page, Mode::Missing).ok()?;
        SLOT.store(std::ptr::from_ref(slot) as usize, Relaxed);
        OWNER.store(raw::process_number(), Relaxed);
        DONE.store(ASKED.load(Acquire), Relaxed);
        PAGE.store(address, Release);
        Some(Self { button, page })
    }

    /// To be waited for: readable when somebody rings.
    pub(super) const fn button(&self) -> &Userfault {
        &self.button
    }

    /// Sees to what was asked, by `act`, and lets those go on who wait for it.
    pub(super) fn answer(&self, mut act: impl FnMut(Asked)) {
        let mut was_touched = false;
        while let Ok(Some(_)) = self.button.next_event() {
            was_touched = true;
        }
        if !was_touched && DONE.load(Relaxed) == ASKED.load(Acquire) {
            return;
        }
        loop {
            let asked = ASKED.load(Acquire);
            if DONE.load(Relaxed) == asked {
                break;
            }
            act(take());
            DONE.store(asked, Release);
        }
        // Whoever reads the page between the two calls finds it there, and comes back.
        let _ = self.button.zero(self.page);
        raw::make_hole(self.page);
    }
}

impl Drop for Bell {
    /// Nobody can ring any more, and nobody waits.
    fn drop(&mut self) {
        PAGE.store(0, Release);
        let _ = self.button.unregister(self.page);
    }
}

fn take() -> Asked {
    let aside = Aside::of_number(ASIDE.swap(0, Acquire));
    let mapped = IN_USE.load(Acquire).then(|| {
        let (start, length) = (START.load(Relaxed), LENGTH.load(Relaxed));
        IN_USE.store(false, Release);
        let end = start.checked_add(length)?;
        VirtRange::new(VirtAddr(start as u64), VirtAddr(end as u64))
    });
    Asked {
        aside,
        mapped: mapped.flatten(),
        scan: SCAN.swap(false, Acquire),
        last: LAST.swap(false, Acquire),
    }
}

/// In the child of a fork: there is no bell, and no thread.
pub(super) fn forget() {
    PAGE.store(0, Relaxed);
    THREAD.store(0, Relaxed);
    IN_USE.store(false, Relaxed);
    ASIDE.store(0, Relaxed);
    DONE.store(ASKED.load(Relaxed), Relaxed);
}

fn ring() {
    let ticket = ASKED.fetch_add(1, Release).wrapping_add(1);
    loop {
        let page = PAGE.load(Acquire);
        let done = DONE.load(Acquire);
        if page == 0 || done.wrapping_sub(ticket).cast_signed() >= 0 || is_given_up() {
            return;
        }
        // SAFETY: mapped for as long as the process lives, whoever leaves.
        let _ = unsafe { (page as *const u8).read_volatile() };
        raw::give_way();
    }
}

/// Whether somebody outside has found the agent's thread stuck.
fn is_given_up() -> bool {
    let slot = SLOT.load(Relaxed) as *const ColorSlot;
    // SAFETY: null, or the address of a slot of the mailbox, which stays mapped.
    let slot = unsafe { slot.as_ref() };
    slot.is_some_and(|slot| slot.aside.load(Relaxed) != 0)
}

fn is_ours() -> bool {
    PAGE.load(Acquire) != 0 && OWNER.load(Relaxed) == raw::process_number()
}

/// Has the agent see to new memory before it is touched; returns when that is done.
pub(crate) fn mapped(start: usize, length: usize) {
    if !is_ours() {
        return;
    }
    if IN_USE.swap(true, Acquire) {
        SCAN.store(true, Release);
    } else {
        // In this order `take` may see the former mapping's values, never a mixture that is out of bounds of
        // memory that was mapped once; whatever it sees it only offers to the kernel, which knows.
        START.store(start, Relaxed);
        LENGTH.store(length, Release);
    }
    ring();
}

/// Has the agent stop; returns when its thread has ended.
pub(crate) fn step_aside(reason: Aside) {
    if !is_ours() {
        return;
    }
    ASIDE.store(reason as u32, Release);
    ring();
    loop {
        let thread = THREAD.load(Acquire);
        if thread == 0 || is_stuck() {
            return;
        }
        // Cleared, and woken, by the kernel.
        raw::futex_wait_nanoseconds(THREAD.as_ptr(), thread, 10_000_000);
    }
}

/// Has the agent count once more, as the program is about to end; returns when that is done.
pub(crate) fn ending() {
    if is_ours() {
        LAST.store(true, Release);
        ring();
    }
}

fn is_stuck() -> bool {
    let slot = SLOT.load(Relaxed) as *const ColorSlot;
    // SAFETY: as in `is_given_up`.
    let slot = unsafe { slot.as_ref() };
    slot.is_some_and(|slot| slot.aside.load(Relaxed) == Aside::Stuck as u32)
}
