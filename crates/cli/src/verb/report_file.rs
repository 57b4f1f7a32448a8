//! A report file: opened before the command runs, written after.

use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Serialize;

use super::shared_folder::open_to_write;

/// A file that can be written; it still has its old contents.
#[derive(Debug)]
pub struct ReportFile {
    file: File,
    path: PathBuf,
    /// True if it did not exist before.
    is_new: bool,
}

impl ReportFile {
    /// Opens `path` for a report, so that a wrong path is reported before anything else happens.
    ///
    /// # Errors
    /// The fault of the path.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let (file, is_new) = open_to_write(path)
            .with_context(|| format!("cannot write the report to {}", path.display()))?;
        Ok(Self {
            file,
            path: path.to_owned(),
            is_new,
        })
    }

    /// Opens the file if one is requested.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_if(path: Option<&PathBuf>) -> anyhow::Result<Option<Self>> {
        path.map(|path| Self::open(path)).transpose()
    }

    /// Writes the report over the old contents.
    ///
    /// # Errors
    /// A full disk, for example. The file then holds a part of the report.
    pub fn write_json(self, value: &impl Serialize) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.write_text(&text)
    }

    /// Writes a text over the old contents.
    ///
    /// # Errors
    /// As [`Self::write_json`].
    pub fn write_text(self, text: &str) -> anyhow::Result<()> {
        self.write_bytes(&[text.as_bytes(), b"\n"].concat())
    }

    /// Writes exactly these bytes over the old contents.
    ///
    /// # Errors
    /// As [`Self::write_json`].
    pub fn write_bytes(mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let written = self.overwrite(bytes);
        written.with_context(|| format!("cannot write the report to {}", self.path.display()))
    }

    fn overwrite(&mut self, bytes: &[u8]) -> io::Result<()> {
        // A pipe or a terminal has nothing to overwrite.
        if self.file.metadata()?.is_file() {
            self.file.rewind()?;
            self.file.set_len(0)?;
        }
        self.file.write_all(bytes)?;
        self.file.flush()
    }

    /// Leaves the file as it was before; removes it if it is new.
    pub fn abandon(self) {
        if self.is_new && self.file.metadata().is_ok_and(|file| file.is_file()) {
            let _ = fs::remove_file(&self.path);
        }
    }
}
