//! One process among those that a sampler drives.

use std::time::Duration;

use superhue_heat::{ArmingResult, HeatMap, Pace, PaceLimits, TargetLock};
use superhue_model::{PageCount, VirtRange};
use superhue_procfs::process::CpuTicks;

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
    /// Time for which it was to last, and the CPU time of the process before it.
    pub(super) wanted: Duration,
    pub(super) cpu: Option<CpuTicks>,
    pub(super) ranges: Vec<VirtRange>,
    pub(super) armed: ArmingResult,
    pub(super) resident: PageCount,
}

/// Longest time of a sample, in multiples of its interval.
const LONGEST: u32 = 4;

impl SampleInterval {
    /// Puts the end off if the process ran for `ran` until `now`, which is less than the interval; returns true if it did. A process that did not run at
    /// all is idle: its samples are over in time.
    pub(super) fn put_off(&mut self, now: Duration, ran: Duration) -> bool {
        let longest = self
            .since
            .saturating_add(self.wanted.saturating_mul(LONGEST));
        // CPU time is counted in ticks of 10 ms, and the interval may have five.
        let has_run = ran.saturating_mul(4) >= self.wanted.saturating_mul(3);
        if now >= longest || has_run || ran.is_zero() {
            return false;
        }
        self.until = (now + self.wanted.saturating_sub(ran)).min(longest);
        true
    }

    /// Returns the length of the sample that ends at `now`: of one whose end was put off, the time for which it was to last.
    pub(super) fn length(&self, now: Duration) -> Duration {
        // A sample that is read late has lasted until then.
        let late = now.saturating_sub(self.until);
        match self.until > self.since.saturating_add(self.wanted) {
            true => self.wanted + late,
            false => now.saturating_sub(self.since),
        }
    }
}

/// One process that is sampled.
pub(super) struct Target {
    pub(super) phase: Phase,
    pub(super) map: HeatMap,
    pub(super) pace: Pace,
    pub(super) cost: TrackingCost,
    pub(super) since: Duration,
    /// True if a plan or a client has acted on the process since its last sample.
    pub(super) resample: bool,
    /// Time for which the last sample held its page tables locked.
    pub(super) locked: Duration,
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
            pace: Pace::new(limits, at),
            cost: TrackingCost::default(),
            since: at,
            resample: false,
            locked: Duration::ZERO,
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
            cpu: None,
            ranges: Vec::new(),
            armed: ArmingResult {
                took: Duration::ZERO,
                locked: Duration::ZERO,
                flushed: true,
            },
            resident: PageCount(0),
        }
    }

    #[test]
    fn a_sample_of_a_process_with_part_of_a_cpu_lasts_longer() {
        let mut sample = interval(50 * MS);
        assert!(!sample.put_off(1050 * MS, 40 * MS), "ticks are 10 ms");
        assert_eq!(sample.length(1051 * MS), 51 * MS);
        assert!(sample.put_off(1050 * MS, 20 * MS));
        assert_eq!(sample.until, 1080 * MS);
        assert!(sample.put_off(1080 * MS, 30 * MS));
        assert_eq!(sample.until, 1100 * MS);
        assert!(!sample.put_off(1100 * MS, 40 * MS));
        // For the map of heat, it lasted as long as it was to last.
        assert_eq!(sample.length(1100 * MS), 50 * MS);
        assert_eq!(sample.length(1500 * MS), 450 * MS);
    }

    #[test]
    fn a_sample_of_a_process_that_hardly_runs_ends() {
        let mut sample = interval(50 * MS);
        assert!(!sample.put_off(1050 * MS, Duration::ZERO), "it is idle");
        let mut ends = 0;
        while sample.put_off(sample.until, MS) {
            ends += 1;
            assert!(ends < 10);
        }
        assert_eq!(sample.until, 1200 * MS);
    }
}
