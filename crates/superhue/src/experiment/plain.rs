//! One run of a plain command.

use std::io;

use superhue_measure::{RunnerError, Sample};

use super::capture::Capture;
use super::{Experiment, WaitOutcome, complaint, good, sample_of, took_too_long, wait_for_end};

pub(crate) fn run(experiment: &Experiment, arm: usize) -> Result<Sample, RunnerError> {
    let trouble = |error: io::Error| RunnerError::failed(format!("its output is lost: {error}"));
    let output = Capture::new().map_err(trouble)?;
    let (mut session, group) = experiment.start(arm, &output)?;
    let waited = wait_for_end(&mut session, experiment.timeout);
    if let (Ok(group), WaitOutcome::TooLong | WaitOutcome::Interrupted) = (&group, waited) {
        group.kill();
    }
    let report = session.finish();
    if waited == WaitOutcome::Interrupted {
        return Err(RunnerError::Interrupted);
    }
    let text = output.text().map_err(trouble)?;
    experiment.show(&text);
    let mut sample = sample_of(&report, &group);
    let wrong = experiment.read_metrics(&text, &mut sample);
    let late = (experiment.timeout).filter(|_| waited == WaitOutcome::TooLong);
    let late = late.map(|timeout| took_too_long("it", timeout));
    let complaint = complaint(report.ending).filter(|_| !experiment.ignore_failure);
    match late.or(complaint) {
        Some(reason) => {
            let last = text.lines().last().unwrap_or("(nothing)");
            let reason = format!("{reason}; last line of output: {last}");
            Err(RunnerError::Failed { reason, sample })
        }
        None => good(sample, wrong),
    }
}

impl Experiment {
    /// Passes output on to standard error if `show_output` is set.
    pub(super) fn show(&self, text: &str) {
        if self.show_output {
            let _ = io::Write::write_all(&mut io::stderr(), text.as_bytes());
        }
    }
}
