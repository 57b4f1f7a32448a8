//! Access to a process from outside, by its pidfd.
//!
//! ```text
//!   first time     pidfd_open, then: is it still the one meant?
//!   before each    an objection to a collapse? skipped, with the reason
//!                  frames that the host has to give first are touched (`cold_frames.rs`)
//!   each           process_madvise by that pidfd; the kernel wants CAP_SYS_NICE. Where --max-stall applies, not
//!                  interrupted by other programs (`superhue_sys::urgency`)
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as RawErrno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_model::{Effect, Errno, ObjectId, PageCount, ProcessId, Region, SkipReason};
use superhue_sys::advise::Operation;
use superhue_sys::busy;
use superhue_sys::collapse::process_collapse;
use superhue_sys::split::{process_release, process_split};
use superhue_sys::urgency::Urgent;

use crate::cold_frames::ColdFrames;

/// Effect on a region, and the time that it took.
pub(crate) type TimedEffect = (Effect, Duration);

/// Number of processes held open at most. Opening one again takes some 15 us, a collapse 500.
const MOST_OPENED: usize = 512;

/// Returns true if a process is still the one meant: its number may have been used again.
pub type IdentityCheck = Box<dyn Fn(ProcessId) -> bool + Send>;

/// A region of a process's address space for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// The process; of a shared object, one of those that map it.
    pub process: ProcessId,
    /// The region in the address space of `process`.
    pub region: Region,
    /// Base pages that a collapse adds.
    pub growth: PageCount,
    /// The shared object mapped there, if the operation is on the object.
    pub object: Option<ObjectId>,
}

impl Target {
    /// Makes a target whose collapse adds no pages.
    #[must_use]
    pub const fn at(process: ProcessId, region: Region) -> Self {
        Self::of(process, region, PageCount(0))
    }

    pub(crate) const fn of(process: ProcessId, region: Region, growth: PageCount) -> Self {
        Self {
            process,
            region,
            growth,
            object: None,
        }
    }

    pub(crate) const fn in_object(self, object: ObjectId) -> Self {
        Self {
            object: Some(object),
            ..self
        }
    }
}

/// Returns a reason against a collapse, right before it; `None` allows it. Only collapses have objections.
pub type Objection = Box<dyn FnMut(&Target) -> Option<SkipReason> + Send>;

/// Receives each collapse that had no objection and that the kernel did not make, right after it.
pub type FailureReport = Box<dyn FnMut(&Target) + Send>;

/// Performs operations on regions of processes, and keeps their pidfds.
pub(crate) struct RegionOperator {
    is_still: IdentityCheck,
    objections: Vec<Objection>,
    failure_report: Option<FailureReport>,
    opened: BTreeMap<ProcessId, OwnedFd>,
    /// Time that collapses may still take; `None` for no bound.
    left: Option<Duration>,
    cold_frames: ColdFrames,
}

impl RegionOperator {
    pub(crate) fn new(is_still: IdentityCheck) -> Self {
        Self {
            is_still,
            objections: Vec::new(),
            failure_report: None,
            opened: BTreeMap::new(),
            left: None,
            cold_frames: ColdFrames::new(),
        }
    }

    /// Adds an objection to ask before each collapse.
    pub(crate) fn object(&mut self, objection: Objection) {
        self.objections.push(objection);
    }

    /// Reports failed collapses to `report` from now on.
    pub(crate) fn report_failures(&mut self, report: FailureReport) {
        self.failure_report = Some(report);
    }

    /// Sets the time that the collapses from now on may take; `None` for no bound.
    pub(crate) const fn bound(&mut self, left: Option<Duration>) {
        self.left = left;
    }

    /// Performs `operation` on each target, all of the same `process`, in order. Once `stop` returns true, or the time for collapses has passed, the
    /// rest is skipped.
    pub(crate) fn perform(
        &mut self,
        process: ProcessId,
        operation: Operation,
        targets: &[Target],
        stop: &dyn Fn() -> bool,
    ) -> Vec<TimedEffect> {
        let mut results = Vec::with_capacity(targets.len());
        for target in targets {
            let is_over = operation == Operation::Collapse && self.left == Some(Duration::ZERO);
            if is_over || stop() {
                let reason = SkipReason::Cancelled;
                results.push((Effect::Skipped { reason }, Duration::ZERO));
                continue;
            }
            if let Some(reason) = self.objection_to(operation, target) {
                results.push((Effect::Skipped { reason }, Duration::ZERO));
                continue;
            }
            let is_warmed = operation == Operation::Collapse && self.cold_frames.prepare();
            let begun = Instant::now();
            let effect = self.act(process, operation, target.region);
            let took = begun.elapsed();
            if operation == Operation::Collapse {
                self.left = self.left.map(|left| left.saturating_sub(took));
                if let Some(report) = &mut self.failure_report
                    && effect != Effect::Done
                {
                    report(target);
                }
            }
            if (operation, effect) == (Operation::Collapse, Effect::Done) {
                self.cold_frames.learn(is_warmed, took);
            }
            results.push((effect, took));
        }
        if results
            .iter()
            .any(|(effect, _)| *effect == Effect::Vanished)
        {
            self.opened.remove(&process);
        }
        results
    }

    /// Begins real-time scheduling where a bound keeps its sum short. Without a bound there may be thousands of collapses in a row, for which no
    /// other program should wait.
    fn urgent(&self) -> Option<Urgent> {
        self.left.map(|_| Urgent::first())
    }

    /// Returns the first reason against the operation, if there is one.
    fn objection_to(&mut self, operation: Operation, target: &Target) -> Option<SkipReason> {
        if operation != Operation::Collapse {
            return None;
        }
        // To answer, most of them read the page tables of the region.
        let _urgent = self.urgent();
        let mut objections = self.objections.iter_mut();
        objections.find_map(|objection| objection(target))
    }

    fn act(&mut self, process: ProcessId, operation: Operation, region: Region) -> Effect {
        // With a pidfd from before, nothing else records that the call may wait for this process.
        busy::note(process.pid);
        if !self.opened.contains_key(&process) {
            // A worker of the daemon may open 1,024 descriptors, and it has others open as well.
            if self.opened.len() >= MOST_OPENED {
                self.opened.clear();
            }
            match self.open(process) {
                Ok(pidfd) => self.opened.insert(process, pidfd),
                Err(effect) => return effect,
            };
        }
        let Some(pidfd) = self.opened.get(&process) else {
            return Effect::Vanished;
        };
        let _urgent = self.urgent();
        let done = match operation {
            Operation::Collapse => process_collapse(pidfd, region),
            Operation::Split => process_split(pidfd, region),
            Operation::Release => process_release(pidfd, region),
        };
        match done {
            Ok(()) => Effect::Done,
            Err(RawErrno::SRCH) => Effect::Vanished,
            Err(errno) => Effect::Failed {
                errno: Errno(errno.raw_os_error()),
            },
        }
    }

    /// Opens a pidfd, and checks that it refers to the process meant.
    fn open(&self, process: ProcessId) -> Result<OwnedFd, Effect> {
        let pid = i32::try_from(process.pid).ok().and_then(Pid::from_raw);
        let pid = pid.ok_or(Effect::Vanished)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(|errno| match errno {
            RawErrno::SRCH => Effect::Vanished,
            errno => Effect::Failed {
                errno: Errno(errno.raw_os_error()),
            },
        })?;
        // The order matters: once the pidfd is open, the check below sees if the number has passed to another process.
        if (self.is_still)(process) {
            Ok(pidfd)
        } else {
            Err(Effect::Vanished)
        }
    }

    /// Returns true if the process is still the one meant.
    pub(crate) fn is_still(&self, process: ProcessId) -> bool {
        (self.is_still)(process)
    }

    /// Closes the pidfds of processes that have ended; these poll as readable (`pidfd_open(2)`).
    pub(crate) fn housekeep(&mut self) {
        let mut polled: Vec<PollFd<'_>> = self
            .opened
            .values()
            .map(|opened| PollFd::new(opened, PollFlags::IN))
            .collect();
        let now = Timespec::default();
        if !poll(&mut polled, Some(&now)).is_ok_and(|ended| ended > 0) {
            return;
        }
        let has_ended: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        let mut has_ended = has_ended.into_iter();
        self.opened.retain(|_, _| has_ended.next() == Some(false));
    }
}
