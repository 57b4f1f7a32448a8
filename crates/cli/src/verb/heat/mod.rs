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
use superhue::procfs::Roots;
use superhue::sys::process::SignalSet;
use superhue_plot::Heat;

use crate::args::HeatArgs;
use crate::output::{FAILED, Failure, VerbResult};
use crate::terminal::{ENDING, Ending};
use crate::verb::document::read_document;

use super::members;
use super::outputs::Outputs;

/// Largest document that is read: far more than superhue writes for a process of a TiB.
const MAX_DOCUMENT_BYTES: u64 = 4 << 30;

/// Shows which memory of a process is accessed.
pub fn heat(args: &HeatArgs) -> VerbResult {
    if args.from.is_none() && args.targets.is_empty() {
        return Err(members::nothing_named());
    }
    if args.follow {
        follow::check_terminal()?;
    }
    // Comes first, so that a wrong path is reported at once.
    let outputs = Outputs::open(args.report.as_ref(), &args.plots)?;
    let (heat, hung_up) = seen(args);
    let written = match heat {
        Ok(heat) => show::write(args, outputs, &heat),
        Err(failure) => {
            outputs.abandon();
            Err(failure)
        }
    };
    // The files are written, and the terminal has no reader any more.
    hung_up.map_or(written, |ending| Ok(ending.status().into()))
}

/// Returns the samples, and the kind of hangup, if the terminal hung up.
fn seen(args: &HeatArgs) -> (Result<Heat, Failure>, Option<Ending>) {
    if let Some(path) = &args.from {
        let kept = read(path).map_err(|error| Failure::new(FAILED, error));
        return (kept, None);
    }
    let signals = SignalSet::of(&ENDING);
    let before = signals.block();
    let pid = members::one(&Roots::default(), &args.targets);
    let seen = match pid.and_then(|pid| watch::watch(args, pid)) {
        Ok(watching) if args.follow => follow::follow(watching),
        Ok(watching) => (watching.run(&signals), None),
        Err(failure) => (Err(failure), None),
    };
    before.apply();
    seen
}

fn read(path: &Path) -> anyhow::Result<Heat> {
    let what = || format!("cannot use {}", path.display());
    let text = read_document(path, MAX_DOCUMENT_BYTES).with_context(what)?;
    Heat::from_json(&text).with_context(what)
}
