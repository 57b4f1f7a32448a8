//! The machine's colors, as a program uses them.

use std::mem::{MaybeUninit, forget};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::oracles::OracleKind;
use superhue_color::place::{PlacementCounts, Placer, Pool, PoolConfig, Refusal};
use superhue_model::{ByteCount, ColorRequest, ColorSet, PageCount, VirtAddr, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::system::MemInfo;
use superhue_sys::cgroup::headroom;

use crate::gate::ProcessIdentity;
use crate::heap::PAGE;
use crate::measured::PaletteOracle;
use crate::place::{Mover, POOL_CHUNK, PlacementTools, pool_error};
use crate::residence::Residence;
use crate::{ColorError, Judge, Placement, Verdict, gate, place, verdict};

/// Maximum resident size of the pool while it searches: finding pages of one color in 32 takes 32 times as many pages.
const POOL_LIMIT: ByteCount = ByteCount(1 << 30);
/// The pool holds one part in this many of the machine's available memory at most.
const MACHINE_PART: u64 = 8;
/// Configuration of the pool. Its limit changes with the free memory.
const POOL: PoolConfig = PoolConfig {
    chunk: POOL_CHUNK,
    limit: POOL_LIMIT,
    locked: false,
};
/// Time for which the colors of pages in the pool are trusted without a new measurement.
const POOL_LIFETIME: Duration = Duration::from_secs(600);
/// Pages that may stay in the pool while no allocation needs them.
const POOL_IDLE: PageCount = PageCount((16 << 20) / PAGE as u64);

/// The machine's colors: an oracle, and a pool of pages of this process whose colors are known.
///
/// A handle: clones share both, and so do all arenas made with it. Every function may be called in any thread.
///
/// # Forks
/// A fork waits until no function of this crate runs, from the first call of [`Self::open`] on. A program that registers
/// `pthread_atfork(3)` handlers that take a lock, and holds that lock around calls of this crate, must open the colors before it
/// registers them. Otherwise the fork and the holder of the lock wait for each other.
#[derive(Clone)]
pub struct Colors(Arc<SharedState>);

struct SharedState {
    kind: OracleKind,
    count: usize,
    machine: Mutex<Machine>,
}

/// Oracle and page mover of one process.
struct Machine {
    /// Process whose memory `placer` can change: a child of `fork` needs a placer of its own.
    process: ProcessIdentity,
    judge: Box<dyn Judge>,
    placer: Option<Placer>,
    mover: Option<Mover>,
}

impl Drop for Machine {
    fn drop(&mut self) {
        if self.process != ProcessIdentity::own() {
            // Their memory is not in a child of `fork`: other memory may lie at these addresses, and must not be unmapped.
            std::mem::forget((self.placer.take(), self.mover.take()));
        }
    }
}

impl std::fmt::Debug for Colors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Colors")
            .field("kind", &self.0.kind)
            .field("count", &self.0.count)
            .finish_non_exhaustive()
    }
}

impl Colors {
    /// Opens the machine's colors, which all its processes share: from `/run/superhue/palette`, or the user's own palette in
    /// `$XDG_RUNTIME_DIR/superhue`. The first process finds them by timing, which takes up to a second and
    /// 32 MiB. It needs no privilege.
    ///
    /// # Errors
    /// [`ColorError::Unknown`] with the reason.
    pub fn open() -> Result<Self, ColorError> {
        Self::with_oracle(PaletteOracle::open(true)?)
    }

    /// Like [`Self::open`], but fails if no process has found the colors yet: for programs that have no time to search.
    ///
    /// # Errors
    /// [`ColorError::Unknown`] with the reason.
    pub fn open_known() -> Result<Self, ColorError> {
        Self::with_oracle(PaletteOracle::open(false)?)
    }

    /// Takes the colors from an oracle of the caller.
    ///
    /// # Errors
    /// [`ColorError::Unknown`] if it has none; [`ColorError::Memory`].
    pub fn with_oracle(judge: impl Judge + 'static) -> Result<Self, ColorError> {
        let bytes = ByteCount(0);
        gate::install().map_err(|errno| ColorError::Memory { bytes, errno })?;
        let (kind, count) = (judge.kind(), judge.colors());
        if count == 0 {
            return Err(ColorError::Unknown("there is no color".to_owned()));
        }
        let machine = Mutex::new(Machine {
            process: ProcessIdentity::own(),
            judge: Box::new(judge),
            placer: None,
            mover: None,
        });
        Ok(Self(Arc::new(SharedState {
            kind,
            count,
            machine,
        })))
    }

    /// Returns the number of colors.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// Returns the kind of oracle that determines the colors.
    #[must_use]
    pub fn kind(&self) -> OracleKind {
        self.0.kind
    }

    /// Checks that the colors are still those of the machine: a virtual machine that moves to another host gets other ones.
    ///
    /// # Errors
    /// [`ColorError::Drifted`] if not.
    pub fn retest(&self) -> Result<(), ColorError> {
        let _inside = gate::enter();
        let mut machine = self.machine();
        let tested = machine.judge.retest();
        machine.noted(tested.map_err(ColorError::from))
    }

    /// Parses a set: `spread` (all colors), a list as `0-3,8`, or a share as `50%`.
    ///
    /// # Errors
    /// [`ColorError::Text`], [`ColorError::Set`], and [`ColorError::Invalid`] for `off`.
    pub fn set(&self, text: &str) -> Result<ColorSet, ColorError> {
        let request: ColorRequest = text.parse()?;
        let off = ColorError::Invalid("`off` asks for no colors: use ordinary memory instead");
        request.of(self.count())?.ok_or(off)
    }

    /// Moves memory of the caller onto pages of these colors, unless it is there already. Holes are filled with zeroes;
    /// contents stay.
    ///
    /// ```text
    ///   memory       |--[ page | page | page ]----|
    ///                 edge                    edge      pages that reach beyond it stay as they are
    /// ```
    ///
    /// Needs no privilege, because the borrow keeps other code from touching the memory. Memory that is shared with
    /// other processes, locked, part of huge pages or of a file stays where it is and is counted.
    ///
    /// # Errors
    /// If no page could be placed at all.
    pub fn place(
        &self,
        memory: &mut [MaybeUninit<u8>],
        set: &ColorSet,
    ) -> Result<Placement, ColorError> {
        let start = NonNull::from(&mut *memory).cast();
        // SAFETY: borrowed for writing, so no other code touches it.
        unsafe { self.place_raw(start, memory.len(), set) }
    }

    /// [`Self::place`] for raw memory: `length` bytes at `start`.
    ///
    /// # Errors
    /// Errors of [`Self::place`], and an error for a range outside the address space.
    ///
    /// # Safety
    /// The range is mapped and writable. Until this returns no other thread touches it, and no system call of another thread
    /// does.
    pub unsafe fn place_raw(
        &self,
        start: NonNull<u8>,
        length: usize,
        set: &ColorSet,
    ) -> Result<Placement, ColorError> {
        self.check(set)?;
        let (inner, edges) = whole_pages(start, length)?;
        let _inside = gate::enter();
        // SAFETY: the caller's promise.
        let mut placement = unsafe { self.place_range(inner, set)? };
        placement.edges = edges;
        Ok(placement)
    }

    /// Moves a range of whole pages onto pages of these colors.
    ///
    /// # Errors
    /// As for [`Self::place`].
    ///
    /// # Safety
    /// As for [`Self::place_raw`]. The caller is inside the gate.
    pub(crate) unsafe fn place_range(
        &self,
        range: VirtRange,
        set: &ColorSet,
    ) -> Result<Placement, ColorError> {
        let mut machine = self.machine();
        let hands = machine.hands()?;
        // SAFETY: the caller's promise.
        let placed = unsafe { place::exclusive(range, set, hands) };
        machine.tidy();
        machine.noted(placed)
    }

    /// Tests whether memory is in these colors. The test is independent: it uses cache lines that classification does not use.
    /// It reads the whole pages and never writes them.
    ///
    /// # Errors
    /// If the oracle cannot classify pages, or residence cannot be read.
    pub fn verify(
        &self,
        memory: &[MaybeUninit<u8>],
        set: &ColorSet,
    ) -> Result<Verdict, ColorError> {
        let start = NonNull::from(memory).cast();
        // SAFETY: borrowed, so it stays mapped.
        unsafe { self.verify_raw(start, memory.len(), set) }
    }

    /// [`Self::verify`] for raw memory: `length` bytes at `start`.
    ///
    /// # Errors
    /// Errors of [`Self::verify`].
    ///
    /// # Safety
    /// The range is mapped and may be read until this returns.
    pub unsafe fn verify_raw(
        &self,
        start: NonNull<u8>,
        length: usize,
        set: &ColorSet,
    ) -> Result<Verdict, ColorError> {
        self.check(set)?;
        let (inner, _) = whole_pages(start, length)?;
        let _inside = gate::enter();
        // SAFETY: the caller's promise.
        unsafe { self.verify_ranges(&[inner], set) }
    }

    /// Returns the verdict about ranges of whole pages.
    ///
    /// # Safety
    /// The ranges are mapped and readable until this returns. The caller is inside the gate.
    pub(crate) unsafe fn verify_ranges(
        &self,
        ranges: &[VirtRange],
        set: &ColorSet,
    ) -> Result<Verdict, ColorError> {
        let (mut resident, mut shared, mut all) = (Vec::new(), 0, 0);
        let residence = Residence::open().map_err(ColorError::unseen)?;
        for range in ranges {
            let mut there = residence.of(*range).map_err(ColorError::unseen)?;
            there.retain(|page| !page.zero);
            // SAFETY: the page lies within a range of the caller.
            let pages = there
                .iter()
                .filter_map(|page| unsafe { Page::at(page.address) });
            resident.extend(pages);
            shared += there.iter().filter(|page| page.shared).count() as u64;
            all += range.len().0 / PAGE as u64;
        }
        let mut machine = self.machine();
        let verdict = verdict::of_pages(&mut *machine.judge, &resident, set);
        let mut verdict = machine.noted(verdict.map_err(ColorError::from))?;
        verdict.shared = PageCount(shared);
        verdict.absent = PageCount(all.saturating_sub(verdict.resident.0));
        Ok(verdict)
    }

    /// Fills the holes of `range`. Returns the pages filled, and the error if there was one. The caller is inside the
    /// gate.
    pub(crate) fn fill(
        &self,
        range: VirtRange,
        walk: &mut Walk,
    ) -> (PlacementCounts, Option<ColorError>) {
        let mut machine = self.machine();
        let hands = match machine.hands() {
            Ok(hands) => hands,
            Err(error) => return (PlacementCounts::default(), Some(error)),
        };
        let (placed, trouble) = match hands.placer.fill(range, walk, hands.judge) {
            Ok(placed) if placed.refused.contains_key(&Refusal::NoPage) => {
                // The pool does not report why it found no further page.
                let trouble = hands.judge.retest().err();
                (placed, trouble.map(ColorError::from))
            }
            Ok(placed) => (placed, None),
            Err(error) => (PlacementCounts::default(), Some(pool_error(error))),
        };
        machine.tidy();
        let trouble = trouble.and_then(|trouble| machine.noted::<()>(Err(trouble)).err());
        (placed, trouble)
    }

    /// Refuses sets made for other caches.
    pub(crate) fn check(&self, set: &ColorSet) -> Result<(), ColorError> {
        if set.colors() == self.count() {
            return Ok(());
        }
        Err(ColorError::OtherCache {
            set: set.colors(),
            here: self.count(),
        })
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        // A panic in the caller's oracle leaves pages in the pool, but nothing half-done.
        let machine = self.0.machine.lock();
        machine.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    /// Returns the tools that place pages of this process; makes them when first needed.
    fn hands(&mut self) -> Result<PlacementTools<'_>, ColorError> {
        if self.process != ProcessIdentity::own() {
            // The old ones stayed with the parent. Their addresses may hold other memory now, which must not be unmapped.
            forget(self.placer.take());
            forget(self.mover.take());
            self.process = ProcessIdentity::own();
        }
        let placer = match self.placer.take() {
            Some(placer) => placer,
            None => Placer::new(Pool::new(POOL, self.judge.colors()))
                .map_err(|errno| ColorError::NoMoves { errno })?,
        };
        let placer = self.placer.insert(placer);
        // A host may move the frames of a virtual machine: colors of pages that were not used for long are not trusted.
        placer.pool().forget_older(POOL_LIFETIME);
        // The free memory has changed since the last call.
        let held = ByteCount(placer.pool().held().0 * PAGE as u64);
        placer.pool().set_limit(pool_limit(&Roots::default(), held));
        let mover = match self.mover.take() {
            Some(mover) => mover,
            None => Mover::new()?,
        };
        Ok(PlacementTools {
            placer,
            mover: self.mover.insert(mover),
            judge: &mut *self.judge,
        })
    }

    /// Returns surplus pages of the pool to the kernel.
    fn tidy(&mut self) {
        if let Some(placer) = &mut self.placer {
            placer.pool().trim(POOL_IDLE);
        }
    }

    /// Passes a result on. If it shows that the colors are not those that were measured, those of the pool's pages are not either: none is handed out.
    fn noted<T>(&mut self, result: Result<T, ColorError>) -> Result<T, ColorError> {
        if let (Err(ColorError::Drifted(_)), Some(placer)) = (&result, &mut self.placer) {
            placer.pool().release();
        }
        result
    }
}

/// Returns the memory that this process's control groups still allow; `None` if there is no limit.
pub(crate) fn left_to_us() -> Option<ByteCount> {
    headroom(Path::new("/proc"), Path::new("/sys"), "self")
}

/// Returns the maximum size of a pool that holds `held` already.
fn pool_limit(roots: &Roots, held: ByteCount) -> ByteCount {
    // Half of what the groups leave: pages taken from the pool count as well.
    let groups = headroom(&roots.proc, &roots.sys, "self").map(|free| (free.0, 2));
    let machine = MemInfo::read(roots).ok().and_then(|info| info.available);
    let machine = machine.map(|free| (free.0, MACHINE_PART));
    let parts = groups.into_iter().chain(machine);
    let parts = parts.map(|(free, part)| free.saturating_add(held.0) / part);
    let limit = parts.chain([POOL_LIMIT.0]).min();
    ByteCount(limit.unwrap_or(POOL_LIMIT.0).max(PAGE as u64))
}

/// Returns the whole pages of a range, and the number of bytes before and after them.
fn whole_pages(start: NonNull<u8>, length: usize) -> Result<(VirtRange, ByteCount), ColorError> {
    let start = start.as_ptr() as usize;
    let end = start.checked_add(length).ok_or(ColorError::TooLarge)?;
    let first = start
        .checked_next_multiple_of(PAGE)
        .ok_or(ColorError::TooLarge)?;
    let last = (end - end % PAGE).max(first);
    let edges = ByteCount((length - (last - first)) as u64);
    let range = VirtRange {
        start: VirtAddr(first as u64),
        end: VirtAddr(last as u64),
    };
    Ok((range, edges))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_pool_takes_a_part_of_what_is_free() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let group = roots.sys.join("fs/cgroup/a");
        for folder in [&group, &roots.proc.join("self")] {
            fs::create_dir_all(folder).unwrap();
        }
        let limit = |held| pool_limit(&roots, ByteCount(held)).0;
        assert_eq!(limit(0), POOL_LIMIT.0);
        fs::write(roots.proc.join("meminfo"), "MemAvailable: 1048576 kB\n").unwrap();
        assert_eq!(limit(0), 128 << 20);
        // What the pool holds is not available any more.
        assert_eq!(limit(8 << 20), 129 << 20);
        fs::write(roots.proc.join("self/cgroup"), "0::/a\n").unwrap();
        fs::write(group.join("memory.max"), "33554432\n").unwrap();
        fs::write(group.join("memory.current"), "1048576\n").unwrap();
        assert_eq!(limit(1 << 20), 16 << 20);
        fs::write(group.join("memory.current"), "33554432\n").unwrap();
        assert_eq!(limit(0), PAGE as u64);
    }

    #[test]
    fn edges_are_what_no_whole_page_covers() {
        let inner = |start: usize, length| {
            let (range, edges) =
                whole_pages(NonNull::new(start as *mut u8).unwrap(), length).unwrap();
            (range.start.0, range.end.0, edges.0)
        };
        assert_eq!(inner(0x1000, 0x2000), (0x1000, 0x3000, 0));
        assert_eq!(inner(0x1001, 0x2000), (0x2000, 0x3000, 0x1000));
        assert_eq!(inner(0x1001, 0x100), (0x2000, 0x2000, 0x100));
        assert_eq!(inner(0x1000, 0), (0x1000, 0x1000, 0));
        let everything = NonNull::new(0x1000 as *mut u8).unwrap();
        assert!(whole_pages(everything, usize::MAX).is_err());
    }
}
