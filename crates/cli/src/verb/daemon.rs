//! `superhue daemon`.

use std::fmt;
use std::process::ExitCode;

use rustix::io::Errno;
use serde::Serialize;
use superhue::model::words;
use superhue::procfs::Roots;
use superhue::sys::process::SignalSet;
use superhue::sys::signal::signal_descriptor;
use superhue_daemon::config::Problem;
use superhue_daemon::ctl::RuleSummary;
use superhue_daemon::{CheckReport, Daemon, DaemonError, DaemonOptions, check};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::args::DaemonArgs;
use crate::output::{FAILED, Failure, USAGE, VerbResult, note, print_as_it_is, print_json};
use crate::terminal::ENDING;
use crate::undo::recover;
use crate::verb::ctl::rules_table;

#[derive(Serialize)]
struct Document {
    schema: &'static str,
    files: Vec<String>,
    rules: Vec<RuleSummary>,
    warnings: Vec<String>,
    problems: Vec<ProblemEntry>,
}

#[derive(Serialize)]
struct ProblemEntry {
    file: String,
    line: Option<usize>,
    column: Option<usize>,
    text: String,
}

/// Serves until it is ended; or checks the configuration.
pub fn daemon(args: &DaemonArgs) -> VerbResult {
    if args.check {
        return checked(args);
    }
    // From here on these signals make the descriptor readable, whenever they arrive.
    let signals = SignalSet::of(&ENDING);
    let _ = signals.block();
    let failed = |errno: Errno| Failure::new(FAILED, format!("signalfd: {errno}"));
    let signals = signal_descriptor(&signals).map_err(failed)?;
    // An earlier daemon that was killed may have left settings changed.
    recover(false);
    let options = DaemonOptions {
        folder: args.config.clone(),
        socket: args.socket.clone(),
        roots: Roots::default(),
    };
    let mut daemon = Daemon::new(options).map_err(|error| match &error {
        DaemonError::Config(problems) => {
            problems
                .iter()
                .for_each(|problem| note(&problem.to_string()));
            Failure::new(USAGE, "the configuration is wrong")
        }
        _ => Failure::new(FAILED, error),
    })?;
    daemon
        .run(&signals)
        .map_err(|error| Failure::new(FAILED, error))?;
    Ok(ExitCode::SUCCESS)
}

fn checked(args: &DaemonArgs) -> VerbResult {
    let result = check(&args.config, &Roots::default());
    if args.json {
        let wrong = result.is_err();
        print_json(&document(result))?;
        return Ok(if wrong {
            USAGE.into()
        } else {
            ExitCode::SUCCESS
        });
    }
    match result {
        Ok(checked) => {
            checked
                .warnings
                .iter()
                .for_each(|warning| note(&format!("warning: {warning}")));
            print_as_it_is(&rules_table(&shown(&checked), args.width.wide))
        }
        Err(problems) => {
            problems
                .iter()
                .for_each(|problem| note(&problem.to_string()));
            Err(Failure::new(
                USAGE,
                "the configuration is wrong; the daemon would refuse it",
            ))
        }
    }
}

fn document(result: Result<CheckReport, Vec<Problem>>) -> Document {
    let schema = "superhue-daemon-check/1";
    match result {
        Ok(checked) => Document {
            schema,
            rules: shown(&checked),
            files: checked.settings.files,
            warnings: checked.warnings,
            problems: Vec::new(),
        },
        Err(problems) => Document {
            schema,
            files: Vec::new(),
            rules: Vec::new(),
            warnings: Vec::new(),
            problems: problems.into_iter().map(ProblemEntry::from).collect(),
        },
    }
}

fn shown(checked: &CheckReport) -> Vec<RuleSummary> {
    let rules = checked.settings.rules.iter();
    let shown =
        rules.map(|rule| RuleSummary::of(rule, checked.processes.get(&*rule.name).copied()));
    shown.collect()
}

impl From<Problem> for ProblemEntry {
    fn from(problem: Problem) -> Self {
        Self {
            file: problem.file,
            line: problem.at.map(|(line, _)| line),
            column: problem.at.map(|(_, column)| column),
            text: problem.text,
        }
    }
}

/// Logs the daemon's events to standard error: a line for each event, with its facts as `name=value`.
pub fn start_log(verbose: bool) {
    let most = if verbose { Level::DEBUG } else { Level::INFO };
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(most)
        .with_ansi(false)
        .event_format(Lines {
            // Set by systemd if standard error goes to the journal, which takes the priority from the line (sd-daemon(3)).
            for_journal: std::env::var_os("JOURNAL_STREAM").is_some(),
        })
        .init();
}

/// Formats events as lines, without the time, which the journal adds.
struct Lines {
    for_journal: bool,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        match priority(level) {
            priority if self.for_journal => write!(writer, "<{priority}>")?,
            _ => write!(writer, "superhue: {}: ", level.as_str().to_lowercase())?,
        }
        let mut text = String::new();
        context.format_fields(Writer::new(&mut text), event)?;
        writeln!(writer, "{}", words::harmless(&text))
    }
}

/// Returns the priority of a level, as in `syslog(3)`.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}
