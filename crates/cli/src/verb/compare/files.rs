//! The files that a result is written to.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use superhue_compare::{ComparisonView, SuiteView};
use superhue_measure::{Comparison, Suite};
use superhue_plot::to_png;

use crate::args::CompareArgs;
use crate::output::{FAILED, Failure};
use crate::verb::report_file::ReportFile;

/// Makes the contents of one file from a result; the path gives the format.
type Make<T> = fn(&T, &Path) -> anyhow::Result<Vec<u8>>;

/// Returns a picture in the format of the file's extension: PNG or SVG.
fn picture(svg: &str, path: &Path) -> anyhow::Result<Vec<u8>> {
    match path.extension().is_some_and(|extension| extension == "png") {
        true => to_png(svg).with_context(|| format!("cannot draw {}", path.display())),
        false => text(svg),
    }
}

/// Returns a text with a newline at its end.
fn text(text: &str) -> anyhow::Result<Vec<u8>> {
    Ok(format!("{}\n", text.trim_end()).into_bytes())
}

/// Files to write, opened before anything is measured, so that a wrong path is reported at once.
#[derive(Debug)]
pub(super) struct Files<T>(Vec<(PathBuf, ReportFile, Make<T>)>);

impl Files<Comparison> {
    /// Opens all requested files of a comparison; if one cannot be opened, the others stay as they were.
    pub(super) fn of_comparison(args: &CompareArgs) -> Result<Self, Failure> {
        let exports = &args.exports;
        Self::open_all([
            ("report", &args.report, |result, _| text(&result.to_json()?)),
            ("picture", &args.plot, |result, path| {
                picture(&ComparisonView(result).plot(), path)
            }),
            ("table", &exports.export_markdown, |result, _| {
                text(&ComparisonView(result).markdown())
            }),
            ("table", &exports.export_csv, |result, _| {
                text(&ComparisonView(result).csv()?)
            }),
        ])
    }
}

impl Files<Suite> {
    /// The same for a suite, except for its report, which is written more than once.
    pub(super) fn of_suite(args: &CompareArgs) -> Result<Self, Failure> {
        let exports = &args.exports;
        Self::open_all([
            ("picture", &args.plot, |result, path| {
                picture(&SuiteView(result).plot(), path)
            }),
            ("table", &exports.export_markdown, |result, _| {
                text(&SuiteView(result).markdown())
            }),
            ("table", &exports.export_csv, |result, _| {
                text(&SuiteView(result).csv()?)
            }),
        ])
    }
}

impl<T> Files<T> {
    fn open_all<const N: usize>(
        wanted: [(&'static str, &Option<PathBuf>, Make<T>); N],
    ) -> Result<Self, Failure> {
        let mut files = Self(Vec::new());
        for (what, path, make) in wanted {
            let Some(path) = path else { continue };
            match ReportFile::open_for(path, what) {
                Ok(file) => files.0.push((path.clone(), file, make)),
                Err(error) => {
                    files.abandon();
                    return Err(Failure::new(FAILED, error));
                }
            }
        }
        Ok(files)
    }

    /// Writes all files that it can; returns the errors.
    pub(super) fn write(self, result: &T) -> Vec<anyhow::Error> {
        let write = |(path, file, make): (PathBuf, ReportFile, Make<T>)| match make(result, &path) {
            Ok(bytes) => file.write_bytes(&bytes).err(),
            Err(error) => {
                file.abandon();
                Some(error)
            }
        };
        self.0.into_iter().filter_map(write).collect()
    }

    /// Leaves the files as they were.
    pub(super) fn abandon(self) {
        self.0.into_iter().for_each(|(_, file, _)| file.abandon());
    }
}
