//! Destinations of the result: standard output, a report, pictures.

use std::process::ExitCode;

use superhue_plot::{Heat, to_svg};

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, VerbResult, print_as_it_is, print_document, room};
use crate::verb::outputs::{Outputs, both};

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
    let report = match (outputs.report, &json) {
        (Some(file), Some(json)) => file.write_text(json).map_err(fail),
        _ => Ok(()),
    };
    // A full disk may have room for a picture, if not for the report.
    let drawn = outputs.pictures.draw(|| to_svg(heat));
    let written = both(report, drawn);
    let code = match json.filter(|_| args.json) {
        Some(json) => print_document(&(json + "\n")),
        None if quiet => Ok(ExitCode::SUCCESS),
        None if args.list_pages => print_as_it_is(&table::by_page(heat, room())),
        None => print_as_it_is(&table::by_mapping(heat, room(), args.width.wide)),
    }?;
    written.map(|()| code)
}
