//! Lines that `superhue attach` prints while it runs: the processes it found, and later events.
//!
//! Each kind of news is printed once (the first huge page, an exhausted budget, a reason for a refusal). Processes that
//! start and end are reported together, no more often than a user can read.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use superhue::live::WatchAccount;
use superhue::model::counted;

use crate::terminal::printable;

/// Interval of the lines about processes that start and end, at first and after `MANY` of them.
const SOON: Duration = Duration::from_secs(1);
const LATER: Duration = Duration::from_secs(30);
/// Number of such lines with the short interval.
const MANY: u32 = 10;
/// Most processes that are named in a line.
const NAMED: usize = 4;
/// Most reasons that are printed in all.
const REASONS: usize = 32;

/// A process by number and start time.
type Id = (u32, u64);

/// News that were printed, and the state for the next ones.
#[derive(Debug, Default)]
pub struct News {
    has_begun: bool,
    members: BTreeMap<Id, String>,
    count: u64,
    /// True if `members` has all processes.
    is_complete: bool,
    said: BTreeSet<String>,
    /// Line about the policy.
    policy: Option<String>,
    lines: u32,
    next: Duration,
}

impl News {
    /// Returns the lines about the state at `at`, the time since the start.
    pub fn lines(&mut self, account: &WatchAccount, at: Duration) -> Vec<String> {
        let mut lines = Vec::new();
        if !std::mem::replace(&mut self.has_begun, true) {
            lines.extend(found(account));
            self.policy = policy(account);
            self.take_in(account);
        } else if at >= self.next {
            let line = self.come_and_gone(account);
            if line.is_some() {
                self.lines += 1;
                self.next = at + if self.lines < MANY { SOON } else { LATER };
            }
            lines.extend(line);
        }
        // `auto` tracks accesses once something calls for it, and says then whether that works.
        let policy = policy(account);
        if policy != self.policy {
            lines.extend(policy.clone());
            self.policy = policy;
        }
        for (what, line) in happened(account) {
            if self.said.len() < REASONS && self.said.insert(what) {
                lines.push(line);
            }
        }
        lines.into_iter().map(|line| printable(&line)).collect()
    }

    fn take_in(&mut self, account: &WatchAccount) {
        let listed = account.processes.iter();
        self.members = listed
            .map(|it| ((it.pid, it.start_ticks), it.name.clone()))
            .collect();
        self.count = account.memory.processes;
        self.is_complete = self.members.len() as u64 == self.count;
    }

    /// Returns the processes that have started or ended since the last such line.
    fn come_and_gone(&mut self, account: &WatchAccount) -> Option<String> {
        let before = std::mem::take(&mut self.members);
        let (count, was_complete) = (self.count, self.is_complete);
        self.take_in(account);
        if !was_complete || !self.is_complete {
            // The account lists only the largest processes: one that is missing has not necessarily ended.
            return (count != self.count)
                .then(|| format!("{} now, {count} before", counted(self.count, "process")));
        }
        let without = |all: &BTreeMap<Id, String>, others: &BTreeMap<Id, String>| {
            let found = all.iter().filter(|(id, _)| !others.contains_key(id));
            named(
                &found
                    .map(|((pid, _), name)| (name.clone(), *pid))
                    .collect::<Vec<_>>(),
            )
        };
        let mut parts = Vec::new();
        parts.extend(without(&self.members, &before).map(|who| format!("now watched: {who}")));
        parts.extend(without(&before, &self.members).map(|who| format!("ended: {who}")));
        if parts.is_empty() {
            return None;
        }
        Some(format!(
            "{} ({} now)",
            parts.join("; "),
            counted(self.count, "process")
        ))
    }
}

/// Formats some of the processes by name.
fn named(all: &[(String, u32)]) -> Option<String> {
    let first = all
        .iter()
        .take(NAMED)
        .map(|(name, pid)| format!("{name} ({pid})"));
    let first: Vec<String> = first.collect();
    match all.len().checked_sub(NAMED) {
        _ if all.is_empty() => None,
        Some(more) if more > 0 => Some(format!(
            "{} and {}",
            first.join(", "),
            counted(more as u64, "other")
        )),
        _ => Some(first.join(", ")),
    }
}

/// Returns the lines about the start.
fn found(account: &WatchAccount) -> Vec<String> {
    let memory = &account.memory;
    let all: Vec<(String, u32)> = account
        .processes
        .iter()
        .map(|it| (it.name.clone(), it.pid))
        .collect();
    let mut line = match (memory.processes, named(&all)) {
        (0, _) => "attached; there is no process yet".to_owned(),
        (1, Some(who)) => format!("attached to {who}"),
        (count, Some(who)) => format!("attached to {}, {who}", counted(count, "process")),
        (count, None) => format!("attached to {}", counted(count, "process")),
    };
    if memory.processes > 0 {
        line += &format!(
            ": {} resident, {} anonymous",
            memory.resident_bytes, memory.anonymous_bytes
        );
        if let Some(coverage) = memory.coverage {
            line += &format!(", {:.1} % of it huge", coverage * 100.0);
        }
    }
    let mut lines = vec![line];
    lines.extend(policy(account));
    if account.processes_denied > 0 {
        lines.push(format!(
            "left alone: {} that you may not look at (needs CAP_SYS_PTRACE)",
            counted(account.processes_denied, "process")
        ));
    }
    lines
}

/// Returns the line about the policy and its reason.
fn policy(account: &WatchAccount) -> Option<String> {
    let pages = account.pages?;
    let tracker = account.tracker.as_ref();
    let tracker = tracker.map_or_else(String::new, |it| format!(", accesses tracked by {it}"));
    let because = match account.pages_because.as_str() {
        "" => String::new(),
        because => format!(" ({because})"),
    };
    Some(format!("policy {pages}{because}{tracker}"))
}

/// Returns all events so far, each with its key.
fn happened(account: &WatchAccount) -> Vec<(String, String)> {
    let mut all = Vec::new();
    let mut add = |what: String, line: String| all.push((what, line));
    let done = account.collapses.done;
    if done > 0 {
        let at = account.at_seconds;
        add(
            "first".to_owned(),
            format!("first huge pages: {done} within {at:.1} s"),
        );
    }
    if account.splits.done > 0 {
        add(
            "split".to_owned(),
            "first huge pages were split again".to_owned(),
        );
    }
    if let Some(waiting) = account.waiting.get("budget") {
        let budget = account.budget_bytes.unwrap_or_default();
        let line = format!(
            "the budget is used up: {} of {budget} added; {} waiting for it (--budget)",
            account.charged_bytes,
            counted(*waiting, "region")
        );
        add("budget".to_owned(), line);
    }
    for (errno, count) in &account.collapses.failed {
        let line = format!(
            "refused by the kernel: {errno}, {} so far",
            counted(*count, "collapse")
        );
        add(format!("failed {errno}"), line);
    }
    for (reason, count) in &account.collapses.skipped {
        let line = format!(
            "left as it is: {} so far ({reason})",
            counted(*count, "region")
        );
        add(format!("skipped {reason}"), line);
    }
    for (reason, count) in &account.left_alone {
        add(
            format!("alone {reason}"),
            format!("left alone: {reason}: {}", counted(*count, "process")),
        );
    }
    for (name, reason) in &account.unreadable {
        add(
            format!("unreadable {name}"),
            format!("left alone: {name} ({reason})"),
        );
    }
    for (name, reason) in &account.untracked {
        add(
            format!("untracked {name}"),
            format!("accesses not tracked: {name} ({reason})"),
        );
    }
    if let Some(trouble) = &account.trouble {
        add("trouble".to_owned(), trouble.clone());
    }
    all
}

#[cfg(test)]
mod tests {
    use superhue::live::{LiveMemory, ProcessAccount};
    use superhue::model::ByteCount;

    use super::*;

    fn account(pids: &[u32]) -> WatchAccount {
        let memory = |processes| LiveMemory {
            processes,
            resident_bytes: ByteCount(30 << 20),
            anonymous_bytes: ByteCount(20 << 20),
            huge_bytes: Some(ByteCount(2 << 20)),
            held_bytes: Some(ByteCount(0)),
            coverage: Some(0.1),
        };
        let of_one = |&pid: &u32| ProcessAccount {
            pid,
            start_ticks: 1,
            name: "redis".to_owned(),
            service: String::new(),
            memory: memory(1),
            hot_set_bytes: None,
            collapses_done: 0,
            collapsing_seconds: 0.0,
        };
        WatchAccount {
            at_seconds: 0.25,
            pages: Some(superhue::Pages::Hot),
            pages_because: "the default".to_owned(),
            tracker: Some("ptwalk".to_owned()),
            memory: memory(pids.len() as u64),
            processes: pids.iter().map(of_one).collect(),
            ..WatchAccount::default()
        }
    }

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn what_was_found_is_told_at_once() {
        let mut first = account(&[1, 2]);
        first.processes_denied = 3;
        let lines = News::default().lines(&first, Duration::ZERO);
        assert_eq!(
            lines,
            [
                "attached to 2 processes, redis (1), redis (2): 30.0 MiB resident, 20.0 MiB anonymous, 10.0 % of it huge",
                "policy hot (the default), accesses tracked by ptwalk",
                "left alone: 3 processes that you may not look at (needs CAP_SYS_PTRACE)",
            ]
        );
        let lines = News::default().lines(&account(&[]), Duration::ZERO);
        assert_eq!(lines[0], "attached; there is no process yet");
    }

    #[test]
    fn a_policy_that_changes_is_told_again() {
        let mut news = News::default();
        let mut account = account(&[1]);
        account.tracker = None;
        assert_eq!(news.lines(&account, Duration::ZERO).len(), 2);
        assert_eq!(news.lines(&account, seconds(1)), Vec::<String>::new());
        account.pages_because = "accesses cannot be tracked".to_owned();
        let lines = news.lines(&account, seconds(2));
        assert_eq!(lines, ["policy hot (accesses cannot be tracked)"]);
        assert_eq!(news.lines(&account, seconds(3)), Vec::<String>::new());
    }

    #[test]
    fn who_comes_and_goes_is_told_together_and_not_too_often() {
        let mut news = News::default();
        news.lines(&account(&[1]), Duration::ZERO);
        let lines = news.lines(&account(&[1, 2, 3]), seconds(1));
        assert_eq!(
            lines,
            ["now watched: redis (2), redis (3) (3 processes now)"]
        );
        // Too soon; later both in one line.
        let soon = seconds(1) + SOON / 2;
        assert_eq!(news.lines(&account(&[1, 4]), soon), Vec::<String>::new());
        let lines = news.lines(&account(&[1, 4, 5, 6, 7, 8, 9]), seconds(3));
        assert_eq!(
            lines,
            [
                "now watched: redis (4), redis (5), redis (6), redis (7) and 2 others; \
              ended: redis (2), redis (3) (7 processes now)"
            ]
        );
        assert_eq!(
            news.lines(&account(&[1, 4, 5, 6, 7, 8, 9]), seconds(9)),
            Vec::<String>::new()
        );
        // A program that keeps starting others does not fill the screen.
        let mut told = 0;
        for n in 0..600_u32 {
            told += news.lines(&account(&[n]), seconds(10 + u64::from(n))).len();
        }
        assert!((20..40).contains(&told), "{told}");
    }

    #[test]
    fn of_many_only_the_number_is_told() {
        let mut news = News::default();
        let mut many = account(&[1, 2]);
        many.memory.processes = 300;
        news.lines(&many, Duration::ZERO);
        let mut more = account(&[7, 8]);
        more.memory.processes = 300;
        assert_eq!(news.lines(&more, seconds(5)), Vec::<String>::new());
        more.memory.processes = 310;
        assert_eq!(
            news.lines(&more, seconds(9)),
            ["310 processes now, 300 before"]
        );
    }

    #[test]
    fn each_kind_of_news_is_told_once() {
        let mut news = News::default();
        news.lines(&account(&[1]), Duration::ZERO);
        let mut now = account(&[1]);
        now.collapses.done = 5;
        now.collapses.failed.insert("ENOMEM".to_owned(), 2);
        now.waiting.insert("budget".to_owned(), 7);
        now.budget_bytes = Some(ByteCount(4 << 20));
        now.charged_bytes = ByteCount(4 << 20);
        now.left_alone.insert("evil\u{1b}[2J".to_owned(), 1);
        let lines = news.lines(&now, seconds(1));
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(lines[0], "first huge pages: 5 within 0.2 s");
        assert!(lines[1].contains("4.0 MiB of 4.0 MiB added; 7 regions waiting"));
        assert!(lines[2].contains("ENOMEM, 2 collapses"));
        assert!(!lines[3].contains('\u{1b}'), "{lines:?}");
        now.collapses.done = 50;
        assert_eq!(news.lines(&now, seconds(2)), Vec::<String>::new());
        for n in 0..1000 {
            now.left_alone.insert(format!("reason {n}"), 1);
        }
        assert!(news.lines(&now, seconds(3)).len() < REASONS);
    }
}
