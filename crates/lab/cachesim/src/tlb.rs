//! One TLB: which translations it holds, replaced by LRU.

use crate::machine::TlbSpec;

const NONE: u16 = u16::MAX;
const EMPTY: u64 = u64::MAX;

/// A translation lookaside buffer. Its keys are page numbers, with the size of the page in them.
#[derive(Debug, Clone)]
pub struct Tlb {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Few ways: each set in the order of last use.
    Sets {
        keys: Vec<u64>,
        ways: usize,
        set_mask: u64,
    },
    /// Many entries, any of which may hold any page: found by hashing, ordered by a list.
    Full(Box<Full>),
}

impl Tlb {
    /// An empty one of this kind.
    #[must_use]
    pub fn new(spec: &TlbSpec) -> Self {
        let entries = usize::try_from(spec.entries).unwrap_or(usize::MAX);
        let ways = usize::try_from(spec.ways).unwrap_or(usize::MAX);
        let kind = if ways == entries && entries > 8 {
            Kind::Full(Box::new(Full::new(entries)))
        } else {
            Kind::Sets {
                keys: vec![EMPTY; entries],
                ways,
                set_mask: (entries / ways) as u64 - 1,
            }
        };
        Self { kind }
    }

    /// Uses the translation of a page; `false` if it was not there, and has been put in. `index` is what
    /// sets are chosen by: the page's number in units of its size.
    #[inline]
    pub fn touch(&mut self, key: u64, index: u64) -> bool {
        match &mut self.kind {
            Kind::Sets {
                keys,
                ways,
                set_mask,
            } => {
                let from = (index & *set_mask) as usize * *ways;
                let set = &mut keys[from..from + *ways];
                if set[0] == key {
                    return true;
                }
                // Each one goes a place back, until the key is met.
                let mut carried = key;
                for held in set {
                    carried = std::mem::replace(held, carried);
                    if carried == key {
                        return true;
                    }
                }
                false
            }
            Kind::Full(full) => full.touch(key),
        }
    }
}

/// Fully associative: a table of chains that finds the entry of a key, and a ring of entries by last use.
#[derive(Debug, Clone)]
struct Full {
    keys: Vec<u64>,
    /// Neighbours in the ring; the entry used last is `head`, the one before it in the ring was used longest ago.
    newer: Vec<u16>,
    older: Vec<u16>,
    head: u16,
    /// First entry of a chain, by hash.
    chains: Vec<u16>,
    next: Vec<u16>,
    shift: u32,
}

impl Full {
    fn new(entries: usize) -> Self {
        let buckets = (entries * 4).next_power_of_two();
        let ring = |by: usize| (0..entries).map(move |at| ((at + by) % entries) as u16);
        Self {
            keys: vec![EMPTY; entries],
            older: ring(1).collect(),
            newer: ring(entries - 1).collect(),
            head: 0,
            chains: vec![NONE; buckets],
            next: vec![NONE; entries],
            shift: 64 - buckets.trailing_zeros(),
        }
    }

    #[inline]
    fn bucket(&self, key: u64) -> usize {
        (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize
    }

    #[inline]
    fn touch(&mut self, key: u64) -> bool {
        if self.keys[usize::from(self.head)] == key {
            return true;
        }
        let bucket = self.bucket(key);
        let mut entry = self.chains[bucket];
        while entry != NONE && self.keys[usize::from(entry)] != key {
            entry = self.next[usize::from(entry)];
        }
        if entry != NONE {
            self.use_again(entry);
            return true;
        }
        // The one that was used longest ago is behind the head; turning the ring makes it the head.
        let entry = self.newer[usize::from(self.head)];
        self.forget(entry);
        self.keys[usize::from(entry)] = key;
        self.next[usize::from(entry)] = self.chains[bucket];
        self.chains[bucket] = entry;
        self.head = entry;
        false
    }

    fn use_again(&mut self, entry: u16) {
        let at = usize::from(entry);
        let last = self.newer[usize::from(self.head)];
        if entry != last {
            let (newer, older) = (self.newer[at], self.older[at]);
            self.older[usize::from(newer)] = older;
            self.newer[usize::from(older)] = newer;
            self.newer[at] = last;
            self.older[at] = self.head;
            self.older[usize::from(last)] = entry;
            self.newer[usize::from(self.head)] = entry;
        }
        self.head = entry;
    }

    fn forget(&mut self, entry: u16) {
        let key = self.keys[usize::from(entry)];
        if key == EMPTY {
            return;
        }
        let bucket = self.bucket(key);
        let after = self.next[usize::from(entry)];
        if self.chains[bucket] == entry {
            self.chains[bucket] = after;
            return;
        }
        let mut before = self.chains[bucket];
        while self.next[usize::from(before)] != entry {
            before = self.next[usize::from(before)];
        }
        self.next[usize::from(before)] = after;
    }
}
