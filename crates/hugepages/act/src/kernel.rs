//! The actuator that changes processes: it collapses and splits huge pages.
//!
//! ```text
//!   collapse     process_madvise(MADV_COLLAPSE)             CAP_SYS_NICE
//!   split        process_madvise(MADV_COLD) of one page     CAP_SYS_NICE; else debugfs' split_huge_pages (root)
//!   split, torn  the same of all pages of the region        base pages map the rest of a huge page
//! ```
//!
//! `reach.rs` opens, checks and keeps pidfds; the calls are those of `superhue_sys::collapse` and `superhue_sys::split`. Right before each collapse
//! the actuator asks for objections (a control group without room, memory shared since a fork). It collapses a region of a shared object through
//! the first of its mappers that can (`objects.rs`). The [`Outcome`] has the result of each action, by errno, and the policy learns from it.

use std::path::PathBuf;
use std::time::Duration;

use superhue_model::{
    Action, ActionResult, Effect, Errno, Outcome, Owner, Plan, ProcessId, Region, SkipReason,
};
use superhue_sys::advise::Operation;
use superhue_sys::busy;

use crate::Actuator;
use crate::debugfs::{DebugfsSplitter, SplitError};
use crate::objects::{Mappers, collapse_through};
use crate::reach::{FailureReport, IdentityCheck, Objection, RegionOperator, Target, TimedEffect};

/// Answers a question about a region; `None` when the answer cannot be seen.
pub type RegionCheck = Box<dyn Fn(ProcessId, Region) -> Option<bool> + Send>;

/// Gives the reason why the kernel refused a collapse; `None` where that cannot be seen.
pub type Explanation = Box<dyn FnMut(ProcessId, Region, Errno) -> Option<SkipReason> + Send>;

/// Carries out plans on the running kernel.
pub struct KernelActuator {
    reach: RegionOperator,
    is_huge: Option<RegionCheck>,
    is_mapped: Option<RegionCheck>,
    explanation: Option<Explanation>,
    mappers: Option<Mappers>,
    debugfs: Debugfs,
}

/// The splitting interface of debugfs, opened at first use.
enum Debugfs {
    At(PathBuf),
    Opened(DebugfsSplitter),
    None,
}

impl KernelActuator {
    /// Makes an actuator that asks `is_still` whether a process is the one meant.
    #[must_use]
    pub fn new(is_still: IdentityCheck) -> Self {
        Self {
            reach: RegionOperator::new(is_still),
            is_huge: None,
            is_mapped: None,
            explanation: None,
            mappers: None,
            debugfs: Debugfs::None,
        }
    }

    /// Checks whether the region is mapped at all when a collapse fails with `ENOMEM`: the kernel returns it for unmapped memory, too.
    #[must_use]
    pub fn with_mapped_check(mut self, is_mapped: RegionCheck) -> Self {
        self.is_mapped = Some(is_mapped);
        self
    }

    /// Checks after each split whether one huge page still maps the region: the kernel accepts the advice to split, and does not report whether it
    /// followed it. Without this check, [`Effect::Done`] of a split means that the kernel accepted the request, and the next look shows the result.
    #[must_use]
    pub fn with_sight(mut self, is_huge: RegionCheck) -> Self {
        self.is_huge = Some(is_huge);
        self
    }

    /// Calls `objection` before each collapse, and skips the collapse if there is one. Of several objections the first one counts; the later ones
    /// are not called.
    #[must_use]
    pub fn with_objection(mut self, objection: Objection) -> Self {
        self.reach.object(objection);
        self
    }

    /// Reports each collapse that had no objection and that the kernel did not make: an objection that counts what it allows takes it back.
    #[must_use]
    pub fn with_failure_report(mut self, report: FailureReport) -> Self {
        self.reach.report_failures(report);
        self
    }

    /// Asks for the reason when the kernel has refused a collapse of private memory, and reports it in place of the error.
    #[must_use]
    pub fn with_explanation(mut self, explanation: Explanation) -> Self {
        self.explanation = Some(explanation);
        self
    }

    /// Collapses regions of shared objects through the processes that `mappers` names.
    #[must_use]
    pub fn with_mappers(mut self, mappers: Mappers) -> Self {
        self.mappers = Some(mappers);
        self
    }

    /// Falls back on the debugfs mounted at `debugfs`, if there is one, for splits that no other interface can do.
    #[must_use]
    pub fn with_debugfs(mut self, debugfs: PathBuf) -> Self {
        self.debugfs = Debugfs::At(debugfs);
        self
    }

    /// Performs actions of one kind on the memory of one owner, in order.
    fn act(
        &mut self,
        owner: Owner,
        operation: Operation,
        actions: &[Action],
        stop: &dyn Fn() -> bool,
    ) -> Vec<TimedEffect> {
        let targets = |process| {
            let there = |action: &Action| Target::of(process, action.region(), action.growth());
            actions.iter().map(there).collect::<Vec<Target>>()
        };
        match (owner, operation) {
            (Owner::Process(process), _) => {
                let done = (self.reach).perform(process, operation, &targets(process), stop);
                let timed = actions.iter().zip(done);
                let looked_at = timed.map(|(action, (effect, took))| {
                    let region = action.region();
                    let effect = match operation {
                        Operation::Collapse => self.explain(process, region, effect),
                        Operation::Split => self.confirm_split(process, region, effect),
                        Operation::Release => effect,
                    };
                    (effect, took)
                });
                looked_at.collect()
            }
            (Owner::Object(object), Operation::Collapse) => {
                let mappers = |region| {
                    let mappers = self.mappers.as_ref();
                    mappers.map_or_else(Vec::new, |mappers| mappers(object, region))
                };
                collapse_through(&mut self.reach, mappers, actions, stop)
            }
            // No policy plans that: the kernel would not free the zeroes of a shared object.
            (Owner::Object(_), Operation::Split | Operation::Release) => {
                let errno = Errno::EINVAL;
                let refused = (Effect::Failed { errno }, Duration::ZERO);
                vec![refused; actions.len()]
            }
        }
    }

    /// Returns the owner of the memory that an action changes, and the operation to ask the kernel for. If a huge page should be split and is not
    /// mapped as one, base pages map it, and the operation is [`Operation::Release`].
    fn key(&self, action: &Action) -> (Owner, Operation) {
        let owner = action.owner();
        if matches!(action, Action::Collapse { .. }) {
            return (owner, Operation::Collapse);
        }
        let is_huge = |check: &RegionCheck| check(owner.process()?, action.region());
        match self.is_huge.as_ref().and_then(is_huge) {
            Some(false) => (owner, Operation::Release),
            _ => (owner, Operation::Split),
        }
    }

    /// Distinguishes memory that the process has unmapped, at its end for example, from a machine without a free huge page.
    fn explain(&mut self, process: ProcessId, region: Region, effect: Effect) -> Effect {
        let errno = Errno::ENOMEM;
        let is_mapped = |check: &RegionCheck| check(process, region);
        if effect == (Effect::Failed { errno })
            && self.is_mapped.as_ref().and_then(is_mapped) == Some(false)
        {
            let reason = SkipReason::Unmapped;
            return Effect::Skipped { reason };
        }
        let explanation = self.explanation.as_mut();
        match (effect, explanation) {
            (Effect::Failed { errno }, Some(explain)) => {
                let reason = explain(process, region, errno);
                reason.map_or(effect, |reason| Effect::Skipped { reason })
            }
            _ => effect,
        }
    }

    /// Checks the result of a split as far as possible.
    ///
    /// A huge page that stays whole although the kernel reported no error is busy in the sense of [`Errno::EBUSY`]: pinned, or shared with a
    /// process forked meanwhile. Both may pass, so the policy tries again later.
    fn confirm_split(&mut self, process: ProcessId, region: Region, effect: Effect) -> Effect {
        let effect = match effect {
            // The caller may not give that advice, or this kernel does not know it. Any other error has a reason that debugfs would only bypass:
            // locked memory, for example.
            Effect::Failed {
                errno: Errno::EPERM | Errno::ENOSYS,
            } => self.split_by_debugfs(process, region).unwrap_or(effect),
            effect => effect,
        };
        let is_huge = |check: &RegionCheck| check(process, region);
        if effect == Effect::Done && self.is_huge.as_ref().and_then(is_huge) == Some(true) {
            return Effect::Failed {
                errno: Errno::EBUSY,
            };
        }
        effect
    }

    /// Splits through debugfs; `None` where there is no such interface.
    fn split_by_debugfs(&mut self, process: ProcessId, region: Region) -> Option<Effect> {
        if let Debugfs::At(debugfs) = &self.debugfs {
            let opened = DebugfsSplitter::at(debugfs);
            self.debugfs = opened.map_or(Debugfs::None, Debugfs::Opened);
        }
        let Debugfs::Opened(splitter) = &self.debugfs else {
            return None;
        };
        // debugfs knows processes by number alone. If the number passes to another process right here, a huge page of that process is split, which
        // loses no data.
        if !self.reach.is_still(process) {
            return Some(Effect::Vanished);
        }
        busy::note(process.pid);
        Some(match splitter.split(process.pid, region.range()) {
            Ok(()) => Effect::Done,
            Err(SplitError::Vanished { .. }) => Effect::Vanished,
            Err(error) => Effect::Failed {
                errno: error.errno(),
            },
        })
    }
}

impl Actuator for KernelActuator {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        let mut results = Vec::with_capacity(plan.actions.len());
        let keys: Vec<(Owner, Operation)> = (plan.actions.iter()).map(|it| self.key(it)).collect();
        let mut rest = plan.actions.as_slice();
        let mut bounded = plan.part(&[]);
        for same in keys.chunk_by(|a, b| a == b) {
            let (group, others) = rest.split_at(same.len());
            rest = others;
            let Some(&(owner, operation)) = same.first() else {
                continue;
            };
            self.reach.bound(bounded.left(owner));
            let effects = self.act(owner, operation, group, stop);
            for (action, (effect, took)) in group.iter().zip(effects) {
                if operation == Operation::Collapse {
                    bounded.spend(owner, took);
                }
                results.push(ActionResult {
                    action: *action,
                    effect,
                    took,
                });
            }
        }
        Outcome { results }
    }

    fn housekeep(&mut self) {
        self.reach.housekeep();
    }
}
