//! Divides the ceiling of a rule and its budget among its lanes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use superhue::PlacementOptions;
use superhue_model::{ByteCount, Share};

use super::{LaneState, Watches};

/// A worker that uses this part of its ceiling could use more; one that uses less gets this multiple of what it uses.
const HUNGRY: f64 = 0.7;
const SPARE: f64 = 1.5;

/// Time for which a worker is new, and may have much to do.
const NEW: Duration = Duration::from_secs(10);

impl Watches {
    /// Returns the ceiling of each rule, so that all together cost no more than the daemon's ceiling.
    pub(super) fn shares(&self) -> BTreeMap<Arc<str>, f64> {
        let active = self.kept.iter().filter(|(_, kept)| kept.processes > 0);
        let wanted = active
            .filter_map(|(name, kept)| Some((name.clone(), kept.placement.as_ref()?.max_overhead)));
        let mut shares: BTreeMap<Arc<str>, f64> = wanted.collect();
        let all: f64 = shares.values().sum();
        if all > self.max_overhead {
            shares
                .values_mut()
                .for_each(|share| *share *= self.max_overhead / all);
        }
        shares
    }

    /// Divides the ceilings of rules among their tenants, by what each has used, and budgets by what each has charged.
    pub(super) fn divide(&mut self, at: Duration) {
        let passed = at.saturating_sub(self.divided).as_secs_f64().max(1e-3);
        self.divided = at;
        let shares = self.shares();
        for (name, kept) in &mut self.kept {
            let share = shares.get(name).copied().unwrap_or_default();
            let mut needs: Vec<(&mut LaneState, Option<f64>)> = Vec::new();
            for watched in kept.lanes.values_mut() {
                if watched.members.is_empty() {
                    continue;
                }
                let Some(running) = &mut watched.running else {
                    continue;
                };
                let now = running.worker.cpu_time();
                let used = now.saturating_sub(running.used).as_secs_f64() / passed;
                running.used = now;
                let is_new = at.saturating_sub(running.begun) < NEW;
                let is_hungry = is_new || used >= watched.limit * HUNGRY;
                needs.push((watched, (!is_hungry).then_some(used * SPARE)));
            }
            let limits = divided(
                share,
                &needs.iter().map(|(_, need)| *need).collect::<Vec<_>>(),
            );
            for ((watched, _), limit) in needs.into_iter().zip(limits) {
                watched.limit = limit;
            }
            if let Some(size) = kept.placement.as_ref().and_then(size_of_budget) {
                divide_budget(size, kept.lanes.values_mut());
            }
        }
    }

    /// Gives new workers, and those of rules whose share has changed, an even part at once.
    pub(super) fn divide_new(&mut self) {
        let shares = self.shares();
        for (name, kept) in &mut self.kept {
            let share = shares.get(name).copied().unwrap_or_default();
            let size = kept.placement.as_ref().and_then(size_of_budget);
            let active =
                |watched: &&mut LaneState| !watched.members.is_empty() && watched.running.is_some();
            let mut lanes: Vec<&mut LaneState> = kept.lanes.values_mut().filter(active).collect();
            let all: f64 = lanes.iter().map(|watched| watched.limit).sum();
            let is_new = lanes.iter().any(|watched| watched.limit <= 0.0);
            if is_new || (all - share).abs() > share * 1e-6 {
                let count = u32::try_from(lanes.len()).unwrap_or(u32::MAX).max(1);
                let even = share / f64::from(count);
                lanes.iter_mut().for_each(|watched| watched.limit = even);
                if let Some(size) = size {
                    divide_budget(size, kept.lanes.values_mut());
                }
            }
        }
    }
}

/// Returns a rule's budget if it is a size, which its tenants share.
pub(super) const fn size_of_budget(placement: &PlacementOptions) -> Option<ByteCount> {
    match placement.budget {
        Some(Share::Bytes(size)) => Some(size),
        _ => None,
    }
}

/// Divides a share: workers that need less than an even part get what they need, but at least a quarter of that part; the others (`None`) get the
/// rest.
pub(super) fn divided(share: f64, needs: &[Option<f64>]) -> Vec<f64> {
    let count = f64::from(u32::try_from(needs.len()).unwrap_or(u32::MAX).max(1));
    let even = share / count;
    let modest = |need: f64| need.clamp(even / 4.0, even);
    let hungry = needs.iter().filter(|need| need.is_none()).count();
    if hungry == 0 {
        return vec![even; needs.len()];
    }
    let taken: f64 = needs.iter().flatten().copied().map(modest).sum();
    let rest = (share - taken) / f64::from(u32::try_from(hungry).unwrap_or(u32::MAX));
    needs.iter().map(|need| need.map_or(rest, modest)).collect()
}

/// Divides a budget that is a size. A worker may have charged as much as it was sent, or reports as its budget: only the rest is free.
pub(super) fn divide_budget<'a>(size: ByteCount, lanes: impl Iterator<Item = &'a mut LaneState>) {
    let mut lanes: Vec<&mut LaneState> = lanes.collect();
    let charged = |lane: &LaneState| {
        let running = lane.running.as_ref();
        running
            .map_or(lane.carried, |running| running.charged(lane.carried))
            .0
    };
    let bound = |lane: &LaneState| {
        let told = lane
            .running
            .as_ref()
            .and_then(|it| it.told.as_ref()?.budget);
        let says = lane.running.as_ref().and_then(|it| it.account.budget_bytes);
        let most = told.unwrap_or_default().0.max(says.unwrap_or_default().0);
        most.max(charged(lane))
    };
    let active = lanes.iter().filter(|lane| lane.running.is_some()).count() as u64;
    let used: u64 = lanes.iter().map(|lane| charged(lane)).sum();
    let even = size.0.saturating_sub(used) / active.max(1);
    let bounds: u64 = lanes.iter().map(|lane| bound(lane)).sum();
    let mut free = size.0.saturating_sub(bounds);
    for lane in &mut lanes {
        let wanted = charged(lane) + even;
        let now = lane.budget.unwrap_or_default().0;
        let given = match wanted.checked_sub(now) {
            Some(more) => now + more.min(free),
            // Half of the way at a time: it may have charged more by now than is known, and huge pages beyond its budget would be split.
            None => now - (now - wanted) / 2,
        };
        free -= given.saturating_sub(now).min(free);
        lane.budget = Some(ByteCount(given));
    }
}
