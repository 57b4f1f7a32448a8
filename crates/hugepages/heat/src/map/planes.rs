//! Counters of 512 pages, kept as bit planes.
//!
//! ```text
//!                      page 511 ........................ page 0
//!   recent[slot]           0 1 1 0 0 ........... 1 0 0 1 1      one sample each, a ring of 6
//!   counts[0]   bit 0      1 0 0 1 0 ........... 0 0 1 1 0  \
//!   counts[1]   bit 1      0 0 1 0 0 ........... 1 0 0 1 0   >  the count of a page stands
//!   counts[8]   bit 8      0 0 0 0 0 ........... 0 0 0 0 0  /   upright, a bit in each plane
//! ```
//!
//! A sample of a region is itself such a plane, so counting is adding one bit to 64 counters by two
//! instructions per plane, and mostly the carry has died out after one or two planes.

use superhue_model::{PAGES_PER_REGION, PageCount, PageSet};

/// Samples that count as recent.
pub(super) const RECENT: usize = 6;

/// Bits of a count.
const COUNT_BITS: usize = 9;

/// Largest count.
pub(super) const LARGEST_COUNT: u16 = (1 << COUNT_BITS) - 1;

const WORDS: usize = PAGES_PER_REGION as usize / 64;

/// Results of samples for each page of a region: 15 bits a page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Planes {
    recent: [[u64; WORDS]; RECENT],
    counts: [[u64; WORDS]; COUNT_BITS],
}

/// A page's count and the samples that found it touched, the newest in bit 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct PageHistory {
    pub(super) count: u16,
    pub(super) recent: u8,
}

impl Planes {
    /// Planes of a region without a touched page.
    pub(super) const EMPTY: Self = Self {
        recent: [[0; WORDS]; RECENT],
        counts: [[0; WORDS]; COUNT_BITS],
    };

    /// Takes in a sample: it replaces the oldest recent one, which is in `slot`.
    pub(super) fn add(&mut self, slot: usize, touched: &PageSet) {
        let touched = touched.words();
        self.recent[slot] = *touched;
        let mut carry = *touched;
        for plane in &mut self.counts {
            let mut left = 0;
            for (bits, carry) in plane.iter_mut().zip(&mut carry) {
                (*bits, *carry) = (*bits ^ *carry, *bits & *carry);
                left |= *carry;
            }
            if left == 0 {
                return;
            }
        }
        // The counts that overflowed are 0 now: set them to the largest value instead.
        for plane in &mut self.counts {
            for (bits, carry) in plane.iter_mut().zip(&carry) {
                *bits |= carry;
            }
        }
    }

    /// Forgets all pages except these.
    pub(super) fn keep(&mut self, pages: &PageSet) {
        for plane in self.recent.iter_mut().chain(&mut self.counts) {
            for (bits, keep) in plane.iter_mut().zip(pages.words()) {
                *bits &= keep;
            }
        }
    }

    /// Halves all counts, rounding down.
    pub(super) fn halve(&mut self) {
        self.counts.rotate_left(1);
        self.counts[COUNT_BITS - 1] = [0; WORDS];
    }

    /// Returns true if no page has a history.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::EMPTY
    }

    /// Returns the number of pages that the sample in `slot` found touched.
    pub(super) fn touched(&self, slot: usize) -> u32 {
        self.recent[slot].iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the number of pages that at least one of the recent samples found touched.
    pub(super) fn active(&self) -> PageCount {
        let mut any = [0; WORDS];
        for plane in &self.recent {
            for (any, bits) in any.iter_mut().zip(plane) {
                *any |= bits;
            }
        }
        PageSet::from_words(any).len()
    }

    /// Returns the history of one page; `newest` is the slot of the last sample.
    pub(super) fn page(&self, page: usize, newest: usize) -> PageHistory {
        let (word, bit) = (page / 64 % WORDS, page % 64);
        let at = |plane: &[u64; WORDS]| plane[word] >> bit & 1 == 1;
        let mut history = PageHistory::default();
        for (weight, plane) in self.counts.iter().enumerate() {
            history.count |= u16::from(at(plane)) << weight;
        }
        for age in 0..RECENT {
            history.recent |= u8::from(at(&self.recent[slot_of(newest, age)])) << age;
        }
        history
    }

    /// Adds to `pages[c]` the number of pages in `present` with count `c`.
    pub(super) fn tally(&self, present: &PageSet, pages: &mut [u64]) {
        for page in present.iter() {
            let count = usize::from(self.page(page, 0).count);
            if let Some(pages) = pages.get_mut(count) {
                *pages += 1;
            }
        }
    }
}

/// Returns the slot of the sample taken `age` samples before the one in `newest`.
pub(super) fn slot_of(newest: usize, age: usize) -> usize {
    (newest + RECENT - age % RECENT) % RECENT
}

/// Weights of samples, the newest first: half as much after [`HALF_LIFE`] samples.
///
/// [`HALF_LIFE`]: super::HALF_LIFE
const WEIGHTS: [f32; RECENT] = [
    1.0,
    std::f32::consts::FRAC_1_SQRT_2,
    0.5,
    std::f32::consts::FRAC_1_SQRT_2 / 2.0,
    0.25,
    std::f32::consts::FRAC_1_SQRT_2 / 4.0,
];

/// Returns the weighted mean of `value` at each age, over the `known` newest samples.
pub(super) fn decayed(known: u8, value: impl Fn(usize) -> f32) -> f32 {
    let known = usize::from(known).min(RECENT);
    let (mut sum, mut weights) = (0.0, 0.0);
    for (age, weight) in WEIGHTS.iter().enumerate().take(known) {
        sum += weight * value(age);
        weights += weight;
    }
    if weights > 0.0 { sum / weights } else { 0.0 }
}

/// Returns the weighted mean of one bit per sample, the newest in bit 0.
pub(super) fn decayed_bits(recent: u8, known: u8) -> f32 {
    decayed(known, |age| f32::from(recent >> age & 1)).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_set() -> impl Strategy<Value = PageSet> {
        any::<[u64; WORDS]>().prop_map(PageSet::from_words)
    }

    proptest! {
        #[test]
        fn planes_count_as_counters_do(
            samples in proptest::collection::vec(any_set(), 0..40),
            kept in any_set(),
        ) {
            let mut planes = Planes::EMPTY;
            let mut counts = [0_u16; 512];
            let mut newest = 0;
            for (number, sample) in samples.iter().enumerate() {
                newest = number % RECENT;
                planes.add(newest, sample);
                for page in sample.iter() {
                    counts[page] += 1;
                }
            }
            let recent: Vec<_> = samples.iter().rev().take(RECENT).collect();
            for (page, &count) in counts.iter().enumerate() {
                let history = planes.page(page, newest);
                prop_assert_eq!(history.count, count);
                for age in 0..RECENT {
                    let touched = recent.get(age).is_some_and(|sample| sample.contains(page));
                    prop_assert_eq!(history.recent >> age & 1 == 1, touched);
                }
            }
            let active = recent.iter().fold(PageSet::EMPTY, |all, sample| all.or(sample));
            prop_assert_eq!(planes.active(), active.len());

            planes.halve();
            planes.keep(&kept);
            let mut tally = [0; 512];
            planes.tally(&kept, &mut tally);
            prop_assert_eq!(tally.iter().sum::<u64>(), kept.len().0);
            for (page, &count) in counts.iter().enumerate() {
                let expected = if kept.contains(page) { count / 2 } else { 0 };
                prop_assert_eq!(planes.page(page, newest).count, expected);
            }
        }
    }

    #[test]
    fn counts_stop_at_the_largest() {
        let mut planes = Planes::EMPTY;
        let mut some = PageSet::EMPTY;
        some.insert(7);
        for sample in 0..usize::from(LARGEST_COUNT) + 10 {
            planes.add(sample % RECENT, &some);
        }
        assert_eq!(planes.page(7, 0).count, LARGEST_COUNT);
        assert_eq!(planes.page(8, 0), PageHistory::default());
    }

    #[test]
    fn a_sample_weighs_half_after_two() {
        assert!((WEIGHTS[2] - 0.5).abs() < 1e-6 && (WEIGHTS[4] - 0.25).abs() < 1e-6);
        assert!((decayed_bits(0b1, 1) - 1.0).abs() < 1e-6);
        assert!((decayed_bits(0b11_1111, 6) - 1.0).abs() < 1e-6);
        assert!(decayed_bits(0b01, 6) > decayed_bits(0b10, 6));
        assert!(decayed_bits(0b1, 0).abs() < f32::EPSILON);
    }
}
