//! Options of `compare` for gates in continuous integration, for scans of parameters, for suites, and for files.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use superhue_measure::Demand;

use crate::values::parse_some_time;

/// Meaning of the exit status of `compare`.
pub const EXIT_HELP: &str = "\
Exit status: 0 done, and no condition of --fail-if or --fail-unless failed; 1 failed, or a condition could not be \
judged, or a program of a suite was given up; 2 wrong usage; 4 a condition failed; 130 interrupted, without conditions: the result covers the \
completed runs.";

/// Conditions that decide the exit status.
#[derive(Debug, Clone, Args)]
pub struct GateArgs {
    /// End with status 4 if an arm is shown to differ from the first arm in this way: METRIC < PERCENT%, or with >.
    /// 'ops < -2%': the median of ops is more than 2 % below that of the first arm. The condition covers every other arm, or
    /// one: 'hot: ops < -2%'. Shown means that the whole 95 % interval of the ratio lies beyond the threshold, and a rank
    /// test, corrected for all conditions, agrees. So noise does not fail a gate, but a small loss can pass. If runs failed
    /// or values are missing, nothing passes: status 1. Repeatable.
    #[arg(long = "fail-if", value_name = "CONDITION")]
    pub fail_if: Vec<String>,
    /// End with status 4 unless the condition is shown, in the sense of --fail-if. 'ops > -2%' passes only if
    /// a loss of 2 % or more can be ruled out. Noise fails it, so it takes more runs. Repeatable.
    #[arg(long = "fail-unless", value_name = "CONDITION")]
    pub fail_unless: Vec<String>,
}

impl GateArgs {
    /// Returns all conditions, in the order of the output.
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
    /// arms. Arms are compared at the same value only; one correction covers all values.
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
    /// Compare at each of these values, separated by commas (\, is a comma within a value). Repeatable: all combinations.
    #[arg(long, short = 'L', num_args = 2, value_names = ["VAR", "VALUES"], action = clap::ArgAction::Append)]
    pub parameter_list: Vec<String>,
}

/// Many programs instead of one.
#[derive(Debug, Clone, Args)]
pub struct SuiteArgs {
    /// Compare all programs of this file (TOML; see /usr/share/doc/superhue/guide/compare.md) under its arms, and print one table: speed, slowest answers,
    /// memory, and the time until memory is huge. Programs and arms that this machine lacks are left out, with the remedy.
    /// With --report, the result is written after every round of a program; if the file exists, only missing runs
    /// are measured. --arm selects arms of the file by name; the others are compared with the first.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["command", "load", "ready", "patience", "metrics", "prepare", "parameter_scan", "parameter_list",
                                "fail_if", "fail_unless", "warmup", "seed", "smallest", "ignore_failure", "timeout"])]
    pub suite: Option<PathBuf>,
    /// With --suite: only programs with this in their names. Repeatable.
    #[arg(long, value_name = "NAME", requires = "suite")]
    pub only: Vec<String>,
    /// With --suite: start no run after this time. Questions that are open by then are shown as undecided, and the same command
    /// continues with them.
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
