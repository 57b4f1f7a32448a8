//! Tracking under difficulties: the kernel refuses, targets change or stand still, superhue is killed. It reports the
//! reason and a remedy, or continues without; the target is never affected.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self, ChildGuard, Freezer, User, folder, installed, is_root, output, python, sampled, skip,
    state, sticky_folder, superhue, text, until,
};

/// Fills 24 MiB with a pattern and works on it until SIGTERM; succeeds only if the pattern is intact. Arguments: a file
/// that appears when it begins, the number of times it executes itself before it stays, and the number of children it
/// forks for each round of work.
const WORKER: &str = r#"
import mmap, os, signal, sys, time
ready, execs, forks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
PAGES = 6144
def word(page): return (page * 2654435761 % 2**32).to_bytes(8, "little")
m = mmap.mmap(-1, PAGES * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
m.madvise(14)
for page in range(PAGES): m[page * 4096:page * 4096 + 8] = word(page)
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
open(ready, "w").close()
def check(pages):
    return all(m[page * 4096:page * 4096 + 8] == word(page) for page in pages)
if execs:
    check(range(PAGES)) or sys.exit(42)
    os.execv(sys.executable, [sys.executable, "-c", os.environ["WORKER"], ready, str(execs - 1), "0"])
while not over:
    check(range(PAGES // 2)) or sys.exit(42)
    for _ in range(forks):
        child = os.fork()
        if child == 0:
            for page in range(PAGES // 2): m[page * 4096 + 8] = 1
            os._exit(0 if check(range(PAGES)) else 42)
        if os.waitpid(child, 0)[1]: sys.exit(43)
sys.exit(0 if check(range(PAGES)) and not any(m[page * 4096 + 8] for page in range(PAGES)) else 42)
"#;

/// Fills three of four pages of 24 MiB, and stays until it is ended. Argument: a file that appears then.
const HOLES: &str = r#"
import mmap, signal, sys
m = mmap.mmap(-1, 24 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(6144):
    if page % 4: m[page * 4096] = 1
open(sys.argv[1], "w").close()
signal.pause()
"#;

/// A process that checks its own memory all the time.
struct Worker {
    process: ChildGuard,
    /// True if it executes itself: it then has no signal handler for a while after each execution.
    executes: bool,
    _folder: tempfile::TempDir,
}

impl Worker {
    fn start(execs: u32, forks: u32) -> Option<Self> {
        let python = python()?;
        let folder = folder();
        let ready = folder.path().join("ready");
        let mut command = Command::new(python);
        command
            .args(["-c", WORKER])
            .arg(&ready)
            .args([execs.to_string(), forks.to_string()])
            .env("WORKER", WORKER);
        let process = ChildGuard::start(&mut command);
        until("the worker works", || ready.exists().then_some(()));
        Some(Self {
            process,
            executes: execs > 0,
            _folder: folder,
        })
    }

    fn pid(&self) -> String {
        self.process.pid().to_string()
    }

    /// Ends it; fails if anything in its memory has changed.
    fn end_unharmed(mut self) {
        assert_eq!(
            self.process.0.try_wait().unwrap(),
            None,
            "it ended by itself"
        );
        self.process.signal(Signal::TERM);
        if !self.executes {
            assert!(self.process.wait().success());
            return;
        }
        // The next execution forgets a handler that recorded the signal.
        let status = until("it ends", || {
            self.process.signal(Signal::TERM);
            self.process.0.try_wait().unwrap()
        });
        assert_eq!(status.signal(), Some(15), "{status}");
    }
}

/// Fails unless superhue prints one line with these words, exits with `status` and prints nothing else.
#[track_caller]
fn refused(said: &Output, status: i32, words: &[&str]) {
    let error = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{error}");
    assert_eq!(error.lines().count(), 1, "not one line: {error}");
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert_eq!(text(&said.stdout), "");
}

/// Runs superhue through other programs, which change its circumstances.
fn by(program: &[&str], arguments: &[&str]) -> Output {
    let (first, rest) = program.split_first().unwrap();
    let mut command = Command::new(first);
    command
        .args(rest)
        .arg(installed().join("superhue"))
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null());
    output(&mut command)
}

/// Runs superhue after a shell has changed a mount namespace of its own; `None`, with a visible skip, where that is
/// impossible.
fn mounted(preparation: &str, arguments: &[&str]) -> Option<Output> {
    let script = format!("({preparation}) >/dev/null 2>&1 || exit 77; exec \"$@\"");
    let said = by(
        &["unshare", "--mount", "sh", "-c", &script, "sh"],
        arguments,
    );
    if !is_root() || said.status.code() == Some(77) {
        skip("mount-namespace", &format!("cannot: {preparation}"));
        return None;
    }
    Some(said)
}

/// Returns true if accesses can be tracked here, by trying it.
fn tracks(pid: &str) -> bool {
    let said = heated(pid);
    if said.status.code() == Some(3) {
        skip("ptwalk", text(&said.stderr).trim());
        return false;
    }
    assert!(said.status.success(), "{}", text(&said.stderr));
    true
}

/// Arguments that take many samples.
fn heat<'a>(pid: &'a str, duration: &'a str) -> [&'a str; 11] {
    [
        "heat",
        pid,
        "--tracker",
        "ptwalk",
        "--json",
        "--interval",
        "20ms",
        "--max-overhead",
        "100%",
        "--for",
        duration,
    ]
}

/// Watches a process until a sample is complete.
fn heated(pid: &str) -> Output {
    sampled(|time| output(&mut superhue(User::Same, &heat(pid, time))))
}

fn attach<'a>(pid: &'a str, duration: &'a str) -> [&'a str; 10] {
    [
        "attach",
        pid,
        "--json",
        "--max-overhead",
        "100%",
        "--budget",
        "100%",
        "--no-follow",
        "--for",
        duration,
    ]
}

/// Arguments of a policy that samples whatever it watches; the default policy does so only where samples can decide something.
fn attach_hot<'a>(pid: &'a str, duration: &'a str) -> Vec<&'a str> {
    [&attach(pid, duration)[..], &["--pages", "hot"]].concat()
}

/// Returns the report of a successful `attach`.
fn report(said: &Output) -> Value {
    assert!(said.status.success(), "{}", text(&said.stderr));
    serde_json::from_slice(&said.stdout).unwrap()
}

/// Returns the report of an `attach` that ran until `is_told` accepts it. The time of the first sample depends on the
/// machine, and cannot be seen from outside: if it is missing, the next attempt runs longer.
#[track_caller]
fn told(run: impl Fn(&str) -> Output, is_told: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    for duration in ["500ms", "4s", "20s"] {
        last = report(&run(duration));
        if is_told(&last["tracking"]) {
            return last;
        }
    }
    panic!("never told: {}", last["tracking"]);
}

/// Checks that a process is sampled without an obstacle.
#[track_caller]
fn is_sampled(pid: &str) -> Value {
    let run = |duration: &str| output(&mut superhue(User::Same, &attach_hot(pid, duration)));
    let report = told(run, |tracking| {
        tracking["samples"].as_u64().unwrap() > 0 || tracking["untracked"] != serde_json::json!({})
    });
    let untracked = &report["tracking"]["untracked"];
    assert_eq!(*untracked, serde_json::json!({}));
    report
}

/// Checks an obstacle to tracking: it ends `heat`, `track`, and a policy that an option requires; a default policy is
/// replaced by one without a tracker, and the report gives the reason.
fn fails_for(reason: &str, run: impl Fn(&[&str]) -> Option<Output>) {
    let Some(worker) = Worker::start(0, 0) else {
        return;
    };
    let pid = worker.pid();
    let folder = sticky_folder();
    let socket = folder.path().join("track.sock");
    let socket = socket.to_str().unwrap();
    for arguments in [
        &["heat", &pid, "--tracker", "ptwalk"][..],
        &["attach", &pid, "--tracker", "ptwalk", "--for", "50ms"],
        &["track", "--tracker", "ptwalk", "--socket", socket],
    ] {
        let Some(said) = run(arguments) else { return };
        refused(&said, 3, &["ptwalk", reason]);
    }
    assert!(!Path::new(socket).exists());
    let trace = folder.path().join("trace");
    let trace = trace.to_str().unwrap();
    let command = ["run", "--tracker", "ptwalk", "--", "touch", trace];
    let said = run(&command).unwrap();
    refused(&said, 125, &["ptwalk", reason]);
    assert!(!Path::new(trace).exists(), "the command was run");

    worker.end_unharmed();
    falls_back_for(reason, run);
}

/// Returns a process whose memory has holes, which the default policy needs evidence for.
fn with_holes() -> Option<(ChildGuard, tempfile::TempDir)> {
    let python = python()?;
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !mode.is_ok_and(|mode| mode.contains("[madvise]")) {
        // Elsewhere there are no holes, or no huge pages.
        skip("thp-madvise", "the system-wide mode is not madvise");
        return None;
    }
    let folder = folder();
    let ready = folder.path().join("ready");
    let mut command = Command::new(python);
    let holes = ChildGuard::start(command.args(["-c", HOLES]).arg(&ready));
    until("its memory has holes", || ready.exists().then_some(()));
    Some((holes, folder))
}

/// Checks that the default policy continues without a tracker once it wants one, and gives the reason.
fn falls_back_for(reason: &str, run: impl Fn(&[&str]) -> Option<Output>) {
    let Some((holes, _folder)) = with_holes() else {
        return;
    };
    let pid = holes.pid().to_string();
    let mut last = Value::Null;
    for duration in ["1s", "4s", "20s"] {
        last = report(&run(&attach(&pid, duration)).unwrap());
        let because = last["pages_because"].as_str().unwrap();
        if because.contains(reason) {
            assert_eq!(last["pages"], "auto");
            // Another tracker may be available, such as DAMON.
            let is_untracked = last["tracking"].is_null();
            if !is_untracked || last["collapses"]["done"].as_u64() > Some(0) {
                return;
            }
        }
    }
    panic!("{reason}: {}, {}", last["pages_because"], last["collapses"]);
}

#[test]
fn the_default_tracks_memory_with_holes() {
    let Some((holes, _folder)) = with_holes() else {
        return;
    };
    let pid = holes.pid().to_string();
    if tracks(&pid) {
        let run = |duration: &str| output(&mut superhue(User::Same, &attach(&pid, duration)));
        let report = told(run, |tracking| tracking["samples"].as_u64() > Some(0));
        assert_eq!(report["pages"], "auto");
    }
}

#[test]
fn without_capabilities_for_bpf() {
    if !is_root() {
        return skip("root", "capabilities are given up by root here");
    }
    let set = "--bounding-set=-bpf,-perfmon,-sys_admin";
    let inherited = "--inh-caps=-bpf,-perfmon,-sys_admin";
    fails_for("CAP_BPF and CAP_PERFMON", |arguments| {
        let said = by(&["setpriv", set, inherited], arguments);
        if text(&said.stderr).contains("setpriv: ") {
            skip("setpriv", text(&said.stderr).trim());
            return None;
        }
        Some(said)
    });
}

#[test]
fn without_types_of_the_kernel() {
    fails_for("CONFIG_DEBUG_INFO_BTF", |arguments| {
        mounted("mount -t tmpfs none /sys/kernel/btf", arguments)
    });
}

/// As in containers, whose `/proc` is often read-only in part or whole.
#[test]
fn where_accessed_bits_may_not_be_cleared() {
    let Some(worker) = Worker::start(0, 0) else {
        return;
    };
    let pid = worker.pid();
    if !tracks(&pid) {
        return;
    }
    let read_only = "mount -o remount,bind,ro /proc";
    let words = ["clear_refs", "mount /proc writable"];
    if mounted(read_only, &["check"]).is_none() {
        return;
    }
    let said = sampled(|time| mounted(read_only, &heat(&pid, time)).unwrap());
    refused(&said, 3, &words);
    // The machine can track, but not this process: the report names it, and it is left alone.
    let run = |duration: &str| mounted(read_only, &attach_hot(&pid, duration)).unwrap();
    let report = told(run, |tracking| {
        tracking["untracked"] != serde_json::json!({})
    });
    assert_eq!(report["tracking"]["samples"], 0);
    let untracked = report["tracking"]["untracked"].to_string();
    for word in words {
        assert!(untracked.contains(word), "{untracked}");
    }
    worker.end_unharmed();
}

#[test]
fn numbers_of_another_pid_namespace_are_refused() {
    let within = ["unshare", "--pid", "--fork"];
    let folder = folder();
    let trace = folder.path().join("trace");
    let said = by(&within, &["run", "touch", trace.to_str().unwrap()]);
    if text(&said.stderr).contains("unshare: ") {
        return skip("pid-namespace", text(&said.stderr).trim());
    }
    // Superhue would watch the process with that number outside, and act on the one with that number inside.
    let words = ["another PID namespace", "--mount-proc"];
    refused(&said, 125, &words);
    assert!(!trace.exists(), "the command was run");
    let own = std::process::id().to_string();
    for arguments in [&["attach", &own][..], &["heat", &own]] {
        refused(&by(&within, arguments), 3, &words);
    }
}

#[test]
fn a_process_in_a_pid_namespace_of_its_own_is_tracked() {
    let Some(python) = python() else { return };
    let folder = folder();
    let ready = folder.path().join("ready");
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args([python, "-c", WORKER])
        .arg(&ready)
        .args(["0", "0"])
        .stderr(Stdio::null());
    let mut outer = ChildGuard::start(&mut command);
    let started = until("the worker works", || {
        let ended = outer.0.try_wait().unwrap().is_some();
        (ended || ready.exists()).then_some(!ended)
    });
    if !started {
        return skip("pid-namespace", "unshare may not make one");
    }
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    let inner = fs::read_to_string(children).unwrap().trim().to_owned();
    if !tracks(&inner) {
        return;
    }
    assert_eq!(is_sampled(&inner)["processes"]["seen"], 1);
    // The first process in its namespace: from outside it takes only signals for which it has a handler.
    support::send(inner.parse().unwrap(), Signal::TERM);
    assert!(outer.wait().success());
}

/// Watches a process that stands still: the watch does not wait for it, and its memory may be placed.
fn watch_still(pid: &str) {
    let said = heated(pid);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let seen: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(seen["hot_set"]["bytes_50"], Value::Null, "it stands still");
    assert!(seen["hot_set"]["resident_bytes"].as_u64().unwrap() > 24 << 20);
    let mut resident = attach(pid, "500ms").to_vec();
    resident.extend(["--pages", "resident"]);
    for arguments in [&attach(pid, "300ms")[..], &resident] {
        let said = output(&mut superhue(User::Same, arguments));
        assert_eq!(report(&said)["processes"]["seen"], 1);
    }
}

#[test]
fn a_stopped_process_is_watched_and_goes_on() {
    let Some(worker) = Worker::start(0, 0) else {
        return;
    };
    let pid = worker.pid();
    if !tracks(&pid) {
        return;
    }
    worker.process.signal(Signal::STOP);
    until("it stops", || {
        (state(worker.process.pid()) == Some('T')).then_some(())
    });
    watch_still(&pid);
    assert_eq!(state(worker.process.pid()), Some('T'), "it was woken");
    worker.process.signal(Signal::CONT);
    worker.end_unharmed();
}

#[test]
fn a_frozen_process_is_watched_and_goes_on() {
    for version in [1, 2] {
        let Some(worker) = Worker::start(0, 0) else {
            return;
        };
        let pid = worker.pid();
        if !tracks(&pid) {
            return;
        }
        // Dropped before the process, which could not be ended.
        let Some(freezer) = Freezer::new(version) else {
            continue;
        };
        freezer.take(worker.process.pid());
        freezer.freeze(true);
        watch_still(&pid);
        freezer.freeze(false);
        worker.end_unharmed();
    }
}

#[test]
fn a_process_that_executes_itself_again_and_again_is_followed() {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    if !tracks(&sleeper.pid().to_string()) {
        return;
    }
    let Some(worker) = Worker::start(1_000_000, 0) else {
        return;
    };
    let pid = worker.pid();
    let said = output(&mut superhue(User::Same, &heat(&pid, "1s")));
    // If no sample fell between two executions, the error reports that.
    if !said.status.success() {
        assert_eq!(said.status.code(), Some(1), "{}", text(&said.stderr));
        let error = text(&said.stderr);
        assert!(error.contains("no sample"), "{error}");
    }
    let said = output(&mut superhue(User::Same, &attach(&pid, "1s")));
    assert_eq!(report(&said)["processes"]["seen"], 1);
    worker.end_unharmed();
}

#[test]
fn a_process_that_forks_all_the_time_is_followed() {
    let Some(worker) = Worker::start(0, 3) else {
        return;
    };
    let pid = worker.pid();
    if !tracks(&pid) {
        return;
    }
    let mut arguments = attach(&pid, "1500ms").to_vec();
    arguments.retain(|&one| one != "--no-follow");
    let report = report(&output(&mut superhue(User::Same, &arguments)));
    assert!(report["processes"]["seen"].as_u64().unwrap() >= 1);
    let said = heated(&pid);
    assert!(said.status.success(), "{}", text(&said.stderr));
    worker.end_unharmed();
}

/// All that superhue holds ends with it, so the next one tracks the same process at once.
#[test]
fn superhue_may_be_killed_at_any_moment() {
    let Some(worker) = Worker::start(0, 0) else {
        return;
    };
    let pid = worker.pid();
    if !tracks(&pid) {
        return;
    }
    let folder = folder();
    let kept = folder.path().join("report.json");
    fs::write(&kept, "kept").unwrap();
    for round in 0..24_u64 {
        let mut arguments = if round % 2 == 0 {
            heat(&pid, "1h").to_vec()
        } else {
            attach(&pid, "1h").to_vec()
        };
        arguments.extend(["--report", kept.to_str().unwrap()]);
        let mut command = superhue(User::Same, &arguments);
        let mut killed = ChildGuard::start(command.stdout(Stdio::null()).stderr(Stdio::null()));
        // No synchronisation: any moment will do, from before `main` to well after the first samples and collapses.
        thread::sleep(Duration::from_millis(round * round));
        let early = killed.0.try_wait().unwrap();
        assert_eq!(early, None, "round {round}: it ended by itself");
        // `attach` is two processes: the kernel ends the second one when it has a CPU.
        let children = format!("/proc/{0}/task/{0}/children", killed.pid());
        let children = fs::read_to_string(children).unwrap_or_default();
        killed.signal(Signal::KILL);
        killed.wait();
        for child in children.split_whitespace() {
            let gone = || (!support::lives(child.parse().unwrap())).then_some(());
            until("its second process has ended", gone);
        }
        if round % 4 == 3 {
            assert!(tracks(&pid), "round {round}");
        }
    }
    assert_eq!(fs::read(&kept).unwrap(), b"kept", "half a report");
    is_sampled(&pid);
    worker.end_unharmed();
}

#[test]
fn a_budget_and_a_ceiling_that_cannot_be_met() {
    let Some(worker) = Worker::start(0, 0) else {
        return;
    };
    let pid = worker.pid();
    if !tracks(&pid) {
        return;
    }
    // A second sample does not fit into a ceiling this low; the report shows that, and the ceiling is not exceeded for ever.
    let mut arguments = attach_hot(&pid, "1s");
    let at = arguments.iter().position(|&one| one == "100%").unwrap();
    arguments[at] = "0.0001%";
    let low = report(&output(&mut superhue(User::Same, &arguments)));
    assert!(low["tracking"]["samples"].as_u64().unwrap() <= 2, "{low}");
    // One byte: nothing that adds memory is promoted.
    let mut arguments = attach(&pid, "1s").to_vec();
    let at = arguments.iter().rposition(|&one| one == "100%").unwrap();
    arguments[at] = "1";
    let poor = report(&output(&mut superhue(User::Same, &arguments)));
    assert_eq!(poor["memory"]["growth_bytes"], 0, "{}", poor["memory"]);
    worker.end_unharmed();
}

#[test]
fn a_watch_that_has_used_its_ceiling_saves_and_ends_with_its_program() {
    let Some(python) = python() else { return };
    // 10 us of CPU for the first ten seconds: the first look takes more.
    let (folder, low) = (folder(), "--max-overhead=0.0001%");
    let path = folder.path().join("report.json");
    let run = |seconds: u32| -> Value {
        let fill = format!("import time; b = bytearray(64 << 20); time.sleep({seconds})");
        let more = [low, "--", python, "-c", &fill];
        let done = output(&mut support::run_reported(
            User::Same,
            "resident",
            &path,
            &more,
        ));
        assert!(done.status.success(), "{}", text(&done.stderr));
        serde_json::from_slice(&fs::read(&path).unwrap()).unwrap()
    };
    let has_saved = |report: &Value| report["superhue"]["saving_seconds"].as_f64() > Some(0.5);
    let mut report = run(3);
    if !has_saved(&report) {
        // On a busy machine the watch may begin late.
        report = run(8);
    }
    let own = &report["superhue"];
    assert!(has_saved(&report), "{own}");
    assert!(own["full_looks"].as_u64().unwrap() <= 2, "{own}");
    // The debt is hours.
    assert!(report["wall_seconds"].as_f64().unwrap() < 600.0, "{own}");
}
