//! When to take samples: quickly while things change, slowly when they do not, and never for more
//! than is allowed.
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
//! A sample is *calm* if not over a fifth of the accesses moved, no memory was added, and the
//! policy had nothing to do. After 5 calm samples in a row, sampling is settled: the picture is what
//! it is. It is taken up again when resident memory grows, or when a probe finds it changed.
//!
//! A sample may find few pages of each region touched, and others than the one before: by chance, since accesses go to more pages
//! than an interval shows. That is no movement, and it says that the interval is too short. So it is doubled, up to a second.
//!
//! While a program fills its memory, samples tell little and cost as much as others. So they wait
//! until it has filled it, but for one whenever the memory has doubled, and one every 10 s.
//!
//! Nothing here reads a clock: the caller says what time it is, on any clock that never goes back.

use std::time::Duration;

use superhue_model::{PAGES_PER_REGION, PageCount};

use super::Change;
use crate::Allowance;

/// Movement above which things change.
const CALM: f32 = 0.2;

/// The longest interval that is taken because shorter ones show too little.
const SCATTERED: Duration = Duration::from_secs(1);

/// Calm samples in a row after which things are settled.
const SETTLED: u32 = 5;

/// The first probe comes so long after the last sample, each further one twice as late,
const FIRST_PROBE: Duration = Duration::from_secs(1);

/// but no later than this many times what it costs: a thousandth of all time,
const PROBE_COSTS: u32 = 1000;

/// within these bounds.
const LAST_PROBE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(60)];

/// Memory that grew by a hundredth in this time is being filled;
const FILLING: Duration = Duration::from_millis(100);

/// but no sample waits longer for the end of it than so long after the one before.
const FILLING_AT_MOST: Duration = Duration::from_secs(10);

/// Limits given by the user.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PaceLimits {
    /// Interval while things change.
    pub shortest: Duration,
    /// Interval when they do not.
    pub longest: Duration,
    /// Share of wall time that sampling may cost the tracker, and the target, as [`Allowance`]
    /// counts it.
    pub max_overhead: f64,
    /// Whether sampling stops when settled.
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

/// What a sample cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SampleCost {
    /// CPU time of the tracker.
    pub own: Duration,
    /// How long the target was held up, as estimated: see [`RefillCost`](super::RefillCost).
    pub target: Duration,
}

impl SampleCost {
    /// The larger of the two: the ceiling is one for the tracker's CPU and for the target each.
    #[must_use]
    pub fn larger(self) -> Duration {
        self.own.max(self.target)
    }

    /// What the next sample is expected to cost after this one, if `before` was expected of this: the
    /// dearer of the last two, about. It rises at once and falls slowly.
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
pub struct Next {
    /// When to arm the tracker.
    pub arm: Duration,
    /// How long to wait before reading.
    pub interval: Duration,
    /// Whether it is a probe: sampling is settled.
    pub probe: bool,
}

/// When to take samples of one process.
#[derive(Debug, Clone)]
pub struct Pace {
    limits: PaceLimits,
    allowance: Allowance,
    interval: Duration,
    /// Time of the last sample, or of what made another one due.
    since: Duration,
    /// What the next sample is expected to cost, going by those before,
    expected: SampleCost,
    /// and what it can cost the target at most, going by what there is to touch.
    most: Duration,
    calm: u32,
    /// Wait before the next probe, while settled.
    probe: Option<Duration>,
    /// Least resident pages seen since sampling settled.
    resident: Option<PageCount>,
    /// Resident pages when they were last seen to have grown notably, and as told last.
    grown: PageCount,
    now: PageCount,
    /// Memory is being filled until then, unless it goes on growing.
    filling: Duration,
    /// When the last sample was read, and the resident pages then.
    sampled: Duration,
    at_sample: PageCount,
}

impl Pace {
    /// A pace whose first sample is due at `at`.
    ///
    /// A longest interval below the shortest is taken to be the shortest, which is at least 1 ms.
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

    /// The next sample: there always is one, if only a probe.
    #[must_use]
    pub fn next(&self) -> Next {
        let wanted = self.since.saturating_add(self.probe.unwrap_or_default());
        let doubled = self.now.0 / 2 >= self.at_sample.0;
        let filled = self
            .filling
            .min(self.sampled.saturating_add(FILLING_AT_MOST));
        let wanted = if doubled { wanted } else { wanted.max(filled) };
        Next {
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

    /// Whether sampling has stopped, but for probes.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.probe.is_some()
    }

    /// Takes note of a sample read at `at`. `busy`: whether the policy found something to do in it.
    pub fn sampled(&mut self, at: Duration, change: &Change, cost: SampleCost, busy: bool) {
        self.paid(at, cost);
        let is_chance = change.moved <= change.by_chance;
        if change.grew || busy || (change.moved > CALM && !is_chance) {
            self.rearm(at);
            return;
        }
        if change.moved > CALM && self.probe.is_none() {
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

    /// Takes note of a sample that came to nothing at `at`, and what it cost nevertheless. The next
    /// try comes after twice the interval, at most the longest.
    pub fn failed(&mut self, at: Duration, cost: SampleCost) {
        self.paid(at, cost);
        self.calm = 0;
        self.since = self.since.saturating_add(self.interval);
        self.interval = self.interval.saturating_mul(2).min(self.limits.longest);
    }

    /// Takes note of how much memory is resident; cheap to be told often. If it grew since sampling
    /// settled, by a region and by 1 % at least, sampling is taken up again. Returns whether it is.
    /// While it grows quickly, samples wait: see the text of this module.
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

    /// Takes note of what a sample can cost the target at most, with the page-table entries it has
    /// now: a process whose memory was promoted is cheaper to sample than the last sample was.
    pub fn costs_target_at_most(&mut self, most: Duration) {
        self.most = most;
    }

    /// Takes sampling up again at `at`, at the shortest interval.
    pub fn rearm(&mut self, at: Duration) {
        self.since = self.since.max(at);
        self.interval = self.limits.shortest;
        self.calm = 0;
        self.probe = None;
        self.resident = None;
    }

    /// The longest wait before a probe. Probes of little memory, or of superpages, cost next to
    /// nothing, and are what notices that accesses have moved.
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
