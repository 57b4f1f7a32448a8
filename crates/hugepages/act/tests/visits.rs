//! Who may not act from outside acts in visits.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use superhue_act::{Actuator, Inside, KernelActuator};
use superhue_model::{
    Action, Effect, Errno, ObjectId, Obstacle, PageCount, Plan, ProcessId, Region, SkipReason,
    VirtAddr,
};
use superhue_sys::scratch_child::ScratchChild;
use superhue_visit::{Advised, Done, Visited, Work};

/// Does everything at once, and says what it was asked.
#[derive(Default)]
struct Fake {
    asked: Arc<Mutex<Vec<(u32, Work)>>>,
    obstacle: Option<Obstacle>,
}

impl Inside for Fake {
    fn visit(&mut self, process: ProcessId, work: &Work) -> Result<Visited, Obstacle> {
        self.asked.lock().unwrap().push((process.pid, work.clone()));
        let (Work::Collapse(regions) | Work::Split(regions)) = work else {
            panic!("{work:?}");
        };
        match self.obstacle {
            Some(obstacle) => Err(obstacle),
            None => Ok(Visited {
                done: Done::Advised(vec![Advised::Done; regions.len()]),
                pause: Duration::from_millis(1),
                threads: 1,
                begun_again: 0,
            }),
        }
    }

    fn wait_for(&self, _: ProcessId) -> Duration {
        Duration::ZERO
    }
}

/// The number of a region that another process maps, too.
const SHARED: u64 = 7;

/// The number of a region for which its control group has no room.
const TIGHT: u64 = 8;

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

fn split(process: ProcessId, number: u64) -> Action {
    Action::Split {
        owner: process.into(),
        region: region(number),
    }
}

/// The number of a region of a shared object that nobody maps wholly.
const UNMAPPED: u64 = 9;

/// Who maps a region of the object: one that is gone, and `process`, 100 regions further up.
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

/// What becomes of a plan for a child by a caller without `CAP_SYS_NICE`.
fn perform(fake: Fake, plan: impl Fn(ProcessId) -> Vec<Action> + Sync) -> Vec<Effect> {
    let child = ScratchChild::start().unwrap();
    let process = ProcessId {
        pid: child.pid(),
        start_ticks: 0,
    };
    // Capabilities are a thread's.
    let without = || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::SYS_NICE);
        set_capabilities(None, sets).unwrap();
        let mut actuator = KernelActuator::new(Box::new(|_| true), Some(Box::new(fake)));
        actuator = actuator
            .with_mappers(Box::new(move |_, region| mappers(process, region)))
            .with_objection(Box::new(|target| {
                (target.region == region(SHARED)).then_some(SkipReason::Shared)
            }))
            .with_objection(Box::new(|target| {
                assert!(target.region != region(SHARED), "one objection is enough");
                (target.region == region(TIGHT)).then_some(SkipReason::NoHeadroom)
            }));
        let actions = plan(process);
        let outcome = actuator.perform(&Plan { actions }, &|| false);
        outcome.results.iter().map(|result| result.effect).collect()
    };
    thread::scope(|scope| scope.spawn(without).join().unwrap())
}

#[test]
fn what_is_alike_is_done_in_one_visit() {
    let fake = Fake::default();
    let asked = Arc::clone(&fake.asked);
    let effects = perform(fake, |process| {
        vec![
            collapse(process, 1),
            collapse(process, 2),
            split(process, 3),
            collapse(process, 4),
        ]
    });
    assert_eq!(effects, [Effect::Done; 4]);
    let works: Vec<Work> = asked
        .lock()
        .unwrap()
        .iter()
        .map(|(_, work)| work.clone())
        .collect();
    assert_eq!(
        works,
        [
            Work::Collapse(vec![region(1), region(2)]),
            Work::Split(vec![region(3)]),
            Work::Collapse(vec![region(4)]),
        ]
    );
}

#[test]
fn what_is_shared_is_not_collapsed_and_parts_no_visit_from_the_rest() {
    let fake = Fake::default();
    let asked = Arc::clone(&fake.asked);
    let effects = perform(fake, |process| {
        let mut actions: Vec<Action> = [SHARED, 1, 2, SHARED, 3]
            .map(|number| collapse(process, number))
            .into();
        // A superpage that is shared may be split.
        actions.push(split(process, SHARED));
        actions
    });
    let left = Effect::Skipped {
        reason: SkipReason::Shared,
    };
    let done = Effect::Done;
    assert_eq!(effects, [left, done, done, left, done, done]);
    let works = asked.lock().unwrap();
    let works: Vec<&Work> = works.iter().map(|(_, work)| work).collect();
    assert_eq!(
        works,
        [
            &Work::Collapse(vec![region(1), region(2)]),
            &Work::Collapse(vec![region(3)]),
            &Work::Split(vec![region(SHARED)]),
        ]
    );
}

#[test]
fn each_objection_is_told() {
    let effects = perform(Fake::default(), |process| {
        let mut actions: Vec<Action> = [1, TIGHT, SHARED, 2]
            .map(|number| collapse(process, number))
            .into();
        actions.push(split(process, TIGHT));
        actions
    });
    let left = |reason| Effect::Skipped { reason };
    let done = Effect::Done;
    assert_eq!(
        effects,
        [
            done,
            left(SkipReason::NoHeadroom),
            left(SkipReason::Shared),
            done,
            done
        ]
    );
}

#[test]
fn an_obstacle_is_told() {
    let fake = Fake {
        obstacle: Some(Obstacle::KernelWorks),
        ..Fake::default()
    };
    let effects = perform(fake, |process| {
        vec![collapse(process, 1), split(process, 2)]
    });
    let left = Effect::Skipped {
        reason: SkipReason::Visit(Obstacle::KernelWorks),
    };
    assert_eq!(effects, [left; 2]);
}

#[test]
fn a_shared_object_is_collapsed_through_whoever_can() {
    let fake = Fake::default();
    let asked = Arc::clone(&fake.asked);
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
    let effects = perform(fake, |_| {
        vec![of_object(1), of_object(UNMAPPED), of_object(2), split]
    });
    let refused = Effect::Failed {
        errno: Errno::EINVAL,
    };
    assert_eq!(effects, [Effect::Done, refused, Effect::Done, refused]);
    let asked = asked.lock().unwrap();
    let works: Vec<&Work> = asked.iter().map(|(_, work)| work).collect();
    let through = |number| Work::Collapse(vec![region(number)]);
    assert_eq!(works, [&through(101), &through(102)]);
}
