//! A prediction for a program: its misses by the placement of its pages.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::sys::process::SignalSet;
use superhue_papers::document::{Document, SCHEMA};
use superhue_papers::program::{self, Emulator, EmulatorError, Plan, ProgramError, Watcher};

use super::{finish, here, keep, machine, plugin, prepare, write};
use crate::lab_args::LabArgs;
use crate::output::{FAILED, Failure, UNABLE, VerbResult};
use crate::terminal::ENDING;

/// The file of this machine, in the folder of the result.
const MACHINE: &str = "machine.toml";

/// Runs the command under the emulator.
pub(super) fn predict(args: &LabArgs) -> VerbResult {
    let emulator = Emulator::find(&plugin(args)).map_err(refused)?;
    let name = args.machine.as_deref().unwrap_or(Path::new(here::NAME));
    let chosen = machine(name)?;
    let plan = Plan {
        machine: chosen.machine,
        skip: args.skip,
        references: args.references.unwrap_or(if args.quick {
            program::FEW_REFERENCES
        } else {
            program::REFERENCES
        }),
        time: args.time,
        draws: args.draws.map_or(
            if args.quick {
                program::FEW_DRAWS
            } else {
                program::DRAWS
            },
            |draws| draws as usize,
        ),
        seed: args.seed,
    };
    prepare(args.output.as_deref())?;
    let label = label(args);
    let mut progress = Progress::start(plan.skip.saturating_add(plan.references));
    let nothing = |_: &mut Command| {};
    let point = program::predict(
        &emulator,
        &args.command,
        &label,
        &plan,
        nothing,
        &mut progress,
    );
    progress.bar.finish_and_clear();
    let point = point.map_err(|error| match error {
        ProgramError::Emulator(error) => refused(error),
        error => Failure::new(FAILED, error),
    })?;
    let document = Document {
        schema: SCHEMA.to_owned(),
        seed: args.seed,
        quick: args.quick,
        frames: Vec::new(),
        figures: vec![program::figure(&plan.machine, point, chosen.notes)],
    };
    keep(args.output.as_deref(), &document)?;
    if let (Some(folder), Some(text)) = (&args.output, &chosen.text) {
        write(folder, MACHINE, text)?;
    }
    finish(args, &document)
}

/// Returns the name of the program without its folder.
fn label(args: &LabArgs) -> String {
    let name = args.command.first().map(Path::new);
    let name = name.and_then(Path::file_name).unwrap_or_default();
    name.to_string_lossy().chars().take(40).collect()
}

fn refused(error: EmulatorError) -> Failure {
    let status = match error {
        EmulatorError::NotFound { .. } => 127,
        EmulatorError::NotExecutable { .. } => 126,
        EmulatorError::NoEmulator
        | EmulatorError::NoPlugins { .. }
        | EmulatorError::NoPlugin(_) => UNABLE,
        EmulatorError::System { .. }
        | EmulatorError::Overwritten { .. }
        | EmulatorError::NotBegun { .. } => FAILED,
    };
    Failure::new(status, error)
}

/// A bar on a terminal, and signals that are polled.
struct Progress {
    bar: ProgressBar,
    signals: SignalSet,
}

impl Progress {
    fn start(references: u64) -> Self {
        let signals = SignalSet::of(&ENDING);
        // Draws nothing if standard error is no terminal.
        let bar = ProgressBar::with_draw_target(Some(references), ProgressDrawTarget::stderr());
        let style = "{bar:30} {human_pos} of at most {human_len} references ({elapsed})";
        if let Ok(style) = ProgressStyle::with_template(style) {
            bar.set_style(style);
        }
        Self { bar, signals }
    }
}

impl Watcher for Progress {
    /// From here on signals are blocked and polled; the program keeps the caller's signal mask.
    fn begun(&mut self) {
        let _ = self.signals.block();
    }

    fn read(&mut self, references: u64) -> bool {
        self.bar.set_position(references);
        self.signals.wait(Duration::ZERO).is_some()
    }
}
