//! Enters completed actions into the snapshot and the record, which saves a look.

use std::collections::{BTreeMap, BTreeSet};

use superhue_model::{
    Action, ByteCount, Effect, Outcome, Owner, PageCount, ProcessId, ProcessView, Region,
};

use super::{HugePages, Watch};

impl Watch {
    /// Enters completed actions into the snapshot, which saves another look.
    pub(super) fn apply(&mut self, outcome: &Outcome) {
        let mut changed = BTreeSet::new();
        let mut split: BTreeMap<ProcessId, BTreeSet<Region>> = BTreeMap::new();
        for result in &outcome.results {
            let (owner, region) = (result.action.owner(), result.action.region());
            let mappers = self.mappers_of(owner, region);
            if let (Some(live), Some(&first)) = (&mut self.live, mappers.first()) {
                live.tallies.enter(&live.members, first, result);
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
                if let Some(known) = self.known.get_mut(&id) {
                    known.stir(self.snapshot.at);
                }
                if let Some(grown) = self.grown.get_mut(&id) {
                    grown.remove(&region);
                }
                split.entry(id).or_default().insert(region);
                continue;
            };
            self.torn.was_collapsed(id, region, growth);
            let Some(process) = self.snapshot.process_mut(id) else {
                continue;
            };
            let regions = &mut process.regions;
            let place = regions.binary_search_by_key(&region, |view| view.region);
            let mut is_new = false;
            if let Some(view) = place.ok().and_then(|index| regions.get_mut(index)) {
                is_new = view.huge == Some(false);
                view.collapsed();
            }
            for size in [&mut process.rss, &mut process.rss_anon]
                .into_iter()
                .flatten()
            {
                *size += growth.bytes();
            }
            if let Some(known) = self.known.get_mut(&id) {
                known.resident += growth;
                known.growth.leave_out(growth);
                known.collapses.0 += 1;
                known.collapses.1 += result.took;
                known.stir(self.snapshot.at);
                if is_new {
                    // A count of all regions for each few collapses would cost more than all other decisions.
                    known.huge_pages.add(growth);
                } else {
                    changed.insert(id);
                }
            }
            self.grown.entry(id).or_default().insert(region, growth);
        }
        for (id, regions) in split {
            if let Some(process) = self
                .snapshot
                .process_mut(id)
                .filter(|it| !it.torn.is_empty())
            {
                self.torn.were_split(process, &regions);
                changed.insert(id);
            }
        }
        for id in changed {
            let Some(view) = self.snapshot.process(id) else {
                continue;
            };
            if let Some(known) = self.known.get_mut(&id) {
                known.huge_pages = HugePages::of(view, self.grown.get(&id));
            }
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
        let huge_pages = || {
            let known = processes.iter().filter_map(|it| self.known.get(&it.id));
            known.map(|known| known.huge_pages)
        };
        let huge: Option<ByteCount> = huge_pages().map(|of_one| of_one.mapped).sum();
        let bloat: PageCount = huge_pages().map(|of_one| of_one.bloat).sum();
        self.watched.timeline.add(self.snapshot.at, anonymous, huge);

        let rss: ByteCount = processes.iter().filter_map(|process| process.rss).sum();
        self.watched.peak_rss = Some(self.watched.peak_rss.map_or(rss, |peak| peak.max(rss)));
        let held: Option<PageCount> = huge_pages().map(|of_one| of_one.held).sum();
        // The peak is unknown after a look that did not show it, and comes back with the next one that does.
        self.most_held = self.most_held.max(held.unwrap_or_default().bytes());
        self.watched.peak_held = held.map(|_| self.most_held);
        let bound = huge.map(|_| bloat.bytes());
        self.watched.bloat_bound = self.watched.bloat_bound.max(bound);
    }

    /// Forgets the growth of regions that a look shows without a huge page: the program has split or unmapped it.
    pub(super) fn forget_growth(&mut self, view: &ProcessView) {
        let Some(grown) = self.grown.get_mut(&view.id) else {
            return;
        };
        grown.retain(|region, _| {
            let regions = &view.regions;
            let place = regions.binary_search_by_key(region, |seen| seen.region);
            place.is_ok_and(|place| regions[place].huge != Some(false))
        });
    }

    pub(super) fn forget_the_dead(&mut self) {
        let known = &self.known;
        self.grown.retain(|id, _| known.contains_key(id));
        self.lazily_freed.retain(|id| known.contains_key(&id));
        self.torn.retain(|id| known.contains_key(&id));
    }
}
