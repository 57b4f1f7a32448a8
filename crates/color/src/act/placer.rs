//! Filling holes with classified pages.
//!
//! A hole of private anonymous memory reads as zeroes, and the pages of a pool are zero: nobody can tell when one takes the
//! place of the other, so holes are filled under a running program without further care.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, ByteCount, VirtAddr, VirtRange};
use superhue_sys::frames::{Frames, Grain};
use superhue_sys::userfaultfd::{FEATURE_MOVE, Faults, Mode, Userfault};

use super::mapping::obstacle_at;
use super::mover::{Move, Moved, Mover, Ours};
use super::replace::Removing;
use super::threads::ThreadPages;
use super::{Placed, Pool, PoolError, Refusal, Run};
use crate::Page;
use crate::decide::Walk;
use crate::observe::Oracle;

/// Pages moved by one call at most: other threads' faults in the mapping wait for it.
const LONGEST: usize = 512;

/// Places memory of this process.
#[derive(Debug)]
pub struct Placer {
    pool: Pool,
    pub(super) mover: Mover,
    /// The rest is for exchanging pages: see `replace`.
    staging: Option<Staging>,
    pub(super) removing: Removing,
    pub(super) threads: ThreadPages,
    pub(super) denied: u64,
}

/// Where pages are while they are out. Registered with the placer's own userfaultfd, which hears of no events: dropping
/// pages would otherwise be one, and wait for ourselves.
#[derive(Debug)]
pub(super) struct Staging(Frames);

impl Staging {
    /// Pages that have room.
    pub(super) const SLOTS: usize = 64;
}

impl Placer {
    /// With a userfaultfd of its own, which is told of no faults.
    ///
    /// # Errors
    /// Those of `userfaultfd(2)`; `ENOTTY` where the kernel has no `UFFDIO_MOVE`; `ENOENT`, `EACCES` without `/proc`.
    pub fn new(pool: Pool) -> Result<Self, Errno> {
        let userfault = Userfault::open(Faults::User)?;
        if userfault.handshake()? & FEATURE_MOVE == 0 {
            return Err(Errno::NOTTY);
        }
        Ok(Self {
            pool,
            mover: Mover::new(userfault)?,
            staging: None,
            removing: Removing::default(),
            threads: ThreadPages::default(),
            denied: 0,
        })
    }

    /// Its pool.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Where pages are while they are out, if there is such a place yet. Nobody else may touch it.
    #[must_use]
    pub fn staging_range(&self) -> Option<VirtRange> {
        self.staging.as_ref().map(|staging| staging.0.range())
    }

    /// Pages so far that the kernel had moved, saying it had not.
    #[must_use]
    pub fn denied(&self) -> u64 {
        self.denied + self.mover.denied()
    }

    pub(super) fn prepare_staging(&mut self) -> Result<(), Errno> {
        if self.staging.is_none() {
            let length = ByteCount(Staging::SLOTS as u64 * BASE_PAGE_SIZE);
            let frames = Frames::map(length, Grain::Base)?;
            if self.pool.config().locked {
                frames.lock()?;
            }
            let userfault = self.mover.userfault();
            userfault.register(frames.range(), Mode::Nothing)?;
            self.staging = Some(Staging(frames));
        }
        Ok(())
    }

    /// A page of the staging area; `None` past its end.
    pub(super) fn staged(&self, index: usize) -> Option<Page> {
        let staging = self.staging.as_ref().filter(|_| index < Staging::SLOTS)?;
        let address = page_after(staging.0.range().start, index);
        // SAFETY: in the staging area, which stays as long as the placer, and is readable.
        unsafe { Page::at(usize::try_from(address.0).ok()?) }
    }

    /// Gives the frames that are left there back to the kernel.
    pub(super) fn staging_is_free(&self) {
        if let Some(Staging(frames)) = &self.staging {
            // Its own mapping, all of it: there is nothing to fail.
            let _ = frames.discard(frames.range());
        }
    }

    /// Fills the holes of `range`, whole pages of one mapping, with pages of the colors of `walk`, in the longest runs that
    /// fit. The mapping may be in use. It stays as it was, but for being split where the range ends, for so long as this takes.
    ///
    /// # Errors
    /// When no page could be had at all. See [`PoolError`].
    pub fn fill(
        &mut self,
        range: VirtRange,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
    ) -> Result<Placed, PoolError> {
        let mut placed = Placed::default();
        if range.is_empty() {
            return Ok(placed);
        }
        if let Err(errno) = self.mover.userfault().register(range, Mode::Nothing) {
            let why = Refusal::of_registering(errno);
            placed.refuse(why, range.len().whole_pages().0);
            return Ok(placed);
        }
        let result = self.fill_registered(range, walk, oracle, &mut placed);
        // If it is not there any more there is nothing to unregister.
        let _ = self.mover.userfault().unregister(range);
        result.map(|()| placed)
    }

    fn fill_registered(
        &mut self,
        range: VirtRange,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
        placed: &mut Placed,
    ) -> Result<(), PoolError> {
        let mut rest = range;
        while let Ok(Some(mut holes)) = self.mover.own().next_holes(rest) {
            rest.start = holes.end;
            while !holes.is_empty() {
                let pages = usize::try_from(holes.len().whole_pages().0).unwrap_or(1);
                if let Err(error) = self.pool.provide(walk, 1, oracle) {
                    if placed.placed.0 == 0 {
                        return Err(error);
                    }
                    placed.refuse(Refusal::NoPage, holes.len().whole_pages().0);
                    placed.refuse(Refusal::NoPage, self.holes_in(rest));
                    return Ok(());
                }
                let Some(run) = self.pool.take_run(walk, pages.min(LONGEST)) else {
                    break;
                };
                let moved = self.fill_run(holes.start, &run, walk);
                placed.placed.0 += moved.pages as u64;
                holes.start = page_after(holes.start, moved.pages);
                let Some(errno) = moved.error else { continue };
                if matches!(errno, Errno::EXIST | Errno::AGAIN | Errno::BUSY) {
                    // Somebody touched the hole before we came.
                    if errno != Errno::EXIST {
                        placed.refuse(Refusal::Other, 1);
                    }
                    holes.start = page_after(holes.start, 1);
                    continue;
                }
                let why = match errno {
                    Errno::INVAL => obstacle_at(holes.start),
                    Errno::NOENT => Refusal::Changed,
                    _ => Refusal::Other,
                };
                let left = holes.len().whole_pages().0 + self.holes_in(rest);
                placed.refuse(why, left);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Moves a run of the pool into holes from `to` on; what could not be moved goes back to the pool.
    fn fill_run(&mut self, to: VirtAddr, run: &Run, walk: &Walk) -> Moved {
        let what = Move {
            to,
            from: run.start.start(),
            pages: run.pages,
        };
        // SAFETY: the pages are the pool's and zero, as a hole is.
        let moved = unsafe { self.mover.run(what, Ours::From) };
        self.pool.put_back_rest(run, moved.pages, walk);
        moved
    }

    fn holes_in(&self, mut range: VirtRange) -> u64 {
        let mut pages = 0;
        while let Ok(Some(holes)) = self.mover.own().next_holes(range) {
            pages += holes.len().whole_pages().0;
            range.start = holes.end;
        }
        pages
    }
}

pub(super) const fn page_after(at: VirtAddr, pages: usize) -> VirtAddr {
    VirtAddr(at.0.saturating_add(pages as u64 * BASE_PAGE_SIZE))
}
