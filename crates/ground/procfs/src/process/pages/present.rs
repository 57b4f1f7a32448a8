//! Base pages of a process that are in memory.

use superhue_model::{BASE_PAGE_SIZE, ProcessId, VirtAddr};
use superhue_sys::pagemap::{
    PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageCategories, PageRegion,
    for_each_run,
};

use super::{RUNS, open};
use crate::process::maps;
use crate::{ReadError, Roots};

/// Base page that is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PresentPage {
    /// Address of the page.
    pub page: VirtAddr,
    /// True if it is part of a huge page.
    pub huge: bool,
}

/// Returns the pages of private anonymous memory that are in memory, ascending, at most `most` of them; the shared zero page does not count.
///
/// Needs ptrace read access to the process, and Linux 6.7.
///
/// # Errors
/// [`ReadError::Vanished`], [`ReadError::Denied`]; [`ReadError::Io`] if the kernel does not show the pages.
pub fn present_pages(
    roots: &Roots,
    id: ProcessId,
    most: usize,
) -> Result<Vec<PresentPage>, ReadError> {
    let vmas = maps(roots, id.pid)?;
    let (path, pagemap) = open(roots, id)?;
    let mut found = Vec::new();
    let mut runs = vec![PageRegion::default(); RUNS];
    let present = PageCategories::All(PAGE_IS_PRESENT);
    let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO | PAGE_IS_FILE;
    for vma in vmas.iter().filter(|vma| vma.is_promotable()) {
        let scanned = for_each_run(&pagemap, vma.range, present, told, &mut runs, |run| {
            if run.categories & (PAGE_IS_PFNZERO | PAGE_IS_FILE) == 0 {
                let huge = run.categories & PAGE_IS_HUGE != 0;
                let pages = (run.start..run.end).step_by(BASE_PAGE_SIZE as usize);
                found.extend(pages.take(most - found.len()).map(|page| PresentPage {
                    page: VirtAddr(page),
                    huge,
                }));
            }
            found.len() < most
        });
        scanned.map_err(|errno| ReadError::of_process(id.pid, &path, errno.into()))?;
        if found.len() >= most {
            break;
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use superhue_sys::scratch::Scratch;

    use super::*;
    use crate::process::identify;

    #[test]
    fn what_was_touched_is_there_and_no_more_than_asked_for() {
        let roots = Roots::default();
        let id = identify(&roots, std::process::id()).unwrap();
        let mut scratch = Scratch::in_base_pages(2 << 20).unwrap();
        scratch.fill(1);
        let start = scratch.range().start;
        let all = match present_pages(&roots, id, usize::MAX) {
            Ok(all) => all,
            Err(error) => {
                superhue_testing::skip("pagemap-scan", &error.to_string());
                return;
            }
        };
        assert!(all.is_sorted_by_key(|found| found.page));
        let ours = all
            .iter()
            .filter(|found| (start.0..start.0 + (2 << 20)).contains(&found.page.0) && !found.huge);
        assert_eq!(ours.count(), 512);
        assert_eq!(present_pages(&roots, id, 7).unwrap().len(), 7);
    }
}
