//! The files that a result is written to.

use std::path::PathBuf;

use superhue_compare::{Comparison, Suite};

use crate::args::CompareArgs;
use crate::output::{FAILED, Failure};
use crate::verb::report_file::ReportFile;

/// How one file is made from a result.
type Make<T> = fn(&T) -> anyhow::Result<String>;

/// Files to write, opened before anything is measured, so that a wrong path is told at once.
#[derive(Debug)]
pub(super) struct Files<T>(Vec<(ReportFile, Make<T>)>);

impl Files<Comparison> {
    /// Opens all that are asked for of a comparison; if one cannot be, the others stay as they were.
    pub(super) fn of_comparison(args: &CompareArgs) -> Result<Self, Failure> {
        let exports = &args.exports;
        Self::open_all([
            (&args.report, |result| Ok(result.to_json()?)),
            (&args.plot, |result| Ok(result.plot())),
            (&exports.export_markdown, |result| Ok(result.markdown())),
            (&exports.export_csv, |result| Ok(result.csv()?)),
        ])
    }
}

impl Files<Suite> {
    /// The same for a suite, but for its report, which is written more than once.
    pub(super) fn of_suite(args: &CompareArgs) -> Result<Self, Failure> {
        let exports = &args.exports;
        Self::open_all([
            (&args.plot, |result| Ok(result.plot())),
            (&exports.export_markdown, |result| Ok(result.markdown())),
            (&exports.export_csv, |result| Ok(result.csv()?)),
        ])
    }
}

impl<T> Files<T> {
    fn open_all<const N: usize>(wanted: [(&Option<PathBuf>, Make<T>); N]) -> Result<Self, Failure> {
        let mut files = Self(Vec::new());
        for (path, make) in wanted {
            let Some(path) = path else { continue };
            match ReportFile::open(path) {
                Ok(file) => files.0.push((file, make)),
                Err(error) => {
                    files.abandon();
                    return Err(Failure::new(FAILED, error));
                }
            }
        }
        Ok(files)
    }

    /// Writes all that can be written; what went wrong.
    pub(super) fn write(self, result: &T) -> Vec<anyhow::Error> {
        let write = |(file, make): (ReportFile, Make<T>)| match make(result) {
            Ok(text) => file.write_text(text.trim_end()).err(),
            Err(error) => {
                file.abandon();
                Some(error)
            }
        };
        self.0.into_iter().filter_map(write).collect()
    }

    /// Leaves the files as they were.
    pub(super) fn abandon(self) {
        self.0.into_iter().for_each(|(file, _)| file.abandon());
    }
}
