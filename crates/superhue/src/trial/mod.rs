//! A trial: is a policy worth it for a program as it runs?
//!
//! ```text
//!   learn     the policy's watch runs until it has made all the huge pages it wants  (lever, scatter)
//!   pairs     | settle | on  | settle | off |     or off first, by a coin            (timetable)
//!                        measured       measured                                     (meter)
//!   each pair --(on, off)--> evidence: another pair, or keep / leave / no difference
//!   always    guards, signals, the target's processes; any of them ends it
//!   end       keep: the policy's pages stay; else: pages that the trial made huge are split
//! ```
//!
//! A pair is left out only for a reason that would have struck it in either order: no valid reading, or the program restarted. A switch that took
//! effect only in part is no such reason (a fork that keeps pages from being split comes when there is most to do): such pairs count, and the
//! report shows how far switches took effect. A reading can fail *because* of a state, so the report counts such pairs by state; while *on* has more
//! of them than chance explains, there is no verdict in favour of the policy. Statistics: `superhue_measure::sequence`.

mod ask;
mod frames;
mod guard;
mod lever;
mod meter;
mod scatter;
mod who;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_measure::trial::timetable::Timetable;
use superhue_measure::trial::{
    ContinueError, MetricKind, TRIAL_SCHEMA, Trial, TrialEffect, TrialEstimates, TrialFrames,
    TrialMetric, TrialOutcome, TrialPair, TrialPolicy, TrialSettings, TrialSource, TrialStates,
    TrialSwitching, TrialTarget, TrialVerdict,
};
use superhue_measure::{Better, Coin, Evidence, Range, Shown};
use superhue_model::{ProcessId, counted};
use superhue_procfs::process::{numbers_are_ours, resident_now};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::process::own_usage;

pub use ask::{ANSWER_WITHIN, MetricError, Source, expression};
pub use guard::{Guard, GuardSource, Limit};
pub use who::{RuleProcesses, TargetError, TrialTargets};

use crate::Config;
use crate::attach::{AttachError, check_look, running_mechanism};
use crate::live::{Members, WatchAccount};
use guard::{Alarm, Guards};
use lever::{FrameSurvey, PolicySwitch, Remains, SwitchCounts, SwitchOptions};
use meter::{BlockError, CpuTimes, Meter, MeterEnvironment};
use who::TargetSearch;

/// Interval between two searches for the target's processes.
const SEARCH: Duration = Duration::from_millis(250);

/// Time without new huge pages after which the policy has learned enough.
const QUIET: Duration = Duration::from_secs(3);

/// Share of regions; a pair does not count if more of them have gone with their processes.
const GONE: f64 = 0.1;

/// Pairs in a row without a value after which the trial fails.
const MAX_VALUELESS_PAIRS: u32 = 5;

/// Smallest difference between the shares of huge regions in *on* and in *off* with which "no difference" says something about the policy.
const LEAST_CONTRAST: f64 = 0.5;

/// Options of a trial.
#[derive(Debug, Clone)]
pub struct TrialPlan {
    /// The policy, and the means by which it acts.
    pub config: Config,
    /// Processes of the trial.
    pub targets: TrialTargets,
    /// Source of numbers; `None` for CPU time.
    pub source: Option<Source>,
    /// Meaning of the numbers.
    pub kind: MetricKind,
    /// Direction in which the numbers are better.
    pub better: Better,
    /// Limits that must hold during the trial.
    pub guards: Vec<Guard>,
    /// Probability of a wrong verdict.
    pub alpha: f64,
    /// Effects below this share count as no difference.
    pub within: f64,
    /// Time after which it ends undecided.
    pub limit: Duration,
    /// Longest time for the policy to find the regions that it wants.
    pub learn: Duration,
    /// Length of blocks; `None` to choose a suitable one.
    pub block: Option<Duration>,
    /// Seed of the coin that decides the order in each pair.
    pub seed: u64,
    /// Switches nothing: a trial of the trial.
    pub nothing_switched: bool,
    /// Switches memory that is huge already, too, and makes it huge again at the end: before the trial, or when a restarted program has begun.
    pub present: bool,
    /// True if Superhue may make a small swap in memory where none is on: frames are scattered through swap.
    pub swap: bool,
    /// Trial that this one continues: its pairs count, too.
    pub earlier: Option<Box<Trial>>,
}

/// Reason why a trial did not begin. The machine is unchanged then.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// There is no such target, or the caller may not inspect it.
    #[error(transparent)]
    Who(#[from] TargetError),
    /// Superhue cannot place its memory.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The metric gives no number.
    #[error("the metric cannot be used: {0}")]
    Metric(String),
    /// The earlier trial cannot be continued.
    #[error("cannot continue the earlier trial: {0}")]
    Continue(#[from] ContinueError),
    /// A guard's limit was crossed before the trial changed anything.
    #[error("before the trial, {0}: nothing was changed")]
    Guard(String),
    /// A guard could not be read before the trial changed anything.
    #[error("before the trial, {0}: nothing was changed")]
    Unreadable(String),
    /// A signal ended the trial before it changed anything.
    #[error("the trial was interrupted before it changed anything")]
    Interrupted,
    /// The system could not start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// Progress of a trial.
#[derive(Debug)]
pub enum TrialStep<'a> {
    /// The metric is read for the first time.
    Reading,
    /// The policy looks for regions to make huge; the number of them so far.
    Learning(usize),
    /// The policy is switched off and on, to see how long that takes.
    Switching,
    /// The first pair begins: seconds of a block, and of the time before each block that does not count.
    Measuring {
        /// Seconds of a block.
        block: f64,
        /// Seconds before each block.
        settle: f64,
    },
    /// A pair was measured, or has no value for the given reason.
    Pair(&'a Trial, Option<&'a str>),
}

/// Reason for the end of a trial.
enum End {
    Signal,
    Alarm(Alarm),
    Failed(String),
    Shown(Shown),
    Limit,
    /// The pairs show no difference or a gain, and do not support that verdict: the switch had no effect that could make a difference, or *on* lost
    /// pairs.
    Withheld(String),
    NothingToDo(String),
}

/// Runs a trial to its end. `wait` waits, and returns true to end the trial; `tell` receives its progress.
///
/// In any case the trial leaves the target as [`Trial::verdict`] says: on `keep` with the policy's pages, else without the pages that it made.
///
/// # Errors
/// See [`TrialError`]; the machine is unchanged then. Later errors are part of the result.
pub fn run(
    plan: &TrialPlan,
    wait: &mut dyn FnMut(Duration) -> bool,
    tell: &mut dyn FnMut(TrialStep<'_>),
) -> Result<Trial, TrialError> {
    let config = plan.config.for_running();
    numbers_are_ours(&config.roots).map_err(TargetError::from)?;
    let mut who = TargetSearch::new(&config.roots, &plan.targets, config.follow)?;
    let members = who.members().unwrap_or_default();
    may_look(&config.roots, &plan.targets, &members)?;
    let means = running_mechanism(&config)?.means;
    let shared_members = SharedMembers::default();
    let resident = resident_of(config.roots.clone(), &shared_members);
    let guards = Guards::start(plan.guards.clone(), resident).map_err(TrialError::Thread)?;
    let mut world = TrialEnvironment {
        cpu: CpuTimes::of_group(who.cpu_file()),
        who,
        guards,
        wait,
        end: None,
        next_search: Instant::now(),
        members,
        shared_members,
        fed: Members::new(),
    };
    world.share();
    let meter = Meter::new(plan.source.clone(), plan.kind);
    // All faults of the plan show here, before the trial changes anything.
    let (mut trial, evidence) = first_document(plan, &world)?;
    tell(TrialStep::Reading);
    world.wait_for_guards()?;
    let reading = meter.try_out(&mut world).map_err(|error| match error {
        BlockError::Stopped | BlockError::Reading(MetricError::Stopped) => TrialError::Interrupted,
        error => TrialError::Metric(error.to_string()),
    })?;
    let begun = Instant::now();
    let before = own_usage();
    trial.switching.huge_before_bytes = huge_of(&config.roots, &world.members);
    let lever = PolicySwitch::new(&config, &means, switch_options(plan));
    let lever = lever.map_err(TrialError::Thread)?;
    let limit = plan.limit.as_secs_f64();
    let block = plan.block.map(|block| block.as_secs_f64());
    let earlier_pairs = plan.earlier.as_ref().map_or(0, |it| it.pairs.len());
    let mut course = TrialRun {
        plan,
        meter,
        lever,
        begun,
        coin: Coin::new(seed_of(plan.seed, earlier_pairs)),
        evidence,
        timetable: Timetable::new(block, limit, reading.as_secs_f64()),
        trial,
        growth: 0,
        broken: false,
    };
    let end = course.go(&mut world, tell);
    let mut trial = course.conclude(end, &mut world);
    let used = own_usage();
    let cpu = (used.user + used.system).saturating_sub(before.user + before.system);
    let earlier = plan.earlier.as_deref();
    trial.own_cpu_seconds = cpu.as_secs_f64() + earlier.map_or(0.0, |it| it.own_cpu_seconds);
    trial.seconds = begun.elapsed().as_secs_f64() + earlier.map_or(0.0, |it| it.seconds);
    Ok(trial)
}

const fn switch_options(plan: &TrialPlan) -> SwitchOptions {
    SwitchOptions {
        is_dummy: plan.nothing_switched,
        present: plan.present,
        make_swap: plan.swap,
        seed: plan.seed,
    }
}

/// Returns the document and the evidence with which the trial begins: empty, or those of an earlier trial.
fn first_document(
    plan: &TrialPlan,
    world: &TrialEnvironment<'_>,
) -> Result<(Trial, Evidence), ContinueError> {
    let mut trial = blank(plan, world);
    let Some(earlier) = &plan.earlier else {
        return Ok((trial, Evidence::new(plan.alpha, plan.within)));
    };
    let evidence = earlier.continued_by(&trial)?;
    continue_with(earlier, &mut trial);
    Ok((trial, evidence))
}

/// Enters the pairs of an earlier trial.
fn continue_with(earlier: &Trial, trial: &mut Trial) {
    trial.pairs.clone_from(&earlier.pairs);
    trial.discarded.clone_from(&earlier.discarded);
    // Of an earlier version only the sum is known: the count begins anew.
    trial.without_value = earlier.without_value.or(trial.without_value);
    trial.effect = earlier
        .pairs
        .last()
        .map(|pair| pair.effect)
        .unwrap_or_default();
    trial.settings.earlier_pairs = earlier.pairs.len() as u64;
    trial.target.restarts = earlier.target.restarts;
    trial.seconds = earlier.seconds;
}

/// Makes sure that the caller may inspect a process that is given by number, or at least one process of a group.
fn may_look(
    roots: &Roots,
    targets: &TrialTargets,
    members: &[ProcessId],
) -> Result<(), TargetError> {
    let look = |id: &ProcessId| check_look(roots, *id);
    let first: Option<ReadError> = match targets {
        TrialTargets::Process(pid) => {
            let id = members.iter().find(|id| id.pid == *pid);
            id.and_then(|id| look(id).err())
        }
        // Processes of a group that the caller may not inspect are left alone; an error if those are all.
        _ => {
            let looks: Vec<_> = members.iter().map(look).collect();
            let all_refused = !looks.is_empty() && looks.iter().all(Result::is_err);
            looks
                .into_iter()
                .filter(|_| all_refused)
                .find_map(Result::err)
        }
    };
    first.map_or(Ok(()), |error| Err(error.into()))
}

/// Returns the seed of the order of blocks. A trial that continues an earlier one tosses coins of its own, also with the same `--seed`: with the same
/// ones, a drift that looked like an effect once would look like it again.
fn seed_of(seed: u64, earlier_pairs: usize) -> u64 {
    seed ^ (earlier_pairs as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Returns bytes that huge pages map in all of them; `None` where the kernel does not report it.
fn huge_of(roots: &Roots, members: &[ProcessId]) -> Option<u64> {
    use superhue_procfs::process::{PageScanner, view};
    let mut scanner = PageScanner::new();
    let views = members
        .iter()
        .filter_map(|id| view(roots, &mut scanner, *id).ok());
    let huge = views.map(|view| view.huge_mapped().map(|huge| huge.0));
    huge.sum()
}

type SharedMembers = Arc<Mutex<Vec<ProcessId>>>;

fn resident_of(roots: Roots, members: &SharedMembers) -> guard::Rss {
    let members = Arc::clone(members);
    Arc::new(move || {
        let members = members
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let resident = members
            .iter()
            .filter_map(|id| resident_now(&roots, id.pid).ok());
        let bytes: Vec<u64> = resident.map(|resident| resident.total.bytes().0).collect();
        #[allow(clippy::cast_precision_loss, reason = "bytes below 2^52")]
        (!bytes.is_empty()).then(|| bytes.iter().sum::<u64>() as f64)
    })
}

fn blank(plan: &TrialPlan, world: &TrialEnvironment<'_>) -> Trial {
    let source = match &plan.source {
        None => TrialSource::Cpu,
        // Also for the kind that measures CPU time for each piece of work.
        Some(Source::Command { .. }) => TrialSource::Command,
        Some(Source::Prometheus { .. }) => TrialSource::Prometheus,
    };
    Trial {
        schema: TRIAL_SCHEMA.to_owned(),
        target: TrialTarget {
            name: world.who.name(),
            rule: world.who.rule(),
            program: String::new(),
            processes: 0,
            restarts: 0,
        },
        policy: TrialPolicy {
            pages: plan.config.options.pages.map(|pages| pages.to_string()),
            because: String::new(),
            notes: Vec::new(),
        },
        metric: TrialMetric {
            source,
            asked: plan.source.as_ref().map(|source| source.asked().to_owned()),
            kind: plan.kind,
            better: plan.better,
        },
        settings: TrialSettings {
            alpha: plan.alpha,
            within: plan.within,
            limit_seconds: plan.limit.as_secs_f64(),
            seed: plan.seed,
            block_seconds: plan.block.map(|block| block.as_secs_f64()),
            nothing_switched: plan.nothing_switched,
            present: plan.present,
            swap: plan.swap,
            earlier_pairs: 0,
        },
        verdict: TrialVerdict {
            outcome: TrialOutcome::Undecided,
            reason: None,
        },
        effect: TrialEffect::default(),
        estimates: None,
        pairs: Vec::new(),
        discarded: BTreeMap::new(),
        without_value: Some(TrialStates::default()),
        switching: TrialSwitching::default(),
        frames: None,
        guards: Vec::new(),
        seconds: 0.0,
        own_cpu_seconds: 0.0,
    }
}

/// Environment of a trial: time, signals, guards, the target's processes.
struct TrialEnvironment<'a> {
    who: TargetSearch,
    cpu: CpuTimes,
    guards: Guards,
    wait: &'a mut dyn FnMut(Duration) -> bool,
    /// Reason for the end of the trial, once there is one.
    end: Option<End>,
    next_search: Instant,
    members: Vec<ProcessId>,
    shared_members: SharedMembers,
    /// Members that the lever has.
    fed: Members,
}

impl TrialEnvironment<'_> {
    fn search(&mut self) {
        self.next_search = Instant::now() + SEARCH;
        match self.who.members() {
            Ok(members) => self.members = members,
            Err(why) => {
                self.end.get_or_insert(End::Failed(why));
            }
        }
        self.share();
    }

    /// Sleeps whatever happens, and searches meanwhile: the daemon leaves the processes of a rule alone only while the trial renews its hold. Returns
    /// false, since nothing cuts the end of a trial short.
    fn rest(&mut self, time: Duration) -> bool {
        std::thread::sleep(time);
        if Instant::now() >= self.next_search {
            self.search();
        }
        false
    }

    /// Waits until all guards have been read once.
    fn wait_for_guards(&mut self) -> Result<(), TrialError> {
        while !self.guards.has_looked() {
            if self.nap(Duration::from_millis(10)) && self.guards.alarm().is_none() {
                return Err(TrialError::Interrupted);
            }
        }
        match self.guards.alarm() {
            Some(Alarm::Crossed(text)) => Err(TrialError::Guard(text)),
            Some(Alarm::Unreadable(text)) => Err(TrialError::Unreadable(text)),
            None => Ok(()),
        }
    }

    fn share(&self) {
        let mut shared = self
            .shared_members
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        shared.clone_from(&self.members);
    }

    /// Passes the target's processes to the lever.
    fn feed(&mut self, lever: &mut PolicySwitch) {
        let label: Arc<str> = self.who.name().into();
        let members = self.members.iter().map(|&id| (id, Arc::clone(&label)));
        let members: Members = members.collect();
        if members != self.fed {
            self.fed.clone_from(&members);
            lever.feed(members);
        }
    }
}

impl MeterEnvironment for TrialEnvironment<'_> {
    fn nap(&mut self, time: Duration) -> bool {
        if self.end.is_some() {
            return true;
        }
        if (self.wait)(time) {
            self.end = Some(End::Signal);
        } else if let Some(alarm) = self.guards.alarm() {
            self.end = Some(End::Alarm(alarm));
        } else if Instant::now() >= self.next_search {
            self.search();
        }
        self.end.is_some()
    }

    fn cpu(&mut self) -> f64 {
        self.cpu.now(self.members.iter().copied())
    }
}

/// Pair without a ratio.
struct LostPair {
    why: BlockError,
    /// True if the policy was on in the block that has no value; `None` if the trial ended before one.
    on: Option<bool>,
}

impl LostPair {
    const fn stopped() -> Self {
        Self {
            why: BlockError::Stopped,
            on: None,
        }
    }
}

/// A trial in progress.
struct TrialRun<'a> {
    plan: &'a TrialPlan,
    meter: Meter,
    lever: PolicySwitch,
    begun: Instant,
    coin: Coin,
    evidence: Evidence,
    timetable: Timetable,
    trial: Trial,
    growth: u64,
    /// True after many of the regions that the policy had made huge went with their processes.
    broken: bool,
}

impl TrialRun<'_> {
    /// Runs until the trial ends.
    fn go(&mut self, world: &mut TrialEnvironment<'_>, tell: &mut dyn FnMut(TrialStep<'_>)) -> End {
        if let Err(end) = self.learn(world, tell) {
            return end;
        }
        tell(TrialStep::Switching);
        if let Err(end) = self.try_switching(world) {
            return end;
        }
        tell(TrialStep::Measuring {
            block: self.timetable.block(),
            settle: self.timetable.settle(),
        });
        let mut in_vain = 0;
        loop {
            let left = self.plan.limit.saturating_sub(self.begun.elapsed());
            let (block, settle) = (self.timetable.block(), self.timetable.settle());
            if left.as_secs_f64() < 2.0 * (block + settle) {
                return End::Limit;
            }
            let measured = self.pair(world, block, settle);
            if let Some(end) = world.end.take() {
                return end;
            }
            if let Some(trouble) = self.lever.trouble() {
                return End::Failed(trouble);
            }
            self.tend(world);
            let broken = std::mem::take(&mut self.broken);
            match measured {
                Ok(_) if broken => {
                    self.discard("because the target was started anew", tell);
                    self.trial.target.restarts += 1;
                    if let Err(end) = self.learn(world, tell) {
                        return end;
                    }
                }
                Ok((pair, halves)) => {
                    in_vain = 0;
                    self.evidence.add(pair.on, pair.off);
                    self.timetable.add((pair.on / pair.off).ln(), &halves);
                    self.enter(pair);
                    tell(TrialStep::Pair(&self.trial, None));
                    if let Some(shown) = self.evidence.shown() {
                        return match self.why_withheld(shown) {
                            Some(why) => End::Withheld(why),
                            None => End::Shown(shown),
                        };
                    }
                }
                Err(LostPair { why, on }) => {
                    if let Some(on) = on {
                        let states = self.trial.without_value.get_or_insert_default();
                        states.add(on);
                    }
                    // A source that is updated less often than the blocks end gets longer ones.
                    let is_longer = why == BlockError::DidNotMove && self.timetable.did_not_move();
                    in_vain = if is_longer { 0 } else { in_vain + 1 };
                    let reason = why.to_string();
                    self.discard(&reason, tell);
                    if broken {
                        self.trial.target.restarts += 1;
                        if let Err(end) = self.learn(world, tell) {
                            return end;
                        }
                    }
                    if in_vain >= MAX_VALUELESS_PAIRS {
                        let hint = match why {
                            BlockError::DidNotMove => {
                                ": --block sets longer blocks, and --for gives them room"
                            }
                            _ => "",
                        };
                        return End::Failed(format!(
                            "{MAX_VALUELESS_PAIRS} pairs in a row without a value: {reason}{hint}"
                        ));
                    }
                }
            }
        }
    }

    /// Waits until the policy has made all the huge pages it wants. Its switch is on then.
    fn learn(
        &mut self,
        world: &mut TrialEnvironment<'_>,
        tell: &mut dyn FnMut(TrialStep<'_>),
    ) -> Result<(), End> {
        world.feed(&mut self.lever);
        self.lever.switch(true, &mut |time| world.nap(time));
        tell(TrialStep::Learning(self.lever.regions()));
        let mut until = Instant::now() + self.plan.learn;
        let (mut regions, mut changed) = (self.lever.regions(), Instant::now());
        loop {
            if world.nap(Duration::from_millis(100)) {
                return Err(world.end.take().unwrap_or(End::Signal));
            }
            world.feed(&mut self.lever);
            self.lever.adopt_again();
            if let Some(trouble) = self.lever.trouble() {
                return Err(End::Failed(trouble));
            }
            let now = self.lever.regions();
            if now != regions {
                // A program that grows adds a few regions at a time, which do not count.
                if now.abs_diff(regions) > regions / 50 {
                    changed = Instant::now();
                }
                regions = now;
                tell(TrialStep::Learning(now));
            }
            if world.members.is_empty() {
                // The service restarts.
                until = Instant::now() + self.plan.learn;
            }
            let is_quiet = regions > 0 && changed.elapsed() >= QUIET;
            if is_quiet || Instant::now() >= until {
                break;
            }
            if self.begun.elapsed() >= self.plan.limit {
                return Err(End::Limit);
            }
        }
        self.lever.forget_the_dead();
        if self.lever.regions() == 0 && !self.plan.nothing_switched {
            return Err(End::NothingToDo(self.why_nothing(world)));
        }
        Ok(())
    }

    fn why_nothing(&self, world: &TrialEnvironment<'_>) -> String {
        let account = self.lever.account();
        let mut reasons: Vec<String> = Vec::new();
        let huge = account.memory.huge_bytes.unwrap_or_default();
        if huge.0 > 0 {
            reasons.push(format!(
                "{huge} of {} are huge already, by the program, the kernel or the daemon: --present tries those, too",
                account.memory.anonymous_bytes
            ));
        }
        let all = account
            .collapses
            .failed
            .iter()
            .chain(&account.collapses.skipped);
        reasons.extend(all.map(|(why, count)| format!("{}: {why}", counted(*count, "collapse"))));
        reasons.extend(
            account
                .waiting
                .iter()
                .filter(|it| *it.1 > 0)
                .map(|(why, count)| format!("{} waiting: {why}", counted(*count, "region"))),
        );
        let pid = world
            .members
            .first()
            .map_or_else(|| "PID".to_owned(), |id| id.pid.to_string());
        format!(
            "the policy has made no private memory huge within {} s ({}); `superhue status --why {pid}` says what stands in the way, \
             and a longer --learn gives it more time",
            self.plan.learn.as_secs(),
            if reasons.is_empty() {
                "no region suits it".to_owned()
            } else {
                reasons.join("; ")
            }
        )
    }

    /// Switches off and on again, twice: the time that this takes determines the length of blocks.
    fn try_switching(&mut self, world: &mut TrialEnvironment<'_>) -> Result<(), End> {
        let mut longest = Duration::ZERO;
        let mut huge_off = None;
        // In a guest, first use of a frame costs more than use of a frame that was in a huge page before: only the second round counts.
        for (on, counts) in [(false, false), (true, false), (false, true), (true, true)] {
            let (begun, limit) = (self.begun, self.plan.limit);
            let is_over = || begun.elapsed() >= limit;
            let took = (self.lever).switch(on, &mut |time| world.nap(time) || is_over());
            if let Some(end) = world.end.take() {
                return Err(end);
            }
            if let Some(trouble) = self.lever.trouble() {
                return Err(End::Failed(trouble));
            }
            if is_over() {
                return Err(End::Limit);
            }
            if counts {
                longest = longest.max(took);
            }
            if !on {
                huge_off = self.lever.huge_share();
            }
        }
        self.timetable.switched(longest.as_secs_f64());
        if let (0, zeroed @ 1..) = self.lever.switched_and_zeroed() {
            return Err(End::NothingToDo(format!(
                "{} hold pages of zeroes, which a split replaces by one shared page: without huge pages the program would be faster for that \
                 alone. Try it when its memory is filled",
                counted(zeroed as u64, "region")
            )));
        }
        if self.plan.nothing_switched {
            return Ok(());
        }
        if let Some(huge) = huge_off.filter(|huge| *huge > 0.5) {
            return Err(End::Failed(format!(
                "{:.0} % of the regions stayed huge when the policy was off: nothing to compare with. The kernel did not split them ({} refused)",
                huge * 100.0,
                counted(self.lever.switched.not_split, "split")
            )));
        }
        if let Some(huge) = self.lever.huge_share().filter(|huge| *huge < 0.5) {
            return Err(End::Failed(format!(
                "only {:.0} % of the regions became huge again: nothing to compare with",
                huge * 100.0
            )));
        }
        Ok(())
    }

    /// Returns the reason why the pairs do not support a verdict that they show, if there is one.
    fn why_withheld(&self, shown: Shown) -> Option<String> {
        if shown != Shown::Small && shown != gain_of(self.plan.better) {
            return None;
        }
        let no_contrast = (shown == Shown::Small).then(|| self.why_no_contrast());
        let states = self.trial.without_value.unwrap_or_default();
        (no_contrast.flatten()).or_else(|| states.why_doubtful(self.plan.alpha))
    }

    /// Returns the reason why the pairs say nothing about the policy, if regions were about as huge in *off* as in *on*.
    fn why_no_contrast(&self) -> Option<String> {
        if self.plan.nothing_switched {
            return None;
        }
        let (on, off) = self.trial.mean_huge()?;
        (on - off < LEAST_CONTRAST).then(|| {
            format!(
                "{:.0} % of the regions were huge when on, and {:.0} % when off, so the metric says nothing about the policy",
                on * 100.0,
                off * 100.0
            )
        })
    }

    /// Measures two blocks; returns the pair, and the differences between the halves of each block.
    fn pair(
        &mut self,
        world: &mut TrialEnvironment<'_>,
        block: f64,
        settle: f64,
    ) -> Result<(TrialPair, Vec<f64>), LostPair> {
        let on_first = self.coin.toss();
        let mut values = [None; 2];
        let mut huge = [None; 2];
        let mut longest = Duration::ZERO;
        for on in [on_first, !on_first] {
            let begins = Instant::now() + Duration::from_secs_f64(settle);
            longest = longest.max(self.lever.switch(on, &mut |time| world.nap(time)));
            if self.lever.trouble().is_some() {
                return Err(LostPair::stopped());
            }
            while Instant::now() < begins {
                let left = begins.saturating_duration_since(Instant::now());
                if world.nap(left.min(Duration::from_millis(50))) {
                    return Err(LostPair::stopped());
                }
            }
            let value = self.meter.block(Duration::from_secs_f64(block), world);
            let value = value.map_err(|why| LostPair { why, on: Some(on) })?;
            values[usize::from(on)] = Some(value);
            huge[usize::from(on)] = self.lever.huge_share();
            world.feed(&mut self.lever);
        }
        self.timetable.switched(longest.as_secs_f64());
        let [Some(off), Some(on)] = values else {
            return Err(LostPair::stopped());
        };
        let pair = TrialPair {
            at_seconds: self.seconds(),
            on_first,
            block_seconds: block,
            settle_seconds: settle,
            on: on.value,
            off: off.value,
            huge_on: huge[1],
            huge_off: huge[0],
            effect: TrialEffect::default(),
        };
        let halves = [on, off].iter().filter_map(|value| value.halves).collect();
        Ok((pair, halves))
    }

    /// Returns the seconds since the start, an earlier trial included.
    fn seconds(&self) -> f64 {
        let earlier = self.plan.earlier.as_deref().map_or(0.0, |it| it.seconds);
        self.begun.elapsed().as_secs_f64() + earlier
    }

    /// Updates members, lost regions and growth after a pair.
    fn tend(&mut self, world: &mut TrialEnvironment<'_>) {
        world.feed(&mut self.lever);
        let (before, left) = self.lever.forget_the_dead();
        #[allow(clippy::cast_precision_loss, reason = "counts of regions")]
        if before > 0 && (before - left) as f64 > GONE * before as f64 {
            self.broken = true;
        }
        self.growth = self.growth.max(self.lever.account().charged_bytes.0);
    }

    fn discard(&mut self, reason: &str, tell: &mut dyn FnMut(TrialStep<'_>)) {
        // A reason with numbers in it would be a kind of its own each time.
        let known = self.trial.discarded.len() < 16 || self.trial.discarded.contains_key(reason);
        let key = if known { reason } else { "for other reasons" };
        *self.trial.discarded.entry(key.to_owned()).or_default() += 1;
        tell(TrialStep::Pair(&self.trial, Some(reason)));
    }

    fn enter(&mut self, mut pair: TrialPair) {
        let (estimate, Range { low, high }) = self.evidence.usual_shares();
        pair.effect = TrialEffect {
            estimate,
            low,
            high,
        };
        self.trial.effect = pair.effect;
        self.trial.pairs.push(pair);
        self.trial.seconds = self.seconds();
    }

    /// Enters the final estimates, corrected for the stopping rule.
    fn estimate(&mut self) {
        let mean = self.evidence.mean();
        let Some(mean_as_measured) = mean.estimate() else {
            return;
        };
        let Range { low, high } = mean.range();
        let corrected = self.evidence.corrected(self.plan.seed);
        let (usual_as_measured, _) = self.evidence.usual_shares();
        self.trial.estimates = Some(TrialEstimates {
            usual_as_measured,
            mean: Some(corrected.map_or(mean_as_measured, |it| it.mean)),
            mean_as_measured: Some(mean_as_measured),
            mean_low: low,
            mean_high: high,
            orders: corrected.map_or(0, |it| it.orders as u64),
        });
        if let Some(corrected) = corrected {
            self.trial.effect.estimate = Some(corrected.usual);
        }
    }

    /// Leaves the target in its final state, and returns the result.
    fn conclude(mut self, end: End, world: &mut TrialEnvironment<'_>) -> Trial {
        let (outcome, reason) = verdict_of(end, self.plan.better);
        // The processes for which the trial's huge pages are split.
        world.search();
        self.lever.forget_the_dead();
        let account: Arc<WatchAccount> = self.lever.account();
        let Remains {
            huge: left,
            unsplit,
            found,
            found_not_restored,
        } = (self.lever).finish(outcome == TrialOutcome::Keep, &mut |time| world.rest(time));
        self.estimate();
        let SwitchCounts {
            times_on,
            times_off,
            longest_on,
            longest_off,
            not_collapsed,
            not_split,
        } = self.lever.switched;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let (regions, zeroed) = self.lever.switched_and_zeroed();
        let regions = regions as u64;
        let frames = self.lever.frames();
        let left_on = self.lever.finish_scattering();
        let not_held = self.lever.not_held().map(str::to_owned);
        let mut trial = self.trial;
        trial.frames = (times_off > 0).then(|| frames_of(frames));
        trial.verdict = TrialVerdict { outcome, reason };
        trial.guards = world.guards.told();
        trial.switching = TrialSwitching {
            regions,
            bytes: regions * superhue_model::HUGE_PAGE_SIZE,
            huge_before_bytes: trial.switching.huge_before_bytes,
            growth_bytes: self.growth.max(account.charged_bytes.0),
            times_on,
            times_off,
            longest_on_seconds: seconds(longest_on),
            longest_off_seconds: seconds(longest_off),
            not_collapsed,
            not_split,
            left_huge: left,
            left_unsplit: unsplit,
            found_huge: found,
            found_not_restored,
            zero_regions: zeroed as u64,
        };
        trial.policy.pages = account
            .pages
            .map(|pages| pages.to_string())
            .or(trial.policy.pages);
        trial.policy.because.clone_from(&account.pages_because);
        trial.policy.notes.clone_from(&account.notes);
        trial.policy.notes.extend(left_on);
        // With the verdict to keep the policy nothing is to be switched off.
        trial
            .policy
            .notes
            .extend(not_held.filter(|_| outcome != TrialOutcome::Keep));
        trial.target.processes = world.members.len() as u64;
        let largest = account
            .processes
            .iter()
            .max_by_key(|it| it.memory.resident_bytes);
        trial.target.program = largest.map(|it| it.name.clone()).unwrap_or_default();
        trial
    }
}

/// Returns the result that is in favour of the policy.
const fn gain_of(better: Better) -> Shown {
    match better {
        Better::Lower => Shown::Below,
        Better::Higher | Better::Neither => Shown::Above,
    }
}

/// Returns the outcome of a trial that ended for this reason, and the reason in words where the outcome does not name it.
fn verdict_of(end: End, better: Better) -> (TrialOutcome, Option<String>) {
    let keeps = gain_of(better);
    match end {
        End::Shown(Shown::Small) => (TrialOutcome::NoDifference, None),
        End::Shown(shown) if shown == keeps => (TrialOutcome::Keep, None),
        End::Shown(_) => (TrialOutcome::Leave, None),
        End::Limit => (TrialOutcome::Undecided, None),
        End::Withheld(why) => (TrialOutcome::Undecided, Some(why)),
        End::NothingToDo(why) => (TrialOutcome::NothingToDo, Some(why)),
        End::Alarm(Alarm::Crossed(why)) => (TrialOutcome::Guarded, Some(why)),
        End::Signal => {
            let why = "a signal asked for it".to_owned();
            (TrialOutcome::Interrupted, Some(why))
        }
        End::Alarm(Alarm::Unreadable(why)) | End::Failed(why) => (TrialOutcome::Failed, Some(why)),
    }
}

/// Returns the frames for the document.
fn frames_of(seen: FrameSurvey) -> TrialFrames {
    TrialFrames {
        neighbors_before: seen.before,
        neighbors_off: seen.off,
        moved_pages: seen.moved,
        through: seen.through,
        not_moved_because: seen.why_not,
    }
}

#[cfg(test)]
mod tests {
    use super::seed_of;

    #[test]
    fn a_continued_trial_tosses_other_coins() {
        assert_eq!(seed_of(7, 0), 7);
        assert_ne!(seed_of(7, 40), 7);
        assert_ne!(seed_of(7, 40), seed_of(7, 80));
    }
}
