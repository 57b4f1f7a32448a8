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

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use superhue_model::{PageCount, counted};
use superhue_procfs::Roots;
use superhue_procfs::process::resident_now;
use superhue_procfs::system::ThpCounters;
use superhue_procfs::system::thp::folio_bytes;
use superhue_serve::{Access, ListenError, Listener, drop_privileges};
use superhue_state::StateError;
use superhue_sys::process::{own_usage, raise_descriptor_limit};
use superhue_sys::signal::take_signal;
use superhue_sys::user::group_number;
use superhue_sys::{heap, image};

use crate::account::{
    AccountHandle, ConfigAccount, DaemonAccount, OwnAccount, RuleAccount, SCHEMA, TrialAccount,
};
use crate::beside::{PauseFile, TrialResults};
use crate::capabilities::missing;
use crate::clients::Requester;
use crate::config::{Problem, Settings};
use crate::ctl::{
    Answer, Answers, HeldRule, LEASE, LONGEST_ANSWER, PassedRule, Request, RuleSummary, Server, Why,
};
use crate::holds::Holds;
use crate::load::{load, load_at_start};
use crate::metrics::{Endpoint, Format, MetricsInputs, Pages};
use crate::notify::Notifier;
use crate::privileges::needed;
use crate::roster::{Facts, Roster};
use crate::rules::{GroupFacts, Rule, mismatch};
use crate::users::Users;
use crate::watches::Watches;
use crate::workers::{TRIM_INTERVAL, cpu_time_of_fork_server, read_one};

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

/// Longest wait for watches to end.
const FAREWELL: Duration = Duration::from_secs(3);

/// Rules that `why` lists before the one that holds.
const PASSED_LISTED: usize = 100;

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

    /// Serves until one of the signals of `signals` comes. Only `SIGHUP` does not end it, but has it read the configuration anew.
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

    /// Reads the configuration anew; if it is refused, the rules in force stay.
    fn reload(&mut self) -> Result<String, String> {
        self.notifier.reloading();
        let result = load(&self.options.folder)
            .map_err(|problems| lines(&problems))
            .and_then(|settings| {
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
        let others = self.roster.readers().cpu_time() + cpu_time_of_fork_server();
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
                cpu_seconds: (usage.user + usage.system + others).as_secs_f64()
                    + workers.cpu_seconds,
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

    /// Holds a rule for a client, or extends its hold.
    fn hold(&mut self, from: Requester, name: &str) -> Answer {
        let processes = |name: &str| self.watches.of(name).0;
        let rule = match self.holds.take(from, name, &self.rules, processes) {
            Ok(rule) => rule,
            Err(text) => return Answer::Refused { text },
        };
        self.watches.hold(self.holds.names());
        let processes = self.watches.processes(name);
        Answer::Held(HeldRule {
            rule: RuleSummary::of(&rule, Some(self.watches.of(name).0)),
            policy: rule.placement.unwrap_or_default(),
            processes,
            lease_seconds: LEASE.as_secs(),
            paused: self.watches.is_paused(),
        })
    }

    /// Keeps the result of a trial of the rule that a client holds.
    fn trial_ended(
        &mut self,
        from: Requester,
        name: &str,
        trial: TrialAccount,
    ) -> Result<String, String> {
        let rule = self.holds.held_by(from.client, name)?;
        tracing::info!(rule = name, conclusion = trial.conclusion.name(), "tried");
        let kept = self.trials.keep(&rule, trial);
        self.outdate();
        kept?;
        Ok(format!("the result of the trial is kept with rule {name}"))
    }

    fn status(&mut self) -> Answer {
        self.asked = self.now();
        if self.now().saturating_sub(self.told) >= ACCOUNT_AT_MOST {
            self.publish();
        }
        let mut status = DaemonAccount::clone(&self.handle.latest());
        bound(&mut status.rules);
        let status = Box::new(status);
        Answer::Status { status }
    }

    /// Returns the metrics, at most a second old.
    fn metrics(&mut self, format: Format) -> Arc<str> {
        let at = self.now();
        self.asked = at;
        if self.pages.is_old(at) {
            self.publish();
            let account = self.handle.latest();
            let kernel = ThpCounters::read(&self.options.roots).ok();
            let folios = folio_bytes(&self.options.roots);
            let ages = self.watches.ages();
            let beside = MetricsInputs {
                started: self.started,
                loaded: self.loaded,
                ages: &ages,
                kernel: kernel.as_ref(),
                folios: &folios,
            };
            self.pages.sums.bury(&self.watches.take_ended());
            let seen = (&self.watches.seen()[..], self.metrics_services);
            self.pages.make(at, &account, &beside, seen);
        }
        self.pages.text(format)
    }

    fn why(&self, pid: u32) -> Answer {
        let found = match read_one(&self.options.roots, pid) {
            Ok(found) if found.user.is_some() => found,
            Ok(_) => {
                let text = format!("there is no process {pid} (or it may not be looked at)");
                return Answer::Refused { text };
            }
            Err(text) => return Answer::Refused { text },
        };
        let mut cgroup = found.cgroup.clone();
        // In a container the kernel gives the path relative to our own cgroup (`cgroup_namespaces(7)`), which leads nowhere here.
        if cgroup.as_ref().is_some_and(|path| path.starts_with("/..")) {
            cgroup = self.roster.find(pid).or(cgroup);
        }
        let group = GroupFacts::new(cgroup.as_deref().unwrap_or("/")).with_pods(self.roster.pods());
        let mut facts = Facts::of(&found);
        let mut passed = Vec::new();
        let mut holding = None;
        for rule in self.rules.iter() {
            match mismatch(rule, &group, &mut facts) {
                None => {
                    holding = Some(rule);
                    break;
                }
                Some(because) => {
                    passed.push(PassedRule {
                        rule: rule.name.to_string(),
                        because: because.describe().to_owned(),
                    });
                    if because.is_undecided() {
                        break;
                    }
                }
            }
        }
        let unlisted = passed.len().saturating_sub(PASSED_LISTED);
        let account = holding.and_then(|rule| self.watches.of(&rule.name).1);
        let watched = holding.is_some_and(|rule| self.watches.has(&rule.name, pid));
        let nobody = "no rule is about it: it is left alone".to_owned();
        Answer::Why(Why {
            pid,
            cgroup,
            rule: holding.map(|rule| rule.name.to_string()),
            placement: holding.map_or(nobody, Rule::placed),
            watched,
            trouble: account.and_then(|account| account.trouble.clone()),
            passed: passed.split_off(unlisted),
            passed_unlisted: unlisted as u64,
        })
    }
}

impl Answers for Daemon {
    fn answer(&mut self, from: Requester, request: Request) -> Answer {
        let done = |result| match result {
            Ok(text) => Answer::Done { text },
            Err(text) => Answer::Refused { text },
        };
        match request {
            Request::Status => self.status(),
            Request::Rules => Answer::Rules {
                rules: (self.rules.iter())
                    .map(|rule| RuleSummary::of(rule, Some(self.watches.of(&rule.name).0)))
                    .collect(),
            },
            Request::Why { pid } => self.why(pid),
            Request::Metrics { format } => match self.metrics(format) {
                // The text is longer as JSON.
                text if text.len() > LONGEST_ANSWER / 2 => Answer::Refused {
                    text: "the metrics are too long for this socket: lower metrics-services, or have them served \
                           (metrics = \"127.0.0.1:9119\")"
                        .to_owned(),
                },
                text => Answer::Metrics {
                    text: text.to_string(),
                },
            },
            Request::Pause => done(self.pause(true)),
            Request::Resume => done(self.pause(false)),
            Request::Reload => done(self.reload()),
            Request::Hold { rule } => self.hold(from, &rule),
            Request::TrialEnded { rule, trial } => done(self.trial_ended(from, &rule, trial)),
        }
    }

    fn ended(&mut self, client: u64) {
        if self.holds.end(client) {
            self.watches.hold(self.holds.names());
        }
    }
}

/// Keeps the account of rules within an answer: drops single processes first, then services.
fn bound(rules: &mut [RuleAccount]) {
    // Bytes of one entry as JSON: rough upper bounds.
    const PROCESS: usize = 600;
    const SERVICE: usize = 1600;
    let count = |rules: &[RuleAccount], of: fn(&superhue::live::WatchAccount) -> usize| -> usize {
        let watches = rules.iter().filter_map(|rule| rule.watch.as_deref());
        watches.map(of).sum()
    };
    let strip = |rules: &mut [RuleAccount], services: bool| {
        for rule in rules {
            if services {
                rule.converged_seconds.clear();
            }
            if let Some(watch) = &mut rule.watch {
                let watch = Arc::make_mut(watch);
                watch.processes.clear();
                if services {
                    watch.services.clear();
                }
            }
        }
    };
    let half = LONGEST_ANSWER / 2;
    let services = count(rules, |watch| watch.services.len()) * SERVICE;
    if services + count(rules, |watch| watch.processes.len()) * PROCESS > half {
        strip(rules, services > half);
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
mod tests {
    use super::*;

    #[test]
    fn the_service_manager_reads_how_many_rules_there_are() {
        assert_eq!(status_line(0, false, false), "0 rules");
        assert_eq!(status_line(1, false, false), "1 rule");
        assert_eq!(
            status_line(2, true, true),
            "paused, 2 rules, the last configuration was refused"
        );
    }

    #[test]
    fn an_answer_is_bounded_however_many_there_are() {
        use superhue::live::{PROCESSES_LISTED, ProcessAccount, WatchAccount};
        let process = ProcessAccount {
            pid: 1,
            start_ticks: 1,
            name: "x".repeat(15),
            service: "y".repeat(200),
            memory: Default::default(),
            hot_set_bytes: None,
            collapses_done: 0,
            collapsing_seconds: 0.0,
        };
        let watch = Arc::new(WatchAccount {
            processes: vec![process; PROCESSES_LISTED],
            services: (0..1000)
                .map(|n| (format!("{n:0>200}"), Default::default()))
                .collect(),
            ..WatchAccount::default()
        });
        let names = watch.services.keys().cloned();
        let rule = RuleAccount {
            converged_seconds: names.map(|name| (name, 1.0 / 3.0)).collect(),
            watch: Some(watch),
            ..RuleAccount::default()
        };
        for count in [1, 20, 256] {
            let mut rules = vec![rule.clone(); count];
            bound(&mut rules);
            let text = serde_json::to_string(&rules).unwrap();
            assert!(text.len() < LONGEST_ANSWER, "{count}: {}", text.len());
            let left = rules[0].watch.as_ref().unwrap();
            assert_eq!(left.processes.is_empty(), count > 1, "{count}");
        }
    }
}
