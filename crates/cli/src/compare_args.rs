//! Options of `compare` for gates in continuous integration, for scans of parameters, for suites, and for files.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use superhue_compare::Demand;

use crate::values::parse_some_time;

/// What an exit status of `compare` says.
pub const EXIT_HELP: &str = "\
Exit status: 0 done, and no condition of --fail-if or --fail-unless failed; 1 failed, or a condition could not be \
judged; 2 wrong usage; 3 this machine cannot; 4 a condition failed; 130 interrupted, with the result of what was done.";

/// Conditions that decide the exit status.
#[derive(Debug, Clone, Args)]
pub struct GateArgs {
    /// End with status 4 if it is shown that an arm differs in this way from the first arm: METRIC < PERCENT%, or with > instead.
    /// 'ops < -2%' is: the median of ops is more than 2 % below that of the first arm. It is about every other arm, or
    /// about one: 'hot: ops < -2%'. Shown means: the whole 95 % interval of the ratio lies beyond the threshold, and so says a rank test
    /// that is corrected for all conditions. So noise does not fail a gate; it can let a small loss pass. If runs failed
    /// or values are missing, nothing passes: status 1. Repeatable.
    #[arg(long = "fail-if", value_name = "CONDITION")]
    pub fail_if: Vec<String>,
    /// The same the other way round: end with status 4 unless it is shown, in the same sense. 'ops > -2%' passes only if
    /// a loss of 2 % or more can be ruled out. Noise fails it, so it takes more runs. Repeatable.
    #[arg(long = "fail-unless", value_name = "CONDITION")]
    pub fail_unless: Vec<String>,
}

impl GateArgs {
    /// All conditions, in the order in which they are told.
    pub fn all(&self) -> impl Iterator<Item = (Demand, &String)> {
        let unless = self
            .fail_unless
            .iter()
            .map(|text| (Demand::FailUnless, text));
        (self.fail_if.iter().map(|text| (Demand::FailIf, text))).chain(unless)
    }
}

/// Parameters of the command that take several values.
#[derive(Debug, Clone, Args)]
pub struct ScanArgs {
    /// Compare at every value from MIN to MAX, which replaces {VAR} in the command, --load, --prepare and the options of
    /// arms. Arms are compared at the same value only; the correction for many questions is over all values.
    #[arg(long, short = 'P', num_args = 3, value_names = ["VAR", "MIN", "MAX"], allow_negative_numbers = true)]
    pub parameter_scan: Vec<String>,
    /// The step of --parameter-scan. [default: 1 between whole numbers]
    #[arg(
        long,
        short = 'D',
        value_name = "STEP",
        requires = "parameter_scan",
        allow_negative_numbers = true
    )]
    pub parameter_step_size: Option<String>,
    /// The same for listed values, separated by commas (\, is a comma within a value). Repeatable: all combinations.
    #[arg(long, short = 'L', num_args = 2, value_names = ["VAR", "VALUES"], action = clap::ArgAction::Append)]
    pub parameter_list: Vec<String>,
}

/// Many programs instead of one.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// Compare all programs of this file (TOML; see the guide on comparing) under its arms, and print one table of them: speed, slowest answers,
    /// memory, and how soon huge pages are there. Programs and arms that this machine lacks are left out, and it says what brings
    /// them. With --report, the result is written after every round of a program; if the file is there already, what it lacks
    /// is measured and the rest is kept. --arm chooses among the file's arms by name, the first one being what the others are
    /// compared with.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["command", "load", "ready", "patience", "metrics", "prepare", "parameter_scan", "parameter_list",
                                "fail_if", "fail_unless", "warmup", "seed", "smallest", "ignore_failure", "timeout"])]
    pub suite: Option<PathBuf>,
    /// With --suite: only programs with this in their names. Repeatable.
    #[arg(long, value_name = "NAME", requires = "suite")]
    pub only: Vec<String>,
    /// With --suite: start no run after this time. What is not told apart by then is shown as undecided, and the same command
    /// goes on with it.
    #[arg(long = "for", value_name = "TIME", requires = "suite", value_parser = parse_some_time)]
    pub time: Option<Duration>,
}

/// Files beside the report, made from it alone.
#[derive(Debug, Clone, Args)]
pub struct ExportArgs {
    /// Write the tables and sentences as Markdown to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export_markdown: Option<PathBuf>,
    /// Write one line for each figure and arm as CSV to this file: medians, intervals, ratios, verdicts, in seconds and
    /// bytes.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub export_csv: Option<PathBuf>,
}
