//! Values of options that several verbs take.

use std::path::PathBuf;
use std::time::Duration;

use superhue::model::parse_duration;
use superhue::parse::{self, LONGEST_TIME};

/// Reads a percentage from 0 to below 100 as a share; the sign may be left out.
pub fn parse_percentage(text: &str) -> Result<f64, String> {
    parse::percentage(text)
        .filter(|share| (0.0..1.0).contains(share))
        .ok_or_else(|| format!("`{text}` is no percentage from 0%, below 100% (e.g. 0.5%)"))
}

/// A time that is not 0, and short enough to wait for.
pub fn parse_some_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time < Duration::from_millis(1) || time > LONGEST_TIME {
        return Err(format!("`{text}` is not between 1ms and a year (8784h)"));
    }
    Ok(time)
}

/// A count, with k, M or G for thousands, millions, thousands of millions.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let (digits, times) = match text.strip_suffix(['k', 'K', 'M', 'G']) {
        None => (text, 1),
        Some(digits) if text.ends_with('M') => (digits, 1_000_000),
        Some(digits) if text.ends_with('G') => (digits, 1_000_000_000),
        Some(digits) => (digits, 1000),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let count = digits.parse().ok().filter(|_| is_number);
    count
        .and_then(|count: u64| count.checked_mul(times))
        .ok_or_else(|| format!("`{text}` is no count such as 500k, 200M or 1G"))
}

/// The name of a picture file, whose extension gives its format.
pub fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err(format!("`{text}` ends neither in .svg nor in .png")),
    }
}
