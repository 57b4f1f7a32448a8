//! Lists of cgroups and of the processes in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use superhue::{ceiling, cpu_time};
use superhue_procfs::process::numbers;

use super::answers::{YOUNG, next_question};
use super::group::{Group, ProcessLocation};
use super::{Roster, Source};
use crate::groups::{Changes, is_populated, list, listed};
use crate::turns::ProcessQuery;

/// Time between two lists of the processes in cgroups of interest, if their number allows; and at most, whatever their number, so that a crowd does
/// not delay other tenants: a list takes up to a microsecond for each process.
const READ_EVERY: Duration = Duration::from_secs(1);
const READ_AT_LEAST: Duration = Duration::from_millis(1100);

/// Time for which events of the tree are gathered before they are taken: at least, and at most.
const GATHER: Duration = Duration::from_millis(50);
const GATHER_AT_MOST: Duration = Duration::from_secs(1);

/// Time between two walks of the tree, where the kernel does not report everything.
const ANEW_EVERY: Duration = Duration::from_secs(10);

/// Longest time to a walk for events that were missed, whatever the last one cost.
const WALK_AT_MOST: Duration = Duration::from_secs(60);

impl Roster {
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

    pub(super) fn list(&mut self, at: Duration) {
        if self.rules.is_empty() || at < self.next_read {
            return;
        }
        let begun = cpu_time();
        let anew = at >= self.next_anew;
        if let Source::Tree(groups) = &mut self.source
            && (groups.is_incomplete() && at >= self.next_walk
                || anew && groups.limited().is_some())
        {
            let changes = groups.walk();
            self.apply(changes, at);
            let cost = cpu_time().saturating_sub(begun);
            self.next_walk = at + ceiling::apart(cost, self.share).min(WALK_AT_MOST);
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
    pub(super) fn take_in(&mut self, paths: &BTreeSet<String>) {
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
    pub(super) fn read_group(&mut self, path: &str, at: Duration, anew: bool) {
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

    pub(super) fn make_group(&mut self, path: &str) {
        if !self.groups.contains_key(path)
            && let Some(group) = Group::new(path, &self.rules, &self.pods)
        {
            self.groups.insert(path.to_owned(), group);
        }
    }
}

/// Returns the tenant of a user, whose processes act together where no cgroup determines more.
pub(super) fn of_user(user: u32) -> Arc<str> {
    format!("user {user}").into()
}
