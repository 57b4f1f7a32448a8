//! Painter for real caches: it measures colors by timing, and moves pages from a pool.

use std::path::{Path, PathBuf};

use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::oracles::{
    HardwareProbe, LocalOracle, MeasuredOracle, Oracle, OracleError, PaletteConfig,
};
use superhue_color::place::{PlacementCounts, Placer, Pool, PoolConfig, Refusal};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, ColorSet, VirtRange};

use crate::BenchError;
use crate::buffer::Buffer;
use crate::machine::CacheLevel;
use crate::painter::{FillCounts, Painter};

/// Memory in which colors are searched, as a multiple of the cache: every color should have several times the pages
/// that fill its sets.
const SEARCHED: u64 = 16;
/// Bytes that the pool fills and classifies at a time.
const CHUNK: ByteCount = ByteCount(4 << 20);
/// Largest pool. A working set of one half of the colors needs twice its pages; the largest here is a few times 10 MiB.
const LIMIT: ByteCount = ByteCount(256 << 20);

/// Places pages of this process by measured colors.
#[derive(Debug)]
pub struct Colors {
    placer: Placer,
    oracle: MeasuredOracle<HardwareProbe>,
    /// Memory of the pages of a private palette; empty with the shared one.
    _memory: Option<Buffer>,
}

impl Colors {
    /// Opens the palette that all processes share, or finds the colors of `cache` on the CPU to which the calling
    /// thread is pinned.
    ///
    /// # Errors
    /// If there is no clock, timing shows no colors, or pages cannot be moved (Linux before 6.8, userfaultfd
    /// forbidden).
    pub fn find(cache: &CacheLevel) -> Result<Self, BenchError> {
        let lacking = |error| BenchError::during("no memory to find colors in", error);
        let mut memory = Buffer::new(ByteCount(cache.bytes * SEARCHED)).map_err(lacking)?;
        // Advice may fail: a kernel without huge pages has none to keep away.
        let _ = memory.advise_superpages(memory.mapped(), false);
        memory.touch();
        let range = memory.range();
        let starts = (range.start.0..range.end.0).step_by(BASE_PAGE_SIZE as usize);
        // SAFETY: the pages are those of `memory`, which lives for as long as a palette refers to them.
        let pages = starts.filter_map(|start| unsafe { Page::at(usize::try_from(start).ok()?) });
        let pages: Vec<Page> = pages.collect();

        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let mut config = PaletteConfig::new(Path::new("/"), runtime_dir.as_deref());
        config.search.ways = cache.ways.and_then(|ways| u32::try_from(ways).ok());
        let found = LocalOracle::open(&config, &pages)
            .map_err(|error: OracleError| BenchError(error.to_string()))?;
        let pool = PoolConfig {
            chunk: CHUNK,
            limit: LIMIT,
            locked: false,
        };
        let pool = Pool::new(pool, found.oracle.colors());
        let placer = Placer::new(pool).map_err(|error| {
            BenchError::during("pages cannot be moved (UFFDIO_MOVE, Linux 6.8)", error)
        })?;
        Ok(Self {
            placer,
            oracle: found.oracle,
            _memory: found.shared.is_none().then_some(memory),
        })
    }
}

impl Painter for Colors {
    fn colors(&self) -> usize {
        self.oracle.colors()
    }

    fn oracle(&self) -> String {
        self.oracle.kind().name().to_owned()
    }

    fn fill(
        &mut self,
        range: VirtRange,
        set: &ColorSet,
        start: usize,
    ) -> Result<FillCounts, BenchError> {
        let mut walk = Walk::new(set, start);
        let placed = self.placer.fill(range, &mut walk, &mut self.oracle);
        // The colors may have changed, and those of the pages in the pool with them.
        let is_whole = placed
            .as_ref()
            .is_ok_and(|placed| !placed.refused.contains_key(&Refusal::NoPage));
        if !is_whole {
            self.placer.pool().release();
        }
        let placed =
            placed.map_err(|error| BenchError::during("no page could be placed", error))?;
        Ok(filled(&placed))
    }
}

fn filled(placed: &PlacementCounts) -> FillCounts {
    let refused = placed
        .refused
        .iter()
        .map(|(why, pages)| (why.name().to_owned(), pages.0));
    FillCounts {
        placed: placed.placed.0 + placed.already.0,
        refused: refused.collect(),
        ..FillCounts::default()
    }
}
