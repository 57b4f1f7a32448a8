//! Memory that programs have given back, and that the kernel still holds for them.
//!
//! ```text
//!   freed lazily (MADV_FREE)       present until the kernel wants it     counts as absent; no collapse takes it back     LazyFreeFinder
//!   parts of a huge page freed     held until the huge page is split     the policy has it split                         TornPageFinder
//!   made huge again by khugepaged  zeroes where the holes were           the policy has it split once more               TornPageFinder
//!   freed during a collapse        the collapse fills the holes          the policy has it split                         TornPageFinder
//! ```
//!
//! Each full look at a process searches for both kinds. Programs continue to free memory between looks. So Superhue searches for lazily freed pages
//! once more right before each collapse, if a process on the machine has freed some since.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
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
use superhue_sys::urgency;

use crate::cpu::whole_read;

/// Time for which mappings are reused right before collapses, as a multiple of the time that it took to read them; and the longest.
const READ_PACE: u32 = 50;
const MAX_REUSE: Duration = Duration::from_secs(5);

/// Shortest time between two searches of a process for huge pages that became torn unnoticed; and the shortest time as a multiple of the last
/// search's duration.
const SEARCH: Duration = Duration::from_secs(10);
const SEARCH_PACE: u32 = 100;

/// A process has shrunk if it has lost this many pages since the last look. At that look and the following ones, the regions collapsed meanwhile are
/// read, and are split if they hold this many pages of zeroes more than their collapse was to add.
const SHRUNK: PageCount = PageCount(128);
const LOOKS_AT_FRESH: u8 = 2;
const REFILLED: u64 = 64;

/// A region that was split for memory given back, and is huge again, is split once more if at least this many of its pages hold nothing but zeroes;
/// and the number of regions that are read at each look, a third of a millisecond each.
const MOSTLY: PageCount = PageCount(PAGES_PER_REGION / 2);
const LOOKED_INTO: usize = 32;

/// File below `/sys` with the number of huge pages that the kernel would split if memory were short (Linux 6.12).
const PARTIALLY_MAPPED: &str =
    "kernel/mm/transparent_hugepage/hugepages-2048kB/stats/nr_anon_partially_mapped";

/// Finds pages of processes that were freed lazily.
#[derive(Debug)]
pub(crate) struct LazyFreeFinder {
    roots: Roots,
    pages: LazyPages,
    /// The machine's count of lazily freed pages at the last reading.
    freed: Option<u64>,
    /// Processes without such pages, at that count.
    without: HashSet<ProcessId>,
    /// Mappings of processes that were read not long ago.
    read: HashMap<ProcessId, LazyRead>,
}

/// Mappings of a process with lazily freed pages, as they were read.
#[derive(Debug)]
struct LazyRead {
    mappings: Vec<LazyMapping>,
    /// The machine's count of lazily freed pages before the read.
    freed: Option<u64>,
    /// Time until which they are not read again.
    until: Instant,
}

impl LazyFreeFinder {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            pages: LazyPages::new(roots),
            freed: None,
            without: HashSet::new(),
            read: HashMap::new(),
        }
    }

    /// Returns true if a process may have such pages now.
    fn may_have(&mut self, id: ProcessId) -> bool {
        let freed = lazily_freed(&self.roots).ok().flatten();
        if freed != self.freed {
            self.freed = freed;
            self.without.clear();
        }
        match freed {
            None => true,
            Some(0) => false,
            Some(_) => !self.without.contains(&id),
        }
    }

    /// Reads the mappings of a process that have such pages. That walks all its page tables, so it is scheduled as other programs are.
    fn mappings(&mut self, id: ProcessId) -> Result<&[LazyMapping], ReadError> {
        let begun = Instant::now();
        let found = whole_read(|| urgency::suspended(|| LazyPages::mappings(&self.roots, id)))?;
        if self.freed.is_some() && found.is_empty() {
            self.without.insert(id);
        } else {
            self.without.remove(&id);
        }
        let now = Instant::now();
        self.read.retain(|_, read| now < read.until);
        let read = LazyRead {
            mappings: found,
            freed: self.freed,
            until: now + ((now - begun) * READ_PACE).min(MAX_REUSE),
        };
        Ok(&self.read.entry(id).insert_entry(read).into_mut().mappings)
    }

    /// Returns the number of such pages of a region at most, by the mappings; reads them not more often than costs a small part of the time. `None`
    /// if they are not to be read again yet, and pages were freed since the last read.
    fn most_in(&mut self, id: ProcessId, region: Region) -> Result<Option<PageCount>, ReadError> {
        let now = Instant::now();
        let found = match self.read.get(&id).filter(|read| now < read.until) {
            Some(read) if read.freed == self.freed => &read.mappings,
            Some(_) => return Ok(None),
            None => self.mappings(id)?,
        };
        Ok(Some(most_lazy(found, region)))
    }

    /// Takes such pages out of the resident ones. `view` is from a look just now.
    pub(crate) fn take_out(&mut self, view: &mut ProcessView) -> Result<(), ReadError> {
        if !self.may_have(view.id) || view.regions.is_empty() {
            return Ok(());
        }
        let mappings = self.mappings(view.id)?.to_vec();
        self.pages
            .take_out(&self.roots, view.id, &mappings, &mut view.regions)
    }

    /// Returns the number of such pages of a region now, at most.
    pub(crate) fn of_region(
        &mut self,
        id: ProcessId,
        region: Region,
    ) -> Result<PageCount, ReadError> {
        if !self.may_have(id) {
            return Ok(PageCount(0));
        }
        let marked = self.pages.marked_in(&self.roots, id, region)?;
        if marked == Some(PageCount(0)) {
            return Ok(PageCount(0));
        }
        let all = PageCount(PAGES_PER_REGION);
        let most = self.most_in(id, region)?.unwrap_or(all);
        Ok(marked.map_or(most, |marked| marked.min(most)))
    }

    /// Returns the objection to the collapse of `target`: it would add more than the plan counts, as the program has given pages back since the look
    /// that the plan is from.
    pub(crate) fn object(&mut self, target: &Target) -> Option<SkipReason> {
        let Target {
            process,
            region,
            growth,
            object,
        } = *target;
        // The resident pages of a shared object do not show in one process; pages of it that were given back are gone.
        if object.is_some() {
            return None;
        }
        // The collapse itself reports a process that is gone.
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
        self.without.retain(|&id| is_there(id));
        self.read.retain(|&id, _| is_there(id));
    }
}

/// Finds huge pages of which processes gave parts back.
#[derive(Debug)]
pub(crate) struct TornPageFinder {
    roots: Roots,
    /// `None` where flags of frames may not be read. Then regions that an earlier look saw whole count as torn.
    pages: Option<TornPages>,
    zeroes: ZeroPages,
    witness: PathBuf,
    known: HashMap<ProcessId, SuspectRegions>,
}

/// Regions of a process that may be torn.
#[derive(Debug, Default)]
struct SuspectRegions {
    /// Regions that may be torn; true for those that a look saw whole.
    regions: BTreeMap<Region, bool>,
    /// Regions that were split for it, and have had holes at each look since.
    split: BTreeSet<Region>,
    /// Recently collapsed regions: the pages that the collapse was to add, and the number of looks since.
    fresh: BTreeMap<Region, (PageCount, u8)>,
    /// Collapsed regions that are still to be read.
    doubtful: BTreeMap<Region, PageCount>,
    /// Time of the next search of all regions.
    search: Duration,
}

impl TornPageFinder {
    pub(crate) fn new(roots: &Roots) -> Self {
        Self {
            roots: roots.clone(),
            pages: TornPages::new(roots),
            zeroes: ZeroPages::new(roots.clone()),
            witness: roots.sys.join(PARTIALLY_MAPPED),
            known: HashMap::new(),
        }
    }

    /// Returns true if the kernel counts no such page on the whole machine.
    fn is_none(&self) -> bool {
        let count = fs::read_to_string(&self.witness);
        count.is_ok_and(|count| count.trim() == "0")
    }

    /// Enters the torn pages of a process that was looked at just now into its `view`, and the pages held by them; `before` is the previous view.
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

    /// Finds torn pages; returns true if all held pages are known.
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
            // It is not known which of them are torn: all candidates are tried, and those that no look saw whole are tried once.
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
        // A torn page stays torn until a look shows that it was split.
        suspects.regions = view.torn.iter().map(|torn| (torn.region, true)).collect();
        is_known
    }

    /// Finds huge pages in place of split ones, with zeroes in place of the pages given back: khugepaged makes them (`max_ptes_none`). Where the
    /// memory may not be read it leaves them alone.
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
            // Otherwise the program has filled it.
            torn.is_some()
        });
        found
    }

    /// Finds regions of which the program gave pages back between the last check and the collapse, which has filled them with zeroes. Only their
    /// contents show that, so they are read only if the process has shrunk.
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

    /// Notes that Superhue collapsed a region; the collapse was to add `growth`.
    pub(crate) fn was_collapsed(&mut self, id: ProcessId, region: Region, growth: PageCount) {
        if let Some(suspects) = self.known.get_mut(&id) {
            suspects.split.remove(&region);
            suspects.fresh.insert(region, (growth, 0));
        }
    }

    /// Checks regions that were split. Where that cannot be seen, the splits are taken to have succeeded.
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

    /// Returns the CPU time that other threads have spent on reading memory since the last call.
    pub(crate) fn take_spent(&mut self) -> Duration {
        self.zeroes.take_spent()
    }

    /// Forgets processes that are gone.
    pub(crate) fn retain(&mut self, is_there: impl Fn(ProcessId) -> bool) {
        self.known.retain(|&id, _| is_there(id));
    }
}

/// Returns a huge page with at least this many pages of zeroes; `None` if it has fewer, or may not be read.
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

/// Returns the view of a region, if a page of it is present in one mapping.
fn seen_of(view: &ProcessView, region: Region) -> Option<&RegionView> {
    let found = view
        .regions
        .binary_search_by_key(&region, |seen| seen.region);
    view.regions.get(found.ok()?)
}

/// Returns regions that one huge page mapped before and maps no longer, with something left of them.
fn no_longer_whole(before: &ProcessView, view: &ProcessView) -> Vec<Region> {
    let whole = before.regions.iter().filter(|seen| seen.huge == Some(true));
    let whole = whole.map(|seen| seen.region);
    whole
        .filter(|&region| left_of(view, region).is_some())
        .collect()
}

/// Returns the number of resident pages of a region that may be torn; 0 where that is not known, as one mapping no longer holds it. `None` if the
/// region is not torn: whole, or unmapped.
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

#[cfg(test)]
mod tests {
    use superhue_model::VirtAddr;

    use super::*;

    #[test]
    fn pages_freed_since_the_mappings_were_read_count() {
        let folder = tempfile::tempdir().unwrap();
        let roots = Roots::under(folder.path());
        let process = roots.proc.join("7");
        fs::create_dir_all(&process).unwrap();
        let freed =
            |count: u64| fs::write(roots.proc.join("vmstat"), format!("pglazyfree {count}\n"));
        let lazy = |first: u64, second: u64| {
            let vma = |range: &str, kib: u64| {
                format!(
                    "{range} rw-p 00000000 00:00 0 \nRss: 2048 kB\nLazyFree: {kib} kB\nVmFlags: rd wr\n"
                )
            };
            let smaps = vma("200000-400000", first) + &vma("600000-800000", second);
            fs::write(process.join("smaps"), smaps).unwrap();
            let sum = format!(
                "200000-800000 ---p 00000000 00:00 0 [rollup]\nRss: 4096 kB\nLazyFree: {} kB\n",
                first + second
            );
            fs::write(process.join("smaps_rollup"), sum).unwrap();
        };
        let id = ProcessId {
            pid: 7,
            start_ticks: 1,
        };
        let [first, second] = [0x20_0000, 0x60_0000].map(|at| Region::containing(VirtAddr(at)));
        let mut finder = LazyFreeFinder::new(&roots);
        freed(2).unwrap();
        lazy(8, 0);
        assert_eq!(finder.of_region(id, first).unwrap(), PageCount(2));
        let read = finder.read.get_mut(&id).unwrap();
        read.until = Instant::now() + Duration::from_secs(60);
        assert_eq!(finder.of_region(id, second).unwrap(), PageCount(0));
        // They are not read again yet, so any page may be one.
        freed(6).unwrap();
        lazy(8, 16);
        assert_eq!(finder.of_region(id, second).unwrap(), PageCount(512));
        finder.read.get_mut(&id).unwrap().until = Instant::now();
        assert_eq!(finder.of_region(id, second).unwrap(), PageCount(4));
    }
}
