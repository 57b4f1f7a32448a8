//! The objections to a collapse: each may keep a region from becoming huge, right before the kernel is asked.
//!
//! The user's bounds, pins and memory that is gone stop a collapse elsewhere: `superhue_model::SkipReason` lists all reasons.
//!
//! The actuator first checks that the process is still the same one (`still_is`). Then it asks, in this order:
//!
//! ```text
//!   object is not there any more         object_pages.rs      or has new holes, or a file is not all in memory
//!   page is mapped by others             shared_pages         a collapse would copy what a child shares
//!   mapping forbids huge pages           obstacles.rs         its flags are read again after 2 s
//!   pages are lazily freed               given_back.rs        MADV_FREE: they would come back
//!   tmpfs has no room                    tmpfs_room.rs        a hole would be filled
//!   control group is near its limit      group_limits.rs      the last one, since it counts the collapses that it lets pass
//! ```

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use superhue_act::{KernelActuator, Mappers};
use superhue_model::SkipReason;
use superhue_procfs::Roots;
use superhue_procfs::process::{is_huge_mapped, maps, shared_pages, still_is, still_runs};

use crate::given_back::LazyFreeFinder;
use crate::group_limits::GroupLimits;
use crate::obstacles::Obstacles;
use crate::{object_pages, tmpfs_room};

/// Makes an actuator for this machine with all objections to a collapse: the same for the caller and for a user of the daemon.
pub(crate) fn kernel_actuator(roots: &Roots, mappers: Mappers, has_budget: bool) -> KernelActuator {
    let sight = roots.clone();
    let actuator = KernelActuator::new(Box::new(move |id| still_is(&sight, id)));
    let actuator = actuator.with_debugfs(roots.sys.join("kernel/debug"));
    let sight = roots.clone();
    let actuator = actuator.with_sight(Box::new(move |id, region| {
        is_huge_mapped(&sight, id, region).ok().flatten()
    }));
    let sight = roots.clone();
    let actuator =
        actuator.with_mapped_check(Box::new(move |id, region| match maps(&sight, id.pid) {
            Ok(vmas) => Some(vmas.iter().any(|vma| vma.range.contains(&region.range()))),
            Err(error) => error.is_vanished().then_some(false),
        }));
    let actuator = actuator.with_mappers(mappers);
    let sight = roots.clone();
    let actuator = actuator.with_objection(Box::new(move |target| {
        object_pages::objection(&sight, target)
    }));
    let sight = roots.clone();
    let actuator = actuator.with_objection(Box::new(move |target| {
        let is_shared = match shared_pages(&sight, target.process, target.region) {
            Ok(pages) => pages.0 > 0,
            // Without a page map nothing could be planned either; after any other error nothing may be copied unseen. The page map of a process that
            // has ended and not been waited for is empty, which is an error, too.
            Err(error) => !error.is_vanished() && still_runs(&sight, target.process),
        };
        is_shared.then_some(SkipReason::Shared)
    }));
    let obstacles = Arc::new(Mutex::new(Obstacles::new(roots)));
    let asked = Arc::clone(&obstacles);
    let actuator = actuator.with_objection(Box::new(move |target| {
        asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .object(target)
    }));
    let actuator = actuator.with_explanation(Box::new(move |process, region, errno| {
        let mut obstacles = obstacles.lock().unwrap_or_else(PoisonError::into_inner);
        obstacles.explain(process, region, errno)
    }));
    let mut lazily_freed = LazyFreeFinder::new(roots);
    let actuator = actuator.with_objection(Box::new(move |target| lazily_freed.object(target)));
    let sight = roots.clone();
    let actuator = actuator.with_objection(Box::new(move |target| {
        tmpfs_room::objection(&sight, target)
    }));
    // The last objection, since it counts the collapses that it lets pass.
    let mut limits = GroupLimits::new(roots.clone());
    if !has_budget {
        limits = limits.without_budget();
    }
    let begun = Instant::now();
    let limits = Arc::new(Mutex::new(limits));
    let counted = Arc::clone(&limits);
    let actuator = actuator.with_objection(Box::new(move |target| {
        let mut limits = limits.lock().unwrap_or_else(PoisonError::into_inner);
        limits.object(begun.elapsed(), target)
    }));
    actuator.with_failure_report(Box::new(move |target| {
        let mut limits = counted.lock().unwrap_or_else(PoisonError::into_inner);
        limits.take_back(target);
    }))
}
