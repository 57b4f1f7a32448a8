//! Division of the CPU time that Superhue may use among its kinds of work while it places memory.
//!
//! The ceiling (`--max-overhead`) is a share of one CPU's time. Deciding and acting have no share of their own: they take the time they need, which
//! is little once memory is placed. A tenth is left for them.

use std::time::Duration;

/// Taking samples of accesses.
pub(crate) const SAMPLES: f64 = 0.55;
/// Looking at the page tables of processes that have changed.
pub(crate) const LOOKS: f64 = 0.2;
/// Reading the sizes of all processes.
pub(crate) const GLANCES: f64 = 0.1;
/// Finding out which processes there are.
pub const SEARCHES: f64 = 0.05;

const _: () = assert!(SAMPLES + LOOKS + GLANCES + SEARCHES < 0.91);

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

    #[test]
    fn dear_work_is_rare() {
        let cost = Duration::from_millis(1);
        assert_eq!(apart(cost, 0.01 * LOOKS), 500 * cost);
        assert_eq!(apart(cost, 1.0), cost);
        assert_eq!(apart(cost, 0.0), 1_000_000 * cost);
        assert_eq!(apart(cost, f64::NAN), 1_000_000 * cost);
    }
}
