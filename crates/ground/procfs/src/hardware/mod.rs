//! The hardware: caches, TLBs, processor, hypervisor, and a verdict on what they report.
//!
//! Huge pages pay through the TLB, page colors through the caches, so Superhue reads both.
//! Firmware, hypervisor or processor only *report* them; [`assess`]
//! decides what follows from a report. [`Hardware::read`] reads everything; a part that cannot be
//! read is an error in its place and does not keep the other parts from being read.
//! Only [`CacheAllocation`] is read by itself: it is an offer of CPU and kernel, which may change at any moment.

mod assess;
mod cache;
mod cache_allocation;
mod container;
mod cpu;
mod cpu_list;
mod cpuid;
mod geometry;
mod hypervisor;
mod partition;
mod tlb;

pub use assess::{AssessedCache, Circumstances, Usability, assess};
pub use cache::{Cache, CacheKind, parse_cache_size, read_caches};
pub use cache_allocation::{AllocationFlags, AllocationState, CacheAllocation, CacheMasks};
pub use cpu::{Cpu, CpuInfo, Node};
pub use cpu_list::CpuList;
pub use cpuid::{Cpuid, CpuidTable, Registers};
pub use geometry::{Geometry, GeometryError};
pub use hypervisor::{Machine, Virtualization};
pub use partition::{Partition, Sharing, between_cpus, partitions};
pub use tlb::{PageSizes, Tlb, TlbArray, TlbError, TlbKind, TlbReach, TlbWays};

use serde::Serialize;
use superhue_model::{BASE_PAGE_SIZE, ByteCount};

use crate::system::file::serialize_part;
use crate::{ReadError, Roots};

/// Everything that this module reads.
///
/// In JSON each part that may fail is `{"value": ..., "reason": null}`, or
/// `{"value": null, "reason": "..."}` where it could not be read.
#[derive(Debug, Serialize)]
pub struct Hardware {
    /// The processor.
    #[serde(serialize_with = "serialize_part")]
    pub cpu: Result<Cpu, ReadError>,
    /// Platform of the system.
    pub virtualization: Virtualization,
    /// Every cache once, nearest level first, each with a verdict.
    #[serde(serialize_with = "serialize_part")]
    pub caches: Result<Vec<AssessedCache>, ReadError>,
    /// Effect of page colors on the caches; empty if the caches could not be read.
    pub partitions: Vec<Partition>,
    /// TLBs of the CPU that answered.
    #[serde(serialize_with = "serialize_part")]
    pub tlb: Result<Tlb, TlbError>,
}

impl Hardware {
    /// Reads every part that can be read.
    ///
    /// For the running machine `cpuid` is [`Cpuid::native`]; for a recorded one its table.
    #[must_use]
    pub fn read(roots: &Roots, cpuid: &Cpuid) -> Self {
        let virtualization = Virtualization::read(roots, cpuid);
        let assess_one = |cache: Cache| {
            let hashed = cache.level.and_then(|level| cpuid.hashed_index(level));
            let virtualization = &virtualization;
            let page = ByteCount(BASE_PAGE_SIZE);
            assess(
                cache,
                &Circumstances {
                    virtualization,
                    page,
                    hashed,
                },
            )
        };
        let caches = read_caches(roots);
        let caches = caches.map(|caches| caches.into_iter().map(assess_one).collect::<Vec<_>>());
        Self {
            cpu: Cpu::read(roots),
            partitions: (caches.as_ref())
                .map(|caches| partitions(caches, ByteCount(BASE_PAGE_SIZE)))
                .unwrap_or_default(),
            caches,
            tlb: Tlb::read(cpuid, &virtualization),
            virtualization,
        }
    }
}

#[cfg(test)]
mod tests;
