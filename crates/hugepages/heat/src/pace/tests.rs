use super::*;
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);

fn change(moved: f32) -> Change {
    Change {
        moved,
        by_chance: 0.0,
        grew: false,
        touched: PageCount(100),
        entries: 100,
    }
}

fn cost(own: Duration, target: Duration) -> SampleCost {
    SampleCost { own, target }
}

/// Takes the next sample; returns the time at which it was read.
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
fn what_moves_by_chance_is_watched_for_longer() {
    let limits = PaceLimits {
        max_overhead: 1.0,
        ..PaceLimits::default()
    };
    let mut pace = Pace::new(limits, Duration::ZERO);
    let mut take = |moved, by_chance| {
        let next = pace.next();
        let change = Change {
            by_chance,
            ..change(moved)
        };
        let at = next.arm + next.interval;
        pace.sampled(at, &change, SampleCost::default(), false);
        (pace.next().interval, pace.is_settled())
    };
    for interval in [100, 200, 400, 800, 1000, 1000] {
        assert_eq!(take(0.9, 1.0), (MS * interval, false));
    }
    assert_eq!(take(0.9, 0.5), (50 * MS, false), "that is more than chance");
    for _ in 0..5 {
        take(0.1, 0.5);
    }
    assert!(take(0.1, 0.5).1);
    assert!(take(0.9, 1.0).1, "nothing says that it has changed");
    assert!(!take(0.9, 0.5).1);
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
    // Filling ends when no growth was seen for a while; then samples resume.
    assert!(pace.next().arm <= now + FILLING);
    assert_eq!(pace.next().arm, pace.filling);
    // Growth by single pages does not count, and no growth delays samples forever.
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
    // Costs up to 200 ms, mostly small; reads late by up to 3 s.
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

/// Runs the steps; returns the time of arming and the cost of each sample.
fn run(limits: PaceLimits, steps: &[Step]) -> Vec<(NextSample, Duration)> {
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
        // In every case the next sample comes once the allowance has recovered from the most expensive one, at the latest, or after a probe's wait.
        let limits = PaceLimits::default();
        let samples = run(limits, &steps);
        let mut most = 0.0_f64;
        for pair in samples.windows(2) {
            let gap = pair[1].0.arm - pair[0].0.arm;
            most = most.max(pair[0].1.as_secs_f64());
            let recover = 2.0 * most / limits.max_overhead + 10.0;
            prop_assert!(gap.as_secs_f64() <= 60.0 + recover + 10.0 + 3.0, "{gap:?} with {most} s");
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
