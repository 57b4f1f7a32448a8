//! A command that Superhue starts and watches until it ends.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use superhue_act::{Actuator, DryRun, Journal, SettingsError, SettingsGuard};
use superhue_heat::ChooseError;
use superhue_model::ByteCount;
use superhue_procfs::ReadError;
use superhue_procfs::process::{identify, numbers_are_ours};
use superhue_procfs::system::PageColors;
use superhue_sys::process::{Usage, send_signal};
use superhue_sys::thp::ThpSwitch;

use crate::allocator::{AllocatorAdvice, AllocatorReport, AllocatorRequest, NoRequest};
use crate::colors::{Census, ColorSetup, ColorsError, ColorsReport, kernel_report};
use crate::cpu::{Work, own_cpu_time};
use crate::family::Family;
use crate::launch::{InheritedState, Launch, LaunchError};
use crate::means::Means;
use crate::report::{CpuReport, Ending, Report, RunFacts};
use crate::setup::Setup;
use crate::stop::Stop;
use crate::supervise::{End, Signals, SupervisionEvent, is_interrupt};
use crate::watch::{Mappings, Watch, WatchResults};
use crate::{Config, Mechanism, Pages};

/// Reason why a session did not begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The command did not start.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// `/proc` belongs to another PID namespace: its numbers are of other processes.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The session could not change the machine's settings.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The configured policy or tracker does not work here.
    #[error(transparent)]
    Tracker(#[from] ChooseError),
    /// Placing memory by page colors does not work here.
    #[error(transparent)]
    Colors(#[from] ColorsError),
    /// The system could not start a thread for the watch.
    #[error("cannot start the watching thread: {0}; see `ulimit -u` and the cgroup's pids.max")]
    Thread(io::Error),
}

/// Longest wait for the watch once the command has ended. A child that the command left behind can hold it up: one that waits for a file system
/// with its locks held.
const FAREWELL: Duration = Duration::from_secs(10);

/// Result of one step of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The command still runs.
    Running,
    /// Superhue received a signal to end; a command in the foreground of the terminal received it as well.
    Interrupted,
    /// The command ended.
    Ended(Ending),
}

/// A running command and the watch over it.
#[derive(Debug)]
pub struct Session {
    config: Config,
    command: Vec<OsString>,
    mechanism: Mechanism,
    signals: Signals,
    pid: u32,
    /// True if a signal to end came before the command ran; the next step says so.
    interrupted: bool,
    begun: Instant,
    own_cpu_before: Duration,
    stop: Stop,
    watcher: Option<Receiver<WatchResults>>,
    settings: Option<SettingsGuard>,
    ended: Option<(Ending, Usage, Duration)>,
    colors: Option<ColorSetup>,
    allocator: Option<AllocatorReport>,
}

impl Session {
    /// Starts `command` and a watch over it.
    ///
    /// The command's standard output and error go to `output` if given. The command is in the control group whose `cgroup.procs` is `group`. While
    /// the session lasts, the calling thread holds back signals, which [`Session::step`] passes on.
    ///
    /// # Errors
    /// See [`SessionError`]; the machine is unchanged then.
    pub fn start(
        config: Config,
        command: Vec<OsString>,
        preserved: InheritedState,
        output: Option<&File>,
        group: Option<&File>,
    ) -> Result<Self, SessionError> {
        // Before signals are held, so that they can end this process: finding colors may take seconds.
        let colors = ColorSetup::new(&config)?;
        // Before any change: from here on no signal but SIGKILL keeps Superhue from undoing it.
        let signals = Signals::hold();
        Self::start_holding(signals, colors, config, command, preserved, output, group)
            .inspect_err(|_| signals.release())
    }

    fn start_holding(
        signals: Signals,
        mut colors: Option<ColorSetup>,
        config: Config,
        command: Vec<OsString>,
        preserved: InheritedState,
        output: Option<&File>,
        group: Option<&File>,
    ) -> Result<Self, SessionError> {
        // Otherwise the watch would read another process's memory.
        numbers_are_ours(&config.roots)?;
        let own_cpu_before = own_cpu_time();
        let journal = Journal::default();
        let settings = SettingsGuard::apply(&journal, &config.roots.sys, &config.settings)?;
        // After the settings, on which the mechanism depends.
        let mut mechanism = Mechanism::for_command(&config);
        let keeper = ColorSetup::join(&mut colors, &mut mechanism, &config.roots);
        // Before the command runs if it may fail; otherwise once there is memory to place.
        let choosing = Work::begin();
        let setup = Setup::if_asked(&config, &mechanism)?;
        let (_, chosen) = choosing.end();
        tracing::debug!(pages = ?config.options.pages, ?mechanism, "starting");

        let allocator = allocator_report(&config, &mechanism, &command);
        let asked = allocator.iter().filter_map(|report| report.asked.as_ref());
        let environment: Vec<_> = asked
            .map(AllocatorRequest::pair)
            .chain(config.environment.iter().cloned())
            .collect();
        let launch = Launch {
            command: &command,
            environment: &environment,
            switch: match config.dry_run {
                true => ThpSwitch::System,
                false => mechanism.switch,
            },
            colors: colors.as_ref().and_then(ColorSetup::policy),
            preserved,
            signals: signals.before,
            output,
            group,
        };
        let begun = Instant::now();
        // A user who ends Superhue while it prepares means the command.
        let early = signals.pending();
        let child = launch.start()?;
        let pid = child.id();
        for signal in &early {
            send_signal(pid, signal.number, signal.value);
        }

        let stop = Stop::default();
        let mut session = Self {
            config,
            command,
            mechanism,
            signals,
            pid,
            interrupted: early.iter().any(is_interrupt),
            begun,
            own_cpu_before,
            stop: stop.clone(),
            watcher: None,
            settings: Some(settings),
            ended: None,
            colors,
            allocator,
        };
        // A command that has already ended keeps its number until this process, its parent, waits for it.
        let target = identify(&session.config.roots, pid).ok();
        let family = Family::new(target, session.config.follow);
        let policy = session.colors.as_ref().and_then(ColorSetup::policy);
        let census = policy.map(|policy| Census::new(policy, &session.config.roots));
        let watch = new_watch(&session.config, &session.mechanism, family, setup)
            .with_census(census)
            .with_keeper(keeper)
            .with_cost(chosen);
        let (sender, receiver) = channel();
        let watcher = thread::Builder::new()
            .name("superhue-watch".to_owned())
            .spawn(move || {
                let _ = sender.send(watch.run(&stop, false));
            });
        match watcher {
            Ok(_) => session.watcher = Some(receiver),
            // The command runs, and the lack of a watch must not harm it.
            Err(error) => session
                .mechanism
                .notes
                .push(format!("not watched: no thread: {error}")),
        }
        Ok(session)
    }

    /// Number of the command's process.
    #[must_use]
    pub const fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits up to `timeout` for something to happen.
    pub fn step(&mut self, timeout: Duration) -> Step {
        if let Some((ending, ..)) = self.ended {
            return Step::Ended(ending);
        }
        if std::mem::take(&mut self.interrupted) {
            return Step::Interrupted;
        }
        match self.signals.step(self.pid, timeout) {
            SupervisionEvent::Nothing => Step::Running,
            SupervisionEvent::Interrupted => Step::Interrupted,
            SupervisionEvent::Ended(end, usage) => {
                let ending = match end {
                    End::Exited(status) => Ending::Exited { status },
                    End::Killed(signal) => Ending::Killed { signal },
                };
                self.ended = Some((ending, usage, self.begun.elapsed()));
                self.stop.now();
                Step::Ended(ending)
            }
        }
    }

    /// Waits until the command ends.
    pub fn wait(&mut self) -> Ending {
        loop {
            if let Step::Ended(ending) = self.step(Duration::from_secs(3600)) {
                return ending;
            }
        }
    }

    /// Sends the command a signal, if it has not ended.
    pub fn signal(&self, signal: i32) {
        if self.ended.is_none() {
            send_signal(self.pid, signal, None);
        }
    }

    /// Waits for the end if need be, ends the watch, restores settings, and reports.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.wait();
        self.stop.now();
        let mut watched = self.results();
        let mut settings = self
            .settings
            .take()
            .map(SettingsGuard::finish)
            .unwrap_or_default();
        if let Some(colors) = &mut self.colors {
            settings.add(colors.finish());
        }
        self.signals.release();
        let (ending, usage, wall) = match self.ended {
            Some((ending, usage, wall)) => (Some(ending), Some(usage), wall),
            None => (None, None, self.begun.elapsed()),
        };
        let frame = RunFacts {
            command: self
                .command
                .iter()
                .map(|s| s.to_string_lossy().into_owned())
                .collect(),
            ending,
            wall,
            cpu: usage.map(|usage| CpuReport {
                user_seconds: usage.user.as_secs_f64(),
                system_seconds: usage.system.as_secs_f64(),
                minor_faults: Some(usage.minor_faults),
                major_faults: Some(usage.major_faults),
            }),
            max_rss: usage.map(|usage| ByteCount::from_kib(usage.max_rss_kib)),
            own_cpu_before: self.own_cpu_before,
            settings,
        };
        let mechanism = self.mechanism.clone();
        let census = watched.census.take();
        let colors = self.colors.take().map(|prepared| {
            if let Some(policy) = prepared.policy() {
                let after = PageColors::read(&self.config.roots).ok();
                return kernel_report(&prepared, policy, census.as_ref(), after.as_ref());
            }
            ColorsReport::of_recoloring(&prepared, watched.keeper.as_ref())
        });
        Report::new(&self.config, mechanism, watched, frame)
            .with_colors(colors)
            .with_allocator(self.allocator.take())
    }
}

impl Session {
    /// Returns the results of the watch, if it ends in time.
    fn results(&mut self) -> WatchResults {
        let Some(watcher) = self.watcher.take() else {
            return WatchResults::default();
        };
        let results = watcher.recv_timeout(FAREWELL);
        results.unwrap_or_else(|error| {
            let why = match error {
                RecvTimeoutError::Timeout => format!(
                    "{} s after the command it still waited for a process of it that holds up its reader",
                    FAREWELL.as_secs()
                ),
                RecvTimeoutError::Disconnected => {
                    "it ended early, by an error of superhue; please report it".to_owned()
                }
            };
            let note = format!("the results of the watch are missing: {why}");
            self.mechanism.notes.push(note);
            WatchResults::default()
        })
    }
}

impl Drop for Session {
    /// Ends the watch; the command runs on.
    fn drop(&mut self) {
        self.stop.now();
    }
}

/// Returns the variable that asks the command's allocator, if the configuration wants that.
fn allocator_report(
    config: &Config,
    mechanism: &Mechanism,
    command: &[OsString],
) -> Option<AllocatorReport> {
    command.first()?;
    let result = match (config.allocator, mechanism.switch) {
        (AllocatorAdvice::Leave, _) => return None,
        (AllocatorAdvice::Ask, ThpSwitch::Never) => Err(NoRequest::SwitchedOff),
        (AllocatorAdvice::Ask, _) if config.dry_run => Err(NoRequest::DryRun),
        (AllocatorAdvice::Ask, _) => {
            AllocatorRequest::for_command(&config.roots, command, &config.environment)
        }
    };
    Some(AllocatorReport::new(&result))
}

/// Makes the watch for a configuration.
pub(crate) fn new_watch(
    config: &Config,
    mechanism: &Mechanism,
    family: Family,
    setup: Option<Setup>,
) -> Watch {
    let mappings = Mappings::default();
    let actuator = new_actuator(config, &mechanism.means, mappings.clone());
    Watch::new(config, mechanism, family, setup, actuator).with_objects(mappings)
}

/// Makes the actuator for a configuration.
pub(crate) fn new_actuator(
    config: &Config,
    means: &Means,
    mappings: Mappings,
) -> Box<dyn Actuator> {
    if config.dry_run {
        return Box::new(DryRun);
    }
    let mappers = Box::new(move |object, region| mappings.of(object, region));
    let has_budget = config.options.pages != Some(Pages::Always) || config.options.budget.is_some();
    means.actuator(&config.roots, mappers, has_budget)
}
