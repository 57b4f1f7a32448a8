//! Pages that several processes map since one was forked from another.
//!
//! After `fork(2)` parent and child map the same anonymous pages until one of them writes. To collapse a region with such
//! pages gives the one who asked copies of them, and the other keeps the old ones: memory is used twice, for pages that were
//! there once.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SHIFT, PAGES_PER_REGION, PageCount, ProcessId, Region};
use superhue_sys::pagemap::{PAGE_IS_PFNZERO, PageRegion};

use crate::{ReadError, Roots};

use super::scan::for_each_run;
use super::words::{PageWord, page_words};

/// Bytes of the words of one region.
const WORDS: usize = PAGES_PER_REGION as usize * size_of::<u64>();

/// How many pages of `region` other processes map as well (bit 56 of the words of `/proc/PID/pagemap`, Linux 4.2): what a
/// collapse would copy although the old ones stay in use. Anonymous pages only, and not the zero page.
///
/// Reads 4 KiB. Needs ptrace read access to the process.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `pagemap`; [`ReadError::Io`].
pub fn shared_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<PageCount, ReadError> {
    let (path, pagemap) = super::open(roots, id)?;
    shared_in(&pagemap, region).map_err(|error| ReadError::of_process(id.pid, &path, error))
}

fn shared_in(pagemap: &File, region: Region) -> io::Result<PageCount> {
    let mut words = [0; WORDS];
    let at = (region.start().0 >> BASE_PAGE_SHIFT) * size_of::<u64>() as u64;
    pagemap.read_exact_at(&mut words, at)?;
    let is_shared = |word: &PageWord| word.is_present() && !word.is_file() && !word.is_exclusive();
    let shared = page_words(&words).filter(is_shared).count() as u64;
    if shared == 0 {
        return Ok(PageCount(0));
    }
    // The zero page is shared by all, and to replace it copies nothing that anybody keeps.
    let zeroes = zeroes_in(pagemap, region)?;
    Ok(PageCount(shared.saturating_sub(zeroes)))
}

/// Pages mapped to the zero page; none where the kernel does not tell (before Linux 6.7).
fn zeroes_in(pagemap: &File, region: Region) -> io::Result<u64> {
    let mut runs = [PageRegion::default(); 64];
    let mut zeroes = 0;
    let walked = for_each_run(pagemap, region.range(), PAGE_IS_PFNZERO, &mut runs, |run| {
        if run.categories & PAGE_IS_PFNZERO != 0 {
            zeroes += (run.end - run.start) >> BASE_PAGE_SHIFT;
        }
        true
    });
    match walked {
        Ok(()) => Ok(zeroes),
        Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}
