//! What the thread works with: an oracle, a pool, and what places pages.

use std::sync::atomic::Ordering::Relaxed;

use rustix::event::Timespec;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use superhue_color::act::{
    Access, FaultServer, Keep, Placed, Placer, Pool, PoolConfig, PoolError, Replace, ReplaceError,
    Replaced, Served, Unguarded,
};
use superhue_color::decide::Walk;
use superhue_color::observe::Oracle;
use superhue_mailbox::{
    Aside, COLOR_STRICT, ORACLE_DEALT, ORACLE_DRIFTING, ORACLE_FRAMES, ORACLE_MEASURED, ORACLE_POOR,
};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorSet, VirtRange};

use super::oracle::{Dealt, Drifting, Frames};
use crate::raw::Shared;

/// Pages classified at a time: as many as one batch of tests takes.
const CHUNK_PAGES: u64 = 256;

/// Pages of the program that are out at the same time. Threads that touch them wait for all.
const BATCH: usize = 16;

/// Pages filled ahead of a program that touches memory page by page: 128 KiB that it may not need after all.
const AHEAD: usize = 32;

/// See the module.
pub(super) struct Tools {
    oracle: Box<dyn Oracle>,
    placer: Placer,
    /// Tells of page faults; `None` where that is not permitted.
    server: Option<FaultServer>,
    walk: Walk,
    /// Whether a page's color means anything: not in some tests.
    pub(super) can_check: bool,
}

impl Tools {
    /// Makes everything that `mailbox` asks for.
    ///
    /// # Errors
    /// Why memory cannot be placed here.
    pub(super) fn new(mailbox: Shared, pid: u32) -> Result<Self, Aside> {
        let header = mailbox.color();
        let colors = u16::try_from(header.colors.load(Relaxed)).map_err(|_| Aside::Failed)?;
        let words: Vec<u64> = header.set.iter().map(|word| word.load(Relaxed)).collect();
        let set = ColorSet::from_words(&words, usize::from(colors)).ok_or(Aside::Failed)?;
        let kind = header.oracle.load(Relaxed);
        let oracle: Box<dyn Oracle> = match kind {
            ORACLE_MEASURED => super::oracle::measured(mailbox, colors)?,
            ORACLE_FRAMES => Box::new(Frames::new(open_own(c"/proc/thread-self/pagemap")?, colors)),
            ORACLE_DRIFTING => Box::new(Drifting::new(
                open_own(c"/proc/thread-self/pagemap")?,
                colors,
            )),
            ORACLE_DEALT => Box::new(Dealt::new(colors, colors)),
            ORACLE_POOR => Box::new(Dealt::new(colors, colors.saturating_sub(1))),
            _ => return Err(Aside::Failed),
        };
        let config = PoolConfig {
            chunk: ByteCount(CHUNK_PAGES * BASE_PAGE_SIZE),
            limit: ByteCount(header.pool_pages.load(Relaxed) * BASE_PAGE_SIZE),
            locked: false,
        };
        let pool = Pool::new(config, usize::from(colors)).of_one_set();
        let placer = Placer::new(pool).map_err(|_| Aside::NoUserfaultfd)?;
        let strict = header.flags.load(Relaxed) & COLOR_STRICT != 0;
        let seed = header.seed.load(Relaxed) ^ u64::from(pid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = usize::try_from(seed >> 33).unwrap_or(0);
        Ok(Self {
            oracle,
            placer,
            server: FaultServer::new(strict).ok().map(|mut server| {
                server.fill_ahead(AHEAD);
                server
            }),
            walk: Walk::new(&set, start),
            can_check: !matches!(kind, ORACLE_DEALT | ORACLE_POOR),
        })
    }

    /// Whether it is told of page faults.
    pub(super) const fn sees_faults(&self) -> bool {
        self.server.is_some()
    }

    /// Readable when a fault waits.
    pub(super) fn faults(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().map(AsFd::as_fd)
    }

    /// Memory that is not the program's.
    pub(super) fn own_ranges(&mut self) -> Vec<VirtRange> {
        let staging = self.placer.staging_range();
        self.placer.pool().ranges().chain(staging).collect()
    }

    /// Pages that the pool may hold.
    pub(super) fn pool_pages(&mut self) -> u64 {
        self.placer.pool().config().limit.whole_pages().0
    }

    /// Pages that the pool holds.
    pub(super) fn pool_held(&mut self) -> u64 {
        self.placer.pool().held().0
    }

    /// Gives all pages of the pool back, for it is idle.
    pub(super) fn release_pool(&mut self) {
        self.placer.pool().release();
    }

    /// Fills the holes of `range`.
    pub(super) fn fill(&mut self, range: VirtRange) -> Result<Placed, PoolError> {
        self.placer.fill(range, &mut self.walk, &mut *self.oracle)
    }

    /// From now on holes of `range` are filled when they are touched.
    pub(super) fn arm(&mut self, range: VirtRange) -> Result<(), Errno> {
        match &mut self.server {
            Some(server) => server.register(range),
            None => Err(Errno::PERM),
        }
    }

    /// Answers the faults that wait.
    pub(super) fn serve(&mut self) -> Result<Served, Errno> {
        let Some(server) = &mut self.server else {
            return Ok(Served::default());
        };
        let at_once = Some(Timespec::default());
        let pool = self.placer.pool();
        server.serve(pool, &mut self.walk, &mut *self.oracle, at_once)
    }

    /// Moves pages in use to wanted colors unless they are on some already.
    pub(super) fn replace(&mut self, range: VirtRange) -> Result<Replaced, ReplaceError> {
        let Some(server) = &mut self.server else {
            return Err(ReplaceError::Userfault(Errno::PERM));
        };
        let how = Replace {
            access: Access::Shared,
            keep: Keep::Allowed,
            batch: BATCH,
        };
        // A range is watched by one userfaultfd at a time.
        let was_armed = server.unregister(range).is_ok();
        let oracle = &mut *self.oracle;
        let replaced = self
            .placer
            .replace(range, &mut self.walk, oracle, &mut Unguarded, how);
        if was_armed {
            // Fails where nothing is mapped any more.
            let _ = server.register(range);
        }
        replaced
    }
}

/// Opens a file about this process for reading.
pub(super) fn open_own(path: &std::ffi::CStr) -> Result<OwnedFd, Aside> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|_| Aside::Failed)
}
