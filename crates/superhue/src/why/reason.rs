//! The reasons why memory is not huge, and pure functions that find the one that holds.

use serde::Serialize;
use superhue_model::{
    BASE_PAGE_SIZE, ByteCount, PAGES_PER_REGION, PageCount, ProcessId, Region, VmaKind,
};
use superhue_procfs::Roots;
use superhue_procfs::process::{VmFlags, VmaUse, has_guard_pages, interleaved};

/// Reason why no huge page maps resident memory: the first of these that holds, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Memory of hugetlbfs: huge already, from a pool of its own.
    Hugetlb,
    /// Made by the kernel or a driver: vdso, device memory, buffers.
    Special,
    /// The head or tail of a mapping, which does not fill an aligned 2 MiB window.
    NotWhole,
    /// A mapping of shared memory or a file whose address and offset differ modulo 2 MiB.
    Misaligned,
    /// An ordinary file, or a private copy of one.
    File,
    /// The stack that the kernel grows.
    Stack,
    /// Private memory that the program may not write to.
    ReadOnly,
    /// The program forbade it (`MADV_NOHUGEPAGE`), or the kernel did, as it does for the stacks of threads since Linux 6.7.
    Forbidden,
    /// Huge pages are switched off for the process (`PR_SET_THP_DISABLE`).
    Disabled,
    /// A userfaultfd watches the memory.
    Userfaultfd,
    /// The memory's pages are interleaved between NUMA nodes (`numactl --interleave`), and a huge page would put them all on one.
    Interleaved,
    /// Guard pages lie among its pages (`MADV_GUARD_INSTALL`).
    Guarded,
    /// Pages were merged with equal ones (KSM).
    Merged,
    /// Pages are shared copy-on-write with other processes since a fork.
    CopyOnWrite,
    /// Too many of its pages were freed lazily (`MADV_FREE`): a collapse would take them back.
    FreedLazily,
    /// A file of which a part of the window is not in memory.
    NotCached,
    /// The program has touched fewer pages than policy `resident` needs.
    Sparse,
    /// The program has touched enough pages, but too many of them are swapped out.
    Swapped,
    /// A control group of the process has no room for a huge page.
    NoRoom,
    /// No obstacle is visible from outside.
    Possible,
}

impl Reason {
    /// All reasons, in the order in which they are tried.
    pub const ALL: [Self; 20] = [
        Self::Hugetlb,
        Self::Special,
        Self::NotWhole,
        Self::Misaligned,
        Self::File,
        Self::Stack,
        Self::ReadOnly,
        Self::Forbidden,
        Self::Disabled,
        Self::Userfaultfd,
        Self::Interleaved,
        Self::Guarded,
        Self::Merged,
        Self::CopyOnWrite,
        Self::FreedLazily,
        Self::NotCached,
        Self::Sparse,
        Self::Swapped,
        Self::NoRoom,
        Self::Possible,
    ];

    /// Returns a few words for a table, to be read after "not huge:".
    #[must_use]
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Hugetlb => "hugetlbfs: huge already, from its own pool",
            Self::Special => "made by the kernel or a driver",
            Self::NotWhole => "does not fill an aligned 2 MiB window",
            Self::Misaligned => "misaligned: address and offset differ",
            Self::File => "an ordinary file",
            Self::Stack => "the stack",
            Self::ReadOnly => "read-only private memory",
            Self::Forbidden => "forbidden by the program, or a thread's stack (MADV_NOHUGEPAGE)",
            Self::Disabled => "switched off for the process (prctl)",
            Self::Userfaultfd => "watched by a userfaultfd",
            Self::Guarded => "guard pages lie among its pages",
            Self::Interleaved => "interleaved between NUMA nodes",
            Self::Merged => "merged with equal pages (KSM)",
            Self::FreedLazily => "freed lazily by the program (MADV_FREE)",
            Self::NoRoom => "its control group has no room for a huge page",
            Self::CopyOnWrite => "shared copy-on-write since a fork",
            Self::NotCached => "a file that is not all in memory",
            Self::Sparse => "too sparse",
            Self::Swapped => "too much of it is swapped out",
            Self::Possible => "could be huge now",
        }
    }
}

/// Kind of memory behind a mapping, as far as it matters to huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Backing {
    /// Private memory without a file, including the heap.
    Anonymous,
    /// The stack that the kernel grows.
    Stack,
    /// Shared memory that belongs to the kernel's own tmpfs: memfd, System V, shared anonymous.
    SharedMemory,
    /// A file on a tmpfs that is mounted, e.g. in `/dev/shm`.
    Tmpfs,
    /// An ordinary file, or a private copy of any file.
    File,
    /// Memory of hugetlbfs.
    Hugetlb,
    /// Made by the kernel or a driver.
    Special,
}

/// Flags of memory that the kernel or a driver made, which is never collapsed (`VM_SPECIAL` in `include/linux/mm.h`).
const SPECIAL: VmFlags = VmFlags::IO
    .union(VmFlags::PFN_MAP)
    .union(VmFlags::MIXED_MAP)
    .union(VmFlags::DONT_EXPAND);

impl Backing {
    /// Returns the kind of memory behind `vma`.
    #[must_use]
    pub(super) fn of(vma: &VmaUse) -> Self {
        let flags = vma.flags.unwrap_or_default();
        let page_size = vma.kernel_page_size.unwrap_or_default();
        if flags.contains(VmFlags::HUGETLB) || page_size.0 > BASE_PAGE_SIZE {
            return Self::Hugetlb;
        }
        if vma.vma.kind == VmaKind::Special || flags.intersects(SPECIAL) {
            return Self::Special;
        }
        match vma.vma.kind {
            VmaKind::Anonymous | VmaKind::Heap => Self::Anonymous,
            VmaKind::Stack => Self::Stack,
            VmaKind::Shmem(_) => Self::of_object(vma.name.as_deref().unwrap_or_default()),
            // Written pages belong to the process alone, but still lie in a mapping of a file.
            _ => Self::File,
        }
    }

    /// Returns the kind of a shared object that the kernel calls `name`.
    #[must_use]
    pub(crate) fn of_object(name: &str) -> Self {
        let own = ["/memfd:", "/SYSV", "/dev/zero", "[anon_shmem:"];
        if own.iter().any(|own| name.starts_with(own)) {
            Self::SharedMemory
        } else {
            Self::Tmpfs
        }
    }

    /// Returns true for shared memory of either kind.
    #[must_use]
    pub const fn is_shared_memory(self) -> bool {
        matches!(self, Self::SharedMemory | Self::Tmpfs)
    }
}

/// Facts about a whole mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(super) backing: Backing,
    pub(super) writable: bool,
    pub(super) flags: VmFlags,
    /// Difference of its address and offset modulo 2 MiB; 0 for memory without a file.
    pub(super) misaligned_by: ByteCount,
    /// Huge pages are switched off for the process.
    pub(super) disabled: bool,
    /// Pages of it were merged (KSM), so its shared pages count as merged.
    pub(super) merged: bool,
    /// A control group of the process has no room for a huge page.
    pub(super) no_room: bool,
    /// True for a file of which the kernel makes huge pages.
    pub(super) is_local_file: bool,
    /// True if the mapping's pages are interleaved between NUMA nodes.
    pub(super) interleaved: bool,
}

impl Mapping {
    pub(super) fn of(vma: &VmaUse, disabled: bool) -> Self {
        let backing = Backing::of(vma);
        let has_offset = backing.is_shared_memory() || backing == Backing::File;
        let difference = vma.part.misaligned_by(vma.vma.range.start);
        Self {
            backing,
            writable: vma.vma.writable,
            flags: vma.flags.unwrap_or_default(),
            misaligned_by: ByteCount(if has_offset { difference } else { 0 }),
            disabled,
            merged: vma.memory.ksm.is_some_and(|merged| merged.0 > 0),
            no_room: false,
            is_local_file: matches!(vma.vma.kind, VmaKind::File(_)),
            interleaved: false,
        }
    }

    /// Returns the mappings behind `vmas` of a process, in the same order.
    pub(crate) fn all(roots: &Roots, id: ProcessId, vmas: &[VmaUse], disabled: bool) -> Vec<Self> {
        // Where the policies cannot be read, none is known.
        let interleaved = interleaved(roots, id.pid).unwrap_or_default();
        vmas.iter()
            .map(|vma| Self {
                interleaved: interleaved.contains(&vma.vma.range.start),
                ..Self::of(vma, disabled)
            })
            .collect()
    }

    /// Returns the reason why no whole window of the mapping can be huge; `None` where no reason holds for all of them.
    pub(crate) fn obstacle(&self) -> Option<Reason> {
        let obstacles = [
            (self.misaligned_by.0 != 0, Reason::Misaligned),
            (
                self.backing == Backing::File && !self.is_local_file,
                Reason::File,
            ),
            (self.backing == Backing::Stack, Reason::Stack),
            (
                self.backing == Backing::Anonymous && !self.writable,
                Reason::ReadOnly,
            ),
            (self.flags.contains(VmFlags::NO_HUGEPAGE), Reason::Forbidden),
            (self.disabled, Reason::Disabled),
            (
                self.flags.intersects(VmFlags::USERFAULTFD),
                Reason::Userfaultfd,
            ),
            (self.interleaved, Reason::Interleaved),
        ];
        obstacles
            .into_iter()
            .find_map(|(holds, reason)| holds.then_some(reason))
    }

    /// Returns true if guard pages lie in `region` now. Most mappings have none, as their flags show.
    pub(crate) fn is_guarded(&self, roots: &Roots, id: ProcessId, region: Region) -> bool {
        self.flags.contains(VmFlags::GUARD) && has_guard_pages(roots, id, region).unwrap_or(false)
    }

    /// Returns true if a collapse would copy pages that other processes map as well.
    pub(super) fn may_share(&self) -> bool {
        self.backing == Backing::Anonymous && self.obstacle().is_none()
    }
}

/// Facts about one window of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    /// The mapping fills the aligned 2 MiB window.
    pub(super) whole: bool,
    /// One entry of the page table maps it.
    pub(super) huge: bool,
    pub(super) resident: PageCount,
    pub(super) swapped: PageCount,
    /// Pages that other processes map as well, copy-on-write.
    pub(super) shared: PageCount,
    /// Upper bound on resident pages that were freed lazily.
    pub(super) lazy: PageCount,
    /// Guard pages lie in it.
    pub(super) guarded: bool,
}

impl Window {
    /// Returns the number of pages that a collapse would add.
    pub(super) fn growth(&self) -> PageCount {
        PageCount(PAGES_PER_REGION) - self.resident + self.lazy
    }
}

/// Returns the reason why `window` is not huge; `None` if it is. Policy `resident` needs `enough` pages.
pub(super) fn classify(mapping: &Mapping, window: &Window, enough: PageCount) -> Option<Reason> {
    let reason = match mapping.backing {
        Backing::Hugetlb => Reason::Hugetlb,
        Backing::Special => Reason::Special,
        _ if window.huge => return None,
        _ if !window.whole => Reason::NotWhole,
        _ => match mapping.obstacle() {
            Some(reason) => reason,
            None if window.guarded => Reason::Guarded,
            None if window.shared.0 > 0 && mapping.merged => Reason::Merged,
            None if window.shared.0 > 0 => Reason::CopyOnWrite,
            None if window.lazy.0 > 0 && window.resident - window.lazy < enough => {
                Reason::FreedLazily
            }
            None if mapping.is_local_file && window.resident.0 < PAGES_PER_REGION => {
                Reason::NotCached
            }
            None if window.resident + window.swapped < enough => Reason::Sparse,
            None if window.resident < enough => Reason::Swapped,
            None if mapping.no_room => Reason::NoRoom,
            None => Reason::Possible,
        },
    };
    Some(reason)
}

#[cfg(test)]
pub(super) mod tests {
    use superhue_model::{VirtAddr, VirtRange, Vma};
    use superhue_procfs::process::parse_smaps;

    use super::*;

    const MAPPING: Mapping = Mapping {
        backing: Backing::Anonymous,
        writable: true,
        flags: VmFlags::HUGEPAGE,
        misaligned_by: ByteCount(0),
        disabled: false,
        merged: false,
        no_room: false,
        is_local_file: false,
        interleaved: false,
    };
    const FULL: Window = Window {
        whole: true,
        huge: false,
        resident: PageCount(512),
        swapped: PageCount(0),
        shared: PageCount(0),
        lazy: PageCount(0),
        guarded: false,
    };

    fn why(mapping: Mapping, window: Window) -> Option<Reason> {
        classify(&mapping, &window, PageCount(384))
    }

    #[test]
    fn each_reason_has_its_case() {
        let backed = |backing| Mapping { backing, ..MAPPING };
        let flagged = |flags| Mapping { flags, ..MAPPING };
        let held = |resident, swapped| Window {
            resident: PageCount(resident),
            swapped: PageCount(swapped),
            ..FULL
        };
        let part = Window {
            whole: false,
            ..held(7, 0)
        };
        let misaligned = Mapping {
            misaligned_by: ByteCount(0x16_f000),
            ..backed(Backing::SharedMemory)
        };
        let read_only = Mapping {
            writable: false,
            ..MAPPING
        };
        let disabled = Mapping {
            disabled: true,
            ..MAPPING
        };
        let shared = Window {
            shared: PageCount(1),
            ..FULL
        };
        let guarded = Window {
            guarded: true,
            ..FULL
        };
        let merged = Mapping {
            merged: true,
            ..MAPPING
        };
        let interleaved = Mapping {
            interleaved: true,
            ..MAPPING
        };
        let lazy = Window {
            lazy: PageCount(129),
            ..FULL
        };
        let no_room = Mapping {
            no_room: true,
            ..MAPPING
        };
        let local_file = Mapping {
            is_local_file: true,
            ..backed(Backing::File)
        };
        assert_eq!(why(local_file, FULL), Some(Reason::Possible));
        let mut cases = vec![
            (backed(Backing::Hugetlb), FULL, Reason::Hugetlb),
            (backed(Backing::Special), part, Reason::Special),
            (MAPPING, part, Reason::NotWhole),
            (misaligned, FULL, Reason::Misaligned),
            (backed(Backing::File), FULL, Reason::File),
            (backed(Backing::Stack), FULL, Reason::Stack),
            (read_only, FULL, Reason::ReadOnly),
            (flagged(VmFlags::NO_HUGEPAGE), FULL, Reason::Forbidden),
            (disabled, FULL, Reason::Disabled),
            (flagged(VmFlags::UFFD_MINOR), FULL, Reason::Userfaultfd),
            (interleaved, guarded, Reason::Interleaved),
            (MAPPING, guarded, Reason::Guarded),
            (merged, shared, Reason::Merged),
            (MAPPING, shared, Reason::CopyOnWrite),
            (MAPPING, lazy, Reason::FreedLazily),
            (local_file, held(511, 0), Reason::NotCached),
            (MAPPING, held(383, 0), Reason::Sparse),
            (MAPPING, held(383, 1), Reason::Swapped),
            (no_room, FULL, Reason::NoRoom),
            (MAPPING, held(384, 0), Reason::Possible),
        ];
        for (mapping, window, reason) in &cases {
            assert_eq!(why(*mapping, *window), Some(*reason));
        }
        let tried: Vec<Reason> = cases.drain(..).map(|(_, _, reason)| reason).collect();
        assert_eq!(tried, Reason::ALL);
    }

    #[test]
    fn what_is_huge_needs_no_reason_and_the_first_one_counts() {
        let huge = Window { huge: true, ..FULL };
        let worst = Mapping {
            is_local_file: false,
            backing: Backing::SharedMemory,
            writable: false,
            flags: VmFlags::NO_HUGEPAGE.union(VmFlags::UFFD_WRITE),
            misaligned_by: ByteCount(4096),
            disabled: true,
            merged: false,
            no_room: false,
            interleaved: true,
        };
        assert_eq!(why(worst, huge), None);
        assert_eq!(why(worst, FULL), Some(Reason::Misaligned));
        let aligned = Mapping {
            misaligned_by: ByteCount(0),
            ..worst
        };
        assert_eq!(why(aligned, FULL), Some(Reason::Forbidden));
        // A pool's pages are marked huge as well, but do not belong to Superhue.
        let pool = Mapping {
            backing: Backing::Hugetlb,
            ..MAPPING
        };
        assert_eq!(why(pool, huge), Some(Reason::Hugetlb));
    }

    /// Parses one VMA as `smaps` describes it.
    pub(in super::super) fn vma(head: &str, flags: &str) -> VmaUse {
        let text = format!("{head}\nRss: 4 kB\nVmFlags: {flags}\n");
        let mut one = parse_smaps(text.as_bytes()).unwrap().remove(0);
        // Does the same as the reader that knows which devices are memory.
        if one.vma.kind == VmaKind::Shared
            && one.part.object.device.0 == 0
            && one.name.as_deref() != Some("anon_inode:[io_uring]")
        {
            one.vma.kind = VmaKind::Shmem(one.part);
        }
        one
    }

    #[test]
    fn what_backs_a_mapping_is_told_by_flags_names_and_devices() {
        use Backing::*;
        for (permissions, device, inode, name, flags, backing) in [
            ("rw-p", "00:00", 0, "", "", Anonymous),
            ("rw-p", "00:00", 0, "[heap]", "", Anonymous),
            ("rw-p", "00:00", 0, "[stack]", "gd", Stack),
            ("r-xp", "00:00", 0, "[vdso]", "de", Special),
            ("rw-s", "00:1a", 9, "/dev/shm/q", "", Tmpfs),
            ("rw-s", "00:1a", 9, "/tmp/q (deleted)", "", Tmpfs),
            ("rw-p", "00:1a", 9, "/tmp/q", "", File),
            (
                "rw-s",
                "00:01",
                9,
                "/memfd:ring (deleted)",
                "",
                SharedMemory,
            ),
            ("rw-s", "00:01", 9, "/memfd:big (deleted)", "ht", Hugetlb),
            (
                "rw-s",
                "00:01",
                9,
                "/SYSV00000000 (deleted)",
                "",
                SharedMemory,
            ),
            ("rw-s", "00:01", 9, "/dev/zero (deleted)", "", SharedMemory),
            ("rw-s", "00:0e", 9, "anon_inode:[io_uring]", "de", Special),
            ("r-xp", "fe:00", 9, "/usr/bin/cat", "", File),
            ("rw-s", "fe:00", 9, "/srv/data", "", File),
        ] {
            let head = format!("200000-600000 {permissions} 0 {device} {inode} {name}");
            assert_eq!(Backing::of(&vma(&head, flags)), backing, "{head}");
        }
    }

    #[test]
    fn a_mapping_is_misaligned_by_what_address_and_offset_differ() {
        let by = |head: &str| Mapping::of(&vma(head, ""), false).misaligned_by.0;
        let name = "00:01 9 /memfd:ring (deleted)";
        assert_eq!(by(&format!("200000-600000 rw-s 0 {name}")), 0);
        assert_eq!(by(&format!("36f000-600000 rw-s 0 {name}")), 0x16_f000);
        assert_eq!(by(&format!("36f000-600000 rw-s 16f000 {name}")), 0);
        assert_eq!(by(&format!("200000-600000 rw-s 1000 {name}")), 0x1f_f000);
        assert_eq!(by("36f000-600000 rw-p 0 00:00 0 "), 0, "no file");
        let range = VirtRange::new(VirtAddr(0x20_0000), VirtAddr(0x60_0000));
        let expected = Vma {
            range: range.unwrap(),
            kind: VmaKind::Anonymous,
            writable: true,
        };
        assert_eq!(vma("200000-600000 rw-p 0 00:00 0 ", "").vma, expected);
    }
}
