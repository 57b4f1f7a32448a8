//! Sums over the huge pages of a process.

use std::collections::BTreeMap;

use superhue_model::{ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, ProcessView, Region};

/// The huge pages of one process, counted when its regions change and not at every glance.
#[derive(Debug, Clone, Copy)]
pub(super) struct HugePages {
    /// Bytes that they map; `None` where the kernel does not report it.
    pub(super) mapped: Option<ByteCount>,
    /// The most memory that they can hold beyond touched pages.
    pub(super) bloat: PageCount,
    /// Pages that the kernel holds for parts of huge pages that were given back; `None` where they cannot be counted.
    pub(super) held: Option<PageCount>,
}

impl HugePages {
    /// Sums of a process without a look so far.
    pub(super) const NONE: Self = Self {
        mapped: Some(ByteCount(0)),
        bloat: PageCount(0),
        held: Some(PageCount(0)),
    };

    /// Counts the huge pages of a process. `bloat` is the growth by Superhue's collapses (`grown`); for each huge page that the kernel made by
    /// itself all pages but the one whose touch made it; and the pages held of huge pages that were given back in part.
    pub(super) fn of(view: &ProcessView, grown: Option<&BTreeMap<Region, PageCount>>) -> Self {
        let huge = (view.regions.iter()).filter(|region| region.huge == Some(true));
        let bloat = huge.map(|region| {
            let ours = grown.and_then(|grown| grown.get(&region.region)).copied();
            ours.unwrap_or(PageCount(PAGES_PER_REGION - 1))
        });
        let held = view.held;
        Self {
            mapped: view.huge_mapped(),
            bloat: bloat.sum::<PageCount>() + held.unwrap_or_default(),
            held,
        }
    }

    /// Returns their number; 0 where the kernel does not report it.
    pub(super) fn count(&self) -> u64 {
        self.mapped.unwrap_or_default().0 / HUGE_PAGE_SIZE
    }

    /// Adds a huge page that a collapse has made of base pages, and this many pages with it.
    pub(super) fn add(&mut self, growth: PageCount) {
        if let Some(mapped) = &mut self.mapped {
            *mapped += ByteCount(HUGE_PAGE_SIZE);
        }
        self.bloat += growth;
    }
}
