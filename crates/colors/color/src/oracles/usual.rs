//! Comparison of a trial with the usual duration of trials: a trial that lost its CPU takes longer.

/// A trial this many times slower per access than the usual one has lost its CPU meanwhile ...
const SLOW: u64 = 6;

/// ... if it was also late by this number of ticks (some 10 us): short trials vary more.
const LATE: u64 = 20_000;

/// Usual duration of trials.
#[derive(Debug, Clone, Default)]
pub struct TypicalTrialTime {
    /// 1/16 ticks per access that undisturbed trials take, by the number of accesses in powers of two: few pages stay in
    /// nearer caches than many. 0 before the first.
    each: [u64; 32],
}

impl TypicalTrialTime {
    /// Returns true if a trial of `accesses` accesses, which took `ticks`, was as fast as undisturbed ones; learns from it.
    pub fn is(&mut self, ticks: u64, accesses: usize) -> bool {
        let accesses = (accesses as u64).max(1);
        let each = (ticks.saturating_mul(16) / accesses).max(1);
        let Some(usual) = self.each.get_mut(accesses.ilog2() as usize) else {
            return true;
        };
        if *usual == 0 {
            *usual = each;
        }
        let expected = usual.saturating_mul(accesses) / 16;
        let slow = ticks > expected.saturating_mul(SLOW).saturating_add(LATE);
        // Follows the current speed (another frequency, fuller caches) by small steps, also if the trial seems slow:
        // else one lucky first trial would make all later ones look disturbed.
        let step = each.min(usual.saturating_mul(4));
        *usual = usual.saturating_mul(15).saturating_add(step).div_ceil(16);
        !slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_interruption_shows_and_a_lucky_start_is_forgotten() {
        let mut usual = TypicalTrialTime::default();
        assert!(usual.is(10_000, 1000));
        assert!(!usual.is(1_000_000, 1000));
        assert!(usual.is(20_000, 1000));
        let mut lucky = TypicalTrialTime::default();
        assert!(lucky.is(1, 1000));
        let later = (0..400)
            .map(|_| lucky.is(50_000, 1000))
            .filter(|ok| *ok)
            .count();
        assert!(later > 200, "{later}");
    }
}
