//! Helpers that the tests of several crates share: visible skips that can be forbidden, locks, users, child processes, recorded trees.
//!
//! Only tests depend on this crate, so its functions panic on any failure: a test that cannot continue has failed.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "used by tests alone"
)]

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

mod tree;

pub use tree::{recorded_file, unpack_tree};

/// User that every system has: `nobody`.
pub const NOBODY: u32 = 65534;

/// Reports on standard output that a test cannot run here: `SKIPPED name: reason`.
/// `name` is what the machine lacks, not the test.
///
/// # Panics
/// If `SUPERHUE_REQUIRE` (names with commas between) lists `name`: the user expects this machine to have the feature.
#[track_caller]
pub fn skip(name: &str, reason: &str) {
    let required = env::var("SUPERHUE_REQUIRE").unwrap_or_default();
    assert!(
        !is_listed(&required, name),
        "{name} is required and not possible: {reason}"
    );
    println!("SKIPPED {name}: {reason}");
}

fn is_listed(required: &str, name: &str) -> bool {
    required.split(',').any(|required| required.trim() == name)
}

/// The lock of [`alone`] and [`shared`].
static LOCK: RwLock<()> = RwLock::new(());

/// Waits until no other test holds the lock of this test program, and keeps them waiting while the result lives.
///
/// The tests of one program run in parallel threads of one process. Some change or count what the process or the machine has
/// once: its settings, the processes of a user, the huge page switch, memory that a fork shares with a child. Such a test
/// takes the lock alone; tests that it would disturb take it [`shared`]; all others take none. The comment in the program's
/// `main.rs` names what its lock protects. A test takes the lock once, as its first step.
#[must_use = "the lock is released when this is dropped"]
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    // A test that failed while it held the lock is no reason for others to fail.
    LOCK.write().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no test runs [`alone`], and keeps such tests waiting while the result lives.
#[must_use = "the lock is released when this is dropped"]
pub fn shared() -> RwLockReadGuard<'static, ()> {
    LOCK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the arguments with which a test program runs one of its tests and prints the output: the test `name` of the module
/// that passes its own `module_path!()`.
#[must_use]
pub fn only(module: &str, name: &str) -> [String; 4] {
    // The test harness leaves out the name of the crate.
    let test = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{name}"),
        None => name.to_owned(),
    };
    [
        "--exact".to_owned(),
        test,
        "--nocapture".to_owned(),
        "--test-threads=1".to_owned(),
    ]
}

/// Returns a command that runs one test of this program in another process; the arguments are those of [`only`].
///
/// # Panics
/// If the program's own path is unknown.
#[must_use]
pub fn rerun(module: &str, name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(only(module, name));
    command
}

/// Runs the calling test in a process of its own, where no other test allocates or starts threads and children. The arguments
/// are those of [`only`]. In that process the result is false, and the test continues. In the first process the result is true:
/// the test has passed in the other one, and returns.
///
/// # Panics
/// If the test fails there.
#[must_use]
pub fn passed_in_own_process(module: &str, name: &str) -> bool {
    const MARK: &str = "SUPERHUE_TEST_IN_OWN_PROCESS";
    if env::var_os(MARK).is_some() {
        return false;
    }
    let output = rerun(module, name).env(MARK, "1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(has_passed(&output), "{}: {said}{errors}", output.status);
    // With the skips in it.
    println!("{said}");
    true
}

/// Returns true if a test program that ran [`only`] one test has found it, and the test has passed.
#[must_use]
pub fn has_passed(output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stdout);
    output.status.success() && said.contains("test result: ok. 1 passed;")
}

/// Runs a test of code that has limits of time of its own, until it passes or fails undisturbed. A failure counts only if the attempt took less than `wall`,
/// and this thread less than `cpu` of CPU time: within these no limit is met. A busy machine may stop a thread at any place, and charge it for time that it
/// did not get.
///
/// # Panics
/// If an undisturbed attempt fails, or 50 attempts do.
pub fn undisturbed(wall: Duration, cpu: Duration, test: impl Fn()) {
    for _ in 0..50 {
        let begun = Instant::now();
        let before = thread_cpu_time();
        let Err(why) = catch_unwind(AssertUnwindSafe(&test)) else {
            return;
        };
        let used = thread_cpu_time().saturating_sub(before);
        if begun.elapsed() < wall && used < cpu {
            resume_unwind(why);
        }
    }
    panic!("disturbed in each of 50 attempts");
}

fn thread_cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

/// Returns true if root runs the tests.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies a program, so that a test can execute the copy. The copy has the mode of the original.
///
/// Another process writes the copy. If this process did, a child that another test starts meanwhile would inherit the
/// descriptor, and executing the copy would fail until that child executes a program (`ETXTBSY`).
///
/// # Panics
/// If `cp` fails.
pub fn copy_program(program: &Path, to: &Path) {
    let done = Command::new("cp").arg(program).arg(to).status().unwrap();
    assert!(done.success(), "cp to {} failed: {done}", to.display());
}

/// Writes a shell script, so that a test can execute it (mode 755). Another process writes it, as for [`copy_program`].
///
/// # Panics
/// If `install` fails.
pub fn write_script(script: &str, to: &Path) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(to)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let text = format!("#!/bin/sh\n{script}\n");
    install
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    let done = install.wait().unwrap();
    assert!(done.success(), "install to {} failed: {done}", to.display());
}

/// Answer of a seccomp filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Kills the process, as systemd does.
    Kill,
    /// `EPERM`, as container engines do.
    NotPermitted,
}

/// Forbids the system call of this number to the calling thread and to all threads and processes that it starts from
/// now on. This cannot be undone; setuid programs lose their effect too (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// If the filter cannot be installed, e.g. on a kernel without `CONFIG_SECCOMP_FILTER`.
pub fn forbid(call: i64, answer: Answer) -> Result<(), String> {
    let answer = match answer {
        Answer::Kill => SeccompAction::KillProcess,
        Answer::NotPermitted => {
            SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error().cast_unsigned())
        }
    };
    let program = TargetArch::try_from(env::consts::ARCH).and_then(|architecture| {
        // An empty list of rules matches a call with any arguments.
        let calls = BTreeMap::from([(call, Vec::new())]);
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, architecture)?;
        BpfProgram::try_from(filter)
    });
    let program = program.map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

/// Child process that dropping it kills and reaps, at the latest at the end of the test.
#[derive(Debug)]
pub struct ChildGuard(pub Child);

impl ChildGuard {
    /// Starts `command` without input.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// Starts a process that sleeps for longer than any test runs.
    ///
    /// # Panics
    /// As for [`spawn`](Self::spawn).
    #[must_use]
    pub fn sleeper() -> Self {
        Self::spawn(Command::new("sleep").arg("1000"))
    }

    /// Returns the process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        assert!(is_listed("thp, collapse,root", "collapse"));
        assert!(!is_listed("remote-collapse", "collapse"));
        assert!(!is_listed("", "collapse"));
    }

    #[test]
    fn one_test_is_run_in_a_process_of_its_own() {
        if passed_in_own_process(module_path!(), "one_test_is_run_in_a_process_of_its_own") {
            return;
        }
        // The whole process has two threads at most: that of the test, and the first one.
        let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
        assert!(threads <= 2, "{threads}");
    }

    #[test]
    fn a_test_that_is_not_there_has_not_passed() {
        let output = rerun(module_path!(), "no_such_test").output().unwrap();
        assert!(output.status.success() && !has_passed(&output));
        assert_eq!(only("it::swap", "child")[1], "swap::child");
        assert_eq!(only("swap", "child")[1], "child");
    }

    #[test]
    fn who_is_alone_is_not_beside_others() {
        let alone = alone();
        let (said, hears) = std::sync::mpsc::channel();
        let other = std::thread::spawn(move || {
            let _shared = shared();
            said.send(()).unwrap();
        });
        let wait = std::time::Duration::from_millis(50);
        assert!(hears.recv_timeout(wait).is_err(), "both hold the lock");
        drop(alone);
        hears.recv().unwrap();
        other.join().unwrap();
    }

    #[test]
    fn a_scoped_child_does_not_outlive_its_scope() {
        let child = ChildGuard::sleeper();
        let place = format!("/proc/{}", child.pid());
        assert!(std::path::Path::new(&place).exists());
        drop(child);
        assert!(!std::path::Path::new(&place).exists());
    }
}
