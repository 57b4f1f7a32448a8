//! Keeps a client to its terms. The worker measures; it does not use the figures of the client.
//!
//! ```text
//!   collapse ──> growth: 512 pages less those that are resident now      (the plan's own figure is ignored)
//!            ──> rate left? budget left? ──no──> skipped, with the reason
//!            ──> done: the growth is charged to its region
//!   budget used up ──> split regions and ended processes are given back, once a second
//! ```
//!
//! The budget is that of one client. The added memory stays in the processes of the user when the client ends, and the kernel charges it to
//! their control group, like memory that a program touches. So the budget keeps huge pages from using memory without the administrator's consent.
//! It does not limit a user: a control group does.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use superhue_model::{
    Action, ActionResult, ByteCount, Effect, HUGE_PAGE_SIZE, Outcome, Owner, PAGES_PER_REGION,
    PageCount, Plan, ProcessId, Region, SkipReason,
};

use super::wire::Terms;
use crate::{Actuator, Mappers};

/// Time between two searches for regions to take off the charge.
const RECLAIM: Duration = Duration::from_secs(1);

/// Number of processes that count for a budget in percent, at most.
const MOST_NAMED: usize = 4096;

/// Time for which an unused rate adds up.
const BURST: Duration = Duration::from_secs(1);

/// A view of processes. `None` means that the caller may not look.
pub trait ResidencyView: Send {
    /// Returns the resident pages of a region, without the shared page of zeroes and without pages freed lazily.
    fn resident(&self, process: ProcessId, region: Region) -> Option<PageCount>;

    /// Returns true if one huge page maps the region.
    fn is_huge(&self, process: ProcessId, region: Region) -> Option<bool>;

    /// Returns the anonymous memory of a process; `None` if it has ended, or the caller may not look at it.
    fn anonymous(&self, process: ProcessId) -> Option<ByteCount>;

    /// Returns true if a process has not ended, whether or not the caller may look at its memory.
    fn runs(&self, process: ProcessId) -> bool;
}

/// An actuator within the terms of a client.
pub struct LimitedActuator<A> {
    inner: A,
    sight: Box<dyn ResidencyView>,
    terms: Terms,
    /// The processes of the client, for a budget in percent.
    named: BTreeSet<ProcessId>,
    /// The memory that each region has added.
    charged: BTreeMap<(ProcessId, Region), PageCount>,
    used: PageCount,
    /// The budget in bytes, and the time of its calculation.
    allowed: Option<(ByteCount, Instant)>,
    reclaimed: Option<Instant>,
    /// Bytes that may be collapsed now, and the time of that figure.
    saved: (u64, Instant),
    mappers: Mappers,
}

impl<A: Actuator> LimitedActuator<A> {
    /// Puts `inner` under `terms`. `inner` reaches regions of shared objects through `mappers`.
    #[must_use]
    pub fn new(inner: A, sight: Box<dyn ResidencyView>, terms: Terms, mappers: Mappers) -> Self {
        let saved = terms
            .rate
            .map_or(u64::MAX, |rate| rate.0.max(HUGE_PAGE_SIZE));
        Self {
            inner,
            sight,
            terms,
            named: BTreeSet::new(),
            charged: BTreeMap::new(),
            used: PageCount(0),
            allowed: None,
            reclaimed: None,
            saved: (saved, Instant::now()),
            mappers,
        }
    }

    /// Tries an action under the bounds that are left of its plan.
    fn try_one(
        &mut self,
        action: Action,
        bounded: &Plan,
        stop: &dyn Fn() -> bool,
    ) -> (Effect, Duration) {
        let Action::Collapse { owner, region, .. } = action else {
            let done = self.have_done(&bounded.part(&[action]), stop);
            if let (Effect::Done, Some(process)) = (done.0, action.owner().process()) {
                self.give_back((process, action.region()));
            }
            return done;
        };
        let places = match owner {
            Owner::Process(process) => vec![(process, region)],
            Owner::Object(object) => (self.mappers)(object, region),
        };
        for &(process, _) in &places {
            self.name(process);
        }
        if !self.is_in_time() {
            return skipped(SkipReason::UserRate);
        }
        let growth = self.growth(&places);
        if growth > PageCount(0) && !self.has_room_for(growth) {
            return skipped(SkipReason::UserBudget);
        }
        let action = Action::Collapse {
            owner,
            region,
            growth,
        };
        let done = self.have_done(&bounded.part(&[action]), stop);
        if done.0 == Effect::Done {
            self.saved.0 = self.saved.0.saturating_sub(HUGE_PAGE_SIZE);
            if let Some(place) = places.first().filter(|_| growth > PageCount(0)) {
                self.give_back(*place);
                self.charged.insert(*place, growth);
                self.used += growth;
            }
        }
        done
    }

    /// Counts a process for a budget in percent, if the caller may look at its memory.
    fn name(&mut self, process: ProcessId) {
        if self.named.len() < MOST_NAMED
            && !self.named.contains(&process)
            && self.sight.anonymous(process).is_some()
        {
            self.named.insert(process);
            self.allowed = None;
        }
    }

    /// Has a plan of one action done.
    fn have_done(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> (Effect, Duration) {
        let done = self.inner.perform(plan, stop).results;
        let done = done.first().map(|result| (result.effect, result.took));
        done.unwrap_or_else(|| skipped(SkipReason::Cancelled))
    }

    /// Returns the pages that a collapse adds. A page of a shared object may be resident although a mapper has not mapped it, so the mapper with
    /// the most pages counts. A region that the caller cannot see counts as empty.
    fn growth(&self, places: &[(ProcessId, Region)]) -> PageCount {
        let resident = places
            .iter()
            .filter_map(|&(process, region)| self.sight.resident(process, region));
        let resident = resident.max().unwrap_or(PageCount(0)).0;
        PageCount(PAGES_PER_REGION.saturating_sub(resident))
    }

    /// Returns true if the rate allows one more collapse.
    fn is_in_time(&mut self) -> bool {
        let Some(rate) = self.terms.rate else {
            return true;
        };
        let (saved, since) = self.saved;
        let now = Instant::now();
        let passed = now.duration_since(since).min(BURST).as_micros();
        let more = u64::try_from(passed * u128::from(rate.0) / 1_000_000).unwrap_or(u64::MAX);
        // Even a small rate must be able to save up one huge page.
        let most = rate.0.max(HUGE_PAGE_SIZE);
        // Parts of a byte are lost, so a very small step keeps the old time.
        if more > 0 {
            self.saved = (saved.saturating_add(more).min(most), now);
        }
        self.saved.0 >= HUGE_PAGE_SIZE
    }

    fn has_room_for(&mut self, growth: PageCount) -> bool {
        if self.fits(growth) {
            return true;
        }
        let is_soon = |at: Instant| at.elapsed() < RECLAIM;
        if self.reclaimed.is_some_and(is_soon) {
            return false;
        }
        self.reclaim();
        self.fits(growth)
    }

    fn fits(&mut self, growth: PageCount) -> bool {
        (self.used + growth).bytes() <= self.allowed()
    }

    /// Returns the budget in bytes.
    fn allowed(&mut self) -> ByteCount {
        let is_new = |(_, at): &(ByteCount, Instant)| at.elapsed() < RECLAIM;
        if let Some((allowed, _)) = self.allowed.filter(is_new) {
            return allowed;
        }
        let (named, sight) = (&mut self.named, &self.sight);
        let mut whole = 0_u64;
        named.retain(|&process| {
            let anonymous = sight.anonymous(process);
            whole = whole.saturating_add(anonymous.map_or(0, |bytes| bytes.0));
            anonymous.is_some()
        });
        let allowed = self.terms.budget.of(ByteCount(whole));
        self.allowed = Some((allowed, Instant::now()));
        allowed
    }

    fn give_back(&mut self, place: (ProcessId, Region)) {
        if let Some(growth) = self.charged.remove(&place) {
            self.used = PageCount(self.used.0.saturating_sub(growth.0));
        }
    }

    /// Takes split regions, and those of ended processes, off the charge.
    fn reclaim(&mut self) {
        self.reclaimed = Some(Instant::now());
        let sight = &self.sight;
        self.charged.retain(
            |&(process, region), _| match sight.is_huge(process, region) {
                Some(is_huge) => is_huge,
                // The kernel does not say (before 6.7), the process may not be looked at any more, or it has ended.
                None => sight.runs(process),
            },
        );
        let left = self.charged.values().map(|growth| growth.0);
        self.used = PageCount(left.sum());
    }
}

const fn skipped(reason: SkipReason) -> (Effect, Duration) {
    (Effect::Skipped { reason }, Duration::ZERO)
}

impl<A: Actuator> Actuator for LimitedActuator<A> {
    fn perform(&mut self, plan: &Plan, stop: &dyn Fn() -> bool) -> Outcome {
        let mut bounded = plan.part(&[]);
        let actions = plan.actions.iter();
        let results = actions.map(|&action| {
            let is_collapse = matches!(action, Action::Collapse { .. });
            let is_over = is_collapse && bounded.left(action.owner()) == Some(Duration::ZERO);
            let (effect, took) = match is_over || stop() {
                true => skipped(SkipReason::Cancelled),
                false => self.try_one(action, &bounded, stop),
            };
            if is_collapse {
                bounded.spend(action.owner(), took);
            }
            // The client compares the action with its own.
            ActionResult {
                action,
                effect,
                took,
            }
        });
        Outcome {
            results: results.collect(),
        }
    }

    fn housekeep(&mut self) {
        self.inner.housekeep();
        let sight = &self.sight;
        self.named
            .retain(|&process| sight.anonymous(process).is_some());
    }
}
