//! The machine's memory: huge page settings, free memory by order, swap areas, and the kernel's identity.
//!
//! Each file of the kernel has a module, with a parser that takes text and a reader that takes
//! [`Roots`]. [`System::read`] reads all of them; a part that cannot be read is an error
//! in its place and does not keep the other parts from being read.

pub mod buddyinfo;
pub(crate) mod file;
mod gaps;
pub mod hugetlb;
mod kernel;
pub(crate) mod meminfo;
pub mod page_color;
mod page_flags;
pub(crate) mod parse;
mod swaps;
pub mod thp;
mod vmstat;
mod zram;
mod zswap;

pub use buddyinfo::BuddyInfo;
pub use file::{hint, numbered};
pub use gaps::Gaps;
pub use hugetlb::{HugetlbPool, read_hugetlb_pools};
pub use kernel::Kernel;
pub use meminfo::MemInfo;
pub use page_color::{ColorSettings, PageColors};
pub use page_flags::{PageFlags, PageFlagsFile};
pub use parse::{ParseError, chosen, number, switch};
pub use swaps::{SwapArea, SwapKind, parse_swaps, read_swaps, room_in_memory};
pub use thp::ThpSettings;
pub use vmstat::{ThpCounters, lazily_freed};
pub use zram::{Zram, ZramUse, newest_disk, parse_mm_stat, read_zrams};
pub use zswap::{SwappedOut, zswap_pool_room};

use serde::Serialize;

use crate::{ReadError, Roots};

/// Everything that this module reads, at one moment.
///
/// In JSON each part is `{"value": ..., "reason": null}`, or `{"value": null, "reason": "..."}`
/// where it could not be read.
#[derive(Debug, Serialize)]
pub struct System {
    /// Identity of the kernel.
    #[serde(serialize_with = "file::serialize_part")]
    pub kernel: Result<Kernel, ReadError>,
    /// Settings for the kernel's own huge pages.
    #[serde(serialize_with = "file::serialize_part")]
    pub thp: Result<ThpSettings, ReadError>,
    /// Amounts of memory.
    #[serde(serialize_with = "file::serialize_part")]
    pub meminfo: Result<MemInfo, ReadError>,
    /// Memory set aside for hugetlbfs.
    #[serde(serialize_with = "file::serialize_part")]
    pub hugetlb: Result<Vec<HugetlbPool>, ReadError>,
}

impl System {
    /// Reads every part that can be read.
    #[must_use]
    pub fn read(roots: &Roots) -> Self {
        Self {
            kernel: Kernel::read(roots),
            thp: ThpSettings::read(roots),
            meminfo: MemInfo::read(roots),
            hugetlb: read_hugetlb_pools(roots),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
