//! Coverage over time, in bounded memory.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_model::ByteCount;

/// Upper bound on samples; beyond it, every second sample is dropped and the distance between samples doubles.
const CAPACITY: usize = 2048;

/// All watched processes at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the watch began.
    pub at: f64,
    /// Anonymous resident memory.
    pub anonymous: ByteCount,
    /// Part of `anonymous` that huge pages map; `None` where the kernel does not report it.
    pub huge: Option<ByteCount>,
}

impl Sample {
    /// Coverage, 0 to 1; `None` when unknown or nothing anonymous is resident.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a share of byte counts below 2^52"
    )]
    pub fn coverage(&self) -> Option<f64> {
        let huge = self.huge?;
        (self.anonymous.0 > 0).then(|| (huge.0 as f64 / self.anonymous.0 as f64).min(1.0))
    }
}

/// Coverage over time.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    samples: Vec<Sample>,
    least_gap: f64,
    peak: Option<f64>,
    last: Option<Sample>,
    /// Integral of coverage over the time for which it was known.
    weighted: f64,
    known_seconds: f64,
}

impl Timeline {
    /// Adds a look that was made `at` after the watch began.
    pub fn add(&mut self, at: Duration, anonymous: ByteCount, huge: Option<ByteCount>) {
        let sample = Sample {
            at: at.as_secs_f64(),
            anonymous,
            huge,
        };
        if let Some((last, coverage)) = self.last.and_then(|last| Some((last, last.coverage()?))) {
            let gap = (sample.at - last.at).max(0.0);
            self.weighted += coverage * gap;
            self.known_seconds += gap;
        }
        if let Some(coverage) = sample.coverage() {
            self.peak = Some(self.peak.map_or(coverage, |peak| peak.max(coverage)));
        }
        let is_due = self
            .samples
            .last()
            .is_none_or(|kept| sample.at - kept.at >= self.least_gap);
        if is_due {
            if self.samples.len() == CAPACITY {
                let mut index = 0;
                self.samples.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.least_gap = 2.0 * sample.at / CAPACITY as f64;
            }
            self.samples.push(sample);
        }
        self.last = Some(sample);
    }

    /// Returns the kept samples, oldest first, including the last one.
    #[must_use]
    pub fn samples(&self) -> Vec<Sample> {
        let mut samples = self.samples.clone();
        if samples.last() != self.last.as_ref() {
            samples.extend(self.last);
        }
        samples
    }

    /// Returns the highest coverage seen.
    #[must_use]
    pub const fn peak(&self) -> Option<f64> {
        self.peak
    }

    /// Returns mean coverage over the time for which it was known.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        match self.last {
            // A single look has no duration, but its coverage is known.
            Some(last) if self.known_seconds <= 0.0 => last.coverage(),
            Some(_) => Some(self.weighted / self.known_seconds),
            None => None,
        }
    }

    /// Returns coverage at the last look.
    #[must_use]
    pub fn last(&self) -> Option<f64> {
        self.last.and_then(|last| last.coverage())
    }

    /// Returns coverage before the program gave memory back: at the last look with at least half of the
    /// most anonymous memory of any look. A program that frees all its memory before it ends has none
    /// at the very last look.
    #[must_use]
    pub fn settled(&self) -> Option<f64> {
        let samples = self.samples();
        let most = samples.iter().map(|sample| sample.anonymous.0).max()?;
        let mut backwards = samples.iter().rev();
        let settled = backwards.find(|sample| sample.anonymous.0 >= most.div_ceil(2))?;
        settled.coverage()
    }

    /// Returns seconds from the first look until coverage first reached 95 % of
    /// [`settled`](Self::settled); `None` if that is 0 or unknown.
    #[must_use]
    pub fn seconds_to_95_percent(&self) -> Option<f64> {
        let goal = self.settled().filter(|&coverage| coverage > 0.0)? * 0.95;
        let samples = self.samples();
        let first = samples.first()?.at;
        samples
            .iter()
            .find(|sample| sample.coverage().is_some_and(|coverage| coverage >= goal))
            .map(|sample| sample.at - first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(n: u64) -> ByteCount {
        ByteCount(n << 20)
    }

    #[test]
    fn figures_follow_from_the_samples() {
        let mut timeline = Timeline::default();
        for (second, huge) in [(0, 0), (1, 0), (2, 50), (3, 96), (4, 100), (6, 100)] {
            timeline.add(Duration::from_secs(second), mib(100), Some(mib(huge)));
        }
        assert_eq!(timeline.peak(), Some(1.0));
        assert_eq!(timeline.last(), Some(1.0));
        assert_eq!(timeline.seconds_to_95_percent(), Some(3.0));
        let mean = (0.0 + 0.0 + 0.5 + 0.96 + 2.0) / 6.0;
        assert!((timeline.mean().unwrap() - mean).abs() < 1e-9);
    }

    #[test]
    fn memory_given_back_before_the_end_is_not_the_end() {
        let mut timeline = Timeline::default();
        for (second, all, huge) in [
            (0, 10, 0),
            (1, 100, 40),
            (2, 100, 80),
            (3, 90, 72),
            (4, 20, 4),
            (5, 2, 0),
        ] {
            timeline.add(Duration::from_secs(second), mib(all), Some(mib(huge)));
        }
        assert_eq!(
            (timeline.last(), timeline.settled()),
            (Some(0.0), Some(0.8))
        );
        assert_eq!(timeline.seconds_to_95_percent(), Some(2.0));
        // The huge pages are split while the memory stays: coverage is 0 in the end.
        timeline.add(Duration::from_secs(6), mib(100), Some(mib(0)));
        assert_eq!(timeline.seconds_to_95_percent(), None);
    }

    #[test]
    fn what_is_unknown_stays_unknown() {
        let mut timeline = Timeline::default();
        assert_eq!(
            (timeline.peak(), timeline.mean(), timeline.last()),
            (None, None, None)
        );
        timeline.add(Duration::ZERO, mib(10), None);
        timeline.add(Duration::from_secs(1), mib(0), Some(mib(0)));
        assert_eq!(timeline.peak(), None);
        assert_eq!(timeline.seconds_to_95_percent(), None);
    }

    #[test]
    fn memory_is_bounded_and_the_end_is_kept() {
        let mut timeline = Timeline::default();
        for tick in 0..1_000_000_u64 {
            timeline.add(Duration::from_millis(tick), mib(100), Some(mib(tick % 100)));
        }
        let samples = timeline.samples();
        assert!(samples.len() > CAPACITY / 4 && samples.len() <= CAPACITY + 1);
        assert!((samples[samples.len() - 1].at - 999.999).abs() < 1e-9);
        assert!(samples.is_sorted_by(|a, b| a.at < b.at));
    }
}
