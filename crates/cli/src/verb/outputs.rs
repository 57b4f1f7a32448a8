//! Files that a verb writes in addition to its output: a report, pictures.

use std::path::PathBuf;

use anyhow::Context as _;
use serde::Serialize;
use superhue_plot::to_png;

use super::report_file::ReportFile;
use crate::output::{FAILED, Failure, note};

/// Files to write, opened before anything is measured, so that a wrong path is reported at once.
#[derive(Debug, Default)]
pub(crate) struct Outputs {
    /// The document.
    pub(crate) report: Option<ReportFile>,
    /// Pictures, SVG or PNG by their names.
    pub(crate) pictures: Pictures,
}

/// Pictures to draw, all of one thing.
#[derive(Debug, Default)]
pub(crate) struct Pictures(Vec<(PathBuf, ReportFile)>);

impl Outputs {
    /// Opens all files; if one cannot be opened, the others stay as they were.
    pub(crate) fn open(report: Option<&PathBuf>, pictures: &[PathBuf]) -> Result<Self, Failure> {
        let mut outputs = Self::default();
        match outputs.open_files(report, pictures) {
            Ok(()) => Ok(outputs),
            Err(error) => {
                outputs.abandon();
                Err(Failure::new(FAILED, error))
            }
        }
    }

    fn open_files(&mut self, report: Option<&PathBuf>, pictures: &[PathBuf]) -> anyhow::Result<()> {
        self.report = ReportFile::open_if(report)?;
        for path in pictures {
            let file = ReportFile::open_for(path, "picture")?;
            self.pictures.0.push((path.clone(), file));
        }
        Ok(())
    }

    /// Leaves the files as they were.
    pub(crate) fn abandon(self) {
        self.pictures.abandon();
        self.report.into_iter().for_each(ReportFile::abandon);
    }
}

/// Writes the report, if the user requested one.
///
/// # Errors
/// It could not be written; see [`ReportFile::write_json`].
pub(crate) fn write_if_given(
    report: Option<ReportFile>,
    document: &impl Serialize,
) -> Result<(), Failure> {
    report.map_or(Ok(()), |file| {
        let written = file.write_json(document);
        written.map_err(|error| Failure::new(FAILED, error))
    })
}

/// Returns the first of two failures, and prints the second.
pub(crate) fn both(first: Result<(), Failure>, second: Result<(), Failure>) -> Result<(), Failure> {
    if let (Err(_), Err(second)) = (&first, &second) {
        note(&second.text);
    }
    first.and(second)
}

/// Prints all failures but the first, which is returned.
pub(crate) fn first_of(failed: Vec<anyhow::Error>) -> Result<(), Failure> {
    let mut failed = failed.into_iter();
    let Some(first) = failed.next() else {
        return Ok(());
    };
    failed.for_each(|error| note(&format!("{error:#}")));
    Err(Failure::new(FAILED, first))
}

impl Pictures {
    /// Returns true if none are requested.
    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Writes each that it can from the same drawing, which is made only if one is requested.
    pub(crate) fn draw(self, svg: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.is_empty() {
            return Ok(());
        }
        let svg = svg();
        let mut failed = Vec::new();
        for (path, file) in self.0 {
            let is_png = path.extension().is_some_and(|extension| extension == "png");
            let written = if is_png {
                let png = to_png(&svg);
                let png = png.with_context(|| format!("cannot draw {}", path.display()));
                png.and_then(|png| file.write_bytes(&png))
            } else {
                file.write_bytes(svg.as_bytes())
            };
            failed.extend(written.err());
        }
        first_of(failed)
    }

    /// Leaves the files as they were.
    pub(crate) fn abandon(self) {
        self.0.into_iter().for_each(|(_, file)| file.abandon());
    }
}
