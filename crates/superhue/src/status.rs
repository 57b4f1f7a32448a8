//! One look at the memory of a process.

use serde::Serialize;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, VirtRange};
use superhue_procfs::process::{MemoryUse, VmaUse, all, identify, memory_use, status, vma_uses};
use superhue_procfs::{ReadError, Roots};

use crate::coloring::{ProcessColoring, of_process};
use crate::why::{Machine, Why, explain};

/// Reason why a process cannot be shown.
pub type StatusError = ReadError;

/// The memory of one process.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProcessStatus {
    /// Process number.
    pub pid: u32,
    /// Command name.
    pub name: String,
    /// Real user.
    pub uid: u32,
    /// Resident memory of every kind.
    pub rss_bytes: Option<ByteCount>,
    /// Resident anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// Part of `anonymous_bytes` that huge pages map.
    pub huge_bytes: Option<ByteCount>,
    /// Coverage, 0 to 1; `None` when nothing anonymous is resident.
    pub coverage: Option<f64>,
    /// Shared memory and files that huge pages map.
    pub other_huge_bytes: Option<ByteCount>,
    /// The most that its huge pages can hold beyond touched pages: all but one page of each.
    pub bloat_bound_bytes: Option<ByteCount>,
    /// Swapped out.
    pub swap_bytes: Option<ByteCount>,
    /// Memory of hugetlbfs, which `rss_bytes` leaves out.
    pub hugetlb_bytes: Option<ByteCount>,
    /// True if the process may have huge pages at all (`PR_SET_THP_DISABLE`).
    pub huge_pages_allowed: Option<bool>,
    /// Reason why sizes are missing.
    pub unknown_because: Option<String>,
    /// Page colors of the process; `None` on a kernel without page coloring, and for processes of other users.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub colors: Option<ProcessColoring>,
    /// Mappings with resident memory, most first; only in the status of one process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mappings: Vec<MappingStatus>,
    /// Reasons why memory is not huge; only if the caller requested them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<Why>,
}

/// One mapping.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MappingStatus {
    /// Address range.
    pub range: VirtRange,
    /// Name that the kernel shows for it; `None` for plain anonymous memory.
    pub name: Option<String>,
    /// Resident.
    pub rss_bytes: Option<ByteCount>,
    /// Resident anonymous memory.
    pub anonymous_bytes: Option<ByteCount>,
    /// Part of `anonymous_bytes` that huge pages map.
    pub huge_bytes: Option<ByteCount>,
    /// Shared memory and files that huge pages map.
    pub other_huge_bytes: Option<ByteCount>,
    /// Page size that it was made with, for hugetlbfs.
    pub page_bytes: Option<ByteCount>,
    /// True for private anonymous memory, which can be collapsed.
    pub promotable: bool,
}

impl MappingStatus {
    /// Returns all its memory that huge pages map; `None` where the kernel does not show it.
    #[must_use]
    pub fn all_huge(&self) -> Option<ByteCount> {
        Some(self.huge_bytes? + self.other_huge_bytes.unwrap_or_default())
    }
}

/// Returns the status of one process, with its mappings.
///
/// # Errors
/// The process has ended, is a kernel thread, or may not be inspected.
pub fn one(roots: &Roots, pid: u32) -> Result<ProcessStatus, StatusError> {
    let mut shown = brief(roots, pid)?;
    if let Some(memory) = exact(roots, pid, &mut shown)? {
        shown.fill(&memory);
        shown.mappings = mappings(vma_uses(roots, pid)?);
        shown.colors = of_process(roots, pid, true);
    }
    Ok(shown)
}

/// Returns the status of one process, with its mappings and the reasons why its memory is not huge.
///
/// # Errors
/// As for [`one`], and if the caller may not look at its pages.
pub fn explained(roots: &Roots, pid: u32, machine: &Machine) -> Result<ProcessStatus, StatusError> {
    let id = identify(roots, pid)?;
    let mut shown = brief(roots, pid)?;
    shown.fill(&memory_use(roots, pid)?);
    let vmas = vma_uses(roots, pid)?;
    let disabled = shown.huge_pages_allowed == Some(false);
    shown.why = Some(explain(roots, id, &vmas, disabled, machine)?);
    shown.mappings = mappings(vmas);
    shown.colors = of_process(roots, pid, true);
    Ok(shown)
}

/// Returns the shared memory and files that huge pages map. Kernels before 5.4 make no huge pages of files, and count none.
fn other_huge(memory: &MemoryUse) -> Option<ByteCount> {
    Some(memory.shmem_huge? + memory.file_huge.unwrap_or_default())
}

/// Returns the mappings with resident memory, most first.
fn mappings(vmas: Vec<VmaUse>) -> Vec<MappingStatus> {
    let mut mappings: Vec<MappingStatus> = vmas
        .into_iter()
        .filter(|vma| vma.memory.rss.is_some_and(|rss| rss.0 > 0))
        .map(|vma| MappingStatus {
            range: vma.vma.range,
            name: vma.name,
            rss_bytes: vma.memory.rss,
            anonymous_bytes: vma.memory.anonymous,
            huge_bytes: vma.memory.anon_huge,
            other_huge_bytes: other_huge(&vma.memory),
            page_bytes: vma.kernel_page_size,
            promotable: vma.vma.is_promotable(),
        })
        .collect();
    mappings.sort_by_key(|mapping| (std::cmp::Reverse(mapping.rss_bytes), mapping.range.start));
    mappings
}

/// Returns the status of every visible process, largest first. Processes that the caller may not inspect show only
/// their public part.
///
/// # Errors
/// The list of processes itself cannot be read.
pub fn visible(roots: &Roots) -> Result<Vec<ProcessStatus>, StatusError> {
    let mut found = Vec::new();
    for pid in all(roots)? {
        let Ok(mut shown) = brief(roots, pid) else {
            continue;
        };
        match memory_use(roots, pid) {
            Ok(memory) => {
                shown.fill(&memory);
                shown.colors = of_process(roots, pid, false);
            }
            Err(ReadError::KernelThread { .. } | ReadError::Vanished { .. }) => continue,
            Err(error) => shown.unknown_because = Some(error.to_string()),
        }
        found.push(shown);
    }
    found.sort_by_key(|shown| (std::cmp::Reverse(shown.rss_bytes), shown.pid));
    Ok(found)
}

/// Returns the public part of a status, which every user may read.
pub(crate) fn brief(roots: &Roots, pid: u32) -> Result<ProcessStatus, StatusError> {
    let status = status(roots, pid)?;
    Ok(ProcessStatus {
        pid,
        name: status.name,
        uid: status.uid,
        rss_bytes: status.rss,
        anonymous_bytes: status.rss_anon,
        huge_bytes: None,
        coverage: None,
        other_huge_bytes: None,
        bloat_bound_bytes: None,
        swap_bytes: status.swap,
        hugetlb_bytes: status.hugetlb,
        huge_pages_allowed: status.thp_enabled,
        unknown_because: None,
        colors: None,
        mappings: Vec::new(),
        why: None,
    })
}

/// Returns exact sizes, or leaves a note in `shown` when the caller may not read them.
fn exact(
    roots: &Roots,
    pid: u32,
    shown: &mut ProcessStatus,
) -> Result<Option<MemoryUse>, StatusError> {
    match memory_use(roots, pid) {
        Ok(memory) => Ok(Some(memory)),
        Err(error @ ReadError::Denied { .. }) => {
            shown.unknown_because = Some(error.to_string());
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

impl ProcessStatus {
    #[allow(
        clippy::cast_precision_loss,
        reason = "a share of byte counts below 2^52"
    )]
    fn fill(&mut self, memory: &MemoryUse) {
        self.rss_bytes = memory.rss.or(self.rss_bytes);
        self.anonymous_bytes = memory.anonymous.or(self.anonymous_bytes);
        self.huge_bytes = memory.anon_huge;
        self.other_huge_bytes = other_huge(memory);
        let anonymous = self.anonymous_bytes.filter(|anonymous| anonymous.0 > 0);
        self.coverage = memory
            .anon_huge
            .zip(anonymous)
            .map(|(huge, all)| huge.0 as f64 / all.0 as f64);
        self.bloat_bound_bytes = memory
            .anon_huge
            .map(|huge| PageCount(huge.0 / HUGE_PAGE_SIZE * (PAGES_PER_REGION - 1)).bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_shown() {
        let roots = Roots::default();
        let shown = one(&roots, std::process::id()).unwrap();
        assert!(shown.rss_bytes.unwrap().0 > 0);
        assert!(shown.huge_bytes.is_some());
        assert!(shown.mappings.iter().any(|mapping| mapping.promotable));
        assert!(
            visible(&roots)
                .unwrap()
                .iter()
                .any(|other| other.pid == shown.pid)
        );
    }

    #[test]
    fn what_is_not_there_is_an_error() {
        let gone = one(&Roots::default(), u32::MAX);
        assert!(gone.is_err_and(|error| error.is_vanished()));
    }
}
