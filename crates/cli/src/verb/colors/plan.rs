//! `superhue colors --plan`: colors for tasks that must not evict each other.
//!
//! ```text
//!   file ──> Problem ─┐
//!   --of, or the      ├──> superhue_color::plan ──> Document ──> table, commands and rules; JSON
//!   trusted oracle ───┘
//! ```

mod document;
mod file;
mod measured;
mod text;

use std::path::Path;
use std::process::ExitCode;

use superhue::ColorPlacement;
use superhue::page_colors::oracles::OracleKind;
use superhue::page_colors::plan::{PlanError, plan};
use superhue::procfs::Roots;
use superhue::procfs::hardware::{CpuList, Cpuid, Hardware};

use self::document::Document;
use self::file::PlanFile;
use crate::args::ColorsArgs;
use crate::output::{Failure, UNABLE, USAGE, VerbResult, note, print_as_it_is, print_json};
use crate::verb::outputs::{Outputs, write_if_given};

/// Reads a plan's file, chooses colors for its tasks, and prints them.
pub(super) fn show(args: &ColorsArgs, path: &Path) -> VerbResult {
    let mut file = PlanFile::read(path, online(args).as_ref())?;
    let outputs = Outputs::open(args.report.as_ref(), &[])?;
    let found = match args.of {
        Some(colors) => Ok((colors as usize, None)),
        None => here(args).map(|(colors, oracle)| (colors, Some(oracle))),
    };
    let (colors, oracle) = match found {
        Ok(found) => found,
        Err(failure) => {
            outputs.abandon();
            return Err(failure);
        }
    };
    file.problem.colors = colors;
    if oracle == Some(OracleKind::Kernel.name())
        && document::placement(&file.starts, oracle) == Some(ColorPlacement::Recolor)
    {
        note(
            "services are recolored, and their colors are those of `superhue colors --oracle measured`: compare its number of colors with the kernel's, or \
             give it with --of",
        );
    }
    let result = plan(&file.problem);
    if let Err(PlanError::Problem(error)) = &result {
        outputs.abandon();
        return Err(Failure::new(USAGE, format!("{}: {error}", path.display())));
    }
    let document = Document::new(&file.problem, &file.starts, oracle, &result);
    let written = write_if_given(outputs.report, &document);
    let code = match args.json {
        true => print_json(&document)?,
        false => print_as_it_is(&text::text(&document, args.width.wide))?,
    };
    written?;
    verdict(path, &document, code)
}

/// Returns a failure after the output if the tasks do not fit.
fn verdict(path: &Path, document: &Document, code: ExitCode) -> VerbResult {
    match &document.refusal {
        None => Ok(code),
        Some(refusal) => {
            let text = format!(
                "the tasks of {} do not fit: {}",
                path.display(),
                refusal.reason
            );
            Err(Failure::new(UNABLE, text))
        }
    }
}

/// The CPUs that there are; `None` if the plan is for another machine, or they are not known.
fn online(args: &ColorsArgs) -> Option<CpuList> {
    if args.of.is_some() {
        return None;
    }
    let hardware = Hardware::read(&Roots::default(), &Cpuid::native());
    hardware.cpu.ok().map(|cpu| cpu.online)
}

/// The number of colors of this machine's cache, by the first oracle that can be trusted, and that oracle's name.
fn here(args: &ColorsArgs) -> Result<(usize, &'static str), Failure> {
    let index = (args.index.as_deref()).map(super::read_index).transpose()?;
    let document = super::survey(args, index)?;
    super::verdict(args, &document, ExitCode::SUCCESS)?;
    let used = (document.oracles.iter()).find(|oracle| Some(oracle.name) == document.used);
    let found = used.and_then(|oracle| Some((oracle.colors?, oracle.name)));
    found.ok_or_else(|| {
        let text = "the number of colors of this machine is not known: give it with --of";
        Failure::new(UNABLE, text)
    })
}
