//! Shared objects, which belong to no single process, and the owner of the memory that a plan changes.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, HUGE_PAGE_SIZE, ProcessHeat, ProcessId, RegionView, VirtAddr, VirtRange};

/// Memory that processes can share: shared memory (a file on tmpfs, a memfd, anonymous shared memory, a System V
/// segment), or a file on a disk.
///
/// To the kernel, the four kinds of shared memory are files of a tmpfs (`mm/shmem.c`); the last three are files of a
/// tmpfs that only the kernel mounts. So device and inode identify each of them for as long as it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// Major and minor number of the file system.
    pub device: (u32, u32),
    /// Inode number in that file system.
    pub inode: u64,
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.device;
        write!(f, "object {major:x}:{minor:x}:{}", self.inode)
    }
}

/// Owner of the memory that a region is part of; it decides the origin of the region's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Owner {
    /// Private memory of a process: regions of its address space.
    Process(ProcessId),
    /// A shared object with any number of mappers: 2 MiB windows of the object, the first one at its offset 0.
    Object(ObjectId),
}

impl Owner {
    /// The process, if the memory is private memory of a process.
    #[must_use]
    pub const fn process(self) -> Option<ProcessId> {
        match self {
            Self::Process(id) => Some(id),
            Self::Object(_) => None,
        }
    }
}

impl From<ProcessId> for Owner {
    fn from(id: ProcessId) -> Self {
        Self::Process(id)
    }
}

impl From<ObjectId> for Owner {
    fn from(id: ObjectId) -> Self {
        Self::Object(id)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process(id) => id.fmt(f),
            Self::Object(id) => id.fmt(f),
        }
    }
}

/// The part of a shared object that a VMA maps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ObjectPart {
    /// The object.
    pub object: ObjectId,
    /// The offset in it that the first byte of the VMA maps, in bytes.
    pub offset: u64,
}

impl ObjectPart {
    /// Distance between `address`, where a mapping starts, and the nearest address below it where huge pages could map
    /// the object: 0 to 2 MiB - 1 bytes; 0 if they can.
    ///
    /// One entry maps 2 MiB of the object at an aligned offset to 2 MiB of addresses at an aligned address. So offset
    /// and address have to agree modulo 2 MiB (`thp_vma_suitable_order` in `include/linux/huge_mm.h`).
    #[must_use]
    pub const fn misaligned_by(&self, address: VirtAddr) -> u64 {
        address.0.wrapping_sub(self.offset) % HUGE_PAGE_SIZE
    }

    /// The bytes of the object that a mapping of `range` shows.
    #[must_use]
    pub fn mapped(&self, range: VirtRange) -> VirtRange {
        let end = self.offset.saturating_add(range.len().0);
        VirtRange {
            start: VirtAddr(self.offset),
            end: VirtAddr(end),
        }
    }
}

/// One shared object at one moment, as seen by the processes whose mappings huge pages could map.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ObjectView {
    /// The object.
    pub id: ObjectId,
    /// True for a file on a disk: its pages are page cache, not memory of a program.
    pub is_file: bool,
    /// True if it is being filled at this moment.
    pub fills: bool,
    /// Bytes of the object's resident pages.
    pub resident: ByteCount,
    /// The parts of it that some process maps with huge page alignment, ascending and disjoint; addresses are offsets.
    pub mapped: Vec<VirtRange>,
    /// Regions with resident pages that lie wholly in one of these parts, ascending; numbers count from offset 0.
    pub regions: Vec<RegionView>,
    /// Accesses to the regions, summed up over the processes that map it; `None` where accesses are not watched.
    pub heat: Option<ProcessHeat>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_and_address_have_to_agree() {
        let object = ObjectId {
            device: (0, 1),
            inode: 7,
        };
        let part = |offset| ObjectPart { object, offset };
        let at = VirtAddr(0x7f00_0020_0000);
        assert_eq!(part(0).misaligned_by(at), 0);
        assert_eq!(part(2 << 20).misaligned_by(at), 0);
        assert_eq!(part(0x1000).misaligned_by(at), 0x1f_f000);
        assert_eq!(part(0x1000).misaligned_by(VirtAddr(at.0 + 0x1000)), 0);
        assert_eq!(part(8 << 20).misaligned_by(VirtAddr(0x16_f000)), 0x16_f000);
        let range = VirtRange::new(at, VirtAddr(at.0 + 0x5000)).unwrap();
        assert_eq!(part(0x3000).mapped(range).to_string(), "3000-8000");
        assert_eq!(part(u64::MAX).mapped(range).end, VirtAddr(u64::MAX));
    }

    #[test]
    fn an_owner_reads_as_what_it_is() {
        let id = ProcessId {
            pid: 7,
            start_ticks: 1,
        };
        let object = ObjectId {
            device: (0, 0x1a),
            inode: 12,
        };
        assert_eq!(Owner::from(id).process(), Some(id));
        assert_eq!(Owner::from(object).process(), None);
        assert_eq!(Owner::from(object).to_string(), "object 0:1a:12");
        assert!(Owner::from(id) < Owner::from(object));
    }
}
