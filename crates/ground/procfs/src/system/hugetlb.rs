//! `/sys/kernel/mm/hugepages`: the pools of pages reserved for hugetlbfs.
//!
//! Superhue does not use them. But memory in these pools is missing from all other figures, and a program
//! that maps them already has its huge pages. See `Documentation/admin-guide/mm/hugetlbpage.rst`.

use serde::Serialize;
use superhue_model::ByteCount;

use super::file::{self, Attributes};
use super::{Gaps, number};
use crate::{ReadError, Roots};

/// Pool of one page size. Counts are of pages of that size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct HugetlbPool {
    /// Size of a page.
    pub page_size: ByteCount,
    /// Pages in the pool (`nr_hugepages`).
    pub pages: Option<u64>,
    /// Pages not in use (`free_hugepages`).
    pub free: Option<u64>,
    /// Unused pages promised to some mapping (`resv_hugepages`).
    pub reserved: Option<u64>,
    /// Pages beyond the pool's size, taken from ordinary memory (`surplus_hugepages`).
    pub surplus: Option<u64>,
    /// Maximum number of surplus pages (`nr_overcommit_hugepages`).
    pub overcommit: Option<u64>,
    /// Reasons for the `None` fields above.
    pub gaps: Gaps,
}

/// Reads every pool, by ascending page size.
///
/// # Errors
/// [`ReadError::Missing`] on a kernel without hugetlb; otherwise when the directory may not be read.
pub fn read_hugetlb_pools(roots: &Roots) -> Result<Vec<HugetlbPool>, ReadError> {
    let directory = roots.sys.join("kernel/mm/hugepages");
    let sizes = file::numbered(&directory, "hugepages-", "kB").map_err(|error| {
        let meaning = "a kernel without CONFIG_HUGETLBFS, or a container that hides it";
        ReadError::of_system(&directory, error, meaning)
    })?;
    let pool = |(kib, path)| {
        let mut pool = Attributes::of(path);
        HugetlbPool {
            page_size: ByteCount::from_kib(kib),
            pages: pool.get("nr_hugepages", number),
            free: pool.get("free_hugepages", number),
            reserved: pool.get("resv_hugepages", number),
            surplus: pool.get("surplus_hugepages", number),
            overcommit: pool.get("nr_overcommit_hugepages", number),
            gaps: pool.into_gaps(),
        }
    };
    Ok(sizes.into_iter().map(pool).collect())
}
