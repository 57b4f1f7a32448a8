//! `run --colors` where something is missing or fails: the program goes on and does what it does without, and the report
//! says what happened; only with `--strict` does it end instead.
//!
//! No test depends on timing: `SUPERHUE_TEST_ORACLE` puts a rule in the place of a measured cache.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use support::{
    FILLING, Running, User, folder, is_root, lives, output, python, skip, state, superhue, text,
    until,
};

/// How many threads there are, of which one may be the agent's.
const PRELUDE: &str = r"
import os, sys, time
def threads():
    return len(os.listdir('/proc/self/task'))
";

/// Fills 24 MiB, and says whether that is what it reads.
const FILLS: &str = "m = fill(24); print(whole(m))";

fn users() -> Vec<User> {
    if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Ordinary]
    }
}

/// Runs a command under superhue; what it did, and what the report says.
fn run(user: User, oracle: &str, options: &[&str], command: &[&str]) -> (Output, Value) {
    let folder = folder();
    let report = folder.path().join("report.json");
    let mut arguments = vec!["run", "--quiet", "--pages", "kernel"];
    arguments.extend(["--report", report.to_str().unwrap()]);
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let mut command = superhue(user, &arguments);
    command.env("SUPERHUE_TEST_ORACLE", oracle);
    let output = output(&mut command);
    let report = serde_json::from_slice(&fs::read(&report).unwrap_or_default());
    (output, report.unwrap_or_default())
}

/// The same for a Python program.
fn colored(user: User, oracle: &str, options: &[&str], program: &str) -> Option<(Output, Value)> {
    let program = format!("{FILLING}{PRELUDE}{program}");
    Some(run(user, oracle, options, &[python()?, "-c", &program]))
}

fn number(report: &Value, name: &str) -> u64 {
    report["colors"][name].as_u64().unwrap()
}

/// Whether an agent has stepped aside for this reason.
fn stepped_aside(report: &Value, reason: &str) -> bool {
    let aside = report["colors"]["stepped_aside"].as_object().unwrap();
    aside.keys().any(|told| told.contains(reason))
}

#[test]
fn without_any_page_of_its_colors_a_program_gets_others_and_they_are_counted() {
    for user in users() {
        let Some((said, report)) = colored(user, "poor:8", &["--colors", "7"], FILLS) else {
            return;
        };
        assert_eq!(text(&said.stdout), "True\n", "{said:?}");
        assert_eq!(said.status.code(), Some(0));
        assert_eq!(number(&report, "placed_bytes"), 0, "{report}");
        if number(&report, "processes_with_faults") > 0 {
            assert!(number(&report, "uncolored_bytes") > 20 << 20, "{report}");
            let left = report["colors"]["left_bytes"].as_object().unwrap();
            assert!(left.keys().any(|why| why.contains("no page of the colors")));
        }
    }
}

#[test]
fn with_strict_it_ends_instead_and_the_report_says_why() {
    if !is_root() {
        skip("root", "only who is told of faults can hold a program back");
        return;
    }
    let options = ["--colors", "7", "--strict"];
    let Some((said, report)) = colored(User::Same, "poor:8", &options, FILLS) else {
        return;
    };
    assert_eq!(text(&said.stdout), "", "{said:?}");
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    assert!(stepped_aside(&report, "--strict"), "{report}");
}

#[test]
fn an_oracle_that_is_refuted_half_way_stops_the_agent_and_not_the_program() {
    if !is_root() {
        skip("root", "only root sees frame numbers");
        return;
    }
    // The agent gives up at its own time: waited for, not assumed. What is filled then is as good as before.
    let program = "m = fill(24)\nwhile threads() > 1: time.sleep(0.002)\n\
                   n = fill(8, 3); print(whole(m), whole(n, 3))";
    for colors in ["spread", "0-1"] {
        let options = ["--colors", colors];
        let Some((said, report)) = colored(User::Same, "drifting:8", &options, program) else {
            return;
        };
        assert_eq!(text(&said.stdout), "True True\n", "{said:?}");
        assert!(stepped_aside(&report, "no longer have"), "{report}");
        assert!(number(&report, "placed_bytes") > 0, "{report}");
    }
    let options = ["--colors", "0-1", "--strict"];
    let program = "m = fill(24)\nwhile threads() > 1: time.sleep(0.002)\nprint(1)";
    let Some((said, report)) = colored(User::Same, "drifting:8", &options, program) else {
        return;
    };
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    assert!(stepped_aside(&report, "no longer have"), "{report}");
}

#[test]
fn where_colors_cannot_be_told_the_command_runs_without_and_the_report_says_why() {
    for user in users() {
        for options in [&["--colors", "spread"][..], &["--colors", "50%"]] {
            let Some((said, report)) = colored(user, "nobody", options, FILLS) else {
                return;
            };
            assert_eq!(text(&said.stdout), "True\n", "{said:?}");
            assert_eq!(said.status.code(), Some(0));
            let why = report["colors"]["without"].as_str().unwrap();
            assert!(why.contains("nobody"), "{why}");
            assert_eq!(number(&report, "processes"), 0);
        }
        let options = ["--colors", "spread", "--strict"];
        let (said, _) = run(user, "nobody", &options, &["echo", "started"]);
        assert_eq!(said.status.code(), Some(125), "{said:?}");
        assert_eq!(text(&said.stdout), "", "nothing is started");
        assert!(text(&said.stderr).contains("--colors: "), "{said:?}");
    }
}

/// In a name space of its own, `/dev/shm` and `/run` are empty: whoever looks for colors there leaves something.
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
    assert!(err.contains("colors: the command ran without"), "{err}");
}

/// A control group with a limit on memory, of whichever version; removed in the end.
struct Tight(PathBuf);

impl Tight {
    fn new(limit: u64) -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let mut lines = mounts.lines();
        let is_ours = |line: &&str| {
            let old = line.contains(" - cgroup ") && line.ends_with("memory");
            let root = line.split(' ').nth(4).unwrap_or_default();
            let controllers = fs::read_to_string(Path::new(root).join("cgroup.subtree_control"));
            let new = line.contains(" - cgroup2 ");
            old || new && controllers.is_ok_and(|names| names.contains("memory"))
        };
        let line = lines.find(is_ours).ok_or("no memory control groups")?;
        let root = line.split(' ').nth(4).ok_or("no mount point")?;
        let name = format!("superhue-test-memory-{}", std::process::id());
        let group = Self(Path::new(root).join(name));
        fs::create_dir(&group.0).map_err(|error| error.to_string())?;
        let files = ["memory.max", "memory.limit_in_bytes"];
        let set = |file: &&str| fs::write(group.0.join(file), limit.to_string()).is_ok();
        if files.iter().any(set) {
            Ok(group)
        } else {
            Err("the limit cannot be set".to_owned())
        }
    }
}

impl Drop for Tight {
    fn drop(&mut self) {
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_control_group_too_tight_for_a_pool_does_not_kill_the_program() {
    if !is_root() {
        skip("root", "making a control group needs it");
        return;
    }
    let Some(python) = python() else { return };
    // The program and Superhue need about 60 MiB; a pool of the usual size would be too much.
    for (mebibytes, oracle) in [(80_u64, "frames:8"), (120, "frames:8"), (400, "frames:8")] {
        let group = match Tight::new(mebibytes << 20) {
            Ok(group) => group,
            Err(why) => {
                skip("memory cgroup", &why);
                return;
            }
        };
        let folder = folder();
        let report = folder.path().join("report.json");
        let program = format!("{FILLING}{PRELUDE}{FILLS}");
        let script = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
        let installed = support::installed().join("superhue");
        let mut command = std::process::Command::new("sh");
        command.args(["-c", script]).arg(&group.0).arg(installed);
        command.args(["run", "--quiet", "--pages", "kernel", "--colors", "spread"]);
        command.arg("--report").arg(&report);
        command.args(["--", python, "-c", &program]);
        command.env("SUPERHUE_TEST_ORACLE", oracle);
        let said = output(&mut command);
        assert_eq!(text(&said.stdout), "True\n", "{mebibytes} MiB: {said:?}");
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let pool = number(&report, "pool_limit_bytes");
        assert!(pool <= (mebibytes << 20) / 16, "{mebibytes}: {report}");
        let without = report["colors"]["without"].as_str();
        assert_eq!(pool == 0, without.is_some(), "{report}");
    }
}

#[test]
fn a_program_may_need_much_more_than_the_pool_holds() {
    // A set of all colors has the smallest pool: 64 MiB.
    let program = "m = fill(200); print(whole(m))";
    for user in users() {
        let oracle = if user == User::Same {
            "frames:8"
        } else {
            "dealt:8"
        };
        let Some((said, report)) = colored(user, oracle, &["--colors", "spread"], program) else {
            return;
        };
        assert_eq!(text(&said.stdout), "True\n", "{said:?}");
        let placed = number(&report, "placed_bytes");
        assert!(placed > number(&report, "pool_limit_bytes"), "{report}");
    }
}

#[test]
fn static_and_privileged_programs_run_unchanged_and_are_named() {
    let folder = folder();
    let mut programs = Vec::new();
    let busybox = Path::new("/usr/bin/busybox");
    let is_static = std::process::Command::new("ldd").arg(busybox).output();
    if busybox.exists() && is_static.is_ok_and(|said| !said.status.success()) {
        programs.push((busybox.to_owned(), "it is statically linked"));
    } else {
        skip("static", "no static busybox (Debian: busybox-static)");
    }
    if is_root() {
        let path = folder.path().join("setuid-echo");
        fs::copy("/bin/echo", &path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        programs.push((path, "it is set-user-ID or set-group-ID"));
    } else {
        skip(
            "setuid",
            "making a set-user-ID program of root's needs root",
        );
    }
    for user in users() {
        for (program, why) in &programs {
            let name = program.to_str().unwrap();
            // What it prints is the argument, or busybox's own "echo".
            let (said, report) = run(
                user,
                "dealt:8",
                &["--colors", "spread"],
                &[name, "echo", "ran"],
            );
            assert!(text(&said.stdout).ends_with("ran\n"), "{said:?}");
            assert_eq!(said.status.code(), Some(0));
            let told = report["processes"]["without_agent"][name].as_str();
            assert_eq!(told, Some(*why), "{report}");
            assert_eq!(number(&report, "placed_bytes"), 0);
        }
    }
}

/// A program that goes on for as long as a file is not there, and what it then finds.
struct Going {
    running: Running,
    pid: u32,
    mark: PathBuf,
    _folder: tempfile::TempDir,
}

impl Going {
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
        let oracle = if user == User::Same {
            "frames:8"
        } else {
            "dealt:8"
        };
        command.env("SUPERHUE_TEST_ORACLE", oracle);
        let running = Running::start(&mut command);
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

    /// Lets it come to its end; whether all its memory was as it should be.
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
        let Some(mut going) = Going::start(user) else {
            return;
        };
        support::send(going.pid, Signal::STOP);
        until("it has stopped", || {
            (state(going.pid) == Some('T')).then_some(())
        });
        // Superhue stops with its command, as a shell wants it, and continues it when continued.
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
        let Some(going) = Going::start(user) else {
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
