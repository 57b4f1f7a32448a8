//! The files that a comparison is written to.

use superhue_compare::Comparison;

use crate::args::CompareArgs;
use crate::output::{FAILED, Failure};
use crate::verb::report_file::ReportFile;

/// How one file is made from a result.
type Make = fn(&Comparison) -> anyhow::Result<String>;

/// Files to write, opened before anything is measured, so that a wrong path is told at once.
#[derive(Debug, Default)]
pub(super) struct Files(Vec<(ReportFile, Make)>);

impl Files {
    /// Opens all that are asked for; if one cannot be, the others stay as they were.
    pub(super) fn open(args: &CompareArgs) -> Result<Self, Failure> {
        let exports = &args.exports;
        let wanted: [(_, Make); 4] = [
            (&args.report, |result| Ok(result.to_json()?)),
            (&args.plot, |result| Ok(result.plot())),
            (&exports.export_markdown, |result| Ok(result.markdown())),
            (&exports.export_csv, |result| Ok(result.csv()?)),
        ];
        let mut files = Self::default();
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
    pub(super) fn write(self, result: &Comparison) -> Vec<anyhow::Error> {
        let write = |(file, make): (ReportFile, Make)| match make(result) {
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
