//! Destinations of the result: standard output, a report, pictures.

use superhue_plot::{Heat, to_svg};

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, VerbResult, print, print_document};
use crate::verb::outputs::Outputs;

use super::table;

/// Writes the requested files, and prints.
pub(super) fn write(args: &HeatArgs, outputs: Outputs, heat: &Heat) -> VerbResult {
    let fail = |error: anyhow::Error| Failure::new(FAILED, error);
    // True if the table is not wanted.
    let quiet = !args.json && (args.from.is_some() && !args.plots.is_empty() || args.follow);
    // Writes the files first: they are kept even if standard output is closed.
    let needs_json = args.json || outputs.report.is_some();
    let json = needs_json.then(|| heat.to_json()).transpose();
    let json = json.map_err(|error| fail(error.into()))?;
    if let (Some(file), Some(json)) = (outputs.report, &json) {
        file.write_text(json).map_err(fail)?;
    }
    outputs.pictures.draw(|| to_svg(heat))?;
    match json.filter(|_| args.json) {
        Some(json) => print_document(&(json + "\n")),
        None if quiet => Ok(std::process::ExitCode::SUCCESS),
        None if args.list_pages => print(&table::by_page(heat)),
        None => print(&table::by_mapping(heat)),
    }
}
