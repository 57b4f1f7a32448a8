//! How a process is reached: from outside if allowed, else from inside, in visits.
//!
//! ```text
//!   first time     pidfd_open, then: is it still the one meant?
//!   Route::Remote  process_madvise by that pidfd --EPERM--> Route::Visit, for good
//!   Route::Visit   as many at a time as are to be done; an obstacle: skipped, with the reason
//!   before each    does something speak against a collapse? skipped, with the reason
//!                  frames that the host has to give first are touched (`cold_frames.rs`)
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno as RawErrno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_model::{Effect, Errno, PageCount, ProcessId, Region, SkipReason};
use superhue_sys::advise::Operation;
use superhue_sys::collapse::process_collapse;
use superhue_sys::split::process_split;

use crate::cold_frames::ColdFrames;
use crate::inside::{Inside, Timed, visit_all};

/// Says whether a process is still the one meant (its number may have been used again).
pub type IdentityCheck = Box<dyn Fn(ProcessId) -> bool + Send>;

/// A region of a process's address space that something is to be done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Whose. Of a shared object, one of those who map it.
    pub process: ProcessId,
    /// Where.
    pub region: Region,
    /// Base pages that a collapse adds.
    pub growth: PageCount,
}

impl Target {
    pub(crate) const fn of(process: ProcessId, region: Region, growth: PageCount) -> Self {
        Self {
            process,
            region,
            growth,
        }
    }
}

/// Says what speaks against a collapse, right before it; `None` lets it be made. It is asked about collapses only.
pub type Objection = Box<dyn FnMut(&Target) -> Option<SkipReason> + Send>;

/// How a process can be reached.
#[derive(Debug)]
enum Route {
    /// `process_madvise` through this pidfd.
    Remote(OwnedFd),
    /// The kernel wants `CAP_SYS_NICE` for that; visits.
    Visit,
}

/// Does things to regions of processes, remembering how each can be reached.
pub(crate) struct Reach {
    is_still: IdentityCheck,
    inside: Option<Box<dyn Inside>>,
    objections: Vec<Objection>,
    routes: BTreeMap<ProcessId, Route>,
    cold_frames: ColdFrames,
}

impl Reach {
    pub(crate) fn new(is_still: IdentityCheck, inside: Option<Box<dyn Inside>>) -> Self {
        Self {
            is_still,
            inside,
            objections: Vec::new(),
            routes: BTreeMap::new(),
            cold_frames: ColdFrames::new(),
        }
    }

    /// Has one more thing asked before each collapse.
    pub(crate) fn object(&mut self, objection: Objection) {
        self.objections.push(objection);
    }

    /// Does `operation` to each target, all of the same `process`, in order; once `stop` says yes the rest is skipped.
    pub(crate) fn perform(
        &mut self,
        process: ProcessId,
        operation: Operation,
        targets: &[Target],
        stop: &dyn Fn() -> bool,
    ) -> Vec<Timed> {
        let mut results = Vec::with_capacity(targets.len());
        while let Some(target) = targets.get(results.len()) {
            if stop() {
                let reason = SkipReason::Cancelled;
                results.push((Effect::Skipped { reason }, Duration::ZERO));
                continue;
            }
            if let Some(reason) = self.objection_to(operation, target) {
                results.push((Effect::Skipped { reason }, Duration::ZERO));
                continue;
            }
            // In a visit the collapse runs on the program's CPU, which has lists of its own.
            let is_remote = matches!(self.routes.get(&process), Some(Route::Remote(_)));
            let is_warmed =
                is_remote && operation == Operation::Collapse && self.cold_frames.prepare();
            let begun = Instant::now();
            match self.act_from_outside(process, operation, target.region) {
                Some(effect) => {
                    let took = begun.elapsed();
                    if (operation, effect) == (Operation::Collapse, Effect::Done) {
                        self.cold_frames.learn(is_warmed, took);
                    }
                    results.push((effect, took));
                }
                None => {
                    let rest = targets.get(results.len()..).unwrap_or_default();
                    let more = rest.iter().skip(1);
                    let more = more.take_while(|it| self.objection_to(operation, it).is_none());
                    let together: Vec<Region> = rest
                        .iter()
                        .take(1 + more.count())
                        .map(|it| it.region)
                        .collect();
                    results.extend(self.act_from_inside(process, operation, &together, stop));
                }
            }
        }
        if results
            .iter()
            .any(|(effect, _)| *effect == Effect::Vanished)
        {
            self.routes.remove(&process);
        }
        results
    }

    /// What speaks against it.
    fn objection_to(&mut self, operation: Operation, target: &Target) -> Option<SkipReason> {
        if operation == Operation::Split {
            return None;
        }
        let mut objections = self.objections.iter_mut();
        objections.find_map(|objection| objection(target))
    }

    /// `None` where the kernel does not allow that.
    fn act_from_outside(
        &mut self,
        process: ProcessId,
        operation: Operation,
        region: Region,
    ) -> Option<Effect> {
        if !self.routes.contains_key(&process) {
            match self.open(process) {
                Ok(pidfd) => self.routes.insert(process, Route::Remote(pidfd)),
                Err(effect) => return Some(effect),
            };
        }
        let Some(Route::Remote(pidfd)) = self.routes.get(&process) else {
            return None;
        };
        let done = match operation {
            Operation::Collapse => process_collapse(pidfd, region),
            Operation::Split => process_split(pidfd, region),
        };
        Some(match done {
            Ok(()) => Effect::Done,
            Err(RawErrno::SRCH) => Effect::Vanished,
            Err(RawErrno::PERM) if self.inside.is_some() => {
                self.routes.insert(process, Route::Visit);
                return None;
            }
            Err(errno) => Effect::Failed {
                errno: Errno(errno.raw_os_error()),
            },
        })
    }

    fn act_from_inside(
        &mut self,
        process: ProcessId,
        operation: Operation,
        regions: &[Region],
        stop: &dyn Fn() -> bool,
    ) -> Vec<Timed> {
        let all = |effect| regions.iter().map(|_| (effect, Duration::ZERO)).collect();
        if !(self.is_still)(process) {
            return all(Effect::Vanished);
        }
        match &mut self.inside {
            Some(inside) => visit_all(inside.as_mut(), process, operation, regions, stop),
            None => all(Effect::Failed {
                errno: Errno::EPERM,
            }),
        }
    }

    /// Opens a pidfd and makes sure that it is of the process meant.
    fn open(&self, process: ProcessId) -> Result<OwnedFd, Effect> {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Effect::Vanished)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            RawErrno::SRCH => Effect::Vanished,
            errno => Effect::Failed {
                errno: Errno(errno.raw_os_error()),
            },
        })?;
        // The order matters: once the pidfd is open, the number cannot pass to another process
        // without the check below seeing it.
        if (self.is_still)(process) {
            Ok(pidfd)
        } else {
            Err(Effect::Vanished)
        }
    }

    /// Whether the process is still the one meant.
    pub(crate) fn is_still(&self, process: ProcessId) -> bool {
        (self.is_still)(process)
    }

    pub(crate) fn housekeep(&mut self) {
        let is_still = &self.is_still;
        self.routes.retain(|&process, _| is_still(process));
    }
}
