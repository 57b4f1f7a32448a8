//! One run of a plain command.

use std::io;

use superhue_compare::{RunnerError, Sample};

use super::capture::Capture;
use super::{Experiment, complaint, good, sample_of, wait_for_end};

pub(crate) fn run(experiment: &Experiment, arm: usize) -> Result<Sample, RunnerError> {
    let trouble = |error: io::Error| RunnerError::failed(format!("its output is lost: {error}"));
    let output = Capture::new().map_err(trouble)?;
    let mut session = experiment.start(arm, &output)?;
    let interrupted = wait_for_end(&mut session);
    let report = session.finish();
    if interrupted {
        return Err(RunnerError::Interrupted);
    }
    let text = output.text().map_err(trouble)?;
    experiment.show(&text);
    let mut sample = sample_of(&report);
    let wrong = experiment.read_metrics(&text, &mut sample);
    match complaint(report.ending) {
        Some(reason) if !experiment.ignore_failure => {
            let last = text.lines().last().unwrap_or("(nothing)");
            let reason = format!("{reason}; last line of output: {last}");
            Err(RunnerError::Failed { reason, sample })
        }
        _ => good(sample, wrong),
    }
}

impl Experiment {
    /// Passes output on, if that was asked for.
    pub(super) fn show(&self, text: &str) {
        if self.show_output {
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        }
    }
}
