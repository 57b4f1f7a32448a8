//! Counts the resident pages of one region: a collapse adds the missing ones.

use std::fs::File;

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SHIFT, PageCount, ProcessId, Region, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageCategories, PageRegion, for_each_run,
};

use super::open;
use super::words::region_words;
use crate::{ReadError, Roots};

/// Runs of pages read from the kernel at a time. Most regions have one or two.
const RUNS: usize = 32;

/// Counts the resident pages of `region`, in some microseconds. The shared zero page does not count.
///
/// Before Linux 6.7 the zero page looks like a page that is shared since a fork, and neither counts.
///
/// Needs ptrace read access to the process.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Missing`] for a kernel without `pagemap`; [`ReadError::Io`].
pub fn resident_pages(
    roots: &Roots,
    id: ProcessId,
    region: Region,
) -> Result<PageCount, ReadError> {
    let (path, pagemap) = open(roots, id)?;
    let counted = match scanned(&pagemap, region.range()) {
        Err(Errno::NOTTY | Errno::NOSYS | Errno::OPNOTSUPP) => read(&pagemap, region),
        counted => counted.map_err(Into::into),
    };
    counted.map_err(|error| ReadError::of_process(id.pid, &path, error))
}

/// Counts the pages of `region` that are swapped out, in some microseconds: a collapse brings them in.
///
/// Needs ptrace read access to the process.
///
/// # Errors
/// Errors of [`resident_pages`].
pub fn swapped_pages(roots: &Roots, id: ProcessId, region: Region) -> Result<PageCount, ReadError> {
    let (path, pagemap) = open(roots, id)?;
    let words = region_words(&pagemap, region)
        .map_err(|error| ReadError::of_process(id.pid, &path, error))?;
    Ok(PageCount(
        words.filter(|word| word.is_swapped()).count() as u64
    ))
}

fn scanned(pagemap: &File, range: VirtRange) -> Result<PageCount, Errno> {
    let mut runs = [PageRegion::default(); RUNS];
    let mut bytes = 0;
    let present = PageCategories::All(PAGE_IS_PRESENT);
    for_each_run(pagemap, range, present, PAGE_IS_PFNZERO, &mut runs, |run| {
        if run.categories & PAGE_IS_PFNZERO == 0 {
            bytes += run.end - run.start;
        }
        true
    })?;
    Ok(PageCount(bytes >> BASE_PAGE_SHIFT))
}

fn read(pagemap: &File, region: Region) -> std::io::Result<PageCount> {
    let resident = region_words(pagemap, region)?
        .filter(|word| word.is_present() && (word.is_exclusive() || word.is_file()));
    Ok(PageCount(resident.count() as u64))
}

#[cfg(test)]
mod tests {
    use superhue_sys::scratch::Scratch;

    use super::*;
    use crate::process::identify;

    #[test]
    fn pages_that_were_touched_count_and_no_others() {
        let roots = Roots::default();
        let id = identify(&roots, std::process::id()).unwrap();
        let mut scratch = Scratch::in_base_pages(4 << 20).unwrap();
        let region = scratch.region();
        let (_, pagemap) = open(&roots, id).unwrap();
        for touched in 0..100 {
            // Far apart, so that each is a run of its own.
            scratch.touch_page(touched * 4);
            let expected = PageCount(touched as u64 + 1);
            assert_eq!(resident_pages(&roots, id, region).unwrap(), expected);
            assert_eq!(read(&pagemap, region).unwrap(), expected);
        }
        let other = ProcessId {
            start_ticks: id.start_ticks + 1,
            ..id
        };
        let gone = resident_pages(&roots, other, region).unwrap_err();
        assert!(gone.is_vanished(), "{gone}");
    }

    #[test]
    fn addresses_that_no_process_has_are_an_error() {
        let roots = Roots::default();
        let id = identify(&roots, std::process::id()).unwrap();
        let beyond = serde_json::from_str::<Region>("18446744073709551615").unwrap();
        for region in [
            beyond,
            Region::containing(superhue_model::VirtAddr(u64::MAX)),
        ] {
            assert!(!matches!(
                resident_pages(&roots, id, region),
                Ok(PageCount(1..))
            ));
        }
    }
}
