//! Counting pages with `ioctl(PAGEMAP_SCAN)`.

use std::fs::File;
use std::os::fd::AsFd;

use rustix::io::Errno;
use superhue_model::{PAGES_PER_REGION, PageCount, Region, RegionView, VirtAddr, VirtRange, Vma};
use superhue_sys::pagemap::{
    PAGE_IS_GUARD, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageCategories, PageRegion,
    for_each_run, pagemap_scan,
};

use super::windows::spans;

/// Returns the regions of `vmas` with resident pages. `runs` is scratch space.
pub(super) fn regions(
    pagemap: &File,
    vmas: &[Vma],
    runs: &mut [PageRegion],
) -> Result<Vec<RegionView>, Errno> {
    let mut tally = RunCounts::default();
    for span in spans(vmas) {
        let mut windows = span.windows.iter().copied().peekable();
        let told = PAGE_IS_HUGE | PAGE_IS_PFNZERO;
        let present = PageCategories::All(PAGE_IS_PRESENT);
        for_each_run(pagemap, span.range, present, told, runs, |run| {
            if run.categories & PAGE_IS_PFNZERO == 0 {
                let huge = run.categories & PAGE_IS_HUGE != 0;
                tally.add_within(&mut windows, run.start, run.end, huge);
            }
            true
        })?;
    }
    Ok(tally.views)
}

/// Returns true if one entry maps the whole of `region` by a huge page other than the huge zero page. `pagemap` is an open
/// `/proc/PID/pagemap`.
///
/// # Errors
/// As for [`pagemap_scan`].
pub fn is_huge(pagemap: impl AsFd, region: Region) -> Result<bool, Errno> {
    let range = region.range();
    let mut found = [PageRegion::default()];
    let (count, _) = pagemap_scan(
        pagemap,
        range,
        PAGE_IS_PRESENT | PAGE_IS_HUGE,
        PAGE_IS_PRESENT | PAGE_IS_HUGE | PAGE_IS_PFNZERO,
        &mut found,
    )?;
    let [run] = found;
    Ok(count == 1
        && (run.start, run.end) == (range.start.0, range.end.0)
        && run.categories & PAGE_IS_PFNZERO == 0)
}

/// Returns true if guard pages lie in `region`. `pagemap` is an open `/proc/PID/pagemap`.
///
/// # Errors
/// As for [`pagemap_scan`]; `EINVAL` before Linux 6.15.
pub fn is_guarded(pagemap: impl AsFd, region: Region) -> Result<bool, Errno> {
    let mut found = [PageRegion::default()];
    let range = region.range();
    let (count, _) = pagemap_scan(pagemap, range, PAGE_IS_GUARD, PAGE_IS_GUARD, &mut found)?;
    Ok(count > 0)
}

/// Sums of runs of pages, which come in ascending order, by region.
#[derive(Default)]
struct RunCounts {
    views: Vec<RegionView>,
}

impl RunCounts {
    /// Counts the parts of `[start, end)` that lie in a window. Drops windows that end before the run:
    /// no later run can reach them.
    fn add_within(
        &mut self,
        windows: &mut std::iter::Peekable<impl Iterator<Item = VirtRange>>,
        start: u64,
        end: u64,
        huge: bool,
    ) {
        let mut at = start;
        while let Some(window) = windows.peek() {
            let from = at.max(window.start.0);
            let to = end.min(window.end.0);
            if from < to {
                self.add(from, to, huge);
                at = to;
            }
            if window.end.0 >= end {
                return;
            }
            windows.next();
        }
    }

    /// Counts the pages of `[start, end)`.
    fn add(&mut self, start: u64, end: u64, huge: bool) {
        let range = VirtRange {
            start: VirtAddr(start),
            end: VirtAddr(end),
        };
        for (region, piece) in range.cut() {
            self.count(region, piece.len().whole_pages(), huge);
        }
    }

    fn count(&mut self, region: Region, pages: PageCount, huge: bool) {
        match self.views.last_mut() {
            Some(view) if view.region == region => {
                view.resident = PageCount((view.resident + pages).0.min(PAGES_PER_REGION));
                view.huge = Some(view.huge == Some(true) || huge);
            }
            _ => self.views.push(RegionView {
                region,
                resident: pages,
                huge: Some(huge),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PAGE: u64 = 4096;
    const REGION: u64 = 512 * PAGE;

    fn range(start: u64, end: u64) -> VirtRange {
        VirtRange::new(VirtAddr(start), VirtAddr(end)).unwrap()
    }

    #[test]
    fn runs_are_cut_at_windows_and_regions() {
        let mut windows = [range(REGION, 3 * REGION), range(4 * REGION, 5 * REGION)]
            .into_iter()
            .peekable();
        let mut tally = RunCounts::default();
        // The run begins before the first window and ends inside its second region.
        tally.add_within(&mut windows, 0, 2 * REGION + 3 * PAGE, false);
        // A run between two windows adds nothing.
        tally.add_within(&mut windows, 3 * REGION, 3 * REGION + PAGE, false);
        // The kernel joins equal neighbours, even across VMAs.
        tally.add_within(&mut windows, 3 * REGION + 2 * PAGE, 9 * REGION, true);
        tally.add_within(&mut windows, 9 * REGION, 10 * REGION, true);
        let found: Vec<_> = tally
            .views
            .iter()
            .map(|view| (view.region.start().0 / REGION, view.resident.0, view.huge))
            .collect();
        assert_eq!(
            found,
            [
                (1, 512, Some(false)),
                (2, 3, Some(false)),
                (4, 512, Some(true))
            ]
        );
    }

    proptest! {
        /// Pages counted one by one give the same sums, however they are cut into runs.
        #[test]
        fn every_page_in_a_window_counts_once(
            pages in proptest::collection::vec(any::<bool>(), 0..3000),
            first in 0..6_u64,
            length in 0..6_u64,
            cut in 1..700_usize,
        ) {
            let window = range(first * REGION, (first + length) * REGION);
            let mut windows = [window].into_iter().peekable();
            let mut tally = RunCounts::default();
            let mut at = 0;
            while at < pages.len() {
                let same = pages[at..].iter().take_while(|&&page| page == pages[at]).count();
                let end = at + same.min(cut);
                if pages[at] {
                    tally.add_within(&mut windows, at as u64 * PAGE, end as u64 * PAGE, false);
                }
                at = end;
            }
            for region in 0..6 {
                let inside = first <= region && region < first + length;
                let expected = pages.iter().skip(region as usize * 512).take(512);
                let expected = expected.filter(|&&page| page && inside).count() as u64;
                let found = tally.views.iter().find(|view| view.region.start().0 == region * REGION);
                prop_assert_eq!(found.map_or(0, |view| view.resident.0), expected);
            }
            prop_assert!(tally.views.windows(2).all(|pair| pair[0].region < pair[1].region));
        }
    }
}
