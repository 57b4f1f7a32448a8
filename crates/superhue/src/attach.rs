//! Watching processes that run already.

use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use superhue_heat::ChooseError;
use superhue_model::{ProcessId, ProcessView};
use superhue_procfs::cgroup::CgroupError;
use superhue_procfs::process::{PageScanner, cpu_now, identify, numbers_are_ours, still_is, view};
use superhue_procfs::{ReadError, Roots};
use superhue_sys::process::own_usage;

use crate::colors::{ColorsError, ColorsReport, Prepared};
use crate::family::Family;
use crate::live::{Controls, Live, WatchAccount};
use crate::means::WITHOUT_CAPABILITY;
use crate::report::{CpuReport, Frame, Report};
use crate::session::new_watch;
use crate::setup::Setup;
use crate::targets::Population;
use crate::watch::Stop;
use crate::{Config, Mechanism, Targets};

/// How often a process may execute another program during the first look at it, and how soon it is looked at again.
const EXECUTIONS: u32 = 20;
const BETWEEN_EXECUTIONS: Duration = Duration::from_millis(1);

/// Why processes cannot be watched.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// One of them cannot be looked at; none is watched then.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// There is no such cgroup.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The caller may look, but not act.
    #[error(
        "may not collapse memory of other processes, which takes CAP_SYS_NICE, and {0}: {WITHOUT_CAPABILITY}; --dry-run and \
         --pages kernel work without"
    )]
    MayNotAct(String),
    /// Memory cannot be placed by page colors.
    #[error(transparent)]
    Colors(#[from] ColorsError),
    /// The policy or tracker asked for cannot be had here.
    #[error(transparent)]
    Tracker(#[from] ChooseError),
    /// No thread to watch from.
    #[error("cannot start the watching thread: {0}")]
    Thread(std::io::Error),
}

/// Watches processes until there will be no more of them (see [`Targets`]), `limit` is over, or
/// `interrupted` says so.
///
/// Of named processes each must be one that may be looked at; of the others, those that may not are
/// counted and left alone. All share one budget. Their memory stays as it is then: nothing has to be undone.
///
/// How it stands is handed to `tell`: at once, about once a second as far as the ceiling pays for it, and at the end. Services have no
/// meaning there.
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
    let own = own_usage();
    let config = &config.for_running();
    // Else one process would be looked at and another one's memory collapsed.
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
            // Once in full, so that whoever may not look hears it now.
            first_look(&config.roots, id)?;
            Ok(id)
        })
        .collect::<Result<Vec<ProcessId>, ReadError>>()?;
    let mut mechanism = running_mechanism(config)?;
    let mut colors = Prepared::for_running(config)?;
    let keeper = Prepared::join(&mut colors, &mut mechanism, &config.roots);
    let cpu_of = |id: &ProcessId| cpu_now(&config.roots, id.pid).ok();
    let cpu_before: Vec<_> = ids.iter().map(cpu_of).collect();

    let stop = Stop::default();
    let begun = Instant::now();
    let is_population = population.is_some();
    let family = match population {
        Some(population) => Family::of(population),
        None => Family::new(ids.iter().copied(), config.follow),
    };
    let setup = Setup::of(config, &mechanism)?;
    let watch = new_watch(config, &mechanism, family, Some(setup));
    let controls = Controls::new(config.max_overhead);
    let live = Live::of_attached(controls.clone(), &mechanism);
    let watch = watch.with_keeper(keeper).with_live(live);
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
    let settings = colors.as_mut().map(Prepared::finish).unwrap_or_default();
    let colors = colors.map(|colors| ColorsReport::of_recoloring(&colors, watched.keeper.as_ref()));

    // Of a population it would be the sum over whoever happened to be there.
    // Only of those that are still there: the CPU time of the others went with them.
    let used = ids.iter().zip(&cpu_before).filter_map(|(id, before)| {
        let (now, before) = (cpu_of(id)?, before.as_ref()?);
        let ticks = |now: u64, before: u64| now.saturating_sub(before);
        Some((
            ticks(now.user_ticks, before.user_ticks),
            ticks(now.system_ticks, before.system_ticks),
        ))
    });
    let (user, system) = used.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    #[allow(clippy::cast_precision_loss, reason = "tick counts are far below 2^52")]
    let seconds = |ticks: u64| ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    let frame = Frame {
        command: Vec::new(),
        ending: None,
        wall: begun.elapsed(),
        cpu: (!is_population).then(|| CpuReport {
            user_seconds: seconds(user),
            system_seconds: seconds(system),
            minor_faults: None,
            major_faults: None,
        }),
        max_rss: None,
        own_cpu_before: own.user + own.system,
        settings,
    };
    Ok(Report::new(config, mechanism, watched, frame).with_colors(colors))
}

/// How processes that run already get what `config` asks for; an error if they cannot.
pub(crate) fn running_mechanism(config: &Config) -> Result<Mechanism, AttachError> {
    Mechanism::for_running(config).map_err(AttachError::MayNotAct)
}

/// Looks at a process in full once. One that executes another program meanwhile takes its memory away in the middle of the look, which seems
/// as if it had ended; it is looked at again then.
///
/// # Errors
/// If it is gone, or may not be looked at.
pub(crate) fn first_look(roots: &Roots, id: ProcessId) -> Result<ProcessView, ReadError> {
    let look = || view(roots, &mut PageScanner::new(), id);
    for _ in 0..EXECUTIONS {
        match look() {
            Err(error) if error.is_vanished() && still_is(roots, id) => sleep(BETWEEN_EXECUTIONS),
            looked => return looked,
        }
    }
    look()
}
