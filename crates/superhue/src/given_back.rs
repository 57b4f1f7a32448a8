//! Memory that programs have given back, and that the kernel still holds for them.
//!
//! ```text
//!   freed lazily (MADV_FREE)       present until the kernel wants it     counts as absent; no collapse takes it back     LazilyFreed
//!   parts of a huge page freed     held until the huge page is split     the policy has it split                         Torn
//!   made huge again by khugepaged  zeroes where the holes were           the policy has it split once more               Torn
//!   freed during a collapse        the collapse fills the holes          the policy has it split                         Torn
//! ```
//!
//! Both are looked for with each full look at a process. Programs go on freeing between looks, so lazily freed pages are looked for once more
//! right before each collapse, if anybody on the machine has freed some since.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superhue_act::Target;
use superhue_model::{
    PAGES_PER_REGION, PageCount, ProcessId, ProcessView, Region, RegionView, SkipReason, TornPage,
};
use superhue_procfs::process::{
    LazyMapping, LazyPages, TornPages, ZeroPages, Zeroes, most_lazy, resident_pages,
};
use superhue_procfs::system::lazily_freed;
use superhue_procfs::{ReadError, Roots};

/// How often a process is searched for torn huge pages that nobody saw becoming torn, at most; and how many times as long as a search
/// takes lies between two.
const SEARCH: Duration = Duration::from_secs(10);
const SEARCH_PACE: u32 = 100;

/// A process has shrunk if it has lost this many pages since the last look. Regions that were collapsed meanwhile are looked into then, and at the
/// next looks, and are split if they hold this many pages of zeroes more than their collapse was to add.
const SHRUNK: PageCount = PageCount(128);
const LOOKS_AT_FRESH: u8 = 2;
const REFILLED: u64 = 64;

/// A region that was split for what was given back, and is huge again, holds nothing but zeroes in at least this many pages if it is split once
/// more; and how many are looked into at each look, a third of a millisecond each.
const MOSTLY: PageCount = PageCount(PAGES_PER_REGION / 2);
const LOOKED_INTO: usize = 32;

/// How many huge pages the kernel would split if memory were short (Linux 6.12).
const PARTIALLY_MAPPED: &str =
    "kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";

/// Finds pages of processes that were freed lazily.
#[derive(Debug)]
pub(crate) struct LazilyFreed {
    roots: Roots,
    pages: LazyPages,
    /// Pages that had been freed lazily on the whole machine when a process had none.
    none_at: HashMap<ProcessId, u64>,
}

impl LazilyFreed {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            pages: LazyPages::new(roots),
            none_at: HashMap::new(),
        }
    }

    /// Whether a process may have such pages now; the count with which it is known that it has none.
    fn may_have(&self, id: ProcessId) -> (bool, Option<u64>) {
        let freed = lazily_freed(&self.roots).ok().flatten();
        let has_none =
            freed == Some(0) || (freed.is_some() && self.none_at.get(&id) == freed.as_ref());
        (!has_none, freed)
    }

    fn mappings(
        &mut self,
        id: ProcessId,
        freed: Option<u64>,
    ) -> Result<Vec<LazyMapping>, ReadError> {
        let found = LazyPages::mappings(&self.roots, id)?;
        match freed {
            Some(freed) if found.is_empty() => drop(self.none_at.insert(id, freed)),
            _ => drop(self.none_at.remove(&id)),
        }
        Ok(found)
    }

    /// Takes them out of what is resident. `view` was just seen.
    pub(crate) fn take_out(&mut self, view: &mut ProcessView) -> Result<(), ReadError> {
        let (may_have, freed) = self.may_have(view.id);
        if !may_have || view.regions.is_empty() {
            return Ok(());
        }
        let mappings = self.mappings(view.id, freed)?;
        self.pages
            .take_out(&self.roots, view.id, &mappings, &mut view.regions)
    }

    /// Such pages of a region now, at most.
    pub(crate) fn of_region(
        &mut self,
        id: ProcessId,
        region: Region,
    ) -> Result<PageCount, ReadError> {
        let (may_have, freed) = self.may_have(id);
        if !may_have {
            return Ok(PageCount(0));
        }
        let marked = self.pages.marked_in(&self.roots, id, region)?;
        if marked == Some(PageCount(0)) {
            return Ok(PageCount(0));
        }
        let most = most_lazy(&self.mappings(id, freed)?, region);
        Ok(marked.map_or(most, |marked| marked.min(most)))
    }

    /// What speaks against the collapse of `target`: it would add more than the plan counts, as the program has given pages back since the look
    /// that it is from.
    pub(crate) fn object(&mut self, target: &Target) -> Option<SkipReason> {
        let Target {
            process,
            region,
            growth,
            object,
        } = *target;
        // What is resident of a shared object, one process does not tell; what was given back of it is gone.
        if object.is_some() {
            return None;
        }
        // A process that is gone is told by the collapse itself.
        let present = resident_pages(&self.roots, process, region).ok()?;
        let absent = PAGES_PER_REGION.saturating_sub(present.0);
        if absent > growth.0 {
            return Some(SkipReason::GivenBack);
        }
        let lazy = match self.of_region(process, region) {
            Ok(lazy) => lazy,
            Err(error) if error.is_vanished() => return None,
            Err(_) => PageCount(PAGES_PER_REGION),
        };
        (absent + lazy.0 > growth.0).then_some(SkipReason::FreedLazily)
    }

    /// Forgets processes that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.none_at.retain(|&id, _| is_there(id));
    }
}

/// Finds huge pages of processes of which parts were given back.
#[derive(Debug)]
pub(crate) struct Torn {
    roots: Roots,
    /// `None` where flags of frames may not be read. Then those count that were seen whole before.
    pages: Option<TornPages>,
    zeroes: ZeroPages,
    witness: PathBuf,
    known: HashMap<ProcessId, Suspects>,
}

/// What may be torn of a process.
#[derive(Debug, Default)]
struct Suspects {
    /// Regions that may be torn, and whether they were seen whole.
    regions: BTreeMap<Region, bool>,
    /// Those that were split for it, and have had holes at each look since.
    split: BTreeSet<Region>,
    /// Those that were collapsed of late: the pages that this was to add, and how many looks have been since.
    fresh: BTreeMap<Region, (PageCount, u8)>,
    /// Those of them that are to be looked into.
    doubtful: BTreeMap<Region, PageCount>,
    /// When everything is searched again.
    search: Duration,
}

impl Torn {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            pages: TornPages::new(roots),
            zeroes: ZeroPages::new(roots.clone()),
            witness: roots.sys.join(PARTIALLY_MAPPED),
            known: HashMap::new(),
        }
    }

    /// Whether the kernel says that there is none on the whole machine.
    fn is_none(&self) -> bool {
        let count = fs::read_to_string(&self.witness);
        count.is_ok_and(|count| count.trim() == "0")
    }

    /// Enters those of a process that was just seen into its `view`, and what is held of them; `before` is what was seen the last time.
    pub(crate) fn enter(
        &mut self,
        at: Duration,
        before: Option<&ProcessView>,
        view: &mut ProcessView,
    ) {
        let is_known = self.find(at, before, view);
        let again = self.made_huge_again(view);
        view.torn.extend(again);
        let refilled = self.freed_meanwhile(before, view);
        view.torn.extend(refilled);
        view.torn.sort_by_key(|torn| torn.region);
        view.torn.dedup_by_key(|torn| torn.region);
        view.held = is_known.then(|| view.torn.iter().map(|torn| torn.held).sum());
    }

    /// Finds them; whether all that is held is known.
    fn find(&mut self, at: Duration, before: Option<&ProcessView>, view: &mut ProcessView) -> bool {
        let lost = before.map_or_else(Vec::new, |before| no_longer_whole(before, view));
        let known = self.known.get(&view.id);
        let search = known.is_none_or(|suspects| at >= suspects.search);
        let has_suspects = known.is_some_and(|suspects| !suspects.regions.is_empty());
        let is_none = self.is_none();
        if (lost.is_empty() && !has_suspects && !search) || is_none {
            self.known.entry(view.id).or_default().regions.clear();
            return is_none || self.pages.is_some();
        }
        let suspects = self.known.entry(view.id).or_default();
        suspects
            .regions
            .extend(lost.into_iter().map(|region| (region, true)));
        let begun = Instant::now();
        if search {
            for region in TornPages::windows(&view.vmas, &view.regions) {
                suspects.regions.entry(region).or_insert(false);
            }
        }
        let Some(pages) = &self.pages else {
            // Nobody knows which of them are torn: all that may be are tried, those that were not seen whole once.
            suspects.search = Duration::MAX;
            suspects.regions.retain(|&region, was_whole| {
                left_of(view, region).is_some_and(|left| *was_whole || left.0 < PAGES_PER_REGION)
            });
            let torn = suspects.regions.iter().map(|(&region, &was_whole)| {
                let left = left_of(view, region).filter(|_| was_whole);
                let held = left.map_or(0, |left| PAGES_PER_REGION.saturating_sub(left.0));
                TornPage {
                    region,
                    held: PageCount(held),
                }
            });
            view.torn = torn.collect();
            return false;
        };
        let windows = suspects.regions.keys().copied();
        let found = pages.find(&self.roots, view.id, windows);
        let is_known = found.is_ok();
        view.torn = found.unwrap_or_default();
        if search {
            suspects.search = at + SEARCH.max(begun.elapsed() * SEARCH_PACE);
        }
        // What is torn stays so until a look shows that it was split.
        suspects.regions = view.torn.iter().map(|torn| (torn.region, true)).collect();
        is_known
    }

    /// Huge pages in place of what was split, with zeroes in place of what was given back: khugepaged makes them (`max_ptes_none`). Where the
    /// memory may not be read they are left alone.
    fn made_huge_again(&mut self, view: &ProcessView) -> Vec<TornPage> {
        let Some(suspects) = self.known.get_mut(&view.id) else {
            return Vec::new();
        };
        let mut found = Vec::new();
        let mut left = LOOKED_INTO;
        suspects.split.retain(|&region| {
            let Some(seen) = seen_of(view, region) else {
                return false;
            };
            if seen.huge != Some(true) {
                return seen.resident < MOSTLY;
            }
            if left == 0 {
                return true;
            }
            left -= 1;
            let torn = look_into(&mut self.zeroes, view.id, region, MOSTLY);
            found.extend(torn);
            // Else the program has filled it.
            torn.is_some()
        });
        found
    }

    /// Regions of which the program gave pages back between the last check and the collapse, which has filled them with zeroes. Nothing tells
    /// that but what they hold, so only those of a process that has shrunk are looked into.
    fn freed_meanwhile(
        &mut self,
        before: Option<&ProcessView>,
        view: &ProcessView,
    ) -> Vec<TornPage> {
        let Some(suspects) = self.known.get_mut(&view.id) else {
            return Vec::new();
        };
        let rss = before.and_then(|before| before.rss).zip(view.rss);
        let has_shrunk = rss.is_some_and(|(before, now)| before >= now + SHRUNK.bytes());
        if has_shrunk {
            let fresh = std::mem::take(&mut suspects.fresh).into_iter();
            let fresh = fresh.filter(|(_, (growth, _))| growth.0 + REFILLED < PAGES_PER_REGION);
            suspects
                .doubtful
                .extend(fresh.map(|(region, (growth, _))| (region, growth)));
        } else {
            suspects.fresh.retain(|_, (_, looks)| {
                *looks += 1;
                *looks < LOOKS_AT_FRESH
            });
        }
        let mut found = Vec::new();
        let mut left = LOOKED_INTO;
        suspects.doubtful.retain(|&region, growth| {
            if seen_of(view, region).is_none_or(|seen| seen.huge != Some(true)) {
                return false;
            }
            if left == 0 {
                return true;
            }
            left -= 1;
            let least = PageCount(growth.0 + REFILLED);
            found.extend(look_into(&mut self.zeroes, view.id, region, least));
            false
        });
        found
    }

    /// Notes that a region was collapsed on purpose, which was to add `growth`.
    pub(crate) fn was_collapsed(&mut self, id: ProcessId, region: Region, growth: PageCount) {
        if let Some(suspects) = self.known.get_mut(&id) {
            suspects.split.remove(&region);
            suspects.fresh.insert(region, (growth, 0));
        }
    }

    /// Looks again at some that were split. Where that cannot be seen they are taken to be what was asked for.
    pub(crate) fn were_split(&mut self, view: &mut ProcessView, split: &BTreeSet<Region>) {
        let again = split.iter().copied();
        let still = self
            .pages
            .as_ref()
            .and_then(|pages| pages.find(&self.roots, view.id, again).ok());
        let still: BTreeSet<Region> = still.iter().flatten().map(|torn| torn.region).collect();
        let is_torn = |region: &Region| !split.contains(region) || still.contains(region);
        view.torn.retain(|torn| is_torn(&torn.region));
        view.held = view
            .held
            .map(|_| view.torn.iter().map(|torn| torn.held).sum());
        if let Some(suspects) = self.known.get_mut(&view.id) {
            suspects.regions.retain(|region, _| is_torn(region));
            let whole = split.iter().filter(|region| !still.contains(region));
            suspects.split.extend(whole);
        }
    }

    /// Forgets processes that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.known.retain(|&id, _| is_there(id));
    }
}

/// A huge page with at least this many pages of zeroes; `None` if it has fewer, or may not be read.
fn look_into(
    zeroes: &mut ZeroPages,
    id: ProcessId,
    region: Region,
    least: PageCount,
) -> Option<TornPage> {
    match zeroes.count(id, region, least) {
        Ok(Zeroes::Counted(held)) if held >= least => Some(TornPage { region, held }),
        _ => None,
    }
}

/// The view of a region, if a page of it is present in one mapping.
fn seen_of(view: &ProcessView, region: Region) -> Option<&RegionView> {
    let found = view
        .regions
        .binary_search_by_key(&region, |seen| seen.region);
    view.regions.get(found.ok()?)
}

/// Regions that one huge page mapped before and maps no longer, with something left of them.
fn no_longer_whole(before: &ProcessView, view: &ProcessView) -> Vec<Region> {
    let whole = before.regions.iter().filter(|seen| seen.huge == Some(true));
    let whole = whole.map(|seen| seen.region);
    whole
        .filter(|&region| left_of(view, region).is_some())
        .collect()
}

/// How many pages are resident of a region that may be torn; 0 where that is not known, as it is not one mapping's any more. `None` if it is
/// not torn: whole, or unmapped.
fn left_of(view: &ProcessView, region: Region) -> Option<PageCount> {
    match seen_of(view, region) {
        Some(seen) => (seen.huge == Some(false)).then_some(seen.resident),
        None => {
            let range = region.range();
            let is_mapped = view.vmas.iter().any(|vma| vma.range.overlaps(&range));
            is_mapped.then_some(PageCount(0))
        }
    }
}
