//! Where the result goes: standard output, a report, pictures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use superhue_picture::{Latency, latency_svg, to_png};

use super::document::Document;
use super::table;
use crate::args::ColorsArgs;
use crate::output::{FAILED, Failure, VerbResult, print, print_json};
use crate::verb::report_file::ReportFile;

/// Largest document that is read again.
const LARGEST: u64 = 64 << 20;

/// Files to write, opened before anything is measured, so that a wrong path is told at once.
pub(super) struct Outputs {
    report: Option<ReportFile>,
    plots: Vec<(PathBuf, ReportFile)>,
    json: bool,
}

impl Outputs {
    pub(super) fn open(args: &ColorsArgs) -> Result<Self, Failure> {
        let mut outputs = Self {
            report: None,
            plots: Vec::new(),
            json: args.json,
        };
        match outputs.open_files(args) {
            Ok(()) => Ok(outputs),
            Err(error) => {
                outputs.abandon();
                Err(Failure::new(FAILED, error))
            }
        }
    }

    fn open_files(&mut self, args: &ColorsArgs) -> anyhow::Result<()> {
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

    pub(super) fn write(mut self, document: &Document) -> VerbResult {
        let fail = |error: anyhow::Error| Failure::new(FAILED, error);
        // The files first: they are kept even if nobody reads standard output any more.
        if let Some(file) = self.report.take() {
            file.write_json(document).map_err(fail)?;
        }
        match &document.verification {
            Some(latency) => draw(std::mem::take(&mut self.plots), latency)?,
            None => std::mem::take(&mut self.plots)
                .into_iter()
                .for_each(|(_, file)| file.abandon()),
        }
        if self.json {
            print_json(document)
        } else {
            print(&table::text(document))
        }
    }
}

fn draw(plots: Vec<(PathBuf, ReportFile)>, latency: &Latency) -> Result<(), Failure> {
    if plots.is_empty() {
        return Ok(());
    }
    let svg = latency_svg(latency);
    for (path, file) in plots {
        let is_png = path.extension().is_some_and(|extension| extension == "png");
        let written = if is_png {
            let png = to_png(&svg).map_err(anyhow::Error::from);
            png.and_then(|png| file.write_bytes(&png))
        } else {
            file.write_bytes(svg.as_bytes())
        };
        written.map_err(|error| Failure::new(FAILED, error))?;
    }
    Ok(())
}

/// Shows and draws a kept verification again.
pub(super) fn again(args: &ColorsArgs, path: &Path) -> VerbResult {
    let latency = read(path)
        .map_err(|error| Failure::new(FAILED, format!("cannot use {}: {error}", path.display())))?;
    let outputs = Outputs::open(args)?;
    let drawn = !outputs.plots.is_empty();
    draw(outputs.plots, &latency)?;
    match (args.json, drawn) {
        (true, _) => print_json(&latency),
        (false, false) => print(&table::verification(&latency)),
        (false, true) => Ok(ExitCode::SUCCESS),
    }
}

fn read(path: &Path) -> Result<Latency, String> {
    use std::io::Read;
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = String::new();
    file.take(LARGEST)
        .read_to_string(&mut text)
        .map_err(|error| error.to_string())?;
    Latency::from_json(&text)
}
