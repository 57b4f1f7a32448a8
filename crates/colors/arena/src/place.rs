//! Placement of existing memory.
//!
//! A window is as many consecutive pages as the set has colors, and should hold each color once. The first page of each color
//! in a window stays; the other pages, and holes, get the missing colors:
//!
//! ```text
//!   set 0-3     | 2 1 2 7 | . . 3 0 |      2 twice, 7 not of the set, two holes
//!   becomes     | 2 1 0 3 | 1 2 3 0 |
//! ```
//!
//! A page that has to go is moved to a staging place first. That succeeds only for private memory that no other
//! process shares and no device writes, and leaves a hole. Its bytes are copied to a page of the pool, which is moved into
//! the hole. If that fails, the page is moved back.

use std::collections::{BTreeMap, VecDeque};

use rustix::io::Errno;
use superhue_color::Page;
use superhue_color::choice::Walk;
use superhue_color::place::{Placer, PoolError, Refusal};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, Color, ColorSet, PageCount, VirtAddr, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::has_nodes;
use superhue_sys::frames::{Frames, Grain, copy_page, node_of};
use superhue_sys::userfaultfd::{FEATURE_MOVE, Userfault};

use crate::heap::PAGE;
use crate::residence::{Residence, ResidentPage};
use crate::{ColorError, Judge, Placement};

/// Bytes that a pool maps and classifies at a time.
pub const POOL_CHUNK: ByteCount = ByteCount(4 << 20);

/// Pages that the oracle classifies at a time.
const BATCH: usize = 1024;

/// Number of attempts to move a page that the kernel has isolated.
const ATTEMPTS: usize = 64;

/// Moves pages of this process.
#[derive(Debug)]
pub struct Mover {
    userfault: Userfault,
    staging: Frames,
    residence: Residence,
    /// True if several NUMA nodes have memory.
    has_nodes: bool,
}

impl Mover {
    /// Opens a userfaultfd that receives no events.
    ///
    /// # Errors
    /// [`ColorError::NoMoves`], [`ColorError::Memory`].
    pub fn new() -> Result<Self, ColorError> {
        let no_moves = |errno| ColorError::NoMoves { errno };
        let bytes = ByteCount(BASE_PAGE_SIZE);
        let no_memory = |errno| ColorError::Memory { bytes, errno };
        let userfault = Userfault::open().map_err(no_moves)?;
        if userfault.handshake().map_err(no_moves)? & FEATURE_MOVE == 0 {
            return Err(no_moves(Errno::NOTTY));
        }
        let staging = Frames::map(bytes, Grain::Base).map_err(no_memory)?;
        userfault.register(staging.range()).map_err(no_moves)?;
        let residence = Residence::open().map_err(ColorError::unseen)?;
        Ok(Self {
            userfault,
            staging,
            residence,
            has_nodes: has_nodes(&Roots::default()),
        })
    }

    /// Returns true if two pages are on different NUMA nodes, or it is not known: a policy of the program may want a page where it is.
    fn are_apart(&self, one: VirtAddr, other: VirtAddr) -> bool {
        if !self.has_nodes {
            return false;
        }
        let node = node_of(one);
        node.is_none() || node != node_of(other)
    }

    /// Moves one page into a hole.
    ///
    /// # Safety
    /// No other code relies on the contents of either page.
    unsafe fn step(&self, to: VirtAddr, from: VirtAddr) -> Result<(), Errno> {
        for _ in 0..ATTEMPTS {
            let length = ByteCount(BASE_PAGE_SIZE);
            // SAFETY: the caller's promise.
            let error = match unsafe { self.userfault.move_range(to, from, length) }.error {
                None => return Ok(()),
                Some(error) => error,
            };
            // Do not trust errors of this call: it may have moved the page all the same.
            let occupied = |at| self.residence.is_occupied(at);
            match (occupied(from), occupied(to)) {
                (Some(false), Some(true)) => return Ok(()),
                // Kernel code (reclaim, compaction) has isolated the page.
                _ if error == Errno::AGAIN => rustix::thread::sched_yield(),
                _ => return Err(error),
            }
        }
        Err(Errno::AGAIN)
    }

    /// Moves or copies a page from staging back to `at`. `is_of_there` says that it has left `at` for sure. Returns true if staging holds nothing that
    /// is missing at `at`.
    ///
    /// # Safety
    /// No other code relies on the contents of either page.
    unsafe fn restore(&self, at: VirtAddr, is_of_there: bool) -> bool {
        let staging = self.staging.range().start;
        let occupied = |page| self.residence.is_occupied(page);
        // SAFETY: the caller's promise. A move overwrites nothing: it fails where there is no hole.
        if unsafe { self.step(at, staging) }.is_ok() {
            return true;
        }
        match (occupied(staging), occupied(at)) {
            // Any reader of the process's memory from outside (a debugger) fills the hole at `at` with zeroes. The copy from the pool has the same bytes.
            (Some(true), Some(is_there)) if is_of_there || !is_there => {
                // SAFETY: the caller's promise; both are mapped, and the kernel fills the hole.
                unsafe { copy_page(at, staging) };
                true
            }
            // The page did not leave.
            (Some(false), _) | (_, Some(true)) => true,
            _ => false,
        }
    }
}

/// Tools that place pages.
pub struct PlacementTools<'a> {
    /// Owner of the pool.
    pub placer: &'a mut Placer,
    /// Mover of pages.
    pub mover: &'a Mover,
    /// Oracle of colors.
    pub judge: &'a mut dyn Judge,
}

/// Places `range`, whole pages, in the colors of `set`, all of them evenly.
///
/// # Errors
/// If no page could be placed at all.
///
/// # Safety
/// The range is mapped and writable, and no other code touches it until this returns; no fork happens.
pub unsafe fn exclusive(
    range: VirtRange,
    set: &ColorSet,
    hands: PlacementTools<'_>,
) -> Result<Placement, ColorError> {
    let PlacementTools {
        placer,
        mover,
        judge,
    } = hands;
    if range.len().0 == 0 {
        return Ok(Placement::default());
    }
    let resident = mover.residence.of(range).map_err(ColorError::unseen)?;
    if resident.is_empty() {
        let walk = &mut Walk::new(set, random_start());
        return Ok(placer.fill(range, walk, judge).map_err(pool_error)?.into());
    }
    let mut placement = Placement::default();
    let pages = usize::try_from(range.len().0).unwrap_or(usize::MAX) / PAGE;
    if let Err(errno) = mover.userfault.register(range) {
        placement.refuse(Refusal::of_registering(errno), pages);
        return Ok(placement);
    }
    let order: Vec<Color> = Walk::new(set, random_start()).preferences().collect();
    let mut work = Work {
        set,
        order,
        mover,
        placer,
        judge,
        placement,
    };
    let done = work.all(range, &resident);
    let _ = mover.userfault.unregister(range);
    done.map(|()| work.placement)
}

struct Work<'a> {
    set: &'a ColorSet,
    /// The colors of the set, from a random start.
    order: Vec<Color>,
    mover: &'a Mover,
    placer: &'a mut Placer,
    judge: &'a mut dyn Judge,
    placement: Placement,
}

impl Work<'_> {
    fn all(&mut self, range: VirtRange, resident: &[ResidentPage]) -> Result<(), ColorError> {
        let window = self.order.len() * PAGE;
        let mut colors = BTreeMap::new();
        let mut rest = resident.iter().peekable();
        let mut known = 0;
        let [mut start, end] = [range.start, range.end].map(|at| at.0 as usize);
        while start < end {
            let stop = start.saturating_add(window).min(end);
            if stop > known {
                // Classify in batches of whole windows: many pages at once take less time per page.
                known = start.saturating_add(BATCH.next_multiple_of(self.order.len()) * PAGE);
                let batch = resident.partition_point(|page| page.address < start)
                    ..resident.partition_point(|page| page.address < known);
                colors = self.tell(resident.get(batch).unwrap_or_default())?;
            }
            let mut there = BTreeMap::new();
            while let Some(page) = rest.next_if(|page| page.address < stop) {
                there.insert(page.address, *page);
            }
            self.window(start..stop, &there, &colors);
            start = stop;
        }
        Ok(())
    }

    fn tell(
        &mut self,
        resident: &[ResidentPage],
    ) -> Result<BTreeMap<usize, Option<Color>>, ColorError> {
        let told = resident.iter().filter(|page| !page.zero);
        // SAFETY: resident, and in a range that the caller of `exclusive` promised to be mapped.
        let pages = told.filter_map(|page| unsafe { Page::at(page.address) });
        let pages: Vec<Page> = pages.collect();
        let mut colors = vec![None; pages.len()];
        self.judge.classify(&pages, &mut colors)?;
        Ok(pages
            .iter()
            .map(|page| page.address())
            .zip(colors)
            .collect())
    }

    fn window(
        &mut self,
        addresses: std::ops::Range<usize>,
        there: &BTreeMap<usize, ResidentPage>,
        colors: &BTreeMap<usize, Option<Color>>,
    ) {
        let mut missing: VecDeque<Color> = self.order.iter().copied().collect();
        let mut to_do = Vec::new();
        for at in addresses.step_by(PAGE) {
            let Some(page) = there.get(&at) else {
                // In swap, or guarded: no page of the pool could take its place.
                match self.mover.residence.is_occupied(VirtAddr(at as u64)) {
                    Some(true) => self.placement.refuse(Refusal::Absent, 1),
                    _ => to_do.push((at, false)),
                }
                continue;
            };
            let color = colors.get(&at).copied().flatten();
            let refusal = match color {
                _ if page.huge => Some(Refusal::HugePage),
                _ if page.file => Some(Refusal::NotAnonymous),
                None if page.zero => None,
                None => Some(Refusal::Unsure),
                Some(_) => None,
            };
            let fresh = color.and_then(|color| missing.iter().position(|other| *other == color));
            if let Some(fresh) = fresh {
                missing.remove(fresh);
                self.placement.already.0 += 1;
            } else if let Some(refusal) = refusal {
                self.placement.refuse(refusal, 1);
            } else {
                to_do.push((at, true));
            }
        }
        for (at, resident) in to_do {
            // A left page may have any color, so there is always a missing one; except in a window that is cut short.
            let color = missing.pop_front().or_else(|| self.order.first().copied());
            let Some((page, color)) = color.and_then(|color| self.page(color)) else {
                self.placement.refuse(Refusal::NoPage, 1);
                continue;
            };
            // The page of zeroes belongs to no node of the program's choice.
            let is_own = there.get(&at).is_some_and(|page| !page.zero);
            if is_own && self.mover.are_apart(VirtAddr(at as u64), page.start()) {
                self.placer.pool().put_back(page, color);
                self.placement.refuse(Refusal::OtherNode, 1);
                continue;
            }
            // SAFETY: `at` is in the range of the caller of `exclusive`; the page belonged to the pool.
            match unsafe { self.put(at, resident, page) } {
                Ok(()) => {
                    self.placer.pool().moved(page, 1);
                    self.placement.placed.0 += 1;
                }
                Err(errno) => {
                    self.placer.pool().scrap(page);
                    self.placement.refuse(reason(errno), 1);
                }
            }
        }
    }

    /// Takes a page of this color from the pool, or at least of another color of the set.
    fn page(&mut self, color: Color) -> Option<(Page, Color)> {
        let start = self.set.iter().position(|other| other == color)?;
        let walk = Walk::new(self.set, start);
        let pool = self.placer.pool();
        // Pages already in the pool may suffice. If not, the error shows as a missing page.
        let _ = pool.provide(&walk, 1, self.judge);
        walk.preferences()
            .find_map(|color| Some((pool.take(color)?, color)))
    }

    /// Puts a page of the pool at `at`, with the contents of the page that is there.
    ///
    /// # Safety
    /// No other code relies on the contents of either page.
    unsafe fn put(&mut self, at: usize, resident: bool, page: Page) -> Result<(), Errno> {
        let (at, staging) = (VirtAddr(at as u64), self.mover.staging.range().start);
        if !resident {
            // SAFETY: the caller's promise; a hole reads as zeroes, and so does a page of the pool.
            return unsafe { self.mover.step(at, page.start()) };
        }
        // SAFETY: the caller's promise; staging is a hole except during these moves, and the other two pages are mapped.
        let placed = unsafe {
            let left = self.mover.step(staging, at);
            if left == Err(Errno::EXIST) && self.mover.residence.is_occupied(at) == Some(true) {
                // Staging still holds the only copy of another page, which an earlier call could not bring back.
                return left;
            }
            let has_left = left.is_ok();
            let placed = left.and_then(|()| {
                copy_page(page.start(), staging);
                self.mover.step(at, page.start())
            });
            if placed.is_err() && !self.mover.restore(at, has_left) {
                // Staging may hold the only copy. Until it is a hole, further moves to it fail with `EEXIST`.
                return placed;
            }
            placed
        };
        // After a move back there is nothing to discard.
        let _ = self.mover.staging.discard(self.mover.staging.range());
        placed
    }
}

/// Translates an error of a move into a reason, for memory that is private and that no other code touches.
const fn reason(errno: Errno) -> Refusal {
    match errno {
        Errno::BUSY => Refusal::SharedOrPinned,
        // The mappings differ in `VM_LOCKED`.
        Errno::INVAL => Refusal::Locked,
        Errno::NOENT | Errno::EXIST | Errno::AGAIN => Refusal::Changed,
        _ => Refusal::Other,
    }
}

/// Translates a pool's error for programs.
pub fn pool_error(error: PoolError) -> ColorError {
    match error {
        PoolError::Memory(errno) => ColorError::Memory {
            bytes: POOL_CHUNK,
            errno,
        },
        PoolError::Oracle(error) => error.into(),
        PoolError::Limit(_) => ColorError::NotInColors {
            wanted: PageCount(1),
            got: PageCount(0),
            why: error.to_string(),
        },
    }
}

/// Returns a random start for a walk through colors, so that programs do not all crowd the first colors.
pub fn random_start() -> usize {
    let mut bytes = [0; size_of::<usize>()];
    // This never blocks. Before the kernel's generator is ready, any start is good enough.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    usize::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use rustix::mm::{Advice, madvise};
    use superhue_act::{Journal, SwapInUse};
    use superhue_procfs::Roots;
    use superhue_testing::skip;

    use super::*;

    const PAGE_LENGTH: ByteCount = ByteCount(BASE_PAGE_SIZE);

    /// Returns a mover and registered memory of two pages without contents; `None` where pages cannot be moved.
    fn mover() -> Option<(Mover, Frames)> {
        let mover = match Mover::new() {
            Ok(mover) => mover,
            Err(error) => {
                skip("uffd-move", &error.to_string());
                return None;
            }
        };
        let frames = Frames::map(ByteCount(2 * PAGE_LENGTH.0), Grain::Base).unwrap();
        let registered = mover.userfault.register(frames.range());
        registered.unwrap();
        Some((mover, frames))
    }

    fn byte(at: VirtAddr) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(usize::try_from(at.0).unwrap())
    }

    /// A move of a page in swap may fail with an error although it has moved the page.
    #[test]
    fn a_page_in_swap_counts_as_moved() {
        let Some((mover, frames)) = mover() else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::at(folder.path().join("journal"), &Roots::default());
        let _swap = match SwapInUse::make(&journal) {
            Ok(swap) => swap,
            Err(error) => return skip("swap-in-memory", &error.to_string()),
        };
        let to = frames.range().start;
        let from = VirtAddr(to.0 + PAGE_LENGTH.0);
        // SAFETY: the memory of this test, whose contents stay.
        unsafe {
            byte(to).write(7);
            madvise(byte(to).cast(), PAGE, Advice::LinuxPageOut).unwrap();
        }
        if !mover.residence.of(frames.range()).unwrap().is_empty() {
            return skip("swap-in-memory", "the kernel does not swap the page out");
        }
        // As after such a move: it fails, with the page at its destination.
        // SAFETY: no other code uses the pages.
        assert_eq!(unsafe { mover.step(to, from) }, Ok(()));
        // SAFETY: the memory of this test.
        assert_eq!(unsafe { byte(to).read() }, 7);
        // Still an error: the page is at its source, and not the one at the destination.
        // SAFETY: as above.
        unsafe {
            byte(from).write(8);
            assert_eq!(mover.step(to, from), Err(Errno::EXIST));
            assert_eq!((byte(to).read(), byte(from).read()), (7, 8));
        }
    }

    #[test]
    fn a_page_comes_back_from_staging_and_overwrites_nothing() {
        let Some((mover, frames)) = mover() else {
            return;
        };
        let at = frames.range().start;
        let staging = mover.staging.range().start;
        // SAFETY: the memory of this test, and a place of the mover that no other code uses.
        unsafe {
            // Nothing is lost while staging is a hole.
            assert!(mover.restore(at, false));
            assert_eq!(mover.residence.is_occupied(at), Some(false));
            byte(staging).write(7);
            assert!(mover.restore(at, true));
            assert_eq!(byte(at).read(), 7);
            assert_eq!(mover.residence.is_occupied(staging), Some(false));
            // The page of another address, of an earlier call.
            byte(staging).write(8);
            assert!(mover.restore(at, false));
            assert_eq!(byte(at).read(), 7);
        }
    }

    #[test]
    fn a_page_survives_a_reader_that_fills_its_place_with_zeroes() {
        let Some((mover, frames)) = mover() else {
            return;
        };
        let at = frames.range().start;
        let staging = mover.staging.range().start;
        // SAFETY: the memory of this test, and a place of the mover that no other code uses.
        unsafe {
            byte(at).write(7);
            assert_eq!(mover.step(staging, at), Ok(()));
            // A read from outside (`/proc/PID/mem`, ptrace) does the same.
            assert_eq!(byte(at).read_volatile(), 0);
            assert_eq!(mover.step(at, staging), Err(Errno::EXIST));
            assert!(mover.restore(at, true));
            assert_eq!(byte(at).read_volatile(), 7);
        }
    }
}
