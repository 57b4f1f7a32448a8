//! Wrong input: one clear line, the documented exit status, nothing changed.

mod support;

use std::fs;
use std::process::{Command, Output};

use support::{Running, User, folder, is_root, output, skip, superhue, text};

/// Runs superhue and checks its status and that its complaint is one line that says `says`.
fn refused(user: User, arguments: &[&str], status: i32, says: &str) -> Output {
    let ran = output(&mut superhue(user, arguments));
    let complaint = text(&ran.stderr);
    assert_eq!(
        ran.status.code(),
        Some(status),
        "{arguments:?}: {complaint}"
    );
    assert!(
        complaint.contains(says),
        "{arguments:?}: {complaint:?} does not say {says:?}"
    );
    // Those of the parser have a usage line below.
    if status != 2 {
        assert_eq!(complaint.lines().count(), 1, "{arguments:?}: {complaint}");
    }
    assert!(ran.stdout.is_empty(), "{arguments:?}: {ran:?}");
    ran
}

/// A process number that no process has.
fn unused_pid() -> String {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id().to_string()
}

#[test]
fn processes_that_cannot_be_watched() {
    let gone = unused_pid();
    refused(User::Same, &["attach", &gone], 1, "does not exist");
    refused(User::Same, &["status", &gone], 1, "does not exist");
    refused(User::Same, &["attach", "4194305"], 1, "does not exist");
    refused(User::Same, &["attach", "0"], 2, "0");
    refused(User::Same, &["attach", "many"], 2, "many");
    refused(User::Same, &["attach"], 2, "PID");

    let kernel_thread =
        fs::read_to_string("/proc/2/comm").is_ok_and(|name| name.starts_with("kthreadd"));
    if kernel_thread {
        refused(User::Same, &["attach", "2"], 1, "kernel thread");
        refused(User::Same, &["status", "2"], 1, "kernel thread");
    } else {
        skip("kernel-thread", "process 2 is none (a PID namespace)");
    }
    if is_root() {
        refused(User::Ordinary, &["attach", "1"], 3, "CAP_SYS_PTRACE");
        let target = Running::start(Command::new("sleep").arg("60"));
        let pid = target.pid().to_string();
        refused(User::Ordinary, &["attach", &pid], 3, "CAP_SYS_PTRACE");
    } else {
        skip(
            "other-user",
            "only root can start a process of another user",
        );
    }
}

#[test]
fn an_ordinary_user_is_told_the_capability() {
    if !is_root() {
        skip(
            "other-user",
            "the tests are run by an ordinary user already",
        );
        return;
    }
    let mut target = Command::new("sleep");
    User::Ordinary.run(target.arg("60"));
    let target = Running::start(&mut target);
    let pid = target.pid().to_string();
    refused(
        User::Ordinary,
        &["attach", "--pages", "resident", &pid],
        3,
        "CAP_SYS_NICE",
    );
    let looked = output(&mut superhue(
        User::Ordinary,
        &["attach", "--pages", "kernel", "--duration", "50ms", &pid],
    ));
    assert!(looked.status.success(), "{looked:?}");
    refused(
        User::Ordinary,
        &["run", "--system", "enabled=never", "--", "true"],
        125,
        "run as root",
    );
}

#[test]
fn commands_that_cannot_be_run() {
    refused(
        User::Same,
        &["run", "--", "there-is-no-such-program"],
        127,
        "check the name",
    );
    refused(
        User::Same,
        &["run", "--", "/no/such/folder/program"],
        127,
        "check the name",
    );
    refused(User::Same, &["run", "--", ""], 127, "cannot run ``");
    refused(
        User::Same,
        &["run", "--", "/etc/passwd"],
        126,
        "may you execute it",
    );
    refused(
        User::Same,
        &["run", "--", "/tmp"],
        126,
        "may you execute it",
    );
    refused(User::Same, &["run"], 2, "COMMAND");
    refused(User::Same, &["run", "--"], 2, "COMMAND");
    let nothing = [
        "compare", "--arm", "never", "--arm", "always", "-n", "2", "--",
    ];
    let with = |command: &'static str| [&nothing[..], &[command]].concat();
    refused(
        User::Same,
        &with("there-is-no-such-program"),
        1,
        "check the name",
    );
}

#[test]
fn amounts_that_make_no_sense() {
    let run =
        |option: &'static str, amount: &'static str| ["run", option, amount, "--", "echo", "ran"];
    refused(User::Same, &run("--budget", "-5"), 2, "negative");
    refused(User::Same, &run("--budget", "-5%"), 2, "percentage");
    refused(User::Same, &run("--budget", "12 apples"), 2, "unit");
    refused(User::Same, &run("--budget", ""), 2, "whole number");
    refused(
        User::Same,
        &run("--budget", "9999T"),
        2,
        "more than this machine's memory",
    );
    refused(
        User::Same,
        &run("--budget", "99999999999999999999"),
        2,
        "too large",
    );
    refused(User::Same, &run("--min-resident", "0"), 2, "1..=100");
    refused(User::Same, &run("--settle", "5"), 2, "not a time");
    refused(
        User::Same,
        &run("--pages", "sometimes"),
        2,
        "kernel, never, always or resident",
    );
    let nothing = output(&mut superhue(User::Same, &run("--budget", "0")));
    assert!(nothing.status.success());
    assert!(text(&nothing.stderr).contains("wholly resident"));
}

#[test]
fn settings_that_do_not_exist() {
    let run = |setting: &'static str| ["run", "--system", setting, "--", "echo", "ran"];
    refused(User::Same, &run("enabled"), 2, "KNOB=VALUE");
    refused(User::Same, &run("../ksm/run=1"), 2, "KNOB=VALUE");
    if is_root() && fs::exists("/sys/kernel/mm/transparent_hugepage/enabled").unwrap() {
        let before = fs::read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap();
        refused(
            User::Same,
            &run("no_such_knob=1"),
            3,
            "no such superpage setting",
        );
        refused(
            User::Same,
            &run("enabled=banana"),
            2,
            "does not accept `banana`",
        );
        assert_eq!(
            fs::read("/sys/kernel/mm/transparent_hugepage/enabled").unwrap(),
            before
        );
    } else {
        skip("settings", "only root may change settings of the machine");
    }
}

#[test]
fn reports_that_cannot_be_written() {
    let folder = folder();
    let ran = folder.path().join("ran");
    let touch = ["touch", ran.to_str().unwrap()];
    let run = |report: &'static str| [&["run", "--report", report, "--"][..], &touch].concat();
    refused(
        User::Same,
        &run("/no/such/folder/report.json"),
        125,
        "cannot write the report",
    );
    refused(User::Same, &run("/proc"), 125, "cannot write the report");
    assert!(!ran.exists(), "told only after the command ran");

    // A full disk shows only when the report is written.
    let full = |script: &'static str| {
        let arguments = [
            "run",
            "--quiet",
            "--report",
            "/dev/full",
            "--",
            "sh",
            "-c",
            script,
        ];
        output(&mut superhue(User::Same, &arguments))
    };
    let failed = full("exit 0");
    assert_eq!(failed.status.code(), Some(125), "{failed:?}");
    assert_eq!(text(&failed.stderr).lines().count(), 1, "{failed:?}");
    assert!(text(&failed.stderr).contains("No space left"), "{failed:?}");
    assert_eq!(full("exit 9").status.code(), Some(9));

    // A command that is not found leaves no empty report, and an old report as it was.
    let report = folder.path().join("report.json");
    let path = report.to_str().unwrap();
    let arguments = ["run", "--report", path, "--", "there-is-no-such-program"];
    refused(User::Same, &arguments, 127, "check the name");
    assert!(!report.exists());
    fs::write(&report, "old").unwrap();
    refused(User::Same, &arguments, 127, "check the name");
    assert_eq!(fs::read_to_string(&report).unwrap(), "old");
}

#[test]
fn comparisons_that_make_no_sense() {
    let compare = |options: &[&'static str]| {
        [
            &["compare"][..],
            options,
            &["-n", "1", "--warmup", "0", "--", "true"],
        ]
        .concat()
    };
    let two = ["--arm", "never", "--arm", "always"];
    let with =
        |option: &'static str, value: &'static str| compare(&[&two[..], &[option, value]].concat());
    refused(
        User::Same,
        &compare(&["--arm", "never"]),
        2,
        "at least two arms",
    );
    refused(
        User::Same,
        &compare(&["--arm", "never", "--arm", "never"]),
        2,
        "two arms are called",
    );
    refused(
        User::Same,
        &compare(&["--arm", "never", "--arm", "x=--pages sometimes"]),
        2,
        "sometimes",
    );
    refused(
        User::Same,
        &compare(&["--arm", "never", "--arm", "x='"]),
        2,
        "--arm `x='`",
    );
    refused(User::Same, &with("--metric", "ops"), 2, "NAME=REGEX");
    refused(User::Same, &with("--metric", "ops=("), 2, "ops");
    refused(User::Same, &with("--ready", "tcp:1"), 2, "--load");
    refused(User::Same, &with("--smallest", "200"), 2, "percentage");
    refused(
        User::Same,
        &with("--report", "/no/such/folder/r.json"),
        1,
        "cannot write the report",
    );

    // An expression that matches nothing makes a figure missing, not the comparison.
    let missing = output(&mut superhue(
        User::Same,
        &[
            &["compare", "--json"][..],
            &two,
            &["--metric", "ops=ops ([0-9]+)", "-n", "1", "--", "true"],
        ]
        .concat(),
    ));
    assert!(missing.status.success(), "{missing:?}");
    let document: serde_json::Value = serde_json::from_slice(&missing.stdout).unwrap();
    let sample = &document["samples"][0];
    assert!(sample["values"]["ops"].is_null());
    assert_eq!(sample["missing"]["ops"], "no match in the output");
}

#[test]
fn capabilities_that_do_not_exist() {
    refused(
        User::Same,
        &["check", "telepathy"],
        2,
        "there is no capability `telepathy`",
    );
}
