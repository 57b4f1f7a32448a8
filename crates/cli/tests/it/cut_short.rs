//! System calls under superhue end as without it: no policy cuts one short, for root's programs and for an ordinary user's.
//!
//! A thread that another process stops, even for a microsecond, sees calls end early: a read of random bytes returns fewer, a wait ends with
//! `EINTR`, a `close` fails. `cut_short/calls.c` makes such calls of all kinds while its memory changes, and prints their results. Its output
//! under superhue must equal its output alone, to the byte. Only superhue's own effect decides: a stop by another program is visible, too
//! ([`a_stop_is_noticed`]).

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use superhue::Pages;

use crate::support::{
    self, ChildGuard, User, collapse_works, compiled, folder, installed, is_root, output, skip,
    text, until,
};

/// Bytes that one read of `dd` requests.
const MUCH: u64 = 64 << 20;

/// The program that makes the calls.
fn calls() -> Option<PathBuf> {
    compiled("cut-short-calls", include_str!("cut_short/calls.c"))
}

/// A file system whose `close` ends with `EINTR` when it is disturbed; unmounted at the end.
struct EintrFileSystem {
    server: ChildGuard,
    mount: tempfile::TempDir,
}

impl EintrFileSystem {
    /// Mounts one; `None`, with a visible skip, where that is impossible.
    fn new() -> Option<Self> {
        let program = compiled("cut-short-closing", include_str!("cut_short/closing.c"))?;
        let mount = folder();
        let mut command = Command::new(program);
        command
            .arg(mount.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut server = ChildGuard::start(&mut command);
        let mut line = String::new();
        let mut said = BufReader::new(server.0.stdout.take().unwrap());
        said.read_line(&mut line).unwrap();
        if line == "mounted\n" {
            return Some(Self { server, mount });
        }
        let mut errors = server.0.stderr.take().unwrap();
        std::io::Read::read_to_string(&mut errors, &mut line).unwrap();
        skip("fuse", line.trim());
        None
    }

    fn file(&self) -> PathBuf {
        self.mount.path().join("file")
    }
}

impl Drop for EintrFileSystem {
    fn drop(&mut self) {
        // The end of its input; a server that is killed would leave the mount behind.
        drop(self.server.0.stdin.take());
        self.server.wait();
    }
}

/// All at once: calls of all kinds, a pipeline, and one long read by a program that is not ours.
///
/// `WAIT` is for the shell: the programs that it starts then begin at once.
fn script(calls: &Path, closing: Option<&EintrFileSystem>) -> String {
    let calls = calls.display();
    let file = closing.map_or_else(String::new, |closing| closing.file().display().to_string());
    format!(
        "[ -z \"$WAIT\" ] || read go; unset WAIT; cd \"$D\" || exit 9
         {calls} all 0.6 {file} >all 2>&1 &
         {{ {calls} write | wc -c; }} >write 2>&1 &
         dd if=/dev/urandom of=/dev/null bs={MUCH} count=1 2>dd &
         wait; cat all write; head -n 2 dd"
    )
}

/// Returns the output and the status of one run of the script.
fn said(output: &Output) -> String {
    format!(
        "{}{}{:?}",
        text(&output.stdout),
        text(&output.stderr),
        output.status
    )
}

/// Sets up the shell that runs the script; `place` is a folder that it may write to.
fn shell(command: &mut Command, script: &str, place: &Path) {
    command.args(["sh", "-c", script]).env("D", place);
}

fn alone(user: User, script: &str) -> String {
    let place = folder();
    let mut command = Command::new("env");
    shell(&mut command, script, place.path());
    user.run(command.stdin(Stdio::null()));
    said(&output(&mut command))
}

/// A superhue, and its user.
#[derive(Debug, Clone)]
struct Watcher {
    user: User,
    program: PathBuf,
}

impl Watcher {
    fn of(user: User) -> Self {
        Self {
            user,
            program: installed().join("superhue"),
        }
    }

    /// Runs as an ordinary user that may still make huge pages, by capabilities of its file; `None`, with a visible skip, where that is impossible.
    fn capable(folder: &Path) -> Option<Self> {
        let program = folder.join("superhue");
        support::copy_program(&installed().join("superhue"), &program);
        let set = Command::new("setcap")
            .arg("cap_sys_nice,cap_sys_ptrace+ep")
            .arg(&program)
            .output();
        match set {
            Ok(set) if set.status.success() => Some(Self {
                user: User::Ordinary,
                program,
            }),
            set => {
                skip("setcap", &format!("{set:?}"));
                None
            }
        }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command
            .args(arguments)
            .current_dir("/")
            .stdin(Stdio::null());
        self.user.run(&mut command);
        command
    }
}

/// The options of every policy, and of none; and those of page colors.
fn ways() -> Vec<Vec<&'static str>> {
    let policies = Pages::ALL.iter().map(|pages| vec!["--pages", pages.name()]);
    let others = [vec![], vec!["--colors", "spread"]];
    policies.chain(others).collect()
}

/// Returns the output of the script, and the number of huge pages made meanwhile. `None`, with a visible skip, if
/// superhue cannot do what the options require, so that nothing ran.
fn under_run(watcher: &Watcher, options: &[&str], script: &str) -> Option<(String, u64)> {
    let place = folder();
    let report = place.path().join("report.json");
    let mut command = watcher.command(&["run", "--quiet", "--report"]);
    command.arg(&report).args(options).arg("--");
    shell(&mut command, script, place.path());
    let output = output(&mut command);
    if output.status.code() == Some(125) && output.stdout.is_empty() {
        skip(&format!("run {options:?}"), text(&output.stderr).trim());
        return None;
    }
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let made = report["collapses"]["done"].as_u64().unwrap();
    Some((said(&output), made))
}

/// Starts the program as `user` without superhue, and watches it before it begins. `None`, with a visible skip, where that is impossible.
fn under_attach(user: User, watcher: &Watcher, options: &[&str], script: &str) -> Option<String> {
    let place = folder();
    let mut command = Command::new("env");
    shell(&mut command, script, place.path());
    command
        .env("WAIT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    user.run(&mut command);
    let mut program = ChildGuard::start(&mut command);
    let attached = AttachProcess::new(watcher, options, program.pid())?;
    program.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut read = (Vec::new(), Vec::new());
    std::io::Read::read_to_end(&mut program.0.stdout.take().unwrap(), &mut read.0).unwrap();
    std::io::Read::read_to_end(&mut program.0.stderr.take().unwrap(), &mut read.1).unwrap();
    let status = program.wait();
    attached.end();
    let (stdout, stderr) = read;
    Some(said(&Output {
        status,
        stdout,
        stderr,
    }))
}

/// A `superhue attach`, and its standard error.
struct AttachProcess {
    superhue: ChildGuard,
    rest: thread::JoinHandle<Vec<String>>,
}

impl AttachProcess {
    /// Attaches to `pid`, which is watched when this returns; `None`, with a visible skip, where this machine cannot.
    fn new(watcher: &Watcher, options: &[&str], pid: u32) -> Option<Self> {
        let mut command = watcher.command(&["attach"]);
        command
            .args(options)
            .arg(pid.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut superhue = ChildGuard::start(&mut command);
        let lines = BufReader::new(superhue.0.stderr.take().unwrap()).lines();
        let mut lines = lines.map_while(Result::ok);
        let mut heard = Vec::new();
        for line in lines.by_ref() {
            let is_there = line.contains("attached to");
            heard.push(line);
            if is_there {
                let rest = thread::spawn(|| lines.collect());
                return Some(Self { superhue, rest });
            }
        }
        assert_eq!(superhue.wait().code(), Some(3), "{options:?}: {heard:#?}");
        skip(&format!("attach {options:?}"), &heard.join(" "));
        None
    }

    /// Waits for its end, which comes after that of the program.
    fn end(mut self) {
        let status = self.superhue.wait();
        assert!(status.success(), "{status}: {:#?}", self.rest.join());
    }
}

fn users() -> Vec<User> {
    if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Same]
    }
}

#[test]
fn calls_end_as_without() {
    let Some(calls) = calls() else { return };
    let closing = EintrFileSystem::new();
    let script = &script(&calls, closing.as_ref());
    let differences: Vec<String> = thread::scope(|scope| {
        let users: Vec<_> = users()
            .into_iter()
            .map(|user| scope.spawn(move || differences_of(user, script)))
            .collect();
        let found = users.into_iter().map(|user| user.join().unwrap());
        found.flatten().collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns the differences with and without superhue for programs of `user`.
fn differences_of(user: User, script: &str) -> Vec<String> {
    let plain = alone(user, script);
    println!("{user:?}: {plain}");
    // Without superhue there must be no early end, and no errors: else the comparison shows nothing.
    assert!(
        !plain.contains("early") && plain.contains("67108864\n1+0 records in"),
        "{plain}"
    );
    let mut differences = Vec::new();
    let mut compare = |way: String, under: Option<String>| {
        if let Some(under) = under.filter(|under| *under != plain) {
            differences.push(format!("{way} ({user:?}):\n{under}"));
        }
    };
    let folder = folder();
    let mut watchers = vec![Watcher::of(user)];
    if user == User::Ordinary {
        watchers.extend(Watcher::capable(folder.path()));
    }
    let mut made = 0;
    for watcher in &watchers {
        for options in ways() {
            let under = under_run(watcher, &options, script);
            made += under.as_ref().map_or(0, |(_, made)| *made);
            let under = under.map(|(said, _)| said);
            compare(format!("run {options:?} by {watcher:?}"), under);
        }
    }
    println!("{user:?}: {made} huge pages were made");
    // Else superhue did nothing that could have disturbed a program.
    let may_make = user == User::Same && is_root() || watchers.len() > 1;
    assert!(made > 0 || !may_make || !collapse_works());
    // Root also watches other users' programs: by attach for a while, by the daemon all day.
    if user == User::Ordinary {
        watchers.push(Watcher::of(User::Same));
    }
    for watcher in &watchers {
        for options in [["--pages", "resident"], ["--pages", "hot"]] {
            let under = under_attach(user, watcher, &options, script);
            compare(format!("attach {options:?} by {watcher:?}"), under);
        }
    }
    differences
}

/// Without this the test above could not fail: the calls must show any stop.
#[test]
fn a_stop_is_noticed() {
    let Some(calls) = calls() else { return };
    let mut command = Command::new(&calls);
    command.args(["all", "2"]).stdout(Stdio::piped());
    let mut program = ChildGuard::start(&mut command);
    // Until its end: on a busy machine it may begin its calls late.
    let status = until("it has ended", || {
        thread::sleep(Duration::from_millis(20));
        program.signal(Signal::STOP);
        thread::sleep(Duration::from_millis(1));
        program.signal(Signal::CONT);
        program.0.try_wait().unwrap()
    });
    let mut said = String::new();
    std::io::Read::read_to_string(&mut program.0.stdout.take().unwrap(), &mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    let cut = said.lines().filter(|line| line.contains("ended early"));
    assert!(cut.count() > 0, "{said}");
}

/// Returns true if `tool` is installed.
fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output();
    if found.is_err() {
        skip(tool, &format!("no {tool}"));
    }
    found.is_ok()
}

/// Returns a program's calls as strace sees them: how often each returned which result.
fn traced(calls: &Path, options: Option<&[&str]>) -> Vec<String> {
    let folder = folder();
    let log = folder.path().join("log");
    let mut command = Command::new("strace");
    command
        .args([
            "-f",
            "-qq",
            "-e",
            "trace=getrandom,read,write,pipe2,clock_nanosleep",
        ])
        .args(["-e", "signal=all", "-o"])
        .arg(&log)
        .arg(calls)
        .arg("count")
        .env("WAIT", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut tracer = ChildGuard::start(&mut command);
    let program = until("strace has started it", || {
        let threads = format!("/proc/{0}/task/{0}/children", tracer.pid());
        let child: u32 = fs::read_to_string(threads).ok()?.trim().parse().ok()?;
        let is_program = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        is_program.starts_with("cut-short").then_some(child)
    });
    let attached = options
        .map(|options| AttachProcess::new(&Watcher::of(User::Same), options, program).unwrap());
    tracer.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut tracer.0.stdout.take().unwrap(), &mut said).unwrap();
    assert!(tracer.wait().success(), "{options:?}: {said}");
    assert_eq!(said, "counted\n");
    if let Some(attached) = attached {
        attached.end();
    }
    let log = fs::read_to_string(&log).unwrap();
    // Of `PID name(arguments) = result`, keeps the name and the result; another line is a signal, or a call in two parts.
    let mut seen: Vec<String> = log
        .lines()
        .map(|line| {
            let line = line
                .split_once(' ')
                .map_or(line, |(_, rest)| rest.trim_start());
            match (line.split_once('('), line.rsplit_once(" = ")) {
                (Some((name, _)), Some((_, result))) => format!("{name} = {result}"),
                _ => line.to_owned(),
            }
        })
        .collect();
    seen.sort_unstable();
    seen
}

#[test]
fn a_program_that_strace_follows_is_followed_as_before() {
    let (Some(calls), true) = (calls(), has("strace")) else {
        return;
    };
    let alone = traced(&calls, None);
    let long = alone.iter().filter(|line| *line == "getrandom = 1048576");
    assert_eq!(long.count(), 100, "{alone:#?}");
    for options in [&[][..], &["--pages", "resident"]] {
        let under = traced(&calls, Some(options));
        assert!(under == alone, "{options:?}: {under:#?}");
    }
}

#[test]
fn a_program_that_gdb_runs_is_run_as_before() {
    let (Some(calls), true) = (calls(), has("gdb")) else {
        return;
    };
    let folder = folder();
    let line = folder.path().join("line");
    // The program waits for its line in a FIFO; gdb counts how often a function is called meanwhile.
    let made = Command::new("mkfifo").arg(&line).status().unwrap();
    assert!(made.success());
    let run = |options: Option<&[&str]>| {
        let begin = format!("run count <{}", line.display());
        let mut command = Command::new("gdb");
        command
            .args(["-q", "-batch", "-ex", "set startup-with-shell on"])
            .args(["-ex", "break filled", "-ex", "ignore 1 100000"])
            .args(["-ex", &begin, "-ex", "info breakpoints"])
            .arg(&calls)
            .env("WAIT", "1")
            .env("DEBUGINFOD_URLS", "")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut debugger = ChildGuard::start(&mut command);
        // The open succeeds once the program has opened the other end.
        let mut to_program = fs::OpenOptions::new().write(true).open(&line).unwrap();
        let program = until("gdb has started it", || {
            let found = fs::read_dir("/proc").unwrap().flatten();
            let mut pids = found.filter_map(|one| one.file_name().to_str()?.parse::<u32>().ok());
            pids.find(|pid| {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                let is_traced = status.contains(&format!("\nTracerPid:\t{}\n", debugger.pid()));
                is_traced && status.starts_with("Name:\tcut-short-calls\n")
            })
        });
        let attached = options
            .map(|options| AttachProcess::new(&Watcher::of(User::Same), options, program).unwrap());
        to_program.write_all(b"\n").unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(&mut debugger.0.stdout.take().unwrap(), &mut said).unwrap();
        assert!(debugger.wait().success(), "{said}");
        if let Some(attached) = attached {
            attached.end();
        }
        said
    };
    let alone = run(None);
    assert!(alone.contains("exited normally"), "{alone}");
    assert!(alone.contains("breakpoint already hit"), "{alone}");
    let process = |said: &str| {
        // Drops the number of the process, which differs.
        let lines = said
            .lines()
            .map(|line| line.split(" (process ").next().unwrap());
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    for options in [&[][..], &["--pages", "resident"]] {
        let under = run(Some(options));
        assert_eq!(process(&under), process(&alone), "{options:?}");
    }
}
