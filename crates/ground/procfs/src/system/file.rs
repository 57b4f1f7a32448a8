//! Readers of kernel files: whole files that must exist, and directories of optional attributes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::{Gaps, ParseError};
use crate::ReadError;

/// Returns the text of a file. Bytes that are no UTF-8 become replacement characters; the parsers refuse them
/// where they matter.
fn text(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Reads and parses a system-wide file whose absence means `meaning`.
pub(crate) fn read<T>(
    path: &Path,
    meaning: &'static str,
    parse: impl FnOnce(&str) -> Result<T, ParseError>,
) -> Result<T, ReadError> {
    let text = text(path).map_err(|error| ReadError::of_system(path, error, meaning))?;
    parse(&text).map_err(|error| ReadError::Malformed {
        path: path.to_owned(),
        what: error.to_string(),
    })
}

/// Returns the trimmed text of an optional file; `None` also if it is empty.
#[must_use]
pub fn hint(path: &Path) -> Option<String> {
    let text = text(path).ok()?;
    let trimmed = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!trimmed.is_empty()).then(|| trimmed.to_owned())
}

/// Returns the entries of a directory named `PREFIX<number>SUFFIX`, in ascending order of the number.
///
/// Skips an entry whose number is not in plain decimal (`cpufreq` beside `cpu0`).
///
/// # Errors
/// If the directory cannot be listed.
pub fn numbered(directory: &Path, prefix: &str, suffix: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| name.strip_prefix(prefix)?.strip_suffix(suffix))
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok());
        if let Some(number) = number {
            found.push((number, entry.path()));
        }
    }
    found.sort_unstable();
    Ok(found)
}

/// Directory of attributes, one value per file, any of which a kernel may lack.
///
/// A failed read goes into [`Gaps`] and does not stop the other reads: a kernel with
/// a new word for one attribute should not hide all others.
#[derive(Debug)]
pub(crate) struct Attributes {
    directory: PathBuf,
    gaps: Gaps,
}

impl Attributes {
    pub(crate) fn of(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            gaps: Gaps::default(),
        }
    }

    /// Reads and parses one attribute, or records the reason for the failure.
    pub(crate) fn get<T>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, ParseError>,
    ) -> Option<T> {
        let reason = match text(&self.directory.join(name)) {
            Ok(text) => match parse(&text) {
                Ok(value) => return Some(value),
                Err(error) => format!("not understood: {error}"),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                "not offered by this kernel, or hidden from this container".to_owned()
            }
            Err(error) => format!("cannot be read: {error}"),
        };
        self.gaps.note(name, reason);
        None
    }

    pub(crate) fn into_gaps(self) -> Gaps {
        self.gaps
    }
}

/// Writes a part that may be unknown as `{"value": ..., "reason": ...}`, one of them `null`.
pub(crate) fn serialize_part<T, E, S>(part: &Result<T, E>, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Serialize,
    E: std::fmt::Display,
    S: Serializer,
{
    #[derive(Serialize)]
    struct Part<'a, T> {
        value: Option<&'a T>,
        reason: Option<String>,
    }
    Part {
        value: part.as_ref().ok(),
        reason: part.as_ref().err().map(ToString::to_string),
    }
    .serialize(serializer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::number;

    #[test]
    fn entries_are_sorted_by_number_and_others_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        for name in [
            "cpu10",
            "cpu2",
            "cpufreq",
            "cpu",
            "cpu+1",
            "cpu0x1",
            "cpu99999999999999999999",
        ] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        let numbers: Vec<u64> = numbered(directory.path(), "cpu", "")
            .unwrap()
            .into_iter()
            .map(|(n, _)| n)
            .collect();
        assert_eq!(numbers, [2, 10]);
    }

    #[test]
    fn a_gap_has_its_reason_and_does_not_hide_the_rest() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("good"), "7\n").unwrap();
        fs::write(directory.path().join("bad"), b"\xff\n").unwrap();
        fs::create_dir(directory.path().join("odd")).unwrap();
        let mut attributes = Attributes::of(directory.path());
        assert_eq!(attributes.get("good", number), Some(7));
        for name in ["bad", "absent", "odd"] {
            assert_eq!(attributes.get(name, number), None);
        }
        let gaps = attributes.into_gaps();
        assert_eq!(gaps.reason("good"), None);
        assert!(gaps.reason("bad").unwrap().contains("not understood"));
        assert!(gaps.reason("absent").unwrap().contains("not offered"));
        assert!(gaps.reason("odd").unwrap().contains("cannot be read"));
    }

    #[test]
    fn a_whole_file_is_read_or_says_why_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let missing = read(&path, "a test", number).unwrap_err();
        assert!(matches!(
            missing,
            ReadError::Missing {
                meaning: "a test",
                ..
            }
        ));
        fs::write(&path, "many").unwrap();
        let malformed = read(&path, "a test", number).unwrap_err();
        assert!(
            malformed
                .to_string()
                .ends_with("is not understood: \"many\" is no number")
        );
    }
}
