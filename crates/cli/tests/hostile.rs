//! Processes that hold up whoever reads or changes them, by a file system in user space that does not answer.
//!
//! What is tested has to happen while they do: the file system answers after a minute at the earliest, or when it is ended.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use superhue_testing::NOBODY;
use support::daemon::{Machine, rule};
use support::{
    FILLING, PATIENCE, Running, User, collapse_works, is_root, python, skip, superhue, text,
};

/// A user who is neither the attacker nor root.
const VICTIM: u32 = 65_432;

/// The file system answers after so many seconds.
const STALLS: &str = "60";

fn script(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/hostile.d");
    Path::new(folder).join(name)
}

/// A file system that does not answer.
struct Stalled {
    server: Running,
    folder: PathBuf,
    /// Those that wait for it: they can end only after it.
    held: Vec<Running>,
}

impl Stalled {
    fn new(folder: &Path, what: &str) -> Option<Self> {
        let python = python()?;
        if !is_root() {
            skip("fuse", "mounting /dev/fuse without fusermount3 takes root");
            return None;
        }
        let folder = folder.join(what);
        let mut command = Command::new(python);
        command
            .arg(script("stallfs.py"))
            .arg(&folder)
            .args([what, STALLS]);
        let mut server = Running::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        if line != "mounted\n" {
            let mut why = String::new();
            server
                .0
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut why)
                .unwrap();
            skip(
                "fuse",
                &format!(
                    "no file system in user space can be mounted: {}",
                    why.trim()
                ),
            );
            return None;
        }
        Some(Self {
            server,
            folder,
            held: Vec::new(),
        })
    }

    /// A process of a user that holds up others, once it does.
    fn hold(&mut self, how: &str, user: u32) -> u32 {
        let mut command = Command::new(python().unwrap());
        command
            .arg(script("hold.py"))
            .arg(how)
            .arg(self.folder.join("f"))
            .arg(STALLS);
        let mut process = Running::start(command.uid(user).stdout(Stdio::piped()));
        let mut line = String::new();
        BufReader::new(process.0.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "holds\n");
        let pid = process.pid();
        self.held.push(process);
        pid
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        // Unmounts, which ends all waiting.
        self.server.signal(Signal::TERM);
        let _ = self.server.wait();
    }
}

/// Whether reading this file of a process waits. Asked of a process that can be ended.
fn waits(pid: u32, file: &str) -> bool {
    let mut command = Command::new("cat");
    let mut cat = Running::start(
        command
            .arg(format!("/proc/{pid}/{file}"))
            .stdout(Stdio::null()),
    );
    let deadline = Instant::now() + Duration::from_secs(2);
    while Instant::now() < deadline {
        if cat.0.try_wait().unwrap().is_some() {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A service of the victim, which fills memory and stays.
fn service(mebibytes: u32) -> Running {
    let program = format!("{FILLING}import time\nm = fill({mebibytes})\ntime.sleep(100)");
    Running::start(
        Command::new(python().unwrap())
            .args(["-c", &program])
            .uid(VICTIM),
    )
}

/// Waits until no other test here runs: the rules of each are about the programs of all.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn rules() -> Machine {
    let rule = |name: &str, user: u32| {
        format!("[[rule]]\nname = \"{name}\"\nuser = \"{user}\"\npages = \"resident\"\n")
    };
    Machine::new(&(rule("tenants", NOBODY) + &rule("services", VICTIM)))
}

/// Ends the daemon, and has another one take its place, whatever sleeps over whom.
fn can_be_replaced(machine: &Machine, mut daemon: Running) -> Running {
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success(), "{}", machine.log());
    let next = machine.start();
    assert_eq!(machine.is_up()["rules_total"], 2);
    next
}

#[test]
fn a_process_that_cannot_be_read_delays_nobody_else() {
    let _alone = alone();
    let machine = rules();
    let Some(mut stalled) = Stalled::new(machine.folder.path(), "flush") else {
        return;
    };
    let daemon = machine.start();
    machine.is_up();
    let held = stalled.hold("exec", NOBODY);
    if !waits(held, "stat") && !waits(held, "smaps") {
        return skip(
            "exec-lock",
            "this kernel does not wait for a process that executes itself",
        );
    }
    let victim = service(8);
    let status = machine.status(|status| rule(status, "services")["processes"] == 1);
    assert_eq!(status["discovery"]["readers_left_behind"], 0);
    let status = machine.status(|status| {
        let watch = &rule(status, "services")["watch"];
        watch["processes"]
            .as_array()
            .is_some_and(|all| all.iter().any(|it| it["pid"] == victim.pid()))
    });
    if waits(held, "stat") {
        let alone = &status["discovery"]["left_alone"];
        assert_eq!(alone[0]["process"], held, "{alone}");
        assert_eq!(alone[0]["tenant"], format!("user {NOBODY}"));
        let told = machine.ctl(&["status"]);
        let expected = format!("process {} of user {NOBODY} is left alone", held);
        assert!(
            text(&told.stdout).contains(&expected),
            "{}",
            text(&told.stdout)
        );
        let why = machine.ctl(&["why", &held.to_string()]);
        assert!(text(&why.stderr).contains("holds up whoever reads it"));
    }
    // Verbs that look at everybody say what they have, and whom they left out.
    for verb in [
        &["status"][..],
        &["top", "--once"],
        &["restore"],
        &["advise", "--for", "1s"],
    ] {
        let output = support::output(&mut superhue(User::Same, verb));
        let told = text(&output.stderr);
        assert!(output.status.success(), "{verb:?}: {told}");
        let expected = format!("process {} was left out", held);
        let reads = verb[0] != "restore";
        assert!(!reads || told.contains(&expected), "{verb:?}: {told}");
    }
    let daemon = can_be_replaced(&machine, daemon);
    assert!(
        waits(held, "smaps"),
        "all that was while it holds others up"
    );
    drop((daemon, victim, stalled));
}

#[test]
fn a_process_that_holds_its_memory_delays_its_own_tenant_only() {
    let _alone = alone();
    if !collapse_works() {
        return;
    }
    let machine = rules();
    let Some(mut stalled) = Stalled::new(machine.folder.path(), "read") else {
        return;
    };
    let daemon = machine.start();
    machine.is_up();
    let held = stalled.hold("memory", NOBODY);
    let victim = service(16);
    let huge = 14 << 20;
    machine.status(|status| {
        let memory = &rule(status, "services")["watch"]["memory"];
        memory["huge_bytes"]
            .as_u64()
            .is_some_and(|bytes| bytes >= huge)
    });
    // All that is collapsed already may be all there was.
    let status = machine.status(|status| {
        let watch = &rule(status, "tenants")["watch"];
        status["workers"]["given_up"].as_u64().unwrap() > 0
            || watch["memory"]["coverage"]
                .as_f64()
                .is_some_and(|it| it > 0.9)
    });
    for left in status["workers"]["left_behind"].as_array().unwrap() {
        assert_eq!(left["process"], held);
        assert_eq!(left["tenant"], format!("user {NOBODY}"));
    }
    let daemon = can_be_replaced(&machine, daemon);
    machine.status(|status| rule(status, "services")["processes"] == 1);
    drop((daemon, victim, stalled));
}

#[test]
fn an_interrupt_ends_a_verb_that_is_held_up() {
    let _alone = alone();
    let folder = support::folder();
    let Some(mut stalled) = Stalled::new(folder.path(), "flush") else {
        return;
    };
    let held = stalled.hold("exec", NOBODY);
    let mut command = superhue(
        User::Same,
        &["attach", "--pages", "kernel", &held.to_string()],
    );
    let mut attach = Running::start(command.stderr(Stdio::piped()));
    thread::sleep(Duration::from_millis(300));
    attach.signal(Signal::INT);
    let (done, ended) = channel();
    let waiter = thread::spawn(move || {
        let status = attach.wait();
        done.send(()).unwrap();
        (status, attach)
    });
    ended.recv_timeout(PATIENCE).unwrap();
    waiter.join().unwrap();
    drop(stalled);
}

/// Workers end at any time, and others take their places.
#[test]
fn workers_that_are_killed_are_followed_by_others() {
    let _alone = alone();
    if !is_root() || python().is_none() {
        return skip("root", "another user's process needs one");
    }
    let machine = rules();
    let daemon = machine.start();
    let _victim = service(4);
    let watched = |status: &serde_json::Value| {
        let watch = &rule(status, "services")["watch"];
        watch["memory"]["processes"] == 1 && watch["trouble"].is_null()
    };
    machine.status(watched);
    let children = || {
        let path = format!("/proc/{0}/task/{0}/children", daemon.pid());
        let text = fs::read_to_string(path).unwrap();
        text.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect::<Vec<u32>>()
    };
    let before = children();
    assert!(!before.is_empty());
    for &pid in &before {
        support::send(pid, Signal::KILL);
    }
    let status = machine.status(|status| !rule(status, "services")["watch"]["trouble"].is_null());
    assert_eq!(status["rules_total"], 2);
    machine.status(watched);
    // What is read goes on with another reader.
    let other = service(4);
    machine.status(|status| rule(status, "services")["processes"] == 2);
    drop(other);
    for pid in before {
        support::until("it was waited for", || (!support::lives(pid)).then_some(()));
    }
}
