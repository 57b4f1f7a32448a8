//! Division of the CPU time that Superhue may use among its kinds of work while it places memory.
//!
//! The ceiling (`--max-overhead`) is a share of one CPU's time. Deciding has no share of its own: it takes the time it needs, which is little once
//! memory is placed. A tenth is left for it. The shares divide the time fairly, and `TotalCost` bounds the sum: work of the loop that no share knows is
//! in it. While the sum is too large, the loop looks at no page tables, begins no samples, reads sizes and decides less often, and goes on acting. Actions
//! are no part of the sum: `--max-stall` bounds collapses and splits, and recoloring has a pace of its own.

use std::time::Duration;

use superhue_heat::Allowance;

use crate::cpu::cpu_time;

/// Time whose share may be spent at once. So the ceiling holds on average over the whole time, or over 10 s if that is longer.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Part of the ceiling that is kept for work outside the loop: to start, to wait for signals, and to report. It takes some 17 ms of a run of 20 s
/// (docs/results/bounds.json).
const OUTSIDE: f64 = 0.1;

/// Taking samples of accesses.
pub(crate) const SAMPLES: f64 = 0.55;
/// Looking at the page tables of processes that have changed.
pub(crate) const LOOKS: f64 = 0.2;
/// Reading the sizes of all processes.
pub(crate) const GLANCES: f64 = 0.1;
/// Finding out which processes there are.
pub const SEARCHES: f64 = 0.05;
/// Deciding, while the sum is too large.
pub(crate) const DECISIONS: f64 = 0.09;

const _: () = assert!(SAMPLES + LOOKS + GLANCES + SEARCHES + DECISIONS < 1.0);

/// CPU time of all the work of a watch except its actions.
#[derive(Debug)]
pub(crate) struct TotalCost {
    allowance: Allowance,
    /// CPU time that was counted, on the clock of the thread.
    counted: Duration,
}

impl TotalCost {
    /// Allows `share` of the time from 0 on, that of the first period at once if `has_advance`.
    pub(crate) fn new(share: f64, has_advance: bool) -> Self {
        let share = of_loop(share);
        let advance = advance(share);
        let allowance = match has_advance {
            // The whole first period is paid in advance, so nothing accrues before its end.
            true => Allowance::new(share, PERIOD).with_advance(advance),
            false => {
                let mut empty = Allowance::new(share, Duration::ZERO).with_advance(advance);
                empty.spend(Duration::ZERO, advance);
                empty
            }
        };
        Self {
            allowance,
            counted: Duration::ZERO,
        }
    }

    /// Counts CPU time that was spent before the loop.
    pub(crate) fn start_with(&mut self, spent: Duration) {
        self.allowance.spend(Duration::ZERO, spent);
    }

    /// Begins to count the CPU time of the calling thread.
    pub(crate) fn begin(&mut self) {
        self.counted = cpu_time();
    }

    /// Allows `share` of the time from now on.
    pub(crate) fn allow(&mut self, share: f64) {
        self.allowance.allow(of_loop(share));
    }

    /// Counts the CPU time of the calling thread up to `at`, except `acting`, that of its actions.
    pub(crate) fn count(&mut self, at: Duration, acting: Duration) {
        let now = cpu_time();
        let spent = now.saturating_sub(self.counted);
        self.counted = now;
        self.spend(at, spent.saturating_sub(acting));
    }

    fn spend(&mut self, at: Duration, cost: Duration) {
        self.allowance.spend(at, cost);
    }

    /// Returns the time from `at` on for which no more may be spent.
    pub(crate) fn rest(&self, at: Duration) -> Duration {
        match self.allowance.covers(at, Duration::ZERO) {
            true => Duration::ZERO,
            false => self.allowance.when(at, Duration::ZERO).saturating_sub(at),
        }
    }
}

/// Returns the part of a ceiling that is for the loop.
const fn of_loop(share: f64) -> f64 {
    share * (1.0 - OUTSIDE)
}

/// Returns the CPU time that a ceiling of `share` allows in the first period.
pub(crate) fn advance(share: f64) -> Duration {
    match share.is_nan() {
        true => Duration::ZERO,
        false => PERIOD.mul_f64(share.clamp(0.0, 1.0)),
    }
}

/// Returns the time from a piece of work that took `cost` to the next one, if such work may take `share` of all time. A share that is no number, or
/// is not above 0, is one part in a million.
#[must_use]
pub fn apart(cost: Duration, share: f64) -> Duration {
    let share = if share > 1e-6 { share.min(1.0) } else { 1e-6 };
    cost.div_f64(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_sum_is_bounded_whatever_the_work_is_for() {
        let mut total = TotalCost::new(0.001 / (1.0 - OUTSIDE), true);
        total.start_with(MS);
        total.spend(1000 * MS, 8 * MS);
        assert_eq!(total.rest(1000 * MS), Duration::ZERO);
        // 10 ms are for the first 10 s, and 1 ms comes with each second after that.
        total.spend(1000 * MS, 20 * MS);
        let rest = total.rest(1000 * MS);
        assert!(rest >= 28_000 * MS && rest <= 28_001 * MS, "{rest:?}");
        assert_eq!(total.rest(1000 * MS + rest), Duration::ZERO);
        // More may be allowed meanwhile.
        total.allow(0.01 / (1.0 - OUTSIDE));
        assert!(total.rest(1000 * MS) <= 10_901 * MS);
    }

    #[test]
    fn a_watch_that_replaces_another_has_no_second_advance() {
        let mut total = TotalCost::new(0.5, false);
        total.spend(Duration::ZERO, 10 * MS);
        assert!(total.rest(Duration::ZERO) >= 20 * MS);
    }

    #[test]
    fn actions_do_not_count() {
        let mut total = TotalCost::new(1e-6, true);
        total.begin();
        let begun = cpu_time();
        while cpu_time().saturating_sub(begun) < MS {}
        total.count(Duration::ZERO, Duration::MAX);
        assert_eq!(total.rest(Duration::ZERO), Duration::ZERO);
        while cpu_time().saturating_sub(begun) < 2 * MS {}
        total.count(Duration::ZERO, Duration::ZERO);
        assert!(total.rest(Duration::ZERO) > Duration::ZERO);
    }

    #[test]
    fn a_share_that_is_no_number_allows_next_to_nothing() {
        assert_eq!(advance(f64::NAN), Duration::ZERO);
        assert_eq!(advance(2.0), PERIOD);
    }

    #[test]
    fn dear_work_is_rare() {
        let cost = Duration::from_millis(1);
        assert_eq!(apart(cost, 0.01 * LOOKS), 500 * cost);
        assert_eq!(apart(cost, 1.0), cost);
        assert_eq!(apart(cost, 0.0), 1_000_000 * cost);
        assert_eq!(apart(cost, f64::NAN), 1_000_000 * cost);
    }
}
