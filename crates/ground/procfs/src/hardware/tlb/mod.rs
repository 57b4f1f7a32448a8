//! TLBs and their reach: the reason why huge pages help.
//!
//! If the TLB lacks the translation of an access, the CPU walks the page tables first. *Reach* is the
//! memory whose translations fit: entries times page size. A program that uses more memory at random
//! than the last level reaches misses most of the time, and huge pages multiply reach by 512:
//!
//! ```text
//!                       4 KiB pages        2 MiB pages
//!   L1,   96 entries      384 KiB  |        192 MiB
//!   L2, 2048 entries        8 MiB  |          4 GiB
//! ```
//!
//! Linux shows no TLBs in sysfs, so they come from CPUID: leaf 0x18 on Intel ("deterministic address
//! translation parameters"), leaf 2 on older ones (Intel SDM, volume 2A), and leaves 0x80000005,
//! 0x80000006 and 0x80000019 on AMD (APM, volume 3, appendix E).

mod amd;
mod descriptors;
mod intel;

use serde::{Serialize, Serializer};
use superhue_model::{BASE_PAGE_SIZE, ByteCount, HUGE_PAGE_SIZE};

use super::{Cpuid, Machine, Virtualization};

/// Accesses that use a TLB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TlbKind {
    /// Loads and stores.
    Data,
    /// Instruction fetches.
    Instruction,
    /// Data and instructions.
    Unified,
    /// Loads only.
    Load,
    /// Stores only.
    Store,
}

impl TlbKind {
    /// Returns true if the TLB serves loads, which reach counts.
    const fn serves_loads(self) -> bool {
        matches!(self, Self::Data | Self::Unified | Self::Load)
    }
}

/// Number of entries that can hold the translation of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(tag = "associativity", content = "ways", rename_all = "kebab-case")]
pub enum TlbWays {
    /// Exact number.
    Exactly(u16),
    /// Least number, or a few more: AMD's second levels give ranges (6 means 8 to 15).
    AtLeast(u16),
    /// Any entry.
    Full,
}

/// Page sizes that an array's entries can hold. In JSON a list of sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageSizes {
    /// 4 KiB.
    pub k4: bool,
    /// 2 MiB.
    pub m2: bool,
    /// 1 GiB.
    pub g1: bool,
}

impl PageSizes {
    const K4: Self = Self {
        k4: true,
        m2: false,
        g1: false,
    };
    const M2: Self = Self {
        k4: false,
        m2: true,
        g1: false,
    };
    const G1: Self = Self {
        k4: false,
        m2: false,
        g1: true,
    };

    /// Returns the sizes, ascending.
    pub fn iter(self) -> impl Iterator<Item = ByteCount> {
        [
            (self.k4, BASE_PAGE_SIZE),
            (self.m2, HUGE_PAGE_SIZE),
            (self.g1, 1 << 30),
        ]
        .into_iter()
        .filter_map(|(held, size)| held.then_some(ByteCount(size)))
    }

    /// Returns true if `page` is one of the sizes.
    #[must_use]
    pub fn contain(self, page: ByteCount) -> bool {
        self.iter().any(|size| size == page)
    }
}

impl Serialize for PageSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// One array of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TlbArray {
    /// Level; the CPU looks at level 1 first.
    pub level: u32,
    /// Accesses that use the array.
    pub kind: TlbKind,
    /// Page sizes that its entries can hold, in any mixture.
    pub pages: PageSizes,
    /// Entries.
    pub entries: u32,
    /// Number of entries that can hold the translation of an address.
    pub ways: Option<TlbWays>,
}

/// Memory whose translations for loads fit in one level, if all of it is in pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct TlbReach {
    /// Level; the CPU looks at level 1 first.
    pub level: u32,
    /// Page size.
    pub page: ByteCount,
    /// Entries that can hold such pages.
    pub entries: u32,
    /// Reach: entries times page size.
    pub reach: ByteCount,
}

/// TLBs of the CPU that answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tlb {
    /// Every array, in the processor's order.
    pub arrays: Vec<TlbArray>,
    /// Reach by level and page size (4 KiB and 2 MiB).
    pub reach: Vec<TlbReach>,
    /// Remarks for readers of the figures.
    pub notes: Vec<String>,
}

/// Reason why the TLBs are not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TlbError {
    /// The architecture has no CPUID.
    #[error("this architecture has no CPUID, and Linux shows no TLBs elsewhere")]
    NoCpuid,
    /// This code does not know the leaves of this maker.
    #[error("how processors by {vendor:?} report their TLBs is not known")]
    UnknownVendor {
        /// Twelve letters that identify the maker.
        vendor: String,
    },
    /// The leaves are empty. Hypervisors often clear them.
    #[error("the processor reports no TLBs{}", if *.guest { "; its hypervisor probably hides them" } else { "" })]
    NotReported {
        /// True for a virtual machine.
        guest: bool,
    },
}

impl Tlb {
    /// Reads the TLBs from CPUID.
    ///
    /// # Errors
    /// If CPUID describes no TLB that this code understands.
    pub fn read(cpuid: &Cpuid, virtualization: &Virtualization) -> Result<Self, TlbError> {
        let vendor = cpuid.vendor().ok_or(TlbError::NoCpuid)?;
        let guest = virtualization.machine == Machine::Virtual;
        let mut notes = Vec::new();
        let arrays = match vendor.as_str() {
            "GenuineIntel" => intel::arrays(cpuid),
            "AuthenticAMD" | "HygonGenuine" => {
                notes.push(
                    "AMD lists each page size by itself: entries for 4 KiB and for 2 MiB may be \
                     the same entries"
                        .to_owned(),
                );
                amd::arrays(cpuid)
            }
            _ => return Err(TlbError::UnknownVendor { vendor }),
        };
        if arrays.is_empty() {
            return Err(TlbError::NotReported { guest });
        }
        if guest {
            notes.push(
                "in a virtual machine reach is an upper bound: where the host backs a guest's \
                 huge page with smaller pages, the TLB holds those"
                    .to_owned(),
            );
        }
        Ok(Self {
            reach: reach_of(&arrays),
            arrays,
            notes,
        })
    }

    /// Returns the memory that loads reach through one level, if all of it is in pages of size `page`.
    ///
    /// `None` for a level or page size that is not reported.
    #[must_use]
    pub fn reach(&self, level: u32, page: ByteCount) -> Option<ByteCount> {
        self.reach
            .iter()
            .find(|row| row.level == level && row.page == page)
            .map(|row| row.reach)
    }
}

fn reach_of(arrays: &[TlbArray]) -> Vec<TlbReach> {
    let mut levels: Vec<u32> = arrays.iter().map(|array| array.level).collect();
    levels.sort_unstable();
    levels.dedup();
    let pages = [ByteCount(BASE_PAGE_SIZE), ByteCount(HUGE_PAGE_SIZE)];
    levels
        .into_iter()
        .flat_map(|level| pages.map(|page| (level, page)))
        .filter_map(|(level, page)| {
            let holds = |array: &&TlbArray| {
                array.level == level && array.kind.serves_loads() && array.pages.contain(page)
            };
            let entries = arrays.iter().filter(holds).map(|array| array.entries);
            let entries = entries.fold(0_u32, u32::saturating_add);
            let reach = ByteCount(page.0.saturating_mul(entries.into()));
            (entries > 0).then_some(TlbReach {
                level,
                page,
                entries,
                reach,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::CpuidTable;
    use proptest::prelude::*;

    const K4: ByteCount = ByteCount(4096);
    const M2: ByteCount = ByteCount(2 << 20);

    fn machine(machine: Machine) -> Virtualization {
        Virtualization {
            machine,
            hypervisor: None,
            container: None,
            how: Vec::new(),
        }
    }

    fn read(table: &str) -> Result<Tlb, TlbError> {
        let cpuid = Cpuid::recorded(CpuidTable::parse(table).unwrap());
        Tlb::read(&cpuid, &machine(Machine::Bare))
    }

    #[test]
    fn old_intel_processors_name_their_tlbs_by_descriptor() {
        // A Cascade Lake server: 64 and 32 entries, 1536 shared ones behind them.
        let tlb =
            read("0 0 16 756e6547 6c65746e 49656e69\n2 0 76036301 00f0b5ff 00000000 00c30000\n")
                .unwrap();
        assert_eq!(tlb.reach(1, K4), Some(ByteCount(256 << 10)));
        assert_eq!(tlb.reach(1, M2), Some(ByteCount(64 << 20)));
        assert_eq!(tlb.reach(2, K4), Some(ByteCount(6 << 20)));
        assert_eq!(tlb.reach(2, M2), Some(ByteCount(3 << 30)));
        assert_eq!(tlb.reach(3, K4), None);
        let instruction = tlb
            .arrays
            .iter()
            .filter(|array| array.kind == TlbKind::Instruction);
        assert_eq!(instruction.map(|array| array.entries).sum::<u32>(), 64 + 8);
    }

    #[test]
    fn a_register_marked_invalid_is_passed_over() {
        let table = "0 0 2 756e6547 6c65746e 49656e69\n2 0 00000001 80000003 00000000 00000000\n";
        assert_eq!(read(table), Err(TlbError::NotReported { guest: false }));
    }

    #[test]
    fn a_subleaf_may_be_empty_and_the_next_one_not() {
        let table = "0 0 18 756e6547 6c65746e 49656e69\n18 0 2 0 0 0\n18 2 0 00080003 80 43\n";
        let tlb = read(table).unwrap();
        assert_eq!(tlb.arrays.len(), 1);
        assert_eq!(tlb.reach(2, M2), Some(ByteCount(1024 * (2 << 20))));
    }

    #[test]
    fn ways_that_amd_gives_as_a_range_stay_a_range() {
        // Zen 4: 3072 entries of "8 to 15" ways (12), 72 fully associative ones before them.
        let table = "0 0 10 68747541 444d4163 69746e65\n80000000 0 80000021 0 0 0\n\
                     80000005 0 ff48ff40 ff48ff40 0 0\n80000006 0 5c002200 6c004200 0 0\n";
        let tlb = read(table).unwrap();
        let data: Vec<_> = tlb
            .arrays
            .iter()
            .filter(|array| array.kind == TlbKind::Data)
            .collect();
        assert_eq!((data[0].entries, data[0].ways), (72, Some(TlbWays::Full)));
        assert_eq!(
            (data[2].entries, data[2].ways),
            (3072, Some(TlbWays::AtLeast(8)))
        );
        assert_eq!(tlb.reach(2, K4), Some(ByteCount(12 << 20)));
        assert!(tlb.notes[0].contains("may be the same entries"));
    }

    #[test]
    fn silence_has_its_reason() {
        let say = |cpuid: &Cpuid, on| Tlb::read(cpuid, &machine(on)).unwrap_err().to_string();
        assert!(say(&Cpuid::none(), Machine::Bare).contains("no CPUID"));
        let table = |text| Cpuid::recorded(CpuidTable::parse(text).unwrap());
        let empty = table("0 0 20 756e6547 6c65746e 49656e69\n2 0 00feff01 f0 0 0\n");
        assert_eq!(say(&empty, Machine::Bare), "the processor reports no TLBs");
        assert!(say(&empty, Machine::Virtual).ends_with("its hypervisor probably hides them"));
        let other = table("0 0 1 746e6543 736c7561 48727561\n");
        assert!(say(&other, Machine::Bare).contains("\"CentaurHauls\""));
    }

    proptest! {
        #[test]
        fn any_answers_are_survived(
            amd: bool, intel18: bool,
            answers in prop::collection::vec(any::<[u32; 4]>(), 12),
        ) {
            let vendor = if amd { "68747541 444d4163 69746e65" } else { "756e6547 6c65746e 49656e69" };
            let highest = if intel18 { 0x18 } else { 2 };
            let mut table = format!("0 0 {highest:x} {vendor}\n80000000 0 ffffffff 0 0 0\n");
            let leaves = [(2_u32, 0_u32), (0x18, 0), (0x18, 1), (0x18, 2), (0x18, 63), (0x8000_0005, 0),
                          (0x8000_0006, 0), (0x8000_0019, 0)];
            for ((leaf, subleaf), [a, b, c, d]) in leaves.iter().zip(answers) {
                table += &format!("{leaf:x} {subleaf:x} {a:x} {b:x} {c:x} {d:x}\n");
            }
            if let Ok(tlb) = read(&table) {
                prop_assert!(!tlb.arrays.is_empty());
                prop_assert!(tlb.arrays.iter().all(|array| array.entries > 0));
            }
        }
    }
}
