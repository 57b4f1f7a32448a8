//! Conditions that decide the exit status.

use std::process::ExitCode;

use superhue_measure::{Arm, Comparison, Condition, Design, Metric, Outcome, gate, power, verdict};

use crate::compare_args::GateArgs;
use crate::output::{FAILED, Failure, USAGE, note};

/// A condition of `compare` failed.
const GATE_FAILED: u8 = crate::output::GATE;

/// Reads all conditions for a comparison that is yet to run.
///
/// # Errors
/// If one is not understood, or the runs are too few for any verdict, so that the gates would mean nothing.
pub(super) fn read(args: &GateArgs, design: &Design) -> Result<Vec<Condition>, Failure> {
    let settings = design.settings();
    let conditions = understood(args, design.arms(), design.metrics(), settings.reference)?;
    let needed = gate::needed(&conditions);
    if !conditions.is_empty() && settings.runs < needed {
        let asked: usize = conditions.iter().map(Condition::questions).sum();
        return Err(Failure::new(
            USAGE,
            format!(
                "{} runs of each arm cannot show any condition to hold: {asked} of them, for all arms and values, \
                 take {needed} at least (-n {needed})",
                settings.runs
            ),
        ));
    }
    Ok(conditions)
}

/// Reads all conditions for an existing result.
///
/// # Errors
/// If one is not understood.
pub(super) fn read_for(args: &GateArgs, result: &Comparison) -> Result<Vec<Condition>, Failure> {
    let reference = result.settings.reference;
    understood(args, &result.arms, &result.metrics, reference)
}

fn understood(
    args: &GateArgs,
    arms: &[Arm],
    metrics: &[Metric],
    reference: usize,
) -> Result<Vec<Condition>, Failure> {
    let conditions = args.all().map(|(demand, text)| {
        Condition::parse(text, demand, arms, metrics, reference)
            .map_err(|error| Failure::new(USAGE, format!("{} {error}", demand.option())))
    });
    conditions.collect()
}

/// Spreads between runs for which `compare` prints the smallest difference before the first run: that of a quiet machine and that of a shared one.
const SPREADS: [f64; 2] = [0.02, 0.05];

/// Prints the smallest difference that the runs show in four of five cases, before the first run.
pub(super) fn say_what_is_shown(design: &Design, conditions: &[Condition]) {
    let runs = design.settings().runs;
    let settings = design.settings();
    let (what, least_that_counts, questions) = match conditions.is_empty() {
        // A smaller one is not called a difference, however sure it is.
        true => ("differs by at least", settings.smallest, design.questions()),
        false => (
            "lies beyond the threshold of a condition by at least",
            0.0,
            gate::questions(conditions),
        ),
    };
    let Some(deviations) = power::detectable(runs, questions) else {
        return;
    };
    let [quiet, shared] = SPREADS.map(|spread| {
        let least = ((deviations * spread).exp() - 1.0).max(least_that_counts) * 100.0;
        let digits = usize::from(least < 10.0);
        format!(
            "{least:.digits$} % where runs vary by {:.0} %",
            spread * 100.0
        )
    });
    note(&format!(
        "{runs} runs of each arm show in 4 of 5 cases, or more, a figure that {what} {quiet}, or {shared} (standard deviation)"
    ));
}

/// Prints a warning before the first run, if the runs are too few for verdicts.
pub(super) fn warn_of_few_runs(design: &Design) {
    let (runs, questions) = (design.settings().runs, design.questions());
    let answered = verdict::questions_answered(runs);
    let (one, all) = (verdict::runs_needed(1), verdict::runs_needed(questions));
    if answered == 0 {
        note(&format!(
            "{runs} runs of each arm cannot show any difference, however large: it takes {one} for a single figure, \
             and {all} if all {questions} are to have a verdict (-n {all})"
        ));
    } else if answered < questions {
        note(&format!(
            "{runs} runs of each arm are too few for any verdict if more than {answered} of the {questions} figures to \
             compare vary; {all} are enough for all of them (-n {all})"
        ));
    }
}

/// Prints the gates that failed or could not be judged; returns the resulting exit status, 0 if none did.
pub(super) fn conclude(result: &Comparison) -> ExitCode {
    let mut status = 0;
    for gate in &result.gates {
        let option = gate.demand.option();
        let condition = &gate.condition;
        match (gate.outcome, &gate.why_not_judged) {
            (Outcome::Passed, _) => {}
            (Outcome::Failed, _) => {
                status = GATE_FAILED;
                note(&format!("{option} '{condition}' failed"));
            }
            (Outcome::NotJudged, why) => {
                status = status.max(FAILED);
                let why = why.as_deref().unwrap_or("no reason given");
                note(&format!(
                    "{option} '{condition}' could not be judged: {why}"
                ));
            }
        }
    }
    ExitCode::from(status)
}
