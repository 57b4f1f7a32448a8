//! Accounts of the watches, added up by rule.

use std::sync::Arc;
use std::time::Duration;

use superhue::live::WatchAccount;

use super::shares::size_of_budget;
use super::{LaneState, RuleState, Watches};
use crate::account::{HeldUpAccount, RuleAccount, WorkersAccount};
use crate::convergence::Convergence;
use crate::metrics::WatchSample;
use crate::rules::Rule;

impl Watches {
    /// Returns the accounts of the rules that have or had processes, in order.
    pub(crate) fn account(&self) -> Vec<RuleAccount> {
        let of_rule = |rule: &Rule| {
            let kept = self.kept.get(&rule.name)?;
            Some(RuleAccount {
                name: rule.name.to_string(),
                off: kept.placement.is_none(),
                processes: kept.processes,
                watch: kept.all.clone(),
                converged_seconds: kept.convergence.seconds(),
                held: self.held.contains(&rule.name),
                trial: None,
            })
        };
        self.rules.iter().filter_map(of_rule).collect()
    }

    /// Returns the account of the workers of all rules.
    pub(crate) fn workers(&self) -> WorkersAccount {
        let lanes = || self.kept.values().flat_map(|kept| kept.lanes.values());
        let running = || lanes().filter_map(|lane| lane.running.as_ref());
        let ending = || self.ending.iter().map(|(running, ..)| running);
        let cpu = (running().chain(ending()))
            .map(|running| running.worker.cpu_time())
            .sum::<Duration>();
        let memory = (running().chain(ending()).map(|running| running.memory))
            .chain(self.left.iter().map(|left| left.memory));
        let seconds = |since: Duration| self.now.saturating_sub(since).as_secs_f64();
        let left = self.left.iter().map(|left| HeldUpAccount {
            rule: Some(left.rule.to_string()),
            tenant: left.tenant.to_string(),
            process: left.process,
            worker: Some(left.worker.pid()),
            seconds: seconds(left.since),
        });
        let avoided = self
            .avoided
            .iter()
            .filter(|(_, avoided)| avoided.avoidance.holds(self.now));
        let avoided = avoided.map(|(&pid, avoided)| HeldUpAccount {
            rule: Some(avoided.rule.to_string()),
            tenant: avoided.tenant.to_string(),
            process: Some(pid),
            worker: None,
            seconds: seconds(avoided.avoidance.since),
        });
        WorkersAccount {
            running: running().count() as u64,
            started: self.started,
            given_up: self.given_up,
            left_behind: left.collect(),
            left_alone: avoided.collect(),
            cpu_seconds: (self.spent + cpu).as_secs_f64(),
            memory_bytes: memory.sum(),
        }
    }

    /// Returns the accounts of all watches, including those that are ending.
    pub(crate) fn seen(&self) -> Vec<WatchSample> {
        let ending = self
            .ending
            .iter()
            .map(|(running, name, _)| running.seen(name));
        let lanes = |(name, kept): (&'_ Arc<str>, &'_ RuleState)| {
            let running = kept.lanes.values().filter_map(|lane| lane.running.as_ref());
            running
                .map(|running| running.seen(name))
                .collect::<Vec<_>>()
        };
        ending.chain(self.kept.iter().flat_map(lanes)).collect()
    }

    /// Returns the last accounts of watches that have ended since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<WatchSample> {
        std::mem::take(&mut self.ended)
    }

    /// Returns the longest time since a watch of each rule of [`Self::account`] published an account.
    pub(crate) fn ages(&self) -> Vec<Option<Duration>> {
        let rules = self.rules.iter();
        let kept = rules.filter_map(|rule| self.kept.get(&rule.name));
        kept.map(|kept| kept.age(self.now)).collect()
    }

    /// Returns the number of processes of a rule, and the account of its watches.
    pub(crate) fn of(&self, name: &str) -> (u64, Option<Arc<WatchAccount>>) {
        let kept = self.kept.get(name);
        kept.map_or((0, None), |kept| (kept.processes, kept.all.clone()))
    }
}

impl RuleState {
    /// Adds up all accounts, and compares the sum with the one before.
    pub(super) fn add_up(&mut self) {
        self.all = self.sum();
        match &self.all {
            Some(all) => self.convergence.look(superhue::since_boot(), all),
            None => self.convergence = Convergence::default(),
        }
    }

    pub(super) fn sum(&self) -> Option<Arc<WatchAccount>> {
        let mut lanes = self.lanes.values();
        if self.past == WatchAccount::default()
            && self.lanes.len() == 1
            && let Some(LaneState {
                running: Some(running),
                trouble: None,
                ..
            }) = lanes.next()
            && running.is_heard
        {
            return Some(Arc::clone(&running.account));
        }
        let mut all = self.past.clone();
        let mut any = self.placement.is_some() && self.past != WatchAccount::default();
        for watched in self.lanes.values() {
            if let Some(running) = watched.running.as_ref().filter(|it| it.is_heard) {
                all.add(&running.account);
                any = true;
            }
            if let Some((text, _)) = &watched.trouble {
                any = true;
                all.trouble.get_or_insert_with(|| text.clone());
            }
        }
        if let Some(size) = self.placement.as_ref().and_then(size_of_budget) {
            all.budget_bytes = Some(size);
        }
        any.then(|| Arc::new(all))
    }

    /// Returns the longest time since a watch published an account; `None` without a watch.
    fn age(&self, now: Duration) -> Option<Duration> {
        let lanes = self.lanes.values().filter(|lane| !lane.members.is_empty());
        let ages =
            lanes.filter_map(|lane| Some(now.saturating_sub(lane.running.as_ref()?.renewed)));
        ages.max()
    }
}
