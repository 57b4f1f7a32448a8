//! Planning of promotions: the pass that all promoting policies share. A policy is this pass with a [`Rule`].
//!
//! # A promotion from beginning to end
//!
//! ```text
//!   look     merge the snapshot into the history                     memory.rs             OwnedMemory::look
//!   filling  is the memory being filled? then it waits               memory.rs             OwnedMemory::is_filling
//!   ripe     does the rule want the region as it is?                 resident.rs, hot.rs   Rule::ripeness
//!   free     does no failure, rest or stall stand in its way?        memory.rs             OwnedMemory::propose
//!   choose   as many as rate and budget allow; with heat the most    here                  Promoter::take
//!            accesses per page added first, else the least growth    candidate.rs          Candidate::order
//!   plan     Action::Collapse; its growth is charged to the budget   here                  Promoter::launch
//!   act      MADV_COLLAPSE, from outside                             act/kernel.rs         KernelActuator::act
//!   learn    done; or what waits now, and for how long               here, backoff.rs      Promoter::conclude
//! ```
//!
//! Regions that only wait for the stall bound are planned later, without another decision: `promoter/resume.rs`.
//!
//! One decision is one pass over the snapshot and the memory, side by side, and a partial sort of the candidates: linear in
//! the number of regions.

mod overdrawn;
mod resume;

use std::collections::BTreeSet;
use std::time::Duration;

use superhue_model::{
    Action, ActionResult, ByteCount, CollapseBound, Effect, Memory, Outcome, Owner, PageCount,
    Plan, Region, Share, Snapshot,
};

use crate::backoff::{Consequence, GROUP_SHORTAGE, MACHINE, REGION, REST, SHARED, Wait};
use crate::candidate::{Candidate, Rule, Shortlist};
use crate::clock::{Clock, EarliestTick, Tick};
use crate::ledger::{Ledger, TrackedCounts, WaitingCounts};
use crate::memory::{OwnedMemory, PromotionBounds, Sums};
use crate::quota::{MaxStall, RateLimit};
use crate::record::{OUTCOME_TIMEOUT, Record};
use crate::torn::TornSplits;
use crate::{FULL, Policy, Quota};
use overdrawn::BudgetOverrun;
use resume::MOST_SPARED;

/// Time to the look that shows the pages freed by a split.
const AFTER_SPLIT: Duration = Duration::from_millis(100);

/// Time to the next look at memory that is being filled.
const WHILE_FILLING: Duration = Duration::from_millis(50);

/// Number of splits after which a kernel that has freed nothing gets no more requests (before Linux 6.12 a split keeps pages of zeroes), and the time
/// after which it gets some again.
const MAX_FUTILE_SPLITS: u64 = 16;
const FORGOTTEN: Duration = Duration::from_secs(3600);

/// Number of regions to keep of those that do not fit the budget.
const PRICED_OUT: usize = 32;

/// A policy that promotes the regions that its rule finds ripe.
#[derive(Debug)]
pub(crate) struct Promoter<R: Rule> {
    rule: R,
    budget: Option<Share>,
    rate: RateLimit,
    max_stall: Option<MaxStall>,
    spares_filling: bool,
    clock: Clock,
    /// Back-off for lack of free huge pages.
    machine: Wait,
    /// In the order of identities.
    owners: Vec<OwnedMemory<R::Note>>,
    /// Pages charged, over all processes.
    charged: u64,
    /// Pages among these that an earlier policy has charged. Its regions are not known here, so they stay charged while there are huge pages.
    carried: u64,
    /// Pages that may be charged, as of the last look; `None` if there is no limit.
    limit: Option<u64>,
    /// The regions worth most among those that do not fit the rest of it, under rules that go by worth.
    priced_out: Vec<Candidate>,
    /// The best of the regions that wait only for the stall bound of their process, best first, as of the last decision.
    spared: Vec<Candidate>,
    due: EarliestTick,
    next_expiry: EarliestTick,
    /// True if the last look left regions out that the outcome of a probe may set free.
    behind_probe: bool,
    torn: TornSplits,
    overdrawn: BudgetOverrun,
    /// Splits of huge pages that were known to hold zeroes, the pages that they freed, and the time of the last one.
    splits: (u64, u64),
    last_split: Tick,
    ledger: Ledger,
}

/// Regions that may be promoted but were not planned.
#[derive(Debug)]
struct UnplannedRegions {
    by_budget: usize,
    by_rate: usize,
    /// True if some were passed over for others.
    passed_over: bool,
}

impl<R: Rule> Promoter<R> {
    /// Makes a policy without a history.
    pub(crate) fn new(rule: R, quota: &Quota) -> Self {
        Self {
            rule,
            budget: quota.budget,
            rate: RateLimit::new(quota.rate),
            max_stall: quota.max_stall.map(MaxStall::new),
            spares_filling: quota.spares_filling,
            clock: Clock::default(),
            machine: Wait::NONE,
            owners: Vec::new(),
            charged: 0,
            carried: 0,
            limit: None,
            priced_out: Vec::new(),
            spared: Vec::new(),
            due: EarliestTick::default(),
            next_expiry: EarliestTick::default(),
            behind_probe: false,
            torn: TornSplits::default(),
            overdrawn: BudgetOverrun::default(),
            splits: (0, 0),
            last_split: Tick::START,
            ledger: Ledger::default(),
        }
    }

    /// Continues an account.
    pub(crate) fn with_ledger(mut self, ledger: Ledger) -> Self {
        self.carried = ledger.charged.whole_pages().0;
        self.charged = self.carried;
        self.ledger = ledger;
        self
    }

    /// Drops from the carried charge what cannot exist any more: it is in huge pages.
    fn drop_carried(&mut self, views: &[Memory<'_>], had_owners: bool) {
        if self.carried == 0 {
            return;
        }
        if !self.owners.is_empty() {
            let regions = views.iter().flat_map(|memory| memory.regions);
            let huge = regions.filter(|view| view.huge != Some(false)).count();
            self.carried = self.carried.min(count(huge) * u64::from(FULL));
        } else if had_owners {
            self.carried = 0;
        }
    }

    /// Merges the snapshot into the history. Returns the resident bytes of all memory that huge pages could map.
    fn look(&mut self, views: &[Memory<'_>], now: Tick, sums: &mut Sums) -> ByteCount {
        let mut used = ByteCount(0);
        let mut spare = Vec::new();
        let known = std::mem::take(&mut self.owners);
        let mut known = known.into_iter().peekable();
        for view in views {
            while let Some(mut lost) = known.next_if(|memory| memory.owner < view.owner) {
                lost.forget(sums);
            }
            let mut memory = known
                .next_if(|memory| memory.owner == view.owner)
                .unwrap_or_else(|| OwnedMemory::new(view.owner, now));
            let resident = memory.look(view, now, &self.rule, &mut spare, sums);
            // If RssAnon is not known, the resident pages seen stand in: a lower bound.
            used += view.used.unwrap_or(PageCount(resident).bytes());
            self.owners.push(memory);
        }
        for mut lost in known {
            lost.forget(sums);
        }
        used
    }

    /// Returns the regions that may be promoted now, as many as the rate allows; and, under rules that go by worth, the best of those that cost
    /// more than `room`, the pages that may still be charged.
    fn shortlist(&mut self, room: u64, now: Tick, sums: &mut Sums) -> (Shortlist, Shortlist) {
        let mut shortlist = Shortlist::new(self.rate.available(now));
        let mut priced_out = Shortlist::new(PRICED_OUT);
        if !self.machine.is_troubled() {
            let is_by_worth = self.rule.is_by_worth();
            let is_too_dear =
                |candidate: &Candidate| is_by_worth && u64::from(candidate.growth) > room;
            let counts = |candidate: &Candidate, _| !is_too_dear(candidate);
            self.propose(now, sums, counts, |candidate| {
                if is_too_dear(&candidate) {
                    priced_out.offer(candidate);
                } else {
                    shortlist.offer(candidate);
                }
            });
            return (shortlist, priced_out);
        }
        // One at a time while huge pages are short: a region that fits and has failed least probes whether they still are.
        let mut probe: Option<Candidate> = None;
        let mut held = 0;
        let may_probe = sums.in_flight == 0;
        // At most one is chosen anyway, and it need not be the best of its process.
        self.propose(
            now,
            sums,
            |_, spared| spared == 0,
            |candidate| {
                held += 1;
                if u64::from(candidate.growth) <= room
                    && probe.is_none_or(|best| candidate.probe_order() < best.probe_order())
                {
                    probe = Some(candidate);
                }
            },
        );
        if let Some(candidate) = probe.filter(|_| may_probe) {
            held -= 1;
            shortlist.offer(candidate);
        }
        sums.backing_off += held;
        sums.behind_probe += held;
        (shortlist, priced_out)
    }

    /// Offers every region that may be promoted now, process by process. Of those for which `counts` returns true (they are promoted unless another
    /// obstacle exists), it offers as many as the stall bound of the process allows. `counts` receives that number.
    fn propose(
        &mut self,
        now: Tick,
        sums: &mut Sums,
        counts: impl Fn(&Candidate, usize) -> bool,
        mut offer: impl FnMut(Candidate),
    ) {
        let bounds = PromotionBounds {
            until: self.machine.until(),
            unproven_room: self.unproven_room(),
        };
        let mut spared = std::mem::take(&mut self.spared);
        spared.clear();
        let may_resume = !self.machine.is_troubled();
        for (owner, memory) in (0u32..).zip(&mut self.owners) {
            memory.is_spared = false;
            if self.spares_filling && memory.is_filling(now) {
                sums.settling += count(memory.open());
                sums.due.add(now.after(WHILE_FILLING));
                continue;
            }
            let most = memory.spares(now, self.max_stall);
            if most == usize::MAX {
                memory.propose(owner, now, &self.rule, bounds, sums, &mut offer);
                continue;
            }
            let mut best = Shortlist::new(most.saturating_add(MOST_SPARED));
            memory.propose(owner, now, &self.rule, bounds, sums, |candidate| {
                if counts(&candidate, most) {
                    best.offer(candidate);
                } else {
                    offer(candidate);
                }
            });
            let offered = best.offered();
            let mut best = best.into_sorted();
            let later = best.split_off(most.min(best.len()));
            memory.is_spared = offered > best.len();
            sums.stalled += count(offered - best.len());
            best.into_iter().for_each(&mut offer);
            if may_resume {
                spared.extend(later);
            } else if memory.is_spared && memory.stall.free() > now {
                sums.due.add(memory.stall.free());
            }
        }
        spared.sort_unstable_by_key(Candidate::order);
        self.spared = spared;
    }

    /// Returns the pages that may still be charged.
    pub(crate) fn room(&self) -> u64 {
        self.limit
            .map_or(u64::MAX, |limit| limit.saturating_sub(self.charged))
    }

    /// Returns the pages that may still be charged for regions without evidence: what is left of half the budget. The other half is for those that
    /// evidence shows.
    fn unproven_room(&self) -> u64 {
        self.limit
            .map_or(u64::MAX, |limit| (limit / 2).saturating_sub(self.charged))
    }

    /// Returns the pages charged beyond the budget, if any.
    pub(crate) fn excess(&self) -> Option<u64> {
        let excess = self.charged.saturating_sub(self.limit?);
        (excess > 0).then_some(excess)
    }

    /// Returns true if splits free nothing: before Linux 6.12 the kernel keeps pages of zeroes.
    pub(crate) const fn splits_are_futile(&self) -> bool {
        self.splits.0 >= MAX_FUTILE_SPLITS && self.splits.1 == 0
    }

    /// Returns true if a split of this torn huge page is under way.
    pub(crate) fn is_torn(&self, owner: Owner, region: Region) -> bool {
        self.torn.is_in_flight(owner, region)
    }

    /// Returns the rule.
    pub(crate) const fn rule(&self) -> &R {
        &self.rule
    }

    /// Plans the promotions that rate and budget allow, best first.
    fn plan(&mut self, now: Tick, sums: &mut Sums) -> (Plan, WaitingCounts) {
        let mut actions = Vec::new();
        let mut left = self.take(&mut actions, now, sums);
        // If a region was passed over as too expensive, the list may have been cut before cheaper ones. Less than a huge page of the budget is left
        // then, so this ends soon.
        while left.passed_over {
            left = self.take(&mut actions, now, &mut Sums::default());
        }
        let mut waiting = WaitingCounts {
            settling: sums.settling,
            backing_off: sums.backing_off,
            stall: sums.stalled,
            budget: count(left.by_budget),
            ..WaitingCounts::default()
        };
        if left.by_rate > 0 {
            waiting.rate = count(left.by_rate);
            if let Some(refilled) = self.rate.refilled_for(now, left.by_rate) {
                sums.due.add(refilled);
            }
        } else {
            // Regions that were not planned had other reasons to wait.
            for memory in &mut self.owners {
                memory.served = now;
            }
        }
        self.keep_spared(left.by_rate > 0);
        let mut plan = Plan::of(actions);
        plan.bounds = self.bounds(&plan.actions, now);
        (plan, waiting)
    }

    /// Returns the bounds on the collapses of those of the owners to which `--max-stall` applies.
    fn bounds(&self, actions: &[Action], now: Tick) -> Vec<CollapseBound> {
        let Some(max) = self.max_stall else {
            return Vec::new();
        };
        let owners: BTreeSet<Owner> = actions.iter().map(Action::owner).collect();
        let bound = |owner| {
            let found = self.owners.binary_search_by_key(&owner, |it| it.owner);
            let left = self.owners.get(found.ok()?)?.stall.together(now, max)?;
            Some(CollapseBound { owner, left })
        };
        owners.into_iter().filter_map(bound).collect()
    }

    /// Plans the regions of the shortlist that the budget allows.
    fn take(&mut self, actions: &mut Vec<Action>, now: Tick, sums: &mut Sums) -> UnplannedRegions {
        let room = self.room();
        let (shortlist, priced_out) = self.shortlist(room, now, sums);
        let found = shortlist.offered();
        let too_dear = priced_out.offered();
        let candidates = shortlist.into_sorted();
        self.priced_out = priced_out.into_sorted();

        let unproven_room = self.unproven_room();
        let planned_before = actions.len();
        let mut spent = 0;
        let mut passed_over = 0;
        let mut is_spent = false;
        for candidate in &candidates {
            let cost = u64::from(candidate.growth);
            let room = if candidate.is_proven {
                room
            } else {
                unproven_room
            };
            if spent + cost > room {
                if self.rule.is_by_worth() {
                    passed_over += 1;
                    continue;
                }
                // All regions after this one cost at least as much.
                is_spent = true;
                break;
            }
            let Some(action) = self.launch(candidate, now) else {
                continue;
            };
            spent += cost;
            self.rate.take(now);
            actions.push(action);
        }
        self.charged += spent;
        let left = found - (actions.len() - planned_before);
        UnplannedRegions {
            by_budget: too_dear + if is_spent { left } else { 0 },
            by_rate: if is_spent { 0 } else { left },
            passed_over: passed_over > 0 && actions.len() > planned_before,
        }
    }

    /// Marks one candidate as planned.
    fn launch(&mut self, candidate: &Candidate, now: Tick) -> Option<Action> {
        let index = usize::try_from(candidate.owner).ok()?;
        let memory = self.owners.get_mut(index)?;
        let owner = memory.owner;
        let record = memory.record_mut(candidate)?;
        record.launch(now);
        let region = record.region;
        memory.launch(now);
        Some(Action::Collapse {
            owner,
            region,
            growth: PageCount(u64::from(candidate.growth)),
        })
    }

    /// Returns all owners, in the order of identities.
    pub(crate) fn owners_mut(&mut self) -> &mut [OwnedMemory<R::Note>] {
        &mut self.owners
    }

    /// Returns all owners, in the order of identities.
    pub(crate) fn owners(&self) -> &[OwnedMemory<R::Note>] {
        &self.owners
    }

    /// Returns the record of a region.
    pub(crate) fn find_mut(
        &mut self,
        owner: Owner,
        region: Region,
    ) -> Option<&mut Record<R::Note>> {
        find_mut(&mut self.owners, owner)?.find_mut(region)
    }

    /// Returns the history of an owner, if there is one.
    pub(crate) fn owner(&self, owner: Owner) -> Option<&OwnedMemory<R::Note>> {
        self.owners.get(place_of(&self.owners, owner)?)
    }

    /// Returns the regions that would be promoted if the budget were larger, best first.
    pub(crate) fn priced_out(&self) -> &[Candidate] {
        &self.priced_out
    }

    /// Returns the pages that may be charged in total, without end if there is no limit; `None` before the first look.
    pub(crate) const fn allowed_growth(&self) -> Option<u64> {
        match self.budget {
            None => Some(u64::MAX),
            Some(_) => self.limit,
        }
    }

    /// Returns the pages that may be charged in total; `None` for no limit.
    pub(crate) const fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// Returns the moment of the last call.
    pub(crate) const fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Requests a look after `wait` at the latest.
    pub(crate) fn look_after(&mut self, wait: Duration) {
        self.due.add(self.now().after(wait));
    }

    /// Plans a split: the record number `record` of the owner number `owner`.
    pub(crate) fn launch_split(&mut self, owner: usize, record: usize) -> Option<Action> {
        let now = self.now();
        let memory = self.owners.get_mut(owner)?;
        let owner = memory.owner;
        let record = memory.records_mut().get_mut(record)?;
        record.launch_split(now);
        let region = record.region;
        self.ledger.planned += 1;
        self.ledger.in_flight += 1;
        self.next_expiry.add(now.after(OUTCOME_TIMEOUT));
        Some(Action::Split { owner, region })
    }

    /// Takes in one result. Returns the pages that go back to the budget.
    fn conclude(&mut self, result: &ActionResult, now: Tick) -> u64 {
        if let Some(consequence) = self.torn.learn(&result.action, result.effect, now) {
            self.ledger.enter(result);
            match consequence {
                Consequence::NoSplits => {
                    let memory = find_mut(&mut self.owners, result.action.owner());
                    memory.into_iter().for_each(|memory| memory.no_split = true);
                }
                Consequence::Listed => {}
                _ => self.due.add(now.after(AFTER_SPLIT)),
            }
            return 0;
        }
        let region = result.action.region();
        let Some(memory) = find_mut(&mut self.owners, result.action.owner()) else {
            return 0;
        };
        let is_gone = memory.is_gone();
        let is_object = memory.owner.process().is_none();
        let consequence = Consequence::of(result.effect).about(&result.action);
        let was_tried = !matches!(result.effect, Effect::Skipped { .. });
        let is_collapse = matches!(result.action, Action::Collapse { .. });
        if was_tried && is_collapse {
            let recent = memory.stall.spend(now, result.took, self.max_stall);
            self.ledger.stalls.enter(recent);
        }
        let awaits = |record: &mut Record<_>| record.awaits(&result.action);
        if is_collapse && memory.find_mut(region).is_some_and(awaits) {
            memory.land();
        }
        let Some(record) = memory.find_mut(region) else {
            return 0;
        };
        if !record.awaits(&result.action) {
            if let Action::Collapse { growth, .. } = result.action
                && consequence == Consequence::Done
                && !is_gone
            {
                let growth = u16::try_from(growth.0).unwrap_or(FULL);
                self.charged += u64::from(record.done_late(growth, now));
            }
            return 0;
        }

        self.ledger.enter(result);
        let freed = match consequence {
            Consequence::Done => {
                record.done(now);
                memory.wait.succeed();
                match result.action {
                    Action::Collapse { growth, .. } => {
                        memory.short.succeed();
                        if growth.0 > 0 {
                            memory.lean.succeed();
                        }
                        self.machine.succeed();
                    }
                    // A split needs no huge page, so it shows nothing about whether there are any; but only a look shows the pages that it freed.
                    Action::Split { .. } => self.due.add(now.after(AFTER_SPLIT)),
                }
                return 0;
            }
            Consequence::NoSplits => {
                record.withdraw();
                memory.no_split = true;
                return 0;
            }
            Consequence::Listed => {
                record.list();
                return 0;
            }
            Consequence::RegionRefused => {
                let freed = record.refuse(now);
                if let Some(until) = record.refused_until() {
                    self.due.add(until);
                }
                return u64::from(freed);
            }
            Consequence::RegionWaits => {
                record.trouble.fail(now, &REGION);
                record.withdraw()
            }
            Consequence::RegionShared => {
                record.trouble.fail(now, &SHARED);
                record.withdraw()
            }
            Consequence::RegionPinned => {
                record.trouble.fail(now, &REST);
                record.withdraw()
            }
            Consequence::MachineWaits => {
                record.trouble.fail(now, &REGION);
                self.machine.fail(now, &MACHINE);
                record.withdraw()
            }
            Consequence::ProcessShort => {
                // Other regions come before it then.
                record.trouble.fail(now, &GROUP_SHORTAGE);
                let freed = record.withdraw();
                memory.short.fail(now, &GROUP_SHORTAGE);
                freed
            }
            Consequence::GrowthWaits => {
                let freed = record.withdraw();
                memory.lean.fail(now, &GROUP_SHORTAGE);
                freed
            }
            Consequence::ProcessGivenUp(why) => {
                let freed = record.withdraw();
                if memory.give_up(why) {
                    self.ledger.given_up.add(why);
                }
                return u64::from(freed);
            }
            // All processes that mapped the object when it was planned have ended; it may have others, and its charge stays.
            Consequence::ProcessGone if is_object => {
                record.trouble.fail(now, &REGION);
                record.withdraw()
            }
            Consequence::ProcessGone => {
                let freed = record.withdraw();
                return u64::from(freed) + memory.vanish(now);
            }
            Consequence::Withdrawn => record.withdraw(),
        };
        // It will be tried again.
        let region_free = memory
            .find_mut(region)
            .map_or(now, |record| record.trouble.until());
        let free = region_free.max(memory.until(freed > 0));
        let free = free.max(memory.stall.free());
        self.due.add(free.max(self.machine.until()));
        u64::from(freed)
    }
}

impl<R: Rule> Policy for Promoter<R> {
    fn allow(&mut self, budget: Option<Share>) {
        self.budget = budget;
        // What it allows is known at the next decision.
        self.spared.clear();
    }

    fn resume(&mut self, at: Duration) -> Plan {
        self.plan_spared(at)
    }

    fn resumes_within(&self) -> Option<Duration> {
        self.until_spared()
    }

    fn decide(&mut self, snapshot: &Snapshot) -> Plan {
        let now = self.clock.advance(snapshot.at);
        self.machine.forget(now, &MACHINE);

        let mut sums = Sums::default();
        let views = by_owner(snapshot);
        let had_owners = !self.owners.is_empty();
        let used = self.look(&views, now, &mut sums);
        self.drop_carried(&views, had_owners);
        self.charged = sums.charged + self.carried;
        let budget = self.budget.map(|budget| budget.of(used));
        self.limit = budget.map(|budget| budget.whole_pages().0);
        self.splits.0 += sums.splits;
        self.splits.1 += sums.freed;
        // The kernel cannot change, but programs may write to pages that were zeroes a moment ago.
        if sums.splits > 0 {
            self.last_split = now;
        } else if self.splits_are_futile() && now.since(self.last_split) >= FORGOTTEN {
            self.splits = (0, 0);
        }
        self.overdrawn
            .note_settled(sums.settled, sums.returned, now);
        let news = self.torn.look(&views, now);
        sums.returned += news.returned;
        sums.expired += news.expired;
        sums.in_flight += self.torn.in_flight();
        // Splits of torn huge pages come before promotions.
        let owners = &self.owners;
        let may_split = |owner| {
            let memory = place_of(owners, owner).and_then(|at| owners.get(at));
            memory.is_none_or(|memory| !memory.no_split)
        };
        let mut splits = (self.torn).plan(&views, may_split, now, &mut sums.due);
        let (mut plan, waiting) = self.plan(now, &mut sums);
        splits.append(&mut plan.actions);
        plan.actions = splits;

        if !plan.actions.is_empty() {
            sums.next_expiry.add(now.after(OUTCOME_TIMEOUT));
        }
        self.due = sums.due;
        self.next_expiry = sums.next_expiry;
        self.behind_probe = sums.behind_probe > 0;

        let ledger = &mut self.ledger;
        let planned = count(plan.actions.len());
        ledger.budget = budget;
        ledger.planned += planned;
        ledger.expired += sums.expired;
        ledger.vanished += sums.vanished;
        ledger.in_flight = sums.in_flight + planned;
        ledger.waiting = waiting;
        ledger.tracked = TrackedCounts {
            processes: count(self.owners.len()),
            regions: sums.regions,
        };
        ledger.returned.0 += sums.returned;
        ledger.compaction = sums.compaction;
        let mut overdrawn = std::mem::take(&mut self.overdrawn);
        plan.actions.extend(overdrawn.decide(self));
        self.overdrawn = overdrawn;
        self.account();
        plan
    }

    fn learn(&mut self, at: Duration, outcome: &Outcome) {
        let now = self.clock.advance(at);
        let awaited = self.ledger.in_flight > 0;
        let mut freed = 0;
        for result in &outcome.results {
            let pages = self.conclude(result, now);
            self.charged = self.charged.saturating_sub(pages);
            freed += pages;
        }
        self.look_for_spared(now);
        let budget_freed = freed > 0 && self.ledger.waiting.budget > 0;
        let probe_back = self.behind_probe && awaited && self.ledger.in_flight == 0;
        if budget_freed || probe_back {
            self.due.add(self.machine.until().max(now));
        }
        self.account();
    }

    fn wants_look_within(&self) -> Option<Duration> {
        let mut due = self.due;
        if let Some(expiry) = self.next_expiry.get().filter(|_| self.ledger.in_flight > 0) {
            due.add(expiry);
        }
        due.get().map(|due| due.since(self.clock.now()))
    }

    fn ledger(&self) -> &Ledger {
        &self.ledger
    }
}

impl<R: Rule> Promoter<R> {
    /// Copies the charge into the ledger.
    fn account(&mut self) {
        let charged = PageCount(self.charged).bytes();
        self.ledger.charged = charged;
        self.ledger.peak_charged = self.ledger.peak_charged.max(charged);
    }
}

/// Returns the memories of a snapshot in the order of their owners, each once.
fn by_owner(snapshot: &Snapshot) -> Vec<Memory<'_>> {
    let mut views: Vec<Memory<'_>> = snapshot.memories().collect();
    views.sort_by_key(|view| view.owner);
    views.dedup_by_key(|view| view.owner);
    views
}

/// Returns the memory of one owner.
fn find_mut<N>(owners: &mut [OwnedMemory<N>], owner: Owner) -> Option<&mut OwnedMemory<N>> {
    let index = place_of(owners, owner)?;
    owners.get_mut(index)
}

/// Returns the memory of a candidate.
fn find<'a, N>(owners: &'a [OwnedMemory<N>], candidate: &Candidate) -> Option<&'a OwnedMemory<N>> {
    owners.get(usize::try_from(candidate.owner).ok()?)
}

/// Returns the index of an owner.
fn place_of<N>(owners: &[OwnedMemory<N>], owner: Owner) -> Option<usize> {
    owners
        .binary_search_by_key(&owner, |memory| memory.owner)
        .ok()
}

/// Converts a number of items in memory.
fn count(n: usize) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use superhue_model::{ObjectId, ObjectView, RegionView, VirtAddr, VirtRange};

    use super::*;
    use crate::Scheme;

    #[test]
    fn an_object_whose_mapper_ended_keeps_its_charge() {
        let mut scheme = Scheme::always();
        scheme.quota.budget = None;
        let mut policy = scheme.policy();
        let window = |number: u64, huge: bool| RegionView {
            region: Region::containing(VirtAddr(number << 21)),
            resident: PageCount(if huge { 512 } else { 400 }),
            huge: Some(huge),
        };
        let mut snapshot = Snapshot::default();
        let mut decide = |ms: u64, regions: Vec<RegionView>, effect: Effect| {
            snapshot.at = Duration::from_millis(ms);
            snapshot.objects = vec![ObjectView {
                id: ObjectId {
                    device: (0, 1),
                    inode: 7,
                },
                is_file: false,
                fills: false,
                resident: PageCount(1024).bytes(),
                mapped: vec![VirtRange::new(VirtAddr(0), VirtAddr(8 << 20)).unwrap()],
                regions,
                heat: None,
            }];
            let actions = policy.decide(&snapshot).actions;
            let results = actions.iter().map(|&action| ActionResult {
                action,
                effect,
                took: Duration::from_millis(1),
            });
            let results = results.collect();
            policy.learn(snapshot.at, &Outcome { results });
            (actions.len(), policy.ledger().charged)
        };
        let one = PageCount(112).bytes();
        assert_eq!(decide(0, vec![window(0, false)], Effect::Done), (1, one));
        // Another region of it grows, and all processes that mapped it end before the collapse.
        let both = vec![window(0, true), window(1, false)];
        assert_eq!(decide(1000, both.clone(), Effect::Vanished), (1, one));
        let two = PageCount(224).bytes();
        assert_eq!(decide(2000, both, Effect::Done), (1, two));
    }
}
