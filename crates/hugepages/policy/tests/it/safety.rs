//! Any events: no plan breaks a rule. The rules are in `harness.rs`.

use std::time::Duration;

use proptest::prelude::*;
use superhue_model::PAGES_PER_REGION;
use superhue_policy::Scheme;

use crate::harness::{ActionOutcome, Harness, LoopStep, fate, honest_fate, subject, turns};
use crate::kernel::{Event, FakeKernel, event};

proptest! {
    #[test]
    fn no_plan_breaks_a_rule(
        subject in subject(),
        tells_huge: bool,
        turns in turns(event(true), fate()),
    ) {
        let mut harness = Harness::new(subject, FakeKernel::new(tells_huge));
        for turn in &turns {
            harness.turn(turn);
        }
    }

    /// The ledger's account is not only consistent but true: collapses have added no more memory than is charged.
    #[test]
    fn no_growth_goes_unaccounted(
        subject in subject(),
        tells_huge: bool,
        turns in turns(event(false), honest_fate()),
    ) {
        let mut harness = Harness::new(subject, FakeKernel::new(tells_huge));
        for turn in &turns {
            harness.turn(turn);
            let (bloat, charged) = (harness.world.bloat(), harness.ledger().charged);
            prop_assert!(bloat <= charged, "{bloat} there, {charged} charged");
        }
    }

    #[test]
    fn deciding_again_without_learning_changes_nothing(
        subject in subject(),
        turns in turns(event(true), fate()),
    ) {
        let mut harness = Harness::new(subject, FakeKernel::new(true));
        for turn in &turns {
            turn.events.iter().for_each(|event| harness.world.happen(event));
            let plan = harness.decide();
            let before = harness.ledger().clone();
            prop_assert_eq!(harness.decide().actions, []);
            let after = harness.ledger();
            prop_assert_eq!(
                (after.charged, after.in_flight, after.planned),
                (before.charged, before.in_flight, before.planned)
            );
            harness.act(&plan, &turn.fates);
            harness.turn(&LoopStep { events: Vec::new(), ..turn.clone() });
        }
    }

    #[test]
    fn sparse_programs_are_left_alone(
        turns in turns(event(true).prop_map(sparse), fate()),
    ) {
        let subject = Scheme::resident();
        let mut harness = Harness::new(subject, FakeKernel::new(true));
        for turn in &turns {
            prop_assert_eq!(harness.turn(turn).actions, []);
        }
        prop_assert_eq!(harness.ledger().tracked.regions, 0);
        prop_assert_eq!(harness.wants_look_within(), None);
    }
}

/// Returns the same event, or one in its place, with at most one page of each region.
fn sparse(event: Event) -> Event {
    match event {
        Event::Touch {
            process,
            slot,
            region,
            ..
        }
        | Event::Fill {
            process,
            slot,
            region,
        }
        | Event::Access {
            process,
            slot,
            region,
            ..
        }
        // The huge page of a fault has all its pages, and keeps them when it is split.
        | Event::FaultHuge {
            process,
            slot,
            region,
        } => Event::Touch {
            process,
            slot,
            region,
            from: 17,
            count: 1,
        },
        Event::FillAll { .. } => Event::Spawn,
        other => other,
    }
}

#[test]
fn a_region_that_never_stops_growing_is_promoted_only_when_full() {
    let subject = Scheme::resident();
    let mut harness = Harness::new(subject, FakeKernel::uniform(1, 1, 380));
    for page in 380..PAGES_PER_REGION {
        let plan = harness.quiet_turn(Duration::from_millis(100), ActionOutcome::Tried);
        assert_eq!(plan.actions, [], "with {page} pages");
        harness.world.touch(0, 0, page, 1);
    }
    let plan = harness.quiet_turn(Duration::ZERO, ActionOutcome::Tried);
    assert_eq!(plan.actions.len(), 1);
}
