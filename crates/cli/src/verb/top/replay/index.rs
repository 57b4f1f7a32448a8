//! Reads a record: finds its snapshots, and makes each from the entries since the last full one.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};

use super::super::record::entry::{Decoder, Entry, Moment};
use super::super::record::segments::{self, EntryPlace, SegmentFault};
use crate::utc::{self, RecordTime};

/// A record that can be read.
#[derive(Debug)]
pub struct Record {
    files: Vec<File>,
    /// All snapshots, in the order in which they were written: the file of each, and its place there.
    entries: Vec<(usize, EntryPlace)>,
    damaged: u64,
    /// The last snapshot that was made, and what is needed for the next one.
    last: Option<(usize, Decoder)>,
}

impl Record {
    /// Opens the record at `path`.
    ///
    /// # Errors
    /// There is none, it has no snapshots, or it is of a newer version.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let mut found = Vec::new();
        let mut is_there = false;
        for path in segments::paths(path) {
            let opened = segments::open(&path).with_context(|| cannot(&path))?;
            let Some(file) = opened else { continue };
            is_there = true;
            match segments::scan(&file) {
                Ok(contents) => found.push((file, contents)),
                Err(SegmentFault::Empty) => {}
                Err(fault) => return Err(anyhow!("{}: {fault}", cannot(&path))),
            }
        }
        found.sort_by_key(|(_, contents)| contents.header.segment);
        let mut record = Self {
            files: Vec::new(),
            entries: Vec::new(),
            damaged: 0,
            last: None,
        };
        for (file, contents) in found {
            let at = record.files.len();
            let places = contents.entries.into_iter().map(|place| (at, place));
            record.entries.extend(places);
            record.damaged += contents.damaged;
            record.files.push(file);
        }
        if record.entries.is_empty() {
            let why = match is_there {
                true => "it has no snapshot: it ended before the first one",
                false => "there is no such file; record one by superhue top --record",
            };
            return Err(anyhow!("{}: {why}", cannot(path)));
        }
        Ok(record)
    }

    /// Number of snapshots; at least one.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Number of entries that cannot be read.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Returns the time of a snapshot, in seconds since 1970.
    fn second(&self, index: usize) -> u64 {
        let entry = self.entries.get(index);
        entry.map_or(0, |(_, place)| place.head.at_ms / 1000)
    }

    /// Finds the last snapshot that is not later than a time.
    ///
    /// # Errors
    /// A sentence, if the time is outside of the record.
    pub fn find(&self, wanted: RecordTime) -> Result<usize, String> {
        // A clock that was set back makes later snapshots earlier.
        let seconds = || (0..self.len()).map(|index| self.second(index));
        let first = seconds().min().unwrap_or_default();
        let last = seconds().max().unwrap_or_default();
        let wanted = wanted.within(first, last);
        let earlier = (0..self.len()).filter(|&index| self.second(index) <= wanted);
        let found = earlier.max_by_key(|&index| self.second(index));
        found.filter(|_| wanted <= last).ok_or_else(|| {
            format!(
                "{} is not in the record, which has {} to {} UTC: give a time in between",
                utc::shown(wanted),
                utc::shown(first),
                utc::shown(last)
            )
        })
    }

    /// Returns the snapshot that is `by` steps away, or the first or last one.
    pub fn step(&self, from: usize, by: isize) -> usize {
        from.saturating_add_signed(by)
            .min(self.len().saturating_sub(1))
    }

    /// Returns the nearest snapshot that is at least `seconds` later, or earlier if that is negative; the last or first one without such.
    pub fn jump(&self, from: usize, seconds: i64) -> usize {
        let wanted = self.second(from).saturating_add_signed(seconds);
        if seconds >= 0 {
            let found = (from..self.len()).find(|&index| self.second(index) >= wanted);
            found.unwrap_or(self.len().saturating_sub(1))
        } else {
            let found = (0..from).rfind(|&index| self.second(index) <= wanted);
            found.unwrap_or(0)
        }
    }

    /// Returns a snapshot.
    ///
    /// # Errors
    /// An entry cannot be read, or is not what was written.
    pub fn moment(&mut self, index: usize) -> anyhow::Result<Moment> {
        let is_full = |&index: &usize| self.entries.get(index).is_some_and(|it| it.1.head.full);
        let full = (0..=index).rfind(is_full).unwrap_or(0);
        let (next, mut decoder) = match self.last.take() {
            Some((last, decoder)) if (full..=index).contains(&last) => (last + 1, decoder),
            _ => (full, Decoder::default()),
        };
        for index in next..=index {
            let entry = self.entry(index);
            decoder.apply(entry.with_context(|| {
                let at = utc::shown(self.second(index));
                format!("cannot read the snapshot of {at} UTC")
            })?);
        }
        let moment = decoder.moment();
        self.last = Some((index, decoder));
        Ok(moment)
    }

    fn entry(&self, index: usize) -> anyhow::Result<Entry> {
        let (file, place) = self.entries.get(index).context("there is none")?;
        let file = self.files.get(*file).context("there is no file")?;
        let mut bytes = vec![0; place.length];
        file.read_exact_at(&mut bytes, place.offset)?;
        Ok(serde_json::from_slice(&bytes)?)
    }

    /// Returns the time of a snapshot as it is shown.
    pub fn shown_time(&self, index: usize) -> String {
        utc::shown(self.second(index))
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot replay {}", path.display())
}

#[cfg(test)]
mod tests;
