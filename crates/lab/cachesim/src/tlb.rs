//! One TLB and its translations, replaced by LRU.

use crate::machine::TlbSpec;

const NONE: u16 = u16::MAX;
const EMPTY: u64 = u64::MAX;

/// Translation lookaside buffer. Its keys are page numbers combined with the size of the page.
#[derive(Debug, Clone)]
pub struct Tlb {
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    /// Few ways: each set is a list in the order of last use.
    Sets {
        keys: Vec<u64>,
        ways: usize,
        set_mask: u64,
    },
    /// Fully associative with many entries: found by hashing, ordered by a list.
    Full(Box<Full>),
}

impl Tlb {
    /// Makes an empty TLB of this kind.
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

    /// Uses the translation of a page; `false` if the TLB did not hold it, and now does. `index` chooses the set: it is
    /// the page's number in units of its size.
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
                // Moves each entry one place back, up to the old place of the key.
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

/// Fully associative TLB: hash chains find the entry of a key; all entries form a ring, in the order of their last use.
#[derive(Debug, Clone)]
struct Full {
    keys: Vec<u64>,
    /// For each entry the one used next after it; for the latest entry the oldest.
    after: Vec<u16>,
    /// For each entry the one used before it; for the oldest entry the latest.
    before: Vec<u16>,
    /// The entry used last: a repeated use of it changes no order.
    latest: u16,
    /// First entry of a chain, by hash.
    chains: Vec<u16>,
    next: Vec<u16>,
    shift: u32,
}

impl Full {
    fn new(entries: usize) -> Self {
        let buckets = (entries * 4).next_power_of_two();
        let neighbours = |by: usize| (0..entries).map(move |entry| ((entry + by) % entries) as u16);
        Self {
            keys: vec![EMPTY; entries],
            after: neighbours(1).collect(),
            before: neighbours(entries - 1).collect(),
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
        let oldest = self.after[usize::from(self.latest)];
        if !found {
            entry = oldest;
            self.forget(entry);
            self.keys[usize::from(entry)] = key;
            self.next[usize::from(entry)] = self.chains[bucket];
            self.chains[bucket] = entry;
        }
        if entry != oldest {
            self.put_behind_latest(entry, oldest);
        }
        // If the entry is the oldest one, it already follows the latest in the ring.
        self.latest = entry;
        found
    }

    fn put_behind_latest(&mut self, entry: u16, oldest: u16) {
        let at = usize::from(entry);
        let (before, after) = (self.before[at], self.after[at]);
        self.after[usize::from(before)] = after;
        self.before[usize::from(after)] = before;
        self.before[at] = self.latest;
        self.after[at] = oldest;
        self.after[usize::from(self.latest)] = entry;
        self.before[usize::from(oldest)] = entry;
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

    /// The reference is a list in which the used key moves to the front.
    #[test]
    fn the_one_used_longest_ago_goes() {
        let mut tlb = Full::new(16);
        let mut list = vec![EMPTY; 16];
        let mut random = Random::new(3);
        let mut found = 0;
        for round in 0..20_000 {
            // More pages than entries, then fewer.
            let key = random.below(if round % 2000 < 1000 { 40 } else { 12 });
            let was = list.iter().position(|held| *held == key);
            list.remove(was.unwrap_or(15));
            list.insert(0, key);
            assert_eq!(tlb.touch(key), was.is_some(), "{round}");
            found += u32::from(was.is_some());
        }
        assert!((10_000..19_000).contains(&found), "{found}");
    }
}
