//! `superhue attach` to sets of processes that change: a cgroup's, a user's, all.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self, ChildGuard, FILLING, TEST_TIMEOUT, User, cgroups, collapse_works, folder, is_root,
    output, python, skip, superhue, text, until,
};

/// A cgroup of the test's own, removed at the end.
struct Group(PathBuf);

impl Group {
    /// Makes one; `None`, with a visible skip, where that is impossible.
    fn new(name: &str) -> Option<Self> {
        let path = cgroups()?.join(format!("superhue-test-{name}-{}", std::process::id()));
        match fs::create_dir(&path) {
            Ok(()) => Some(Self(path)),
            Err(error) => {
                skip("cgroup", &format!("may not make one: {error}"));
                None
            }
        }
    }

    fn name(&self) -> &str {
        self.0.file_name().unwrap().to_str().unwrap()
    }

    fn below(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        path
    }

    /// Removes it and the cgroups below it. Their processes must have been killed; the kernel may take a moment to
    /// release them.
    fn remove(&self) {
        let folders = [self.0.join("below"), self.0.clone()];
        for folder in folders.iter().filter(|folder| folder.exists()) {
            until("the cgroup is empty", || fs::remove_dir(folder).ok());
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(self.0.join("below"));
        let _ = fs::remove_dir(&self.0);
    }
}

/// A process that sleeps in a cgroup.
fn sleeper_in(cgroup: &Path) -> ChildGuard {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    fs::write(cgroup.join("cgroup.procs"), sleeper.pid().to_string()).unwrap();
    sleeper
}

/// Returns the lines of a program's standard error, as they come.
fn lines(stderr: ChildStderr) -> Receiver<String> {
    let (send, receive) = channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    receive
}

/// Waits until superhue reports `count` members in its last search.
fn until_members(lines: &Receiver<String>, count: usize) {
    let wanted = format!("members={count}");
    loop {
        let line = lines.recv_timeout(TEST_TIMEOUT).unwrap();
        let mut words = line.split_whitespace();
        if line.contains("searched") && words.any(|word| word == wanted) {
            return;
        }
    }
}

#[test]
fn members_of_a_cgroup_come_and_go_until_it_is_gone() {
    let Some(group) = Group::new("members") else {
        return;
    };
    let folder = folder();
    let report = folder.path().join("report.json");
    let arguments = ["--verbose", "attach", "--pages", "kernel", "--cgroup"];
    let mut command = superhue(User::Same, &arguments);
    command
        .args([group.name(), "--report", report.to_str().unwrap()])
        .stderr(Stdio::piped());
    let mut attached = ChildGuard::start(&mut command);
    let lines = lines(attached.0.stderr.take().unwrap());
    // The cgroup is still empty, which is no reason to end.
    until_members(&lines, 0);
    let first = sleeper_in(&group.0);
    until_members(&lines, 1);
    let second = sleeper_in(&group.below("below"));
    until_members(&lines, 2);
    drop(first);
    until_members(&lines, 1);
    // After it moves to another cgroup, it is no longer a member, and lives.
    let outside = group.0.parent().unwrap().join("cgroup.procs");
    fs::write(outside, second.pid().to_string()).unwrap();
    until_members(&lines, 0);
    assert!(support::lives(second.pid()));

    group.remove();
    assert!(attached.wait().success());
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["processes"]["seen"], 2, "{}", report["processes"]);
    assert_eq!(report["processes"]["unreachable"], 0);
    assert!(report["cpu"].is_null(), "of a crowd there is no CPU time");
}

/// Superhue may be a member too: it is not watched.
#[test]
fn superhue_does_not_watch_itself() {
    if !is_root() {
        return skip("root", "an ordinary user cannot make the cgroup");
    }
    let (Some(python), true) = (python(), collapse_works()) else {
        return;
    };
    let Some(group) = Group::new("own") else {
        return;
    };
    let folder = folder();
    let mark = folder.path().join("mark");
    let program = format!(
        "{FILLING}import os, time
m = fill(64)
while os.path.exists({mark:?}): time.sleep(0.01)"
    );
    fs::write(&mark, "").unwrap();
    let join = |pid: u32| fs::write(group.0.join("cgroup.procs"), pid.to_string()).unwrap();
    let mut command = Command::new(python);
    User::Ordinary.run(command.args(["-c", &program]));
    let mut watched = ChildGuard::start(&mut command);
    join(watched.pid());
    // Waits until it is a member itself.
    let report = folder.path().join("report.json");
    let mut command = Command::new("sh");
    command
        .args(["-c", "read word; exec \"$@\"", "sh"])
        .arg(support::installed().join("superhue"))
        .args(["--verbose", "attach", "--pages", "resident", "--cgroup"])
        .args([group.name(), "--report", report.to_str().unwrap()])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut attached = ChildGuard::start(&mut command);
    join(attached.pid());
    let lines = lines(attached.0.stderr.take().unwrap());
    attached.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    until("something is collapsed", || {
        let line = lines.recv_timeout(TEST_TIMEOUT).unwrap();
        line.contains("effect=Done").then_some(())
    });
    until_members(&lines, 1);
    fs::remove_file(&mark).unwrap();
    assert!(watched.wait().success());
    until_members(&lines, 0);
    attached.signal(Signal::INT);
    assert!(attached.wait().success());
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(report["processes"]["seen"], 1, "{}", report["processes"]);
    group.remove();
}

/// In a PID namespace that does not see them, members of a cgroup have the number 0.
#[test]
fn members_of_other_namespaces_are_counted() {
    let Some(group) = Group::new("foreign") else {
        return;
    };
    let sleeper = sleeper_in(&group.0);
    let program = support::installed().join("superhue");
    let said = output(
        Command::new("unshare")
            .args(["--pid", "--fork", "--mount-proc"])
            .arg(program)
            .args(["attach", "--json", "--pages", "kernel", "--for", "50ms"])
            .args(["--cgroup", group.0.to_str().unwrap()]),
    );
    let Ok(report) = serde_json::from_slice::<Value>(&said.stdout) else {
        return skip("pid-namespace", text(&said.stderr).trim());
    };
    assert_eq!(report["processes"]["seen"], 0);
    assert_eq!(report["processes"]["unreachable"], 1);
    drop(sleeper);
    group.remove();
}

#[test]
fn the_processes_of_a_user_are_found_and_no_others() {
    if !is_root() {
        return skip("root", "another user's process is made by root here");
    }
    // A number that no other test uses, and probably no user has.
    const SOMEBODY: u32 = 64_321;
    let mut sleep = Command::new("sleep");
    std::os::unix::process::CommandExt::uid(sleep.arg("1000"), SOMEBODY);
    let seen = || {
        let user = SOMEBODY.to_string();
        let arguments = [
            "attach", "--all", "--user", &user, "--pages", "kernel", "--for", "50ms", "--json",
        ];
        let said = output(&mut superhue(User::Same, &arguments));
        let report: Value = serde_json::from_slice(&said.stdout).unwrap();
        report["processes"]["seen"].as_u64().unwrap()
    };
    assert_eq!(seen(), 0);
    let _one = ChildGuard::start(&mut sleep);
    let _other = ChildGuard::start(&mut sleep);
    assert_eq!(seen(), 2);
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    assert_eq!(seen(), 2, "another user's: {}", sleeper.pid());
}

#[test]
fn all_is_all_that_may_be_watched_but_superhue_itself() {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    let look = |user| {
        let arguments = [
            "attach",
            "--all",
            "--dry-run",
            "--pages",
            "kernel",
            "--for",
            "50ms",
            "--json",
        ];
        let said = output(&mut superhue(user, &arguments));
        assert!(said.status.success(), "{}", text(&said.stderr));
        let report: Value = serde_json::from_slice(&said.stdout).unwrap();
        let count = |field: &str| report["processes"][field].as_u64().unwrap();
        (count("seen"), count("denied"))
    };
    let (seen, _) = look(User::Same);
    assert!(seen >= 2, "this test and {}", sleeper.pid());
    if !is_root() {
        return skip("root", "whom others may not look at is seen only by root");
    }
    // Root's own processes are counted, and are no error.
    let (_, denied) = look(User::Ordinary);
    assert!(denied >= 2, "{denied}");
}

/// The first lines report the processes found, later ones the events.
#[test]
fn what_was_found_and_what_happens_is_told() {
    let (Some(python), true) = (python(), collapse_works()) else {
        return;
    };
    let program = format!(
        "{FILLING}
import sys
m = fill(64)
print(flush=True)
sys.stdin.readline()"
    );
    let start = || {
        let mut command = Command::new(python);
        command
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut memory = ChildGuard::start(&mut command);
        let mut filled = String::new();
        let stdout = memory.0.stdout.take().unwrap();
        BufReader::new(stdout).read_line(&mut filled).unwrap();
        memory
    };
    let mut memory = start();
    let pid = memory.pid().to_string();
    let mut command = superhue(
        User::Same,
        &["attach", "--pages", "resident", "--json", &pid],
    );
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut attached = ChildGuard::start(&mut command);
    let lines = lines(attached.0.stderr.take().unwrap());
    let next = || lines.recv_timeout(TEST_TIMEOUT).unwrap();
    let found = next();
    assert!(
        found.contains(&format!("attached to python3 ({pid}): ")),
        "{found}"
    );
    assert!(found.contains("MiB anonymous, 0.0 % of it huge"), "{found}");
    let policy = next();
    assert!(policy.contains("policy resident"), "{policy}");
    until("the first huge pages are told", || {
        next().contains("first huge pages: ").then_some(())
    });
    memory.0.stdin.take().unwrap().write_all(b"end\n").unwrap();
    assert!(memory.wait().success());
    assert!(attached.wait().success());

    let memory = start();
    let pid = memory.pid().to_string();
    let quiet = [
        "attach", "--pages", "resident", "--quiet", "--for", "500ms", &pid,
    ];
    let said = output(&mut superhue(User::Same, &quiet));
    assert!(said.status.success());
    assert_eq!(
        (text(&said.stdout), text(&said.stderr)),
        (String::new(), String::new())
    );
}

/// In a container whose session began outside it, `getsid(2)` is 0.
#[test]
fn a_hangup_ends_it_where_the_session_began_outside_the_container() {
    let folder = folder();
    let script = "sleep 60 & sleeps=$!; \"$0\" attach --for 1h $sleeps 2>\"$1\" & attached=$!; \
                  while kill -0 $attached && ! grep -q attached \"$1\"; do sleep 0.02; done; \
                  kill -HUP $attached; wait $attached; echo \"ended with $?\"; kill $sleeps; cat \"$1\"";
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["sh", "-c", script]);
    command.arg(support::installed().join("superhue"));
    let said = output(command.arg(folder.path().join("log")));
    if text(&said.stderr).contains("unshare: ") {
        return skip("pid-namespace", "unshare may not make one");
    }
    let ended = text(&said.stdout);
    assert!(ended.starts_with("ended with 0\n"), "{ended}{said:?}");
}

/// Such a signal comes twice: directly, and from the process that supervises the verb.
#[test]
fn a_signal_to_the_whole_group_loses_no_result() {
    use std::os::unix::process::CommandExt;
    let target = ChildGuard::start(Command::new("sleep").arg("1000"));
    let pid = target.pid().to_string();
    for _ in 0..5 {
        let arguments = ["attach", "--pages", "kernel", "--json", "--for", "1h", &pid];
        let mut command = superhue(User::Same, &arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut attached = ChildGuard::start(command.process_group(0));
        let lines = lines(attached.0.stderr.take().unwrap());
        let first = lines.recv_timeout(TEST_TIMEOUT).unwrap();
        assert!(first.contains("attached to sleep"), "{first}");
        let group = rustix::process::Pid::from_child(&attached.0);
        rustix::process::kill_process_group(group, Signal::TERM).unwrap();
        assert_eq!(attached.wait().code(), Some(0));
        let report = std::io::read_to_string(attached.0.stdout.take().unwrap()).unwrap();
        let report: Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["processes"]["seen"], 1);
    }
}
