//! The loop: look, sample, decide, act, learn, sleep ([`Watch::run`]).
//!
//! ```text
//!   look      members, and the state of their memory                      look.rs, family.rs
//!   sample    pages that were accessed, where the policy needs them       Watch::sample, heat/sampler.rs
//!   act       the policy decides; the actuator collapses and splits;      Watch::act, crates/hugepages/{policy,act}
//!             the policy learns the results
//!   color     hot pages receive frames of other colors                    Watch::color, colors/keeper/
//!   sleep     20 ms while something happens, longer while nothing does
//! ```
//!
//! * `heat`: accesses to the members' memory;
//! * `objects`: shared memory, which has no process of its own;
//! * `enter`: enters completed actions into the snapshot and the record;
//! * `huge pages`: sums over the huge pages of a process;
//! * `publish`: accounts for the owner of a watch that can be read while it runs, and the owner's wishes;
//! * `turns`: order of the looks, where they cost too much.

mod enter;
mod growth;
mod heat;
mod huge_pages;
mod known;
mod look;
mod objects;
mod publish;
mod turns;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use superhue_act::Actuator;
use superhue_heat::Allowance;
use superhue_model::{
    Action, ActionResult, ByteCount, ColorRequest, Effect, ObjectId, Outcome, Owner, PageCount,
    Plan, ProcessId, ProcessView, Region, Share, SkipReason, Snapshot, Vma,
};
use superhue_policy::Ledger;
use superhue_procfs::Roots;
use superhue_procfs::process::{PageScanner, ZeroPages, resident_now, stat};
use superhue_sys::busy::note_charged;

use crate::account::WatchAccount;
use crate::ceiling::{self, TotalCost};
use crate::charge::Charge;
use crate::colors::{Census, Keeper};
use crate::cpu::{cpu_time, take_reads};
use crate::family::Family;
use crate::given_back::{LazyFreeFinder, TornPageFinder};
use crate::setup::Setup;
use crate::stop::Stop;
use crate::timeline::Timeline;
use crate::{Config, Mechanism, Pages};
use huge_pages::HugePages;
use known::ProcessState;
use objects::Objects;
use turns::Turns;

pub(crate) use heat::TrackingSummary;
pub(crate) use objects::{KnownObject, Mappings};
pub(crate) use publish::AccountPublisher;

/// Interval between looks while something happens; `MAX_LOOK_INTERVAL` is the longest interval while nothing does.
const MIN_LOOK_INTERVAL: Duration = Duration::from_millis(20);
const MAX_LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Longest interval between looks because of their cost.
const MAX_AFFORDABLE_INTERVAL: Duration = Duration::from_secs(1);

/// Longest interval between looks, and between decisions, of a watch that has taken what the ceiling allows.
const MAX_SAVING_INTERVAL: Duration = Duration::from_secs(10);

/// Collapses between two entries in the timeline, and between two chances to stop.
const CHUNK: usize = 16;

/// Time for which a watch sleeps that has no members and is woken when that changes.
const EMPTY_WATCH_SLEEP: Duration = Duration::from_secs(60);

/// Planned actions that a dry run keeps.
const DRY_RUN_CAPACITY: usize = 100_000;

/// Observations and results of a watch.
#[derive(Debug, Default)]
pub(crate) struct WatchResults {
    /// State of the watch at its end.
    pub(crate) account: WatchAccount,
    pub(crate) timeline: Timeline,
    pub(crate) ledger: Ledger,
    pub(crate) bloat_bound: Option<ByteCount>,
    pub(crate) peak_rss: Option<ByteCount>,
    /// The most memory that was held for parts of huge pages that were given back; `None` where it could not be measured at the last look.
    pub(crate) peak_held: Option<ByteCount>,
    /// The highest charge on the group of the processes; `None` if the group was never theirs alone.
    pub(crate) peak_charged: Option<ByteCount>,
    pub(crate) looks: u64,
    pub(crate) full_looks: u64,
    pub(crate) looking: Duration,
    /// Wall time for which the watch saved CPU time, because it had taken what the ceiling allows.
    pub(crate) saving: Duration,
    /// CPU time of collapses, splits, and moves of pages to frames of other colors.
    pub(crate) acting: Duration,
    /// CPU time of another thread that finds colors for the latter.
    pub(crate) acting_elsewhere: Duration,
    pub(crate) processes_unreachable: u64,
    /// Programs whose memory could not be read, with the reason.
    pub(crate) unreadable: BTreeMap<String, String>,
    pub(crate) planned: Vec<Action>,
    /// Shared objects that the processes map.
    pub(crate) objects: BTreeMap<ObjectId, KnownObject>,
    pub(crate) tracked: TrackingSummary,
    /// Pages by color, if the kernel places them.
    pub(crate) census: Option<Census>,
    /// State and results of recoloring, if memory is recolored.
    pub(crate) keeper: Option<Keeper>,
}

/// A watch over a family of processes.
pub(crate) struct Watch {
    pub(crate) roots: Roots,
    pub(crate) family: Family,
    pub(crate) actuator: Box<dyn Actuator>,
    pub(crate) dry_run: bool,
    pub(crate) setup: Setup,
    /// Configuration of `setup`, until there is a process whose memory is worth it.
    pub(crate) undecided: Option<(Config, Mechanism)>,
    /// Configuration of a tracker for recoloring, until one has been tried.
    untracked: Option<Config>,
    zero_pages: ZeroPages,
    scanner: PageScanner,
    objects: Objects,
    lazily_freed: LazyFreeFinder,
    charge: Charge,
    /// True after a plan was out of date when the actuator carried it out.
    looks_at_once: bool,
    /// First time at which a process that fills its memory counts as having stopped, if it grows no more; `None` if none fills.
    filling_ends: Option<Duration>,
    /// Most memory that the kernel held beyond resident memory in any look that showed it.
    most_held: ByteCount,
    torn: TornPageFinder,
    pub(crate) snapshot: Snapshot,
    known: BTreeMap<ProcessId, ProcessState>,
    /// Pages that a collapse by Superhue added to a region of private memory.
    grown: HashMap<ProcessId, BTreeMap<Region, PageCount>>,
    /// Upper bound on the cost of watching, as a share of one CPU's time.
    pub(crate) max_overhead: f64,
    /// CPU time of the loop, held against that bound.
    cost: TotalCost,
    /// Time since which the watch saves CPU time, because it has taken what the ceiling allows.
    saves_since: Option<Duration>,
    /// Times of the next decision, and of the next turn that continues the last one, while the watch saves CPU time.
    next_decision: Duration,
    next_resumption: Duration,
    /// True if a look or a sample has come since the last decision.
    has_news: bool,
    /// True if the last turn of the loop continued a decision.
    resumed: bool,
    /// Times at which the policy wants a decision, and at which it has more to plan of the last one; `None` for never.
    due: Option<Duration>,
    resumes: Option<Duration>,
    turns: Turns,
    /// Part of the bound that is left for full looks.
    allowance: Allowance,
    /// CPU time of the last round of small looks at all processes.
    glance: Duration,
    /// CPU time of the last turn of the loop that had a look, without full looks and samples; and that of the full looks of the present turn.
    turn: Duration,
    in_full: Duration,
    pub(crate) begun: Instant,
    pub(crate) watched: WatchResults,
    /// Link to the owner, who may change the watch while it runs and receives its accounts.
    pub(crate) live: Option<AccountPublisher>,
}

/// Times of looks.
#[derive(Debug)]
struct Pace {
    next_look: Duration,
    /// Time between two looks while nothing happens.
    pause: Duration,
}

impl Pace {
    /// The next look is at `at`, and others follow soon.
    const fn from(at: Duration) -> Self {
        Self {
            next_look: at,
            pause: MIN_LOOK_INTERVAL,
        }
    }
}

/// Result of one turn of the loop.
#[derive(Debug)]
struct Turn {
    /// True unless the owner has paused the watch.
    may_act: bool,
    looks: bool,
    /// True if anything has changed, or was done.
    happened: bool,
}

impl Watch {
    /// Makes a watch with `setup`; `None` leaves the choice open until some process
    /// has memory that huge pages could be made of.
    pub(crate) fn new(
        config: &Config,
        mechanism: &Mechanism,
        family: Family,
        setup: Option<Setup>,
        actuator: Box<dyn Actuator>,
    ) -> Self {
        let undecided = setup.is_none().then(|| (config.clone(), mechanism.clone()));
        Self {
            roots: config.roots.clone(),
            family: family.bounded_by(config.options.max_overhead),
            actuator,
            dry_run: config.dry_run,
            setup: setup.unwrap_or_else(|| Setup::undecided(config)),
            undecided,
            untracked: (config.options.colors != ColorRequest::Off).then(|| config.clone()),
            zero_pages: ZeroPages::new(config.roots.clone()),
            scanner: PageScanner::new(),
            objects: Objects::default(),
            lazily_freed: LazyFreeFinder::new(&config.roots),
            charge: Charge::new(&config.roots),
            looks_at_once: false,
            filling_ends: None,
            most_held: ByteCount(0),
            torn: TornPageFinder::new(&config.roots),
            snapshot: Snapshot::default(),
            known: BTreeMap::new(),
            grown: HashMap::new(),
            max_overhead: config.options.max_overhead,
            cost: TotalCost::new(config.options.max_overhead, config.has_advance),
            saves_since: None,
            next_decision: Duration::ZERO,
            next_resumption: Duration::ZERO,
            has_news: false,
            resumed: false,
            due: None,
            resumes: None,
            turns: Turns::default(),
            allowance: allowance_of_looks(config),
            glance: Duration::ZERO,
            turn: Duration::ZERO,
            in_full: Duration::ZERO,
            begun: Instant::now(),
            watched: WatchResults::default(),
            live: None,
        }
    }

    /// Lets an owner change the watch while it runs.
    pub(crate) fn with_live(mut self, live: AccountPublisher) -> Self {
        self.live = Some(live);
        self
    }

    /// Counts CPU time that was spent on the watch before its loop.
    pub(crate) fn with_cost(mut self, spent: Duration) -> Self {
        self.cost.spend(Duration::ZERO, spent);
        self
    }

    /// Replaces the actuator by one that `make` builds from it.
    pub(crate) fn with_actuator(
        mut self,
        make: impl FnOnce(Box<dyn Actuator>) -> Box<dyn Actuator>,
    ) -> Self {
        self.actuator = make(self.actuator);
        self
    }

    /// Limits the cost of watching from now on.
    pub(crate) fn limit(&mut self, max_overhead: f64) {
        self.max_overhead = max_overhead;
        self.family.limit(max_overhead);
        self.cost.allow(max_overhead);
        self.allowance.allow(max_overhead * ceiling::LOOKS);
        self.setup.limit(max_overhead);
        let undecided = self.undecided.iter_mut().map(|(config, _)| config);
        for config in undecided.chain(&mut self.untracked) {
            config.options.max_overhead = max_overhead;
        }
    }

    /// Limits the memory that promotion adds from now on.
    pub(crate) fn allow(&mut self, budget: Share) {
        self.setup.allow(budget);
        if let Some((config, _)) = &mut self.undecided {
            config.options.budget = Some(budget);
        }
    }

    /// Returns the bytes of a process that huge pages map; `None` where they are not known.
    pub(crate) fn huge_mapped(&self, id: ProcessId) -> Option<ByteCount> {
        self.known.get(&id)?.huge_pages.mapped
    }

    /// Returns the number of collapses of a process's memory that were done, and their total time.
    pub(crate) fn collapses_of(&self, id: ProcessId) -> (u64, Duration) {
        let known = self.known.get(&id);
        known.map_or_else(Default::default, |known| known.collapses)
    }

    /// Returns the name that a process had at its last full look.
    pub(crate) fn name_of(&self, id: ProcessId) -> String {
        let known = self.known.get(&id);
        known.map_or_else(String::new, |known| known.name.clone())
    }

    /// Shares `mappings` of shared objects with the actuator, which collapses through them.
    pub(crate) fn with_objects(mut self, mappings: Mappings) -> Self {
        self.objects = Objects::over(mappings);
        self
    }

    /// Counts pages by color at every full look, for memory that the kernel places.
    pub(crate) fn with_census(mut self, census: Option<Census>) -> Self {
        self.watched.census = census;
        self
    }

    /// Keeps memory on its colors.
    pub(crate) fn with_keeper(mut self, keeper: Option<Keeper>) -> Self {
        self.watched.keeper = keeper;
        self
    }

    /// Watches until `stop` is set or, with `until_empty`, until no process is left; with `until_empty` it looks at least once, even if `stop`
    /// is set before.
    pub(crate) fn run(mut self, stop: &Stop, until_empty: bool) -> WatchResults {
        let mut pace = Pace::from(Duration::ZERO);
        let mut next_housekeeping = Duration::ZERO;
        self.cost.begin(self.watching_time());
        while !stop.is_set() || (until_empty && self.watched.looks == 0) {
            if self.stand_still(stop) {
                pace = Pace::from(self.begun.elapsed());
                continue;
            }
            let turn = self.turn(&mut pace, stop, until_empty);
            if until_empty && self.family.is_over() {
                break;
            }
            if self.snapshot.at >= next_housekeeping {
                next_housekeeping = self.snapshot.at + Duration::from_secs(1);
                self.actuator.housekeep();
                self.forget_the_dead();
            }
            self.put_next_look(&mut pace, &turn);
            if stop.sleep(self.sleep_time(&pace, &turn, until_empty)) {
                pace = Pace::from(Duration::ZERO);
            }
        }
        self.conclude();
        self.watched
    }

    /// Does what is due: looks, samples, places, publishes.
    fn turn(&mut self, pace: &mut Pace, stop: &Stop, until_empty: bool) -> Turn {
        // Samples come due between looks, and must not cause a look at all processes.
        let ends = until_empty && self.family.has_lost_its_oldest(&self.roots);
        let at = self.begun.elapsed();
        self.cost.count(at, self.watching_time());
        self.watched.saving += self.saved_until(at);
        let saved = self.saves();
        self.saves_since = (self.watched.looks > 0 && self.cost.is_exceeded(at)).then_some(at);
        if saved && !self.saves() {
            // The next look was put off for longer than is necessary now.
            let soonest = (at + MAX_LOOK_INTERVAL).max(self.next_glance());
            pace.next_look = pace.next_look.min(soonest);
        }
        let looks = ends || self.begun.elapsed() >= pace.next_look;
        let may_act = self.obey();
        let turning = self.watching_time();
        self.in_full = Duration::ZERO;
        let changed = looks && self.look();
        // The result of a look is published before any action on it.
        if changed && self.live.as_ref().is_some_and(AccountPublisher::is_silent) {
            self.publish();
        }
        self.looks_at_once = false;
        let looked = self.watching_time().saturating_sub(turning + self.in_full);
        let moved = may_act && self.sample();
        let placing = self.watching_time();
        self.has_news |= looks;
        self.resumed = false;
        let happened = changed | moved | (may_act && self.place(stop));
        if !may_act && let Some(keeper) = &mut self.watched.keeper {
            keeper.give_back();
        }
        self.publish();
        if looks {
            self.turn = looked + self.watching_time().saturating_sub(placing);
        } else if self.resumed {
            let cost = self.watching_time().saturating_sub(turning);
            let affordable = ceiling::apart(cost, self.max_overhead * ceiling::RESUMPTIONS);
            self.next_resumption = self.begun.elapsed() + affordable.min(MAX_SAVING_INTERVAL);
        }
        Turn {
            may_act,
            looks,
            happened,
        }
    }

    /// Sets the time of the next look.
    fn put_next_look(&self, pace: &mut Pace, turn: &Turn) {
        if turn.happened {
            pace.pause = MIN_LOOK_INTERVAL;
        } else if turn.looks {
            pace.pause = (pace.pause + pace.pause / 2).min(MAX_LOOK_INTERVAL);
        }
        if turn.happened || turn.looks {
            // A watch that saves counts the whole turn: it has to earn more than it spends, or it would never stop saving.
            let (cost, share, longest) = match self.saves() {
                true => (self.turn, ceiling::SAVING_TURNS, MAX_SAVING_INTERVAL),
                false => (self.glance, ceiling::GLANCES, MAX_AFFORDABLE_INTERVAL),
            };
            let affordable = ceiling::apart(cost, self.max_overhead * share).min(longest);
            let soonest = (self.snapshot.at + pace.pause.max(affordable)).max(self.next_glance());
            // Actions that follow each other must not put the look off.
            pace.next_look = match turn.looks {
                true => soonest,
                false => pace.next_look.min(soonest),
            };
        }
        if let Some(end) = self.filling_ends.filter(|_| !self.saves()) {
            let soonest = end.max(self.snapshot.at + MIN_LOOK_INTERVAL);
            pace.next_look = pace.next_look.min(soonest);
        }
        if self.looks_at_once && !self.saves() {
            pace.next_look = self.begun.elapsed() + MIN_LOOK_INTERVAL;
        }
    }

    /// Returns the time until something is due.
    fn sleep_time(&self, pace: &Pace, turn: &Turn, until_empty: bool) -> Duration {
        let now = self.begun.elapsed();
        let (decision_from, resumption_from) = match self.saves() {
            true => (self.next_decision, self.next_resumption),
            false => (now, now),
        };
        // Without a look, there may be nothing new to decide: so it waits for one, or for the policy.
        let decision = match self.has_news {
            true => Some(decision_from),
            false => self.due.map(|at| at.max(decision_from)),
        };
        let resumption = self.resumes.filter(|_| !self.is_behind());
        let resumption = resumption.map(|at| at.max(resumption_from));
        let wanted = [decision, resumption].into_iter().flatten().min();
        let wanted = wanted.map_or(Duration::MAX, |at| at.saturating_sub(now));
        let look = pace.next_look.saturating_sub(now);
        let sample = self.until_next_sample().unwrap_or(Duration::MAX);
        let color = self.until_next_color().unwrap_or(Duration::MAX);
        let color = match self.saves() {
            true => color.max(self.next_decision.saturating_sub(now)),
            false => color,
        };
        let place = wanted.max(MIN_LOOK_INTERVAL).min(color);
        let time = if self.is_idle() {
            EMPTY_WATCH_SLEEP
        } else if turn.may_act {
            look.min(place).min(sample)
        } else {
            look.max(MIN_LOOK_INTERVAL)
        };
        match (self.saves(), until_empty) {
            (false, _) => time,
            (true, false) => time.max(MIN_LOOK_INTERVAL),
            // The end of the last process is to be noticed.
            (true, true) => time.clamp(MIN_LOOK_INTERVAL, MAX_AFFORDABLE_INTERVAL),
        }
    }

    /// Returns the time up to `at` for which the watch has saved CPU time since the last turn of the loop.
    fn saved_until(&self, at: Duration) -> Duration {
        (self.saves_since).map_or(Duration::ZERO, |since| at.saturating_sub(since))
    }

    /// Returns the CPU time of the calling thread, without that of actions.
    fn watching_time(&self) -> Duration {
        cpu_time().saturating_sub(self.watched.acting)
    }

    /// Returns true while the watch saves CPU time, because it has taken what the ceiling allows.
    const fn saves(&self) -> bool {
        self.saves_since.is_some()
    }

    /// Returns true if a decision has to come first: a process that fills its memory is to be left alone.
    const fn is_behind(&self) -> bool {
        self.has_news && self.filling_ends.is_some()
    }

    /// Acts and places memory by color; a watch that saves does so now and then. Returns true if anything was planned or placed.
    ///
    /// Without news from a look or a sample, and until the policy wants a new decision, it continues the last decision while that has more actions.
    fn place(&mut self, stop: &Stop) -> bool {
        let (now, saves) = (self.begun.elapsed(), self.saves());
        let is_due = |at: Option<Duration>| at.is_some_and(|at| at <= now);
        let may_decide = !saves || now >= self.next_decision;
        let decides = may_decide && (self.has_news || is_due(self.due));
        let may_resume = !self.is_behind() && (!saves || now >= self.next_resumption);
        let resumes = !decides && may_resume && is_due(self.resumes);
        self.resumed = resumes;
        let begun = self.watching_time();
        let plan = if decides {
            self.has_news = false;
            // Waits of the policy end, although there was no look.
            self.snapshot.at = now;
            self.decide()
        } else if resumes {
            self.setup.policy.resume(now)
        } else {
            Plan::default()
        };
        let happened = self.act(&plan, stop) | (may_decide && self.color());
        let at = self.begun.elapsed();
        if decides || resumes {
            let policy = &self.setup.policy;
            self.due = policy.wants_look_within().map(|wait| at + wait);
            self.resumes = policy.resumes_within().map(|wait| at + wait);
        }
        if may_decide && !resumes {
            let decided = self.watching_time().saturating_sub(begun);
            let share = match happened {
                true => ceiling::FRUITFUL_DECISIONS,
                false => ceiling::DECISIONS,
            };
            let affordable = ceiling::apart(decided, self.max_overhead * share);
            let affordable = affordable.clamp(MIN_LOOK_INTERVAL, MAX_SAVING_INTERVAL);
            tracing::debug!(?decided, happened, saves, "decided");
            self.next_decision = at + affordable;
        }
        happened
    }

    /// Returns the next time at which the sizes of a process are due. New processes come from elsewhere: the owner names them, or a search with a
    /// pace of its own finds them.
    fn next_glance(&self) -> Duration {
        if self.live.as_ref().is_none_or(|live| !live.is_fed()) {
            return Duration::ZERO;
        }
        let next = self.known.values().map(ProcessState::next_glance).min();
        next.unwrap_or_default()
    }

    /// Enters results that are known only at the end.
    fn conclude(&mut self) {
        if let Some(keeper) = &mut self.watched.keeper {
            keeper.conclude();
            self.watched.acting_elsewhere += std::mem::take(&mut keeper.prepared);
        }
        self.watched.account = self.account(self.begun.elapsed());
        self.watched.ledger = self.setup.policy.ledger().clone();
        self.watched.processes_unreachable = self.family.unreachable();
        self.conclude_tracking();
        self.look_at_objects_at_the_end();
        self.watched.objects = std::mem::take(&mut self.objects.known);
    }

    /// Decides on the snapshot.
    fn decide(&mut self) -> Plan {
        self.choose_if_needed();
        self.warm_objects();
        let plan = self.setup.policy.decide(&self.snapshot);
        self.look_for_zeroes();
        plan
    }

    /// Acts on a plan; returns true if there is anything in it.
    fn act(&mut self, plan: &Plan, stop: &Stop) -> bool {
        let mut bounded = plan.part(&[]);
        if self.dry_run {
            let room = DRY_RUN_CAPACITY.saturating_sub(self.watched.planned.len());
            self.watched.planned.extend(plan.actions.iter().take(room));
        }
        let mut is_stale = false;
        let mut changed = Vec::new();
        // A process may hold it up in the middle.
        note_charged(self.setup.policy.ledger().charged.0);
        for (index, chunk) in plan.actions.chunks(CHUNK).enumerate() {
            // The rest of a plan that turns out to be out of date waits until the next look; so does memory that is being filled again.
            is_stale |= index > 0 && self.fills_again(chunk);
            let ends = || stop.is_set() || is_stale;
            let before = cpu_time();
            let _ = take_reads();
            let outcome = self.actuator.perform(&bounded.part(chunk), &ends);
            let reads = take_reads();
            is_stale |= self.note_stale(&outcome);
            bounded.spend_all(&outcome);
            for result in &outcome.results {
                let (region, owner) = (result.action.region(), result.action.owner());
                tracing::debug!(%owner, %region, effect = ?result.effect, took = ?result.took);
            }
            let done = |result: &&ActionResult| !matches!(result.effect, Effect::Skipped { .. });
            let done = outcome.results.iter().filter(done);
            let before_these = changed.len();
            changed.extend(done.map(|result| result.action));
            let at = self.begun.elapsed();
            self.setup.policy.learn(at, &outcome);
            self.apply(&outcome);
            note_charged(self.setup.policy.ledger().charged.0);
            self.snapshot.at = at;
            self.record();
            // With the account of each action. Checks that end without one count as watching.
            let acting = cpu_time().saturating_sub(before).saturating_sub(reads);
            let tried = u32::try_from(changed.len() - before_these).unwrap_or(u32::MAX);
            let all = u32::try_from(outcome.results.len()).unwrap_or(u32::MAX);
            self.watched.acting += acting * tried / all.max(1);
        }
        self.resample_changed(&changed);
        self.looks_at_once |= is_stale;
        !plan.actions.is_empty()
    }

    /// Returns true if a process whose memory the actions concern has begun to fill memory since the decision, under the policy that leaves it alone
    /// then.
    fn fills_again(&mut self, actions: &[Action]) -> bool {
        if self.setup.pages != Pages::Auto || self.dry_run {
            return false;
        }
        let at = self.begun.elapsed();
        let owners = actions.iter().filter_map(|action| match action.owner() {
            Owner::Process(id) => Some(id),
            Owner::Object(_) => None,
        });
        let owners: BTreeSet<ProcessId> = owners.collect();
        owners.into_iter().any(|id| {
            let Ok(resident) = resident_now(&self.roots, id.pid) else {
                return false;
            };
            self.known.get_mut(&id).is_some_and(|known| {
                known.growth.see(at, resident);
                known.growth.fills(at)
            })
        })
    }

    /// Marks processes and objects that have given memory back since the last look; returns true if there are any.
    fn note_stale(&mut self, outcome: &Outcome) -> bool {
        let mut any = false;
        for result in &outcome.results {
            let is_stale = matches!(
                result.effect,
                Effect::Skipped {
                    reason: SkipReason::GivenBack | SkipReason::FreedLazily | SkipReason::Unmapped
                }
            );
            if !is_stale {
                continue;
            }
            match result.action.owner() {
                Owner::Process(id) => {
                    if let Some(known) = self.known.get_mut(&id) {
                        known.is_stale = true;
                        any = true;
                    }
                }
                Owner::Object(id) => any |= self.note_stale_object(id),
            }
        }
        any
    }

    /// Places memory by color where that is due; returns true if anything was done.
    fn color(&mut self) -> bool {
        let Some(keeper) = &mut self.watched.keeper else {
            return false;
        };
        let now = self.begun.elapsed();
        let processes = self.snapshot.processes.iter();
        let members: Vec<ProcessId> = processes.map(|process| process.id).collect();
        if !keeper.has_work(now, &members) {
            return false;
        }
        // The policy first: if it tracks accesses, its tracker is the only one.
        if let Some(config) = self.untracked.take() {
            self.choose();
            self.setup.track(&config);
        }
        let sampler = self.setup.sampler.as_ref();
        let keeper = self.watched.keeper.as_mut();
        keeper.is_some_and(|keeper| {
            let moved = keeper.step(now, &members, sampler);
            self.watched.acting += std::mem::take(&mut keeper.placing);
            self.watched.acting_elsewhere += std::mem::take(&mut keeper.prepared);
            moved
        })
    }

    fn until_next_color(&self) -> Option<Duration> {
        self.watched.keeper.as_ref()?.due(self.begun.elapsed())
    }

    /// Chooses the policy once there is a process whose memory is worth it.
    fn choose_if_needed(&mut self) {
        if self.undecided.is_some() && self.snapshot.processes.iter().any(has_work) {
            self.choose();
        }
    }

    /// Chooses the policy, unless it is chosen already.
    fn choose(&mut self) {
        if let Some((config, mechanism)) = self.undecided.take() {
            match Setup::of(&config, &mechanism) {
                Ok(setup) => {
                    tracing::debug!(pages = %setup.pages, because = setup.because, "chosen");
                    self.setup = setup;
                }
                // A policy or tracker that the configuration names is made before the watch begins.
                Err(error) => self.setup.because = error.to_string(),
            }
        }
    }
}

/// Returns true if a process has memory that huge pages could be made of.
fn has_work(process: &ProcessView) -> bool {
    let shared = |vma: &Vma| vma.aligned_part().is_some() && vma.range.regions().next().is_some();
    !process.regions.is_empty() || process.vmas.iter().any(shared)
}

/// Returns the allowance of full looks.
fn allowance_of_looks(config: &Config) -> Allowance {
    let max_overhead = config.options.max_overhead;
    // Looks may take the whole advance: while a program fills its memory, nothing else needs it.
    let advance = ceiling::advance(max_overhead);
    let share = max_overhead * ceiling::LOOKS;
    let allowance = Allowance::new(share, Duration::ZERO).with_advance(advance);
    match config.has_advance {
        true => allowance,
        false => allowance.used_up(),
    }
}

/// Returns the name of a process's program, or its number where the name is hidden.
fn program_name(roots: &Roots, id: ProcessId) -> String {
    stat(roots, id.pid).map_or_else(|_| id.to_string(), |stat| stat.comm)
}
