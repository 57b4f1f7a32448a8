//! The report of a suite, which is kept while it is measured.

use std::fs;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use superhue_measure::Suite;

use crate::output::{FAILED, Failure, USAGE};
use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};
use crate::verb::shared_folder::open_to_write;

/// The file that a suite is written to repeatedly, whole each time.
pub(super) struct Report {
    path: PathBuf,
    /// The suite that it already holds.
    pub(super) kept: Option<Suite>,
}

/// Returns the path, without links, of the file that writing to `path` would reach. It is made for a moment if it is not there.
fn way_to(path: &Path) -> io::Result<PathBuf> {
    let (file, is_new) = open_to_write(path)?;
    let real = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if is_new {
        fs::remove_file(&real)?;
    }
    Ok(real)
}

impl Report {
    /// Reads the existing report, and checks that it can be written.
    pub(super) fn open(path: &Path) -> Result<Self, Failure> {
        let failed = |error: anyhow::Error| {
            let context = format!("cannot keep the result in {}", path.display());
            Failure::new(FAILED, error.context(context))
        };
        // Writes to the target of a link, not over the link; never follows a link of another user.
        let path = way_to(path).map_err(|error| failed(error.into()))?;
        let kept = match fs::metadata(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(failed(error.into())),
            Ok(there) if there.is_file() && there.len() == 0 => None,
            Ok(_) => {
                let text = read_document(&path, MAX_DOCUMENT_BYTES).map_err(failed)?;
                let kept = Suite::from_json(&text).map_err(|error| {
                    let text = format!(
                        "{} is there already, and is no result of a suite ({error}): name another file with --report",
                        path.display()
                    );
                    Failure::new(USAGE, text)
                })?;
                Some(kept)
            }
        };
        let report = Self { path, kept };
        let beside = report.beside();
        open_to_write(&beside)
            .and_then(|_| fs::remove_file(&beside))
            .map_err(|error| failed(error.into()))?;
        Ok(report)
    }

    /// The path of the new report until it replaces the old one.
    fn beside(&self) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(".part");
        name.into()
    }

    /// Replaces the report in one step: a reader sees the old one or the new one, also if superhue is killed.
    pub(super) fn save(&self, suite: &Suite) -> anyhow::Result<()> {
        let beside = self.beside();
        let written = suite.to_json().map_err(io::Error::from).and_then(|text| {
            let (mut file, _) = open_to_write(&beside)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)
        });
        written
            .inspect_err(|_| {
                let _ = fs::remove_file(&beside);
            })
            .with_context(|| format!("cannot keep the result in {}", self.path.display()))
    }
}
