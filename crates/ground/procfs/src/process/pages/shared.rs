//! Pages that several processes map since one was forked from another.
//!
//! After `fork(2)` parent and child map the same anonymous pages until one of them writes. To collapse a region with such
//! pages gives the one who asked copies of them, and the other keeps the old ones: memory is used twice, for pages that were
//! there once.

use rustix::io::Errno;
use superhue_model::{PageCount, ProcessId, Region};
use superhue_sys::pagemap::shared_pages as shared_pages_in;

use crate::{ReadError, Roots};

/// How many pages of `region` other processes map as well; see [`superhue_sys::pagemap::shared_pages`].
///
/// Needs ptrace read access to the process.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `pagemap`; [`ReadError::Io`].
pub fn shared_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<PageCount, ReadError> {
    let shared = shared_pages_of(roots, id, &[region])?;
    Ok(shared.into_iter().sum())
}

/// As [`shared_pages`], for many regions: one number for each, in their order.
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
