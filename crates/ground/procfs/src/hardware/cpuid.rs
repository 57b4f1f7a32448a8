//! Source of CPUID answers: the processor, a recorded table, or none.
//!
//! On a hybrid processor CPUID answers for the core on which the calling thread runs at that moment.

use std::collections::BTreeMap;

use raw_cpuid::{CpuId, CpuIdReader, CpuIdResult};

use crate::system::ParseError;

/// One answer: four registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// EAX.
    pub eax: u32,
    /// EBX.
    pub ebx: u32,
    /// ECX.
    pub ecx: u32,
    /// EDX.
    pub edx: u32,
}

/// Recorded answers, by leaf and subleaf.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuidTable(BTreeMap<(u32, u32), Registers>);

impl CpuidTable {
    /// Reads a table: lines of `leaf subleaf eax ebx ecx edx`, each in hexadecimal without `0x`.
    ///
    /// `#` begins a comment; blank lines are skipped.
    ///
    /// # Errors
    /// If a line has another form, or repeats the leaf and subleaf of an earlier line.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut table = BTreeMap::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let words: Option<Vec<u32>> = line
                .split_whitespace()
                .map(|word| u32::from_str_radix(word, 16).ok())
                .collect();
            let Some([leaf, subleaf, eax, ebx, ecx, edx]) = words.as_deref() else {
                let what = ParseError::no(line, "row of six hexadecimal numbers");
                return Err(ParseError::in_line(index, what));
            };
            let registers = Registers {
                eax: *eax,
                ebx: *ebx,
                ecx: *ecx,
                edx: *edx,
            };
            if table.insert((*leaf, *subleaf), registers).is_some() {
                return Err(ParseError::in_line(
                    index,
                    "answers what an earlier line has answered",
                ));
            }
        }
        Ok(Self(table))
    }

    /// Returns the answer for a leaf and subleaf; all zero, as from a processor, if there is none.
    #[must_use]
    pub fn get(&self, leaf: u32, subleaf: u32) -> Registers {
        self.0.get(&(leaf, subleaf)).copied().unwrap_or_default()
    }
}

/// Source of the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    #[cfg(target_arch = "x86_64")]
    Processor,
    Recorded(CpuidTable),
    Nobody,
}

/// Answers to CPUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cpuid(Source);

impl Cpuid {
    /// Uses the processor itself; [`Self::none`] on an architecture without the instruction.
    #[must_use]
    pub const fn native() -> Self {
        #[cfg(target_arch = "x86_64")]
        return Self(Source::Processor);
        #[cfg(not(target_arch = "x86_64"))]
        return Self(Source::Nobody);
    }

    /// Uses a recorded table.
    #[must_use]
    pub const fn recorded(table: CpuidTable) -> Self {
        Self(Source::Recorded(table))
    }

    /// Uses no source, as on an architecture without the instruction.
    #[must_use]
    pub const fn none() -> Self {
        Self(Source::Nobody)
    }

    /// Returns the answer for a leaf and subleaf; `None` without a source.
    #[must_use]
    pub fn ask(&self, leaf: u32, subleaf: u32) -> Option<Registers> {
        match &self.0 {
            #[cfg(target_arch = "x86_64")]
            Source::Processor => {
                let CpuIdResult { eax, ebx, ecx, edx } =
                    raw_cpuid::native_cpuid::cpuid_count(leaf, subleaf);
                Some(Registers { eax, ebx, ecx, edx })
            }
            Source::Recorded(table) => Some(table.get(leaf, subleaf)),
            Source::Nobody => None,
        }
    }

    /// Returns the decoder of well-known leaves; `None` without a source.
    pub(super) fn decoder(&self) -> Option<CpuId<impl CpuIdReader + '_>> {
        self.ask(0, 0)?;
        Some(CpuId::with_cpuid_reader(|leaf, subleaf| {
            let Registers { eax, ebx, ecx, edx } = self.ask(leaf, subleaf).unwrap_or_default();
            CpuIdResult { eax, ebx, ecx, edx }
        }))
    }

    /// Returns the twelve letters that identify a processor's maker, such as `GenuineIntel`.
    #[must_use]
    pub fn vendor(&self) -> Option<String> {
        self.decoder()?
            .get_vendor_info()
            .map(|vendor| vendor.as_str().to_owned())
    }

    /// Returns true if the data cache of the given level finds its set by "a complex function"
    /// of the address (leaf 4, EDX bit 2).
    ///
    /// `None` if the processor does not report it: only Intel defines the bit.
    #[must_use]
    pub fn hashed_index(&self, level: u32) -> Option<bool> {
        if self.vendor()? != "GenuineIntel" {
            return None;
        }
        self.decoder()?
            .get_cache_parameters()?
            .take(MOST_CACHES)
            .find(|cache| {
                u32::from(cache.level()) == level
                    && cache.cache_type() != raw_cpuid::CacheType::Instruction
            })
            .map(|cache| cache.has_complex_indexing())
    }
}

/// Limit above the number of caches that a processor describes; it ends the walk through a nonsensical table.
const MOST_CACHES: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_table_answers_what_it_recorded_and_zero_otherwise() {
        let table = CpuidTable::parse(
            "# leaf subleaf eax ebx ecx edx\n\n0 0 20 756e6547 6c65746e 49656e69 # vendor\n\
             80000006 0 0 0 5007040 0\n",
        )
        .unwrap();
        assert_eq!(table.get(0x8000_0006, 0).ecx, 0x0500_7040);
        assert_eq!(table.get(4, 0), Registers::default());
        assert_eq!(
            Cpuid::recorded(table).vendor().as_deref(),
            Some("GenuineIntel")
        );
        assert_eq!(Cpuid::none().vendor(), None);
    }

    #[test]
    fn malformed_tables_are_refused_by_line() {
        let error = CpuidTable::parse("0 0 1 2 3 4\n0 1 2 3 4\n").unwrap_err();
        assert!(error.to_string().starts_with("line 2:"), "{error}");
        for text in [
            "0 0 1 2 3 4 5",
            "0x0 0 1 2 3 4",
            "0 0 1 2 3 100000000",
            "0 0 1 2 3 4\n0 0 1 2 3 4",
        ] {
            assert!(CpuidTable::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn only_intel_tells_about_the_index() {
        let intel =
            "0 0 20 756e6547 6c65746e 49656e69\n4 0 143 240003f 7ff 0\n4 1 163 240003f 9fff 4\n";
        let table = Cpuid::recorded(CpuidTable::parse(intel).unwrap());
        assert_eq!(table.hashed_index(2), Some(false));
        assert_eq!(table.hashed_index(3), Some(true));
        assert_eq!(table.hashed_index(4), None);
        let amd = "0 0 10 68747541 444d4163 69746e65\n8000001d 0 163 3c0003f 7fff 4\n";
        assert_eq!(
            Cpuid::recorded(CpuidTable::parse(amd).unwrap()).hashed_index(3),
            None
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", rows in "([0-9a-f]{1,9} ?){0,12}") {
            for text in [&text, &rows] {
                if let Ok(table) = CpuidTable::parse(text) {
                    let cpuid = Cpuid::recorded(table);
                    let _ = (cpuid.vendor(), cpuid.hashed_index(3));
                }
            }
        }
    }
}
