//! The watches of all rules: a worker for each tenant of a rule that has processes, kept over reloads.
//!
//! ```text
//!   roster ──rule: tenant: members──> lanes ──one worker each──> accounts ──added up by rule──> status, metrics
//!                                       ^                           │
//!                                       └── ceiling, budget <───────┘ once a second
//! ```
//!
//! A **tenant** is a group of processes that could act together: a pod, a service, all that one user runs (`rules::tenant`). A tenant that holds its
//! watch up ([`workers`](crate::workers)) delays no other tenant: the worker is given up, and the tenant's next worker leaves the process alone for a
//! while, each time twice as long.
//!
//! Tenants share one worker (a *shared lane*) where there are more tenants than workers, and where the machine has only one of what they need: page
//! colors, trackers other than `ptwalk`. A tenant that has held up a shared worker gets one of its own.
//!
//! The **ceiling** of a rule is divided evenly among its tenants; the part that tenants with little to do leave over goes to the other tenants. A
//! **budget** that is a share of memory holds for all if it holds for each. A budget that is a size is divided here: a worker may have what it has
//! charged, and an even part of what is free; no worker gets more before another one is known to have less.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use superhue::PlacementOptions;
use superhue::held_up::SleepLimits;
use superhue::live::{Members, WatchAccount};
use superhue_heat::{Scope, TrackerKind, choose};
use superhue_model::{ByteCount, ColorRequest, ProcessId, Share};
use superhue_procfs::Roots;

use crate::account::{HeldUpAccount, RuleAccount, WorkersAccount};
use crate::convergence::Convergence;
use crate::metrics::WatchSample;
use crate::privileges::{of_rule, tracks};
use crate::rules::Rule;
use crate::workers::{
    BEAT, MemberTable, Task, WatchMessage, WatchTask, WatchUpdate, Worker, have_news,
};

/// Members by tenant.
pub(crate) type Tenants = BTreeMap<Arc<str>, Members>;

/// Maximum number of workers at a time; and including those of tenants that have held one up.
const MOST_WORKERS: usize = 64;
const MOST_WORKERS_IN_ALL: usize = MOST_WORKERS + 16;

/// Workers started in one turn: each takes some milliseconds.
const STARTS: usize = 8;
const NEXT_STARTS: Duration = Duration::from_millis(50);

/// Maximum number of workers that were given up and still sleep: of one tenant, and of one tenant when there are `MANY_LEFT` in all. Beyond that, the
/// tenant is left alone. A tenant that left none behind always gets a worker, or a few tenants could keep it from the others.
const MOST_LEFT_OF_ONE: usize = 2;
const MANY_LEFT: usize = 8;

/// Workers of single tenants that are given up in one second. A worker that is held up delays its own tenant alone, so they can take turns; and where
/// the machine is slow (workers wait for each other in `lru_add_drain_all`, `mm/swap.c`) the others go on before their turn comes.
const GIVEN_UP_AT_ONCE: usize = 2;
const GIVEN_UP_EVERY: Duration = Duration::from_secs(1);

/// Time before another attempt after trouble.
const AFTER_TROUBLE: Duration = Duration::from_secs(60);

/// Time for which a worker is kept whose tenant has no processes: services are restarted.
const KEPT_EMPTY: Duration = Duration::from_secs(30);

/// Longest wait for a worker to end.
const ENDING: Duration = Duration::from_secs(5);

/// Time for which a process that has held a worker up is left alone: at first, and at most.
const LEFT_ALONE: Duration = Duration::from_secs(10);
const LEFT_ALONE_AT_MOST: Duration = Duration::from_secs(600);

/// Collapses take milliseconds, but a collapse may have to wait for the program's own work on its memory.
const WATCH_SLEEP_LIMITS: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(900),
    in_files: Duration::from_millis(2500),
};

/// A worker that is silent for this time was stopped.
const SILENCE: Duration = BEAT.saturating_mul(6);

/// A worker that uses this part of its ceiling could use more; one that uses less gets this multiple of what it uses.
const HUNGRY: f64 = 0.7;
const SPARE: f64 = 1.5;

/// Time for which a worker is new, and may have much to do.
const NEW: Duration = Duration::from_secs(10);

/// The watches of all rules.
#[derive(Debug)]
pub(crate) struct Watches {
    roots: Roots,
    rules: Arc<[Rule]>,
    /// By the rule's name.
    kept: BTreeMap<Arc<str>, RuleState>,
    /// Workers that are ending: they may be in the middle of something, and the daemon does not wait for them.
    ending: Vec<(RunningWorker, Arc<str>, Duration)>,
    /// Last accounts of workers that have ended, until `take_ended` takes them.
    ended: Vec<WatchSample>,
    /// Workers that were given up and still exist.
    left: Vec<AbandonedWorker>,
    /// Processes that have held up a worker.
    avoided: BTreeMap<u32, AvoidedProcess>,
    /// Tenants that have held up a shared worker.
    apart: BTreeSet<Arc<str>>,
    /// The tracker of accesses here; `None` if it was not looked for yet.
    tracker: Option<Option<TrackerKind>>,
    /// Workers started so far, and given up.
    started: u64,
    given_up: u64,
    /// CPU time of workers that no longer exist.
    spent: Duration,
    paused: bool,
    /// Rules that clients hold: their watches stand still.
    held: BTreeSet<Arc<str>>,
    max_overhead: f64,
    /// The time of the last [`Self::tend`], and of the last division.
    now: Duration,
    divided: Duration,
    /// True if workers wait to be started.
    starts_wait: bool,
    /// Start of the second in which workers were given up last, and their number.
    gave_up: (Duration, usize),
}

/// State of a rule that has or had processes.
#[derive(Debug, Default)]
struct RuleState {
    placement: Option<PlacementOptions>,
    processes: u64,
    fed: Tenants,
    lanes: BTreeMap<Lane, LaneState>,
    /// Accounts of workers that have ended, added up.
    past: WatchAccount,
    /// All accounts, added up.
    all: Option<Arc<WatchAccount>>,
    convergence: Convergence,
}

/// The tenants that a worker is for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Lane {
    Tenant(Arc<str>),
    Shared,
}

/// State of a lane.
#[derive(Debug, Default)]
struct LaneState {
    members: Members,
    /// True if the worker does not know the members yet.
    is_news: bool,
    running: Option<RunningWorker>,
    /// True if there was a worker before.
    had_worker: bool,
    /// Reason why there is no worker, and time of the next attempt.
    trouble: Option<(String, Duration)>,
    /// Number of its workers that have ended by themselves.
    ends: RestartBackoff,
    /// Time since which it has no members.
    empty_since: Option<Duration>,
    limit: f64,
    /// Memory that it may charge, if the budget is divided here.
    budget: Option<ByteCount>,
}

/// Workers that have ended one soon after the other.
#[derive(Debug, Default)]
struct RestartBackoff(u32);

impl RestartBackoff {
    /// Returns the pause after a worker has ended that lasted for `lasted`. If it reported trouble (`has_told`), a new one would soon report the
    /// same: the pause is long. Otherwise another process has ended it: the pause is a second at first, and doubles each time.
    fn after(&mut self, lasted: Duration, has_told: bool) -> Duration {
        self.0 = match lasted >= AFTER_TROUBLE {
            true => 1,
            false => (self.0 + 1).min(10),
        };
        let soon = Duration::from_secs(1 << (self.0 - 1));
        if has_told {
            AFTER_TROUBLE
        } else {
            soon.min(AFTER_TROUBLE)
        }
    }
}

/// A running worker, with a number that distinguishes it from earlier ones.
#[derive(Debug)]
struct RunningWorker {
    number: u64,
    worker: Worker,
    account: Arc<WatchAccount>,
    /// True once the worker has sent an account: the present one is empty before.
    is_heard: bool,
    begun: Duration,
    heard: Duration,
    /// The settings that it was sent last, without the members.
    told: Option<SentSettings>,
    /// CPU time at the last division.
    used: Duration,
    /// Its anonymous memory, as it reported it last.
    memory: ByteCount,
}

#[derive(Debug, Clone, PartialEq)]
struct SentSettings {
    paused: bool,
    held: bool,
    limit: f64,
    budget: Option<ByteCount>,
    leave_alone: BTreeSet<u32>,
}

/// A worker that is held up.
#[derive(Debug)]
struct HeldUpWorker {
    rule: Arc<str>,
    lane: Lane,
    /// The process that holds it up; `None` if it was stopped.
    process: Option<u32>,
    lasts: Duration,
}

/// A worker that was given up.
#[derive(Debug)]
struct AbandonedWorker {
    worker: Worker,
    rule: Arc<str>,
    tenant: Arc<str>,
    /// True if tenants shared it.
    was_shared: bool,
    process: Option<u32>,
    since: Duration,
}

/// A process that has held up a worker.
#[derive(Debug)]
struct AvoidedProcess {
    rule: Arc<str>,
    tenant: Arc<str>,
    times: u32,
    since: Duration,
    until: Duration,
}

impl RunningWorker {
    fn seen(&self, rule: &Arc<str>) -> WatchSample {
        WatchSample {
            rule: rule.clone(),
            watch: self.number,
            account: Arc::clone(&self.account),
        }
    }

    /// Takes its messages; returns true if there were any.
    fn hear(&mut self, at: Duration) -> Result<bool, String> {
        let said = self.worker.receive::<WatchMessage>()?;
        let any = !said.is_empty();
        for said in said {
            self.heard = at;
            match said {
                WatchMessage::Account(account) => {
                    // The first one may be from before the watch has published anything.
                    self.is_heard |= account.at_seconds > 0.0 || account.trouble.is_some();
                    self.account = Arc::from(account);
                }
                WatchMessage::Beat { at_seconds, own } => {
                    let account = Arc::make_mut(&mut self.account);
                    account.at_seconds = at_seconds;
                    account.own = own;
                }
                WatchMessage::Memory(memory) => self.memory = memory,
            }
        }
        if any {
            // CPU time of all its threads, including its start.
            let cpu = self.worker.cpu_time().as_secs_f64();
            let own = &mut Arc::make_mut(&mut self.account).own;
            own.cpu_seconds = own.cpu_seconds.max(cpu);
            let others = own.cpu_seconds - own.acting_seconds;
            own.watching_seconds = own.watching_seconds.max(others);
        }
        Ok(any)
    }
}

impl Watches {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            rules: Arc::new([]),
            kept: BTreeMap::new(),
            ending: Vec::new(),
            ended: Vec::new(),
            left: Vec::new(),
            avoided: BTreeMap::new(),
            apart: BTreeSet::new(),
            tracker: None,
            started: 0,
            given_up: 0,
            spent: Duration::ZERO,
            paused: false,
            held: BTreeSet::new(),
            max_overhead: 1.0,
            now: Duration::ZERO,
            divided: Duration::ZERO,
            starts_wait: false,
            gave_up: (Duration::ZERO, 0),
        }
    }

    /// Puts rules in force. A watch continues under a rule of the same name and with the same placement, whatever its conditions are: heat is not
    /// forgotten.
    pub(crate) fn follow(&mut self, rules: Arc<[Rule]>, max_overhead: f64) {
        self.max_overhead = max_overhead;
        self.rules = rules;
        let placements = || self.rules.iter().filter_map(|rule| rule.placement.as_ref());
        if self.tracker.is_none() && placements().any(tracks) {
            let chosen = choose(&self.roots, None, Scope::Promotable);
            self.tracker = Some(chosen.ok().map(|chosen| chosen.tracker.kind()));
        }
        let wanted: BTreeMap<&str, &Option<PlacementOptions>> = (self.rules.iter())
            .map(|rule| (&*rule.name, &rule.placement))
            .collect();
        let kept = std::mem::take(&mut self.kept);
        for (name, kept) in kept {
            if wanted.get(&*name) == Some(&&kept.placement) {
                self.kept.insert(name, kept);
            } else {
                for running in kept.lanes.into_values().filter_map(|lane| lane.running) {
                    running.worker.stop();
                    self.ending.push((running, name.clone(), self.now + ENDING));
                }
            }
        }
    }

    /// Sets the processes of each rule, by index.
    pub(crate) fn feed(&mut self, members: BTreeMap<usize, Tenants>, at: Duration) {
        let rules = Arc::clone(&self.rules);
        let mut seen = BTreeSet::new();
        for (index, tenants) in members {
            let Some(rule) = rules.get(index) else {
                continue;
            };
            seen.insert(rule.name.clone());
            let processes = tenants.values().map(Members::len).sum::<usize>() as u64;
            // Logged once: a rule may match programs that start many times a second.
            let begin = || {
                tracing::info!(rule = &*rule.name, processes, "has its first processes");
                RuleState {
                    placement: rule.placement.clone(),
                    ..RuleState::default()
                }
            };
            let kept = self.kept.entry(rule.name.clone()).or_insert_with(begin);
            kept.processes = processes;
            kept.fed = tenants;
            self.assign(&rule.name);
        }
        let emptied: Vec<Arc<str>> = (self.kept.iter())
            .filter(|(name, kept)| !seen.contains(*name) && kept.processes > 0)
            .map(|(name, _)| name.clone())
            .collect();
        for name in emptied {
            if let Some(kept) = self.kept.get_mut(&name) {
                tracing::debug!(rule = &*name, "has no process any more");
                kept.processes = 0;
                kept.fed = Tenants::new();
            }
            self.assign(&name);
        }
        let fed = || self.kept.values().flat_map(|kept| kept.fed.values());
        let is_there = |pid: u32| fed().any(|members| has(members, pid));
        let gone: Vec<u32> = (self.avoided.iter())
            .filter(|(pid, avoided)| at >= avoided.until && !is_there(**pid))
            .map(|(&pid, _)| pid)
            .collect();
        for pid in gone {
            self.avoided.remove(&pid);
        }
        self.tend(at);
    }

    /// Divides the members of a rule among its lanes.
    fn assign(&mut self, name: &Arc<str>) {
        let mut room = MOST_WORKERS.saturating_sub(self.lanes());
        let usual = self.tracker.flatten();
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let own = kept.placement.as_ref().and_then(|it| it.tracker);
        let exclusive = matches!(own.or(usual), Some(TrackerKind::Idle | TrackerKind::Damon));
        let shares = kept.placement.as_ref().is_none_or(|placement| {
            placement.colors != ColorRequest::Off
                || placement.swap
                || exclusive && tracks(placement)
        });
        let mut by_lane: BTreeMap<Lane, Members> = BTreeMap::new();
        for (tenant, members) in &kept.fed {
            let own = Lane::Tenant(tenant.clone());
            let lane = if self.apart.contains(tenant) || kept.lanes.contains_key(&own) {
                own
            } else if shares || room == 0 {
                // It would hold up the others again, and there is no room for a worker of its own.
                if self.left.iter().any(|left| left.tenant == *tenant) {
                    continue;
                }
                Lane::Shared
            } else {
                room -= 1;
                own
            };
            let all = by_lane.entry(lane).or_default();
            all.extend(members.iter().map(|(id, label)| (*id, label.clone())));
        }
        for lane in by_lane.keys() {
            kept.lanes.entry(lane.clone()).or_default();
        }
        for (lane, watched) in &mut kept.lanes {
            let members = by_lane.remove(lane).unwrap_or_default();
            if watched.members != members {
                watched.members = members;
                watched.is_news = true;
            }
        }
    }

    fn lanes(&self) -> usize {
        self.kept.values().map(|kept| kept.lanes.len()).sum()
    }

    /// Takes messages of all workers, gives up those that are held up, starts missing ones, and sends settings to all.
    pub(crate) fn tend(&mut self, at: Duration) {
        self.now = at;
        self.bury(at);
        let names: Vec<Arc<str>> = self.kept.keys().cloned().collect();
        let news = self.have_news();
        let mut held = Vec::new();
        for name in &names {
            held.extend(self.hear(name, &news, at));
        }
        self.give_up_some(held, at);
        let divides = at.saturating_sub(self.divided) >= Duration::from_millis(900);
        if divides {
            self.divide(at);
        }
        let mut starts = STARTS;
        for name in &names {
            self.start(name, at, &mut starts);
        }
        self.starts_wait = starts == 0;
        self.divide_new();
        for name in &names {
            self.tell(name, at);
        }
    }

    /// Returns the time when [`Self::tend`] must be called early; `None` if it need not.
    pub(crate) fn due(&self) -> Option<Duration> {
        let mut lanes = self.kept.values().flat_map(|kept| kept.lanes.values());
        let is_within = lanes.any(|lane| {
            let running = lane.running.as_ref();
            running.is_some_and(|running| running.worker.is_within())
        });
        (self.starts_wait || is_within).then_some(self.now + NEXT_STARTS)
    }

    /// Removes workers that have ended, and kills those that take too long to end.
    fn bury(&mut self, at: Duration) {
        let (ended, spent) = (&mut self.ended, &mut self.spent);
        self.ending.retain_mut(|(running, name, until)| {
            let _ = running.hear(at);
            let used = running.worker.cpu_time();
            if running.worker.has_ended() {
                ended.push(running.seen(name));
                *spent += used.max(running.used);
                return false;
            }
            running.used = used;
            if at >= *until {
                running.worker.kill();
            }
            true
        });
        let before = self.left.len();
        self.left.retain(|left| {
            let has_ended = left.worker.has_ended();
            if has_ended {
                let process = left.process.unwrap_or_default();
                tracing::info!(
                    rule = &*left.rule,
                    tenant = &*left.tenant,
                    process,
                    "a worker that was given up has ended"
                );
            }
            !has_ended
        });
        if self.left.len() < before {
            // Tenants that were left out of shared workers come back.
            let names: Vec<Arc<str>> = self.kept.keys().cloned().collect();
            for name in &names {
                self.assign(name);
            }
        }
    }

    /// Returns the numbers of workers that have sent something or have ended. One call for all of them: most are silent most of the time.
    fn have_news(&self) -> BTreeSet<u64> {
        let lanes = self.kept.values().flat_map(|kept| kept.lanes.values());
        let running: Vec<&RunningWorker> = lanes.filter_map(|lane| lane.running.as_ref()).collect();
        let workers: Vec<&Worker> = running.iter().map(|running| &running.worker).collect();
        let news = have_news(&workers).into_iter().zip(running);
        news.filter_map(|(any, running)| any.then_some(running.number))
            .collect()
    }

    /// Takes messages of those workers of a rule that have `news`, and handles workers that have ended or are held up.
    /// Returns those that are held up.
    fn hear(&mut self, name: &Arc<str>, news: &BTreeSet<u64>, at: Duration) -> Vec<HeldUpWorker> {
        let Some(kept) = self.kept.get_mut(name) else {
            return Vec::new();
        };
        let mut changed = kept.all.is_none();
        let mut held = Vec::new();
        for (lane, watched) in &mut kept.lanes {
            let Some(running) = &mut watched.running else {
                continue;
            };
            let has_news = news.contains(&running.number);
            let heard = if has_news {
                running.hear(at)
            } else {
                Ok(false)
            };
            changed |= !matches!(heard, Ok(false));
            let nonsense = heard.err();
            if has_news && running.worker.has_ended() || nonsense.is_some() {
                let _ = running.hear(at);
                changed = true;
                let told = running.account.trouble.clone();
                let pause = watched
                    .ends
                    .after(at.saturating_sub(running.begun), told.is_some());
                let text = told.or(nonsense);
                let text = text.unwrap_or_else(|| "its watch has ended unexpectedly".to_owned());
                tracing::warn!(
                    rule = &**name,
                    text,
                    "its processes are left alone for a while"
                );
                watched.trouble = Some((text, at + pause));
                kept.past.add(&running.account.past());
                self.ended.push(running.seen(name));
                self.spent += running.worker.cpu_time().max(running.used);
                watched.running = None;
                continue;
            }
            let found = running.worker.held_up();
            if found.is_some() || at.saturating_sub(running.heard) >= SILENCE {
                held.push(HeldUpWorker {
                    rule: name.clone(),
                    lane: lane.clone(),
                    process: found.map(|found| found.process),
                    lasts: found.map_or(SILENCE, |found| found.lasts),
                });
            }
        }
        if changed {
            kept.add_up();
        }
        held
    }

    /// Gives up the shared workers that are held up, and those single ones that have been held up for longest.
    fn give_up_some(&mut self, mut held: Vec<HeldUpWorker>, at: Duration) {
        held.sort_by_key(|held| (held.lane != Lane::Shared, std::cmp::Reverse(held.lasts)));
        if at.saturating_sub(self.gave_up.0) >= GIVEN_UP_EVERY {
            self.gave_up = (at, 0);
        }
        let shared = held.iter().filter(|held| held.lane == Lane::Shared).count();
        held.truncate(shared + GIVEN_UP_AT_ONCE.saturating_sub(self.gave_up.1));
        self.gave_up.1 += held.len() - shared;
        for held in held {
            self.give_up(&held.rule, &held.lane, held.process, at);
            if let Some(kept) = self.kept.get_mut(&held.rule) {
                kept.add_up();
            }
        }
    }

    /// Gives up the worker of a lane, which `process` holds up.
    fn give_up(&mut self, name: &Arc<str>, lane: &Lane, process: Option<u32>, at: Duration) {
        // The process may have left the rule since the worker began with it.
        let tenants = self.kept.values().flat_map(|kept| &kept.fed);
        let owner = process.and_then(|pid| {
            let mut found = tenants.filter(|(_, members)| has(members, pid));
            found.next().map(|(tenant, _)| tenant.clone())
        });
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let tenant = match lane {
            Lane::Tenant(tenant) => tenant.clone(),
            Lane::Shared => owner.unwrap_or_else(|| "unknown".into()),
        };
        let Some(watched) = kept.lanes.get_mut(lane) else {
            return;
        };
        let Some(mut running) = watched.running.take() else {
            return;
        };
        watched.is_news = true;
        kept.past.add(&running.account.past());
        self.ended.push(running.seen(name));
        self.spent += running.worker.cpu_time().max(running.used);
        self.given_up += 1;
        running.worker.kill();
        if let Some(pid) = process {
            let avoided = self.avoided.entry(pid).or_insert_with(|| AvoidedProcess {
                rule: name.clone(),
                tenant: tenant.clone(),
                times: 0,
                since: at,
                until: at,
            });
            let pause = LEFT_ALONE.saturating_mul(1 << avoided.times.min(10));
            avoided.until = at + pause.min(LEFT_ALONE_AT_MOST);
            avoided.times += 1;
        }
        tracing::warn!(
            rule = &**name,
            tenant = &*tenant,
            process = process.unwrap_or_default(),
            worker = running.worker.pid(),
            "a process holds its watch up: the worker is given up, and the process left alone for a while"
        );
        self.left.push(AbandonedWorker {
            worker: running.worker,
            rule: name.clone(),
            tenant: tenant.clone(),
            was_shared: *lane == Lane::Shared,
            process,
            since: at,
        });
        if *lane == Lane::Shared {
            if self.lanes() < MOST_WORKERS_IN_ALL {
                self.apart.insert(tenant);
            }
            self.assign(name);
        }
    }

    /// Starts the missing workers of a rule, and ends those that are not needed any more.
    fn start(&mut self, name: &Arc<str>, at: Duration, starts: &mut usize) {
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let Some(placement) = &kept.placement else {
            return;
        };
        let mut changed = false;
        for (lane, watched) in &mut kept.lanes {
            if watched.members.is_empty() {
                let since = *watched.empty_since.get_or_insert(at);
                if at.saturating_sub(since) >= KEPT_EMPTY
                    && let Some(running) = watched.running.take()
                {
                    kept.past.add(&running.account.past());
                    changed = true;
                    running.worker.stop();
                    self.ending.push((running, name.clone(), at + ENDING));
                }
                continue;
            }
            watched.empty_since = None;
            let may_start = (watched.trouble.as_ref()).is_none_or(|&(_, until)| at >= until);
            if watched.running.is_some() || !may_start {
                continue;
            }
            if *starts == 0 {
                break;
            }
            changed = true;
            watched.trouble = None;
            let of_one = |left: &&AbandonedWorker| match lane {
                Lane::Tenant(tenant) => left.tenant == *tenant,
                Lane::Shared => left.was_shared && left.rule == *name,
            };
            let left = self.left.iter().filter(of_one).count();
            let most = match (lane, self.left.len() >= MANY_LEFT) {
                (Lane::Shared, _) => MANY_LEFT,
                (Lane::Tenant(_), true) => 1,
                (Lane::Tenant(_), false) => MOST_LEFT_OF_ONE,
            };
            let started = if left >= most {
                Err(format!(
                    "{left} workers of this tenant ({} of all) are held up by its processes and cannot be ended: it is left alone until one of \
                     them has ended",
                    self.left.len()
                ))
            } else {
                *starts -= 1;
                let task = Task::Watch(Box::new(WatchTask {
                    rule: name.to_string(),
                    placement: placement.clone(),
                    is_first: !watched.had_worker,
                    roots: self.roots.clone(),
                }));
                let tracker = self.tracker.flatten();
                let started = Worker::start(&task, of_rule(placement, tracker), WATCH_SLEEP_LIMITS);
                started.map_err(|error| format!("cannot start a process: {error}"))
            };
            match started {
                Ok(worker) => {
                    self.started += 1;
                    watched.had_worker = true;
                    // It may charge nothing before the budget is divided.
                    watched.budget = size_of_budget(placement).map(|_| ByteCount(0));
                    watched.is_news = true;
                    watched.running = Some(RunningWorker {
                        number: self.started,
                        worker,
                        account: Arc::default(),
                        is_heard: false,
                        begun: at,
                        heard: at,
                        told: None,
                        used: Duration::ZERO,
                        memory: ByteCount(0),
                    });
                }
                Err(text) => {
                    tracing::warn!(rule = &**name, text, "processes are left alone");
                    let pause = if left > 0 { LEFT_ALONE } else { AFTER_TROUBLE };
                    watched.trouble = Some((text, at + pause));
                }
            }
        }
        let before = kept.lanes.len();
        kept.lanes
            .retain(|_, watched| !watched.members.is_empty() || watched.running.is_some());
        if changed || kept.lanes.len() < before {
            kept.add_up();
        }
    }

    /// Sends the workers of a rule their settings, if these are new.
    fn tell(&mut self, name: &Arc<str>, at: Duration) {
        let (paused, held) = (self.paused, self.held.contains(name));
        let avoided: BTreeSet<u32> = (self.avoided.iter())
            .filter(|(_, avoided)| at < avoided.until)
            .map(|(&pid, _)| pid)
            .collect();
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let is_sum = kept.placement.as_ref().and_then(size_of_budget).is_some();
        for watched in kept.lanes.values_mut() {
            let Some(running) = &mut watched.running else {
                continue;
            };
            let told = SentSettings {
                paused,
                held,
                limit: watched.limit,
                budget: watched.budget.filter(|_| is_sum),
                leave_alone: avoided.clone(),
            };
            let is_known = running
                .told
                .as_ref()
                .is_some_and(|before| before.is_as(&told));
            if is_known && !watched.is_news || !running.worker.listens() {
                continue;
            }
            let others = |before: &SentSettings| before.leave_alone != told.leave_alone;
            let members = watched.is_news || running.told.as_ref().is_some_and(others);
            let members = members.then(|| {
                let mut members = watched.members.clone();
                members.retain(|id, _| !avoided.contains(&id.pid));
                MemberTable::from(&members)
            });
            running.worker.say(&WatchUpdate {
                members,
                paused,
                held,
                max_overhead: told.limit,
                budget: told.budget.map(Share::Bytes),
                leave_alone: told.leave_alone.clone(),
            });
            running.told = Some(told);
            watched.is_news = false;
        }
    }

    /// Returns the ceiling of each rule, so that all together cost no more than the daemon's ceiling.
    fn shares(&self) -> BTreeMap<Arc<str>, f64> {
        let active = self.kept.iter().filter(|(_, kept)| kept.processes > 0);
        let wanted = active
            .filter_map(|(name, kept)| Some((name.clone(), kept.placement.as_ref()?.max_overhead)));
        let mut shares: BTreeMap<Arc<str>, f64> = wanted.collect();
        let all: f64 = shares.values().sum();
        if all > self.max_overhead {
            shares
                .values_mut()
                .for_each(|share| *share *= self.max_overhead / all);
        }
        shares
    }

    /// Divides the ceilings of rules among their tenants, by what each has used, and budgets by what each has charged.
    fn divide(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.divided).as_secs_f64().max(1e-3);
        self.divided = at;
        let shares = self.shares();
        for (name, kept) in &mut self.kept {
            let share = shares.get(name).copied().unwrap_or_default();
            let mut needs: Vec<(&mut LaneState, Option<f64>)> = Vec::new();
            for watched in kept.lanes.values_mut() {
                if watched.members.is_empty() {
                    continue;
                }
                let Some(running) = &mut watched.running else {
                    continue;
                };
                let now = running.worker.cpu_time();
                let used = now.saturating_sub(running.used).as_secs_f64() / passed;
                running.used = now;
                let is_new = at.saturating_sub(running.begun) < NEW;
                let is_hungry = is_new || used >= watched.limit * HUNGRY;
                needs.push((watched, (!is_hungry).then_some(used * SPARE)));
            }
            let limits = divided(
                share,
                &needs.iter().map(|(_, need)| *need).collect::<Vec<_>>(),
            );
            for ((watched, _), limit) in needs.into_iter().zip(limits) {
                watched.limit = limit;
            }
            if let Some(size) = kept.placement.as_ref().and_then(size_of_budget) {
                divide_budget(size, kept.lanes.values_mut());
            }
        }
    }

    /// Gives new workers, and those of rules whose share has changed, an even part at once.
    fn divide_new(&mut self) {
        let shares = self.shares();
        for (name, kept) in &mut self.kept {
            let share = shares.get(name).copied().unwrap_or_default();
            let size = kept.placement.as_ref().and_then(size_of_budget);
            let active =
                |watched: &&mut LaneState| !watched.members.is_empty() && watched.running.is_some();
            let mut lanes: Vec<&mut LaneState> = kept.lanes.values_mut().filter(active).collect();
            let all: f64 = lanes.iter().map(|watched| watched.limit).sum();
            let is_new = lanes.iter().any(|watched| watched.limit <= 0.0);
            if is_new || (all - share).abs() > share * 1e-6 {
                let count = u32::try_from(lanes.len()).unwrap_or(u32::MAX).max(1);
                let even = share / f64::from(count);
                lanes.iter_mut().for_each(|watched| watched.limit = even);
                if let Some(size) = size {
                    divide_budget(size, kept.lanes.values_mut());
                }
            }
        }
    }

    pub(crate) fn pause(&mut self, paused: bool) {
        self.paused = paused;
        self.tend(self.now);
    }

    pub(crate) const fn is_paused(&self) -> bool {
        self.paused
    }

    /// Makes the watches of these rules stand still, and those of all others run. Two watches that track the accesses of a process take them from each
    /// other, so a watch that stands still does not track either.
    pub(crate) fn hold(&mut self, rules: BTreeSet<Arc<str>>) {
        if self.held != rules {
            self.held = rules;
            self.tend(self.now);
        }
    }

    /// Returns the processes of a rule, without those that are left alone for a while because they hold up workers.
    pub(crate) fn processes(&self, name: &str) -> Vec<ProcessId> {
        let is_avoided = |id: &ProcessId| {
            let avoided = self.avoided.get(&id.pid);
            avoided.is_some_and(|avoided| self.now < avoided.until)
        };
        let tenants = self.kept.get(name).map(|kept| kept.fed.values());
        let members = tenants.into_iter().flatten().flat_map(Members::keys);
        members.filter(|id| !is_avoided(id)).copied().collect()
    }

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
        let cpu = running()
            .map(|running| running.worker.cpu_time())
            .sum::<Duration>();
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
            .filter(|(_, avoided)| self.now < avoided.until);
        let avoided = avoided.map(|(&pid, avoided)| HeldUpAccount {
            rule: Some(avoided.rule.to_string()),
            tenant: avoided.tenant.to_string(),
            process: Some(pid),
            worker: None,
            seconds: seconds(avoided.since),
        });
        WorkersAccount {
            running: running().count() as u64,
            started: self.started,
            given_up: self.given_up,
            left_behind: left.collect(),
            left_alone: avoided.collect(),
            cpu_seconds: (self.spent + cpu).as_secs_f64(),
            memory_bytes: running().map(|running| running.memory).sum(),
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

    /// Returns the longest time since a watch of each rule of [`Self::account`] was heard.
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

    /// Returns true if a worker of the rule `name` has process `pid` among its members.
    pub(crate) fn has(&self, name: &str, pid: u32) -> bool {
        let lanes = self.kept.get(name).map(|kept| kept.lanes.values());
        let mut lanes = lanes.into_iter().flatten();
        lanes.any(|lane| lane.running.is_some() && has(&lane.members, pid))
    }

    /// Stops all workers, and waits at most `at_most` for their end. A worker that still sleeps then is left to itself.
    pub(crate) fn end(&mut self, at_most: Duration) {
        let lanes = self
            .kept
            .values_mut()
            .flat_map(|kept| kept.lanes.values_mut());
        let mut all: Vec<RunningWorker> = lanes.filter_map(|lane| lane.running.take()).collect();
        all.extend(self.ending.drain(..).map(|(running, ..)| running));
        all.iter().for_each(|running| running.worker.stop());
        let begun = std::time::Instant::now();
        while begun.elapsed() < at_most && !all.is_empty() {
            all.retain(|running| !running.worker.has_ended());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl SentSettings {
    /// Returns true if it is nearly the same: the ceilings are divided anew each second.
    fn is_as(&self, other: &Self) -> bool {
        let change = (self.limit - other.limit).abs();
        self.paused == other.paused
            && self.held == other.held
            && self.budget == other.budget
            && self.leave_alone == other.leave_alone
            && change <= 0.05 * self.limit.max(other.limit)
    }
}

impl RuleState {
    /// Adds up all accounts, and compares the sum with the one before.
    fn add_up(&mut self) {
        self.all = self.sum();
        match &self.all {
            Some(all) => self.convergence.look(superhue::since_boot(), all),
            None => self.convergence = Convergence::default(),
        }
    }

    fn sum(&self) -> Option<Arc<WatchAccount>> {
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

    /// Returns the longest time since a watch was heard; `None` without a watch.
    fn age(&self, now: Duration) -> Option<Duration> {
        let lanes = self.lanes.values().filter(|lane| !lane.members.is_empty());
        let ages = lanes.filter_map(|lane| Some(now.saturating_sub(lane.running.as_ref()?.heard)));
        ages.max()
    }
}

fn has(members: &Members, pid: u32) -> bool {
    let first = superhue_model::ProcessId {
        pid,
        start_ticks: 0,
    };
    let mut found = members.range(first..).map(|(id, _)| id.pid);
    found.next() == Some(pid)
}

/// Returns a rule's budget if it is a size, which its tenants share.
const fn size_of_budget(placement: &PlacementOptions) -> Option<ByteCount> {
    match placement.budget {
        Some(Share::Bytes(size)) => Some(size),
        _ => None,
    }
}

/// Divides a share: workers that need less than an even part get what they need, but at least a quarter of that part; the others (`None`) get the
/// rest.
fn divided(share: f64, needs: &[Option<f64>]) -> Vec<f64> {
    let count = f64::from(u32::try_from(needs.len()).unwrap_or(u32::MAX).max(1));
    let even = share / count;
    let modest = |need: f64| need.clamp(even / 4.0, even);
    let hungry = needs.iter().filter(|need| need.is_none()).count();
    if hungry == 0 {
        return vec![even; needs.len()];
    }
    let taken: f64 = needs.iter().flatten().copied().map(modest).sum();
    let rest = (share - taken) / f64::from(u32::try_from(hungry).unwrap_or(u32::MAX));
    needs.iter().map(|need| need.map_or(rest, modest)).collect()
}

/// Divides a budget that is a size. A worker may have charged as much as it was sent, or reports as its budget: only the rest is free.
fn divide_budget<'a>(size: ByteCount, lanes: impl Iterator<Item = &'a mut LaneState>) {
    let mut lanes: Vec<&mut LaneState> = lanes.collect();
    let charged = |lane: &LaneState| {
        let running = lane.running.as_ref();
        running.map_or(0, |running| running.account.charged_bytes.0)
    };
    let bound = |lane: &LaneState| {
        let told = lane
            .running
            .as_ref()
            .and_then(|it| it.told.as_ref()?.budget);
        let says = lane.running.as_ref().and_then(|it| it.account.budget_bytes);
        let most = told.unwrap_or_default().0.max(says.unwrap_or_default().0);
        if lane.running.is_some() {
            most.max(charged(lane))
        } else {
            0
        }
    };
    let active = lanes.iter().filter(|lane| lane.running.is_some()).count() as u64;
    let used: u64 = lanes.iter().map(|lane| charged(lane)).sum();
    let even = size.0.saturating_sub(used) / active.max(1);
    let bounds: u64 = lanes.iter().map(|lane| bound(lane)).sum();
    let mut free = size.0.saturating_sub(bounds);
    for lane in &mut lanes {
        let wanted = charged(lane) + even;
        let now = lane.budget.unwrap_or_default().0;
        let given = match wanted.checked_sub(now) {
            Some(more) => now + more.min(free),
            // Half of the way at a time: it may have charged more by now than is known, and huge pages beyond its budget would be split.
            None => now - (now - wanted) / 2,
        };
        free -= given.saturating_sub(now).min(free);
        lane.budget = Some(ByteCount(given));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use superhue::Pages;

    use super::*;
    use crate::rules::Conditions;

    const NOW: Duration = Duration::from_secs(1);

    fn rule(name: &str, pages: Option<Pages>) -> Rule {
        Rule {
            name: name.into(),
            place: String::new(),
            conditions: Conditions::default(),
            placement: pages.map(|pages| PlacementOptions {
                pages: Some(pages),
                ..PlacementOptions::default()
            }),
        }
    }

    fn members() -> Tenants {
        tenants(&["a.service"])
    }

    fn tenants(names: &[&str]) -> Tenants {
        let nobody = |index: usize| ProcessId {
            pid: (u32::MAX >> 1) - u32::try_from(index).unwrap(),
            start_ticks: 1,
        };
        let one = |(index, name): (usize, &&str)| {
            let members = Members::from([(nobody(index), Arc::from(*name))]);
            (Arc::from(*name), members)
        };
        names.iter().enumerate().map(one).collect()
    }

    /// Waits until `what` holds, however slow the machine is.
    fn wait(watches: &mut Watches, what: impl Fn(&Watches) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !what(watches) {
            assert!(Instant::now() < deadline, "{:?}", watches.account());
            std::thread::sleep(Duration::from_millis(5));
            watches.tend(watches.now);
        }
    }

    fn ceiling(watches: &Watches, name: &str) -> Option<f64> {
        Some(watches.of(name).1?.own.max_overhead)
    }

    fn numbers(watches: &Watches, name: &str) -> Vec<u64> {
        let lanes = watches
            .kept
            .get(name)
            .into_iter()
            .flat_map(|kept| kept.lanes.values());
        let running = lanes.filter_map(|lane| lane.running.as_ref());
        running.map(|running| running.number).collect()
    }

    fn watches(rules: Vec<Rule>) -> Watches {
        let mut watches = Watches::new(&Roots::default());
        watches.follow(rules.into(), 0.01);
        watches
    }

    #[test]
    fn rules_have_watches_only_while_they_are_worth_it() {
        let off = rule("off", None);
        let mut watches = watches(vec![rule("a", Some(Pages::Kernel)), off]);
        assert!(watches.account().is_empty(), "nobody has any process");
        watches.feed([(0, members()), (1, members())].into(), NOW);
        assert_eq!(watches.account()[0].watch, None, "it has said nothing yet");
        wait(&mut watches, |watches| watches.account()[0].watch.is_some());
        let account = watches.account();
        assert_eq!(account.len(), 2);
        assert!(account[0].watch.is_some() && !account[0].off);
        assert!(account[1].watch.is_none() && account[1].off);
        watches.feed(BTreeMap::new(), NOW);
        assert_eq!(watches.account()[0].processes, 0);
    }

    #[test]
    fn a_reload_keeps_the_watches_of_rules_that_stay() {
        let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
        let mut watches = watches(rules.to_vec());
        let all = || (0..3).map(|index| (index, members())).collect();
        watches.feed(all(), NOW);
        let before = numbers(&watches, "a");
        assert_eq!(before.len(), 1);
        let mut rules = rules.to_vec();
        // Other conditions, another place, another placement, gone.
        rules[0].conditions.unit = Some(glob::Pattern::new("x").unwrap());
        rules[1].placement.as_mut().unwrap().pages = Some(Pages::Resident);
        rules.swap(0, 1);
        rules.truncate(2);
        watches.follow(rules.into(), 0.01);
        assert_eq!(numbers(&watches, "a"), before);
        for name in ["b", "c"] {
            assert_eq!(numbers(&watches, name), [0; 0]);
        }
        assert_eq!(watches.ending.len(), 2);
        wait(&mut watches, |watches| watches.ending.is_empty());
        assert_eq!(
            watches.take_ended().len(),
            2,
            "what they came to is not lost"
        );
    }

    #[test]
    fn the_watches_of_a_rule_that_is_held_stand_still_and_no_others() {
        let mut watches = watches(vec![
            rule("a", Some(Pages::Kernel)),
            rule("b", Some(Pages::Kernel)),
        ]);
        watches.feed([(0, members()), (1, members())].into(), NOW);
        let told = |watches: &Watches| {
            ["a", "b"].map(|name| {
                let lane = watches.kept[name].lanes.values().next().unwrap();
                lane.running.as_ref().unwrap().told.as_ref().unwrap().held
            })
        };
        assert_eq!(told(&watches), [false, false]);
        watches.hold(["b".into()].into());
        wait(&mut watches, |watches| told(watches) == [false, true]);
        assert!(watches.account()[1].held && !watches.account()[0].held);
        watches.hold(BTreeSet::new());
        wait(&mut watches, |watches| told(watches) == [false, false]);
        // A process that holds up workers would hold up a trial, too.
        let evil = u32::MAX >> 1;
        assert_eq!(watches.processes("b")[0].pid, evil);
        let lane = Lane::Tenant("a.service".into());
        watches.give_up(&"b".into(), &lane, Some(evil), NOW);
        assert_eq!(watches.processes("b"), []);
        assert_eq!(watches.processes("no such rule"), []);
    }

    #[test]
    fn the_ceiling_is_divided_among_those_that_have_processes() {
        let rules = ["a", "b", "c"].map(|name| rule(name, Some(Pages::Kernel)));
        let mut watches = watches(rules.to_vec());
        watches.feed([(0, members()), (1, members())].into(), NOW);
        let is = |name: &'static str, expected: f64| {
            move |watches: &Watches| {
                ceiling(watches, name).is_some_and(|found| (found - expected).abs() < 1e-12)
            }
        };
        // Two rules of 1 % each may cost 1 % together.
        wait(&mut watches, is("a", 0.005));
        wait(&mut watches, is("b", 0.005));
        watches.feed([(1, members())].into(), NOW);
        wait(&mut watches, is("b", 0.01));
    }

    #[test]
    fn each_tenant_has_a_worker_which_ends_when_it_is_idle() {
        let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
        watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
        let first = numbers(&watches, "a");
        assert_eq!(first.len(), 2);
        let is_whole =
            |watches: &Watches| ceiling(watches, "a").is_some_and(|it| (it - 0.01).abs() < 1e-12);
        wait(&mut watches, is_whole);
        watches.feed([(0, tenants(&["x.service"]))].into(), NOW);
        assert_eq!(numbers(&watches, "a"), first, "it is kept for a while");
        watches.tend(NOW + KEPT_EMPTY);
        assert_eq!(numbers(&watches, "a"), first[..1]);
        let seen = watches.of("a").1.unwrap().own.cpu_seconds;
        watches.feed(
            [(0, tenants(&["x.service", "y.service"]))].into(),
            NOW + KEPT_EMPTY,
        );
        wait(&mut watches, is_whole);
        assert!(
            watches.of("a").1.unwrap().own.cpu_seconds >= seen,
            "what was is not forgotten"
        );
        assert_eq!(watches.workers().started, 3);
    }

    #[test]
    fn tenants_beyond_the_most_share_a_worker_and_one_that_holds_it_up_gets_another() {
        let mut rules = rule("a", Some(Pages::Kernel));
        rules.placement.as_mut().unwrap().swap = true;
        let mut watches = watches(vec![rules]);
        watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
        assert_eq!(numbers(&watches, "a"), [1], "swap is one for the machine");
        let evil = u32::MAX >> 1;
        watches.give_up(&"a".into(), &Lane::Shared, Some(evil), NOW);
        watches.tend(NOW);
        assert_eq!(numbers(&watches, "a"), [2, 3]);
        let lane = &watches.kept["a"].lanes[&Lane::Tenant("x.service".into())];
        assert_eq!(lane.members.len(), 1);
        let told = lane.running.as_ref().unwrap().told.as_ref().unwrap();
        assert!(told.leave_alone.contains(&evil));
        let account = watches.workers();
        assert_eq!((account.given_up, account.left_alone.len()), (1, 1));
        assert_eq!(account.left_alone[0].process, Some(evil));
        assert_eq!(account.left_alone[0].tenant, "x.service");
        // Each time for longer.
        watches.tend(NOW + LEFT_ALONE);
        assert_eq!(watches.workers().left_alone, []);
        let own = Lane::Tenant("x.service".into());
        watches.give_up(&"a".into(), &own, Some(evil), NOW + LEFT_ALONE);
        watches.tend(NOW + 2 * LEFT_ALONE);
        assert_eq!(watches.workers().left_alone.len(), 1);
        watches.tend(NOW + 3 * LEFT_ALONE);
        assert_eq!(watches.workers().left_alone, []);
    }

    /// Leaves a worker behind that does not end.
    fn leave(watches: &mut Watches, tenant: &str) {
        let task = Task::Read(Roots::default());
        let kept = rustix::thread::CapabilitySet::empty();
        watches.left.push(AbandonedWorker {
            worker: Worker::start(&task, kept, WATCH_SLEEP_LIMITS).unwrap(),
            rule: "a".into(),
            tenant: tenant.into(),
            was_shared: false,
            process: None,
            since: NOW,
        });
    }

    #[test]
    fn workers_left_behind_by_some_tenants_keep_no_other_from_having_one() {
        let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
        for number in 0..MANY_LEFT {
            leave(&mut watches, &format!("evil{number}.service"));
        }
        watches.feed([(0, tenants(&["evil0.service", "x.service"]))].into(), NOW);
        let is_watched = |watches: &Watches, tenant: &str| {
            let lane = Lane::Tenant(tenant.into());
            watches.kept["a"].lanes[&lane].running.is_some()
        };
        assert!(is_watched(&watches, "x.service"));
        assert!(!is_watched(&watches, "evil0.service"));
        watches.left.clear();
        watches.tend(NOW + LEFT_ALONE);
        assert!(is_watched(&watches, "evil0.service"));
    }

    #[test]
    fn a_tenant_that_left_a_worker_behind_shares_none_with_others() {
        let mut rules = rule("a", Some(Pages::Kernel));
        rules.placement.as_mut().unwrap().swap = true;
        let mut watches = watches(vec![rules]);
        leave(&mut watches, "evil.service");
        watches.feed([(0, tenants(&["evil.service", "x.service"]))].into(), NOW);
        let names = |watches: &Watches| -> Vec<String> {
            let members = watches.kept["a"].lanes[&Lane::Shared].members.values();
            members.map(ToString::to_string).collect()
        };
        assert_eq!(names(&watches), ["x.service"]);
        watches.left[0].worker.kill();
        wait(&mut watches, |watches| names(watches).len() == 2);
    }

    #[test]
    fn few_workers_of_single_tenants_are_given_up_at_once() {
        let mut watches = watches(vec![rule("a", Some(Pages::Kernel))]);
        let names = ["a.service", "b.service", "c.service", "d.service"];
        watches.feed([(0, tenants(&names))].into(), NOW);
        let held = names.iter().zip(1..).map(|(name, seconds)| HeldUpWorker {
            rule: "a".into(),
            lane: Lane::Tenant((*name).into()),
            process: None,
            lasts: Duration::from_secs(seconds),
        });
        watches.give_up_some(held.collect(), NOW);
        let left: Vec<&str> = watches.left.iter().map(|left| &*left.tenant).collect();
        assert_eq!(left, ["d.service", "c.service"]);
        let again = || HeldUpWorker {
            rule: "a".into(),
            lane: Lane::Tenant("a.service".into()),
            process: None,
            lasts: SILENCE,
        };
        watches.give_up_some(vec![again()], NOW);
        assert_eq!(watches.left.len(), 2, "in the same second");
        watches.give_up_some(vec![again()], NOW + GIVEN_UP_EVERY);
        assert_eq!(watches.left.len(), 3);
    }

    #[test]
    fn a_worker_that_was_ended_is_followed_soon_and_less_soon_each_time() {
        let mut ends = RestartBackoff::default();
        let mut pause = |lasted: u64| ends.after(Duration::from_secs(lasted), false).as_secs();
        assert_eq!([1, 1, 1, 1].map(&mut pause), [1, 2, 4, 8]);
        assert_eq!([0; 4].map(&mut pause), [16, 32, 60, 60]);
        assert_eq!(pause(3600), 1);
        assert_eq!(ends.after(Duration::ZERO, true), AFTER_TROUBLE);
    }

    #[test]
    fn what_is_not_used_goes_to_those_that_need_more() {
        assert_eq!(divided(0.01, &[None, None]), [0.005, 0.005]);
        assert_eq!(divided(0.01, &[Some(0.0), Some(0.001)]), [0.005, 0.005]);
        let found = divided(0.01, &[Some(0.0), None, Some(0.002), Some(1.0)]);
        let expected = [0.000_625, 0.004_875, 0.002, 0.0025];
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-12, "{found:?}");
        }
        assert_eq!(divided(0.01, &[]), [0.0; 0]);
    }

    #[test]
    fn a_budget_that_is_a_size_holds_for_all_tenants_together() {
        let mut rules = rule("a", Some(Pages::Resident));
        let size = ByteCount(100 << 20);
        rules.placement.as_mut().unwrap().budget = Some(Share::Bytes(size));
        let mut watches = watches(vec![rules]);
        watches.feed([(0, tenants(&["x.service", "y.service"]))].into(), NOW);
        let budgets = |watches: &mut Watches, charged: [u64; 2]| {
            let lanes = watches.kept.get_mut("a").unwrap().lanes.values_mut();
            for (lane, charged) in lanes.zip(charged) {
                let running = lane.running.as_mut().unwrap();
                let account = Arc::make_mut(&mut running.account);
                account.charged_bytes = ByteCount(charged << 20);
                // It uses the budget that it was sent.
                account.budget_bytes = lane.budget;
                if let Some(told) = &mut running.told {
                    told.budget = lane.budget;
                }
            }
            let kept = watches.kept.get_mut("a").unwrap();
            divide_budget(size, kept.lanes.values_mut());
            let given = kept.lanes.values().map(|lane| lane.budget.unwrap().0 >> 20);
            given.collect::<Vec<_>>()
        };
        assert_eq!(budgets(&mut watches, [0, 0]), [50, 50]);
        // One worker has used all: the other one must have less before the first one gets more.
        let first = budgets(&mut watches, [50, 0]);
        assert_eq!(first[0], 50);
        assert!(first[1] < 50);
        let mut now = first;
        for _ in 0..60 {
            now = budgets(&mut watches, [now[0], 0]);
            assert!(now.iter().sum::<u64>() <= 100, "{now:?}");
        }
        assert!(now[0] >= 96, "{now:?}");
    }

    #[test]
    fn a_watch_in_trouble_is_told_and_tried_again() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        std::fs::create_dir(&roots.proc).unwrap();
        std::os::unix::fs::symlink("0", roots.proc.join("self")).unwrap();
        let mut watches = Watches::new(&roots);
        watches.follow([rule("a", Some(Pages::Kernel))].into(), 0.01);
        watches.feed([(0, members())].into(), NOW);
        let deadline = Instant::now() + Duration::from_secs(60);
        let in_trouble = |watches: &Watches| {
            let mut lanes = watches.kept["a"].lanes.values();
            lanes.any(|lane| lane.trouble.is_some())
        };
        while !in_trouble(&watches) {
            assert!(Instant::now() < deadline);
            watches.tend(NOW);
        }
        assert!(watches.of("a").1.unwrap().trouble.is_some());
        watches.tend(NOW + AFTER_TROUBLE);
        assert!(!in_trouble(&watches), "tried again");
    }
}
