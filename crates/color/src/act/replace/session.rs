//! One userfaultfd on memory in use, for as long as pages of it are exchanged.
//!
//! A new one every time: closing it is what lets go of everything at once, threads that wait for a page as well as those that
//! wait for an event to be read, whenever they have come.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::{
    Event, FEATURE_EVENT_FORK, FEATURE_EVENT_REMAP, FEATURE_EVENT_REMOVE, FEATURE_EVENT_UNMAP,
    Faults, Mode, Userfault,
};

use super::outs::{Outs, give_to_child, pause};
use super::removing::Removing;
use super::{Access, ReplaceError};
use crate::act::mapping::is_wiped_in_children;
use crate::act::mover::{Move, Mover, Ours};

/// How a page came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    /// By the frame it was to have.
    Moved,
    /// By a frame of the kernel's choice, as the mapping no longer takes others.
    Copied,
    /// Not at all: the program has given up what it held.
    Unwanted,
}

/// Who is told of what is done to some pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    /// We are, as long as no event is read: what unmaps them waits for that.
    Ours,
    /// Nobody: they are in a mapping made since, or in more than one.
    None,
    /// To be asked again: something had happened.
    EventsRead,
}

#[derive(Debug)]
pub(super) struct Session {
    mover: Mover,
    pub(super) outs: Outs,
    /// Holes where threads wait that no page of ours belongs to.
    pub(super) faults: Vec<VirtAddr>,
    pub(super) removing: Removing,
    /// Where memory is that was registered.
    registered: Vec<VirtRange>,
    /// Pages that a child should have had and did not get.
    pub(super) lost: u64,
    /// Given up when no descriptor is left for a child: its fork would wait for ever.
    spare: Option<OwnedFd>,
}

impl Session {
    pub(super) fn open(
        range: VirtRange,
        access: Access,
        forks_excluded: bool,
        removing: Removing,
    ) -> Result<Self, ReplaceError> {
        let (userfault, mode) = match access {
            Access::Shared => (open_full(forks_excluded)?, Mode::Missing),
            Access::Exclusive => {
                let userfault = Userfault::open(Faults::User).map_err(ReplaceError::Userfault)?;
                userfault.handshake().map_err(ReplaceError::Userfault)?;
                (userfault, Mode::Nothing)
            }
        };
        let spare = rustix::io::fcntl_dupfd_cloexec(&userfault, 0).ok();
        userfault
            .register(range, mode)
            .map_err(ReplaceError::Register)?;
        Ok(Self {
            mover: Mover::new(userfault).map_err(ReplaceError::Userfault)?,
            outs: Outs::default(),
            faults: Vec::new(),
            removing,
            registered: vec![range],
            lost: 0,
            spare,
        })
    }

    pub(super) fn mover(&mut self) -> &mut Mover {
        &mut self.mover
    }

    /// Whether `pages` pages from `first` on lie in one mapping that is registered. Pages could be taken out of others as well, but
    /// whoever touched the hole would not wait: memory that the program maps anew while this goes on is not registered.
    pub(super) fn watch_of(&mut self, first: VirtAddr, pages: usize) -> Watch {
        let range = VirtRange {
            start: first,
            end: VirtAddr(first.0.saturating_add(pages as u64 * BASE_PAGE_SIZE)),
        };
        // Looks at the mapping before it finds that there is no hole. If there is one, zeroes are as good.
        match self.mover.userfault().zero(range) {
            Ok(()) | Err(Errno::EXIST) => Watch::Ours,
            Err(Errno::AGAIN) => {
                self.read_events_or_wait();
                Watch::EventsRead
            }
            Err(_) => Watch::None,
        }
    }

    /// Brings a page that is out back to where it belongs, in the frame at `frame`, which has its bytes.
    pub(super) fn bring_back(&mut self, index: usize, frame: VirtAddr) -> Back {
        loop {
            let (Some(home), Some(slot)) = (self.outs.home(index), self.outs.slot(index)) else {
                return Back::Unwanted;
            };
            let what = Move {
                to: home,
                from: frame,
                pages: 1,
            };
            // SAFETY: the bytes at `frame` are those that the hole at `home` stands for, and the frame is ours.
            let moved = unsafe { self.mover.run(what, Ours::From) };
            let back = match moved.error {
                None => Back::Moved,
                Some(Errno::AGAIN | Errno::INTR) => {
                    self.read_events_or_wait();
                    continue;
                }
                Some(Errno::NOMEM) => {
                    pause();
                    continue;
                }
                // Made something else of (guarded against access): nobody counts on what was there.
                Some(Errno::EXIST) => Back::Unwanted,
                // If it was unmapped, which is an event and has been read, a copy is refused as well.
                Some(_) => match self.copy_back(home, slot) {
                    Some(back) => back,
                    None => continue,
                },
            };
            if back != Back::Moved {
                self.wake_page(home);
            }
            self.outs.settle(index);
            return back;
        }
    }

    /// Copies a page into a mapping that takes no frames any more (`mprotect`, `mlock`). `None`: to be tried again.
    fn copy_back(&mut self, home: VirtAddr, slot: VirtAddr) -> Option<Back> {
        let length = ByteCount(BASE_PAGE_SIZE);
        // SAFETY: the bytes that the hole at `home` stands for are those in `slot`.
        let copied = unsafe { self.mover.userfault().copy_range(home, slot, length) };
        match copied.error {
            None => Some(Back::Copied),
            Some(Errno::AGAIN | Errno::INTR | Errno::NOMEM) => {
                self.read_events_or_wait();
                None
            }
            Some(_) => Some(Back::Unwanted),
        }
    }

    /// Reads what has happened, and does the same to the pages that are out. Whether anything has.
    pub(super) fn read_events(&mut self) -> bool {
        let mut any = false;
        loop {
            let event = match self.mover.userfault().next_event() {
                Ok(Some(event)) => event,
                Err(Errno::INTR) => continue,
                // Too many open files.
                Err(Errno::MFILE | Errno::NFILE) => {
                    if self.spare.take().is_none() {
                        return any;
                    }
                    continue;
                }
                Ok(None) | Err(_) => return any,
            };
            any = true;
            self.outs.follow(&event);
            match event {
                Event::Fault { address, .. } => {
                    self.removing.forget(address);
                    if !self.outs.holds(address) {
                        self.faults.push(address);
                    }
                }
                Event::Fork { child } => {
                    let outs = self.outs.only(|home| !is_wiped_in_children(home));
                    self.lost += give_to_child(child, outs);
                    if self.spare.is_none() {
                        let own = self.mover.userfault();
                        self.spare = rustix::io::fcntl_dupfd_cloexec(own, 0).ok();
                    }
                }
                Event::Remove(range) => {
                    self.removing.add(range);
                    self.wake(range);
                }
                Event::Unmap(range) => self.wake(range),
                Event::Remap { range, to } => {
                    self.wake(range);
                    self.registered.push(VirtRange {
                        start: to,
                        end: VirtAddr(to.0.saturating_add(range.len().0)),
                    });
                }
            }
        }
    }

    /// Has those who wait there look again. They wait anew if there still is a hole.
    fn wake(&self, range: VirtRange) {
        let _ = self.mover.userfault().wake(range);
    }

    pub(super) fn wake_page(&self, page: VirtAddr) {
        self.wake(page_range(page));
    }

    /// Fills the hole with zeroes of the kernel's.
    pub(super) fn zero(&mut self, page: VirtAddr) {
        while let Err(Errno::AGAIN) = self.mover.userfault().zero(page_range(page)) {
            self.read_events_or_wait();
        }
        self.wake_page(page);
    }

    /// Lets go of all ranges, and of those who wait for an event to be read, with no page out. Closing does that too, unless a
    /// child that was forked meanwhile has the descriptor as well.
    pub(super) fn end(&mut self) {
        for range in std::mem::take(&mut self.registered) {
            let _ = self.mover.userfault().unregister(range);
        }
        // An event begins (`EAGAIN`) before it can be read. An empty range is answered by `EINVAL` otherwise.
        let nothing = VirtRange {
            start: VirtAddr(0),
            end: VirtAddr(0),
        };
        while self.mover.userfault().zero(nothing) == Err(Errno::AGAIN) {
            self.read_events_or_wait();
        }
    }

    pub(super) fn read_events_or_wait(&mut self) {
        if !self.read_events() {
            pause();
        }
    }
}

fn page_range(page: VirtAddr) -> VirtRange {
    VirtRange {
        start: page,
        end: VirtAddr(page.0.saturating_add(BASE_PAGE_SIZE)),
    }
}

/// One that is told of everything that could happen to a page that is out.
fn open_full(forks_excluded: bool) -> Result<Userfault, ReplaceError> {
    const MAPPINGS: u64 = FEATURE_EVENT_REMAP | FEATURE_EVENT_REMOVE | FEATURE_EVENT_UNMAP;
    let open = |features| {
        let userfault = Userfault::open_full()?;
        userfault.handshake_with(features)?;
        Ok(userfault)
    };
    match open(MAPPINGS | FEATURE_EVENT_FORK) {
        Ok(userfault) => Ok(userfault),
        Err(Errno::PERM) if forks_excluded => open(MAPPINGS).map_err(ReplaceError::Userfault),
        Err(Errno::PERM) if Userfault::open_full().is_ok() => Err(ReplaceError::ForksUnseen),
        Err(errno) => Err(ReplaceError::Userfault(errno)),
    }
}
