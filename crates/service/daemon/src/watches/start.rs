//! Starts the workers of lanes, and sends them their members and settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use superhue::live::Members;
use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, Share};

use super::held_up::{AFTER_TROUBLE, MANY_LEFT, MOST_LEFT_OF_ONE, WATCH_SLEEP_LIMITS};
use super::shares::size_of_budget;
use super::{AbandonedWorker, ENDING, KEPT_EMPTY, Lane, RunningWorker, SentSettings, Watches};
use crate::avoidance::LEFT_ALONE;
use crate::privileges::{of_rule, tracks};
use crate::workers::{MemberTable, Task, WatchTask, WatchUpdate, Worker};

/// Maximum number of workers at a time; and including those of tenants that have held one up.
const MOST_WORKERS: usize = 64;
pub(super) const MOST_WORKERS_IN_ALL: usize = MOST_WORKERS + 16;

/// Workers started in one turn: each takes some milliseconds.
pub(super) const STARTS: usize = 8;
pub(super) const NEXT_STARTS: Duration = Duration::from_millis(50);

impl Watches {
    /// Divides the members of a rule among its lanes.
    pub(super) fn assign(&mut self, name: &Arc<str>) {
        let mut room = MOST_WORKERS.saturating_sub(self.lanes());
        let mut room_apart = MOST_WORKERS_IN_ALL.saturating_sub(self.lanes());
        let usual = self.tracker.flatten();
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let own = kept.placement.as_ref().and_then(|it| it.tracker);
        let exclusive = matches!(own.or(usual), Some(TrackerKind::Idle | TrackerKind::Damon));
        let shares = kept.placement.as_ref().is_none_or(|placement| {
            placement.colors != ColorRequest::Off
                || placement.swap
                || exclusive && tracks(placement)
        });
        let mut by_lane: BTreeMap<Lane, Members> = BTreeMap::new();
        for (tenant, members) in &kept.fed {
            let own = Lane::Tenant(tenant.clone());
            let lane = if kept.lanes.contains_key(&own) {
                own
            } else if self.apart.contains_key(tenant) {
                // It would hold up the others again.
                if room_apart == 0 {
                    continue;
                }
                room_apart -= 1;
                own
            } else if shares || room == 0 {
                // It would hold up the others again, and there is no room for a worker of its own.
                if self.left.iter().any(|left| left.tenant == *tenant) {
                    continue;
                }
                Lane::Shared
            } else {
                room -= 1;
                room_apart = room_apart.saturating_sub(1);
                own
            };
            let all = by_lane.entry(lane).or_default();
            all.extend(members.iter().map(|(id, label)| (*id, label.clone())));
        }
        for lane in by_lane.keys() {
            kept.lanes.entry(lane.clone()).or_default();
        }
        for (lane, watched) in &mut kept.lanes {
            let members = by_lane.remove(lane).unwrap_or_default();
            if watched.members != members {
                watched.members = members;
                watched.is_news = true;
            }
        }
    }

    pub(super) fn lanes(&self) -> usize {
        self.kept.values().map(|kept| kept.lanes.len()).sum()
    }

    /// Starts the missing workers of a rule, and ends those that are not needed any more.
    pub(super) fn start(&mut self, name: &Arc<str>, at: Duration, starts: &mut usize) {
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let Some(placement) = &kept.placement else {
            return;
        };
        let mut changed = false;
        for (lane, watched) in &mut kept.lanes {
            if watched.members.is_empty() {
                let since = *watched.empty_since.get_or_insert(at);
                let is_over = at.saturating_sub(since) >= KEPT_EMPTY;
                if is_over {
                    watched.carried = ByteCount(0);
                }
                if is_over && let Some(running) = watched.running.take() {
                    kept.past.add(&running.account.past());
                    changed = true;
                    running.worker.stop();
                    self.ending.push((running, name.clone(), at + ENDING));
                }
                continue;
            }
            watched.empty_since = None;
            let may_start = (watched.trouble.as_ref()).is_none_or(|&(_, until)| at >= until);
            if watched.running.is_some() || !may_start {
                continue;
            }
            let of_one = |left: &&AbandonedWorker| match lane {
                Lane::Tenant(tenant) => left.tenant == *tenant,
                Lane::Shared => left.was_shared && left.rule == *name,
            };
            // One that is given up releases its locks first, and is killed then.
            if (self.left.iter().filter(of_one)).any(|left| left.kill_at.is_some()) {
                continue;
            }
            if *starts == 0 {
                break;
            }
            changed = true;
            watched.trouble = None;
            let left = self.left.iter().filter(of_one).count();
            let most = match (lane, self.left.len() >= MANY_LEFT) {
                (Lane::Shared, _) => MANY_LEFT,
                (Lane::Tenant(_), true) => 1,
                (Lane::Tenant(_), false) => MOST_LEFT_OF_ONE,
            };
            let started = if left >= most {
                Err(format!(
                    "{left} workers of this tenant ({} of all) are held up by its processes and cannot be ended: it is left alone until one of \
                     them has ended",
                    self.left.len()
                ))
            } else {
                *starts -= 1;
                let task = Task::Watch(Box::new(WatchTask {
                    rule: name.to_string(),
                    placement: placement.clone(),
                    is_first: !watched.had_worker,
                    carried: watched.carried,
                    roots: self.roots.clone(),
                }));
                let tracker = self.tracker.flatten();
                let started = Worker::start(&task, of_rule(placement, tracker), WATCH_SLEEP_LIMITS);
                started.map_err(|error| format!("cannot start a process: {error}"))
            };
            match started {
                Ok(worker) => {
                    self.started += 1;
                    watched.had_worker = true;
                    // It may charge nothing more before the budget is divided.
                    watched.budget = size_of_budget(placement).map(|_| watched.carried);
                    watched.is_news = true;
                    watched.running = Some(RunningWorker {
                        number: self.started,
                        worker,
                        account: Arc::default(),
                        is_heard: false,
                        begun: at,
                        heard: at,
                        renewed: at,
                        told: None,
                        used: Duration::ZERO,
                        memory: ByteCount(0),
                    });
                }
                Err(text) => {
                    tracing::warn!(rule = &**name, text, "processes are left alone");
                    let pause = if left > 0 { LEFT_ALONE } else { AFTER_TROUBLE };
                    watched.trouble = Some((text, at + pause));
                }
            }
        }
        let before = kept.lanes.len();
        // What earlier workers have charged counts for the next one.
        kept.lanes.retain(|_, watched| {
            !watched.members.is_empty()
                || watched.running.is_some()
                || watched.carried > ByteCount(0)
        });
        if changed || kept.lanes.len() < before {
            kept.add_up();
        }
    }

    /// Sends the workers of a rule their settings, if these are new.
    pub(super) fn tell(&mut self, name: &Arc<str>, at: Duration) {
        let (paused, held) = (self.paused, self.held.contains(name));
        let avoided: BTreeSet<u32> = (self.avoided.iter())
            .filter(|(_, avoided)| avoided.avoidance.holds(at))
            .map(|(&pid, _)| pid)
            .collect();
        let Some(kept) = self.kept.get_mut(name) else {
            return;
        };
        let is_sum = kept.placement.as_ref().and_then(size_of_budget).is_some();
        for watched in kept.lanes.values_mut() {
            let Some(running) = &mut watched.running else {
                continue;
            };
            let told = SentSettings {
                paused,
                held,
                limit: watched.limit,
                budget: watched.budget.filter(|_| is_sum),
                leave_alone: avoided.clone(),
            };
            let is_known = running
                .told
                .as_ref()
                .is_some_and(|before| before.is_as(&told));
            if is_known && !watched.is_news || !running.worker.listens() {
                continue;
            }
            let others = |before: &SentSettings| before.leave_alone != told.leave_alone;
            let members = watched.is_news || running.told.as_ref().is_some_and(others);
            let members = members.then(|| {
                let mut members = watched.members.clone();
                members.retain(|id, _| !avoided.contains(&id.pid));
                MemberTable::from(&members)
            });
            running.worker.say(&WatchUpdate {
                members,
                paused,
                held,
                max_overhead: told.limit,
                budget: told.budget.map(Share::Bytes),
                leave_alone: told.leave_alone.clone(),
            });
            running.told = Some(told);
            watched.is_news = false;
        }
    }
}

impl SentSettings {
    /// Returns true if it is nearly the same: the ceilings are divided again each second.
    fn is_as(&self, other: &Self) -> bool {
        let change = (self.limit - other.limit).abs();
        self.paused == other.paused
            && self.held == other.held
            && self.budget == other.budget
            && self.leave_alone == other.leave_alone
            && change <= 0.05 * self.limit.max(other.limit)
    }
}
