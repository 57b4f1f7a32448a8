//! What a userfaultfd tells of.

use std::mem::{MaybeUninit, size_of};
use std::os::fd::{FromRawFd, OwnedFd};

use rustix::io::Errno;
use superhue_model::{VirtAddr, VirtRange};

use super::Userfault;
use super::abi::{
    Message, UFFD_EVENT_FORK, UFFD_EVENT_PAGEFAULT, UFFD_EVENT_REMAP, UFFD_EVENT_REMOVE,
    UFFD_EVENT_UNMAP, UFFD_PAGEFAULT_FLAG_WRITE,
};

/// What happened to the memory of the process, as `struct uffd_msg` tells it.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a hole, and waits.
    Fault {
        /// First byte of the page.
        address: VirtAddr,
        /// It was going to write.
        write: bool,
    },
    /// The process forked; the same ranges of the child are registered with `child`, until that is closed.
    Fork {
        /// The child's.
        child: Userfault,
    },
    /// `range` was moved so that it starts at `to`.
    Remap {
        /// Where it was.
        range: VirtRange,
        /// Where it starts now.
        to: VirtAddr,
    },
    /// The pages of the range are being given up; the thread does it *after* this was read.
    Remove(VirtRange),
    /// The range was unmapped.
    Unmap(VirtRange),
}

impl Userfault {
    /// The next event, if there is one.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`: there is no descriptor for a child, and the fork goes on waiting; `EPROTO` for an event that was
    /// not asked for; those of `read(2)`.
    pub fn next_event(&self) -> Result<Option<Event>, Errno> {
        let mut bytes = [0_u8; size_of::<Message>()];
        match rustix::io::read(&self.0, &mut bytes) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        let mut message = MaybeUninit::<Message>::uninit();
        // SAFETY: same size, and any bytes are a valid `Message`.
        let message = unsafe {
            message.as_mut_ptr().cast::<[u8; 32]>().write(bytes);
            message.assume_init()
        };
        let [first, second, third] = message.words;
        let range = |start, end| VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        };
        Ok(Some(match message.event {
            UFFD_EVENT_PAGEFAULT => Event::Fault {
                address: VirtAddr(second & !0xfff),
                write: first & UFFD_PAGEFAULT_FLAG_WRITE != 0,
            },
            UFFD_EVENT_FORK => {
                // The first half of the word in memory.
                let [a, b, c, d, ..] = first.to_ne_bytes();
                // SAFETY: the kernel made this descriptor for us when the event was read.
                let child = unsafe { OwnedFd::from_raw_fd(i32::from_ne_bytes([a, b, c, d])) };
                Event::Fork { child: Self(child) }
            }
            UFFD_EVENT_REMAP => Event::Remap {
                range: range(first, first.saturating_add(third)),
                to: VirtAddr(second),
            },
            UFFD_EVENT_REMOVE => Event::Remove(range(first, second)),
            UFFD_EVENT_UNMAP => Event::Unmap(range(first, second)),
            _ => return Err(Errno::PROTO),
        }))
    }
}
