//! Entering what was done into the snapshot and the record, which saves a look.

use std::collections::BTreeSet;

use superhue_model::{
    Action, ByteCount, Effect, Obstacle, Outcome, Owner, PageCount, ProcessId, SkipReason,
};

use super::{Superpages, Watch};
use crate::live::Live;

impl Watch {
    /// Enters what was done into the snapshot, which saves another look.
    pub(super) fn apply(&mut self, outcome: &Outcome) {
        let mut collapsed = BTreeSet::new();
        for result in &outcome.results {
            let (owner, region) = (result.action.owner(), result.action.region());
            let mappers = self.mappers_of(owner, region);
            if let (Some(live), Some(&first)) = (&mut self.live, mappers.first()) {
                live.tallies.enter(&live.members, first, result);
            }
            for id in mappers {
                self.note_left_alone(id, result.effect);
            }
            if result.effect != Effect::Done {
                continue;
            }
            let id = match (owner, result.action) {
                (Owner::Process(id), _) => id,
                (Owner::Object(object), Action::Collapse { growth, .. }) => {
                    self.apply_to_object(object, result, growth);
                    continue;
                }
                (Owner::Object(_), Action::Split { .. }) => continue,
            };
            let Action::Collapse { growth, .. } = result.action else {
                self.grown.remove(&(id, region));
                continue;
            };
            let Some(process) = self.snapshot.process_mut(id) else {
                continue;
            };
            if let Ok(index) = process
                .regions
                .binary_search_by_key(&region, |view| view.region)
            {
                process.regions[index].collapsed();
            }
            for size in [&mut process.rss, &mut process.rss_anon]
                .into_iter()
                .flatten()
            {
                *size += growth.bytes();
            }
            if let Some(known) = self.known.get_mut(&id) {
                known.resident += growth;
                known.collapses.0 += 1;
                known.collapses.1 += result.took;
            }
            self.grown.insert((id, region), growth);
            collapsed.insert(id);
        }
        for id in collapsed {
            let Some(view) = self.snapshot.process(id) else {
                continue;
            };
            if let Some(known) = self.known.get_mut(&id) {
                known.superpages = Superpages::of(view, &self.grown);
            }
        }
    }

    /// Notes what kept the process from being visited, or that nothing does any more.
    fn note_left_alone(&mut self, id: ProcessId, effect: Effect) {
        let now = match effect {
            // That it has to wait for its turn, or for a CPU, is nothing of its own.
            Effect::Skipped {
                reason: SkipReason::Visit(obstacle),
            } if !matches!(obstacle, Obstacle::Paced | Obstacle::Busy) => Some(obstacle),
            Effect::Skipped { .. } | Effect::Vanished => return,
            Effect::Done | Effect::Failed { .. } => None,
        };
        for processes in self.watched.left_alone.values_mut() {
            processes.remove(&id);
        }
        if let Some(obstacle) = now {
            let processes = self.watched.left_alone.entry(obstacle).or_default();
            processes.insert(id);
        }
    }

    /// Enters the snapshot into the timeline.
    pub(super) fn record(&mut self) {
        let processes = &self.snapshot.processes;
        if processes.is_empty() {
            return;
        }
        let anonymous = processes
            .iter()
            .filter_map(|process| process.rss_anon)
            .sum();
        let superpages = || {
            let known = processes.iter().filter_map(|it| self.known.get(&it.id));
            known.map(|known| known.superpages)
        };
        let huge: Option<ByteCount> = superpages().map(|of_one| of_one.mapped).sum();
        let bloat: PageCount = superpages().map(|of_one| of_one.bloat).sum();
        self.watched.timeline.add(self.snapshot.at, anonymous, huge);

        let rss: ByteCount = processes.iter().filter_map(|process| process.rss).sum();
        self.watched.peak_rss = Some(self.watched.peak_rss.map_or(rss, |peak| peak.max(rss)));
        let bound = huge.map(|_| bloat.bytes());
        self.watched.bloat_bound = self.watched.bloat_bound.max(bound);
    }

    pub(super) fn forget_the_dead(&mut self) {
        let known = &self.known;
        self.grown.retain(|(id, _), _| known.contains_key(id));
        if self.live.as_ref().is_some_and(Live::is_fed) {
            // Whoever asks while the watch goes on asks for those that are there.
            for processes in self.watched.left_alone.values_mut() {
                processes.retain(|id| known.contains_key(id));
            }
        }
    }
}
