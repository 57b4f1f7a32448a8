//! `superhue trial`.

use std::cell::Cell;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use superhue::advise::toml_string;
use superhue::model::{ColorRequest, counted};
use superhue::procfs::{ReadError, Roots};
use superhue::trial::{
    Guard, GuardSource, Limit, Source, TargetError, TrialError, TrialPlan, TrialStep, TrialTargets,
    expression, without_login,
};
use superhue::{AttachError, Config, Pages, Targets};
use superhue_compare::trial_plot;
use superhue_measure::Better;
use superhue_measure::trial::{MetricKind, Trial, TrialOutcome};

use crate::output::{
    FAILED, Failure, GATE, UNABLE, USAGE, VerbResult, note, print_as_it_is, print_json, prose,
};
use crate::paint::{Paint, Shade};
use crate::size_check::check_budget;
use crate::trial_args::{TrialArgs, TrialOptions};
use crate::verb::document::read_document;
use crate::verb::ending::EndingSignals;
use crate::verb::members;
use crate::verb::outputs::{Outputs, both, write_if_given};

/// Interval between two lines on the progress where standard error is no terminal.
const LINES_EVERY: Duration = Duration::from_secs(10);

/// Larger files are no trials.
const MAX_DOCUMENT_BYTES: u64 = 64 << 20;

/// Switches a policy on and off until it is clear whether it pays.
pub fn trial(args: &TrialArgs) -> VerbResult {
    let options = &args.options;
    let advice = |trial: &Trial| to_keep(args, trial);
    if let Some(path) = &args.from {
        let trial = read_trial(path)?;
        let outputs = Outputs::open(None, &options.plots)?;
        outputs.pictures.draw(|| trial_plot::to_svg(&trial))?;
        return show(&trial, args.json, advice);
    }
    check_budget(args.placement.budget)?;
    (args.placement.check_effect(&ColorRequest::Off)).map_err(|text| Failure::new(USAGE, text))?;
    if args.targets.is_empty() {
        return Err(members::nothing_named());
    }
    // Options that do not fit together show first, then processes that are not there.
    let config = args.placement.config();
    let plan = plan(options, config).map_err(|text| Failure::new(USAGE, text))?;
    let plan = TrialPlan {
        targets: targets(args)?,
        present: args.present,
        ..plan
    };
    let (trial, written) = conduct(plan, options)?;
    show(&trial, args.json, advice)?;
    let code = code_of_outcome(&trial, args.json);
    written.map(|()| code)
}

/// Runs a trial and writes its files. An earlier trial and the files are opened before anything is measured. A file that could not be written is
/// the second value: the result must be shown all the same.
pub(super) fn conduct(
    mut plan: TrialPlan,
    options: &TrialOptions,
) -> Result<(Trial, Result<(), Failure>), Failure> {
    let earlier = options.test.earlier.as_deref();
    plan.earlier = earlier.map(read_trial).transpose()?.map(Box::new);
    let outputs = Outputs::open(options.report.as_ref(), &options.plots)?;
    let progress = Progress::new(plan.limit);
    let signals = EndingSignals::hold();
    let mut wait = |time: Duration| signals.wait(time);
    let result = superhue::trial::run(&plan, &mut wait, &mut |step| progress.tell(&step));
    signals.release();
    progress.finish();
    let trial = match result {
        Ok(trial) => trial,
        Err(error) => {
            outputs.abandon();
            return Err(Failure::new(code_of(&error), error));
        }
    };
    let report = write_if_given(outputs.report, &trial);
    let drawn = outputs.pictures.draw(|| trial_plot::to_svg(&trial));
    let written = both(report, drawn);
    Ok((trial, written))
}

/// Returns the exit status of a trial. With `json`, standard error gets the reason for a trial without a verdict.
pub(super) fn code_of_outcome(trial: &Trial, json: bool) -> ExitCode {
    match trial.verdict.outcome {
        TrialOutcome::Keep
        | TrialOutcome::Leave
        | TrialOutcome::NoDifference
        | TrialOutcome::Undecided => ExitCode::SUCCESS,
        TrialOutcome::Guarded => ExitCode::from(GATE),
        TrialOutcome::NothingToDo | TrialOutcome::Interrupted | TrialOutcome::Failed => {
            if json {
                note(&trial.sentence());
            }
            ExitCode::from(FAILED)
        }
    }
}

/// Reads a document of an earlier trial.
fn read_trial(path: &Path) -> Result<Trial, Failure> {
    read_document(path, MAX_DOCUMENT_BYTES)
        .and_then(|text| Ok(Trial::from_json(&text)?))
        .map_err(|error| Failure::new(FAILED, format!("{}: {error:#}", path.display())))
}

/// Prints the result; without `json` in sentences, of which the last ones, by `advice`, say what to do.
pub(super) fn show(
    trial: &Trial,
    json: bool,
    advice: impl FnOnce(&Trial) -> Option<String>,
) -> VerbResult {
    if json {
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
    if let Some(advice) = advice(trial) {
        text += &prose(&format!("{advice}\n"));
    }
    print_as_it_is(&text)
}

/// Returns a sentence on how to have the policy from now on, if it is better; `None` for a result of a file, which names no process of now.
fn to_keep(args: &TrialArgs, trial: &Trial) -> Option<String> {
    let is_better = trial.verdict.outcome == TrialOutcome::Keep;
    if !is_better || args.targets.is_empty() {
        return None;
    }
    let pages = trial.policy.pages.as_deref().unwrap_or("auto");
    let options = args.placement.beside_pages();
    Some(match &args.targets.unit {
        Some(unit) => {
            let options = options.iter().map(|(option, value)| {
                let key = option.trim_start_matches("--");
                format!(", {key} = {}", toml_string(value))
            });
            format!(
                "to have it from now on: a rule with unit = {}, pages = \"{pages}\"{} (superhue daemon)",
                toml_string(unit),
                options.collect::<String>()
            )
        }
        None => {
            let mut options: String = (options.iter())
                .map(|(option, value)| format!("{option} {value} "))
                .collect();
            if args.placement.no_follow {
                options.push_str("--no-follow ");
            }
            format!(
                "to have it from now on: superhue attach --pages {pages} {options}{}",
                args.targets.typed()
            )
        }
    })
}

fn code_of(error: &TrialError) -> u8 {
    match error {
        TrialError::Attach(AttachError::MayNotAct(_) | AttachError::Tracker(_))
        | TrialError::Who(TargetError::Read(
            ReadError::Denied { .. } | ReadError::ForeignProc { .. },
        )) => UNABLE,
        TrialError::Who(TargetError::Cgroup(error)) => members::code_of(error),
        TrialError::Continue(_) => USAGE,
        TrialError::Guard(_) => GATE,
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

/// Returns the plan that the options mean, for all processes.
///
/// # Errors
/// Two options do not fit together.
pub(super) fn plan(options: &TrialOptions, config: Config) -> Result<TrialPlan, String> {
    if let Some(pages @ (Pages::Kernel | Pages::Never)) = config.options.pages {
        return Err(format!(
            "--pages {pages} collapses nothing, so there is nothing to switch: give auto, hot, resident or always"
        ));
    }
    if config.dry_run {
        return Err(
            "trial cannot measure a dry run; `superhue attach --dry-run` lists the planned actions"
                .to_owned(),
        );
    }
    let TrialOptions { metric, test, .. } = options;
    if let Some(block) = test.block.filter(|&block| 2 * block >= test.limit) {
        return Err(format!(
            "--for {:?} has no room for a pair of blocks of {block:?} (--block): give at least four times the block, so that there are two pairs",
            test.limit
        ));
    }
    let source = match (&metric.metric, &metric.query) {
        (Some(command), _) => {
            let regex = metric.metric_regex.as_deref().map(expression).transpose()?;
            Some(Source::Command {
                command: command.clone(),
                regex: regex.map(Box::new),
            })
        }
        (_, Some(query)) => Some(prometheus(options, query)?),
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
        targets: TrialTargets::All,
        source,
        kind: metric.metric_kind,
        better: if is_less {
            Better::Lower
        } else {
            Better::Higher
        },
        guards: guards(options)?,
        alpha: test.alpha,
        within: test.smallest,
        limit: test.limit,
        learn: test.learn,
        block: test.block,
        seed: test.seed.unwrap_or_else(random_seed),
        nothing_switched: test.nothing_switched,
        present: false,
        swap: test.swap,
        earlier: None,
    })
}

/// Derives a seed from random keys of this process: it need not be predictable, as the report names it.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    // Short enough to type.
    hasher.finish() % 1_000_000_000
}

fn prometheus(options: &TrialOptions, query: &str) -> Result<Source, String> {
    let url = options.metric.prometheus.clone();
    let url = url.ok_or("a query needs --prometheus URL")?;
    if !url.starts_with("http://") {
        return Err(format!(
            "`{}` is not http://HOST:PORT (https is not spoken here: ask through a command, e.g. curl and jq)",
            without_login(&url)
        ));
    }
    Ok(Source::Prometheus {
        url,
        query: query.to_owned(),
    })
}

fn guards(options: &TrialOptions) -> Result<Vec<Guard>, String> {
    let mut named: Vec<(&str, Source)> = Vec::new();
    let split = |text: &'_ str| -> Result<(usize, usize), String> {
        let at = text.find('=').filter(|&at| at > 0);
        let at = at.ok_or_else(|| format!("`{text}` is not NAME=COMMAND or NAME=QUERY"))?;
        Ok((at, at + 1))
    };
    for text in &options.guards.commands {
        let (end, start) = split(text)?;
        let command = text[start..].to_owned();
        let source = Source::Command {
            command,
            regex: None,
        };
        named.push((text[..end].trim(), source));
    }
    for text in &options.guards.queries {
        let (end, start) = split(text)?;
        named.push((text[..end].trim(), prometheus(options, &text[start..])?));
    }
    let mut guards = Vec::new();
    for text in &options.guards.guards {
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

/// The progress: one line that changes, on a terminal; elsewhere a line now and then, so that a log shows that the trial runs.
enum Progress {
    Bar(ProgressBar),
    Lines(Lines),
}

impl Progress {
    fn new(limit: Duration) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Lines(Lines::starting(Instant::now()));
        }
        let bar =
            ProgressBar::with_draw_target(Some(limit.as_secs()), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("[{elapsed_precise}] {msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(Duration::from_secs(1));
        Self::Bar(bar)
    }

    fn tell(&self, step: &TrialStep<'_>) {
        match self {
            Self::Bar(bar) => bar.set_message(words(step)),
            Self::Lines(lines) => {
                if let Some(line) = lines.line(step, Instant::now()) {
                    note(&line);
                }
            }
        }
    }

    fn finish(&self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Lines for a log: the first of each kind of step, and later ones at intervals.
struct Lines {
    begun: Instant,
    last: Cell<Instant>,
    kind: Cell<Option<StepKind>>,
}

/// Kinds of steps, of which the first is always shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StepKind {
    Reading,
    Learning,
    Switching,
    Pairs,
}

impl Lines {
    const fn starting(now: Instant) -> Self {
        Self {
            begun: now,
            last: Cell::new(now),
            kind: Cell::new(None),
        }
    }

    /// Returns the line for a step; `None` if there was one a moment ago.
    fn line(&self, step: &TrialStep<'_>, now: Instant) -> Option<String> {
        let kind = match step {
            TrialStep::Reading => StepKind::Reading,
            TrialStep::Learning(_) => StepKind::Learning,
            TrialStep::Switching => StepKind::Switching,
            TrialStep::Measuring { .. } | TrialStep::Pair(..) => StepKind::Pairs,
        };
        let is_new = self.kind.replace(Some(kind)) != Some(kind);
        if !is_new && now.saturating_duration_since(self.last.get()) < LINES_EVERY {
            return None;
        }
        self.last.set(now);
        let seconds = now.saturating_duration_since(self.begun).as_secs();
        Some(format!("trial, {seconds} s: {}", words(step)))
    }
}

/// Describes a step in a line.
fn words(step: &TrialStep<'_>) -> String {
    match step {
        TrialStep::Reading => "reading the metric".to_owned(),
        TrialStep::Learning(regions) => {
            let regions = counted(*regions as u64, "region");
            format!("the policy looks for what it makes huge: {regions} so far")
        }
        TrialStep::Switching => "switching off and on twice, to see how long that takes".to_owned(),
        TrialStep::Measuring { block, settle } => {
            format!("measuring pairs of {block:.1} s blocks, {settle:.1} s after each switch")
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_gets_the_first_line_of_each_kind_and_later_ones_at_intervals() {
        let begun = Instant::now();
        let lines = Lines::starting(begun);
        let at = |seconds: u64, step: TrialStep<'_>| {
            lines.line(&step, begun + Duration::from_secs(seconds))
        };
        assert!(
            at(0, TrialStep::Reading)
                .unwrap()
                .contains("reading the metric")
        );
        assert!(at(1, TrialStep::Learning(0)).is_some());
        assert_eq!(at(5, TrialStep::Learning(7)), None);
        let later = at(11, TrialStep::Learning(8)).unwrap();
        assert!(
            later.contains("11 s") && later.contains("8 regions"),
            "{later}"
        );
        assert!(at(12, TrialStep::Switching).is_some());
        let measuring = TrialStep::Measuring {
            block: 2.0,
            settle: 0.5,
        };
        assert!(at(13, measuring).unwrap().contains("2.0 s blocks"));
        // Learns again, because the service was restarted.
        assert!(at(14, TrialStep::Learning(0)).is_some());
        assert_eq!(at(23, TrialStep::Learning(1)), None);
        assert!(at(24, TrialStep::Learning(1)).is_some());
    }
}
