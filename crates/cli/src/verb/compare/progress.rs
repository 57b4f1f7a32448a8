//! Progress on a terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue_measure::{Arm, Progress};

use crate::output::note;

/// A bar that advances with each run; failed runs are printed above it.
#[derive(Debug)]
pub(super) struct RunProgress {
    bar: ProgressBar,
    /// Program of the runs, if there are several programs.
    program: Option<String>,
    names: Vec<String>,
}

/// Columns of a terminal below which the bar is short.
const NARROW: u16 = 80;

/// Returns the form of the line. The message takes the room that is left, and is cut there.
const fn template(columns: u16) -> &'static str {
    if columns < NARROW {
        "{bar:10} {pos}/{len} {eta} left {wide_msg}"
    } else {
        "{bar:30} {pos}/{len} (about {eta} left) {wide_msg}"
    }
}

impl RunProgress {
    /// A bar for `runs` runs.
    pub(super) fn new(runs: usize) -> Self {
        let bar = ProgressBar::with_draw_target(
            Some(runs as u64),
            // Draws nothing if standard error is no terminal.
            ProgressDrawTarget::stderr(),
        );
        let columns = rustix::termios::tcgetwinsize(std::io::stderr());
        let columns = columns.map_or(NARROW, |size| size.ws_col);
        if let Ok(style) = ProgressStyle::with_template(template(columns)) {
            bar.set_style(style);
        }
        Self {
            bar,
            program: None,
            names: Vec::new(),
        }
    }

    /// Names the program and the arms of the next runs.
    pub(super) fn turn_to(&mut self, program: Option<&str>, arms: &[Arm]) {
        self.program = program.map(str::to_owned);
        self.names = arms.iter().map(Arm::title).collect();
    }

    /// Adds runs to the expected number.
    pub(super) fn add(&self, runs: usize) {
        self.bar.inc_length(runs as u64);
    }

    /// Shows the progress.
    pub(super) fn tell(&self, progress: Progress<'_>) {
        match progress {
            Progress::Starting { turn, .. } => {
                let warmup = if turn.warmup { " (warm-up)" } else { "" };
                let name = self.name(turn.arm);
                self.bar.set_message(match &self.program {
                    Some(program) => format!("{program}: {name}{warmup}"),
                    None => format!("{name}{warmup}"),
                });
            }
            Progress::Finished { record, .. } => {
                self.bar.inc(1);
                if let Some(reason) = &record.failed {
                    let name = self.name(record.arm);
                    let of = self
                        .program
                        .as_ref()
                        .map(|program| format!(" of {program}"));
                    let of = of.unwrap_or_default();
                    self.say(&format!("a run{of} of `{name}` failed: {reason}"));
                }
            }
        }
    }

    /// Prints a line above the bar.
    pub(super) fn say(&self, line: &str) {
        self.bar.suspend(|| note(line));
    }

    fn name(&self, arm: usize) -> &str {
        self.names.get(arm).map_or("", String::as_str)
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
