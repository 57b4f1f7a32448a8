//! Quantities that must not be mixed up, each in a type of its own.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{BASE_PAGE_SHIFT, BASE_PAGE_SIZE};

/// An address in the virtual memory of some process, in bytes.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The address `bytes` higher, or `None` past the end of the address space.
    #[must_use]
    pub fn checked_add(self, bytes: ByteCount) -> Option<Self> {
        self.0.checked_add(bytes.0).map(Self)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

/// A page frame number: a physical address divided by the base page size.
///
/// There is deliberately no `Display`: physical addresses are never printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pfn(pub u64);

/// A number of base pages.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct PageCount(pub u64);

impl PageCount {
    /// The same quantity in bytes, saturating.
    #[must_use]
    pub const fn bytes(self) -> ByteCount {
        ByteCount(self.0.saturating_mul(BASE_PAGE_SIZE))
    }
}

/// A number of bytes. Prints as KiB/MiB/GiB for people.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// `n` KiB, as the kernel reports most of its sizes; saturating.
    #[must_use]
    pub const fn from_kib(n: u64) -> Self {
        Self(n.saturating_mul(1024))
    }

    /// Whole base pages that fit in this many bytes.
    #[must_use]
    pub const fn whole_pages(self) -> PageCount {
        PageCount(self.0 >> BASE_PAGE_SHIFT)
    }

    /// The quantity in MiB, for tables and plots.
    #[must_use]
    #[allow(
        clippy::cast_precision_loss,
        reason = "shown to people with one decimal"
    )]
    pub fn mib(self) -> f64 {
        self.0 as f64 / (1024.0 * 1024.0)
    }
}

impl fmt::Display for ByteCount {
    #[allow(
        clippy::cast_precision_loss,
        reason = "shown to people with one decimal"
    )]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        // Sizes below 1 MiB are whole KiB in practice (pages); larger units deserve a decimal.
        let text = if unit == 0 {
            format!("{value:.0} {}", UNITS[unit])
        } else {
            format!("{value:.1} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

macro_rules! arithmetic {
    ($type:ident) => {
        impl Add for $type {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }
        impl AddAssign for $type {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }
        impl Sub for $type {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }
        impl Sum for $type {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self(0), Add::add)
            }
        }
    };
}
arithmetic!(PageCount);
arithmetic!(ByteCount);

/// Reason why a size from a user was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a size: {why} (write e.g. 64M, 2G, 4096)")]
pub struct ParseSizeError {
    /// Text that the user gave.
    pub text: String,
    /// Fault of the text.
    pub why: &'static str,
}

impl FromStr for ByteCount {
    type Err = ParseSizeError;

    /// Reads `4096`, `64K`, `1.5G`, `1T`, each also as `KiB`/`KB`/`k`; powers of 1024 always.
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let fail = |why| ParseSizeError {
            text: text.to_owned(),
            why,
        };
        if text.trim().starts_with('-') {
            return Err(fail("it is negative"));
        }
        let read = parse_size::Config::new().with_binary().parse_size(text);
        read.map(ByteCount).map_err(|error| match error {
            parse_size::Error::Empty => fail("it is empty"),
            parse_size::Error::PosOverflow => fail("the number is too large"),
            _ => fail("it is no number with a unit"),
        })
    }
}

/// Reads a time as users write it: `250us`, `100ms`, `1.5s`, `1m30s`, `2h`; refuses a bare number other than 0.
///
/// # Errors
/// A sentence that names the fault, if the text is no such time or is negative.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text.trim())
        .map_err(|error| format!("`{text}` is not a time: {error} (write e.g. 100ms, 2s, 1m30s)"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_as_users_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("2M", 2 << 20),
            ("2MiB", 2 << 20),
            ("64k", 64 << 10),
            ("1 GiB", 1 << 30),
            ("3T", 3 << 40),
            ("1.5G", 3 << 29),
        ] {
            assert_eq!(text.parse::<ByteCount>(), Ok(ByteCount(bytes)), "{text}");
        }
        for text in [
            "",
            "M",
            "-1",
            "-2M",
            "2X",
            "99999999999999999999",
            "99999999T",
            "∞",
        ] {
            assert!(text.parse::<ByteCount>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_for_people() {
        assert_eq!(ByteCount(512).to_string(), "512 B");
        assert_eq!(ByteCount(4096).to_string(), "4 KiB");
        assert_eq!(ByteCount(3 << 20).to_string(), "3.0 MiB");
        assert_eq!(ByteCount(5 << 40).to_string(), "5.0 TiB");
        assert_eq!(ByteCount(u64::MAX).to_string(), "16777216.0 TiB");
    }

    #[test]
    fn times_are_read_as_users_write_them() {
        assert_eq!(parse_duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("1m30s"), Ok(Duration::from_secs(90)));
        for text in [
            "",
            "5",
            "-1s",
            "s",
            "1.2.3s",
            "1e3s",
            "99999999999999999999999h",
        ] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn reading_never_panics(text in ".*") {
            let _ = text.parse::<ByteCount>();
            let _ = parse_duration(&text);
        }

        #[test]
        fn arithmetic_saturates(a: u64, b: u64) {
            prop_assert!((ByteCount(a) + ByteCount(b)).0 >= a);
            prop_assert!((PageCount(a) - PageCount(b)).0 <= a);
        }
    }
}
