//! Limits of promotion in time: bytes a second, and a share of each process's time.
//!
//! # Bytes a second: a token bucket
//!
//! A collapse takes `mmap_lock` for writing, and moves up to 2 MiB through the memory bus; thousands at once would stall the very program that they
//! should help. The bucket holds half a second's worth, so a program that starts up is served at once, and a large one is spread out.
//!
//! The state is the moment at which the bucket will be full again, rather than a number of tokens (the "virtual scheduling" form of the leaky
//! bucket, ITU-T I.371): one integer, and no rounding that adds up.
//!
//! ```text
//!   now             full again
//!    |---- owed ----|                 each promotion moves `full again` on by its cost,
//!    |---------- burst ---------|     and never beyond the burst
//!                   |-- left ---|
//! ```
//!
//! # Time that collapses may take from a process
//!
//! While the kernel collapses a region, the process can neither map nor fault anywhere, and accesses to the region wait. One collapse takes 0.3 to
//! 5 ms. Several in a row make a queue: if one collapse costs a server under load the time of one request, a hundred collapses cost it the time of
//! hundreds. So they are spread out: after `took` of collapses there is none until they make up no more than the allowed share of the time.
//!
//! ```text
//!   share 1/10    ##|..................|##|..................|##|
//!                 2 ms      18 ms
//! ```
//!
//! Short ones are done together, up to a fifth of what 100 ms allow: the program runs between any two of them, but the watch, which looks and
//! decides for all processes, should not wake up for each.
//!
//! By default the bound does not apply to a process that grows fast. It waits for its own page faults, huge pages spare it some of them, and a region
//! collapsed now need not be collapsed later, when clients wait for answers. A process grows fast if it grows in a second by an eighth beyond its
//! largest size. On request, the bound does not apply either to a process that has only just begun: no client waits for its answers yet.

use std::time::Duration;

use superhue_model::{ByteCount, HUGE_PAGE_SIZE};

use crate::clock::{Tick, nanos};

/// Time whose allowance the bucket holds.
const BURST: Duration = Duration::from_millis(500);

/// A limit on promotions over time.
#[derive(Debug, Clone)]
pub(crate) enum RateLimit {
    /// No limit.
    Open,
    /// A rate of zero: no promotion ever.
    Shut,
    /// A token bucket.
    Bucket {
        /// Nanoseconds one promotion takes at the limit, rounded up.
        cost: u64,
        /// Nanoseconds' worth that may be taken at once; at least one promotion.
        burst: u64,
        /// Time at which the bucket is full again.
        full_at: Tick,
    },
}

impl RateLimit {
    /// Makes a limit of this many bytes of huge pages per second; `None` for no limit.
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

    /// Returns the number of promotions that may be made now.
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

    /// Counts one promotion now.
    pub(crate) fn take(&mut self, now: Tick) {
        if let Self::Bucket { cost, full_at, .. } = self {
            *full_at = (*full_at).max(now).after_nanos(*cost);
        }
    }

    /// Returns the time of the next useful look for `wanted` more: then all of them may be made, or half a bucket of them (so that a long queue
    /// does not request a look per region). `None`: never.
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

/// Length of time to which the bound applies: any window of this length.
const WINDOW: Duration = Duration::from_millis(100);

/// Divisor of a window's allowance: collapses up to this part of it may be done together.
const TOGETHER: u64 = 5;

/// Longest duration of one collapse that counts: the longest one measured took 0.44 s, and a caller that was stopped measures any time.
const LONGEST: Duration = Duration::from_secs(1);

/// Assumed duration of a collapse before one was seen.
const USUAL: Duration = Duration::from_micros(500);

/// A process that grows by more than this part (one eighth) within this time grows fast.
const NOTABLE_PART: u64 = 8;
const GROWTH_WINDOW: Duration = Duration::from_secs(1);

/// A bound on the time that collapses take from each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaxStall {
    /// Nanoseconds of each [`WINDOW`], 1 to all of them.
    allowed: u64,
    /// Time from the first sight of a process for which the bound does not apply.
    grace: Duration,
    /// True if it applies to a process that grows fast too.
    while_growing: bool,
}

impl MaxStall {
    /// Allows `allowed` of every 100 ms; more than 100 ms counts as all of them.
    pub(crate) fn new(bound: crate::StallBound) -> Self {
        Self {
            allowed: nanos(bound.allowed).clamp(1, nanos(WINDOW)),
            grace: bound.grace,
            while_growing: bound.while_growing,
        }
    }

    /// Returns the pause, in nanoseconds, after a collapse that took `took`. Collapses done together come on top of a steady rate, so the rate
    /// leaves room for them: no window then has more than is allowed.
    fn rest_after(self, took: u64) -> u64 {
        if self.allowed >= nanos(WINDOW) {
            return 0;
        }
        let steady = self.allowed - self.allowed / TOGETHER;
        let share = u128::from(took) * u128::from(nanos(WINDOW)) / u128::from(steady.max(1));
        // The collapse itself has already taken `took` of it.
        u64::try_from(share).map_or(u64::MAX, |share| share.saturating_sub(took))
    }
}

/// Parts of a [`WINDOW`] in which delays are added up.
const PARTS: usize = 20;

/// Delays of the last 100 ms, in parts of 5 ms.
#[derive(Debug, Clone)]
struct StallWindow {
    /// Microseconds in each part, by the part's number modulo their count.
    parts: [u32; PARTS],
    /// Number of the latest part since the start of time.
    latest: u64,
}

impl StallWindow {
    const EMPTY: Self = Self {
        parts: [0; PARTS],
        latest: 0,
    };

    /// Adds a delay that ended by `now`; returns the sum over the window that ends then.
    fn add(&mut self, now: Tick, took: Duration) -> Duration {
        let length = nanos(WINDOW) / PARTS as u64;
        let part = now.nanos_since(Tick::START) / length;
        let passed = part.saturating_sub(self.latest).min(PARTS as u64);
        for back in 0..passed {
            self.parts[((part - back) % PARTS as u64) as usize] = 0;
        }
        self.latest = self.latest.max(part);
        let micros = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        let part = &mut self.parts[(part % PARTS as u64) as usize];
        *part = part.saturating_add(micros);
        let sum = self.parts.iter().map(|part| u64::from(*part)).sum();
        Duration::from_micros(sum)
    }
}

/// Sum of a process's delays over the last 100 ms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecentStall {
    /// Of delays to which a bound applied.
    Bounded(Duration),
    /// Of delays to which none did.
    Unbounded(Duration),
}

/// Delay of one process by collapses.
#[derive(Debug, Clone)]
pub(crate) struct Stall {
    /// Time since which it is known.
    since: Tick,
    /// Time at which the next one may be made.
    free: Tick,
    /// Nanoseconds that one takes.
    each: u64,
    /// Largest number of its resident pages a second ago or earlier, and since when that is the figure.
    size: Option<(u64, Tick)>,
    /// Time at which it was last seen to have grown notably.
    grown: Option<Tick>,
    /// Recent delays to which the bound applied.
    bounded: StallWindow,
    /// Recent delays to which it did not.
    unbounded: StallWindow,
}

impl Stall {
    /// Makes the state of a process without collapses.
    pub(crate) const fn new(now: Tick) -> Self {
        Self {
            since: now,
            free: Tick::START,
            // 500 us; `nanos` is not for constants.
            each: USUAL.as_micros() as u64 * 1000,
            size: None,
            grown: None,
            bounded: StallWindow::EMPTY,
            unbounded: StallWindow::EMPTY,
        }
    }

    /// Takes in the number of pages that a look found resident.
    pub(crate) fn see(&mut self, resident: u64, now: Tick) {
        let Some((size, since)) = self.size else {
            // Its growth up to this size is not known.
            self.size = Some((resident, now));
            return;
        };
        let passed = now.since(since);
        // Looks may be more than a second apart.
        let windows = (passed.as_nanos() / GROWTH_WINDOW.as_nanos()).max(1);
        let notable =
            (size / NOTABLE_PART).saturating_mul(u64::try_from(windows).unwrap_or(u64::MAX));
        let is_notable = resident > size.saturating_add(notable);
        if is_notable {
            self.grown = Some(now);
        }
        // Slow growth does not add up over many seconds.
        if is_notable || passed >= GROWTH_WINDOW {
            self.size = Some((resident.max(size), now));
        }
    }

    /// Returns true if the bound does not apply to it.
    fn is_free(&self, now: Tick, max: MaxStall) -> bool {
        let is_growing = self
            .grown
            .is_some_and(|grown| now.since(grown) < GROWTH_WINDOW);
        (is_growing && !max.while_growing) || now.since(self.since) < max.grace
    }

    /// Returns the number of collapses that may be made now, if `under_way` are already planned.
    pub(crate) fn available(&self, now: Tick, max: Option<MaxStall>, under_way: u64) -> usize {
        let Some(max) = max.filter(|max| !self.is_free(now, *max)) else {
            return usize::MAX;
        };
        if self.free > now {
            return 0;
        }
        let together = (max.allowed / TOGETHER / self.each.max(1)).max(1);
        usize::try_from(together.saturating_sub(under_way)).unwrap_or(usize::MAX)
    }

    /// Returns the time that collapses may take one right after the other; `None` if the bound does not apply.
    pub(crate) fn together(&self, now: Tick, max: MaxStall) -> Option<Duration> {
        let together = Duration::from_nanos(max.allowed / TOGETHER);
        (!self.is_free(now, max)).then_some(together)
    }

    /// Returns the time at which the next ones may be made.
    pub(crate) const fn free(&self) -> Tick {
        self.free
    }

    /// Counts a collapse that took `took` and ended by `now`; returns what those of the last 100 ms took together.
    pub(crate) fn spend(
        &mut self,
        now: Tick,
        took: Duration,
        max: Option<MaxStall>,
    ) -> RecentStall {
        let took = took.min(LONGEST);
        // A window has no more than its own length.
        let in_window = took.min(WINDOW);
        self.expect(nanos(in_window));
        // If the bound does not apply now, this collapse must not count later.
        let Some(max) = max.filter(|max| !self.is_free(now, *max)) else {
            return RecentStall::Unbounded(self.unbounded.add(now, in_window));
        };
        self.free = self.free.max(now).after_nanos(max.rest_after(nanos(took)));
        RecentStall::Bounded(self.bounded.add(now, in_window))
    }

    /// Learns the duration of a collapse: slower ones count at once, so that no series of them is too long; faster ones gradually.
    fn expect(&mut self, took: u64) {
        self.each = took.max(self.each - self.each / 4 + took / 4);
    }
}

#[cfg(test)]
mod tests {
    mod rate {
        use super::super::*;
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
            // After any pause there is no more than a bucket.
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

    mod stall {
        use super::super::*;
        use proptest::prelude::*;

        fn bound(allowed: Duration) -> MaxStall {
            MaxStall::new(crate::StallBound {
                while_growing: false,
                ..crate::StallBound::always(allowed)
            })
        }

        #[test]
        fn max_stall_spares_a_process_that_starts() {
            let max = Some(MaxStall::new(crate::StallBound {
                allowed: Duration::from_millis(1),
                grace: Duration::from_secs(30),
                while_growing: true,
            }));
            let mut stall = Stall::new(ms(5));
            stall.spend(ms(20_000), Duration::from_secs(1), max);
            assert_eq!(stall.available(ms(30_004), max, 9), usize::MAX);
            assert_eq!(stall.available(ms(30_005), max, 0), 1);
        }

        fn ms(ms: u64) -> Tick {
            Tick::START.after(Duration::from_millis(ms))
        }

        #[test]
        fn the_next_one_waits_for_its_share_of_the_time() {
            let max = Some(bound(Duration::from_millis(10)));
            let mut stall = Stall::new(Tick::START);
            assert_eq!(stall.available(ms(0), max, 0), 4, "2 ms of them");
            assert_eq!(stall.available(ms(0), max, 4), 0);
            // A tenth, less the fifth of it that may be done together.
            let sum = stall.spend(ms(5), Duration::from_millis(4), max);
            assert_eq!(sum, RecentStall::Bounded(Duration::from_millis(4)));
            assert_eq!(stall.free(), ms(51));
            assert_eq!(stall.available(ms(50), max, 0), 0);
            assert_eq!(stall.available(ms(51), max, 0), 1, "they are slow");
            for _ in 0..20 {
                stall.spend(ms(51), Duration::from_micros(200), max);
            }
            assert_eq!(stall.free(), ms(51 + 20 * 23 / 10));
            assert!(stall.available(stall.free(), max, 0) > 6);
        }

        #[test]
        fn the_rest_is_in_proportion_to_a_collapse_longer_than_the_window() {
            let max = Some(bound(Duration::from_millis(10)));
            let spend = |took| {
                let mut stall = Stall::new(Tick::START);
                let sum = stall.spend(ms(1000), took, max);
                assert_eq!(sum, RecentStall::Bounded(WINDOW), "of 100 ms");
                stall.free().since(ms(1000))
            };
            // Twelve times as long, with the collapse itself.
            assert_eq!(spend(WINDOW), Duration::from_millis(1150));
            assert_eq!(
                spend(Duration::from_millis(240)),
                Duration::from_millis(2760)
            );
            // The caller was stopped, not the process.
            let longest = Duration::from_millis(11_500);
            assert_eq!(spend(Duration::from_secs(3600)), longest);
        }

        #[test]
        fn without_a_bound_nothing_waits() {
            let mut stall = Stall::new(Tick::START);
            stall.spend(ms(5), Duration::from_secs(5), None);
            assert_eq!(stall.available(ms(5), None, 9), usize::MAX);
            let all = Some(bound(Duration::from_secs(1)));
            stall.spend(ms(5), Duration::from_secs(5), all);
            assert_eq!(stall.free(), ms(5));
        }

        /// Once their duration is known, collapses of a steady duration keep to the bound in every window.
        #[test]
        fn steady_ones_keep_to_the_bound() {
            for micros in [100, 500, 1900] {
                let max = Some(MaxStall::new(crate::StallBound::always(
                    Duration::from_millis(10),
                )));
                let (mut stall, mut worst) = (Stall::new(ms(0)), Duration::ZERO);
                let mut now = ms(0);
                for turn in 0..2000 {
                    for _ in 0..stall.available(now, max, 0) {
                        now = now.after(Duration::from_micros(micros));
                        let sum = stall.spend(now, Duration::from_micros(micros), max);
                        let RecentStall::Bounded(sum) = sum else {
                            panic!("no exemption was asked for");
                        };
                        if turn > 20 {
                            worst = worst.max(sum);
                        }
                    }
                    now = if now < stall.free() {
                        stall.free()
                    } else {
                        now
                    };
                }
                assert!(worst <= Duration::from_millis(10), "{micros}: {worst:?}");
                assert!(worst >= Duration::from_millis(7), "{micros}: {worst:?}");
            }
        }

        #[test]
        fn delays_are_added_up_over_100_ms() {
            let mut window = StallWindow::EMPTY;
            let ten = Duration::from_millis(10);
            for turn in 0..10 {
                assert_eq!(window.add(ms(turn * 10), ten), ten * (turn as u32 + 1));
            }
            // The first two have left it by then.
            assert_eq!(window.add(ms(115), ten), ten * 9);
            assert_eq!(window.add(ms(10_000), ten), ten);
        }

        #[test]
        fn a_bound_that_always_applies_has_no_exemption() {
            let max = Some(MaxStall::new(crate::StallBound::always(
                Duration::from_millis(10),
            )));
            let mut stall = Stall::new(ms(0));
            stall.see(8000, ms(0));
            stall.see(80_000, ms(10));
            stall.spend(ms(10), Duration::from_millis(10), max);
            assert_eq!(stall.available(ms(20), max, 0), 0, "although it grows");
        }

        #[test]
        fn max_stall_spares_a_process_that_grows() {
            let max = Some(bound(Duration::from_millis(10)));
            let mut stall = Stall::new(Tick::START);
            stall.see(8000, ms(0));
            stall.spend(ms(0), Duration::from_millis(100), max);
            assert_eq!(stall.available(ms(0), max, 0), 0, "it had that before");
            stall.see(9000, ms(100));
            assert_eq!(stall.available(ms(100), max, 0), 0, "an eighth is not more");
            stall.see(9001, ms(200));
            assert_eq!(stall.available(ms(200), max, 0), usize::MAX);
            stall.spend(ms(200), Duration::from_millis(100), max);
            stall.see(0, ms(300));
            stall.see(9001, ms(400));
            assert_eq!(stall.available(ms(1199), max, 0), usize::MAX);
            assert_eq!(stall.available(ms(1200), max, 0), 1, "it had as much");
        }

        #[test]
        fn max_stall_holds_for_a_process_that_grows_slowly() {
            let max = Some(bound(Duration::from_millis(10)));
            let mut stall = Stall::new(Tick::START);
            // From 8,000 pages to four times as many within 40 minutes.
            for second in 0..2400 {
                let now = ms(1000 * second);
                stall.see(8000 + 10 * second, now);
                assert_ne!(stall.available(now, max, 0), usize::MAX, "{second}");
            }
            // Looks 4 s apart: half of its size is an eighth a second, and more is notable.
            stall.see(47_000, ms(2_403_000));
            assert_ne!(stall.available(ms(2_403_000), max, 0), usize::MAX);
            stall.see(72_001, ms(2_407_000));
            assert_eq!(stall.available(ms(2_407_000), max, 0), usize::MAX);
        }

        proptest! {
            /// Checks the promised bound, for collapses of any duration.
            #[test]
            fn no_window_has_more_than_is_allowed(
                allowed in 100u64..100_000,
                tooks in prop::collection::vec(50u64..6000, 1..200),
            ) {
                let max = Some(bound(Duration::from_micros(allowed)));
                let mut stall = Stall::new(Tick::START);
                let mut now = 0u64;
                let mut done: Vec<(u64, u64)> = Vec::new();
                let mut tooks = tooks.into_iter().peekable();
                while tooks.peek().is_some() {
                    let tick = Tick::START.after_nanos(now * 1000);
                    let count = stall.available(tick, max, 0);
                    prop_assert!(count > 0);
                    for took in tooks.by_ref().take(count) {
                        done.push((now, took));
                        now += took;
                        let tick = Tick::START.after_nanos(now * 1000);
                        stall.spend(tick, Duration::from_micros(took), max);
                    }
                    now = now.max(stall.free().nanos_since(Tick::START).div_ceil(1000));
                }
                let longest = done.iter().map(|&(_, took)| took).max().unwrap();
                for &(start, _) in &done {
                    let inside = done.iter().filter(|&&(at, _)| (start..start + 100_000).contains(&at));
                    let sum: u64 = inside.map(|&(_, took)| took).sum();
                    // Collapses done together were expected to take the usual time, and took up to `longest`.
                    let together = (allowed / 5 / 50).max(1) * longest;
                    prop_assert!(sum <= allowed * 4 / 5 + together, "{sum} of {allowed}");
                }
            }
        }
    }
}
