//! Writes a record: entries go into one segment until it is full, and then into the other one.
//!
//! A file that is there already is continued if it is a record, and otherwise refused. An entry that cannot be written leaves no part behind.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use superhue::model::{ByteCount, counted};

use super::entry::{Encoder, Header, ShownView};
use super::segments::{self, Contents, SEGMENTS, SegmentFault};
use crate::utc;
use crate::verb::shared_folder::open_private;

/// Entries after which everything is written again: the most that have to be read to show one of them.
const FULL_EVERY: u32 = 100;

/// A segment that can be written.
#[derive(Debug)]
struct Segment {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines; the next entry comes after them.
    size: u64,
    /// True if the file was made just now.
    is_new: bool,
}

/// A record that can be written.
#[derive(Debug)]
pub struct RecordWriter {
    path: PathBuf,
    /// The segment that takes entries, and its number in the order of time.
    current: Segment,
    number: u64,
    /// The segment with the older entries.
    other: Segment,
    /// Most bytes of one segment.
    most: u64,
    /// Entries of the current segment, and the most that one may have: a reader refuses more.
    entries: usize,
    most_entries: usize,
    interval: Duration,
    encoder: Encoder,
    since_full: u32,
    written: u64,
    /// Time of the last entry.
    last: Option<Duration>,
}

impl RecordWriter {
    /// Opens the record at `path`, or makes one, of at most `limit` bytes together. Both files are opened and locked, so that no other program can
    /// take the second name later.
    ///
    /// # Errors
    /// The file is something else, belongs to another user in a shared folder, or is in use; the record there is larger than `limit`.
    pub fn open(path: &Path, limit: ByteCount, interval: Duration) -> anyhow::Result<Self> {
        let most = limit.0 / SEGMENTS as u64;
        let refused = |path: &Path| format!("cannot record to {}", path.display());
        let opened = |path: &Path| {
            let segment = Segment::open(path).with_context(|| refused(path))?;
            let contents = segment.contents(most).with_context(|| refused(path))?;
            anyhow::Ok((segment, contents))
        };
        let [first, second] = segments::paths(path);
        let (mut current, mut contents) = opened(&first)?;
        let (mut other, of_other) = opened(&second)?;
        let number = |contents: &Option<Contents>| contents.as_ref().map(|it| it.header.segment);
        // The segment that was written later continues, after its last whole entry.
        if number(&of_other) > number(&contents) {
            std::mem::swap(&mut current, &mut other);
            contents = of_other;
        }
        if let Some(contents) = &contents {
            let cut = current.truncate(contents.whole_bytes);
            cut.with_context(|| refused(path))?;
        }
        Ok(Self {
            path: path.to_owned(),
            current,
            number: number(&contents).unwrap_or_default(),
            other,
            most,
            entries: contents.map_or(0, |contents| contents.entries.len()),
            most_entries: segments::MAX_ENTRIES,
            interval,
            encoder: Encoder::default(),
            since_full: FULL_EVERY,
            written: 0,
            last: None,
        })
    }

    /// Writes a snapshot of the time `at` since 1970.
    ///
    /// # Errors
    /// A full disk, for example. The record has its whole entries then; those of the older segment are gone if that was to be rewritten.
    pub fn append(&mut self, at: Duration, shown: ShownView<'_>) -> anyhow::Result<()> {
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        let mut full = self.since_full >= FULL_EVERY;
        let mut line = self.line(at_ms, shown, full)?;
        let room = self.room();
        let is_over =
            self.entries >= self.most_entries || room.is_none_or(|room| room < line.len() as u64);
        if is_over && !full {
            full = true;
            line = self.line(at_ms, shown, full)?;
        }
        let written = match is_over {
            true => self.begin_segment(room.is_some(), &line),
            false => self.current.append(&line).map_err(Into::into),
        };
        written.map_err(|error| self.explained(&error))?;
        self.entries = if is_over { 1 } else { self.entries + 1 };
        self.since_full = if full { 1 } else { self.since_full + 1 };
        self.written += 1;
        self.last = Some(at);
        Ok(())
    }

    fn line(&mut self, at_ms: u64, shown: ShownView<'_>, full: bool) -> anyhow::Result<Vec<u8>> {
        let mut line = serde_json::to_vec(&self.encoder.entry(at_ms, shown, full))?;
        line.push(b'\n');
        Ok(line)
    }

    /// Returns the bytes for which the segment has room; `None` if it has no header yet.
    fn room(&self) -> Option<u64> {
        let size = self.current.size;
        (size > 0).then(|| self.most.saturating_sub(size))
    }

    /// Begins a segment with a full entry: the other one if `is_other`.
    fn begin_segment(&mut self, is_other: bool, line: &[u8]) -> anyhow::Result<()> {
        let header = Header::new(self.number + 1, self.interval);
        let mut bytes = serde_json::to_vec(&header)?;
        bytes.push(b'\n');
        bytes.extend_from_slice(line);
        // Before anything is overwritten.
        if bytes.len() as u64 > self.most {
            bail!(
                "one snapshot takes {}, and --record-limit leaves {} for one of two files: give a larger limit",
                ByteCount(bytes.len() as u64),
                ByteCount(self.most)
            );
        }
        if is_other {
            std::mem::swap(&mut self.current, &mut self.other);
        }
        self.number += 1;
        self.current.truncate(0)?;
        Ok(self.current.append(&bytes)?)
    }

    /// Adds the state of the record, and the remedy, to an error.
    fn explained(&self, error: &anyhow::Error) -> anyhow::Error {
        let path = self.path.display();
        let state = match self.last {
            Some(last) => format!("; it has the snapshots until {} UTC", shown(last)),
            None => "; there is no snapshot of this run in it".to_owned(),
        };
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let remedy = match kind {
            Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => {
                "; make room, record elsewhere, or give a smaller --record-limit"
            }
            _ => "",
        };
        anyhow!("cannot write the record {path}: {error:#}{state}{remedy}")
    }

    /// Returns a sentence about the result.
    pub fn summary(&self) -> String {
        let path = self.path.display();
        match self.last {
            Some(last) => format!(
                "recorded {} to {path}, the last one of {} UTC: superhue top --replay shows them",
                counted(self.written, "snapshot"),
                shown(last)
            ),
            None => format!("recorded no snapshot to {path}"),
        }
    }
}

fn shown(at: Duration) -> String {
    utc::shown(at.as_secs())
}

impl Segment {
    /// Opens a segment for writing, and locks it.
    fn open(path: &Path) -> anyhow::Result<Self> {
        // Opening a pipe waits for a reader.
        if fs::metadata(path).is_ok_and(|about| !about.is_file()) {
            bail!("it is no regular file");
        }
        let (file, is_new) = open_private(path)?;
        let segment = Self {
            path: path.to_owned(),
            file,
            size: 0,
            is_new,
        };
        if !segment.file.metadata()?.is_file() {
            bail!("it is no regular file");
        }
        match flock(&segment.file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => bail!("another program records to it; give another name"),
            other => other?,
        }
        Ok(segment)
    }

    /// Reads the contents; `None` if there are none. Reading follows links of other users, which opening the segment has refused.
    fn contents(&self, most: u64) -> anyhow::Result<Option<Contents>> {
        let Some(file) = segments::open(&self.path)? else {
            return Ok(None);
        };
        self.must_be(&file.metadata()?)?;
        let contents = match segments::scan(file) {
            Ok(contents) => contents,
            Err(SegmentFault::Empty) => return Ok(None),
            Err(SegmentFault::Unreadable(error)) => return Err(error.into()),
            Err(fault) => bail!("{fault}; remove it or give another name"),
        };
        let (there, most) = (ByteCount(contents.whole_bytes), ByteCount(most));
        if there > most {
            bail!(
                "there are {there} already, and --record-limit leaves {most} for one of two files: give a larger limit or another name"
            );
        }
        Ok(Some(contents))
    }

    /// Cuts the segment off, and goes to its end.
    fn truncate(&mut self, size: u64) -> io::Result<()> {
        self.file.set_len(size)?;
        self.file.seek(SeekFrom::Start(size))?;
        self.size = size;
        Ok(())
    }

    /// Writes all of these bytes, or none.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(bytes);
        match written {
            Ok(()) => self.size += bytes.len() as u64,
            // If even that fails, a reader ignores the part without an end.
            Err(_) => drop(self.truncate(self.size)),
        }
        written
    }

    /// Fails if the open file is not the one that was read.
    fn must_be(&self, other: &fs::Metadata) -> anyhow::Result<()> {
        let own = self.file.metadata()?;
        if (own.dev(), own.ino()) != (other.dev(), other.ino()) {
            bail!("it is another file than a moment ago");
        }
        Ok(())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // A file that was made and has nothing in it is not left behind; another file of that name stays.
        let is_it = |found: fs::Metadata| self.must_be(&found).is_ok();
        let is_empty = self.file.metadata().is_ok_and(|about| about.len() == 0);
        if self.is_new && is_empty && fs::symlink_metadata(&self.path).is_ok_and(is_it) {
            let _ = fs::remove_file(&self.path);
        }
        // A child that a thread has just forked has the file open until it executes its program.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests;
