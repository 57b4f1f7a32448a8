//! One process among those that a sampler drives.

use std::time::Duration;

use superhue_heat::{Armed, HeatMap, Pace, PaceLimits, TargetLock};
use superhue_model::{PageCount, VirtRange};

use super::{Sampling, TrackingCost};

/// What is under way for a process.
#[derive(Debug)]
pub(super) enum Phase {
    /// Until the pace wants the next sample.
    Resting,
    /// Accesses are being noted.
    Armed(Noting),
    /// Not to be tracked before this time.
    Troubled { until: Duration },
}

/// How accesses are being noted.
#[derive(Debug)]
pub(super) struct Noting {
    pub(super) since: Duration,
    pub(super) until: Duration,
    pub(super) ranges: Vec<VirtRange>,
    pub(super) armed: Armed,
    pub(super) resident: PageCount,
}

/// One process that is sampled.
pub(super) struct Target {
    pub(super) phase: Phase,
    pub(super) map: HeatMap,
    pub(super) pace: Pace,
    pub(super) cost: TrackingCost,
    pub(super) since: Duration,
    /// Something was done about the process since its last sample.
    pub(super) resample: bool,
    /// How long the last sample held its page tables locked.
    pub(super) locked: Duration,
    /// Keeps others from clearing the same accessed bits; taken with the first sample.
    pub(super) lock: Option<TargetLock>,
}

impl Target {
    /// A process that is sampled for the first time at `at`, or soon after.
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

    /// When there is something to do about it.
    pub(super) fn due(&self) -> Duration {
        match self.phase {
            Phase::Resting => self.pace.next().arm,
            Phase::Armed(Noting { until, .. }) | Phase::Troubled { until } => until,
        }
    }
}
