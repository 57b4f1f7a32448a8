//! A modelled cache for tests of all code that depends on timing of a real one: no test depends on a clock.

use superhue_model::Random;

use super::probe::{LINE_SIZE, LINES_OF_PAGE};
use super::{Lines, Probe};
use crate::Page;

/// Policy that makes room in a full set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replacement {
    /// The least recently used line goes.
    Lru,
    /// A binary tree over the ways points away from what was used; ways are a power of two.
    TreePlru,
    /// A random line goes.
    Random,
}

/// The modelled cache, and the disturbances of its timing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Machine {
    /// Colors of the cache.
    pub colors: usize,
    /// Ways of the cache.
    pub ways: usize,
    /// Replacement policy of the cache.
    pub replacement: Replacement,
    /// Ticks of a load in the cache in front of it, in it, and beyond.
    pub ticks: [u32; 3],
    /// Times are off by up to this number of ticks per load, evenly distributed.
    pub noise: u32,
    /// Readings of the clock are multiples of this.
    pub grain: u32,
    /// One trial in this number is disturbed and reports it; 0: none.
    pub disturbed: usize,
    /// One timing in this number takes a thousand times as long, unreported; 0: none.
    pub interrupted: usize,
    /// One target in this number is evicted by other activity, unreported; 0: none.
    pub stray: usize,
}

impl Machine {
    /// 32 colors of 8 ways with pseudo-LRU, a clock of 10 ns grain, a little of every disturbance.
    pub const USUAL: Self = Self {
        colors: 32,
        ways: 8,
        replacement: Replacement::TreePlru,
        ticks: [10, 20, 40],
        noise: 2,
        grain: 26,
        disturbed: 50,
        interrupted: 500,
        stray: 500,
    };

    /// LRU, and no disturbances.
    pub const QUIET: Self = Self {
        replacement: Replacement::Lru,
        noise: 0,
        grain: 1,
        disturbed: 0,
        interrupted: 0,
        stray: 0,
        ..Self::USUAL
    };
}

/// The ways of one set.
#[derive(Debug, Clone, Default)]
struct Set {
    /// For LRU, the most recently used line is the last.
    lines: Vec<usize>,
    /// Bits of the tree, root at 1.
    tree: u64,
}

impl Set {
    /// Uses a line; returns true if it was there.
    fn touch(&mut self, line: usize, ways: usize, how: Replacement, random: &mut Random) -> bool {
        let found = self.lines.iter().position(|have| *have == line);
        let way = match (found, how) {
            (Some(at), Replacement::Lru) => {
                self.lines.remove(at);
                self.lines.push(line);
                at
            }
            (Some(at), _) => at,
            (None, _) if self.lines.len() < ways => {
                self.lines.push(line);
                self.lines.len() - 1
            }
            (None, Replacement::Lru) => {
                self.lines.remove(0);
                self.lines.push(line);
                0
            }
            (None, Replacement::Random) => {
                let at = random.below(ways);
                self.lines[at] = line;
                at
            }
            (None, Replacement::TreePlru) => {
                let at = self.victim(ways);
                self.lines[at] = line;
                at
            }
        };
        if how == Replacement::TreePlru {
            self.point_away(way, ways);
        }
        found.is_some()
    }

    fn victim(&self, ways: usize) -> usize {
        let mut node = 1;
        while node < ways {
            node = 2 * node + usize::from(self.tree >> node & 1 == 1);
        }
        node - ways
    }

    fn point_away(&mut self, way: usize, ways: usize) {
        let mut node = way + ways;
        while node > 1 {
            let from_right = node % 2 == 1;
            node /= 2;
            self.tree = self.tree & !(1 << node) | u64::from(!from_right) << node;
        }
    }
}

/// A modelled cache behind a smaller one of 8 ways and one color; any function gives the colors of pages.
pub struct SimulatedProbe {
    machine: Machine,
    color_of: Box<dyn FnMut(Page) -> usize + Send>,
    /// By color, then by line of the page.
    sets: Vec<Set>,
    front: Vec<Set>,
    random: Random,
    /// Trials made, disturbed ones included.
    pub trials: usize,
}

impl std::fmt::Debug for SimulatedProbe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedProbe")
            .field("machine", &self.machine)
            .finish_non_exhaustive()
    }
}

impl SimulatedProbe {
    /// A machine with an empty cache. `color_of` may return another color later: that is drift.
    pub fn new(
        machine: Machine,
        seed: u64,
        color_of: impl FnMut(Page) -> usize + Send + 'static,
    ) -> Self {
        Self {
            machine,
            color_of: Box::new(color_of),
            sets: vec![Set::default(); machine.colors * usize::from(LINES_OF_PAGE)],
            front: vec![Set::default(); usize::from(LINES_OF_PAGE)],
            random: Random::new(seed),
            trials: 0,
        }
    }

    /// Pages that exist only in the model, which never reads them, with scattered colors; and their machine.
    #[must_use]
    pub fn with_pages(machine: Machine, seed: u64, pages: usize) -> (Self, Vec<Page>) {
        let pages = (1..=pages).filter_map(model_page).collect();
        (
            Self::new(machine, seed, move |page| scattered(page, machine.colors)),
            pages,
        )
    }

    /// Returns the color that a page has on this machine now.
    pub fn color_of(&mut self, page: Page) -> usize {
        (self.color_of)(page)
    }

    /// Makes one load; returns its ticks without noise.
    fn load(&mut self, page: Page, offset: u16) -> u32 {
        let line = offset / LINE_SIZE;
        let name = page.address() + usize::from(line);
        let color = (self.color_of)(page);
        let [front, here, beyond] = self.machine.ticks;
        let Machine {
            ways, replacement, ..
        } = self.machine;
        let first = &mut self.front[usize::from(line)];
        if first.touch(name, 8, Replacement::Lru, &mut self.random) {
            return front;
        }
        let set = &mut self.sets[color * usize::from(LINES_OF_PAGE) + usize::from(line)];
        if set.touch(name, ways, replacement, &mut self.random) {
            here
        } else {
            beyond
        }
    }

    fn happens(&mut self, one_in: usize) -> bool {
        one_in > 0 && self.random.below(one_in) == 0
    }
}

/// The page of the model with this number, from 1; nothing is mapped there.
#[must_use]
pub fn model_page(number: usize) -> Option<Page> {
    // SAFETY: nothing reads it: the modelled cache uses the address alone.
    unsafe { Page::at(number.checked_mul(4096)?) }
}

/// A color that is unrelated to the bits of the address, but stays the same.
#[must_use]
pub fn scattered(page: Page, colors: usize) -> usize {
    Random::new(page.address() as u64).below(colors)
}

impl Probe for SimulatedProbe {
    fn trial(
        &mut self,
        lines: &Lines,
        targets: &[Page],
        evictors: &[Page],
        times: &mut [u32],
    ) -> bool {
        self.trials += 1;
        for &target in targets {
            for offset in lines.offsets {
                self.load(target, offset);
            }
        }
        for offset in lines.offsets {
            for &evictor in evictors.iter().chain(evictors.iter().rev()) {
                self.load(evictor, offset);
            }
        }
        for (&target, time) in targets.iter().zip(times) {
            let stray = self.happens(self.machine.stray);
            let mut ticks = 0;
            for offset in lines.offsets {
                let load = self.load(target, offset);
                ticks += if stray { self.machine.ticks[2] } else { load };
                ticks += self.random.below(self.machine.noise as usize + 1) as u32;
            }
            if self.happens(self.machine.interrupted) {
                ticks *= 1_000;
            }
            *time = ticks / self.machine.grain * self.machine.grain;
        }
        !self.happens(self.machine.disturbed)
    }

    fn chase(&mut self, pages: &[Page], loads: u64) -> Option<f64> {
        let mut order = pages.to_vec();
        self.random.shuffle(&mut order);
        let per_pass = order.len() as u64 * u64::from(LINES_OF_PAGE);
        let passes = loads.checked_div(per_pass)?.max(1);
        let mut ticks = 0_u64;
        for pass in 0..passes + 2 {
            for line in 0..LINES_OF_PAGE {
                for &page in &order {
                    let load = self.load(page, line * LINE_SIZE);
                    ticks += u64::from(load) * u64::from(pass >= 2);
                }
            }
        }
        Some(ticks as f64 / (passes * per_pass) as f64)
    }
}
