//! The actuator that really acts: how a huge page is made, and how one is split.
//!
//! ```text
//!   collapse     process_madvise(MADV_COLLAPSE)             CAP_SYS_NICE
//!   split        process_madvise(MADV_COLD) of one page     CAP_SYS_NICE; else debugfs' split_huge_pages (root)
//!                of all, if base pages map what is left of a huge page
//! ```
//!
//! Pidfds are opened, checked and kept in `reach.rs`; the calls are those of `superhue_sys::collapse` and `superhue_sys::split`. Objections (a control group without room, memory shared since a fork) are asked for right before each
//! collapse. A region of a shared object is collapsed through the first of its mappers that can (`objects.rs`). What became of
//! each action, by errno, is the [`Outcome`] that the policy learns from.

use std::path::PathBuf;
use std::time::Duration;

use superhue_model::{
    Action, ActionResult, Effect, Errno, Outcome, Owner, Plan, ProcessId, Region, SkipReason,
};
use superhue_sys::advise::Operation;

use crate::Actuator;
use crate::debugfs::{DebugfsSplitter, SplitError};
use crate::objects::{Mappers, collapse_through};
use crate::reach::{IdentityCheck, Objection, Reach, Target, Timed};

/// Answers a question about a region; `None` when that cannot be seen.
pub type RegionCheck = Box<dyn Fn(ProcessId, Region) -> Option<bool> + Send>;

/// Says why the kernel has refused a collapse; `None` where that cannot be seen.
pub type Explanation = Box<dyn FnMut(ProcessId, Region, Errno) -> Option<SkipReason> + Send>;

/// Carries out plans on the running kernel.
pub struct KernelActuator {
    reach: Reach,
    is_huge: Option<RegionCheck>,
    is_mapped: Option<RegionCheck>,
    explanation: Option<Explanation>,
    mappers: Option<Mappers>,
    debugfs: Debugfs,
}

/// The splitting interface of debugfs, opened when it is first needed.
enum Debugfs {
    At(PathBuf),
    Opened(DebugfsSplitter),
    None,
}

impl KernelActuator {
    /// An actuator that asks `is_still` whether a process is the one meant.
    #[must_use]
    pub fn new(is_still: IdentityCheck) -> Self {
        Self {
            reach: Reach::new(is_still),
            is_huge: None,
            is_mapped: None,
            explanation: None,
            mappers: None,
            debugfs: Debugfs::None,
        }
    }

    /// Looks, when the kernel finds no memory for a collapse, whether the region is mapped at all: `ENOMEM` says both.
    #[must_use]
    pub fn with_mapped_check(mut self, is_mapped: RegionCheck) -> Self {
        self.is_mapped = Some(is_mapped);
        self
    }

    /// Looks after each split whether one superpage maps the region still: the kernel takes the advice to split
    /// without a word on whether it followed it. Without this, [`Effect::Done`] of a split means
    /// that it was asked for, and the next look shows what became of it.
    #[must_use]
    pub fn with_sight(mut self, is_huge: RegionCheck) -> Self {
        self.is_huge = Some(is_huge);
        self
    }

    /// Asks before each collapse whether something speaks against it, and skips it then. Of several objections the first one counts;
    /// the later ones are not asked.
    #[must_use]
    pub fn with_objection(mut self, objection: Objection) -> Self {
        self.reach.object(objection);
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

    /// Falls back on the interface of the debugfs mounted at `debugfs`, if there is one, for splits that nothing else can do.
    #[must_use]
    pub fn with_debugfs(mut self, debugfs: PathBuf) -> Self {
        self.debugfs = Debugfs::At(debugfs);
        self
    }

    /// Does actions of one kind on the memory of one owner, in order.
    fn act(
        &mut self,
        owner: Owner,
        operation: Operation,
        actions: &[Action],
        stop: &dyn Fn() -> bool,
    ) -> Vec<Timed> {
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
            // Nobody plans that: its zeroes would not be given back.
            (Owner::Object(_), Operation::Split | Operation::Release) => {
                let errno = Errno::EINVAL;
                let refused = (Effect::Failed { errno }, Duration::ZERO);
                vec![refused; actions.len()]
            }
        }
    }

    /// Whose memory an action changes, and what the kernel is asked for. A huge page that is to be split and is not mapped as one is
    /// mapped by base pages.
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

    /// Tells memory that the process gave back, at its end for example, from a machine that has no superpage.
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

    /// Makes sure of a split as well as can be.
    ///
    /// A superpage that stays whole although the kernel did not complain is busy in the sense of
    /// [`Errno::EBUSY`]: pinned, or shared with another process that was forked meanwhile. Both may
    /// pass, so the policy is told to come back to it later.
    fn confirm_split(&mut self, process: ProcessId, region: Region, effect: Effect) -> Effect {
        let effect = match effect {
            // Nobody here may give that advice, or this kernel takes none. Anything else the
            // kernel had a reason for that debugfs would only pass over: locked memory, say.
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

    /// `None` where there is no such interface.
    fn split_by_debugfs(&mut self, process: ProcessId, region: Region) -> Option<Effect> {
        if let Debugfs::At(debugfs) = &self.debugfs {
            let opened = DebugfsSplitter::at(debugfs);
            self.debugfs = opened.map_or(Debugfs::None, Debugfs::Opened);
        }
        let Debugfs::Opened(splitter) = &self.debugfs else {
            return None;
        };
        // debugfs knows processes by number alone. Should the number change hands just here, another
        // process has a superpage split, which costs it no byte.
        if !self.reach.is_still(process) {
            return Some(Effect::Vanished);
        }
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
        for same in keys.chunk_by(|a, b| a == b) {
            let (group, others) = rest.split_at(same.len());
            rest = others;
            let Some(&(owner, operation)) = same.first() else {
                continue;
            };
            let effects = self.act(owner, operation, group, stop);
            for (action, (effect, took)) in group.iter().zip(effects) {
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
