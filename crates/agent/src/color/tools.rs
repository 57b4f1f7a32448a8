//! What the thread works with: an oracle, a pool, and what places pages.

use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use superhue_color::act::{Placed, Placer, Pool, PoolConfig, PoolError};
use superhue_color::decide::Walk;
use superhue_color::observe::Oracle;
use superhue_mailbox::{Aside, ORACLE_DEALT, ORACLE_FRAMES, ORACLE_MEASURED};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorSet, VirtRange};

use super::oracle::{Dealt, Frames};
use crate::raw::Shared;

/// Pages classified at a time: as many as one batch of tests takes.
const CHUNK_PAGES: u64 = 256;

/// See the module.
pub(super) struct Tools {
    oracle: Box<dyn Oracle>,
    placer: Placer,
    walk: Walk,
}

impl Tools {
    /// Makes everything that `mailbox` asks for.
    ///
    /// # Errors
    /// Why memory cannot be placed here.
    pub(super) fn new(mailbox: Shared, pid: u32) -> Result<Self, Aside> {
        let header = mailbox.color();
        use std::sync::atomic::Ordering::Relaxed;
        let colors = u16::try_from(header.colors.load(Relaxed)).map_err(|_| Aside::Failed)?;
        let words: Vec<u64> = header.set.iter().map(|word| word.load(Relaxed)).collect();
        let set = ColorSet::from_words(&words, usize::from(colors)).ok_or(Aside::Failed)?;
        let oracle: Box<dyn Oracle> = match header.oracle.load(Relaxed) {
            ORACLE_MEASURED => return Err(Aside::NoPalette),
            ORACLE_FRAMES => Box::new(Frames::new(open_own(c"/proc/thread-self/pagemap")?, colors)),
            ORACLE_DEALT => Box::new(Dealt::new(colors)),
            _ => return Err(Aside::Failed),
        };
        let config = PoolConfig {
            chunk: ByteCount(CHUNK_PAGES * BASE_PAGE_SIZE),
            limit: ByteCount(header.pool_pages.load(Relaxed) * BASE_PAGE_SIZE),
            locked: false,
        };
        let pool = Pool::new(config, usize::from(colors));
        let placer = Placer::new(pool).map_err(|_| Aside::NoUserfaultfd)?;
        let seed = header.seed.load(Relaxed) ^ u64::from(pid).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let start = usize::try_from(seed >> 33).unwrap_or(0);
        Ok(Self {
            oracle,
            placer,
            walk: Walk::new(&set, start),
        })
    }

    /// 1 if it is told of page faults, 2 if not.
    pub(super) fn mode(&self) -> u32 {
        2
    }

    /// Memory that is not the program's.
    pub(super) fn own_ranges(&mut self) -> Vec<VirtRange> {
        self.placer.pool().ranges().collect()
    }

    /// Pages that the pool may hold.
    pub(super) fn pool_pages(&mut self) -> u64 {
        self.placer.pool().config().limit.whole_pages().0
    }

    /// Fills the holes of `range`.
    pub(super) fn fill(&mut self, range: VirtRange) -> Result<Placed, PoolError> {
        self.placer.fill(range, &mut self.walk, &mut *self.oracle)
    }
}

/// Opens a file about this process for reading.
pub(super) fn open_own(path: &std::ffi::CStr) -> Result<OwnedFd, Aside> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|_: Errno| Aside::Failed)
}
