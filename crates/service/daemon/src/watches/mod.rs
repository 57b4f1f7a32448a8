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

mod held_up;
mod shares;
mod start;
mod sums;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use start::{NEXT_STARTS, STARTS};
use superhue::PlacementOptions;
use superhue::live::{Members, WatchAccount};
use superhue_heat::{Scope, TrackerKind, choose};
use superhue_model::{ByteCount, ProcessId};
use superhue_procfs::Roots;

use crate::avoidance::Avoidance;
use crate::convergence::Convergence;
use crate::metrics::WatchSample;
use crate::privileges::tracks;
use crate::rules::Rule;
use crate::workers::{WatchMessage, Worker};

/// Members by tenant.
pub(crate) type Tenants = BTreeMap<Arc<str>, Members>;

/// Time for which a worker is kept whose tenant has no processes: services are restarted.
const KEPT_EMPTY: Duration = Duration::from_secs(30);

/// Longest wait for a worker to end.
const ENDING: Duration = Duration::from_secs(5);

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
    /// Tenants that have held up a shared worker, and when they last did.
    apart: BTreeMap<Arc<str>, Duration>,
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
    /// Growth that workers which have ended have charged to the budget. The processes may still have it.
    carried: ByteCount,
    /// Time since which it has no members.
    empty_since: Option<Duration>,
    limit: f64,
    /// Memory that it may charge, if the budget is divided here.
    budget: Option<ByteCount>,
}

/// Workers that have ended one soon after the other.
#[derive(Debug, Default)]
struct RestartBackoff(u32);

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
    /// Time at which its watch last published an account: a worker that says nothing new is heard, too.
    renewed: Duration,
    /// The settings that it was sent last, without the members.
    told: Option<SentSettings>,
    /// CPU time at the last division.
    used: Duration,
    /// Anonymous memory of the worker, as it reported it last.
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
    /// Time at which it is killed, until it has been: first it releases its locks.
    kill_at: Option<Duration>,
    /// Anonymous memory of the worker, as it reported it last.
    memory: ByteCount,
}

/// A process that has held up a worker.
#[derive(Debug)]
struct AvoidedProcess {
    /// Start of the process in ticks since boot, where that is known: a later process may have its number.
    start_ticks: Option<u64>,
    rule: Arc<str>,
    tenant: Arc<str>,
    avoidance: Avoidance,
}

impl RunningWorker {
    /// Returns what it has charged to the budget, as far as it has reported that; `carried` is what it began with.
    fn charged(&self, carried: ByteCount) -> ByteCount {
        match self.is_heard {
            true => self.account.charged_bytes,
            false => self.account.charged_bytes.max(carried),
        }
    }

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
                    if account.at_seconds > self.account.at_seconds {
                        self.renewed = at;
                    }
                    self.account = Arc::from(account);
                }
                WatchMessage::Beat { at_seconds, own } => {
                    let account = Arc::make_mut(&mut self.account);
                    if at_seconds > account.at_seconds {
                        self.renewed = at;
                    }
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
            apart: BTreeMap::new(),
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
            let placement = wanted.get(&*name);
            if placement == Some(&&kept.placement) {
                self.kept.insert(name, kept);
            } else {
                // What its workers have charged outlives them.
                let mut lanes = BTreeMap::new();
                for (lane, mut watched) in kept.lanes {
                    let running = watched.running.take();
                    let carried = (running.as_ref())
                        .map_or(watched.carried, |running| running.charged(watched.carried));
                    lanes.insert(
                        lane,
                        LaneState {
                            carried,
                            ..LaneState::default()
                        },
                    );
                    let Some(running) = running else { continue };
                    running.worker.stop();
                    self.ending.push((running, name.clone(), self.now + ENDING));
                }
                if let Some(placement @ Some(_)) = placement {
                    let kept = RuleState {
                        placement: (*placement).clone(),
                        lanes,
                        ..RuleState::default()
                    };
                    self.kept.insert(name, kept);
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
        let start = |pid: u32| fed().find_map(|members| start_of(members, pid));
        let is_gone = |(&pid, avoided): (&u32, &AvoidedProcess)| match start(pid) {
            None => !avoided.avoidance.holds(at),
            Some(now) => avoided.start_ticks.is_some_and(|before| before != now),
        };
        let gone: Vec<u32> = (self.avoided.iter())
            .filter(|avoided| is_gone(*avoided))
            .map(|(&pid, _)| pid)
            .collect();
        for pid in gone {
            self.avoided.remove(&pid);
        }
        self.tend(at);
    }

    /// Takes messages of all workers, gives up those that are held up, starts missing ones, and sends settings to all.
    pub(crate) fn tend(&mut self, at: Duration) {
        self.now = at;
        self.apart
            .retain(|_, since| at.saturating_sub(*since) < held_up::APART);
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
            avoided.is_some_and(|avoided| avoided.avoidance.holds(self.now))
        };
        let tenants = self.kept.get(name).map(|kept| kept.fed.values());
        let members = tenants.into_iter().flatten().flat_map(Members::keys);
        members.filter(|id| !is_avoided(id)).copied().collect()
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

fn has(members: &Members, pid: u32) -> bool {
    start_of(members, pid).is_some()
}

/// Returns the start of the member with this number.
fn start_of(members: &Members, pid: u32) -> Option<u64> {
    let first = ProcessId {
        pid,
        start_ticks: 0,
    };
    let found = members.range(first..).map(|(id, _)| id).next()?;
    (found.pid == pid).then_some(found.start_ticks)
}

#[cfg(test)]
mod tests;
