//! Snapshots that break every promise; the plans still keep theirs.

use std::time::Duration;

use proptest::prelude::*;
use superhue_model::{
    ByteCount, PageCount, ProcessHeat, ProcessId, ProcessView, Region, RegionHeat, RegionView,
    Snapshot, VirtAddr, VirtRange, Vma, VmaKind,
};

use crate::harness::{ActionOutcome, Harness, fate, subject};
use crate::kernel::FakeKernel;

/// Addresses that often collide: near zero, and near the end of what can be represented.
fn address() -> impl Strategy<Value = u64> {
    prop_oneof![
        8 => (0u64..40).prop_map(|half| half << 20),
        2 => 0u64..40 << 20,
        1 => (0u64..16).prop_map(|half| u64::MAX - (half << 20)),
    ]
}

fn vma() -> impl Strategy<Value = Vma> {
    (address(), address(), any::<bool>(), any::<bool>()).prop_map(|(a, b, heap, writable)| Vma {
        range: VirtRange::new(VirtAddr(a.min(b)), VirtAddr(a.max(b))).unwrap(),
        kind: if heap {
            VmaKind::Heap
        } else {
            VmaKind::Anonymous
        },
        writable,
    })
}

fn region() -> impl Strategy<Value = RegionView> {
    let resident = prop_oneof![
        3 => Just(512u64),
        3 => 380u64..512,
        1 => 0u64..2,
        1 => 512u64..600,
        1 => Just(u64::MAX),
    ];
    (address(), resident, any::<Option<bool>>()).prop_map(|(address, resident, huge)| RegionView {
        region: Region::containing(VirtAddr(address)),
        resident: PageCount(resident),
        huge,
    })
}

/// Makes heat in any order, of regions that may not be there, with rates that are not numbers.
fn heat() -> impl Strategy<Value = ProcessHeat> {
    let number = || prop_oneof![4 => 0u64..600, 1 => Just(u64::MAX)];
    let rate = prop_oneof![
        4 => 0f32..600.0,
        4 => 0f32..1.0,
        1 => Just(f32::NAN),
        1 => Just(f32::INFINITY),
        1 => Just(-1f32),
    ];
    let time = || {
        prop_oneof![
            4 => (0u64..100_000).prop_map(Duration::from_millis),
            1 => Just(Duration::MAX),
        ]
    };
    let active = prop::option::of(number());
    let region = (address(), active, rate, time(), any::<bool>()).prop_map(
        |(address, active, rate, idle, is_range)| RegionHeat {
            region: Region::containing(VirtAddr(address)),
            active: active.map(PageCount),
            is_range,
            rate,
            per_second: rate * 50.0,
            idle,
        },
    );
    let regions = prop::collection::vec(region, 0..30);
    (number(), time(), regions, any::<bool>()).prop_map(
        |(samples, watched, mut regions, in_order)| {
            if in_order {
                regions.sort_by_key(|heat| heat.region);
            }
            ProcessHeat {
                samples,
                watched,
                regions,
            }
        },
    )
}

fn process() -> impl Strategy<Value = ProcessView> {
    (
        1u32..4,
        prop::option::of(any::<u64>()),
        prop::collection::vec(vma(), 0..5),
        prop::collection::vec(region(), 0..30),
        (any::<bool>(), prop::option::of(0u64..200_000)),
        prop::option::weighted(0.8, heat()),
    )
        .prop_map(
            |(pid, anonymous, mut vmas, regions, (in_order, looked), heat)| {
                if in_order {
                    vmas.sort_by_key(|vma| vma.range.start);
                }
                ProcessView {
                    id: ProcessId {
                        pid,
                        start_ticks: 1,
                    },
                    rss: None,
                    rss_anon: anonymous.map(ByteCount),
                    pss_anon: None,
                    looked: looked.map(Duration::from_millis),
                    vmas,
                    regions,
                    torn: Vec::new(),
                    held: None,
                    fills: false,
                    heat,
                }
            },
        )
}

fn snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    let at = prop_oneof![
        20 => (0u64..200_000).prop_map(Duration::from_millis),
        1 => Just(Duration::MAX),
    ];
    let snapshot =
        (at, prop::collection::vec(process(), 0..5)).prop_map(|(at, processes)| Snapshot {
            at,
            processes,
            objects: Vec::new(),
        });
    prop::collection::vec(snapshot, 1..12)
}

proptest! {
    #[test]
    fn nonsense_in_does_not_mean_nonsense_out(
        subject in subject(),
        snapshots in snapshots(),
        fates in prop::collection::vec(fate(), 1..6),
        zero in prop_oneof![4 => 0u64..600, 1 => Just(u64::MAX)].prop_map(PageCount),
    ) {
        let mut policy = subject.policy();
        for snapshot in &snapshots {
            let plan = policy.decide(snapshot);
            let ledger = policy.ledger();
            prop_assert!(ledger.charged <= ledger.peak_charged);
            let questions = policy.wants_zeroes();
            prop_assert!(questions.len() <= 64);
            for (process, region) in questions {
                policy.learn_zeroes(process, region, zero);
            }
            // The policy did not ask about these.
            for view in &snapshot.processes {
                for region in &view.regions {
                    policy.learn_zeroes(view.id, region.region, zero);
                }
            }
            for (index, action) in plan.actions.iter().enumerate() {
                let place = (action.owner().process().unwrap(), action.region());
                prop_assert!(plan.actions[..index]
                    .iter()
                    .all(|other| (other.owner().process().unwrap(), other.region()) != place));
                let whole = action.region().range();
                prop_assert!(snapshot
                    .processes
                    .iter()
                    .filter(|view| view.id == action.owner().process().unwrap())
                    .flat_map(|view| &view.vmas)
                    .any(|vma| vma.is_promotable() && vma.range.contains(&whole)));
            }
            let mut harness = Harness::new(subject.clone(), FakeKernel::new(true));
            let outcome = harness.outcome(&plan, &fates);
            policy.learn(snapshot.at, &outcome);
            // Repeats the whole outcome: the policy must not count a result twice.
            let once = policy.ledger().clone();
            policy.learn(snapshot.at, &outcome);
            prop_assert_eq!(policy.ledger().in_flight, once.in_flight);
            prop_assert_eq!(&policy.ledger().collapses, &once.collapses);
            prop_assert_eq!(&policy.ledger().splits, &once.splits);
            prop_assert!(policy.wants_look_within().is_none_or(|wait| wait < Duration::MAX));
        }
    }

    /// Outcomes of plans that were never made are ignored.
    #[test]
    fn strange_outcomes_are_ignored(
        subject in subject(),
        snapshot in snapshots(),
        fates in prop::collection::vec(fate(), 1..6),
    ) {
        let mut other = Harness::new(subject.clone(), FakeKernel::uniform(2, 3, 512));
        let plan = other.decide();
        let mut policy = subject.policy();
        for snapshot in &snapshot {
            policy.decide(snapshot);
            let before = policy.ledger().clone();
            policy.learn(snapshot.at, &other.outcome(&plan, &fates));
            prop_assert_eq!(policy.ledger(), &before);
        }
    }
}

#[test]
fn regions_outside_of_their_vma_are_left_alone() {
    let mut world = FakeKernel::uniform(1, 4, 512).look(Duration::ZERO);
    let process = &mut world.processes[0];
    // The VMA is one page short at either end.
    process.vmas[0].range.start.0 += 4096;
    process.vmas[0].range.end.0 -= 4096;
    let subject = superhue_policy::Scheme::always();
    let mut harness = Harness::new(subject, FakeKernel::new(true));
    let plan = harness.decide_on(&world);
    assert_eq!(plan.actions.len(), 2);
    harness.act(&plan, &[ActionOutcome::Lost]);
}
