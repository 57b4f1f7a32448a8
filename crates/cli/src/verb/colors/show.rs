//! Destinations of the result: standard output, a report, pictures.

use std::path::Path;
use std::process::ExitCode;

use superhue_plot::{Latency, latency_svg};

use super::document::Document;
use super::table;
use crate::args::ColorsArgs;
use crate::output::{FAILED, Failure, VerbResult, print, print_as_it_is, print_json};
use crate::verb::document::read_document;
use crate::verb::outputs::{Outputs, both, write_if_given};

/// Largest document that is read.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Writes the requested files, and prints.
pub(super) fn write(args: &ColorsArgs, outputs: Outputs, document: &Document) -> VerbResult {
    // Writes the files first: they are kept even if standard output is closed.
    let report = write_if_given(outputs.report, document);
    let drawn = match &document.verification {
        Some(latency) => outputs.pictures.draw(|| latency_svg(latency)),
        None => {
            outputs.pictures.abandon();
            Ok(())
        }
    };
    let written = both(report, drawn);
    let code = match args.json {
        true => print_json(document)?,
        false => print_as_it_is(&table::text(document, args.width.wide))?,
    };
    written.map(|()| code)
}

/// Shows a kept verification, and draws it again.
pub(super) fn again(args: &ColorsArgs, path: &Path) -> VerbResult {
    let latency = read(path)
        .map_err(|error| Failure::new(FAILED, format!("cannot use {}: {error}", path.display())))?;
    let outputs = Outputs::open(args.report.as_ref(), &args.plots)?;
    let drawn = !outputs.pictures.is_empty();
    outputs.pictures.draw(|| latency_svg(&latency))?;
    match (args.json, drawn) {
        (true, _) => print_json(&latency),
        (false, false) => print(&table::verification(&latency)),
        (false, true) => Ok(ExitCode::SUCCESS),
    }
}

fn read(path: &Path) -> Result<Latency, String> {
    let text = read_document(path, MAX_DOCUMENT_BYTES).map_err(|error| format!("{error:#}"))?;
    Latency::from_json(&text)
}
