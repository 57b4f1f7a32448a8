//! Promotions that follow a decision, as `--max-stall` allows them.
//!
//! The bound on the delay of a process lets a few collapses pass, then there is a pause of some 20 ms. A decision reads every region, and costs as
//! much CPU time as a tenth of a collapse where there are thousands. So one decision is good for several pauses: it keeps the regions that wait only
//! for that bound, best first, and each pause ends with a few of them.
//!
//! ```text
//!   decide   ##   resume   ##   resume   ##   resume   ##   decide   ##      ## collapses
//!            best         next          next          next      a look has come
//! ```
//!
//! Whatever the policy has learned since is taken into account, but nothing that only a look can show. The check right before each collapse finds out
//! what has changed (`superhue_act`).

use std::collections::BTreeSet;
use std::time::Duration;

use superhue_model::Plan;

use super::{Promoter, count, find};
use crate::candidate::{Candidate, Rule};
use crate::clock::Tick;
use crate::record::OUTCOME_TIMEOUT;

/// Most regions of one process that a decision keeps: enough for half a second of collapses of 0.5 ms each.
pub(super) const MOST_SPARED: usize = 64;

impl<R: Rule> Promoter<R> {
    /// Keeps those of the regions for later that the decision could not have planned for another reason.
    pub(super) fn keep_spared(&mut self, is_limited_by_rate: bool) {
        // The best ones wait for the rate, and these must not go before them.
        if is_limited_by_rate {
            self.spared.clear();
            return;
        }
        if self.rule.is_by_worth() {
            return;
        }
        // The cheapest go first: if none of those kept fits the budget, no other one does.
        let room = self.room();
        self.spared.retain(|it| u64::from(it.growth) <= room);
        let kept = self.owners_of_spared();
        for (owner, memory) in (0u32..).zip(&mut self.owners) {
            memory.is_spared &= kept.contains(&owner);
        }
    }

    /// Plans the best of the regions that waited only for `--max-stall`.
    pub(super) fn plan_spared(&mut self, at: Duration) -> Plan {
        let now = self.clock.advance(at);
        // While huge pages are short, each promotion is a probe that a decision chooses.
        if self.machine.is_troubled() || self.machine.until() > now {
            return Plan::default();
        }
        let mut actions = Vec::new();
        let mut rest = Vec::new();
        let mut left = self.rate.available(now);
        for candidate in std::mem::take(&mut self.spared) {
            let Some(memory) = find(&self.owners, &candidate) else {
                continue;
            };
            if left == 0 || memory.spares(now, self.max_stall) == 0 {
                rest.push(candidate);
                continue;
            }
            let cost = u64::from(candidate.growth);
            let room = match candidate.is_proven {
                true => self.room(),
                false => self.unproven_room(),
            };
            // The next decision judges it again.
            if cost > room || !memory.may_promote(&candidate, now, &self.rule) {
                continue;
            }
            if let Some(action) = self.launch(&candidate, now) {
                self.charged += cost;
                self.rate.take(now);
                left -= 1;
                actions.push(action);
            }
        }
        self.spared = rest;
        let planned = count(actions.len());
        if planned > 0 {
            self.next_expiry.add(now.after(OUTCOME_TIMEOUT));
        } else {
            // Otherwise the outcome shows how long the next pause is.
            self.look_for_spared(now);
        }
        self.ledger.planned += planned;
        self.ledger.in_flight += planned;
        let waiting = &mut self.ledger.waiting.stall;
        *waiting = waiting.saturating_sub(planned);
        self.account();
        let mut plan = Plan::of(actions);
        plan.bounds = self.bounds(&plan.actions, now);
        plan
    }

    fn owners_of_spared(&self) -> BTreeSet<u32> {
        self.spared.iter().map(|it| it.owner).collect()
    }

    /// Requests a decision for the processes that wait for the end of a pause, and of which no region is kept for it.
    pub(super) fn look_for_spared(&mut self, now: Tick) {
        let kept = match self.machine.is_troubled() {
            true => BTreeSet::new(),
            false => self.owners_of_spared(),
        };
        for (owner, memory) in (0u32..).zip(&self.owners) {
            if memory.is_spared && !kept.contains(&owner) {
                self.due.add(memory.stall.free().max(now));
            }
        }
    }

    /// Returns the time from the last call until [`Promoter::plan_spared`] has something to plan; `None` if it never has.
    pub(super) fn until_spared(&self) -> Option<Duration> {
        if self.machine.is_troubled() {
            return None;
        }
        let now = self.clock.now();
        let free = |candidate: &Candidate| {
            let memory = find(&self.owners, candidate)?;
            let free = memory.stall.free().max(now);
            (free > now || memory.spares(now, self.max_stall) > 0).then_some(free)
        };
        let free = self.spared.iter().filter_map(free).min()?;
        let refilled = self.rate.refilled_for(now, 1)?;
        Some(free.max(refilled).max(self.machine.until()).since(now))
    }
}
