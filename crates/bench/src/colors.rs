//! The painter that works on real caches: colors by timing, pages moved from a pool.

use rand::SeedableRng;
use rand::rngs::Xoshiro256PlusPlus;
use rand::seq::SliceRandom;
use superhue_color::Page;
use superhue_color::act::{Placed, Placer, Pool, PoolConfig};
use superhue_color::decide::Walk;
use superhue_color::observe::{
    DiscoverError, HardwareProbe, Oracle, OracleError, OracleKind, Palette, Search,
};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, Color, ColorSet, VirtRange};

use crate::Trouble;
use crate::buffer::Buffer;
use crate::machine::CacheLevel;
use crate::painter::{Filled, Painter};

/// Memory in which colors are searched, as a multiple of the cache: every color should have several times the pages
/// that fill its sets.
const SEARCHED: u64 = 16;
/// Filled and classified at a time.
const CHUNK: ByteCount = ByteCount(4 << 20);
/// A working set of one half of the colors needs twice its pages; the largest here is a few times 10 MiB.
const LIMIT: ByteCount = ByteCount(256 << 20);
/// Attempts to find all colors: a neighbour may disturb one.
const ATTEMPTS: usize = 3;

/// Places pages of this process by colors found on the CPU that it runs on.
#[derive(Debug)]
pub struct Colors {
    placer: Placer,
    oracle: Measured,
}

/// Classifies by timing. Keeps the memory that the eviction sets lie in.
#[derive(Debug)]
struct Measured {
    palette: Palette,
    probe: HardwareProbe,
    _memory: Buffer,
}

impl Oracle for Measured {
    fn kind(&self) -> OracleKind {
        OracleKind::Measured
    }

    fn colors(&self) -> usize {
        self.palette.colors()
    }

    fn classify(
        &mut self,
        pages: &[Page],
        colors: &mut [Option<Color>],
    ) -> Result<(), OracleError> {
        self.palette.classify(&mut self.probe, pages, colors);
        Ok(())
    }
}

impl Colors {
    /// Finds the colors of `cache` on the CPU that the calling thread is pinned to.
    ///
    /// # Errors
    /// When there is no clock, timing shows no colors, or pages cannot be moved (Linux before 6.8, userfaultfd forbidden).
    pub fn find(cache: &CacheLevel) -> Result<Self, Trouble> {
        let mut probe = HardwareProbe::new().map_err(|error| Trouble(error.to_string()))?;
        let mut last = Trouble("no attempt to find colors was made".to_owned());
        for seed in 0..ATTEMPTS as u64 {
            match Measured::discover(&mut probe, cache, seed) {
                Ok((palette, memory)) => {
                    let oracle = Measured {
                        palette,
                        probe,
                        _memory: memory,
                    };
                    return Self::with(oracle);
                }
                Err(trouble) => last = trouble,
            }
        }
        Err(last)
    }

    fn with(oracle: Measured) -> Result<Self, Trouble> {
        let config = PoolConfig {
            chunk: CHUNK,
            limit: LIMIT,
            locked: false,
        };
        let pool = Pool::new(config, oracle.colors());
        let placer = Placer::new(pool).map_err(|error| {
            Trouble::during("pages cannot be moved (UFFDIO_MOVE, Linux 6.8)", error)
        })?;
        Ok(Self { placer, oracle })
    }
}

impl Measured {
    fn discover(
        probe: &mut HardwareProbe,
        cache: &CacheLevel,
        seed: u64,
    ) -> Result<(Palette, Buffer), Trouble> {
        let lacking = |error| Trouble::during("no memory to find colors in", error);
        let mut memory = Buffer::new(ByteCount(cache.bytes * SEARCHED)).map_err(lacking)?;
        let _ = memory.advise_superpages(memory.mapped(), false);
        memory.touch();
        let range = memory.range();
        let starts = (range.start.0..range.end.0).step_by(BASE_PAGE_SIZE as usize);
        // SAFETY: the pages are those of `memory`, which is kept for as long as the palette that refers to them.
        let pages = starts.filter_map(|start| unsafe { Page::at(usize::try_from(start).ok()?) });
        let mut pages: Vec<Page> = pages.collect();
        pages.shuffle(&mut Xoshiro256PlusPlus::seed_from_u64(seed));
        let search = Search {
            ways: cache.ways.and_then(|ways| u32::try_from(ways).ok()),
            colors: None,
        };
        let palette = Palette::discover(probe, &pages, &search)
            .map_err(|error: DiscoverError| Trouble(error.to_string()))?;
        Ok((palette, memory))
    }
}

impl Painter for Colors {
    fn colors(&self) -> usize {
        self.oracle.colors()
    }

    fn oracle(&self) -> String {
        self.oracle.kind().name().to_owned()
    }

    fn fill(&mut self, range: VirtRange, set: &ColorSet, start: usize) -> Result<Filled, Trouble> {
        let mut walk = Walk::new(set, start);
        let placed = self
            .placer
            .fill(range, &mut walk, &mut self.oracle)
            .map_err(|error| Trouble::during("no page could be placed", error))?;
        Ok(filled(&placed))
    }
}

fn filled(placed: &Placed) -> Filled {
    let refused = placed
        .refused
        .iter()
        .map(|(why, pages)| (why.name().to_owned(), pages.0));
    Filled {
        placed: placed.placed.0 + placed.already.0,
        refused: refused.collect(),
        ..Filled::default()
    }
}
