//! Memory on huge pages, to compact onto.

use std::ffi::c_void;
use std::ptr::NonNull;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use superhue_model::VirtRange;
use superhue_sys::anonymous::AnonymousMemory;
use superhue_sys::collapse::own_collapse;
use superhue_sys::pagemap::{PAGE_IS_HUGE, PageCategories, PageRegion, for_each_run};

/// Zeroed memory at a multiple of 2 MiB, on huge pages as far as the kernel had some. Unmapped on drop.
#[derive(Debug)]
pub struct HugeMemory(AnonymousMemory);

impl HugeMemory {
    /// Maps at least `size` bytes, rounded up to 2 MiB, and faults all of them in.
    ///
    /// # Errors
    /// `EINVAL` for 0; `ENOMEM`.
    pub fn new(size: usize) -> Result<Self, Errno> {
        let memory = AnonymousMemory::aligned(size)?;
        match memory.populate() {
            // Before Linux 5.14: the first access faults them in.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
        // Where the fault found no huge page, a collapse may: it compacts memory. `huge_bytes`
        // reports the result.
        for region in memory.range().regions() {
            let _ = own_collapse(region);
        }
        Ok(Self(memory))
    }

    /// Returns the range of its addresses.
    #[must_use]
    pub fn range(&self) -> VirtRange {
        self.0.range()
    }

    /// Returns its first byte.
    #[must_use]
    pub const fn start(&self) -> NonNull<c_void> {
        self.0.start()
    }

    /// Returns the bytes that are on huge pages now; `None` if the kernel cannot tell (before Linux 6.7).
    #[must_use]
    pub fn huge_bytes(&self) -> Option<usize> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let pagemap = open("/proc/self/pagemap", flags, Mode::empty()).ok()?;
        let mut huge = 0;
        let mut runs = [PageRegion::default(); 32];
        let on_huge_pages = PageCategories::All(PAGE_IS_HUGE);
        let scanned = for_each_run(&pagemap, self.range(), on_huge_pages, 0, &mut runs, |run| {
            huge += run.end.saturating_sub(run.start);
            true
        });
        scanned.ok().and_then(|()| usize::try_from(huge).ok())
    }

    /// Returns the memory itself, for callers who pass it on by address.
    #[must_use]
    pub fn into_memory(self) -> AnonymousMemory {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_in_memory_and_known_to_be_huge_or_not() {
        let memory = HugeMemory::new(3 << 20).unwrap();
        assert_eq!(memory.range().len().0, 4 << 20);
        if let Some(huge) = memory.huge_bytes() {
            assert!(huge <= 4 << 20 && huge % (2 << 20) == 0, "{huge}");
        }
        assert_eq!(HugeMemory::new(0).unwrap_err(), Errno::INVAL);
        assert_eq!(HugeMemory::new(usize::MAX).unwrap_err(), Errno::NOMEM);
    }
}
