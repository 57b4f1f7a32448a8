//! Amounts of memory: an absolute size, or a part of a whole.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{ByteCount, ParseSizeError};

/// A size (`512M`) or a percentage (`5%`), as in `--budget SIZE|PERCENT`.
///
/// Stored as basis points so that it can be compared and hashed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Share {
    /// Number of bytes.
    Bytes(ByteCount),
    /// Hundredths of a percent of a whole; the context defines the whole.
    BasisPoints(u32),
}

impl Share {
    /// The share of `whole`, in bytes.
    #[must_use]
    pub fn of(self, whole: ByteCount) -> ByteCount {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::BasisPoints(points) => {
                let part = u128::from(whole.0) * u128::from(points) / 10_000;
                ByteCount(u64::try_from(part).unwrap_or(u64::MAX))
            }
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::BasisPoints(points) => write!(f, "{}%", f64::from(*points) / 100.0),
        }
    }
}

/// Reason why a size or percentage from a user was not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseShareError {
    /// The text ends in `%`, but the part before it is no number from 0 to 100,000.
    #[error("`{0}` is not a percentage: write e.g. 5% or 12.5%")]
    Percent(String),
    /// The text has no `%`, and is no size.
    #[error(transparent)]
    Size(#[from] ParseSizeError),
}

impl FromStr for Share {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, ParseShareError> {
        let Some(number) = text.trim().strip_suffix('%') else {
            return Ok(Self::Bytes(text.parse()?));
        };
        let fail = || ParseShareError::Percent(text.to_owned());
        let percent: f64 = number.trim().parse().map_err(|_| fail())?;
        if !(0.0..=100_000.0).contains(&percent) {
            return Err(fail());
        }
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the range was checked above"
        )]
        Ok(Self::BasisPoints((percent * 100.0).round() as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_applied() {
        let whole = ByteCount(1000 << 20);
        assert_eq!(
            "5%".parse::<Share>().unwrap().of(whole),
            ByteCount(50 << 20)
        );
        assert_eq!(
            "0.5 %".parse::<Share>().unwrap().of(whole),
            ByteCount(5 << 20)
        );
        assert_eq!(
            "64M".parse::<Share>().unwrap().of(whole),
            ByteCount(64 << 20)
        );
        assert_eq!(
            "100%".parse::<Share>().unwrap().of(ByteCount(u64::MAX)),
            ByteCount(u64::MAX)
        );
        for text in [
            "%", "-5%", "NaN%", "inf%", "5%%", "five%", "1e9%", "-5", "5 apples",
        ] {
            assert!(text.parse::<Share>().is_err(), "{text}");
        }
    }
}
