//! Random numbers that are the same on every machine and in every version.

/// Random number generator (xoshiro256++ by Blackman and Vigna, seeded by SplitMix64).
///
/// Written here, because results have to be the same for the same seed, and a crate may change its numbers in a new
/// version.
#[derive(Debug, Clone)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// Makes a generator; each seed has its own sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed;
        let state = std::array::from_fn(|_| {
            mixed = mixed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = mixed;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        });
        Self { state }
    }

    /// Makes a generator for a named purpose, so that its numbers do not depend on earlier draws.
    #[must_use]
    pub fn named(seed: u64, name: &str) -> Self {
        let mut hash = 0xcbf2_9ce4_8422_2325_u64;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        Self::new(seed ^ hash)
    }

    /// Draws 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = a.wrapping_add(d).rotate_left(23).wrapping_add(a);
        let (c, d) = (c ^ a, d ^ b);
        self.state = [a ^ d, b ^ c, c ^ (b << 17), d.rotate_left(45)];
        result
    }

    /// Draws a number below `end`, which is not 0.
    #[allow(
        clippy::cast_possible_truncation,
        reason = "the upper half of a product"
    )]
    pub fn below(&mut self, end: u64) -> u64 {
        debug_assert!(end > 0);
        // The bias is below 2^-40 for the sizes used here.
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Puts values into a random order.
    #[allow(clippy::cast_possible_truncation, reason = "below a length")]
    pub fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}
