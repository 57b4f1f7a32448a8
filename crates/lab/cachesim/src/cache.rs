//! One cache: which lines it holds.

use crate::machine::{CacheSpec, Replacement};
use crate::random::Random;

/// A block was thrown out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// The line number (address / line size) of the block's first line.
    pub first: u64,
    /// Which of its lines were valid; bit i is line `first + i`.
    pub valid: u8,
    /// Which of them had been written to.
    pub dirty: u8,
}

/// What a slot holds, in one word: the tag, two bits for valid lines, two for dirty ones.
type Slot = u32;

/// No line of it is valid, so nothing else matters.
const EMPTY: Slot = u32::MAX << 4;
/// Bits of a slot that are not its tag.
const MARKS: u32 = 4;

const fn valid_of(slot: Slot) -> u8 {
    (slot >> 2 & 3) as u8
}

const fn dirty_of(slot: Slot) -> u8 {
    (slot & 3) as u8
}

/// Calls a function with the ways of the cache as a constant, so that loops over a set are unrolled.
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

/// A set-associative cache, indexed by line number.
///
/// A block is a line, or with sectors two neighbouring lines under one tag, of which each is fetched by
/// itself. With LRU the slots of a set are kept in the order of their last use.
#[derive(Debug, Clone)]
pub struct Cache {
    slots: Vec<Slot>,
    ways: usize,
    set_mask: u64,
    set_bits: u32,
    /// log2 of lines in a block.
    sector_shift: u32,
    /// log2 of the line size.
    line_shift: u32,
    /// Parities of the address under these masks choose the slice.
    slices: Vec<u64>,
    replacement: Replacement,
    /// Per set, the tree of pseudo-LRU.
    trees: Vec<u64>,
    random: Random,
}

impl Cache {
    /// An empty cache of this kind.
    #[must_use]
    pub fn new(spec: &CacheSpec) -> Self {
        let blocks = spec.size / (spec.line * spec.sector_lines);
        let sets = blocks / spec.ways;
        let sets_per_slice = sets >> spec.slices.len();
        let ways = usize::try_from(spec.ways).unwrap_or(usize::MAX);
        let sets = usize::try_from(sets).unwrap_or(usize::MAX);
        Self {
            slots: vec![EMPTY; sets * ways],
            ways,
            set_mask: sets_per_slice - 1,
            set_bits: sets_per_slice.trailing_zeros(),
            sector_shift: spec.sector_lines.trailing_zeros(),
            line_shift: spec.line.trailing_zeros(),
            slices: spec.slices.clone(),
            replacement: spec.replacement,
            trees: vec![
                0;
                if spec.replacement == Replacement::TreePlru {
                    sets
                } else {
                    0
                }
            ],
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

    /// The set of a line, its tag where a slot has it, and its bit among the valid ones.
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

    /// The slots of a set; `W` is the number of ways, or 0 if that is not known.
    #[inline]
    fn set<const W: usize>(&mut self, set: usize) -> &mut [Slot] {
        let ways = if W == 0 { self.ways } else { W };
        &mut self.slots[set * ways..][..ways]
    }

    /// Uses a line if it is there: it becomes the last one used, and dirty if it is written to.
    #[inline]
    pub fn touch(&mut self, line: u64, write: bool) -> bool {
        by_ways!(self, touch_in, line, write)
    }

    #[inline]
    fn touch_in<const W: usize>(&mut self, line: u64, write: bool) -> bool {
        let (set, tag, bit) = self.place(line);
        let replacement = self.replacement;
        let slots = self.set::<W>(set);
        let dirty = if write { bit >> 2 } else { 0 };
        let holds = |slot: Slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0;
        // Most references are to the line that was used last.
        if replacement == Replacement::Lru && holds(slots[0]) {
            slots[0] |= dirty;
            return true;
        }
        let mut found = usize::MAX;
        for (way, slot) in slots.iter().enumerate() {
            if holds(*slot) {
                found = way;
            }
        }
        let Some(slot) = slots.get_mut(found) else {
            return false;
        };
        *slot |= dirty;
        match replacement {
            Replacement::Lru => to_front(slots, found),
            Replacement::TreePlru => self.point_away(set, found),
            Replacement::Random => {}
        }
        true
    }

    /// Whether a line is there; changes nothing.
    #[must_use]
    pub fn holds(&self, line: u64) -> bool {
        let (set, tag, bit) = self.place(line);
        self.slots[set * self.ways..][..self.ways]
            .iter()
            .any(|slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0)
    }

    /// Puts a line in that is not there, and says what had to go.
    #[inline]
    pub fn fill(&mut self, line: u64, dirty: bool) -> Option<Evicted> {
        by_ways!(self, fill_in, line, dirty)
    }

    #[inline]
    fn fill_in<const W: usize>(&mut self, line: u64, dirty: bool) -> Option<Evicted> {
        let (set, tag, bit) = self.place(line);
        let marks = bit | if dirty { bit >> 2 } else { 0 };
        let (replacement, sectors) = (self.replacement, self.sector_shift > 0);
        let slots = self.set::<W>(set);
        if sectors
            && let Some(way) = slots
                .iter()
                .position(|slot| (slot ^ tag) >> MARKS == 0 && *slot != EMPTY)
        {
            slots[way] |= marks;
            match replacement {
                Replacement::Lru => to_front(slots, way),
                Replacement::TreePlru => self.point_away(set, way),
                Replacement::Random => {}
            }
            return None;
        }
        let way = if replacement == Replacement::Lru {
            let last = slots.len() - 1;
            to_front(slots, last);
            0
        } else if let Some(way) = slots.iter().position(|slot| *slot == EMPTY) {
            way
        } else if replacement == Replacement::Random {
            self.random.below(self.ways as u64) as usize
        } else {
            self.pointed_at(set)
        };
        let gone = std::mem::replace(&mut self.set::<W>(set)[way], tag | marks);
        if replacement == Replacement::TreePlru {
            self.point_away(set, way);
        }
        (gone != EMPTY).then(|| Evicted {
            first: (u64::from(gone >> MARKS) << self.set_bits | set as u64 & self.set_mask)
                << self.sector_shift,
            valid: valid_of(gone),
            dirty: dirty_of(gone),
        })
    }

    /// Takes a line out; `Some(dirty)` if it was there.
    pub fn remove(&mut self, line: u64) -> Option<bool> {
        let (set, tag, bit) = self.place(line);
        let lru = self.replacement == Replacement::Lru;
        let slots = self.set::<0>(set);
        let way = slots
            .iter()
            .position(|slot| (slot ^ tag) >> MARKS == 0 && slot & bit != 0)?;
        let was_dirty = slots[way] & bit >> 2 != 0;
        slots[way] &= !(bit | bit >> 2);
        if valid_of(slots[way]) == 0 {
            slots[way] = EMPTY;
            if lru {
                slots[way..].rotate_left(1);
            }
        }
        Some(was_dirty)
    }

    /// How many lines are valid.
    #[must_use]
    pub fn len(&self) -> usize {
        let valid = self.slots.iter().map(|slot| valid_of(*slot).count_ones());
        valid.map(|count| count as usize).sum()
    }

    /// Whether no line is valid.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Turns all nodes on the path to a way to the other side.
    fn point_away(&mut self, set: usize, way: usize) {
        let levels = self.ways.trailing_zeros();
        let tree = &mut self.trees[set];
        let mut node = 1usize;
        for level in (0..levels).rev() {
            let right = way >> level & 1;
            if right == 1 {
                *tree &= !(1 << node);
            } else {
                *tree |= 1 << node;
            }
            node = node * 2 + right;
        }
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

/// The slot at `way` goes to the front, and those before it one place back.
#[inline]
fn to_front<T: Copy>(slots: &mut [T], way: usize) {
    let used = slots[way];
    // A loop that copies is a call of memmove, which takes longer than the few moves.
    let mut carried = slots[0];
    for slot in &mut slots[1..=way] {
        carried = std::mem::replace(slot, carried);
    }
    slots[0] = used;
}
