//! Decides whether a list is news, and writes its file.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, Mode, OFlags, fchmod, ftruncate, memfd_create, open};
use rustix::io::Errno;
use superhue_client::Page;
use superhue_client::list::{self, Header};
use superhue_model::{PageSet, Region, VirtAddr};

/// Least difference that is news: one in this many of all pages that are in the new set, in the one
/// published last, or in both.
const NEWS_DIVISOR: u64 = 10;

/// Active pages by region, ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ActiveSet(Vec<(Region, PageSet)>);

impl ActiveSet {
    /// Makes the set of pages that ascend by address.
    pub(crate) fn of(pages: &[Page]) -> Self {
        let mut regions: Vec<(Region, PageSet)> = Vec::new();
        for page in pages {
            let region = Region::containing(VirtAddr(page.address));
            if regions.last().is_none_or(|(last, _)| *last != region) {
                regions.push((region, PageSet::EMPTY));
            }
            let Some((_, set)) = regions.last_mut() else {
                continue;
            };
            if page.is_huge() {
                *set = PageSet::FULL;
            } else {
                let offset = (page.address - region.start().0) / superhue_model::BASE_PAGE_SIZE;
                set.insert(usize::try_from(offset).unwrap_or(usize::MAX));
            }
        }
        Self(regions)
    }

    /// Returns the base pages in it.
    pub(crate) fn len(&self) -> u64 {
        self.0.iter().map(|(_, set)| set.len().0).sum()
    }

    /// Returns the bytes that it takes.
    pub(crate) fn held(&self) -> usize {
        self.0.capacity() * size_of::<(Region, PageSet)>()
    }

    /// Returns true if it differs notably from `told`.
    pub(crate) fn is_news(&self, told: &Self) -> bool {
        let (both, either) = self.overlap(told);
        let differ = either - both;
        differ > 0 && differ * NEWS_DIVISOR >= either
    }

    /// Returns the number of pages in both, and in either.
    fn overlap(&self, other: &Self) -> (u64, u64) {
        let mut others = other.0.iter().peekable();
        let mut both = 0;
        for (region, set) in &self.0 {
            while others.next_if(|(other, _)| other < region).is_some() {}
            if let Some((_, set_of_other)) = others.next_if(|(other, _)| other == region) {
                both += set.and(set_of_other).len().0;
            }
        }
        (both, self.len() + other.len() - both)
    }
}

/// Sorts hottest first, pages of equal heat by address, and cuts to `limit` entries. Returns the number
/// of base pages cut away.
pub(crate) fn hottest_first(pages: &mut Vec<Page>, limit: usize) -> u64 {
    pages.sort_by_key(|page| std::cmp::Reverse(page.heat));
    let cut = pages.iter().skip(limit).map(Page::weight).sum();
    pages.truncate(limit);
    cut
}

/// The file that a client reads its list from.
#[derive(Debug)]
pub(crate) struct ListFile {
    file: OwnedFd,
    header: Header,
    bytes: usize,
}

impl ListFile {
    /// Makes an empty list.
    pub(crate) fn new() -> Result<Self, Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL;
        let file = match memfd_create("superhue-list", flags) {
            // Before Linux 6.3.
            Err(Errno::INVAL) => memfd_create("superhue-list", MemfdFlags::CLOEXEC)?,
            other => other?,
        };
        // Without this, a client could open it for writing through its own /proc.
        fchmod(&file, Mode::RUSR)?;
        let header = Header::default();
        list::write(&file, header, &[])?;
        Ok(Self {
            file,
            header,
            bytes: list::length(0),
        })
    }

    /// Opens a descriptor that can only read.
    pub(crate) fn reader(&self) -> Result<File, Errno> {
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let opened = open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(File::from(opened))
    }

    /// Replaces the list and returns its number. `superseded`: the client has not fetched the one before.
    pub(crate) fn publish(
        &mut self,
        pages: &[Page],
        active: u64,
        cut: u64,
        superseded: bool,
    ) -> Result<u64, Errno> {
        self.header.serial += 1;
        self.header.superseded += u64::from(superseded);
        self.header.active = active;
        self.header.cut = cut;
        list::write(&self.file, self.header, pages)?;
        self.bytes = list::length(pages.len());
        Ok(self.header.serial)
    }

    /// Returns the bytes of the file.
    pub(crate) const fn held(&self) -> usize {
        self.bytes
    }

    /// Returns the number of the newest list.
    pub(crate) const fn serial(&self) -> u64 {
        self.header.serial
    }

    /// Returns the active pages in the newest list.
    pub(crate) const fn active(&self) -> u64 {
        self.header.active
    }
}

impl AsFd for ListFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for ListFile {
    fn drop(&mut self) {
        // A client may keep its descriptor forever, but not the memory.
        let _ = ftruncate(&self.file, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use superhue_client::PageFlags;

    fn base(number: u64, heat: u32) -> Page {
        Page {
            address: number << 12,
            heat,
            flags: PageFlags::NONE,
        }
    }

    #[test]
    fn a_tenth_is_news() {
        let of = |numbers: std::ops::Range<u64>| {
            ActiveSet::of(&numbers.map(|n| base(n, 1)).collect::<Vec<_>>())
        };
        assert!(of(0..1).is_news(&ActiveSet::default()));
        assert!(!of(0..1000).is_news(&of(0..1000)));
        assert!(!of(0..1000).is_news(&of(0..950)));
        assert!(of(0..1000).is_news(&of(0..900)));
        assert!(of(0..1000).is_news(&of(1000..2000)));
        assert!(ActiveSet::default().is_news(&of(5..6)));
        assert_eq!(of(500..1500).len(), 1000);
        let huge = Page {
            address: 0,
            heat: 9,
            flags: PageFlags::HUGE,
        };
        assert_eq!(ActiveSet::of(&[huge]).len(), 512);
        assert!(!ActiveSet::of(&[huge]).is_news(&of(0..512)));
    }

    #[test]
    fn the_coldest_are_cut() {
        let mut pages = vec![base(1, 5), base(2, 9), base(3, 9), base(4, 1)];
        assert_eq!(hottest_first(&mut pages, 3), 1);
        assert_eq!(pages, [base(2, 9), base(3, 9), base(1, 5)]);
    }

    #[test]
    fn a_reader_can_read_only_and_holds_no_memory_afterwards() {
        let mut file = ListFile::new().unwrap();
        let reader = file.reader().unwrap();
        file.publish(&[base(1, 5)], 1, 0, false).unwrap();
        let mut room = [Page::default(); 4];
        let (count, header) = list::read(&reader, &mut room).unwrap();
        assert_eq!((count, room[0], header.serial), (1, base(1, 5), 1));
        assert_eq!(
            rustix::io::pwrite(&reader, b"x", 0).unwrap_err(),
            Errno::BADF
        );
        assert_eq!(ftruncate(&reader, 0).unwrap_err(), Errno::INVAL);
        drop(file);
        assert_eq!(reader.metadata().unwrap().len(), 0);
    }
}
