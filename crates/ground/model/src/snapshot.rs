//! What one look at a set of processes showed.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    ByteCount, Memory, ObjectId, ObjectPart, ObjectView, PAGES_PER_REGION, PageCount, ProcessHeat,
    Region, VirtRange,
};

/// One process, beyond the reuse of its number.
///
/// `start_ticks` is field 22 of `/proc/PID/stat` (clock ticks after boot); together with the PID it
/// names a process for as long as the machine runs.
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

/// What backs a mapping, as far as placement cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmaKind {
    /// Private memory without a file: what `malloc` and `mmap(MAP_ANONYMOUS)` give.
    Anonymous,
    /// The `brk` heap; anonymous too.
    Heap,
    /// A stack that the kernel grows downwards.
    Stack,
    /// A file mapped privately (program text, copy-on-write data).
    PrivateFile,
    /// A shared object of memory alone, and which part of it.
    Shmem(ObjectPart),
    /// A file of a local file system, mapped so that writing to it changes the file, and which part of it; where the kernel makes huge pages
    /// of such files.
    File(ObjectPart),
    /// Any other file, mapped so that writing to it changes the file.
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
    /// Where it lies.
    pub range: VirtRange,
    /// What backs it.
    pub kind: VmaKind,
    /// Whether the process may write to it.
    pub writable: bool,
}

impl Vma {
    /// Whether superpages may be collapsed here: private anonymous memory that can be written.
    ///
    /// Read-only anonymous memory is left alone (guard pages, memory sealed by a JIT), and so is a
    /// stack: its VMA moves while it grows.
    #[must_use]
    pub fn is_promotable(&self) -> bool {
        self.writable && matches!(self.kind, VmaKind::Anonymous | VmaKind::Heap)
    }

    /// The part of a shared object that it maps, where superpages could map it as well.
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
    /// Which region.
    pub region: Region,
    /// Base pages present, 1 to 512. A huge-mapped region has 512. Pages that the program has freed lazily (`MADV_FREE`) are as good as
    /// absent and do not count.
    pub resident: PageCount,
    /// Whether one page-table entry maps it whole; `None` where the kernel does not tell
    /// (before `PAGEMAP_SCAN`, Linux 6.7).
    pub huge: Option<bool>,
}

impl RegionView {
    /// Base pages that a collapse would add.
    #[must_use]
    pub fn growth(&self) -> PageCount {
        PageCount(PAGES_PER_REGION.saturating_sub(self.resident.0))
    }

    /// Notes that it was collapsed since.
    pub const fn collapsed(&mut self) {
        self.huge = Some(true);
        self.resident = PageCount(PAGES_PER_REGION);
    }
}

/// A huge page of which the program has given back a part: the kernel maps what is left by base pages, and charges all of it until it is
/// split.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TornPage {
    /// Which 2 MiB it was mapped to. They may lie in several VMAs by now, or partly in none.
    pub region: Region,
    /// Base pages of it that nobody maps.
    pub held: PageCount,
}

/// One process at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProcessView {
    /// Which process.
    pub id: ProcessId,
    /// Resident memory of every kind.
    pub rss: Option<ByteCount>,
    /// Resident anonymous memory (`RssAnon`): what coverage is a share of.
    pub rss_anon: Option<ByteCount>,
    /// What it uses of that: of a page that it shares since a fork, its part (`Pss_Anon`). `None` where it shares none, or nobody looked.
    pub pss_anon: Option<ByteCount>,
    /// Its VMAs, ascending and disjoint.
    pub vmas: Vec<Vma>,
    /// Its regions with resident pages, ascending and disjoint.
    pub regions: Vec<RegionView>,
    /// Huge pages of which parts were given back, as far as they are known, ascending.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub torn: Vec<TornPage>,
    /// What the kernel holds for it, and charges, beside what is resident: parts of huge pages that were given back. `None` where it cannot
    /// be told.
    pub held: Option<PageCount>,
    /// Whether it is filling its memory at this moment: see `Memory::fills`.
    pub fills: bool,
    /// Which of them are accessed; `None` where accesses are not watched.
    pub heat: Option<ProcessHeat>,
}

impl ProcessView {
    /// Bytes of anonymous memory mapped by superpages, or `None` where some region is not known.
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
        // RssAnon is summed from per-CPU counters and may lag behind the page tables a little.
        Some((self.huge_mapped()?.0 as f64 / anon.0 as f64).min(1.0))
    }
}

/// Everything one look showed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Snapshot {
    /// When the look was taken: time since the watch began. Policies get their clock from here.
    pub at: Duration,
    /// The processes, in ascending order of their identity.
    pub processes: Vec<ProcessView>,
    /// The shared objects that they map, in ascending order of their identity.
    #[serde(default)]
    pub objects: Vec<ObjectView>,
}

impl Snapshot {
    /// The view of a process, if the look showed it.
    #[must_use]
    pub fn process(&self, id: ProcessId) -> Option<&ProcessView> {
        self.processes.get(self.index_of(id).ok()?)
    }

    /// The same, to be brought up to date.
    pub fn process_mut(&mut self, id: ProcessId) -> Option<&mut ProcessView> {
        let index = self.index_of(id).ok()?;
        self.processes.get_mut(index)
    }

    /// The view of a shared object, if the look showed it.
    #[must_use]
    pub fn object(&self, id: ObjectId) -> Option<&ObjectView> {
        let index = self.objects.binary_search_by_key(&id, |object| object.id);
        self.objects.get(index.ok()?)
    }

    /// The same, to be brought up to date.
    pub fn object_mut(&mut self, id: ObjectId) -> Option<&mut ObjectView> {
        let index = self.objects.binary_search_by_key(&id, |object| object.id);
        self.objects.get_mut(index.ok()?)
    }

    /// Everything that superpages could be made of, by owner: first processes, then objects.
    pub fn memories(&self) -> impl Iterator<Item = Memory<'_>> {
        let private = self.processes.iter().map(Memory::of_process);
        private.chain(self.objects.iter().map(Memory::of_object))
    }

    fn index_of(&self, id: ProcessId) -> Result<usize, usize> {
        self.processes
            .binary_search_by_key(&id, |process| process.id)
    }

    /// Puts a view where it belongs; returns the one it replaces.
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
            id: ProcessId {
                pid,
                start_ticks: 1,
            },
            rss: Some(ByteCount(rss)),
            rss_anon: None,
            pss_anon: None,
            vmas: Vec::new(),
            regions: Vec::new(),
            torn: Vec::new(),
            held: None,
            fills: false,
            heat: None,
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
