//! The daemon's main thread: it handles the kernel's events and clients' requests, and the watches of the rules do the work.
//!
//! ```text
//!   cgroup tree --> roster --the processes of each rule--> watches (a process for each tenant of a rule)
//!   signals, control socket --> here --rules--> both           |
//!   users' requests --> a process for each client              |
//!        ^                        +--once a second-- account <-+
//! ```
//!
//! The daemon keeps nothing that matters in its memory alone. If it is killed, memory stays as it is. After a restart it finds the same processes by
//! the same rules; files beside the socket record a pause and the results of trials.

mod answers;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use superhue_model::{PageCount, counted};
use superhue_procfs::Roots;
use superhue_procfs::process::resident_now;
use superhue_serve::{Access, ListenError, Listener, drop_privileges};
use superhue_state::StateError;
use superhue_sys::process::{own_usage, raise_descriptor_limit};
use superhue_sys::signal::take_signal;
use superhue_sys::user::group_number;
use superhue_sys::{heap, image};

use crate::account::{AccountHandle, ConfigAccount, DaemonAccount, OwnAccount, SCHEMA};
use crate::beside::{PauseFile, TrialResults};
use crate::capabilities::missing;
use crate::config::{Problem, Settings};
use crate::ctl::Server;
use crate::holds::Holds;
use crate::load::{load, load_at_start};
use crate::metrics::{Endpoint, Pages};
use crate::notify::Notifier;
use crate::privileges::needed;
use crate::roster::Roster;
use crate::rules::Rule;
use crate::users::Users;
use crate::watches::Watches;
use crate::workers::{Reader, TRIM_INTERVAL, cpu_time_of_fork_server};

/// The group whose members may send requests, besides root.
const GROUP: &str = "superhue";

/// Time between two turns of tending workers, and between two accounts; longer for accounts if there was no request for a while.
const TENDED_EVERY: Duration = Duration::from_secs(1);

/// Delay of a turn that is allowed, so that it can coincide with another reason to wake up.
const TENDED_WITHIN: Duration = Duration::from_millis(200);
const ACCOUNT_EVERY: Duration = Duration::from_secs(5);
const NOBODY_ASKS: Duration = Duration::from_secs(10);

/// Largest age of the account in an answer.
const ACCOUNT_AT_MOST: Duration = Duration::from_millis(50);

/// The longest sleep: nothing is due later.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// Time for which a reload waits for its rules, and time between two looks whether they are there.
const LOADING: Duration = Duration::from_secs(1);
const LOADED_EVERY: Duration = Duration::from_millis(200);

/// Longest wait for watches to end.
const FAREWELL: Duration = Duration::from_secs(3);

/// `SIGHUP`.
const RELOAD: u32 = 1;

/// Paths that the daemon uses.
#[derive(Debug, Clone)]
pub struct DaemonOptions {
    /// The folder of the configuration.
    pub folder: PathBuf,
    /// The control socket.
    pub socket: PathBuf,
    /// The roots of the kernel's files.
    pub roots: Roots,
}

/// Error that ends the daemon, or keeps it from starting.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The configuration is wrong.
    #[error("the configuration is refused:\n{}", lines(.0))]
    Config(Vec<Problem>),
    /// A user or group of it cannot be looked up; that may pass.
    #[error("users cannot be looked up:\n{}", lines(.0))]
    Users(Vec<Problem>),
    /// There is no control socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The state beside the socket cannot be trusted.
    #[error(transparent)]
    State(#[from] StateError),
    /// A system call failed.
    #[error("cannot {what}: {errno}")]
    Io {
        /// Operation that failed.
        what: &'static str,
        /// The kernel's reason.
        errno: Errno,
    },
}

/// Returns the line that `systemctl status` shows.
fn status_line(rules: u64, is_paused: bool, is_refused: bool) -> String {
    let paused = if is_paused { "paused, " } else { "" };
    let refused = if is_refused {
        ", the last configuration was refused"
    } else {
        ""
    };
    format!("{paused}{}{refused}", counted(rules, "rule"))
}

fn lines(problems: &[Problem]) -> String {
    let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

/// The service.
#[derive(Debug)]
pub struct Daemon {
    options: DaemonOptions,
    begun: Instant,
    held: CapabilitySet,
    rules: Arc<[Rule]>,
    max_overhead: f64,
    config: ConfigAccount,
    roster: Roster,
    /// The configuration that is being read.
    loading: Option<Receiver<Result<Settings, Vec<Problem>>>>,
    /// True if a client or a signal requested a reload while it was being read.
    loads_again: bool,
    /// Reader for single questions of clients.
    reader: Reader,
    watches: Watches,
    holds: Holds,
    server: Option<Server>,
    users: Users,
    handle: AccountHandle,
    next_tending: Duration,
    next_trim: Duration,
    /// Time of the last periodic account, and of the last request for one.
    published: Duration,
    asked: Duration,
    /// Time of the last account.
    told: Duration,
    notifier: Notifier,
    pause_file: PauseFile,
    trials: TrialResults,
    /// Time of the start, and time when the rules in force were read, by the clock of the machine.
    started: SystemTime,
    loaded: SystemTime,
    endpoint: Option<Endpoint>,
    pages: Pages,
    metrics_services: usize,
}

impl Daemon {
    /// Reads the configuration, takes the socket, and gives up every capability that the rules do not need.
    ///
    /// To be called before there are other threads: they would keep their capabilities.
    ///
    /// # Errors
    /// See [`DaemonError`]; nothing was changed then.
    pub fn new(options: DaemonOptions) -> Result<Self, DaemonError> {
        let settings =
            load_at_start(&options.folder).map_err(
                |(problems, is_unanswered)| match is_unanswered {
                    true => DaemonError::Users(problems),
                    false => DaemonError::Config(problems),
                },
            )?;
        let listener = Listener::within(&options.socket, access(), Listener::AFTER_KILL)?;
        let pause_file = PauseFile::beside(&options.socket);
        let paused = pause_file.is_there()?;
        // Every process watched may take a few descriptors.
        raise_descriptor_limit(None);
        let needs = needed(&settings, &options.roots);
        let held = drop_privileges(needs).map_err(io("give up capabilities"))?;
        tracing::info!(capabilities = %held, "holding");
        note_missing(needs, held.0);
        let server = Server::new(listener).map_err(io("serve the control socket"))?;
        let users = Users::new(Users::socket_beside(&options.socket));
        let users = users.map_err(io("wait for users"))?;
        let mut daemon = Self {
            begun: Instant::now(),
            held: held.0,
            rules: Arc::new([]),
            max_overhead: settings.max_overhead,
            config: ConfigAccount::default(),
            roster: Roster::new(&options.roots, settings.max_overhead),
            loading: None,
            loads_again: false,
            reader: Reader::new(&options.roots),
            watches: Watches::new(&options.roots),
            holds: Holds::default(),
            server: Some(server),
            users,
            handle: AccountHandle::default(),
            next_tending: Duration::ZERO,
            next_trim: TRIM_INTERVAL,
            published: Duration::ZERO,
            asked: Duration::ZERO,
            told: Duration::ZERO,
            notifier: Notifier::new(),
            pause_file,
            trials: TrialResults::beside(&options.socket),
            started: SystemTime::now(),
            loaded: SystemTime::now(),
            endpoint: Some(Endpoint::default()),
            pages: Pages::default(),
            metrics_services: settings.metrics_services,
            options,
        };
        if let Some(because) = daemon.roster.account(Duration::ZERO).limited_because {
            tracing::warn!(because, "services are found the slow way");
        }
        daemon.watches.pause(paused);
        daemon.users.pause(paused);
        if paused {
            tracing::warn!("paused since before the start: superhue ctl resume");
        }
        daemon.follow(settings);
        Ok(daemon)
    }

    /// Returns the live account, for code in this process.
    #[must_use]
    pub fn account(&self) -> AccountHandle {
        self.handle.clone()
    }

    /// Serves until one of the signals of `signals` comes. Only `SIGHUP` does not end it, but makes it read the configuration again.
    ///
    /// # Errors
    /// If it cannot wait any more (`poll(2)`).
    pub fn run(&mut self, signals: &OwnedFd) -> Result<(), DaemonError> {
        self.step();
        self.notifier.ready(&self.status_line());
        loop {
            self.wait(signals)?;
            match take_signal(signals) {
                Some(RELOAD) => {
                    let _ = self.reload();
                }
                Some(signal) => {
                    tracing::info!(signal, "ending");
                    self.notifier.stopping();
                    self.watches.end(FAREWELL);
                    return Ok(());
                }
                None => {}
            }
            self.step();
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Sleeps until there is something to do.
    fn wait(&self, signals: &OwnedFd) -> Result<(), DaemonError> {
        let now = self.now();
        let takes_events = now >= self.roster.takes_events_at();
        let tree = self.roster.descriptor();
        let events_at = (!takes_events && tree.is_some()).then(|| self.roster.takes_events_at());
        let due = [
            self.roster.due(now),
            self.watches.due(),
            events_at,
            // With the next list of processes, if there is one soon.
            Some(self.next_tending + TENDED_WITHIN),
            self.notifier.due(),
            self.loading.as_ref().map(|_| now + LOADED_EVERY),
            self.server.as_ref().and_then(Server::due),
            self.endpoint.as_ref().and_then(Endpoint::due),
            self.users.due(),
            Some(now + LONGEST_SLEEP),
        ];
        let due = due.into_iter().flatten().min().unwrap_or(now);
        let mut descriptors = vec![
            PollFd::new(signals, PollFlags::IN),
            PollFd::new(&self.users, PollFlags::IN),
        ];
        if let Some(tree) = tree.filter(|_| takes_events) {
            descriptors.push(PollFd::from_borrowed_fd(tree, PollFlags::IN));
        }
        if let Some(server) = &self.server {
            descriptors.push(PollFd::new(server, PollFlags::IN));
        }
        let metrics = self.endpoint.as_ref().and_then(|it| it.descriptor(now));
        if let Some(metrics) = metrics {
            descriptors.push(PollFd::from_borrowed_fd(metrics, PollFlags::IN));
        }
        if let Some(answers) = self.roster.answers() {
            descriptors.push(PollFd::from_borrowed_fd(answers, PollFlags::IN));
        }
        if let Some(kubelet) = self.roster.kubelet() {
            descriptors.push(PollFd::new(kubelet, PollFlags::IN));
        }
        // Rounded up: a moment too early would make the loop spin.
        let left = due.saturating_sub(now) + Duration::from_micros(10);
        let left = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut descriptors, Some(&left)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(io("wait")(errno)),
        }
    }

    /// Does the work that is due.
    fn step(&mut self) {
        let at = self.now();
        if at >= self.roster.takes_events_at() {
            self.roster.take_events(at);
        }
        if let Some(result) = self.loaded_within(Duration::ZERO) {
            let _ = self.apply(result);
        }
        self.roster.take_pods(at);
        self.roster.step(at);
        if let Some(members) = self.roster.changes() {
            self.watches.feed(members, at);
        }
        if self.watches.due().is_some_and(|due| at >= due) {
            self.watches.tend(at);
        }
        if at >= self.next_tending {
            self.next_tending = at + TENDED_EVERY;
            self.watches.tend(at);
            self.pages.sums.bury(&self.watches.take_ended());
            let every = match at.saturating_sub(self.asked) < NOBODY_ASKS {
                true => TENDED_EVERY,
                false => ACCOUNT_EVERY,
            };
            if at.saturating_sub(self.published) >= every || self.told.is_zero() {
                self.published = at;
                self.publish();
            }
        }
        if at >= self.next_trim {
            self.next_trim = at + TRIM_INTERVAL;
            heap::trim();
            image::unmap_code();
        }
        // The server is taken out meanwhile, since answering needs all of `self`.
        if let Some(mut server) = self.server.take() {
            server.step(at, self);
            self.server = Some(server);
        }
        self.users.step(at);
        if let Some(mut endpoint) = self.endpoint.take() {
            endpoint.step(at, &mut |format| self.metrics(format));
            self.endpoint = Some(endpoint);
        }
        self.notifier.alive(self.begun);
    }

    /// Puts settings into force.
    fn follow(&mut self, settings: Settings) {
        tracing::info!(
            rules = settings.rules.len(),
            files = settings.files.len(),
            "rules in force"
        );
        self.rules = settings.rules.into();
        self.max_overhead = settings.max_overhead;
        self.config.files = settings.files;
        self.loaded = SystemTime::now();
        self.metrics_services = settings.metrics_services;
        let at = self.now();
        if let Some(endpoint) = &mut self.endpoint {
            endpoint.follow(settings.metrics, at);
        }
        self.users.follow(settings.users, self.held);
        self.holds.follow(&self.rules);
        self.trials.follow(&self.rules);
        self.watches.follow(self.rules.clone(), self.max_overhead);
        self.watches.hold(self.holds.names());
        self.roster.ask_kubelet(settings.kubelet.as_ref());
        self.roster.follow(self.rules.clone(), self.max_overhead);
    }

    /// Reads the configuration again; if it is refused, the rules in force stay. The lookup of users in a directory may take long, so another
    /// thread does it, and the loop waits for it only a moment.
    fn reload(&mut self) -> Result<String, String> {
        self.notifier.reloading();
        let mut patience = LOADING;
        if self.loading.is_some() {
            // The files may have changed since they were read.
            self.loads_again = true;
            // A request before this one has waited already; many of them must not stop the loop.
            patience = Duration::ZERO;
        } else if let Err(text) = self.begin_loading() {
            return self.apply(Err(text));
        }
        match self.loaded_within(patience) {
            Some(result) => self.apply(result),
            None => Err(
                "users and groups are still being looked up: the rules before stay in force, and the new ones follow once the directory has answered"
                    .to_owned(),
            ),
        }
    }

    fn begin_loading(&mut self) -> Result<(), String> {
        let folder = self.options.folder.clone();
        let (tell, told) = mpsc::sync_channel(1);
        let begin = std::thread::Builder::new().name("superhue-load".to_owned());
        let begun = begin.spawn(move || {
            // The daemon may have ended meanwhile.
            let _ = tell.send(load(&folder));
        });
        begun.map_err(|error| format!("cannot start a thread: {error}"))?;
        self.loading = Some(told);
        Ok(())
    }

    /// Returns the configuration that is being read; waits for it for at most `time`.
    fn loaded_within(&mut self, time: Duration) -> Option<Result<Settings, String>> {
        let result = match self.loading.as_ref()?.recv_timeout(time) {
            Ok(result) => result.map_err(|problems| lines(&problems)),
            Err(RecvTimeoutError::Timeout) => return None,
            Err(RecvTimeoutError::Disconnected) => {
                Err("the thread that reads the configuration has ended: see the log".to_owned())
            }
        };
        self.loading = None;
        if std::mem::take(&mut self.loads_again) {
            return match self.begin_loading() {
                Ok(()) => self.loaded_within(time),
                Err(text) => Some(Err(text)),
            };
        }
        Some(result)
    }

    /// Puts a configuration into force, unless it was refused.
    fn apply(&mut self, result: Result<Settings, String>) -> Result<String, String> {
        let result = result.and_then(|settings| {
            let needs = needed(&settings, &self.options.roots);
            // A restart does not bring back a capability that was never there.
            match missing(needs.intersection(bounding()), self.held) {
                None => Ok(settings),
                Some(names) => Err(format!(
                    "these rules need {names}, which was given up at the start: restart the daemon \
                         (systemctl restart superhue)"
                )),
            }
        });
        let result = match result {
            Ok(settings) => {
                note_missing(needed(&settings, &self.options.roots), self.held);
                let count = settings.rules.len() as u64;
                self.follow(settings);
                self.config.reloads += 1;
                self.config.error = None;
                let metrics = self.endpoint.as_ref().and_then(|it| it.account().error);
                let metrics = metrics.map(|text| format!("; but {text} (tried again)"));
                let users = self.users.account().error;
                let users = users.map(|text| format!("; but {text}"));
                Ok(format!(
                    "read anew: {} {} in force{}{}",
                    counted(count, "rule"),
                    if count == 1 { "is" } else { "are" },
                    metrics.unwrap_or_default(),
                    users.unwrap_or_default()
                ))
            }
            Err(text) => {
                for line in text.lines() {
                    tracing::error!(
                        problem = line,
                        "configuration refused, the rules before it stay"
                    );
                }
                self.config.refused += 1;
                self.config.error = Some(text.clone());
                Err(format!(
                    "refused, the rules before it stay in force:\n{text}"
                ))
            }
        };
        self.outdate();
        self.notifier.ready(&self.status_line());
        result
    }

    fn pause(&mut self, paused: bool) -> Result<String, String> {
        let done = self.pause_file.set(paused);
        done.map_err(|error| format!("{error}; nothing was changed"))?;
        self.watches.pause(paused);
        self.users.pause(paused);
        self.outdate();
        let text = match paused {
            true => {
                "paused: takes no action, also after a restart of the daemon, until a reboot or superhue ctl resume"
            }
            false => "resumed",
        };
        tracing::info!(paused, "told by the control socket");
        self.notifier.status(&self.status_line());
        Ok(text.to_owned())
    }

    /// Makes the account and the metrics outdated: the next request gets new ones.
    fn outdate(&mut self) {
        (self.next_tending, self.told) = (Duration::ZERO, Duration::ZERO);
        self.pages.outdate();
    }

    fn status_line(&self) -> String {
        let is_refused = self.config.error.is_some();
        status_line(
            self.rules.len() as u64,
            self.watches.is_paused(),
            is_refused,
        )
    }

    fn publish(&mut self) {
        self.told = self.now();
        let usage = own_usage();
        let resident = resident_now(&self.options.roots, std::process::id()).ok();
        let (requests, refused) = self.server.as_ref().map_or((0, 0), Server::served);
        let workers = self.watches.workers();
        let readers = self.roster.readers().cpu_time() + self.reader.cpu_time();
        let others = readers + cpu_time_of_fork_server();
        let before = self.handle.latest();
        // The endpoint is taken out while it serves a client.
        let metrics = self.endpoint.as_ref().map(Endpoint::account);
        let metrics = metrics.unwrap_or_else(|| before.metrics.clone());
        let mut rules = self.watches.account();
        for rule in &mut rules {
            rule.trial = self.trials.of(&rule.name).cloned();
        }
        let account = DaemonAccount {
            schema: SCHEMA.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: self.now().as_secs_f64(),
            paused: self.watches.is_paused(),
            config: self.config.clone(),
            discovery: self.roster.account(self.now()),
            own: OwnAccount {
                cpu_seconds: (usage.cpu() + others).as_secs_f64() + workers.cpu_seconds,
                rss_bytes: resident
                    .map(|resident| PageCount(resident.total.0).bytes() + workers.memory_bytes),
                max_overhead: self.max_overhead,
                // The server is taken out while it answers a request.
                requests: requests.max(before.own.requests),
                requests_refused: refused.max(before.own.requests_refused),
            },
            metrics,
            users: self.users.account(),
            workers,
            rules_total: self.rules.len() as u64,
            rules,
            holds: self.holds.account(),
        };
        self.handle.publish(Arc::new(account));
    }
}

/// Returns the permissions of the control socket: for root, and for the group `superhue` if there is one.
fn access() -> Access {
    let group = group_number(GROUP).ok().flatten();
    if group.is_none() {
        tracing::info!("there is no group `{GROUP}`: only root may use superhue ctl");
    }
    Access {
        packets: false,
        mode: if group.is_some() { 0o660 } else { 0o600 },
        // Only root can give the socket to the group; another user keeps it.
        group: group.filter(|_| rustix::process::geteuid().is_root()),
    }
}

fn note_missing(needs: CapabilitySet, held: CapabilitySet) {
    if let Some(names) = missing(needs, held) {
        tracing::warn!(
            missing = names,
            "some of what the rules ask for will not be possible"
        );
    }
}

/// Returns the capabilities that a restart could bring back.
fn bounding() -> CapabilitySet {
    let all = CapabilitySet::all().iter();
    let kept =
        all.filter(|&one| rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false));
    let kept = kept.fold(CapabilitySet::empty(), |all, one| all | one);
    match capabilities(None) {
        Ok(_) if rustix::process::geteuid().is_root() => kept,
        // An ordinary user has none to give up.
        _ => CapabilitySet::empty(),
    }
}

fn io(what: &'static str) -> impl Fn(Errno) -> DaemonError {
    move |errno| DaemonError::Io { what, errno }
}

#[cfg(test)]
mod tests;
