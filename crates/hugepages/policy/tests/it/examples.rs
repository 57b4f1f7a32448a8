//! Small worlds whose right plan is obvious.

use std::time::Duration;

use superhue_model::{Action, ByteCount, PageCount, Plan, Share};
use superhue_policy::{Ledger, Scheme};

use crate::harness::{ActionOutcome, Harness, budgeted, rated};
use crate::kernel::{Event, FakeKernel};

const LOOP_INTERVAL: Duration = Duration::from_millis(100);

fn resident(budget: Share) -> Scheme {
    budgeted(budget, Scheme::resident())
}

fn pages(n: u64) -> Share {
    Share::Bytes(PageCount(n).bytes())
}

fn charged(harness: &Harness) -> u64 {
    harness.ledger().charged.whole_pages().0
}

#[test]
fn full_at_once_partial_when_quiet_sparse_never() {
    let mut world = FakeKernel::uniform(1, 4, 100);
    world.touch(0, 0, 0, 512);
    world.touch(0, 1, 0, 384);
    world.touch(0, 2, 0, 383);
    let mut harness = Harness::new(resident(pages(1000)), world);

    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        [0]
    );
    assert_eq!(harness.ledger().waiting.settling, 1);
    assert_eq!(harness.wants_look_within(), Some(LOOP_INTERVAL));
    let early = Duration::from_millis(99);
    assert_eq!(
        growths(&harness.quiet_turn(early, ActionOutcome::Tried)),
        []
    );
    let rest = Duration::from_millis(1);
    assert_eq!(harness.wants_look_within(), Some(rest));
    assert_eq!(
        growths(&harness.quiet_turn(rest, ActionOutcome::Tried)),
        [128]
    );
    assert_eq!(harness.wants_look_within(), None);
    assert_eq!(charged(&harness), 128);
}

#[test]
fn the_cheapest_are_promoted_as_far_as_the_budget_reaches() {
    let mut world = FakeKernel::uniform(1, 5, 0);
    for (region, count) in [450, 500, 400, 512, 490].into_iter().enumerate() {
        world.touch(0, region, 0, count);
    }
    let mut harness = Harness::new(resident(pages(12 + 22 + 61)), world);
    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        [0]
    );
    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        [12, 22]
    );
    assert_eq!(harness.ledger().waiting.budget, 2);
    assert_eq!(harness.wants_look_within(), None);

    // One more page makes room for the next region.
    harness.world.touch(0, 0, 450, 1);
    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        []
    );
    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        [61]
    );
    assert_eq!(charged(&harness), 95);

    // Full regions need no room.
    harness.world.touch(0, 2, 0, 512);
    assert_eq!(
        growths(&harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)),
        [0]
    );
}

#[test]
fn among_equals_the_one_longest_quiet_is_first() {
    let mut world = FakeKernel::uniform(2, 2, 400);
    world.touch(0, 0, 400, 10);
    let subject = budgeted(pages(102), Scheme::resident());
    let mut harness = Harness::new(subject, world);
    harness.quiet_turn(Duration::from_millis(10), ActionOutcome::Tried);
    // The other regions come up to the same number a little later, the last process first.
    for (process, region) in [(1, 1), (1, 0), (0, 1)] {
        harness.world.touch(process, region, 400, 10);
        harness.quiet_turn(Duration::from_millis(10), ActionOutcome::Tried);
    }
    let plan = harness.quiet_turn(Duration::from_millis(70), ActionOutcome::Tried);
    assert_eq!(growths(&plan), [102]);
    let looks = harness.world.look(Duration::ZERO);
    assert_eq!(
        plan.actions[0].owner().process().unwrap(),
        looks.processes[0].id
    );
    assert_eq!(
        plan.actions[0].region(),
        looks.processes[0].regions[0].region
    );
}

#[test]
fn the_charge_goes_with_the_memory() {
    let promoted = || {
        let mut harness = Harness::new(resident(pages(200)), FakeKernel::uniform(1, 2, 412));
        harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
        harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
        assert_eq!(charged(&harness), 200);
        harness
    };
    let place = |event: fn(usize, u8, usize) -> Event| event(0, 0, 1);
    for (event, left) in [
        (
            place(|process, slot, region| Event::Split {
                process,
                slot,
                region,
            }),
            200,
        ),
        (
            place(|process, slot, region| Event::Reclaim {
                process,
                slot,
                region,
            }),
            100,
        ),
        (place(|process, slot, _| Event::Unmap { process, slot }), 0),
        (place(|process, _, _| Event::Exit { process }), 0),
        (
            place(|process, slot, region| Event::Purge {
                process,
                slot,
                region,
                from: 0,
                count: 70,
            }),
            130,
        ),
    ] {
        let mut harness = promoted();
        harness.world.happen(&event);
        harness.quiet_turn(Duration::from_millis(1), ActionOutcome::Tried);
        assert_eq!(charged(&harness), left, "{event:?}");
    }
}

#[test]
fn the_charge_stays_with_a_huge_page_of_whatever_origin() {
    let mut harness = Harness::new(resident(pages(200)), FakeKernel::uniform(1, 1, 412));
    harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    let (process, slot, region) = (0, 0, 0);
    let split = Event::Split {
        process,
        slot,
        region,
    };
    let khugepaged = Event::Khugepaged {
        process,
        slot,
        region,
    };
    for event in [split, khugepaged] {
        harness.world.happen(&event);
        harness.quiet_turn(Duration::from_millis(1), ActionOutcome::Tried);
    }
    // Long enough for all trouble to be forgotten.
    for _ in 0..10 {
        harness.quiet_turn(Duration::from_secs(10), ActionOutcome::Tried);
        assert_eq!(charged(&harness), 100);
    }
}

#[test]
fn a_budget_in_percent_follows_the_memory_both_ways() {
    // 10 % of 4 * 412 pages is 164.
    let mut harness = Harness::new(
        resident(Share::BasisPoints(1000)),
        FakeKernel::uniform(2, 2, 412),
    );
    harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    let plan = harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    assert_eq!(growths(&plan), [100]);
    // Another 4 * 512 pages: 10 % are 374 now.
    harness.world.happen(&Event::Map {
        process: 1,
        slot: 1,
        kind: superhue_model::VmaKind::Heap,
        writable: true,
        head_pages: 0,
        pages: 2048,
    });
    harness.world.happen(&Event::FillAll { process: 1 });
    let plan = harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    assert!(growths(&plan).contains(&100), "{plan:?}");
    let before = charged(&harness);
    // The process with most of the memory ends.
    harness.world.happen(&Event::Exit { process: 1 });
    harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    let ledger = harness.ledger();
    assert!(ledger.charged > ledger.budget.unwrap(), "{ledger:?}");
    assert!(charged(&harness) <= before);
    // It may only be collecting garbage. After a second the charge has to fit.
    let half = Duration::from_millis(500);
    assert_eq!(harness.quiet_turn(half, ActionOutcome::Tried).actions, []);
    assert_eq!(harness.wants_look_within(), Some(half));
    let plan = harness.quiet_turn(half, ActionOutcome::Tried);
    assert!(!plan.actions.is_empty());
    let is_split = |action: &Action| matches!(action, Action::Split { .. });
    assert!(plan.actions.iter().all(is_split), "{plan:?}");
    // Freed memory makes the budget smaller, too.
    for _ in 0..2 {
        harness.quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried);
    }
    let ledger = harness.ledger();
    let (charged, budget) = (ledger.charged, ledger.budget.unwrap());
    assert!(charged <= budget, "{charged} of {budget}");
    assert!(ledger.returned.0 > 0);
    // A region that was split rests.
    assert_eq!(
        harness
            .quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)
            .actions,
        []
    );
}

#[test]
fn without_rss_the_regions_themselves_are_the_whole() {
    let mut snapshot = FakeKernel::uniform(1, 4, 512).look(Duration::ZERO);
    snapshot.processes[0].rss_anon = None;
    let mut policy = resident(Share::BasisPoints(1000)).policy();
    policy.decide(&snapshot);
    assert_eq!(
        policy.ledger().budget,
        Some(Share::BasisPoints(1000).of(ByteCount(8 << 20)))
    );
}

#[test]
fn the_rate_spreads_a_large_start() {
    let subject = rated(Some(ByteCount(16 << 20)), Scheme::always());
    let mut harness = Harness::new(subject, FakeKernel::uniform(1, 20, 1));
    assert_eq!(
        harness
            .quiet_turn(LOOP_INTERVAL, ActionOutcome::Tried)
            .actions
            .len(),
        4
    );
    assert_eq!(harness.ledger().waiting.rate, 16);
    // A look is useful once half a bucket is there again.
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_millis(250))
    );
    let mut planned = 4;
    let start = harness.now();
    while planned < 20 {
        let pause = harness.wants_look_within().unwrap();
        planned += harness
            .quiet_turn(pause, ActionOutcome::Tried)
            .actions
            .len();
    }
    assert_eq!(harness.now() - start, Duration::from_secs(2));
}

#[test]
fn a_clock_that_stands_still_settles_nothing() {
    let mut harness = Harness::new(resident(pages(10_000)), FakeKernel::uniform(1, 4, 450));
    for _ in 0..10 {
        assert_eq!(
            growths(&harness.quiet_turn(Duration::ZERO, ActionOutcome::Tried)),
            []
        );
    }
}

#[test]
fn an_observer_never_plans() {
    let mut policy = Scheme::default().policy();
    let snapshot = FakeKernel::uniform(2, 5, 512).look(LOOP_INTERVAL);
    assert_eq!(policy.decide(&snapshot), Plan::default());
    assert_eq!(policy.wants_look_within(), None);
    assert_eq!(policy.ledger(), &Ledger::default());
}

fn growths(plan: &Plan) -> Vec<u64> {
    plan.actions
        .iter()
        .map(|action| match action {
            superhue_model::Action::Collapse { growth, .. } => growth.0,
            superhue_model::Action::Split { .. } => panic!("nobody asked for a split"),
        })
        .collect()
}
