//! What of a look counts: regions that lie wholly in one promotable range, a VMA or what is mapped of an object.
//!
//! ```text
//!   VMAs      |--- anonymous ------------|---- read-only ----|   |- heap --|
//!   regions  [  ?  ][  ok  ][  ok  ][  ?  ][  ?  ]             [ ? ][  ok  ]
//! ```
//!
//! A snapshot promises to list no others. The promise is checked nevertheless: whatever goes wrong
//! while maps and pagemap are read one after the other, no plan may reach beyond a VMA.

use superhue_model::{Memory, PageCount, Region, VirtRange};

use crate::FULL;

/// One region as one look showed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Which region.
    pub(crate) region: Region,
    /// The VMA around it, or the mapped part of an object.
    pub(crate) vma: VirtRange,
    /// Base pages present, 1 to 512.
    pub(crate) resident: u16,
    /// Whether one page-table entry maps it whole, if known.
    pub(crate) huge: Option<bool>,
}

/// The regions of `memory` that count, in ascending order and each once.
///
/// Regions and VMAs out of order are passed over rather than sorted: they show that the look was
/// torn.
pub(crate) fn eligible<'a>(memory: &Memory<'a>) -> impl Iterator<Item = Seen> + use<'a> {
    let mut vmas = memory.promotable().peekable();
    let mut previous = None;
    memory.regions.iter().filter_map(move |seen| {
        let region = seen.region;
        let whole = region.range();
        while vmas.next_if(|vma| vma.end <= whole.start).is_some() {}
        let vma = *vmas.peek()?;
        // A region number beyond the address space would wrap around to an address of another.
        let is_sound = Region::containing(whole.start) == region && previous < Some(region);
        if !is_sound || !vma.contains(&whole) || seen.resident.0 == 0 {
            return None;
        }
        previous = Some(region);
        Some(Seen {
            region,
            vma,
            resident: clamp(seen.resident),
            huge: seen.huge,
        })
    })
}

/// At most a full region.
fn clamp(pages: PageCount) -> u16 {
    u16::try_from(pages.0).map_or(FULL, |pages| pages.min(FULL))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde::de::IntoDeserializer;
    use serde::de::value::{Error, U64Deserializer};
    use superhue_model::{ProcessId, ProcessView, RegionView, VirtAddr, Vma, VmaKind};

    fn vma(from_mib: u64, to_mib: u64, kind: VmaKind, writable: bool) -> Vma {
        Vma {
            range: VirtRange::new(VirtAddr(from_mib << 20), VirtAddr(to_mib << 20)).unwrap(),
            kind,
            writable,
        }
    }

    fn region(mib: u64, resident: u64) -> RegionView {
        RegionView {
            region: Region::containing(VirtAddr(mib << 20)),
            resident: PageCount(resident),
            huge: Some(false),
        }
    }

    fn eligible_mib(vmas: Vec<Vma>, regions: Vec<RegionView>) -> Vec<(u64, u16)> {
        let view = ProcessView {
            id: ProcessId {
                pid: 1,
                start_ticks: 1,
            },
            rss: None,
            rss_anon: None,
            pss_anon: None,
            vmas,
            regions,
            heat: None,
        };
        eligible(&Memory::of_process(&view))
            .map(|seen| (seen.region.start().0 >> 20, seen.resident))
            .collect()
    }

    #[test]
    fn only_whole_regions_of_promotable_vmas_count() {
        let vmas = vec![
            vma(3, 9, VmaKind::Anonymous, true),
            vma(9, 14, VmaKind::Anonymous, false),
            vma(16, 18, VmaKind::Stack, true),
            vma(21, 24, VmaKind::Heap, true),
            vma(24, 26, VmaKind::Heap, true),
        ];
        let regions = (0..30).step_by(2).map(|mib| region(mib, 7)).collect();
        assert_eq!(
            eligible_mib(vmas, regions),
            [(4, 7), (6, 7), (22, 7), (24, 7)]
        );
    }

    #[test]
    fn a_region_beyond_the_address_space_is_no_other() {
        // Times 2 MiB, this wraps around to the number 4.
        let beyond: U64Deserializer<Error> = ((1u64 << 43) + 4).into_deserializer();
        let mut view = region(2, 5);
        view.region = Region::deserialize(beyond).unwrap();
        assert_eq!(view.region.start(), VirtAddr(8 << 20));
        let vmas = vec![vma(0, 100, VmaKind::Anonymous, true)];
        assert_eq!(eligible_mib(vmas, vec![region(2, 5), view]), [(2, 5)]);
    }

    #[test]
    fn nonsense_is_passed_over() {
        let vmas = || vec![vma(0, 100, VmaKind::Anonymous, true)];
        let regions = vec![
            region(2, 0),
            region(4, 600),
            region(4, 5),
            region(2, 5),
            region(8, u64::MAX),
        ];
        assert_eq!(eligible_mib(vmas(), regions), [(4, 512), (8, 512)]);
        assert_eq!(eligible_mib(Vec::new(), vec![region(2, 5)]), []);
        // Two VMAs side by side do not make one.
        let split = vec![
            vma(0, 5, VmaKind::Anonymous, true),
            vma(5, 10, VmaKind::Anonymous, true),
        ];
        assert_eq!(
            eligible_mib(split, vec![region(2, 1), region(4, 1), region(6, 1)]),
            [(2, 1), (6, 1)]
        );
    }
}
