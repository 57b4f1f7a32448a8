//! `superhue trial`.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::model::counted;
use superhue::procfs::{ReadError, Roots};
use superhue::sys::process::SignalSet;
use superhue::trial::{
    Guard, GuardSource, Limit, Source, TargetError, TrialError, TrialPlan, TrialStep, TrialTargets,
    expression,
};
use superhue::{AttachError, Pages, Targets};
use superhue_compare::Better;
use superhue_compare::trial::{MetricKind, Trial, TrialOutcome, plot};

use crate::output::{
    FAILED, Failure, GATE, UNABLE, USAGE, VerbResult, note, print_as_it_is, print_json, prose,
};
use crate::paint::{Paint, Shade};
use crate::size_check::check_budget;
use crate::trial_args::TrialArgs;
use crate::verb::document::read_document;
use crate::verb::members;
use crate::verb::outputs::{Outputs, both};

/// `SIGHUP`, `SIGINT`, `SIGTERM`.
const ENDING: [i32; 3] = [1, 2, 15];

/// Larger files are no trials.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Switches a policy on and off until it is clear whether it pays.
pub fn trial(args: &TrialArgs) -> VerbResult {
    let outputs = |report| Outputs::open(report, &args.plots);
    if let Some(path) = &args.from {
        let trial = read_document(path, MAX_DOCUMENT_BYTES)
            .and_then(|text| Ok(Trial::from_json(&text)?))
            .map_err(|error| Failure::new(FAILED, format!("{}: {error:#}", path.display())))?;
        outputs(None)?.pictures.draw(|| plot::to_svg(&trial))?;
        return show(args, &trial);
    }
    check_budget(args.placement.budget)?;
    if args.targets.is_empty() {
        return Err(members::nothing_named());
    }
    // Options that do not fit together show first, then processes that are not there.
    plan(args, TrialTargets::All).map_err(|text| Failure::new(USAGE, text))?;
    let plan = plan(args, targets(args)?).map_err(|text| Failure::new(USAGE, text))?;
    let outputs = outputs(args.report.as_ref())?;
    let progress = Progress::new(args, plan.limit);
    let signals = SignalSet::of(&ENDING);
    let before = signals.block();
    let mut wait = |time: Duration| signals.wait(time).is_some();
    let result = superhue::trial::run(&plan, &mut wait, &mut |step| progress.tell(&step));
    before.apply();
    progress.0.finish_and_clear();
    let trial = match result {
        Ok(trial) => trial,
        Err(error) => {
            outputs.abandon();
            return Err(Failure::new(code_of(&error), error));
        }
    };
    let report = outputs.report.map_or(Ok(()), |file| {
        let written = file.write_json(&trial);
        written.map_err(|error| Failure::new(FAILED, error))
    });
    let drawn = outputs.pictures.draw(|| plot::to_svg(&trial));
    both(report, drawn)?;
    show(args, &trial)?;
    Ok(match trial.verdict.outcome {
        TrialOutcome::Keep
        | TrialOutcome::Leave
        | TrialOutcome::NoDifference
        | TrialOutcome::Undecided => ExitCode::SUCCESS,
        TrialOutcome::Guarded => ExitCode::from(GATE),
        TrialOutcome::NothingToDo | TrialOutcome::Interrupted | TrialOutcome::Failed => {
            if args.json {
                note(&trial.sentence());
            }
            ExitCode::from(FAILED)
        }
    })
}

fn show(args: &TrialArgs, trial: &Trial) -> VerbResult {
    if args.json {
        return print_json(trial);
    }
    let lines = trial.lines();
    let (first, rest) = lines.split_at(lines.len().min(1));
    // The first line is the verdict.
    let first = prose(&first.join("\n"));
    let mut text = Paint::of_stdout().text(&first, Some(Shade::Strong));
    text.push('\n');
    for line in rest {
        text += &prose(&format!("{line}\n"));
    }
    if trial.verdict.outcome == TrialOutcome::Keep {
        let pages = trial.policy.pages.as_deref().unwrap_or("auto");
        text += &prose(&to_keep(args, pages));
    }
    print_as_it_is(&text)
}

/// Returns a line on how to have the policy from now on; empty for a result of a file, which names no process of now.
fn to_keep(args: &TrialArgs, pages: &str) -> String {
    match &args.targets.unit {
        Some(unit) => format!(
            "to have it from now on: a rule with unit = \"{unit}\" and pages = \"{pages}\" (superhue daemon)\n"
        ),
        None if args.targets.is_empty() => String::new(),
        None => format!(
            "to have it from now on: superhue attach --pages {pages} {}\n",
            args.targets.typed()
        ),
    }
}

fn code_of(error: &TrialError) -> u8 {
    match error {
        TrialError::Attach(AttachError::MayNotAct(_) | AttachError::Tracker(_))
        | TrialError::Who(TargetError::Read(
            ReadError::Denied { .. } | ReadError::ForeignProc { .. },
        )) => UNABLE,
        TrialError::Who(TargetError::Cgroup(error)) => members::code_of(error),
        _ => FAILED,
    }
}

/// Returns the processes that the arguments mean.
fn targets(args: &TrialArgs) -> Result<TrialTargets, Failure> {
    members::check_follow(&args.targets, args.placement.no_follow)?;
    let roots = Roots::default();
    if args.targets.is_by_number() {
        return members::family(&roots, &args.targets).map(TrialTargets::Process);
    }
    Ok(match members::targets(&roots, &args.targets)? {
        Targets::Unit(unit) => TrialTargets::Unit(unit),
        Targets::Cgroup(path) => TrialTargets::Cgroup(path),
        Targets::User(user) => TrialTargets::User(user),
        Targets::Processes(_) | Targets::All => TrialTargets::All,
    })
}

/// Returns the plan that the arguments mean.
fn plan(args: &TrialArgs, targets: TrialTargets) -> Result<TrialPlan, String> {
    let config = args.placement.config();
    if let Some(pages @ (Pages::Kernel | Pages::Never)) = config.pages {
        return Err(format!(
            "--pages {pages} collapses nothing, so there is nothing to switch: hot, resident or always"
        ));
    }
    if config.dry_run {
        return Err(
            "--dry-run has nothing to measure: superhue attach --dry-run says what would be done"
                .to_owned(),
        );
    }
    let metric = &args.metric;
    let source = match (&metric.metric, &metric.query) {
        (Some(command), _) => {
            let regex = metric.metric_regex.as_deref().map(expression).transpose()?;
            Some(Source::Command {
                command: command.clone(),
                regex: regex.map(Box::new),
            })
        }
        (_, Some(query)) => Some(prometheus(args, query)?),
        _ if metric.metric_kind != MetricKind::Counter => {
            return Err(
                "--metric-kind is about a number: give --metric-command COMMAND, or --query"
                    .to_owned(),
            );
        }
        _ => None,
    };
    let is_less = match metric.metric_kind {
        MetricKind::Counter => source.is_none(),
        MetricKind::Gauge | MetricKind::Work => true,
    };
    let is_less = (is_less && !metric.more_is_better) || metric.less_is_better;
    Ok(TrialPlan {
        config,
        targets,
        source,
        kind: metric.metric_kind,
        better: if is_less {
            Better::Lower
        } else {
            Better::Higher
        },
        guards: guards(args)?,
        alpha: args.test.alpha,
        within: args.test.within,
        limit: args.test.limit,
        learn: args.test.learn,
        block: args.test.block,
        seed: args.test.seed.unwrap_or_else(random_seed),
        nothing_switched: args.test.nothing_switched,
    })
}

/// Derives a seed from random keys of this process: it need not be predictable, as the report names it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    // Short enough to type.
    hasher.finish() % 1_000_000_000
}

fn prometheus(args: &TrialArgs, query: &str) -> Result<Source, String> {
    let url = args.metric.prometheus.clone();
    let url = url.ok_or("a query needs --prometheus URL")?;
    if !url.starts_with("http://") {
        return Err(format!(
            "`{url}` is not http://HOST:PORT (https is not spoken here: ask through a command, e.g. curl and jq)"
        ));
    }
    Ok(Source::Prometheus {
        url,
        query: query.to_owned(),
    })
}

fn guards(args: &TrialArgs) -> Result<Vec<Guard>, String> {
    let mut named: Vec<(&str, Source)> = Vec::new();
    let split = |text: &'_ str| -> Result<(usize, usize), String> {
        let at = text.find('=').filter(|&at| at > 0);
        let at = at.ok_or_else(|| format!("`{text}` is not NAME=COMMAND or NAME=QUERY"))?;
        Ok((at, at + 1))
    };
    for text in &args.guards.commands {
        let (end, start) = split(text)?;
        let command = text[start..].to_owned();
        let source = Source::Command {
            command,
            regex: None,
        };
        named.push((text[..end].trim(), source));
    }
    for text in &args.guards.queries {
        let (end, start) = split(text)?;
        named.push((text[..end].trim(), prometheus(args, &text[start..])?));
    }
    let mut guards = Vec::new();
    for text in &args.guards.guards {
        let limit = Limit::parse(text)?;
        let source = named.iter().find(|(name, _)| *name == limit.name);
        let source = match source {
            Some((_, source)) => GuardSource::Asked(source.clone()),
            None if limit.name == "rss" => GuardSource::Rss,
            None => {
                let name = &limit.name;
                return Err(format!(
                    "--guard '{text}': nothing is called {name}; add --guard-command '{name}=COMMAND'"
                ));
            }
        };
        guards.push(Guard { limit, source });
    }
    let unused = named.iter().find(|(name, _)| {
        let mut limits = guards.iter().map(|guard| guard.limit.name.as_str());
        !limits.any(|limit| limit == *name)
    });
    match unused {
        Some((name, _)) => Err(format!(
            "`{name}` has no limit: add --guard '{name} < LIMIT'"
        )),
        None => Ok(guards),
    }
}

/// A line on a terminal that shows the progress.
struct Progress(ProgressBar);

impl Progress {
    fn new(args: &TrialArgs, limit: Duration) -> Self {
        if args.json && !std::io::stderr().is_terminal() {
            return Self(ProgressBar::hidden());
        }
        let bar =
            ProgressBar::with_draw_target(Some(limit.as_secs()), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("[{elapsed_precise}] {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message("reading the metric");
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    fn tell(&self, step: &TrialStep<'_>) {
        self.0.set_message(match step {
            TrialStep::Learning(regions) => {
                let regions = counted(*regions as u64, "region");
                format!("the policy looks for what it makes huge: {regions} so far")
            }
            TrialStep::Pair(trial, None) => {
                let block = trial.pairs.last().map_or(0.0, |pair| pair.block_seconds);
                format!(
                    "{} of {block:.1} s blocks: {}",
                    counted(trial.pairs.len() as u64, "pair"),
                    trial.effect.words()
                )
            }
            TrialStep::Pair(trial, Some(why)) => {
                format!(
                    "{}; the last one does not count: {why}",
                    counted(trial.pairs.len() as u64, "pair")
                )
            }
        });
    }
}
