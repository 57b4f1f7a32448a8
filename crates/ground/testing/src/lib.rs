//! Helpers that the tests of several crates share: visible skips that can be forbidden, users, child processes.
//!
//! Only tests depend on this crate, so its functions panic on any failure: a test that cannot go on has failed.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "used by tests alone"
)]

use std::collections::BTreeMap;
use std::env;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

/// User that every system has: `nobody`.
pub const NOBODY: u32 = 65534;

/// Reports on standard output that a test cannot run here: `SKIPPED name: reason`.
/// `name` is what the machine lacks, not the test.
///
/// If `SUPERHUE_REQUIRE` (names with commas between) lists `name`: the user expects this machine to have the feature.
/// that this machine should be able to.
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

    /// Its process number.
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
    fn a_scoped_child_does_not_outlive_its_scope() {
        let child = ChildGuard::sleeper();
        let place = format!("/proc/{}", child.pid());
        assert!(std::path::Path::new(&place).exists());
        drop(child);
        assert!(!std::path::Path::new(&place).exists());
    }
}
