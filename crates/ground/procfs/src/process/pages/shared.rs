//! Pages that several processes share after a fork.
//!
//! After `fork(2)` parent and child map the same anonymous pages until one of them writes. Collapsing a region with such
//! pages gives the collapsing process copies of them, and the other process keeps the old ones: pages that existed once
//! then take memory twice.

use rustix::io::Errno;
use superhue_model::{PageCount, ProcessId, Region};
use superhue_sys::pagemap::shared_pages as shared_pages_in;

use crate::{ReadError, Roots};

/// Returns the number of pages of `region` that other processes map as well; see [`superhue_sys::pagemap::shared_pages`].
///
/// Needs ptrace read access to the process.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `pagemap`; [`ReadError::Io`].
pub fn shared_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<PageCount, ReadError> {
    let shared = shared_pages_of(roots, id, &[region])?;
    Ok(shared.into_iter().sum())
}

/// Like [`shared_pages`], for many regions: one number for each, in their order.
///
/// Reads 4 KiB for each region. Needs ptrace read access to the process.
///
/// # Errors
/// As for [`shared_pages`].
pub fn shared_pages_of(
    roots: &Roots,
    id: ProcessId,
    regions: &[Region],
) -> Result<Vec<PageCount>, ReadError> {
    if regions.is_empty() {
        return Ok(Vec::new());
    }
    let (path, pagemap) = super::open(roots, id)?;
    let look = |region: &Region| shared_pages_in(&pagemap, *region);
    let all: Result<_, _> = regions.iter().map(look).collect();
    all.map_err(|errno: Errno| ReadError::of_process(id.pid, &path, errno.into()))
}
