//! Indented JSON with each list of numbers on one line.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

/// Formatter that indents objects and keeps lists on one line: ten thousand samples are not ten thousand lines.
#[derive(Default)]
struct Compact<'a>(PrettyFormatter<'a>);

impl Formatter for Compact<'_> {
    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        if first {
            Ok(())
        } else {
            writer.write_all(b", ")
        }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

/// Writes `value` as JSON, with a newline at the end.
pub(crate) fn to_string(value: &impl Serialize) -> Result<String, serde_json::Error> {
    let mut bytes = Vec::new();
    value.serialize(&mut Serializer::with_formatter(
        &mut bytes,
        Compact::default(),
    ))?;
    bytes.push(b'\n');
    // The serializer writes only UTF-8.
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Rounds to four significant digits: timing is not more precise than that, and documents are half as long.
pub(crate) fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    // Powers of ten up to 22 are exact, so the printed number is short.
    if digits >= 0 {
        let scale = 10f64.powi(digits);
        (value * scale).round() / scale
    } else {
        let scale = 10f64.powi(-digits);
        (value / scale).round() * scale
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stay_on_a_line() {
        let value = serde_json::json!({"a": [[1, 2], [3]], "b": {"c": []}});
        let text = to_string(&value).unwrap();
        assert!(text.contains("\"a\": [[1, 2], [3]],\n"), "{text}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn four_digits_are_kept() {
        assert_eq!(rounded(1.234_567), 1.235);
        assert_eq!(rounded(123_456.0), 123_500.0);
        assert_eq!(rounded(0.000_123_456), 0.000_123_5);
        assert_eq!(rounded(0.0), 0.0);
    }
}
