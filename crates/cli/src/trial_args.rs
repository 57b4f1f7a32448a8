//! Options of `trial`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use superhue::model::parse_duration;

use crate::named::metric_kinds;
use crate::placement_args::PlacementArgs;
use crate::values::{parse_picture, parse_some_time};
use superhue_compare::trial::MetricKind;

/// What an exit status says.
pub const EXIT_HELP: &str = "\
Exit status: 0 done (the verdict is keep, leave, no difference or undecided); 1 failed, or ended before a verdict; 2 wrong usage; 3 this \
machine cannot; 4 a guard's limit was crossed.";

/// `superhue trial`.
#[derive(Debug, Args)]
pub struct TrialArgs {
    /// The process, by number; those that it starts belong to it.
    #[arg(value_name = "PID", value_parser = clap::value_parser!(u32).range(1..),
          required_unless_present_any = ["unit", "cgroup", "from"])]
    pub pid: Option<u32>,
    /// The processes of this unit of systemd (redis, or redis.service), over restarts.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "cgroup", "no_follow"])]
    pub unit: Option<String>,
    /// The processes of this cgroup and of those below it: its path below /sys/fs/cgroup or in full.
    #[arg(long, value_name = "PATH", value_hint = ValueHint::DirPath, conflicts_with_all = ["pid", "no_follow"])]
    pub cgroup: Option<PathBuf>,
    #[command(flatten)]
    pub metric: MetricArgs,
    #[command(flatten)]
    pub guards: GuardArgs,
    #[command(flatten)]
    pub test: TestArgs,
    /// Measure nothing: show a result that --json or --report wrote again, or draw it with --plot.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Result",
          conflicts_with_all = ["pid", "unit", "cgroup", "report"])]
    pub from: Option<PathBuf>,
    /// Draw pairs and interval over time into this file: SVG or PNG, by its name. Repeatable.
    #[arg(long = "plot", value_name = "FILE.svg|FILE.png", value_hint = ValueHint::FilePath,
          value_parser = parse_picture, help_heading = "Result")]
    pub plots: Vec<PathBuf>,
    /// Write the result with every pair as JSON to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Result")]
    pub report: Option<PathBuf>,
    /// Print that JSON on standard output instead of sentences.
    #[arg(long, help_heading = "Result")]
    pub json: bool,
    #[command(flatten, next_help_heading = "Policy")]
    pub placement: PlacementArgs,
}

/// What is measured.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Metric")]
pub struct MetricArgs {
    /// A command (by `sh -c`) that prints a number, within 5 s. [default: CPU time of the processes, per second]
    #[arg(long, value_name = "COMMAND", conflicts_with = "query")]
    pub metric: Option<String>,
    /// Take the number out of what the command prints: the first group of this expression where it matches.
    #[arg(long, value_name = "REGEX", requires = "metric")]
    pub metric_regex: Option<String>,
    /// The Prometheus server that --query and --guard-query ask, over plain HTTP.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    pub prometheus: Option<String>,
    /// The metric is what this instant query gives: one series. Without rate(): the growth over a block is taken here, and a
    /// rate over a window of its own would mix blocks. Blocks must be several scrapes long (--block).
    #[arg(long, value_name = "PROMQL", requires = "prometheus")]
    pub query: Option<String>,
    /// What is made of the number.
    #[arg(long, value_name = "KIND", default_value = "counter", value_parser = metric_kinds())]
    pub metric_kind: MetricKind,
    /// Less is better. [default: for CPU time, work and gauge]
    #[arg(long, conflicts_with = "more_is_better")]
    pub less_is_better: bool,
    /// More is better. [default: for counter]
    #[arg(long)]
    pub more_is_better: bool,
}

/// What must not suffer.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Guards")]
pub struct GuardArgs {
    /// End the trial, undo it and exit with status 4 once this does not hold: NAME < LIMIT, or with >. LIMIT is a number, a
    /// time (5ms; the number is in seconds then) or a size (1G; bytes). NAME is rss (resident memory of the processes), or that of
    /// a --guard-command or --guard-query. Read once a second. Repeatable.
    #[arg(long = "guard", value_name = "CONDITION")]
    pub guards: Vec<String>,
    /// Where a guard's number comes from: a command that prints it. Repeatable.
    #[arg(long = "guard-command", value_name = "NAME=COMMAND")]
    pub commands: Vec<String>,
    /// The same by an instant query to the server of --prometheus. Repeatable.
    #[arg(
        long = "guard-query",
        value_name = "NAME=PROMQL",
        requires = "prometheus"
    )]
    pub queries: Vec<String>,
}

/// How it is decided.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Test")]
pub struct TestArgs {
    /// Differences smaller than this do not count: the trial ends with `no difference` once larger ones are ruled out.
    #[arg(long, value_name = "PERCENT", default_value = "2%", value_parser = parse_within)]
    pub within: f64,
    /// End undecided after this time.
    #[arg(long = "for", alias = "limit", value_name = "TIME", default_value = "10m", value_parser = parse_some_time)]
    pub limit: Duration,
    /// How long the policy may take, before the first pair, to find what it wants to make huge. It is over sooner once that grows no more.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_some_time)]
    pub learn: Duration,
    /// The length of a block. [default: from how long switching takes and how much the metric varies]
    #[arg(long, value_name = "TIME", value_parser = parse_block)]
    pub block: Option<Duration>,
    /// The probability of a wrong verdict, over all looks together.
    #[arg(long, value_name = "PERCENT", default_value = "2.5%", value_parser = parse_alpha)]
    pub alpha: f64,
    /// Seed of the order of blocks. [default: from the system]
    #[arg(long, value_name = "NUMBER")]
    pub seed: Option<u64>,
    /// Switch nothing: a trial of the trial, which must not find a difference.
    #[arg(long, hide = true)]
    pub nothing_switched: bool,
}

/// Shorter blocks than that hold a few scheduler ticks.
fn parse_block(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if !(Duration::from_millis(50)..=Duration::from_secs(3600)).contains(&time) {
        return Err(format!("`{text}` is not between 50ms and 1h"));
    }
    Ok(time)
}

fn share(text: &str, least: f64, most: f64) -> Result<f64, String> {
    let number = text.trim().strip_suffix('%').map(str::trim);
    let number: Option<f64> = number.and_then(|number| number.parse().ok());
    let share = number.map(|percent| percent / 100.0);
    let fits = share.filter(|share| (least..=most).contains(share));
    fits.ok_or_else(|| {
        let (least, most) = (least * 100.0, most * 100.0);
        format!("`{text}` is not a share between {least}% and {most}%")
    })
}

fn parse_within(text: &str) -> Result<f64, String> {
    share(text, 0.001, 0.5)
}

fn parse_alpha(text: &str) -> Result<f64, String> {
    share(text, 0.0001, 0.2)
}
