use superhue_model::{Color, ColorRequest, VirtAddr};
use superhue_recolor::{RecolorResult, TargetColors};

use super::program::{CHECKED, FIRST_CHECK, Step};
use super::*;

const CAPACITY: usize = 64;
const COLORS: usize = 8;

fn pages(count: u64, huge: bool) -> Vec<Page> {
    let page = |number| Page {
        at: number * BASE_PAGE_SIZE,
        huge,
        rate: 1.0,
    };
    (1..=count).map(page).collect()
}

/// Returns the pages and colors of a step that places.
fn asked(step: Option<Step>) -> Option<(Vec<VirtAddr>, TargetColors)> {
    match step? {
        Step::Place { pages, want } => Some((pages, want)),
        Step::Check { .. } => None,
    }
}

/// Repeats steps of at most `most` pages each until nothing is left to do; returns their number.
fn settle(program: &mut Program, aim: &PlacementGoal, most: usize) -> usize {
    for steps in 0..1000 {
        let step = match aim {
            PlacementGoal::Spread => program.step_to_spread(COLORS, CAPACITY, Duration::ZERO),
            PlacementGoal::Within(set) => program.step_within(set, Duration::ZERO),
        };
        program.count(aim, COLORS, Duration::ZERO);
        let Some((pages, want)) = asked(step) else {
            return steps;
        };
        assert!(!pages.is_empty());
        let placed: Vec<RecolorResult> = (0..pages.len().min(most))
            .map(|at| match &want {
                TargetColors::Each(wanted) => RecolorResult::Recolored(wanted[at]),
                TargetColors::Within(set) => RecolorResult::Recolored(set.iter().next().unwrap()),
            })
            .collect();
        program.enter(&pages, &want, &placed, Duration::ZERO);
    }
    panic!("never settled");
}

#[test]
fn a_hot_set_ends_even_over_all_colors_and_stays_alone() {
    let mut program = Program::default();
    program.take(
        pages(60, false),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    assert!(settle(&mut program, &PlacementGoal::Spread, 7) > 60 / 7);
    assert_eq!(program.figures.now, Some((7, 8)));
    assert_eq!(program.figures.recolored, 60);
    // The same pages are hot at the next sample.
    program.take(
        pages(60, false),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    assert_eq!(settle(&mut program, &PlacementGoal::Spread, 7), 0);
}

#[test]
fn pages_of_huge_pages_stay() {
    let mut program = Program::default();
    program.take(
        pages(32, true),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    assert_eq!(settle(&mut program, &PlacementGoal::Spread, 100), 0);
    assert_eq!((program.figures.recolored, program.figures.now), (0, None));
}

#[test]
fn only_as_much_as_the_cache_holds_is_looked_at_and_blindly_only_if_all_fits() {
    let mut program = Program::default();
    program.take(
        pages(1000, false),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    assert_eq!(program.pages.len(), CAPACITY);
    program.take(
        pages(1000, false),
        &PlacementGoal::Spread,
        (CAPACITY, true),
        Duration::ZERO,
    );
    assert!(program.pages.is_empty());
    assert_eq!(program.figures.unchosen[TOO_MUCH], 1000);
    program.take(
        pages(200, false),
        &PlacementGoal::Spread,
        (CAPACITY, true),
        Duration::ZERO,
    );
    assert_eq!(program.pages.len(), 200);
}

#[test]
fn what_the_kernel_keeps_is_left_alone_after_some_attempts() {
    let request: ColorRequest = "0-3".parse().unwrap();
    let set = request.of(COLORS).unwrap().unwrap();
    let aim = PlacementGoal::Within(set.clone());
    let attempts = |placed: RecolorResult| {
        let mut program = Program::default();
        program.take(pages(3, false), &aim, (CAPACITY, false), Duration::ZERO);
        for attempt in 0..100 {
            let Some((pages, want)) = asked(program.step_within(&set, Duration::ZERO)) else {
                return (attempt, program);
            };
            let now = Duration::ZERO;
            program.enter(&pages, &want, &vec![placed; pages.len()], now);
            program.count(&aim, COLORS, now);
        }
        (100, program)
    };
    let (tried, program) = attempts(RecolorResult::Kept(KeptReason::InUse));
    assert_eq!((tried, program.figures.left[&KeptReason::InUse]), (3, 3));
    // A page that got another frame than the wanted one is tried for longer.
    let (tried, program) = attempts(RecolorResult::Missed);
    assert_eq!((tried, program.figures.missed), (12, 3));
    // A missing frame of a wanted color is looked for again.
    let (tried, mut program) = attempts(RecolorResult::Kept(KeptReason::NoFrame));
    program.count(&aim, COLORS, Duration::ZERO);
    assert_eq!(
        (tried, program.figures.pages, program.figures.right),
        (100, 3, 0)
    );
}

#[test]
fn what_the_kernel_kept_is_tried_again_after_a_while() {
    let request: ColorRequest = "0-3".parse().unwrap();
    let set = request.of(COLORS).unwrap().unwrap();
    let aim = PlacementGoal::Within(set.clone());
    let mut program = Program::default();
    program.take(pages(1, false), &aim, (CAPACITY, false), Duration::ZERO);
    let shared = [RecolorResult::Kept(KeptReason::Shared)];
    let mut tried = Vec::new();
    for second in 0..200 {
        let now = Duration::from_secs(second);
        while let Some((pages, want)) = asked(program.step_within(&set, now)) {
            tried.push(second);
            program.enter(&pages, &want, &shared, now);
        }
    }
    assert_eq!(tried, [0, 0, 0, 30, 90]);
    program.count(&aim, COLORS, Duration::from_secs(199));
    assert_eq!(program.figures.left[&KeptReason::Shared], 1);
    // The child that shared it has ended.
    let now = Duration::from_secs(300);
    let (pages, want) = asked(program.step_within(&set, now)).unwrap();
    program.enter(&pages, &want, &[RecolorResult::Recolored(Color(0))], now);
    program.count(&aim, COLORS, now);
    assert!(program.figures.left.is_empty());
    assert_eq!(program.figures.recolored, 1);
}

#[test]
fn a_page_whose_frame_is_seen_late_counts_once() {
    let mut program = Program::default();
    let at = [VirtAddr(BASE_PAGE_SIZE)];
    let want = TargetColors::Each(vec![Color(1)]);
    let mut enter = |result| program.enter(&at, &want, &[result], Duration::ZERO);
    enter(RecolorResult::Unmapped);
    enter(RecolorResult::Recolored(Color(1)));
    assert_eq!(program.figures.recolored, 1);
    assert!(program.pending.is_empty());
}

#[test]
fn a_frame_of_another_color_is_known_and_does_not_count() {
    let mut program = Program::default();
    let at = [VirtAddr(BASE_PAGE_SIZE)];
    let want = TargetColors::Each(vec![Color(1)]);
    let other = RecolorResult::Recolored(Color(2));
    program.enter(&at, &want, &[other], Duration::ZERO);
    assert_eq!(program.figures.recolored, 0);
    assert_eq!(program.colors[&BASE_PAGE_SIZE], Color(2));
    // Nor does the color of a page that nothing was done with count as wrong.
    program.take(
        pages(3, false),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    program.count(&PlacementGoal::Spread, COLORS, Duration::ZERO);
    let Figures { pages, known, .. } = program.figures;
    assert!(pages == 3 && known < pages, "{pages} {known}");
}

#[test]
fn programs_that_wait_or_rest_hold_no_frames() {
    let mut program = Program::default();
    assert!(program.is_idle(Duration::ZERO), "it has not run");
    program.has_run = true;
    assert!(!program.is_idle(Duration::ZERO));
    program.rests_until = LONGEST_REST;
    assert!(program.is_idle(Duration::ZERO));
    assert!(!program.is_idle(LONGEST_REST));
    program.settled = true;
    assert!(program.is_idle(LONGEST_REST));
}

#[test]
fn pages_are_measured_again_now_and_then() {
    let mut program = Program::default();
    program.take(
        pages(64, false),
        &PlacementGoal::Spread,
        (CAPACITY, false),
        Duration::ZERO,
    );
    settle(&mut program, &PlacementGoal::Spread, 100);
    assert_eq!(program.check(FIRST_CHECK / 2), None);
    let Some(Step::Check { pages }) = program.check(FIRST_CHECK) else {
        panic!("it is due");
    };
    assert_eq!(pages.len(), CHECKED);
    assert_eq!(program.check(FIRST_CHECK), None, "not twice");
}
