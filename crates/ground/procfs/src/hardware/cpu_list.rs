//! Sets of CPUs as sysfs writes them: `0-3,8`.

use std::fmt;

use serde::Serialize;

use crate::system::ParseError;

/// Limit above the CPUs of any kernel build (8,192 on x86); it keeps nonsense from filling memory.
const MOST_CPUS: u32 = 1 << 16;

/// Set of CPU or NUMA node numbers, ascending. In JSON a list of numbers.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize)]
#[serde(transparent)]
pub struct CpuList(Vec<u32>);

impl CpuList {
    /// Reads the kernel's list format (`%*pbl`): ascending numbers and ranges, separated by commas.
    ///
    /// An empty text is the empty set: a NUMA node may have memory and no CPU.
    ///
    /// # Errors
    /// If it is no such list, is not ascending, or names a CPU beyond 65,535.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let text = text.trim();
        let mut numbers: Vec<u32> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
                return Err(ParseError::no(part, "CPU number or range"));
            };
            let ascends = numbers.last().is_none_or(|&before| before < first) && first <= last;
            if !ascends || last >= MOST_CPUS {
                return Err(ParseError::no(
                    part,
                    "range above the ones before it and below 65,536",
                ));
            }
            numbers.extend(first..=last);
        }
        Ok(Self(numbers))
    }

    /// Returns the numbers, ascending.
    #[must_use]
    pub fn numbers(&self) -> &[u32] {
        &self.0
    }

    /// Returns the number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `number` is in the set.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.0.binary_search(&number).is_ok()
    }
}

impl FromIterator<u32> for CpuList {
    fn from_iter<I: IntoIterator<Item = u32>>(numbers: I) -> Self {
        let mut numbers: Vec<u32> = numbers.into_iter().collect();
        numbers.sort_unstable();
        numbers.dedup();
        Self(numbers)
    }
}

impl fmt::Display for CpuList {
    /// Writes the kernel's format.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let follows = |pair: &[u32]| pair[0].checked_add(1) == Some(pair[1]);
        let mut rest = self.0.as_slice();
        let mut separator = "";
        while let Some(&first) = rest.first() {
            let run = 1 + rest.windows(2).take_while(|pair| follows(pair)).count();
            match rest[run - 1] {
                last if last == first => write!(f, "{separator}{first}")?,
                last => write!(f, "{separator}{first}-{last}")?,
            }
            rest = &rest[run..];
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Vec<u32> {
        CpuList::parse(text).unwrap().numbers().to_vec()
    }

    #[test]
    fn numbers_and_ranges_are_read() {
        assert_eq!(parse("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse("7"), [7]);
        assert_eq!(parse("0-0"), [0]);
        assert_eq!(parse("\n"), [0; 0]);
        assert_eq!(parse("0-65535").len(), 65_536);
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            ",",
            "0,",
            "-",
            "0-",
            "-3",
            "3-1",
            "1,1",
            "4,2",
            "0-3,3",
            "0-65536",
            "0-4294967295",
            "a",
            "0 1",
            "0-7:2/4",
            "0x1",
        ] {
            assert!(CpuList::parse(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in ".*", listlike in "[0-9,-]*") {
            let _ = (CpuList::parse(&text), CpuList::parse(&listlike));
        }

        #[test]
        fn what_is_written_is_read_again(numbers in prop::collection::vec(0..200_u32, 0..60)) {
            let list: CpuList = numbers.iter().copied().collect();
            prop_assert_eq!(CpuList::parse(&list.to_string()).unwrap(), list);
        }
    }
}
