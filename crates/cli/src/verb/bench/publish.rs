//! Destinations of results: standard output, and a folder with one document and one picture for each workload.

use std::fs;
use std::path::Path;

use anyhow::Context as _;
use superhue_bench::document::Document;
use superhue_bench::{plot, table};

use super::DONE;
use crate::output::{FAILED, Failure, VerbResult, print, print_document};
use crate::verb::report_file::ReportFile;

/// Prefix of file names, before the name of the workload.
const PREFIX: &str = "colors-";

fn failed(error: anyhow::Error) -> Failure {
    Failure::new(FAILED, error)
}

/// Makes the folder.
pub(super) fn prepare(folder: Option<&Path>) -> Result<(), Failure> {
    let Some(folder) = folder else { return Ok(()) };
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))
        .map_err(failed)
}

/// Prints the result.
pub(super) fn result(document: &Document, json: bool) -> VerbResult {
    if json {
        let text = document
            .to_json()
            .context("cannot write the result as JSON")
            .map_err(failed)?;
        print_document(&text)
    } else {
        print(&table::text(document))
    }
}

/// Writes a document for each workload.
pub(super) fn documents(folder: Option<&Path>, document: &Document) -> VerbResult {
    let Some(folder) = folder else {
        return Ok(DONE);
    };
    let mut parts: Vec<(String, Document)> = Vec::new();
    let without = || Document {
        sweeps: Vec::new(),
        isolation: None,
        ..document.clone()
    };
    for sweep in &document.sweeps {
        let part = Document {
            sweeps: vec![sweep.clone()],
            ..without()
        };
        parts.push((sweep.workload.clone(), part));
    }
    if document.isolation.is_some() {
        let part = Document {
            isolation: document.isolation.clone(),
            ..without()
        };
        parts.push(("isolation".to_owned(), part));
    }
    for (name, part) in parts {
        let text = part
            .to_json()
            .context("cannot write the result as JSON")
            .map_err(failed)?;
        write(folder, &name, "json", &text)?;
    }
    Ok(DONE)
}

/// Draws a picture for each workload.
pub(super) fn drawings(folder: Option<&Path>, document: &Document) -> VerbResult {
    let Some(folder) = folder else {
        return Ok(DONE);
    };
    prepare(Some(folder))?;
    for sweep in &document.sweeps {
        let svg = plot::sweep(document, sweep);
        write(folder, &sweep.workload, "svg", &svg)?;
    }
    if let Some(isolation) = &document.isolation {
        let svg = plot::isolation(document, isolation);
        write(folder, "isolation", "svg", &svg)?;
    }
    Ok(DONE)
}

fn write(folder: &Path, name: &str, ending: &str, text: &str) -> Result<(), Failure> {
    // The name may come from a foreign document.
    let safe = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let name: &str = if safe { name } else { "unnamed" };
    let path = folder.join(format!("{PREFIX}{name}.{ending}"));
    let file = ReportFile::open(&path).map_err(failed)?;
    file.write_bytes(text.as_bytes()).map_err(failed)
}
