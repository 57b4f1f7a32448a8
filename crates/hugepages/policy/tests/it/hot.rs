//! Plans of `hot` in small worlds whose right plan is obvious.

use std::time::Duration;

use superhue_model::{Action, ByteCount, Errno, PageCount, Plan, Share, SkipReason};
use superhue_policy::{Active, Pattern, Scheme};

use crate::harness::{ActionOutcome, Harness, budgeted, cold_after, listed_by, rated};
use crate::kernel::{Event, FakeKernel};

const SAMPLE: Duration = Duration::from_millis(50);

fn pages(n: u64) -> Share {
    Share::Bytes(PageCount(n).bytes())
}

fn hot(budget: Share) -> Scheme {
    cold_after(Duration::from_secs(3), budgeted(budget, Scheme::hot()))
}

/// Lets the program access the first `count` pages of a region of slot 0.
fn access(world: &mut FakeKernel, process: usize, region: usize, count: u64, percent: u64) {
    world.happen(&Event::Access {
        process,
        slot: 0,
        region,
        from: 0,
        count,
        percent,
    });
}

/// Takes a sample, and returns the plan decided on it.
fn sample(harness: &mut Harness, fate: ActionOutcome) -> Plan {
    harness.pass_time(SAMPLE);
    harness.world.happen(&Event::Sample);
    let plan = harness.decide();
    harness.act(&plan, &[fate]);
    plan
}

fn growths(actions: &[Action]) -> Vec<u64> {
    let growth = |action: &Action| match action {
        Action::Collapse { growth, .. } => growth.0,
        Action::Split { .. } => panic!("nobody asked for a split"),
    };
    actions.iter().map(growth).collect()
}

fn splits(actions: &[Action]) -> usize {
    let is_split = |action: &&Action| matches!(action, Action::Split { .. });
    actions.iter().filter(is_split).count()
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Makes one process with a huge page of ours, of which 200 pages were accessed until now.
fn promoted() -> Harness {
    let mut world = FakeKernel::uniform(1, 1, 200);
    access(&mut world, 0, 0, 200, 100);
    let mut harness = Harness::new(hot(pages(1000)), world);
    assert_eq!(growths(&harness.watch(SAMPLE, seconds(1))), [312]);
    access(&mut harness.world, 0, 0, 200, 0);
    harness
}

#[test]
fn auto_needs_no_evidence_for_what_is_full_and_waits_until_it_is_filled() {
    let mut harness = Harness::new(Scheme::auto(), FakeKernel::uniform(1, 4, 512));
    harness.fills = true;
    let soon = Duration::from_millis(50);
    for _ in 0..20 {
        assert_eq!(harness.quiet_turn(soon, ActionOutcome::Tried).actions, []);
        assert_eq!(harness.wants_look_within(), Some(soon));
    }
    assert!(harness.ledger().waiting.settling >= 3);
    harness.fills = false;
    let plan = harness.quiet_turn(soon, ActionOutcome::Tried);
    assert_eq!(growths(&plan.actions), [0, 0, 0, 0], "no sample was taken");
}

#[test]
fn auto_does_not_wait_for_ever_for_a_program_that_never_stops_filling() {
    let mut harness = Harness::new(Scheme::auto(), FakeKernel::uniform(1, 2, 512));
    harness.fills = true;
    let plans = (0..40).map(|_| {
        harness
            .quiet_turn(seconds(1), ActionOutcome::Tried)
            .actions
            .len()
    });
    assert_eq!(plans.sum::<usize>(), 2);
}

#[test]
fn auto_asks_for_evidence_where_memory_is_added() {
    let mut world = FakeKernel::uniform(1, 1, 200);
    access(&mut world, 0, 0, 200, 100);
    let mut harness = Harness::new(budgeted(pages(1000), Scheme::auto()), world);
    assert_eq!(
        harness.quiet_turn(seconds(1), ActionOutcome::Tried).actions,
        []
    );
    assert_eq!(
        growths(&sample(&mut harness, ActionOutcome::Tried).actions),
        []
    );
    assert_eq!(
        growths(&sample(&mut harness, ActionOutcome::Tried).actions),
        [312]
    );
}

#[test]
fn a_quarter_of_active_pages_is_enough_after_two_samples() {
    let mut world = FakeKernel::uniform(1, 4, 300);
    access(&mut world, 0, 0, 127, 100);
    access(&mut world, 0, 1, 128, 100);
    access(&mut world, 0, 2, 300, 100);
    let mut harness = Harness::new(hot(pages(1000)), world);
    assert_eq!(sample(&mut harness, ActionOutcome::Tried).actions, []);
    assert_eq!(harness.ledger().waiting.settling, 2);
    assert_eq!(
        harness.wants_look_within(),
        Some(Duration::from_millis(100))
    );
    // Looking again is no second sample.
    assert_eq!(
        harness.quiet_turn(seconds(1), ActionOutcome::Tried).actions,
        []
    );
    assert_eq!(harness.wants_look_within(), None);
    assert_eq!(
        growths(&sample(&mut harness, ActionOutcome::Tried).actions),
        [212, 212]
    );
    assert_eq!(harness.watch(SAMPLE, seconds(1)), []);
}

#[test]
fn a_full_region_needs_one_sample() {
    let mut world = FakeKernel::uniform(1, 3, 512);
    access(&mut world, 0, 1, 128, 100);
    access(&mut world, 0, 2, 127, 100);
    let mut harness = Harness::new(hot(pages(0)), world);
    assert_eq!(
        growths(&sample(&mut harness, ActionOutcome::Tried).actions),
        [0]
    );
    assert_eq!(harness.watch(SAMPLE, seconds(1)), []);
}

/// Returns the growth of collapses while each sample shows 26 other pages of region 0.
fn scattered(mut harness: Harness) -> Vec<u64> {
    let mut found = Vec::new();
    for turn in 0..20 {
        let from = turn * 26 % 480;
        harness.world.happen(&Event::Access {
            process: 0,
            slot: 0,
            region: 0,
            from,
            count: 26,
            percent: 100,
        });
        found.extend(growths(&sample(&mut harness, ActionOutcome::Tried).actions));
    }
    found
}

#[test]
fn scattered_accesses_are_enough_where_nothing_is_added() {
    let mut world = FakeKernel::uniform(1, 4, 512);
    // The same number of pages, but always the same ones.
    access(&mut world, 0, 1, 26, 100);
    assert_eq!(scattered(Harness::new(hot(pages(10_000)), world)), [0]);
    // If a collapse would add a page, that is not enough.
    let world = FakeKernel::uniform(1, 4, 511);
    assert_eq!(scattered(Harness::new(hot(pages(10_000)), world)), []);
}

#[test]
fn nothing_is_done_without_heat() {
    let mut harness = Harness::new(hot(pages(1000)), FakeKernel::uniform(2, 4, 512));
    for _ in 0..10 {
        assert_eq!(harness.quiet_turn(SAMPLE, ActionOutcome::Tried).actions, []);
        assert_eq!(harness.wants_look_within(), None);
        assert_eq!(harness.ledger().tracked.regions, 0);
    }
}

#[test]
fn the_most_heat_for_its_price_goes_first() {
    let mut world = FakeKernel::uniform(1, 5, 256);
    for (region, resident, active) in [
        (0, 256, 200),
        (1, 480, 200),
        (2, 512, 130),
        (3, 500, 500),
        (4, 512, 400),
    ] {
        world.touch(0, region, 0, resident);
        access(&mut world, 0, region, active, 100);
    }
    let subject = // Two at once.
    rated(Some(ByteCount(8 << 20)), budgeted(pages(1000), Scheme::hot()));
    let mut harness = Harness::new(subject, world);
    let regions: Vec<_> = harness.world.look(Duration::ZERO).processes[0]
        .regions
        .clone();
    let mut order = Vec::new();
    for action in harness.watch(SAMPLE, seconds(5)) {
        order.push(
            regions
                .iter()
                .position(|view| view.region == action.region()),
        );
    }
    // First the regions that cost nothing, then 500/12, 200/32, 200/256.
    assert_eq!(order, [4, 2, 3, 1, 0].map(Some));
}

#[test]
fn what_does_not_fit_keeps_no_place_from_what_does() {
    let mut world = FakeKernel::uniform(1, 3, 450);
    for (region, resident, active) in [(0, 200, 200), (1, 450, 130), (2, 440, 128)] {
        world.happen(&Event::Purge {
            process: 0,
            slot: 0,
            region,
            from: 0,
            count: 512,
        });
        world.touch(0, region, 0, resident);
        access(&mut world, 0, region, active, 100);
    }
    // The last region is worth more than the first.
    let mut harness = Harness::new(hot(pages(100)), world);
    assert_eq!(growths(&harness.watch(SAMPLE, seconds(1))), [62]);
    assert_eq!(harness.ledger().waiting.budget, 2);
    assert_eq!(harness.ledger().charged, PageCount(62).bytes());
}

#[test]
fn few_hot_pages_are_a_case_for_compaction() {
    let mut world = FakeKernel::uniform(1, 4, 100);
    access(&mut world, 0, 0, 7, 100);
    access(&mut world, 0, 1, 100, 100);
    access(&mut world, 0, 2, 100, 2);
    let mut harness = Harness::new(hot(pages(10_000)), world);
    assert_eq!(harness.watch(SAMPLE, seconds(3)), []);
    let compaction = harness.ledger().compaction;
    assert_eq!((compaction.regions, compaction.active.0), (2, 107));
    assert_eq!(harness.ledger().tracked.regions, 0);
    // As of the last look, no region is hot any more.
    access(&mut harness.world, 0, 0, 7, 0);
    access(&mut harness.world, 0, 1, 100, 0);
    harness.watch(SAMPLE, seconds(3));
    assert_eq!(harness.ledger().compaction.regions, 0);
}

#[test]
fn stale_heat_changes_nothing() {
    let mut harness = promoted();
    // Tracking has stopped, and no huge page is cold for lack of watching.
    for _ in 0..100 {
        assert_eq!(
            harness
                .quiet_turn(seconds(60), ActionOutcome::Tried)
                .actions,
            []
        );
        assert_eq!(harness.asked, 0);
        assert_eq!(harness.wants_look_within(), None);
    }
    assert_eq!(harness.ledger().charged, PageCount(312).bytes());
}

#[test]
fn a_cold_huge_page_of_zeroes_is_split_and_its_charge_released() {
    let mut harness = promoted();
    let before = harness.watch(SAMPLE, Duration::from_millis(2_900));
    assert_eq!(before, []);
    let actions = harness.watch(SAMPLE, seconds(3));
    assert_eq!(splits(&actions), 1);
    assert_eq!(harness.world.usage(0), (200, 0));
    let ledger = harness.ledger();
    assert_eq!((ledger.splits.done, ledger.returned), (1, PageCount(312)));
    assert_eq!(ledger.charged, ByteCount(0));
    assert_eq!((ledger.planned, ledger.collapses.done), (2, 1));
    assert_eq!(harness.watch(SAMPLE, seconds(10)), []);
}

#[test]
fn an_empty_huge_page_that_goes_altogether_is_counted() {
    let mut world = FakeKernel::uniform(1, 1, 0);
    world.happen(&Event::FaultHuge {
        process: 0,
        slot: 0,
        region: 0,
    });
    // One page of it is in use, and is freed at last.
    let mut harness = Harness::new(hot(pages(0)), world);
    while splits(&sample(&mut harness, ActionOutcome::Tried).actions) == 0 {}
    harness.world.happen(&Event::Purge {
        process: 0,
        slot: 0,
        region: 0,
        from: 0,
        count: 512,
    });
    harness.quiet_turn(SAMPLE, ActionOutcome::Tried);
    let ledger = harness.ledger();
    assert_eq!((ledger.splits.done, ledger.returned), (1, PageCount(512)));
}

#[test]
fn what_is_not_mostly_zeroes_is_kept_and_not_asked_about_again() {
    let mut world = FakeKernel::uniform(1, 1, 260);
    access(&mut world, 0, 0, 260, 100);
    let mut harness = Harness::new(hot(pages(1000)), world);
    harness.watch(SAMPLE, seconds(1));
    access(&mut harness.world, 0, 0, 260, 0);
    for _ in 0..1000 {
        assert_eq!(
            splits(&sample(&mut harness, ActionOutcome::Tried).actions),
            0
        );
    }
    assert_eq!(harness.asked, 1);
}

#[test]
fn without_an_answer_nothing_is_split_and_the_question_rests() {
    let mut harness = promoted();
    harness.answers = false;
    let mut asked = Vec::new();
    for _ in 0..150 {
        harness.pass_time(seconds(1));
        harness.world.happen(&Event::Sample);
        let plan = harness.decide();
        assert_eq!(plan.actions, []);
        harness.act(&plan, &[ActionOutcome::Tried]);
        if harness.asked > asked.len() {
            asked.push(harness.now());
        }
    }
    assert_eq!(asked.len(), 3);
    assert!(asked[1] - asked[0] >= seconds(60));
    assert!(asked[2] - asked[1] >= seconds(60));
}

#[test]
fn the_program_itself_keeps_its_huge_page_by_using_it() {
    let mut harness = promoted();
    // Once in two seconds.
    for _ in 0..60 {
        access(&mut harness.world, 0, 0, 1, 100);
        assert_eq!(sample(&mut harness, ActionOutcome::Tried).actions, []);
        access(&mut harness.world, 0, 0, 1, 0);
        assert_eq!(harness.watch(SAMPLE, seconds(2)), []);
    }
    assert_eq!(harness.world.usage(0), (512, 1));
}

#[test]
fn splitting_can_be_switched_off() {
    let mut world = FakeKernel::uniform(1, 1, 200);
    access(&mut world, 0, 0, 200, 100);
    let subject = budgeted(
        pages(1000),
        Scheme {
            pattern: Pattern::Active(Active {
                cold_after: seconds(1),
                split: None,
                ..Active::default()
            }),
            ..Scheme::hot()
        },
    );
    let mut harness = Harness::new(subject, world);
    harness.watch(SAMPLE, seconds(1));
    access(&mut harness.world, 0, 0, 200, 0);
    for _ in 0..200 {
        assert_eq!(sample(&mut harness, ActionOutcome::Tried).actions, []);
        assert_eq!(harness.asked, 0);
    }
}

#[test]
fn where_splitting_is_not_allowed_it_is_tried_once() {
    for fate in [
        ActionOutcome::Fails(Errno::EPERM),
        ActionOutcome::Fails(Errno::ENOSYS),
    ] {
        let mut harness = promoted();
        let mut tried = 0;
        for _ in 0..400 {
            tried += sample(&mut harness, fate).actions.len();
        }
        assert_eq!(tried, 1, "{fate:?}");
        // Promotion continues.
        harness.world.happen(&Event::Map {
            process: 0,
            slot: 1,
            kind: superhue_model::VmaKind::Heap,
            writable: true,
            head_pages: 0,
            pages: 512,
        });
        harness.world.happen(&Event::Access {
            process: 0,
            slot: 1,
            region: 0,
            from: 0,
            count: 512,
            percent: 100,
        });
        assert_eq!(growths(&harness.watch(SAMPLE, seconds(1))), [0]);
        let ledger = harness.ledger();
        assert_eq!(ledger.given_up, Default::default());
        assert_eq!((ledger.splits.known(), ledger.splits.done), (1, 0));
    }
}

#[test]
fn where_splits_free_nothing_they_end() {
    for (keeps_zeroes, expected) in [(false, 60..=60), (true, 16..=48)] {
        let mut world = FakeKernel::uniform(1, 60, 0);
        world.keeps_zeroes = keeps_zeroes;
        for region in 0..60 {
            world.happen(&Event::FaultHuge {
                process: 0,
                slot: 0,
                region,
            });
        }
        let mut harness = Harness::new(hot(pages(0)), world);
        let split = splits(&harness.watch(SAMPLE, seconds(60)));
        assert!(expected.contains(&split), "{keeps_zeroes}: {split}");
        let asked = harness.asked;
        assert_eq!(splits(&harness.watch(SAMPLE, seconds(60))), 0);
        assert_eq!(harness.asked, asked, "{keeps_zeroes}");
    }
}

#[test]
fn a_split_that_fails_waits() {
    for errno in [Errno::EINVAL, Errno::EBUSY, Errno::ENOMEM] {
        let mut harness = promoted();
        let mut attempts = Vec::new();
        while attempts.len() < 5 {
            if !sample(&mut harness, ActionOutcome::Fails(errno))
                .actions
                .is_empty()
            {
                attempts.push(harness.now());
            }
        }
        for (pair, wait) in attempts.windows(2).zip([100, 200, 400, 800]) {
            assert!(pair[1] - pair[0] >= Duration::from_millis(wait), "{errno}");
        }
        // Other regions do not wait.
        access(&mut harness.world, 0, 0, 1, 0);
        assert_eq!(splits(&harness.watch(SAMPLE, seconds(3))), 1);
    }
}

#[test]
fn a_dry_run_lists_a_split_once() {
    let mut harness = promoted();
    let mut listed = 0;
    for _ in 0..400 {
        let dry = ActionOutcome::Skipped(SkipReason::DryRun);
        listed += sample(&mut harness, dry).actions.len();
    }
    assert_eq!((listed, listed_by(harness.ledger())), (1, 1));
}

#[test]
fn what_was_split_comes_back_ever_later_and_less_easily() {
    let mut harness = promoted();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let mut actions = Vec::new();
        while splits(&actions) == 0 {
            actions = sample(&mut harness, ActionOutcome::Tried).actions;
        }
        let split = harness.now();
        access(&mut harness.world, 0, 0, 500, 100);
        // The program uses more pages now.
        while harness.world.usage(0).1 == 0 {
            sample(&mut harness, ActionOutcome::Tried);
        }
        waits.push((harness.now() - split).as_secs());
        // Then it goes back to using few.
        harness.world.happen(&Event::Purge {
            process: 0,
            slot: 0,
            region: 0,
            from: 100,
            count: 412,
        });
        harness.world.happen(&Event::FaultHuge {
            process: 0,
            slot: 0,
            region: 0,
        });
        access(&mut harness.world, 0, 0, 100, 0);
        if harness.world.usage(0).1 == 0 {
            break;
        }
    }
    assert!(waits[0] >= 30, "{waits:?}");
    // It needs 192 active pages now.
    access(&mut harness.world, 0, 0, 150, 100);
    assert_eq!(harness.watch(SAMPLE, seconds(30)), []);
    access(&mut harness.world, 0, 0, 192, 100);
    assert_eq!(growths(&harness.watch(SAMPLE, seconds(5))), [320]);
}

#[test]
fn ranges_are_believed_only_where_little_is_at_stake() {
    let mut world = FakeKernel::uniform(1, 4, 512);
    for region in 0..4 {
        access(&mut world, 0, region, 512, 100);
    }
    for (region, resident) in [(1, 383), (2, 384), (3, 400)] {
        world.happen(&Event::Purge {
            process: 0,
            slot: 0,
            region,
            from: resident,
            count: 512 - resident,
        });
    }
    let mut harness = Harness::new(hot(pages(10_000)), world);
    harness.by_range = Some(vec![0.25, 1.0, 0.34, 0.33]);
    assert_eq!(sample(&mut harness, ActionOutcome::Tried).actions, []);
    // 0.25 * 512 and 0.34 * 384, and 0.33 * 400.
    assert_eq!(
        growths(&sample(&mut harness, ActionOutcome::Tried).actions),
        [0, 112, 128]
    );
    harness.by_range = Some(vec![0.24, 1.0, 0.3, 0.3]);
    assert_eq!(harness.watch(SAMPLE, seconds(1)), []);
}
