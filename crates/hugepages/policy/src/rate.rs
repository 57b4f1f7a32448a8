//! How many promotions per second: a token bucket.
//!
//! A collapse takes `mmap_lock` for writing and moves up to 2 MiB through the memory bus; thousands
//! at once would stall the very program they are to help. The bucket holds half a second's worth,
//! so a program that starts up is served at once and a large one is spread out.
//!
//! Kept as the moment at which the bucket will be full again rather than as a number of tokens (the
//! "virtual scheduling" form of the leaky bucket, ITU-T I.371): one integer, and no rounding that
//! adds up.
//!
//! ```text
//!   now             full again
//!    |---- owed ----|                 each promotion moves `full again` on by its cost,
//!    |---------- burst ---------|     and never beyond the burst
//!                   |-- left ---|
//! ```

use std::time::Duration;

use superhue_model::{ByteCount, HUGE_PAGE_SIZE};

use crate::clock::{Tick, nanos};

/// How much of a second the bucket holds.
const BURST: Duration = Duration::from_millis(500);

/// A limit on promotions over time.
#[derive(Debug, Clone)]
pub(crate) enum RateLimit {
    /// No limit.
    Open,
    /// A rate of zero: never any.
    Shut,
    /// A token bucket.
    Bucket {
        /// Nanoseconds one promotion takes at the limit, rounded up.
        cost: u64,
        /// Nanoseconds' worth that may be taken at once; at least one promotion.
        burst: u64,
        /// When the bucket is full again.
        full_at: Tick,
    },
}

impl RateLimit {
    /// So many bytes of superpages per second; `None` for no limit.
    pub(crate) fn new(per_second: Option<ByteCount>) -> Self {
        let Some(ByteCount(rate)) = per_second else {
            return Self::Open;
        };
        if rate == 0 {
            return Self::Shut;
        }
        // 2^21 * 10^9 stays below 2^51.
        let cost = (HUGE_PAGE_SIZE * 1_000_000_000).div_ceil(rate);
        Self::Bucket {
            cost,
            burst: nanos(BURST).max(cost),
            full_at: Tick::default(),
        }
    }

    /// Promotions that may be made now.
    pub(crate) fn available(&self, now: Tick) -> usize {
        match *self {
            Self::Open => usize::MAX,
            Self::Shut => 0,
            Self::Bucket {
                cost,
                burst,
                full_at,
            } => {
                let left = burst.saturating_sub(full_at.nanos_since(now)) / cost;
                usize::try_from(left).unwrap_or(usize::MAX)
            }
        }
    }

    /// Makes one promotion now.
    pub(crate) fn take(&mut self, now: Tick) {
        if let Self::Bucket { cost, full_at, .. } = self {
            *full_at = (*full_at).max(now).after_nanos(*cost);
        }
    }

    /// When it is worth coming back for `wanted` more: they may all be made then, or half a bucket
    /// of them (so that a long queue does not ask for a look per region). `None`: never.
    pub(crate) fn refilled_for(&self, now: Tick, wanted: usize) -> Option<Tick> {
        match *self {
            Self::Open => Some(now),
            Self::Shut => None,
            Self::Bucket {
                cost,
                burst,
                full_at,
            } => {
                let wanted = u64::try_from(wanted).unwrap_or(u64::MAX);
                let batch = wanted.min(burst / cost / 2).max(1);
                let room_for_batch = full_at.after_nanos(cost * batch).before_nanos(burst);
                Some(room_for_batch.max(now))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tick(nanos: u64) -> Tick {
        Tick::default().after_nanos(nanos)
    }

    fn take_all(limit: &mut RateLimit, now: Tick) -> usize {
        let taken = limit.available(now);
        (0..taken).for_each(|_| limit.take(now));
        assert_eq!(limit.available(now), 0);
        taken
    }

    #[test]
    fn a_full_bucket_is_half_a_second() {
        let mut limit = RateLimit::new(Some(ByteCount(64 << 21)));
        assert_eq!(take_all(&mut limit, tick(0)), 32);
        assert_eq!(take_all(&mut limit, tick(15_000_000)), 0);
        assert_eq!(take_all(&mut limit, tick(250_000_000)), 16);
        // However long the pause, no more than a bucket.
        assert_eq!(take_all(&mut limit, tick(1 << 60)), 32);
    }

    #[test]
    fn a_crawling_rate_still_moves() {
        // One region takes 2^21 s at 1 B/s: far longer than the burst.
        let mut limit = RateLimit::new(Some(ByteCount(1)));
        assert_eq!(take_all(&mut limit, tick(0)), 1);
        let cost = (1 << 21) * 1_000_000_000;
        assert_eq!(take_all(&mut limit, tick(cost - 1)), 0);
        assert_eq!(take_all(&mut limit, tick(cost)), 1);
    }

    #[test]
    fn open_and_shut() {
        let mut open = RateLimit::new(None);
        open.take(tick(0));
        assert_eq!(open.available(tick(0)), usize::MAX);
        assert_eq!(open.refilled_for(tick(3), 5), Some(tick(3)));
        let shut = RateLimit::new(Some(ByteCount(0)));
        assert_eq!(shut.available(tick(1 << 60)), 0);
        assert_eq!(shut.refilled_for(tick(0), 1), None);
    }

    proptest! {
        #[test]
        fn no_window_exceeds_rate_and_burst(
            rate in 1u64..1 << 36,
            steps in prop::collection::vec((0u64..2_000_000_000, 0usize..200), 1..40),
        ) {
            let mut limit = RateLimit::new(Some(ByteCount(rate)));
            let mut now = 0;
            let mut taken: Vec<(u64, usize)> = Vec::new();
            for (pause, wanted) in steps {
                now += pause;
                let count = limit.available(tick(now)).min(wanted);
                (0..count).for_each(|_| limit.take(tick(now)));
                taken.push((now, count));
            }
            for (from, (start, _)) in taken.iter().enumerate() {
                let mut sum = 0u128;
                for (end, count) in &taken[from..] {
                    sum += *count as u128;
                    let window = u128::from(end - start);
                    let worth = |nanos: u128| u128::from(rate) * nanos / 1_000_000_000;
                    let single = worth(window) + u128::from(HUGE_PAGE_SIZE);
                    let allowed = worth(window + 500_000_000).max(single);
                    prop_assert!(sum * u128::from(HUGE_PAGE_SIZE) <= allowed);
                }
            }
        }

        #[test]
        fn what_was_promised_is_there(
            rate in 1u64..1 << 36,
            before in 0usize..600,
            now in 0u64..1 << 40,
            wanted in 1usize..5000,
        ) {
            let mut limit = RateLimit::new(Some(ByteCount(rate)));
            let now = tick(now);
            (0..before.min(limit.available(now))).for_each(|_| limit.take(now));
            let then = limit.refilled_for(now, wanted).unwrap();
            prop_assert!(then >= now);
            let there = limit.available(then);
            prop_assert!(there >= 1);
            let RateLimit::Bucket { cost, burst, .. } = limit else { unreachable!() };
            prop_assert!(there >= wanted.min(usize::try_from(burst / cost / 2).unwrap()));
        }
    }
}
