//! Division of the CPU time that Superhue may use among its kinds of work while it places memory.
//!
//! The ceiling (`--max-overhead`) is a share of one CPU's time. Deciding has no share of its own: it takes the time it needs, which is little once
//! memory is placed. A tenth is left for it. The shares divide the time fairly, and `TotalCost` bounds the sum: work of the loop that no share knows is
//! in it. While the sum is too large, the loop looks at no page tables, begins no samples, reads sizes and decides less often, and still acts.
//! Actions are no part of the sum: `--max-stall` bounds collapses, and recoloring has a pace of its own; few splits are under way at once. The checks
//! of a region right before an action are part of it, and so is a read of its process's mappings at first and after
//! each doubling of its memory; others are in the sum.

use std::time::Duration;

use superhue_heat::Allowance;

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
/// Turns of the loop, with their glances, while the sum is too large: the rest of the ceiling makes up for that.
pub(crate) const SAVING_TURNS: f64 = 0.25;
/// Finding out which processes there are.
pub const SEARCHES: f64 = 0.05;
/// Deciding, while the sum is too large; and while it is, and decisions lead to actions.
pub(crate) const DECISIONS: f64 = 0.09;
pub(crate) const FRUITFUL_DECISIONS: f64 = 0.25;
/// Turns that only continue the last decision, while the sum is too large.
pub(crate) const RESUMPTIONS: f64 = 0.15;

const _: () = assert!(SAMPLES + LOOKS + GLANCES + SEARCHES + DECISIONS < 1.0);
const SAVING: f64 = SAVING_TURNS + SEARCHES + FRUITFUL_DECISIONS + RESUMPTIONS;
const _: () = assert!(SAVING + OUTSIDE < 0.81);

/// CPU time of all the work of a watch except its actions.
#[derive(Debug)]
pub(crate) struct TotalCost {
    allowance: Allowance,
    /// CPU time that was counted, on the clock of the caller.
    counted: Duration,
}

impl TotalCost {
    /// Allows `share` of the time from 0 on, that of the first period at once if `has_advance`.
    pub(crate) fn new(share: f64, has_advance: bool) -> Self {
        let share = of_loop(share);
        let advance = advance(share);
        // The first period is paid in advance, so nothing accrues before its end; a watch without an advance begins with nothing.
        let since = if has_advance { PERIOD } else { Duration::ZERO };
        let allowance = Allowance::new(share, since).with_advance(advance);
        Self {
            allowance: if has_advance {
                allowance
            } else {
                allowance.used_up()
            },
            counted: Duration::ZERO,
        }
    }

    /// Begins to count, on a clock of CPU time that is at `cpu`.
    pub(crate) const fn begin(&mut self, cpu: Duration) {
        self.counted = cpu;
    }

    /// Allows `share` of the time from now on.
    pub(crate) fn allow(&mut self, share: f64) {
        self.allowance.allow(of_loop(share));
    }

    /// Counts the CPU time up to `at`, when that clock is at `cpu`.
    pub(crate) fn count(&mut self, at: Duration, cpu: Duration) {
        self.spend(at, cpu.saturating_sub(self.counted));
        self.counted = cpu;
    }

    /// Counts `cost` up to `at`.
    pub(crate) fn spend(&mut self, at: Duration, cost: Duration) {
        self.allowance.spend(at, cost);
    }

    /// Returns true if more was spent up to `at` than is allowed.
    pub(crate) fn is_exceeded(&self, at: Duration) -> bool {
        !self.covers(at, Duration::ZERO)
    }

    /// Returns true if `cost` may be spent at `at`.
    pub(crate) fn covers(&self, at: Duration, cost: Duration) -> bool {
        self.allowance.covers(at, cost)
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
        total.spend(Duration::ZERO, MS);
        total.spend(1000 * MS, 8 * MS);
        assert!(!total.is_exceeded(1000 * MS));
        // 10 ms are for the first 10 s, and 1 ms comes with each second after that.
        total.spend(1000 * MS, 20 * MS);
        assert!(total.is_exceeded(28_999 * MS) && !total.is_exceeded(29_001 * MS));
        // More may be allowed meanwhile.
        total.allow(0.01 / (1.0 - OUTSIDE));
        assert!(!total.is_exceeded(11_901 * MS));
    }

    #[test]
    fn a_watch_that_replaces_another_has_no_second_advance() {
        let mut total = TotalCost::new(0.5, false);
        total.spend(Duration::ZERO, 10 * MS);
        assert!(total.is_exceeded(19 * MS));
    }

    #[test]
    fn only_what_comes_after_the_begin_counts() {
        let mut total = TotalCost::new(1e-6, true);
        total.begin(500 * MS);
        total.count(Duration::ZERO, 500 * MS);
        assert!(!total.is_exceeded(Duration::ZERO));
        total.count(Duration::ZERO, 501 * MS);
        assert!(total.is_exceeded(Duration::ZERO));
        let spent = total.allowance.clone();
        total.count(Duration::ZERO, 501 * MS);
        assert_eq!(
            format!("{:?}", total.allowance),
            format!("{spent:?}"),
            "once"
        );
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
