//! Questions about processes, by tenants in turn.
//!
//! ```text
//!   tenant? (in brief)        all, in order: microseconds each
//!   all facts?                a queue for each tenant: new processes, then those that are due again
//!                             one of each tenant in turn, as far as its part of the ceiling pays for it
//! ```
//!
//! Half of the ceiling is divided evenly among the tenants that have questions, the other half is for all of them. Each has something in advance. So
//! a crowd waits for itself, and a tenant with one new process does not wait for other tenants.
//!
//! A process that holds the reader up is left alone for a while, each time twice as long. Its tenant is too, for a much shorter time: a tenant with a
//! thousand such processes delays other tenants once a second, then once in two, and so on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use superhue_heat::Allowance;
use superhue_procfs::Roots;

use crate::account::HeldUpAccount;
use crate::avoidance::{Avoidance, LEFT_ALONE, LEFT_ALONE_AT_MOST};
use crate::workers::{ProcessAnswer, Question, Reader, ReaderOutcome};

/// CPU time that may be spent at once: by all, and by each tenant.
const ADVANCE: Duration = Duration::from_millis(500);
const OWN_ADVANCE: Duration = Duration::from_millis(20);

/// Cost of an answer, before it is known.
const FIRST_COST: Duration = Duration::from_micros(30);

/// Time for which the tenant of a process that has held the reader up waits: at first, and at most.
const TENANT_WAITS: Duration = Duration::from_secs(1);
const TENANT_WAITS_AT_MOST: Duration = Duration::from_secs(60);

/// Time between two checks whether a tenant's part pays by now.
const AGAIN: Duration = Duration::from_millis(100);

/// Maximum number of processes that are remembered as holding readers up; the oldest are forgotten first.
const MOST_AVOIDED: usize = 4096;

/// Least number of processes that are gone before their questions are dropped.
const MOST_GONE: usize = 64;

/// Questions in the message after one that was lost.
const AFTER_LOSS: usize = 4;

/// A question, and the place of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessQuery {
    pub(crate) pid: u32,
    /// The cgroup that it is in; `None` if that is part of the question.
    pub(crate) place: Option<Arc<str>>,
    /// Tenant of the process; `None` if that is the question.
    pub(crate) tenant: Option<Arc<str>>,
    pub(crate) executable: bool,
    /// True if nothing is known of it.
    pub(crate) is_new: bool,
}

/// Questions about the processes of a tenant.
#[derive(Debug)]
struct Queue {
    new: VecDeque<ProcessQuery>,
    again: VecDeque<ProcessQuery>,
    own: Allowance,
}

#[derive(Debug)]
struct AvoidedProcess {
    tenant: Option<Arc<str>>,
    avoidance: Avoidance,
}

/// All questions.
#[derive(Debug)]
pub(crate) struct QueryScheduler {
    reader: Reader,
    roots: Roots,
    share: f64,
    in_brief: VecDeque<ProcessQuery>,
    queues: BTreeMap<Arc<str>, Queue>,
    /// The tenant that had its turn last.
    last: Option<Arc<str>>,
    common: Allowance,
    /// Questions that have been sent.
    asked: Vec<ProcessQuery>,
    /// Number of questions in the next message: few after a message that was lost, since other processes in it may hold the reader up, too.
    most: usize,
    cost: Duration,
    avoided: BTreeMap<u32, AvoidedProcess>,
    /// Processes that are gone, about which questions may still wait.
    gone: BTreeSet<u32>,
    waits: BTreeMap<Arc<str>, Avoidance>,
    trouble: Option<String>,
}

impl QueryScheduler {
    pub(crate) fn new(roots: &Roots, share: f64) -> Self {
        Self {
            reader: Reader::new(roots),
            roots: roots.clone(),
            share,
            in_brief: VecDeque::new(),
            queues: BTreeMap::new(),
            last: None,
            common: Allowance::new(share / 2.0, Duration::ZERO).with_advance(ADVANCE),
            asked: Vec::new(),
            most: Reader::at_a_time(),
            cost: FIRST_COST,
            avoided: BTreeMap::new(),
            gone: BTreeSet::new(),
            waits: BTreeMap::new(),
            trouble: None,
        }
    }

    /// Forgets all questions, and sets the share of one CPU that may be spent from now on.
    pub(crate) fn begin_anew(&mut self, share: f64) {
        self.share = share;
        self.common.allow(share / 2.0);
        self.in_brief.clear();
        self.queues.clear();
        self.gone.clear();
        // Answers that are still to come have no place any more; their receiver finds that out.
    }

    pub(crate) const fn reader(&self) -> &Reader {
        &self.reader
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns true if a process is to be left alone now.
    pub(crate) fn avoids(&self, pid: u32, at: Duration) -> bool {
        (self.avoided.get(&pid)).is_some_and(|avoided| avoided.avoidance.holds(at))
    }

    /// Forgets a process that is gone, and the questions about it.
    pub(crate) fn forget(&mut self, pid: u32) {
        self.avoided.remove(&pid);
        let waiting = self.waiting();
        if waiting == 0 {
            self.gone.clear();
            return;
        }
        self.gone.insert(pid);
        // Processes that come and go faster than the reader answers would fill the queues, so these are swept once half of them may be stale.
        if self.gone.len() >= MOST_GONE.max(waiting / 2) {
            self.sweep();
        }
    }

    /// Drops questions about processes that are gone.
    fn sweep(&mut self) {
        let mut gone = std::mem::take(&mut self.gone);
        // A process may only have left its cgroup, or its number may belong to another one: the question then stands.
        gone.retain(|pid| !self.roots.of_process(*pid, "stat").exists());
        let is_there = |ask: &ProcessQuery| !gone.contains(&ask.pid);
        self.in_brief.retain(is_there);
        for queue in self.queues.values_mut() {
            queue.new.retain(is_there);
            queue.again.retain(is_there);
        }
    }

    /// Adds a question.
    pub(crate) fn ask(&mut self, ask: ProcessQuery, at: Duration) {
        // It is there, or was a moment ago.
        self.gone.remove(&ask.pid);
        let Some(tenant) = ask.tenant.clone() else {
            self.in_brief.push_back(ask);
            return;
        };
        let share = self.share;
        let queue = self.queues.entry(tenant).or_insert_with(|| Queue {
            new: VecDeque::new(),
            again: VecDeque::new(),
            own: Allowance::new(share / 2.0, at).with_advance(OWN_ADVANCE),
        });
        if ask.is_new {
            queue.new.push_back(ask);
        } else {
            queue.again.push_back(ask);
        }
    }

    /// Returns the number of questions that wait.
    pub(crate) fn waiting(&self) -> usize {
        let queues = self.queues.values();
        self.in_brief.len()
            + queues
                .map(|it| it.new.len() + it.again.len())
                .sum::<usize>()
    }

    /// Returns true if there is nothing to ask, and no answer to come.
    pub(crate) fn is_done(&self) -> bool {
        self.asked.is_empty() && self.waiting() == 0
    }

    /// Returns the time when [`Self::step`] is due, with or without an answer.
    pub(crate) fn due(&self, at: Duration) -> Option<Duration> {
        if !self.asked.is_empty() {
            return Some(at + self.reader.due_in().unwrap_or(AGAIN));
        }
        (self.waiting() > 0).then_some(at + AGAIN)
    }

    /// Takes answers, and sends the next questions. An answer of `None` means that there must be no question about the process now.
    pub(crate) fn step(&mut self, at: Duration) -> Vec<(ProcessQuery, Option<ProcessAnswer>)> {
        let mut done = Vec::new();
        if let Some((_, came)) = self.reader.take() {
            let asked = std::mem::take(&mut self.asked);
            self.take(asked, came, at, &mut done);
        }
        if self.asked.is_empty() && self.reader.is_free() {
            self.send(at);
        }
        done
    }

    fn take(
        &mut self,
        asked: Vec<ProcessQuery>,
        came: ReaderOutcome,
        at: Duration,
        done: &mut Vec<(ProcessQuery, Option<ProcessAnswer>)>,
    ) {
        match came {
            ReaderOutcome::Answers(all, cost) => {
                self.trouble = None;
                self.most = (self.most * 2).min(Reader::at_a_time());
                let count = u32::try_from(all.len().max(1)).unwrap_or(u32::MAX);
                self.cost = (self.cost * 7 + cost / count) / 8;
                done.extend(asked.into_iter().zip(all.into_iter().map(Some)));
            }
            ReaderOutcome::HeldUp(pid) => {
                self.most = AFTER_LOSS;
                let (held, others): (Vec<ProcessQuery>, Vec<ProcessQuery>) =
                    asked.into_iter().partition(|ask| ask.pid == pid);
                let tenant = held.first().and_then(|ask| ask.tenant.clone());
                self.avoid(pid, tenant, at);
                done.extend(held.into_iter().map(|ask| (ask, None)));
                for ask in others.into_iter().rev() {
                    self.ask_first(ask);
                }
            }
            ReaderOutcome::Nothing(text) => {
                tracing::warn!(text, "processes could not be read; they are tried again");
                self.trouble = Some(text);
                done.extend(asked.into_iter().map(|ask| (ask, None)));
            }
        }
    }

    pub(crate) fn avoid(&mut self, pid: u32, tenant: Option<Arc<str>>, at: Duration) {
        let avoided = self.avoided.entry(pid).or_insert_with(|| AvoidedProcess {
            tenant: tenant.clone(),
            avoidance: Avoidance::new(at),
        });
        let (first, most) = (LEFT_ALONE, LEFT_ALONE_AT_MOST);
        avoided.avoidance.prolong(at, first, most);
        tracing::warn!(
            process = pid,
            tenant = tenant.as_deref().unwrap_or("unknown"),
            "a process holds up each reader: it is left alone for a while"
        );
        if let Some(tenant) = tenant {
            let waits = self.waits.entry(tenant).or_insert(Avoidance::new(at));
            waits.prolong(at, TENANT_WAITS, TENANT_WAITS_AT_MOST);
        }
        // Limits the memory for this, however many processes there are.
        while self.avoided.len() > MOST_AVOIDED {
            let oldest = self
                .avoided
                .iter()
                .min_by_key(|(_, avoided)| avoided.avoidance.until);
            let Some(oldest) = oldest.map(|(&pid, _)| pid) else {
                return;
            };
            self.avoided.remove(&oldest);
        }
    }

    /// Puts a question before all others of its tenant.
    fn ask_first(&mut self, ask: ProcessQuery) {
        let queue = ask
            .tenant
            .as_ref()
            .and_then(|tenant| self.queues.get_mut(tenant));
        match queue {
            Some(queue) if ask.is_new => queue.new.push_front(ask),
            Some(queue) => queue.again.push_front(ask),
            None => self.in_brief.push_front(ask),
        }
    }

    fn send(&mut self, at: Duration) {
        let most = self.most;
        self.waits
            .retain(|_, waits| at < waits.until + TENANT_WAITS_AT_MOST * 10);
        let mut chosen: Vec<ProcessQuery> = Vec::new();
        // These are cheap, and tenants are unknown before the answers; but half a message is for the other questions. The oldest and the newest in
        // turn, so that a crowd that has just come is not before all processes that come after it.
        while chosen.len() < most / 2 {
            let next = match chosen.len() % 2 {
                0 => self.in_brief.pop_front(),
                _ => self.in_brief.pop_back(),
            };
            let Some(ask) = next else { break };
            chosen.push(ask);
        }
        self.choose(at, most, &mut chosen);
        if chosen.is_empty() {
            return;
        }
        let questions = chosen.iter().map(|ask| Question {
            pid: ask.pid,
            in_brief: ask.tenant.is_none(),
            cgroup: ask.place.is_none(),
            executable: ask.executable,
        });
        match self.reader.ask(questions.collect()) {
            Ok(()) => self.asked = chosen,
            Err((_, text)) => {
                tracing::warn!(text, "processes are found late");
                self.trouble = Some(text);
                for ask in chosen.into_iter().rev() {
                    self.ask_first(ask);
                }
            }
        }
    }

    /// Chooses questions, one of each tenant in turn.
    fn choose(&mut self, at: Duration, most: usize, chosen: &mut Vec<ProcessQuery>) {
        self.queues.retain(|_, queue| {
            !queue.new.is_empty()
                || !queue.again.is_empty()
                || !queue.own.covers(at, OWN_ADVANCE / 2)
        });
        let count = u32::try_from(self.queues.len()).unwrap_or(u32::MAX).max(1);
        let own = self.share / 2.0 / f64::from(count);
        self.queues
            .values_mut()
            .for_each(|queue| queue.own.allow(own));
        let mut idle = 0;
        let mut names: Vec<Arc<str>> = self.queues.keys().cloned().collect();
        let first = self
            .last
            .as_ref()
            .map_or(0, |last| names.partition_point(|name| name <= last));
        let count = names.len();
        names.rotate_left(first.min(count));
        let mut turn = names.iter().cycle();
        while chosen.len() < most && idle < names.len() {
            let Some(name) = turn.next() else { return };
            idle += 1;
            if self.waits.get(name).is_some_and(|waits| waits.holds(at)) {
                continue;
            }
            let Some(queue) = self.queues.get_mut(name) else {
                continue;
            };
            let pays = if queue.own.covers(at, Duration::ZERO) {
                &mut queue.own
            } else if self.common.covers(at, Duration::ZERO) {
                &mut self.common
            } else {
                continue;
            };
            let Some(ask) = queue.new.pop_front().or_else(|| queue.again.pop_front()) else {
                continue;
            };
            pays.spend(at, self.cost);
            chosen.push(ask);
            self.last = Some(name.clone());
            idle = 0;
        }
    }

    /// Waits until there is an answer, or none will come.
    pub(crate) fn wait(&self) {
        if self.asked.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        } else {
            self.reader.wait();
        }
    }

    /// Returns the processes that are left alone now.
    pub(crate) fn left_alone(&self, at: Duration) -> Vec<HeldUpAccount> {
        let now = self
            .avoided
            .iter()
            .filter(|(_, avoided)| avoided.avoidance.holds(at));
        let told = now.map(|(&pid, avoided)| HeldUpAccount {
            rule: None,
            tenant: avoided.tenant.as_deref().unwrap_or("unknown").to_owned(),
            process: Some(pid),
            worker: None,
            seconds: at.saturating_sub(avoided.avoidance.since).as_secs_f64(),
        });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(tenant: &str, pid: u32) -> ProcessQuery {
        ProcessQuery {
            pid,
            place: Some("/".into()),
            tenant: Some(tenant.into()),
            executable: false,
            is_new: true,
        }
    }

    fn chosen(turns: &mut QueryScheduler, at: Duration) -> Vec<u32> {
        let mut chosen = Vec::new();
        turns.choose(at, Reader::at_a_time(), &mut chosen);
        chosen.iter().map(|ask| ask.pid).collect()
    }

    #[test]
    fn a_crowd_waits_for_itself() {
        let at = Duration::from_secs(1000);
        let mut turns = QueryScheduler::new(&Roots::default(), 0.0005);
        for pid in 0..100_000 {
            turns.ask(ask("crowd", pid), at);
        }
        // Until nothing pays for more.
        while !chosen(&mut turns, at).is_empty() {}
        let left = turns.waiting();
        assert!((50_000..99_000).contains(&left), "{left}");
        turns.ask(ask("new", 100_001), at);
        assert_eq!(chosen(&mut turns, at), [100_001]);
        assert_eq!(chosen(&mut turns, at), [0; 0]);
        let later = at + Duration::from_secs(10);
        let count = chosen(&mut turns, later).len();
        assert!(count > 0, "its part pays for some by now");
    }

    #[test]
    fn tenants_are_asked_for_in_turn_and_new_processes_first() {
        let at = Duration::from_secs(1);
        let mut turns = QueryScheduler::new(&Roots::default(), 1.0);
        for pid in 0..200 {
            turns.ask(ask("a", pid), at);
        }
        turns.ask(ask("b", 1001), at);
        turns.ask(
            ProcessQuery {
                is_new: false,
                ..ask("c", 2001)
            },
            at,
        );
        turns.ask(ask("c", 2002), at);
        let first = chosen(&mut turns, at);
        assert_eq!(first[..4], [0, 1001, 2002, 1]);
        assert_eq!(first.len(), Reader::at_a_time());
        assert_eq!(first[4..7], [2001, 2, 3]);
    }

    #[test]
    fn questions_about_processes_that_are_gone_do_not_pile_up() {
        let at = Duration::from_secs(1);
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let mut turns = QueryScheduler::new(&roots, 0.0);
        turns.ask(ask("a", 1), at);
        for pid in 2..10_000 {
            turns.ask(ask("a", pid), at);
            turns.ask(
                ProcessQuery {
                    tenant: None,
                    ..ask("a", 10_000 + pid)
                },
                at,
            );
            turns.forget(pid);
            turns.forget(10_000 + pid);
            assert!(turns.waiting() < 4 * MOST_GONE, "{}", turns.waiting());
        }
        // One that has only left its cgroup is still there, and so is the question of the cgroup that has it now.
        turns.sweep();
        let stat = roots.of_process(9_999, "stat");
        std::fs::create_dir_all(stat.parent().unwrap()).unwrap();
        std::fs::write(stat, "").unwrap();
        turns.ask(ask("a", 9_999), at);
        turns.forget(9_999);
        turns.forget(9_998);
        turns.sweep();
        let queue = &turns.queues["a"];
        let pids: Vec<u32> = queue.new.iter().map(|ask| ask.pid).collect();
        assert_eq!(pids, [1, 9_999]);
        assert!(turns.in_brief.is_empty());
    }

    #[test]
    fn a_process_that_holds_up_the_reader_is_left_alone_longer_each_time() {
        let mut turns = QueryScheduler::new(&Roots::default(), 1.0);
        let mut at = Duration::from_secs(1);
        let mut done = Vec::new();
        turns.ask(ask("a", 7), at);
        for pause in [10, 20, 40] {
            let held = vec![ask("a", 7), ask("b", 8)];
            turns.queues.clear();
            turns.ask(ask("b", 9), at);
            turns.take(held, ReaderOutcome::HeldUp(7), at, &mut done);
            assert!(turns.avoids(7, at + Duration::from_secs(pause - 1)));
            assert!(!turns.avoids(7, at + Duration::from_secs(pause)));
            assert_eq!(done.pop().unwrap(), (ask("a", 7), None));
            // Its tenant waits; the question about the other tenant comes again.
            turns.ask(ask("a", 6), at);
            assert_eq!(chosen(&mut turns, at), [8, 9]);
            at += Duration::from_secs(pause);
        }
        assert_eq!(chosen(&mut turns, at), [6]);
        turns.forget(7);
        assert!(turns.left_alone(Duration::ZERO).is_empty());
    }
}
