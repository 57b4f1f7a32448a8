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

/// Fully associative: a table of chains that finds the entry of a key; each entry has the time of its last use.
#[derive(Debug, Clone)]
struct Full {
    keys: Vec<u64>,
    used: Vec<u32>,
    now: u32,
    /// The entry that was used last: to use it again changes no order.
    latest: u16,
    /// First entry of a chain, by hash.
    chains: Vec<u16>,
    next: Vec<u16>,
    shift: u32,
}

impl Full {
    fn new(entries: usize) -> Self {
        let buckets = (entries * 4).next_power_of_two();
        Self {
            keys: vec![EMPTY; entries],
            used: vec![0; entries],
            now: 0,
            latest: 0,
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
        if self.keys[usize::from(self.latest)] == key {
            return true;
        }
        let bucket = self.bucket(key);
        let mut entry = self.chains[bucket];
        while entry != NONE && self.keys[usize::from(entry)] != key {
            entry = self.next[usize::from(entry)];
        }
        let found = entry != NONE;
        if !found {
            entry = self.oldest();
            self.forget(entry);
            self.keys[usize::from(entry)] = key;
            self.next[usize::from(entry)] = self.chains[bucket];
            self.chains[bucket] = entry;
        }
        if self.now == u32::MAX {
            self.begin_again();
        }
        self.now += 1;
        self.used[usize::from(entry)] = self.now;
        self.latest = entry;
        found
    }

    /// The entry that was used longest ago: in two loops without branches, each over several at once.
    fn oldest(&self) -> u16 {
        let least = self
            .used
            .iter()
            .fold(u32::MAX, |least, time| least.min(*time));
        let mut found = 0;
        for (entry, time) in (0u16..).zip(&self.used) {
            found = if *time == least { entry } else { found };
        }
        found
    }

    /// Numbers the times of use anew, in the same order.
    #[cold]
    fn begin_again(&mut self) {
        let mut order: Vec<usize> = (0..self.used.len()).collect();
        order.sort_by_key(|entry| self.used[*entry]);
        for (time, entry) in (0..).zip(order) {
            self.used[entry] = time;
        }
        self.now = self.used.len() as u32;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    /// When times of use are used up they are numbered anew, and nothing else changes.
    #[test]
    fn times_of_use_may_run_out() {
        let mut tlb = Full::new(16);
        let mut late = tlb.clone();
        late.now = u32::MAX - 100;
        let mut random = Random::new(3);
        for _ in 0..1000 {
            let key = random.below(24);
            assert_eq!(tlb.touch(key), late.touch(key));
        }
        assert!(late.now < 2000, "{}", late.now);
    }
}
