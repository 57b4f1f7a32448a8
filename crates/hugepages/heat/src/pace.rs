//! Pace of sampling: fast while accesses change, slow while they do not, and never above the allowed cost.
//!
//! ```text
//!   interval
//!   longest |                        .--- settled: none, but for a probe after 1, 2, 4, ... s
//!           |                    .---'
//!           |              .-----'
//!           |         .----'                                .--     a calm sample doubles it
//!  shortest |---------'                  any movement ------'
//!           +----------------------------------------------------- time
//! ```
//!
//! A sample is *calm* if at most a fifth of the accesses moved, no memory was added, and the policy had nothing to do. After 5 calm samples in a
//! row, sampling is settled: the picture does not change any more. Sampling resumes when resident memory grows, or when a probe finds a change.
//!
//! A sample may find few pages of each region touched, and other ones than the sample before. That happens by chance, if accesses go to more pages
//! than an interval shows. It is not movement, and it shows that the interval is too short. So the interval is doubled, up to a second.
//!
//! While a program fills its memory, samples show little, and cost as much as others. So they wait until the memory is filled, except for one
//! whenever the memory has doubled, and one every 10 s.
//!
//! This module reads no clock: the caller passes the time, on any clock that never goes back.

use std::time::Duration;

use superhue_model::{PAGES_PER_REGION, PageCount};

use super::Change;
use crate::Allowance;

/// Share of moved accesses above which a sample is not calm.
const MAX_CALM_MOVED_SHARE: f32 = 0.2;

/// Longest interval chosen because shorter ones show too little.
const SCATTERED: Duration = Duration::from_secs(1);

/// Number of calm samples in a row after which sampling is settled.
const SETTLED: u32 = 5;

/// Time between the last sample and the first probe; each further probe comes after twice the time.
const FIRST_PROBE: Duration = Duration::from_secs(1);

/// Longest wait before a probe, in multiples of its cost: probes take at most a thousandth of all time.
const PROBE_COSTS: u32 = 1000;

/// Bounds of that longest wait.
const LAST_PROBE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Time for which memory counts as being filled after it grew by a hundredth.
const FILLING: Duration = Duration::from_millis(100);

/// Longest time between two samples while memory is being filled.
const FILLING_AT_MOST: Duration = Duration::from_secs(10);

/// Limits given by the user.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceLimits {
    /// Interval while accesses change.
    pub shortest: Duration,
    /// Interval while they do not change.
    pub longest: Duration,
    /// Share of wall time that sampling may cost the tracker, and the target, as [`Allowance`] counts it.
    pub max_overhead: f64,
    /// True if sampling stops when settled.
    pub settle: bool,
}

impl Default for PaceLimits {
    /// 50 ms to 10 s, 1 %, stopping when settled.
    fn default() -> Self {
        Self {
            shortest: Duration::from_millis(50),
            longest: Duration::from_secs(10),
            max_overhead: 0.01,
            settle: true,
        }
    }
}

/// Cost of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleCost {
    /// CPU time of the tracker.
    pub own: Duration,
    /// Estimated delay of the target: see [`RefillCost`](super::RefillCost).
    pub target: Duration,
}

impl SampleCost {
    /// Returns the larger of the two: the limit applies to the tracker's CPU time and to the target's delay alike.
    #[must_use]
    pub fn larger(self) -> Duration {
        self.own.max(self.target)
    }

    /// Returns the expected cost of the next sample, if this one cost `self` and `before` was expected of it: about the larger cost of the last
    /// two. It rises at once and falls slowly.
    #[must_use]
    pub fn or_recent(self, before: Self) -> Self {
        Self {
            own: self.own.max(before.own / 2),
            target: self.target.max(before.target / 2),
        }
    }
}

/// The next sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextSample {
    /// Time to arm the tracker.
    pub arm: Duration,
    /// Time to wait before reading.
    pub interval: Duration,
    /// True if it is a probe: sampling is settled.
    pub probe: bool,
}

/// Schedule of the samples of one process.
#[derive(Debug, Clone)]
pub struct Pace {
    limits: PaceLimits,
    allowance: Allowance,
    interval: Duration,
    /// Time of the last sample, or of the event that made another one due.
    since: Duration,
    /// Expected cost of the next sample, from those before.
    expected: SampleCost,
    /// Largest cost of a sample for the target, from the entries that it can touch.
    most: Duration,
    calm: u32,
    /// Wait before the next probe, while settled.
    probe: Option<Duration>,
    /// Least resident pages seen since sampling settled.
    resident: Option<PageCount>,
    /// Resident pages when they last grew notably, and the last figure.
    grown: PageCount,
    now: PageCount,
    /// Time at which memory no longer counts as being filled, unless it continues to grow.
    filling: Duration,
    /// Time of reading the last sample, and the resident pages then.
    sampled: Duration,
    at_sample: PageCount,
}

impl Pace {
    /// Makes a pace whose first sample is due at `at`.
    ///
    /// A longest interval below the shortest counts as the shortest, which is at least 1 ms.
    #[must_use]
    pub fn new(limits: PaceLimits, at: Duration) -> Self {
        let shortest = limits.shortest.max(Duration::from_millis(1));
        let limits = PaceLimits {
            shortest,
            longest: limits.longest.max(shortest),
            ..limits
        };
        Self {
            limits,
            allowance: Allowance::new(limits.max_overhead, at),
            interval: shortest,
            since: at,
            expected: SampleCost::default(),
            most: Duration::MAX,
            calm: 0,
            probe: None,
            resident: None,
            grown: PageCount(0),
            now: PageCount(0),
            filling: at,
            sampled: at,
            at_sample: PageCount(0),
        }
    }

    /// Returns the next sample: there always is one, if only a probe.
    #[must_use]
    pub fn next(&self) -> NextSample {
        let wanted = self.since.saturating_add(self.probe.unwrap_or_default());
        let doubled = self.now.0 / 2 >= self.at_sample.0;
        let filled = self
            .filling
            .min(self.sampled.saturating_add(FILLING_AT_MOST));
        let wanted = if doubled { wanted } else { wanted.max(filled) };
        NextSample {
            arm: self.allowance.when(wanted, self.expected().larger()),
            interval: self.interval,
            probe: self.probe.is_some(),
        }
    }

    fn expected(&self) -> SampleCost {
        SampleCost {
            target: self.expected.target.min(self.most),
            ..self.expected
        }
    }

    /// Returns true if sampling has stopped, except for probes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.probe.is_some()
    }

    /// Records a sample read at `at`. `busy` is true if the policy found something to do in it.
    pub fn sampled(&mut self, at: Duration, change: &Change, cost: SampleCost, busy: bool) {
        self.paid(at, cost);
        let is_chance = change.moved <= change.by_chance;
        if change.grew || busy || (change.moved > MAX_CALM_MOVED_SHARE && !is_chance) {
            self.rearm(at);
            return;
        }
        if change.moved > MAX_CALM_MOVED_SHARE && self.probe.is_none() {
            self.calm = 0;
            let longest = self.limits.longest.min(SCATTERED);
            self.interval = (self.interval * 2).min(longest).max(self.interval);
            return;
        }
        if let Some(wait) = self.probe {
            self.probe = Some(wait.saturating_mul(2).min(self.last_probe()));
            return;
        }
        self.calm = self.calm.saturating_add(1);
        if self.limits.settle && self.calm >= SETTLED {
            self.probe = Some(FIRST_PROBE);
            self.resident = None;
        } else {
            self.interval = self.interval.saturating_mul(2).min(self.limits.longest);
        }
    }

    /// Records a sample that failed at `at`, and its cost. The next one is armed an interval later, and its interval is twice as long, at most the
    /// longest.
    pub fn failed(&mut self, at: Duration, cost: SampleCost) {
        self.paid(at, cost);
        self.calm = 0;
        self.since = self.since.saturating_add(self.interval);
        self.interval = self.interval.saturating_mul(2).min(self.limits.longest);
    }

    /// Records the resident memory; cheap enough for frequent calls. If it grew since sampling settled, by a region and by 1 % at least, sampling
    /// resumes, and the result is true. While it grows quickly, samples wait: see the text of this module.
    pub fn resident(&mut self, at: Duration, pages: PageCount) -> bool {
        self.now = pages;
        let grows =
            pages.0.saturating_sub(self.grown.0) >= (self.grown.0 / 100).max(PAGES_PER_REGION);
        if grows {
            self.filling = at.saturating_add(FILLING);
        }
        if grows || pages < self.grown {
            self.grown = pages;
        }
        if !self.is_settled() {
            return false;
        }
        let least = *self.resident.get_or_insert(pages);
        self.resident = Some(least.min(pages));
        let grown = (pages - least).0;
        let enough = grown >= PAGES_PER_REGION && grown >= least.0 / 100;
        if enough {
            self.rearm(at);
        }
        enough
    }

    /// Records the largest cost of a sample for the target, with its present page-table entries: once its memory was promoted, a sample costs less
    /// than the last one did.
    pub fn costs_target_at_most(&mut self, most: Duration) {
        self.most = most;
    }

    /// Resumes sampling at `at`, at the shortest interval.
    pub fn rearm(&mut self, at: Duration) {
        self.since = self.since.max(at);
        self.interval = self.limits.shortest;
        self.calm = 0;
        self.probe = None;
        self.resident = None;
    }

    /// Returns the longest wait before a probe. Probes of little memory, or of huge pages, cost next to nothing, and they detect that accesses have
    /// moved.
    fn last_probe(&self) -> Duration {
        let [least, most] = LAST_PROBE;
        let cost = self.expected().larger();
        cost.saturating_mul(PROBE_COSTS).clamp(least, most)
    }

    fn paid(&mut self, at: Duration, cost: SampleCost) {
        self.allowance.spend(at, cost.larger());
        self.since = self.since.max(at);
        self.sampled = self.sampled.max(at);
        self.at_sample = self.now;
        self.expected = cost.or_recent(self.expected);
    }
}

#[cfg(test)]
mod tests;
