//! Wrong input: one clear line, the documented exit status, nothing changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use rustix::process::Signal;

use crate::support::{
    self, ChildGuard, User, complaint, folder, installed, is_root, output, refused,
    refused_before_the_command, skip, superhue, text, until,
};

fn run(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, arguments))
}

#[test]
fn processes_that_cannot_be_watched() {
    let gone = {
        let mut child = ChildGuard::start(&mut Command::new("true"));
        child.wait();
        child.pid().to_string()
    };
    for verb in ["attach", "status"] {
        refused(&run(&[verb, "4194305"]), 1, &["4194305", "does not exist"]);
        refused(&run(&[verb, &gone]), 1, &[&gone, "has exited"]);
        for wrong in ["0", "-1", "99999999999"] {
            refused(&run(&[verb, "--", wrong]), 2, &[wrong]);
        }
        refused(
            &run(&[verb, "no-such-name"]),
            1,
            &["no-such-name", "--unit"],
        );
    }
    let is_kernel_thread = fs::read("/proc/2/cmdline").is_ok_and(|words| words.is_empty());
    if is_kernel_thread {
        for verb in ["attach", "status"] {
            refused(&run(&[verb, "2"]), 1, &["2", "kernel thread"]);
        }
    } else {
        skip(
            "kernel-thread",
            "no kernel thread is to be seen (container)",
        );
    }
    if is_root() {
        let mut sleeper = Command::new("sleep");
        let sleeper = ChildGuard::start(sleeper.arg("60"));
        let pid = sleeper.pid().to_string();
        let said = output(&mut superhue(User::Ordinary, &["attach", &pid]));
        refused(&said, 3, &[&pid, "CAP_SYS_PTRACE"]);
        // One missing process is enough to watch none.
        let both = output(&mut superhue(User::Same, &["attach", &pid, "4194305"]));
        refused(&both, 1, &["4194305"]);
    } else {
        skip(
            "root",
            "whose processes others may not watch is seen only by root",
        );
    }
}

#[test]
fn an_ordinary_user_is_told_what_attaching_needs() {
    if !is_root() {
        return skip("root", "an ordinary user's process is made by root here");
    }
    let mut sleeper = Command::new("sleep");
    User::Ordinary.run(sleeper.arg("60"));
    let sleeper = ChildGuard::start(&mut sleeper);
    let pid = sleeper.pid().to_string();
    let attach = ["attach", "--pages", "resident", "--for", "50ms", &pid];
    let said = output(&mut superhue(User::Ordinary, &attach));
    refused(&said, 3, &["CAP_SYS_NICE", "setcap", "GLIBC_TUNABLES"]);
    let dry = ["attach", "--dry-run", "--for", "50ms", &pid];
    assert!(output(&mut superhue(User::Ordinary, &dry)).status.success());
}

#[test]
fn sets_of_processes_that_make_no_sense() {
    let me = std::process::id().to_string();
    let wrong: &[(&[&str], i32, &[&str])] = &[
        (&[], 2, &["required"]),
        (&["--all", &me], 2, &["--all", "PID"]),
        (&["--cgroup", "a", &me], 2, &["--cgroup", "PID"]),
        (&["--cgroup", "a", "--all"], 2, &["--cgroup", "--all"]),
        (&["--unit", "no-such-unit"], 1, &["no-such-unit"]),
        (&["--unit", "a", &me], 2, &["--unit", "PID"]),
        (&["--unit", "a", "--all"], 2, &["--unit", "--all"]),
        (&["--user", "root", &me], 2, &["--user"]),
        (
            &["--all", "--no-follow"],
            2,
            &["--all", "leave --no-follow out"],
        ),
        (
            &["--pages", "resident", "--cold-after", "1m", &me],
            2,
            &["--cold-after", "--pages resident"],
        ),
        (
            &["--all", "--user", "no-such-user"],
            1,
            &["no-such-user", "getent"],
        ),
        (&["--all", "--user", "4294967295"], 1, &["4294967295"]),
        (&["--all", "--user", "-1"], 2, &["-1"]),
        (&["--all", "--user", ""], 1, &["user"]),
    ];
    for (options, status, words) in wrong {
        let mut arguments = vec!["attach"];
        arguments.extend(*options);
        refused(&run(&arguments), *status, words);
    }
    if support::cgroups().is_none() {
        return;
    }
    let wrong: &[(&str, i32, &[&str])] = &[
        ("no-such.slice", 1, &["no-such.slice", "no cgroup"]),
        ("/tmp", 1, &["/tmp", "not a cgroup"]),
        ("/proc/self", 1, &["/proc/self", "not a cgroup"]),
        ("..", 2, &["`..`", "system.slice/"]),
        ("a/../b", 2, &["a/../b"]),
        ("/sys/fs/cgroup/../cgroup", 2, &["not the path"]),
        ("", 2, &["--cgroup", "value"]),
    ];
    for (path, status, words) in wrong {
        // With `=`, so that the parser accepts an empty value.
        let option = format!("--cgroup={path}");
        refused(&run(&["attach", &option]), *status, words);
    }
}

#[test]
fn processes_of_a_trial_that_are_no_family() {
    let sleepers = [0, 1].map(|_| ChildGuard::start(Command::new("sleep").arg("60")));
    let [one, other] = [0, 1].map(|which: usize| sleepers[which].pid().to_string());
    refused(
        &run(&["trial", &one, &other]),
        2,
        &[&one, &other, "different families", "name one PID"],
    );
}

#[test]
fn long_names_are_refused_in_one_line() {
    for name in ["n".repeat(4095), "\u{e4}".repeat(2047)] {
        for arguments in [
            ["status", "--", &name].as_slice(),
            &["attach", "--unit", &name],
            &["attach", "--cgroup", &name],
            &["attach", "--user", &name],
            &["advise", "--unit", &name],
        ] {
            let told = run(arguments);
            let error = text(&told.stderr);
            let code = told.status.code();
            assert!(matches!(code, Some(1 | 2)), "{code:?}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}

#[test]
fn hidden_processes_are_named_as_possibly_hidden() {
    let sleeper = ChildGuard::start(Command::new("sleep").arg("60"));
    let pid = sleeper.pid().to_string();
    let program = support::installed().join("superhue");
    // A proc of its own, so that no other one changes; then as an ordinary user.
    let script = "mount -t proc -o hidepid=2 proc /proc || exit 77; \
                  exec setpriv --reuid 65534 --regid 65534 --clear-groups \"$@\"";
    let said = output(
        Command::new("unshare")
            .args(["--mount", "sh", "-c", script, "sh"])
            .arg(program)
            .args(["attach", &pid]),
    );
    if !is_root() || said.status.code() == Some(77) {
        return skip("hidepid", "may not mount a proc of my own");
    }
    refused(&said, 1, &[&pid, "hidepid"]);
}

#[test]
fn commands_that_cannot_be_run() {
    refused(&run(&["run"]), 2, &["required"]);
    refused(&run(&["run", "--"]), 2, &["required"]);
    refused(&run(&["run", ""]), 127, &["cannot run ``"]);
    refused(
        &run(&["run", "no-such-program"]),
        127,
        &["no-such-program", "PATH"],
    );
    refused(
        &run(&["run", "/no/such/program"]),
        127,
        &["/no/such/program"],
    );
    refused(
        &run(&["run", "/etc/passwd"]),
        126,
        &["/etc/passwd", "execute"],
    );
    refused(&run(&["run", "/etc"]), 126, &["/etc"]);
    // Without `--`, options after the command are the command's.
    let said = run(&["run", "--quiet", "echo", "-n", "--quiet"]);
    assert_eq!(text(&said.stdout), "--quiet");
}

#[test]
fn options_that_make_no_sense() {
    let wrong: &[(&[&str], i32, &[&str])] = &[
        (&["--budget", "-5"], 2, &["-5", "negative"]),
        (&["--budget=-1G"], 2, &["-1G", "negative"]),
        (&["--budget", "64T"], 2, &["memory"]),
        (&["--budget", "12 apples"], 2, &["12 apples", "unit"]),
        (&["--budget", ""], 2, &["--budget"]),
        (&["--budget", "1e400"], 2, &["1e400"]),
        (
            &["--budget", "99999999999999999999999"],
            2,
            &["99999999999999999999999"],
        ),
        (&["--pages", "sometimes"], 2, &["sometimes", "resident"]),
        (&["--min-resident", "0"], 2, &["--min-resident"]),
        (&["--min-resident", "101"], 2, &["101"]),
        (&["--settle", "soon"], 2, &["soon"]),
        (&["--max-stall", "5"], 2, &["not a time"]),
        (&["--max-stall", "99us"], 2, &["99us", "100us"]),
        (&["--max-stall", "1s"], 2, &["1s", "100ms"]),
        (&["--rate", "-1"], 2, &["-1"]),
        (&["--rate", "0"], 2, &["--rate", "2M", "--pages kernel"]),
        (&["--budget", "101%"], 2, &["--budget", "100%"]),
        (&["--settle", "99999999999s"], 2, &["--settle", "a year"]),
        (
            &["--cold-after", "999999999h"],
            2,
            &["--cold-after", "a year"],
        ),
        (
            &["--pages", "hot", "--min-resident", "90%"],
            2,
            &["--min-resident", "--pages hot", "auto and resident"],
        ),
        (
            &["--pages", "hot", "--settle", "1s"],
            2,
            &["--settle", "--pages hot", "remove it"],
        ),
        (
            &["--pages", "resident", "--min-active", "50%"],
            2,
            &["--min-active", "--pages resident", "auto and hot"],
        ),
        (
            &["--pages", "always", "--cold-after", "1m"],
            2,
            &["--cold-after", "--pages always"],
        ),
        (
            &["--pages", "kernel", "--tracker", "idle"],
            2,
            &["--tracker", "--pages kernel", "colors"],
        ),
        (&["--no-such-option"], 2, &["--no-such-option"]),
        (&["--system", "enabled"], 2, &["KNOB=VALUE"]),
        (&["--system", "../ksm/run=1"], 2, &["KNOB=VALUE"]),
    ];
    for (options, status, words) in wrong {
        refused_before_the_command(options, *status, words);
    }
}

#[test]
fn times_and_sizes_that_cannot_be_meant() {
    let me = std::process::id().to_string();
    let wrong: &[(&[&str], &[&str])] = &[
        (
            &["bench", "chase", "--arms", "kernel,kernel"],
            &["kernel twice"],
        ),
        (
            &["trial", "--pages", "always", "--settle", "1s", &me],
            &["--settle", "--pages always"],
        ),
        (&["attach", "--for", "0s", &me], &["--for", "1ms"]),
        (
            &["attach", "--for", "99999999999s", &me],
            &["--for", "a year"],
        ),
        (
            &["heat", "--for", "584542046090s", &me],
            &["--for", "a year"],
        ),
        (
            &[
                "compare",
                "--arm",
                "never",
                "--load",
                "true",
                "--ready",
                "tcp:1",
                "--patience",
                "0s",
                "true",
            ],
            &["--patience", "1ms"],
        ),
        (
            &["compare", "--arm", "a=--budget 101%", "true"],
            &["--budget", "100%"],
        ),
        (
            &["track", "--max-memory", "9999T"],
            &["--max-memory", "memory"],
        ),
    ];
    for (arguments, words) in wrong {
        refused(&run(arguments), 2, words);
    }
}

/// Runs this line in a shell, in which `$0` is superhue.
fn shell(line: &str) -> Output {
    let superhue = support::installed().join("superhue");
    output(Command::new("sh").args(["-c", line]).arg(superhue))
}

#[test]
fn a_small_stack_is_room_enough() {
    let said = shell("ulimit -s 64; \"$0\" run --quiet -- sh -c 'ulimit -s; exit 7'");
    assert_eq!(said.status.code(), Some(7), "{said:?}");
    assert_eq!(
        text(&said.stdout),
        "64\n",
        "the limit is the command's as well"
    );
    // It passes on the signals that it receives, and ends like the command, as with any other stack.
    let folder = folder();
    let begun = folder.path().join("begun");
    let line = format!(
        "ulimit -s 64; exec \"$0\" run --quiet -- sh -c 'touch {}; exec sleep 60'",
        begun.display()
    );
    let superhue = support::installed().join("superhue");
    let mut running = ChildGuard::start(Command::new("sh").args(["-c", &line]).arg(superhue));
    until("the command runs", || begun.exists().then_some(()));
    running.signal(Signal::TERM);
    let signal = std::os::unix::process::ExitStatusExt::signal(&running.wait());
    assert_eq!(signal, Some(15));
}

#[test]
fn a_limit_on_files_is_an_error_and_not_the_end() {
    let folder = folder();
    let report = folder.path().join("report");
    let line = format!(
        "ulimit -f 0; exec \"$0\" run --quiet --report {} -- true",
        report.display()
    );
    refused(&shell(&line), 125, &["report", "large"]);
    // The command finds the signal's disposition as its caller left it.
    let look = "\"$0\" run --quiet -- grep SigIgn /proc/self/status";
    let bit = |said: &Output| {
        let words = text(&said.stdout);
        let mask = words
            .split_whitespace()
            .nth(1)
            .unwrap_or_default()
            .to_owned();
        u64::from_str_radix(&mask, 16).unwrap() >> 24 & 1
    };
    assert_eq!(bit(&shell(look)), 0);
    assert_eq!(bit(&shell(&format!("trap '' XFSZ; {look}"))), 1);
}

#[test]
fn a_result_that_nobody_can_get_is_a_failure() {
    for (verb, status) in [
        ("check --json page-size", 1),
        ("status --json $$", 1),
        ("status $$", 1),
        ("restore --json", 1),
        ("run --quiet --json -- true", 125),
        ("--version", 1),
        ("run --help", 1),
    ] {
        let said = shell(&format!("exec \"$0\" {verb} >&-"));
        refused(&said, status, &["standard output", "closed"]);
        // Open, but not for writing.
        let said = shell(&format!("exec \"$0\" {verb} 1</dev/null"));
        refused(&said, status, &["standard output"]);
    }
}

#[test]
fn what_has_no_end_is_not_read() {
    let folder = folder();
    let pipe = folder.path().join("pipe");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
    for path in [pipe.to_str().unwrap(), "/dev/zero", "/"] {
        for verb in ["compare", "heat", "bench", "lab", "colors"] {
            refused(&run(&[verb, "--from", path]), 1, &[path, "no regular file"]);
        }
        refused(
            &run(&["colors", "--index", path]),
            1,
            &[path, "no regular file"],
        );
    }
}

#[test]
fn who_has_nothing_to_restore_is_told_so() {
    let said = output(&mut superhue(User::Ordinary, &["restore"]));
    let words = text(&said.stdout);
    assert!(
        words.contains("nothing") && words.contains("to restore"),
        "{words}"
    );
    // What root's superhue may have left is not visible to others.
    match said.status.code() {
        Some(0) => assert_eq!(text(&said.stderr), ""),
        code => {
            assert_eq!(code, Some(3), "{said:?}");
            assert!(text(&said.stderr).contains("as root"), "{said:?}");
        }
    }
}

#[test]
fn a_budget_of_nothing_is_explained_and_obeyed() {
    let said = run(&["run", "--quiet", "--budget", "0", "--", "echo", "ran"]);
    assert!(complaint(&said).contains("wholly resident"));
    assert_eq!(
        (text(&said.stdout), said.status.code()),
        ("ran\n".to_owned(), Some(0))
    );
}

#[test]
fn reports_that_cannot_be_written() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).display().to_string();
    refused_before_the_command(
        &["--report", &path("no/such/folder")],
        125,
        &["no/such/folder"],
    );
    refused_before_the_command(
        &["--report", folder.path().to_str().unwrap()],
        125,
        &["report"],
    );
    if is_root() {
        let root_only = folder.path().join("root-only");
        fs::create_dir(&root_only).unwrap();
        fs::set_permissions(&root_only, fs::Permissions::from_mode(0o700)).unwrap();
        let report = root_only.join("report").display().to_string();
        let trace = path("trace");
        let arguments = ["run", "--quiet", "--report", &report, "--", "touch", &trace];
        let said = output(&mut superhue(User::Ordinary, &arguments));
        refused(&said, 125, &["report", "ermission"]);
        assert!(!Path::new(&trace).exists());
    }

    // An older report survives a command that cannot be run; a new one is not left empty.
    let old = path("old");
    fs::write(&old, "old").unwrap();
    run(&["run", "--report", &old, "no-such-program"]);
    assert_eq!(fs::read_to_string(&old).unwrap(), "old");
    let new = path("new");
    run(&["run", "--report", &new, "no-such-program"]);
    assert!(!Path::new(&new).exists());

    // The disk is full: the command's own status is kept if it is not 0.
    let full = |script: &str| {
        run(&[
            "run",
            "--quiet",
            "--report",
            "/dev/full",
            "--",
            "sh",
            "-c",
            script,
        ])
    };
    refused(&full("true"), 125, &["/dev/full", "No space left"]);
    refused(&full("exit 7"), 7, &["/dev/full", "No space left"]);
    let killed = full("kill -TERM $$");
    assert!(complaint(&killed).contains("No space left"));
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&killed.status),
        Some(15)
    );
}

#[test]
fn results_that_cannot_be_printed() {
    let full = |arguments: &[&str]| {
        let mut command = superhue(User::Same, arguments);
        command.stdout(fs::File::options().write(true).open("/dev/full").unwrap());
        let mut child = command
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut error = String::new();
        std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut error).unwrap();
        (child.wait().unwrap().code(), error)
    };
    let me = std::process::id().to_string();
    for (arguments, status) in [
        (&["status", &me][..], 1),
        (&["status", "--json", &me], 1),
        (&["restore"], 1),
        (&["run", "--json", "--", "true"], 125),
    ] {
        let (code, error) = full(arguments);
        assert_eq!(code, Some(status), "{arguments:?}: {error}");
        assert!(error.contains("No space left"), "{arguments:?}: {error:?}");
        assert_eq!(error.lines().count(), 1, "{error:?}");
    }
}

#[test]
fn comparisons_that_make_no_sense() {
    let wrong: &[(&[&str], &[&str])] = &[
        (&["--arm", "never", "--arm", "never"], &["never", "rename"]),
        (
            &["--arm", "a=--pages never", "--arm", "a=--pages always"],
            &["`a`"],
        ),
        (&["--arm", "never", "--arm", "sometimes"], &["sometimes"]),
        (&["--arm", "never", "--arm", "x=--budget lots"], &["lots"]),
        (&["--arm", "never", "--arm", "x=--no-such"], &["--no-such"]),
        (
            &["--arm", "never", "--arm", "x=--pages hot --settle 1s"],
            &["--settle", "--pages hot"],
        ),
        (&["--arm", "never", "--metric", "m=("], &["m"]),
        (&["--arm", "never", "--metric", "m"], &["m"]),
        (&["--arm", "never", "-n", "0"], &["0"]),
        (
            &["--arm", "never", "--ready", "tcp:99999", "--load", "x"],
            &["tcp:99999"],
        ),
        (&["--arm", "never", "--smallest", "200"], &["--smallest"]),
    ];
    // Options that a kept result cannot obey.
    for (verb, options) in [
        ("compare", &["--smallest", "5%"][..]),
        ("compare", &["--runs", "9"]),
        ("compare", &["--only", "redis"]),
        ("compare", &["--ready", "tcp:1"]),
        ("trial", &["--alpha", "1%"]),
        ("trial", &["--smallest", "1%"]),
        ("trial", &["--pages", "hot"]),
    ] {
        let arguments = [&[verb, "--from", "x.json"], options].concat();
        refused(&run(&arguments), 2, &["--from", options[0]]);
    }
    let folder = folder();
    let trace = folder.path().join("trace").display().to_string();
    for (options, words) in wrong {
        let mut arguments = vec!["compare"];
        arguments.extend(*options);
        arguments.extend(["--", "touch", &trace]);
        refused(&run(&arguments), 2, words);
        assert!(!Path::new(&trace).exists(), "{options:?}");
    }
    let unwritable = [
        "compare",
        "--arm",
        "never",
        "--arm",
        "kernel",
        "--report",
        "/dev/null/report",
        "--",
        "touch",
        &trace,
    ];
    refused(&run(&unwritable), 1, &["/dev/null/report"]);
    assert!(!Path::new(&trace).exists());
}

#[test]
fn no_terminal_is_needed() {
    let me = std::process::id().to_string();
    for arguments in [
        &["run", "--", "true"][..],
        &["status", &me],
        &["check"],
        &[
            "compare", "--arm", "never", "--arm", "kernel", "-n", "1", "--warmup", "0", "--",
            "true",
        ],
    ] {
        let mut command = Command::new("setsid");
        command
            .arg("--wait")
            .arg(support::installed().join("superhue"));
        let said = output(
            command
                .args(arguments)
                .env_remove("TERM")
                .stdin(std::process::Stdio::null()),
        );
        assert!(said.status.success(), "{arguments:?}: {said:?}");
        assert!(!text(&said.stdout).contains('\u{1b}') && !text(&said.stderr).contains('\u{1b}'));
    }
}

#[test]
fn colors_that_cannot_be_asked_for() {
    let folder = folder();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let wrong: &[(&[&str], i32, &[&str])] = &[
        (
            &["--oracle", "delphi"],
            2,
            &["delphi", "pfn, offset, measured"],
        ),
        (&["--cpu", "-1"], 2, &["-1"]),
        (&["--cpu", "65000"], 2, &["no CPU 65000", "online"]),
        (&["--pool", "0"], 2, &["2.0 MiB"]),
        (&["--pool", "1T"], 2, &["4.0 GiB"]),
        (&["--pool", "3000000"], 2, &["whole pages"]),
        (&["--quick"], 2, &["required"]),
        (&["--plot", "a.jpg", "--verify"], 2, &["a.jpg", ".svg"]),
        (&["--plot", "a.svg"], 2, &["--verify"]),
        (
            &["--index", "/no/such/file"],
            1,
            &["/no/such/file", "No such file"],
        ),
        (&["--index", "/"], 1, &["cannot read the masks"]),
        (&["--from", "/no/such/file"], 1, &["/no/such/file"]),
        (&["--from", "/etc/passwd"], 1, &["/etc/passwd"]),
        (
            &["--verify", "--report", "/no/such/folder/file"],
            1,
            &["/no/such/folder/file"],
        ),
    ];
    for (options, status, words) in wrong {
        let mut arguments = vec!["colors"];
        arguments.extend(*options);
        refused(&run(&arguments), *status, words);
    }
    let masks: &[(&str, &[&str])] = &[
        ("zebra", &["line 1", "zebra", "hexadecimal"]),
        ("# none", &["no mask is in it"]),
        ("0x1000\n0x40\n", &["line 2", "inside the page offset"]),
        ("1000\n2000\n3000\n", &["only 2 are independent"]),
        ("10000000000000000", &["line 1", "64 bits"]),
        ("0", &["no bits"]),
    ];
    for (text, words) in masks {
        let path = file("masks", text);
        refused(&run(&["colors", "--index", &path]), 2, words);
    }
}

#[test]
fn frame_numbers_are_not_for_everybody() {
    if !is_root() {
        return skip(
            "root",
            "whose frame numbers are hidden is seen only by comparison",
        );
    }
    // The bits come from a file: the machine need not describe its caches for that.
    let folder = folder();
    let masks = folder.path().join("masks");
    fs::write(&masks, "0x10000\n0x20000\n").unwrap();
    // Without the privilege the oracle is untested: a failure, with the reason.
    let mut command = superhue(User::Ordinary, &["colors", "--oracle", "pfn", "--index"]);
    let said = output(command.arg(&masks));
    assert_eq!(said.status.code(), Some(3), "{}", text(&said.stderr));
    let error = text(&said.stderr);
    if error.contains("clock") || error.contains("architecture") {
        return skip("timing", &error);
    }
    assert!(error.contains("CAP_SYS_ADMIN"), "{error}");
}

#[test]
fn a_cpu_that_is_not_allowed() {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if online.trim() == "0" {
        return skip("two-cpus", "there is one CPU only");
    }
    let program = support::installed().join("superhue");
    let mut taskset = Command::new("taskset");
    taskset
        .args(["-c", "0"])
        .arg(program)
        .args(["colors", "--cpu", "1"]);
    refused(&output(&mut taskset), 3, &["CPU 1", "may run on 0"]);
}

/// Without procfs there is no process to show, and that is an error and not an empty list.
#[test]
fn nothing_is_shown_of_a_machine_without_procfs() {
    if !is_root() {
        return skip("root", "a mount namespace is made by root");
    }
    for verb in ["status", "advise", "top"] {
        let mut command = Command::new("unshare");
        let script = "mount -t tmpfs none /proc && exec \"$@\"";
        command.args(["-m", "sh", "-c", script, "sh"]);
        command.arg(installed().join("superhue")).arg(verb);
        if verb == "top" {
            command.arg("--once");
        }
        let said = output(&mut command);
        assert_eq!(said.status.code(), Some(1), "{verb}: {said:?}");
        let error = text(&said.stderr);
        assert!(error.contains("/proc"), "{verb}: {error}");
    }
}

/// The exit status of `check NAME` shows whether the capability is available.
#[test]
fn a_capability_that_is_missing_is_an_exit_status() {
    let said = output(&mut superhue(User::Same, &["check", "--json"]));
    assert!(said.status.success(), "{said:?}");
    let all: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
    for capability in all["capabilities"].as_array().unwrap() {
        let id = capability["id"].as_str().unwrap();
        let said = output(&mut superhue(User::Same, &["check", id]));
        let expected = if capability["verdict"] == "no" { 3 } else { 0 };
        assert_eq!(said.status.code(), Some(expected), "{id}");
    }
}
