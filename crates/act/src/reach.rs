//! How a process is reached: from outside if allowed, else through the agent inside.
//!
//! ```text
//!   first time     pidfd_open, then: is it still the one meant?
//!   Route::Remote  process_madvise by that pidfd --EPERM--> Route::Agent, for good
//!   Route::Agent   a request to the agent; no agent: skipped, with the reason
//! ```

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno as RawErrno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use superhue_mailbox::Operation;
use superhue_model::{Effect, Errno, ProcessId, Region, SkipReason};
use superhue_sys::collapse::process_collapse;
use superhue_sys::split::process_split;

use crate::agent_host::{AgentHost, Answer};

/// Says whether a process is still the one meant (its number may have been used again).
pub type IdentityCheck = Box<dyn Fn(ProcessId) -> bool + Send>;

/// How a process can be reached.
#[derive(Debug)]
enum Route {
    /// `process_madvise` through this pidfd.
    Remote(OwnedFd),
    /// The kernel wants `CAP_SYS_NICE` for that; a request to the agent inside.
    Agent,
}

/// Does things to regions of processes, remembering how each can be reached.
pub(crate) struct Reach {
    is_still: IdentityCheck,
    agents: Option<Arc<AgentHost>>,
    routes: BTreeMap<ProcessId, Route>,
}

impl Reach {
    pub(crate) fn new(is_still: IdentityCheck, agents: Option<Arc<AgentHost>>) -> Self {
        Self {
            is_still,
            agents,
            routes: BTreeMap::new(),
        }
    }

    pub(crate) fn perform(
        &mut self,
        process: ProcessId,
        operation: Operation,
        region: Region,
    ) -> Effect {
        if !self.routes.contains_key(&process) {
            match self.open(process) {
                Ok(pidfd) => self.routes.insert(process, Route::Remote(pidfd)),
                Err(effect) => return effect,
            };
        }
        let effect = match self.routes.get(&process) {
            Some(Route::Remote(pidfd)) => match from_outside(pidfd, operation, region) {
                Ok(()) => Effect::Done,
                Err(RawErrno::SRCH) => Effect::Vanished,
                Err(RawErrno::PERM) => {
                    self.routes.insert(process, Route::Agent);
                    self.ask_agent(process, operation, region)
                }
                Err(errno) => Effect::Failed {
                    errno: Errno(errno.raw_os_error()),
                },
            },
            Some(Route::Agent) => self.ask_agent(process, operation, region),
            None => Effect::Vanished,
        };
        if effect == Effect::Vanished {
            self.routes.remove(&process);
        }
        effect
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

    fn ask_agent(&self, process: ProcessId, operation: Operation, region: Region) -> Effect {
        if !(self.is_still)(process) {
            return Effect::Vanished;
        }
        let Some(agents) = &self.agents else {
            return Effect::Skipped {
                reason: SkipReason::NoAgent,
            };
        };
        match agents.ask(process.pid, operation, region, || (self.is_still)(process)) {
            Answer::Done => Effect::Done,
            Answer::Failed(errno) => Effect::Failed { errno },
            Answer::NoSuchAgent => Effect::Skipped {
                reason: SkipReason::NoAgent,
            },
            Answer::Seccomp => Effect::Skipped {
                reason: SkipReason::Seccomp,
            },
            Answer::Silent if (self.is_still)(process) => Effect::Skipped {
                reason: SkipReason::AgentSilent,
            },
            Answer::Silent | Answer::Vanished => Effect::Vanished,
        }
    }

    /// Whether the process is still the one meant.
    pub(crate) fn is_still(&self, process: ProcessId) -> bool {
        (self.is_still)(process)
    }

    pub(crate) fn housekeep(&mut self) {
        let is_still = &self.is_still;
        self.routes.retain(|&process, _| is_still(process));
        if let Some(agents) = &self.agents {
            agents.beat();
            agents.rescue_the_held();
            agents.free_slots_of_the_dead();
        }
    }
}

fn from_outside(pidfd: &OwnedFd, operation: Operation, region: Region) -> Result<(), RawErrno> {
    match operation {
        Operation::Collapse => process_collapse(pidfd, region),
        Operation::Split => process_split(pidfd, region),
    }
}
