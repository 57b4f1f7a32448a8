//! The callbacks.
//!
//! Two functions and a pointer belong together and are read without a lock: a child of `fork` could
//! inherit the lock locked. A list keeps every combination that was ever set. Setting one again
//! finds its old entry, so the list grows only with the number of different combinations.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

use rustix::io::Errno;

use crate::layout::{HpsPage, HpsRegion};

/// `hps_decide_fn`.
pub type Decide = unsafe extern "C" fn(*const HpsRegion, *mut c_void) -> c_int;
/// `hps_compact_fn`.
pub type Compact = unsafe extern "C" fn(*const HpsPage, usize, *mut c_void);

/// Arguments of `hps_set_functions`.
#[derive(Clone, Copy)]
pub struct Functions {
    /// Decides about a region.
    pub decide: Option<Decide>,
    /// Takes the pages to compact.
    pub compact: Option<Compact>,
    /// Passed to both.
    pub user: *mut c_void,
}

struct Node {
    functions: Functions,
    next: *mut Node,
}

static KNOWN: AtomicPtr<Node> = AtomicPtr::new(null_mut());
static CURRENT: AtomicPtr<Node> = AtomicPtr::new(null_mut());

impl Functions {
    const NONE: Self = Self {
        decide: None,
        compact: None,
        user: null_mut(),
    };

    /// Returns the callbacks in force.
    pub fn current() -> Self {
        let node = CURRENT.load(Ordering::Acquire);
        // SAFETY: nodes are never freed or changed once they can be found.
        unsafe { node.as_ref() }.map_or(Self::NONE, |node| node.functions)
    }

    fn is(&self, other: &Self) -> bool {
        self.decide.map(|f| f as usize) == other.decide.map(|f| f as usize)
            && self.compact.map(|f| f as usize) == other.compact.map(|f| f as usize)
            && self.user == other.user
    }

    /// Puts these callbacks in force.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn set(self) -> Result<(), Errno> {
        let mut at = KNOWN.load(Ordering::Acquire);
        // SAFETY: as above.
        while let Some(node) = unsafe { at.as_ref() } {
            if node.functions.is(&self) {
                CURRENT.store(at, Ordering::Release);
                return Ok(());
            }
            at = node.next;
        }
        // Unlike `Box::new`, it does not end the program when memory is short. The node is never freed.
        let mut room = Vec::new();
        room.try_reserve_exact(1).map_err(|_| Errno::NOMEM)?;
        room.push(Node {
            functions: self,
            next: null_mut(),
        });
        let mut room = ManuallyDrop::new(room);
        let node = room.as_mut_ptr();
        let mut head = KNOWN.load(Ordering::Acquire);
        loop {
            // SAFETY: no other thread can find the node yet.
            unsafe { (*node).next = head };
            match KNOWN.compare_exchange_weak(head, node, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        CURRENT.store(node, Ordering::Release);
        Ok(())
    }
}
