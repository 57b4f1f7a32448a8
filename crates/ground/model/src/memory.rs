//! Memory that huge pages could map, with its owner.

use std::time::Duration;

use crate::{
    ByteCount, ObjectView, Owner, ProcessHeat, ProcessView, RegionView, TornPage, VirtRange, Vma,
};

/// Input of a policy's decision: policies decide about memory, not about processes.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// Process or shared object that the memory belongs to.
    pub owner: Owner,
    /// Mappings in which regions may be collapsed.
    ground: MappedRanges<'a>,
    /// Time of the look that the regions are from; `None` for that of the snapshot.
    pub looked: Option<Duration>,
    /// Regions with resident pages, ascending and disjoint.
    pub regions: &'a [RegionView],
    /// Huge pages of which parts were given back, ascending.
    pub torn: &'a [TornPage],
    /// Accesses to the regions; `None` where accesses are not watched.
    pub heat: Option<&'a ProcessHeat>,
    /// True if the memory grows fast at this moment. A collapse would delay the program that fills it. Soon its regions
    /// are full, and then a collapse adds no memory.
    pub fills: bool,
    /// Bytes that a budget is a share of: the resident bytes that huge pages could map.
    pub used: Option<ByteCount>,
}

#[derive(Debug, Clone, Copy)]
enum MappedRanges<'a> {
    Vmas(&'a [Vma]),
    Parts(&'a [VirtRange]),
}

impl<'a> Memory<'a> {
    /// The private memory of a process.
    #[must_use]
    pub fn of_process(view: &'a ProcessView) -> Self {
        Self {
            owner: view.id.into(),
            ground: MappedRanges::Vmas(&view.vmas),
            looked: view.looked,
            regions: &view.regions,
            torn: &view.torn,
            heat: view.heat.as_ref(),
            fills: view.fills,
            used: view.pss_anon.or(view.rss_anon),
        }
    }

    /// The memory of a shared object.
    #[must_use]
    pub fn of_object(view: &'a ObjectView) -> Self {
        Self {
            owner: view.id.into(),
            ground: MappedRanges::Parts(&view.mapped),
            looked: None,
            regions: &view.regions,
            torn: &[],
            heat: view.heat.as_ref(),
            fills: view.fills,
            // The kernel can drop cached pages of a file at any time.
            used: Some(match view.is_file {
                true => ByteCount(0),
                false => view.resident,
            }),
        }
    }

    /// Ranges whose regions may be collapsed if they lie wholly inside the range, ascending; for an object, ranges are
    /// offsets in it.
    pub fn promotable(&self) -> impl Iterator<Item = VirtRange> + use<'a> {
        let (vmas, parts) = match self.ground {
            MappedRanges::Vmas(vmas) => (vmas, &[][..]),
            MappedRanges::Parts(parts) => (&[][..], parts),
        };
        let vmas = vmas.iter().filter(|vma| vma.is_promotable());
        vmas.map(|vma| vma.range).chain(parts.iter().copied())
    }

    /// Returns true if `range` lies wholly inside one mapping of this memory, promotable or not.
    #[must_use]
    pub fn is_mapped(&self, range: &VirtRange) -> bool {
        match self.ground {
            MappedRanges::Vmas(vmas) => vmas.iter().any(|vma| vma.range.contains(range)),
            MappedRanges::Parts(parts) => parts.iter().any(|part| part.contains(range)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ObjectId, ProcessId, VirtAddr, VmaKind};

    #[test]
    fn what_is_shared_since_a_fork_counts_in_parts() {
        let range = |from, to| VirtRange::new(VirtAddr(from), VirtAddr(to)).unwrap();
        let vma = |from, to, writable| Vma {
            range: range(from, to),
            kind: VmaKind::Heap,
            writable,
        };
        let mut view = ProcessView {
            rss_anon: Some(ByteCount(100)),
            vmas: vec![vma(1, 5, true), vma(5, 9, false)],
            ..ProcessView::unread(ProcessId {
                pid: 1,
                start_ticks: 1,
            })
        };
        assert_eq!(Memory::of_process(&view).used, Some(ByteCount(100)));
        view.pss_anon = Some(ByteCount(25));
        let memory = Memory::of_process(&view);
        assert_eq!(memory.used, Some(ByteCount(25)));
        assert!(memory.promotable().eq([range(1, 5)]));
        assert!(memory.is_mapped(&range(6, 8)) && !memory.is_mapped(&range(4, 6)));

        let mut object = ObjectView {
            is_file: false,
            fills: false,
            id: ObjectId {
                device: (0, 1),
                inode: 2,
            },
            resident: ByteCount(7),
            mapped: vec![range(0, 3), range(5, 6)],
            regions: Vec::new(),
            heat: None,
        };
        let memory = Memory::of_object(&object);
        assert_eq!(memory.owner, object.id.into());
        assert!(memory.promotable().eq(object.mapped.iter().copied()));
        assert!(memory.is_mapped(&range(1, 3)) && !memory.is_mapped(&range(2, 6)));
        assert_eq!(memory.used, Some(ByteCount(7)));
        object.is_file = true;
        let used = Memory::of_object(&object).used;
        assert_eq!(
            used,
            Some(ByteCount(0)),
            "no budget is a share of the cache"
        );
    }
}
