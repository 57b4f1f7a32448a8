//! `superhue heat`.
//!
//! ```text
//!   PID ──> watch ──> document ──┬──> table, JSON, --report
//!             |                  └──> pictures
//!   --from FILE ─────────^
//!             └──> follow (the terminal)
//! ```

mod document;
mod follow;
mod record;
mod show;
mod table;
mod watch;

use std::path::Path;

use anyhow::Context;
use superhue_plot::Heat;

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, VerbResult};
use crate::verb::document::read_document;

use super::outputs::Outputs;
use watch::Watching;

/// Largest document that is read: far more than superhue writes of a process of a TiB.
const LARGEST: u64 = 4 << 30;

/// Shows which memory of a process is accessed.
pub fn heat(args: &HeatArgs) -> VerbResult {
    if args.follow {
        follow::check_terminal()?;
    }
    // Before anything else, so that a wrong path is told at once.
    let outputs = Outputs::open(args.report.as_ref(), &args.plots)?;
    let heat = match (&args.from, args.pid) {
        (Some(path), _) => read(path).map_err(|error| Failure::new(FAILED, error)),
        (None, Some(pid)) if args.follow => watch::watch(args, pid, follow::follow),
        (None, Some(pid)) => watch::watch(args, pid, Watching::run),
        (None, None) => Err(Failure::new(
            FAILED,
            "neither a process nor a file is named",
        )),
    };
    match heat {
        Ok(heat) => show::write(args, outputs, &heat),
        Err(failure) => {
            outputs.abandon();
            Err(failure)
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Heat> {
    let what = || format!("cannot use {}", path.display());
    let text = read_document(path, LARGEST).with_context(what)?;
    Heat::from_json(&text).with_context(what)
}
