//! One set-associative cache and its lines.

use crate::machine::{CacheSpec, Replacement};
use crate::random::Random;

/// Block that a cache evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EvictedLine {
    /// The line number (address / line size) of the block's first line.
    pub first: u64,
    /// Bits of its valid lines; bit i is line `first + i`.
    pub valid: u8,
    /// Bits of its lines that were written to.
    pub dirty: u8,
}

/// Contents of a slot in one word: the tag, two bits for valid lines, two for dirty ones.
type Slot = u32;

/// Slot without a valid line; its other bits do not matter.
const EMPTY: Slot = u32::MAX << 4;
/// Bits of a slot that are not its tag.
const MARKS: u32 = 4;

const fn valid_of(slot: Slot) -> u8 {
    (slot >> 2 & 3) as u8
}

const fn dirty_of(slot: Slot) -> u8 {
    (slot & 3) as u8
}

/// Calls a function with the ways of the cache as a constant, so that the compiler unrolls loops over a set.
macro_rules! by_ways {
    ($self:ident, $name:ident, $($argument:expr),*) => {
        match $self.ways {
            1 => $self.$name::<1>($($argument),*),
            2 => $self.$name::<2>($($argument),*),
            4 => $self.$name::<4>($($argument),*),
            8 => $self.$name::<8>($($argument),*),
            16 => $self.$name::<16>($($argument),*),
            _ => $self.$name::<0>($($argument),*),
        }
    };
}

/// Set-associative cache, indexed by line number.
///
/// A block is a line, or with sectors two neighbouring lines under one tag; the cache fetches each line by itself.
/// Nothing moves within a set: with LRU each slot has the time of its last use.
#[derive(Debug, Clone)]
pub struct Cache {
    slots: Vec<Slot>,
    /// With LRU, the time of the last use of each slot; 0 for empty slots, which are replaced first.
    used: Vec<u32>,
    now: u32,
    /// Per set, the way that was used last: most references are to it, and a repeated use of it changes no order.
    latest: Vec<u8>,
    ways: usize,
    set_mask: u64,
    set_bits: u32,
    /// log2 of lines in a block.
    sector_shift: u32,
    /// log2 of the line size.
    line_shift: u32,
    /// Masks; the parities of the address under them choose the slice.
    slices: Vec<u64>,
    replacement: Replacement,
    /// Per set, the tree of pseudo-LRU.
    trees: Vec<u64>,
    /// Per way, the nodes on the path to it, and the bits of those that point to the other side after a use.
    paths: Vec<(u64, u64)>,
    random: Random,
}

impl Cache {
    /// Makes an empty cache of this kind.
    #[must_use]
    pub fn new(spec: &CacheSpec) -> Self {
        let blocks = spec.size / (spec.line * spec.sector_lines);
        let sets = blocks / spec.ways;
        let sets_per_slice = sets >> spec.slices.len();
        let ways = usize::try_from(spec.ways).unwrap_or(usize::MAX);
        let sets = usize::try_from(sets).unwrap_or(usize::MAX);
        let (lru, tree) = (
            spec.replacement == Replacement::Lru,
            spec.replacement == Replacement::TreePlru,
        );
        let paths = (0..ways).map(|way| path(ways, way));
        Self {
            slots: vec![EMPTY; sets * ways],
            used: vec![0; if lru { sets * ways } else { 0 }],
            now: 0,
            latest: vec![0; sets],
            ways,
            set_mask: sets_per_slice - 1,
            set_bits: sets_per_slice.trailing_zeros(),
            sector_shift: spec.sector_lines.trailing_zeros(),
            line_shift: spec.line.trailing_zeros(),
            slices: spec.slices.clone(),
            replacement: spec.replacement,
            trees: vec![0; if tree { sets } else { 0 }],
            paths: if tree { paths.collect() } else { Vec::new() },
            random: Random::named(0, &spec.name),
        }
    }

    /// The set of a line.
    #[inline]
    #[must_use]
    pub fn set_of(&self, line: u64) -> usize {
        let set = (line >> self.sector_shift) & self.set_mask;
        if self.slices.is_empty() {
            return set as usize;
        }
        let address = line << self.line_shift;
        let mut slice = 0;
        for (index, mask) in self.slices.iter().enumerate() {
            slice |= u64::from((address & mask).count_ones() & 1) << index;
        }
        (slice << self.set_bits | set) as usize
    }

    /// Returns the set of a line, its tag at the position of a slot's tag, and its bit among the valid ones.
    #[inline]
    fn place(&self, line: u64) -> (usize, Slot, Slot) {
        let tag = line >> (self.sector_shift + self.set_bits);
        debug_assert!(
            tag < (1 << (32 - MARKS)) - 1,
            "an address beyond what is modelled"
        );
        let bit = 4 << (line & u64::from(self.sector_shift));
        (self.set_of(line), (tag as Slot) << MARKS, bit)
    }

    /// The slots of a set; `W` is the number of ways, or 0 if it is not a constant.
    #[inline]
    fn set<const W: usize>(&mut self, set: usize) -> &mut [Slot] {
        let ways = if W == 0 { self.ways } else { W };
        &mut self.slots[set * ways..][..ways]
    }

    /// Uses a line if the cache has it: the line becomes the one used last, and dirty if `write`. Returns true for a
    /// hit.
    #[inline]
    pub fn touch(&mut self, line: u64, write: bool) -> bool {
        by_ways!(self, touch_in, line, write)
    }

    #[inline]
    fn touch_in<const W: usize>(&mut self, line: u64, write: bool) -> bool {
        let (set, tag, bit) = self.place(line);
        let latest = usize::from(self.latest[set]);
        let slots = self.set::<W>(set);
        let dirty = if write { bit >> 2 } else { 0 };
        let holds = |slot: Slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0;
        if let Some(slot) = slots.get_mut(latest)
            && holds(*slot)
        {
            *slot |= dirty;
            return true;
        }
        // Compares all slots, even after a hit, so that the loop has no branches.
        let mut found = usize::MAX;
        for (way, slot) in slots.iter().enumerate() {
            found = if holds(*slot) { way } else { found };
        }
        let Some(slot) = slots.get_mut(found) else {
            return false;
        };
        *slot |= dirty;
        self.mark::<W>(set, found);
        true
    }

    /// Records the use of a way of a set.
    #[inline]
    fn mark<const W: usize>(&mut self, set: usize, way: usize) {
        // A set has at most 64 ways.
        self.latest[set] = way as u8;
        match self.replacement {
            Replacement::Lru => {
                if self.now == u32::MAX {
                    self.begin_again();
                }
                self.now += 1;
                let ways = if W == 0 { self.ways } else { W };
                self.used[set * ways + way] = self.now;
            }
            Replacement::TreePlru => {
                let (nodes, away) = self.paths[way];
                let tree = &mut self.trees[set];
                *tree = *tree & !nodes | away;
            }
            Replacement::Random => {}
        }
    }

    /// Renumbers the times of use, in the same order.
    #[cold]
    fn begin_again(&mut self) {
        let mut order: Vec<usize> = Vec::new();
        for set in self.used.chunks_exact_mut(self.ways) {
            order.clear();
            order.extend((0..set.len()).filter(|way| set[*way] != 0));
            order.sort_by_key(|way| set[*way]);
            for (time, way) in (1..).zip(&order) {
                set[*way] = time;
            }
        }
        self.now = self.ways as u32;
    }

    /// Returns true if the cache holds a line; changes nothing.
    #[must_use]
    pub fn holds(&self, line: u64) -> bool {
        let (set, tag, bit) = self.place(line);
        self.slots[set * self.ways..][..self.ways]
            .iter()
            .any(|slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0)
    }

    /// Inserts a line that the cache does not hold. Returns the evicted block.
    #[inline]
    pub fn fill(&mut self, line: u64, dirty: bool) -> Option<EvictedLine> {
        by_ways!(self, fill_in, line, dirty)
    }

    #[inline]
    fn fill_in<const W: usize>(&mut self, line: u64, dirty: bool) -> Option<EvictedLine> {
        let (set, tag, bit) = self.place(line);
        let marks = bit | if dirty { bit >> 2 } else { 0 };
        let sectors = self.sector_shift > 0;
        let slots = self.set::<W>(set);
        if sectors
            && let Some(way) = slots
                .iter()
                .position(|slot| (slot ^ tag) >> MARKS == 0 && *slot != EMPTY)
        {
            slots[way] |= marks;
            self.mark::<W>(set, way);
            return None;
        }
        let way = self.victim::<W>(set);
        let gone = std::mem::replace(&mut self.set::<W>(set)[way], tag | marks);
        self.mark::<W>(set, way);
        (gone != EMPTY).then(|| EvictedLine {
            first: (u64::from(gone >> MARKS) << self.set_bits | set as u64 & self.set_mask)
                << self.sector_shift,
            valid: valid_of(gone),
            dirty: dirty_of(gone),
        })
    }

    /// Chooses the way of a set to replace: an empty one, if there is one.
    #[inline]
    fn victim<const W: usize>(&mut self, set: usize) -> usize {
        if self.replacement == Replacement::Lru {
            let ways = if W == 0 { self.ways } else { W };
            let used = &self.used[set * ways..][..ways];
            let mut oldest = 0;
            let mut least = u32::MAX;
            for (way, time) in used.iter().enumerate() {
                oldest = if *time < least { way } else { oldest };
                least = (*time).min(least);
            }
            return oldest;
        }
        let slots = self.set::<W>(set);
        if let Some(way) = slots.iter().position(|slot| *slot == EMPTY) {
            way
        } else if self.replacement == Replacement::Random {
            self.random.below(self.ways as u64) as usize
        } else {
            self.pointed_at(set)
        }
    }

    /// Removes a line; `Some(dirty)` if the cache held it.
    pub fn remove(&mut self, line: u64) -> Option<bool> {
        let (set, tag, bit) = self.place(line);
        let slots = self.set::<0>(set);
        let way = slots
            .iter()
            .position(|slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0)?;
        let was_dirty = slots[way] & bit >> 2 != 0;
        slots[way] &= !(bit | bit >> 2);
        if valid_of(slots[way]) == 0 {
            slots[way] = EMPTY;
            if let Some(used) = self.used.get_mut(set * self.ways + way) {
                *used = 0;
            }
        }
        Some(was_dirty)
    }

    /// Number of valid lines.
    #[must_use]
    pub fn len(&self) -> usize {
        let valid = self.slots.iter().map(|slot| valid_of(*slot).count_ones());
        valid.map(|count| count as usize).sum()
    }

    /// Returns true if no line is valid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn pointed_at(&self, set: usize) -> usize {
        let levels = self.ways.trailing_zeros();
        let mut node = 1usize;
        for _ in 0..levels {
            node = node * 2 + (self.trees[set] >> node & 1) as usize;
        }
        node - self.ways
    }
}

/// The nodes on the path to a way, as bits, and the bits of those that point to the other side after a use of the way.
fn path(ways: usize, way: usize) -> (u64, u64) {
    let levels = ways.trailing_zeros();
    let (mut nodes, mut away) = (0, 0);
    let mut node = 1usize;
    for level in (0..levels).rev() {
        let right = way >> level & 1;
        nodes |= 1 << node;
        if right == 0 {
            away |= 1 << node;
        }
        node = node * 2 + right;
    }
    (nodes, away)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{Inclusion, Replacement};

    /// The cache renumbers the times of use when they run out; nothing else changes.
    #[test]
    fn times_of_use_may_run_out() {
        let spec = CacheSpec {
            name: "L1d".to_owned(),
            size: 1024,
            ways: 4,
            line: 32,
            sector_lines: 1,
            replacement: Replacement::Lru,
            inclusion: Inclusion::Neither,
            shared: false,
            virtual_index: false,
            write_back: true,
            write_allocate: true,
            slices: Vec::new(),
            millicycles: 0,
        };
        let mut cache = Cache::new(&spec);
        let mut late = cache.clone();
        late.now = u32::MAX - 100;
        let mut random = Random::new(3);
        for _ in 0..1000 {
            let line = random.below(64);
            if random.below(20) == 0 {
                assert_eq!(cache.remove(line), late.remove(line));
                continue;
            }
            let found = cache.touch(line, false);
            assert_eq!(found, late.touch(line, false));
            if !found {
                assert_eq!(cache.fill(line, false), late.fill(line, false));
            }
        }
        assert!(late.now < 2000, "{}", late.now);
    }
}
