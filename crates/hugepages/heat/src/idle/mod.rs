//! The tracker `idle`: marks page frames idle in the kernel's page_idle bitmap, and checks which ones stay idle.
//!
//! Interface: `Documentation/admin-guide/mm/idle_page_tracking.rst`, `mm/page_idle.c`. Needs root
//! and `CONFIG_IDLE_PAGE_TRACKING`.
//!
//! ```text
//!   arm    pages -> frames -> heads     mark the heads, note which took the mark
//!   read   pages -> frames -> heads     the heads that are no longer idle were touched
//! ```
//!
//! The tracker observes *frames*, so its result differs from that of a look at page tables:
//!
//! * If several processes map a frame, it was touched if any of them touched it. Marking clears the accessed bits in the page tables of all of
//!   them.
//! * Frames that the kernel handles together (a folio) have one mark: all their pages were touched, or none. This includes huge pages, also those
//!   that base page entries map, and the smaller powers of two that `hugepages-*kB` allow.
//! * A system call that reads or writes the memory counts where the kernel marks the page accessed.
//! * A page on no LRU list takes no mark: new ones, which wait in small batches per CPU, pages of hugetlb and of devices, the zero pages. They are
//!   not known to be cold, and are left out.
//!
//! Each read lists the pages again, since memory moves meanwhile:
//!
//! | at arming | at reading | reported as |
//! |---|---|---|
//! | marked | the same frame | idle or touched, by the mark |
//! | marked | another frame, idle | idle: migration takes the mark along |
//! | marked | another frame, not idle | touched: copied on write, swapped in again (or merged by KSM) |
//! | marked | in a huge page since | not known: a collapse makes a new frame without a mark |
//! | absent | present | touched, if anonymous; a file's pages are mapped before they are used |
//! | not marked | present | not known |

mod bitmap;
mod frames;

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use superhue_model::{
    BASE_PAGE_SHIFT, BASE_PAGE_SIZE, PAGES_PER_REGION, PageSet, ProcessId, Region, VirtRange, Vma,
};
use superhue_procfs::process::maps;
use superhue_procfs::{ReadError, Roots};
use superhue_sys::scratch::Scratch;

use super::clear_refs::{ClearRefs, LockTime, may_flush};
use super::memory::Memory;
use super::tracker::{ArmingResult, Reading, RegionBits, Scope, TrackError, Tracker, TrackerKind};
use frames::{Flags, Page, PageListError, present};

const KIND: TrackerKind = TrackerKind::Idle;
const FRAMES_REMEDY: &str = "page frame numbers are hidden: needs CAP_SYS_ADMIN in the initial \
                             user namespace, run as root there";

/// Finds touched pages with the page_idle bitmap; see the [module](super).
///
/// Marks stay when a process is released: only trackers like this one read them.
#[derive(Debug)]
pub struct IdleTracker {
    roots: Roots,
    scope: Scope,
    bitmap: File,
    flags: File,
    may_flush: bool,
    processes: HashMap<ProcessId, Target>,
}

/// A process that was armed.
#[derive(Debug)]
struct Target {
    /// Memory of the process at that time.
    memory: Memory,
    /// Mappings in scope, ascending.
    ranges: Vec<VirtRange>,
    /// Pages of the process at that time, ascending.
    pages: Vec<ArmedPage>,
}

/// A page as it was when the process was armed.
#[derive(Debug, Clone, Copy)]
struct ArmedPage {
    page: u64,
    huge: bool,
    marked: bool,
}

impl IdleTracker {
    /// Opens the files, and checks that tracking works for this caller.
    ///
    /// # Errors
    /// [`TrackError::Unusable`] with what is missing.
    pub fn new(roots: &Roots, scope: Scope) -> Result<Self, TrackError> {
        let path = roots.sys.join("kernel/mm/page_idle/bitmap");
        let bitmap = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .map_err(|error| {
                cannot_open(&path, &error, "a kernel with CONFIG_IDLE_PAGE_TRACKING=y")
            })?;
        let path = roots.proc.join("kpageflags");
        let flags = File::open(&path).map_err(|error| {
            cannot_open(&path, &error, "a kernel with CONFIG_PROC_PAGE_MONITOR=y")
        })?;
        let own = own_page(roots).map_err(|error| {
            let path = roots.proc.join("self/pagemap");
            cannot_open(&path, &error, "a kernel with CONFIG_PROC_PAGE_MONITOR=y")
        })?;
        if own & ((1 << 55) - 1) == 0 {
            return Err(unusable(FRAMES_REMEDY));
        }
        Ok(Self::over(roots, scope, bitmap, flags, may_flush(roots)))
    }

    fn over(roots: &Roots, scope: Scope, bitmap: File, flags: File, may_flush: bool) -> Self {
        Self {
            roots: roots.clone(),
            scope,
            bitmap,
            flags,
            may_flush,
            processes: HashMap::new(),
        }
    }

    /// Flushes the process's TLB entries, if possible. Returns the time for which the process could not map memory; `None` without a flush.
    fn flush(&self, process: ProcessId) -> Option<LockTime> {
        let mut file = self
            .may_flush
            .then(|| ClearRefs::open(&self.roots, process))?;
        file.as_mut().ok()?.flush().ok()
    }

    /// Returns the mappings to watch, ascending.
    fn ranges_of(&self, process: ProcessId) -> Result<Vec<VirtRange>, TrackError> {
        let vmas = maps(&self.roots, process.pid)?;
        let wanted = |vma: &&Vma| self.scope.includes(vma);
        Ok(vmas.iter().filter(wanted).map(|vma| vma.range).collect())
    }

    /// Marks the frames of `pages`. Returns the pages by number, with `marked` set for those that took the mark.
    fn mark(&self, mut pages: Vec<Page>) -> io::Result<Vec<ArmedPage>> {
        let heads = find_heads(&self.flags, &mut pages)?;
        bitmap::mark(&self.bitmap, &heads)?;
        let mut flags = Flags::new(&self.flags);
        let mut noted = Vec::with_capacity(pages.len());
        let mut last = None;
        for page in pages {
            let marked = match last {
                Some((head, marked)) if head == page.head => marked,
                _ => flags.is_marked(page.head)?,
            };
            last = Some((page.head, marked));
            noted.push(ArmedPage {
                page: page.page,
                huge: page.huge,
                marked: page.usable && marked,
            });
        }
        noted.sort_unstable_by_key(|noted| noted.page);
        Ok(noted)
    }

    /// Returns the state of the pages in `ranges`.
    fn bits_of(
        &self,
        watched: &Target,
        ranges: &[VirtRange],
    ) -> Result<Vec<RegionBits>, PageListError> {
        let mut pages = present(watched.memory.pagemap(), &common(&watched.ranges, ranges))?;
        let heads = find_heads(&self.flags, &mut pages)?;
        let idle = bitmap::are_idle(&self.bitmap, &heads)?;
        pages.sort_unstable_by_key(|page| page.page);
        let mut regions = Regions::default();
        let mut noted = watched.pages.iter().peekable();
        let mut collapsed = CollapsedRegions::default();
        for page in &pages {
            while noted.next_if(|noted| noted.page < page.page).is_some() {}
            let before = noted.next_if(|noted| noted.page == page.page);
            let is_idle = heads
                .binary_search(&page.head)
                .ok()
                .and_then(|index| idle[index]);
            if collapsed.holds(page, &watched.pages) {
                continue;
            }
            if let Some(touched) = touched(before, page, is_idle) {
                regions.add(page, touched);
            }
        }
        Ok(regions.0)
    }

    fn explain(&self, process: ProcessId, blind: PageListError) -> TrackError {
        match blind {
            PageListError::FramesHidden => unusable(FRAMES_REMEDY),
            PageListError::Io(error) => {
                let path = self.roots.of_process(process.pid, "pagemap");
                ReadError::of_process(process.pid, &path, error).into()
            }
        }
    }
}

/// Returns true if a page was touched; `None` where that is not known. See the table in the module.
fn touched(before: Option<&ArmedPage>, now: &Page, is_idle: Option<bool>) -> Option<bool> {
    if !now.usable {
        return None;
    }
    match before {
        None => (!now.file).then_some(true),
        Some(before) if !before.marked => None,
        Some(_) => is_idle.map(|is_idle| !is_idle),
    }
}

/// Regions that became huge pages since arming: their frames are new and have no mark.
#[derive(Default)]
struct CollapsedRegions {
    last: Option<(Region, bool)>,
}

impl CollapsedRegions {
    /// Returns true if `now` lies in such a region. `before` are the pages at arming, ascending.
    fn holds(&mut self, now: &Page, before: &[ArmedPage]) -> bool {
        if !now.huge {
            return false;
        }
        let region = now.region();
        match self.last {
            Some((last, collapsed)) if last == region => collapsed,
            _ => {
                let first = region.start().0 >> BASE_PAGE_SHIFT;
                let from = before.partition_point(|noted| noted.page < first);
                let inside = before[from..]
                    .iter()
                    .take_while(|noted| noted.page < first + PAGES_PER_REGION);
                let collapsed = inside.into_iter().any(|noted| !noted.huge);
                self.last = Some((region, collapsed));
                collapsed
            }
        }
    }
}

/// Sorts the pages by frame, and finds their heads. Returns the heads that can be marked, ascending.
fn find_heads(flags: &File, pages: &mut [Page]) -> io::Result<Vec<u64>> {
    pages.sort_unstable_by_key(|page| page.frame);
    Flags::new(flags).find_heads(pages)?;
    let usable = pages.iter().filter(|page| page.usable);
    let mut heads: Vec<u64> = usable.map(|page| page.head).collect();
    // Already sorted: a head precedes its tails.
    heads.dedup();
    Ok(heads)
}

/// Returns the intersection of both lists (ascending, disjoint).
fn common(left: &[VirtRange], right: &[VirtRange]) -> Vec<VirtRange> {
    let (mut left, mut right) = (left.iter().peekable(), right.iter().peekable());
    let mut common = Vec::new();
    while let (Some(&a), Some(&b)) = (left.peek(), right.peek()) {
        let range = VirtRange {
            start: a.start.max(b.start),
            end: a.end.min(b.end),
        };
        if !range.is_empty() {
            common.push(range);
        }
        if a.end <= b.end {
            left.next();
        } else {
            right.next();
        }
    }
    common
}

/// Collects pages into regions; they come in ascending order.
#[derive(Default)]
struct Regions(Vec<RegionBits>);

impl Regions {
    fn add(&mut self, page: &Page, touched: bool) {
        let region = page.region();
        let index = (page.page % PAGES_PER_REGION) as usize;
        let new = match self.0.last() {
            Some(last) => last.region != region,
            None => true,
        };
        if new {
            self.0.push(RegionBits {
                region,
                huge: page.huge,
                present: PageSet::EMPTY,
                accessed: PageSet::EMPTY,
            });
        }
        if let Some(last) = self.0.last_mut() {
            last.present.insert(index);
            if touched {
                last.accessed.insert(index);
            }
        }
    }
}

impl Tracker for IdleTracker {
    fn kind(&self) -> TrackerKind {
        KIND
    }

    fn arm(&mut self, process: ProcessId) -> Result<ArmingResult, TrackError> {
        let start = Instant::now();
        self.processes.remove(&process);
        let memory = Memory::of(&self.roots, process)?;
        let ranges = self.ranges_of(process)?;
        let pages =
            present(memory.pagemap(), &ranges).map_err(|blind| self.explain(process, blind))?;
        let pages = self.mark(pages).map_err(in_use)?;
        let locked = self.flush(process);
        let watched = Target {
            memory,
            ranges,
            pages,
        };
        self.processes.insert(process, watched);
        Ok(ArmingResult {
            took: start.elapsed(),
            elsewhere: Duration::ZERO,
            locked: locked.unwrap_or_default(),
            flushed: locked.is_some(),
        })
    }

    fn read(&mut self, process: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError> {
        let Some(watched) = self.processes.get(&process) else {
            return Err(TrackError::Replaced(process));
        };
        let read = self.bits_of(watched, ranges);
        // Memory that was given up reads as empty, so this check comes after the read.
        if let Err(error) = watched.memory.check(&self.roots) {
            self.processes.remove(&process);
            return Err(error);
        }
        let regions = read.map_err(|blind| self.explain(process, blind))?;
        Ok(Reading::Pages(regions))
    }

    fn release(&mut self, process: ProcessId) {
        self.processes.remove(&process);
    }
}

/// Returns the pagemap word of a page of our own that was just written.
fn own_page(roots: &Roots) -> io::Result<u64> {
    let mut scratch = Scratch::untouched(BASE_PAGE_SIZE as usize)?;
    scratch.touch();
    let pagemap = File::open(roots.proc.join("self/pagemap"))?;
    let words = frames::read_words(&pagemap, scratch.range().start.0 >> BASE_PAGE_SHIFT, 1)?;
    words
        .first()
        .copied()
        .ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

fn unusable(why: impl Into<String>) -> TrackError {
    TrackError::Unusable {
        kind: KIND,
        why: why.into(),
    }
}

fn cannot_open(path: &Path, error: &io::Error, missing: &str) -> TrackError {
    let remedy = match error.kind() {
        io::ErrorKind::NotFound => missing,
        io::ErrorKind::PermissionDenied => "run as root",
        _ => "see `superhue check`",
    };
    unusable(format!("{}: {error}; needs: {remedy}", path.display()))
}

/// A failure of the bitmap or of kpageflags while they are in use.
fn in_use(error: io::Error) -> TrackError {
    unusable(format!("using page_idle/bitmap and kpageflags: {error}"))
}

#[cfg(test)]
mod tests;
