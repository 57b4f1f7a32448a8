//! The model kernel.
//!
//! Each process has a few slots of address space, each empty or with one mapping that starts and ends somewhere:
//!
//! ```text
//!   slot 0                              slot 1
//!   |   [ head | region | region | tail ]     |   [ ... ]
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, Effect, Errno, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount,
    ProcessId, ProcessView, Region, RegionView, Snapshot, TornPage, VirtAddr, VirtRange, Vma,
    VmaKind,
};

use crate::sampler::{Sample, Sampler};

const BASE: u64 = 0x5500_0000_0000;
const SLOTS: u8 = 3;
const SLOT_SIZE: u64 = 64 << 20;

/// A set of the pages of one region.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Pages([u64; 8]);

impl Pages {
    pub(crate) const ALL: Self = Self([u64::MAX; 8]);

    /// Returns `count` pages from page `from` on, going around at the end.
    fn range(from: u64, count: u64) -> Self {
        let mut pages = Self::default();
        for page in (from..from + count.min(PAGES_PER_REGION)).map(|page| page % PAGES_PER_REGION) {
            pages.0[usize::try_from(page / 64).unwrap()] |= 1 << (page % 64);
        }
        pages
    }

    pub(crate) fn count(self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    fn zip(self, other: Self, f: impl Fn(u64, u64) -> u64) -> Self {
        Self(std::array::from_fn(|i| f(self.0[i], other.0[i])))
    }

    pub(crate) fn with(self, other: Self) -> Self {
        self.zip(other, |a, b| a | b)
    }

    pub(crate) fn without(self, other: Self) -> Self {
        self.zip(other, |a, b| a & !b)
    }
}

/// Page tables of one region.
#[derive(Debug, Clone, Copy, Default)]
struct Memory {
    present: Pages,
    touched: Pages,
    /// Present because of a collapse, and never touched.
    bloat: Pages,
    huge: bool,
    /// Pages that the program accesses again and again, and the number of samples of a hundred in which it does.
    accessed: Pages,
    percent: u64,
}

#[derive(Debug, Clone)]
struct Mapping {
    vma: Vma,
    regions: BTreeMap<Region, Memory>,
}

#[derive(Debug, Clone, Default)]
struct Process {
    slots: BTreeMap<u8, Mapping>,
}

/// An event that changes memory between two looks.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    Spawn,
    Exit {
        process: usize,
    },
    Map {
        process: usize,
        slot: u8,
        kind: VmaKind,
        writable: bool,
        head_pages: u64,
        pages: u64,
    },
    Grow {
        process: usize,
        slot: u8,
        pages: u64,
    },
    Unmap {
        process: usize,
        slot: u8,
    },
    Touch {
        process: usize,
        slot: u8,
        region: usize,
        from: u64,
        count: u64,
    },
    Fill {
        process: usize,
        slot: u8,
        region: usize,
    },
    FillAll {
        process: usize,
    },
    /// `MADV_DONTNEED`.
    Purge {
        process: usize,
        slot: u8,
        region: usize,
        from: u64,
        count: u64,
    },
    /// The kernel splits a huge page, and keeps all its pages.
    Split {
        process: usize,
        slot: u8,
        region: usize,
    },
    /// The kernel splits an underused huge page, and frees the pages that were never touched.
    Reclaim {
        process: usize,
        slot: u8,
        region: usize,
    },
    /// The kernel makes a huge page of a full region by itself.
    Khugepaged {
        process: usize,
        slot: u8,
        region: usize,
    },
    /// From now on the program accesses these pages in `percent` of the samples, and no others.
    Access {
        process: usize,
        slot: u8,
        region: usize,
        from: u64,
        count: u64,
        percent: u64,
    },
    /// The sampler samples the accessed bits.
    Sample,
    /// A page fault in an empty region brings a huge page.
    FaultHuge {
        process: usize,
        slot: u8,
        region: usize,
    },
}

/// All processes.
#[derive(Debug, Clone)]
pub(crate) struct FakeKernel {
    processes: BTreeMap<ProcessId, Process>,
    spawned: u32,
    /// True if looks show which regions are huge.
    tells_huge: bool,
    sampler: Sampler,
    /// True if a split keeps pages of zeroes, as before Linux 6.12.
    pub(crate) keeps_zeroes: bool,
    /// Number of torn huge pages in the last slot of each process. Splits do not change them.
    pub(crate) torn: u64,
    /// Time that the clock shows; for the sampler only.
    pub(crate) now: Duration,
    /// State of the noise generator.
    seed: u64,
}

impl FakeKernel {
    pub(crate) fn new(tells_huge: bool) -> Self {
        Self {
            processes: BTreeMap::new(),
            spawned: 0,
            tells_huge,
            sampler: Sampler::default(),
            keeps_zeroes: false,
            torn: 0,
            now: Duration::ZERO,
            seed: 1,
        }
    }

    /// Makes a world of identical processes with `regions` whole regions each, `resident` pages in each.
    pub(crate) fn uniform(processes: usize, regions: u64, resident: u64) -> Self {
        let mut world = Self::new(true);
        // All of them first: a new process may come before the others.
        (0..processes).for_each(|_| world.happen(&Event::Spawn));
        for process in 0..processes {
            world.happen(&Event::Map {
                process,
                slot: 0,
                kind: VmaKind::Anonymous,
                writable: true,
                head_pages: 0,
                pages: regions * PAGES_PER_REGION,
            });
            for region in 0..usize::try_from(regions).unwrap() {
                world.touch(process, region, 0, resident);
            }
        }
        world
    }

    /// Returns the same world, with a kernel that does not show which regions are huge.
    pub(crate) fn without_telling(self) -> Self {
        Self {
            tells_huge: false,
            ..self
        }
    }

    /// Returns the number of processes.
    pub(crate) fn processes(&self) -> usize {
        self.processes.len()
    }

    /// Touches pages of the region number `region` of slot 0.
    pub(crate) fn touch(&mut self, process: usize, region: usize, from: u64, count: u64) {
        self.happen(&Event::Touch {
            process,
            slot: 0,
            region,
            from,
            count,
        });
    }

    pub(crate) fn happen(&mut self, event: &Event) {
        match *event {
            Event::Spawn => {
                self.spawned += 1;
                let id = ProcessId {
                    // Process numbers repeat; start times do not.
                    pid: 100 + self.spawned * 7 % 5,
                    start_ticks: u64::from(self.spawned),
                };
                self.processes.insert(id, Process::default());
            }
            Event::Exit { process } => {
                if let Some(id) = self.id(process) {
                    self.processes.remove(&id);
                }
            }
            Event::Map {
                process,
                slot,
                kind,
                writable,
                head_pages,
                pages,
            } => {
                let start = BASE + u64::from(slot) * SLOT_SIZE + head_pages * BASE_PAGE_SIZE;
                let range = VirtRange::new(
                    VirtAddr(start),
                    VirtAddr(start + pages.max(1) * BASE_PAGE_SIZE),
                )
                .unwrap();
                if let Some(process) = self.process(process) {
                    process.slots.entry(slot).or_insert_with(|| Mapping {
                        vma: Vma {
                            range,
                            kind,
                            writable,
                        },
                        regions: BTreeMap::new(),
                    });
                }
            }
            Event::Grow {
                process,
                slot,
                pages,
            } => {
                if let Some(mapping) = self.mapping(process, slot) {
                    let limit = BASE + u64::from(slot + 1) * SLOT_SIZE - BASE_PAGE_SIZE;
                    let end = mapping.vma.range.end.0 + pages * BASE_PAGE_SIZE;
                    mapping.vma.range.end = VirtAddr(end.min(limit));
                }
            }
            Event::Unmap { process, slot } => {
                if let Some(process) = self.process(process) {
                    process.slots.remove(&slot);
                }
            }
            Event::Touch {
                process,
                slot,
                region,
                from,
                count,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.touch(Pages::range(from, count));
                }
            }
            Event::Fill {
                process,
                slot,
                region,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.touch(Pages::ALL);
                }
            }
            Event::FillAll { process } => {
                for slot in 0..SLOTS {
                    for region in 0..8 {
                        if let Some(memory) = self.memory(process, slot, region) {
                            memory.touch(Pages::ALL);
                        }
                    }
                }
            }
            Event::Purge {
                process,
                slot,
                region,
                from,
                count,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.drop(Pages::range(from, count));
                }
            }
            Event::Split {
                process,
                slot,
                region,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.huge = false;
                }
            }
            Event::Reclaim {
                process,
                slot,
                region,
            } => {
                if let Some(memory) = self.memory(process, slot, region)
                    && memory.huge
                {
                    memory.drop(Pages::ALL.without(memory.touched));
                }
            }
            Event::Khugepaged {
                process,
                slot,
                region,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.huge |= memory.present == Pages::ALL;
                }
            }
            Event::Access {
                process,
                slot,
                region,
                from,
                count,
                percent,
            } => {
                if let Some(memory) = self.memory(process, slot, region) {
                    memory.accessed = Pages::range(from, count);
                    memory.percent = percent;
                    if percent > 0 {
                        memory.touch(memory.accessed);
                    }
                }
            }
            Event::Sample => self.sample(),
            Event::FaultHuge {
                process,
                slot,
                region,
            } => {
                if let Some(memory) = self.memory(process, slot, region)
                    && memory.present == Pages::default()
                {
                    memory.touch(Pages::range(0, 1));
                    memory.present = Pages::ALL;
                    memory.huge = true;
                }
            }
        }
    }

    fn id(&self, index: usize) -> Option<ProcessId> {
        let index = index % self.processes.len().max(1);
        self.processes.keys().nth(index).copied()
    }

    fn process(&mut self, index: usize) -> Option<&mut Process> {
        let id = self.id(index)?;
        self.processes.get_mut(&id)
    }

    fn mapping(&mut self, process: usize, slot: u8) -> Option<&mut Mapping> {
        self.process(process)?.slots.get_mut(&slot)
    }

    /// Returns the whole region number `region` of a mapping, going around at its end.
    fn memory(&mut self, process: usize, slot: u8, region: usize) -> Option<&mut Memory> {
        let mapping = self.mapping(process, slot)?;
        let count = mapping.vma.range.regions().count();
        let region = mapping.vma.range.regions().nth(region % count.max(1))?;
        Some(mapping.regions.entry(region).or_default())
    }

    /// Collapses a region, as `MADV_COLLAPSE` does.
    pub(crate) fn collapse(&mut self, process: ProcessId, region: Region) -> Effect {
        let Some(process) = self.processes.get_mut(&process) else {
            return Effect::Vanished;
        };
        let refused = Effect::Failed {
            errno: Errno::EINVAL,
        };
        let Some(mapping) = process
            .slots
            .values_mut()
            .find(|mapping| mapping.vma.range.contains(&region.range()))
        else {
            return refused;
        };
        match mapping.regions.get_mut(&region) {
            Some(memory) if mapping.vma.is_promotable() && memory.present.count() > 0 => {
                memory.bloat = memory.bloat.with(Pages::ALL.without(memory.present));
                memory.present = Pages::ALL;
                memory.huge = true;
                Effect::Done
            }
            _ => refused,
        }
    }

    /// Splits a huge page, and frees its pages of zeroes.
    pub(crate) fn split(&mut self, process: ProcessId, region: Region) -> Effect {
        let keeps_zeroes = self.keeps_zeroes;
        let Some(process) = self.processes.get_mut(&process) else {
            return Effect::Vanished;
        };
        let mut mappings = process.slots.values_mut();
        match mappings.find_map(|mapping| mapping.regions.get_mut(&region)) {
            Some(memory) if memory.huge => {
                if !keeps_zeroes {
                    memory.drop(Pages::ALL.without(memory.touched));
                }
                memory.huge = false;
                Effect::Done
            }
            _ => Effect::Failed {
                errno: Errno::EINVAL,
            },
        }
    }

    /// Lets the programs make their accesses, and records them.
    fn sample(&mut self) {
        let (now, seed) = (self.now, &mut self.seed);
        for (id, process) in &mut self.processes {
            let mut bits = BTreeMap::new();
            for mapping in process.slots.values_mut() {
                for (region, memory) in &mut mapping.regions {
                    *seed = seed
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let is_accessed = (*seed >> 33) % 100 < memory.percent;
                    let absent = Pages::ALL.without(memory.present);
                    let touched = if is_accessed {
                        memory.accessed.without(absent)
                    } else {
                        Pages::default()
                    };
                    memory.touch(touched);
                    if memory.present.count() > 0 {
                        let huge = memory.huge;
                        bits.insert(*region, Sample { huge, touched });
                    }
                }
            }
            self.sampler.absorb(*id, now, &bits);
        }
    }

    /// Returns the pages of zeroes in a huge page. Reading them shows as an access.
    pub(crate) fn count_zeroes(&mut self, process: ProcessId, region: Region) -> Option<PageCount> {
        let mut mappings = self.processes.get(&process)?.slots.values();
        let memory = mappings.find_map(|mapping| mapping.regions.get(&region))?;
        self.sampler.read(process, region);
        Some(PageCount(memory.present.without(memory.touched).count()))
    }

    pub(crate) fn look(&self, at: Duration) -> Snapshot {
        let view = |(id, process): (&ProcessId, &Process)| {
            let mappings = process.slots.values();
            let resident: u64 = mappings
                .clone()
                .flat_map(|mapping| mapping.regions.values())
                .map(|memory| memory.present.count())
                .sum();
            ProcessView {
                id: *id,
                rss: None,
                rss_anon: Some(PageCount(resident).bytes()),
                pss_anon: None,
                looked: None,
                vmas: mappings
                    .clone()
                    .map(|mapping| mapping.vma.clone())
                    .collect(),
                regions: mappings
                    .filter(|mapping| mapping.vma.is_promotable())
                    .flat_map(|mapping| &mapping.regions)
                    .filter(|(_, memory)| memory.present.count() > 0)
                    .map(|(region, memory)| RegionView {
                        region: *region,
                        resident: PageCount(memory.present.count()),
                        huge: self.tells_huge.then_some(memory.huge),
                    })
                    .collect(),
                torn: self.torn_pages(),
                held: None,
                fills: false,
                heat: self.sampler.heat(*id),
            }
        };
        Snapshot {
            at,
            processes: self.processes.iter().map(view).collect(),
            objects: Vec::new(),
        }
    }

    fn torn_pages(&self) -> Vec<TornPage> {
        let first = BASE + u64::from(SLOTS - 1) * SLOT_SIZE;
        let torn = (0..self.torn).map(|number| TornPage {
            region: Region::containing(VirtAddr(first + number * HUGE_PAGE_SIZE)),
            held: PageCount(100),
        });
        torn.collect()
    }

    /// Returns the memory that is resident only because of collapses.
    pub(crate) fn bloat(&self) -> ByteCount {
        let pages = self
            .memories()
            .map(|(_, memory)| memory.bloat.count())
            .sum();
        PageCount(pages).bytes()
    }

    /// Returns the resident pages and the number of huge pages of a process.
    pub(crate) fn usage(&self, process: usize) -> (u64, usize) {
        let id = self.id(process).expect("no processes");
        let memories = self.processes[&id].slots.values();
        let memories = memories.flat_map(|mapping| mapping.regions.values());
        let resident = memories.clone().map(|memory| memory.present.count()).sum();
        (resident, memories.filter(|memory| memory.huge).count())
    }

    /// Returns the number of regions that hold at least `min_resident` pages, may be promoted, and are not huge.
    pub(crate) fn unpromoted(&self, min_resident: u64) -> usize {
        self.memories()
            .filter(|(mapping, memory)| {
                mapping.vma.is_promotable()
                    && !memory.huge
                    && memory.present.count() >= min_resident
            })
            .count()
    }

    fn memories(&self) -> impl Iterator<Item = (&Mapping, &Memory)> {
        self.processes
            .values()
            .flat_map(|process| process.slots.values())
            .flat_map(|mapping| {
                mapping
                    .regions
                    .values()
                    .map(move |memory| (mapping, memory))
            })
    }
}

impl Memory {
    fn touch(&mut self, pages: Pages) {
        self.present = self.present.with(pages);
        self.touched = self.touched.with(pages);
        self.bloat = self.bloat.without(pages);
    }

    fn drop(&mut self, pages: Pages) {
        self.present = self.present.without(pages);
        self.touched = self.touched.without(pages);
        self.bloat = self.bloat.without(pages);
        if self.present != Pages::ALL {
            self.huge = false;
        }
    }
}

/// Makes any event. Without `purges`, programs free memory only by unmapping it.
pub(crate) fn event(purges: bool) -> impl Strategy<Value = Event> {
    let process = 0..4usize;
    let slot = 0..SLOTS;
    let region = 0..8usize;
    let place = (process.clone(), slot.clone(), region);
    let stretch = (0..PAGES_PER_REGION, 1..=PAGES_PER_REGION);
    let kind = prop_oneof![
        6 => Just(VmaKind::Anonymous),
        3 => Just(VmaKind::Heap),
        1 => Just(VmaKind::Stack),
        1 => Just(VmaKind::Shared),
    ];
    let space = (process.clone(), slot.clone());
    let extent = (kind, prop::bool::weighted(0.9), 0..700u64, 1..4000u64);
    prop_oneof![
        2 => Just(Event::Spawn),
        1 => process.clone().prop_map(|process| Event::Exit { process }),
        6 => (space.clone(), extent).prop_map(
            |((process, slot), (kind, writable, head_pages, pages))| Event::Map {
                process, slot, kind, writable, head_pages, pages,
            }
        ),
        2 => (space.clone(), 1..800u64)
            .prop_map(|((process, slot), pages)| Event::Grow { process, slot, pages }),
        1 => space.prop_map(|(process, slot)| Event::Unmap { process, slot }),
        8 => (place.clone(), stretch.clone())
            .prop_map(|((process, slot, region), (from, count))| {
                Event::Touch { process, slot, region, from, count }
            }),
        6 => (place.clone(), 380..512u64).prop_map(|((process, slot, region), count)| {
            Event::Touch { process, slot, region, from: 0, count }
        }),
        1 => process.prop_map(|process| Event::FillAll { process }),
        3 => (place.clone(), stretch).prop_map(move |((process, slot, region), (from, count))| {
            if purges {
                Event::Purge { process, slot, region, from, count }
            } else {
                Event::Touch { process, slot, region, from, count }
            }
        }),
        6 => (place.clone(), 0..PAGES_PER_REGION, 1..=PAGES_PER_REGION, 0..=100u64).prop_map(
            |((process, slot, region), from, count, percent)| {
                Event::Access { process, slot, region, from, count, percent }
            }
        ),
        4 => Just(Event::Sample),
        9 => (place, 0..9u8).prop_map(|((process, slot, region), what)| match what {
            0..4 => Event::Fill { process, slot, region },
            4 => Event::Split { process, slot, region },
            5 | 6 => Event::Reclaim { process, slot, region },
            7 => Event::Khugepaged { process, slot, region },
            _ => Event::FaultHuge { process, slot, region },
        }),
    ]
}
