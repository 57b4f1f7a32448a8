//! Accounts of several watches, added up.

use std::collections::BTreeMap;

use superhue_model::ByteCount;

use super::{
    ActionCounts, LiveStalls, OwnCost, PROCESSES_LISTED, SERVICES_LISTED, ServiceAccount,
    ServiceActions, WatchAccount,
};

/// Upper bound on reasons, and on notes, of each kind.
const REASONS: usize = 64;

impl WatchAccount {
    /// Adds another watch's account of other processes. Quantiles of the sum are not known: the larger one stands for both. Memory that
    /// receives a share of the accesses of each receives that share of all.
    pub fn add(&mut self, other: &Self) {
        self.at_seconds = self.at_seconds.max(other.at_seconds);
        if self.pages.is_none() {
            self.pages = other.pages;
            self.pages_because.clone_from(&other.pages_because);
        }
        if self.tracker.is_none() {
            self.tracker.clone_from(&other.tracker);
        }
        self.paused |= other.paused;
        if self.trouble.is_none() {
            self.trouble.clone_from(&other.trouble);
        }
        for note in &other.notes {
            if self.notes.len() < REASONS && !self.notes.contains(note) {
                self.notes.push(note.clone());
            }
        }
        self.memory.merge(&other.memory);
        self.processes_seen += other.processes_seen;
        self.processes_denied += other.processes_denied;
        add_counts(&mut self.left_alone, &other.left_alone);
        add_reasons(&mut self.unreadable, &other.unreadable);
        add_reasons(&mut self.untracked, &other.untracked);
        add_actions(&mut self.collapses, &other.collapses);
        add_actions(&mut self.splits, &other.splits);
        add_counts(&mut self.waiting, &other.waiting);
        self.growth_bytes += other.growth_bytes;
        self.charged_bytes += other.charged_bytes;
        self.budget_bytes = sum_of(self.budget_bytes, other.budget_bytes);
        add_stalls(&mut self.stalls, &other.stalls);
        add_hot(&mut self.hot_set_bytes, other.hot_set_bytes);
        match (&mut self.colors, &other.colors) {
            (Some(all), Some(one)) => {
                all.share = weighted([all.share, one.share], [all.known_bytes, one.known_bytes]);
                all.resident_bytes += one.resident_bytes;
                all.known_bytes += one.known_bytes;
                all.recolored_pages += one.recolored_pages;
            }
            (all @ None, one) => all.clone_from(one),
            (Some(_), None) => {}
        }
        self.own.add(&other.own);
        for (label, one) in &other.services {
            if let Some(all) = self.services.get_mut(label) {
                add_service(all, one);
            } else if self.services.len() < SERVICES_LISTED {
                self.services.insert(label.clone(), *one);
            }
        }
        self.processes.extend(other.processes.iter().cloned());
        (self.processes).sort_by_key(|it| std::cmp::Reverse(it.memory.resident_bytes));
        self.processes.truncate(PROCESSES_LISTED);
    }

    /// Returns the part of an account that outlives its watch: the counters of the watch as a whole, which only grow.
    #[must_use]
    pub fn past(&self) -> Self {
        Self {
            processes_seen: self.processes_seen,
            processes_denied: self.processes_denied,
            collapses: self.collapses.clone(),
            splits: self.splits.clone(),
            growth_bytes: self.growth_bytes,
            stalls: self.stalls,
            own: OwnCost {
                max_overhead: 0.0,
                ..self.own
            },
            ..Self::default()
        }
    }
}

fn sum_of(all: Option<ByteCount>, one: Option<ByteCount>) -> Option<ByteCount> {
    match (all, one) {
        (Some(all), Some(one)) => Some(all + one),
        (all, one) => all.or(one),
    }
}

fn add_counts(all: &mut BTreeMap<String, u64>, one: &BTreeMap<String, u64>) {
    for (name, count) in one {
        *all.entry(name.clone()).or_default() += count;
    }
}

/// Keeps the first reason for each name, for at most `REASONS` names.
pub(crate) fn note_reason(reasons: &mut BTreeMap<String, String>, name: String, reason: String) {
    if reasons.len() < REASONS {
        reasons.entry(name).or_insert(reason);
    }
}

fn add_reasons(all: &mut BTreeMap<String, String>, one: &BTreeMap<String, String>) {
    for (name, reason) in one {
        note_reason(all, name.clone(), reason.clone());
    }
}

fn add_actions(all: &mut ActionCounts, one: &ActionCounts) {
    all.done += one.done;
    add_counts(&mut all.failed, &one.failed);
    add_counts(&mut all.skipped, &one.skipped);
    all.vanished += one.vanished;
    all.seconds += one.seconds;
    all.p99_seconds = all.p99_seconds.max(one.p99_seconds);
    all.longest_seconds = all.longest_seconds.max(one.longest_seconds);
    if all.buckets.is_empty() {
        all.buckets.clone_from(&one.buckets);
    } else {
        for (all, one) in all.buckets.iter_mut().zip(&one.buckets) {
            all.count += one.count;
        }
    }
}

fn add_stalls(all: &mut LiveStalls, one: &LiveStalls) {
    all.collapsing_seconds += one.collapsing_seconds;
    all.tracking_seconds += one.tracking_seconds;
}

fn add_service(all: &mut ServiceAccount, one: &ServiceAccount) {
    all.memory.merge(&one.memory);
    let ServiceActions {
        collapses_done,
        collapses_failed,
        collapses_skipped,
        splits_done,
        collapsing_seconds,
        growth_bytes,
    } = one.actions;
    let actions = &mut all.actions;
    actions.collapses_done += collapses_done;
    actions.collapses_failed += collapses_failed;
    actions.collapses_skipped += collapses_skipped;
    actions.splits_done += splits_done;
    actions.collapsing_seconds += collapsing_seconds;
    actions.growth_bytes += growth_bytes;
    add_hot(&mut all.hot_set_bytes, one.hot_set_bytes);
}

fn add_hot(all: &mut Option<[ByteCount; 3]>, one: Option<[ByteCount; 3]>) {
    match (all, one) {
        (Some(all), Some(one)) => all.iter_mut().zip(one).for_each(|(all, one)| *all += one),
        (all @ None, one) => *all = one,
        (Some(_), None) => {}
    }
}

/// Returns the share of two amounts together.
#[allow(clippy::cast_precision_loss, reason = "byte counts below 2^52")]
fn weighted(shares: [Option<f64>; 2], amounts: [ByteCount; 2]) -> Option<f64> {
    let [a, b] = shares;
    let (Some(a), Some(b)) = (a, b) else {
        return a.or(b);
    };
    let [left, right] = amounts.map(|amount| amount.0 as f64);
    let all = left + right;
    (all > 0.0).then(|| (a * left + b * right) / all)
}

#[cfg(test)]
mod tests {
    use super::super::LiveMemory;
    use super::super::ProcessAccount;
    use super::*;

    fn account(pid: u32, mebibytes: u64, huge: Option<u64>) -> WatchAccount {
        let mut memory = LiveMemory::default();
        let of = |mebibytes: u64| ByteCount(mebibytes << 20);
        memory.add(of(mebibytes), of(mebibytes), huge.map(of), None);
        let mut account = WatchAccount {
            at_seconds: f64::from(pid),
            memory,
            processes_seen: 1,
            charged_bytes: of(1),
            budget_bytes: Some(of(2)),
            ..WatchAccount::default()
        };
        account.collapses.done = u64::from(pid);
        let service = ServiceAccount {
            memory,
            ..ServiceAccount::default()
        };
        account.services.insert("same".to_owned(), service);
        account.processes.push(ProcessAccount {
            pid,
            start_ticks: 1,
            name: String::new(),
            service: "same".to_owned(),
            memory,
            hot_set_bytes: None,
            collapses_done: 0,
            collapsing_seconds: 0.0,
        });
        account
    }

    #[test]
    fn what_is_known_adds_up_and_what_is_not_stays_unknown() {
        let mut all = WatchAccount::default();
        all.add(&account(1, 10, Some(4)));
        all.add(&account(2, 30, Some(6)));
        assert_eq!(all.memory.huge_bytes, Some(ByteCount(10 << 20)));
        assert_eq!((all.memory.coverage, all.memory.processes), (Some(0.25), 2));
        assert_eq!((all.collapses.done, all.processes_seen), (3, 2));
        assert_eq!(all.budget_bytes, Some(ByteCount(4 << 20)));
        assert_eq!(all.services["same"].memory.processes, 2);
        let order: Vec<u32> = all.processes.iter().map(|it| it.pid).collect();
        assert_eq!(order, [2, 1], "the largest first");
        all.add(&account(3, 1, None));
        assert_eq!((all.memory.huge_bytes, all.memory.coverage), (None, None));
        let past = all.past();
        assert_eq!((past.collapses.done, past.memory.processes), (6, 0));
        assert!(past.services.is_empty() && past.budget_bytes.is_none());
    }
}
