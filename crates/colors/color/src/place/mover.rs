//! `UFFDIO_MOVE`, and what really came of it.
//!
//! The kernel's errors are not to be believed (see [`Userfault::move_range`]): after one, the source, which belongs to us,
//! says whether the page has gone. The other end belongs to the program, and may change at any time.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::Userfault;

use super::own::OwnPages;

/// Pages that are to go from one place to another.
#[derive(Debug, Clone, Copy)]
pub(super) struct Move {
    pub(super) to: VirtAddr,
    pub(super) from: VirtAddr,
    pub(super) pages: usize,
}

impl Move {
    /// The same without its first `pages`.
    fn after(self, pages: usize) -> Self {
        let bytes = pages as u64 * BASE_PAGE_SIZE;
        Self {
            to: VirtAddr(self.to.0.saturating_add(bytes)),
            from: VirtAddr(self.from.0.saturating_add(bytes)),
            pages: self.pages.saturating_sub(pages),
        }
    }
}

/// How far a move came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) pages: usize,
    /// What stands in the way of the next page. `EAGAIN`: an event must be read first.
    pub(super) error: Option<Errno>,
}

/// Attempts at a page that says `EAGAIN` without an event to be read, as it does after a part of a run.
const ATTEMPTS: usize = 3;

#[derive(Debug)]
pub(super) struct Mover {
    userfault: Userfault,
    own: OwnPages,
}

impl Mover {
    pub(super) fn new(userfault: Userfault) -> Result<Self, Errno> {
        Ok(Self {
            userfault,
            own: OwnPages::open()?,
        })
    }

    pub(super) fn userfault(&self) -> &Userfault {
        &self.userfault
    }

    pub(super) fn own(&self) -> &OwnPages {
        &self.own
    }

    /// Moves pages, their order kept, until one cannot be.
    ///
    /// # Safety
    /// The bytes that the holes of `what.to` stand for are those of `what.from`; the source is touched by nobody else, and
    /// nobody counts on the holes staying as they are.
    pub(super) unsafe fn run(&self, what: Move) -> Moved {
        let mut pages = 0;
        let mut attempts = 0;
        loop {
            let rest = what.after(pages);
            if rest.pages == 0 {
                return Moved { pages, error: None };
            }
            let length = ByteCount(rest.pages as u64 * BASE_PAGE_SIZE);
            // SAFETY: the caller's.
            let moved = unsafe { self.userfault.move_range(rest.to, rest.from, length) };
            let said = usize::try_from(moved.bytes.whole_pages().0).unwrap_or(0);
            let Some(errno) = moved.error else {
                return Moved {
                    pages: what.pages,
                    error: None,
                };
            };
            let silently = self.denied_pages(rest.after(said));
            pages += said + silently;
            attempts = if said + silently > 0 { 0 } else { attempts + 1 };
            let again = matches!(errno, Errno::AGAIN | Errno::INTR);
            // What was moved silently says nothing of the page after it.
            if silently == 0 && (!again || attempts >= ATTEMPTS) && pages < what.pages {
                return Moved {
                    pages,
                    error: Some(errno),
                };
            }
        }
    }

    /// How many of the first pages have been moved, though the kernel does not say so; wakes who waits for them.
    fn denied_pages(&self, rest: Move) -> usize {
        let gone = |done: &usize| self.own.is_occupied(rest.after(*done).from) == Some(false);
        let count = (0..rest.pages).take_while(gone).count();
        if count > 0 {
            let length = count as u64 * BASE_PAGE_SIZE;
            // Fails for no range that a page could be moved to.
            let _ = self.userfault.wake(VirtRange {
                start: rest.to,
                end: VirtAddr(rest.to.0.saturating_add(length)),
            });
        }
        count
    }
}
