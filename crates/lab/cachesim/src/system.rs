//! Model of a running machine: references go through TLB, page table and caches, and are counted.

use crate::cache::{Cache, EvictedLine};
use crate::machine::{Inclusion, LEVELS, Machine};
use crate::placement::Pages;
use crate::tlb::Tlb;

/// Event counts of one core.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Loads of the program.
    pub loads: u64,
    /// Stores of the program.
    pub stores: u64,
    /// References that each cache served, from the first one outwards.
    pub served: [u64; LEVELS],
    /// References that memory served: misses of the last cache.
    pub memory: u64,
    /// References whose page no TLB of level 1 held.
    pub tlb_misses: u64,
    /// Number of these that the TLB of level 2 held.
    pub tlb_second: u64,
    /// Walks of the page table.
    pub walks: u64,
    /// Loads of walks that each cache served.
    pub walk_served: [u64; LEVELS],
    /// Loads of walks that memory served.
    pub walk_memory: u64,
    /// Lines written back to memory.
    pub write_backs: u64,
    /// Modelled cost of all that, by the machine's coefficients, in thousandths of a cycle.
    pub millicycles: u64,
}

impl Counts {
    /// References of the program.
    #[must_use]
    pub const fn references(&self) -> u64 {
        self.loads + self.stores
    }

    /// Modelled cycles.
    #[must_use]
    #[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
    pub fn cycles(&self) -> f64 {
        self.millicycles as f64 / 1000.0
    }

    /// Counts since an earlier moment.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let levels = |now: &[u64; LEVELS], before: &[u64; LEVELS]| {
            std::array::from_fn(|level| now[level] - before[level])
        };
        Self {
            loads: self.loads - before.loads,
            stores: self.stores - before.stores,
            served: levels(&self.served, &before.served),
            memory: self.memory - before.memory,
            tlb_misses: self.tlb_misses - before.tlb_misses,
            tlb_second: self.tlb_second - before.tlb_second,
            walks: self.walks - before.walks,
            walk_served: levels(&self.walk_served, &before.walk_served),
            walk_memory: self.walk_memory - before.walk_memory,
            write_backs: self.write_backs - before.write_backs,
            millicycles: self.millicycles - before.millicycles,
        }
    }
}

/// Level of caches behind the first: one for each core, or one for all.
#[derive(Debug, Clone)]
struct Level {
    caches: Vec<Cache>,
    line_shift: u32,
    inclusion: Inclusion,
    /// True if the eviction of a clean line matters: to the caches before, or to the one behind.
    passes_clean: bool,
    millicycles: u64,
}

impl Level {
    #[inline]
    fn of(&mut self, core: usize) -> &mut Cache {
        let last = self.caches.len() - 1;
        &mut self.caches[core.min(last)]
    }
}

/// Private state of a core, with the first cache, whose hits are most of the work.
#[derive(Debug, Clone)]
struct Core {
    /// Page of the last reference: it is the one used last in its TLB.
    page: u64,
    /// Line of the last reference, and true if it has been written to: it is the one used last in its set.
    line: u64,
    written: bool,
    first: Cache,
    counts: Counts,
    /// TLBs of the core. `tlb` and `tlb_second` have positions in this list by the kind of page: base pages, huge pages.
    tlbs: Vec<Tlb>,
    tlb: [usize; 2],
    tlb_second: [Option<usize>; 2],
}

/// Caches and TLBs, empty at first.
#[derive(Debug, Clone)]
pub struct System {
    cores: Vec<Core>,
    /// The levels; the first one has no caches here.
    levels: Vec<Level>,
    line_shift: u32,
    /// True if the first cache writes through.
    through: bool,
    write_allocate: bool,
    /// log2 of the first cache's sets, if the virtual address chooses them.
    virtual_sets: Option<u32>,
    walk: crate::machine::WalkSpec,
    memory: u64,
    write_back: u64,
    second: [u64; 2],
}

impl System {
    /// Makes a machine with empty caches and TLBs.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        let behind = machine.caches.iter().skip(1).map(Some).chain([None]);
        let levels = machine
            .caches
            .iter()
            .zip(behind)
            .enumerate()
            .map(|(at, (spec, behind))| {
                let count = if at == 0 {
                    0
                } else if spec.shared {
                    1
                } else {
                    machine.cores
                };
                Level {
                    caches: vec![Cache::new(spec); count],
                    line_shift: spec.line.trailing_zeros(),
                    inclusion: spec.inclusion,
                    passes_clean: spec.inclusion == Inclusion::Inclusive
                        || behind.is_some_and(|behind| behind.inclusion == Inclusion::Exclusive),
                    millicycles: spec.millicycles,
                }
            });
        let find = |level: u64, superpage: bool| {
            machine.tlbs.iter().position(|tlb| {
                tlb.level == level && if superpage { tlb.superpages } else { tlb.base }
            })
        };
        let tlb_second = [find(2, false), find(2, true)];
        let l1 = &machine.caches[0];
        let core = Core {
            page: u64::MAX,
            line: u64::MAX,
            written: false,
            first: Cache::new(l1),
            counts: Counts::default(),
            tlbs: machine.tlbs.iter().map(Tlb::new).collect(),
            tlb: [find(1, false).unwrap_or(0), find(1, true).unwrap_or(0)],
            tlb_second,
        };
        Self {
            cores: vec![core; machine.cores],
            levels: levels.collect(),
            line_shift: l1.line.trailing_zeros(),
            through: !l1.write_back,
            write_allocate: l1.write_allocate,
            virtual_sets: l1
                .virtual_index
                .then(|| (l1.size / l1.line / l1.ways).trailing_zeros()),
            walk: machine.walk.clone(),
            memory: machine.costs.memory,
            write_back: machine.costs.write_back,
            second: tlb_second.map(|at| at.map_or(0, |at| machine.tlbs[at].millicycles)),
        }
    }

    /// Counts of a core so far.
    #[must_use]
    pub fn counts(&self, core: usize) -> Counts {
        let mut counts = self.cores[core].counts;
        // The first cache served all references that nothing else served.
        let others: u64 = counts.served[1..].iter().sum::<u64>() + counts.memory;
        counts.served[0] = counts.references() - others;
        counts.millicycles += counts.served[0] * self.levels[0].millicycles;
        counts
    }

    /// Runs a load at an offset of a program's memory.
    #[inline]
    pub fn load(&mut self, core: usize, pages: &impl Pages, at: u64) {
        self.reference(core, pages, at, false);
    }

    /// Runs a store at an offset of a program's memory.
    #[inline]
    pub fn store(&mut self, core: usize, pages: &impl Pages, at: u64) {
        self.reference(core, pages, at, true);
    }

    /// Runs a load or a store.
    #[inline]
    pub fn reference(&mut self, core: usize, pages: &impl Pages, at: u64, write: bool) {
        let (physical, superpage) = pages.translate(at);
        let key = pages.page_number(at, superpage) << 1 | u64::from(superpage);
        let own = &mut self.cores[core];
        if own.page != key {
            own.page = key;
            let tlb = own.tlb[usize::from(superpage)];
            if !own.tlbs[tlb].touch(key, key >> 1) {
                self.translate(core, pages, at, key);
            }
        }
        let line = self.first_line(physical, pages.address(at));
        let inside = write && !self.through;
        let own = &mut self.cores[core];
        if write {
            own.counts.stores += 1;
        } else {
            own.counts.loads += 1;
        }
        if own.line == line && own.written >= write {
            return;
        }
        own.line = line;
        own.written = inside;
        if !own.first.touch(line, inside) {
            self.miss(core, physical, line, write);
        } else if write && self.through {
            self.write_through(core, physical);
        }
    }

    /// Runs `count` loads of `each` bytes, one behind the other. Counts the same as that many calls of [`Self::load`],
    /// but faster: after the first load of a line, the next ones hit the same line.
    ///
    /// `each` is a power of two, and `at` a multiple of it.
    #[inline]
    pub fn load_run(&mut self, core: usize, pages: &impl Pages, at: u64, each: u64, count: u64) {
        debug_assert!(each.is_power_of_two() && at.is_multiple_of(each));
        // A page is no smaller than a line.
        let line = 1 << self.line_shift;
        let (mut at, end) = (at, at + each * count);
        while at < end {
            self.load(core, pages, at);
            let next = (at + each).max((at & !(line - 1)) + line).min(end);
            self.cores[core].counts.loads += (next - at) / each - 1;
            at = next;
        }
    }

    /// Returns true if a core's cache, or the shared one of that level, has the line of a physical address. Not for a
    /// first cache that is indexed by virtual address.
    #[must_use]
    pub fn holds(&self, core: usize, level: usize, physical: u64) -> bool {
        let line = physical >> self.levels[level].line_shift;
        if level == 0 {
            return self.cores[core].first.holds(line);
        }
        let caches = &self.levels[level].caches;
        caches[core.min(caches.len() - 1)].holds(line)
    }

    #[inline]
    fn first_line(&self, physical: u64, address: u64) -> u64 {
        let line = physical >> self.line_shift;
        match self.virtual_sets {
            None => line,
            Some(bits) => line << bits | (address >> self.line_shift) & ((1 << bits) - 1),
        }
    }

    /// Translates a page that no TLB of level 1 held.
    fn translate(&mut self, core: usize, pages: &impl Pages, at: u64, key: u64) {
        let own = &mut self.cores[core];
        let kind = (key & 1) as usize;
        own.counts.tlb_misses += 1;
        if let Some(second) = own.tlb_second[kind]
            && own.tlbs[second].touch(key, key >> 1)
        {
            own.counts.tlb_second += 1;
            own.counts.millicycles += self.second[kind];
            return;
        }
        own.counts.walks += 1;
        own.counts.millicycles += self.walk.millicycles;
        // The walk may insert other lines into the set of this line.
        own.line = u64::MAX;
        let (entry, directory) = pages.entries(at, self.walk.entry);
        // A huge page's entry is in the directory.
        if self.walk.directory || kind == 1 {
            self.walk_load(core, directory);
        }
        if kind == 0 {
            self.walk_load(core, entry);
        }
    }

    fn walk_load(&mut self, core: usize, physical: u64) {
        let (served, _) = self.fetch(core, physical, self.walk.through, true, false);
        let counts = &mut self.cores[core].counts;
        match served {
            Some(level) => {
                counts.walk_served[level] += 1;
                counts.millicycles += self.levels[level].millicycles;
            }
            None => {
                counts.walk_memory += 1;
                counts.millicycles += self.memory;
            }
        }
    }

    #[cold]
    fn miss(&mut self, core: usize, physical: u64, line: u64, write: bool) {
        let bypass = write && !self.write_allocate;
        let inside = write && !self.through;
        let on = write && (bypass || self.through);
        let (served, was_dirty) = self.fetch(core, physical, 1, bypass, on);
        let counts = &mut self.cores[core].counts;
        match served {
            Some(level) => {
                counts.served[level] += 1;
                counts.millicycles += self.levels[level].millicycles;
            }
            None => {
                counts.memory += 1;
                counts.millicycles += self.memory;
            }
        }
        if !bypass {
            let gone = self.cores[core].first.fill(line, inside || was_dirty);
            self.evicted(core, 0, gone);
        } else {
            // The line is not in the first cache.
            self.cores[core].line = u64::MAX;
            if self.levels.len() == 1 {
                self.wrote_back(core);
            }
        }
    }

    /// Passes a store on to the next level; this costs nothing by itself.
    fn write_through(&mut self, core: usize, physical: u64) {
        for level in &mut self.levels[1..] {
            let line = physical >> level.line_shift;
            if level.of(core).touch(line, true) {
                return;
            }
        }
        self.wrote_back(core);
    }

    /// Looks for a line from a level outwards, and inserts it into the levels that did not have it. Returns the level
    /// that had it, and true if the line is dirty and its dirty state moves inwards.
    ///
    /// `keep`: the line stays in the level where the search begins; otherwise it moves inwards, and an exclusive cache
    /// gives it away.
    fn fetch(
        &mut self,
        core: usize,
        physical: u64,
        from: usize,
        keep: bool,
        write: bool,
    ) -> (Option<usize>, bool) {
        let mut served = None;
        let mut dirty = false;
        for at in from..self.levels.len() {
            let line = self.line_in(at, physical);
            let gives = self.gives_away(at, from, keep);
            let cache = self.cache(core, at);
            if gives {
                if let Some(was_dirty) = cache.remove(line) {
                    dirty = was_dirty;
                    served = Some(at);
                    break;
                }
            } else if cache.touch(line, write && at == from) {
                served = Some(at);
                break;
            }
        }
        for at in (from..served.unwrap_or(self.levels.len())).rev() {
            if self.gives_away(at, from, keep) {
                continue;
            }
            let line = self.line_in(at, physical);
            let gone = self
                .cache(core, at)
                .fill(line, write && at == from || dirty);
            dirty = false;
            self.evicted(core, at, gone);
        }
        (served, dirty)
    }

    #[inline]
    fn cache(&mut self, core: usize, level: usize) -> &mut Cache {
        match level {
            0 => &mut self.cores[core].first,
            _ => self.levels[level].of(core),
        }
    }

    /// Returns true if a line that is found in a level leaves it.
    fn gives_away(&self, level: usize, from: usize, keep: bool) -> bool {
        self.levels[level].inclusion == Inclusion::Exclusive && (level > from || !keep)
    }

    /// The line number of a page-table entry in a level; it has no virtual part.
    fn line_in(&self, level: usize, physical: u64) -> u64 {
        if level == 0 {
            self.first_line(physical, physical)
        } else {
            physical >> self.levels[level].line_shift
        }
    }

    /// Handles a block that a level evicted.
    fn evicted(&mut self, core: usize, level: usize, gone: Option<EvictedLine>) {
        let Some(gone) = gone else { return };
        if gone.dirty == 0 && !self.levels[level].passes_clean {
            return;
        }
        let shift = self.levels[level].line_shift;
        let mut left = gone.valid;
        while left != 0 {
            let index = left.trailing_zeros();
            left &= left - 1;
            let mut line = gone.first + u64::from(index);
            if level == 0
                && let Some(bits) = self.virtual_sets
            {
                line >>= bits;
            }
            let physical = line << shift;
            let mut dirty = gone.dirty >> index & 1 == 1;
            if self.levels[level].inclusion == Inclusion::Inclusive {
                dirty |= self.leave_inner(core, level, physical);
            }
            self.hand_on(core, level + 1, physical, dirty);
        }
    }

    /// Removes a line from the caches before an inclusive one. Returns true if one of them had written to it.
    fn leave_inner(&mut self, core: usize, level: usize, physical: u64) -> bool {
        let size = 1u64 << self.levels[level].line_shift;
        // A cache of one core has only that core's lines.
        let cores = if self.levels[level].caches.len() == 1 {
            0..self.cores.len()
        } else {
            core..core + 1
        };
        let mut dirty = false;
        for inner in 0..level {
            let shift = self.levels[inner].line_shift;
            let shared = inner > 0 && self.levels[inner].caches.len() == 1;
            for core in if shared { 0..1 } else { cores.clone() } {
                if inner == 0 {
                    self.cores[core].line = u64::MAX;
                }
                for line in (physical >> shift)..((physical + size) >> shift) {
                    dirty |= self.cache(core, inner).remove(line).unwrap_or(false);
                }
            }
        }
        dirty
    }

    /// Passes an evicted line to the next level that takes it, or to memory if it is dirty.
    fn hand_on(&mut self, core: usize, from: usize, physical: u64, dirty: bool) {
        for at in from..self.levels.len() {
            let line = physical >> self.levels[at].line_shift;
            let exclusive = self.levels[at].inclusion == Inclusion::Exclusive;
            let cache = self.cache(core, at);
            if dirty && cache.touch(line, true) {
                return;
            }
            if exclusive {
                if !cache.holds(line) {
                    let gone = cache.fill(line, dirty);
                    self.evicted(core, at, gone);
                }
                return;
            }
        }
        if dirty {
            self.wrote_back(core);
        }
    }

    fn wrote_back(&mut self, core: usize) {
        self.cores[core].counts.write_backs += 1;
        self.cores[core].counts.millicycles += self.write_back;
    }
}
