//! Runs one step after the other, each in its own process and with a time limit, and ends all processes that the step started.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use superhue::sys::process::SignalSet;
use tempfile::TempDir;

use crate::DriverOptions;
use crate::children::{bound_to_us, end_descendants};
use crate::document::{Document, Line, Outcome};
use crate::machine::Facts;
use crate::plan::{self, StepName};
use crate::steps::{CGROUP_ROOTS, GROUP};

/// Part of each step's time that is reserved for ending it.
const ENDING: Duration = Duration::from_secs(2);

/// Time between two checks for a signal.
const TICK: Duration = Duration::from_millis(100);

/// Time that killed processes may take to end: a process with 100 GiB has many pages to free.
const KILL_TIMEOUT: Duration = Duration::from_secs(20);

/// Measures all steps, or those that `--only` names.
pub fn run(options: &DriverOptions) -> Result<ExitCode> {
    let begun = Instant::now();
    let end = begun + Duration::from_secs(options.seconds);
    let signals = SignalSet::of(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP]);
    let _ = signals.block();
    // Orphans become children of this process. Without this, it would have to search for descendants whose parents have ended.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));

    let own = own_path();
    let tools = options
        .tools
        .clone()
        .or_else(|| Some(own.parent()?.to_path_buf()))
        .unwrap_or_default();
    let facts = Facts::read(
        &tools,
        options.memory,
        Duration::from_secs(options.seconds / 10 + 2),
    );
    let mut document = Document::begin(&options.out, begun, options.seconds, facts)?;
    let steps: Vec<StepName> = StepName::ALL
        .into_iter()
        .filter(|step| options.only.is_empty() || options.only.contains(step))
        .collect();
    let mut signal = None;
    for at in 0..steps.len() {
        let left = steps.get(at..).unwrap_or_default();
        let Some(step) = left.first() else { break };
        let bound = plan::bound(left, end.saturating_duration_since(Instant::now()));
        document.begin_step(*step, bound)?;
        let scratch = scratch();
        let mut command = Command::new(&own);
        command
            .arg("step")
            .arg(step.name())
            .arg("--tools")
            .arg(&tools);
        if let Some(memory) = options.memory {
            command.arg("--memory").arg(memory.0.to_string());
        }
        if let Some(scratch) = &scratch {
            command.arg("--scratch").arg(scratch.path());
        }
        let (outcome, why);
        (outcome, why, signal) = one(command, bound, &signals, &mut document)?;
        end_descendants(KILL_TIMEOUT);
        remove_groups();
        document.end_step(outcome, why)?;
        say(*step, &document, begun);
        if signal.is_some() {
            break;
        }
    }
    document.end()?;
    Ok(if signal.is_some() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

/// Returns the path of this program, also where `/proc/self/exe` cannot be read.
fn own_path() -> PathBuf {
    let named = || std::env::args_os().next().map(PathBuf::from);
    std::env::current_exe()
        .ok()
        .or_else(named)
        .unwrap_or_default()
}

/// Makes a folder that only its owner can write, since the daemon refuses any other, and in which programs can usually be executed.
fn scratch() -> Option<TempDir> {
    let places = [Path::new("/run"), Path::new("/tmp"), Path::new(".")];
    places.into_iter().find_map(|place| {
        tempfile::Builder::new()
            .prefix("superhue-big-")
            .tempdir_in(place.canonicalize().ok()?)
            .ok()
    })
}

/// Removes control groups that a killed step has left. A group that holds a process stays.
fn remove_groups() {
    for root in CGROUP_ROOTS {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(GROUP))
        {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Runs a step. Returns its outcome, the reason, and the signal that ended it.
fn one(
    mut command: Command,
    bound: Duration,
    signals: &SignalSet,
    document: &mut Document,
) -> Result<(Outcome, Option<String>, Option<i32>)> {
    let Some(time) = bound
        .checked_sub(ENDING)
        .filter(|time| *time >= Duration::from_secs(1))
    else {
        return Ok((
            Outcome::Skipped,
            Some("no time is left for it".to_owned()),
            None,
        ));
    };
    command
        .arg("--seconds")
        .arg(format!("{:.3}", time.as_secs_f64()));
    let until = Instant::now() + bound;
    let started = bound_to_us(&mut command)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child =
        started.with_context(|| format!("cannot start {}", command.get_program().display()))?;
    let said = listen(&mut child);
    let mut last_words = String::new();
    loop {
        if let Some(signal) = signals.wait(Duration::ZERO) {
            let _ = child.kill();
            let why = format!("signal {} ended the measurement", signal.number);
            return Ok((Outcome::Cut, Some(why), Some(signal.number)));
        }
        match said.recv_timeout(TICK) {
            Ok(OutputLine::Line(line)) => document.add(line)?,
            Ok(OutputLine::Words(words)) => {
                let _ = writeln!(io::stderr(), "{words}");
                last_words = words;
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The step closed its output: either it has ended, or one of its children still holds the pipe.
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if Instant::now() >= until {
            let _ = child.kill();
            return Ok((Outcome::Cut, Some("its time was over".to_owned()), None));
        }
        if let Some(status) = child.try_wait()? {
            // Lines still in the pipe count. Another process that holds the pipe open does not delay the end.
            while let Ok(said) = said.recv_timeout(TICK) {
                match said {
                    OutputLine::Line(line) => document.add(line)?,
                    OutputLine::Words(words) => last_words = words,
                }
            }
            return Ok(of_status(status, last_words));
        }
    }
    let status = child.wait()?;
    Ok(of_status(status, last_words))
}

fn of_status(status: ExitStatus, last_words: String) -> (Outcome, Option<String>, Option<i32>) {
    if status.success() {
        return (Outcome::Done, None, None);
    }
    (
        Outcome::Failed,
        Some(format!("{status}: {last_words}")),
        None,
    )
}

enum OutputLine {
    Line(Line),
    Words(String),
}

/// Reads the step's output in two threads that end with it.
fn listen(child: &mut Child) -> Receiver<OutputLine> {
    let (sender, said) = channel();
    if let Some(out) = child.stdout.take() {
        let sender = sender.clone();
        thread::spawn(move || {
            for text in BufReader::new(out).lines().map_while(Result::ok) {
                let line = serde_json::from_str(&text)
                    .map_or_else(|_| OutputLine::Words(text), OutputLine::Line);
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
    }
    if let Some(err) = child.stderr.take() {
        thread::spawn(move || {
            for text in BufReader::new(err).lines().map_while(Result::ok) {
                if sender.send(OutputLine::Words(text)).is_err() {
                    return;
                }
            }
        });
    }
    said
}

fn say(step: StepName, document: &Document, begun: Instant) {
    let Some((outcome, rows, why)) = document.last() else {
        return;
    };
    let why = why.map_or_else(String::new, |why| format!(": {why}"));
    let outcome = format!("{outcome:?}").to_lowercase();
    let seconds = begun.elapsed().as_secs_f64();
    let _ = writeln!(
        io::stderr(),
        "big: {seconds:5.0} s  {:<10} {outcome}, {rows} rows{why}",
        step.name()
    );
}
