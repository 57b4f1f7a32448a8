//! `/sys/kernel/mm/transparent_hugepage`: settings for the huge pages that the kernel makes by itself.
//!
//! The directory has grown for fifteen years, so every attribute is optional here, and the reason for a missing
//! one is kept beside it. `Documentation/admin-guide/mm/transhuge.rst` explains the attributes.
//!
//! Since Linux 6.8 each folio size has its own switch, and the huge page's size is one of them. The
//! old `enabled` file then applies only to the sizes set to `inherit`; by default that is the
//! huge page's size alone. [`ThpSettings::huge_page_mode`] resolves this.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE};

use super::file::{self, Attributes};
use super::parse::{choice, number, switch};
use super::{Gaps, ParseError};
use crate::{ReadError, Roots};

choice! {
    /// Memory for which page faults and khugepaged make huge pages (`enabled`).
    ThpMode {
        /// All anonymous memory.
        Always = "always",
        /// Only memory marked by `madvise(MADV_HUGEPAGE)`.
        Madvise = "madvise",
        /// None. `MADV_COLLAPSE` still works (Linux 6.1).
        Never = "never",
    }
}

choice! {
    /// Memory for which the kernel makes folios of one size (`hugepages-<size>kB/enabled`).
    MthpMode {
        /// All anonymous memory.
        Always = "always",
        /// The memory that the top-level `enabled` selects.
        Inherit = "inherit",
        /// Only memory marked by `madvise(MADV_HUGEPAGE)`.
        Madvise = "madvise",
        /// None.
        Never = "never",
    }
}

choice! {
    /// Effort of a page fault when no huge page is free (`defrag`).
    ThpDefrag {
        /// Reclaims and compacts at once: the fault may take long.
        Always = "always",
        /// Wakes the background compactor and takes base pages meanwhile.
        Defer = "defer",
        /// As `always` for marked memory, as `defer` for the rest.
        DeferMadvise = "defer+madvise",
        /// As `always` for marked memory; the rest takes base pages.
        Madvise = "madvise",
        /// Takes base pages.
        Never = "never",
    }
}

choice! {
    /// Shared memory for which the kernel makes large folios (`shmem_enabled`).
    ShmemMode {
        /// All.
        Always = "always",
        /// The memory that the top-level `shmem_enabled` selects (single sizes only).
        Inherit = "inherit",
        /// Only where the folio lies wholly within the file's size.
        WithinSize = "within_size",
        /// Only memory marked by `madvise(MADV_HUGEPAGE)`.
        Advise = "advise",
        /// None.
        Never = "never",
        /// None, regardless of the mount options (top level only).
        Deny = "deny",
        /// All, regardless of the mount options; for testing (top level only).
        Force = "force",
    }
}

/// Settings and counters of the kernel thread that collapses base pages into huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Khugepaged {
    /// True if it reclaims and compacts to get a huge page.
    pub defrag: Option<bool>,
    /// Base pages that it scans in one pass.
    pub pages_to_scan: Option<u64>,
    /// Milliseconds between passes.
    pub scan_sleep_ms: Option<u64>,
    /// Milliseconds that it waits after a failed allocation.
    pub alloc_sleep_ms: Option<u64>,
    /// Maximum number of unmapped base pages in a region that it still collapses; 511 collapses anything.
    pub max_ptes_none: Option<u64>,
    /// Maximum number of swapped base pages in a region that it still collapses.
    pub max_ptes_swap: Option<u64>,
    /// Maximum number of base pages shared with other processes in a region that it still collapses.
    pub max_ptes_shared: Option<u64>,
    /// Huge pages that it has made since boot. `MADV_COLLAPSE` does not count.
    pub pages_collapsed: Option<u64>,
    /// Number of complete scans of all memory since boot.
    pub full_scans: Option<u64>,
}

/// One folio size that the kernel offers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct MthpSize {
    /// Folio size.
    pub size: ByteCount,
    /// Anonymous memory with folios of this size; `None` for a size of shared memory only.
    pub enabled: Option<MthpMode>,
    /// Shared memory with folios of this size (Linux 6.11).
    pub shmem_enabled: Option<ShmemMode>,
    /// Counters since boot, and levels (`nr_*`), by the kernel's names (Linux 6.10).
    pub stats: BTreeMap<String, u64>,
}

impl MthpSize {
    /// Returns the anonymous memory of the machine in folios of this size; `None` before Linux 6.12 (`nr_anon`).
    #[must_use]
    pub fn held(&self) -> Option<ByteCount> {
        let folios = self.stats.get("nr_anon")?;
        Some(ByteCount(folios.saturating_mul(self.size.0)))
    }
}

/// Returns the anonymous memory of the machine in folios of each size that the kernel offers now, ascending; empty where it does not count them
/// (before Linux 6.12: `nr_anon` of `hugepages-*kB/stats`).
#[must_use]
pub fn folio_bytes(roots: &Roots) -> Vec<(ByteCount, ByteCount)> {
    let directory = roots.sys.join("kernel/mm/transparent_hugepage");
    let sizes = file::numbered(&directory, "hugepages-", "kB").unwrap_or_default();
    let mut top = Attributes::of(&directory);
    let of_size = |(kib, _): &(u64, std::path::PathBuf)| {
        let folios = top.get(&format!("hugepages-{kib}kB/stats/nr_anon"), number)?;
        let size = ByteCount::from_kib(*kib);
        Some((size, ByteCount(folios.saturating_mul(size.0))))
    };
    sizes.iter().filter_map(of_size).collect()
}

/// Contents of the directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThpSettings {
    /// Anonymous memory with huge pages; see [`Self::huge_page_mode`] for the effective setting.
    pub enabled: Option<ThpMode>,
    /// Effort of a page fault.
    pub defrag: Option<ThpDefrag>,
    /// Settings and counters of khugepaged.
    pub khugepaged: Khugepaged,
    /// True if a read fault may map the huge zero page.
    pub use_zero_page: Option<bool>,
    /// Shared memory with huge pages.
    pub shmem_enabled: Option<ShmemMode>,
    /// True if the kernel splits huge pages that are mostly zero when memory runs short (Linux 6.12).
    pub shrink_underused: Option<bool>,
    /// Bytes mapped by one page-middle-directory entry: the huge page (`hpage_pmd_size`).
    pub pmd_size: Option<ByteCount>,
    /// Folio sizes, ascending; empty before Linux 6.8.
    pub sizes: Vec<MthpSize>,
    /// Reasons for the `None` fields above, by file name.
    pub gaps: Gaps,
}

impl ThpSettings {
    /// Reads the directory.
    ///
    /// # Errors
    /// [`ReadError::Missing`] on a kernel without huge pages; otherwise when the directory may not
    /// be read. A single missing or malformed attribute is no error but a gap.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        let directory = roots.sys.join("kernel/mm/transparent_hugepage");
        let sizes = file::numbered(&directory, "hugepages-", "kB").map_err(|error| {
            let meaning =
                "a kernel without CONFIG_TRANSPARENT_HUGEPAGE, or a container that hides it";
            ReadError::of_system(&directory, error, meaning)
        })?;
        let mut top = Attributes::of(&directory);
        Ok(Self {
            enabled: top.get("enabled", ThpMode::parse),
            defrag: top.get("defrag", ThpDefrag::parse),
            khugepaged: khugepaged(&mut top),
            use_zero_page: top.get("use_zero_page", switch),
            shmem_enabled: top.get("shmem_enabled", ShmemMode::parse),
            shrink_underused: top.get("shrink_underused", switch),
            pmd_size: top.get("hpage_pmd_size", bytes),
            sizes: sizes
                .iter()
                .map(|(kib, path)| folio_size(*kib, path, &mut top))
                .collect(),
            gaps: top.into_gaps(),
        })
    }

    /// Returns the settings of one folio size; `None` before Linux 6.8.
    #[must_use]
    pub fn of_size(&self, size: ByteCount) -> Option<&MthpSize> {
        self.sizes.iter().find(|entry| entry.size == size)
    }

    /// Returns the anonymous memory for which the kernel makes 2 MiB huge pages, from all files together.
    ///
    /// `None` if the deciding file cannot be read.
    #[must_use]
    pub fn huge_page_mode(&self) -> Option<ThpMode> {
        match self.of_size(ByteCount(HUGE_PAGE_SIZE)) {
            Some(size) => decides(size.enabled?, self.enabled),
            None => self.enabled,
        }
    }

    /// Like [`huge_page_mode`](Self::huge_page_mode), but reads only the files it needs: the directory has hundreds.
    #[must_use]
    pub fn read_huge_page_mode(roots: &Roots) -> Option<ThpMode> {
        let directory = roots.sys.join("kernel/mm/transparent_hugepage");
        let size = format!("hugepages-{}kB/enabled", HUGE_PAGE_SIZE >> 10);
        let mut files = Attributes::of(&directory);
        let top = files.get("enabled", ThpMode::parse);
        if directory.join(&size).exists() {
            decides(files.get(&size, MthpMode::parse)?, top)
        } else {
            top
        }
    }
}

/// Applies the top-level file only to sizes that inherit.
const fn decides(size: MthpMode, top: Option<ThpMode>) -> Option<ThpMode> {
    match size {
        MthpMode::Always => Some(ThpMode::Always),
        MthpMode::Inherit => top,
        MthpMode::Madvise => Some(ThpMode::Madvise),
        MthpMode::Never => Some(ThpMode::Never),
    }
}

fn khugepaged(top: &mut Attributes) -> Khugepaged {
    let mut count = |name: &str| top.get(&format!("khugepaged/{name}"), number);
    Khugepaged {
        pages_to_scan: count("pages_to_scan"),
        scan_sleep_ms: count("scan_sleep_millisecs"),
        alloc_sleep_ms: count("alloc_sleep_millisecs"),
        max_ptes_none: count("max_ptes_none"),
        max_ptes_swap: count("max_ptes_swap"),
        max_ptes_shared: count("max_ptes_shared"),
        pages_collapsed: count("pages_collapsed"),
        full_scans: count("full_scans"),
        defrag: top.get("khugepaged/defrag", switch),
    }
}

fn folio_size(kib: u64, path: &Path, top: &mut Attributes) -> MthpSize {
    let name = format!("hugepages-{kib}kB");
    MthpSize {
        size: ByteCount::from_kib(kib),
        enabled: top.get(&format!("{name}/enabled"), MthpMode::parse),
        shmem_enabled: top.get(&format!("{name}/shmem_enabled"), ShmemMode::parse),
        stats: stat_names(&path.join("stats"))
            .unwrap_or_default()
            .into_iter()
            .filter_map(|stat| {
                let value = top.get(&format!("{name}/stats/{stat}"), number)?;
                Some((stat, value))
            })
            .collect(),
    }
}

/// Lists the counters, which differ from kernel to kernel.
fn stat_names(directory: &Path) -> io::Result<Vec<String>> {
    fs::read_dir(directory)?
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Parses a size in bytes; 0 is an error.
fn bytes(text: &str) -> Result<ByteCount, ParseError> {
    match number(text)? {
        0 => Err(ParseError::new("a size of 0")),
        size => Ok(ByteCount(size)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings(enabled: ThpMode, huge_page: Option<MthpMode>) -> ThpSettings {
        let sizes = huge_page
            .map(|mode| MthpSize {
                size: ByteCount(HUGE_PAGE_SIZE),
                enabled: Some(mode),
                shmem_enabled: None,
                stats: BTreeMap::new(),
            })
            .into_iter()
            .collect();
        ThpSettings {
            enabled: Some(enabled),
            defrag: None,
            khugepaged: Khugepaged::default(),
            use_zero_page: None,
            shmem_enabled: None,
            shrink_underused: None,
            pmd_size: None,
            sizes,
            gaps: Gaps::default(),
        }
    }

    #[test]
    fn every_word_of_every_choice_is_read() {
        assert_eq!(
            ThpMode::parse("[always] madvise never\n"),
            Ok(ThpMode::Always)
        );
        assert_eq!(
            MthpMode::parse("always [inherit] madvise never"),
            Ok(MthpMode::Inherit)
        );
        assert_eq!(
            ThpDefrag::parse("always defer [defer+madvise] madvise never"),
            Ok(ThpDefrag::DeferMadvise)
        );
        assert_eq!(
            ShmemMode::parse("always within_size advise never [deny] force"),
            Ok(ShmemMode::Deny)
        );
        let error = ThpMode::parse("always [sometimes] never").unwrap_err();
        assert_eq!(error.to_string(), "unknown choice \"sometimes\"");
    }

    #[test]
    fn the_top_level_counts_only_where_it_is_inherited() {
        let mode = |enabled, size| settings(enabled, size).huge_page_mode();
        assert_eq!(
            mode(ThpMode::Always, None),
            Some(ThpMode::Always),
            "before Linux 6.8"
        );
        assert_eq!(
            mode(ThpMode::Madvise, Some(MthpMode::Inherit)),
            Some(ThpMode::Madvise)
        );
        assert_eq!(
            mode(ThpMode::Always, Some(MthpMode::Never)),
            Some(ThpMode::Never)
        );
        assert_eq!(
            mode(ThpMode::Never, Some(MthpMode::Always)),
            Some(ThpMode::Always)
        );
        assert_eq!(
            mode(ThpMode::Never, Some(MthpMode::Madvise)),
            Some(ThpMode::Madvise)
        );
    }

    #[test]
    fn an_unreadable_size_leaves_the_mode_unknown() {
        let mut settings = settings(ThpMode::Always, Some(MthpMode::Inherit));
        settings.sizes[0].enabled = None;
        assert_eq!(settings.huge_page_mode(), None);
    }

    proptest! {
        #[test]
        fn choices_never_panic(text in ".*", word in ".*") {
            let bracketed = format!("[{word}]");
            for text in [&text, &bracketed] {
                let _ = (ThpMode::parse(text), MthpMode::parse(text));
                let _ = (ThpDefrag::parse(text), ShmemMode::parse(text));
            }
        }
    }
}
