//! One process among those that a sampler drives.

use std::time::Duration;

use superhue_heat::{ArmingResult, HeatMap, Pace, PaceLimits, TargetLock};
use superhue_model::{PageCount, VirtRange};

use super::{Sampling, TrackingCost};

/// State of sampling for a process.
#[derive(Debug)]
pub(super) enum Phase {
    /// Rests until the pace wants the next sample.
    Resting,
    /// The tracker is noting accesses.
    Armed(SampleInterval),
    /// The process is not to be tracked before this time.
    Troubled { until: Duration },
}

/// An interval in which accesses are noted.
#[derive(Debug)]
pub(super) struct SampleInterval {
    pub(super) since: Duration,
    pub(super) until: Duration,
    /// Time for which it was to last, and the time that the process had waited for a CPU before it.
    pub(super) wanted: Duration,
    pub(super) waited: Option<Duration>,
    pub(super) ranges: Vec<VirtRange>,
    pub(super) armed: ArmingResult,
    pub(super) resident: PageCount,
    /// Page-table entries whose accessed bits were cleared.
    pub(super) entries: u64,
}

/// Longest time of a sample, in multiples of its interval.
const LONGEST: u32 = 4;

impl SampleInterval {
    /// Puts the end off if the process has waited for a CPU for `waited` of the time until `now`, a quarter of the interval or more; returns true if it
    /// did. A process that sleeps does not wait.
    pub(super) fn put_off(&mut self, now: Duration, waited: Duration) -> bool {
        let longest = self
            .since
            .saturating_add(self.wanted.saturating_mul(LONGEST));
        let passed = now.saturating_sub(self.since).saturating_sub(waited);
        let missing = self.wanted.saturating_sub(passed);
        if now >= longest || missing < self.wanted / 4 {
            return false;
        }
        self.until = now.saturating_add(missing).min(longest);
        true
    }
}

/// One process that is sampled.
pub(super) struct Target {
    pub(super) phase: Phase,
    pub(super) map: HeatMap,
    /// The map of the program that it executed before, if that had samples.
    pub(super) map_before: Option<HeatMap>,
    pub(super) pace: Pace,
    pub(super) cost: TrackingCost,
    pub(super) since: Duration,
    /// True if a plan or a client has acted on the process since its last sample.
    pub(super) resample: bool,
    /// Time for which the last sample held its page tables locked.
    pub(super) locked: Duration,
    /// Page-table entries that it went through; 0 before the first sample.
    pub(super) locked_entries: u64,
    /// Number of page-table entries that huge pages spare it.
    pub(super) spared: u64,
    /// Keeps other trackers from clearing the same accessed bits; taken with the first sample.
    pub(super) lock: Option<TargetLock>,
}

impl Target {
    /// Makes a target that is sampled for the first time at `at`, or soon after.
    pub(super) fn new(config: &Sampling, at: Duration) -> Self {
        let limits = PaceLimits {
            shortest: config.shortest,
            longest: config.longest,
            max_overhead: config.max_overhead,
            settle: config.settle,
        };
        Self {
            phase: Phase::Resting,
            map: HeatMap::new(),
            map_before: None,
            pace: Pace::new(limits, at),
            cost: TrackingCost::default(),
            since: at,
            resample: false,
            locked: Duration::ZERO,
            locked_entries: 0,
            spared: 0,
            lock: None,
        }
    }

    /// Returns the time at which its next step is due.
    pub(super) fn due(&self) -> Duration {
        match self.phase {
            Phase::Resting => self.pace.next().arm,
            Phase::Armed(SampleInterval { until, .. }) | Phase::Troubled { until } => until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn interval(wanted: Duration) -> SampleInterval {
        SampleInterval {
            since: 1000 * MS,
            until: 1000 * MS + wanted,
            wanted,
            waited: None,
            ranges: Vec::new(),
            armed: ArmingResult {
                took: Duration::ZERO,
                elsewhere: Duration::ZERO,
                locked: Duration::ZERO,
                flushed: true,
            },
            resident: PageCount(0),
            entries: 0,
        }
    }

    #[test]
    fn a_sample_of_a_process_that_waits_for_a_cpu_lasts_longer() {
        let mut sample = interval(50 * MS);
        assert!(!sample.put_off(1050 * MS, 10 * MS), "that is little");
        assert!(sample.put_off(1050 * MS, 30 * MS));
        assert_eq!(sample.until, 1080 * MS);
        assert!(sample.put_off(1080 * MS, 45 * MS));
        assert_eq!(sample.until, 1095 * MS);
        assert!(!sample.put_off(1095 * MS, 45 * MS));
    }

    #[test]
    fn a_sample_of_a_process_that_gets_no_cpu_ends() {
        let mut sample = interval(50 * MS);
        let mut ends = 0;
        while sample.put_off(sample.until, sample.until.saturating_sub(1000 * MS)) {
            ends += 1;
            assert!(ends < 10);
        }
        assert_eq!(sample.until, 1200 * MS);
    }
}
