//! Resident pages of a process, and those that are huge-mapped, region by region.
//!
//! There are two methods; the scanner uses the first that works:
//!
//! 1. [`ScanMethod::PagemapScan`]: `ioctl(PAGEMAP_SCAN)` (Linux 6.7) answers in runs of equal pages
//!    and steps over holes at the empty level of the page table, so a terabyte that was
//!    reserved and never touched costs nothing.
//! 2. [`ScanMethod::PagemapFile`]: `/proc/PID/pagemap`, eight bytes for every page, mapped or not.
//!    It shows neither huge mappings nor the shared zero page; `smaps` fills in what can be inferred.
//!
//! A page is resident if it is mapped and is not the shared zero page, which belongs to
//! no process and is not part of RSS either. A read of untouched memory maps the zero page; a promotion that counted it
//! as resident would add memory that no budget allows for.

mod lazy;
mod object;
mod present;
mod resident;
mod sample;
mod scan;
mod shared;
mod torn;
mod uses;
mod windows;
mod words;

use std::fs::File;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use superhue_model::{ProcessId, Region, RegionView, Vma};
use superhue_sys::pagemap::PageRegion;

use crate::{ReadError, Roots};

use super::absent::refine;
use super::identity::still_is;
use super::smaps::VmaUse;

pub use lazy::{LazyMapping, LazyPages, most_lazy};
pub use object::{MAPPERS_READ, Mapper, ObjectLook, cached_region, object_view};
pub use present::{PresentPage, present_pages};
pub use resident::{resident_pages, swapped_pages};
pub use sample::sample_words;
pub use scan::is_huge;
pub use shared::{shared_pages, shared_pages_of};
pub use torn::TornPages;
pub use uses::WindowUse;
pub use words::{PageWord, page_words};

/// Meaning of the absence of `pagemap`.
const NO_PAGEMAP: &str = "this kernel was built without CONFIG_PROC_PAGE_MONITOR";

/// Runs of pages read from the kernel at a time: 24 KiB, one run for every page of two regions at worst. Each worker of the daemon
/// has a buffer of this size.
const RUNS: usize = 1024;

/// Method of counting pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScanMethod {
    /// `ioctl(PAGEMAP_SCAN)`: exact, and shows huge mappings.
    PagemapScan,
    /// The words of `/proc/PID/pagemap`, helped by `smaps`: slower, and does not always show huge mappings.
    PagemapFile,
}

impl ScanMethod {
    /// Describes the method in a few words for a report.
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::PagemapScan => "PAGEMAP_SCAN",
            Self::PagemapFile => "pagemap file and smaps (kernel before 6.7)",
        }
    }
}

/// Counter of resident and huge-mapped pages by region. Keeps its buffer from scan to scan.
#[derive(Debug)]
pub struct PageScanner {
    /// Method to try first; lowered permanently if the kernel lacks the call.
    try_first: ScanMethod,
    last: Option<ScanMethod>,
    runs: Vec<PageRegion>,
}

impl Default for PageScanner {
    fn default() -> Self {
        Self::new()
    }
}

impl PageScanner {
    /// Makes a scanner that uses the best method of the kernel.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_with(ScanMethod::PagemapScan)
    }

    /// Makes a scanner that tries nothing better than `method`, for comparing methods.
    #[must_use]
    pub fn starting_with(method: ScanMethod) -> Self {
        Self {
            try_first: method,
            last: None,
            runs: Vec::new(),
        }
    }

    /// Returns the method of the last scan; `None` before the first.
    #[must_use]
    pub const fn method(&self) -> Option<ScanMethod> {
        self.last
    }

    /// Returns the regions of `id` that have resident pages and lie wholly inside a promotable VMA of
    /// `vmas` (ascending and disjoint, as [`maps`](super::maps) returns them), ascending.
    ///
    /// Needs ptrace read access to the process.
    ///
    /// # Errors
    /// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without
    /// `pagemap`; [`ReadError::Io`].
    pub fn regions(
        &mut self,
        roots: &Roots,
        id: ProcessId,
        vmas: &[Vma],
    ) -> Result<Vec<RegionView>, ReadError> {
        let (path, pagemap) = open(roots, id)?;
        let failed = |error| ReadError::of_process(id.pid, &path, error);
        let scanned = self.scanned(|runs| scan::regions(&pagemap, vmas, runs));
        if let Some(views) = scanned.map_err(|errno| failed(errno.into()))? {
            return Ok(views);
        }
        let sizes = words::sizes(roots, id.pid, vmas)?;
        words::regions(&pagemap, vmas, &sizes).map_err(failed)
    }

    /// Returns the use of every aligned 2 MiB window of every VMA of `vmas`, whatever backs it: the windows that have resident or
    /// swapped pages, ascending. `vmas` comes from a call of [`vma_uses`](super::vma_uses) just before.
    ///
    /// A resident page counts in exactly one window of one VMA, so that sums over windows are exact. Without `PAGEMAP_SCAN`, `smaps`
    /// gives the number of huge windows of a VMA, but not which of the possible ones are huge: the first are taken.
    ///
    /// Needs ptrace read access to the process.
    ///
    /// # Errors
    /// As for [`regions`](Self::regions).
    pub fn window_uses(
        &mut self,
        roots: &Roots,
        id: ProcessId,
        vmas: &[VmaUse],
    ) -> Result<Vec<WindowUse>, ReadError> {
        let (path, pagemap) = open(roots, id)?;
        let failed = |error| ReadError::of_process(id.pid, &path, error);
        let scanned = self.scanned(|runs| uses::scanned(&pagemap, vmas, runs));
        if let Some(windows) = scanned.map_err(|errno| failed(errno.into()))? {
            return Ok(windows);
        }
        uses::read(&pagemap, vmas).map_err(failed)
    }

    /// Runs `scan` with a buffer for `PAGEMAP_SCAN`; `None` if the words of `pagemap` have to be read instead.
    fn scanned<T>(
        &mut self,
        scan: impl FnOnce(&mut [PageRegion]) -> Result<T, Errno>,
    ) -> Result<Option<T>, Errno> {
        if self.try_first == ScanMethod::PagemapScan {
            self.runs.resize(RUNS, PageRegion::default());
            match scan(&mut self.runs) {
                Ok(found) => {
                    self.last = Some(ScanMethod::PagemapScan);
                    return Ok(Some(found));
                }
                // The call does not exist, on this kernel or on a recorded tree's ordinary file.
                Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => {
                    self.try_first = ScanMethod::PagemapFile;
                    self.runs = Vec::new();
                }
                // The call refused this one range.
                Err(Errno::INVAL | Errno::FAULT) => {}
                Err(errno) => return Err(errno),
            }
        }
        self.last = Some(ScanMethod::PagemapFile);
        Ok(None)
    }
}

/// Returns true if one huge page maps the whole of `region` now; `None` if the kernel does not show it (before
/// Linux 6.7). Takes some microseconds, for checking one region.
///
/// # Errors
/// As for [`PageScanner::regions`].
pub fn is_huge_mapped(
    roots: &Roots,
    id: ProcessId,
    region: Region,
) -> Result<Option<bool>, ReadError> {
    let (path, pagemap) = open(roots, id)?;
    match scan::is_huge(&pagemap, region) {
        Ok(huge) => Ok(Some(huge)),
        Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(ReadError::of_process(id.pid, &path, errno.into())),
    }
}

/// Returns true if guard pages lie in `region` now; false if the kernel does not show them (before Linux 6.15).
///
/// # Errors
/// As for [`PageScanner::regions`].
pub fn has_guard_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<bool, ReadError> {
    let (path, pagemap) = open(roots, id)?;
    match scan::is_guarded(&pagemap, region) {
        Ok(guarded) => Ok(guarded),
        Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => Ok(false),
        Err(errno) => Err(ReadError::of_process(id.pid, &path, errno.into())),
    }
}

/// Opens the pagemap of `id`. The descriptor belongs to that process from then on, even if its number is reused.
fn open(roots: &Roots, id: ProcessId) -> Result<(PathBuf, File), ReadError> {
    let path = roots.of_process(id.pid, "pagemap");
    let pagemap = File::open(&path).map_err(|error| {
        let error = ReadError::of_process(id.pid, &path, error);
        refine(roots, id.pid, &path, NO_PAGEMAP, error)
    })?;
    if still_is(roots, id) {
        Ok((path, pagemap))
    } else {
        Err(ReadError::Vanished { pid: id.pid })
    }
}
