//! Waiting times after failures, driven from outside.

use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{
    Action, ByteCount, Errno, PageCount, Plan, ProcessId, Share, SkipReason, VmaKind,
};
use superhue_policy::{Pattern, Resident, Scheme};

use crate::harness::{ActionOutcome, Harness, budgeted, rated};
use crate::kernel::{Event, FakeKernel};

const LOOP_INTERVAL: Duration = Duration::from_millis(50);

fn always() -> Scheme {
    Scheme::always()
}

fn resident() -> Scheme {
    Scheme::resident()
}

/// Returns the processes for which a turn had plans.
fn planned(harness: &mut Harness, fate: ActionOutcome) -> Vec<ProcessId> {
    let plan = harness.quiet_turn(LOOP_INTERVAL, fate);
    plan.actions
        .iter()
        .map(|action| action.owner().process().unwrap())
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn waits_double_and_are_never_cut_short(
        (fate, first, longest) in prop_oneof![
            Just((ActionOutcome::Fails(Errno::EAGAIN), 100u64, 30_000u64)),
            Just((ActionOutcome::Fails(Errno::EBUSY), 100, 30_000)),
            Just((ActionOutcome::Fails(Errno(99)), 100, 30_000)),
            Just((ActionOutcome::Fails(Errno::ENOMEM), 250, 60_000)),
            Just((ActionOutcome::Skipped(SkipReason::NoHeadroom), 1000, 8000)),
            Just((ActionOutcome::Skipped(SkipReason::MemoryPressure), 1000, 8000)),
            Just((ActionOutcome::Skipped(SkipReason::NoRoomToGrow), 1000, 8000)),
            Just((ActionOutcome::Fails(Errno::ESRCH), 1000, 60_000)),
        ],
        interval in 10u64..500,
    ) {
        let mut harness = Harness::new(always(), FakeKernel::uniform(1, 1, 200));
        let interval = Duration::from_millis(interval);
        let mut attempts = Vec::new();
        while attempts.len() < 14 {
            if !harness.quiet_turn(interval, fate).actions.is_empty() {
                attempts.push(harness.now());
            }
        }
        let mut expected = Duration::from_millis(first);
        for pair in attempts.windows(2) {
            let gap = pair[1] - pair[0];
            prop_assert!(gap >= expected, "{gap:?} after {expected:?}");
            prop_assert!(gap < expected + interval, "{gap:?} after {expected:?}");
            expected = (expected * 2).min(Duration::from_millis(longest));
        }
    }

    #[test]
    fn the_wish_for_a_look_is_the_end_of_the_wait(
        fate in prop_oneof![
            Just(ActionOutcome::Fails(Errno::EAGAIN)),
            Just(ActionOutcome::Fails(Errno::ENOMEM)),
            Just(ActionOutcome::Skipped(SkipReason::NoRoomToGrow)),
        ],
    ) {
        let mut harness = Harness::new(always(), FakeKernel::uniform(1, 1, 200));
        harness.quiet_turn(LOOP_INTERVAL, fate);
        for _ in 0..12 {
            let wait = harness.wants_look_within().unwrap();
            let early = wait.saturating_sub(Duration::from_millis(1));
            prop_assert!(harness.quiet_turn(early, fate).actions.is_empty());
            let rest = harness.wants_look_within().unwrap();
            prop_assert_eq!(early + rest, wait);
            prop_assert_eq!(harness.quiet_turn(rest, fate).actions.len(), 1);
        }
    }
}

#[test]
fn lack_of_huge_pages_stops_everything_and_is_probed() {
    let mut harness = Harness::new(always(), FakeKernel::uniform(2, 3, 512));
    assert_eq!(
        planned(&mut harness, ActionOutcome::Fails(Errno::ENOMEM)).len(),
        6
    );
    // Six failures cause one wait.
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_millis(250))
    );
    for _ in 0..4 {
        assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
    }
    // One action finds out that the lack has ended.
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 1);
    assert_eq!(harness.wants_look_within(), Some(Duration::ZERO));
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 5);
    assert_eq!(harness.world.unpromoted(1), 0);
}

#[test]
fn a_region_that_is_always_out_of_memory_does_not_stop_the_others() {
    // madvise(2) returns ENOMEM for an unmapped range, too.
    let mut harness = Harness::new(always(), FakeKernel::uniform(1, 6, 512));
    let first = harness.decide();
    let unlucky = first.actions[0].region();
    harness.act(&first, &[ActionOutcome::Fails(Errno::ENOMEM)]);
    for _ in 0..2000 {
        if harness.world.unpromoted(1) == 1 {
            break;
        }
        let pause = harness.wants_look_within().unwrap_or(LOOP_INTERVAL);
        harness.pass_time(pause);
        let plan = harness.decide();
        let fates: Vec<ActionOutcome> = plan
            .actions
            .iter()
            .map(|action| {
                if action.region() == unlucky {
                    ActionOutcome::Fails(Errno::ENOMEM)
                } else {
                    ActionOutcome::Tried
                }
            })
            .collect();
        harness.act(&plan, &fates);
    }
    assert_eq!(harness.world.unpromoted(1), 1);
    assert!(harness.now() < Duration::from_secs(10));
}

#[test]
fn a_process_that_may_not_be_touched_is_given_up() {
    for fate in [
        ActionOutcome::Fails(Errno::EPERM),
        ActionOutcome::Fails(Errno::EACCES),
    ] {
        let mut harness = Harness::new(always(), FakeKernel::uniform(2, 3, 512));
        let plan = harness.decide();
        assert_eq!(plan.actions.len(), 6);
        // Actions are ordered by process; the first process refuses all three.
        harness.act(
            &plan,
            &[
                fate,
                fate,
                fate,
                ActionOutcome::Tried,
                ActionOutcome::Tried,
                ActionOutcome::Tried,
            ],
        );
        assert_eq!(harness.world.unpromoted(1), 3);
        for _ in 0..1000 {
            assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
        }
        assert_eq!(harness.ledger().given_up.not_permitted, 1);
        assert_eq!(harness.wants_look_within(), None);
    }
}

#[test]
fn every_action_of_a_process_that_is_gone_is_counted() {
    let mut harness = Harness::new(always(), FakeKernel::uniform(2, 3, 512));
    let plan = harness.decide();
    assert_eq!(plan.actions.len(), 6);
    let gone = [ActionOutcome::Fails(Errno::ESRCH); 3];
    let fates = [
        &gone[..],
        &[
            ActionOutcome::Vanished,
            ActionOutcome::Vanished,
            ActionOutcome::Tried,
        ],
    ]
    .concat();
    harness.act(&plan, &fates);
    let ledger = harness.ledger();
    let collapses = &ledger.collapses;
    let failed = collapses.failed.get(&Errno::ESRCH).copied();
    assert_eq!(
        (failed, collapses.vanished, collapses.done),
        (Some(3), 2, 1)
    );
    assert_eq!((ledger.planned, ledger.in_flight), (6, 0));
}

#[test]
fn a_process_whose_group_is_short_holds_up_itself_only() {
    let mut harness = Harness::new(always(), FakeKernel::uniform(2, 6, 512));
    let plan = harness.decide();
    let short = ActionOutcome::Skipped(SkipReason::MemoryPressure);
    harness.act(
        &plan,
        &[
            short,
            short,
            short,
            short,
            short,
            short,
            ActionOutcome::Fails(Errno::EAGAIN),
            ActionOutcome::Tried,
            ActionOutcome::Tried,
            ActionOutcome::Tried,
            ActionOutcome::Tried,
            ActionOutcome::Tried,
        ],
    );
    let other = plan.actions[6].owner().process().unwrap();
    let mut later = Vec::new();
    while later.is_empty() {
        later = planned(&mut harness, ActionOutcome::Tried);
    }
    assert_eq!(later, [other]);
    while planned(&mut harness, short).is_empty() {}
    assert!(harness.now() >= Duration::from_secs(1));
    // One probe found it still short: the next wait is two seconds.
    let asked = harness.now();
    let mut answered = Vec::new();
    while answered.is_empty() {
        answered = planned(&mut harness, ActionOutcome::Tried);
    }
    assert_eq!(answered.len(), 1);
    assert!(harness.now() - asked >= Duration::from_secs(2));
    // Each success halves the trouble; then the process gets all its actions again.
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 1);
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 4);
    assert_eq!(harness.world.unpromoted(1), 0);
}

#[test]
fn a_refused_region_is_asked_again_when_its_vma_changes() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 2, 512));
    assert_eq!(
        planned(&mut harness, ActionOutcome::Fails(Errno::EINVAL)).len(),
        2
    );
    for _ in 0..500 {
        assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
    }
    harness.world.happen(&Event::Grow {
        process: 0,
        slot: 0,
        pages: 1,
    });
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 2);
}

#[test]
fn a_region_that_keeps_being_split_is_promoted_ever_less_often() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 1, 512));
    let mut promotions = Vec::new();
    while promotions.len() < 8 {
        if !planned(&mut harness, ActionOutcome::Tried).is_empty() {
            promotions.push(harness.now());
        }
        harness.world.happen(&Event::Split {
            process: 0,
            slot: 0,
            region: 0,
        });
    }
    let gaps: Vec<_> = promotions
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    assert!(gaps.is_sorted(), "{gaps:?}");
    assert!(gaps[6] >= Duration::from_millis(6400), "{gaps:?}");
}

#[test]
fn where_nothing_may_be_added_full_regions_are_promoted_all_the_same() {
    let mut world = FakeKernel::uniform(2, 3, 500);
    world.touch(0, 0, 0, 512);
    let mut harness = Harness::new(always(), world);
    let plan = harness.decide();
    let lean = ActionOutcome::Skipped(SkipReason::NoRoomToGrow);
    let growth = |action: &Action| match action {
        Action::Collapse { growth, .. } => growth.0,
        Action::Split { .. } => panic!("{action:?}"),
    };
    assert_eq!((growth(&plan.actions[0]), plan.actions.len()), (0, 6));
    let fate = |action: &Action| {
        if growth(action) > 0 {
            lean
        } else {
            ActionOutcome::Tried
        }
    };
    let fates: Vec<ActionOutcome> = plan.actions.iter().map(fate).collect();
    harness.act(&plan, &fates);
    // A region that has become full meanwhile does not wait.
    harness.world.touch(0, 1, 0, 512);
    assert_eq!(planned(&mut harness, ActionOutcome::Tried).len(), 1);
    assert!(harness.now() < Duration::from_secs(1));
    assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
    while planned(&mut harness, ActionOutcome::Tried).is_empty() {}
    assert!(harness.now() >= Duration::from_secs(1));
    assert_eq!(harness.world.unpromoted(1), 0);
}

#[test]
fn a_region_that_was_refused_is_asked_again_later_and_later() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 1, 512));
    let mut asked = Vec::new();
    let refused = ActionOutcome::Fails(Errno::EINVAL);
    while asked.len() < 5 {
        let now = harness.now();
        if !planned(&mut harness, refused).is_empty() {
            asked.push(now.as_secs());
        } else if let Some(wait) = harness.wants_look_within() {
            assert!(wait <= Duration::from_secs(240), "{wait:?}");
        }
        assert!(now < Duration::from_secs(1000), "{asked:?}");
    }
    assert_eq!(asked, [0, 30, 90, 210, 450]);
    // Fork's write protection has passed.
    while planned(&mut harness, ActionOutcome::Tried).is_empty() {}
    assert_eq!(harness.now().as_secs(), 930);
    assert_eq!(harness.world.unpromoted(1), 0);
}

#[test]
fn what_failed_gives_its_charge_back() {
    for fate in [
        ActionOutcome::Fails(Errno::EAGAIN),
        ActionOutcome::Fails(Errno::ENOMEM),
        ActionOutcome::Fails(Errno::EINVAL),
        ActionOutcome::Fails(Errno::EPERM),
        ActionOutcome::Fails(Errno::ESRCH),
        ActionOutcome::Fails(Errno(99)),
        ActionOutcome::Skipped(SkipReason::Cancelled),
        ActionOutcome::Skipped(SkipReason::Unmapped),
        ActionOutcome::Skipped(SkipReason::NoHeadroom),
        ActionOutcome::Skipped(SkipReason::NoRoomToGrow),
        ActionOutcome::Vanished,
    ] {
        let mut harness = Harness::new(always(), FakeKernel::uniform(1, 3, 500));
        let plan = harness.decide();
        assert_eq!(harness.ledger().charged, ByteCount(3 * 12 * 4096));
        harness.act(&plan, &[fate]);
        assert_eq!(harness.ledger().charged, ByteCount(0), "{fate:?}");
        assert_eq!(harness.ledger().peak_charged, ByteCount(3 * 12 * 4096));
    }
}

#[test]
fn waits_outlast_a_dip_below_the_threshold() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 1, 512));
    let eagain = ActionOutcome::Fails(Errno::EAGAIN);
    let mut attempts = 0;
    while attempts < 6 {
        attempts += planned(&mut harness, eagain).len();
    }
    let failed = harness.now();
    harness.world.happen(&Event::Purge {
        process: 0,
        slot: 0,
        region: 0,
        from: 0,
        count: 400,
    });
    planned(&mut harness, ActionOutcome::Tried);
    harness.world.touch(0, 0, 0, 512);
    while planned(&mut harness, ActionOutcome::Tried).is_empty() {}
    assert!(harness.now() - failed >= Duration::from_millis(3200));
}

#[test]
fn a_region_that_is_split_now_and_then_is_promoted_again_soon() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 1, 512));
    planned(&mut harness, ActionOutcome::Tried);
    for _ in 0..10 {
        for _ in 0..4 {
            harness.quiet_turn(Duration::from_secs(25), ActionOutcome::Tried);
        }
        harness.world.happen(&Event::Split {
            process: 0,
            slot: 0,
            region: 0,
        });
        let split = harness.now();
        while planned(&mut harness, ActionOutcome::Tried).is_empty() {}
        assert!(harness.now() - split <= Duration::from_millis(150));
    }
}

#[test]
fn a_refused_heap_that_keeps_growing_is_asked_ever_less_often() {
    let mut harness = Harness::new(resident(), FakeKernel::uniform(1, 1, 512));
    let mut attempts = 0;
    for _ in 0..400 {
        harness.world.happen(&Event::Grow {
            process: 0,
            slot: 0,
            pages: 1,
        });
        attempts += planned(&mut harness, ActionOutcome::Fails(Errno::EINVAL)).len();
    }
    // 20 s: after 0, 0.1, 0.3, 0.7, 1.5, 3.1, 6.3 and 12.7 s.
    assert_eq!(attempts, 8);
}

#[test]
fn old_trouble_is_forgotten() {
    for fate in [ActionOutcome::Fails(Errno::ENOMEM)] {
        let mut harness = Harness::new(always(), FakeKernel::uniform(1, 4, 512));
        while harness.now() < Duration::from_secs(3) {
            planned(&mut harness, fate);
        }
        let unmapped = Event::Unmap {
            process: 0,
            slot: 0,
        };
        harness.world.happen(&unmapped);
        harness.quiet_turn(Duration::from_secs(130), fate);
        harness.world.happen(&Event::Map {
            process: 0,
            slot: 1,
            kind: VmaKind::Heap,
            writable: true,
            head_pages: 0,
            pages: 2048,
        });
        harness.world.happen(&Event::FillAll { process: 0 });
        assert_eq!(
            planned(&mut harness, ActionOutcome::Tried).len(),
            4,
            "{fate:?}"
        );
    }
}

#[test]
fn no_look_is_wanted_while_the_machine_waits() {
    let mut world = FakeKernel::uniform(1, 2, 450);
    world.touch(0, 0, 0, 512);
    let mut harness = Harness::new(resident(), world);
    let plan = harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Fails(Errno::ENOMEM));
    assert_eq!(plan.actions.len(), 1);
    // The other region will have settled after 100 ms, but must still wait.
    assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_millis(200))
    );
}

#[test]
fn a_probe_is_one_that_fits_the_budget() {
    let mut world = FakeKernel::uniform(1, 2, 1);
    world.touch(0, 0, 0, 500);
    let subject = budgeted(
        Share::Bytes(PageCount(50).bytes()),
        Scheme {
            pattern: Pattern::Resident(Resident {
                settle: Duration::ZERO,
                ..Resident::default()
            }),
            ..Scheme::resident()
        },
    );
    let mut harness = Harness::new(subject, world);
    planned(&mut harness, ActionOutcome::Tried);
    assert_eq!(
        planned(&mut harness, ActionOutcome::Fails(Errno::ENOMEM)).len(),
        1
    );
    // It has never failed, but would never be planned either.
    harness.world.touch(0, 1, 0, 400);
    let mut turns = 0;
    while planned(&mut harness, ActionOutcome::Tried).is_empty() {
        turns += 1;
        assert!(turns < 10);
    }
}

#[test]
fn a_budget_given_back_goes_to_the_next() {
    let subject = rated(
        None,
        budgeted(Share::Bytes(PageCount(12).bytes()), Scheme::always()),
    );
    let mut harness = Harness::new(subject, FakeKernel::uniform(1, 2, 500));
    assert_eq!(
        planned(&mut harness, ActionOutcome::Fails(Errno::EAGAIN)).len(),
        1
    );
    assert_eq!(harness.wants_look_within(), Some(Duration::ZERO));
    let plan = harness.quiet_turn(Duration::ZERO, ActionOutcome::Tried);
    assert_eq!(plan.actions.len(), 1);
}

#[test]
fn a_probe_held_back_by_the_rate_does_not_ask_for_looks() {
    let subject = rated(Some(ByteCount(1 << 20)), Scheme::always());
    let mut harness = Harness::new(subject, FakeKernel::uniform(1, 3, 512));
    assert_eq!(
        planned(&mut harness, ActionOutcome::Fails(Errno::ENOMEM)).len(),
        1
    );
    for _ in 0..6 {
        assert_eq!(planned(&mut harness, ActionOutcome::Tried), []);
    }
    // 2 s per region, of which 300 ms have passed.
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_millis(1700))
    );
}

#[test]
fn nothing_late_is_charged_to_a_process_that_is_gone() {
    let mut harness = Harness::new(always(), FakeKernel::uniform(1, 2, 500));
    let plan = harness.decide();
    harness.act(
        &plan,
        &[ActionOutcome::Fails(Errno::EAGAIN), ActionOutcome::Lost],
    );
    let only = |index: usize| Plan::of(vec![plan.actions[index]]);
    harness.act(&only(1), &[ActionOutcome::Vanished]);
    harness.act(&only(0), &[ActionOutcome::TriedLate]);
    harness.act(&Plan::default(), &[ActionOutcome::Tried]);
    assert_eq!(harness.ledger().charged, ByteCount(0));
}
