//! The messages between the daemon and its workers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue::PlacementOptions;
use superhue::live::{Members, OwnCost, WatchAccount};
use superhue_model::{ByteCount, ProcessId, Share};
use superhue_procfs::Roots;

/// Maximum length of a message in bytes: a watch may have 65,536 members.
pub(super) const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Task of a worker: the first message that it gets.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Task {
    /// Watch processes of one tenant of a rule.
    Watch(Box<WatchTask>),
    /// Read facts about processes.
    Read(Roots),
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WatchTask {
    /// Name of the thread.
    pub(crate) rule: String,
    pub(crate) placement: PlacementOptions,
    /// No worker has watched this tenant before.
    pub(crate) is_first: bool,
    /// Growth that earlier workers have charged to the tenant's budget.
    pub(crate) carried: ByteCount,
    pub(crate) roots: Roots,
}

/// Settings of a watch from now on; a `None` keeps the old value.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct WatchUpdate {
    pub(crate) members: Option<MemberTable>,
    pub(crate) paused: bool,
    /// The watch stands still: it neither looks nor tracks accesses.
    pub(crate) held: bool,
    pub(crate) max_overhead: f64,
    pub(crate) budget: Option<Share>,
    pub(crate) leave_alone: BTreeSet<u32>,
}

/// Members with their labels, each label once.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MemberTable {
    labels: Vec<String>,
    /// Number, start, index of the label.
    processes: Vec<(u32, u64, usize)>,
}

impl From<&Members> for MemberTable {
    fn from(members: &Members) -> Self {
        let mut fed = Self::default();
        let mut known: BTreeMap<&str, usize> = BTreeMap::new();
        for (id, label) in members {
            let index = *known.entry(label).or_insert_with(|| {
                fed.labels.push(label.to_string());
                fed.labels.len() - 1
            });
            fed.processes.push((id.pid, id.start_ticks, index));
        }
        fed
    }
}

impl From<MemberTable> for Members {
    fn from(fed: MemberTable) -> Self {
        let labels: Vec<Arc<str>> = fed.labels.into_iter().map(Arc::from).collect();
        let member = |(pid, start_ticks, index): (u32, u64, usize)| {
            let label = labels.get(index).cloned().unwrap_or_default();
            (ProcessId { pid, start_ticks }, label)
        };
        fed.processes.into_iter().map(member).collect()
    }
}

/// Message from a watch.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WatchMessage {
    /// Account of the watch.
    Account(Box<WatchAccount>),
    /// The account is as before, at this time and for this cost.
    Beat {
        /// [`WatchAccount::at_seconds`].
        at_seconds: f64,
        /// [`WatchAccount::own`].
        own: OwnCost,
    },
    /// The worker's anonymous memory; pages that several processes share are divided by their number (`Pss_Anon`).
    Memory(ByteCount),
}

/// Questions about processes, in one message; answered in one.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Questions(pub(crate) Vec<Question>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Question {
    pub(crate) pid: u32,
    /// Only the user, and the cgroup if that is wanted: the cheap facts.
    pub(crate) in_brief: bool,
    pub(crate) cgroup: bool,
    pub(crate) executable: bool,
}

/// Facts about a process.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct ProcessAnswer {
    pub(crate) pid: u32,
    /// `None` if it is gone.
    pub(crate) user: Option<u32>,
    /// Start in ticks since boot; `None` for a process without memory of its own (a thread of the kernel, one that has ended), and for our own.
    pub(crate) start_ticks: Option<u64>,
    /// Path of the file that it executes; bytes.
    pub(crate) executable: Option<Vec<u8>>,
    pub(crate) cgroup: Option<String>,
}

/// Answers, in the order of the questions.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answers {
    pub(crate) all: Vec<ProcessAnswer>,
    /// CPU time that reading took.
    pub(crate) cost: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_arrive_as_they_were_sent() {
        let member = |pid: u32, label: &str| {
            let id = ProcessId {
                pid,
                start_ticks: u64::from(pid) + 7,
            };
            (id, Arc::from(label))
        };
        let members: Members = [member(3, "b"), member(1, "a"), member(2, "b")].into();
        let fed = MemberTable::from(&members);
        assert_eq!(fed.labels.len(), 2);
        let text = serde_json::to_string(&fed).unwrap();
        let fed: MemberTable = serde_json::from_str(&text).unwrap();
        assert_eq!(Members::from(fed), members);
    }
}
