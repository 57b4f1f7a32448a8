//! Environment of a trial: time, signals, guards, and the target's processes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::process::resident_now;

use super::guard::{self, Alarm, Guards};
use super::meter::{CpuTimes, MeterEnvironment};
use super::switch::PolicySwitch;
use super::who::TargetSearch;
use super::{End, TrialError};
use crate::live::Members;

/// Interval between two searches for the target's processes.
const SEARCH: Duration = Duration::from_millis(250);

/// The target's processes, as the guards see them.
pub(super) type SharedMembers = Arc<Mutex<Vec<ProcessId>>>;

pub(super) fn resident_of(roots: Roots, members: &SharedMembers) -> guard::Rss {
    let members = Arc::clone(members);
    Arc::new(move || {
        let members = members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let resident = members
            .iter()
            .filter_map(|id| resident_now(&roots, id.pid).ok());
        let bytes: Vec<u64> = resident.map(|resident| resident.total.bytes().0).collect();
        #[allow(clippy::cast_precision_loss, reason = "bytes below 2^52")]
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() as f64)
    })
}

/// Environment of a trial: time, signals, guards, the target's processes.
pub(super) struct TrialEnvironment<'a> {
    pub(super) who: TargetSearch,
    pub(super) cpu: CpuTimes,
    pub(super) guards: Guards,
    pub(super) wait: &'a mut dyn FnMut(Duration) -> bool,
    /// Reason for the end of the trial, once there is one.
    pub(super) end: Option<End>,
    pub(super) next_search: Instant,
    pub(super) members: Vec<ProcessId>,
    pub(super) shared_members: SharedMembers,
    /// Members that the switch has.
    pub(super) fed: Members,
}

impl TrialEnvironment<'_> {
    pub(super) fn search(&mut self) {
        self.next_search = Instant::now() + SEARCH;
        match self.who.members() {
            Ok(members) => self.members = members,
            Err(why) => {
                self.end.get_or_insert(End::Failed(why));
            }
        }
        self.share();
    }

    /// Sleeps whatever happens, and searches meanwhile: the daemon leaves the processes of a rule alone only while the trial renews its hold. Returns
    /// false, since nothing cuts the end of a trial short.
    pub(super) fn rest(&mut self, time: Duration) -> bool {
        std::thread::sleep(time);
        if Instant::now() >= self.next_search {
            self.search();
        }
        false
    }

    /// Waits until all guards have been read once.
    pub(super) fn wait_for_guards(&mut self) -> Result<(), TrialError> {
        while !self.guards.has_looked() {
            if self.nap(Duration::from_millis(10)) && self.guards.alarm().is_none() {
                return Err(TrialError::Interrupted);
            }
        }
        match self.guards.alarm() {
            Some(Alarm::Crossed(text)) => Err(TrialError::Guard(text)),
            Some(Alarm::Unreadable(text)) => Err(TrialError::Unreadable(text)),
            None => Ok(()),
        }
    }

    pub(super) fn share(&self) {
        let mut shared = self
            .shared_members
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(&self.members);
    }

    /// Passes the target's processes to the switch.
    pub(super) fn feed(&mut self, switch: &mut PolicySwitch) {
        let label: Arc<str> = self.who.name().into();
        let members = self.members.iter().map(|&id| (id, Arc::clone(&label)));
        let members: Members = members.collect();
        if members != self.fed {
            self.fed.clone_from(&members);
            switch.feed(members);
        }
    }
}

impl MeterEnvironment for TrialEnvironment<'_> {
    fn nap(&mut self, time: Duration) -> bool {
        if self.end.is_some() {
            return true;
        }
        if (self.wait)(time) {
            self.end = Some(End::Signal);
        } else if let Some(alarm) = self.guards.alarm() {
            self.end = Some(End::Alarm(alarm));
        } else if Instant::now() >= self.next_search {
            self.search();
        }
        self.end.is_some()
    }

    fn cpu(&mut self) -> f64 {
        self.cpu.now(self.members.iter().copied())
    }
}
