//! Options of `trial`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use superhue::model::parse_duration;
use superhue::parse;

use crate::named::metric_kinds;
use crate::placement_args::PlacementArgs;
use crate::targets_args::{ONE_FAMILY, TargetArgs};
use crate::values::{parse_picture, parse_some_time};
use superhue_measure::trial::MetricKind;

/// Meaning of the exit status.
pub const EXIT_HELP: &str = "\
Exit status: 0 done (the verdict is keep, leave, no difference or undecided); 1 failed, or ended before a verdict; 2 wrong usage; 3 this \
machine, or this user, lacks what is needed; 4 a guard's limit was crossed, also before anything was changed.";

/// Meaning of the exit status of `superhue ctl trial`.
pub const RULE_EXIT_HELP: &str = "\
Exit status: 0 done (the verdict is keep, leave, no difference or undecided); 1 failed, or ended before a verdict: there is no such rule, it has \
no process, it makes no huge pages, or a reload has changed it meanwhile; 2 wrong usage; 3 the caller may not ask the daemon, or may not switch the \
memory of the rule's processes; 4 a guard's limit was crossed. The daemon acts by the rule again in each case.";

/// `superhue trial`.
#[derive(Debug, Args)]
#[command(mut_arg("processes", |arg| arg.help(ONE_FAMILY)))]
pub struct TrialArgs {
    #[command(flatten)]
    pub targets: TargetArgs,
    #[command(flatten)]
    pub options: TrialOptions,
    /// Switch memory that is huge already, too: by the program's own request, by the kernel or by the daemon. Pause the daemon
    /// first (superhue ctl pause), or try one of its rules (superhue ctl trial). The memory is huge again at the end.
    #[arg(long, help_heading = "Test")]
    pub present: bool,
    /// Measure nothing: show a result written by --json or --report again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Result",
          conflicts_with_all = ["processes", "unit", "cgroup", "user", "all", "report", "earlier", "metric",
                                "metric_regex", "prometheus", "query", "metric_kind", "guards", "smallest", "limit",
                                "learn", "block", "alpha", "seed", "swap", "present", "pages", "budget"])]
    pub from: Option<PathBuf>,
    /// Print the result with every pair as JSON on standard output instead of sentences.
    #[arg(long, help_heading = "Result")]
    pub json: bool,
    #[command(flatten, next_help_heading = "Policy")]
    pub placement: PlacementArgs,
}

/// `superhue ctl trial`.
#[derive(Debug, Clone, Args)]
pub struct RuleTrialArgs {
    /// The rule, by its name.
    #[arg(value_name = "RULE", value_hint = ValueHint::Other)]
    pub rule: String,
    #[command(flatten)]
    pub options: TrialOptions,
}

/// Options of all trials.
#[derive(Debug, Clone, Args)]
pub struct TrialOptions {
    #[command(flatten)]
    pub metric: MetricArgs,
    #[command(flatten)]
    pub guards: GuardArgs,
    #[command(flatten)]
    pub test: TestArgs,
    /// Draw pairs and interval over time into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture, help_heading = "Result")]
    pub plots: Vec<PathBuf>,
    /// Write the result with every pair as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Result")]
    pub report: Option<PathBuf>,
}

/// Metric of the trial.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Metric")]
pub struct MetricArgs {
    /// A command (by `sh -c`) that prints a number, within 5 s. [default: CPU time of the processes, per second]
    #[arg(
        long = "metric-command",
        alias = "metric",
        value_name = "COMMAND",
        conflicts_with = "query"
    )]
    pub metric: Option<String>,
    /// Find the number in the command's output: the first group of this expression where it matches.
    #[arg(long, value_name = "REGEX", requires = "metric")]
    pub metric_regex: Option<String>,
    /// URL of the Prometheus server for --query and --guard-query, over plain HTTP.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub prometheus: Option<String>,
    /// An instant query whose result, one series, is the metric. Do not use rate(): the trial takes the growth over a block itself, and
    /// a rate over another window would mix blocks. Blocks must be several scrapes long (--block).
    #[arg(long, value_name = "PROMQL", requires = "prometheus")]
    pub query: Option<String>,
    /// Meaning of the number.
    #[arg(long, value_name = "KIND", default_value = "counter", value_parser = metric_kinds())]
    pub metric_kind: MetricKind,
    /// Less is better. [default: for CPU time, work and gauge]
    #[arg(long, conflicts_with = "more_is_better")]
    pub less_is_better: bool,
    /// More is better. [default: for counter]
    #[arg(long)]
    pub more_is_better: bool,
}

/// Guards: limits that must hold during the trial.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Guards")]
pub struct GuardArgs {
    /// End the trial, undo it and exit with status 4 once this does not hold: NAME < LIMIT, or with >. LIMIT is a number, a
    /// time (5ms; the number is in seconds then) or a size (1G; bytes). NAME is rss (resident memory of the processes), or that of
    /// a --guard-command or --guard-query. Read once a second, or less often if reading all guards takes more than a tenth of that. Repeatable.
    #[arg(long = "guard", value_name = "CONDITION")]
    pub guards: Vec<String>,
    /// A command that prints a guard's number. Repeatable.
    #[arg(long = "guard-command", value_name = "NAME=COMMAND")]
    pub commands: Vec<String>,
    /// An instant query, to the server of --prometheus, that returns a guard's number. Repeatable.
    #[arg(
        long = "guard-query",
        value_name = "NAME=PROMQL",
        requires = "prometheus"
    )]
    pub queries: Vec<String>,
}

/// Test that decides the trial.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Test")]
pub struct TestArgs {
    /// Differences smaller than this, 0.1% to 50%, do not count: the trial ends with `no difference` once larger ones are ruled out.
    #[arg(long, alias = "within", value_name = "PERCENT", default_value = "2%", value_parser = parse_smallest)]
    pub smallest: f64,
    /// End undecided after this time.
    #[arg(long = "for", alias = "limit", value_name = "TIME", default_value = "10m", value_parser = parse_some_time)]
    pub limit: Duration,
    /// Longest time for the policy to find its memory, before the first pair. It ends earlier when that memory stops growing.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_some_time)]
    pub learn: Duration,
    /// Length of a block: 50ms to 1h. [default: from the time that switching takes and the variation of the metric]
    #[arg(long, value_name = "TIME", value_parser = parse_block)]
    pub block: Option<Duration>,
    /// Largest probability of a wrong verdict, over all tests together: 0.01% to 20%.
    #[arg(long, value_name = "PERCENT", default_value = "2.5%", value_parser = parse_alpha)]
    pub alpha: f64,
    /// Seed of the order of blocks. [default: from the system]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Make a small compressed swap in memory (zram, 64 MiB, and zswap) during the trial, if none is on. A split leaves frames side by side.
    /// If the program's frames had been scattered before, that makes *off* faster than the program was. Through swap in memory pages exchange
    /// their frames; memory that was huge before the trial is scattered, too. Superhue removes it at the end; after a kill, `superhue restore`
    /// does. Needs root.
    #[arg(long)]
    pub swap: bool,
    /// Continue an earlier trial of the same target and metric, from its --report or --json: its pairs count, too, and the probability of a
    /// wrong verdict holds for both trials together.
    #[arg(long = "continue", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub earlier: Option<PathBuf>,
    /// Switch nothing: a trial of the trial, which must not find a difference.
    #[arg(long, hide = true)]
    pub nothing_switched: bool,
}

/// Reads the length of a block: shorter ones than 50 ms hold only a few scheduler ticks.
fn parse_block(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if !(Duration::from_millis(50)..=Duration::from_secs(3600)).contains(&time) {
        return Err(format!("`{text}` is not between 50ms and 1h"));
    }
    Ok(time)
}

fn share(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let fits = parse::percentage(text).filter(|share| (least..=most).contains(share));
    fits.ok_or_else(|| {
        let (least, most) = (least * 100.0, most * 100.0);
        format!("`{text}` is no percentage between {least}% and {most}%")
    })
}

fn parse_smallest(text: &str) -> Result<f64, String> {
    share(text, 0.001, 0.5)
}

fn parse_alpha(text: &str) -> Result<f64, String> {
    share(text, 0.0001, 0.2)
}
