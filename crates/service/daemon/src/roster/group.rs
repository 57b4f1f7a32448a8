//! A cgroup of interest, with the processes in it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use superhue_model::ProcessId;

use super::answers::{Facts, YOUNG, next_question};
use super::lists::of_user;
use crate::pods::Pods;
use crate::rules::{Candidates, GroupFacts, Rule, candidates};
use crate::turns::{ProcessQuery, QueryScheduler};
use crate::workers::ProcessAnswer;

/// The daemon sends questions that are due within this time together: each message wakes the daemon and the reader.
pub(super) const AGAIN_TOGETHER: Duration = Duration::from_secs(5);

/// Number of requests to the kubelet, one a second, for a container that it has not named.
pub(super) const ASK_AGAIN: u8 = 10;

/// A cgroup that a rule could match.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) candidates: Candidates,
    pub(super) label: Arc<str>,
    path: Arc<str>,
    /// The tenant of its processes, if the cgroup determines it.
    tenant: Option<Arc<str>>,
    /// True if it may have processes; read from the kernel only where the kernel reports changes.
    pub(super) populated: bool,
    pub(super) members: BTreeMap<u32, Member>,
    /// The kernel's list of them, where it is read here.
    pub(super) list: Vec<u8>,
    /// Processes in the last list.
    pub(super) listed: BTreeSet<u32>,
    /// Processes with a question under way.
    pub(super) asked: BTreeSet<u32>,
    /// Time before which there is nothing to ask, unless the list changes.
    pub(super) quiet_until: Duration,
}

#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) id: ProcessId,
    since: Duration,
    /// Time of the last question about it.
    asked_at: Duration,
    pub(super) rule: Option<usize>,
    pub(super) tenant: Arc<str>,
    /// Facts of the last answer; `None` if the question covered less than other rules may need.
    facts: Option<Facts>,
    /// True since rules or its pod have changed, until there is an answer.
    pub(super) is_provisional: bool,
}

/// The place of a process, as far as it is known.
#[derive(Debug, Clone)]
pub(super) struct ProcessLocation {
    pub(super) since: Duration,
    /// Time of the last question about it.
    pub(super) asked_at: Duration,
    pub(super) path: Option<Arc<str>>,
    /// Tenant of the process, by its user.
    pub(super) tenant: Option<Arc<str>>,
    /// True while a question about it is under way.
    pub(super) is_asked: bool,
}

impl Group {
    /// Makes the cgroup at `path`; `None` if no rule could match it.
    pub(super) fn new(path: &str, rules: &[Rule], pods: &Pods) -> Option<Self> {
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
    pub(super) fn has(
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
    pub(super) fn carry_over(&mut self, earlier: Self, before: &[Rule], rules: &[Rule]) {
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
    pub(super) fn add(
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
    pub(super) fn remove(&mut self, pid: u32) -> bool {
        self.listed.remove(&pid);
        self.asked.remove(&pid);
        let gone = self.members.remove(&pid);
        gone.is_some_and(|member| member.rule.is_some())
    }

    /// Takes an answer about a process; returns true if it changes a member.
    pub(super) fn take(
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
            // A thread of the kernel, ours, or gone: noted, so that no other question about it follows at once.
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
