//! The machine's memory: superpage settings, free memory by order, swap areas, which kernel.
//!
//! One file of the kernel per module, each with a parser that takes text and a reader that takes
//! [`Roots`]. [`System::read`] gathers them all; a part that cannot be had is an error
//! in its place and does not keep the others from being read.

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

use serde::Serialize;

use crate::{ReadError, Roots};

/// Everything this module reads, at one moment.
///
/// In JSON each part is `{"value": ..., "reason": null}`, or `{"value": null, "reason": "..."}`
/// where it could not be read.
#[derive(Debug, Serialize)]
pub struct System {
    /// Which kernel.
    #[serde(serialize_with = "file::serialize_part")]
    pub kernel: Result<Kernel, ReadError>,
    /// When the kernel makes superpages.
    #[serde(serialize_with = "file::serialize_part")]
    pub thp: Result<ThpSettings, ReadError>,
    /// How much memory there is.
    #[serde(serialize_with = "file::serialize_part")]
    pub meminfo: Result<MemInfo, ReadError>,
    /// Memory set aside for hugetlbfs.
    #[serde(serialize_with = "file::serialize_part")]
    pub hugetlb: Result<Vec<HugetlbPool>, ReadError>,
}

impl System {
    /// Reads everything that can be read.
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
