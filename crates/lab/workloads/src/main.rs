//! `superhue-workload`: one memory workload, or a load on a key-value server, per subcommand.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use superhue_workloads::{
    Report, UsageError, chase, churn, dense, grow, hold, load, moving, paced, pattern, prefork,
    sparse, stalls, tree, unhelped, verify, waste,
};

/// Programs that use memory in known ways, and report the results as `name value` lines
///
/// Exit status: 0 done, 1 failed (or found wrong memory or values), 2 usage.
#[derive(Debug, Parser)]
#[command(name = "superhue-workload", version)]
struct Cli {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    /// Random loads over memory of which every page is in use: huge pages suit it
    Dense(dense::DenseOptions),
    /// A little of every 2 MiB in use: huge pages only bloat it
    Sparse(sparse::SparseOptions),
    /// Reads and writes page by page: all in sequence, all at random, or a third at random
    Pattern(pattern::PatternOptions),
    /// Random accesses to a part of the memory that moves every ten seconds
    Moving(moving::MovingOptions),
    /// Accesses at a given rate to memory that is not quite full
    Paced(paced::PacedOptions),
    /// Most of the memory nearly full and cold: huge pages there add memory and no speed
    Waste(waste::WasteOptions),
    /// Work in blocks that the first TLB maps: huge pages make no difference
    Unhelped(unhelped::UnhelpedOptions),
    /// A pointer chase over a few pages scattered in much memory: their colors decide
    Chase(chase::ChaseOptions),
    /// Fill memory, then sleep
    Hold(hold::HoldOptions),
    /// Fill memory step by step
    Grow(grow::GrowOptions),
    /// Map, fill and unmap memory over and over
    Churn(churn::ChurnOptions),
    /// Write memory and check it, over and over, while another process moves its pages
    Verify(verify::VerifyOptions),
    /// Renew memory part by part, and measure how long page faults are held up meanwhile
    Stalls(stalls::StallOptions),
    /// A tree of forked processes, each with memory of its own
    Tree(tree::TreeOptions),
    /// Memory filled once and read by forked processes: copies of it are waste
    Prefork(prefork::PreforkOptions),
    /// Zipfian reads from a memcached or redis server on this machine
    Load(load::LoadOptions),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli.workload) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<UsageError>() => Cli::command()
            .error(ErrorKind::ValueValidation, error)
            .exit(),
        Err(error) => {
            // If writing to standard error fails, only the exit status is left.
            let _ = writeln!(io::stderr(), "superhue-workload: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(workload: &Workload) -> Result<()> {
    let mut report = Report::new(io::stdout());
    match workload {
        Workload::Dense(options) => dense::run(options, &mut report),
        Workload::Sparse(options) => sparse::run(options, &mut report),
        Workload::Pattern(options) => pattern::run(options, &mut report),
        Workload::Moving(options) => moving::run(options, &mut report),
        Workload::Paced(options) => paced::run(options, &mut report),
        Workload::Waste(options) => waste::run(options, &mut report),
        Workload::Unhelped(options) => unhelped::run(options, &mut report),
        Workload::Chase(options) => chase::run(options, &mut report),
        Workload::Hold(options) => hold::run(options, &mut report),
        Workload::Grow(options) => grow::run(options, &mut report),
        Workload::Churn(options) => churn::run(options, &mut report),
        Workload::Verify(options) => verify::run(options, &mut report),
        Workload::Stalls(options) => stalls::run(options, &mut report),
        Workload::Tree(options) => tree::run(options, &mut report),
        Workload::Prefork(options) => prefork::run(options, &mut report),
        Workload::Load(options) => load::run(options, &mut report),
    }
}
