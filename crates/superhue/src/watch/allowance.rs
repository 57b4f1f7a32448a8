//! The ration of looks.

use std::time::Duration;

use crate::ceiling;

/// What looking at processes in full may cost: its share of the ceiling in the long run, and a second
/// in advance for the time in which a program fills its memory.
#[derive(Debug)]
pub(super) struct Allowance {
    /// Looks are as many times their own cost apart.
    apart: u32,
    credit: Duration,
    at: Duration,
}

impl Allowance {
    const ADVANCE: Duration = Duration::from_secs(1);

    pub(super) fn new(max_overhead: f64) -> Self {
        Self {
            apart: ceiling::apart(max_overhead, ceiling::LOOKS),
            credit: Self::ADVANCE,
            at: Duration::ZERO,
        }
    }

    pub(super) fn accrue(&mut self, at: Duration) {
        self.credit = (self.credit + at.saturating_sub(self.at) / self.apart).min(Self::ADVANCE);
        self.at = at;
    }

    /// A look that costs more than the whole advance is due when the advance is there in full.
    pub(super) fn covers(&self, cost: Duration) -> bool {
        self.credit >= cost.min(Self::ADVANCE)
    }

    pub(super) fn spend(&mut self, cost: Duration) {
        self.credit = self.credit.saturating_sub(cost);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_paid_for_in_advance_and_then_by_the_clock() {
        let mut allowance = Allowance::new(0.05);
        allowance.spend(Duration::from_millis(900));
        assert!(allowance.covers(Duration::from_millis(100)));
        assert!(!allowance.covers(Duration::from_millis(101)));
        allowance.accrue(Duration::from_secs(10));
        assert!(allowance.covers(Duration::from_millis(200)));
        assert!(!allowance.covers(Duration::from_millis(201)));
        allowance.accrue(Duration::from_secs(10_000));
        assert!(allowance.covers(Duration::from_secs(5)));
        allowance.spend(Duration::from_millis(1));
        assert!(!allowance.covers(Duration::from_secs(5)));
    }
}
