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
    pub(super) ranges: Vec<VirtRange>,
    pub(super) armed: ArmingResult,
    pub(super) resident: PageCount,
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
