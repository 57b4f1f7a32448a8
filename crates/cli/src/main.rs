//! The `superhue` command: parse, call, print.

mod advise_args;
mod args;
mod compare_args;
mod generate;
mod in_two;
mod lab_args;
mod manual;
mod named;
mod output;
mod paint;
mod placement_args;
mod sheet;
mod size_check;
mod stack;
mod targets_args;
mod terminal;
mod tlb_args;
mod top_args;
mod trial_args;
mod undo;
mod utc;
mod values;
mod verb;

use std::process::ExitCode;
use std::sync::OnceLock;

use clap::{CommandFactory, Parser};
use superhue::InheritedState;
use superhue::sys::process::shrug_off;
use superhue::sys::self_filter;

use crate::args::{Cli, Verb};

/// Process state as the caller set it, before Rust's runtime changed it.
static PRESERVED: OnceLock<InheritedState> = OnceLock::new();

/// Run by the dynamic loader, before the runtime ignores `SIGPIPE` and opens closed descriptors.
extern "C" fn preserve() {
    let preserved = InheritedState::now();
    preserved.expect_children();
    let _ = PRESERVED.set(preserved);
}

#[used]
#[allow(unsafe_code, reason = "the only way to run before Rust's runtime")]
#[unsafe(link_section = ".init_array")]
static PRESERVE: extern "C" fn() = preserve;

/// Makes a write to a file at its limit (`ulimit -f`) an error instead of the end of the process.
const SIGXFSZ: i32 = 25;

fn main() -> ExitCode {
    shrug_off(SIGXFSZ);
    see_oneself();
    match in_two::kind(std::env::args_os().skip(1), terminal::is_there()) {
        Some(kind) => {
            if kind == in_two::Kind::Lasting {
                // The supervising process forbids itself the same calls, and the other process inherits that.
                give_up_calls();
            }
            in_two::in_two(kind, || stack::with_room(superhue))
        }
        None => stack::with_room(superhue),
    }
}

/// Lets a program that has capabilities from its file (`setcap`) read its own `/proc/self/pagemap` and the like, which belong to root while it
/// is not dumpable. A process that lacks one of these capabilities still cannot trace it or read its memory (`cap_ptrace_access_check` in
/// security/commoncap.c). A program that runs as another user because of its file stays not dumpable.
fn see_oneself() {
    use rustix::process::{DumpableBehavior, dumpable_behavior, set_dumpable_behavior};
    let is_caller = rustix::process::getuid() == rustix::process::geteuid()
        && rustix::process::getgid() == rustix::process::getegid();
    if is_caller && dumpable_behavior() == Ok(DumpableBehavior::NotDumpable) {
        let _ = set_dumpable_behavior(DumpableBehavior::Dumpable);
    }
}

fn superhue() -> ExitCode {
    let preserved = PRESERVED.get().copied().unwrap_or_default();
    if preserved.closed[1] {
        output::note_closed_stdout();
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and the version are results too.
        Err(asked) if !asked.use_stderr() => {
            let with_examples = manual::with_examples(Cli::command()).try_get_matches();
            let asked = with_examples.err().unwrap_or(asked);
            return output::ended(output::print_styled(&asked.render()));
        }
        Err(wrong) => wrong.exit(),
    };
    if cli.verb.runs_for_long() {
        give_up_calls();
    }
    match &cli.verb {
        Verb::Daemon(args) if !args.check => verb::daemon::start_log(cli.verbose),
        _ => output::start_tracing(cli.verbose),
    }
    let result = match cli.verb {
        Verb::Check(args) => verb::check::check(&args),
        Verb::Run(args) => verb::run::run(args, preserved),
        Verb::Attach(args) => verb::attach::attach(&args),
        Verb::Compare(args) => verb::compare::compare(&args, preserved),
        Verb::Trial(args) => verb::trial::trial(&args),
        Verb::Bench(args) => verb::bench::bench(&args),
        Verb::Lab(args) => verb::lab::lab(&args),
        Verb::Advise(args) => verb::advise::advise(&args),
        Verb::Status(args) => verb::status::status(&args),
        Verb::Heat(args) => verb::heat::heat(&args),
        Verb::Track(args) => verb::track::track(&args),
        Verb::Daemon(args) => verb::daemon::daemon(&args),
        Verb::Ctl(args) => verb::ctl::ctl(&args),
        Verb::Top(args) => verb::top::top(&args),
        Verb::Colors(args) => verb::colors::colors(&args),
        Verb::Restore(args) => verb::restore::restore(&args),
        Verb::Actuator(args) => verb::actuator::actuator(&args),
        Verb::Worker(args) => verb::worker::worker(&args),
        Verb::Completions { shell } => generate::completions(shell),
        Verb::Man { folder } => generate::man_pages(&folder),
    };
    output::ended(result)
}

/// Forbids this process all calls that must never be made on a watched program; see [`self_filter`]. No other thread has started yet.
///
/// Verbs that start the user's commands do not call it: those commands would inherit the filter.
fn give_up_calls() {
    static IS_DONE: OnceLock<()> = OnceLock::new();
    if IS_DONE.set(()).is_err() {
        return;
    }
    if let Err(error) = self_filter::forbid() {
        // No code here makes these calls anyhow: only the proof is lost.
        output::note(&format!(
            "calls that stop or change other programs are not made impossible: {error}"
        ));
    }
}
