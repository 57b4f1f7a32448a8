//! Moving classified pages to where they are wanted.

use std::collections::BTreeMap;

use rustix::io::Errno;
use superhue_model::{PageCount, VirtRange};

use super::{Pool, PoolError};
use crate::decide::Walk;
use crate::observe::Oracle;

/// Why a page was left where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The pool has no page of the colors wanted.
    NoPage,
    /// Shared with another process since a fork, or pinned for I/O (`EBUSY`).
    SharedOrPinned,
    /// Locked while the pool is not, or the other way round.
    Locked,
    /// Not private anonymous memory.
    NotAnonymous,
    /// Part of a superpage.
    Superpage,
    /// The mapping went away or changed meanwhile.
    Changed,
    /// The oracle is not sure of its color.
    Unsure,
    /// Something else.
    Other,
}

/// What became of the pages of a range.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Placed {
    /// Now on a page of a wanted color.
    pub placed: PageCount,
    /// They were already.
    pub already: PageCount,
    /// Left as they were, by reason.
    pub refused: BTreeMap<Refusal, PageCount>,
}

/// Places memory of this process.
#[derive(Debug)]
pub struct Placer {
    pool: Pool,
}

impl Placer {
    /// With a userfaultfd of its own, which is told of no faults.
    ///
    /// # Errors
    /// Those of `userfaultfd(2)`; `ENOTTY` where the kernel has no `UFFDIO_MOVE`.
    pub fn new(pool: Pool) -> Result<Self, Errno> {
        Ok(Self { pool })
    }

    /// Its pool.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Fills the holes of `range` with pages of the colors of `walk`, in the longest runs that fit.
    ///
    /// # Errors
    /// See [`PoolError`]: when no page could be had at all.
    pub fn fill(
        &mut self,
        _range: VirtRange,
        _walk: &mut Walk,
        _oracle: &mut dyn Oracle,
    ) -> Result<Placed, PoolError> {
        Ok(Placed::default())
    }
}
