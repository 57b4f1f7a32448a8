//! `ioctl(PAGEMAP_SCAN)`: which pages are resident and huge-mapped, in one call.

use rustix::io::Errno;
use superhue_model::{BASE_PAGE_SIZE, HUGE_PAGE_SIZE};
use superhue_sys::pagemap::{PAGE_IS_PRESENT, PageRegion, pagemap_scan};
use superhue_sys::scratch::Scratch;

use super::Probe;
use super::finding::{Finding, Trial, symbol};
use super::look::ProcessFiles;
use super::surroundings::ProbeEnvironment;

pub(super) const PAGEMAP_SCAN: Probe = Probe {
    id: "pagemap-scan",
    name: "Page tables in one call",
    how: "touched one page of 2 MiB, ioctl(PAGEMAP_SCAN) on /proc/self/pagemap",
    used_for: "resident and huge-mapped memory of a process, region by region",
    run: scan,
};

fn scan(around: &ProbeEnvironment) -> Trial {
    let pagemap = ProcessFiles::own(&around.roots)
        .pagemap()
        .map_err(Finding::unknown)?;
    // Only its first page is resident.
    let scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).map_err(Finding::no_scratch)?;
    let range = scratch.range();
    let mut found = [PageRegion::default(); 2];
    Ok(
        match pagemap_scan(pagemap, range, PAGE_IS_PRESENT, PAGE_IS_PRESENT, &mut found) {
            Ok((1, _))
                if found[0].start == range.start.0
                    && found[0].end == range.start.0 + BASE_PAGE_SIZE =>
            {
                Finding::yes("found the one page of 512 that was touched")
            }
            Ok((runs, _)) => Finding::no(format!(
                "answered wrongly: {runs} runs of pages, not the one"
            )),
            Err(Errno::NOTTY) => Finding::no("ENOTTY: this kernel has no PAGEMAP_SCAN").remedy(
                "Linux 6.7 or later; until then pagemap and smaps are read, which is slower",
            ),
            Err(errno) => Finding::no(symbol(errno)),
        },
    )
}
