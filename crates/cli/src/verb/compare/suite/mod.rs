//! `superhue compare --suite`: many programs, round by round.
//!
//! ```text
//!   file ──> arms that this machine can run (each is tried) ──> programs that are there
//!                                                                  │
//!   report kept before ──> is it of the same suite and machine? ───┤
//!                                                                  v
//!       ┌── next program: setup (once), a round: every arm once ──> report written ──┐
//!       └────────────── until all have enough, the time expires, or Ctrl-C ──────────┘
//! ```

mod machine;
mod report;
mod session;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Context as _;
use report::Report;
use session::{Session, State, with_remedy};
use superhue::InheritedState;
use superhue::experiment::{Experiment, machine_facts};
use superhue::procfs::Roots;
use superhue_compare::SuiteView;
use superhue_measure::{Arm, Comparison, RunnerError, Schedule, Suite, SuiteArm, SuiteProgram};

use super::files::Files;
use super::powerless::Powerless;
use super::suite_file::SuiteFile;
use super::{cannot_show, cut_short};
use crate::args::CompareArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult, note, print, print_document, room};
use crate::undo::recover;
use crate::verb::outputs::first_of;

/// Reasons why a session ends before all is done.
const INTERRUPTED: &str = "interrupted";
const TIME_IS_UP: &str = "the time is up";
const UNWRITABLE: &str = "the report cannot be written";

/// Measures the missing rounds.
pub(super) fn measure(args: &CompareArgs, path: &Path, preserved: InheritedState) -> VerbResult {
    let file = SuiteFile::read(args, path)?;
    let report = args.report.as_deref().map(Report::open).transpose()?;
    let kept = report.as_ref().and_then(|report| report.kept.clone());
    let files = Files::of_suite(args)?;
    recover(false);
    let mut experiment = Experiment::new(Vec::new(), Vec::new(), preserved);
    experiment.timeout = file.timeout;
    experiment.show_output = args.show_output;
    let begun = begin(&file, kept, &mut experiment);
    let mut session = match begun {
        Ok(session) => session,
        Err(failure) => {
            files.abandon();
            return Err(failure);
        }
    };
    let deadline = args.suite.time.map(|time| Instant::now() + time);
    let done = session.go(&mut experiment, deadline, report.as_ref());
    // From here on signals end this process again.
    drop(experiment);
    let given_up = session.given_up.join(", ");
    let suite = session.suite;
    let saved = done.and_then(|()| report.as_ref().map_or(Ok(()), |report| report.save(&suite)));
    let told = publish(args, &suite, files);
    if let Some(why) = &suite.unfinished {
        let hint = if args.report.is_some() {
            "; run the same command again to continue"
        } else {
            " (with --report, the same command would continue from here)"
        };
        note(&format!("not finished: {why}{hint}"));
    }
    saved.map_err(|error| Failure::new(FAILED, error))?;
    let is_interrupted = is_interrupted(&suite);
    let status = told.map(|status| cut_short(status, is_interrupted))?;
    if given_up.is_empty() || is_interrupted {
        return Ok(status);
    }
    let text = format!("gave up on {given_up}; see the reasons above");
    Err(Failure::new(FAILED, text))
}

/// Returns true if a signal cut the suite short.
fn is_interrupted(suite: &Suite) -> bool {
    (suite.unfinished.as_deref()).is_some_and(|why| why.starts_with(INTERRUPTED))
}

/// Shows an earlier result.
pub(super) fn show(args: &CompareArgs, path: &Path, text: &str) -> VerbResult {
    if args.gates.all().next().is_some() {
        let text = format!(
            "{} is the result of a suite: there is no --fail-if and --fail-unless for many programs",
            path.display()
        );
        return Err(Failure::new(USAGE, text));
    }
    let suite = Suite::from_json(text);
    let suite = suite.map_err(|error| cannot_show(path, anyhow::Error::msg(error.to_string())))?;
    publish(args, &suite, Files::of_suite(args)?)
}

/// Prints the table, and writes the files made from it.
fn publish(args: &CompareArgs, suite: &Suite, files: Files<Suite>) -> VerbResult {
    let trouble = files.write(suite);
    if args.json {
        // The table has these reasons itself.
        SuiteView(suite)
            .powerless()
            .iter()
            .for_each(|why| note(why));
        let text = suite.to_json().context("cannot write the result as JSON");
        print_document(&text.map_err(|error| Failure::new(FAILED, error))?)?;
    } else {
        print(&SuiteView(suite).table(room()))?;
    }
    first_of(trouble)?;
    if suite.programs.iter().all(|program| program.rows.is_empty()) {
        let code = if is_interrupted(suite) {
            crate::output::INTERRUPTED
        } else {
            FAILED
        };
        return Err(Failure::new(
            code,
            "nothing was measured: the reasons stand above",
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Prepares a session, from the kept report if there is one. The only runs are one trial of each arm.
fn begin<'a>(
    file: &'a SuiteFile,
    kept: Option<Suite>,
    experiment: &mut Experiment,
) -> Result<Session<'a>, Failure> {
    let mut arms = Vec::new();
    let mut configs = Vec::new();
    let mut told = Vec::new();
    experiment.arms = file.arms.iter().map(|plan| plan.config.clone()).collect();
    for (index, plan) in file.arms.iter().enumerate() {
        let skipped = match experiment.try_arm(index) {
            Ok(()) => {
                arms.push(plan.arm.clone());
                configs.push(plan.config.clone());
                None
            }
            Err(RunnerError::Interrupted) => {
                return Err(Failure::new(crate::output::INTERRUPTED, INTERRUPTED));
            }
            Err(RunnerError::Abort(reason) | RunnerError::Failed { reason, .. }) => {
                Some(with_remedy(&reason, plan.install.as_deref()))
            }
        };
        if let Some(why) = &skipped {
            note(&format!("arm `{}` left out: {why}", plan.arm.name));
        }
        told.push(SuiteArm {
            name: plan.arm.name.clone(),
            options: plan.arm.options.clone(),
            skipped,
            obstacle: None,
        });
    }
    let reference = told.first().and_then(|arm| arm.skipped.as_ref());
    let others = (told.iter().skip(1)).find_map(|arm| arm.skipped.as_ref());
    let problem = match (reference, others) {
        (Some(why), _) => Some(format!(
            "the first arm, which the others are compared with, cannot be run here: {why}"
        )),
        (None, Some(why)) if arms.len() < 2 => {
            Some(format!("no arm but the first can be run here: {why}"))
        }
        _ => None,
    };
    if let Some(text) = problem {
        return Err(Failure::new(FAILED, text));
    }
    let powerless = Powerless::among(&arms, &configs);
    powerless.warn();
    for arm in told.iter_mut().filter(|arm| arm.skipped.is_none()) {
        arm.obstacle = Some(powerless.reason(&arm.name));
    }
    experiment.arms = configs;
    let machine = machine_facts(&Roots::default());
    let mut suite = Suite::new(&file.title, file.settings.smallest, told);
    let arms_before = kept
        .as_ref()
        .map_or_else(Vec::new, |kept| kept.arms.clone());
    let states = take_over(file, kept, &arms, &mut suite)?;
    let mut session = Session {
        file,
        suite,
        arms,
        machine,
        states,
        given_up: Vec::new(),
    };
    session.keep_obstacles(&arms_before)?;
    session.stay_on_one_machine()?;
    Ok(session)
}

/// Returns the failure that explains why the kept report is not continued.
fn refuse<T>(text: &str, instead: &str) -> Result<T, Failure> {
    Err(Failure::new(
        USAGE,
        format!("the report kept before {text}: {instead}, or write to another file with --report"),
    ))
}

/// Copies the earlier measurements into `suite`, if they are of the same programs and arms.
fn take_over(
    file: &SuiteFile,
    kept: Option<Suite>,
    arms: &[Arm],
    suite: &mut Suite,
) -> Result<Vec<State>, Failure> {
    let refuse = |text: String| refuse(&text, "change it back");
    let mut before = kept.map_or_else(Vec::new, |kept| kept.programs);
    let is_lost = |known: &&SuiteProgram| {
        known.comparison.is_some() && file.programs.iter().all(|plan| plan.name != known.name)
    };
    if let Some(lost) = before.iter().find(is_lost) {
        return refuse(format!("holds `{}`, which the suite lacks", lost.name));
    }
    let mut states = Vec::new();
    for plan in &file.programs {
        let place = before.iter().position(|known| known.name == plan.name);
        let known = place.map(|place| before.swap_remove(place));
        let mut program = SuiteProgram::new(&plan.name, &plan.kind, plan.plan.clone());
        let mut state = State::default();
        if let Some(known) = known {
            if let Some(comparison) = known.comparison {
                let name = &plan.name;
                if !plan.plan.has_commands_of(&known.plan) {
                    return refuse(format!("is of `{name}` with another command or metric"));
                }
                if !plan.plan.has_settings_of(&known.plan) {
                    return refuse(format!(
                        "is of `{name}` with another timeout, ready, patience or ignore-failure"
                    ));
                }
                // The settings of the earlier runs may be unknown.
                program.plan.settings = known.plan.settings;
                let schedule = Schedule::new(
                    arms.len(),
                    rounds_of(&comparison, file),
                    file.settings.warmup,
                    file.settings.seed,
                );
                state.execution.records = comparison.samples.clone();
                if comparison.arms != arms {
                    let names: Vec<&str> = comparison.arms.iter().map(|arm| &*arm.name).collect();
                    return refuse(format!(
                        "is of `{name}` under other arms ({})",
                        names.join(", ")
                    ));
                }
                if !state.execution.follows(&schedule) {
                    return refuse(format!("is of `{name}` with another warm-up or seed"));
                }
                state.started = comparison.started;
                state.machine = Some(comparison.machine.clone());
                program.take(comparison, file.settings.smallest);
            } else if !plan.is_chosen {
                program.skipped = known.skipped;
            }
        }
        state.is_over = !plan.is_chosen;
        suite.programs.push(program);
        states.push(state);
    }
    Ok(states)
}

/// The most rounds of which a kept comparison may have runs.
fn rounds_of(comparison: &Comparison, file: &SuiteFile) -> usize {
    file.runs.1.max(comparison.samples.len())
}
