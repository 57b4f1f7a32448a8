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

/// Runs the loop until all of `regions` are promoted. Returns the time and the delayed process of each collapse.
fn promote_all(harness: &mut Harness, regions: usize) -> Vec<(Duration, ProcessId)> {
    let mut done = Vec::new();
    while done.len() < regions {
        let plan = harness.decide();
        for action in &plan.actions {
            done.push((harness.now(), action.owner().process().unwrap()));
            harness.pass_time(TOOK);
        }
        harness.act(&plan, &[ActionOutcome::Tried]);
        let wait = harness
            .wants_look_within()
            .unwrap_or(LOOP_INTERVAL)
            .max(LOOP_INTERVAL);
        harness.pass_time(wait);
    }
    done
}

#[test]
fn collapses_keep_to_max_stall() {
    // Pages that promotion added to the last region are no growth of the process itself.
    for resident in [512, 500, 8] {
        let mut harness = Harness::new(subject(Some(MAX)), FakeKernel::uniform(1, 200, resident));
        let done = promote_all(&mut harness, 200);
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
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_micros(4 * 3450))
    );
    harness.pass_time(Duration::from_micros(4 * 3450 - 1));
    assert_eq!(harness.decide().actions, []);
    assert_eq!(harness.wants_look_within(), Some(Duration::from_micros(1)));
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
