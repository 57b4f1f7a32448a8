//! Time as the policies see it: compact, and never running backwards.

use std::time::Duration;

/// A moment: nanoseconds since the watch began.
///
/// Half the size of a [`Duration`]; each remembered region holds several.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Tick(u64);

/// Latest moment a clock shows (292 years): leaves room to add to it without saturating.
const LAST: Tick = Tick(u64::MAX / 2);

/// Returns the whole nanoseconds of `duration`, saturating.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

impl Tick {
    /// The beginning of the watch.
    pub(crate) const START: Self = Self(0);

    /// Returns the moment `duration` later.
    pub(crate) fn after(self, duration: Duration) -> Self {
        self.after_nanos(nanos(duration))
    }

    /// Returns the moment `nanos` nanoseconds later.
    pub(crate) const fn after_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the moment `nanos` nanoseconds earlier, or the beginning.
    pub(crate) const fn before_nanos(self, nanos: u64) -> Self {
        Self(self.0.saturating_sub(nanos))
    }

    /// Returns the nanoseconds from `earlier` to here; 0 if it is not earlier.
    pub(crate) const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }

    /// Returns the time from `earlier` to here; zero if it is not earlier.
    pub(crate) const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.nanos_since(earlier))
    }
}

/// The newest moment that a policy knows.
#[derive(Debug, Clone, Default)]
pub(crate) struct Clock {
    now: Tick,
}

impl Clock {
    /// Returns the newest moment so far.
    pub(crate) const fn now(&self) -> Tick {
        self.now
    }

    /// Takes in a stamp, and returns the moment it stands for: never one before the last.
    ///
    /// Adding up the forward steps instead would let a clock that swings back and forth refill the rate limit.
    pub(crate) fn advance(&mut self, at: Duration) -> Tick {
        self.now = Tick(nanos(at)).min(LAST).max(self.now);
        self.now
    }
}

/// The earliest of several moments.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct EarliestTick(Option<Tick>);

impl EarliestTick {
    /// Takes in one more moment.
    pub(crate) fn add(&mut self, tick: Tick) {
        self.0 = Some(self.0.map_or(tick, |earliest| earliest.min(tick)));
    }

    /// Returns the earliest, if there was any.
    pub(crate) const fn get(self) -> Option<Tick> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        let mut clock = Clock::default();
        let later = clock.advance(Duration::from_secs(5));
        assert_eq!(clock.advance(Duration::from_secs(1)), later);
        assert!(clock.advance(Duration::from_secs(6)) > later);
        let last = clock.advance(Duration::MAX);
        assert_eq!(last, LAST);
        assert!(last.after(Duration::from_secs(1)) > last);
    }

    #[test]
    fn earliest_of_none_is_none() {
        let mut earliest = EarliestTick::default();
        assert_eq!(earliest.get(), None);
        for n in [7, 3, 5] {
            earliest.add(Tick(n));
        }
        assert_eq!(earliest.get(), Some(Tick(3)));
    }
}
