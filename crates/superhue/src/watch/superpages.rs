//! What the superpages of a process come to.

use std::collections::HashMap;

use superhue_model::{ByteCount, PAGES_PER_REGION, PageCount, ProcessId, ProcessView, Region};

/// The superpages of one process, counted when its regions change and not at every glance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Superpages {
    /// Bytes mapped by them; `None` where the kernel does not tell.
    pub(super) mapped: Option<ByteCount>,
    /// The most that they can hold beyond what the program touched.
    pub(super) bloat: PageCount,
    /// What the kernel holds of huge pages whose parts were given back; `None` where it cannot be told.
    pub(super) held: Option<PageCount>,
}

impl Superpages {
    /// Those of a process that has not been seen.
    pub(super) const NONE: Self = Self {
        mapped: Some(ByteCount(0)),
        bloat: PageCount(0),
        held: Some(PageCount(0)),
    };

    /// Counts those of a process. Beyond what it touched is what our collapses added (`grown`), and of
    /// each superpage that the kernel made by itself all but the page whose touch made it; and what is held of those that were given
    /// back in part.
    pub(super) fn of(view: &ProcessView, grown: &HashMap<(ProcessId, Region), PageCount>) -> Self {
        let huge = (view.regions.iter()).filter(|region| region.huge == Some(true));
        let bloat = huge.map(|region| {
            let ours = grown.get(&(view.id, region.region)).copied();
            ours.unwrap_or(PageCount(PAGES_PER_REGION - 1))
        });
        let held = view.held;
        Self {
            mapped: view.huge_mapped(),
            bloat: bloat.sum::<PageCount>() + held.unwrap_or_default(),
            held,
        }
    }
}
