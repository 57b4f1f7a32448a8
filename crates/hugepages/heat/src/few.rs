//! Runs of neighbouring pages, watched for a moment.

use std::time::Duration;

use superhue_model::{BASE_PAGE_SIZE, Region, VirtAddr, VirtRange};

/// Pages of a run.
pub const PAGES_PER_RUN: usize = 16;

/// Neighbouring base pages, aligned to 64 KiB, so that they lie in one region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The first page.
    pub start: VirtAddr,
}

/// Touches of a run in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunTouches {
    /// The run.
    pub run: Run,
    /// CPU time of the process from the moment at which its accessed bits were cleared until they were read.
    pub cpu: Duration,
    /// Bit n: page n was present.
    pub present: u16,
    /// Bit n: page n was present and touched.
    pub touched: u16,
    /// Bit n: page n is one of four neighbours that are contiguous in an aligned 16 KiB of memory, as they are in addresses. Processors that can
    /// hold several base pages in one TLB entry can do so there.
    pub together: u16,
}

impl Run {
    /// Returns its addresses.
    #[must_use]
    pub fn range(self) -> VirtRange {
        VirtRange {
            start: self.start,
            end: VirtAddr(self.start.0 + PAGES_PER_RUN as u64 * BASE_PAGE_SIZE),
        }
    }

    /// Returns the region it lies in.
    #[must_use]
    pub const fn region(self) -> Region {
        Region::containing(self.start)
    }
}
