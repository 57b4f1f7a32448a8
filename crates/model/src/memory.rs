//! Memory that superpages could be made of, whoever owns it.

use crate::{ByteCount, ObjectView, Owner, ProcessHeat, ProcessView, RegionView, VirtRange, Vma};

/// What a policy goes by: the unit of decision is the memory, not the process.
#[derive(Debug, Clone, Copy)]
pub struct Memory<'a> {
    /// Whose it is.
    pub owner: Owner,
    /// Where regions may be collapsed.
    ground: Ground<'a>,
    /// Regions with resident pages, ascending and disjoint.
    pub regions: &'a [RegionView],
    /// Which of them are accessed; `None` where accesses are not watched.
    pub heat: Option<&'a ProcessHeat>,
    /// Bytes that a budget is a share of: the resident ones that superpages could be made of.
    pub used: Option<ByteCount>,
}

#[derive(Debug, Clone, Copy)]
enum Ground<'a> {
    Vmas(&'a [Vma]),
    Parts(&'a [VirtRange]),
}

impl<'a> Memory<'a> {
    /// The private memory of a process.
    #[must_use]
    pub fn of_process(view: &'a ProcessView) -> Self {
        Self {
            owner: view.id.into(),
            ground: Ground::Vmas(&view.vmas),
            regions: &view.regions,
            heat: view.heat.as_ref(),
            used: view.rss_anon,
        }
    }

    /// The memory of a shared object.
    #[must_use]
    pub fn of_object(view: &'a ObjectView) -> Self {
        Self {
            owner: view.id.into(),
            ground: Ground::Parts(&view.mapped),
            regions: &view.regions,
            heat: view.heat.as_ref(),
            used: Some(view.resident),
        }
    }

    /// Ranges of which each region may be collapsed that lies wholly inside one, ascending; for an object offsets in it.
    pub fn promotable(&self) -> impl Iterator<Item = VirtRange> + use<'a> {
        let (vmas, parts) = match self.ground {
            Ground::Vmas(vmas) => (vmas, &[][..]),
            Ground::Parts(parts) => (&[][..], parts),
        };
        let vmas = vmas.iter().filter(|vma| vma.is_promotable());
        vmas.map(|vma| vma.range).chain(parts.iter().copied())
    }

    /// Whether `range` lies wholly inside one mapping of it, promotable or not.
    #[must_use]
    pub fn is_mapped(&self, range: &VirtRange) -> bool {
        match self.ground {
            Ground::Vmas(vmas) => vmas.iter().any(|vma| vma.range.contains(range)),
            Ground::Parts(parts) => parts.iter().any(|part| part.contains(range)),
        }
    }
}
