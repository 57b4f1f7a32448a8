//! How long collapses may hold a process up.
//!
//! While a region is collapsed, the kernel keeps the process from mapping and faulting anywhere, and what touches the region waits.
//! One collapse takes 0.3 to 5 ms. One after the other they make a queue: a server under load that loses a request's time to one
//! collapse loses that of hundreds to a hundred of them. So they are spread out: after `took` of collapses there is none
//! until they are no more than the allowed share of the time.
//!
//! ```text
//!   share 1/10    ##|..................|##|..................|##|
//!                 2 ms      18 ms
//! ```
//!
//! Several are done together where they are short, a fifth of what 100 ms allow: the program runs between any two of them, but the
//! watch, which looks and decides for all processes, should not be woken for each.
//!
//! A process that fills its memory is not held to it. It waits for its own page faults, superpages spare it some, and what is
//! collapsed now need not be later, when somebody waits for answers. Such is a process that becomes larger than it ever was by an
//! eighth in a second. And so is, where it is asked for, one that has only just begun: nobody waits for its answers yet.

use std::time::Duration;

use crate::clock::{Tick, nanos};

/// The bound is for any time as long as this.
const WINDOW: Duration = Duration::from_millis(100);

/// What may be done together: this part of what a window allows.
const TOGETHER: u64 = 5;

/// What a collapse is taken to cost before one was seen.
const USUAL: Duration = Duration::from_micros(500);

/// A process that became larger by this part within so much time fills its memory.
const NOTABLE_PART: u64 = 8;
const FILLING: Duration = Duration::from_secs(1);

/// A bound on the time that collapses take from each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MaxStall {
    /// Nanoseconds of each [`WINDOW`], 1 to all of them.
    allowed: u64,
    /// Who has been known for less than this is not held to it.
    grace: Duration,
}

impl MaxStall {
    /// `allowed` of every 100 ms; more is all of it.
    pub(crate) fn new(bound: crate::StallBound) -> Self {
        Self {
            allowed: nanos(bound.allowed).clamp(1, nanos(WINDOW)),
            grace: bound.grace,
        }
    }
}

/// How collapses have held one process up.
#[derive(Debug, Clone)]
pub(crate) struct Stall {
    /// Since when it is known.
    since: Tick,
    /// When the next one may be made.
    free: Tick,
    /// Nanoseconds that one takes.
    each: u64,
    /// The most pages that it ever had, as of the last notable growth.
    size: Option<u64>,
    /// When it was last seen to have grown notably.
    grown: Option<Tick>,
}

impl Stall {
    /// Not at all.
    pub(crate) const fn new(now: Tick) -> Self {
        Self {
            since: now,
            free: Tick::START,
            // 500 us; `nanos` is not for constants.
            each: USUAL.as_micros() as u64 * 1000,
            size: None,
            grown: None,
        }
    }

    /// Takes in how many pages a look found resident.
    pub(crate) fn see(&mut self, resident: u64, now: Tick) {
        match self.size {
            // How it came to that is not known.
            None => self.size = Some(resident),
            Some(size) if resident > size.saturating_add(size / NOTABLE_PART) => {
                self.size = Some(resident);
                self.grown = Some(now);
            }
            Some(_) => {}
        }
    }

    /// Whether it is not held to the bound.
    fn is_free(&self, now: Tick, max: MaxStall) -> bool {
        let is_filling = self.grown.is_some_and(|grown| now.since(grown) < FILLING);
        is_filling || now.since(self.since) < max.grace
    }

    /// Collapses that may be made now, if `under_way` have been planned already.
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

    /// When some may be made again.
    pub(crate) const fn free(&self) -> Tick {
        self.free
    }

    /// Counts one that took so long and ended by `now`.
    pub(crate) fn spend(&mut self, now: Tick, took: Duration, max: Option<MaxStall>) {
        let Some(max) = max else {
            return;
        };
        // Whoever was longer at it was not at it, but without a CPU.
        let took = nanos(took.min(WINDOW));
        // It counted as nothing then, and must not be made up for later.
        let is_free = self.is_free(now, max);
        // Slower ones count at once, so that no series of them is too long; faster ones in time.
        self.each = took.max(self.each - self.each / 4 + took / 4);
        let share = u128::from(took) * u128::from(nanos(WINDOW)) / u128::from(max.allowed);
        // It took its own time already.
        let rest = u64::try_from(share).map_or(u64::MAX, |share| share.saturating_sub(took));
        if !is_free {
            self.free = self.free.max(now).after_nanos(rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bound(allowed: Duration) -> MaxStall {
        let grace = Duration::ZERO;
        MaxStall::new(crate::StallBound { allowed, grace })
    }

    #[test]
    fn who_has_just_begun_is_not_held_to_it() {
        let max = Some(MaxStall::new(crate::StallBound {
            allowed: Duration::from_millis(1),
            grace: Duration::from_secs(30),
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
        stall.spend(ms(5), Duration::from_millis(5), max);
        assert_eq!(stall.free(), ms(50));
        assert_eq!(stall.available(ms(49), max, 0), 0);
        assert_eq!(stall.available(ms(50), max, 0), 1, "they are slow");
        for _ in 0..20 {
            stall.spend(ms(50), Duration::from_micros(200), max);
        }
        assert_eq!(stall.free(), ms(50 + 20 * 18 / 10));
        assert!(stall.available(stall.free(), max, 0) > 6);
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

    #[test]
    fn who_fills_its_memory_is_not_held_up() {
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

    proptest! {
        /// The bound, as promised, however collapses take their time.
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
                // Those done together were expected to be as long as usual, and turned out to be this long.
                let together = (allowed / 5 / 50).max(1) * longest;
                prop_assert!(sum <= allowed + together, "{sum} of {allowed}");
            }
        }
    }
}
