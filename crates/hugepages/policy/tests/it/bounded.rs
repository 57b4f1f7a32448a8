//! A watch that lasts for days must not grow.

use std::time::Duration;

use superhue_model::{ByteCount, Errno, SkipReason, VmaKind};
use superhue_policy::Scheme;

use crate::harness::{ActionOutcome, Harness, LoopStep, cold_after};
use crate::kernel::{Event, FakeKernel};

/// A cheap sequence of numbers that looks random and is the same every time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

fn long_watch(subject: Scheme) {
    let fates = [
        ActionOutcome::Tried,
        ActionOutcome::Tried,
        ActionOutcome::Fails(Errno::EAGAIN),
        ActionOutcome::Fails(Errno::ENOMEM),
        ActionOutcome::Fails(Errno::EINVAL),
        ActionOutcome::Fails(Errno::EPERM),
        ActionOutcome::Fails(Errno::ESRCH),
        ActionOutcome::Skipped(SkipReason::NoHeadroom),
        ActionOutcome::Skipped(SkipReason::NoRoomToGrow),
        ActionOutcome::Skipped(SkipReason::Unmapped),
        ActionOutcome::TriedUnheard,
        ActionOutcome::Lost,
        ActionOutcome::TriedLate,
    ];
    let mut numbers = Numbers(1);
    let mut harness = Harness::new(subject, FakeKernel::new(true));
    let mut spawned = 0;
    for turn in 0..20_000 {
        let mut events = Vec::new();
        if numbers.below(10) == 0 {
            events.push(Event::Spawn);
            spawned += 1;
        }
        if numbers.below(10) == 0 || spawned - turn / 10 > 6 {
            let process = numbers.below(6);
            events.push(Event::Exit { process });
        }
        for _ in 0..3 {
            let process = numbers.below(6);
            let slot = u8::try_from(numbers.below(3)).unwrap();
            events.push(match numbers.below(6) {
                0 => Event::Unmap { process, slot },
                1 => Event::Map {
                    process,
                    slot,
                    kind: VmaKind::Heap,
                    writable: true,
                    head_pages: 3,
                    pages: 3000,
                },
                2 => Event::Access {
                    process,
                    slot,
                    region: numbers.below(6),
                    from: 0,
                    count: numbers.below(512) as u64,
                    percent: numbers.below(101) as u64,
                },
                3 => Event::Sample,
                _ => Event::Touch {
                    process,
                    slot,
                    region: numbers.below(6),
                    from: 0,
                    count: 100 + numbers.below(412) as u64,
                },
            });
        }
        // The time to check the harness's own log grows quadratically.
        harness.plans.clear();
        harness.turn(&LoopStep {
            events,
            pause: 50 + i64::try_from(numbers.below(100)).unwrap(),
            resumptions: 1,
            fates: vec![fates[numbers.below(fates.len())]],
        });
        let tracked = harness.ledger().tracked;
        assert_eq!(tracked.processes, harness.world.processes() as u64);
    }
    let ledger = harness.ledger();
    let collapses = &ledger.collapses;
    assert!(collapses.done > 50, "{ledger:?}");
    assert!(collapses.failed.values().sum::<u64>() > 50, "{ledger:?}");

    // Once every process has ended, the policy has no history and no charge.
    for process in (0..harness.world.processes()).rev() {
        harness.world.happen(&Event::Exit { process });
    }
    harness.quiet_turn(Duration::from_secs(1), ActionOutcome::Tried);
    let ledger = harness.ledger();
    assert_eq!((ledger.tracked.processes, ledger.tracked.regions), (0, 0));
    assert_eq!((ledger.charged, ledger.in_flight), (ByteCount(0), 0));
    assert_eq!(harness.wants_look_within(), None);
}

#[test]
fn a_long_watch_by_resident_does_not_grow() {
    long_watch(Scheme::resident());
}

#[test]
fn a_long_watch_by_always_does_not_grow() {
    long_watch(Scheme::always());
}

#[test]
fn a_long_watch_by_hot_does_not_grow() {
    long_watch(cold_after(Duration::from_secs(3), Scheme::hot()));
}

#[test]
fn a_program_at_rest_costs_no_memory() {
    let subject = Scheme::resident();
    let mut harness = Harness::new(subject, FakeKernel::uniform(3, 6, 100));
    for _ in 0..10 {
        harness.quiet_turn(Duration::from_millis(100), ActionOutcome::Tried);
        assert_eq!(harness.ledger().tracked.regions, 0);
    }
}
