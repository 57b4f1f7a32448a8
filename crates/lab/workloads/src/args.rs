//! Conversion of command-line words to quantities, for `clap`'s `value_parser`.

use std::time::Duration;

use superhue_model::{ByteCount, parse_duration};

/// Longest run or wait of one phase.
const MAX_PHASE_TIME: Duration = Duration::from_secs(3600);

/// Largest mapping that a workload accepts: above it, arithmetic on page numbers would need more care, for no benefit.
const MAX_MAPPING_SIZE: ByteCount = ByteCount(1 << 44);

/// Reads a time with its unit (`1.5s`, `100ms`), at most an hour.
///
/// # Errors
/// The fault of the text.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time > MAX_PHASE_TIME {
        return Err(format!("`{text}` is more than an hour"));
    }
    Ok(time)
}

/// Reads a number of seconds, with or without a unit (`3`, `0.5`, `500ms`), at most an hour.
///
/// # Errors
/// The fault of the text.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let bare = !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if bare {
        time(&format!("{text}s"))
    } else {
        time(text)
    }
}

/// Reads a size from 4 KiB up to 16 TiB, e.g. `2G`.
///
/// # Errors
/// The fault of the text.
pub fn size(text: &str) -> Result<ByteCount, String> {
    let size: ByteCount = text
        .parse()
        .map_err(|e: superhue_model::ParseSizeError| e.to_string())?;
    if size.whole_pages().0 == 0 {
        return Err(format!("`{text}` is less than a page: write at least 4K"));
    }
    if size > MAX_MAPPING_SIZE {
        return Err(format!("`{text}` is more than {MAX_MAPPING_SIZE}"));
    }
    Ok(size)
}

/// Reads a number from 0 to 1.
///
/// # Errors
/// The fault of the text.
pub fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(format!("`{text}` is not a ratio: write e.g. 0.95 or 1")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_may_go_without_a_unit() {
        assert_eq!(seconds("3"), Ok(Duration::from_secs(3)));
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(seconds("20ms"), Ok(Duration::from_millis(20)));
        for text in [
            "", ".", "-1", "1e3", "NaN", "inf", "2h", "3601", "1.2.3", "s",
        ] {
            assert!(seconds(text).is_err(), "{text}");
        }
        assert!(time("3").is_err(), "a settle time needs its unit");
    }

    #[test]
    fn sizes_and_ratios_are_bounded() {
        assert_eq!(size("4K"), Ok(ByteCount(4096)));
        assert_eq!(size("16T"), Ok(ByteCount(1 << 44)));
        for text in ["0", "4095", "17T", "-1", "x", ""] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(ratio("0"), Ok(0.0));
        assert_eq!(ratio("1.0"), Ok(1.0));
        for text in ["1.1", "-0.1", "NaN", "", "50%"] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
