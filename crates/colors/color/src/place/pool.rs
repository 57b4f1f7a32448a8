//! Private anonymous pages of our own, sorted by color.
//!
//! ```text
//!   chunk   |5|1|-|7|?|2|0|-|3|1|...    -  moved away     ?  color not sure
//!            each color knows its places; the longest stretch that follows a walk is found from there
//! ```
//!
//! Pages are filled with zeroes by the kernel and only ever read (by the oracle), so they are still zero when they are moved to
//! a hole. Pages of unwanted colors are kept until the limit is reached: if given back, they would be the very ones that the
//! kernel hands out next.

mod chunk;

use std::time::Duration;

use rustix::io::Errno;
use superhue_model::{ByteCount, Color, PageCount};
use superhue_sys::frames::Grain;

use self::chunk::{Chunk, Slot};
use crate::Page;
use crate::choice::Walk;
use crate::oracles::{Oracle, OracleError};

/// Size limits of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolConfig {
    /// Memory mapped, classified and filled at a time.
    pub chunk: ByteCount,
    /// Most resident memory. To fill memory from `k` of `n` colors, `n / k` times the memory must pass through.
    pub limit: ByteCount,
    /// Keep the pages in memory (`mlock`): for destinations that are locked, which need it.
    pub locked: bool,
}

/// Reason why a pool has no page.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No memory.
    #[error("no memory for the pool: {0}")]
    Memory(Errno),
    /// The limit is reached, and no page of the wanted colors is left.
    #[error("the pool holds {0}, as much as it may, and nothing of the colors wanted")]
    Limit(ByteCount),
    /// The oracle failed.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

/// Consecutive pages whose colors follow a walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first.
    pub start: Page,
    /// Number of pages.
    pub pages: usize,
    /// The color of the first. That of each other is the one that follows in the walk.
    pub color: Color,
}

/// An index in a chunk. May be out of date: check the slot.
#[derive(Debug, Clone, Copy)]
struct Place {
    chunk: usize,
    index: usize,
}

/// Zeroed private anonymous pages, sorted by color; never handed to forks (`MADV_DONTFORK`).
#[derive(Debug)]
pub struct Pool {
    config: PoolConfig,
    chunks: Vec<Chunk>,
    by_color: Vec<Vec<Place>>,
    counts: Vec<usize>,
    unsure: usize,
}

/// Places that are tried as the start of a run. With random colors, two in a row fit in one of 32 cases.
const BEGINNINGS: usize = 8;

/// Attempts to get frames of other colors by giving all others back.
const EXCHANGES: usize = 2;

impl Pool {
    /// An empty pool for an oracle with `colors` colors.
    #[must_use]
    pub fn new(config: PoolConfig, colors: usize) -> Self {
        Self {
            config,
            chunks: Vec::new(),
            by_color: vec![Vec::new(); colors],
            counts: vec![0; colors],
            unsure: 0,
        }
    }

    /// Returns the configuration that it was made with.
    #[must_use]
    pub const fn config(&self) -> PoolConfig {
        self.config
    }

    /// Changes the most resident memory. A pool that holds more keeps it, and gets no further pages.
    pub const fn set_limit(&mut self, limit: ByteCount) {
        self.config.limit = limit;
    }

    /// Populates another chunk, or one that is mostly empty, and classifies its pages.
    ///
    /// # Errors
    /// See [`PoolError`].
    pub fn refill(&mut self, oracle: &mut dyn Oracle) -> Result<(), PoolError> {
        let at = self.chunk_to_fill(oracle.wants_huge_pages())?;
        let result = match self.chunks.get_mut(at) {
            Some(chunk) => fill(chunk, oracle),
            None => Ok(Vec::new()),
        };
        let filled = result?;
        // The first place comes last, so that it is taken first: long runs start there.
        for (index, color) in filled.into_iter().rev() {
            let known = color.filter(|color| usize::from(color.0) < self.by_color.len());
            let slot = known.map_or(Slot::Unsure, Slot::Of);
            if let Some(chunk) = self.chunks.get_mut(at) {
                chunk.set(index, slot);
            }
            match known {
                Some(color) => self.list(color, Place { chunk: at, index }),
                None => self.unsure += 1,
            }
        }
        Ok(())
    }

    /// Ensures that the pool has the next `pages` colors that `walk` wants, else any that it allows.
    ///
    /// # Errors
    /// If the pool has none of them, and can get none. See [`PoolError`].
    pub fn provide(
        &mut self,
        walk: &Walk,
        pages: usize,
        oracle: &mut dyn Oracle,
    ) -> Result<(), PoolError> {
        let mut exchanges = 0;
        while self.lacks(walk, pages) {
            match self.refill(oracle) {
                Ok(()) => {}
                Err(_) if walk.preferences().any(|color| self.count(color) > 0) => return Ok(()),
                Err(PoolError::Limit(_)) if exchanges < EXCHANGES => {
                    exchanges += 1;
                    self.discard(|color| walk.allows(color));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Returns true if some of the next `pages` pages of the walk would have to take another color than theirs.
    fn lacks(&self, walk: &Walk, pages: usize) -> bool {
        let colors = walk.preferences().count().max(1);
        let mut wanted = walk.preferences().enumerate();
        wanted.any(|(later, color)| self.count(color) < (pages + colors - 1 - later) / colors)
    }

    /// Takes a page of this color, if there is one. The caller then reports its fate: [`moved`](Self::moved),
    /// [`put_back`](Self::put_back) or [`scrap`](Self::scrap). Until then its place is not filled again.
    pub fn take(&mut self, color: Color) -> Option<Page> {
        loop {
            let place = self.by_color.get_mut(usize::from(color.0))?.pop()?;
            if let Some(page) = self.vacate(place, color) {
                return Some(page);
            }
        }
    }

    /// Takes at most `most` consecutive pages whose colors follow `walk`, and advances `walk` past them. Takes one page
    /// if it finds no longer stretch quickly, of the available color that the walk prefers.
    pub fn take_run(&mut self, walk: &mut Walk, most: usize) -> Option<Run> {
        let color = walk.preferences().find(|color| self.count(*color) > 0)?;
        self.forget_taken(color);
        let best = self
            .beginnings(color)
            .map(|place| (place, self.length_from(place, color, walk, most)))
            .max_by_key(|(_, length)| *length);
        let Some((place, length)) = best.filter(|(_, length)| *length > 1) else {
            let start = self.take(color)?;
            walk.placed(color);
            return Some(Run {
                start,
                pages: 1,
                color,
            });
        };
        let start = self.chunks.get(place.chunk)?.page(place.index)?;
        for index in place.index..place.index + length {
            let chunk = place.chunk;
            if let Slot::Of(color) = self.slot(Place { chunk, index }) {
                self.vacate(Place { chunk, index }, color);
                walk.placed(color);
            }
        }
        Some(Run {
            start,
            pages: length,
            color,
        })
    }

    /// Records that `pages` taken pages from `first` on have been moved into the program's memory.
    pub fn moved(&mut self, first: Page, pages: usize) {
        if let Some(place) = self.place_of(first)
            && let Some(chunk) = self.chunks.get_mut(place.chunk)
        {
            for index in place.index..place.index + pages {
                if chunk.slot(index) == Slot::Taken {
                    chunk.set(index, Slot::Empty);
                }
            }
        }
    }

    /// Takes back a page that was taken and neither moved nor written.
    pub fn put_back(&mut self, page: Page, color: Color) {
        if let Some(place) = self.place_of(page)
            && let Some(chunk) = self.chunks.get_mut(place.chunk)
            && chunk.slot(place.index) == Slot::Taken
        {
            chunk.set(place.index, Slot::Of(color));
            self.list(color, place);
        }
    }

    /// Takes back a run except for its first `moved` pages, which were moved. `walk` is the walk that the run was taken for.
    pub fn put_back_rest(&mut self, run: &Run, moved: usize, walk: &Walk) {
        self.moved(run.start, moved.min(run.pages));
        let Some(first) = self.place_of(run.start).filter(|_| moved < run.pages) else {
            return;
        };
        let mut color = Some(run.color);
        for offset in 0..run.pages {
            let Some(of_page) = color else { return };
            let chunk = self.chunks.get(first.chunk);
            let page = chunk.and_then(|chunk| chunk.page(first.index + offset));
            if let Some(page) = page.filter(|_| offset >= moved) {
                self.put_back(page, of_page);
            }
            color = walk.following(of_page);
        }
    }

    /// Gives back to the kernel a page that was taken and written, but not moved.
    pub fn scrap(&mut self, page: Page) {
        if let Some(place) = self.place_of(page) {
            self.scrap_at(place);
        }
    }

    /// Gives back to the kernel the page at index `at` of a run that was taken, but not moved.
    pub fn scrap_of(&mut self, run: &Run, at: usize) {
        if let Some(first) = self.place_of(run.start).filter(|_| at < run.pages) {
            self.scrap_at(Place {
                index: first.index + at,
                ..first
            });
        }
    }

    fn scrap_at(&mut self, place: Place) {
        if let Some(chunk) = self.chunks.get_mut(place.chunk)
            && chunk.slot(place.index) == Slot::Taken
        {
            chunk.discard_at(place.index);
        }
    }

    /// Number of pages of this color.
    #[must_use]
    pub fn count(&self, color: Color) -> usize {
        let count = self.counts.get(usize::from(color.0));
        count.copied().unwrap_or(0)
    }

    /// Number of pages in the pool, of any color or of an unknown one.
    #[must_use]
    pub fn held(&self) -> PageCount {
        PageCount((self.counts.iter().sum::<usize>() + self.unsure) as u64)
    }

    /// Gives back to the kernel the pages whose colors are not to be kept, and those of unknown color.
    pub fn discard(&mut self, keep: impl Fn(Color) -> bool) {
        for chunk in &mut self.chunks {
            chunk.discard(|slot| !matches!(slot, Slot::Of(color) if keep(color)));
        }
        self.sort_again();
    }

    /// Gives pages back to the kernel until at most `keep` are held: whole chunks, those with the fewest pages first.
    pub fn trim(&mut self, keep: PageCount) {
        self.chunks
            .sort_unstable_by_key(|chunk| std::cmp::Reverse(chunk.len() - chunk.empty()));
        let mut held = self.held().0;
        while held > keep.0
            && let Some(chunk) = self.chunks.pop()
        {
            held = held.saturating_sub((chunk.len() - chunk.empty()) as u64);
        }
        self.chunks.retain(|chunk| chunk.empty() < chunk.len());
        self.sort_again();
    }

    /// Gives back to the kernel the pages that were classified longer than `age` ago.
    pub fn forget_older(&mut self, age: Duration) {
        let mut is_any = false;
        for chunk in &mut self.chunks {
            if chunk.age() > age {
                is_any |= chunk.discard(|_| true) > 0;
            }
        }
        if is_any {
            self.sort_again();
        }
    }

    /// Gives all pages back to the kernel.
    pub fn release(&mut self) {
        self.chunks.clear();
        self.sort_again();
    }

    /// Returns the chunk with the most empty places, if that is half of them; else a new one.
    fn chunk_to_fill(&mut self, huge_pages: bool) -> Result<usize, PoolError> {
        let limit = self.config.limit;
        let emptiest = (self.chunks.iter().enumerate())
            .max_by_key(|(_, chunk)| chunk.empty())
            .filter(|(_, chunk)| !huge_pages && chunk.empty() * 2 >= chunk.len());
        // Pages that were taken may be put back.
        let resident: usize = (self.chunks.iter())
            .map(|chunk| chunk.len() - chunk.empty())
            .sum();
        let fits = |places: usize| (resident + places) as u64 <= limit.whole_pages().0;
        if let Some((at, chunk)) = emptiest {
            return if fits(chunk.empty()) {
                Ok(at)
            } else {
                Err(PoolError::Limit(limit))
            };
        }
        if huge_pages {
            // The rest of a broken huge page never becomes one again: such a chunk is dropped once it is empty.
            let before = self.chunks.len();
            self.chunks.retain(|chunk| chunk.empty() < chunk.len());
            if self.chunks.len() < before {
                self.sort_again();
            }
        }
        let grain = if huge_pages {
            Grain::Super
        } else {
            Grain::Base
        };
        // A smaller chunk if the limit requires it.
        let length = ByteCount(self.config.chunk.0.min(limit.0));
        let chunk = Chunk::map(length, grain, self.config.locked).map_err(PoolError::Memory)?;
        if !fits(chunk.len()) {
            return Err(PoolError::Limit(limit));
        }
        self.chunks.push(chunk);
        Ok(self.chunks.len() - 1)
    }

    /// Drops places from the end of the list whose pages runs have taken meanwhile.
    fn forget_taken(&mut self, color: Color) {
        while let Some(place) = self.last_place(color) {
            if self.slot(place) == Slot::Of(color) {
                break;
            }
            if let Some(places) = self.by_color.get_mut(usize::from(color.0)) {
                places.pop();
            }
        }
    }

    fn last_place(&self, color: Color) -> Option<Place> {
        self.by_color.get(usize::from(color.0))?.last().copied()
    }

    /// Valid places of this color, in the order in which they are taken.
    fn beginnings(&self, color: Color) -> impl Iterator<Item = Place> + '_ {
        let places = self.by_color.get(usize::from(color.0));
        let places = places.into_iter().flatten().rev();
        places
            .copied()
            .filter(move |place| self.slot(*place) == Slot::Of(color))
            .take(BEGINNINGS)
    }

    /// Number of consecutive pages from `place`, which has `color`, whose colors follow the walk; at most `most`.
    fn length_from(&self, place: Place, color: Color, walk: &Walk, most: usize) -> usize {
        let mut wanted = color;
        let mut length = 0;
        while length < most {
            let index = place.index + length;
            if self.slot(Place { index, ..place }) != Slot::Of(wanted) {
                break;
            }
            length += 1;
            match walk.following(wanted) {
                Some(next) => wanted = next,
                None => break,
            }
        }
        length
    }

    fn slot(&self, place: Place) -> Slot {
        let chunk = self.chunks.get(place.chunk);
        chunk.map_or(Slot::Empty, |chunk| chunk.slot(place.index))
    }

    /// Takes the page out of its place, if it has that color.
    fn vacate(&mut self, place: Place, color: Color) -> Option<Page> {
        let chunk = self.chunks.get_mut(place.chunk)?;
        if chunk.slot(place.index) != Slot::Of(color) {
            return None;
        }
        chunk.set(place.index, Slot::Taken);
        if let Some(count) = self.counts.get_mut(usize::from(color.0)) {
            *count = count.saturating_sub(1);
        }
        chunk.page(place.index)
    }

    fn list(&mut self, color: Color, place: Place) {
        let color = usize::from(color.0);
        if let Some(places) = self.by_color.get_mut(color) {
            places.push(place);
        }
        if let Some(count) = self.counts.get_mut(color) {
            *count += 1;
        }
    }

    fn place_of(&self, page: Page) -> Option<Place> {
        (self.chunks.iter().enumerate()).find_map(|(at, chunk)| {
            let index = chunk.index_of(page)?;
            Some(Place { chunk: at, index })
        })
    }

    /// Lists every page again, after places or chunks have changed in bulk.
    fn sort_again(&mut self) {
        for (places, count) in self.by_color.iter_mut().zip(&mut self.counts) {
            places.clear();
            *count = 0;
        }
        self.unsure = 0;
        for at in (0..self.chunks.len()).rev() {
            let length = self.chunks.get(at).map_or(0, Chunk::len);
            for index in (0..length).rev() {
                let place = Place { chunk: at, index };
                match self.slot(place) {
                    Slot::Of(color) => self.list(color, place),
                    Slot::Unsure => self.unsure += 1,
                    Slot::Empty | Slot::Taken => {}
                }
            }
        }
    }
}

/// Populates the empty places of `chunk`, and finds the colors of the new pages.
fn fill(
    chunk: &mut Chunk,
    oracle: &mut dyn Oracle,
) -> Result<Vec<(usize, Option<Color>)>, PoolError> {
    let empty = (0..chunk.len()).filter(|index| chunk.slot(*index) == Slot::Empty);
    let places: Vec<(usize, Page)> = empty
        .filter_map(|index| Some((index, chunk.page(index)?)))
        .collect();
    chunk.populate().map_err(PoolError::Memory)?;
    let pages: Vec<Page> = places.iter().map(|(_, page)| *page).collect();
    let mut colors = vec![None; pages.len()];
    if let Err(error) = oracle.classify(&pages, &mut colors) {
        for (index, _) in places {
            chunk.set(index, Slot::Unsure);
            chunk.discard_at(index);
        }
        return Err(error.into());
    }
    let indices = places.into_iter().map(|(index, _)| index);
    Ok(indices.zip(colors).collect())
}
