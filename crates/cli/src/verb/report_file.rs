//! A file for a result: its path is tried before the work begins, and its contents come after, all or none.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};
use serde::Serialize;

use super::shared_folder::{Place, WriteError, find_place};

/// A file that can be written. It has its old contents until the new ones are complete; a new file is not there until then.
#[derive(Debug)]
pub struct ReportFile {
    place: Place,
    path: PathBuf,
    /// Kind of contents, for messages.
    what: &'static str,
}

impl ReportFile {
    /// Opens `path` for a report, so that a wrong path is reported before anything else happens.
    ///
    /// # Errors
    /// The fault of the path.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        Self::open_for(path, "report")
    }

    /// Opens `path` for other contents, which messages call `what`.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn open_for(path: &Path, what: &'static str) -> anyhow::Result<Self> {
        let place = find_place(path)
            .with_context(|| format!("cannot write the {what} to {}", path.display()))?;
        place.clear();
        Ok(Self {
            place,
            path: path.to_owned(),
            what,
        })
    }

    /// Opens the file if one is requested.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_if(path: Option<&PathBuf>) -> anyhow::Result<Option<Self>> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// Writes the report in place of the old contents.
    ///
    /// # Errors
    /// A full disk, for example. The old contents stay then, unless the file has several names or its folder cannot be written.
    pub fn write_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.write_text(&text)
    }

    /// Writes a text in place of the old contents.
    ///
    /// # Errors
    /// As [`Self::write_json`].
    pub fn write_text(self, text: &str) -> anyhow::Result<()> {
        self.write_bytes(&[text.as_bytes(), b"\n"].concat())
    }

    /// Writes exactly these bytes in place of the old contents.
    ///
    /// # Errors
    /// As [`Self::write_json`].
    pub fn write_bytes(self, bytes: &[u8]) -> anyhow::Result<()> {
        let (what, path) = (self.what, self.path);
        self.place.replace(bytes).map_err(|failed| {
            let WriteError {
                error,
                is_unchanged,
            } = failed;
            let state = match is_unchanged {
                true => "; nothing was left behind, and an older file is as it was",
                false => "",
            };
            let remedy = match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    "; make room, or write elsewhere"
                }
                _ => "",
            };
            anyhow!(
                "cannot write the {what} to {}: {error}{state}{remedy}",
                path.display()
            )
        })
    }

    /// Leaves the file as it was before, which it is until it is written.
    pub fn abandon(self) {}
}
