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
use std::fs::File;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_act::{Journal, RestoreReport, SwapError, SwapInUse, ZswapInUse};
use superhue_model::{BASE_PAGE_SIZE, ProcessId, Region, VirtAddr, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::{PageWord, VmFlags, stat, still_is, vma_uses};
use superhue_sys::advise::{process_page_out, process_will_need};

use super::frames::{word_in, words_in};

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

/// Generator of numbers for shuffling (xorshift64*, Marsaglia 2003 and Vigna 2016).
struct Random(u64);

impl Random {
    const fn new(seed: u64) -> Self {
        // A state of 0 would stay 0.
        Self((seed ^ 0x9e37_79b9_7f4a_7c15) | 1)
    }

    const fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Brings the items into a random order (Fisher and Yates).
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            // The upper bits are the best; a bias below 2^-32 does not matter here.
            let chosen = ((self.next() >> 32) * (last as u64 + 1)) >> 32;
            items.swap(last, usize::try_from(chosen).unwrap_or(0));
        }
    }
}

/// Moves pages through swap in memory.
pub(super) struct SwapMover {
    roots: Roots,
    swap: SwapInUse,
    /// Makes taking out pages safe to which another part of the kernel holds a reference. Dropped after `swap`.
    zswap: ZswapInUse,
    open: BTreeMap<ProcessId, OpenProcess>,
}

struct OpenProcess {
    pidfd: OwnedFd,
    pagemap: File,
    /// Time until which the process is taken not to have a userfaultfd.
    valid_until: Instant,
}

/// Shortest time between two looks for a userfaultfd, and the least number of times that this is longer than the look.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
const LOOK_RATIO: u32 = 50;

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
        Ok(Self {
            swap: SwapInUse::find_or_make(&journal, make).map_err(clause)?,
            zswap: ZswapInUse::find_or_switch(&journal, make).map_err(clause)?,
            roots: roots.clone(),
            open: BTreeMap::new(),
        })
    }

    fn open(&self, process: ProcessId) -> Option<OpenProcess> {
        let pid = Pid::from_raw(i32::try_from(process.pid).ok()?)?;
        let file = |name| File::open(self.roots.of_process(process.pid, name)).ok();
        let begun = Instant::now();
        let mut open = OpenProcess {
            pidfd: pidfd_open(pid, PidfdFlags::empty()).ok()?,
            pagemap: file("pagemap")?,
            valid_until: begun,
        };
        // `UFFDIO_MOVE` fails on pages that are out (see the crate `superhue-recolor`).
        let vmas = vma_uses(&self.roots, process.pid).ok()?;
        let mut flags = vmas.iter().filter_map(|vma| vma.flags);
        let is_watched = flags.any(|flags| flags.intersects(VmFlags::USERFAULTFD));
        open.valid_until += LOOK_INTERVAL.max(begun.elapsed() * LOOK_RATIO);
        (!is_watched && still_is(&self.roots, process)).then_some(open)
    }

    /// Looks again whether the process has a userfaultfd, or another program, where the last look is too old.
    fn renew(&mut self, process: ProcessId) {
        let is_old = |open: &OpenProcess| Instant::now() >= open.valid_until;
        if self.open.get(&process).is_some_and(is_old) {
            match self.open(process) {
                Some(open) => self.open.insert(process, open),
                None => self.open.remove(&process),
            };
        }
    }
}

const fn one_page(page: VirtAddr) -> VirtRange {
    VirtRange {
        start: page,
        end: VirtAddr(page.0 + BASE_PAGE_SIZE),
    }
}

impl PageMover for SwapMover {
    fn begin(&mut self, processes: &BTreeSet<ProcessId>) {
        let open = processes
            .iter()
            .filter_map(|&id| Some((id, self.open(id)?)));
        self.open = open.collect();
    }

    fn room(&self) -> u64 {
        self.swap.room().map_or(0, |room| room.0 / BASE_PAGE_SIZE)
    }

    fn pages(&mut self, process: ProcessId, region: Region) -> Vec<VirtAddr> {
        let open = self.open.get(&process);
        let words = open.and_then(|open| words_in(&open.pagemap, region));
        let addresses = (0..).map(|page| VirtAddr(region.start().0 + page * BASE_PAGE_SIZE));
        let pages = addresses.zip(words.unwrap_or_default());
        // Pages that other processes map, too, stay where they are; so do the shared zero page, and pages that a file or shared memory may have.
        let movable =
            pages.filter(|(_, word)| word.is_present() && word.is_exclusive() && !word.is_file());
        movable.map(|(page, _)| page).collect()
    }

    fn page_out(&mut self, process: ProcessId, page: VirtAddr) {
        self.renew(process);
        if let Some(open) = self.open.get(&process) {
            // A page that the kernel does not take out stays in its frame.
            let _ = process_page_out(&open.pidfd, one_page(page));
        }
    }

    fn is_out(&self, process: ProcessId, page: VirtAddr) -> bool {
        let open = self.open.get(&process);
        open.and_then(|open| word_in(&open.pagemap, page))
            .is_some_and(PageWord::is_swapped)
    }

    /// Has the kernel bring the page into memory; the program's next use maps it. A read through `/proc/PID/mem` would map it at once, but also
    /// map a page of zeroes where the program has given the page back meanwhile.
    fn page_in(&mut self, process: ProcessId, page: VirtAddr) {
        if let Some(open) = self.open.get(&process) {
            // A page that the program has given back needs none.
            let _ = process_will_need(&open.pidfd, one_page(page));
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
            pages(region).collect()
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

    fn pages(region: Region) -> impl Iterator<Item = VirtAddr> {
        (0..PAGES_PER_REGION).map(move |page| VirtAddr(region.start().0 + page * BASE_PAGE_SIZE))
    }

    fn regions(count: u64) -> Vec<(ProcessId, Region)> {
        let start = 0x7f00_0000_0000;
        let region = |index: u64| Region::containing(VirtAddr(start + (index << 21)));
        (0..count).map(|index| (PROCESS, region(index))).collect()
    }

    /// A machine on which each page has the frame after that of the page before it.
    fn split(regions: &[(ProcessId, Region)], room: u64) -> Arc<Mutex<Machine>> {
        let pages = regions.iter().flat_map(|(_, region)| pages(*region));
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
        let of_first =
            pages(regions[0].1).map(|page| machine.frames[&(PROCESS, page)] / PAGES_PER_REGION);
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
            let stays = pages(regions[0].1).next().unwrap();
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
