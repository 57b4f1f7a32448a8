//! Files of a record, and the places of entries in them.
//!
//! ```text
//!   FILE     header, full, entry, entry ... full, entry        segment 4
//!   FILE.1   header, full, entry ... entry, entr               segment 3; a killed recorder left a part of an entry
//! ```
//!
//! When one segment is full, the recorder rewrites the other one, which has the older snapshots.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::Deserialize;

use super::entry::{EntryHead, Header, SCHEMA_NAME, SCHEMA_VERSION};
use crate::utc::MAX_SECONDS;

/// Number of files of a record.
pub const SEGMENTS: usize = 2;
/// The longest header.
const MAX_HEADER_BYTES: u64 = 4096;
/// The longest entry: one of 65,536 processes has a quarter of this.
pub const MAX_ENTRY_BYTES: u64 = 64 << 20;
/// The most entries of a segment: one a second for 48 days.
pub const MAX_ENTRIES: usize = 1 << 22;
/// Bytes that are read at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// Returns the paths of the segments of a record.
pub fn paths(path: &Path) -> [PathBuf; SEGMENTS] {
    let mut second = OsString::from(path);
    second.push(".1");
    [path.to_owned(), second.into()]
}

/// Place of an entry in a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryPlace {
    pub head: EntryHead,
    /// Offset in bytes.
    pub offset: u64,
    /// Length in bytes, without the end of the line.
    pub length: usize,
}

/// Contents of a segment.
#[derive(Debug, Clone, PartialEq)]
pub struct Contents {
    pub header: Header,
    /// Entries that can be read, in the order of the file.
    pub entries: Vec<EntryPlace>,
    /// Number of lines that are no entry, and of entries that need one of these.
    pub damaged: u64,
    /// Length in bytes up to the end of the last whole line.
    pub whole_bytes: u64,
}

/// Reason why a file is no segment.
#[derive(Debug)]
pub enum SegmentFault {
    /// There is nothing in it, or a part of a header.
    Empty,
    /// The file is something else.
    NoRecord,
    /// The file has a longer line or more entries than a recorder writes.
    Excessive(&'static str),
    /// The file has a layout of a later version, named here.
    Newer(String),
    /// The file cannot be read.
    Unreadable(io::Error),
}

impl fmt::Display for SegmentFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("it is empty: nothing was recorded"),
            Self::Excessive(what) => write!(f, "it has {what} than superhue records"),
            Self::NoRecord => f.write_str("it is no record of `superhue top --record`"),
            Self::Newer(schema) => write!(
                f,
                "it is a record of a newer superhue ({schema}; this one knows {SCHEMA_NAME}{SCHEMA_VERSION}): use that version"
            ),
            Self::Unreadable(error) => error.fmt(f),
        }
    }
}

impl From<io::Error> for SegmentFault {
    fn from(error: io::Error) -> Self {
        Self::Unreadable(error)
    }
}

/// Opens a segment for reading; `None` if it is not there.
///
/// # Errors
/// Errors of `open(2)`; a sentence if it is no regular file, which may have no end.
pub fn open(path: &Path) -> io::Result<Option<File>> {
    // Without the flag, opening a pipe waits for a writer.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = File::options()
        .read(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    let file = match opened {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if !file.metadata()?.is_file() {
        let text = "it is no regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    Ok(Some(file))
}

/// Finds the entries of a segment.
///
/// # Errors
/// It is no segment.
pub fn scan(file: impl Read) -> Result<Contents, SegmentFault> {
    let mut lines = Lines::new(file);
    let header = header(lines.next(MAX_HEADER_BYTES)?)?;
    let mut contents = Contents {
        header,
        entries: Vec::new(),
        damaged: 0,
        whole_bytes: lines.line.len() as u64,
    };
    // True while every entry since the last full one can be read.
    let mut is_chained = false;
    loop {
        let line = lines.next(MAX_ENTRY_BYTES)?;
        // A line without an end is a part of an entry: its writer was killed.
        let Some(text) = line.strip_suffix(b"\n") else {
            return match line.len() as u64 >= MAX_ENTRY_BYTES {
                true => Err(SegmentFault::Excessive("a longer line")),
                false => Ok(contents),
            };
        };
        if contents.entries.len() >= MAX_ENTRIES {
            return Err(SegmentFault::Excessive("more entries"));
        }
        let head = head(text);
        is_chained = head.is_some_and(|head| head.full || is_chained);
        match head.filter(|_| is_chained) {
            Some(head) => contents.entries.push(EntryPlace {
                head,
                offset: contents.whole_bytes,
                length: text.len(),
            }),
            None => contents.damaged += 1,
        }
        contents.whole_bytes += line.len() as u64;
    }
}

/// Reads the head of an entry; `None` if the line is no entry.
fn head(text: &[u8]) -> Option<EntryHead> {
    let head: EntryHead = serde_json::from_slice(text).ok()?;
    (head.at_ms / 1000 <= MAX_SECONDS).then_some(head)
}

fn header(line: &[u8]) -> Result<Header, SegmentFault> {
    #[derive(Deserialize)]
    struct Schema {
        schema: String,
    }
    let Some(text) = line.strip_suffix(b"\n") else {
        let start = format!("{{\"schema\":\"{SCHEMA_NAME}");
        let start = start.as_bytes();
        let is_part = start.starts_with(line) || line.starts_with(start);
        return Err(match is_part {
            true => SegmentFault::Empty,
            false => SegmentFault::NoRecord,
        });
    };
    let schema = serde_json::from_slice(text).map(|it: Schema| it.schema);
    let schema = schema.map_err(|_| SegmentFault::NoRecord)?;
    let version = schema.strip_prefix(SCHEMA_NAME);
    let version: u64 = version
        .and_then(|version| version.parse().ok())
        .filter(|&version| version > 0)
        .ok_or(SegmentFault::NoRecord)?;
    if version > SCHEMA_VERSION {
        return Err(SegmentFault::Newer(schema));
    }
    serde_json::from_slice(text).map_err(|_| SegmentFault::NoRecord)
}

/// Lines of a file, one at a time.
struct Lines<R> {
    input: BufReader<R>,
    line: Vec<u8>,
}

impl<R: Read> Lines<R> {
    fn new(input: R) -> Self {
        Self {
            input: BufReader::with_capacity(BUFFER_BYTES, input),
            line: Vec::new(),
        }
    }

    /// Returns the next line with its end; at most `most` bytes of it, and nothing at the end of the file.
    fn next(&mut self, most: u64) -> io::Result<&[u8]> {
        self.line.clear();
        (&mut self.input)
            .take(most)
            .read_until(b'\n', &mut self.line)?;
        Ok(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn text_of(header: &Header) -> String {
        format!("{}\n", serde_json::to_string(header).unwrap())
    }

    /// A segment with these entries: their times, and whether they are full.
    fn segment(entries: &[(u64, bool)]) -> String {
        let mut text = text_of(&Header::new(3, Duration::from_secs(1)));
        for (at_ms, full) in entries {
            text += &format!("{{\"at_ms\":{at_ms},\"full\":{full},\"more\":[1]}}\n");
        }
        text
    }

    #[test]
    fn a_line_that_no_recorder_writes_is_no_torn_entry() {
        let text = segment(&[(1000, true)]);
        let endless = std::io::repeat(b'x').take(MAX_ENTRY_BYTES + 1);
        let scanned = scan(text.as_bytes().chain(endless));
        assert!(
            matches!(scanned, Err(SegmentFault::Excessive(_))),
            "{scanned:?}"
        );
        let torn = std::io::repeat(b'x').take(1000);
        assert_eq!(scan(text.as_bytes().chain(torn)).unwrap().entries.len(), 1);
    }

    fn found(text: &str) -> (Vec<u64>, u64) {
        let contents = scan(text.as_bytes()).unwrap();
        for place in &contents.entries {
            let start = usize::try_from(place.offset).unwrap();
            let line = &text[start..start + place.length];
            assert_eq!(head(line.as_bytes()), Some(place.head), "{line}");
        }
        let times = contents.entries.iter().map(|it| it.head.at_ms).collect();
        (times, contents.damaged)
    }

    #[test]
    fn a_torn_last_entry_is_ignored() {
        let whole = segment(&[(10, true), (20, false)]);
        let longer = segment(&[(10, true), (20, false), (30, false)]);
        for end in whole.len()..longer.len() {
            let contents = scan(&longer.as_bytes()[..end]).unwrap();
            assert_eq!(contents.entries.len(), 2, "{end}");
            assert_eq!(contents.damaged, 0);
            assert_eq!(contents.whole_bytes, whole.len() as u64);
        }
        assert_eq!(found(&longer), (vec![10, 20, 30], 0));
    }

    #[test]
    fn entries_after_damage_wait_for_a_full_one() {
        let mut text = segment(&[(10, true), (20, false)]);
        text += "{\"at_ms\":30,\"fu\0\0\0\n";
        text += "{\"at_ms\":40}\n{\"at_ms\":50,\"full\":true}\n{\"at_ms\":60}\n";
        assert_eq!(found(&text), (vec![10, 20, 50, 60], 2));
        // A segment begins with a full entry.
        assert_eq!(found(&segment(&[(10, false), (20, true)])), (vec![20], 1));
        let beyond = (MAX_SECONDS + 1) * 1000;
        assert_eq!(
            found(&segment(&[(10, true), (beyond, true)])),
            (vec![10], 1)
        );
    }

    #[test]
    fn other_files_are_no_segments() {
        let fault = |text: &str| scan(text.as_bytes()).unwrap_err().to_string();
        let header = text_of(&Header::new(1, Duration::from_secs(1)));
        for end in 0..header.len() - 1 {
            assert!(fault(&header[..end]).contains("is empty"), "{end}");
        }
        assert_eq!(found(&header), (vec![], 0));
        let long = "x".repeat(100_000);
        for other in [
            "\n",
            "x",
            "{}\n",
            "{\"schema\":\"superhue-top/1\"}\n",
            "{\"schema\":\"superhue-top-record/\"}\n",
            "{\"schema\":\"superhue-top-record/1\"}\n",
            &long,
        ] {
            assert!(fault(other).contains("is no record"), "{other}");
        }
        let newer = fault("{\"schema\":\"superhue-top-record/2\",\"parts\":7}\n");
        assert!(
            newer.contains("newer superhue (superhue-top-record/2;"),
            "{newer}"
        );
    }

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let [first, second] = paths(&folder.path().join("top.rec"));
        assert!(second.ends_with("top.rec.1"));
        assert!(open(&first).unwrap().is_none());
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &first,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        for other in [first.as_path(), folder.path(), Path::new("/dev/null")] {
            let error = open(other).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{other:?}: {error}");
        }
    }
}
