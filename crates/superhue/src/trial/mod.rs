//! A trial: is a policy worth it for a program as it runs?
//!
//! ```text
//!   learn     the policy's watch runs until it has made all the huge pages it wants  (switch, scatter)
//!   pairs     | settle | on  | settle | off |     or off first, by a coin            (timetable)
//!                        measured       measured                                     (meter)
//!   each pair --(on, off)--> evidence: another pair, or keep / leave / no difference
//!   always    guards, signals, the target's processes; any of them ends it
//!   end       keep: the policy's pages stay; else: pages that the trial made huge are split
//! ```
//!
//! A pair is left out for two reasons: no valid reading, or the program restarted. A switch that took effect only in part is no such reason (a fork
//! that keeps pages from being split comes when there is most to do): such pairs count, and the report shows how far switches took effect. A reading
//! can fail, or a program end, *because* of a state, so the report counts such pairs by state. While *on* has more of them than chance explains, or
//! the others would not decide if those had been bad ones, there is no verdict in favour of the policy. Statistics: `superhue_measure::sequence`.
mod ask;
mod document;
mod environment;
#[cfg(test)]
mod fakes;
mod frames;
mod guard;
mod meter;
mod pairs;
mod pauses;
mod recording;
mod scatter;
mod switch;
mod who;

use std::time::{Duration, Instant};

use superhue_measure::trial::timetable::Timetable;
use superhue_measure::trial::{ContinueError, MetricKind, Trial};
use superhue_measure::{Better, Coin, Shown};
use superhue_model::ProcessId;
use superhue_procfs::process::numbers_are_ours;
use superhue_procfs::{ReadError, Roots};

pub use ask::{ANSWER_WITHIN, MetricError, Source, expression, without_login};
pub use guard::{Guard, GuardSource, Limit};
pub use who::{RuleProcesses, TargetError, TrialTargets};

use crate::Config;
use crate::attach::{AttachError, check_look, running_mechanism};
use crate::cpu::own_cpu_time;
use crate::live::Members;
use document::first_document;
use environment::{SharedMembers, TrialEnvironment, resident_of};
use guard::{Alarm, Guards};
use meter::{BlockError, CpuTimes, Meter};
use pairs::TrialRun;
use switch::{PolicySwitch, SwitchOptions};
use who::TargetSearch;

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
    let mut environment = TrialEnvironment {
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
    environment.share();
    let meter = Meter::new(plan.source.clone(), plan.kind);
    // All faults of the plan show here, before the trial changes anything.
    let (mut trial, evidence) = first_document(plan, &environment, &config.roots)?;
    tell(TrialStep::Reading);
    environment.wait_for_guards()?;
    let reading = meter
        .try_out(&mut environment)
        .map_err(|error| match error {
            BlockError::Stopped | BlockError::Reading(MetricError::Stopped) => {
                TrialError::Interrupted
            }
            error => TrialError::Metric(error.to_string()),
        })?;
    let begun = Instant::now();
    let before = own_cpu_time();
    trial.switching.huge_before_bytes = huge_of(&config.roots, &environment.members);
    let switch = PolicySwitch::new(&config, &means, switch_options(plan));
    let switch = switch.map_err(TrialError::Thread)?;
    let limit = plan.limit.as_secs_f64();
    let block = plan.block.map(|block| block.as_secs_f64());
    let earlier_pairs = plan.earlier.as_ref().map_or(0, |it| it.pairs.len());
    let mut trial_run = TrialRun {
        plan,
        meter,
        switch,
        begun,
        coin: Coin::new(seed_of(plan.seed, earlier_pairs)),
        evidence,
        timetable: Timetable::new(block, limit, reading.as_secs_f64()),
        trial,
        growth: 0,
        broken: false,
        broken_on: None,
    };
    let end = trial_run.go(&mut environment, tell);
    let mut trial = trial_run.conclude(end, &mut environment);
    let cpu = own_cpu_time().saturating_sub(before);
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
    let huge = members
        .iter()
        .map(|id| match view(roots, &mut scanner, *id) {
            Ok(view) => view.huge_mapped().map(|huge| huge.0),
            Err(error) if error.is_vanished() => Some(0),
            Err(_) => None,
        });
    huge.sum()
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
