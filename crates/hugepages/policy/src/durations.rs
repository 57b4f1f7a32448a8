//! How long things took: the longest, the sum, and what most of them stayed below.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Durations, to three digits.
#[derive(Debug, Clone, PartialEq)]
pub struct Durations {
    /// In microseconds.
    histogram: Histogram<u64>,
    total: Duration,
    longest: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        // Grows as needed. Three digits are one of the numbers that it takes.
        #[allow(clippy::expect_used, reason = "a constant that is valid")]
        let histogram = Histogram::new(3).expect("3 digits");
        Self {
            histogram,
            total: Duration::ZERO,
            longest: Duration::ZERO,
        }
    }
}

impl Durations {
    /// Adds one.
    pub fn add(&mut self, duration: Duration) {
        let microseconds = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        // Fails for lack of memory alone.
        let _ = self.histogram.record(microseconds);
        self.total += duration;
        self.longest = self.longest.max(duration);
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// What this share of them, 0 to 1, did not exceed; 0 without any.
    #[must_use]
    pub fn quantile(&self, quantile: f64) -> Duration {
        Duration::from_micros(self.histogram.value_at_quantile(quantile)).min(self.longest)
    }

    /// Their sum.
    #[must_use]
    pub const fn total(&self) -> Duration {
        self.total
    }

    /// The longest; 0 without any.
    #[must_use]
    pub const fn longest(&self) -> Duration {
        self.longest
    }
}
