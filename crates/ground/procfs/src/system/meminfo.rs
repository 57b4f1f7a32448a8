//! `/proc/meminfo`: the machine's memory, and the part of it in huge pages.
//!
//! See `Documentation/filesystems/proc.rst` and `proc_meminfo(5)`. The parser is written by hand, because
//! a kernel may lack any line, and each missing one must stay `None`.

use serde::Serialize;
use superhue_model::ByteCount;

use super::parse::quote;
use super::{ParseError, file};
use crate::{ReadError, Roots};

/// One reading of `/proc/meminfo`. Amounts are for the whole machine, containers included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct MemInfo {
    /// Memory the kernel manages (`MemTotal`).
    pub total: Option<ByteCount>,
    /// Memory free right now (`MemFree`).
    pub free: Option<ByteCount>,
    /// Memory a new program could use without swapping (`MemAvailable`).
    pub available: Option<ByteCount>,
    /// Swap space (`SwapTotal`).
    pub swap_total: Option<ByteCount>,
    /// Unused swap space (`SwapFree`).
    pub swap_free: Option<ByteCount>,
    /// Anonymous memory mapped by some process (`AnonPages`).
    pub anon: Option<ByteCount>,
    /// Anonymous memory mapped by huge pages (`AnonHugePages`).
    pub anon_huge: Option<ByteCount>,
    /// Shared memory and tmpfs in huge pages (`ShmemHugePages`).
    pub shmem_huge: Option<ByteCount>,
    /// Page cache in huge pages (`FileHugePages`).
    pub file_huge: Option<ByteCount>,
    /// Memory in page tables (`PageTables`).
    pub page_tables: Option<ByteCount>,
    /// Memory that compressed pages take in zswap (`Zswap`).
    #[serde(skip)]
    pub zswap: Option<ByteCount>,
    /// Memory set aside for hugetlb pools of every size (`Hugetlb`).
    pub hugetlb: Option<ByteCount>,
    /// Size of the default hugetlb pool's pages (`Hugepagesize`).
    pub hugetlb_page_size: Option<ByteCount>,
    /// Pages in the default hugetlb pool (`HugePages_Total`).
    pub hugetlb_pages: Option<u64>,
    /// Unused pages in the default hugetlb pool (`HugePages_Free`).
    pub hugetlb_pages_free: Option<u64>,
}

impl MemInfo {
    /// Reads `/proc/meminfo`.
    ///
    /// # Errors
    /// If the file is missing, may not be read or is malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("meminfo"),
            "procfs is not mounted here",
            Self::parse,
        )
    }

    /// Parses lines like `MemTotal:       24684096 kB`. Skips unknown lines.
    ///
    /// # Errors
    /// If a line has no colon, or a known one no amount in kB (no count, for pages).
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut info = Self::default();
        for (index, line) in text.lines().enumerate() {
            let fail = |what| ParseError::in_line(index, format!("{} has {what}", quote(line)));
            let (name, value) = line.split_once(':').ok_or_else(|| fail("no name"))?;
            if let Some(amount) = info.amount(name) {
                *amount = Some(kibibytes(value).ok_or_else(|| fail("no amount in kB"))?);
            } else if let Some(count) = info.count(name) {
                *count = Some(value.trim().parse().map_err(|_| fail("no count"))?);
            }
        }
        Ok(info)
    }

    fn amount(&mut self, name: &str) -> Option<&mut Option<ByteCount>> {
        Some(match name {
            "MemTotal" => &mut self.total,
            "MemFree" => &mut self.free,
            "MemAvailable" => &mut self.available,
            "SwapTotal" => &mut self.swap_total,
            "SwapFree" => &mut self.swap_free,
            "AnonPages" => &mut self.anon,
            "AnonHugePages" => &mut self.anon_huge,
            "ShmemHugePages" => &mut self.shmem_huge,
            "FileHugePages" => &mut self.file_huge,
            "PageTables" => &mut self.page_tables,
            "Zswap" => &mut self.zswap,
            "Hugetlb" => &mut self.hugetlb,
            "Hugepagesize" => &mut self.hugetlb_page_size,
            _ => return None,
        })
    }

    fn count(&mut self, name: &str) -> Option<&mut Option<u64>> {
        Some(match name {
            "HugePages_Total" => &mut self.hugetlb_pages,
            "HugePages_Free" => &mut self.hugetlb_pages_free,
            _ => return None,
        })
    }
}

/// Parses an amount in the form that this file always uses: `  24684096 kB`, where kB means 1024 bytes.
pub(crate) fn kibibytes(value: &str) -> Option<ByteCount> {
    let kib: u64 = value.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kib.checked_mul(1024).map(ByteCount)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn amounts_are_in_bytes_and_missing_lines_are_unknown() {
        let info = MemInfo::parse(
            "MemTotal:       24684096 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n\
             VmallocTotal:   34359738367 kB\nActive(anon):          8 kB\n",
        )
        .unwrap();
        assert_eq!(info.total, Some(ByteCount(24_684_096 * 1024)));
        assert_eq!(info.hugetlb_pages, Some(3));
        assert_eq!(info.hugetlb_page_size, Some(ByteCount(2 << 20)));
        assert_eq!(info.anon_huge, None);
        assert_eq!(MemInfo::parse("").unwrap(), MemInfo::default());
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = MemInfo::parse("MemTotal: 5 kB\nMemFree: 5 MB\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 2: \"MemFree: 5 MB\" has no amount in kB"
        );
        for text in [
            "MemTotal 5 kB",
            "MemTotal:",
            "MemTotal: -5 kB",
            "HugePages_Free: x",
        ] {
            assert!(MemInfo::parse(text).is_err(), "{text:?}");
        }
        let too_large = format!("MemTotal: {} kB", u64::MAX);
        assert!(
            MemInfo::parse(&too_large).is_err(),
            "2^64 KiB are no 64-bit number of bytes"
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", name in "MemTotal|HugePages_Free", value in ".*") {
            let _ = MemInfo::parse(&text);
            let _ = MemInfo::parse(&format!("{name}:{value}"));
        }
    }
}
