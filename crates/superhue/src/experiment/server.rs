//! One run of a server: start it, wait until it is ready, load it, stop it.
//!
//! ```text
//!   start --> accepts connections --> load runs to its end --> SIGTERM --> end
//!             (at most `patience`)    wall time, server CPU    (at most `patience`, then SIGKILL)
//!                                     (at most `timeout`)
//! ```

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::process::Child;
use std::time::{Duration, Instant};

use superhue_measure::{Builtin, RunnerError, Sample};
use superhue_procfs::Roots;
use superhue_procfs::process::{cpu_now, descendants};
use superhue_sys::overdue::TerminatingProcesses;

use super::capture::Capture;
use super::{Experiment, ServerPlan, end_now, good, sample_of, told, took_too_long};
use crate::Session;
use crate::session::Step;

/// Interval between checks for readiness and for the end of the load.
const EVERY: Duration = Duration::from_millis(5);

pub(crate) fn run(
    experiment: &Experiment,
    plan: &ServerPlan,
    arm: usize,
) -> Result<Sample, RunnerError> {
    if listens(plan.port) {
        return Err(RunnerError::Abort(format!(
            "something listens on port {} already: stop it, or use another port",
            plan.port
        )));
    }
    let trouble = |error: io::Error| RunnerError::failed(format!("its output is lost: {error}"));
    let server_output = Capture::new().map_err(trouble)?;
    let load_output = Capture::new().map_err(trouble)?;
    let (mut session, group) = experiment.start(arm, &server_output)?;

    let result = wait_until_ready(&mut session, plan).and_then(|()| {
        let load = experiment.assignment(arm).fill_text(&plan.load);
        let start = || experiment.shell(&load, &load_output);
        run_load(&mut session, start, plan.patience, experiment.timeout)
    });
    let stopped = stop(&mut session, plan.patience);
    // A shell ends at once by SIGTERM, and leaves the server that it started, with its port.
    if let Ok(group) = &group {
        group.kill();
    }
    let report = session.finish();

    let text = load_output.text().map_err(trouble)?;
    experiment.show(&text);
    let loaded = match result {
        Ok(loaded) => loaded,
        Err(RunnerError::Failed { reason, sample }) => {
            let server_said = server_output.text().unwrap_or_default();
            let last = server_said
                .lines()
                .chain(text.lines())
                .last()
                .unwrap_or("(nothing)");
            let reason = format!("{reason}; last line of output: {last}");
            return Err(RunnerError::Failed { reason, sample });
        }
        Err(error) => return Err(error),
    };
    let mut sample = sample_of(&report, &group);
    sample.set(Builtin::Wall.name(), loaded.wall.as_secs_f64());
    match loaded.server_cpu {
        Some(cpu) => sample.set(Builtin::ServerCpuPerLoad.name(), cpu.as_secs_f64()),
        None => sample.set_missing(Builtin::ServerCpuPerLoad.name(), "the server was gone"),
    }
    let wrong = experiment.read_metrics(&text, &mut sample);
    let reason = match (loaded.status, stopped) {
        (_, ServerEnd::Interrupted) => return Err(RunnerError::Interrupted),
        (Some(0), ServerEnd::ByTerm) => return good(sample, wrong),
        (_, _) if experiment.ignore_failure => return good(sample, wrong),
        (Some(0), ServerEnd::ByKill) => {
            format!(
                "the server did not stop within {:?} of SIGTERM",
                plan.patience
            )
        }
        (status, _) => {
            let status = status.map_or_else(|| "a signal".to_owned(), |s| format!("status {s}"));
            let last = text.lines().last().unwrap_or("(nothing)");
            format!("the load ended with {status}; last line of output: {last}")
        }
    };
    Err(RunnerError::Failed { reason, sample })
}

fn listens(port: u16) -> bool {
    let addresses = [
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        SocketAddr::from((Ipv6Addr::LOCALHOST, port)),
    ];
    let patience = Duration::from_millis(100);
    addresses
        .iter()
        .any(|address| TcpStream::connect_timeout(address, patience).is_ok())
}

fn wait_until_ready(session: &mut Session, plan: &ServerPlan) -> Result<(), RunnerError> {
    let deadline = Instant::now() + plan.patience;
    while !listens(plan.port) {
        match session.step(EVERY) {
            Step::Running => {}
            Step::Interrupted => return Err(RunnerError::Interrupted),
            Step::Ended(ending) => {
                return Err(RunnerError::failed(format!(
                    "the server ended before it was ready ({ending:?})"
                )));
            }
        }
        if Instant::now() >= deadline {
            return Err(RunnerError::failed(format!(
                "the server does not listen on port {} after {:?}",
                plan.port, plan.patience
            )));
        }
    }
    Ok(())
}

/// Result of a load.
struct LoadOutcome {
    wall: Duration,
    server_cpu: Option<Duration>,
    /// Exit status of the load; `None` if a signal ended it.
    status: Option<i32>,
}

fn run_load(
    session: &mut Session,
    start: impl FnOnce() -> io::Result<Child>,
    patience: Duration,
    timeout: Option<Duration>,
) -> Result<LoadOutcome, RunnerError> {
    let trouble = |error: io::Error| RunnerError::failed(format!("cannot run the load: {error}"));
    let before = server_cpu(session.pid());
    let begun = Instant::now();
    let mut load = Load(start().map_err(trouble)?);
    let mut server_ended = None;
    let mut overdue: Option<(TerminatingProcesses, Duration)> = None;
    loop {
        let is_late = |timeout: &Duration| begun.elapsed() >= *timeout;
        if let Some(timeout) = timeout.filter(|timeout| overdue.is_none() && is_late(timeout)) {
            overdue = Some((told(load.0.id()), timeout));
        }
        let has_ended = load.0.try_wait().map_err(trouble)?;
        if let Some((told, timeout)) = &overdue
            && (has_ended.is_some() || Instant::now() >= told.deadline())
        {
            return Err(RunnerError::failed(took_too_long("the load", *timeout)));
        }
        if let Some(status) = has_ended {
            let wall = begun.elapsed();
            if let Some((ending, _)) = server_ended {
                return Err(RunnerError::failed(format!(
                    "the server ended while it was under load ({ending:?})"
                )));
            }
            let after = server_cpu(session.pid());
            let server_cpu = after
                .zip(before)
                .map(|(after, before)| after.saturating_sub(before));
            return Ok(LoadOutcome {
                wall,
                server_cpu,
                status: status.code(),
            });
        }
        match session.step(EVERY) {
            Step::Running => {}
            Step::Interrupted => return Err(RunnerError::Interrupted),
            Step::Ended(ending) => {
                // The load ends by itself, or is killed when this function returns.
                let (_, since) = *server_ended.get_or_insert_with(|| (ending, Instant::now()));
                std::thread::sleep(EVERY);
                if since.elapsed() > patience {
                    return Err(RunnerError::failed(format!(
                        "the server ended while it was under load ({ending:?})"
                    )));
                }
            }
        }
    }
}

/// A load that does not outlive its run. All that it started ends with it, unless it has ended itself before.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            end_now(self.0.id());
            let _ = self.0.wait();
        }
    }
}

/// Returns the CPU time of the server and its present descendants.
fn server_cpu(pid: u32) -> Option<Duration> {
    let roots = Roots::default();
    let own = cpu_now(&roots, pid).ok()?.total();
    let others = descendants(&roots, pid).unwrap_or_default();
    Some(
        own + others
            .iter()
            .filter_map(|&pid| Some(cpu_now(&roots, pid).ok()?.total()))
            .sum(),
    )
}

/// Way in which a server ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServerEnd {
    ByTerm,
    ByKill,
    Interrupted,
}

fn stop(session: &mut Session, patience: Duration) -> ServerEnd {
    session.signal(libc::SIGTERM);
    let deadline = Instant::now() + patience;
    let mut how = ServerEnd::ByTerm;
    loop {
        match session.step(EVERY) {
            Step::Ended(_) => return how,
            Step::Interrupted => how = ServerEnd::Interrupted,
            Step::Running => {}
        }
        if how != ServerEnd::ByKill && Instant::now() >= deadline {
            // Its workers would hold the port.
            end_now(session.pid());
            if how == ServerEnd::ByTerm {
                how = ServerEnd::ByKill;
            }
        }
    }
}
