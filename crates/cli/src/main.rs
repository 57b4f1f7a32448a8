//! The `superhue` command: parse, call, print.

mod args;
mod generate;
mod output;
mod size_check;
mod verb;

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::Parser;
use superhue::Preserved;

use crate::args::{Cli, Verb};

/// What the caller gave this process before Rust's runtime changed it.
static PRESERVED: OnceLock<Preserved> = OnceLock::new();

/// Run by the dynamic loader, before the runtime ignores `SIGPIPE` and opens closed descriptors.
extern "C" fn preserve() {
    let preserved = Preserved::now();
    preserved.expect_children();
    let _ = PRESERVED.set(preserved);
}

#[used]
#[allow(unsafe_code, reason = "the only way to run before Rust's runtime")]
#[unsafe(link_section = ".init_array")]
static PRESERVE: extern "C" fn() = preserve;

fn main() -> ExitCode {
    let cli = Cli::parse();
    output::start_tracing(cli.verbose);
    let preserved = PRESERVED.get().copied().unwrap_or_default();
    let result = match cli.verb {
        Verb::Check(args) => verb::check::check(&args),
        Verb::Run(args) => verb::run::run(args, preserved),
        Verb::Attach(args) => verb::attach::attach(&args),
        Verb::Compare(args) => verb::compare::compare(args, preserved),
        Verb::Bench(args) => verb::bench::bench(&args),
        Verb::Status(args) => verb::status::status(&args),
        Verb::Heat(args) => verb::heat::heat(&args),
        Verb::Track(args) => verb::track::track(&args),
        Verb::Colors(args) => verb::colors::colors(&args),
        Verb::Restore(args) => verb::restore::restore(&args),
        Verb::Visitor => verb::visitor::visitor(),
        Verb::Completions { shell } => generate::completions(shell),
        Verb::Man { folder } => generate::man_pages(&folder),
    };
    match result {
        Ok(code) => code,
        Err(failure) => {
            output::note(&failure.text);
            failure.code
        }
    }
}
