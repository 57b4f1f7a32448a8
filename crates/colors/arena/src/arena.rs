//! Memory in chosen colors.

use std::alloc::Layout;
use std::collections::BTreeMap;
use std::mem::forget;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use superhue_color::choice::Walk;
use superhue_color::place::{PlacementCounts, Refusal};
use superhue_model::{ByteCount, ColorSet, PageCount, VirtRange};
use superhue_sys::anonymous::AnonymousMemory;

use crate::colors::left_to_us;
use crate::gate::ProcessIdentity;
use crate::heap::{Heap, PAGE};
use crate::place::random_start;
use crate::{ArenaOptions, ColorError, Colors, Placement, Verdict, gate};

/// Minimum number of pages by which an arena grows; the kernel's read-ahead fills at least as many at a time.
const FIRST_CHUNK: usize = 16;
/// Maximum number of pages by which an arena grows in advance.
const LARGEST_CHUNK: usize = 1024;

/// Memory in chosen colors from the first touch on: an allocator.
///
/// ```text
///   chunk of address space <── filled by UFFDIO_MOVE with pages of the colors, in turn ── pool
///     └─ handed out in parts, which are used again once they are given back
/// ```
///
/// While it searches for pages of its colors, the process also holds pages of other colors: at most 1 GiB, an eighth of the
/// machine's available memory, and half of what its control groups leave.
///
/// A handle: clones share the memory, and dropping the last clone returns it to the kernel. Every function
/// may be called in any thread. A thread that frees does not wait for one that searches pages. The bookkeeping lies outside, so every byte of the colored memory is the program's.
///
/// The arena implements `Allocator` of `allocator-api2`, so that `Box`, `Vec` and the maps of `hashbrown` can live in it:
///
/// ```no_run
/// use allocator_api2::vec::Vec;
/// use superhue_arena::{ArenaOptions, ColoredArena, Colors};
///
/// let colors = Colors::open()?;
/// let arena = ColoredArena::new(&colors, &colors.set("0-7")?, ArenaOptions::new().strict(true))?;
/// let mut table: Vec<u64, _> = Vec::with_capacity_in(16 << 10, arena.clone());
/// table.push(1);
/// println!("{:?}", arena.verify()?);
/// # Ok::<(), superhue_arena::ColorError>(())
/// ```
///
/// # Forked children
/// have a working copy. Parent and child share its pages until one of them writes; the writer then gets a copy in a color
/// of the kernel's choice. [`Self::verify`] detects this and [`Self::repair`] mends it; [`ArenaOptions::keep_from_children`]
/// avoids it.
#[derive(Debug, Clone)]
pub struct ColoredArena(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    colors: Colors,
    set: ColorSet,
    options: ArenaOptions,
    process: ProcessIdentity,
    /// Walk over the colors. Its holder adds chunks, which can take seconds. Locked before `state`.
    growth: Mutex<Walk>,
    /// Locked for short times only, so that a thread that frees does not wait for one that adds a chunk.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    heap: Heap,
    /// The chunks, by their first byte.
    memory: BTreeMap<usize, AnonymousMemory>,
    usage: Usage,
}

/// Memory that is to become a part of an arena.
#[derive(Debug)]
struct Chunk {
    memory: AnonymousMemory,
    pages: usize,
    placed: PlacementCounts,
    trouble: Option<ColorError>,
}

/// Memory that an arena holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Usage {
    /// Address space and memory it has from the kernel.
    pub held: ByteCount,
    /// Part of `held` that is handed out.
    pub used: ByteCount,
    /// Pages placed in the arena's colors since it was made.
    pub placed: PageCount,
    /// Pages that the kernel chose instead.
    pub fallback: PageCount,
    /// Reasons for the `fallback` pages, as far as they are known.
    pub refused: BTreeMap<Refusal, PageCount>,
    /// Last error of placing pages in the colors; `None` if there was none.
    pub trouble: Option<String>,
}

impl ColoredArena {
    /// Makes an arena without memory: it grows when something is allocated.
    ///
    /// # Errors
    /// [`ColorError::OtherCache`] for a set that was made for another number of colors.
    pub fn new(colors: &Colors, set: &ColorSet, options: ArenaOptions) -> Result<Self, ColorError> {
        colors.check(set)?;
        let start = options.start.unwrap_or_else(random_start);
        Ok(Self(Arc::new(Inner {
            colors: colors.clone(),
            set: set.clone(),
            options,
            process: ProcessIdentity::own(),
            growth: Mutex::new(Walk::new(set, start)),
            state: Mutex::new(State {
                heap: Heap::new(),
                memory: BTreeMap::new(),
                usage: Usage::default(),
            }),
        })))
    }

    /// Returns the colors of the arena.
    #[must_use]
    pub fn set(&self) -> &ColorSet {
        &self.0.set
    }

    /// Allocates memory of this layout: not initialised, and perhaps larger than the layout. It stays valid until the caller passes it
    /// to [`Self::deallocate`], or drops the arena and all its clones.
    ///
    /// # Errors
    /// [`ColorError::Invalid`] for size 0; [`ColorError::NotInColors`] if the arena is strict; [`ColorError::Memory`],
    /// [`ColorError::Limit`], [`ColorError::NotLocked`], [`ColorError::Child`]. An error leaves nothing allocated.
    pub fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, ColorError> {
        if layout.size() == 0 {
            return Err(ColorError::Invalid("there is no memory of size 0"));
        }
        self.refuse_child()?;
        let _inside = gate::enter();
        if let Some(memory) = self.state().allocate(layout) {
            return Ok(memory);
        }
        // No code under this lock panics in the middle of a change.
        let growth = self.0.growth.lock();
        let mut walk = growth.unwrap_or_else(PoisonError::into_inner);
        // Another thread may have added a chunk, or freed memory, meanwhile.
        if let Some(memory) = self.state().allocate(layout) {
            return Ok(memory);
        }
        let chunk = self.grow(&mut walk, layout)?;
        let mut state = self.state();
        state.add(chunk);
        state.allocate(layout).ok_or(ColorError::TooLarge)
    }

    /// Takes memory back. Returns false if [`Self::allocate`] did not hand it out or it is no longer in use.
    ///
    /// # Safety
    /// No thread uses the memory any more.
    pub unsafe fn deallocate(&self, memory: NonNull<u8>) -> bool {
        let _inside = gate::enter();
        let mut state = self.state();
        let Some(given) = state.heap.free(memory.as_ptr() as usize) else {
            return false;
        };
        state.usage.used.0 = state.usage.used.0.saturating_sub(given.size as u64);
        // Keep one chunk, so that a program that allocates and frees in turn does not place it again each time.
        if let Some(start) = given.emptied
            && state.memory.len() > 1
            && !self.0.is_left_behind()
            && state.heap.remove(start)
            && let Some(chunk) = state.memory.remove(&start)
        {
            state.usage.held.0 -= chunk.range().len().0;
        }
        true
    }

    /// Returns the usable bytes of the object that begins at `memory`; `None` if no object of this arena begins there.
    #[must_use]
    pub fn size_at(&self, memory: NonNull<u8>) -> Option<usize> {
        let _inside = gate::enter();
        self.state().heap.size_at(memory.as_ptr() as usize)
    }

    /// Returns true if an address lies in the arena's memory.
    #[must_use]
    pub fn contains(&self, address: *const u8) -> bool {
        let _inside = gate::enter();
        self.state().heap.contains(address as usize)
    }

    /// Returns the memory that the arena holds.
    #[must_use]
    pub fn usage(&self) -> Usage {
        let _inside = gate::enter();
        self.state().usage.clone()
    }

    /// Returns true if this is the only handle of the arena and nothing is allocated: dropping it changes nothing for the program.
    #[must_use]
    pub fn is_idle(&mut self) -> bool {
        let Some(inner) = Arc::get_mut(&mut self.0) else {
            return false;
        };
        let state = inner
            .state
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        state.usage.used.0 == 0
    }

    /// Tests whether the arena's memory is in its colors. The test is independent: it uses cache lines that classification does not use.
    /// Threads that allocate or free in this arena wait meanwhile.
    ///
    /// # Errors
    /// [`ColorError::Drifted`] when the oracle can no longer classify pages. The arena then continues with pages that the kernel
    /// chooses; a strict arena returns errors.
    pub fn verify(&self) -> Result<Verdict, ColorError> {
        self.refuse_child()?;
        let _inside = gate::enter();
        let state = self.state();
        // SAFETY: the chunks stay mapped while the state is locked.
        unsafe { self.0.colors.verify_ranges(&state.ranges(), &self.0.set) }
    }

    /// Moves pages that are not (or no longer) in the arena's colors onto pages that are: after a fork, or when [`Self::verify`]
    /// found wrong pages. Contents and addresses stay. A locked arena stays as it is.
    ///
    /// # Errors
    /// If no page could be moved at all.
    ///
    /// # Safety
    /// Until this returns no thread touches memory of this arena.
    pub unsafe fn repair(&self) -> Result<Placement, ColorError> {
        self.refuse_child()?;
        let _inside = gate::enter();
        // A thread that frees the last object of a chunk, which touches none of its memory, would unmap the chunk.
        let state = self.state();
        let mut all = Placement::default();
        for range in state.ranges() {
            // SAFETY: the caller's promise; the chunks stay mapped while the state is locked.
            all += unsafe { self.0.colors.place_range(range, &self.0.set)? };
        }
        Ok(all)
    }

    /// Returns true if this is a forked child and the memory stayed with the parent.
    #[must_use]
    pub fn is_left_behind(&self) -> bool {
        self.0.is_left_behind()
    }

    /// Makes a chunk into which `layout` fits.
    fn grow(&self, walk: &mut Walk, layout: Layout) -> Result<Chunk, ColorError> {
        let needed = Heap::pages_for(layout).ok_or(ColorError::TooLarge)?;
        // Only the holder of `growth` adds memory, so it does not grow meanwhile.
        let held = self.state().usage.held;
        // Doubles at first, so that a small arena wastes little and a large one grows rarely.
        let ahead = usize::try_from(held.0).unwrap_or(usize::MAX) / PAGE;
        let ahead = ahead.clamp(FIRST_CHUNK, LARGEST_CHUNK);
        match self.chunk(walk, held, needed.max(ahead)) {
            Err(_) if ahead > needed => self.chunk(walk, held, needed),
            done => done,
        }
    }

    fn chunk(&self, walk: &mut Walk, held: ByteCount, pages: usize) -> Result<Chunk, ColorError> {
        let options = &self.0.options;
        let bytes = pages.checked_mul(PAGE).ok_or(ColorError::TooLarge)?;
        let wanted = ByteCount(bytes as u64);
        if let Some(limit) = options.limit
            && limit.0.saturating_sub(held.0) < wanted.0
        {
            return Err(ColorError::Limit {
                held,
                limit,
                wanted,
            });
        }
        let no_memory = |errno| ColorError::Memory {
            bytes: wanted,
            errno,
        };
        if left_to_us().is_some_and(|free| free.0 < wanted.0) {
            return Err(no_memory(Errno::NOMEM));
        }
        let memory = AnonymousMemory::base_pages(pages).map_err(no_memory)?;
        if options.keep_from_children {
            memory.keep_from_children().map_err(no_memory)?;
        }
        // After `mlockall(MCL_FUTURE)` the kernel has filled it. Pages move only to holes of unlocked memory.
        let locked = memory.unlock_new().map_err(no_memory)? || options.locked;
        let before = walk.clone();
        let (placed, trouble) = self.0.colors.fill(memory.range(), walk);
        if placed.placed.0 < pages as u64 {
            if options.strict {
                *walk = before;
                return Err(not_in_colors(pages, &placed, trouble));
            }
            memory.populate().map_err(no_memory)?;
        }
        if locked {
            let bytes = wanted;
            let not_locked = |errno| ColorError::NotLocked { bytes, errno };
            memory.lock().map_err(not_locked)?;
        }
        Ok(Chunk {
            memory,
            pages,
            placed,
            trouble,
        })
    }

    /// Refuses to work in a child whose memory stayed with the parent.
    fn refuse_child(&self) -> Result<(), ColorError> {
        if self.0.is_left_behind() {
            return Err(ColorError::Child);
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code under this lock panics in the middle of a change.
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Returns true if this is a child and the memory stayed with the parent.
    fn is_left_behind(&self) -> bool {
        self.options.keep_from_children && ProcessIdentity::own() != self.process
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.is_left_behind() {
            // Other memory may lie at these addresses by now: it must not be unmapped.
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            forget(std::mem::take(&mut state.memory));
        }
    }
}

impl State {
    /// Allocates memory of this layout in a chunk; `None` if it fits in none.
    fn allocate(&mut self, layout: Layout) -> Option<NonNull<[u8]>> {
        let (at, usable) = self.heap.allocate(layout)?;
        let (start, memory) = self.memory.range(..=at).next_back()?;
        // SAFETY: the heap hands out addresses inside its chunks.
        let first = unsafe { memory.start().cast::<u8>().add(at - start) };
        self.usage.used.0 += usable as u64;
        Some(NonNull::slice_from_raw_parts(first, usable))
    }

    /// Adds a chunk.
    fn add(&mut self, chunk: Chunk) {
        let (usage, placed) = (&mut self.usage, chunk.placed.placed);
        usage.held.0 += chunk.memory.range().len().0;
        usage.placed.0 += placed.0;
        usage.fallback.0 += (chunk.pages as u64).saturating_sub(placed.0);
        for (reason, count) in chunk.placed.refused {
            usage.refused.entry(reason).or_default().0 += count.0;
        }
        if let Some(trouble) = chunk.trouble {
            usage.trouble = Some(trouble.to_string());
        }
        let start = chunk.memory.start().as_ptr() as usize;
        self.heap.add(start, chunk.pages);
        self.memory.insert(start, chunk.memory);
    }

    fn ranges(&self) -> Vec<VirtRange> {
        self.memory.values().map(AnonymousMemory::range).collect()
    }
}

/// Builds the error of a strict arena that cannot grow.
fn not_in_colors(
    pages: usize,
    placed: &PlacementCounts,
    trouble: Option<ColorError>,
) -> ColorError {
    let why = match trouble {
        // Other errors have nothing to do with colors, so they are returned as they are.
        Some(error @ (ColorError::NotInColors { .. } | ColorError::Memory { .. })) => {
            error.to_string()
        }
        Some(error) => return error,
        None if placed.refused.is_empty() => "the kernel filled the other places first".to_owned(),
        None => format!("{:?}", placed.refused),
    };
    ColorError::NotInColors {
        wanted: PageCount(pages as u64),
        got: placed.placed,
        why,
    }
}
