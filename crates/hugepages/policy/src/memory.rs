//! History of one owner of memory, a process or a shared object: its regions in ascending order, merged with each look.
//!
//! Both sides are sorted, so a look costs one pass and no look-ups. A region that only the old side has is gone, and takes its charge with it.

use std::time::Duration;

use superhue_model::{Memory, Owner, Region};

use crate::FULL;
use crate::backoff::{GROUP_SHORTAGE, GiveUp, PROCESS, Wait};
use crate::candidate::{Candidate, PromotionReadiness, RegionLook, Rule};
use crate::clock::{EarliestTick, Tick};
use crate::ledger::Compaction;
use crate::quota::{MaxStall, Stall};
use crate::record::{OUTCOME_TIMEOUT, Record, RegionChange, RegionState, eligible};

/// Time to the next look for regions that lack only another sample, while sampling continues.
const NEXT_SAMPLE: Duration = Duration::from_millis(100);

/// Time after which a process whose regions wait for the rate limit counts as twice as hot, four times after as long again, and so on: so every
/// process has its turn in the end.
const LIFT: Duration = Duration::from_millis(250);

/// Largest number of such doublings: enough to pass any other worth.
const MOST_LIFT: u32 = 64;

/// Sums over all owners in one look.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    /// Pages charged.
    pub(crate) charged: u64,
    /// Regions remembered.
    pub(crate) regions: u64,
    /// Actions whose outcome is outstanding.
    pub(crate) in_flight: u64,
    /// Earliest time at which one of them will be given up.
    pub(crate) next_expiry: EarliestTick,
    /// Actions given up in this look.
    pub(crate) expired: u64,
    /// Actions in flight whose region or process is gone.
    pub(crate) vanished: u64,
    /// Regions not yet settled.
    pub(crate) settling: u64,
    /// Regions that wait because collapses delay their process.
    pub(crate) stalled: u64,
    /// Regions that wait after a failure.
    pub(crate) backing_off: u64,
    /// Regions among these that only wait for the outcome of a probe.
    pub(crate) behind_probe: u64,
    /// Earliest time at which one of the waiting regions will be ready.
    pub(crate) due: EarliestTick,
    /// Splits that took effect, and the pages that they freed.
    pub(crate) settled: u64,
    pub(crate) returned: u64,
    /// Splits of huge pages that were known to hold zeroes, and the pages that these freed.
    pub(crate) splits: u64,
    pub(crate) freed: u64,
    /// Regions whose accesses crowd on a few pages.
    pub(crate) compaction: Compaction,
}

/// Progress of the sampling of a process at a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct SampleProgress {
    at: Tick,
    samples: u64,
    watched: Duration,
}

/// Longest time for which memory that is being filled without a pause is left alone.
pub const LONGEST_FILLING: Duration = Duration::from_secs(30);

/// Bounds on the promotions of one decision, in the memory of all owners.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PromotionBounds {
    /// Time until which no region may be promoted.
    pub(crate) until: Tick,
    /// Pages that a region without evidence may add.
    pub(crate) unproven_room: u64,
}

/// The history of one process's private memory, or of one shared object.
#[derive(Debug)]
pub(crate) struct OwnedMemory<N> {
    pub(crate) owner: Owner,
    /// Back-off after it had exited when an action on it was due.
    pub(crate) wait: Wait,
    /// Back-off while its control group has no room for huge pages, or while the process may have none. Splits continue: they may make room.
    pub(crate) short: Wait,
    /// Back-off while there is no room for the memory that huge pages would add.
    pub(crate) lean: Wait,
    /// Time since which, under rules that go by worth, some of its regions have waited for the rate limit, and none had its turn.
    pub(crate) served: Tick,
    /// True if it may not be split.
    pub(crate) no_split: bool,
    given_up: Option<GiveUp>,
    gone: bool,
    in_flight: u64,
    /// Collapses planned since the last look that have no outcome yet.
    launched: u64,
    /// Delay that collapses of this memory cause.
    pub(crate) stall: Stall,
    /// True if that delay kept some of its regions out of the last plan.
    pub(crate) is_spared: bool,
    /// Time since which it has been filled without a pause; `None` if it is not being filled.
    fills_since: Option<Tick>,
    sampled: SampleProgress,
    /// True if samples were taken between the last two looks.
    is_sampled: bool,
    records: Vec<Record<N>>,
    /// Indices of the records for which the last look found another ripeness than `Never`.
    open: Vec<u32>,
    /// Indices of the records that are being split or may be, as of the last look.
    splits: Vec<u32>,
}

impl<N: Copy + Default> OwnedMemory<N> {
    /// Makes the history of an owner that is seen for the first time.
    pub(crate) const fn new(owner: Owner, now: Tick) -> Self {
        Self {
            owner,
            wait: Wait::NONE,
            short: Wait::NONE,
            lean: Wait::NONE,
            served: now,
            no_split: false,
            given_up: None,
            gone: false,
            in_flight: 0,
            launched: 0,
            stall: Stall::new(now),
            is_spared: false,
            fills_since: None,
            sampled: SampleProgress {
                at: Tick::START,
                samples: 0,
                watched: Duration::ZERO,
            },
            is_sampled: false,
            records: Vec::new(),
            open: Vec::new(),
            splits: Vec::new(),
        }
    }

    /// Takes in a look at it. Returns the resident pages of all regions that count.
    ///
    /// `spare` is scratch space that is passed from process to process.
    pub(crate) fn look(
        &mut self,
        view: &Memory<'_>,
        now: Tick,
        rule: &impl Rule<Note = N>,
        spare: &mut Vec<Record<N>>,
        sums: &mut Sums,
    ) -> u64 {
        if std::mem::take(&mut self.gone) {
            self.forget(sums);
        }
        let mut look_at = self.looks(view, now);
        self.wait.forget(now, &PROCESS);
        self.short.forget(now, &GROUP_SHORTAGE);
        self.lean.forget(now, &GROUP_SHORTAGE);
        self.fills_since = view.fills.then(|| self.fills_since.unwrap_or(now));
        self.in_flight = 0;
        self.launched = 0;
        self.open.clear();
        self.splits.clear();
        if self.records.is_empty() {
            self.records.reserve_exact(view.regions.len());
        }
        let mut merge = Merge::new(&mut self.records, spare);
        let mut resident = 0;
        let charged_before = sums.charged;
        for seen in eligible(view) {
            resident += u64::from(seen.resident);
            while let Some(lost) = merge.next_if(|record| record.region < seen.region) {
                count_lost(lost, view, sums);
                merge.drop_next();
            }
            let look = look_at(&seen);
            let mut new = None;
            let record = match merge.next_if(|record| record.region == seen.region) {
                Some(record) => {
                    let RegionChange { expired, was_split } = record.see(&seen, now);
                    sums.expired += u64::from(expired);
                    if let Some(returned) = was_split {
                        sums.settled += 1;
                        sums.returned += u64::from(returned);
                        if rule.knows_zeroes(&record.note) {
                            sums.splits += 1;
                            sums.freed += u64::from(returned);
                        }
                        rule.was_split(&mut record.note, now);
                    }
                    record
                }
                None => new.insert(Record::new(&seen, now)),
            };
            rule.absorb(&mut record.note, &look);
            if seen.huge != Some(true)
                && let Some(active) = rule.crowded(&record.note)
            {
                sums.compaction.add(active);
            }
            let is_open = record.ripeness(rule) != PromotionReadiness::Never;
            if !is_open && !record.is_worth_keeping(rule, now) {
                if new.is_none() {
                    merge.drop_next();
                }
                continue;
            }
            sums.regions += 1;
            sums.charged += u64::from(record.charged());
            if let Some(until) = record.refused_until() {
                sums.due.add(until);
            }
            if let Some(planned) = record.in_flight_since() {
                self.in_flight += 1;
                sums.in_flight += 1;
                sums.next_expiry.add(planned.after(OUTCOME_TIMEOUT));
            }
            let may_split = !seen.torn && record.may_split(rule, now);
            let index = match new {
                Some(record) => merge.insert(record),
                None => merge.keep_next(),
            };
            // 2^32 regions would be 8 PiB.
            let Ok(index) = u32::try_from(index) else {
                continue;
            };
            if is_open {
                self.open.push(index);
            }
            if may_split {
                self.splits.push(index);
            }
        }
        while let Some(lost) = merge.next_if(|_| true) {
            count_lost(lost, view, sums);
            merge.drop_next();
        }
        merge.finish();
        // Free capacity left from a larger process, or from this one when it was larger.
        if self.records.capacity() > self.records.len() + self.records.len() / 4 + 16 {
            self.records.shrink_to_fit();
        }
        // Pages that promotion added are no growth of the program's own.
        let added = sums.charged - charged_before;
        self.stall.see(resident.saturating_sub(added), now);
        resident
    }

    /// Takes in the progress of the sampling. Returns a function that gives the information about one region after the other.
    fn looks<'a>(
        &mut self,
        view: &Memory<'a>,
        now: Tick,
    ) -> impl FnMut(&RegionState) -> RegionLook<'a> + use<'a, N> {
        let before = self.sampled;
        let heat = view.heat.filter(|heat| heat.samples > 0);
        let after = heat.map_or_else(SampleProgress::default, |heat| SampleProgress {
            at: now,
            samples: heat.samples,
            watched: heat.watched,
        });
        let samples = after.samples.saturating_sub(before.samples);
        self.is_sampled = samples > 0;
        if after.samples == before.samples {
            self.sampled.at = now;
        } else {
            self.sampled = after;
        }
        let mut regions = heat.map_or(&[][..], |heat| &heat.regions).iter().peekable();
        move |seen: &RegionState| {
            while regions.next_if(|heat| heat.region < seen.region).is_some() {}
            RegionLook {
                heat: regions.next_if(|heat| heat.region == seen.region),
                total: after.samples,
                samples,
                watched: after.watched.saturating_sub(before.watched),
                elapsed: now.since(before.at),
                resident: seen.resident,
                huge: seen.huge,
                now,
            }
        }
    }

    /// Drops all history; actions in flight will have no outcome.
    pub(crate) fn forget(&mut self, sums: &mut Sums) {
        let lost = |record: &Record<N>| record.in_flight_since().is_some();
        sums.vanished += self.records.drain(..).filter(lost).map(|_| 1).sum::<u64>();
    }

    /// Returns true if it is being filled, unless for so long that it would never get huge pages.
    pub(crate) fn is_filling(&self, now: Tick) -> bool {
        let since = self.fills_since;
        since.is_some_and(|since| now.since(since) < LONGEST_FILLING)
    }

    /// Returns the number of regions that wait for the end of that.
    pub(crate) fn open(&self) -> usize {
        self.open.len()
    }

    /// Offers the regions that may be promoted now, and adds those that may be promoted later to the `sums`.
    ///
    /// `owner` is its own index.
    pub(crate) fn propose(
        &self,
        owner: u32,
        now: Tick,
        rule: &impl Rule<Note = N>,
        bounds: PromotionBounds,
        sums: &mut Sums,
        mut offer: impl FnMut(Candidate),
    ) {
        if self.given_up.is_some() {
            return;
        }
        let is_troubled = self.is_troubled();
        let (served, lift) = if rule.is_by_worth() {
            let waited = now.since(self.served).as_millis() / LIFT.as_millis();
            (
                self.served,
                u32::try_from(waited).map_or(MOST_LIFT, |n| n.min(MOST_LIFT)),
            )
        } else {
            (Tick::START, 0)
        };
        let mut probe: Option<Candidate> = None;
        let mut held = 0;
        for &index in &self.open {
            let Some(record) = self.records.get(index as usize) else {
                continue;
            };
            let readiness = record.ripeness(rule);
            let is_proven = !matches!(readiness, PromotionReadiness::WithoutEvidence(_));
            // The growth of a shared object could not be undone.
            let lacks_evidence = !is_proven
                && (self.owner.process().is_none()
                    || u64::from(record.growth()) > bounds.unproven_room);
            let Some(ripe) = record.ripe_at(rule).filter(|_| !lacks_evidence) else {
                if lacks_evidence || readiness == PromotionReadiness::Unproven {
                    sums.settling += 1;
                    if self.is_sampled {
                        sums.due.add(now.after(NEXT_SAMPLE));
                    }
                }
                continue;
            };
            let free = bounds.until.max(self.free_at(record, rule));
            if ripe > now {
                sums.settling += 1;
                sums.due.add(ripe.max(free));
                continue;
            }
            if free > now {
                sums.backing_off += 1;
                sums.due.add(free);
                continue;
            }
            let candidate = Candidate {
                owner,
                record: index,
                since: record.since,
                growth: record.growth(),
                is_proven,
                level: record.trouble.level(),
                worth: rule.worth(record.growth(), &record.note),
                lift,
                served,
            };
            if is_troubled {
                held += 1;
                if probe.is_none_or(|best| candidate.probe_order() < best.probe_order()) {
                    probe = Some(candidate);
                }
            } else {
                offer(candidate);
            }
        }
        if let Some(candidate) = probe.filter(|_| self.in_flight == 0) {
            held -= 1;
            offer(candidate);
        }
        sums.backing_off += held;
        sums.behind_probe += held;
    }

    /// Returns true if at most one region at a time may be promoted: a probe.
    const fn is_troubled(&self) -> bool {
        self.wait.is_troubled() || self.short.is_troubled()
    }

    /// Returns the time from which no failure or rest stands in the way of a region.
    fn free_at(&self, record: &Record<N>, rule: &impl Rule<Note = N>) -> Tick {
        self.until(record.growth() > 0)
            .max(record.trouble.until())
            .max(rule.barred_until(&record.note))
    }

    /// Returns the time until which the owner as a whole blocks promotions. A promotion that adds memory (`grows`) also waits for `lean`.
    pub(crate) fn until(&self, grows: bool) -> Tick {
        let lean = if grows { self.lean } else { Wait::NONE };
        let all = self.wait.until().max(self.short.until());
        all.max(lean.until())
    }

    /// Records that a collapse was planned.
    pub(crate) const fn launch(&mut self, now: Tick) {
        self.launched += 1;
        self.served = now;
    }

    /// Records that the outcome of a collapse has come.
    pub(crate) const fn land(&mut self) {
        if self.launched > 0 {
            self.launched -= 1;
        } else {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
    }

    /// Returns true if a candidate of the last decision may still be promoted, by everything that was learned since.
    pub(crate) fn may_promote(
        &self,
        candidate: &Candidate,
        now: Tick,
        rule: &impl Rule<Note = N>,
    ) -> bool {
        let index = usize::try_from(candidate.record).ok();
        let Some(record) = index.and_then(|index| self.records.get(index)) else {
            return false;
        };
        !self.gone
            && self.given_up.is_none()
            && !self.is_troubled()
            && record.growth() == candidate.growth
            && record.ripe_at(rule).is_some_and(|ripe| ripe <= now)
            && self.free_at(record, rule) <= now
    }

    /// Returns the number of collapses that may be planned without delaying it for longer than `max`.
    pub(crate) fn spares(&self, now: Tick, max: Option<MaxStall>) -> usize {
        self.stall
            .available(now, max, self.in_flight + self.launched)
    }

    /// Returns the record of a candidate.
    pub(crate) fn record_mut(&mut self, candidate: &Candidate) -> Option<&mut Record<N>> {
        self.records
            .get_mut(usize::try_from(candidate.record).ok()?)
    }

    /// Returns the records that are being split or may be, as of the last look: with indices, in the order of addresses.
    pub(crate) fn splits(&self) -> impl Iterator<Item = (usize, &Record<N>)> {
        let indices = self.splits.iter().map(|&index| index as usize);
        indices.filter_map(|index| Some((index, self.records.get(index)?)))
    }

    /// Returns a function that says whether promotion made a region huge and added few pages or none (see [`Record::costs_little`]). It expects
    /// regions in the order of addresses.
    pub(crate) fn with_little_cost(&self) -> impl FnMut(Region) -> bool {
        let mut records = self.records.iter().peekable();
        move |region| {
            while records.next_if(|record| record.region < region).is_some() {}
            (records.peek()).is_some_and(|record| record.region == region && record.costs_little())
        }
    }

    /// Returns all records, in the order of addresses.
    pub(crate) fn records(&self) -> &[Record<N>] {
        &self.records
    }

    /// Returns all records, in the order of addresses.
    pub(crate) fn records_mut(&mut self) -> &mut [Record<N>] {
        &mut self.records
    }

    /// Returns true if the owner allows splits of its huge pages now. Splitting a huge page of a shared object frees nothing: its pages of zeroes
    /// stay.
    pub(crate) const fn may_split(&self) -> bool {
        self.owner.process().is_some() && !self.gone && !self.no_split && !self.wait.is_troubled()
    }

    /// Returns the record of `region`, if there is one.
    pub(crate) fn find_mut(&mut self, region: Region) -> Option<&mut Record<N>> {
        let index = self
            .records
            .binary_search_by_key(&region, |record| record.region)
            .ok()?;
        self.records.get_mut(index)
    }

    /// Gives it up permanently. Returns true if that is new.
    pub(crate) const fn give_up(&mut self, why: GiveUp) -> bool {
        self.given_up.replace(why).is_none()
    }

    /// Returns true if it is gone: its history no longer counts.
    pub(crate) const fn is_gone(&self) -> bool {
        self.gone
    }

    /// Marks it as gone. Returns the pages that were charged.
    ///
    /// The next look drops the history. If that look shows the process again (a process whose first thread has ended looks gone to some system
    /// calls), the history starts over, but after a wait.
    pub(crate) fn vanish(&mut self, now: Tick) -> u64 {
        self.gone = true;
        self.wait.fail(now, &PROCESS);
        self.records
            .iter_mut()
            .map(|record| u64::from(record.release()))
            .sum()
    }
}

/// Counts a region that a look no longer shows.
fn count_lost<N: Copy + Default>(lost: &Record<N>, view: &Memory<'_>, sums: &mut Sums) {
    sums.vanished += u64::from(lost.in_flight_since().is_some());
    // A huge page of zeroes only leaves no pages behind when it is split.
    let whole = lost.region.range();
    if lost.is_split() && view.is_mapped(&whole) {
        sums.settled += 1;
        sums.returned += u64::from(FULL);
        sums.splits += 1;
        sums.freed += u64::from(FULL);
    }
}

/// Updates the records with a look, in place: old records on the one side, those kept on the other; both in ascending order.
///
/// From look to look few regions come or go. So records change in place, and move only to close a gap. The first record that has to go between two
/// others moves those after it out of the way, once:
///
/// ```text
///   records   [ kept ....... ]  (gap)  [ next ....... ]          in place
///   records   [ kept ....... + ->              spare  [ next ....... ]
/// ```
#[derive(Debug)]
struct Merge<'a, N> {
    records: &'a mut Vec<Record<N>>,
    /// Holds the old ones from the first insertion without a gap on.
    spare: &'a mut Vec<Record<N>>,
    is_spilled: bool,
    kept: usize,
    /// Index of the next old one, in `spare` or in `records`.
    next: usize,
}

impl<'a, N: Copy> Merge<'a, N> {
    /// `spare` is scratch space, with any contents.
    fn new(records: &'a mut Vec<Record<N>>, spare: &'a mut Vec<Record<N>>) -> Self {
        Self {
            records,
            spare,
            is_spilled: false,
            kept: 0,
            next: 0,
        }
    }

    /// Returns the next old record, if `is_wanted` accepts it. It stays the next one.
    fn next_if(&mut self, is_wanted: impl FnOnce(&Record<N>) -> bool) -> Option<&mut Record<N>> {
        let old = if self.is_spilled {
            &mut *self.spare
        } else {
            &mut *self.records
        };
        old.get_mut(self.next).filter(|record| is_wanted(record))
    }

    /// Forgets the next old record.
    const fn drop_next(&mut self) {
        self.next += 1;
    }

    /// Keeps the next old record, which must exist. Returns its new index.
    fn keep_next(&mut self) -> usize {
        if self.is_spilled {
            self.records.push(self.spare[self.next]);
        } else if self.kept != self.next {
            self.records[self.kept] = self.records[self.next];
        }
        self.next += 1;
        self.kept += 1;
        self.kept - 1
    }

    /// Puts a new record before the next old one. Returns its index.
    fn insert(&mut self, record: Record<N>) -> usize {
        let is_at_end = self.next == self.records.len();
        if !self.is_spilled && self.kept == self.next && !is_at_end {
            self.spare.clear();
            self.spare.extend_from_slice(&self.records[self.next..]);
            self.records.truncate(self.kept);
            self.next = 0;
            self.is_spilled = true;
        }
        if self.is_spilled {
            self.records.push(record);
        } else if self.kept < self.next {
            self.records[self.kept] = record;
        } else {
            self.records.push(record);
            self.next += 1;
        }
        self.kept += 1;
        self.kept - 1
    }

    /// Drops all records except those that were kept.
    fn finish(self) {
        self.records.truncate(self.kept);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::{
        PageCount, ProcessId, ProcessView, RegionView, VirtAddr, VirtRange, Vma, VmaKind,
    };

    struct Always;

    impl Rule for Always {
        type Note = ();

        fn ripeness(&self, _: u16, (): &()) -> PromotionReadiness {
            PromotionReadiness::AtOnce
        }
    }

    fn view(pid: u32, regions: u64) -> ProcessView {
        let range = VirtRange::new(VirtAddr(0), VirtAddr(regions << 21)).unwrap();
        let region = |region| RegionView {
            region,
            resident: PageCount(5),
            huge: Some(false),
        };
        ProcessView {
            vmas: vec![Vma {
                range,
                kind: VmaKind::Heap,
                writable: true,
            }],
            regions: range.regions().map(region).collect(),
            ..ProcessView::unread(ProcessId {
                pid,
                start_ticks: 1,
            })
        }
    }

    #[test]
    fn memory_shrinks_with_the_process() {
        let (large, small) = (view(1, 10_000), view(2, 10));
        let mut processes =
            [&large, &small].map(|view| OwnedMemory::new(view.id.into(), Tick::START));
        let mut spare = Vec::new();
        let mut sums = Sums::default();
        for view in [&large, &small, &large, &small] {
            let memory = processes
                .iter_mut()
                .find(|memory| memory.owner == view.id.into())
                .unwrap();
            memory.look(
                &Memory::of_process(view),
                Tick::START,
                &Always,
                &mut spare,
                &mut sums,
            );
            let (length, capacity) = (memory.records.len(), memory.records.capacity());
            assert_eq!(length, view.regions.len());
            assert!(
                capacity <= length + length / 4 + 16,
                "{capacity} for {length}"
            );
        }
        let shrunk = view(1, 7);
        processes[0].look(
            &Memory::of_process(&shrunk),
            Tick::START,
            &Always,
            &mut spare,
            &mut sums,
        );
        assert!(processes[0].records.capacity() < 30);
    }

    mod merge {
        use proptest::prelude::*;
        use superhue_model::{Region, VirtAddr};

        use super::super::*;

        fn record(n: u64, resident: u16) -> Record<()> {
            let region = Region::containing(VirtAddr(n << 21));
            let seen = RegionState {
                region,
                vma: region.range(),
                resident,
                huge: None,
                torn: false,
                looked: None,
            };
            Record::new(&seen, Tick::START)
        }

        fn number(record: &Record<()>) -> (u64, u16) {
            (record.region.start().0 >> 21, record.growth())
        }

        proptest! {
            /// Compares it with a map. For each number: is it old, is it seen, and is it kept?
            #[test]
            fn it_does_what_a_map_would(regions in prop::collection::vec(any::<[bool; 3]>(), 0..60)) {
                let numbered = || (0u64..).zip(&regions);
                let mut records: Vec<_> = numbered()
                    .filter(|(_, [is_old, ..])| *is_old)
                    .map(|(n, _)| record(n, 1))
                    .collect();
                let mut spare = vec![record(999, 9)];
                let mut merge = Merge::new(&mut records, &mut spare);
                let mut expected = Vec::new();
                for (n, &[is_old, is_seen, is_kept]) in numbered() {
                    if !is_seen {
                        continue;
                    }
                    while let Some(lost) = merge.next_if(|old| number(old).0 < n) {
                        prop_assert!(!regions[number(lost).0 as usize][1]);
                        merge.drop_next();
                    }
                    let known = merge.next_if(|old| number(old).0 == n).is_some();
                    prop_assert_eq!(known, is_old);
                    if is_kept {
                        let index = if is_old { merge.keep_next() } else { merge.insert(record(n, 2)) };
                        prop_assert_eq!(index, expected.len());
                        expected.push((n, if is_old { 511 } else { 510 }));
                    } else if is_old {
                        merge.drop_next();
                    }
                }
                merge.finish();
                prop_assert_eq!(records.iter().map(number).collect::<Vec<_>>(), expected);
            }
        }
    }
}
