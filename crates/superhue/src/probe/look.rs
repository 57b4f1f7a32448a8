//! Views of a trial's effect: the page tables of the caller or of a scratch child.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use superhue_model::{
    BASE_PAGE_SHIFT, ByteCount, HUGE_PAGE_SIZE, PAGES_PER_REGION, PageCount, Pfn, Region, VirtAddr,
    VirtRange,
};
use superhue_procfs::Roots;
use superhue_procfs::process::is_huge;

use super::finding::{errno_of, symbol};

/// `/proc/PID` of one process.
#[derive(Debug)]
pub(super) struct ProcessFiles(PathBuf);

/// Reason why a look showed nothing, as a clause.
pub(super) type ReadFailure = String;

impl ProcessFiles {
    /// Looks at the caller.
    pub(super) fn own(roots: &Roots) -> Self {
        Self(roots.proc.join("self"))
    }

    /// Looks at another process.
    pub(super) fn at(roots: &Roots, pid: u32) -> Self {
        Self(roots.of_process(pid, ""))
    }

    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(super) fn pagemap(&self) -> Result<File, ReadFailure> {
        let path = self.file("pagemap");
        File::open(&path).map_err(|error| cannot("open", &path, errno_of(&error)))
    }

    /// Returns true if one entry maps the whole region: by `PAGEMAP_SCAN`, before Linux 6.7 by smaps.
    pub(super) fn is_huge(&self, region: Region) -> Result<bool, ReadFailure> {
        match is_huge(self.pagemap()?, region) {
            Ok(huge) => Ok(huge),
            Err(Errno::NOTTY) => {
                Ok(self.smaps(region.start(), "AnonHugePages")?.0 >= HUGE_PAGE_SIZE)
            }
            Err(errno) => Err(cannot("scan", &self.file("pagemap"), errno)),
        }
    }

    /// Returns the number of base pages of the range, at most one region's worth, that are present.
    pub(super) fn present(&self, range: VirtRange) -> Result<PageCount, ReadFailure> {
        let entries = self.entries(range)?;
        Ok(PageCount(
            entries.iter().filter(|entry| entry.is_present()).count() as u64,
        ))
    }

    /// Returns the number of base pages of the range, at most one region's worth, that are in swap.
    pub(super) fn swapped(&self, range: VirtRange) -> Result<PageCount, ReadFailure> {
        let entries = self.entries(range)?;
        Ok(PageCount(
            entries.iter().filter(|entry| entry.is_swapped()).count() as u64,
        ))
    }

    /// Returns the pagemap entry of one address.
    pub(super) fn entry(&self, addr: VirtAddr) -> Result<Entry, ReadFailure> {
        let range = VirtRange {
            start: addr,
            end: VirtAddr(addr.0 + 1),
        };
        self.entries(range)?
            .pop()
            .ok_or_else(|| cannot("read", &self.file("pagemap"), Errno::IO))
    }

    fn entries(&self, range: VirtRange) -> Result<Vec<Entry>, ReadFailure> {
        let first = range.start.0 >> BASE_PAGE_SHIFT;
        let end = ((range.end.0 - 1) >> BASE_PAGE_SHIFT) + 1;
        let count = (end - first).min(PAGES_PER_REGION);
        let mut bytes = [0_u8; 8 * PAGES_PER_REGION as usize];
        let bytes = &mut bytes[..8 * count as usize];
        self.pagemap()?
            .read_exact_at(bytes, first * 8)
            .map_err(|error| cannot("read", &self.file("pagemap"), errno_of(&error)))?;
        let (entries, _) = bytes.as_chunks();
        Ok(entries
            .iter()
            .map(|entry| Entry(u64::from_ne_bytes(*entry)))
            .collect())
    }

    /// Returns a `kB` field of smaps, for the mapping that starts at `start`.
    pub(super) fn smaps(&self, start: VirtAddr, field: &str) -> Result<ByteCount, ReadFailure> {
        let path = self.file("smaps");
        let smaps = fs::read(&path).map_err(|error| cannot("read", &path, errno_of(&error)))?;
        smaps_field(&String::from_utf8_lossy(&smaps), start, field)
            .ok_or_else(|| format!("{} does not tell {field}", path.display()))
    }
}

/// One entry of `/proc/PID/pagemap` (`proc_pid_pagemap(5)`).
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry(u64);

impl Entry {
    pub(super) const fn is_present(self) -> bool {
        self.0 >> 63 == 1
    }

    pub(super) const fn is_swapped(self) -> bool {
        (self.0 >> 62) & 1 == 1
    }

    /// Returns the page frame's number; `None` when the page is absent or the kernel hides the number
    /// (the entry then holds 0).
    pub(super) fn frame(self) -> Option<Pfn> {
        let number = self.0 & ((1 << 55) - 1);
        (self.is_present() && number != 0).then_some(Pfn(number))
    }
}

fn cannot(verb: &str, path: &Path, errno: Errno) -> ReadFailure {
    format!("cannot {verb} {}: {}", path.display(), symbol(errno))
}

fn smaps_field(smaps: &str, start: VirtAddr, field: &str) -> Option<ByteCount> {
    let wanted = format!("{:08x}-", start.0);
    let mut lines = smaps.lines().skip_while(|line| !line.starts_with(&wanted));
    lines.next()?;
    lines
        // Field names start with a capital, addresses do not.
        .take_while(|line| line.starts_with(|c: char| c.is_ascii_uppercase()))
        .find_map(|line| {
            let kib = line
                .strip_prefix(field)?
                .strip_prefix(':')?
                .strip_suffix("kB")?;
            Some(ByteCount::from_kib(kib.trim().parse().ok()?))
        })
}

#[cfg(test)]
mod tests {
    use superhue_sys::scratch::Scratch;

    use super::*;

    #[test]
    fn a_field_is_read_from_the_right_mapping() {
        let smaps = "00400000-00600000 rw-p 00000000 00:00 0 \n\
            Size:               2048 kB\nReferenced:           12 kB\nVmFlags: rd wr\n\
            7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \n\
            Size:               2048 kB\nAnonHugePages:      2048 kB\n";
        let field = |start, name| smaps_field(smaps, VirtAddr(start), name);
        assert_eq!(
            field(0x40_0000, "Referenced"),
            Some(ByteCount::from_kib(12))
        );
        assert_eq!(
            field(0x7f00_0000_0000, "AnonHugePages"),
            Some(ByteCount::from_kib(2048))
        );
        assert_eq!(
            field(0x7f00_0000_0000, "Referenced"),
            None,
            "no other mapping's"
        );
        assert_eq!(
            field(0x40_0000, "AnonHugePages"),
            None,
            "no later mapping's"
        );
        assert_eq!(field(0x40, "Size"), None);
    }

    #[test]
    fn present_pages_are_counted_under_base_pages_and_huge_pages() {
        let look = ProcessFiles::own(&Roots::default());
        let mut scratch = Scratch::in_base_pages(HUGE_PAGE_SIZE as usize).unwrap();
        assert_eq!(look.present(scratch.range()), Ok(PageCount(1)));
        assert_eq!(look.is_huge(scratch.region()), Ok(false));
        scratch.fill(1);
        assert_eq!(
            look.present(scratch.range()),
            Ok(PageCount(PAGES_PER_REGION))
        );
        let rss = look.smaps(scratch.range().start, "Rss");
        assert_eq!(rss, Ok(ByteCount(HUGE_PAGE_SIZE)));

        let mut advised = Scratch::untouched(HUGE_PAGE_SIZE as usize).unwrap();
        assert_eq!(look.present(advised.range()), Ok(PageCount(0)));
        // A kernel without huge pages refuses this; the next line holds there as well.
        let _ = advised.advise_huge();
        advised.touch();
        let is_whole = look.present(advised.range()) == Ok(PageCount(PAGES_PER_REGION));
        assert_eq!(look.is_huge(advised.region()), Ok(is_whole));
    }

    #[test]
    fn a_hidden_frame_is_not_frame_zero() {
        assert_eq!(Entry(1 << 63).frame(), None);
        assert_eq!(Entry(5).frame(), None);
        assert_eq!(Entry((1 << 63) | (1 << 55) | 5).frame(), Some(Pfn(5)));
    }
}
