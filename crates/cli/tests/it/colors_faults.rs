//! `run --colors` where something is missing or fails: the program runs as it does without colors, and the report gives
//! the reason; only with `--strict` does the program end instead.
//!
//! Colors are those that this machine shows, if it shows any.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self, ChildGuard, FILLING, User, copy_program, folder, is_root, lives, output, python, skip,
    state, superhue, text, until,
};

const PRELUDE: &str = "import os, sys, time\n";

fn users() -> Vec<User> {
    if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Ordinary]
    }
}

/// Runs a command under superhue; returns its output, and the report.
fn run(user: User, options: &[&str], command: &[&str]) -> (Output, Value) {
    let folder = folder();
    let report = folder.path().join("report.json");
    let mut arguments = vec!["run", "--quiet", "--pages", "kernel"];
    arguments.extend(["--report", report.to_str().unwrap()]);
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let output = output(&mut superhue(user, &arguments));
    let report = serde_json::from_slice(&fs::read(&report).unwrap_or_default());
    (output, report.unwrap_or_default())
}

/// In a namespace of its own, where `/dev/shm` and `/run` are empty: a search for colors would leave a file there.
#[test]
fn a_dry_run_looks_for_no_colors() {
    if !is_root() {
        skip("root", "mounts need it");
        return;
    }
    let program = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run || exit 99\n\
                   \"$0\" run --dry-run --pages kernel --colors spread -- echo ran; ls -A /dev/shm /run/superhue 2>&1";
    let mut command = std::process::Command::new("unshare");
    let superhue = support::installed().join("superhue");
    command.args(["--mount", "sh", "-c", program]).arg(superhue);
    let said = output(&mut command);
    if said.status.code() == Some(99) || text(&said.stdout).is_empty() {
        skip("mount namespaces", &text(&said.stderr));
        return;
    }
    let (out, err) = (text(&said.stdout), text(&said.stderr));
    assert!(out.starts_with("ran\n"), "{said:?}");
    assert!(!out.contains("palette"), "{out}");
    assert!(err.contains("colors: programs ran without"), "{err}");
}

#[test]
fn static_and_privileged_programs_run_unchanged() {
    let folder = folder();
    let mut programs = Vec::new();
    programs.extend(support::static_busybox().map(PathBuf::from));
    if is_root() {
        let path = folder.path().join("setuid-echo");
        copy_program("/bin/echo".as_ref(), &path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        programs.push(path);
    } else {
        skip(
            "setuid",
            "making a set-user-ID program of root's needs root",
        );
    }
    for user in users() {
        for program in &programs {
            let name = program.to_str().unwrap();
            // It prints the argument, or the output of busybox's own "echo".
            let (said, report) = run(user, &["--colors", "spread"], &[name, "echo", "ran"]);
            assert!(text(&said.stdout).ends_with("ran\n"), "{said:?}");
            assert_eq!(said.status.code(), Some(0));
            assert_eq!(report["colors"]["request"], "spread", "{report}");
        }
    }
}

/// A program that runs until a file appears, and then prints its findings.
struct BackgroundProgram {
    running: ChildGuard,
    pid: u32,
    mark: PathBuf,
    _folder: tempfile::TempDir,
}

impl BackgroundProgram {
    fn start(user: User) -> Option<Self> {
        let python = python()?;
        let folder = folder();
        let mark = folder.path().join("mark");
        let program = format!(
            "{FILLING}{PRELUDE}\nmark = sys.argv[1]; m = fill(16); open(mark + '.new', 'w').write(str(os.getpid())); os.rename(mark + '.new', mark)\n\
             turns = 0; ok = True\n\
             while (not os.path.exists(mark + '.go') or turns < 3) and os.path.exists(os.path.dirname(mark)):\n \
               n = fill(4, turns); ok = ok and whole(n, turns) and whole(m[:1 << 20]); turns += 1; n.close()\n\
             k = fill(24, 7); open(mark + '.new', 'w').write(str(ok and whole(m) and whole(k, 7))); os.rename(mark + '.new', mark + '.end')",
        );
        let mut command = superhue(
            user,
            &[
                "run",
                "--quiet",
                "--pages",
                "kernel",
                "--colors",
                "spread",
                "--",
                python,
                "-c",
                &program,
                mark.to_str().unwrap(),
            ],
        );
        let running = ChildGuard::start(&mut command);
        let pid = until("the program has begun", || {
            fs::read_to_string(&mark).ok()?.parse().ok()
        });
        Some(Self {
            running,
            pid,
            mark,
            _folder: folder,
        })
    }

    /// Lets it end; returns whether all its memory was intact.
    fn ends(&self) -> String {
        fs::write(self.mark.with_extension("go"), "").unwrap();
        let end = self.mark.with_extension("end");
        let found = until("the program has ended", || fs::read_to_string(&end).ok());
        until("it is gone", || (!lives(self.pid)).then_some(()));
        found
    }
}

#[test]
fn a_program_that_is_stopped_and_continued_goes_on() {
    for user in users() {
        let Some(mut going) = BackgroundProgram::start(user) else {
            return;
        };
        support::send(going.pid, Signal::STOP);
        until("it has stopped", || {
            (state(going.pid) == Some('T')).then_some(())
        });
        // Superhue stops with its command, as a shell expects, and continues it when continued.
        until("superhue has stopped too", || {
            (state(going.running.pid()) == Some('T')).then_some(())
        });
        going.running.signal(Signal::CONT);
        until("it goes on", || {
            (state(going.pid) != Some('T')).then_some(())
        });
        assert_eq!(going.ends(), "True");
        assert!(going.running.wait().success());
    }
}

#[test]
fn a_program_goes_on_when_superhue_is_killed_while_it_is_stopped() {
    for user in users() {
        let Some(going) = BackgroundProgram::start(user) else {
            return;
        };
        support::send(going.pid, Signal::STOP);
        until("it has stopped", || {
            (state(going.pid) == Some('T')).then_some(())
        });
        going.running.signal(Signal::KILL);
        support::send(going.pid, Signal::CONT);
        assert_eq!(going.ends(), "True");
    }
}
