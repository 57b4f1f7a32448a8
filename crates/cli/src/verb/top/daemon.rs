//! Accounts of the daemon, as rates.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue::ceiling::apart;
use superhue::cpu_time;
use superhue::live::WatchAccount;
use superhue_daemon::account::DaemonAccount;
use superhue_daemon::ctl::{Answer, AskError, Request, ask};

use crate::top_args::TopArgs;

/// Share of superhue's own CPU limit that requests to the daemon may take.
const PART: f64 = 0.15;
/// Wait before the next attempt if no daemon listens, or the caller may not use its socket.
const AGAIN: Duration = Duration::from_secs(5);

/// State of the requests to the daemon.
#[derive(Debug, Clone, Default)]
pub enum DaemonState {
    /// No answer yet.
    #[default]
    NotYet,
    /// There is no answer; the reason.
    Absent(String),
    /// The last answer.
    Here(Box<DaemonSample>),
}

impl DaemonState {
    /// The answer, if there is one.
    #[must_use]
    pub fn answered(&self) -> Option<&DaemonSample> {
        match self {
            Self::Here(answered) => Some(answered),
            _ => None,
        }
    }
}

/// An answer, and the rates since the one before.
#[derive(Debug, Clone, Default)]
pub struct DaemonSample {
    /// The account.
    pub account: Arc<DaemonAccount>,
    /// Rates by the name of the rule; without rules that have no two different accounts.
    pub rules: BTreeMap<String, Rate>,
    /// By service.
    pub services: BTreeMap<String, Rate>,
    /// By number and start of the process.
    pub processes: BTreeMap<(u32, u64), Rate>,
    /// CPU time of the daemon as a share of one CPU, between the last two answers.
    pub cpu_share: Option<f64>,
}

/// Actions per second.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Rate {
    /// Collapses.
    pub collapses: f64,
    /// Splits; `None` if they are not counted separately.
    pub splits: Option<f64>,
    /// Seconds that processes were stalled.
    pub stalled: f64,
}

impl Rate {
    fn add(&mut self, other: Self) {
        self.collapses += other.collapses;
        self.stalled += other.stalled;
        self.splits = self.splits.zip(other.splits).map(|(a, b)| a + b);
    }
}

impl DaemonSample {
    /// A new answer, after `before`.
    #[must_use]
    pub fn after(before: Option<&Self>, account: DaemonAccount) -> Self {
        let mut now = Self::default();
        // A restarted daemon counts from 0.
        let before = before.filter(|before| {
            before.account.pid == account.pid
                && before.account.uptime_seconds <= account.uptime_seconds
        });
        if let Some(before) = before {
            now.compare(before, &account);
        }
        now.account = Arc::new(account);
        now
    }

    fn compare(&mut self, before: &Self, account: &DaemonAccount) {
        let seconds = account.uptime_seconds - before.account.uptime_seconds;
        let cpu = account.own.cpu_seconds - before.account.own.cpu_seconds;
        self.cpu_share = (seconds > 0.0 && cpu >= 0.0)
            .then(|| cpu / seconds)
            .or(before.cpu_share);
        for rule in &account.rules {
            let then = before.account.rules.iter().find(|it| it.name == rule.name);
            let then = then.and_then(|it| it.watch.as_deref());
            let (Some(watch), Some(then)) = (&rule.watch, then) else {
                continue;
            };
            let seconds = watch.at_seconds - then.at_seconds;
            if seconds == 0.0 {
                // No newer account: the old rates stay.
                self.keep(before, &rule.name, watch);
            } else if seconds > 0.0 {
                self.compare_watch(then, watch, &rule.name, seconds);
            }
        }
    }

    fn keep(&mut self, before: &Self, rule: &str, watch: &WatchAccount) {
        if let Some(rate) = before.rules.get(rule) {
            self.rules.insert(rule.to_owned(), *rate);
        }
        for label in watch.services.keys() {
            if let Some(rate) = before.services.get(label) {
                self.services.insert(label.clone(), *rate);
            }
        }
        for process in &watch.processes {
            let key = (process.pid, process.start_ticks);
            if let Some(rate) = before.processes.get(&key) {
                self.processes.insert(key, *rate);
            }
        }
    }

    fn compare_watch(&mut self, then: &WatchAccount, now: &WatchAccount, rule: &str, seconds: f64) {
        let rule_rate = rate(
            (then.collapses.done, now.collapses.done),
            Some((then.splits.done, now.splits.done)),
            (stalled(then), stalled(now)),
            seconds,
        );
        if let Some(rate) = rule_rate {
            self.rules.insert(rule.to_owned(), rate);
        }
        for (label, service) in &now.services {
            let Some(then) = then.services.get(label) else {
                continue;
            };
            let (then, now) = (&then.actions, &service.actions);
            let found = rate(
                (then.collapses_done, now.collapses_done),
                Some((then.splits_done, now.splits_done)),
                (then.collapsing_seconds, now.collapsing_seconds),
                seconds,
            );
            // Several rules may apply to one service.
            if let Some(found) = found {
                let sum = self.services.entry(label.clone()).or_insert(Rate {
                    splits: Some(0.0),
                    ..Rate::default()
                });
                sum.add(found);
            }
        }
        let before: BTreeMap<(u32, u64), _> = (then.processes.iter())
            .map(|it| ((it.pid, it.start_ticks), it))
            .collect();
        for process in &now.processes {
            let key = (process.pid, process.start_ticks);
            let Some(then) = before.get(&key) else {
                continue;
            };
            let found = rate(
                (then.collapses_done, process.collapses_done),
                None,
                (then.collapsing_seconds, process.collapsing_seconds),
                seconds,
            );
            if let Some(found) = found {
                self.processes.insert(key, found);
            }
        }
    }
}

/// Returns the seconds for which collapses and splits stalled programs.
fn stalled(watch: &WatchAccount) -> f64 {
    watch.stalls.collapsing_seconds
}

/// Returns `None` if a counter has gone back: its watch was restarted.
fn rate(
    collapses: (u64, u64),
    splits: Option<(u64, u64)>,
    stalled: (f64, f64),
    seconds: f64,
) -> Option<Rate> {
    #[allow(clippy::cast_precision_loss, reason = "counts of a moment")]
    let of = |(then, now): (u64, u64)| now.checked_sub(then).map(|n| n as f64 / seconds);
    let splits = match splits {
        Some(splits) => Some(of(splits)?),
        None => None,
    };
    (stalled.1 >= stalled.0).then_some(())?;
    Some(Rate {
        collapses: of(collapses)?,
        splits,
        stalled: (stalled.1 - stalled.0) / seconds,
    })
}

/// Sends one request to the daemon.
#[must_use]
pub fn ask_once(socket: &std::path::Path, before: Option<&DaemonSample>) -> DaemonState {
    match ask(socket, Request::Status) {
        Ok(Answer::Status { status }) => {
            DaemonState::Here(Box::new(DaemonSample::after(before, *status)))
        }
        Ok(Answer::Refused { text }) => DaemonState::Absent(format!("the daemon refuses: {text}")),
        Ok(_) => DaemonState::Absent("the daemon answered something else".to_owned()),
        Err(AskError::NoDaemon(socket)) => {
            DaemonState::Absent(format!("none listens at {}", socket.display()))
        }
        Err(AskError::Denied(_)) => {
            DaemonState::Absent("you may not ask it: root and the group superhue may".to_owned())
        }
        Err(error) => DaemonState::Absent(error.to_string()),
    }
}

/// Requests accounts repeatedly, in a thread of its own, since a daemon may be slow.
pub struct DaemonPoller(Arc<(Mutex<SharedState>, Condvar)>);

#[derive(Default)]
struct SharedState {
    latest: Arc<DaemonState>,
    to_end: bool,
}

fn locked(shared: &Mutex<SharedState>) -> MutexGuard<'_, SharedState> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl DaemonPoller {
    /// Starts the thread.
    #[must_use]
    pub fn start(args: &TopArgs) -> Self {
        let shared: Arc<(Mutex<SharedState>, Condvar)> = Arc::default();
        let theirs = Arc::clone(&shared);
        let socket = args.socket.clone();
        let (interval, share) = (args.interval, args.max_overhead * PART);
        let started = std::thread::Builder::new()
            .name("superhue-ask".to_owned())
            .spawn(move || keep_asking(&theirs, &socket, interval, share));
        if let Err(error) = started {
            let text = format!("no thread to ask from: {error}");
            locked(&shared.0).latest = Arc::new(DaemonState::Absent(text));
        }
        Self(shared)
    }

    /// Returns the last answer.
    #[must_use]
    pub fn latest(&self) -> Arc<DaemonState> {
        Arc::clone(&locked(&self.0.0).latest)
    }
}

impl Drop for DaemonPoller {
    fn drop(&mut self) {
        // Does not join the thread: it may be waiting for an answer.
        locked(&self.0.0).to_end = true;
        self.0.1.notify_all();
    }
}

fn keep_asking(
    shared: &(Mutex<SharedState>, Condvar),
    socket: &Path,
    interval: Duration,
    share: f64,
) {
    let mut latest: Arc<DaemonState> = Arc::default();
    loop {
        let begun = cpu_time();
        latest = Arc::new(ask_once(socket, latest.answered()));
        let cost = cpu_time().saturating_sub(begun);
        let least = match *latest {
            DaemonState::Here(_) => interval,
            _ => interval.max(AGAIN),
        };
        let mut state = locked(&shared.0);
        state.latest = Arc::clone(&latest);
        let pause = least.max(apart(cost, share));
        let waited = (shared.1).wait_timeout_while(state, pause, |state| !state.to_end);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if state.to_end {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use superhue::live::{ProcessAccount, ServiceAccount};
    use superhue_daemon::account::RuleAccount;

    use super::*;

    fn account(uptime: f64, at: f64, done: u64) -> DaemonAccount {
        let mut watch = WatchAccount {
            at_seconds: at,
            ..WatchAccount::default()
        };
        watch.collapses.done = done;
        #[allow(clippy::cast_precision_loss, reason = "a small number")]
        let seconds = done as f64 / 1000.0;
        watch.stalls.collapsing_seconds = seconds;
        let mut service = ServiceAccount::default();
        service.actions.collapses_done = done;
        service.actions.collapsing_seconds = seconds;
        watch.services.insert("redis.service".to_owned(), service);
        watch.processes.push(ProcessAccount {
            pid: 7,
            start_ticks: 70,
            name: "redis".to_owned(),
            service: "redis.service".to_owned(),
            memory: superhue::live::LiveMemory::default(),
            hot_set_bytes: None,
            collapses_done: done,
            collapsing_seconds: seconds,
        });
        let mut account = DaemonAccount {
            pid: 1,
            uptime_seconds: uptime,
            rules: vec![RuleAccount {
                name: "redis".to_owned(),
                watch: Some(Arc::new(watch)),
                ..RuleAccount::default()
            }],
            ..DaemonAccount::default()
        };
        account.own.cpu_seconds = uptime / 100.0;
        account
    }

    #[test]
    fn two_answers_make_a_rate() {
        let first = DaemonSample::after(None, account(10.0, 9.0, 100));
        assert!(first.rules.is_empty() && first.services.is_empty());
        assert_eq!(first.cpu_share, None);
        let second = DaemonSample::after(Some(&first), account(12.0, 11.0, 120));
        let expected = |splits| Rate {
            collapses: 10.0,
            splits,
            stalled: 0.01,
        };
        let near = |found: &Rate, splits| {
            let expected: Rate = expected(splits);
            assert_eq!(
                (found.collapses, found.splits),
                (expected.collapses, splits)
            );
            assert!((found.stalled - expected.stalled).abs() < 1e-9);
        };
        near(&second.rules["redis"], Some(0.0));
        near(&second.services["redis.service"], Some(0.0));
        near(&second.processes[&(7, 70)], None);
        assert!((second.cpu_share.unwrap() - 0.01).abs() < 1e-9);
        // The watch has no newer account: the rates stay.
        let third = DaemonSample::after(Some(&second), account(12.5, 11.0, 120));
        near(&third.services["redis.service"], Some(0.0));
        near(&third.processes[&(7, 70)], None);
    }

    #[test]
    fn what_began_anew_has_no_rate() {
        let first = DaemonSample::after(None, account(10.0, 9.0, 100));
        let restarted = DaemonSample::after(Some(&first), account(1.0, 0.5, 3));
        assert!(restarted.rules.is_empty() && restarted.cpu_share.is_none());
        // The watch alone was restarted: its time has gone back, or its counters have.
        for (at, done) in [(1.0, 3), (10.0, 3)] {
            let again = DaemonSample::after(Some(&first), account(11.0, at, done));
            assert!(again.rules.is_empty(), "{at}");
            assert!(
                again.services.is_empty() && again.processes.is_empty(),
                "{at}"
            );
        }
    }
}
