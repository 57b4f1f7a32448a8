//! Processes that hold up any reader or writer of them, by a file system in user space that does not answer.
//!
//! The checks must pass while they do so: the file system answers after five minutes at the earliest, or when it is ended.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use superhue_testing::{NOBODY, alone};

use crate::support::daemon::{Machine, documented, rule};
use crate::support::group::Group;
use crate::support::{
    self, ChildGuard, FILLING, Freezer, TEST_TIMEOUT, User, collapse_works, compiled, is_root,
    python, skip, state, superhue, text, until,
};

/// A user that is neither the attacker nor root.
const VICTIM: u32 = 65_432;

/// Seconds after which the file system answers: longer than any test takes, also on a busy machine.
const STALLS: &str = "300";

/// Seconds for which a process holds up its readers: longer than any test waits. It is ended with its test.
const LIVES: &str = "600";

fn script(name: &str) -> PathBuf {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/hostile.d");
    Path::new(folder).join(name)
}

/// Returns the first line that a process prints, once it does.
fn first_line(process: &mut ChildGuard) -> String {
    let mut line = String::new();
    let mut output = BufReader::new(process.0.stdout.take().unwrap());
    output.read_line(&mut line).unwrap();
    line
}

/// Returns the standard error of a process that ends.
fn errors(process: &mut ChildGuard) -> String {
    let mut said = String::new();
    let mut errors = process.0.stderr.take().unwrap();
    errors.read_to_string(&mut said).unwrap();
    said.trim().to_owned()
}

/// A file system that does not answer.
struct StalledFileSystem {
    server: ChildGuard,
    folder: PathBuf,
    /// Processes that wait for it: they can end only after it.
    held: Vec<ChildGuard>,
}

impl StalledFileSystem {
    /// Starts one that answers when the test has ended.
    fn new(folder: &Path, what: &str) -> Option<Self> {
        Self::for_seconds(folder, what, STALLS)
    }

    fn for_seconds(folder: &Path, what: &str, seconds: &str) -> Option<Self> {
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
            .args([what, seconds]);
        let mut server = ChildGuard::start(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        if first_line(&mut server) != "mounted\n" {
            let why = errors(&mut server);
            skip(
                "fuse",
                &format!("no file system in user space can be mounted: {why}"),
            );
            return None;
        }
        Some(Self {
            server,
            folder,
            held: Vec::new(),
        })
    }

    /// Starts a process of a user; returns once it holds up its readers.
    fn hold(&mut self, how: &str, user: u32) -> u32 {
        let mut command = Command::new(python().unwrap());
        command
            .arg(script("hold.py"))
            .arg(how)
            .arg(self.folder.join("f"))
            .arg(LIVES);
        let mut process = ChildGuard::start(command.uid(user).stdout(Stdio::piped()));
        assert_eq!(first_line(&mut process), "holds\n");
        let pid = process.pid();
        self.held.push(process);
        pid
    }
}

impl Drop for StalledFileSystem {
    fn drop(&mut self) {
        // Unmounts, which ends all waits.
        self.server.signal(Signal::TERM);
        let _ = self.server.wait();
    }
}

/// Returns true if reading this file of a process blocks. The reader is a process that can be killed.
fn waits(pid: u32, file: &str) -> bool {
    let mut command = Command::new("cat");
    let mut cat = ChildGuard::start(
        command
            .arg(format!("/proc/{pid}/{file}"))
            .stdout(Stdio::null()),
    );
    let mut asleep = 0;
    // On a busy machine the reader may start late: only looks at a sleeping reader count. There are at least two seconds of them.
    until("it has read the file, or sleeps", || {
        if cat.0.try_wait().unwrap().is_some() {
            return Some(false);
        }
        let is_asleep = matches!(state(cat.pid()), Some('D' | 'S'));
        asleep = if is_asleep { asleep + 1 } else { 0 };
        (asleep >= 1000).then_some(true)
    })
}

/// A program of a user, which fills memory, announces that, and stays.
fn filler(mebibytes: u32, user: u32) -> Command {
    let program = format!(
        "{FILLING}import time\nm = fill({mebibytes})\nprint('filled', flush=True)\ntime.sleep(600)"
    );
    let mut command = Command::new(python().unwrap());
    command
        .args(["-c", &program])
        .uid(user)
        .stdout(Stdio::null());
    command
}

/// A service of the victim.
fn service(mebibytes: u32) -> ChildGuard {
    ChildGuard::start(&mut filler(mebibytes, VICTIM))
}

fn rules() -> Machine {
    let rule = |name: &str, user: u32| {
        format!("[[rule]]\nname = \"{name}\"\nuser = \"{user}\"\npages = \"resident\"\n")
    };
    Machine::new(&(rule("tenants", NOBODY) + &rule("services", VICTIM)))
}

/// Ends the daemon and starts another one in its place, even if workers still wait for a process.
fn can_be_replaced(machine: &Machine, mut daemon: ChildGuard) -> ChildGuard {
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
    let Some(mut stalled) = StalledFileSystem::new(machine.folder.path(), "flush") else {
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
    // A reader that was given up ends once it has a CPU.
    machine.status(|status| {
        rule(status, "services")["processes"] == 1
            && status["discovery"]["readers_left_behind"] == 0
    });
    machine.status(|status| watches(status, "services", victim.pid()));
    if waits(held, "stat") {
        // Between two pauses, each longer than the one before, the daemon tries to read it again.
        machine.status(|status| {
            let all = status["discovery"]["left_alone"].as_array();
            let is_it = |it: &serde_json::Value| {
                it["process"] == held && it["tenant"] == format!("user {NOBODY}")
            };
            all.is_some_and(|all| all.iter().any(is_it))
        });
        let expected = format!("process {} of user {NOBODY} is left alone", held);
        until("the status names it", || {
            let told = machine.ctl(&["status"]);
            text(&told.stdout).contains(&expected).then_some(())
        });
        until("the reason is given", || {
            let why = machine.ctl(&["why", &held.to_string()]);
            let said = text(&why.stderr);
            said.contains("holds up each reader").then_some(())
        });
    }
    // Verbs that read all processes print their results, and the processes they left out.
    for verb in [
        &["status"][..],
        &["top", "--once"],
        &["restore"],
        &["advise", "--for", "1s"],
    ] {
        let output = support::output(&mut superhue(User::Same, verb));
        let told = text(&output.stderr);
        let reads = verb[0] != "restore";
        let is_unsure = !reads && output.status.code() == Some(3);
        assert!(output.status.success() || is_unsure, "{verb:?}: {told}");
        let expected = format!("process {} was left out", held);
        assert!(!reads || told.contains(&expected), "{verb:?}: {told}");
    }
    for verb in [&["status"][..], &["top"], &["advise", "--for", "1s"]] {
        // On a busy machine a verb also leaves out a process that waits for a CPU while it holds a lock.
        until(&format!("{verb:?} leaves out it alone"), || {
            let output = support::output(&mut superhue(User::Same, &[verb, &["--json"]].concat()));
            let document = documented(verb[0], &output.stdout);
            (document["left_out"] == serde_json::json!([held])).then_some(())
        });
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
    let Some(mut stalled) = StalledFileSystem::new(machine.folder.path(), "read") else {
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
    // All that is collapsed so far may be all there is.
    machine.status(|status| {
        let watch = &rule(status, "tenants")["watch"];
        status["workers"]["given_up"].as_u64().unwrap() > 0
            || watch["memory"]["coverage"]
                .as_f64()
                .is_some_and(|it| it > 0.9)
    });
    // A busy machine leaves others behind for a moment.
    let tenant = format!("user {NOBODY}");
    let is_held = |left: &serde_json::Value| left["process"] == held && left["tenant"] == tenant;
    machine.status(|status| {
        let mut left = status["workers"]["left_behind"].as_array().unwrap().iter();
        left.all(is_held)
    });
    let daemon = can_be_replaced(&machine, daemon);
    machine.status(|status| rule(status, "services")["processes"] == 1);
    drop((daemon, victim, stalled));
}

#[test]
fn an_interrupt_ends_a_verb_that_is_held_up() {
    let _alone = alone();
    let folder = support::folder();
    let Some(mut stalled) = StalledFileSystem::new(folder.path(), "flush") else {
        return;
    };
    let held = stalled.hold("exec", NOBODY);
    let mut command = superhue(
        User::Same,
        &["attach", "--pages", "kernel", &held.to_string()],
    );
    let mut attach = ChildGuard::start(command.stderr(Stdio::piped()));
    thread::sleep(Duration::from_millis(300));
    attach.signal(Signal::INT);
    let (done, ended) = channel();
    let waiter = thread::spawn(move || {
        let status = attach.wait();
        done.send(()).unwrap();
        (status, attach)
    });
    ended.recv_timeout(TEST_TIMEOUT).unwrap();
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
    let status = machine.status(watched);
    let children = |pid: u32| {
        let path = format!("/proc/{pid}/task/{pid}/children");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.split_whitespace()
            .map(|pid| pid.parse().unwrap())
            .collect::<Vec<u32>>()
    };
    let [server] = children(daemon.pid())[..] else {
        panic!("{:?}", children(daemon.pid()))
    };
    let workers = children(server);
    assert!(workers.len() >= 2, "{workers:?}");
    let started = |status: &serde_json::Value| status["workers"]["started"].as_u64().unwrap();
    // The trouble lasts for a second at first: on a busy machine the next worker may be there before a request shows the trouble.
    let has_trouble = |status: &serde_json::Value, before: u64| {
        !rule(status, "services")["watch"]["trouble"].is_null() || started(status) > before
    };
    // All workers, then their parent too.
    let before = started(&status);
    for &pid in &workers {
        support::send(pid, Signal::KILL);
    }
    let status = machine.status(|status| has_trouble(status, before));
    assert_eq!(status["rules_total"], 2);
    let before = started(&machine.status(watched));
    assert_eq!(children(daemon.pid()), [server]);
    let others = children(server);
    support::send(server, Signal::KILL);
    machine.status(|status| has_trouble(status, before));
    let before = started(&machine.status(watched));
    assert_ne!(children(daemon.pid()), [server]);
    // A stopped parent starts no worker, and is replaced.
    let [server] = children(daemon.pid())[..] else {
        panic!("{:?}", children(daemon.pid()))
    };
    support::send(server, Signal::STOP);
    for pid in children(server) {
        support::send(pid, Signal::KILL);
    }
    machine.status(|status| has_trouble(status, before));
    machine.status(watched);
    let before = [&workers[..], &others[..], &[server]].concat();
    // Another reader continues.
    let other = service(4);
    machine.status(|status| rule(status, "services")["processes"] == 2);
    drop(other);
    for pid in before {
        until("it was waited for", || (!support::lives(pid)).then_some(()));
    }
}

/// A file system that is slow, and one that fails: a process that waits for it continues, and is served like others.
#[test]
fn file_systems_that_are_slow_or_fail_delay_nobody_for_long() {
    let _alone = alone();
    if !collapse_works() {
        return;
    }
    for (what, seconds) in [("read", "0.4"), ("errors", STALLS)] {
        let machine = rules();
        let Some(mut stalled) =
            StalledFileSystem::for_seconds(machine.folder.path(), what, seconds)
        else {
            return;
        };
        let daemon = machine.start();
        machine.is_up();
        stalled.hold("memory", NOBODY);
        let victim = service(8);
        machine.status(|status| rule(status, "services")["processes"] == 1);
        machine.status(|status| {
            let coverage = &rule(status, "tenants")["watch"]["memory"]["coverage"];
            coverage.as_f64().is_some_and(|it| it > 0.9)
        });
        drop((daemon, victim, stalled));
    }
}

/// A process of a user that is hard to read (`scripts/hostile.d/strange.c`), once it is; `None`, with a visible skip, where that is impossible.
fn strange(how: &str, user: u32) -> Option<ChildGuard> {
    let source = include_str!("../../../../scripts/hostile.d/strange.c");
    let mut command = Command::new(compiled("strange", source)?);
    let mut process = ChildGuard::start(
        command
            .arg(how)
            .uid(user)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    if first_line(&mut process) != "ready\n" {
        skip(how, &errors(&mut process));
        return None;
    }
    Some(process)
}

/// Returns true if a rule's watch includes a process.
fn watches(status: &serde_json::Value, name: &str, pid: u32) -> bool {
    let watched = rule(status, name)["watch"]["processes"].as_array();
    watched.is_some_and(|all| all.iter().any(|it| it["pid"] == pid))
}

/// Waits until every worker that was given up has ended: on a busy machine there may be some, and they end once they have a CPU.
fn none_is_left_behind(machine: &Machine) {
    let none = serde_json::json!([]);
    machine.status(|status| status["workers"]["left_behind"] == none);
}

/// A process whose group is frozen is watched, its memory made huge, and no other process waits for it.
#[test]
fn frozen_groups_delay_nobody_else() {
    let _alone = alone();
    if !collapse_works() {
        return;
    }
    for version in [1, 2] {
        let machine = rules();
        let mut frozen = ChildGuard::start(filler(8, NOBODY).stdout(Stdio::piped()));
        assert_eq!(first_line(&mut frozen), "filled\n");
        // Dropped before the process, which could not be ended.
        let Some(freezer) = Freezer::new(version) else {
            continue;
        };
        freezer.take(frozen.pid());
        freezer.freeze(true);
        let daemon = machine.start();
        machine.is_up();
        let victim = service(8);
        for (name, one) in [("services", &victim), ("tenants", &frozen)] {
            machine.status(|status| watches(status, name, one.pid()));
            machine.status(|status| {
                let huge = &rule(status, name)["watch"]["memory"]["huge_bytes"];
                huge.as_u64().is_some_and(|it| it >= 6 << 20)
            });
        }
        none_is_left_behind(&machine);
        freezer.freeze(false);
        drop((daemon, victim, frozen));
    }
}

#[test]
fn strange_processes_delay_nobody_else() {
    let _alone = alone();
    if !is_root() || python().is_none() {
        return skip("root", "another user's process needs one");
    }
    let machine = rules();
    let daemon = machine.start();
    machine.is_up();
    let mut all = Vec::new();
    for how in [
        "stopped", "traced", "zombie", "leader", "forks", "execs", "mappings",
    ] {
        let Some(one) = strange(how, NOBODY) else {
            return;
        };
        all.push((how, one));
    }
    let victim = service(8);
    machine.status(|status| watches(status, "services", victim.pid()));
    none_is_left_behind(&machine);
    // They are watched, as far as they have memory.
    for (how, one) in &all {
        if matches!(*how, "stopped" | "zombie" | "mappings") {
            machine.status(|status| watches(status, "tenants", one.pid()));
        }
    }
    for verb in [&["status"][..], &["top", "--once"]] {
        let output = support::output(&mut superhue(User::Same, verb));
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    for (how, one) in &mut all {
        assert_eq!(one.0.try_wait().unwrap(), None, "{how} ended by itself");
        one.signal(Signal::CONT);
        one.signal(Signal::TERM);
        let status = one.wait();
        let is_killed = matches!(*how, "leader" | "execs");
        assert!(is_killed || status.success(), "{how}: {status}");
    }
    let daemon = can_be_replaced(&machine, daemon);
    drop((daemon, victim));
}

#[test]
fn missing_pages_that_a_program_is_told_of_stay_missing() {
    let _alone = alone();
    if !is_root() {
        return skip("root", "the daemon acts on processes of another user");
    }
    if python().is_none() || !collapse_works() {
        return;
    }
    let machine = rules();
    let daemon = machine.start();
    machine.is_up();
    let Some(mut one) = strange("userfaultfd", NOBODY) else {
        return;
    };
    let victim = service(8);
    machine.status(|status| watches(status, "services", victim.pid()));
    // Its memory is left alone, with the reason.
    machine.status(|status| {
        let skipped = &rule(status, "tenants")["watch"]["collapses"]["skipped"];
        let by_reason = skipped["watched by a userfaultfd"].as_u64();
        by_reason.is_some_and(|count| count >= 16)
    });
    thread::sleep(Duration::from_secs(1));
    one.signal(Signal::TERM);
    let status = one.wait();
    assert!(status.success(), "its memory has changed: {status}");
    drop((daemon, victim));
}

/// Starts a process with a number that has just become free; `None`, with a visible skip, where that is impossible.
fn start_as(pid: u32, command: &mut Command) -> Option<ChildGuard> {
    for _ in 0..1000 {
        let last = (pid - 1).to_string();
        if let Err(error) = fs::write("/proc/sys/kernel/ns_last_pid", last) {
            skip("ns_last_pid", &error.to_string());
            return None;
        }
        let process = ChildGuard::start(command);
        if process.pid() == pid {
            return Some(process);
        }
    }
    skip("ns_last_pid", "others start processes all the time");
    None
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let _alone = alone();
    if !is_root() || python().is_none() {
        return skip("root", "another user's process needs one");
    }
    let machine = rules();
    let daemon = machine.start();
    machine.is_up();
    let mut victim = service(8);
    let pid = victim.pid();
    machine.status(|status| watches(status, "services", pid));
    victim.signal(Signal::KILL);
    victim.wait();
    let Some(other) = start_as(pid, &mut filler(8, NOBODY)) else {
        return;
    };
    // Each list comes from a worker of its own: the number is not the victim's any more.
    let status = machine.status(|status| !watches(status, "services", pid));
    if !watches(&status, "tenants", pid) {
        machine.status(|status| watches(status, "tenants", pid));
        assert!(!watches(&machine.is_up(), "services", pid));
    }
    drop((daemon, other));
}

/// No more processes can be started: a verb does in one process what it normally does in two.
#[test]
fn verbs_that_may_start_no_process_answer() {
    let _alone = alone();
    let limit = rustix::process::Rlimit {
        current: Some(1),
        maximum: Some(1),
    };
    for verb in [&["status"][..], &["top", "--once"]] {
        let mut command = superhue(User::Ordinary, verb);
        // SAFETY: one system call.
        unsafe {
            command.pre_exec(move || {
                rustix::process::setrlimit(rustix::process::Resource::Nproc, limit)
                    .map_err(Into::into)
            });
        }
        let output = support::output(&mut command);
        let told = text(&output.stderr);
        assert!(output.status.success(), "{verb:?}: {told}");
        assert!(text(&output.stdout).contains("superhue"), "{verb:?}");
    }
}

/// A daemon whose group has no memory left: workers end, or do not even start. It continues, or its service manager restarts it.
#[test]
fn a_daemon_without_memory_manages_again_once_there_is_some() {
    let _alone = alone();
    if !is_root() || python().is_none() {
        return skip("root", "another user's process needs one");
    }
    let Some(group) = Group::new("daemon") else {
        return;
    };
    let machine = rules();
    let mut daemon = machine.start();
    machine.is_up();
    fs::write(group.folder.join("cgroup.procs"), daemon.pid().to_string()).unwrap();
    // Only 256 KiB are left in the group, whatever was charged to another group before.
    group.set_limit(group.charged().unwrap() + (256 << 10));
    let victim = service(8);
    let mut restarts = 0;
    let mut since = None;
    // It has to get along for some seconds. On a busy machine it may be long before it asks for memory at all.
    until("it was short of memory", || {
        if daemon.0.try_wait().unwrap().is_some() {
            restarts += 1;
            daemon = machine.start();
        }
        let _ = machine.ctl(&["status"]);
        if restarts > 0 || group.events().iter().any(|(_, count)| *count > 0) {
            since.get_or_insert_with(Instant::now);
        }
        since.filter(|since| since.elapsed() >= Duration::from_secs(5))
    });
    group.set_limit(1 << 30);
    machine.status(|status| watches(status, "services", victim.pid()));
    drop((daemon, victim));
    let members = group.folder.join("cgroup.procs");
    until("its workers have ended", || {
        fs::read(&members).unwrap().is_empty().then_some(())
    });
}
