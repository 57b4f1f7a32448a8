//! Bringing what is remembered up to a look, in place.
//!
//! From look to look hardly anything comes or goes, so records are changed where they lie and move
//! only to close a gap. The first that has to be put between two others makes those after it move
//! out of the way, once:
//!
//! ```text
//!   records   [ kept ....... ]  (gap)  [ next ....... ]          in place
//!   records   [ kept ....... + ->              spare  [ next ....... ]
//! ```

use crate::record::Record;

/// Old records on the one side, those kept on the other; both in ascending order.
#[derive(Debug)]
pub(crate) struct Merge<'a, N> {
    records: &'a mut Vec<Record<N>>,
    /// Holds the old ones from the first insertion without a gap on.
    spare: &'a mut Vec<Record<N>>,
    is_spilled: bool,
    kept: usize,
    /// Index of the next old one, wherever they lie.
    next: usize,
}

impl<'a, N: Copy> Merge<'a, N> {
    /// `spare` is scratch space, whatever it holds.
    pub(crate) fn new(records: &'a mut Vec<Record<N>>, spare: &'a mut Vec<Record<N>>) -> Self {
        Self {
            records,
            spare,
            is_spilled: false,
            kept: 0,
            next: 0,
        }
    }

    /// The next old record, if it is such. It stays the next one.
    pub(crate) fn next_if(
        &mut self,
        is_wanted: impl FnOnce(&Record<N>) -> bool,
    ) -> Option<&mut Record<N>> {
        let old = if self.is_spilled {
            &mut *self.spare
        } else {
            &mut *self.records
        };
        old.get_mut(self.next).filter(|record| is_wanted(record))
    }

    /// Forgets the next old record.
    pub(crate) const fn drop_next(&mut self) {
        self.next += 1;
    }

    /// Keeps the next old record, of which there has to be one. Returns its index from now on.
    pub(crate) fn keep_next(&mut self) -> usize {
        if self.is_spilled {
            self.records.push(self.spare[self.next]);
        } else if self.kept != self.next {
            self.records[self.kept] = self.records[self.next];
        }
        self.next += 1;
        self.kept += 1;
        self.kept - 1
    }

    /// Puts a new record before the next old one. Returns its index.
    pub(crate) fn insert(&mut self, record: Record<N>) -> usize {
        let is_at_end = self.next == self.records.len();
        if !self.is_spilled && self.kept == self.next && !is_at_end {
            self.spare.clear();
            self.spare.extend_from_slice(&self.records[self.next..]);
            self.records.truncate(self.kept);
            self.next = 0;
            self.is_spilled = true;
        }
        if self.is_spilled {
            self.records.push(record);
        } else if self.kept < self.next {
            self.records[self.kept] = record;
        } else {
            self.records.push(record);
            self.next += 1;
        }
        self.kept += 1;
        self.kept - 1
    }

    /// Leaves those that were kept, and no others.
    pub(crate) fn finish(self) {
        self.records.truncate(self.kept);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use superhue_model::{Region, VirtAddr};

    use super::*;
    use crate::clock::Tick;
    use crate::look::Seen;

    fn record(n: u64, resident: u16) -> Record<()> {
        let region = Region::containing(VirtAddr(n << 21));
        let seen = Seen {
            region,
            vma: region.range(),
            resident,
            huge: None,
        };
        Record::new(&seen, Tick::START)
    }

    fn number(record: &Record<()>) -> (u64, u16) {
        (record.region.start().0 >> 21, record.growth())
    }

    proptest! {
        /// Against what a map does: for each number whether it is old, seen, and to be kept.
        #[test]
        fn it_does_what_a_map_would(regions in prop::collection::vec(any::<[bool; 3]>(), 0..60)) {
            let numbered = || (0u64..).zip(&regions);
            let mut records: Vec<_> = numbered()
                .filter(|(_, [is_old, ..])| *is_old)
                .map(|(n, _)| record(n, 1))
                .collect();
            let mut spare = vec![record(999, 9)];
            let mut merge = Merge::new(&mut records, &mut spare);
            let mut expected = Vec::new();
            for (n, &[is_old, is_seen, is_kept]) in numbered() {
                if !is_seen {
                    continue;
                }
                while let Some(lost) = merge.next_if(|old| number(old).0 < n) {
                    prop_assert!(!regions[number(lost).0 as usize][1]);
                    merge.drop_next();
                }
                let known = merge.next_if(|old| number(old).0 == n).is_some();
                prop_assert_eq!(known, is_old);
                if is_kept {
                    let index = if is_old { merge.keep_next() } else { merge.insert(record(n, 2)) };
                    prop_assert_eq!(index, expected.len());
                    expected.push((n, if is_old { 511 } else { 510 }));
                } else if is_old {
                    merge.drop_next();
                }
            }
            merge.finish();
            prop_assert_eq!(records.iter().map(number).collect::<Vec<_>>(), expected);
        }
    }
}
