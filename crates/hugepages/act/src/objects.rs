//! Shared objects: a region of one is collapsed once, through the first process that can.
//!
//! The kernel collapses the pages of the object, and removes their entries from the page tables of all processes that map it (`collapse_file` and
//! `retract_page_tables` in `mm/khugepaged.c`). Each process maps the huge page at its next access, if its mapping is aligned.

use std::time::Duration;

use superhue_model::{Action, Effect, Errno, ObjectId, Owner, ProcessId, Region, SkipReason};
use superhue_sys::advise::Operation;

use crate::reach::{RegionOperator, Target, TimedEffect};

/// Returns the processes that map a region of an object aligned, each with the region of its address space; best first.
pub type Mappers = Box<dyn Fn(ObjectId, Region) -> Vec<(ProcessId, Region)> + Send>;

/// Number of processes to try for one region. A mapping may have gone since the look, and a process may be out of reach.
const ATTEMPTS: usize = 4;

/// Collapses each region through the first of its mappers that can, in order. A region without mappers is refused with `EINVAL`.
pub(crate) fn collapse_through(
    reach: &mut RegionOperator,
    mappers: impl Fn(Region) -> Vec<(ProcessId, Region)>,
    actions: &[Action],
    stop: &dyn Fn() -> bool,
) -> Vec<TimedEffect> {
    let ways = actions.iter().map(|action| {
        let ways = mappers(action.region()).into_iter();
        let there = |(process, region)| {
            let target = Target::of(process, region, action.growth());
            match action.owner() {
                Owner::Object(object) => target.in_object(object),
                Owner::Process(_) => target,
            }
        };
        ways.map(there).collect()
    });
    let ways: Vec<Vec<Target>> = ways.collect();
    let mut results = Vec::with_capacity(actions.len());
    let first = |way: &[Target]| way.first().map(|target| target.process);
    for group in ways.chunk_by(|a, b| first(a) == first(b)) {
        let Some(process) = group.first().and_then(|way| first(way)) else {
            // The kernel returns the same for a mapping that cannot hold huge pages.
            let errno = Errno::EINVAL;
            results.extend(
                group
                    .iter()
                    .map(|_| (Effect::Failed { errno }, Duration::ZERO)),
            );
            continue;
        };
        let there: Vec<Target> = group
            .iter()
            .filter_map(|way| way.first().copied())
            .collect();
        let tried = reach.perform(process, Operation::Collapse, &there, stop);
        for (way, timed) in group.iter().zip(tried) {
            results.push(through_another(reach, way, timed, stop));
        }
    }
    results
}

/// Tries the other processes of `way`, as long as the failure is one of the process.
fn through_another(
    reach: &mut RegionOperator,
    way: &[Target],
    first: TimedEffect,
    stop: &dyn Fn() -> bool,
) -> TimedEffect {
    let mut last = first;
    for target in way.iter().take(ATTEMPTS).skip(1) {
        if !is_of_the_process(last.0) {
            break;
        }
        let tried = reach.perform(target.process, Operation::Collapse, &[*target], stop);
        if let Some(&(effect, took)) = tried.first() {
            last = (effect, last.1 + took);
        }
    }
    last
}

/// Returns true if another process that maps the same region may succeed.
const fn is_of_the_process(effect: Effect) -> bool {
    match effect {
        Effect::Vanished => true,
        Effect::Failed { errno } => matches!(errno, Errno::EINVAL | Errno::EPERM | Errno::EACCES),
        Effect::Skipped { reason } => matches!(reason, SkipReason::Unmapped),
        Effect::Done => false,
    }
}
