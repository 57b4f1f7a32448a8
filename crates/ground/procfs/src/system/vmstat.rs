//! `/proc/vmstat`: the kernel's counters of huge pages since boot.
//!
//! See `Documentation/admin-guide/mm/transhuge.rst` ("Monitoring usage"). The set of counters changes every few
//! kernels, so they keep the kernel's names, and none is required.

use std::collections::BTreeMap;

use serde::Serialize;

use super::parse::quote;
use super::{ParseError, file};
use crate::{ReadError, Roots};

/// Prefix of the counters' names.
const PREFIX: &str = "thp_";

/// Maximum number of counters; Linux 6.18 has 31.
const MAX_COUNTERS: usize = 256;

/// Counters `thp_*` of the whole machine since boot, by the kernel's names.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ThpCounters(pub BTreeMap<String, u64>);

impl ThpCounters {
    /// Reads `/proc/vmstat`.
    ///
    /// # Errors
    /// If the file is missing, may not be read or is malformed.
    pub fn read(roots: &Roots) -> Result<Self, ReadError> {
        file::read(
            &roots.proc.join("vmstat"),
            "procfs is not mounted here",
            Self::parse,
        )
    }

    /// Parses lines like `thp_fault_alloc 4711`. Skips other lines.
    ///
    /// # Errors
    /// If such a line has no count.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut all = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            if !line.starts_with(PREFIX) || all.len() == MAX_COUNTERS {
                continue;
            }
            let fail = |what| ParseError::in_line(index, format!("{} has {what}", quote(line)));
            let (name, count) = line.split_once(' ').ok_or_else(|| fail("no count"))?;
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            if !name.chars().all(is_name) {
                return Err(fail("no name of a counter"));
            }
            let count = count.trim().parse().map_err(|_| fail("no count"))?;
            all.insert(name.to_owned(), count);
        }
        Ok(Self(all))
    }
}

/// Reads the pages that programs of the whole machine have freed lazily since boot (`pglazyfree`); `None` if the kernel does not count them.
///
/// # Errors
/// If `/proc/vmstat` is missing, may not be read or is malformed.
pub fn lazily_freed(roots: &Roots) -> Result<Option<u64>, ReadError> {
    let [freed] = counters(roots, ["pglazyfree"])?;
    Ok(freed)
}

/// Reads counters of these names at one time; `None` for those that the kernel does not have.
///
/// # Errors
/// If `/proc/vmstat` is missing, may not be read or is malformed.
pub(super) fn counters<const N: usize>(
    roots: &Roots,
    names: [&str; N],
) -> Result<[Option<u64>; N], ReadError> {
    file::read(
        &roots.proc.join("vmstat"),
        "procfs is not mounted here",
        |text| {
            let mut found = [None; N];
            for (found, name) in found.iter_mut().zip(names) {
                *found = counter_in(text, name)?;
            }
            Ok(found)
        },
    )
}

fn counter_in(text: &str, name: &str) -> Result<Option<u64>, ParseError> {
    let mut lines = text.lines().enumerate();
    let found = lines.find_map(|(index, line)| {
        let count = line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse();
        Some(count.map_err(|_| ParseError::in_line(index, format!("{} has no count", quote(line)))))
    });
    found.transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_counters_of_huge_pages_are_read() {
        let text = "nr_free_pages 12\nthp_fault_alloc 4711\nthp_split_page 0\nnr_anon_transparent_hugepages x\n";
        let counters = ThpCounters::parse(text).unwrap();
        let expected = [
            ("thp_fault_alloc".to_owned(), 4711),
            ("thp_split_page".to_owned(), 0),
        ];
        assert_eq!(counters, ThpCounters(expected.into()));
        assert_eq!(ThpCounters::parse("").unwrap(), ThpCounters::default());
    }

    #[test]
    fn malformed_lines_are_named() {
        let error = ThpCounters::parse("a 1\nthp_zero x\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2: \"thp_zero x\" has no count");
        for text in ["thp_x", "thp_x -1", "thp_\"x\" 1", "thp_x\t1"] {
            assert!(ThpCounters::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn this_kernel_has_some() {
        let counters = ThpCounters::read(&Roots::default()).unwrap();
        if counters.0.is_empty() {
            superhue_testing::skip("thp", "this kernel makes no huge pages");
        }
        assert!(counters.0.len() < MAX_COUNTERS);
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", name in "thp_[a-z]*", value in ".*") {
            let _ = ThpCounters::parse(&text);
            let _ = ThpCounters::parse(&format!("{name} {value}"));
        }
    }
}
