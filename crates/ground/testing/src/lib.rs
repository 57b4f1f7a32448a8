//! What the tests of several crates share: skips that can be seen and forbidden, users, children.
//!
//! A dependency of tests alone, so nothing here is careful about failing: a test that cannot go on
//! has failed.

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

/// An ordinary user that every system has: `nobody`.
pub const NOBODY: u32 = 65534;

/// Says on standard output that a test cannot run here: `SKIPPED name: reason`.
///
/// `name` is what the machine lacks, not the test.
///
/// # Panics
/// When `SUPERHUE_REQUIRE` (names with commas between) lists `name`: whoever runs the tests knows
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

/// Whether the tests are run by root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Copies a program that is to be executed; its mode is that of the original.
///
/// Another process writes the copy. If this one did, a child that another test starts meanwhile would inherit the descriptor,
/// and until that child executes something the copy could not be executed (`ETXTBSY`).
///
/// # Panics
/// When `cp` fails.
pub fn copy_program(program: &Path, to: &Path) {
    let done = Command::new("cp").arg(program).arg(to).status().unwrap();
    assert!(done.success(), "cp to {} failed: {done}", to.display());
}

/// Writes a shell script that is to be executed (mode 755). Another process writes it, as for [`copy_program`].
///
/// # Panics
/// When `install` fails.
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

/// What a seccomp filter answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Kills the process, as systemd does.
    Kill,
    /// `EPERM`, as container engines do.
    NotPermitted,
}

/// Forbids the system call of this number to the calling thread and to all that it starts from now on. There is no way back; setuid
/// programs lose their effect too (`PR_SET_NO_NEW_PRIVS`).
///
/// # Errors
/// Why it could not be done: a kernel without `CONFIG_SECCOMP_FILTER`, say.
pub fn forbid(call: i64, answer: Answer) -> Result<(), String> {
    let answer = match answer {
        Answer::Kill => SeccompAction::KillProcess,
        Answer::NotPermitted => {
            SeccompAction::Errno(rustix::io::Errno::PERM.raw_os_error().cast_unsigned())
        }
    };
    let program = TargetArch::try_from(env::consts::ARCH).and_then(|architecture| {
        // A call without rules is meant whatever its arguments are.
        let calls = BTreeMap::from([(call, Vec::new())]);
        let filter = SeccompFilter::new(calls, SeccompAction::Allow, answer, architecture)?;
        BpfProgram::try_from(filter)
    });
    let program = program.map_err(|error| error.to_string())?;
    apply_filter(&program).map_err(|error| error.to_string())
}

/// A child process that is killed and waited for at the end of the test.
#[derive(Debug)]
pub struct Scoped(pub Child);

impl Scoped {
    /// Starts `command` without input.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn spawn(command: &mut Command) -> Self {
        Self(command.stdin(Stdio::null()).spawn().unwrap())
    }

    /// A process that sleeps for longer than any test runs.
    ///
    /// # Panics
    /// As for [`spawn`](Self::spawn).
    #[must_use]
    pub fn sleeper() -> Self {
        Self::spawn(Command::new("sleep").arg("1000"))
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Scoped {
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
        let child = Scoped::sleeper();
        let place = format!("/proc/{}", child.pid());
        assert!(std::path::Path::new(&place).exists());
        drop(child);
        assert!(!std::path::Path::new(&place).exists());
    }
}
