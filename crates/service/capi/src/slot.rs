//! The one tracking of this process, used by any thread, by signal handlers, and across `fork`.
//!
//! A mutex will not do: a handler may interrupt its holder, and a child inherits it locked. So
//! everything is in one word, changed by compare-and-exchange only:
//!
//! ```text
//!   63              32 31         8 7    0
//!   |  owner (PID)    |   users    | phase |      IDLE -> OPENING -> OPEN -> CLOSING -> IDLE
//! ```
//!
//! A caller that finds `OPEN` and its own PID adds itself to the users, uses the value, and leaves.
//! The caller that closes the slot drops the value once no users are left, or the next that opens it does: the last user to leave may be a
//! signal handler, which must not free memory. A forked child finds its parent's PID: it may open the slot again, which drops the inherited value.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use superhue_client::{ClientError, Tracking};

const IDLE: u64 = 0;
const OPENING: u64 = 1;
const OPEN: u64 = 2;
const CLOSING: u64 = 3;
const PHASE: u64 = 0xff;
const USER: u64 = 1 << 8;
const USERS: u64 = 0xff_ffff << 8;

/// The slot.
pub struct Slot {
    word: AtomicU64,
    value: UnsafeCell<Option<Tracking>>,
}

// SAFETY: `value` is written only by the one caller that has moved the word to OPENING, or out of
// CLOSING with no users left; it is read only by callers counted in while OPEN.
unsafe impl Sync for Slot {}

/// A user of the slot's value, included in the user count.
pub struct SlotGuard<'a> {
    slot: &'a Slot,
}

/// The right to fill the slot, which is in the phase OPENING.
pub struct SlotReservation<'a> {
    slot: &'a Slot,
    filled: bool,
}

fn me() -> u64 {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    u64::from(pid.unsigned_abs()) << 32
}

const fn owner(word: u64) -> u64 {
    word & !0xffff_ffff
}

impl Slot {
    /// Makes an idle slot.
    pub const fn new() -> Self {
        Self {
            word: AtomicU64::new(IDLE),
            value: UnsafeCell::new(None),
        }
    }

    /// Adds the caller to the users. Async-signal-safe, and so is the drop.
    pub fn enter(&self) -> Result<SlotGuard<'_>, ClientError> {
        let me = me();
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & PHASE == IDLE {
                return Err(ClientError::Disabled);
            }
            if owner(word) != me {
                return Err(ClientError::Forked);
            }
            if word & PHASE != OPEN || word & USERS == USERS {
                return Err(ClientError::Disabled);
            }
            match self.word.compare_exchange_weak(
                word,
                word + USER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(SlotGuard { slot: self }),
                Err(now) => word = now,
            }
        }
    }

    /// Claims the slot to fill it.
    pub fn open(&self) -> Result<SlotReservation<'_>, Errno> {
        self.reap();
        let me = me();
        let word = self.word.load(Ordering::Acquire);
        let inherited = word & PHASE != IDLE && owner(word) != me;
        if word & PHASE != IDLE && !inherited {
            return Err(if word & PHASE == OPEN {
                Errno::ALREADY
            } else {
                Errno::BUSY
            });
        }
        self.word
            .compare_exchange(word, me | OPENING, Ordering::AcqRel, Ordering::Acquire)
            .map_err(|_| Errno::BUSY)?;
        if inherited {
            let value = self.value.get();
            // SAFETY: only this thread has moved the word to OPENING. If the parent was itself
            // filling or emptying the slot when it forked, the value may be half written: it is
            // overwritten without a drop, and its descriptors stay open.
            unsafe {
                if word & PHASE == OPEN {
                    drop((*value).take());
                } else {
                    value.write(None);
                }
            }
        }
        Ok(SlotReservation {
            slot: self,
            filled: false,
        })
    }

    /// Closes the slot: no further caller enters, and the threads that wait inside wake up.
    pub fn close(&self) -> Result<(), ClientError> {
        let word = self.word.load(Ordering::Acquire);
        if word & PHASE == OPENING && owner(word) == me() {
            return Err(ClientError::System {
                what: "another thread is enabling tracking",
                errno: Errno::BUSY,
            });
        }
        let entered = self.enter()?;
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & PHASE != OPEN {
                return Err(ClientError::Disabled);
            }
            let closing = word & !PHASE | CLOSING;
            match self.word.compare_exchange_weak(
                word,
                closing,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        entered.tracking().map(Tracking::disable);
        Ok(())
    }

    /// Drops the value if the slot is closing and has no users left; returns true if nothing is open, opening or closing now.
    pub fn reap(&self) -> bool {
        let me = me();
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if word & PHASE == IDLE {
                return true;
            }
            if owner(word) != me || word & PHASE != CLOSING || word & USERS != 0 {
                return false;
            }
            // As if it were being opened, until it is empty.
            match self.word.compare_exchange_weak(
                word,
                me | OPENING,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    // SAFETY: no users are left and none can enter.
                    unsafe { drop((*self.value.get()).take()) };
                    self.word.store(IDLE, Ordering::Release);
                    return true;
                }
                Err(now) => word = now,
            }
        }
    }
}

impl SlotGuard<'_> {
    /// Returns the value.
    pub fn tracking(&self) -> Option<&Tracking> {
        // SAFETY: counted in while OPEN, so no thread writes until the drop.
        unsafe { (*self.slot.value.get()).as_ref() }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let slot = self.slot;
        let me = me();
        let mut word = slot.word.load(Ordering::Acquire);
        loop {
            if owner(word) != me || word & USERS == 0 {
                // Forked while inside: this count belongs to the parent.
                return;
            }
            match slot.word.compare_exchange_weak(
                word,
                word - USER,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

impl SlotReservation<'_> {
    /// Fills the slot and opens it.
    pub fn fill(mut self, tracking: Tracking) {
        // SAFETY: this value is the right to do so.
        unsafe { self.slot.value.get().write(Some(tracking)) };
        self.filled = true;
        self.slot.word.store(me() | OPEN, Ordering::Release);
    }
}

impl Drop for SlotReservation<'_> {
    fn drop(&mut self) {
        if !self.filled {
            self.slot.word.store(IDLE, Ordering::Release);
        }
    }
}
