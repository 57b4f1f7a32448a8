//! Pages that several processes map since one was forked from another.
//!
//! After `fork(2)` parent and child map the same anonymous pages until one of them writes. To collapse a region with such
//! pages gives the one who asked copies of them, and the other keeps the old ones: memory is used twice, for pages that were
//! there once.

use superhue_model::{PageCount, ProcessId, Region};

use crate::{ReadError, Roots};

/// How many pages of `region` other processes map as well; see [`superhue_sys::pagemap::shared_pages`].
///
/// Needs ptrace read access to the process.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `pagemap`; [`ReadError::Io`].
pub fn shared_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<PageCount, ReadError> {
    let (path, pagemap) = super::open(roots, id)?;
    let shared = superhue_sys::pagemap::shared_pages(&pagemap, region);
    shared.map_err(|errno| ReadError::of_process(id.pid, &path, errno.into()))
}
