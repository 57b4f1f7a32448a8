//! Fills holes with classified pages.
//!
//! A hole of private anonymous memory reads as zeroes, and the pages of a pool are zero: the program sees no difference
//! when one replaces the other, so holes are filled under a running program without further care.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};
use superhue_sys::userfaultfd::{FEATURE_MOVE, Userfault};

use super::mapping::obstacle_at;
use super::mover::{Move, MoveResult, Mover};
use super::{PlacementCounts, Pool, PoolError, Refusal, Run};
use crate::choice::Walk;
use crate::oracles::Oracle;

/// Most pages moved by one call: other threads' faults in the mapping wait for it.
const MAX_PAGES_PER_MOVE: usize = 512;

/// Pages of the pool in a row that the kernel may refuse to move (KSM merged them, or a device holds them).
const MAX_HELD_PAGES: usize = 64;

/// Places memory of this process.
#[derive(Debug)]
pub struct Placer {
    pool: Pool,
    mover: Mover,
}

impl Placer {
    /// Opens a userfaultfd of its own, which receives no faults.
    ///
    /// # Errors
    /// Errors of `userfaultfd(2)`; `ENOTTY` where the kernel has no `UFFDIO_MOVE`; `ENOENT`, `EACCES` without `/proc`.
    pub fn new(pool: Pool) -> Result<Self, Errno> {
        let userfault = Userfault::open()?;
        if userfault.handshake()? & FEATURE_MOVE == 0 {
            return Err(Errno::NOTTY);
        }
        Ok(Self {
            pool,
            mover: Mover::new(userfault)?,
        })
    }

    /// Returns the pool that pages are taken from.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Fills the holes of `range`, whole pages of one mapping, with pages of the colors of `walk`, in the longest runs
    /// that fit. The mapping may be in use. Until this returns, the mapping is split at the ends of the range; nothing
    /// else of it changes.
    ///
    /// # Errors
    /// If no page was available at all. See [`PoolError`].
    pub fn fill(
        &mut self,
        range: VirtRange,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
    ) -> Result<PlacementCounts, PoolError> {
        let mut placed = PlacementCounts::default();
        if range.is_empty() {
            return Ok(placed);
        }
        if let Err(errno) = self.mover.userfault().register(range) {
            let why = Refusal::of_registering(errno);
            placed.refuse(why, range.len().whole_pages().0);
            return Ok(placed);
        }
        let result = self.fill_registered(range, walk, oracle, &mut placed);
        // If the range no longer exists, there is nothing to unregister.
        let _ = self.mover.userfault().unregister(range);
        result.map(|()| placed)
    }

    fn fill_registered(
        &mut self,
        range: VirtRange,
        walk: &mut Walk,
        oracle: &mut dyn Oracle,
        placed: &mut PlacementCounts,
    ) -> Result<(), PoolError> {
        let mut rest = range;
        let mut held = 0;
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
                let Some(run) = self.pool.take_run(walk, pages.min(MAX_PAGES_PER_MOVE)) else {
                    break;
                };
                let moved = self.fill_run(holes.start, &run, walk);
                placed.placed.0 += moved.pages as u64;
                holes.start = page_after(holes.start, moved.pages);
                if moved.pages > 0 {
                    held = 0;
                }
                let Some(errno) = moved.error else { continue };
                // The page of the pool cannot be moved, and is no part of the pool any more.
                if errno == Errno::BUSY && held < MAX_HELD_PAGES {
                    held += 1;
                    continue;
                }
                if matches!(errno, Errno::EXIST | Errno::AGAIN) {
                    // The program touched the hole first.
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

    /// Moves a run of the pool into holes from `to` on; pages that could not be moved go back to the pool.
    fn fill_run(&mut self, to: VirtAddr, run: &Run, walk: &Walk) -> MoveResult {
        let what = Move {
            to,
            from: run.start.start(),
            pages: run.pages,
        };
        // SAFETY: the pages are the pool's and zero, as a hole is.
        let moved = unsafe { self.mover.run(what) };
        // `EBUSY` is about the source: it is pinned, or shared (`UFFDIO_MOVE(2const)`).
        if moved.error == Some(Errno::BUSY) {
            self.pool.scrap_of(run, moved.pages);
        }
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

const fn page_after(at: VirtAddr, pages: usize) -> VirtAddr {
    VirtAddr(at.0.saturating_add(pages as u64 * BASE_PAGE_SIZE))
}
