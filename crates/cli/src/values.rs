//! Values of options that several verbs take.

use std::path::PathBuf;
use std::time::Duration;

use superhue::model::parse_duration;

/// Longer times are slips of the finger.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// A time that is not 0, and short enough to be waited for.
pub fn parse_some_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time < Duration::from_millis(1) || time > LONGEST {
        return Err(format!("`{text}` is not between 1ms and a year (8784h)"));
    }
    Ok(time)
}

/// A time that may be 0, and is short enough to come to an end.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time > LONGEST {
        return Err(format!("`{text}` is not between 0s and a year (8784h)"));
    }
    Ok(time)
}

/// The name of a file that says what kind of picture it is.
pub fn parse_picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg" | "png") => Ok(path),
        _ => Err(format!("`{text}` ends neither in .svg nor in .png")),
    }
}
