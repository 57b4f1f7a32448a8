//! A base page that may be read.

use superhue_model::{BASE_PAGE_SIZE, VirtAddr};

/// A base page of this process that is mapped and readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Page(usize);

impl Page {
    /// The page that starts at `address`; `None` if no page starts there.
    ///
    /// # Safety
    /// It stays mapped and readable for as long as any copy of this value is used to read it.
    #[must_use]
    pub const unsafe fn at(address: usize) -> Option<Self> {
        if address.is_multiple_of(BASE_PAGE_SIZE as usize) && address != 0 {
            Some(Self(address))
        } else {
            None
        }
    }

    /// Reads a byte of the page: afterwards it is in memory and mapped.
    pub fn touch(self) {
        let byte = self.0 as *const u8;
        // SAFETY: `at` was promised that the page stays mapped and readable. Volatile: the compiler keeps it.
        let _ = unsafe { byte.read_volatile() };
    }

    /// Returns the start address as a number.
    #[must_use]
    pub const fn address(self) -> usize {
        self.0
    }

    /// Returns the start address as the model's [`VirtAddr`].
    #[must_use]
    pub const fn start(self) -> VirtAddr {
        VirtAddr(self.0 as u64)
    }
}
