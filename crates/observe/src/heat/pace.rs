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
//! While a program fills its memory, samples tell little and cost as much as others. So they wait
//! until it has filled it, but for one whenever the memory has doubled, and one every 10 s.
//!
//! Nothing here reads a clock: the caller says what time it is, on any clock that never goes back.

use std::time::Duration;

use superhue_model::{PAGES_PER_REGION, PageCount};

use super::Change;

/// Movement above which things change.
const CALM: f32 = 0.2;

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

/// How much may be spent at once: what is allowed in this time.
const ADVANCE: Duration = Duration::from_secs(10);

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

/// Time that may be spent: a fixed share of all time that passes, 10 seconds of it in advance.
///
/// ```text
///   spent <= share * (time passed + 10 s) + what the last sample cost
/// ```
///
/// A sample whose cost is known beforehand is not begun before there is room for all of it, so the
/// last term matters for the first sample and for one that is dearer than those before.
#[derive(Debug, Clone)]
pub struct Allowance {
    share: f64,
    /// The whole advance, in seconds.
    most: f64,
    /// What is left, in seconds; below zero after a dear sample.
    left: f64,
    /// Up to when `left` was reckoned.
    at: Duration,
}

impl Allowance {
    /// Allows `share` of the time from `at` on, above 1 where it is that of many CPUs. A share that is no number, or is not above 0,
    /// allows one part in a million.
    #[must_use]
    pub fn new(share: f64, at: Duration) -> Self {
        let share = if share > 1e-6 { share.min(1e6) } else { 1e-6 };
        let most = share * ADVANCE.as_secs_f64();
        Self {
            share,
            most,
            left: most,
            at,
        }
    }

    /// Allows only `part` of the share in the long run, with the same advance.
    #[must_use]
    pub fn in_part(self, part: f64) -> Self {
        Self {
            share: (self.share * part).max(1e-6),
            ..self
        }
    }

    /// Counts what was spent up to the time `at`.
    pub fn spend(&mut self, at: Duration, cost: Duration) {
        let passed = at.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(at);
        self.left = (self.left + passed * self.share).min(self.most) - cost.as_secs_f64();
    }

    /// When `cost` can be spent, at the earliest; not before `at`.
    ///
    /// What is dearer than the whole advance can be spent when that is there.
    #[must_use]
    pub fn when(&self, at: Duration, cost: Duration) -> Duration {
        let missing = cost.as_secs_f64().min(self.most) - self.left;
        if missing <= 0.0 {
            return at.max(self.at);
        }
        // A nanosecond more than rounding can take away.
        let wait = Duration::try_from_secs_f64(missing / self.share).unwrap_or(Duration::MAX);
        let then = self.at.saturating_add(wait);
        at.max(then.saturating_add(Duration::from_nanos(1)))
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
        let calm = change.moved <= CALM && !change.grew && !busy;
        if !calm {
            self.rearm(at);
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    fn change(moved: f32) -> Change {
        Change {
            moved,
            grew: false,
            touched: PageCount(100),
            entries: 100,
        }
    }

    fn cost(own: Duration, target: Duration) -> SampleCost {
        SampleCost { own, target }
    }

    /// Takes the next sample; returns when it was read.
    fn take(pace: &mut Pace, moved: f32) -> Duration {
        let next = pace.next();
        let at = next.arm + next.interval;
        pace.sampled(at, &change(moved), SampleCost::default(), false);
        at
    }

    #[test]
    fn it_slows_down_settles_and_probes_ever_more_rarely() {
        let limits = PaceLimits {
            max_overhead: 1.0,
            ..PaceLimits::default()
        };
        let mut pace = Pace::new(limits, Duration::ZERO);
        let mut intervals = Vec::new();
        while !pace.is_settled() {
            intervals.push(pace.next().interval / 50);
            take(&mut pace, 0.1);
        }
        assert_eq!(intervals, [1, 2, 4, 8, 16].map(|n| MS * n));
        for (dear, waits) in [
            (0, [1, 2, 2, 2, 2, 2, 2]),
            (10, [1, 2, 4, 8, 10, 10, 10]),
            (900, [1, 2, 4, 8, 16, 32, 60]),
        ] {
            let mut pace = pace.clone();
            let mut last = pace.since;
            for wait in waits {
                let next = pace.next();
                assert!(next.probe);
                let waited = next.arm - last;
                assert_eq!(waited, Duration::from_secs(wait), "at {dear} ms");
                last = next.arm + next.interval;
                pace.sampled(last, &change(0.0), cost(MS * dear, MS), false);
            }
        }
        take(&mut pace, 0.9);
        assert!(!pace.is_settled());
        assert_eq!(pace.next().interval, 50 * MS);
    }

    #[test]
    fn it_settles_only_if_asked_to_and_never_exceeds_the_longest() {
        let limits = PaceLimits {
            settle: false,
            ..PaceLimits::default()
        };
        let mut pace = Pace::new(limits, Duration::ZERO);
        for _ in 0..40 {
            take(&mut pace, 0.0);
            assert!(!pace.is_settled());
            assert!(pace.next().interval <= limits.longest);
        }
        assert_eq!(pace.next().interval, limits.longest);
    }

    #[test]
    fn movement_growth_and_work_keep_it_quick() {
        for (moved, grew, busy) in [(0.5, false, false), (0.0, true, false), (0.0, false, true)] {
            let mut pace = Pace::new(PaceLimits::default(), Duration::ZERO);
            for _ in 0..20 {
                let next = pace.next();
                let change = Change {
                    grew,
                    ..change(moved)
                };
                let free = SampleCost::default();
                pace.sampled(next.arm + next.interval, &change, free, busy);
                assert_eq!(pace.next().interval, 50 * MS);
                assert!(!pace.is_settled());
            }
        }
    }

    #[test]
    fn growth_wakes_it_up() {
        let mut pace = Pace::new(PaceLimits::default(), Duration::ZERO);
        while !pace.is_settled() {
            take(&mut pace, 0.0);
        }
        let at = pace.since + MS;
        assert!(!pace.resident(at, PageCount(10_000)));
        assert!(!pace.resident(at, PageCount(10_511)));
        assert!(!pace.resident(at, PageCount(9_000)), "shrinking is none");
        assert!(pace.resident(at, PageCount(9_512)));
        assert_eq!(pace.next().arm, at);
        assert!(!pace.resident(at, PageCount(99_000)), "it is awake");
    }

    #[test]
    fn dear_samples_come_rarely() {
        let limits = PaceLimits {
            settle: false,
            ..PaceLimits::default()
        };
        let mut pace = Pace::new(limits, Duration::ZERO);
        let dear = cost(4 * MS, 10 * MS);
        let mut arms = Vec::new();
        for _ in 0..60 {
            let next = pace.next();
            arms.push(next.arm);
            pace.sampled(next.arm + next.interval, &change(1.0), dear, false);
        }
        // The advance of 100 ms pays for ten at once (and a little more, since time passes).
        assert!(arms[9] < Duration::from_secs(1), "{arms:?}");
        // After that 10 ms can be spent every second.
        assert!(arms[59] - arms[49] > Duration::from_millis(9_900));
        assert!(arms[59] - arms[49] < Duration::from_millis(10_100));
    }

    #[test]
    fn what_is_being_filled_is_left_to_it() {
        let mut pace = Pace::new(PaceLimits::default(), Duration::ZERO);
        let (mut now, mut pages, mut samples) = (Duration::ZERO, 0, 0);
        let mut take = |pace: &mut Pace, now: Duration| {
            let next = pace.next();
            if next.arm + next.interval <= now {
                pace.sampled(now, &change(1.0), cost(3 * MS, 3 * MS), false);
                samples += 1;
            }
            samples
        };
        // 8 GiB in 8 s.
        while pages < 1 << 21 {
            now += 25 * MS;
            pages += 6554;
            pace.resident(now, PageCount(pages));
            take(&mut pace, now);
        }
        assert!((8..=10).contains(&take(&mut pace, now)));
        // It is over when no growth was seen for a while, and samples are taken again.
        assert!(pace.next().arm <= now + FILLING);
        assert_eq!(pace.next().arm, pace.filling);
        // Growth by the page is none, and no growth holds samples up forever.
        now += FILLING;
        pace.resident(now, PageCount(pages + 1000));
        assert!(pace.next().arm <= now);
        for _ in 0..1000 {
            now += 25 * MS;
            pages += pages / 50;
            pace.resident(now, PageCount(pages));
            take(&mut pace, now);
            pages = pages.min(1 << 22);
        }
        assert!(take(&mut pace, now) > 12);
    }

    #[test]
    fn what_became_cheap_is_sampled_soon() {
        let mut pace = Pace::new(PaceLimits::default(), Duration::ZERO);
        let full = cost(5 * MS, 90 * MS);
        let sampled = |pace: &mut Pace, cost| {
            let next = pace.next();
            pace.sampled(next.arm + next.interval, &change(1.0), cost, true);
            pace.next().arm - (next.arm + next.interval)
        };
        assert!(sampled(&mut pace.clone(), full) > Duration::from_secs(7));
        // All but a twentieth of it was promoted.
        pace.costs_target_at_most(5 * MS);
        assert!(sampled(&mut pace, full) < Duration::from_secs(1));
        let soon = pace.next().arm;
        pace.costs_target_at_most(200 * MS);
        assert!(
            pace.next().arm - soon > Duration::from_secs(7),
            "it grew: what was seen counts again"
        );
    }

    #[test]
    fn failures_are_retried_more_slowly() {
        let mut pace = Pace::new(PaceLimits::default(), Duration::ZERO);
        let mut gaps = Vec::new();
        for _ in 0..12 {
            let at = pace.next().arm;
            pace.failed(at, SampleCost::default());
            gaps.push(pace.next().arm - at);
        }
        assert!(gaps.is_sorted(), "{gaps:?}");
        assert_eq!(gaps.last(), Some(&Duration::from_secs(10)));
    }

    #[derive(Debug, Clone, Copy)]
    struct Step {
        moved: f32,
        grew: bool,
        busy: bool,
        fails: bool,
        own: u64,
        target: u64,
        late: u64,
        resident: u64,
    }

    fn step() -> impl Strategy<Value = Step> {
        let flags = (any::<bool>(), any::<bool>(), any::<bool>());
        // Costs up to 200 ms, mostly small; read late by up to 3 s.
        let micros = || prop_oneof![0_u64..500, 0_u64..200_000];
        let late = prop_oneof![Just(0_u64), 0_u64..3_000_000];
        (
            0.0_f32..1.0,
            flags,
            micros(),
            micros(),
            late,
            0_u64..1 << 20,
        )
            .prop_map(
                |(moved, (grew, busy, fails), own, target, late, resident)| Step {
                    moved,
                    grew,
                    busy,
                    fails,
                    own,
                    target,
                    late,
                    resident,
                },
            )
    }

    /// Runs the steps; returns when each sample was armed and what it cost.
    fn run(limits: PaceLimits, steps: &[Step]) -> Vec<(Next, Duration)> {
        let mut pace = Pace::new(limits, Duration::ZERO);
        let mut samples = Vec::new();
        for step in steps {
            let next = pace.next();
            let at = next.arm + next.interval + Duration::from_micros(step.late);
            let paid = cost(
                Duration::from_micros(step.own),
                Duration::from_micros(step.target),
            );
            samples.push((next, paid.larger()));
            if step.fails {
                pace.failed(at, paid);
            } else {
                let change = Change {
                    grew: step.grew,
                    ..change(step.moved)
                };
                pace.sampled(at, &change, paid, step.busy);
            }
            pace.resident(at, PageCount(step.resident));
        }
        samples
    }

    proptest! {
        #[test]
        fn it_never_costs_more_than_allowed(
            steps in proptest::collection::vec(step(), 1..300),
            overhead in 0.001_f64..0.2,
            settle: bool,
        ) {
            let limits = PaceLimits { max_overhead: overhead, settle, ..PaceLimits::default() };
            let samples = run(limits, &steps);
            let mut spent = Duration::ZERO;
            let mut last = Duration::ZERO;
            for (next, cost) in &samples {
                prop_assert!(next.arm >= last, "time goes on");
                last = next.arm;
                let allowed = overhead * (next.arm.as_secs_f64() + 10.0) + 1e-6;
                prop_assert!(spent.as_secs_f64() <= allowed, "{spent:?} of {allowed} s");
                prop_assert!(next.interval >= limits.shortest && next.interval <= limits.longest);
                spent += *cost;
            }
        }

        #[test]
        fn it_never_waits_longer_than_needed(
            steps in proptest::collection::vec(step(), 1..100),
        ) {
            // Whatever happened, the next sample comes when the allowance has recovered from the
            // dearest one, at the latest, or by a probe's wait.
            let limits = PaceLimits::default();
            let samples = run(limits, &steps);
            for pair in samples.windows(2) {
                let gap = pair[1].0.arm - pair[0].0.arm;
                let recover = 2.0 * 0.4 / limits.max_overhead + 10.0;
                prop_assert!(gap.as_secs_f64() <= 60.0 + recover + 10.0 + 3.0, "{gap:?}");
            }
        }

        #[test]
        fn the_same_events_make_the_same_pace(
            steps in proptest::collection::vec(step(), 1..50),
        ) {
            let limits = PaceLimits::default();
            prop_assert_eq!(run(limits, &steps), run(limits, &steps));
        }

        #[test]
        fn nonsense_limits_never_panic(
            overhead: f64, shortest: Duration, longest: Duration, at: Duration, own: Duration,
            target: Duration,
        ) {
            let limits = PaceLimits { shortest, longest, max_overhead: overhead, settle: false };
            let mut pace = Pace::new(limits, at);
            for _ in 0..3 {
                let next = pace.next();
                let read = next.arm.saturating_add(next.interval);
                pace.sampled(read, &change(f32::NAN), cost(own, target), false);
                pace.failed(read, cost(own, target));
            }
        }
    }
}
