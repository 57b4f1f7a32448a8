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

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue::{ceiling, cpu_time};
use superhue_model::ProcessId;
use superhue_procfs::Roots;
use superhue_procfs::cgroup::unified_mount;
use superhue_procfs::process::numbers;

use crate::account::DiscoveryAccount;
use crate::groups::{Changes, Groups, is_populated, list, listed};
use crate::kubelet::{Kubelet, KubeletSettings};
use crate::pods::{Place, Pods, place};
use crate::rules::{Candidates, GroupFacts, ProcessFacts, Rule, candidates};
use crate::turns::{ProcessQuery, QueryScheduler};
use crate::watches::Tenants;
use crate::workers::ProcessAnswer;

/// Time between two lists of the processes in cgroups of interest, if their number allows; and at most, whatever their number, so that a crowd does
/// not delay other tenants: a list takes up to a microsecond for each process.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_AT_LEAST: Duration = Duration::from_millis(1100);

/// Time for which events of the tree are gathered before they are taken: at least, and at most.
const GATHER: Duration = Duration::from_millis(50);
const GATHER_AT_MOST: Duration = Duration::from_secs(1);

/// Age of a process below which its program and its user may still change: it may have been forked and not have executed yet.
const YOUNG: Duration = Duration::from_secs(5);

/// Time between two walks of the tree, where the kernel does not report everything.
const ANEW_EVERY: Duration = Duration::from_secs(10);

/// A process is asked about again after this share of the time for which it is known, within these bounds: its number may have been used again, or it
/// may change its user or program late.
const AGAIN_SHARE: u32 = 8;
const AGAIN_AT_LEAST: Duration = Duration::from_secs(10);
const AGAIN_AT_MOST: Duration = Duration::from_secs(60);

/// Questions that are due within this time are asked together: each message wakes the daemon and the reader.
const AGAIN_TOGETHER: Duration = Duration::from_secs(5);

/// Number of times that the kubelet is asked soon, once a second, for a container that it has not named.
const ASK_AGAIN: u8 = 10;

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
    /// Cgroups whose pod or container the kubelet has not named, and the number of times that it is still asked soon.
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

/// A cgroup that a rule could match.
#[derive(Debug)]
struct Group {
    candidates: Candidates,
    label: Arc<str>,
    path: Arc<str>,
    /// The tenant of its processes, if the cgroup determines it.
    tenant: Option<Arc<str>>,
    /// True if it may have processes; read from the kernel only where the kernel reports changes.
    populated: bool,
    members: BTreeMap<u32, Member>,
    /// The kernel's list of them, where it is read here.
    list: Vec<u8>,
    /// Processes in the last list.
    listed: BTreeSet<u32>,
    /// Processes with a question under way.
    asked: BTreeSet<u32>,
    /// Time before which there is nothing to ask, unless the list changes.
    quiet_until: Duration,
}

#[derive(Debug, Clone)]
struct Member {
    id: ProcessId,
    since: Duration,
    /// The last time it was asked about.
    asked_at: Duration,
    rule: Option<usize>,
    tenant: Arc<str>,
    /// Facts of the last answer; `None` if it was asked for less than other rules may need.
    facts: Option<Facts>,
    /// True since rules or its pod have changed, until there is an answer.
    is_provisional: bool,
}

/// The place of a process, as far as it is known.
#[derive(Debug, Clone)]
struct ProcessLocation {
    since: Duration,
    /// The last time it was asked about.
    asked_at: Duration,
    path: Option<Arc<str>>,
    /// Its tenant, by its user.
    tenant: Option<Arc<str>>,
    /// True while a question about it is under way.
    is_asked: bool,
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

    /// Returns the kubelet; its descriptor becomes readable when pods have changed.
    #[must_use]
    pub fn kubelet(&self) -> Option<&Kubelet> {
        self.kubelet.as_ref()
    }

    /// Returns the known pods.
    #[must_use]
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    /// Sets the kubelet to ask for pods from now on. To be called before [`Self::follow`].
    pub fn ask_kubelet(&mut self, settings: Option<&KubeletSettings>) {
        if self.kubelet.as_ref().map(Kubelet::settings) == settings {
            return;
        }
        self.pods = Arc::default();
        self.kubelet = settings.and_then(|settings| {
            let started = Kubelet::start(settings.clone());
            (started.inspect_err(|error| tracing::error!(%error, "the kubelet cannot be asked")))
                .ok()
        });
    }

    /// Takes changed pods from the kubelet, and matches their processes anew.
    pub fn take_pods(&mut self, at: Duration) {
        let Some(pods) = self.kubelet.as_ref().and_then(Kubelet::take) else {
            return;
        };
        let begun = cpu_time();
        let before = std::mem::replace(&mut self.pods, pods);
        let differs = |uid: &&String| before.get(*uid) != self.pods.get(*uid);
        let changed: Vec<String> = self.pod_groups.keys().filter(differs).cloned().collect();
        let rules = self.rules.clone();
        for uid in changed {
            let paths = self.pod_groups.get(&uid).cloned().unwrap_or_default();
            let mut earlier = BTreeMap::new();
            for path in &paths {
                if let Some(group) = self.groups.remove(path) {
                    self.changed |= !group.members.is_empty();
                    earlier.insert(path.clone(), group);
                    if let Source::Tree(groups) = &mut self.source {
                        groups.unwant(path);
                    }
                }
            }
            self.take_in(&paths);
            if matches!(self.source, Source::Processes { .. }) {
                for path in &paths {
                    self.make_group(path);
                }
            }
            self.carry_over(earlier, &rules);
            for path in &paths {
                self.read_group(path, at, true);
            }
        }
        if matches!(self.source, Source::Processes { .. }) {
            self.next_read = at;
        }
        self.spent += cpu_time().saturating_sub(begun);
    }

    /// Waits until the kubelet has answered once, if there is one, and takes its pods.
    pub fn wait_for_pods(&mut self, at_most: Duration) {
        let begun = Instant::now();
        while let Some(kubelet) = &self.kubelet
            && kubelet.account().requests == 0
            && begun.elapsed() < at_most
        {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.take_pods(Duration::ZERO);
    }

    /// Finds the cgroup of a process in the tree; `None` if it is not there, or there is no tree.
    #[must_use]
    pub fn find(&self, pid: u32) -> Option<String> {
        match &self.source {
            Source::Tree(groups) => groups.find(pid).map(str::to_owned),
            Source::Processes { .. } => None,
        }
    }

    /// Notes a cgroup of a pod; asks the kubelet if it has not named it.
    fn note_pod(&mut self, path: &str) {
        let (Some(kubelet), Some(place)) = (&self.kubelet, place(path)) else {
            return;
        };
        if is_named(&self.pods, &place) {
            self.unnamed.remove(path);
        } else if !self.unnamed.contains_key(path) {
            self.unnamed.insert(path.to_owned(), ASK_AGAIN);
            kubelet.ask();
        }
        let paths = self.pod_groups.entry(place.uid).or_default();
        paths.insert(path.to_owned());
    }

    /// Asks the kubelet again for pods and containers that it has not named: it knows a container about a second after its start. It never names the
    /// cgroups that the runtime keeps beside containers, so the number of attempts is limited.
    fn ask_for_unnamed(&mut self) {
        let pods = &self.pods;
        let is_unnamed = |path: &str| place(path).is_some_and(|place| !is_named(pods, &place));
        let mut asks = false;
        for (_, left) in
            (self.unnamed.iter_mut()).filter(|(path, left)| **left > 0 && is_unnamed(path))
        {
            *left -= 1;
            asks = true;
        }
        if let Some(kubelet) = self.kubelet.as_ref().filter(|_| asks) {
            kubelet.ask();
        }
    }

    fn forget_pod(&mut self, path: &str) {
        self.unnamed.remove(path);
        let Some(place) = place(path) else { return };
        if let Some(paths) = self.pod_groups.get_mut(&place.uid) {
            paths.remove(path);
            if paths.is_empty() {
                self.pod_groups.remove(&place.uid);
            }
        }
    }

    /// Puts rules in force. The next step matches all processes anew; until its answer a known process keeps the rule that it has, if that is still
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

    /// Takes over the processes of earlier groups into the present ones, until they have been asked about anew. `before` are the rules that the
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

    /// Returns the time when events of the tree are taken, if there are any.
    #[must_use]
    pub fn takes_events_at(&self) -> Duration {
        self.next_events
    }

    /// Takes the kernel's events of the tree.
    pub fn take_events(&mut self, at: Duration) {
        let begun = cpu_time();
        let Source::Tree(groups) = &mut self.source else {
            return;
        };
        let before = groups.taken();
        let changes = groups.read();
        if groups.taken() == before {
            return;
        }
        self.apply(changes, at);
        let cost = cpu_time().saturating_sub(begun);
        self.spent += cost;
        let apart = ceiling::apart(cost, self.share);
        self.next_events = at + apart.clamp(GATHER, GATHER_AT_MOST);
    }

    /// Lists the processes, if that is due, asks about new ones, and takes answers.
    pub fn step(&mut self, at: Duration) {
        let begun = cpu_time();
        self.list(at);
        self.take_answers(at);
        self.spent += cpu_time().saturating_sub(begun);
    }

    fn list(&mut self, at: Duration) {
        if self.rules.is_empty() || at < self.next_read {
            return;
        }
        let begun = cpu_time();
        let anew = at >= self.next_anew;
        if let Source::Tree(groups) = &mut self.source
            && (groups.is_incomplete() || anew && groups.limited().is_some())
        {
            let changes = groups.walk();
            self.apply(changes, at);
        }
        if matches!(self.source, Source::Processes { .. }) {
            self.list_processes(at);
        } else {
            let all: Vec<String> = self.groups.keys().cloned().collect();
            for path in all {
                self.read_group(&path, at, false);
            }
        }
        self.ask_for_unnamed();
        let cost = cpu_time().saturating_sub(begun);
        let apart = ceiling::apart(cost, self.share);
        self.next_read = at + apart.clamp(READ_EVERY, READ_AT_LEAST);
        if anew {
            self.next_anew = at + ANEW_EVERY.max(apart * 2);
        }
    }

    /// Takes the reader's answers, and sends the next questions.
    fn take_answers(&mut self, at: Duration) {
        for (ask, answer) in self.turns.step(at) {
            match (&ask.place, &ask.tenant) {
                (None, _) => self.place(&ask, answer, at),
                (Some(path), None) => {
                    // The tenant is known now; the other facts come in its turn.
                    let user = answer.and_then(|answer| answer.user);
                    match user {
                        Some(user) => {
                            let tenant = Some(of_user(user));
                            self.turns.ask(ProcessQuery { tenant, ..ask }, at);
                        }
                        None => self.forget_asked(&path.clone(), ask.pid),
                    }
                }
                (Some(path), Some(_)) => {
                    let (path, rules) = (path.clone(), &self.rules);
                    if let Some(group) = self.groups.get_mut(&*path) {
                        self.changed |= group.take(&ask, answer, rules, at);
                    }
                }
            }
        }
    }

    fn forget_asked(&mut self, path: &str, pid: u32) {
        if let Some(group) = self.groups.get_mut(path) {
            group.asked.remove(&pid);
        }
    }

    /// Asks and waits until all is known, or until `at_most` is over.
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
            Source::Tree(groups) => ("cgroups", groups.limited().map(str::to_owned), groups.len()),
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

    fn apply(&mut self, changes: Changes, at: Duration) {
        for path in &changes.vanished {
            self.forget_pod(path);
            if let Some(group) = self.groups.remove(path) {
                self.changed |= !group.members.is_empty();
            }
        }
        self.take_in(&changes.appeared);
        for path in changes.appeared.union(&changes.populated) {
            if let (Source::Tree(groups), Some(group)) = (&self.source, self.groups.get_mut(path)) {
                group.populated = is_populated(&groups.folder(path)).unwrap_or(true);
            }
            self.read_group(path, at, true);
        }
    }

    /// Finds the rules that could match cgroups of the tree.
    fn take_in(&mut self, paths: &BTreeSet<String>) {
        for path in paths {
            self.note_pod(path);
        }
        let Source::Tree(groups) = &mut self.source else {
            return;
        };
        for path in paths {
            let before = self.groups.remove(path);
            self.changed |= before.is_some_and(|group| !group.listed.is_empty());
            let Some(mut group) = Group::new(path, &self.rules, &self.pods) else {
                continue;
            };
            // Events are requested before the state is read, so no change is missed.
            let is_told = groups.want(path);
            let populated = is_populated(&groups.folder(path));
            group.populated = !is_told || populated.unwrap_or(true);
            // A group without processes changes nothing.
            self.groups.insert(path.clone(), group);
        }
    }

    /// Reads the processes of one cgroup of the tree.
    fn read_group(&mut self, path: &str, at: Duration, anew: bool) {
        let Source::Tree(groups) = &self.source else {
            return;
        };
        let Some(group) = self.groups.get_mut(path) else {
            return;
        };
        if !group.populated && group.listed.is_empty() {
            return;
        }
        let list = list(&groups.folder(path));
        if !anew && at < group.quiet_until && list == group.list {
            return;
        }
        let pids = listed(&list);
        group.list = list;
        self.changed |= group.has(pids, &self.rules, &mut self.turns, at, anew);
    }

    /// Lists all processes, and asks for the cgroups of new ones.
    fn list_processes(&mut self, at: Duration) {
        let Ok(pids) = numbers(&self.roots) else {
            return;
        };
        let Source::Processes { places, .. } = &mut self.source else {
            return;
        };
        let pids: BTreeSet<u32> = pids.into_iter().collect();
        let turns = &mut self.turns;
        places.retain(|pid, _| {
            let is_there = pids.contains(pid);
            if !is_there {
                turns.forget(*pid);
            }
            is_there
        });
        let mut by_path: BTreeMap<Arc<str>, BTreeSet<u32>> = BTreeMap::new();
        for pid in pids {
            let place = places.entry(pid).or_insert_with(|| ProcessLocation {
                since: at,
                asked_at: at,
                path: None,
                tenant: None,
                is_asked: false,
            });
            let is_young = at.saturating_sub(place.since) < YOUNG;
            let is_due = at >= next_question(place.since, place.asked_at);
            let asks = is_due || is_young || place.path.is_none();
            if asks && !place.is_asked && !turns.avoids(pid, at) {
                place.is_asked = true;
                let ask = ProcessQuery {
                    pid,
                    place: None,
                    tenant: None,
                    executable: false,
                    is_new: place.path.is_none(),
                };
                turns.ask(ask, at);
            }
            if let Some(path) = &place.path {
                by_path.entry(path.clone()).or_default().insert(pid);
            }
        }
        self.list_places(by_path, at);
    }

    fn list_places(&mut self, by_path: BTreeMap<Arc<str>, BTreeSet<u32>>, at: Duration) {
        let before = self.groups.len();
        self.groups.retain(|path, _| by_path.contains_key(&**path));
        self.changed |= self.groups.len() < before;
        self.pod_groups.clear();
        self.unnamed.retain(|path, _| by_path.contains_key(&**path));
        for (path, pids) in by_path {
            self.note_pod(&path);
            self.make_group(&path);
            if let Some(group) = self.groups.get_mut(&*path) {
                self.changed |= group.has(pids, &self.rules, &mut self.turns, at, false);
            }
        }
    }

    fn make_group(&mut self, path: &str) {
        if !self.groups.contains_key(path)
            && let Some(group) = Group::new(path, &self.rules, &self.pods)
        {
            self.groups.insert(path.to_owned(), group);
        }
    }

    /// Notes the cgroup of a process.
    fn place(&mut self, ask: &ProcessQuery, answer: Option<ProcessAnswer>, at: Duration) {
        let Source::Processes { places, .. } = &mut self.source else {
            return;
        };
        let Some(place) = places.get_mut(&ask.pid) else {
            return;
        };
        (place.is_asked, place.asked_at) = (false, at);
        let Some(answer) = answer.filter(|answer| answer.user.is_some()) else {
            return;
        };
        let path: Arc<str> = answer.cgroup.unwrap_or_else(|| "/".to_owned()).into();
        place.tenant = answer.user.map(of_user);
        let before = place.path.replace(path.clone());
        if before.as_ref() == Some(&path) {
            return;
        }
        if let Some(group) = before.and_then(|before| self.groups.get_mut(&*before)) {
            self.changed |= group.remove(ask.pid);
        }
        self.note_pod(&path);
        self.make_group(&path);
        if let Some(group) = self.groups.get_mut(&*path) {
            let tenant = answer.user.map(of_user);
            group.add(ask.pid, tenant, &self.rules, &mut self.turns, at);
        }
    }
}

/// Returns the time of the next question about a process that is known since `since`, and was asked about last at `asked_at`.
fn next_question(since: Duration, asked_at: Duration) -> Duration {
    let known_for = asked_at.saturating_sub(since);
    let due = asked_at + (known_for / AGAIN_SHARE).clamp(AGAIN_AT_LEAST, AGAIN_AT_MOST);
    let together = AGAIN_TOGETHER.as_secs();
    Duration::from_secs(due.as_secs().div_ceil(together) * together)
}

/// Returns the tenant of a user, whose processes act together where no cgroup determines more.
fn of_user(user: u32) -> Arc<str> {
    format!("user {user}").into()
}

impl Group {
    /// Makes the cgroup at `path`; `None` if no rule could match it.
    fn new(path: &str, rules: &[Rule], pods: &Pods) -> Option<Self> {
        let facts = GroupFacts::new(path).with_pods(pods);
        let candidates = candidates(rules, &facts);
        (!candidates.is_empty()).then(|| Self {
            candidates,
            label: facts.label().into(),
            path: path.into(),
            tenant: facts.tenant(),
            populated: true,
            members: BTreeMap::new(),
            list: Vec::new(),
            listed: BTreeSet::new(),
            asked: BTreeSet::new(),
            quiet_until: Duration::ZERO,
        })
    }

    /// Sets the listed processes, and asks about them; returns true if a member has gone.
    fn has(
        &mut self,
        pids: BTreeSet<u32>,
        rules: &[Rule],
        turns: &mut QueryScheduler,
        at: Duration,
        anew: bool,
    ) -> bool {
        let mut changed = false;
        if pids != self.listed {
            for pid in self.listed.difference(&pids) {
                let gone = self.members.remove(pid);
                changed |= gone.is_some_and(|member| member.rule.is_some());
                // An answer that is still to come is about a process elsewhere, or another one.
                self.asked.remove(pid);
                turns.forget(*pid);
            }
            self.listed = pids;
        } else if !anew && at < self.quiet_until {
            return false;
        }
        let is_certain = self.candidates.certain(rules).is_some();
        self.quiet_until = Duration::MAX;
        for &pid in &self.listed {
            let known = self.members.get(&pid);
            let is_young = known.is_some_and(|it| at.saturating_sub(it.since) < YOUNG);
            let next = known.map_or(at, |it| next_question(it.since, it.asked_at));
            let is_provisional = known.is_some_and(|it| it.is_provisional);
            let asks = anew || is_provisional || at >= next || is_young && !is_certain;
            self.quiet_until = (self.quiet_until).min(if asks { at } else { next });
            if asks && !self.asked.contains(&pid) && !turns.avoids(pid, at) {
                self.asked.insert(pid);
                let tenant = self.tenant.as_ref().or_else(|| Some(&known?.tenant));
                turns.ask(
                    ProcessQuery {
                        pid,
                        place: Some(self.path.clone()),
                        tenant: tenant.cloned(),
                        executable: !is_certain,
                        is_new: known.is_none(),
                    },
                    at,
                );
            }
        }
        changed
    }

    /// Takes over the processes of the same cgroup as it was under other rules, or before its pod changed. A process gets the rule that matches by the
    /// facts of its last answer; where these do not suffice, it keeps the rule of the same name.
    fn carry_over(&mut self, earlier: Self, before: &[Rule], rules: &[Rule]) {
        let certain = self.candidates.certain(rules);
        for (pid, mut member) in earlier.members {
            let earlier = member.rule.and_then(|rule| before.get(rule));
            let same = || {
                rules
                    .iter()
                    .position(|rule| Some(&rule.name) == earlier.map(|it| &it.name))
            };
            let decided = match (certain, &mut member.facts) {
                (Some(rule), _) => Some(rule),
                (None, Some(facts)) => self.candidates.decide(rules, facts),
                (None, None) => same(),
            };
            // That of a thread of the kernel, or of superhue itself.
            let is_exempt = member.id.start_ticks == 0;
            member.rule = decided.filter(|_| !is_exempt);
            member.is_provisional = true;
            if let Some(tenant) = &self.tenant {
                member.tenant = tenant.clone();
            }
            self.members.insert(pid, member);
        }
        self.listed = earlier.listed;
    }

    /// Adds a process of this tenant, and asks about it.
    fn add(
        &mut self,
        pid: u32,
        tenant: Option<Arc<str>>,
        rules: &[Rule],
        turns: &mut QueryScheduler,
        at: Duration,
    ) {
        self.listed.insert(pid);
        if self.asked.insert(pid) {
            let ask = ProcessQuery {
                pid,
                place: Some(self.path.clone()),
                tenant: self.tenant.clone().or(tenant),
                executable: self.candidates.certain(rules).is_none(),
                is_new: true,
            };
            turns.ask(ask, at);
        }
    }

    /// Removes a process that is elsewhere; returns true if it was a member.
    fn remove(&mut self, pid: u32) -> bool {
        self.listed.remove(&pid);
        self.asked.remove(&pid);
        let gone = self.members.remove(&pid);
        gone.is_some_and(|member| member.rule.is_some())
    }

    /// Takes an answer about a process; returns true if it changes a member.
    fn take(
        &mut self,
        ask: &ProcessQuery,
        answer: Option<ProcessAnswer>,
        rules: &[Rule],
        at: Duration,
    ) -> bool {
        let pid = ask.pid;
        if !ask.executable && self.candidates.certain(rules).is_none() {
            // A question from before the rules changed: another one is under way.
            return false;
        }
        let is_expected = self.asked.remove(&pid) && self.listed.contains(&pid);
        let (true, Some(answer)) = (is_expected, answer) else {
            return false;
        };
        let known = self.members.get(&pid);
        let since = known.map_or(at, |known| known.since);
        let tenant = self.tenant.clone();
        let tenant = tenant.or_else(|| answer.user.map(of_user));
        let tenant = tenant.or_else(|| ask.tenant.clone()).unwrap_or_default();
        let Some(start_ticks) = answer.start_ticks else {
            // A thread of the kernel, ours, or gone: noted, so that it is not asked about again at once.
            let id = ProcessId {
                pid,
                start_ticks: 0,
            };
            let member = Member {
                id,
                since,
                asked_at: at,
                rule: None,
                tenant,
                facts: None,
                is_provisional: false,
            };
            let before = self.members.insert(pid, member);
            return before.is_some_and(|before| before.rule.is_some());
        };
        let id = ProcessId { pid, start_ticks };
        let known = known.filter(|known| known.id == id);
        let since = known.map_or(at, |known| known.since);
        let certain = self.candidates.certain(rules);
        let mut facts = Facts::of(&answer);
        let rule = certain.or_else(|| self.candidates.decide(rules, &mut facts));
        let is_other = known.is_none_or(|known| known.rule != rule || known.tenant != tenant);
        let member = Member {
            id,
            since,
            asked_at: at,
            rule,
            tenant,
            facts: ask.executable.then_some(facts),
            is_provisional: false,
        };
        self.members.insert(pid, member);
        is_other
    }
}

/// Returns true if the kubelet has named the pod, and the container if there is one.
fn is_named(pods: &Pods, place: &Place<'_>) -> bool {
    let pod = pods.get(&place.uid);
    pod.is_some_and(|pod| (place.container).is_none_or(|id| pod.containers.contains_key(id)))
}

/// Facts about a process, from an answer.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    user: Option<u32>,
    executable: Option<PathBuf>,
}

impl Facts {
    pub(crate) fn of(answer: &ProcessAnswer) -> Self {
        let path = answer.executable.clone().map(|bytes| {
            // The file was replaced since, as in an upgrade.
            let bytes = match bytes.strip_suffix(b" (deleted)") {
                Some(before) => before.to_vec(),
                None => bytes,
            };
            PathBuf::from(OsString::from_vec(bytes))
        });
        Self {
            user: answer.user,
            executable: path,
        }
    }
}

impl ProcessFacts for Facts {
    fn user(&mut self) -> Option<u32> {
        self.user
    }

    fn executable(&mut self) -> Option<&Path> {
        self.executable.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use glob::Pattern;

    use super::*;
    use crate::rules::{Conditions, User};

    const STEP: Duration = Duration::from_secs(100);

    fn rule(name: &str, conditions: Conditions) -> Rule {
        Rule {
            name: name.into(),
            place: String::new(),
            conditions,
            placement: None,
        }
    }

    fn pattern(text: &str) -> Option<Pattern> {
        Some(Pattern::new(text).unwrap())
    }

    fn rules() -> Arc<[Rule]> {
        let user = Some(User {
            name: "me".to_owned(),
            number: Some(rustix::process::geteuid().as_raw()),
        });
        [
            rule(
                "tool",
                Conditions {
                    executable: pattern("tool"),
                    ..Conditions::default()
                },
            ),
            rule(
                "unit",
                Conditions {
                    unit: pattern("a*.service"),
                    ..Conditions::default()
                },
            ),
            rule(
                "mine",
                Conditions {
                    cgroup: pattern("/b/**"),
                    user,
                    ..Conditions::default()
                },
            ),
        ]
        .into()
    }

    /// A recorded machine.
    struct Machine(tempfile::TempDir, Roots);

    impl Machine {
        fn new(version: &str) -> Self {
            let folder = tempfile::tempdir().unwrap();
            let roots = Roots::under(folder.path());
            let machine = Self(folder, roots);
            let mounts = format!("30 22 0:26 / /sys/fs/cgroup rw - {version} {version} rw\n");
            machine.write("proc/self/mountinfo", &mounts);
            machine.write("sys/fs/cgroup/cgroup.procs", "");
            machine
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn group(&self, path: &str, pids: &[u32]) {
            let lines: String = pids.iter().map(|pid| format!("{pid}\n")).collect();
            self.write(&format!("sys/fs/cgroup{path}/cgroup.procs"), &lines);
            let populated = u8::from(!pids.is_empty());
            let events = format!("populated {populated}\nfrozen 0\n");
            self.write(&format!("sys/fs/cgroup{path}/cgroup.events"), &events);
        }

        fn process(&self, pid: u32, start: u64, executable: &str) {
            let zeroes = "0 ".repeat(12);
            let stat = format!("{pid} (x) S 1 1 1 0 -1 0 {zeroes}{start} 0 0");
            self.write(&format!("proc/{pid}/stat"), &stat);
            let link = self.0.path().join(format!("proc/{pid}/exe"));
            let _ = fs::remove_file(&link);
            symlink(executable, link).unwrap();
        }

        fn roster(&self) -> Roster {
            let mut roster = Roster::new(&self.1, 1e9);
            roster.follow(rules(), 1e9);
            roster
        }
    }

    /// Waits for all answers.
    fn settle(roster: &mut Roster) {
        roster.settle(Duration::ZERO, Duration::from_secs(60));
        assert!(roster.turns.is_done());
    }

    fn told(roster: &mut Roster) -> Option<Vec<String>> {
        settle(roster);
        let rules = rules();
        let changes = roster.changes()?;
        let all = changes
            .iter()
            .flat_map(|(rule, tenants)| tenants.values().map(move |members| (rule, members)));
        let lines = all.flat_map(|(&rule, members)| {
            let name = rules[rule].name.clone();
            let line = move |(id, label): (&ProcessId, &Arc<str>)| {
                format!("{name}: {}@{} {label}", id.pid, id.start_ticks)
            };
            members.iter().map(line).collect::<Vec<_>>()
        });
        Some(lines.collect())
    }

    #[test]
    fn processes_are_found_in_the_cgroups_that_rules_are_about() {
        let machine = Machine::new("cgroup2");
        for (pid, executable) in [(11, "/bin/server"), (12, "/opt/tool (deleted)"), (13, "/x")] {
            machine.process(pid, u64::from(pid), executable);
        }
        machine.group("/s.slice/a1.service", &[11, 12]);
        machine.group("/b/c", &[13]);
        let mut roster = machine.roster();
        assert_eq!(roster.find(12).as_deref(), Some("/s.slice/a1.service"));
        assert_eq!(roster.find(99), None);
        roster.step(STEP);
        let found = [
            "tool: 12@12 a1.service",
            "unit: 11@11 a1.service",
            "mine: 13@13 /b/c",
        ];
        assert_eq!(told(&mut roster).unwrap(), found);
        roster.step(2 * STEP);
        assert_eq!(told(&mut roster), None, "nothing has changed");
        assert_eq!(roster.account(STEP).how, "cgroups");

        // The number has gone to another process.
        machine.process(13, 99, "/x");
        roster.step(3 * STEP);
        assert!(
            told(&mut roster)
                .unwrap()
                .contains(&"mine: 13@99 /b/c".to_owned())
        );
        // It executes something else.
        machine.process(13, 99, "/y/tool");
        roster.step(4 * STEP);
        assert!(
            told(&mut roster)
                .unwrap()
                .contains(&"tool: 13@99 /b/c".to_owned())
        );
    }

    #[test]
    fn a_service_that_is_started_is_found_by_events_alone() {
        let machine = Machine::new("cgroup2");
        machine.process(11, 11, "/bin/server");
        let mut roster = machine.roster();
        roster.step(STEP);
        assert_eq!(told(&mut roster).unwrap(), [""; 0]);
        for round in 0..3 {
            machine.group("/s.slice/a1.service", &[]);
            roster.take_events(STEP);
            machine.group("/s.slice/a1.service", &[11]);
            roster.take_events(STEP);
            let found = ["unit: 11@11 a1.service"];
            assert_eq!(
                told(&mut roster).as_deref(),
                Some(&found.map(str::to_owned)[..]),
                "{round}"
            );
            let folder = machine.0.path().join("sys/fs/cgroup/s.slice/a1.service");
            fs::remove_dir_all(folder).unwrap();
            roster.take_events(STEP);
            assert_eq!(told(&mut roster).unwrap(), [""; 0]);
        }
        // A process that no rule could match is not even read.
        machine.group("/other", &[11]);
        roster.take_events(STEP);
        assert!(
            !roster.groups["/other"].candidates.is_empty(),
            "`tool` may be anywhere"
        );
    }

    #[test]
    fn without_the_unified_tree_all_processes_are_read() {
        let machine = Machine::new("tmpfs");
        for pid in [11, 12] {
            machine.process(pid, u64::from(pid), "/bin/server");
        }
        machine.write(
            "proc/11/cgroup",
            "4:memory:/m\n1:name=systemd:/s.slice/a1.service\n",
        );
        machine.write("proc/12/cgroup", "4:memory:/m\n1:name=systemd:/else\n");
        let mut roster = machine.roster();
        roster.step(STEP);
        assert_eq!(told(&mut roster).unwrap(), ["unit: 11@11 a1.service"]);
        let account = roster.account(STEP);
        assert_eq!(account.how, "processes");
        assert!(account.limited_because.unwrap().contains("version 2"));
        fs::remove_dir_all(machine.0.path().join("proc/11")).unwrap();
        roster.step(2 * STEP);
        assert_eq!(told(&mut roster).unwrap(), [""; 0]);
        let Source::Processes { places, .. } = &roster.source else {
            unreachable!()
        };
        assert_eq!(places.len(), 1);
    }

    #[test]
    fn nothing_is_left_of_what_is_gone() {
        let machine = Machine::new("cgroup2");
        let mut roster = machine.roster();
        for pid in 100..400 {
            machine.process(pid, 1, "/x");
            machine.group(&format!("/s.slice/a{pid}.service"), &[pid]);
            roster.take_events(STEP * pid);
            roster.step(STEP * pid);
            let folder = machine
                .0
                .path()
                .join(format!("sys/fs/cgroup/s.slice/a{pid}.service"));
            fs::remove_dir_all(folder).unwrap();
        }
        roster.take_events(STEP * 1000);
        let left: Vec<_> = roster.groups.keys().collect();
        assert_eq!(left, ["/", "/s.slice"]);
        assert_eq!(roster.changes().unwrap(), BTreeMap::new());
    }

    #[test]
    fn new_rules_match_everybody_anew() {
        let machine = Machine::new("cgroup2");
        machine.process(11, 11, "/bin/server");
        machine.group("/s.slice/a1.service", &[11]);
        let mut roster = machine.roster();
        roster.step(STEP);
        assert_eq!(told(&mut roster).unwrap().len(), 1);
        roster.follow(Arc::new([]), 1.0);
        roster.step(2 * STEP);
        assert_eq!(told(&mut roster).unwrap(), [""; 0]);
        assert_eq!(roster.due(3 * STEP), None, "nobody to look for");
        roster.follow(rules(), 1.0);
        roster.step(3 * STEP);
        assert_eq!(told(&mut roster).unwrap().len(), 1);
    }

    #[test]
    fn known_processes_keep_their_rule_until_they_have_been_asked_about_anew() {
        for version in ["cgroup2", "tmpfs"] {
            let machine = Machine::new(version);
            for (pid, executable, path) in [
                (11, "/bin/server", "/s.slice/a1.service"),
                (12, "/opt/tool", "/s.slice/a1.service"),
            ] {
                machine.process(pid, u64::from(pid), executable);
                let line = format!("4:memory:/m\n1:name=systemd:{path}\n");
                machine.write(&format!("proc/{pid}/cgroup"), &line);
            }
            machine.group("/s.slice/a1.service", &[11, 12]);
            let mut roster = machine.roster();
            roster.step(STEP);
            let found = told(&mut roster).unwrap();
            assert_eq!(found, ["tool: 12@12 a1.service", "unit: 11@11 a1.service"]);

            // Another rule comes first, and one is gone.
            let all = rules();
            let server = Conditions {
                executable: pattern("other"),
                ..Conditions::default()
            };
            let changed: Arc<[Rule]> =
                [rule("other", server), all[1].clone(), all[0].clone()].into();
            roster.follow(changed.clone(), 1e9);
            let at_once = roster.changes().unwrap();
            let members = |changes: &BTreeMap<usize, Tenants>, rule: usize| -> Vec<u32> {
                let tenants = changes.get(&rule).into_iter().flat_map(BTreeMap::values);
                tenants.flat_map(|it| it.keys().map(|id| id.pid)).collect()
            };
            // By its known facts, number 12 belongs to the unit now, whose rule comes before that of the tool.
            assert_eq!(members(&at_once, 1), [11, 12], "{version}");
            roster.step(2 * STEP);
            settle(&mut roster);
            assert_eq!(
                roster.changes(),
                None,
                "{version}: the answers change nothing"
            );
            assert!(roster.groups.values().all(|group| {
                let mut members = group.members.values();
                members.all(|member| !member.is_provisional)
            }));

            // One has become another program while the rules change.
            machine.process(11, 77, "/bin/other");
            roster.follow(changed, 1e9);
            roster.step(3 * STEP);
            settle(&mut roster);
            let changes = roster.changes().unwrap();
            assert_eq!(members(&changes, 0), [11], "{version}");
            assert_eq!(members(&changes, 1), [12], "{version}");
        }
    }

    const UID: &str = "0c1d9ba4-5f3e-4e0c-9d57-3f1f0f9f2c11";
    const ID: &str = "89ef0123456789abcdef0123456789abcdef0123456789abcdef0123456789ab";

    /// Returns the cgroup of a container, as each runtime makes it with each driver, and one beside it that is none.
    fn trees() -> [(String, String); 4] {
        let slice = format!(
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{}.slice",
            UID.replace('-', "_")
        );
        let folder = format!("/kubepods/burstable/pod{UID}");
        [
            (format!("{slice}/cri-containerd-{ID}.scope"), slice.clone()),
            (
                format!("{slice}/crio-{ID}.scope/container"),
                format!("{slice}/crio-conmon-{ID}.scope"),
            ),
            (format!("{folder}/{ID}"), folder.clone()),
            (
                format!("{folder}/crio-{ID}"),
                format!("{folder}/crio-conmon-{ID}"),
            ),
        ]
    }

    fn pod_rules() -> Arc<[Rule]> {
        let rule = |name: &str, change: &dyn Fn(&mut crate::rules::PodConditions)| {
            let mut conditions = Conditions::default();
            change(&mut conditions.pod);
            rule(name, conditions)
        };
        let says = |value: &str| crate::rules::KeyValue {
            key: "superhue.dev/pages".to_owned(),
            value: pattern(value),
        };
        [
            rule("off", &|pod| pod.annotations = vec![says("off")]),
            rule("server", &|pod| {
                pod.annotations = vec![says("hot")];
                pod.container = pattern("server");
            }),
            rule("everybody", &|_| ()),
        ]
        .into()
    }

    /// Waits until the rules have the expected processes.
    fn expect(roster: &mut Roster, expected: &[&str]) {
        let rules = pod_rules();
        let begun = Instant::now();
        let mut found: Vec<String> = Vec::new();
        while begun.elapsed() < Duration::from_secs(60) {
            roster.take_pods(STEP);
            settle(roster);
            // Also without a change since the last call.
            roster.changed = true;
            let changes = roster.changes().unwrap();
            let lines = changes.iter().flat_map(|(&rule, tenants)| {
                let name = &rules[rule].name;
                let members = tenants.values().flatten();
                members.map(move |(id, label)| format!("{name}: {} {label}", id.pid))
            });
            found = lines.collect();
            // They are ordered by tenant; the order of numbers is easier to read.
            let place = |line: &String| {
                let (rule, rest) = line.split_once(": ").unwrap();
                let rank = rules.iter().position(|it| *it.name == *rule);
                (rank, rest.to_owned())
            };
            found.sort_by_key(place);
            if found == expected {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("{found:?} and not {expected:?}");
    }

    #[test]
    fn pods_are_matched_in_the_trees_of_every_runtime_and_driver() {
        use crate::kubelet::fake::{Fake, pod};
        for (container, beside) in trees() {
            let machine = Machine::new("cgroup2");
            for pid in [11, 12, 13] {
                machine.process(pid, u64::from(pid), "/bin/server");
            }
            machine.group("/system.slice/a1.service", &[13]);
            let fake = Fake::with(&[]);
            let mut roster = Roster::new(&machine.1, 1e9);
            roster.ask_kubelet(Some(&fake.settings));
            roster.follow(pod_rules(), 1e9);
            roster.step(STEP);
            expect(&mut roster, &["everybody: 13 a1.service"]);

            // A pod appears: its processes get no rule before the kubelet has named it, not even the last one.
            machine.group(&container, &[11]);
            machine.group(&beside, &[12]);
            roster.take_events(STEP);
            roster.step(2 * STEP);
            expect(&mut roster, &["everybody: 13 a1.service"]);
            // The kubelet names a container later than its pod: the roster asks again.
            fake.answer(&[pod(UID, "redis-0", "hot", "")]);
            roster.step(3 * STEP);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_secs(60) && roster.pods().is_empty() {
                roster.take_pods(STEP);
                std::thread::sleep(Duration::from_millis(5));
            }
            expect(&mut roster, &["everybody: 13 a1.service"]);
            fake.answer(&[pod(UID, "redis-0", "hot", ID)]);
            roster.step(4 * STEP);
            let server = "server: 11 shop/redis-0";
            expect(&mut roster, &[server, "everybody: 13 a1.service"]);
            assert_eq!(
                roster.account(STEP).pods.unwrap().known,
                Some(1),
                "{container}"
            );

            // The annotation is changed, and changed back.
            fake.answer(&[pod(UID, "redis-0", "off", ID)]);
            roster.kubelet().unwrap().ask();
            let off = [
                "off: 11 shop/redis-0",
                "off: 12 shop/redis-0",
                "everybody: 13 a1.service",
            ];
            expect(&mut roster, &off);
            fake.answer(&[pod(UID, "redis-0", "none", ID)]);
            roster.kubelet().unwrap().ask();
            let all = [
                "everybody: 11 shop/redis-0",
                "everybody: 12 shop/redis-0",
                "everybody: 13 a1.service",
            ];
            expect(&mut roster, &all);

            // It ends.
            let mut folder = machine.0.path().join("sys/fs/cgroup");
            folder.push(if container.starts_with("/kubepods.") {
                "kubepods.slice"
            } else {
                "kubepods"
            });
            fs::remove_dir_all(folder).unwrap();
            roster.take_events(STEP);
            roster.step(5 * STEP);
            expect(&mut roster, &["everybody: 13 a1.service"]);
            assert!(roster.pod_groups.is_empty(), "{:?}", roster.pod_groups);
            assert!(roster.unnamed.is_empty(), "{:?}", roster.unnamed);
        }
    }

    #[test]
    fn without_the_unified_tree_pods_are_matched_too() {
        use crate::kubelet::fake::{Fake, pod};
        let machine = Machine::new("tmpfs");
        machine.process(11, 11, "/bin/server");
        let [(container, _), ..] = trees();
        machine.write(
            "proc/11/cgroup",
            &format!("4:memory:/m\n1:name=systemd:{container}\n"),
        );
        let fake = Fake::with(&[pod(UID, "redis-0", "hot", ID)]);
        let mut roster = Roster::new(&machine.1, 1e9);
        roster.ask_kubelet(Some(&fake.settings));
        roster.follow(pod_rules(), 1e9);
        roster.step(STEP);
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) && roster.pods().is_empty() {
            roster.take_pods(2 * STEP);
            std::thread::sleep(Duration::from_millis(5));
        }
        roster.step(2 * STEP);
        expect(&mut roster, &["server: 11 shop/redis-0"]);
    }

    #[test]
    fn a_process_that_comes_back_is_asked_about_again() {
        let rules = rules();
        let mut turns = QueryScheduler::new(&Roots::default(), 0.0);
        let mut group = Group::new("/b/x", &rules, &Pods::default()).unwrap();
        let own = std::process::id();
        // The question that waits may be about another process of that number.
        for (is_there, waiting) in [(true, 1), (false, 1), (true, 2), (true, 2)] {
            let pids = is_there.then_some(own).into_iter().collect();
            group.has(pids, &rules, &mut turns, STEP, false);
            assert_eq!(turns.waiting(), waiting);
        }
        group.remove(own);
        group.add(own, None, &rules, &mut turns, STEP);
        assert_eq!(turns.waiting(), 3);
    }
}
