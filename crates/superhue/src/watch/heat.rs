//! Heat in the loop: samples watched memory, and counts zeroes in idle huge pages.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use superhue_heat::{TrackError, TrackerKind};
use superhue_model::{Action, Memory, PageCount, ProcessId, ProcessView};
use superhue_policy::MemoryAge;
use superhue_procfs::process::Zeroes;

use super::{Watch, has_work, program_name};
use crate::account::note_reason;
use crate::heat::TrackingCost;

/// Result of tracking, for the report.
#[derive(Debug, Default)]
pub(crate) struct TrackingSummary {
    pub(crate) tracker: Option<TrackerKind>,
    pub(crate) samples: u64,
    pub(crate) cost: TrackingCost,
    /// Programs whose accesses could not be tracked, with the reason.
    pub(crate) untracked: BTreeMap<String, String>,
}

impl Watch {
    /// Reads and arms what is due, and enters the heat into the snapshot; returns true if accesses
    /// have moved.
    pub(super) fn sample(&mut self) -> bool {
        let saves = self.saves();
        let wanted = match saves {
            true => Vec::new(),
            false => self.wanted_heat(),
        };
        if !wanted.is_empty() && self.setup.is_postponed() {
            self.setup.start_tracking();
        }
        // Waits of the policy end between looks as well, also while nothing is sampled yet.
        if self.setup.is_postponed() {
            self.snapshot.at = self.begun.elapsed();
        }
        let Some(sampler) = &mut self.setup.sampler else {
            return false;
        };
        let snapshot = &self.snapshot;
        sampler.retain(|id| snapshot.process(id).is_some());
        wanted.into_iter().for_each(|id| sampler.add(id));
        let snapshot = &mut self.snapshot;
        // A watch that saves ends its samples and begins none.
        sampler.hold(saves);
        let mut moved = false;
        for sampled in sampler.step(self.begun.elapsed()) {
            match sampled.result {
                Ok(change) => moved |= change.grew || change.moved >= NOTABLE_MOVE,
                // The number belongs to another process by now, or the process has ended: neither is a failure.
                Err(TrackError::Replaced(_)) => continue,
                Err(TrackError::Read(error)) if error.is_vanished() => continue,
                Err(error) => {
                    let (id, reason) = (sampled.process, error.to_string());
                    let name = program_name(&self.roots, id);
                    note_reason(&mut self.watched.tracked.untracked, name, reason);
                    continue;
                }
            }
            let Some(map) = sampler.map(sampled.process) else {
                continue;
            };
            if let Some(process) = snapshot.process_mut(sampled.process) {
                process.heat = Some(map.heat());
                self.has_news = true;
                self.objects.heat_changed = true;
            }
        }
        let elsewhere = sampler.take_elsewhere();
        self.cost.spend(self.begun.elapsed(), elsewhere);
        self.snapshot.at = self.begun.elapsed();
        moved
    }

    /// Returns the processes whose accesses the policy wants to know, or recoloring, beyond those that are sampled already.
    fn wanted_heat(&self) -> Vec<ProcessId> {
        let sampler = self.setup.sampler.as_ref();
        if sampler.is_none() && !self.setup.is_postponed() {
            return Vec::new();
        }
        // Recoloring needs heat also of memory that has no whole region.
        let colored = self.watched.keeper.is_some();
        let samples_all = colored || self.setup.samples_all;
        let is_open = |process: &&ProcessView| {
            (colored || has_work(process)) && !sampler.is_some_and(|it| it.has(process.id))
        };
        let age =
            |id| (self.known.get(&id)).map_or_else(Default::default, |it| it.age(self.snapshot.at));
        let policy = &self.setup.policy;
        let wants = |process: &&ProcessView| {
            samples_all || policy.wants_heat(&Memory::of_process(process), age(process.id))
        };
        let open = self.snapshot.processes.iter().filter(is_open);
        let (mut wanted, rest): (Vec<&ProcessView>, Vec<&ProcessView>) = open.partition(wants);
        if !rest.is_empty() {
            let mut of_objects = BTreeSet::new();
            for object in &self.snapshot.objects {
                let memory = Memory::of_object(object);
                if !policy.wants_heat(&memory, MemoryAge::MAX) {
                    continue;
                }
                // Known for as long as its oldest mapper, and settled when all of them are.
                let mappers = self.processes_mapping(object.id);
                let ages = mappers.iter().map(|&id| age(id));
                let of_all = ages.reduce(|one, other| MemoryAge {
                    watched: one.watched.max(other.watched),
                    settled: one.settled.min(other.settled),
                });
                if of_all.is_some_and(|age| policy.wants_heat(&memory, age)) {
                    of_objects.extend(mappers);
                }
            }
            wanted.extend(rest.into_iter().filter(|it| of_objects.contains(&it.id)));
        }
        wanted.into_iter().map(|process| process.id).collect()
    }

    /// Returns the time until the next sample is due.
    pub(super) fn until_next_sample(&self) -> Option<Duration> {
        let due = self.setup.sampler.as_ref()?.due()?;
        Some(due.saturating_sub(self.begun.elapsed()))
    }

    /// Counts zeroes in huge pages that the policy would split if they held mostly zeroes. A watch that saves counts none.
    pub(super) fn look_for_zeroes(&mut self) {
        if !self.saves() {
            self.count_zeroes();
        }
        // Other threads have read the memory, so the clock of this one does not show it.
        let spent = self.zero_pages.take_spent() + self.torn.take_spent();
        self.cost.spend(self.begun.elapsed(), spent);
    }

    fn count_zeroes(&mut self) {
        let policy = &mut self.setup.policy;
        for (id, region) in policy.wants_zeroes() {
            match self.zero_pages.count(id, region, PageCount(0)) {
                Ok(Zeroes::Counted(zero)) => policy.learn_zeroes(id, region, zero),
                Ok(Zeroes::Few) => policy.learn_zeroes(id, region, PageCount(0)),
                Err(error) => tracing::debug!(process = %id, %region, %error, "not looked into"),
            }
        }
    }

    /// Requests new samples soon of processes whose memory a plan changes.
    pub(super) fn resample_changed(&mut self, changed: &[Action]) {
        for action in changed {
            let processes = self.mappers_of(action.owner(), action.region());
            if let Some(sampler) = &mut self.setup.sampler {
                processes
                    .into_iter()
                    .for_each(|id| sampler.resample_soon(id));
            }
        }
    }

    /// Enters the result of tracking into the record.
    pub(super) fn conclude_tracking(&mut self) {
        let Some(sampler) = &self.setup.sampler else {
            return;
        };
        let watched = &mut self.watched;
        watched.tracked.tracker = Some(sampler.tracker());
        watched.tracked.samples = sampler.samples();
        watched.tracked.cost = sampler.total_cost();
        // The account of a live watch holds a value that may be some seconds old, or none.
        watched.account.hot_set_bytes = sampler.hot_set().usual_bytes();
    }
}

/// Difference of accesses from the sample before that calls for another decision soon.
const NOTABLE_MOVE: f32 = 0.1;
