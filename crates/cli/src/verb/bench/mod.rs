//! `superhue bench`.

mod chosen;
mod progress;
mod publish;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use superhue::experiment::machine_facts;
use superhue::procfs::Roots;
use superhue_bench::arm::Arm;
use superhue_bench::colors::Colors;
use superhue_bench::document::{self, Document, SCHEMA, Settings, SkippedPart};
use superhue_bench::machine::{Caches, pin};
use superhue_bench::measure::{Watcher as _, sweep};
use superhue_bench::painter::Painter;
use superhue_bench::workload::Sweep;
use superhue_bench::{BenchError, isolation};

use self::chosen::WorkloadSelection;
use self::progress::Progress;
use crate::args::BenchArgs;
use crate::output::{FAILED, Failure, UNABLE, USAGE, VerbResult, note, print};
use crate::utc;
use crate::verb::document::{MAX_DOCUMENT_BYTES, read_document};

/// Measures, or shows a kept result again.
pub fn bench(args: &BenchArgs) -> VerbResult {
    if args.list {
        return print(&chosen::list());
    }
    if let Some(path) = &args.from {
        let document = read(path)?;
        publish::drawings(args.output.as_deref(), &document)?;
        return publish::result(&document, args.json);
    }
    let chosen =
        WorkloadSelection::of(&args.workloads).map_err(|error| Failure::new(USAGE, error))?;
    let settings = settings(args)?;
    // Reports an unusable folder before minutes of measuring.
    publish::prepare(args.output.as_deref())?;
    let document = measure(args, chosen, settings)?;
    if !document.has_results() {
        let reasons: Vec<String> = document
            .skipped
            .iter()
            .map(|skipped| format!("{}: {}", skipped.what, skipped.reason))
            .collect();
        if document.interrupted {
            return Err(Failure::new(
                FAILED,
                "interrupted before anything was measured",
            ));
        }
        return Err(Failure::new(
            UNABLE,
            format!("nothing could be measured: {}", reasons.join("; ")),
        ));
    }
    let written = publish::documents(args.output.as_deref(), &document)
        .and_then(|_| publish::drawings(args.output.as_deref(), &document));
    if document.interrupted {
        note("interrupted: the result is of what was done");
    }
    let code = publish::result(&document, args.json)?;
    written.map(|_| code)
}

fn settings(args: &BenchArgs) -> Result<Settings, Failure> {
    let mut arms = args.arms.clone();
    arms.sort_unstable();
    if let Some(pair) = arms.windows(2).find(|pair| pair[0] == pair[1]) {
        let text = format!("--arms names {} twice: give it once", pair[0]);
        return Err(Failure::new(USAGE, text));
    }
    let (allocations, passes, pass_seconds) = if args.quick {
        (5, 3, 0.000_5)
    } else {
        (24, 7, 0.001_5)
    };
    Ok(Settings {
        arms,
        allocations: args.allocations.map_or(allocations, |count| count as usize),
        passes,
        pass_seconds,
        sweep: if args.quick {
            Sweep::Quick
        } else {
            Sweep::Full
        },
        seed: args.seed,
    })
}

fn measure(
    args: &BenchArgs,
    chosen: WorkloadSelection,
    mut settings: Settings,
) -> Result<Document, Failure> {
    let unable = |trouble: BenchError| Failure::new(UNABLE, trouble);
    let pinned = pin(args.cpu).map_err(|trouble| match args.cpu {
        Some(_) => Failure::new(USAGE, format!("--cpu: {trouble}")),
        None => unable(trouble),
    })?;
    let cpu = pinned.cpu;
    let caches = Caches::read(&Roots::default(), cpu).map_err(unable)?;
    let started = now();
    let mut skipped = Vec::new();
    let mut progress = Progress::start();
    let wants_colors = chosen.isolation || settings.arms.iter().any(|arm| arm.is_colored());
    let mut colors = match caches.level(2) {
        Some(cache) if wants_colors => Colors::find(cache)
            .map_err(|trouble| {
                let what = "colored arms".to_owned();
                skipped.push(SkippedPart {
                    what,
                    reason: trouble.to_string(),
                });
            })
            .ok(),
        _ => None,
    };
    let known = colors.as_ref().map(|colors| document::Colors {
        count: colors.colors(),
        oracle: colors.oracle(),
    });
    if colors.is_none() {
        settings.arms.retain(|arm: &Arm| !arm.is_colored());
    }
    let mut sweeps = Vec::new();
    for mut workload in chosen.workloads {
        if progress.stop() || settings.arms.is_empty() {
            break;
        }
        let painter = colors.as_mut().map(|colors| colors as &mut dyn Painter);
        sweeps.push(sweep(
            workload.as_mut(),
            &settings,
            &caches,
            painter,
            &mut progress,
            &mut skipped,
        ));
    }
    let wanted = chosen.isolation && !progress.stop();
    let isolation = wanted.then(|| {
        let painter = colors.as_mut().map(|colors| colors as &mut dyn Painter);
        isolation::measure(
            &settings,
            &caches,
            &pinned,
            painter,
            &mut progress,
            &mut skipped,
        )
    });
    let mut document = Document {
        schema: SCHEMA.to_owned(),
        command: command(),
        machine: machine_facts(&Roots::default()),
        cpu,
        caches,
        colors: known,
        settings,
        started,
        finished: now(),
        interrupted: progress.stop(),
        skipped,
        sweeps,
        isolation,
    };
    progress.end();
    document.summarise();
    Ok(document)
}

fn read(path: &Path) -> Result<Document, Failure> {
    read_document(path, MAX_DOCUMENT_BYTES)
        .and_then(|text| Document::from_json(&text).map_err(anyhow::Error::from))
        .with_context(|| format!("cannot show {}", path.display()))
        .map_err(|error| Failure::new(FAILED, error))
}

fn now() -> Option<f64> {
    utc::now().map(|time| time.as_secs_f64())
}

/// Success, for a caller that has more to print.
const DONE: ExitCode = ExitCode::SUCCESS;

/// Returns the command line with `superhue` as the program, whatever path started it.
fn command() -> Vec<String> {
    let arguments = std::env::args_os().skip(1);
    let arguments = arguments.map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once("superhue".to_owned())
        .chain(arguments)
        .collect()
}
