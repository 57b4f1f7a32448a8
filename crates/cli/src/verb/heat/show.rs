//! Where the result goes: standard output, a report, pictures.

use std::path::PathBuf;

use superhue_picture::{Heat, to_png, to_svg};

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, VerbResult, print};
use crate::verb::report_file::ReportFile;

use super::table;

/// Files to write, opened before anything is watched.
pub(super) struct Outputs {
    report: Option<ReportFile>,
    plots: Vec<(PathBuf, ReportFile)>,
    json: bool,
    /// Whether the table is not asked for.
    quiet: bool,
}

impl Outputs {
    pub(super) fn open(args: &HeatArgs) -> Result<Self, Failure> {
        let mut outputs = Self {
            report: None,
            plots: Vec::new(),
            json: args.json,
            quiet: !args.json && (args.from.is_some() && !args.plots.is_empty() || args.follow),
        };
        match outputs.open_files(args) {
            Ok(()) => Ok(outputs),
            Err(error) => {
                outputs.abandon();
                Err(Failure::new(FAILED, error))
            }
        }
    }

    fn open_files(&mut self, args: &HeatArgs) -> anyhow::Result<()> {
        self.report = ReportFile::open_if(args.report.as_ref())?;
        for path in &args.plots {
            self.plots.push((path.clone(), ReportFile::open(path)?));
        }
        Ok(())
    }

    /// Leaves the files as they were.
    pub(super) fn abandon(self) {
        let plots = self.plots.into_iter().map(|(_, file)| file);
        plots.chain(self.report).for_each(ReportFile::abandon);
    }

    pub(super) fn write(self, heat: &Heat) -> VerbResult {
        let fail = |error: anyhow::Error| Failure::new(FAILED, error);
        // The files first: they are kept even if nobody reads standard output any more.
        let needs_json = self.json || self.report.is_some();
        let json = needs_json.then(|| heat.to_json()).transpose();
        let json = json.map_err(|error| fail(error.into()))?;
        if let (Some(file), Some(json)) = (self.report, &json) {
            file.write_text(json).map_err(fail)?;
        }
        if !self.plots.is_empty() {
            let svg = to_svg(heat);
            for (path, file) in self.plots {
                let is_png = path.extension().is_some_and(|extension| extension == "png");
                let written = if is_png {
                    to_png(&svg)
                        .map_err(anyhow::Error::from)
                        .and_then(|png| file.write_bytes(&png))
                } else {
                    file.write_bytes(svg.as_bytes())
                };
                written.map_err(fail)?;
            }
        }
        match json.filter(|_| self.json) {
            Some(json) => print(&(json + "\n")),
            None if self.quiet => Ok(std::process::ExitCode::SUCCESS),
            None => print(&table::text(heat)),
        }
    }
}
