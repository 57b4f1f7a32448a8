//! Workers that have ended, that another process has stopped, or that a process holds up.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use superhue::held_up::SleepLimits;

use super::start::MOST_WORKERS_IN_ALL;
use super::{
    AbandonedWorker, AvoidedProcess, HeldUpWorker, Lane, RestartBackoff, RunningWorker, Watches,
    has, start_of,
};
use crate::avoidance::{Avoidance, LEFT_ALONE, LEFT_ALONE_AT_MOST};
use crate::workers::{BEAT, Worker, have_news};

/// Maximum number of workers that were given up and still sleep: of one tenant, and of one tenant when there are `MANY_LEFT` in all. Beyond that, the
/// tenant is left alone. A tenant that left none behind always gets a worker, or a few tenants could keep it from the others.
pub(super) const MOST_LEFT_OF_ONE: usize = 2;
pub(super) const MANY_LEFT: usize = 8;

/// Workers of single tenants that are given up in one second. A worker that is held up delays its own tenant alone, so they can take turns; and where
/// the machine is slow (workers wait for each other in `lru_add_drain_all`, `mm/swap.c`) the others continue before their turn comes.
const GIVEN_UP_AT_ONCE: usize = 2;
pub(super) const GIVEN_UP_EVERY: Duration = Duration::from_secs(1);

/// Time for which a tenant that has held up a shared worker gets one of its own.
pub(super) const APART: Duration = Duration::from_secs(3600);

/// Time before another attempt after trouble.
pub(super) const AFTER_TROUBLE: Duration = Duration::from_secs(60);

/// Collapses take milliseconds, but a collapse may have to wait for the program's own work on its memory.
pub(super) const WATCH_SLEEP_LIMITS: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(900),
    in_files: Duration::from_millis(2500),
};

/// Time for which a worker that is given up may release its locks before it is killed.
pub(super) const LETTING_GO: Duration = Duration::from_millis(500);

/// A worker that is silent for this time was stopped.
pub(super) const SILENCE: Duration = BEAT.saturating_mul(6);

impl RestartBackoff {
    /// Returns the pause after a worker has ended that lasted for `lasted`. If it reported trouble (`has_told`), a new one would soon report the
    /// same: the pause is long. Otherwise another process has ended it: the pause is a second at first, and doubles each time.
    pub(super) fn after(&mut self, lasted: Duration, has_told: bool) -> Duration {
        self.0 = match lasted >= AFTER_TROUBLE {
            true => 1,
            false => (self.0 + 1).min(10),
        };
        let soon = Duration::from_secs(1 << (self.0 - 1));
        if has_told {
            AFTER_TROUBLE
        } else {
            soon.min(AFTER_TROUBLE)
        }
    }
}

impl Watches {
    /// Removes workers that have ended, and kills those that take too long to end.
    pub(super) fn bury(&mut self, at: Duration) {
        let (ended, spent) = (&mut self.ended, &mut self.spent);
        self.ending.retain_mut(|(running, name, until)| {
            let _ = running.hear(at);
            let used = running.worker.cpu_time();
            if running.worker.has_ended() {
                ended.push(running.seen(name));
                *spent += used.max(running.used);
                return false;
            }
            running.used = used;
            if at >= *until {
                running.worker.kill();
            }
            true
        });
        let before = self.left.len();
        self.left.retain_mut(|left| {
            if left.kill_at.take_if(|kill_at| at >= *kill_at).is_some() {
                left.worker.kill();
            }
            let has_ended = left.worker.has_ended();
            if has_ended {
                let process = left.process.unwrap_or_default();
                tracing::info!(
                    rule = &*left.rule,
                    tenant = &*left.tenant,
                    process,
                    "a worker that was given up has ended"
                );
            }
            !has_ended
        });
        if self.left.len() < before {
            // Tenants that were left out of shared workers come back.
            let names: Vec<Arc<str>> = self.kept.keys().cloned().collect();
            for name in &names {
                self.assign(name);
            }
        }
    }

    /// Returns the numbers of workers that have sent something or have ended. One call for all of them: most are silent most of the time.
    pub(super) fn have_news(&self) -> BTreeSet<u64> {
        let lanes = self.kept.values().flat_map(|kept| kept.lanes.values());
        let running: Vec<&RunningWorker> = lanes.filter_map(|lane| lane.running.as_ref()).collect();
        let workers: Vec<&Worker> = running.iter().map(|running| &running.worker).collect();
        let news = have_news(&workers).into_iter().zip(running);
        news.filter_map(|(any, running)| any.then_some(running.number))
            .collect()
    }

    /// Takes messages of those workers of a rule that have `news`, and handles workers that have ended or are held up.
    /// Returns the workers that are held up.
    pub(super) fn hear(
        &mut self,
        name: &Arc<str>,
        news: &BTreeSet<u64>,
        at: Duration,
    ) -> Vec<HeldUpWorker> {
        let Some(kept) = self.kept.get_mut(name) else {
            return Vec::new();
        };
        let mut changed = kept.all.is_none();
        let mut held = Vec::new();
        for (lane, watched) in &mut kept.lanes {
            let Some(running) = &mut watched.running else {
                continue;
            };
            let has_news = news.contains(&running.number);
            let heard = if has_news {
                running.hear(at)
            } else {
                Ok(false)
            };
            changed |= !matches!(heard, Ok(false));
            let nonsense = heard.err();
            if has_news && running.worker.has_ended() || nonsense.is_some() {
                let _ = running.hear(at);
                changed = true;
                let told = running.account.trouble.clone();
                let pause = watched
                    .ends
                    .after(at.saturating_sub(running.begun), told.is_some());
                let text = told.or(nonsense);
                let text = text.unwrap_or_else(|| "its watch has ended unexpectedly".to_owned());
                tracing::warn!(
                    rule = &**name,
                    text,
                    "its processes are left alone for a while"
                );
                watched.trouble = Some((text, at + pause));
                watched.carried = running.charged(watched.carried);
                kept.past.add(&running.account.past());
                self.ended.push(running.seen(name));
                self.spent += running.worker.cpu_time().max(running.used);
                watched.running = None;
                continue;
            }
            let found = running.worker.held_up();
            if found.is_some() || at.saturating_sub(running.heard) >= SILENCE {
                held.push(HeldUpWorker {
                    rule: name.clone(),
                    lane: lane.clone(),
                    process: found.map(|found| found.process),
                    lasts: found.map_or(SILENCE, |found| found.lasts),
                });
            }
        }
        if changed {
            kept.add_up();
        }
        held
    }

    /// Gives up the shared workers that are held up, and those single ones that have been held up for longest.
    pub(super) fn give_up_some(&mut self, mut held: Vec<HeldUpWorker>, at: Duration) {
        held.sort_by_key(|held| (held.lane != Lane::Shared, std::cmp::Reverse(held.lasts)));
        if at.saturating_sub(self.gave_up.0) >= GIVEN_UP_EVERY {
            self.gave_up = (at, 0);
        }
        let shared = held.iter().filter(|held| held.lane == Lane::Shared).count();
        held.truncate(shared + GIVEN_UP_AT_ONCE.saturating_sub(self.gave_up.1));
        self.gave_up.1 += held.len() - shared;
        for held in held {
            self.give_up(&held.rule, &held.lane, held.process, at);
            if let Some(kept) = self.kept.get_mut(&held.rule) {
                kept.add_up();
            }
        }
    }

    /// Gives up the worker of a lane, which `process` holds up.
    pub(super) fn give_up(
        &mut self,
        name: &Arc<str>,
        lane: &Lane,
        process: Option<u32>,
        at: Duration,
    ) {
        // The process may have left the rule since the worker began with it.
        let all = || self.kept.values().flat_map(|kept| kept.fed.values());
        let start = process.and_then(|pid| all().find_map(|members| start_of(members, pid)));
        let tenants = self.kept.values().flat_map(|kept| &kept.fed);
        let owner = process.and_then(|pid| {
            let mut found = tenants.filter(|(_, members)| has(members, pid));
            found.next().map(|(tenant, _)| tenant.clone())
        });
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let tenant = match lane {
            Lane::Tenant(tenant) => tenant.clone(),
            Lane::Shared => owner.unwrap_or_else(|| "unknown".into()),
        };
        let Some(watched) = kept.lanes.get_mut(lane) else {
            return;
        };
        let Some(running) = watched.running.take() else {
            return;
        };
        watched.is_news = true;
        watched.carried = running.charged(watched.carried);
        kept.past.add(&running.account.past());
        self.ended.push(running.seen(name));
        self.spent += running.worker.cpu_time().max(running.used);
        self.given_up += 1;
        // First it releases what others need; a kill follows.
        running.worker.stop();
        if let Some(pid) = process {
            let avoided = self.avoided.entry(pid).or_insert_with(|| AvoidedProcess {
                start_ticks: start,
                rule: name.clone(),
                tenant: tenant.clone(),
                avoidance: Avoidance::new(at),
            });
            let (first, most) = (LEFT_ALONE, LEFT_ALONE_AT_MOST);
            avoided.avoidance.prolong(at, first, most);
        }
        tracing::warn!(
            rule = &**name,
            tenant = &*tenant,
            process = process.unwrap_or_default(),
            worker = running.worker.pid(),
            "a process holds its watch up: the worker is given up, and the process left alone for a while"
        );
        self.left.push(AbandonedWorker {
            worker: running.worker,
            rule: name.clone(),
            tenant: tenant.clone(),
            was_shared: *lane == Lane::Shared,
            process,
            since: at,
            kill_at: Some(at + LETTING_GO),
            memory: running.memory,
        });
        if *lane == Lane::Shared {
            if self.lanes() < MOST_WORKERS_IN_ALL {
                self.apart.insert(tenant, at);
            }
            self.assign(name);
        }
    }
}
