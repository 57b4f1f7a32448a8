//! Which pages of this process are resident, and whose they are.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use superhue_model::VirtRange;
use superhue_sys::pagemap::{PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageRegion, pagemap_scan};

use crate::heap::PAGE;

/// Present (`Documentation/admin-guide/mm/pagemap.rst`).
const PRESENT: u64 = 1 << 63;
/// Mapped by no other process.
const EXCLUSIVE: u64 = 1 << 56;

/// What is there of a range.
#[derive(Debug, Default)]
pub struct Residence {
    /// Addresses of resident pages, ascending; the shared page of zeroes is not one.
    pub pages: Vec<usize>,
    /// How many of them other processes map too.
    pub shared: usize,
}

/// Looks at `range`, whole pages of this process.
///
/// # Errors
/// `ENOTTY` before Linux 6.7; those of opening `/proc/self/pagemap`.
pub fn residence(range: VirtRange) -> Result<Residence, Errno> {
    let pagemap = File::open("/proc/self/pagemap").map_err(|error| errno_of(&error))?;
    let mut residence = Residence::default();
    let mut rest = range;
    let mut found = [PageRegion::default(); 64];
    while rest.start < rest.end {
        let categories = (PAGE_IS_PRESENT, PAGE_IS_PRESENT | PAGE_IS_PFNZERO);
        let (count, end) = pagemap_scan(&pagemap, rest, categories.0, categories.1, &mut found)?;
        for run in found.iter().take(count) {
            if run.categories & PAGE_IS_PFNZERO == 0 {
                note_run(&pagemap, run, &mut residence)?;
            }
        }
        if end.0 <= rest.start.0 {
            break;
        }
        rest.start = end;
    }
    Ok(residence)
}

fn note_run(pagemap: &File, run: &PageRegion, residence: &mut Residence) -> Result<(), Errno> {
    let (start, end) = (address(run.start), address(run.end));
    let mut entries = [0_u8; 8 * 512];
    let mut at = start;
    while at < end {
        let pages = ((end - at) / PAGE).min(512);
        let wanted = entries.get_mut(..pages * 8).ok_or(Errno::OVERFLOW)?;
        let offset = (at / PAGE * 8) as u64;
        pagemap
            .read_exact_at(wanted, offset)
            .map_err(|error| errno_of(&error))?;
        for (place, entry) in wanted.as_chunks::<8>().0.iter().enumerate() {
            let entry = u64::from_ne_bytes(*entry);
            if entry & PRESENT != 0 {
                residence.pages.push(at + place * PAGE);
                residence.shared += usize::from(entry & EXCLUSIVE == 0);
            }
        }
        at += pages * PAGE;
    }
    Ok(())
}

#[allow(clippy::cast_possible_truncation, reason = "addresses of this process")]
const fn address(at: u64) -> usize {
    at as usize
}

fn errno_of(error: &std::io::Error) -> Errno {
    error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error)
}
