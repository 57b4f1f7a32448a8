//! Moves base pages of split regions to other frames, so that these lie scattered in *off* as they did before the policy.
//!
//! ```text
//!   all pages of all regions, in random order; a few hundred at a time:
//!     out   the kernel takes the page to swap in memory, and its frame becomes free
//!     in    each page gets one of the free frames, which were those of other pages of the group
//! ```
//!
//! The pages of a group exchange their frames in this way. All bytes stay the same, and no code of ours runs in the program: a thread that uses
//! a page while it is out waits for one fault. Groups are small and random, because a program that goes through its memory in order while much of it is
//! out brings its pages in itself, into frames in order (seen: a third of the frames were neighbors then, with 32 MiB out at a time).
//!
//! Rejected: `move_pages(2)` moves no page to another frame of its own node; `UFFDIO_MOVE` works inside a process only; compaction keeps the order of
//! frames; swap on a disk brings most pages back in their old frames.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use superhue_act::{Journal, RestoreReport, SwapError, SwapInUse, ZswapInUse};
use superhue_model::{BASE_PAGE_SIZE, ProcessId, Random, Region, VirtAddr};
use superhue_procfs::Roots;
use superhue_procfs::process::stat;
use superhue_procfs::system::PageFlagsFile;
use superhue_recolor::Target;

use super::frames::base_pages;

/// Pages that are out at a time.
const GROUP: usize = 256;

/// Room in swap, in pages, below which nothing is moved: other programs use the area, too.
const LEAST_ROOM: u64 = 2 * GROUP as u64;

/// Time for which a thread of the program waits for a page that is out: 10 us to compress it, and 10 us to bring it back (`superhue_act`).
const WAIT_FOR_PAGE: Duration = Duration::from_micros(20);

/// Operations on pages of processes.
pub(super) trait PageMover: Send {
    /// Prepares these processes for a pass; leaves out those whose pages cannot be moved.
    fn begin(&mut self, processes: &BTreeSet<ProcessId>);
    /// Returns the pages of a region that can be moved.
    fn pages(&mut self, process: ProcessId, region: Region) -> Vec<VirtAddr>;
    /// Returns the number of pages that may be out at a time.
    fn room(&self) -> u64;
    /// Takes a page out.
    fn page_out(&mut self, process: ProcessId, page: VirtAddr);
    /// Returns true if a page is out.
    fn is_out(&self, process: ProcessId, page: VirtAddr) -> bool;
    /// Brings a page in.
    fn page_in(&mut self, process: ProcessId, page: VirtAddr);
    /// Returns the number of waits of the prepared processes for pages that were out, so far.
    fn waits(&self) -> u64;
    /// Returns a few words on the place of pages that are out.
    fn describe(&self) -> String;
    /// Removes swap that was made for this.
    fn finish(self: Box<Self>) -> RestoreReport;
}

/// Exchanges frames among regions.
pub(super) struct Scatterer {
    mover: Box<dyn PageMover>,
    random: Random,
    /// Pages of this pass that have not been moved yet.
    queue: Vec<(ProcessId, VirtAddr)>,
    moved: u64,
}

impl Scatterer {
    pub(super) fn new(mover: Box<dyn PageMover>, seed: u64) -> Self {
        Self {
            mover,
            random: Random::new(seed),
            queue: Vec::new(),
            moved: 0,
        }
    }

    /// Returns the number of pages moved so far. Pages that the program itself brought in do not count.
    pub(super) const fn moved(&self) -> u64 {
        self.moved
    }

    /// Returns a few words on the place of pages that are out.
    pub(super) fn describe(&self) -> String {
        self.mover.describe()
    }

    /// Removes swap that was made for this; returns what was removed, and what was left.
    pub(super) fn finish(self) -> RestoreReport {
        self.mover.finish()
    }

    /// Begins a pass over these regions.
    pub(super) fn begin(&mut self, regions: &[(ProcessId, Region)]) {
        self.mover
            .begin(&regions.iter().map(|(process, _)| *process).collect());
        self.queue.clear();
        for &(process, region) in regions {
            let pages = self.mover.pages(process, region).into_iter();
            self.queue.extend(pages.map(|page| (process, page)));
        }
        self.random.shuffle(&mut self.queue);
    }

    /// Moves a few pages; returns the time for which that held threads of the program up. `None` after the last page, or without room in swap.
    pub(super) fn step(&mut self) -> Option<Duration> {
        if self.queue.is_empty() || self.mover.room() < LEAST_ROOM {
            return None;
        }
        let group = self.queue.split_off(self.queue.len().saturating_sub(GROUP));
        let before = self.mover.waits();
        for &(process, page) in &group {
            self.mover.page_out(process, page);
        }
        for &(process, page) in &group {
            if self.mover.is_out(process, page) {
                self.mover.page_in(process, page);
                self.moved += 1;
            }
        }
        let waits = self.mover.waits().saturating_sub(before);
        Some(WAIT_FOR_PAGE.saturating_mul(u32::try_from(waits).unwrap_or(u32::MAX)))
    }
}

/// Moves pages through swap in memory.
pub(super) struct SwapMover {
    roots: Roots,
    swap: SwapInUse,
    /// Makes taking out pages safe to which another part of the kernel holds a reference. Dropped after `swap`.
    zswap: ZswapInUse,
    flags: PageFlagsFile,
    open: BTreeMap<ProcessId, Target>,
}

impl SwapMover {
    /// Finds swap in memory and zswap; with `make`, makes or switches on what is missing.
    ///
    /// # Errors
    /// The reason why pages cannot be moved, as a clause.
    pub(super) fn new(roots: &Roots, make: bool) -> Result<Self, String> {
        let journal = Journal::default();
        let clause = |error: SwapError| {
            match error {
            SwapError::None => {
                "no swap in memory is on, through which pages could move to other frames; --swap makes one, as root".to_owned()
            }
            error => error.to_string(),
        }
        };
        // Where a later step fails, `swap` is dropped first.
        let zswap = ZswapInUse::find_or_switch(&journal, make).map_err(clause)?;
        let swap = SwapInUse::find_or_make(&journal, make).map_err(clause)?;
        ZswapInUse::try_out(roots).map_err(clause)?;
        Ok(Self {
            swap,
            zswap,
            flags: PageFlagsFile::open(roots).map_err(|error| error.to_string())?,
            roots: roots.clone(),
            open: BTreeMap::new(),
        })
    }
}

impl PageMover for SwapMover {
    fn begin(&mut self, processes: &BTreeSet<ProcessId>) {
        let open = |&id: &ProcessId| {
            if ZswapInUse::refusal(&self.roots, id.pid).is_some() {
                return None;
            }
            let mut target = Target::open(&self.roots, id).ok()?;
            target.is_unwatched(&self.roots, id).ok()?;
            Some((id, target))
        };
        self.open = processes.iter().filter_map(open).collect();
    }

    fn room(&self) -> u64 {
        // An administrator may have switched zswap off since, or its pool may be full.
        if ZswapInUse::refusal(&self.roots, std::process::id()).is_some() {
            return 0;
        }
        self.swap.room().map_or(0, |room| room.0 / BASE_PAGE_SIZE)
    }

    fn pages(&mut self, process: ProcessId, region: Region) -> Vec<VirtAddr> {
        let pages: Vec<VirtAddr> = base_pages(region).collect();
        let target = self.open.get(&process);
        let words = target.and_then(|target| target.words(&pages).ok());
        let words = words.unwrap_or_default();
        let is_movable = |word| {
            let movable = Target::movable(word, &self.flags, true);
            matches!(movable, Ok(Ok(page)) if page.private)
        };
        let movable = pages.into_iter().zip(words);
        let movable = movable.filter(|&(_, word)| is_movable(word));
        movable.map(|(page, _)| page).collect()
    }

    fn page_out(&mut self, process: ProcessId, page: VirtAddr) {
        let Some(target) = self.open.get_mut(&process) else {
            return;
        };
        if target.is_unwatched(&self.roots, process).is_err() {
            self.open.remove(&process);
            return;
        }
        // A page that the kernel does not take out stays in its frame.
        let _ = target.page_out(page);
    }

    fn is_out(&self, process: ProcessId, page: VirtAddr) -> bool {
        let target = self.open.get(&process);
        let words = target.and_then(|target| target.words(&[page]).ok());
        words.is_some_and(|words| words.iter().any(|word| word.is_swapped()))
    }

    fn page_in(&mut self, process: ProcessId, page: VirtAddr) {
        if let Some(target) = self.open.get(&process) {
            target.page_in(page);
        }
    }

    fn waits(&self) -> u64 {
        let faults = self.open.keys().filter_map(|process| {
            let stat = stat(&self.roots, process.pid).ok()?;
            Some(stat.maj_faults)
        });
        faults.sum()
    }

    fn describe(&self) -> String {
        self.swap.describe()
    }

    fn finish(self: Box<Self>) -> RestoreReport {
        let Self { swap, zswap, .. } = *self;
        let mut report = swap.finish();
        report.add(zswap.finish());
        report
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use superhue_model::{PAGES_PER_REGION, Pfn};

    use super::super::frames::Neighbors;
    use super::*;

    /// A machine that hands out the frame that was freed last.
    #[derive(Debug, Default)]
    struct Machine {
        frames: BTreeMap<(ProcessId, VirtAddr), u64>,
        out: BTreeSet<(ProcessId, VirtAddr)>,
        free: Vec<u64>,
        most_out: usize,
        room: u64,
        /// Pages that the kernel does not take out.
        pinned: BTreeSet<VirtAddr>,
        /// Order in which pages came in.
        order: Vec<VirtAddr>,
    }

    struct FakeMover(Arc<Mutex<Machine>>);

    impl PageMover for FakeMover {
        fn begin(&mut self, _: &BTreeSet<ProcessId>) {}

        fn pages(&mut self, _: ProcessId, region: Region) -> Vec<VirtAddr> {
            base_pages(region).collect()
        }

        fn room(&self) -> u64 {
            self.0.lock().unwrap().room
        }

        fn page_out(&mut self, process: ProcessId, page: VirtAddr) {
            let mut machine = self.0.lock().unwrap();
            if machine.pinned.contains(&page) {
                return;
            }
            let frame = machine.frames.remove(&(process, page)).unwrap();
            machine.free.push(frame);
            machine.out.insert((process, page));
            machine.most_out = machine.most_out.max(machine.out.len());
        }

        fn is_out(&self, process: ProcessId, page: VirtAddr) -> bool {
            self.0.lock().unwrap().out.contains(&(process, page))
        }

        fn page_in(&mut self, process: ProcessId, page: VirtAddr) {
            let mut machine = self.0.lock().unwrap();
            assert!(machine.out.remove(&(process, page)), "{page:?} is not out");
            let frame = machine.free.pop().unwrap();
            machine.frames.insert((process, page), frame);
            machine.order.push(page);
        }

        fn waits(&self) -> u64 {
            // One for each page that has come in.
            self.0.lock().unwrap().order.len() as u64
        }

        fn describe(&self) -> String {
            "a fake".to_owned()
        }

        fn finish(self: Box<Self>) -> RestoreReport {
            RestoreReport::default()
        }
    }

    const PROCESS: ProcessId = ProcessId {
        pid: 7,
        start_ticks: 1,
    };

    fn regions(count: u64) -> Vec<(ProcessId, Region)> {
        let start = 0x7f00_0000_0000;
        let region = |index: u64| Region::containing(VirtAddr(start + (index << 21)));
        (0..count).map(|index| (PROCESS, region(index))).collect()
    }

    /// A machine on which each page has the frame after that of the page before it.
    fn split(regions: &[(ProcessId, Region)], room: u64) -> Arc<Mutex<Machine>> {
        let pages = regions.iter().flat_map(|(_, region)| base_pages(*region));
        let frames = pages
            .zip(4096..)
            .map(|(page, frame)| ((PROCESS, page), frame));
        Arc::new(Mutex::new(Machine {
            frames: frames.collect(),
            room,
            ..Machine::default()
        }))
    }

    fn neighbors(machine: &Mutex<Machine>) -> f64 {
        let machine = machine.lock().unwrap();
        let frames: Vec<Option<Pfn>> = machine.frames.values().map(|&it| Some(Pfn(it))).collect();
        Neighbors::of(&frames).share().unwrap()
    }

    /// Scatters all regions; returns the scatterer and the total time for which that held the program up.
    fn scattered(
        machine: &Arc<Mutex<Machine>>,
        regions: &[(ProcessId, Region)],
        seed: u64,
    ) -> (Scatterer, Duration) {
        let mut scatterer = Scatterer::new(Box::new(FakeMover(Arc::clone(machine))), seed);
        scatterer.begin(regions);
        let held_up = std::iter::from_fn(|| scatterer.step()).sum();
        (scatterer, held_up)
    }

    #[test]
    fn frames_are_exchanged_and_none_is_lost() {
        let regions = regions(8);
        let machine = split(&regions, 1 << 20);
        assert_eq!(neighbors(&machine), 1.0);
        let (scatterer, held_up) = scattered(&machine, &regions, 5);
        assert!(neighbors(&machine) < 0.01, "{}", neighbors(&machine));
        let all = 8 * PAGES_PER_REGION;
        assert_eq!(scatterer.moved(), all);
        assert_eq!(held_up, WAIT_FOR_PAGE * u32::try_from(all).unwrap());
        let machine = machine.lock().unwrap();
        assert!(machine.out.is_empty() && machine.free.is_empty());
        assert_eq!(machine.most_out, GROUP);
        let frames: BTreeSet<u64> = machine.frames.values().copied().collect();
        assert_eq!(frames, (4096..4096 + all).collect());
        // A region's pages have frames of all regions.
        let of_first = base_pages(regions[0].1)
            .map(|page| machine.frames[&(PROCESS, page)] / PAGES_PER_REGION);
        assert_eq!(of_first.collect::<BTreeSet<u64>>().len(), 8);
    }

    #[test]
    fn without_room_in_swap_nothing_is_moved() {
        let regions = regions(2);
        let machine = split(&regions, LEAST_ROOM - 1);
        let (scatterer, held_up) = scattered(&machine, &regions, 5);
        assert_eq!((scatterer.moved(), held_up), (0, Duration::ZERO));
        assert_eq!(neighbors(&machine), 1.0);
    }

    #[test]
    fn pages_that_stay_are_left_alone_and_seeds_differ() {
        let regions = regions(1);
        let orders = [1, 2, 1].map(|seed| {
            let machine = split(&regions, 1 << 20);
            let stays = base_pages(regions[0].1).next().unwrap();
            machine.lock().unwrap().pinned.insert(stays);
            let (scatterer, _) = scattered(&machine, &regions, seed);
            assert_eq!(scatterer.moved(), PAGES_PER_REGION - 1);
            let machine = machine.lock().unwrap();
            assert_eq!(machine.frames[&(PROCESS, stays)], 4096);
            machine.order.clone()
        });
        assert_eq!(orders[0], orders[2]);
        assert_ne!(orders[0], orders[1]);
    }
}
