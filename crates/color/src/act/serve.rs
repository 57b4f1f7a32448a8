//! Answering page faults with pages of the colors wanted, for memory that is not there yet.
//!
//! A fault is answered by moving in a page of the pool. If that cannot be, the kernel's page of zeroes is: what the
//! program reads is the same either way, only the frame that it gets when it writes is then of any color.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, PageCount, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::{Event, FEATURE_MOVE, Mode, Userfault};

use super::mapping::obstacle_at;
use super::mover::{Move, Mover, Ours};
use super::{Placed, Pool, PoolError, Refusal};
use crate::decide::Walk;
use crate::observe::Oracle;

/// Faults read before the pool is looked after.
const BURST: usize = 64;

/// Serves the faults of the ranges it is given, of all threads and from inside system calls. Dropping it lets go of all
/// ranges and of everybody who waits.
#[derive(Debug)]
pub struct FaultServer {
    mover: Mover,
    /// Faults that no page of the colors wanted answers stay unanswered, and are told to the caller.
    strict: bool,
    registered: Vec<VirtRange>,
    /// Pages filled ahead of faults that come one after the other, at most.
    ahead: usize,
    /// Where the next such fault would be, and how many there were.
    next: VirtAddr,
    streak: usize,
}

/// What a step of a [`FaultServer`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Served {
    /// Faults answered by a page of the walk, and those that were not, by reason.
    pub pages: Placed,
    /// Where those pages are that were answered by a page of the walk.
    pub placed_at: Vec<VirtAddr>,
    /// Strict alone: pages for which there is none of the colors wanted, whose threads still wait. Answer them
    /// with [`FaultServer::answer_any`], or let the program end.
    pub waiting: Vec<VirtAddr>,
    /// The oracle says that colors can no longer be told: what is served from now on is of any color.
    pub drifted: bool,
}

impl Served {
    /// Fills up the pool. Without memory the next fault sees to itself.
    fn provide(&mut self, pool: &mut Pool, walk: &Walk, oracle: &mut dyn Oracle) {
        if let Err(PoolError::Oracle(_)) = pool.provide(walk, 1, oracle) {
            self.drifted = true;
        }
    }
}

impl AsFd for FaultServer {
    /// Readable when a fault waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mover.userfault().as_fd()
    }
}

impl FaultServer {
    /// Opens a userfaultfd that is told of all faults.
    ///
    /// # Errors
    /// `EPERM` where that is a privilege (see [`Userfault::open_full`]); `ENOTTY` without `UFFDIO_MOVE`.
    pub fn new(strict: bool) -> Result<Self, Errno> {
        let userfault = Userfault::open_full()?;
        if userfault.handshake()? & FEATURE_MOVE == 0 {
            return Err(Errno::NOTTY);
        }
        Ok(Self {
            mover: Mover::new(userfault)?,
            strict,
            registered: Vec::new(),
            ahead: 0,
            next: VirtAddr(0),
            streak: 0,
        })
    }

    /// From now on at most `pages` are filled ahead of a program that touches memory page by page, and at most as many as it has
    /// touched so: a fault costs a change of threads and back, many times what the page costs. So much memory may be resident that
    /// the program does not touch. None by default.
    pub const fn fill_ahead(&mut self, pages: usize) {
        self.ahead = pages;
    }

    /// Serves the holes of a range from now on; call [`serve`](Self::serve) again and again. A forked child is not served.
    ///
    /// The thread that serves must not touch a hole of it.
    ///
    /// # Errors
    /// See [`Userfault::register`].
    pub fn register(&mut self, range: VirtRange) -> Result<(), Errno> {
        self.mover.userfault().register(range, Mode::Missing)?;
        if !self.registered.iter().any(|known| known.contains(&range)) {
            self.registered.retain(|known| !range.contains(known));
            self.registered.push(range);
        }
        Ok(())
    }

    /// Leaves the holes of a range to the kernel again, and wakes who waits there.
    ///
    /// # Errors
    /// See [`Userfault::unregister`].
    pub fn unregister(&mut self, range: VirtRange) -> Result<(), Errno> {
        self.registered.retain(|known| !range.contains(known));
        self.mover.userfault().unregister(range)
    }

    /// Waits for faults, for as long as `timeout` if there are none (`None`: for ever), and answers those that are there.
    /// Then fills up the pool, for which no fault had to wait.
    ///
    /// # Errors
    /// Those of `poll(2)` and `read(2)`, but for `EINTR`, which is the end of waiting.
    pub fn serve(
        &mut self,
        pool: &mut Pool,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
        timeout: Option<Timespec>,
    ) -> Result<Served, Errno> {
        let mut served = Served::default();
        let waited = poll(
            &mut [PollFd::new(self.mover.userfault(), PollFlags::IN)],
            timeout.as_ref(),
        );
        match waited {
            Ok(0) | Err(Errno::INTR) => return Ok(served),
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        for _ in 0..BURST {
            match self.mover.userfault().next_event() {
                Ok(Some(Event::Fault { address, .. })) => {
                    self.answer(address, pool, walk, oracle, &mut served);
                }
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                Err(errno) => return Err(errno),
            }
        }
        if pool.count(walk.wanted()) == 0 {
            served.provide(pool, walk, oracle);
        }
        Ok(served)
    }

    /// Answers a fault with the kernel's page of zeroes.
    pub fn answer_any(&self, page: VirtAddr) {
        let range = VirtRange {
            start: page,
            end: VirtAddr(page.0.saturating_add(BASE_PAGE_SIZE)),
        };
        while let Err(Errno::AGAIN) = self.mover.userfault().zero(range) {}
        // Where a page is by now, or nothing is mapped any more, nobody has been woken yet.
        let _ = self.mover.userfault().wake(range);
    }

    /// Pages that the kernel had moved, saying it had not.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.mover.denied()
    }

    fn answer(
        &mut self,
        hole: VirtAddr,
        pool: &mut Pool,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
        served: &mut Served,
    ) {
        // What a walk prefers next will do when that is there: a fault is not the time for telling colors.
        if walk.preferences().all(|color| pool.count(color) == 0) {
            served.provide(pool, walk, oracle);
        }
        let Some((page, color)) = pool.take_next(walk) else {
            served.pages.refuse(Refusal::NoPage, 1);
            if self.strict {
                served.waiting.push(hole);
            } else {
                self.answer_any(hole);
            }
            return;
        };
        let what = Move {
            to: hole,
            from: page.start(),
            pages: 1,
        };
        // SAFETY: a page of the pool is zero, as a hole is.
        let moved = unsafe { self.mover.run(what, Ours::From) };
        let Some(errno) = moved.error else {
            pool.moved(page, 1);
            served.pages.placed += PageCount(1);
            served.placed_at.push(hole);
            self.run_ahead(hole, pool, walk, served);
            return;
        };
        pool.put_back(page, color);
        match errno {
            // Another thread's fault at the same page came first, or what was there has gone.
            Errno::EXIST => {}
            Errno::NOENT => served.pages.refuse(Refusal::Changed, 1),
            Errno::INVAL => served.pages.refuse(obstacle_at(hole), 1),
            _ => served.pages.refuse(Refusal::Other, 1),
        }
        self.answer_any(hole);
    }
}

impl FaultServer {
    /// Fills what a program that goes on as before touches next, from what the pool has.
    fn run_ahead(&mut self, hole: VirtAddr, pool: &mut Pool, walk: &mut Walk, served: &mut Served) {
        self.streak = if hole == self.next {
            self.streak + 1
        } else {
            0
        };
        let most = self.ahead.min(self.streak);
        let mut to = VirtAddr(hole.0.saturating_add(BASE_PAGE_SIZE));
        for _ in 0..most {
            if pool.count(walk.wanted()) == 0 {
                break;
            }
            let Some((page, color)) = pool.take_next(walk) else {
                break;
            };
            let from = page.start();
            // SAFETY: a page of the pool is zero, as a hole is. What is no hole of ours is an error.
            let moved = unsafe { self.mover.run(Move { to, from, pages: 1 }, Ours::From) };
            if moved.error.is_some() {
                pool.put_back(page, color);
                break;
            }
            served.pages.placed += PageCount(1);
            served.placed_at.push(to);
            to = VirtAddr(to.0.saturating_add(BASE_PAGE_SIZE));
            self.streak += 1;
        }
        self.next = to;
    }
}

impl Drop for FaultServer {
    fn drop(&mut self) {
        // Closing does that too, unless a child that was forked meanwhile has the descriptor as well.
        for range in &self.registered {
            let _ = self.mover.userfault().unregister(*range);
        }
    }
}
