//! Matches cgroups and processes to rules, as they come and go.
//!
//! ```text
//!   groups ──appeared, filled or emptied──> candidates by cgroup ──> its processes ──asks──> turns ──> reader
//!   (no version 2: all processes, over and over) ─────────────^                                           │
//!                                                                    the rule of each <────answers────────┘
//! ```
//!
//! Lists of processes (`cgroup.procs`, the directory `/proc`) are read here: that waits for no process. Facts about a process come from a worker
//! ([`turns`](crate::turns)), so they are known a moment later.
//!
//! The state is bounded: a process that is gone, or a cgroup, leaves nothing behind.

mod answers;
mod group;
mod lists;
mod pods;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use group::{Group, ProcessLocation};
use superhue::{ceiling, cpu_time};
use superhue_procfs::Roots;
use superhue_procfs::cgroup::unified_mount;

use crate::account::DiscoveryAccount;
use crate::groups::Groups;
use crate::kubelet::Kubelet;
use crate::pods::Pods;
use crate::rules::Rule;
use crate::turns::QueryScheduler;
use crate::watches::Tenants;

pub(crate) use answers::Facts;

/// The processes that belong to each rule.
#[derive(Debug)]
pub struct Roster {
    roots: Roots,
    source: Source,
    rules: Arc<[Rule]>,
    /// The kubelet to ask for pods, if the configuration has one.
    kubelet: Option<Kubelet>,
    pods: Arc<Pods>,
    /// Cgroups of existing pods, by the UID of the pod.
    pod_groups: BTreeMap<String, BTreeSet<String>>,
    /// Cgroups whose pod or container the kubelet has not named, and the number of requests that are left.
    unnamed: BTreeMap<String, u8>,
    /// Cgroups by path. With [`Source::Tree`] only those that a rule could match.
    groups: BTreeMap<String, Group>,
    /// Questions about processes.
    turns: QueryScheduler,
    /// The share of one CPU that may be spent here in the long run.
    share: f64,
    next_read: Duration,
    next_events: Duration,
    next_anew: Duration,
    next_walk: Duration,
    /// True if the result has changed since the last call of `changes`.
    changed: bool,
    spent: Duration,
}

#[derive(Debug)]
enum Source {
    /// The kernel reports changes.
    Tree(Groups),
    /// The kernel reports none.
    Processes {
        because: String,
        /// The known place of each process number.
        places: BTreeMap<u32, ProcessLocation>,
    },
}

impl Roster {
    /// Makes a roster without rules: no process is of interest.
    #[must_use]
    pub fn new(roots: &Roots, share: f64) -> Self {
        let opened = match unified_mount(roots) {
            Some(mount) => Groups::open(&mount)
                .map_err(|error| format!("cannot watch {}: {error}", mount.display())),
            None => Err("no cgroup file system of version 2 is mounted here".to_owned()),
        };
        let source = match opened {
            Ok((groups, _)) => Source::Tree(groups),
            Err(because) => Source::Processes {
                because,
                places: BTreeMap::new(),
            },
        };
        Self {
            roots: roots.clone(),
            source,
            rules: Arc::new([]),
            kubelet: None,
            pods: Arc::default(),
            pod_groups: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            groups: BTreeMap::new(),
            turns: QueryScheduler::new(roots, share * ceiling::SEARCHES),
            share: share * ceiling::SEARCHES,
            next_read: Duration::ZERO,
            next_events: Duration::ZERO,
            next_anew: Duration::ZERO,
            next_walk: Duration::ZERO,
            changed: true,
            spent: Duration::ZERO,
        }
    }

    /// Returns the descriptor that becomes readable when the kernel reports changes of the tree.
    #[must_use]
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            Source::Tree(groups) => Some(groups.as_fd()),
            Source::Processes { .. } => None,
        }
    }

    /// Returns the descriptor that becomes readable when there is an answer about processes.
    #[must_use]
    pub fn answers(&self) -> Option<BorrowedFd<'_>> {
        self.turns.reader().descriptor()
    }

    /// Returns the reader of processes.
    pub(crate) fn readers(&self) -> &crate::workers::Reader {
        self.turns.reader()
    }

    /// Finds the cgroup of a process in the tree; `None` if it is not there, or there is no tree.
    #[must_use]
    pub fn find(&self, pid: u32) -> Option<String> {
        match &self.source {
            Source::Tree(groups) => groups.find(pid).map(str::to_owned),
            Source::Processes { .. } => None,
        }
    }

    /// Puts rules in force. The next step matches all processes again; until its answer a known process keeps the rule that it has, if that is still
    /// there, so that the rule's watch forgets nothing.
    pub fn follow(&mut self, rules: Arc<[Rule]>, share: f64) {
        let before = std::mem::replace(&mut self.rules, rules);
        self.pod_groups.clear();
        self.unnamed.clear();
        self.share = share * ceiling::SEARCHES;
        self.turns.begin_anew(self.share);
        (self.next_read, self.next_anew) = (Duration::ZERO, Duration::ZERO);
        self.changed = true;
        if let Source::Tree(groups) = &mut self.source {
            for path in self.groups.keys() {
                groups.unwant(path);
            }
            let all = groups.walk();
            let earlier = std::mem::take(&mut self.groups);
            let everything = all.populated.union(&all.appeared).cloned().collect();
            self.take_in(&everything);
            self.carry_over(earlier, &before);
        } else {
            let earlier = std::mem::take(&mut self.groups);
            for path in earlier.keys() {
                self.make_group(path);
            }
            self.carry_over(earlier, &before);
        }
        if let Source::Processes { places, .. } = &mut self.source {
            // The questions were forgotten.
            places.values_mut().for_each(|place| place.is_asked = false);
        }
    }

    /// Takes over the processes of earlier groups into the present ones, until there are new answers about them. `before` are the rules that the
    /// earlier groups were matched with.
    fn carry_over(&mut self, earlier: BTreeMap<String, Group>, before: &[Rule]) {
        for (path, earlier) in earlier {
            if let Some(group) = self.groups.get_mut(&path) {
                group.carry_over(earlier, before, &self.rules);
            }
        }
    }

    /// Returns the time when [`Self::step`] has something to do; `None` if not before the kernel reports a change.
    #[must_use]
    pub fn due(&self, at: Duration) -> Option<Duration> {
        let answers = self.turns.due(at);
        let lists = (!self.rules.is_empty()).then_some(self.next_read);
        answers.into_iter().chain(lists).min()
    }

    /// Lists the processes, if that is due, asks about new ones, and takes answers.
    pub fn step(&mut self, at: Duration) {
        let begun = cpu_time();
        self.list(at);
        self.take_answers(at);
        self.spent += cpu_time().saturating_sub(begun);
    }

    /// Asks and waits until all is known, or until `at_most` has passed.
    pub fn settle(&mut self, at: Duration, at_most: Duration) {
        let begun = Instant::now();
        while begun.elapsed() < at_most {
            self.take_answers(at + begun.elapsed());
            if self.turns.is_done() {
                return;
            }
            self.turns.wait();
        }
    }

    /// Returns the processes of each rule (by index), if they have changed since the last call.
    pub(crate) fn changes(&mut self) -> Option<BTreeMap<usize, Tenants>> {
        if !std::mem::take(&mut self.changed) {
            return None;
        }
        let mut found: BTreeMap<usize, Tenants> = BTreeMap::new();
        for group in self.groups.values() {
            for member in group.members.values() {
                if let Some(rule) = member.rule {
                    let tenants = found.entry(rule).or_default();
                    let members = tenants.entry(member.tenant.clone()).or_default();
                    members.insert(member.id, group.label.clone());
                }
            }
        }
        Some(found)
    }

    /// Returns the account of the discovery.
    #[must_use]
    pub fn account(&self, at: Duration) -> DiscoveryAccount {
        let (how, limited_because, cgroups) = match &self.source {
            Source::Tree(groups) => (
                "cgroups",
                groups.limited().or(groups.left_alone()).map(str::to_owned),
                groups.len(),
            ),
            Source::Processes { because, .. } => {
                let because = format!("{because}: all processes are read over and over instead");
                ("processes", Some(because), self.groups.len())
            }
        };
        let limited_because = self.turns.trouble().map(str::to_owned).or(limited_because);
        DiscoveryAccount {
            how: how.to_owned(),
            limited_because,
            cgroups: cgroups as u64,
            cgroups_of_interest: self.groups.len() as u64,
            cpu_seconds: (self.spent + self.turns.reader().cpu_time()).as_secs_f64(),
            behind: self.turns.waiting() as u64,
            readers_given_up: self.turns.reader().given_up,
            readers_left_behind: self.turns.reader().left_behind() as u64,
            left_alone: self.turns.left_alone(at),
            pods: self.kubelet.as_ref().map(Kubelet::account),
        }
    }
}

#[cfg(test)]
mod tests;
