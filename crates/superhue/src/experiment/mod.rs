//! Runs of the arms of a comparison, for `superhue compare`.
//!
//! `superhue-compare` decides the order of runs and does the statistics; this module runs one arm once and reads off the result, for plain commands
//! (`plain`) and for servers under a load (`server`).

mod capture;
mod facts;
mod group;
mod plain;
mod server;
mod shell;

use std::ffi::OsString;
use std::io;
use std::iter::once;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use superhue_measure::{
    Assignment, Builtin, Metric, MetricMiss, Runner, RunnerError, Sample, UserMetric,
};
use superhue_model::ColorRequest;
use superhue_procfs::Roots;
use superhue_procfs::process::descendants;
use superhue_sys::overdue::TerminatingProcesses;

use crate::launch::InheritedState;
use crate::report::{Ending, Report};
use crate::session::Step;
use crate::supervise::{Signals, SupervisionEvent};
use crate::{Config, Session, SessionError};

pub use facts::machine_facts;
use group::{RunGroup, RunGroupResult};

/// A server's part in an experiment.
#[derive(Debug, Clone)]
pub struct ServerPlan {
    /// Load to run against it, by `sh -c`.
    pub load: String,
    /// Port of the loopback address; the server is ready once it accepts TCP connections there.
    pub port: u16,
    /// Time that it may take until it is ready, and to stop.
    pub patience: Duration,
}

/// Runs arms.
#[derive(Debug)]
pub struct Experiment {
    /// One configuration for each arm.
    pub arms: Vec<Config>,
    /// One set of values of the parameters for each arm; none without a scan. They replace `{NAME}` in the command, the load, and the preparation of
    /// a run.
    pub assignments: Vec<Assignment>,
    /// Command to run.
    pub command: Vec<OsString>,
    /// Command to run before each run, by `sh -c`. It is not measured.
    pub prepare: Option<String>,
    /// Time that a run may take; of a server, its load. A run that takes longer is ended, and has failed.
    pub timeout: Option<Duration>,
    /// Set if the command is a server.
    pub server: Option<ServerPlan>,
    /// Figures to read from the output.
    pub metrics: Vec<UserMetric>,
    /// True if runs with another exit status than 0 count.
    pub ignore_failure: bool,
    /// True if output is also shown on standard error.
    pub show_output: bool,
    /// State that this process got from its caller.
    pub preserved: InheritedState,
    signals: Signals,
}

impl Experiment {
    /// Makes an experiment without server and metrics. From now on, until it is dropped, it holds back signals in this thread, so that an interrupt
    /// ends the experiment and not the program.
    #[must_use]
    pub fn new(arms: Vec<Config>, command: Vec<OsString>, preserved: InheritedState) -> Self {
        Self {
            arms,
            assignments: Vec::new(),
            command,
            prepare: None,
            timeout: None,
            server: None,
            metrics: Vec::new(),
            ignore_failure: false,
            show_output: false,
            preserved,
            signals: Signals::hold(),
        }
    }

    /// Returns the metrics that every sample has, besides the user's.
    #[must_use]
    pub fn builtin_metrics(&self) -> Vec<Metric> {
        let mut metrics = vec![
            Builtin::Wall,
            Builtin::Cpu,
            Builtin::MaxRss,
            Builtin::MaxCharged,
        ];
        if self.server.is_some() {
            metrics.push(Builtin::ServerCpuPerLoad);
        }
        metrics.extend([
            Builtin::MinorFaults,
            Builtin::CoveragePeak,
            Builtin::CoverageMean,
            Builtin::SecondsTo95,
            Builtin::SuperhueCpu,
        ]);
        let is_colored = |config: &Config| config.options.colors != ColorRequest::Off;
        if self.arms.iter().any(is_colored) {
            metrics.push(Builtin::ColorShare);
        }
        metrics.into_iter().map(Builtin::metric).collect()
    }

    /// Returns a function to call between two runs; it returns true if Superhue was interrupted.
    pub fn interrupt_check(&self) -> impl Fn() -> bool + use<> {
        let signals = self.signals;
        // No child has this number: only signals are of interest.
        move || signals.step(u32::MAX, Duration::ZERO) == SupervisionEvent::Interrupted
    }

    /// Tries an arm on a program that does nothing, to see whether this machine can run it.
    ///
    /// # Errors
    /// [`RunnerError::Failed`] or [`RunnerError::Abort`] with the obstacle, which may be the dynamic linker's message about a missing library; or an
    /// interrupt.
    pub fn try_arm(&self, arm: usize) -> Result<(), RunnerError> {
        let trouble = |error: io::Error| RunnerError::failed(error.to_string());
        let output = capture::Capture::new().map_err(trouble)?;
        let mut session = self.start_command(arm, vec!["true".into()], &output, None)?;
        let waited = wait_for_end(&mut session, None);
        let report = session.finish();
        if waited == WaitOutcome::Interrupted {
            return Err(RunnerError::Interrupted);
        }
        let said = output.text().map_err(trouble)?;
        match (complaint(report.ending), said.lines().next()) {
            (None, None) => Ok(()),
            (_, Some(line)) => Err(RunnerError::failed(line)),
            (Some(reason), None) => Err(RunnerError::failed(format!("`true`: {reason}"))),
        }
    }

    fn start(
        &self,
        arm: usize,
        output: &capture::Capture,
    ) -> Result<(Session, RunGroupResult), RunnerError> {
        let assignment = self.assignment(arm);
        let parts = self.command.iter();
        let command = parts.map(|part| OsString::from_vec(assignment.fill(part.as_bytes())));
        let group = RunGroup::new(&Roots::default());
        let session = self.start_command(arm, command.collect(), output, group.as_ref().ok())?;
        Ok((session, group))
    }

    fn start_command(
        &self,
        arm: usize,
        command: Vec<OsString>,
        output: &capture::Capture,
        group: Option<&RunGroup>,
    ) -> Result<Session, RunnerError> {
        let config = self.arms.get(arm).cloned().unwrap_or_default();
        let group = group.map(RunGroup::door);
        Session::start(config, command, self.preserved, Some(output.file()), group).map_err(
            |error| {
                match error {
                    // Neither will work the next time.
                    error @ (SessionError::Launch(_) | SessionError::Settings(_)) => {
                        RunnerError::Abort(error.to_string())
                    }
                    error => RunnerError::failed(error.to_string()),
                }
            },
        )
    }

    /// Returns the values of the parameters of an arm.
    fn assignment(&self, arm: usize) -> Assignment {
        self.assignments.get(arm).cloned().unwrap_or_default()
    }

    /// Reads the user's figures from `output`; returns the fault of an expression, if one shows.
    fn read_metrics(&self, output: &str, sample: &mut Sample) -> Option<String> {
        let mut wrong = None;
        for metric in &self.metrics {
            let figure = metric.extract(output);
            if let Err(several @ MetricMiss::Several { .. }) = &figure {
                wrong = wrong.or_else(|| Some(several.to_string()));
            }
            sample.record(&metric.metric().name, figure);
        }
        wrong
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        self.signals.release_without_interrupts();
    }
}

impl Runner for Experiment {
    fn run(&mut self, arm: usize, _warmup: bool) -> Result<Sample, RunnerError> {
        self.prepare(arm)?;
        match &self.server {
            None => plain::run(self, arm),
            Some(plan) => server::run(self, plan, arm),
        }
    }
}

/// Returns the built-in metrics that a report holds.
fn sample_of(report: &Report, group: &RunGroupResult) -> Sample {
    let mut sample = Sample::new();
    let mut set = |metric: Builtin, value: Option<f64>, reason: &str| match value {
        Some(value) => sample.set(metric.name(), value),
        None => sample.set_missing(metric.name(), reason),
    };
    let not_waited = "the command was not waited for";
    set(Builtin::Wall, Some(report.wall_seconds), "");
    let cpu = report.cpu.as_ref();
    set(
        Builtin::Cpu,
        cpu.map(|cpu| cpu.user_seconds + cpu.system_seconds),
        not_waited,
    );
    #[allow(clippy::cast_precision_loss, reason = "counts and sizes below 2^52")]
    {
        let rss = report.memory.max_rss_bytes.map(|bytes| bytes.0 as f64);
        set(Builtin::MaxRss, rss, not_waited);
        let (charged, reason) = match group.as_ref().map_err(|reason| *reason) {
            Ok(group) => (group.peak(), "the control group of the run is gone"),
            Err(reason) => (None, reason),
        };
        let charged = charged.map(|bytes| bytes.0 as f64);
        set(Builtin::MaxCharged, charged, reason);
        let faults = cpu
            .and_then(|cpu| cpu.minor_faults)
            .map(|count| count as f64);
        set(Builtin::MinorFaults, faults, not_waited);
    }
    let coverage = &report.coverage;
    let unknown = coverage
        .unknown_because
        .unwrap_or("no huge page in the end");
    set(Builtin::CoveragePeak, coverage.peak, unknown);
    set(Builtin::CoverageMean, coverage.mean, unknown);
    set(
        Builtin::SecondsTo95,
        coverage.seconds_to_95_percent_of_last,
        unknown,
    );
    set(
        Builtin::SuperhueCpu,
        Some(report.superhue.counts.cpu_seconds),
        "",
    );
    let colors = report.colors.as_ref();
    let without = match colors {
        None => "it asked for no colors",
        Some(colors) => (colors.without.as_deref()).unwrap_or("none of its memory was looked at"),
    };
    // What was not recolored has a color that is not known, so it counts as a part that lies elsewhere.
    let share = colors.filter(|colors| colors.without.is_none());
    #[allow(clippy::cast_precision_loss, reason = "bytes below 2^52")]
    let share = share
        .filter(|colors| colors.resident_bytes.0 > 0)
        .map(|colors| colors.right_bytes.0 as f64 / colors.resident_bytes.0 as f64);
    set(Builtin::ColorShare, share, without);
    sample
}

/// Returns the sample of a good run, unless an expression is `wrong`: it would be wrong in the next run, too.
fn good(sample: Sample, wrong: Option<String>) -> Result<Sample, RunnerError> {
    wrong.map_or(Ok(sample), |why| Err(RunnerError::Abort(why)))
}

/// Returns a complaint about the end of a command, unless it ended well.
fn complaint(ending: Option<Ending>) -> Option<String> {
    match ending {
        Some(Ending::Exited { status: 0 }) => None,
        Some(Ending::Exited { status }) => Some(format!(
            "exit status {status} (--ignore-failure counts such runs too)"
        )),
        Some(Ending::Killed { signal }) => Some(format!("killed by signal {signal}")),
        None => Some("its end was not seen".to_owned()),
    }
}

/// Reason why the wait for a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitOutcome {
    ToItsEnd,
    Interrupted,
    /// The session took longer than its time limit, and had to be ended.
    TooLong,
}

/// Steps a session until it ends, by itself or because it takes longer than `timeout`.
fn wait_for_end(session: &mut Session, timeout: Option<Duration>) -> WaitOutcome {
    let mut deadline = timeout.map(|timeout| Instant::now() + timeout);
    let mut overdue = None;
    let mut waited = WaitOutcome::ToItsEnd;
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        match session.step(left.unwrap_or(Duration::from_secs(3600))) {
            Step::Running if deadline.is_some_and(|deadline| Instant::now() >= deadline) => {
                if waited == WaitOutcome::ToItsEnd {
                    waited = WaitOutcome::TooLong;
                }
                overdue = match overdue {
                    None => Some(told(session.pid())),
                    // At the second deadline, the drop kills the processes that were to end, and those that they started meanwhile.
                    Some(_) => {
                        end_now(session.pid());
                        None
                    }
                };
                deadline = overdue.as_ref().map(TerminatingProcesses::deadline);
            }
            Step::Running => {}
            Step::Interrupted => waited = WaitOutcome::Interrupted,
            Step::Ended(_) => return waited,
        }
    }
}

/// Tells a child that was not waited for yet, and all its descendants, to end.
fn told(child: u32) -> TerminatingProcesses {
    let others = descendants(&Roots::default(), child).unwrap_or_default();
    TerminatingProcesses::tell(once(child).chain(others))
}

/// Ends a child that was not waited for yet, and all its descendants, at once.
fn end_now(child: u32) {
    drop(told(child));
}

/// Returns the text on a run that took too long.
fn took_too_long(what: &str, timeout: Duration) -> String {
    format!("{what} did not end within {timeout:?}")
}
