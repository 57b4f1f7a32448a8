//! The items: keys, values, and the choice of the next item.

use anyhow::{Context, Result};
use rand::distr::Distribution;
use rand::rngs::Xoshiro256PlusPlus;
use rand::{Rng, SeedableRng};
use rand_distr::Zipf;
use superhue_model::ByteCount;

use crate::random::{mix, scale};

/// Bytes in a key.
pub const KEY_LEN: usize = 20;

/// Distinct places in the pool of random bytes at which a value's body may begin.
const OFFSETS: usize = 1 << 16;

/// Bytes at the head of a value that name its item.
const HEADER: usize = 8;

/// Items numbered from 0, with keys and values that follow from their number and the seed.
///
/// A value is eight bytes that name its item, followed by a window of a pool of random bytes at a
/// place that depends on the item:
///
/// ```text
///   value = | mix(item) | pool[offset(item) ..] |
/// ```
///
/// Checking a value is comparing two slices, which costs the client almost nothing; a value that belongs to another
/// key, is cut short or has a byte changed does not pass.
#[derive(Debug)]
pub struct Dataset {
    items: u64,
    value_size: usize,
    salt: u64,
    pool: Vec<u8>,
}

impl Dataset {
    /// Makes `items` items with values of `value_size`.
    ///
    /// # Errors
    /// If a value does not fit the address space.
    pub fn new(items: u64, value_size: ByteCount, seed: u64) -> Result<Self> {
        let value_size = usize::try_from(value_size.0).context("the value size is too large")?;
        let mut pool = vec![0; value_size + OFFSETS];
        Xoshiro256PlusPlus::seed_from_u64(seed).fill_bytes(&mut pool);
        Ok(Self {
            items,
            value_size,
            salt: mix(seed),
            pool,
        })
    }

    /// Number of items.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items
    }

    /// Bytes in every value.
    #[must_use]
    pub fn value_size(&self) -> usize {
        self.value_size
    }

    /// The key of an item: printable, without spaces. Distinct items have distinct keys.
    #[must_use]
    pub fn key(&self, item: u64) -> [u8; KEY_LEN] {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        let mut key = *b"key:0000000000000000";
        let mut rest = mix(item ^ self.salt);
        for digit in key.iter_mut().rev().take(16) {
            *digit = DIGITS[(rest & 15) as usize];
            rest >>= 4;
        }
        key
    }

    /// Appends the value of an item.
    pub fn write_value(&self, item: u64, out: &mut Vec<u8>) {
        let (header, body) = self.parts(item);
        out.extend_from_slice(&header[..HEADER.min(self.value_size)]);
        out.extend_from_slice(body);
    }

    /// Returns true if `value` is that of `item`.
    #[must_use]
    pub fn is_value(&self, item: u64, value: &[u8]) -> bool {
        let (header, body) = self.parts(item);
        let header = &header[..HEADER.min(self.value_size)];
        value.len() == self.value_size
            && value
                .split_at_checked(header.len())
                .is_some_and(|(head, tail)| head == header && tail == body)
    }

    fn parts(&self, item: u64) -> ([u8; HEADER], &[u8]) {
        let word = mix(item.wrapping_add(self.salt));
        let offset = scale(word, OFFSETS);
        let len = self.value_size.saturating_sub(HEADER);
        (word.to_le_bytes(), &self.pool[offset..offset + len])
    }
}

/// Chooser of items with a scrambled zipfian distribution.
///
/// The rank is zipfian: the probability of rank *k* is proportional to 1 / *k*^theta. Hashing the rank over the items
/// scatters the popular ones, as YCSB's `ScrambledZipfianGenerator` does; without it they would be the first stored,
/// lie together, and fit in a few huge pages. As there, two ranks may hash to one item, and some items to no rank.
#[derive(Debug)]
pub struct Chooser {
    rank: Zipf<f64>,
    items: u64,
    salt: u64,
    rng: Xoshiro256PlusPlus,
}

impl Chooser {
    /// Makes a chooser among the items of `dataset` for stream number `stream`; streams of the same dataset have the
    /// same popular items.
    ///
    /// # Errors
    /// If `theta` is no skew or there are no items.
    #[allow(clippy::cast_precision_loss, reason = "at most 1e9 items")]
    pub fn new(dataset: &Dataset, theta: f64, stream: u64) -> Result<Self> {
        Ok(Self {
            rank: Zipf::new(dataset.items as f64, theta).context("no zipfian distribution")?,
            items: dataset.items,
            salt: dataset.salt,
            rng: Xoshiro256PlusPlus::seed_from_u64(dataset.salt ^ mix(stream)),
        })
    }

    /// Chooses the next item.
    pub fn next_item(&mut self) -> u64 {
        let rank = self.next_rank();
        self.item(rank)
    }

    /// Draws the next number in [0, 1), for other decisions of the same stream.
    #[allow(clippy::cast_precision_loss, reason = "53 bits, as many as fit")]
    pub fn next_ratio(&mut self) -> f64 {
        (self.rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Draws the next rank, from 1 (the most popular) to the number of items.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "Zipf gives whole numbers from 1 to the number of items"
    )]
    fn next_rank(&mut self) -> u64 {
        self.rank.sample(&mut self.rng) as u64
    }

    /// The item of a rank.
    fn item(&self, rank: u64) -> u64 {
        let hashed = u128::from(mix(rank ^ self.salt)) * u128::from(self.items);
        #[allow(clippy::cast_possible_truncation, reason = "below `items`, a u64")]
        {
            (hashed >> 64) as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn dataset(items: u64, value_size: u64) -> Dataset {
        Dataset::new(items, ByteCount(value_size), 1).unwrap()
    }

    #[test]
    fn ranks_are_zipfian() {
        let theta = 0.99;
        let items = 1000;
        let mut chooser = Chooser::new(&dataset(items, 8), theta, 0).unwrap();
        let draws = 400_000;
        let mut counts = vec![0_u32; items as usize + 1];
        for _ in 0..draws {
            counts[chooser.next_rank() as usize] += 1;
        }
        let harmonic: f64 = (1..=items).map(|k| (k as f64).powf(-theta)).sum();
        // Chi-squared over the ranks: mean 999, standard deviation sqrt(2 * 999) = 45; the seed is
        // fixed, so this holds always or never.
        let chi2: f64 = (1..=items)
            .map(|k| {
                let expected = f64::from(draws) * (k as f64).powf(-theta) / harmonic;
                (f64::from(counts[k as usize]) - expected).powi(2) / expected
            })
            .sum();
        assert_eq!(counts[0], 0);
        assert!((780.0..1220.0).contains(&chi2), "{chi2}");
    }

    #[test]
    fn without_skew_all_ranks_are_alike() {
        let mut chooser = Chooser::new(&dataset(10, 8), 0.0, 3).unwrap();
        let mut counts = [0_u32; 11];
        for _ in 0..100_000 {
            counts[chooser.next_rank() as usize] += 1;
        }
        assert!(
            counts[1..].iter().all(|n| n.abs_diff(10_000) < 500),
            "{counts:?}"
        );
    }

    #[test]
    fn popular_items_are_scattered_and_the_same_for_every_stream() {
        let data = dataset(1 << 20, 8);
        let first = Chooser::new(&data, 0.99, 0).unwrap();
        let second = Chooser::new(&data, 0.99, 1).unwrap();
        let top: Vec<u64> = (1..=64).map(|rank| first.item(rank)).collect();
        assert!(top.iter().all(|item| *item < 1 << 20));
        // 64 of 2^20 items in 64 equal parts: some parts stay empty, most do not.
        let parts: HashSet<u64> = top.iter().map(|item| item >> 14).collect();
        assert!(parts.len() > 32, "{} of 64 parts", parts.len());
        let other: Vec<u64> = (1..=64).map(|rank| second.item(rank)).collect();
        assert_eq!(top, other);
    }

    #[test]
    fn streams_are_repeatable_and_distinct() {
        let data = dataset(1 << 20, 8);
        let draw = |stream| {
            let mut chooser = Chooser::new(&data, 0.5, stream).unwrap();
            (0..50).map(|_| chooser.next_item()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }

    #[test]
    fn keys_are_distinct_and_fit_for_both_protocols() {
        let data = dataset(100_000, 8);
        let keys: HashSet<_> = (0..100_000).map(|item| data.key(item)).collect();
        assert_eq!(keys.len(), 100_000);
        assert!(keys.iter().flatten().all(u8::is_ascii_graphic));
    }

    proptest! {
        #[test]
        fn only_its_own_value_passes(
            size in 1_u64..2000, item: u64, flip in any::<prop::sample::Index>(), other: u64,
        ) {
            let data = dataset(1, size);
            let mut value = Vec::new();
            data.write_value(item, &mut value);
            prop_assert_eq!(value.len() as u64, size);
            prop_assert!(data.is_value(item, &value));
            if size >= 8 && other != item {
                prop_assert!(!data.is_value(other, &value));
            }
            prop_assert!(!data.is_value(item, &value[1..]));
            let at = flip.index(value.len());
            value[at] ^= 1;
            prop_assert!(!data.is_value(item, &value));
        }
    }
}
