//! Parsers for values that users write on the command line or in the daemon's configuration.

use std::time::Duration;

use superhue_heat::TrackerKind;
use superhue_model::{ByteCount, ColorRequest, HUGE_PAGE_SIZE, Share, parse_duration};

use crate::ColorPlacement;

/// Parses a size, or a share from 0 % to 100 %.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn budget(text: &str) -> Result<Share, String> {
    let budget: Share = text
        .parse()
        .map_err(|error: superhue_model::ParseShareError| error.to_string())?;
    if matches!(budget, Share::BasisPoints(points) if points > 10_000) {
        return Err(format!("`{text}` is not between 0% and 100%"));
    }
    Ok(budget)
}

/// Parses bytes that may be collapsed in a second: at least one huge page.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn rate(text: &str) -> Result<ByteCount, String> {
    let rate: ByteCount = text
        .parse()
        .map_err(|error: superhue_model::ParseSizeError| error.to_string())?;
    if rate.0 < HUGE_PAGE_SIZE {
        return Err(format!("`{text}` is less than 2M, one huge page a second"));
    }
    Ok(rate)
}

/// Parses a percentage, with or without its sign, and returns it as a share; `None` if the text is no number.
#[must_use]
pub fn percentage(text: &str) -> Option<f64> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    let percent: f64 = number.parse().ok()?;
    Some(percent / 100.0)
}

/// Parses a percentage above 0 and up to 100, and returns it as a share.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn max_overhead(text: &str) -> Result<f64, String> {
    percentage(text)
        .filter(|share| *share > 0.0 && *share <= 1.0)
        .ok_or_else(|| format!("`{text}` is no percentage above 0 and up to 100 (e.g. 1%)"))
}

/// Parses the time for which collapses may hold a process up in 100 ms; 0 means no bound.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn max_stall(text: &str) -> Result<Duration, String> {
    if text.trim() == "0" {
        return Ok(Duration::ZERO);
    }
    let time = parse_duration(text)?;
    let is_possible = (Duration::from_micros(100)..=Duration::from_millis(100)).contains(&time);
    if !time.is_zero() && !is_possible {
        return Err(format!(
            "`{text}` is not between 100us and 100ms: it is how much of every 100 ms collapses may take (0: no bound)"
        ));
    }
    Ok(time)
}

/// Longer times are typing errors.
pub const LONGEST_TIME: Duration = Duration::from_secs(366 * 24 * 3600);

/// Parses a time that may be 0, up to a year.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time > LONGEST_TIME {
        return Err(format!("`{text}` is not between 0s and a year (8784h)"));
    }
    Ok(time)
}

/// Parses a whole percentage from 1 to 100, with or without its sign.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn percent(text: &str) -> Result<u8, String> {
    let number = text.trim();
    let number = number.strip_suffix('%').unwrap_or(number).trim_end();
    let percent = number.parse().ok();
    percent
        .filter(|percent| (1..=100).contains(percent))
        .ok_or_else(|| format!("`{text}` is no whole percentage from 1% to 100%"))
}

/// Parses the name of a tracker.
///
/// # Errors
/// A sentence with the names that there are.
pub fn tracker(text: &str) -> Result<TrackerKind, String> {
    named(text, "tracker", TrackerKind::ALL.map(|it| (it, it.name())))
}

/// Parses the name of a mechanism that places memory by color.
///
/// # Errors
/// A sentence with the names that there are.
pub fn placement(text: &str) -> Result<ColorPlacement, String> {
    let known = ColorPlacement::ALL.map(|it| (it, it.name()));
    named(text, "placement", known)
}

/// Finds a value by its name.
fn named<T: Copy, const N: usize>(
    text: &str,
    what: &str,
    known: [(T, &str); N],
) -> Result<T, String> {
    let found = known.iter().find(|(_, name)| *name == text);
    let names: Vec<String> = known
        .iter()
        .map(|(_, name)| format!("\"{name}\""))
        .collect();
    found
        .map(|&(value, _)| value)
        .ok_or_else(|| format!("`{text}` is no {what}: use one of {}", names.join(", ")))
}

/// Parses page colors.
///
/// # Errors
/// A sentence that names the fault of the text.
pub fn colors(text: &str) -> Result<ColorRequest, String> {
    text.parse()
        .map_err(|error: superhue_model::ParseColorsError| error.to_string())
}

/// Lines and columns in a text, for messages about files that users write.
#[derive(Debug, Clone)]
pub struct TextPositions<'a> {
    text: &'a str,
    /// Offsets in bytes at which lines begin.
    lines: Vec<usize>,
}

impl<'a> TextPositions<'a> {
    /// Indexes the lines of a text.
    #[must_use]
    pub fn new(text: &'a str) -> Self {
        let ends = text.match_indices('\n').map(|(at, _)| at + 1);
        Self {
            text,
            lines: std::iter::once(0).chain(ends).collect(),
        }
    }

    /// Returns line and column of the byte at offset `at`, in characters from 1.
    #[must_use]
    pub fn of(&self, at: usize) -> (usize, usize) {
        let line = self.lines.partition_point(|&begin| begin <= at).max(1);
        let begin = self.lines.get(line - 1).copied().unwrap_or_default();
        let before = self.text.get(begin..at).unwrap_or_default();
        (line, before.chars().count() + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters_from_one() {
        let places = TextPositions::new("ab\n\u{fc}b = 1\n");
        assert_eq!(places.of(0), (1, 1));
        assert_eq!(places.of(2), (1, 3));
        assert_eq!(places.of(3), (2, 1));
        assert_eq!(places.of(5), (2, 2));
        assert_eq!(TextPositions::new("").of(0), (1, 1));
    }

    #[test]
    fn percentages_times_and_names_are_read_as_users_write_them() {
        assert_eq!(percent("90"), Ok(90));
        assert_eq!(percent(" 1 %"), Ok(1));
        for text in ["0%", "101", "12.5%", "", "%", "-3"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(percentage("2"), percentage(" 2 % "));
        assert_eq!(percentage("2%"), Some(0.02));
        assert_eq!(percentage("two%"), None);
        assert_eq!(time("0s"), Ok(Duration::ZERO));
        assert!(time("9000h").is_err());
        assert_eq!(tracker("idle"), Ok(TrackerKind::Idle));
        let refusal = tracker("pebs").unwrap_err();
        assert!(
            refusal.contains("\"ptwalk\", \"idle\", \"damon\""),
            "{refusal}"
        );
        assert_eq!(placement("recolor"), Ok(ColorPlacement::Recolor));
        assert!(placement("").is_err());
    }

    #[test]
    fn what_there_cannot_be_is_refused() {
        assert_eq!(budget("5%"), Ok(Share::BasisPoints(500)));
        assert!(budget("101%").is_err() && budget("5 apples").is_err());
        assert_eq!(max_overhead("0.5%"), Ok(0.005));
        for wrong in ["0", "-1%", "101%", "one", ""] {
            assert!(max_overhead(wrong).is_err(), "{wrong}");
        }
        assert_eq!(rate("64M"), Ok(ByteCount(64 << 20)));
        assert!(rate("1M").is_err() && rate("fast").is_err());
        assert_eq!(max_stall("0"), Ok(Duration::ZERO));
        assert_eq!(max_stall("10ms"), Ok(Duration::from_millis(10)));
        for wrong in ["10", "1us", "1s", "ms"] {
            assert!(max_stall(wrong).is_err(), "{wrong}");
        }
        assert_eq!(colors("off"), Ok(ColorRequest::Off));
        assert!(colors("blue").is_err());
    }
}
