//! `/sys/devices/system/cpu/cpu*/cache`: the caches, as firmware or hypervisor describes them.
//!
//! Every CPU lists the caches it uses, so a shared cache appears once per CPU that shares it; here
//! each physical cache appears once. `Documentation/ABI/testing/sysfs-devices-system-cpu` describes the
//! files. The kernel leaves out what it does not know: arm64 firmware often gives no ways. This code only
//! *reports* the values; [`assess`](super::assess) decides how far they can be trusted.

use std::path::Path;

use serde::Serialize;
use superhue_model::ByteCount;

use super::CpuList;
use crate::system::file::{self, Attributes};
use crate::system::{Gaps, ParseError, number};
use crate::{ReadError, Roots};

/// Contents of a cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Data and instructions.
    Unified,
}

impl CacheKind {
    /// Reads the `type` attribute.
    ///
    /// # Errors
    /// If it is none of the kernel's three words.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        match text.trim() {
            "Data" => Ok(Self::Data),
            "Instruction" => Ok(Self::Instruction),
            "Unified" => Ok(Self::Unified),
            other => Err(ParseError::no(other, "type of cache")),
        }
    }

    /// Returns the letter after the level: `d`, `i`, or nothing.
    #[must_use]
    pub const fn letter(self) -> &'static str {
        match self {
            Self::Data => "d",
            Self::Instruction => "i",
            Self::Unified => "",
        }
    }
}

/// One physical cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cache {
    /// Level; 1 is nearest to the CPU.
    pub level: Option<u32>,
    /// Contents.
    pub kind: Option<CacheKind>,
    /// Capacity.
    pub size: Option<ByteCount>,
    /// Lines per set (`ways_of_associativity`).
    pub ways: Option<u64>,
    /// Sets, over all slices (`number_of_sets`).
    pub sets: Option<u64>,
    /// Line size (`coherency_line_size`).
    pub line: Option<ByteCount>,
    /// Lines that share one tag (`physical_line_partition`); 1 on anything recent.
    pub lines_per_tag: Option<u64>,
    /// CPUs that use the cache, as far as this system can see.
    pub shared_by: Option<CpuList>,
    /// Reasons for the `None` fields above.
    #[serde(skip_serializing_if = "Gaps::is_empty")]
    pub gaps: Gaps,
}

impl Cache {
    /// Returns the usual name: `L1d`, `L1i`, `L2`; `L?` if the level is unknown.
    #[must_use]
    pub fn name(&self) -> String {
        let level = self
            .level
            .map_or_else(|| "?".to_owned(), |level| level.to_string());
        format!("L{level}{}", self.kind.map_or("", CacheKind::letter))
    }

    /// Returns true if the cache may hold data, also if its kind is unknown.
    #[must_use]
    pub fn holds_data(&self) -> bool {
        self.kind != Some(CacheKind::Instruction)
    }
}

/// Reads every cache of every online CPU once, nearest level first.
///
/// # Errors
/// [`ReadError::Missing`] if neither firmware nor hypervisor described the caches to the kernel; otherwise when the
/// directory may not be read. A missing or malformed attribute is no error but a gap.
pub fn read_caches(roots: &Roots) -> Result<Vec<Cache>, ReadError> {
    let directory = roots.sys.join("devices/system/cpu");
    let meaning = "the firmware, or the hypervisor, does not describe the caches";
    let cpus = file::numbered(&directory, "cpu", "")
        .map_err(|error| ReadError::of_system(&directory, error, meaning))?;
    let mut caches: Vec<Cache> = Vec::new();
    for (_, cpu) in &cpus {
        // An offline CPU has no cache directory.
        for (_, index) in file::numbered(&cpu.join("cache"), "index", "").unwrap_or_default() {
            let cache = read_cache(&index);
            // Without its CPUs, a cache looks like its twin at another CPU, so it is kept.
            if cache.shared_by.is_none() || !caches.contains(&cache) {
                caches.push(cache);
            }
        }
    }
    if caches.is_empty() {
        return Err(ReadError::Missing {
            path: directory.join("cpu0/cache"),
            meaning,
        });
    }
    caches.sort_by(|a, b| (a.level, a.kind, &a.shared_by).cmp(&(b.level, b.kind, &b.shared_by)));
    Ok(caches)
}

pub(super) fn read_cache(directory: &Path) -> Cache {
    let mut file = Attributes::of(directory);
    Cache {
        level: file.get("level", |text| {
            u32::try_from(number(text)?).map_err(|_| ParseError::no(text, "level"))
        }),
        kind: file.get("type", CacheKind::parse),
        size: file.get("size", parse_cache_size),
        ways: file.get("ways_of_associativity", positive),
        sets: file.get("number_of_sets", positive),
        line: file.get("coherency_line_size", |text| positive(text).map(ByteCount)),
        lines_per_tag: file.get("physical_line_partition", positive),
        shared_by: file.get("shared_cpu_list", CpuList::parse),
        gaps: file.into_gaps(),
    }
}

/// Parses a cache's size as sysfs writes it: a number and `K`, as in `2048K`.
///
/// # Errors
/// If it has another form, is 0, or is more than 64 bits of bytes.
pub fn parse_cache_size(text: &str) -> Result<ByteCount, ParseError> {
    let kib = text
        .trim()
        .strip_suffix('K')
        .ok_or_else(|| ParseError::no(text, "size in K"))?;
    let bytes = positive(kib)?.checked_mul(1024);
    bytes
        .map(ByteCount)
        .ok_or_else(|| ParseError::no(text, "size below 2^64 bytes"))
}

/// Parses a number above 0. Firmware writes 0 for unknown values.
pub(super) fn positive(text: &str) -> Result<u64, ParseError> {
    match number(text)? {
        0 => Err(ParseError::new("0, which stands for not known")),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    #[test]
    fn sizes_are_in_k() {
        assert_eq!(parse_cache_size("2048K\n"), Ok(ByteCount(2 << 20)));
        assert_eq!(parse_cache_size("491520K"), Ok(ByteCount(480 << 20)));
        for text in ["", "K", "0K", "2048", "2M", "-2K", "18446744073709551615K"] {
            assert!(parse_cache_size(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_those_people_use() {
        let mut cache = read_cache(Path::new("/nonexistent"));
        assert_eq!(cache.name(), "L?");
        cache.level = Some(1);
        cache.kind = Some(CacheKind::Data);
        assert_eq!(cache.name(), "L1d");
        cache.level = Some(3);
        cache.kind = Some(CacheKind::Unified);
        assert_eq!(cache.name(), "L3");
    }

    #[test]
    fn a_cache_without_its_cpus_is_kept_per_cpu() {
        let root = tempfile::tempdir().unwrap();
        for cpu in ["cpu0", "cpu1"] {
            let index = root
                .path()
                .join(format!("sys/devices/system/cpu/{cpu}/cache/index0"));
            fs::create_dir_all(&index).unwrap();
            fs::write(index.join("level"), "1\n").unwrap();
            fs::write(index.join("number_of_sets"), "0\n").unwrap();
        }
        let caches = read_caches(&Roots::under(root.path())).unwrap();
        assert_eq!(caches.len(), 2);
        assert_eq!(caches[0].sets, None, "0 is not known, not none");
        assert!(
            caches[0]
                .gaps
                .reason("number_of_sets")
                .unwrap()
                .contains("not known")
        );
    }

    #[test]
    fn no_description_at_all_is_an_error_with_its_meaning() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("sys/devices/system/cpu/cpu0")).unwrap();
        let error = read_caches(&Roots::under(root.path())).unwrap_err();
        assert!(
            error.to_string().contains("does not describe the caches"),
            "{error}"
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", number in "[0-9]{0,25}K?") {
            let _ = (parse_cache_size(&text), parse_cache_size(&number), CacheKind::parse(&text));
        }
    }
}
