//! The interface of all trackers.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use superhue_model::{PageCount, PageSet, ProcessId, Region, VirtRange, Vma, VmaKind};
use superhue_procfs::ReadError;

/// Method of finding accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrackerKind {
    /// A BPF program reads the page tables: exact per page, for one process.
    Ptwalk,
    /// The page_idle bitmap: exact per page frame, for accesses by any process.
    Idle,
    /// DAMON on virtual addresses: samples one page of each range that it forms.
    Damon,
}

impl TrackerKind {
    /// Every kind, best first.
    pub const ALL: [Self; 3] = [Self::Ptwalk, Self::Idle, Self::Damon];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ptwalk => "ptwalk",
            Self::Idle => "idle",
            Self::Damon => "damon",
        }
    }
}

impl fmt::Display for TrackerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Memory of a process to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// Private memory without a file: heaps, `mmap(MAP_ANONYMOUS)`. The cheapest to watch.
    #[default]
    Anonymous,
    /// Also shared objects, where huge pages could map them.
    Promotable,
    /// Also all shared objects, wherever they are mapped: all memory that the kernel can swap.
    SwapBacked,
    /// Also mapped files and all memory shared with other processes.
    All,
}

impl Scope {
    /// Returns true if this mapping is in scope.
    #[must_use]
    pub fn includes(self, vma: &Vma) -> bool {
        match self {
            Self::Anonymous => vma.is_promotable(),
            Self::Promotable => vma.is_promotable() || vma.aligned_part().is_some(),
            Self::SwapBacked => vma.is_promotable() || matches!(vma.kind, VmaKind::Shmem(_)),
            Self::All => true,
        }
    }

    /// Returns true if there are shared objects in scope: the kernel clears their accessed bits only together with those of all files.
    pub fn has_objects<'a>(self, vmas: impl IntoIterator<Item = &'a Vma>) -> bool {
        let is_object = |vma: &Vma| vma.kind.part().is_some() && self.includes(vma);
        vmas.into_iter().any(is_object)
    }
}

/// Result of one sample for one region that has present pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RegionBits {
    /// The region.
    pub region: Region,
    /// True if one entry maps it whole; then both sets are all pages or none.
    pub huge: bool,
    /// Pages present.
    pub present: PageSet,
    /// Pages touched since the tracker was armed; all of them present.
    pub accessed: PageSet,
}

/// Share of samples in which DAMON found a range touched.
///
/// DAMON watches one page of the range at a time, chosen at random, and treats it as typical of all: the rate is that of the range, not of any page
/// in it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RangeRate {
    /// Address range.
    pub range: VirtRange,
    /// Share of its samples that found the chosen page touched, 0 to 1.
    pub rate: f32,
}

/// One sample.
#[derive(Debug, Clone, PartialEq)]
pub enum Reading {
    /// Per page; ascending by region.
    Pages(Vec<RegionBits>),
    /// Per range; ascending and disjoint.
    Ranges(Vec<RangeRate>),
}

/// Result of arming.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ArmingResult {
    /// Wall time of the tracker's own work (about its CPU time).
    pub took: Duration,
    /// CPU time that the kernel's own threads have spent on the process for the tracker since the last call.
    pub elsewhere: Duration,
    /// The part of `took` in which the target could not fault or map memory.
    pub locked: Duration,
    /// True if the TLB entries of the target were flushed. If not, the tracker misses touches of a page whose translation stays in the TLB.
    pub flushed: bool,
}

/// Reason why a process cannot be tracked.
#[derive(Debug, thiserror::Error)]
pub enum TrackError {
    /// The process's files could not be read; see [`ReadError::is_vanished`].
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The process replaced its memory (exec) between arming and reading: there is no sample, and
    /// the next one starts over.
    #[error("{0} replaced its memory meanwhile")]
    Replaced(ProcessId),
    /// This tracker does not work here, for any process.
    #[error("the tracker {kind} cannot be used: {why}")]
    Unusable {
        /// Kind of the tracker.
        kind: TrackerKind,
        /// The attempt, the kernel's error, and the remedy.
        why: String,
    },
    /// A sample would hold `mmap_lock` of the process for too long.
    #[error(
        "a sample of {process} would keep it from mapping memory for {expected:?}, and {allowed:?} are allowed: it clears {entries} accessed bits in one \
         go; remedy: --tracker damon, huge pages, or --max-stall 0 (no bound)"
    )]
    TooLong {
        /// The process.
        process: ProcessId,
        /// Page-table entries whose bits it would clear.
        entries: u64,
        /// Time that this takes at most.
        expected: Duration,
        /// Time that is allowed.
        allowed: Duration,
    },
    /// Another user clears accessed bits of the same memory.
    #[error(
        "{by} watches the same memory: two that clear accessed bits blind each other; {remedy}"
    )]
    Foreign {
        /// Description of that user, as far as it is known.
        by: String,
        /// Remedy.
        remedy: String,
    },
}

/// An interface that finds the touched pages of a process.
///
/// A sample is [`arm`](Self::arm), an interval in which the process runs, and [`read`](Self::read).
pub trait Tracker: Send {
    /// Returns its kind.
    fn kind(&self) -> TrackerKind;

    /// Forgets all accesses of the process so far, and records later ones.
    ///
    /// # Errors
    /// See [`TrackError`].
    fn arm(&mut self, process: ProcessId) -> Result<ArmingResult, TrackError>;

    /// Returns the pages touched since the process was armed, within `ranges` (ascending, disjoint, page-aligned; its mappings at the time of
    /// arming). Leaves out memory that is no longer mapped.
    ///
    /// # Errors
    /// See [`TrackError`]; `Replaced` if the process was never armed.
    fn read(&mut self, process: ProcessId, ranges: &[VirtRange]) -> Result<Reading, TrackError>;

    /// Releases a process: no part of it is watched any more.
    fn release(&mut self, process: ProcessId);
}

impl RegionBits {
    /// Returns the number of pages present.
    #[must_use]
    pub fn resident(&self) -> PageCount {
        self.present.len()
    }
}
