//! Access of plans to processes: objections to an action, and the process through which a shared object is collapsed.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use superhue_act::{Actuator, KernelActuator};
use superhue_model::{
    Action, CollapseBound, Effect, Errno, ObjectId, PageCount, Plan, ProcessId, Region, SkipReason,
    VirtAddr,
};
use superhue_sys::busy::{self, BusyBoard};
use superhue_sys::scratch_child::ScratchChild;
use superhue_testing::shared;

/// The number of a region that another process maps, too.
const SHARED: u64 = 7;

/// The number of a region whose control group has no room.
const TIGHT: u64 = 8;

/// The number of a region of a shared object that no process maps wholly.
const UNMAPPED: u64 = 9;

/// Returns true if the kernel was called: it returns `ENOMEM` for a region that is not mapped, `EPERM` to a caller without the capability.
fn is_asked(effect: Effect) -> bool {
    matches!(effect, Effect::Failed { errno } if [Errno::ENOMEM, Errno::EPERM].contains(&errno))
}

fn region(number: u64) -> Region {
    Region::containing(VirtAddr(number << 21))
}

fn collapse(process: ProcessId, number: u64) -> Action {
    Action::Collapse {
        owner: process.into(),
        region: region(number),
        growth: PageCount(0),
    }
}

/// Mappers of a region of the object: a process that has ended, and `process`, 100 regions further up.
fn mappers(process: ProcessId, of: Region) -> Vec<(ProcessId, Region)> {
    let gone = ProcessId {
        pid: u32::MAX >> 1,
        start_ticks: 0,
    };
    let there = of.start().0 >> 21;
    match there {
        UNMAPPED => Vec::new(),
        _ => vec![(gone, of), (process, region(there + 100))],
    }
}

/// Effects of a plan for a child that maps none of the regions.
fn perform(plan: impl Fn(ProcessId) -> Vec<Action>) -> Vec<Effect> {
    perform_with_report(plan).0
}

/// Does the same; returns the regions of the collapses that were reported as failed, too.
fn perform_with_report(plan: impl Fn(ProcessId) -> Vec<Action>) -> (Vec<Effect>, Vec<Region>) {
    let _shared = shared();
    let child = ScratchChild::start().unwrap();
    let process = ProcessId {
        pid: child.pid(),
        start_ticks: 0,
    };
    let failed = Arc::new(Mutex::new(Vec::new()));
    let reported = Arc::clone(&failed);
    let mut actuator = KernelActuator::new(Box::new(|_| true))
        .with_failure_report(Box::new(move |target| {
            reported.lock().unwrap().push(target.region);
        }))
        .with_mappers(Box::new(move |_, region| mappers(process, region)))
        .with_objection(Box::new(|target| {
            (target.region == region(SHARED)).then_some(SkipReason::Shared)
        }))
        .with_objection(Box::new(|target| {
            assert!(target.region != region(SHARED), "one objection is enough");
            (target.region == region(TIGHT)).then_some(SkipReason::NoHeadroom)
        }));
    let actions = plan(process);
    let outcome = actuator.perform(&Plan::of(actions), &|| false);
    let effects = outcome.results.iter().map(|result| result.effect).collect();
    let failed = failed.lock().unwrap().clone();
    (effects, failed)
}

#[test]
fn each_failed_collapse_is_reported_for_each_process_that_was_tried() {
    let object = ObjectId {
        device: (0, 1),
        inode: 5,
    };
    let (_, failed) = perform_with_report(|process| {
        vec![
            collapse(process, 1),
            collapse(process, TIGHT),
            collapse(process, SHARED),
            Action::Split {
                owner: process.into(),
                region: region(2),
            },
            Action::Collapse {
                owner: object.into(),
                region: region(3),
                growth: PageCount(0),
            },
        ]
    });
    assert_eq!(failed, [region(1), region(3), region(103)]);
}

#[test]
fn what_speaks_against_a_collapse_is_the_reason_why_it_is_skipped() {
    let effects = perform(|process| {
        let mut actions: Vec<Action> = [1, TIGHT, SHARED, 2]
            .map(|number| collapse(process, number))
            .into();
        // A huge page that is shared, or of a group without room, may still be split.
        actions.push(Action::Split {
            owner: process.into(),
            region: region(TIGHT),
        });
        actions
    });
    let left = |reason| Effect::Skipped { reason };
    assert!(is_asked(effects[0]), "{effects:?}");
    assert_eq!(effects[1], left(SkipReason::NoHeadroom));
    assert_eq!(effects[2], left(SkipReason::Shared));
    assert!(is_asked(effects[3]) && is_asked(effects[4]), "{effects:?}");
}

#[test]
fn a_shared_object_is_collapsed_through_the_first_of_its_mappers_that_is_there() {
    let object = ObjectId {
        device: (0, 1),
        inode: 5,
    };
    let of_object = |number| Action::Collapse {
        owner: object.into(),
        region: region(number),
        growth: PageCount(0),
    };
    let split = Action::Split {
        owner: object.into(),
        region: region(1),
    };
    let effects = perform(|_| vec![of_object(1), of_object(UNMAPPED), of_object(2), split]);
    let refused = Effect::Failed {
        errno: Errno::EINVAL,
    };
    // The ended process is not the last one tried.
    assert!(is_asked(effects[0]) && is_asked(effects[2]), "{effects:?}");
    assert_eq!((effects[1], effects[3]), (refused, refused));
}

#[test]
fn who_is_told_to_stop_leaves_the_rest() {
    let _shared = shared();
    let child = ScratchChild::start().unwrap();
    let process = ProcessId {
        pid: child.pid(),
        start_ticks: 0,
    };
    let actions = [1, 2].map(|number| collapse(process, number)).into();
    let mut actuator = KernelActuator::new(Box::new(|_| true));
    let outcome = actuator.perform(&Plan::of(actions), &|| true);
    let cancelled = Effect::Skipped {
        reason: SkipReason::Cancelled,
    };
    let effects: Vec<Effect> = outcome.results.iter().map(|it| it.effect).collect();
    assert_eq!(effects, [cancelled; 2]);
}

/// Starts two children; returns their processes, too.
fn two_children() -> ([ScratchChild; 2], [ProcessId; 2]) {
    let children = [(); 2].map(|()| ScratchChild::start().unwrap());
    let processes = children.each_ref().map(|child| ProcessId {
        pid: child.pid(),
        start_ticks: 0,
    });
    (children, processes)
}

#[test]
fn the_board_shows_the_process_that_a_call_may_wait_for() {
    let _shared = shared();
    let (_children, [first, second]) = two_children();
    let board = BusyBoard::new().unwrap();
    board.write_here();
    // As in the real actuator, the check of a region records its process; all regions of a plan are checked before the first call.
    let check = |process: ProcessId, _| {
        busy::note(process.pid);
        Some(true)
    };
    let mut actuator = KernelActuator::new(Box::new(|_| true)).with_sight(Box::new(check));
    let split = |process: ProcessId| Action::Split {
        owner: process.into(),
        region: region(1),
    };
    let plan = Plan::of(vec![split(first), split(second)]);
    actuator.perform(&plan, &|| false);
    let own = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    let busy_with = Mutex::new(Vec::new());
    // It is called before each action: after those before it.
    let stop = || {
        let ours = board.busy().into_iter().find(|busy| busy.thread == own);
        busy_with.lock().unwrap().push(ours.unwrap().process);
        false
    };
    actuator.perform(&plan, &stop);
    assert_eq!(*busy_with.lock().unwrap(), [second.pid, first.pid]);
}

#[test]
fn a_plan_stops_at_its_bound_on_stalls() {
    let _shared = shared();
    let (_children, [slow, free]) = two_children();
    let split = Action::Split {
        owner: slow.into(),
        region: region(3),
    };
    let plan = Plan {
        actions: vec![
            collapse(slow, 1),
            collapse(slow, 2),
            collapse(free, 1),
            collapse(slow, 3),
            split,
        ],
        bounds: vec![CollapseBound {
            owner: slow.into(),
            left: Duration::from_nanos(1),
        }],
    };
    let mut actuator = KernelActuator::new(Box::new(|_| true));
    let outcome = actuator.perform(&plan, &|| false);
    let effects: Vec<Effect> = outcome.results.iter().map(|it| it.effect).collect();
    let cancelled = Effect::Skipped {
        reason: SkipReason::Cancelled,
    };
    // Each takes longer than a nanosecond, so the first is the last; others have no bound, and neither has a split.
    assert_eq!((effects[1], effects[3]), (cancelled, cancelled));
    for index in [0, 2, 4] {
        assert!(is_asked(effects[index]), "{effects:?}");
    }
}
