//! The TLB of this machine: entries of its levels for data, and what a miss costs. From CPUID, or by timing.
//!
//! Hypervisors often hide the TLB, and architectures without CPUID do not report it. A chase through one line of each of many pages shows it: the time
//! of a load rises in steps, when the pages are more than a level has entries.
//!
//! ```text
//!   chase      `superhue_color::chase`: loads in random order from one line of each page; its control has the same lines, few translations
//!     |
//!   measure    rounds over all numbers of pages; low quantiles of chase - control
//!     |
//!   steps      the number of pages at the foot of each step          kept: by processor, microcode, hypervisor and kernel
//! ```
//!
//! A measurement also shows what CPUID cannot: where the host of a virtual machine maps a huge page by smaller ones, each of these takes an entry. Huge
//! pages then shorten walks, and reach no further.

mod kept;
mod measure;
mod steps;

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};
use superhue_procfs::Roots;
use superhue_procfs::hardware::{Cpuid, Tlb, Virtualization};

use measure::ReachMeasurement;

/// Reason for a processor that reports TLBs, none of which serves loads from base pages.
pub const NO_BASE_ENTRIES: &str = "the processor reports no TLB for loads from base pages";

/// More entries than any TLB has.
const MOST_ENTRIES: u32 = 1 << 20;

/// Source that the caller wants for the facts on the TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TlbSetting {
    /// From CPUID; by timing where CPUID does not report the TLB.
    #[default]
    Auto,
    /// From CPUID alone.
    Cpuid,
    /// By timing, not from a stored result.
    Measure,
    /// From the user.
    Given {
        /// Entries for base pages.
        base: TlbEntries,
        /// Entries for huge pages of the last level.
        huge: Option<u32>,
    },
}

/// Reason why a text is no [`TlbSetting`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlbSettingError {
    /// The text has none of the forms of a setting.
    #[error(
        "`{0}` is not auto, cpuid, measure, or numbers of entries such as 64,1536 or 64,1536:1024 (first and last level; after the colon the last level's for huge pages)"
    )]
    Form(String),
    /// A number of entries that no TLB has.
    #[error("`{0}` is no number of TLB entries between 1 and {MOST_ENTRIES}")]
    Entries(String),
    /// The first level has more entries than the last.
    #[error("a first level of {0} entries before a last one of {1}: the first has fewer")]
    Order(u32, u32),
}

impl FromStr for TlbSetting {
    type Err = TlbSettingError;

    fn from_str(text: &str) -> Result<Self, TlbSettingError> {
        match text {
            "auto" => return Ok(Self::Auto),
            "cpuid" => return Ok(Self::Cpuid),
            "measure" => return Ok(Self::Measure),
            _ => {}
        }
        let form = || TlbSettingError::Form(text.to_owned());
        let (base, huge) = match text.split_once(':') {
            Some((base, huge)) => (base, Some(huge)),
            None => (text, None),
        };
        let (first, last) = base.split_once(',').ok_or_else(form)?;
        let entries = |digits: &str| {
            if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(form());
            }
            let entries = digits.parse().ok();
            let is_real = |entries: &u32| (1..=MOST_ENTRIES).contains(entries);
            entries
                .filter(is_real)
                .ok_or_else(|| TlbSettingError::Entries(digits.to_owned()))
        };
        let (first, last) = (entries(first)?, entries(last)?);
        if first > last {
            return Err(TlbSettingError::Order(first, last));
        }
        Ok(Self::Given {
            base: TlbEntries {
                first: Some(first),
                last: Some(last),
            },
            huge: huge.map(entries).transpose()?,
        })
    }
}

/// Source of the facts on the TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbSource {
    /// The processor.
    Cpuid,
    /// Timing, now or earlier on this machine.
    Measured,
    /// The user.
    Given,
}

/// Entries for pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbEntries {
    /// Of the first level; `None` if it is not known.
    pub first: Option<u32>,
    /// Of the last level, whose misses walk the page tables; `None` if it is not known.
    pub last: Option<u32>,
}

/// Seconds that a translation adds to a load that waits for it, beyond a hit in the first level. All `None` unless measured.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TlbCosts {
    /// A miss in the first level that hits in the second.
    pub second_hit_seconds: Option<f64>,
    /// A miss in the last level, if the processor's walk caches have all of the upper page tables.
    pub walk_seconds: Option<f64>,
    /// A miss in the last level, if they have none of them.
    pub full_walk_seconds: Option<f64>,
}

/// Facts on the TLB.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TlbReport {
    /// Source; `None` if nothing is known.
    pub source: Option<TlbSource>,
    /// Entries for base pages.
    pub base: TlbEntries,
    /// Entries for huge pages.
    pub huge: TlbEntries,
    /// True if one entry holds a huge page; false if the host of this virtual machine maps it by smaller pages, each of which takes an entry; `None`
    /// unless measured.
    pub huge_pages_whole: Option<bool>,
    /// Costs.
    pub costs: TlbCosts,
    /// Reason if the entries of the last level for base pages are not known.
    pub unknown_because: Option<String>,
}

impl TlbReport {
    /// Finds the TLB of this machine. Measuring takes less than a second of CPU time; under [`TlbSetting::Auto`] once for each machine and kernel.
    #[must_use]
    pub fn find(
        roots: &Roots,
        cpuid: &Cpuid,
        virtualization: &Virtualization,
        setting: TlbSetting,
    ) -> Self {
        match setting {
            TlbSetting::Cpuid => Self::of_cpuid(cpuid, virtualization),
            TlbSetting::Measure => Self::of_measurement(measured_anew(roots, virtualization)),
            TlbSetting::Given { base, huge } => Self {
                source: Some(TlbSource::Given),
                base,
                huge: TlbEntries {
                    first: None,
                    last: huge,
                },
                ..Self::unknown(None)
            },
            TlbSetting::Auto => {
                let reported = Self::of_cpuid(cpuid, virtualization);
                let Some(silent) = &reported.unknown_because else {
                    return reported;
                };
                let known = kept(roots, virtualization);
                let found = known.map_or_else(|| measured_anew(roots, virtualization), Ok);
                Self::of_measurement(found.map_err(|why| format!("{silent}; {why}")))
            }
        }
    }

    /// Returns the memory that the last level reaches with base pages.
    #[must_use]
    pub fn base_reach(&self) -> Option<ByteCount> {
        reach(self.base.last, BASE_PAGE_SIZE)
    }

    /// Returns the memory that the last level reaches with huge pages.
    #[must_use]
    pub fn huge_reach(&self) -> Option<ByteCount> {
        reach(self.huge.last, HUGE_PAGE_SIZE)
    }

    fn unknown(because: Option<String>) -> Self {
        Self {
            source: None,
            base: TlbEntries::default(),
            huge: TlbEntries::default(),
            huge_pages_whole: None,
            costs: TlbCosts::default(),
            unknown_because: because,
        }
    }

    fn of_cpuid(cpuid: &Cpuid, virtualization: &Virtualization) -> Self {
        let tlb = match Tlb::read(cpuid, virtualization) {
            Ok(tlb) => tlb,
            Err(error) => return Self::unknown(Some(error.to_string())),
        };
        let of = |page: u64| {
            let level = |level| {
                let mut rows = tlb.reach.iter();
                let row = rows.find(|row| row.level == level && row.page.0 == page);
                row.map(|row| row.entries)
            };
            TlbEntries {
                first: level(1),
                last: level(2).or(level(1)),
            }
        };
        let base = of(BASE_PAGE_SIZE);
        Self {
            source: Some(TlbSource::Cpuid),
            base,
            huge: of(HUGE_PAGE_SIZE),
            ..Self::unknown(base.last.is_none().then(|| NO_BASE_ENTRIES.to_owned()))
        }
    }

    fn of_measurement(found: Result<ReachMeasurement, String>) -> Self {
        match found {
            Ok(found) => Self {
                source: Some(TlbSource::Measured),
                base: found.base,
                huge: found.huge,
                huge_pages_whole: found.huge_pages_whole,
                costs: found.costs,
                unknown_because: None,
            },
            Err(why) => Self::unknown(Some(why)),
        }
    }
}

fn reach(entries: Option<u32>, page: u64) -> Option<ByteCount> {
    entries.map(|entries| ByteCount(page.saturating_mul(entries.into())))
}

/// Returns an earlier measurement of this machine.
fn kept(roots: &Roots, virtualization: &Virtualization) -> Option<ReachMeasurement> {
    kept::read(&kept::folder()?, &kept::machine(roots, virtualization)?)
}

/// Measures, and keeps the result if that is possible.
fn measured_anew(
    roots: &Roots,
    virtualization: &Virtualization,
) -> Result<ReachMeasurement, String> {
    let found = measure::measure(roots)?;
    let place = kept::folder().zip(kept::machine(roots, virtualization));
    let _ = place.and_then(|(folder, machine)| kept::write(&folder, &machine, &found));
    Ok(found)
}

#[cfg(test)]
mod tests {
    use superhue_procfs::hardware::CpuidTable;

    use super::*;

    fn given(first: u32, last: u32, huge: Option<u32>) -> TlbSetting {
        TlbSetting::Given {
            base: TlbEntries {
                first: Some(first),
                last: Some(last),
            },
            huge,
        }
    }

    #[test]
    fn a_setting_is_a_word_or_numbers_of_entries() {
        for (text, wanted) in [
            ("auto", TlbSetting::Auto),
            ("cpuid", TlbSetting::Cpuid),
            ("measure", TlbSetting::Measure),
            ("64,1536", given(64, 1536, None)),
            ("64,1536:1024", given(64, 1536, Some(1024))),
            ("1048576,1048576", given(1 << 20, 1 << 20, None)),
        ] {
            assert_eq!(text.parse(), Ok(wanted), "{text}");
        }
    }

    #[test]
    fn other_settings_are_refused_with_the_reason() {
        let refused = |text: &str| text.parse::<TlbSetting>().unwrap_err().to_string();
        for text in [
            "",
            "Auto",
            "64",
            "64,",
            ",1536",
            "64,1536:",
            "64,1536,2048",
            "64 ,1536",
            "+64,1536",
            "-1,5",
            "64,1536:a",
            "0x40,1536",
            "6.4,15",
            "measure,64",
            "64:1536",
        ] {
            let told = refused(text);
            assert!(told.contains(&format!("`{text}` is not auto")), "{told}");
        }
        for (text, digits) in [
            ("0,1536", "0"),
            ("64,0", "0"),
            ("64,1048577", "1048577"),
            ("64,99999999999999999999", "99999999999999999999"),
            ("64,1536:0", "0"),
        ] {
            let told = refused(text);
            assert!(
                told.starts_with(&format!("`{digits}` is no number")),
                "{told}"
            );
        }
        assert!(refused("1536,64").starts_with("a first level of 1536 entries before"));
    }

    fn find(table: &str, setting: TlbSetting) -> TlbReport {
        let cpuid = Cpuid::recorded(CpuidTable::parse(table).unwrap());
        let roots = Roots::under("/nonexistent".as_ref());
        let virtualization = Virtualization::read(&roots, &cpuid);
        TlbReport::find(&roots, &cpuid, &virtualization, setting)
    }

    const CASCADE_LAKE: &str =
        "0 0 16 756e6547 6c65746e 49656e69\n2 0 76036301 00f0b5ff 00000000 00c30000\n";

    #[test]
    fn what_the_processor_reports_is_not_measured() {
        let told = find(CASCADE_LAKE, TlbSetting::Cpuid);
        assert_eq!(find(CASCADE_LAKE, TlbSetting::Auto), told);
        assert_eq!(told.source, Some(TlbSource::Cpuid));
        let entries = |first, last| TlbEntries {
            first: Some(first),
            last: Some(last),
        };
        assert_eq!(
            (told.base, told.huge),
            (entries(64, 1536), entries(32, 1536))
        );
        assert_eq!(told.base_reach(), Some(ByteCount(6 << 20)));
        assert_eq!(told.huge_reach(), Some(ByteCount(3 << 30)));
        assert_eq!(
            (told.costs, told.huge_pages_whole),
            (TlbCosts::default(), None)
        );
    }

    #[test]
    fn what_the_user_gives_counts_on_every_processor() {
        for table in [CASCADE_LAKE, "0 0 1 746e6543 736c7561 48727561\n"] {
            let told = find(table, "48,1024:512".parse().unwrap());
            assert_eq!(told.source, Some(TlbSource::Given));
            assert_eq!(told.base_reach(), Some(ByteCount(4 << 20)));
            assert_eq!(told.huge_reach(), Some(ByteCount(1 << 30)));
            assert_eq!((told.huge.first, told.unknown_because), (None, None));
        }
    }

    #[test]
    fn silence_has_its_reason() {
        let told = find("0 0 1 746e6543 736c7561 48727561\n", TlbSetting::Cpuid);
        assert_eq!((told.source, told.base_reach()), (None, None));
        assert!(told.unknown_because.unwrap().contains("CentaurHauls"));
        let huge_alone = "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000028 0 0 0\n80000005 0 ff48ff40 0 0 0\n";
        let told = find(huge_alone, TlbSetting::Cpuid);
        assert_eq!(told.unknown_because.as_deref(), Some(NO_BASE_ENTRIES));
    }
}
