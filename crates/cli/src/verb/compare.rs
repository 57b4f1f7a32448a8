//! `superhue compare`.

mod arms;
mod files;
mod gates;
mod powerless;
mod progress;
mod suite;
mod suite_file;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use superhue::InheritedState;
use superhue::experiment::{Experiment, ServerPlan, machine_facts};
use superhue::procfs::Roots;
use superhue_compare::ComparisonView;
use superhue_measure::{Arm, Comparison, Context, Design, Settings, Suite, UserMetric, execute};

use self::arms::Arms;
use self::files::Files;
use self::powerless::Powerless;
use self::progress::RunProgress;
use crate::args::CompareArgs;
use crate::output::{
    FAILED, Failure, INTERRUPTED, USAGE, VerbResult, note, print, print_document, room,
};
use crate::undo::recover;
use crate::utc;
use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};
use crate::verb::outputs::first_of;

/// Default number of measured runs of each arm.
const RUNS: u32 = 8;

/// Width of tables without a terminal.
const WIDTH: usize = 100;

/// Form of a result on standard output.
#[derive(Debug, Clone, Copy)]
enum Form {
    Json,
    /// Tables of all metrics.
    Table,
    /// Tables of the metrics that decide.
    Brief,
}

impl Form {
    const fn full(json: bool) -> Self {
        if json { Self::Json } else { Self::Table }
    }
}

/// Runs the comparison, or shows one that was run before.
pub fn compare(args: &CompareArgs, preserved: InheritedState) -> VerbResult {
    if let Some(path) = &args.suite.suite {
        return suite::measure(args, path, preserved);
    }
    if let Some(path) = &args.from {
        let text = read(path)?;
        if Suite::is_one(&text) {
            return suite::show(args, path, &text);
        }
        let comparison = Comparison::from_json(&text);
        let mut comparison =
            comparison.map_err(|error| cannot_show(path, anyhow::Error::msg(error.to_string())))?;
        let conditions = gates::read_for(&args.gates, &comparison)?;
        if !conditions.is_empty() {
            comparison.check_conditions(&conditions);
        }
        let files = Files::of_comparison(args)?;
        // Conditions of the original run are shown, but decide nothing now.
        let is_asked = !conditions.is_empty();
        return conclude(&comparison, Form::full(args.json), files, is_asked);
    }
    // Clap does not insist on --suite where --suite and the command exclude each other.
    if !args.suite.only.is_empty() || args.suite.time.is_some() {
        let text =
            "--only and --for are about many programs: give --suite FILE instead of a command";
        return Err(Failure::new(USAGE, text));
    }
    // Reports every possible error before the first run.
    let Arms {
        arms,
        configs,
        assignments,
    } = Arms::read(args)?;
    let metrics =
        UserMetric::parse_all(&args.metrics).map_err(|error| Failure::new(USAGE, error))?;
    let mut experiment = Experiment::new(configs, args.command.clone(), preserved);
    experiment.assignments = assignments;
    experiment.metrics = metrics;
    set_up(&mut experiment, args);
    let design = design(arms, &experiment, args)?;
    let conditions = gates::read(&args.gates, &design)?;
    recover(false);
    let files = Files::of_comparison(args)?;
    gates::warn_of_few_runs(&design);
    gates::say_what_is_shown(&design, &conditions);
    let powerless = Powerless::among(design.arms(), &experiment.arms);
    powerless.warn();

    let started = now();
    let execution = measure(&design, experiment);
    let command = args.command.iter();
    let context = Context {
        command: command
            .map(|part| part.to_string_lossy().into_owned())
            .collect(),
        machine: machine_facts(&Roots::default()),
        started,
        finished: now(),
    };
    let mut comparison = Comparison::new(design, execution, context);
    comparison.check_conditions(&conditions);
    let form = match Form::full(args.json) {
        Form::Table if args.arms.is_empty() => Form::Brief,
        form => form,
    };
    let concluded = conclude(&comparison, form, files, true);
    powerless.remind();
    concluded.map(|status| cut_short(status, comparison.interrupted))
}

/// Returns the exit status of a comparison that succeeded, but was interrupted.
fn cut_short(status: ExitCode, is_interrupted: bool) -> ExitCode {
    match is_interrupted && status == ExitCode::SUCCESS {
        true => ExitCode::from(INTERRUPTED),
        false => status,
    }
}

/// Publishes the result; judges its conditions if `is_asked`.
fn conclude(
    comparison: &Comparison,
    form: Form,
    files: Files<Comparison>,
    is_asked: bool,
) -> VerbResult {
    let published = publish(comparison, form, files);
    // Without a good run there is nothing to judge, and `publish` reports the reason.
    if why_nothing(comparison).is_some() {
        return published;
    }
    let judged = if is_asked {
        gates::conclude(comparison)
    } else {
        ExitCode::SUCCESS
    };
    if judged == ExitCode::SUCCESS {
        return published;
    }
    match published {
        Ok(_) => Ok(judged),
        // A file that cannot be written does not hide a condition that failed.
        Err(failure) => Err(Failure {
            code: judged,
            ..failure
        }),
    }
}

/// Sets the properties that all runs share.
fn set_up(experiment: &mut Experiment, args: &CompareArgs) {
    let server = args.load.clone().zip(args.ready);
    experiment.server = server.map(|(load, port)| ServerPlan {
        load,
        port,
        patience: args.patience,
    });
    experiment.prepare.clone_from(&args.prepare);
    experiment.timeout = args.timeout;
    experiment.ignore_failure = args.ignore_failure;
    experiment.show_output = args.show_output;
}

/// Combines arms, metrics and settings; refuses ones that do not fit together.
fn design(arms: Vec<Arm>, experiment: &Experiment, args: &CompareArgs) -> Result<Design, Failure> {
    let own = experiment
        .metrics
        .iter()
        .map(|metric| metric.metric().clone());
    let metrics = own.chain(experiment.builtin_metrics()).collect();
    let settings = Settings {
        runs: args.runs.unwrap_or(RUNS) as usize,
        warmup: args.warmup as usize,
        seed: args.seed,
        smallest: args.smallest,
        ..Settings::default()
    };
    Design::new(arms, metrics, settings).map_err(|error| Failure::new(USAGE, error))
}

/// Runs the schedule, with progress on a terminal.
fn measure(design: &Design, mut experiment: Experiment) -> superhue_measure::Execution {
    let schedule = design.schedule();
    let mut shown = RunProgress::new(schedule.turns().len());
    shown.turn_to(None, design.arms());
    let stop = std::cell::Cell::new(false);
    let between = experiment.interrupt_check();
    execute(
        &schedule,
        &mut experiment,
        &mut |progress| shown.tell(progress),
        &|| {
            stop.set(stop.get() || between());
            stop.get()
        },
    )
}

/// Prints and writes the result.
fn publish(comparison: &Comparison, form: Form, files: Files<Comparison>) -> VerbResult {
    if let Some(reason) = why_nothing(comparison) {
        files.abandon();
        // A condition that was not judged is a failure, as after an interruption later.
        let code = match comparison.interrupted && comparison.gates.is_empty() {
            true => INTERRUPTED,
            false => FAILED,
        };
        return Err(Failure::new(
            code,
            format!("nothing was measured: {reason}"),
        ));
    }
    // Writes and prints everything that it can, whichever part fails.
    let trouble = files.write(comparison);
    let width = room().unwrap_or(WIDTH);
    match form {
        Form::Json => {
            let text = comparison
                .to_json()
                .context("cannot write the result as JSON");
            print_document(&text.map_err(|error| Failure::new(FAILED, error))?)?;
        }
        Form::Table => {
            print(&ComparisonView(comparison).table(width))?;
        }
        Form::Brief => {
            print(&ComparisonView(comparison).brief(width))?;
        }
    }
    if comparison.interrupted {
        note("interrupted: the result is of the runs that were done");
    }
    if let Some(reason) = &comparison.aborted {
        note(&format!("given up: {reason}"));
    }
    first_of(trouble)?;
    Ok(match &comparison.aborted {
        Some(_) => ExitCode::from(FAILED),
        None => ExitCode::SUCCESS,
    })
}

/// Returns the reason why there is no good run; `None` if there is one.
fn why_nothing(comparison: &Comparison) -> Option<String> {
    let arms = || 0..comparison.arms.len();
    if arms().any(|arm| comparison.tally(arm).good > 0) {
        return None;
    }
    let failed = || arms().find_map(|arm| comparison.tally(arm).why_failed.map(str::to_owned));
    let reason = comparison.aborted.clone().or_else(failed);
    Some(match (reason, comparison.interrupted) {
        (Some(reason), _) => reason,
        (None, true) => "interrupted before the first measured run ended".to_owned(),
        (None, false) => "no run took place".to_owned(),
    })
}

/// Returns the text of an earlier result.
fn read(path: &Path) -> Result<String, Failure> {
    read_document(path, MAX_DOCUMENT_BYTES).map_err(|error| cannot_show(path, error))
}

fn cannot_show(path: &Path, error: anyhow::Error) -> Failure {
    let context = format!("cannot show {}", path.display());
    Failure::new(FAILED, error.context(context))
}

fn now() -> Option<f64> {
    utc::now().map(|time| time.as_secs_f64())
}
