//! The shared memory through which Superhue asks its agent inside a process to act.
//!
//! A caller without `CAP_SYS_NICE` may not collapse or split another process's memory, but the process
//! may do that to its own. So Superhue keeps a memfd of [`Slot`]s, the agent in each process maps it and
//! claims one, and a request is one write and one futex wake:
//!
//! ```text
//!   superhue                             agent thread in the process
//!   ask:  region, operation,         ->  sleeps on `asked`
//!         asked += 1, wake               madvise(MADV_COLLAPSE or MADV_COLD)
//!   sleeps on `answered`             <-  result, answered = asked, wake
//! ```
//!
//! Shared memory instead of a socket, because a program may close every descriptor it did not open
//! (daemons, shells) and may count on which number it gets next: the agent keeps none open.
//! A memfd instead of a file, because nothing must be left behind when Superhue is killed.
//!
//! Everything in a slot is an atomic integer: a process that scribbles over its own slot can confuse
//! the answers about itself, and nothing else.

mod color;
mod loadable;
mod operation;

pub use color::{
    Aside, COLOR_STRICT, COLOR_SUPERPAGES, ColorCounts, ColorHeader, ColorSlot, Left, MOST_COLORS,
    ORACLE_DEALT, ORACLE_DRIFTING, ORACLE_FRAMES, ORACLE_MEASURED, ORACLE_POOR,
};
pub use loadable::{NotLoadable, agent_loads_into};
pub use operation::{Advice, Operation};

use std::fmt;
use std::mem::{align_of, size_of};
use std::str::FromStr;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

/// Environment variable that tells an agent where its mailbox is: a [`Ticket`].
pub const TICKET_VARIABLE: &str = "SUPERHUE_AGENT";

/// File name of the agent's shared object.
pub const AGENT_FILE: &str = "libsuperhue_agent.so";

/// Tunable by which glibc's allocator asks for superpages for its own memory (glibc 2.35).
pub const HEAP_TUNABLE: &str = "glibc.malloc.hugetlb=1";

/// First word of every mailbox; the last byte is the layout's version.
pub const MAGIC: u64 = u64::from_be_bytes(*b"SHueMbx\x03");

/// Slots in a mailbox: processes that can have a live agent at the same time.
pub const SLOTS: usize = 1023;

/// [`Header::wishes`]: start a thread that serves requests.
pub const WISH_SERVE: u32 = 1 << 0;

/// [`Header::wishes`]: advise superpages (`MADV_HUGEPAGE`) for every private anonymous mapping the
/// program makes.
pub const WISH_ADVISE: u32 = 1 << 1;

/// [`Header::wishes`]: place memory by page colors, as [`Mailbox::color`] says.
pub const WISH_COLOR: u32 = 1 << 2;

/// The start of a mailbox.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: AtomicU64,
    /// The number in the [`Ticket`]; an agent that finds another one steps aside.
    pub nonce: AtomicU64,
    /// `WISH_*` bits.
    pub wishes: AtomicU32,
    /// Changes while Superhue lives; agents leave when it stands still.
    pub heartbeat: AtomicU32,
    /// Nonzero once Superhue is done; agents leave.
    pub closing: AtomicU32,
    /// Agents that found no free slot.
    pub turned_away: AtomicU32,
}

/// One process's line to Superhue.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Slot {
    /// Process number of the agent that claimed the slot; 0 is free.
    pub owner: AtomicU32,
    /// Requests made. The agent sleeps on it.
    pub asked: AtomicU32,
    /// The request last answered. Superhue sleeps on it.
    pub answered: AtomicU32,
    /// 0, or the positive errno of the last answer.
    pub result: AtomicI32,
    /// Number of the region asked about (its address divided by 2 MiB).
    pub region: AtomicU64,
    /// What to do to it: an [`Operation`]'s number.
    pub operation: AtomicU32,
}

/// A whole mailbox; 320 KiB, of which those pages exist that are used.
#[repr(C)]
#[derive(Debug)]
pub struct Mailbox {
    /// The header.
    pub header: Header,
    /// The slots.
    pub slots: [Slot; SLOTS],
    /// Which page colors are wanted.
    pub color: ColorHeader,
    /// What became of that, in the process that has the slot of the same number.
    pub color_slots: [ColorSlot; SLOTS],
}

/// Bytes in a mailbox.
pub const MAILBOX_SIZE: usize = size_of::<Mailbox>();

const _: () = assert!(size_of::<Header>() == 64);
const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!(MAILBOX_SIZE == 64 * 1024 + 192 + SLOTS * 256);
const _: () = assert!(align_of::<Mailbox>() == 64);

/// Where a mailbox is: descriptor `fd` of process `pid`, holding `nonce`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket {
    /// Superhue's process number.
    pub pid: u32,
    /// The memfd's number there.
    pub fd: u32,
    /// What [`Header::nonce`] must hold.
    pub nonce: u64,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.pid, self.fd, self.nonce)
    }
}

/// The text is not `PID:FD:NONCE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotATicket;

impl FromStr for Ticket {
    type Err = NotATicket;

    fn from_str(text: &str) -> Result<Self, NotATicket> {
        let mut fields = text.split(':');
        let mut next = || fields.next().ok_or(NotATicket);
        let (pid, fd, nonce) = (next()?, next()?, next()?);
        if fields.next().is_some() {
            return Err(NotATicket);
        }
        Ok(Self {
            pid: pid.parse().map_err(|_| NotATicket)?,
            fd: fd.parse().map_err(|_| NotATicket)?,
            nonce: nonce.parse().map_err(|_| NotATicket)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_survive_the_environment() {
        let ticket = Ticket {
            pid: 42,
            fd: 1_000_000,
            nonce: u64::MAX,
        };
        assert_eq!(ticket.to_string().parse(), Ok(ticket));
        for text in ["", "1", "1:2", "1:2:3:4", "a:b:c", "-1:2:3", "1:2:3 "] {
            assert_eq!(text.parse::<Ticket>(), Err(NotATicket), "{text}");
        }
    }
}
