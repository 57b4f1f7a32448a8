//! Shared objects in the loop: their mappers, their resident memory, and their heat.
//!
//! ```text
//!   memory maps of all members ──> mappers by object ──> look at the object, as often as at a process
//!   heat of each member        ──> summed up by object ──────────────┐
//!                                                       snapshot ──> decide ──> collapse through one of the mappers
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use superhue_model::{
    ActionResult, ByteCount, ObjectId, Owner, PAGES_PER_REGION, PageCount, ProcessHeat, ProcessId,
    Region, RegionHeat, Snapshot,
};
use superhue_procfs::process::{MAPPERS_READ, Mapper, ObjectLook, object_view};

use super::Watch;
use super::growth::MIN_FILL_PAGES;
use super::known::FIRST_LOOK;
use super::look::FULL_LOOK_AT_LEAST;
use crate::ceiling;
use crate::objects::{mappers_by_object, misaligned_by, name_of, processes_of};

/// Upper bound on the processes that are named for one region; `act` tries them in order.
const WAYS: usize = 4;

/// Mappers whose page tables each look reads; the first of them, through which regions are collapsed, is always included.
const MAPPERS_GLANCED_AT: usize = 4;

/// Number of objects from which on first looks at them wait for their turn.
const CROWD_OBJECTS: usize = 64;

/// Time that the looks at the end may take together, about: the end of Superhue waits for it.
const LAST_LOOKS: Duration = Duration::from_millis(500);

/// Objects that are kept for the report after their last mapper has gone.
const REMEMBERED: usize = 64;

/// Mappers of each object. The loop writes them when it looks, and reads them when it acts.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mappings(Arc<Mutex<BTreeMap<ObjectId, Vec<Mapper>>>>);

impl Mappings {
    /// Returns the processes that map the whole region aligned, each with the region at which it maps it.
    pub(crate) fn of(&self, object: ObjectId, region: Region) -> Vec<(ProcessId, Region)> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mappers = known.get(&object).map_or(&[][..], Vec::as_slice);
        let there = |mapper: &Mapper| Some((mapper.process, mapper.region_of(region)?));
        mappers.iter().filter_map(there).take(WAYS).collect()
    }

    fn mappers(&self, object: ObjectId) -> Vec<Mapper> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&object).cloned().unwrap_or_default()
    }

    fn replace(&self, new: BTreeMap<ObjectId, Vec<Mapper>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }
}

/// State of the shared objects.
#[derive(Debug, Default)]
pub(super) struct Objects {
    mappings: Mappings,
    pub(super) known: BTreeMap<ObjectId, KnownObject>,
    /// True if a memory map was read since mappers were last gathered.
    pub(super) maps_changed: bool,
    /// True if heat was read since it was last summed up.
    pub(super) heat_changed: bool,
}

/// State of one shared object.
#[derive(Debug)]
pub(crate) struct KnownObject {
    /// Name that the kernel shows for it.
    pub(crate) name: String,
    /// Number of processes that map it now; `most_mappers` is the highest number at any look.
    mappers: usize,
    pub(crate) most_mappers: usize,
    /// Misalignment of the first misaligned mapping, in bytes.
    pub(crate) misaligned_by: Option<u64>,
    /// The last look that showed it in memory.
    pub(crate) last: Option<ObjectLook>,
    /// Regions that were collapsed.
    pub(crate) collapsed: u64,
    /// Pages that these collapses added.
    pub(crate) growth: PageCount,
    /// Resident bytes at the last look, and what collapses have added since.
    resident: Option<ByteCount>,
    /// True if it had grown between the last two looks, or there were no two.
    grows: bool,
    looked: Option<Duration>,
    cost: Duration,
    /// True if it has changed since the last look.
    is_stale: bool,
}

impl Objects {
    pub(super) fn over(mappings: Mappings) -> Self {
        Self {
            mappings,
            ..Self::default()
        }
    }
}

impl Watch {
    /// Gathers mappers, and looks at the objects that are due.
    pub(super) fn look_at_objects(&mut self) {
        let changed = std::mem::take(&mut self.objects.maps_changed);
        if changed {
            self.gather_objects();
        }
        let at = self.snapshot.at;
        let due = |known: &KnownObject| {
            let affordable = ceiling::apart(known.cost, self.max_overhead * ceiling::LOOKS / 2.0);
            let Some(looked) = known.looked else {
                return true;
            };
            let overdue = at.saturating_sub(looked) >= FULL_LOOK_AT_LEAST.max(affordable);
            changed || overdue || known.is_stale
        };
        let mapped = self.objects.known.iter();
        let mapped = mapped.filter(|(_, known)| known.mappers > 0 && due(known));
        let mut waiting: Vec<_> = mapped
            .map(|(&id, known)| (known.looked, known.cost, id))
            .collect();
        // The longest wait comes first. Where there are many, first looks wait until the share of looks pays for them, too.
        waiting.sort_unstable();
        let is_crowd = self.objects.known.len() >= CROWD_OBJECTS;
        for (looked, cost, id) in waiting {
            let is_free = looked.is_none() && !is_crowd;
            if is_free || self.allowance.covers(at, cost.max(FIRST_LOOK)) {
                self.look_at_object(id, MAPPERS_GLANCED_AT);
            }
        }
    }

    /// Looks at all objects, as far as a moment allows it. Objects with collapsed regions come first: the looks show the effect of the last
    /// collapses.
    pub(super) fn look_at_objects_at_the_end(&mut self) {
        if std::mem::take(&mut self.objects.maps_changed) {
            self.gather_objects();
        }
        let known = self.objects.known.iter();
        let mapped = known.filter(|(_, known)| known.mappers > 0);
        let mut all: Vec<_> = mapped
            .map(|(&id, known)| (known.collapsed == 0, known.looked, id))
            .collect();
        all.sort_unstable();
        let begun = Instant::now();
        for (_, _, id) in all {
            if begun.elapsed() >= LAST_LOOKS {
                break;
            }
            self.look_at_object(id, MAPPERS_READ);
        }
    }

    /// Marks the objects that are being filled: they grow, and so does the part that a process has in its page tables. A process that maps pages
    /// that exist already does not fill them.
    pub(super) fn note_what_fills(&mut self) {
        if self.snapshot.objects.is_empty() {
            return;
        }
        let at = self.snapshot.at;
        let known = self.known.iter();
        let filling: BTreeSet<ProcessId> = known
            .filter(|(_, known)| known.growth.maps_fast(at))
            .map(|(&id, _)| id)
            .collect();
        for object in &mut self.snapshot.objects {
            let known = self.objects.known.get(&object.id);
            let grows = known.is_none_or(|known| known.grows);
            object.fills = grows && !filling.is_empty() && {
                let mappers = self.objects.mappings.mappers(object.id);
                mappers.iter().any(|it| filling.contains(&it.process))
            };
        }
    }

    fn gather_objects(&mut self) {
        let processes = self.snapshot.processes.iter();
        let found = mappers_by_object(processes.map(|it| (it.id, it.vmas.as_slice())));
        self.snapshot
            .objects
            .retain(|object| found.contains_key(&object.id));
        let known = &mut self.objects.known;
        for (id, object) in known.iter_mut() {
            if !found.contains_key(id) {
                object.mappers = 0;
            }
        }
        for (&id, mappers) in &found {
            let object = known.entry(id).or_insert_with(|| KnownObject {
                name: name_of(&self.roots, mappers),
                mappers: 0,
                most_mappers: 0,
                misaligned_by: None,
                last: None,
                collapsed: 0,
                growth: PageCount(0),
                resident: None,
                grows: true,
                looked: None,
                cost: Duration::ZERO,
                is_stale: false,
            });
            object.mappers = processes_of(mappers);
            object.most_mappers = object.most_mappers.max(object.mappers);
            object.misaligned_by = misaligned_by(mappers);
        }
        if known.len() > found.len() + REMEMBERED {
            // The report does not need objects without a collapse.
            known.retain(|_, object| object.mappers > 0 || object.collapsed > 0);
        }
        if known.len() > found.len() + REMEMBERED {
            known.retain(|_, object| object.mappers > 0);
        }
        self.objects.mappings.replace(found);
    }

    fn look_at_object(&mut self, id: ObjectId, most: usize) {
        let begun = Instant::now();
        let mappers = self.objects.mappings.mappers(id);
        let look = object_view(&self.roots, id, &mappers, most);
        let cost = begun.elapsed();
        let at = self.snapshot.at;
        self.allowance.spend_without_debt(at, cost);
        let Some(known) = self.objects.known.get_mut(&id) else {
            return;
        };
        (known.looked, known.cost, known.is_stale) = (Some(at), cost, false);
        let look = match look {
            Ok(look) => look,
            Err(error) => {
                tracing::debug!(%id, %error, "not looked at");
                return;
            }
        };
        tracing::debug!(%id, ?cost, resident = %look.view.resident, mappers = mappers.len(), "looked at");
        let mut view = look.view.clone();
        let before = known.resident.replace(view.resident);
        let least = PageCount(MIN_FILL_PAGES).bytes();
        known.grows = before.is_none_or(|before| view.resident >= before + least);
        if look.view.resident.0 > 0 {
            known.last = Some(look);
        }
        let objects = &mut self.snapshot.objects;
        match objects.binary_search_by_key(&id, |object| object.id) {
            Ok(index) => {
                view.heat = objects[index].heat.take();
                objects[index] = view;
            }
            Err(index) => {
                view.heat = heat_of(&mappers, &self.snapshot);
                self.snapshot.objects.insert(index, view);
            }
        }
    }

    /// Sums up the heat of the objects, if there is new heat.
    pub(super) fn warm_objects(&mut self) {
        if !std::mem::take(&mut self.objects.heat_changed) {
            return;
        }
        for index in 0..self.snapshot.objects.len() {
            let id = self.snapshot.objects[index].id;
            let mappers = self.objects.mappings.mappers(id);
            self.snapshot.objects[index].heat = heat_of(&mappers, &self.snapshot);
        }
    }

    /// Enters the collapse of a region of an object.
    pub(super) fn apply_to_object(
        &mut self,
        id: ObjectId,
        result: &ActionResult,
        growth: PageCount,
    ) {
        let region = result.action.region();
        if let Some(object) = self.snapshot.object_mut(id) {
            if let Ok(index) = (object.regions).binary_search_by_key(&region, |seen| seen.region) {
                object.regions[index].collapsed();
            }
            object.resident += growth.bytes();
        }
        if let Some(known) = self.objects.known.get_mut(&id) {
            known.collapsed += 1;
            known.growth += growth;
            known.resident = known.resident.map(|resident| resident + growth.bytes());
        }
    }

    /// Marks an object that has changed since the last look; returns true if it is known.
    pub(super) fn note_stale_object(&mut self, id: ObjectId) -> bool {
        let known = self.objects.known.get_mut(&id);
        known.is_some_and(|known| {
            known.is_stale = true;
            true
        })
    }

    /// Returns the processes that map an object.
    pub(super) fn processes_mapping(&self, id: ObjectId) -> BTreeSet<ProcessId> {
        let mappers = self.objects.mappings.mappers(id);
        mappers.iter().map(|mapper| mapper.process).collect()
    }

    /// Returns the processes that an action on a region changes: its owner, or the mappers of the whole region.
    pub(super) fn mappers_of(&self, owner: Owner, region: Region) -> Vec<ProcessId> {
        match owner {
            Owner::Process(id) => vec![id],
            Owner::Object(id) => {
                let ways = self.objects.mappings.of(id, region);
                ways.into_iter().map(|(process, _)| process).collect()
            }
        }
    }
}

/// Returns the heat of an object: the sum of the heat of all its mappers.
///
/// A page that two of them touch counts twice, up to the number of pages in a region. Mappers without samples so far count like the
/// sampled ones: with a hundred mappers it takes minutes to sample each. `None` until some mapper has samples.
fn heat_of(mappers: &[Mapper], snapshot: &Snapshot) -> Option<ProcessHeat> {
    let heat = |id| {
        snapshot
            .process(id)
            .and_then(|process| process.heat.as_ref())
    };
    let everyone: BTreeSet<ProcessId> = mappers.iter().map(|mapper| mapper.process).collect();
    let sampled = everyone.iter().filter(|&&id| heat(id).is_some()).count();
    let mut sum: Option<ProcessHeat> = None;
    let mut regions: BTreeMap<Region, RegionHeat> = BTreeMap::new();
    for mapper in mappers {
        let Some(heat) = heat(mapper.process) else {
            continue;
        };
        let all = sum.get_or_insert_with(ProcessHeat::default);
        all.samples = all.samples.max(heat.samples);
        all.watched = all.watched.max(heat.watched);
        let first = Region::containing(mapper.range.start);
        let from = heat.regions.partition_point(|seen| seen.region < first);
        for seen in heat.regions.iter().skip(from) {
            if seen.region.start() >= mapper.range.end {
                break;
            }
            let Some(region) = mapper.region_at(seen.region) else {
                continue;
            };
            // One sample does not show whether the process touches the same pages again.
            let rate = match seen.active {
                Some(_) if heat.samples < 2 => 0.0,
                _ => seen.rate,
            };
            let seen = RegionHeat {
                region,
                rate,
                ..*seen
            };
            let entry = regions.entry(region);
            entry
                .and_modify(|known| *known = both(known, &seen))
                .or_insert(seen);
        }
    }
    let mut sum = sum?;
    let seen = regions.into_values();
    sum.regions = seen
        .map(|seen| of_all(seen, everyone.len(), sampled))
        .collect();
    Some(sum)
}

/// Returns the heat of a region for `everyone`, if `sampled` of the mappers see it as `seen`.
#[allow(clippy::cast_precision_loss, reason = "numbers of processes")]
fn of_all(seen: RegionHeat, everyone: usize, sampled: usize) -> RegionHeat {
    let more = everyone as f32 / sampled.max(1) as f32;
    let pages = |pages: f32| (pages * more).min(PAGES_PER_REGION as f32);
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "0 to 512"
    )]
    let active = seen
        .active
        .map(|active| PageCount(pages(active.0 as f32) as u64));
    RegionHeat {
        active,
        // Not all mappers are looked at, so whether a huge page maps it is not known of the object as a whole.
        is_range: seen.is_range || active.is_none(),
        // For a huge page the rate is a share of samples.
        rate: active.map_or(seen.rate, |_| pages(seen.rate)),
        per_second: seen.per_second * more,
        ..seen
    }
}

/// Returns the heat of one region that two processes see.
fn both(one: &RegionHeat, other: &RegionHeat) -> RegionHeat {
    #[allow(clippy::cast_precision_loss, reason = "at most 512 pages")]
    let most = PAGES_PER_REGION as f32;
    let (active, rate) = match (one.active, other.active) {
        (Some(a), Some(b)) => (
            Some(PageCount((a + b).0.min(PAGES_PER_REGION))),
            (one.rate + other.rate).min(most),
        ),
        // In one of them a huge page maps the region, so its rate is a share of samples.
        (Some(_), None) => (None, other.rate),
        (None, Some(_)) => (None, one.rate),
        (None, None) => (None, one.rate.max(other.rate)),
    };
    RegionHeat {
        region: one.region,
        active,
        is_range: one.is_range || other.is_range,
        rate,
        per_second: one.per_second + other.per_second,
        idle: one.idle.min(other.idle),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_model::{HUGE_PAGE_SIZE, ObjectPart, ProcessView, VirtAddr, VirtRange};

    fn id(pid: u32) -> ProcessId {
        ProcessId {
            pid,
            start_ticks: 1,
        }
    }

    const OBJECT: ObjectId = ObjectId {
        device: (0, 1),
        inode: 7,
    };

    fn mapper(pid: u32, first: u64, offset: u64) -> Mapper {
        let address = |region: u64| VirtAddr(region * HUGE_PAGE_SIZE);
        Mapper {
            process: id(pid),
            range: VirtRange::new(address(first), address(first + 4)).unwrap(),
            part: ObjectPart {
                object: OBJECT,
                offset: offset * HUGE_PAGE_SIZE,
            },
            is_file: false,
        }
    }

    fn region(number: u64) -> Region {
        Region::containing(VirtAddr(number * HUGE_PAGE_SIZE))
    }

    fn process(pid: u32, heat: &[(u64, Option<u64>, f32)]) -> ProcessView {
        let regions = heat.iter().map(|&(number, active, rate)| RegionHeat {
            region: region(number),
            active: active.map(PageCount),
            is_range: false,
            rate,
            per_second: rate,
            idle: Duration::from_secs(u64::from(pid)),
        });
        ProcessView {
            heat: Some(ProcessHeat {
                samples: u64::from(pid),
                watched: Duration::from_secs(3),
                regions: regions.collect(),
            }),
            ..ProcessView::unread(id(pid))
        }
    }

    #[test]
    fn an_object_is_as_hot_as_all_who_map_it_find_it() {
        let mut snapshot = Snapshot::default();
        let mappers = [mapper(1, 10, 0), mapper(2, 20, 2), mapper(3, 30, 0)];
        assert_eq!(heat_of(&mappers, &snapshot), None, "nobody was sampled");
        snapshot.put(process(
            1,
            &[
                (9, Some(500), 9.0),
                (10, Some(100), 2.0),
                (12, Some(300), 5.0),
                (14, None, 1.0),
            ],
        ));
        snapshot.put(process(
            2,
            &[(20, Some(300), 7.0), (21, None, 0.5), (23, Some(1), 1.0)],
        ));
        let heat = heat_of(&mappers, &snapshot).unwrap();
        assert_eq!(heat.samples, 2);
        let seen: Vec<_> = heat
            .regions
            .iter()
            .map(|heat| (heat.region, heat.active.map(|pages| pages.0), heat.rate))
            .collect();
        let expected = [
            // The third counts like the other two; pages that the first saw only once may differ each time.
            (region(0), Some(150), 0.0),
            (region(2), Some(512), 10.5),
            (region(3), None, 0.5),
            (region(5), Some(1), 1.5),
        ];
        assert_eq!(seen, expected);
        let both = heat.of(region(2)).unwrap();
        assert_eq!(both.idle, Duration::from_secs(1));
        assert_eq!(both.per_second, 18.0);
    }

    #[test]
    fn a_region_is_reached_through_those_who_map_all_of_it() {
        let mappings = Mappings::default();
        assert_eq!(mappings.of(OBJECT, region(0)), []);
        let mappers = vec![mapper(1, 10, 0), mapper(2, 20, 2)];
        mappings.replace(BTreeMap::from([(OBJECT, mappers)]));
        assert_eq!(mappings.of(OBJECT, region(1)), [(id(1), region(11))]);
        let both = [(id(1), region(13)), (id(2), region(21))];
        assert_eq!(mappings.of(OBJECT, region(3)), both);
        assert_eq!(mappings.of(OBJECT, region(6)), []);
    }
}
