//! Memory that programs have given back, and that the kernel still holds for them.
//!
//! ```text
//!   freed lazily (MADV_FREE)       present until the kernel wants it     counts as absent; no collapse takes it back     LazilyFreed
//!   parts of a huge page freed     held until the huge page is split     the policy has it split                         Torn
//! ```
//!
//! Both are looked for with each full look at a process. Programs go on freeing between looks, so lazily freed pages are looked for once more
//! right before each collapse, if anybody on the machine has freed some since.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use superhue_act::Target;
use superhue_model::{
    PAGES_PER_REGION, PageCount, ProcessId, ProcessView, Region, RegionView, SkipReason, TornPage,
};
use superhue_procfs::process::{LazyMapping, LazyPages, TornPages, resident_pages};
use superhue_procfs::system::lazily_freed;
use superhue_procfs::{ReadError, Roots};

/// How often a process is searched for torn huge pages that nobody saw becoming torn, at most; and how many times as long as a search
/// takes lies between two.
const SEARCH: Duration = Duration::from_secs(10);
const SEARCH_PACE: u32 = 100;

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
        let mut found = None;
        let mappings =
            || LazyPages::mappings(&self.roots, id).inspect(|all| found = Some(all.is_empty()));
        let pages = self.pages.of_region(&self.roots, id, region, mappings)?;
        if let (Some(true), Some(freed)) = (found, freed) {
            self.none_at.insert(id, freed);
        }
        Ok(pages)
    }

    /// What speaks against the collapse of `target`: it would take back more than the plan counts as growth.
    pub(crate) fn object(&mut self, target: &Target) -> Option<SkipReason> {
        let Target {
            process,
            region,
            growth,
            object,
        } = *target;
        if object.is_some() {
            // What was given back of a shared object is gone.
            return None;
        }
        let lazy = match self.of_region(process, region) {
            Ok(PageCount(0)) => return None,
            Ok(lazy) => lazy,
            Err(error) if error.is_vanished() => return None,
            Err(_) => PageCount(PAGES_PER_REGION),
        };
        let present =
            resident_pages(&self.roots, process, region).unwrap_or(PageCount(PAGES_PER_REGION));
        let absent = PAGES_PER_REGION.saturating_sub(present.0);
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
    witness: PathBuf,
    known: HashMap<ProcessId, Suspects>,
}

/// What may be torn of a process.
#[derive(Debug, Default)]
struct Suspects {
    /// Regions that were huge, and are no longer.
    regions: BTreeSet<Region>,
    /// When everything is searched again.
    search: Duration,
}

impl Torn {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            pages: TornPages::new(roots).ok(),
            witness: roots.sys.join(PARTIALLY_MAPPED),
            known: HashMap::new(),
        }
    }

    /// Whether the kernel says that there is none on the whole machine.
    fn is_none(&self) -> bool {
        let count = fs::read_to_string(&self.witness);
        count.is_ok_and(|count| count.trim() == "0")
    }

    /// Enters those of a process that was just seen into its `view`; `before` is what was seen the last time.
    pub(crate) fn enter(
        &mut self,
        at: Duration,
        before: Option<&ProcessView>,
        view: &mut ProcessView,
    ) {
        let suspects = self.known.entry(view.id).or_default();
        let find = |region| {
            view.regions
                .binary_search_by_key(&region, |seen| seen.region)
        };
        let whole = |seen: &&RegionView| seen.huge == Some(true);
        let were_whole = before
            .iter()
            .flat_map(|before| before.regions.iter().filter(whole));
        let is_small = |region: &Region| match find(*region) {
            Ok(index) => view
                .regions
                .get(index)
                .is_some_and(|seen| seen.huge == Some(false)),
            // All of it is gone, or what is left lies in a smaller mapping.
            Err(_) => view
                .vmas
                .iter()
                .any(|vma| vma.range.overlaps(&region.range())),
        };
        suspects
            .regions
            .extend(were_whole.map(|seen| seen.region).filter(is_small));
        let search = at >= suspects.search;
        if (suspects.regions.is_empty() && !search) || self.is_none() {
            if let Some(suspects) = self.known.get_mut(&view.id) {
                suspects.regions.clear();
            }
            return;
        }
        let Some(suspects) = self.known.get_mut(&view.id) else {
            return;
        };
        let Some(pages) = &self.pages else {
            suspects.regions.retain(is_small);
            let torn = suspects.regions.iter().map(|&region| {
                let left = find(region).ok().and_then(|at| view.regions.get(at));
                let left = left.map_or(0, |seen| seen.resident.0);
                TornPage {
                    region,
                    held: PageCount(PAGES_PER_REGION.saturating_sub(left)),
                }
            });
            let torn: Vec<TornPage> = torn.filter(|torn| torn.held.0 > 0).collect();
            view.torn = torn;
            return;
        };
        let begun = Instant::now();
        let mut windows = suspects.regions.clone();
        if search {
            windows.extend(TornPages::windows(&view.vmas, &view.regions));
        }
        view.torn = pages
            .find(&self.roots, view.id, windows)
            .unwrap_or_default();
        if search {
            suspects.search = at + SEARCH.max(begun.elapsed() * SEARCH_PACE);
        }
        // What is torn stays so until a look shows that it was split.
        suspects.regions = view.torn.iter().map(|torn| torn.region).collect();
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
        if let Some(suspects) = self.known.get_mut(&view.id) {
            suspects.regions.retain(is_torn);
        }
    }

    /// Forgets processes that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.known.retain(|&id, _| is_there(id));
    }
}
