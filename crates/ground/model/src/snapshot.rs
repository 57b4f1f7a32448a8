//! Snapshot of a set of processes at one moment.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ByteCount, Memory, ObjectId, ObjectPart, ObjectView, PAGES_PER_REGION, PageCount, ProcessHeat,
    Region, VirtRange,
};

/// Identity of one process, beyond the reuse of its number.
///
/// `start_ticks` is field 22 of `/proc/PID/stat` (clock ticks after boot); together with the PID it identifies a
/// process for as long as the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process number in the caller's PID namespace.
    pub pid: u32,
    /// Start time in clock ticks after boot.
    pub start_ticks: u64,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {}", self.pid)
    }
}

/// Backing of a mapping, as far as it matters for placement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmaKind {
    /// Private memory without a file, from `malloc` or `mmap(MAP_ANONYMOUS)`.
    Anonymous,
    /// The `brk` heap; anonymous too.
    Heap,
    /// A stack that the kernel grows downwards.
    Stack,
    /// A file mapped privately (program text, copy-on-write data).
    PrivateFile,
    /// Shared memory, which exists in memory only, and the part of it that is mapped.
    Shmem(ObjectPart),
    /// A file of a local file system in a mapping whose writes change the file, and the part of it that is mapped. Only
    /// where the kernel makes huge pages of such files.
    File(ObjectPart),
    /// Any other file in a mapping whose writes change the file.
    Shared,
    /// Made by the kernel or a driver: vdso, vvar, device memory, hugetlb, `VM_IO`.
    Special,
}

impl VmaKind {
    /// The part of an object that processes can share: shared memory, or a file.
    #[must_use]
    pub const fn part(self) -> Option<ObjectPart> {
        match self {
            Self::Shmem(part) | Self::File(part) => Some(part),
            _ => None,
        }
    }
}

/// One virtual memory area (a line of `/proc/PID/maps`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vma {
    /// Address range of the area.
    pub range: VirtRange,
    /// Kind of memory that backs the area.
    pub kind: VmaKind,
    /// True if the process may write to it.
    pub writable: bool,
}

impl Vma {
    /// Returns true if regions of it may be collapsed: private anonymous memory that can be written.
    ///
    /// Superhue leaves read-only anonymous memory alone (guard pages, memory sealed by a JIT), and also stacks: the VMA
    /// of a stack moves while it grows.
    #[must_use]
    pub fn is_promotable(&self) -> bool {
        self.writable && matches!(self.kind, VmaKind::Anonymous | VmaKind::Heap)
    }

    /// The part of a shared object that it maps, if huge pages could map it at these addresses.
    #[must_use]
    pub const fn aligned_part(&self) -> Option<ObjectPart> {
        match self.kind {
            VmaKind::Shmem(part) | VmaKind::File(part)
                if part.misaligned_by(self.range.start) == 0 =>
            {
                Some(part)
            }
            _ => None,
        }
    }
}

/// One region that lies wholly inside a promotable VMA and has at least one resident page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionView {
    /// The region.
    pub region: Region,
    /// Base pages present, 1 to 512. A huge-mapped region has 512. Pages that the program has freed lazily
    /// (`MADV_FREE`) count as absent.
    pub resident: PageCount,
    /// True if one page-table entry maps the whole region; `None` where the kernel does not report it (before
    /// `PAGEMAP_SCAN`, Linux 6.7).
    pub huge: Option<bool>,
}

impl RegionView {
    /// Base pages that a collapse would add.
    #[must_use]
    pub fn growth(&self) -> PageCount {
        PageCount(PAGES_PER_REGION.saturating_sub(self.resident.0))
    }

    /// Records that the region has been collapsed since.
    pub const fn collapsed(&mut self) {
        self.huge = Some(true);
        self.resident = PageCount(PAGES_PER_REGION);
    }
}

/// Huge page of which the program has given back a part: the kernel maps the rest by base pages, and charges the whole
/// page until it splits it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TornPage {
    /// The region that it was mapped to. By now the addresses may lie in several VMAs, or partly in none.
    pub region: Region,
    /// Base pages of it that no page table maps.
    pub held: PageCount,
}

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessView {
    /// The process.
    pub id: ProcessId,
    /// Resident memory of every kind.
    pub rss: Option<ByteCount>,
    /// Resident anonymous memory (`RssAnon`); coverage is a share of it.
    pub rss_anon: Option<ByteCount>,
    /// The process's own part of that (`Pss_Anon`): a page shared since a fork counts in proportion. `None` if it
    /// shares no page, or the value was not read.
    pub pss_anon: Option<ByteCount>,
    /// Time of the look that mappings and regions are from, on the clock of [`Snapshot::at`]; `None` for that of the
    /// snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<Duration>,
    /// VMAs of the process, ascending and disjoint.
    pub vmas: Vec<Vma>,
    /// Regions with resident pages, ascending and disjoint.
    pub regions: Vec<RegionView>,
    /// Huge pages of which the program has given back parts, as far as they are known, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<TornPage>,
    /// Memory that the kernel holds and charges for it, beside the resident pages: given-back parts of huge pages.
    /// `None` if it is not known.
    pub held: Option<PageCount>,
    /// True while the process fills its memory: see `Memory::fills`.
    pub fills: bool,
    /// Accesses to the regions; `None` where accesses are not watched.
    pub heat: Option<ProcessHeat>,
}

impl ProcessView {
    /// Makes the view of a process of which nothing has been read yet.
    #[must_use]
    pub const fn unread(id: ProcessId) -> Self {
        Self {
            id,
            rss: None,
            rss_anon: None,
            pss_anon: None,
            looked: None,
            vmas: Vec::new(),
            regions: Vec::new(),
            torn: Vec::new(),
            held: None,
            fills: false,
            heat: None,
        }
    }

    /// Bytes of anonymous memory that huge pages map, or `None` if [`RegionView::huge`] is `None` for some region.
    #[must_use]
    pub fn huge_mapped(&self) -> Option<ByteCount> {
        self.regions
            .iter()
            .map(|view| {
                view.huge.map(|huge| {
                    if huge {
                        view.region.range().len()
                    } else {
                        ByteCount(0)
                    }
                })
            })
            .sum()
    }

    /// Coverage: the huge-mapped share of anonymous resident memory, 0 to 1.
    ///
    /// `None` when either side is unknown or nothing anonymous is resident.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "a share of byte counts below 2^52"
    )]
    pub fn coverage(&self) -> Option<f64> {
        let anon = self.rss_anon.filter(|anon| anon.0 > 0)?;
        // The kernel sums RssAnon from per-CPU counters, so it may lag behind the page tables a little.
        Some((self.huge_mapped()?.0 as f64 / anon.0 as f64).min(1.0))
    }
}

/// All processes and shared objects at one moment.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// Time of the snapshot, since the watch began. Policies get their clock from here.
    pub at: Duration,
    /// The processes, in ascending order of their identity.
    pub processes: Vec<ProcessView>,
    /// The shared objects that they map, in ascending order of their identity.
    #[serde(default)]
    pub objects: Vec<ObjectView>,
}

impl Snapshot {
    /// The view of a process, if the snapshot has it.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&ProcessView> {
        self.processes.get(self.index_of(id).ok()?)
    }

    /// The same, to update it.
    pub fn process_mut(&mut self, id: ProcessId) -> Option<&mut ProcessView> {
        let index = self.index_of(id).ok()?;
        self.processes.get_mut(index)
    }

    /// The view of a shared object, if the snapshot has it.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> Option<&ObjectView> {
        let index = self.objects.binary_search_by_key(&id, |object| object.id);
        self.objects.get(index.ok()?)
    }

    /// The same, to update it.
    pub fn object_mut(&mut self, id: ObjectId) -> Option<&mut ObjectView> {
        let index = self.objects.binary_search_by_key(&id, |object| object.id);
        self.objects.get_mut(index.ok()?)
    }

    /// All memory that huge pages could map, by owner: first processes, then objects.
    pub fn memories(&self) -> impl Iterator<Item = Memory<'_>> {
        let private = self.processes.iter().map(Memory::of_process);
        private.chain(self.objects.iter().map(Memory::of_object))
    }

    fn index_of(&self, id: ProcessId) -> Result<usize, usize> {
        self.processes
            .binary_search_by_key(&id, |process| process.id)
    }

    /// Inserts a view in order; returns the view that it replaces.
    pub fn put(&mut self, view: ProcessView) -> Option<ProcessView> {
        match self.index_of(view.id) {
            Ok(index) => Some(std::mem::replace(&mut self.processes[index], view)),
            Err(index) => {
                self.processes.insert(index, view);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_keeps_one_view_of_each_process_in_order() {
        let view = |pid, rss| ProcessView {
            rss: Some(ByteCount(rss)),
            ..ProcessView::unread(ProcessId {
                pid,
                start_ticks: 1,
            })
        };
        let mut snapshot = Snapshot::default();
        for pid in [5, 2, 9] {
            assert_eq!(snapshot.put(view(pid, 1)), None);
        }
        assert_eq!(snapshot.put(view(5, 2)), Some(view(5, 1)));
        let order: Vec<u32> = snapshot.processes.iter().map(|view| view.id.pid).collect();
        assert_eq!(order, [2, 5, 9]);
        snapshot.process_mut(view(9, 0).id).unwrap().rss = None;
        assert_eq!(snapshot.process(view(9, 0).id).unwrap().rss, None);
        assert_eq!(snapshot.process(view(4, 0).id), None);
    }
}
