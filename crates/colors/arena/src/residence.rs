//! Resident pages of this process, and the processes that share them.

use std::fs::File;
use std::os::unix::fs::FileExt;

use rustix::io::Errno;
use superhue_model::{VirtAddr, VirtRange};
use superhue_sys::pagemap::{
    PAGE_IS_FILE, PAGE_IS_HUGE, PAGE_IS_PFNZERO, PAGE_IS_PRESENT, PageCategories, PageRegion,
    WORD_EXCLUSIVE, WORD_PRESENT, for_each_run, is_occupied,
};

use crate::heap::PAGE;

/// A resident page.
#[derive(Debug, Clone, Copy)]
pub struct ResidentPage {
    /// Address of the page's first byte.
    pub address: usize,
    /// True for the kernel's shared zero page, which stands for a page that was only read.
    pub zero: bool,
    /// True for a part of a huge page.
    pub huge: bool,
    /// True for a page of a file or of shared memory.
    pub file: bool,
    /// True if other processes map the page too.
    pub shared: bool,
}

/// Reader of residence.
#[derive(Debug)]
pub struct Residence(File);

impl Residence {
    /// Opens the pagemap of this process, as the calling thread's: that of the process is empty once its first thread has ended.
    ///
    /// # Errors
    /// Errors of opening `/proc/self/pagemap`.
    pub fn open() -> Result<Self, Errno> {
        let pagemap = File::open("/proc/thread-self/pagemap");
        pagemap.map(Self).map_err(|error| errno_of(&error))
    }

    /// Returns the resident pages of `range`, whole pages of this process, in ascending order.
    ///
    /// # Errors
    /// `ENOTTY` before Linux 6.7; those of reading.
    pub fn of(&self, range: VirtRange) -> Result<Vec<ResidentPage>, Errno> {
        let mut pages = Vec::new();
        let mut noted = Ok(());
        let present = PageCategories::All(PAGE_IS_PRESENT);
        let told = PAGE_IS_PFNZERO | PAGE_IS_FILE | PAGE_IS_HUGE;
        let mut runs = [PageRegion::default(); 64];
        for_each_run(&self.0, range, present, told, &mut runs, |run| {
            noted = self.note(run, &mut pages);
            noted.is_ok()
        })?;
        noted.map(|()| pages)
    }

    /// Returns true if there is no hole at this address: the page is in memory, in swap, or guarded. Returns `None` if the
    /// pagemap cannot be read.
    pub fn is_occupied(&self, address: VirtAddr) -> Option<bool> {
        let mut entry = [0; 8];
        let offset = address.0 / PAGE as u64 * 8;
        self.0.read_exact_at(&mut entry, offset).ok()?;
        Some(is_occupied(u64::from_ne_bytes(entry)))
    }

    fn note(&self, run: &PageRegion, pages: &mut Vec<ResidentPage>) -> Result<(), Errno> {
        let (mut at, end) = (address(run.start), address(run.end));
        let mut entries = [0_u8; 8 * 512];
        while at < end {
            let count = ((end - at) / PAGE).clamp(1, 512);
            let wanted = entries.get_mut(..count * 8).ok_or(Errno::OVERFLOW)?;
            let offset = (at / PAGE * 8) as u64;
            let read = self.0.read_exact_at(wanted, offset);
            read.map_err(|error| errno_of(&error))?;
            for (place, entry) in wanted.as_chunks::<8>().0.iter().enumerate() {
                let entry = u64::from_ne_bytes(*entry);
                if entry & WORD_PRESENT != 0 {
                    pages.push(ResidentPage {
                        address: at + place * PAGE,
                        zero: run.categories & PAGE_IS_PFNZERO != 0,
                        huge: run.categories & PAGE_IS_HUGE != 0,
                        file: run.categories & PAGE_IS_FILE != 0,
                        shared: entry & WORD_EXCLUSIVE == 0,
                    });
                }
            }
            at += count * PAGE;
        }
        Ok(())
    }
}

#[allow(clippy::cast_possible_truncation, reason = "addresses of this process")]
const fn address(at: u64) -> usize {
    at as usize
}

fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}
