//! The loop: look, decide, act, learn, sleep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use superhue_act::Actuator;
use superhue_decide::{Ledger, Policy};
use superhue_model::{
    Action, ByteCount, Effect, Outcome, PAGES_PER_REGION, PageCount, Plan, ProcessId, ProcessView,
    Region, SkipReason, Snapshot,
};
use superhue_observe::process::{PageScanner, resident_now, view};
use superhue_observe::{ReadError, Roots};

use crate::family::Family;
use crate::program::Program;
use crate::tally::Tally;
use crate::timeline::Timeline;

/// Distance between looks while something happens, and the longest one while nothing does.
const LIVELY: Duration = Duration::from_millis(20);
const CALM: Duration = Duration::from_millis(250);

/// A process whose size stands still is looked at in full this often all the same, or so many times
/// the cost of a look apart: half a percent of one CPU.
const FULL_LOOK_AT_LEAST: Duration = Duration::from_secs(2);
const COSTS_APART: u32 = 200;

/// Small looks at all processes are at least this many times their own cost apart: at most 2 % of a
/// CPU, however many processes there are.
const GLANCES_APART: u32 = 50;

/// Collapses between two entries in the timeline, and between two chances to stop.
const CHUNK: usize = 16;

/// A change of size that calls for a full look: so many pages, or this share of the resident ones.
const NOTABLE_PAGES: u64 = 128;
const NOTABLE_SHARE: u64 = 1000;

/// Planned actions that a dry run keeps.
const DRY_RUN_CAPACITY: usize = 100_000;

/// Asks the loop to end, from another thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<(Mutex<bool>, Condvar)>);

impl Stop {
    pub(crate) fn now(&self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.0.1.notify_all();
    }

    pub(crate) fn is_set(&self) -> bool {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sleep(&self, time: Duration) {
        let stopped = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(
            self.0
                .1
                .wait_timeout_while(stopped, time, |stopped| !*stopped),
        );
    }
}

/// What looking at processes that change may cost: 1 % of one CPU in the long run, and a second in
/// advance for the time in which a program fills its memory.
#[derive(Debug)]
struct Allowance {
    credit: Duration,
    at: Duration,
}

impl Allowance {
    const ADVANCE: Duration = Duration::from_secs(1);
    const SHARE: u32 = 100;

    const fn new() -> Self {
        Self {
            credit: Self::ADVANCE,
            at: Duration::ZERO,
        }
    }

    fn accrue(&mut self, at: Duration) {
        self.credit = (self.credit + at.saturating_sub(self.at) / Self::SHARE).min(Self::ADVANCE);
        self.at = at;
    }

    /// A look that costs more than the whole advance is due when the advance is there in full.
    fn covers(&self, cost: Duration) -> bool {
        self.credit >= cost.min(Self::ADVANCE)
    }

    fn spend(&mut self, cost: Duration) {
        self.credit = self.credit.saturating_sub(cost);
    }
}

/// What is kept of a process between looks, beside its view in the snapshot.
#[derive(Debug)]
struct Known {
    resident: PageCount,
    looked: Duration,
    cost: Duration,
    /// The last attempt was refused; worth another one, but not at once.
    refused: bool,
}

/// What a watch found and did.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) timeline: Timeline,
    pub(crate) tally: Tally,
    pub(crate) ledger: Ledger,
    pub(crate) growth: PageCount,
    pub(crate) bloat_bound: Option<ByteCount>,
    pub(crate) peak_rss: Option<ByteCount>,
    pub(crate) looks: u64,
    pub(crate) full_looks: u64,
    pub(crate) looking: Duration,
    pub(crate) processes_seen: u64,
    pub(crate) processes_denied: u64,
    pub(crate) processes_unreachable: u64,
    /// Programs whose memory could not be read, with the reason.
    pub(crate) unreadable: BTreeMap<String, String>,
    /// Programs in which an agent was needed and not found, with the reason if it is known.
    pub(crate) without_agent: BTreeMap<PathBuf, Option<&'static str>>,
    pub(crate) planned: Vec<Action>,
}

/// A watch over a family of processes.
pub(crate) struct Watch {
    pub(crate) roots: Roots,
    pub(crate) family: Family,
    pub(crate) policy: Box<dyn Policy + Send>,
    pub(crate) actuator: Box<dyn Actuator>,
    pub(crate) dry_run: bool,
    scanner: PageScanner,
    snapshot: Snapshot,
    known: BTreeMap<ProcessId, Known>,
    /// Pages that our collapse of a region added.
    grown: HashMap<(ProcessId, Region), PageCount>,
    allowance: Allowance,
    /// CPU time that the small looks at all processes cost the last time.
    glance: Duration,
    begun: Instant,
    watched: Watched,
}

impl Watch {
    pub(crate) fn new(
        roots: Roots,
        family: Family,
        policy: Box<dyn Policy + Send>,
        actuator: Box<dyn Actuator>,
        dry_run: bool,
    ) -> Self {
        Self {
            roots,
            family,
            policy,
            actuator,
            dry_run,
            scanner: PageScanner::new(),
            snapshot: Snapshot::default(),
            known: BTreeMap::new(),
            grown: HashMap::new(),
            allowance: Allowance::new(),
            glance: Duration::ZERO,
            begun: Instant::now(),
            watched: Watched::default(),
        }
    }

    /// Watches until told to stop, or until there is nobody left to watch if `until_empty`.
    pub(crate) fn run(mut self, stop: &Stop, until_empty: bool) -> Watched {
        let mut pause = LIVELY;
        let mut next_housekeeping = Duration::ZERO;
        while !stop.is_set() {
            let happened = self.look() | self.act(stop);
            if until_empty && self.family.is_over() {
                break;
            }
            if self.snapshot.at >= next_housekeeping {
                next_housekeeping = self.snapshot.at + Duration::from_secs(1);
                self.actuator.housekeep();
                self.forget_the_dead();
            }
            pause = if happened {
                LIVELY
            } else {
                (pause + pause / 2).min(CALM)
            };
            let wanted = self.policy.wants_look_within().unwrap_or(CALM);
            let affordable = self.glance * GLANCES_APART;
            stop.sleep(pause.min(wanted.max(LIVELY)).max(affordable.min(CALM * 4)));
        }
        self.watched.ledger = self.policy.ledger();
        self.watched.processes_seen = self.family.seen();
        self.watched.processes_denied = self.family.denied();
        self.watched.processes_unreachable = self.family.unreachable();
        self.watched
    }

    /// Brings the snapshot up to date; whether anything notable changed.
    fn look(&mut self) -> bool {
        let begun = Instant::now();
        self.snapshot.at = self.begun.elapsed();
        self.allowance.accrue(self.snapshot.at);
        self.family.update(&self.roots, self.snapshot.at);
        let members: BTreeSet<ProcessId> = self.family.members().collect();
        self.snapshot
            .processes
            .retain(|process| members.contains(&process.id));
        self.known.retain(|id, _| members.contains(id));
        let mut changed = false;
        let glancing = cpu_time();
        let mut in_full = Duration::ZERO;
        for id in members {
            let (happened, cost) = self.look_at(id);
            changed |= happened;
            in_full += cost;
        }
        self.glance = cpu_time().saturating_sub(glancing + in_full);
        self.record();
        self.watched.looks += 1;
        self.watched.looking += begun.elapsed();
        changed
    }

    /// Looks at one process as closely as is worth it; whether it had changed, and the CPU time
    /// of a full look if there was one.
    fn look_at(&mut self, id: ProcessId) -> (bool, Duration) {
        let Ok(resident) = resident_now(&self.roots, id.pid) else {
            return (false, Duration::ZERO);
        };
        let at = self.snapshot.at;
        let is_new = !self.known.contains_key(&id);
        let changed = self.known.get(&id).is_none_or(|known| {
            let difference = known.resident.0.abs_diff(resident.total.0);
            difference >= NOTABLE_PAGES.max(known.resident.0 / NOTABLE_SHARE)
        });
        let due = self.known.get(&id).is_none_or(|known| {
            let since = at.saturating_sub(known.looked);
            let overdue = since >= FULL_LOOK_AT_LEAST.max(known.cost * COSTS_APART);
            (changed && !known.refused || overdue) && self.allowance.covers(known.cost)
        });
        if !due {
            return (changed, Duration::ZERO);
        }
        let (begun, cpu_before) = (Instant::now(), cpu_time());
        let seen = view(&self.roots, &mut self.scanner, id);
        let cost = begun.elapsed();
        let cpu = cpu_time().saturating_sub(cpu_before);
        self.allowance.spend(cost);
        self.watched.full_looks += 1;
        tracing::debug!(process = %id, ?cost, readable = seen.is_ok(), "looked in full");
        let refused = seen.is_err();
        match seen {
            Ok(view) => self.store(view),
            Err(error) => self.note_unreadable(id, &error),
        }
        self.known.insert(
            id,
            Known {
                resident: resident.total,
                looked: at,
                cost,
                refused,
            },
        );
        (changed || is_new, cpu)
    }

    fn store(&mut self, view: ProcessView) {
        match self
            .snapshot
            .processes
            .binary_search_by_key(&view.id, |process| process.id)
        {
            Ok(index) => self.snapshot.processes[index] = view,
            Err(index) => self.snapshot.processes.insert(index, view),
        }
    }

    fn note_unreadable(&mut self, id: ProcessId, error: &ReadError) {
        if error.is_vanished() {
            return;
        }
        let name = std::fs::read_to_string(self.roots.of_process(id.pid, "comm"));
        let name = name.map_or_else(|_| id.to_string(), |name| name.trim_end().to_owned());
        // The reason without the process number, so that equal programs count once.
        let reason = match error {
            ReadError::Denied { remedy, .. } => format!("not permitted: {remedy}"),
            error => error.to_string(),
        };
        self.watched.unreadable.entry(name).or_insert(reason);
    }

    /// Decides and acts on the snapshot; whether anything was planned.
    fn act(&mut self, stop: &Stop) -> bool {
        let plan = self.policy.decide(&self.snapshot);
        if self.dry_run {
            let room = DRY_RUN_CAPACITY.saturating_sub(self.watched.planned.len());
            self.watched.planned.extend(plan.actions.iter().take(room));
        }
        for chunk in plan.actions.chunks(CHUNK) {
            let part = Plan {
                actions: chunk.to_vec(),
            };
            let outcome = self.actuator.perform(&part, &|| stop.is_set());
            for result in &outcome.results {
                let (region, process) = (result.action.region(), result.action.process());
                tracing::debug!(%process, %region, effect = ?result.effect, took = ?result.took);
            }
            let at = self.begun.elapsed();
            self.policy.learn(at, &outcome);
            self.watched.tally.add(&outcome);
            self.apply(&outcome);
            self.snapshot.at = at;
            self.record();
        }
        !plan.actions.is_empty()
    }

    /// Enters what was done into the snapshot, which saves another look.
    fn apply(&mut self, outcome: &Outcome) {
        for result in &outcome.results {
            let (id, region) = (result.action.process(), result.action.region());
            if result.effect
                == (Effect::Skipped {
                    reason: SkipReason::NoAgent,
                })
            {
                self.note_without_agent(id);
            }
            let Action::Collapse { growth, .. } = result.action else {
                continue;
            };
            if result.effect != Effect::Done {
                continue;
            }
            let processes = &mut self.snapshot.processes;
            let Ok(index) = processes.binary_search_by_key(&id, |process| process.id) else {
                continue;
            };
            let process = &mut processes[index];
            if let Ok(index) = process
                .regions
                .binary_search_by_key(&region, |view| view.region)
            {
                process.regions[index].huge = Some(true);
                process.regions[index].resident = PageCount(PAGES_PER_REGION);
            }
            for size in [&mut process.rss, &mut process.rss_anon]
                .into_iter()
                .flatten()
            {
                *size += growth.bytes();
            }
            if let Some(known) = self.known.get_mut(&id) {
                known.resident += growth;
            }
            self.watched.growth += growth;
            self.grown.insert((id, region), growth);
        }
    }

    fn note_without_agent(&mut self, id: ProcessId) {
        let Ok(path) = std::fs::read_link(self.roots.of_process(id.pid, "exe")) else {
            return;
        };
        if !self.watched.without_agent.contains_key(&path) {
            let program = Program::at(path);
            self.watched
                .without_agent
                .insert(program.path, program.kind.obstacle());
        }
    }

    /// Enters the snapshot into the timeline.
    fn record(&mut self) {
        let processes = &self.snapshot.processes;
        if processes.is_empty() {
            return;
        }
        let anonymous = processes
            .iter()
            .filter_map(|process| process.rss_anon)
            .sum();
        let huge: Option<ByteCount> = processes.iter().map(ProcessView::huge_mapped).sum();
        self.watched.timeline.add(self.snapshot.at, anonymous, huge);

        let rss: ByteCount = processes.iter().filter_map(|process| process.rss).sum();
        self.watched.peak_rss = Some(self.watched.peak_rss.map_or(rss, |peak| peak.max(rss)));
        let bound = huge.map(|_| self.bloat_bound());
        self.watched.bloat_bound = self.watched.bloat_bound.max(bound);
    }

    /// The most that superpages can hold beyond what programs touched: what our collapses added,
    /// and of each superpage that the kernel made by itself all but the page whose touch made it.
    fn bloat_bound(&self) -> ByteCount {
        let pages = self.snapshot.processes.iter().flat_map(|process| {
            let huge = process
                .regions
                .iter()
                .filter(|view| view.huge == Some(true));
            huge.map(|view| {
                let ours = self.grown.get(&(process.id, view.region)).copied();
                ours.unwrap_or(PageCount(PAGES_PER_REGION - 1))
            })
        });
        pages.sum::<PageCount>().bytes()
    }

    fn forget_the_dead(&mut self) {
        let known = &self.known;
        self.grown.retain(|(id, _), _| known.contains_key(id));
    }
}

/// CPU time of the calling thread. Time on the clock would count others' work, and on a busy machine
/// space the looks at a single process far apart.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::from_secs(seconds)
        + Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looking_is_paid_for_in_advance_and_then_by_the_clock() {
        let mut allowance = Allowance::new();
        allowance.spend(Duration::from_millis(900));
        assert!(allowance.covers(Duration::from_millis(100)));
        assert!(!allowance.covers(Duration::from_millis(101)));
        allowance.accrue(Duration::from_secs(10));
        assert!(allowance.covers(Duration::from_millis(200)));
        assert!(!allowance.covers(Duration::from_millis(201)));
        allowance.accrue(Duration::from_secs(10_000));
        assert!(allowance.covers(Duration::from_secs(5)));
        allowance.spend(Duration::from_millis(1));
        assert!(!allowance.covers(Duration::from_secs(5)));
    }
}
