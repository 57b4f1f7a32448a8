//! Watching processes that run already.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use superhue_heat::ChooseError;
use superhue_model::ProcessId;
use superhue_procfs::cgroup::CgroupError;
use superhue_procfs::process::{
    CpuTicks, PageScanner, check_view, cpu_now, identify, numbers_are_ours, still_is,
};
use superhue_procfs::{ReadError, Roots};

use crate::account::WatchAccount;
use crate::colors::{ColorSetup, ColorsError, ColorsReport};
use crate::controls::Controls;
use crate::cpu::{Work, own_cpu_time};
use crate::family::Family;
use crate::means::WITHOUT_CAPABILITY;
use crate::report::{CpuReport, Report, RunFacts};
use crate::session::new_watch;
use crate::setup::Setup;
use crate::stop::Stop;
use crate::targets::Population;
use crate::watch::AccountPublisher;
use crate::{Config, Mechanism, Targets};

/// Number of programs that a process may execute during the first look at it, and the time between two attempts.
const EXECUTIONS: u32 = 20;
const BETWEEN_EXECUTIONS: Duration = Duration::from_millis(1);

/// Reason why processes cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// A named process cannot be read; none is watched then.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no such cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The caller may read the processes, but not act on them.
    #[error(
        "may not collapse memory of other processes, which takes CAP_SYS_NICE, and {0}: {WITHOUT_CAPABILITY}; --dry-run and \
         --pages kernel work without"
    )]
    MayNotAct(String),
    /// Memory cannot be placed by page colors.
    #[error(transparent)]
    Colors(#[from] ColorsError),
    /// The requested policy or tracker does not work here.
    #[error(transparent)]
    Tracker(#[from] ChooseError),
    /// No thread to watch from.
    #[error("cannot start the watching thread: {0}; see `ulimit -u` and the cgroup's pids.max")]
    Thread(std::io::Error),
}

/// Watches processes until no more of them can appear (see [`Targets`]), `limit` has passed, or `interrupted` returns true.
///
/// Every named process must be readable; unreadable members of a population are counted and left alone. All processes share one budget. Their memory
/// stays as it is at the end: nothing has to be undone.
///
/// Calls `tell` with the account at once, about once a second as far as the ceiling pays for it, and at the end. Services have no meaning there.
///
/// # Errors
/// See [`AttachError`]; nothing was changed then.
pub fn attach(
    config: &Config,
    targets: &Targets,
    limit: Option<Duration>,
    mut interrupted: impl FnMut(Duration) -> bool,
    mut tell: impl FnMut(&WatchAccount),
) -> Result<Report, AttachError> {
    let own = own_cpu_time();
    let preparing = Work::begin();
    let config = &config.for_running();
    // If `/proc` is of another pid namespace, a number names one process for the look and another one for the collapse.
    numbers_are_ours(&config.roots)?;
    let population = Population::of(targets, &config.roots)?;
    let named: &[u32] = match targets {
        Targets::Processes(pids) => pids,
        _ => &[],
    };
    let ids = named
        .iter()
        .map(|&pid| {
            let id = identify(&config.roots, pid)?;
            // A caller without permission gets the error now.
            check_look(&config.roots, id)?;
            Ok(id)
        })
        .collect::<Result<Vec<ProcessId>, ReadError>>()?;
    let mut mechanism = running_mechanism(config)?;
    // Measuring colors is no part of watching.
    let (_, prepared) = preparing.end();
    let before_colors = own_cpu_time();
    let mut colors = ColorSetup::for_running(config)?;
    let colored = own_cpu_time().saturating_sub(before_colors);
    let keeper = ColorSetup::join(&mut colors, &mut mechanism, &config.roots);
    let cpu_before: Vec<_> = ids.iter().map(|&id| cpu_of(&config.roots, id)).collect();

    let stop = Stop::default();
    let begun = Instant::now();
    let is_population = population.is_some();
    let family = match population {
        Some(population) => Family::of(population),
        None => Family::new(ids.iter().copied(), config.follow),
    };
    let choosing = Work::begin();
    let setup = Setup::of(config, &mechanism)?;
    let (_, chosen) = choosing.end();
    let watch = new_watch(config, &mechanism, family, Some(setup));
    let controls = Controls::new(config.options.max_overhead);
    let live = AccountPublisher::of_attached(controls.clone(), &mechanism);
    let watch = watch
        .with_keeper(keeper)
        .with_live(live)
        .with_cost(prepared + chosen);
    let watcher = std::thread::Builder::new()
        .name("superhue-watch".to_owned())
        .spawn({
            let stop = stop.clone();
            move || watch.run(&stop, true)
        })
        .map_err(AttachError::Thread)?;
    let mut told = controls.account();
    let mut tell_news = || {
        let account = controls.account();
        if !Arc::ptr_eq(&account, &told) {
            tell(&account);
            told = account;
        }
    };
    while !watcher.is_finished() {
        tell_news();
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        if left.is_some_and(|left| left.is_zero()) {
            break;
        }
        let step = Duration::from_millis(200);
        if interrupted(left.map_or(step, |left| left.min(step))) {
            break;
        }
    }
    stop.now();
    let watched = watcher.join().unwrap_or_default();
    tell_news();
    let settings = colors.as_mut().map(ColorSetup::finish).unwrap_or_default();
    let colors = colors.map(|colors| ColorsReport::of_recoloring(&colors, watched.keeper.as_ref()));

    // A population gets no sum: its members change, so it would cover only the processes that are present now.
    let cpu = (!is_population).then(|| cpu_since(&config.roots, &ids, &cpu_before));
    let frame = RunFacts {
        command: Vec::new(),
        ending: None,
        wall: begun.elapsed(),
        cpu: cpu.flatten(),
        max_rss: None,
        own_cpu_before: own + colored,
        settings,
    };
    Ok(Report::new(config, mechanism, watched, frame).with_colors(colors))
}

/// Returns the CPU time of a process up to now; `None` if it is gone.
fn cpu_of(roots: &Roots, id: ProcessId) -> Option<CpuTicks> {
    let cpu = cpu_now(roots, id.pid).ok()?;
    // The number may have passed to another process before the read.
    still_is(roots, id).then_some(cpu)
}

/// Returns the CPU time of processes since each had used `before`; `None` if one of them is gone: its CPU time went with it.
fn cpu_since(roots: &Roots, ids: &[ProcessId], before: &[Option<CpuTicks>]) -> Option<CpuReport> {
    let (mut user, mut system) = (0, 0);
    for (&id, before) in ids.iter().zip(before) {
        let (now, before) = (cpu_of(roots, id)?, before.as_ref()?);
        user += now.user_ticks.saturating_sub(before.user_ticks);
        system += now.system_ticks.saturating_sub(before.system_ticks);
    }
    #[allow(clippy::cast_precision_loss, reason = "tick counts are far below 2^52")]
    let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    Some(CpuReport {
        user_seconds: seconds(user),
        system_seconds: seconds(system),
        minor_faults: None,
        major_faults: None,
    })
}

/// Returns the mechanism by which running processes get what `config` requests; an error if they cannot.
pub(crate) fn running_mechanism(config: &Config) -> Result<Mechanism, AttachError> {
    Mechanism::for_running(config).map_err(AttachError::MayNotAct)
}

/// Finds out whether a process may be looked at. A process that executes another program meanwhile drops its memory in the middle of the check, which
/// seems as if it had ended; the check is then repeated.
///
/// # Errors
/// Fails if the process is gone, or the caller may not look at it.
pub(crate) fn check_look(roots: &Roots, id: ProcessId) -> Result<(), ReadError> {
    let look = || check_view(roots, &mut PageScanner::new(), id);
    for _ in 0..EXECUTIONS {
        match look() {
            Err(error) if error.is_vanished() && still_is(roots, id) => sleep(BETWEEN_EXECUTIONS),
            looked => return looked,
        }
    }
    look()
}

#[cfg(test)]
mod tests {
    use superhue_testing::ChildGuard;

    use super::*;

    #[test]
    fn the_cpu_time_of_a_process_that_has_ended_is_not_known() {
        let roots = Roots::default();
        let children = [ChildGuard::sleeper(), ChildGuard::sleeper()];
        let ids = [0, 1].map(|at: usize| identify(&roots, children[at].pid()).unwrap());
        let before = ids.map(|id| cpu_of(&roots, id));
        assert!(before.iter().all(Option::is_some));
        assert!(cpu_since(&roots, &ids, &before).is_some());
        let [kept, ended] = children;
        drop(ended);
        assert!(cpu_since(&roots, &ids, &before).is_none(), "not 0 s");
        assert!(cpu_since(&roots, &ids[..1], &before[..1]).is_some());
        // Its number has passed to another process.
        let earlier = ProcessId {
            start_ticks: ids[0].start_ticks + 1,
            ..ids[0]
        };
        assert!(cpu_since(&roots, &[earlier], &before[..1]).is_none());
        drop(kept);
    }
}
