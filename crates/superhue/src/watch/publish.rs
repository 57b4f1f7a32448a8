//! Makes accounts from the state of a watch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue_heat::{HeatMap, HotSet};
use superhue_model::{ByteCount, ProcessId};

use super::Watch;
use crate::account::{
    ActionCounts, LiveMemory, LiveStalls, Members, OwnCost, PROCESSES_LISTED, ProcessAccount,
    SERVICES_LISTED, ServiceAccount, Tallies, WatchAccount, waiting,
};
use crate::ceiling;
use crate::colors::{ColorSetup, Keeper};
use crate::controls::{Controls, LiveSettings};
use crate::cpu::cpu_time;
use crate::heat::Sampler;
use crate::stop::Stop;
use crate::{ColorsReport, Mechanism};

/// Interval between two accounts of a watch that has members; longer where accounts are expensive.
const PUBLISH_EVERY: Duration = Duration::from_secs(1);

/// Shortest interval before an account of changed members.
const PUBLISH_NEWS: Duration = Duration::from_millis(200);

/// Interval between two computations of the hot set in it.
const HOT_SET_EVERY: Duration = Duration::from_secs(5);

/// Share of the ceiling that making accounts may take: part of the share for deciding and acting.
const ACCOUNTS: f64 = 0.02;

/// State that a watch needs to publish accounts.
pub(crate) struct AccountPublisher {
    controls: Controls,
    /// True if the owner sets the members; otherwise the watch searches for them itself.
    is_fed: bool,
    pub(crate) tallies: Tallies,
    /// Members at the last look.
    pub(crate) members: Arc<Members>,
    /// Wishes that the watch obeyed last.
    wishes: Option<LiveSettings>,
    notes: Vec<String>,
    colors: Option<ColorSetup>,
    next: Duration,
    /// True if the last account had no process; `None` if the next account is due in any case.
    said_empty: Option<bool>,
    /// Members in the last account; `soonest` is the time from which an account of other members may follow.
    said_of: Arc<Members>,
    soonest: Duration,
    /// The hot sets, and the time of their next computation.
    hot_set: (HotSets, Duration),
}

/// Memory that receives 50, 90 and 99 % of the sampled accesses.
#[derive(Debug, Default)]
struct HotSets {
    all: Option<[ByteCount; 3]>,
    services: BTreeMap<Arc<str>, [ByteCount; 3]>,
    processes: BTreeMap<ProcessId, [ByteCount; 3]>,
}

impl HotSets {
    fn of(sampler: &Sampler, members: &Members) -> Self {
        let mut maps: BTreeMap<&Arc<str>, Vec<&HeatMap>> = BTreeMap::new();
        let mut processes = BTreeMap::new();
        for (&id, label) in members {
            let Some(map) = sampler.map(id) else { continue };
            maps.entry(label).or_default().push(map);
            if let Some(hot) = map.hot_set().usual_bytes() {
                processes.insert(id, hot);
            }
        }
        let services = maps.into_iter().filter_map(|(label, maps)| {
            let [map] = maps.as_slice() else {
                return Some((label.clone(), HotSet::of_all(maps).usual_bytes()?));
            };
            Some((label.clone(), map.hot_set().usual_bytes()?))
        });
        Self {
            all: sampler.hot_set().usual_bytes(),
            services: services.collect(),
            processes,
        }
    }
}

impl AccountPublisher {
    pub(crate) fn new(
        controls: Controls,
        mechanism: &Mechanism,
        colors: Option<ColorSetup>,
    ) -> Self {
        Self {
            controls,
            is_fed: true,
            tallies: Tallies::default(),
            members: Arc::default(),
            wishes: None,
            notes: mechanism.notes.clone(),
            colors,
            next: Duration::ZERO,
            said_empty: None,
            said_of: Arc::default(),
            soonest: Duration::ZERO,
            hot_set: (HotSets::default(), Duration::ZERO),
        }
    }

    /// Makes the state of a watch that searches for its processes itself and reports at the end, also on colors.
    pub(crate) fn of_attached(controls: Controls, mechanism: &Mechanism) -> Self {
        Self {
            is_fed: false,
            ..Self::new(controls, mechanism, None)
        }
    }

    /// Returns true if the owner sets the members and wakes the watch when they change.
    pub(crate) const fn is_fed(&self) -> bool {
        self.is_fed
    }

    /// Returns true if no account was published yet, or if a change of wishes must be published at once.
    pub(crate) fn is_silent(&self) -> bool {
        self.said_empty.is_none()
    }

    /// Updates the hot sets if they are due. This visits all tracked memory, so its cost delays only the next update, not the next account.
    fn bring_hot_set_up_to_date(&mut self, at: Duration, sampler: Option<&Sampler>, share: f64) {
        let Some(sampler) = sampler.filter(|_| at >= self.hot_set.1) else {
            return;
        };
        let begun = cpu_time();
        let found = HotSets::of(sampler, &self.members);
        let cost = cpu_time().saturating_sub(begun);
        let apart = ceiling::apart(cost, share * ACCOUNTS);
        self.hot_set = (found, at + HOT_SET_EVERY.max(apart));
    }
}

impl Watch {
    /// Applies the owner's wishes; returns true if the watch may act.
    pub(crate) fn obey(&mut self) -> bool {
        let Some(live) = &mut self.live else {
            return true;
        };
        let wishes = live.controls.wishes();
        let spent = live.controls.take_spent();
        live.members = live.controls.members();
        if live.wishes != Some(wishes) {
            live.wishes = Some(wishes);
            // The next account is due at once.
            live.said_empty = None;
            self.limit(wishes.max_overhead);
            if let Some(budget) = wishes.budget {
                self.allow(budget);
            }
        }
        self.cost.spend(self.begun.elapsed(), spent);
        !wishes.paused
    }

    /// Stands still while the owner holds the watch; returns true if it did. The watch's clock stands still, too: nothing settles, cools down or
    /// comes due meanwhile, and an interrupted sample starts again.
    pub(crate) fn stand_still(&mut self, stop: &Stop) -> bool {
        let Some(controls) = self.live.as_ref().map(|live| live.controls.clone()) else {
            return false;
        };
        if !controls.is_held() {
            return false;
        }
        if let Some(sampler) = &mut self.setup.sampler {
            sampler.put_off();
        }
        let since = Instant::now();
        controls.say_still(true);
        while controls.is_held() && !stop.is_set() {
            stop.sleep(PUBLISH_EVERY);
        }
        controls.say_still(false);
        self.begun += since.elapsed();
        true
    }

    /// Returns true if the watch has no members and has published that: it may sleep until the owner nudges it.
    pub(crate) fn is_idle(&self) -> bool {
        let live = self.live.as_ref();
        live.is_some_and(|live| {
            live.is_fed && live.members.is_empty() && live.said_empty == Some(true)
        })
    }

    /// Publishes an account if one is due.
    pub(crate) fn publish(&mut self) {
        let at = self.begun.elapsed();
        let is_empty = self.snapshot.processes.is_empty();
        let Some(live) = &mut self.live else { return };
        // The first member and the loss of the last one are published at once; other changes of members, soon.
        let is_news = live.said_empty != Some(is_empty)
            || at >= live.soonest && !Arc::ptr_eq(&live.said_of, &live.members);
        if at < live.next && !is_news {
            return;
        }
        live.tallies.seen(&live.members);
        live.bring_hot_set_up_to_date(at, self.setup.sampler.as_ref(), self.max_overhead);
        let begun = cpu_time();
        let account = self.account(at);
        let cost = cpu_time().saturating_sub(begun);
        let apart = ceiling::apart(cost, self.max_overhead * ACCOUNTS);
        if let Some(live) = &mut self.live {
            live.next = at + PUBLISH_EVERY.max(apart);
            live.soonest = at + PUBLISH_NEWS.max(apart);
            live.said_empty = Some(is_empty);
            live.said_of = Arc::clone(&live.members);
            live.controls.publish(account);
        }
    }

    /// Returns the state of the watch, for its owner now or for the report in the end.
    pub(super) fn account(&self, at: Duration) -> WatchAccount {
        let ledger = self.setup.policy.ledger();
        let watched = &self.watched;
        let sampler = self.setup.sampler.as_ref();
        let decided = self.undecided.is_none();
        let mut account = WatchAccount {
            at_seconds: at.as_secs_f64(),
            pages: decided.then_some(self.setup.pages),
            pages_because: self.setup.because.clone(),
            tracker: sampler.map(|sampler| sampler.tracker().to_string()),
            processes_seen: self.family.seen(),
            processes_denied: self.family.denied(),
            left_alone: (watched.keeper.iter())
                .flat_map(Keeper::left_alone)
                .map(|(why, processes)| (why.to_owned(), processes as u64))
                .collect(),
            unreadable: watched.unreadable.clone(),
            untracked: watched.tracked.untracked.clone(),
            collapses: ActionCounts::of(&ledger.collapses),
            splits: ActionCounts::of(&ledger.splits),
            waiting: waiting(ledger),
            growth_bytes: ledger.grown.bytes(),
            charged_bytes: ledger.charged,
            budget_bytes: ledger.budget,
            hot_set_bytes: self.live.as_ref().and_then(|live| live.hot_set.0.all),
            ..WatchAccount::default()
        };
        account.own = self.own_cost(at);
        self.account_of_stalls(&mut account);
        self.account_of_memory(&mut account);
        account
    }

    /// Returns the cost of the watch until `at`: that of its thread, and of the one that finds colors.
    fn own_cost(&self, at: Duration) -> OwnCost {
        let tracking = (self.setup.sampler.as_ref()).map(Sampler::total_cost);
        let watched = &self.watched;
        let cpu = cpu_time();
        OwnCost {
            cpu_seconds: (cpu + watched.acting_elsewhere).as_secs_f64(),
            acting_seconds: (watched.acting + watched.acting_elsewhere).as_secs_f64(),
            watching_seconds: cpu.saturating_sub(watched.acting).as_secs_f64(),
            tracking_seconds: tracking.map_or(0.0, |cost| cost.own.as_secs_f64()),
            saving_seconds: (watched.saving + self.saved_until(at)).as_secs_f64(),
            looking_seconds: watched.looking.as_secs_f64(),
            looks: watched.looks,
            full_looks: watched.full_looks,
            max_overhead: self.max_overhead,
        }
    }

    fn account_of_stalls(&self, account: &mut WatchAccount) {
        let ledger = self.setup.policy.ledger();
        let tracking = (self.setup.sampler.as_ref()).map(Sampler::total_cost);
        let took = ledger.collapses.took.total() + ledger.splits.took.total();
        account.stalls = LiveStalls {
            collapsing_seconds: took.as_secs_f64(),
            tracking_seconds: tracking.map_or(0.0, |cost| cost.target.as_secs_f64()),
        };
        let Some(live) = &self.live else { return };
        account.paused = live.wishes.is_some_and(|wishes| wishes.paused);
        account.notes.clone_from(&live.notes);
        let keeper = self.watched.keeper.as_ref();
        account.colors =
            (live.colors.as_ref()).map(|it| ColorsReport::of_recoloring(it, keeper).into());
    }

    fn account_of_memory(&self, account: &mut WatchAccount) {
        let Some(live) = &self.live else { return };
        let mut services: BTreeMap<&str, ServiceAccount> = BTreeMap::new();
        for (label, actions) in live.tallies.iter() {
            services.entry(label).or_default().actions = actions;
        }
        let mut listed = Vec::new();
        for view in &self.snapshot.processes {
            let (rss, anonymous) = (
                view.rss.unwrap_or_default(),
                view.rss_anon.unwrap_or_default(),
            );
            let huge = self.huge_mapped(view.id);
            let held = view.held.map(|held| held.bytes());
            account.memory.add(rss, anonymous, huge, held);
            let service = live.members.get(&view.id).map_or("", |label| label);
            if services.contains_key(service) || services.len() < SERVICES_LISTED {
                let service = services.entry(service).or_default();
                service.memory.add(rss, anonymous, huge, held);
            }
            listed.push((Reverse(rss), view.id, anonymous, huge, held));
        }
        for (label, hot) in &live.hot_set.0.services {
            if let Some(service) = services.get_mut(&**label) {
                service.hot_set_bytes = Some(*hot);
            }
        }
        listed.sort_unstable_by_key(|&(rss, id, ..)| (rss, id));
        listed.truncate(PROCESSES_LISTED);
        let of_one = |(Reverse(rss), id, anonymous, huge, held): (_, ProcessId, _, _, _)| {
            let mut memory = LiveMemory::default();
            memory.add(rss, anonymous, huge, held);
            let (collapses_done, took) = self.collapses_of(id);
            ProcessAccount {
                pid: id.pid,
                start_ticks: id.start_ticks,
                name: self.name_of(id),
                service: (live.members.get(&id)).map_or_else(String::new, |it| it.to_string()),
                memory,
                hot_set_bytes: live.hot_set.0.processes.get(&id).copied(),
                collapses_done,
                collapsing_seconds: took.as_secs_f64(),
            }
        };
        account.processes = listed.into_iter().map(of_one).collect();
        let services = services.into_iter();
        account.services = services.map(|(label, it)| (label.to_owned(), it)).collect();
    }
}
