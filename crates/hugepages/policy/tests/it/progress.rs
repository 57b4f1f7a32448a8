//! Without obstacles, all regions that should be promoted are promoted, and then no more actions follow.

use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{ByteCount, Share};
use superhue_policy::Scheme;

use crate::harness::{
    ActionOutcome, Harness, budgeted, honest_fate, listed_by, min_resident, rated, turns,
};
use crate::kernel::{Event, FakeKernel, event};

fn subjects() -> impl Strategy<Value = Scheme> {
    // Slow enough to need several turns, but moving.
    let rate = prop::option::of((1u64 << 20..64 << 20).prop_map(ByteCount));
    prop_oneof![
        rate.clone().prop_map(|rate| rated(
            rate,
            budgeted(Share::Bytes(ByteCount(1 << 40)), Scheme::resident())
        )),
        rate.prop_map(|rate| rated(rate, Scheme::always())),
    ]
}

/// Runs turns without events and failures, each when the policy asks for it, until it does not.
fn settle(harness: &mut Harness) -> usize {
    let mut promoted = harness
        .quiet_turn(Duration::from_millis(1), ActionOutcome::Tried)
        .actions
        .len();
    let mut turns = 0;
    while let Some(pause) = harness.wants_look_within() {
        promoted += harness
            .quiet_turn(pause, ActionOutcome::Tried)
            .actions
            .len();
        turns += 1;
        assert!(turns < 5000, "never comes to rest");
    }
    promoted
}

proptest! {
    #[test]
    fn everything_eligible_is_promoted_in_the_end(
        subject in subjects(),
        tells_huge: bool,
        // Refusals last until a VMA changes, which does not happen here, so they are left out.
        turns in turns(event(true), honest_fate().prop_map(no_refusal)),
    ) {
        let min_resident = min_resident(&subject);
        let mut harness = Harness::new(subject, FakeKernel::new(tells_huge));
        for turn in &turns {
            harness.turn(turn);
        }
        settle(&mut harness);
        if tells_huge {
            prop_assert_eq!(harness.world.unpromoted(min_resident), 0);
        }
        let before = harness.ledger().clone();
        prop_assert_eq!(before.in_flight, 0);
        for _ in 0..3 {
            prop_assert_eq!(harness.quiet_turn(Duration::from_secs(20), ActionOutcome::Tried).actions, []);
        }
        prop_assert_eq!(harness.ledger().planned, before.planned);
        prop_assert_eq!(harness.ledger().charged, before.charged);
    }

    #[test]
    fn a_dry_run_lists_everything_once(
        subject in subjects(),
        processes in 1usize..4,
        regions in 1u64..8,
        resident in 384u64..=512,
        torn in 0u64..3,
    ) {
        let mut world = FakeKernel::uniform(processes, regions, resident);
        world.torn = torn;
        let mut harness = Harness::new(subject, world);
        let mut listed = 0;
        for _ in 0..400 {
            let dry = ActionOutcome::Skipped(superhue_model::SkipReason::DryRun);
            listed += harness.quiet_turn(Duration::from_millis(150), dry).actions.len();
        }
        prop_assert_eq!(listed, processes * usize::try_from(regions + torn).unwrap());
        prop_assert_eq!(listed_by(harness.ledger()), listed as u64);
        prop_assert_eq!(harness.wants_look_within(), None);
    }
}

/// Samples every 50 ms, as at the start of a watch: hot regions have their huge pages within seconds, at the rate of 2 GiB/s long before.
#[test]
fn hot_converges_within_a_second_of_start() {
    let subject = budgeted(Share::BasisPoints(10_000), Scheme::hot());
    let mut harness = Harness::new(subject, FakeKernel::uniform(3, 32, 300));
    for process in 0..3 {
        for region in 0..32 {
            harness.world.happen(&Event::Access {
                process,
                slot: 0,
                region,
                from: 40,
                count: 200,
                percent: 100,
            });
        }
    }
    let sample = Duration::from_millis(50);
    let actions = harness.watch(sample, Duration::from_secs(1));
    assert_eq!(actions.len(), 3 * 32);
    assert_eq!(harness.world.unpromoted(1), 0);
    assert_eq!(harness.watch(sample, Duration::from_secs(30)), []);
}

fn no_refusal(fate: ActionOutcome) -> ActionOutcome {
    match fate {
        ActionOutcome::Fails(superhue_model::Errno::EINVAL) => ActionOutcome::Tried,
        other => other,
    }
}

#[test]
fn where_huge_is_not_told_each_region_is_promoted_once() {
    let subject = Scheme::always();
    let world = FakeKernel::uniform(2, 5, 300).without_telling();
    let mut harness = Harness::new(subject, world);
    assert_eq!(settle(&mut harness), 10);
    assert_eq!(settle(&mut harness), 0);
}
