//! `name value` lines.

use std::fmt;
use std::io::{self, Write};

/// Writer of one measurement per line, as `name value`, each flushed at once.
///
/// Flushing matters: a line such as `fill_seconds` tells the reader of the pipe that a phase has ended, and a program
/// that is killed has still written its results so far.
#[derive(Debug)]
pub struct Report<W> {
    out: W,
}

impl<W: Write> Report<W> {
    /// Makes a report that goes to `out`.
    pub fn new(out: W) -> Self {
        Self { out }
    }

    /// Writes a whole number or a word.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn line(&mut self, name: &str, value: impl fmt::Display) -> io::Result<()> {
        writeln!(self.out, "{name} {value}")?;
        self.out.flush()
    }

    /// Writes one JSON object on a line of its own, for groups of many figures.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn json(&mut self, object: &impl serde::Serialize) -> io::Result<()> {
        serde_json::to_writer(&mut self.out, object)?;
        writeln!(self.out)?;
        self.out.flush()
    }

    /// Writes a measured quantity with six decimals; a missing measurement is `nan`.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn number(&mut self, name: &str, value: f64) -> io::Result<()> {
        if value.is_nan() {
            self.line(name, "nan")
        } else {
            self.line(name, format_args!("{value:.6}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_easy_to_parse() {
        let mut text = Vec::new();
        let mut report = Report::new(&mut text);
        report.line("hits", 17).unwrap();
        report.number("throughput_mops", 12.5).unwrap();
        report.number("never", f64::NAN).unwrap();
        assert_eq!(text, b"hits 17\nthroughput_mops 12.500000\nnever nan\n");
    }
}
