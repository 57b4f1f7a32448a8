//! Several processes under one budget, and one rate.

use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{Action, ByteCount, PageCount, Share};
use superhue_policy::{Active, Pattern, Scheme};

use crate::harness::{Harness, budgeted, cold_after, rated};
use crate::kernel::{Event, FakeKernel};

const SAMPLE: Duration = Duration::from_millis(50);
const REGIONS: u64 = 8;

fn subject(budget_pages: u64) -> Scheme {
    budgeted(Share::Bytes(PageCount(budget_pages).bytes()), Scheme::hot())
}

/// Lets a process access `count` pages of each of its regions from `first` on.
fn access(harness: &mut Harness, process: usize, first: u64, count: u64, percent: u64) {
    for region in first..REGIONS {
        harness.world.happen(&Event::Access {
            process,
            slot: 0,
            region: usize::try_from(region).unwrap(),
            from: 0,
            count,
            percent,
        });
    }
}

fn splits(actions: &[Action]) -> usize {
    let is_split = |action: &&Action| matches!(action, Action::Split { .. });
    actions.iter().filter(is_split).count()
}

/// Makes two processes with room for the huge pages of one; the first process has come first and has them all.
fn staggered() -> Harness {
    let mut harness = Harness::new(subject(REGIONS * 312), FakeKernel::uniform(2, REGIONS, 200));
    access(&mut harness, 0, 0, 150, 100);
    harness.watch(SAMPLE, Duration::from_secs(1));
    assert_eq!(harness.world.usage(0), (REGIONS * 512, 8));
    assert_eq!(harness.world.usage(1), (REGIONS * 200, 0));
    harness
}

#[test]
fn who_comes_late_gets_what_who_was_first_no_longer_uses() {
    let mut harness = staggered();
    // Three of its eight huge pages stay in use.
    access(&mut harness, 0, 3, 150, 0);
    access(&mut harness, 1, 0, 200, 100);
    let start = harness.now();
    while harness.world.usage(1).1 < 5 {
        harness.watch(SAMPLE, SAMPLE);
        assert!(
            harness.now() - start < Duration::from_secs(15),
            "{:?}",
            harness.ledger()
        );
    }
    // Not more: huge pages in use stay.
    harness.watch(SAMPLE, Duration::from_secs(60));
    assert_eq!(harness.world.usage(0), (3 * 512 + 5 * 200, 3));
    assert_eq!(harness.world.usage(1), (5 * 512 + 3 * 200, 5));
    let ledger = harness.ledger();
    assert_eq!(
        (ledger.splits.done, ledger.returned),
        (5, PageCount(5 * 312))
    );
    assert_eq!(ledger.waiting.budget, 3);
}

#[test]
fn what_is_seldom_used_gives_way_to_what_is_always() {
    let mut harness = staggered();
    access(&mut harness, 0, 0, 150, 5);
    access(&mut harness, 1, 0, 200, 100);
    // Most of them at once; the policy repeats a question without an answer after a minute.
    harness.watch(SAMPLE, Duration::from_secs(20));
    assert!(harness.world.usage(1).1 >= 4);
    harness.watch(SAMPLE, Duration::from_secs(180));
    assert_eq!(harness.world.usage(1).1, 8);
    assert_eq!(harness.world.usage(0), (REGIONS * 200, 0));
    // The first process has no chance to take memory back.
    assert_eq!(harness.watch(SAMPLE, Duration::from_secs(300)), []);
}

#[test]
fn what_is_in_use_gives_way_only_to_what_is_far_hotter() {
    for (count, gives_way) in [(8, true), (40, false)] {
        let subject = budgeted(
            Share::Bytes(PageCount(REGIONS * 312).bytes()),
            Scheme {
                pattern: Pattern::Active(Active {
                    min_active: Share::Bytes(PageCount(8).bytes()),
                    ..Active::default()
                }),
                ..Scheme::hot()
            },
        );
        let mut harness = Harness::new(subject, FakeKernel::uniform(2, REGIONS, 200));
        access(&mut harness, 0, 0, count, 100);
        harness.watch(SAMPLE, Duration::from_secs(1));
        assert_eq!(harness.world.usage(0).1, 8);
        access(&mut harness, 1, 0, 200, 100);
        harness.watch(SAMPLE, Duration::from_secs(180));
        let expected = if gives_way { (0, 8) } else { (8, 0) };
        let usage = [0, 1].map(|process| harness.world.usage(process).1);
        assert_eq!((usage[0], usage[1]), expected, "{count}");
        // After that no process takes memory back.
        assert_eq!(harness.watch(SAMPLE, Duration::from_secs(300)), []);
    }
}

#[test]
fn what_would_give_back_too_little_keeps_its_huge_page() {
    let mut harness = staggered();
    // It now uses nearly all of its memory, and is idle.
    for region in 0..8 {
        harness.world.touch(0, region, 0, 500);
    }
    access(&mut harness, 0, 0, 150, 2);
    access(&mut harness, 1, 0, 200, 100);
    // Together they could free 96 pages, but 312 are needed.
    assert_eq!(harness.watch(SAMPLE, Duration::from_secs(60)), []);
    assert_eq!(harness.world.usage(0).1, 8);
}

#[test]
fn equals_leave_each_other_alone() {
    let mut harness = staggered();
    access(&mut harness, 1, 0, 150, 100);
    assert_eq!(harness.watch(SAMPLE, Duration::from_secs(200)), []);
}

#[test]
fn equals_share_the_rate() {
    let subject = // One region in half a second.
        rated(Some(ByteCount(4 << 20)), budgeted(Share::BasisPoints(100_000), Scheme::hot()));
    let mut harness = Harness::new(subject, FakeKernel::uniform(3, REGIONS, 400));
    for process in 0..3 {
        // The last ones are a little hotter, but not by much.
        let count = 200 + 40 * u64::try_from(process).unwrap();
        access(&mut harness, process, 0, count, 100);
    }
    for _ in 0..8 {
        harness.watch(SAMPLE, Duration::from_millis(1500));
        let counts = [0, 1, 2].map(|process| harness.world.usage(process).1);
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most.unwrap() - least.unwrap() <= 2, "{counts:?}");
    }
    let counts = [0, 1, 2].map(|process| harness.world.usage(process).1);
    assert_eq!(counts, [8, 8, 8]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The accesses of two processes may be steady or noisy. As long as they do not change, no region changes state more than a few times.
    #[test]
    fn nothing_flaps(
        accesses in prop::collection::vec((0u64..=512, 0u64..=100), 2 * 8),
        resident in 100u64..=512,
        budget in 0u64..4000,
    ) {
        let subject = cold_after(Duration::from_secs(5), budgeted(Share::Bytes(PageCount(budget).bytes()), Scheme::hot()));
        let mut harness = Harness::new(subject, FakeKernel::uniform(2, REGIONS, resident));
        for (index, (count, percent)) in accesses.iter().enumerate() {
            harness.world.happen(&Event::Access {
                process: index / 8,
                slot: 0,
                region: index % 8,
                from: 0,
                count: *count,
                percent: *percent,
            });
        }
        let mut changes = std::collections::BTreeMap::new();
        // 300 s.
        for _ in 0..60 {
            for action in harness.watch(Duration::from_millis(250), Duration::from_secs(5)) {
                *changes.entry((action.owner().process().unwrap(), action.region())).or_insert(0) += 1;
            }
        }
        // Promoted; split after 5 s, 30 s of rest, again; 60 s; 120 s: four times at most.
        prop_assert!(changes.values().all(|&count| count <= 7), "{changes:?}");
        // By then each region rests for minutes; chance decides how many of the sixteen end their rest in the same half minute.
        let actions = harness.watch(Duration::from_millis(250), Duration::from_secs(30));
        let mut later = std::collections::BTreeSet::new();
        for action in actions.iter().filter(|action| matches!(action, Action::Split { .. })) {
            let is_first = later.insert((action.owner().process().unwrap(), action.region()));
            prop_assert!(is_first, "twice after five minutes: {action:?}");
        }
        prop_assert!(splits(&actions) <= 8, "{later:?} after five minutes");
    }
}
