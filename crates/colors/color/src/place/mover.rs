//! `UFFDIO_MOVE`, and a check of its real result.
//!
//! The kernel's errors are unreliable (see [`Userfault::move_range`]). After one, the source, which belongs to us,
//! shows whether the page has gone. The destination belongs to the program, and may change at any time.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr};
use superhue_sys::userfaultfd::Userfault;

use super::own::OwnPages;

/// Pages to move from one place to another.
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

/// Result of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MoveResult {
    pub(super) pages: usize,
    /// Obstacle to the move of the next page. `EAGAIN`: an event must be read first.
    pub(super) error: Option<Errno>,
}

/// Attempts at a page that fails with `EAGAIN` without an event to read, as happens after a part of a run.
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

    /// Moves pages, in order, until one cannot be moved.
    ///
    /// # Safety
    /// The holes of `what.to` stand for the same bytes as `what.from` holds; no other thread touches the source, and no
    /// code relies on the holes staying holes.
    pub(super) unsafe fn run(&self, what: Move) -> MoveResult {
        let mut pages = 0;
        let mut attempts = 0;
        loop {
            let rest = what.after(pages);
            if rest.pages == 0 {
                return MoveResult { pages, error: None };
            }
            let length = ByteCount(rest.pages as u64 * BASE_PAGE_SIZE);
            // SAFETY: the caller's promise.
            let moved = unsafe { self.userfault.move_range(rest.to, rest.from, length) };
            let said = usize::try_from(moved.bytes.whole_pages().0).unwrap_or(0);
            let Some(errno) = moved.error else {
                return MoveResult {
                    pages: what.pages,
                    error: None,
                };
            };
            let silently = self.denied_pages(rest.after(said));
            pages += said + silently;
            attempts = if said + silently > 0 { 0 } else { attempts + 1 };
            let again = matches!(errno, Errno::AGAIN | Errno::INTR);
            // The kernel's error does not apply to the page after one that it moved silently.
            if silently == 0 && (!again || attempts >= ATTEMPTS) && pages < what.pages {
                return MoveResult {
                    pages,
                    error: Some(errno),
                };
            }
        }
    }

    /// Counts the first pages that have been moved although the kernel reported an error.
    fn denied_pages(&self, rest: Move) -> usize {
        let gone = |done: &usize| self.own.is_occupied(rest.after(*done).from) == Some(false);
        (0..rest.pages).take_while(gone).count()
    }
}
