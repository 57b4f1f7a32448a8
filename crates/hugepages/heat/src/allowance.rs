//! A ration of time for repeated work: looks, samples.

use std::time::Duration;

/// Default advance: the allowance of this time.
const ADVANCE: Duration = Duration::from_secs(10);

/// Rounding error of a sum of seconds.
const NOTHING: f64 = 1e-9;

/// Time that may be spent: a fixed share of all time that passes, 10 seconds of it in advance.
///
/// ```text
///   spent <= share * (time passed + 10 s) + cost of the last piece of work
/// ```
///
/// Work whose cost is known beforehand does not begin before there is room for all of it. So the last term matters only for the first piece of
/// work, and for one that costs more than those before.
#[derive(Debug, Clone)]
pub struct Allowance {
    share: f64,
    /// The whole advance, in seconds.
    most: f64,
    /// Seconds left; below zero after expensive work.
    left: f64,
    /// Time for which `left` was computed.
    at: Duration,
}

impl Allowance {
    /// Allows `share` of the time from `at` on: up to 1 of one CPU's, above 1 of several. A share that is not a number, or not above 0, allows one
    /// part in a million.
    #[must_use]
    pub fn new(share: f64, at: Duration) -> Self {
        let share = at_least_something(share);
        let most = share * ADVANCE.as_secs_f64();
        Self {
            share,
            most,
            left: most,
            at,
        }
    }

    /// Allows `share` of the time from now on. The advance changes in proportion; the time left stays, up to that.
    pub fn allow(&mut self, share: f64) {
        let share = at_least_something(share);
        self.most *= share / self.share;
        self.left = self.left.min(self.most);
        self.share = share;
    }

    /// Allows `advance` to be spent at once, whatever the share.
    #[must_use]
    pub fn with_advance(self, advance: Duration) -> Self {
        Self {
            most: advance.as_secs_f64(),
            left: advance.as_secs_f64(),
            ..self
        }
    }

    /// Leaves nothing of the advance: it was used before.
    #[must_use]
    pub fn used_up(self) -> Self {
        Self { left: 0.0, ..self }
    }

    /// Counts a cost up to the time `at`.
    pub fn spend(&mut self, at: Duration, cost: Duration) {
        self.left = self.left_at(at) - cost.as_secs_f64();
        self.at = self.at.max(at);
    }

    /// Counts a cost up to the time `at` without going into debt: for work that cannot wait, and whose cost must not delay the work that can.
    pub fn spend_without_debt(&mut self, at: Duration, cost: Duration) {
        self.spend(at, cost);
        self.left = self.left.max(0.0);
    }

    /// Returns true if `cost` can be spent at the time `at`.
    ///
    /// A cost above the whole advance can be spent once the whole advance is there.
    #[must_use]
    pub fn covers(&self, at: Duration, cost: Duration) -> bool {
        cost.as_secs_f64().min(self.most) - self.left_at(at) <= NOTHING
    }

    /// Returns the earliest time at which `cost` can be spent; not before `at`.
    ///
    /// A cost above the whole advance can be spent once the whole advance is there.
    #[must_use]
    pub fn when(&self, at: Duration, cost: Duration) -> Duration {
        let missing = cost.as_secs_f64().min(self.most) - self.left;
        if missing <= 0.0 {
            return at.max(self.at);
        }
        // One nanosecond more makes up for rounding.
        let wait = Duration::try_from_secs_f64(missing / self.share).unwrap_or(Duration::MAX);
        let then = self.at.saturating_add(wait);
        at.max(then.saturating_add(Duration::from_nanos(1)))
    }

    /// Returns the seconds left at the time `at`.
    fn left_at(&self, at: Duration) -> f64 {
        let passed = at.saturating_sub(self.at).as_secs_f64();
        (self.left + passed * self.share).min(self.most)
    }
}

/// Returns a share that lets work continue, however slowly.
fn at_least_something(share: f64) -> f64 {
    if share > 1e-6 { share.min(1e6) } else { 1e-6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_paid_for_in_advance_and_then_by_the_clock() {
        let mut allowance =
            Allowance::new(0.01, Duration::ZERO).with_advance(Duration::from_secs(1));
        let mut at = Duration::ZERO;
        allowance.spend_without_debt(at, Duration::from_millis(900));
        assert!(allowance.covers(at, Duration::from_millis(100)));
        assert!(!allowance.covers(at, Duration::from_millis(101)));
        at = Duration::from_secs(10);
        assert!(allowance.covers(at, Duration::from_millis(200)));
        assert!(!allowance.covers(at, Duration::from_millis(201)));
        at = Duration::from_secs(10_000);
        assert!(allowance.covers(at, Duration::from_secs(5)));
        allowance.spend_without_debt(at, Duration::from_millis(1));
        assert!(!allowance.covers(at, Duration::from_secs(5)));
    }

    #[test]
    fn a_debt_is_paid_off_unless_it_was_forgiven() {
        let second = Duration::from_secs(1);
        let full = Allowance::new(0.1, Duration::ZERO);
        let (mut owing, mut forgiven) = (full.clone(), full);
        owing.spend(Duration::ZERO, 2 * second);
        forgiven.spend_without_debt(Duration::ZERO, 2 * second);
        let cost = Duration::from_millis(100);
        assert!(!forgiven.covers(Duration::ZERO, cost) && forgiven.covers(second, cost));
        assert!(!owing.covers(10 * second, cost) && owing.covers(11 * second, cost));
        assert!(owing.when(Duration::ZERO, cost) >= 11 * second);
    }
}
