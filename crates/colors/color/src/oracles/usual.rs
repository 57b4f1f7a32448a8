//! Whether a trial went as trials usually go, or lost its CPU meanwhile.

/// A trial this many times slower per access than such trials are has lost its CPU meanwhile ...
const SLOW: u64 = 6;

/// ... if it was also late by so many ticks (some 10 us): short trials vary more.
const LATE: u64 = 20_000;

/// What trials usually take.
#[derive(Debug, Clone, Default)]
pub struct Usual {
    /// 1/16 ticks per access that undisturbed trials take, by the number of accesses in powers of two: few pages stay in
    /// nearer caches than many. 0 before the first.
    each: [u64; 32],
}

impl Usual {
    /// Whether a trial of so many accesses, which took `ticks`, went as undisturbed ones go; learns from it.
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
        // Follows what is usual now (another frequency, fuller caches) by small steps, also when it seems slow: else one
        // lucky first trial would make all later ones look disturbed.
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
        let mut usual = Usual::default();
        assert!(usual.is(10_000, 1000));
        assert!(!usual.is(1_000_000, 1000));
        assert!(usual.is(20_000, 1000));
        let mut lucky = Usual::default();
        assert!(lucky.is(1, 1000));
        let later = (0..400)
            .map(|_| lucky.is(50_000, 1000))
            .filter(|ok| *ok)
            .count();
        assert!(later > 200, "{later}");
    }
}
