//! Cheap deterministic random numbers, for loops in which the generator must not dominate the time.

/// Marsaglia's xorshift generator with 64 bits of state (<https://doi.org/10.18637/jss.v008.i14>).
///
/// Three shifts and three exclusive-ors: about a nanosecond, against the ten or more of a load that
/// misses the caches.
#[derive(Debug, Clone)]
pub struct XorShift(u64);

impl XorShift {
    /// Makes a generator for `seed`; every seed is valid, zero included.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // xorshift never leaves the all-zero state; `mix` maps exactly one input to it.
        Self(mix(seed).max(1))
    }

    /// The next 64 bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Scales 64 random bits to an index in `0..len` (0 if `len` is 0) by Lemire's multiplication.
///
/// The bias is below `len / 2^64`. Unlike a remainder it needs no division, and unlike a mask it
/// serves lengths that are no power of two.
#[inline]
#[must_use]
#[allow(
    clippy::cast_possible_truncation,
    reason = "the product shifted down is below len, a usize"
)]
pub fn scale(bits: u64, len: usize) -> usize {
    ((u128::from(bits) * len as u128) >> 64) as usize
}

/// SplitMix64's finalizer: a bijection on 64 bits in which every input bit flips half the output.
#[inline]
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_seed_gets_stuck() {
        // The pre-image of 0 under `mix`: adding the constant gives 0, which stays 0.
        let worst = 0_u64.wrapping_sub(0x9e37_79b9_7f4a_7c15);
        assert_eq!(mix(worst), 0);
        for seed in [0, 1, worst, u64::MAX] {
            let mut rng = XorShift::new(seed);
            let first = rng.next_u64();
            assert_ne!(first, 0);
            assert_ne!(rng.next_u64(), first);
        }
    }

    #[test]
    fn indexes_cover_the_range_evenly() {
        let mut rng = XorShift::new(1);
        let mut counts = [0_u32; 7];
        for _ in 0..70_000 {
            counts[scale(rng.next_u64(), 7)] += 1;
        }
        // Five standard deviations of a binomial with n = 70,000, p = 1/7.
        assert!(
            counts.iter().all(|&n| n.abs_diff(10_000) < 470),
            "{counts:?}"
        );
        assert_eq!(scale(u64::MAX, 7), 6);
        assert_eq!(scale(u64::MAX, 0), 0);
    }
}
