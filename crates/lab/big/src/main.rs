//! `superhue-big`: measures Superhue on a machine of any size, in some minutes, and writes one JSON document.
//!
//! ```text
//!   superhue-big ──starts──> superhue-big step NAME ──starts──> targets, superhue, superhue-workload
//!        |                        |
//!        |  <── rows, as lines ───+
//!        v
//!     big.json, rewritten after each row
//! ```
//!
//! Each step is a process with its own time limit: a step that fails, hangs or is killed costs no rows of other steps. When a step ends, the
//! driver ends all processes that the step started. A step fits itself to the processors and the memory that it may use, so that the
//! figures of a small machine and of a large one can stand side by side.

mod children;
mod document;
mod driver;
mod machine;
mod plan;
mod serve;
mod steps;
mod target;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use superhue::model::ByteCount;

use crate::plan::StepName;

/// Measure what tracking, collapsing, page colors and the daemon cost on this machine
///
/// Needs root; what else is missing is skipped, with the reason in the document. Exit status: 0 done (steps may be skipped), 1 the
/// document cannot be written or a signal ended it, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "big", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(flatten)]
    driver: DriverOptions,
    #[command(subcommand)]
    part: Option<Part>,
}

/// Options of the driver.
#[derive(Debug, Args)]
struct DriverOptions {
    /// The document, written anew after each row
    #[arg(long, value_name = "FILE", default_value = "big.json")]
    out: PathBuf,
    /// Time limit of the whole measurement
    #[arg(long, value_name = "SECONDS", default_value_t = 530, value_parser = clap::value_parser!(u64).range(5..=86_400))]
    seconds: u64,
    /// Only these steps
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    only: Vec<StepName>,
    /// Use no more memory than this many bytes
    #[arg(long, value_name = "SIZE")]
    memory: Option<ByteCount>,
    /// The folder of `superhue` and `superhue-workload` [default: that of this program]
    #[arg(long, value_name = "FOLDER")]
    tools: Option<PathBuf>,
}

/// Processes that this program starts itself.
#[derive(Debug, Subcommand)]
enum Part {
    /// One step: rows as lines on standard output
    #[command(hide = true)]
    Step(StepOptions),
    /// A process that fills and touches memory by commands on standard input
    #[command(hide = true)]
    Serve {
        /// Address space to map
        size: ByteCount,
    },
    /// A process with some memory that sleeps
    #[command(hide = true)]
    Hold {
        /// Memory to fill
        size: ByteCount,
        /// For how long, at most
        seconds: u64,
    },
}

/// Options of a step.
#[derive(Debug, Args)]
struct StepOptions {
    name: StepName,
    #[arg(long)]
    seconds: f64,
    #[arg(long)]
    tools: PathBuf,
    /// A folder for files, which is removed when the step is over
    #[arg(long)]
    scratch: Option<PathBuf>,
    #[arg(long)]
    memory: Option<ByteCount>,
}

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(status) => status,
        Err(error) => {
            // If standard error is closed too, only the exit status can report the error.
            let _ = writeln!(io::stderr(), "big: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.part {
        None => driver::run(&cli.driver),
        Some(Part::Step(options)) => {
            steps::run(&options)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Part::Serve { size }) => {
            serve::serve(size)?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Part::Hold { size, seconds }) => {
            serve::hold(size, Duration::from_secs(seconds))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
