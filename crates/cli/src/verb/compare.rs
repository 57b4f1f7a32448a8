//! `superhue compare`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context as _;
use clap::Parser;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::experiment::{Experiment, ServerPlan, machine_facts};
use superhue::procfs::Roots;
use superhue::{Config, Preserved};
use superhue_compare::{Arm, Comparison, Context, Design, Progress, Settings, UserMetric, execute};

use crate::args::{CompareArgs, PlacementArgs, SystemArgs};
use crate::output::{FAILED, Failure, USAGE, VerbResult, note, print};
use crate::size_check::check_budget;
use crate::verb::document::{LARGEST, read_document};
use crate::verb::report_file::ReportFile;
use crate::verb::restore::recover_quietly;

/// Options of one arm: those of `run` that concern placement.
#[derive(Debug, Parser)]
#[command(name = "arm", no_binary_name = true, disable_help_flag = true)]
struct ArmOptions {
    #[command(flatten)]
    placement: PlacementArgs,
    #[command(flatten)]
    system: SystemArgs,
}

/// Runs the comparison.
pub fn compare(args: CompareArgs, preserved: Preserved) -> VerbResult {
    if let Some(path) = &args.from {
        let plot = ReportFile::open_if(args.plot.as_ref()).map_err(|e| Failure::new(FAILED, e))?;
        return publish(&read(path)?, args.json, plot, None);
    }
    if !(0.0..100.0).contains(&args.smallest) {
        return Err(Failure::new(
            USAGE,
            "--smallest is a percentage from 0 to 100",
        ));
    }
    let mut arms = Vec::new();
    let mut configs = Vec::new();
    for text in &args.arms {
        let (arm, config) = parse_arm(text)?;
        arms.push(arm);
        configs.push(config);
    }
    let metrics =
        UserMetric::parse_all(&args.metrics).map_err(|error| Failure::new(USAGE, error))?;
    recover_quietly();
    let plot = ReportFile::open_if(args.plot.as_ref()).map_err(|e| Failure::new(FAILED, e))?;
    let report = ReportFile::open_if(args.report.as_ref()).map_err(|e| Failure::new(FAILED, e))?;

    let command: Vec<String> = args
        .command
        .iter()
        .map(|part| part.to_string_lossy().into_owned())
        .collect();
    let mut experiment = Experiment::new(configs, args.command.clone(), preserved);
    experiment.server = args
        .load
        .clone()
        .zip(args.ready)
        .map(|(load, port)| ServerPlan {
            load,
            port,
            patience: args.patience,
        });
    experiment.ignore_failure = args.ignore_failure;
    experiment.show_output = args.show_output;
    let all_metrics: Vec<_> = metrics
        .iter()
        .map(|metric| metric.metric().clone())
        .chain(experiment.builtin_metrics())
        .collect();
    experiment.metrics = metrics;
    let settings = Settings {
        runs: args.runs as usize,
        warmup: args.warmup as usize,
        seed: args.seed,
        smallest: args.smallest / 100.0,
        ..Settings::default()
    };
    let design = match Design::new(arms, all_metrics, settings) {
        Ok(design) => design,
        Err(error) => {
            [plot, report]
                .into_iter()
                .flatten()
                .for_each(ReportFile::abandon);
            return Err(Failure::new(USAGE, error));
        }
    };

    let started = now();
    let execution = measure(&design, experiment);
    let context = Context {
        command,
        machine: machine_facts(&Roots::default()),
        started,
        finished: now(),
    };
    let comparison = Comparison::new(design, execution, context);
    publish(&comparison, args.json, plot, report)
}

/// Goes through the schedule, with progress on a terminal.
fn measure(design: &Design, mut experiment: Experiment) -> superhue_compare::Execution {
    let schedule = design.schedule();
    let bar = ProgressBar::with_draw_target(
        Some(schedule.turns().len() as u64),
        // Draws nothing where standard error is no terminal.
        ProgressDrawTarget::stderr(),
    );
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} (about {eta} left)")
    {
        bar.set_style(style);
    }
    let names: Vec<String> = design.arms().iter().map(|arm| arm.name.clone()).collect();
    let stop = std::rc::Rc::new(std::cell::Cell::new(false));
    let mut progress = |progress: Progress<'_>| match progress {
        Progress::Starting { turn, done, .. } => {
            bar.set_position(done as u64);
            let name = names.get(turn.arm).map_or("", String::as_str);
            bar.set_message(format!(
                "{name}{}",
                if turn.warmup { " (warm-up)" } else { "" }
            ));
        }
        Progress::Finished { record, done, .. } => {
            bar.set_position(done as u64);
            if let Some(reason) = &record.failed {
                let name = names.get(record.arm).map_or("", String::as_str);
                bar.suspend(|| note(&format!("a run of `{name}` failed: {reason}")));
            }
        }
    };
    let between = experiment.interrupt_check();
    let execution = execute(&schedule, &mut experiment, &mut progress, &|| {
        stop.set(stop.get() || between());
        stop.get()
    });
    bar.finish_and_clear();
    execution
}

/// Prints and writes what came of it.
fn publish(
    comparison: &Comparison,
    json: bool,
    plot: Option<ReportFile>,
    report: Option<ReportFile>,
) -> VerbResult {
    let failed = |error: anyhow::Error| Failure::new(FAILED, error);
    let any_good = (0..comparison.arms.len()).any(|arm| comparison.tally(arm).good > 0);
    if !any_good {
        [plot, report]
            .into_iter()
            .flatten()
            .for_each(ReportFile::abandon);
        let reason = comparison.aborted.clone().or_else(|| {
            (0..comparison.arms.len())
                .find_map(|arm| comparison.tally(arm).why_failed.map(str::to_owned))
        });
        let reason = match (reason, comparison.interrupted) {
            (Some(reason), _) => reason,
            (None, true) => "interrupted before the first measured run ended".to_owned(),
            (None, false) => "no run took place".to_owned(),
        };
        return Err(Failure::new(
            FAILED,
            format!("nothing was measured: {reason}"),
        ));
    }
    let text = comparison
        .to_json()
        .context("cannot write the result as JSON")
        .map_err(failed)?;
    // All that can be told is told, whichever part of it fails.
    let mut trouble = Vec::new();
    if let Some(file) = report {
        trouble.extend(file.write_text(text.trim_end()).err());
    }
    if let Some(file) = plot {
        trouble.extend(file.write_text(comparison.plot().trim_end()).err());
    }
    if json {
        print(&text)?;
    } else {
        let width = rustix::termios::tcgetwinsize(std::io::stdout())
            .map_or(100, |size| usize::from(size.ws_col).clamp(60, 140));
        print(&comparison.table(width))?;
    }
    if comparison.interrupted {
        note("interrupted: the result is of the runs that were done");
    }
    if let Some(reason) = &comparison.aborted {
        note(&format!("given up: {reason}"));
    }
    match trouble.into_iter().next() {
        Some(error) => Err(failed(error)),
        None if comparison.aborted.is_some() => Ok(ExitCode::from(FAILED)),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Reads a result that was written before.
fn read(path: &Path) -> Result<Comparison, Failure> {
    read_document(path, LARGEST)
        .and_then(|text| {
            Comparison::from_json(&text).map_err(|e| anyhow::Error::msg(e.to_string()))
        })
        .with_context(|| format!("cannot show {}", path.display()))
        .map_err(|error| Failure::new(FAILED, error))
}

/// Reads `NAME` (a policy) or `NAME=OPTIONS`.
fn parse_arm(text: &str) -> Result<(Arm, Config), Failure> {
    let (name, options) = match text.split_once('=') {
        Some((name, options)) => (name.trim(), options.trim().to_owned()),
        None => (text.trim(), format!("--pages {}", text.trim())),
    };
    let words = shell_words::split(&options)
        .map_err(|error| Failure::new(USAGE, format!("--arm `{text}`: {error}")))?;
    let parsed = ArmOptions::try_parse_from(words).map_err(|error| {
        let reason = error.to_string();
        let reason = reason
            .lines()
            .next()
            .unwrap_or_default()
            .trim_start_matches("error: ");
        Failure::new(
            USAGE,
            format!(
                "--arm `{text}`: {reason} (write a policy, or NAME=OPTIONS with options of run)"
            ),
        )
    })?;
    check_budget(parsed.placement.budget)?;
    let mut config = parsed.placement.config();
    parsed.system.add_to(&mut config);
    Ok((Arm::new(name, options), config))
}

fn now() -> Option<f64> {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .map(|time| time.as_secs_f64())
}
