//! Delay of a process by collapses.

use std::time::Duration;

use superhue_model::{Action, ProcessId};
use superhue_policy::{Scheme, StallBound};

use crate::harness::{ActionOutcome, Harness, stalling};
use crate::kernel::FakeKernel;

/// Duration of an action, as the harness reports it.
const TOOK: Duration = Duration::from_micros(300);

const MAX: Duration = Duration::from_millis(10);
const WINDOW: Duration = Duration::from_millis(100);
const LOOP_INTERVAL: Duration = Duration::from_millis(20);

fn bound(allowed: Duration) -> StallBound {
    StallBound {
        while_growing: false,
        ..StallBound::always(allowed)
    }
}

fn subject(max_stall: Option<Duration>) -> Scheme {
    stalling(max_stall.map(bound), Scheme::always())
}

/// Runs the loop until all of `regions` are promoted, with a decision after at most `looks`. Returns the time and the delayed process of each
/// collapse, and the number of decisions.
fn promote_all(
    harness: &mut Harness,
    regions: usize,
    looks: Duration,
) -> (Vec<(Duration, ProcessId)>, u32) {
    let (mut done, mut decisions, mut next_look) = (Vec::new(), 0, Duration::ZERO);
    let mut resumes_at: Option<Duration> = None;
    while done.len() < regions {
        let now = harness.now();
        let plan = if now < next_look && resumes_at.is_some_and(|at| at <= now) {
            harness.resume()
        } else {
            decisions += 1;
            next_look = now + looks;
            harness.decide()
        };
        for action in &plan.actions {
            done.push((harness.now(), action.owner().process().unwrap()));
            harness.pass_time(TOOK);
        }
        harness.act(&plan, &[ActionOutcome::Tried]);
        resumes_at = harness.resumes_within().map(|wait| harness.now() + wait);
        let waits = [harness.wants_look_within(), harness.resumes_within()];
        let wait = waits.into_iter().flatten().min().unwrap_or_default();
        harness.pass_time(wait.max(LOOP_INTERVAL));
    }
    (done, decisions)
}

#[test]
fn collapses_keep_to_max_stall() {
    // Pages that promotion added to the last region are no growth of the process itself.
    for (resident, looks) in [(512, 0), (500, 0), (8, 0), (512, 250), (8, 250)] {
        let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(1, 200, resident));
        let looks = Duration::from_millis(looks);
        let (done, decisions) = promote_all(&mut harness, 200, looks);
        assert!(looks.is_zero() || decisions < 10, "{decisions} decisions");
        for &(start, _) in &done {
            let inside = done
                .iter()
                .filter(|(at, _)| (start..start + WINDOW).contains(at));
            let sum = TOOK * u32::try_from(inside.count()).unwrap();
            assert!(sum <= MAX, "{sum:?}");
        }
        // 60 ms of collapses are a tenth of it.
        assert!(harness.now() > Duration::from_millis(500));
        assert!(
            harness.now() < Duration::from_millis(1300),
            "{:?}",
            harness.now()
        );
    }
}

#[test]
fn without_a_bound_all_is_done_at_once() {
    let mut harness = Harness::new(subject(None), FakeKernel::uniform(1, 200, 512));
    let plan = harness.decide();
    assert_eq!(plan.actions.len(), 200);
    assert_eq!(plan.bounds, []);
}

#[test]
fn one_process_does_not_wait_for_another() {
    let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(3, 50, 512));
    let plan = harness.decide();
    let of = |action: &Action, plan: &[Action]| {
        let same = plan
            .iter()
            .filter(|it| it.owner().process().unwrap() == action.owner().process().unwrap());
        same.count()
    };
    assert_eq!(plan.actions.len(), 12);
    // Should the first ones take long, the others are left out.
    let left: Vec<Duration> = plan.bounds.iter().map(|bound| bound.left).collect();
    assert_eq!(left, [MAX / 5; 3]);
    assert!(plan.actions.iter().all(|it| of(it, &plan.actions) == 4));
    assert_eq!(harness.ledger().waiting.stall, 3 * 46);
    assert_eq!(harness.ledger().waiting.rate, 0);
    harness.act(&plan, &[ActionOutcome::Tried]);
    // 4 times 300 us are 8 % of the time until the next: a tenth, less what may be done together.
    let pause = Duration::from_micros(4 * 3450);
    assert_eq!(harness.resumes_within(), Some(pause));
    assert_eq!(harness.wants_look_within(), None);
    let last = Duration::from_micros(1);
    harness.pass_time(pause - last);
    assert_eq!(harness.resume().actions, []);
    assert_eq!(harness.decide().actions, []);
    assert_eq!(harness.resumes_within(), Some(last));
    harness.pass_time(last);
    let plan = harness.resume();
    assert_eq!(plan.bounds.len(), 3);
    // They were shorter than assumed.
    assert!(plan.actions.iter().all(|it| of(it, &plan.actions) == 5));
    assert_eq!(harness.ledger().waiting.stall, 3 * 41);
}

#[test]
fn a_decision_lasts_for_some_time_but_not_for_all_regions() {
    let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(1, 200, 512));
    let plan = harness.decide();
    harness.act(&plan, &[ActionOutcome::Tried]);
    let mut resumed = 0;
    while let Some(pause) = harness.resumes_within() {
        harness.pass_time(pause);
        let plan = harness.resume();
        resumed += plan.actions.len();
        harness.act(&plan, &[ActionOutcome::Tried]);
    }
    assert_eq!(resumed, 64);
    // The others need a look, once the pause ends.
    assert!(harness.wants_look_within().is_some());
    harness.pass_time(harness.wants_look_within().unwrap());
    assert!(!harness.decide().actions.is_empty());
}

#[test]
fn what_was_learned_since_the_decision_counts() {
    let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(1, 50, 512));
    let plan = harness.decide();
    // Huge pages are short: from now on one at a time, after a wait.
    let fails = ActionOutcome::Fails(superhue_model::Errno::ENOMEM);
    harness.act(&plan, &[fails]);
    assert_eq!(harness.resumes_within(), None);
    harness.pass_time(WINDOW);
    assert_eq!(harness.resume().actions, []);
    assert!(harness.wants_look_within().is_some());

    let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(2, 50, 512));
    let plan = harness.decide();
    harness.act(&plan, &[ActionOutcome::Vanished]);
    harness.pass_time(WINDOW);
    assert_eq!(harness.resume().actions, [], "both are gone");
}

#[test]
fn a_process_that_fills_its_memory_is_not_held_up() {
    let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(1, 100, 8));
    let plan = harness.decide();
    harness.act(&plan, &[ActionOutcome::Lost]);
    for region in 0..100 {
        harness.world.touch(0, region, 0, 512);
    }
    harness.pass_time(LOOP_INTERVAL);
    let plan = harness.decide();
    assert_eq!(plan.actions.len(), 100 - 4, "four are in flight");
}

#[test]
fn other_policies_keep_to_it_too() {
    let resident = stalling(Some(bound(MAX)), Scheme::resident());
    let mut harness = Harness::new(resident, FakeKernel::uniform(1, 100, 512));
    assert_eq!(harness.decide().actions.len(), 4);
}

#[test]
fn a_budget_that_is_used_up_leaves_nothing_to_go_on_with() {
    // 100 of 512 pages are absent, 500 in all may be added.
    let budget = superhue_model::Share::Bytes(superhue_model::ByteCount(500 * 4096));
    let scheme = stalling(Some(bound(MAX)), Scheme::resident());
    let scheme = crate::harness::budgeted(budget, scheme);
    let mut harness = Harness::new(scheme, FakeKernel::uniform(1, 200, 412));
    let mut done = 0;
    harness.decide();
    for _ in 0..20 {
        harness.pass_time(WINDOW);
        let plan = harness.decide();
        done += plan.actions.len();
        harness.act(&plan, &[ActionOutcome::Tried]);
    }
    assert_eq!(done, 5);
    assert_eq!(
        (harness.resumes_within(), harness.wants_look_within()),
        (None, None)
    );
}
