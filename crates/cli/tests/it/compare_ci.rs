//! `superhue compare` as a gate in continuous integration: conditions, exports, scans, preparation.

use std::fs;
use std::path::Path;
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{ChildGuard, User, folder, output, skip, superhue, text, until};

const ARMS: [&str; 6] = ["--arm", "never", "--arm", "kernel", "--warmup", "0"];

fn compare(options: &[&str], command: &[&str]) -> Output {
    let arguments = [&["compare"], &ARMS[..], options, &["--"], command].concat();
    output(&mut superhue(User::Same, &arguments))
}

/// A program that prints `ops` and a number: 100, and this many percent more under every second arm to come. It
/// recognizes the arms by THP being off for it, which `never` does by prctl.
fn differing(percent: i32) -> String {
    format!(
        "if grep -q 'THP_enabled:.*0' /proc/self/status; then echo ops 100; else echo ops {}; fi",
        100 + percent
    )
}

fn gated(condition: &[&str], percent: i32) -> Output {
    let options = ["-n", "6", "--metric", "ops=ops ([0-9]+)"];
    compare(
        &[&options, condition].concat(),
        &["sh", "-c", &differing(percent)],
    )
}

#[test]
fn the_exit_status_says_whether_a_condition_failed() {
    for (condition, percent, status) in [
        (["--fail-if", "ops < -2%"], -10, 4),
        (["--fail-if", "ops < -2%"], -1, 0),
        (["--fail-if", "ops < -2%"], 10, 0),
        (["--fail-if", "kernel: ops > 5%"], 10, 4),
        (["--fail-unless", "ops > -2%"], -10, 4),
        (["--fail-unless", "ops > -2%"], 0, 0),
        (["--fail-unless", "ops > 5%"], 10, 0),
    ] {
        let said = gated(&condition, percent);
        let error = text(&said.stderr);
        assert_eq!(
            said.status.code(),
            Some(status),
            "{condition:?} {percent}: {error}"
        );
        assert_eq!(error.contains("failed"), status == 4, "{error}");
        let table = text(&said.stdout);
        let outcome = if status == 4 { "FAILED" } else { "passed" };
        let line = format!("`{} '{}'`: {outcome}.", condition[0], condition[1]);
        assert!(table.contains(&line), "{table}");
    }
    // A file that cannot be written does not hide it.
    let full = ["--fail-if", "ops < -2%", "--export-csv", "/dev/full"];
    for (percent, status) in [(-10, 4), (10, 1)] {
        let said = gated(&full, percent);
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(status), "{percent}: {error}");
        assert!(error.contains("/dev/full"), "{error}");
        assert_eq!(error.contains("'ops < -2%' failed"), status == 4, "{error}");
    }
    let two = ["--fail-if", "ops < -50%", "--fail-unless", "ops > 50%"];
    assert_eq!(gated(&two, 10).status.code(), Some(4));
}

#[test]
fn conditions_are_checked_before_anything_runs() {
    let folder = folder();
    let ran = folder.path().join("ran");
    let report = folder.path().join("report.json");
    let script = format!("touch {}", ran.display());
    for (options, expected) in [
        (
            vec!["--fail-if", "opps < -2%"],
            "no metric `opps`; there are wall, cpu,",
        ),
        (vec!["--fail-if", "ops < -2"], "write [ARM:]METRIC"),
        (vec!["--fail-if", "wall < -2"], "no percentage"),
        (vec!["--fail-if", "wall = -2%"], "write [ARM:]METRIC"),
        (vec!["--fail-if", "hot: wall < -2%"], "no arm `hot`"),
        (
            vec!["--fail-unless", "never: wall < -2%"],
            "name one of kernel",
        ),
        (
            vec!["--fail-if", "wall < -2%", "-n", "4"],
            "take 5 at least (-n 5)",
        ),
        (vec!["--export-csv", "/dev/null/x.csv"], "/dev/null/x.csv"),
    ] {
        let report = ["--report", report.to_str().unwrap(), "-n", "8"];
        // Without the last -n, which may be given only once.
        let report = if options.contains(&"-n") {
            &report[..2]
        } else {
            &report
        };
        let said = compare(&[report, &options].concat(), &["sh", "-c", &script]);
        let error = text(&said.stderr);
        let status = if options[0] == "--export-csv" { 1 } else { 2 };
        // `ops` is no metric here at all, but the percentage is checked first.
        let expected = if options == ["--fail-if", "ops < -2"] {
            "no percentage"
        } else {
            expected
        };
        assert_eq!(said.status.code(), Some(status), "{options:?}: {error}");
        assert!(error.contains(expected), "{options:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    assert!(!ran.exists());
    assert!(!report.exists(), "a file was left behind");
}

#[test]
fn too_few_runs_are_told_before_the_first() {
    let folder = folder();
    let ran = folder.path().join("ran");
    let script = format!("echo ran >&2; touch {}", ran.display());
    let few = |runs: &str| {
        let said = compare(&["-n", runs, "--show-output"], &["sh", "-c", &script]);
        assert!(said.status.success());
        text(&said.stderr)
    };
    // 4 and 4 values give 2 / C(8, 4) = 0.029 at the least; nine figures take 2 / C(12, 6) * 9.
    let said = few("4");
    assert!(
        said.contains("cannot show any difference") && said.contains("takes 5"),
        "{said}"
    );
    assert!(said.contains("(-n 6)"), "{said}");
    assert!(said.find("cannot show") < said.find("ran"), "{said}");
    // 2.5 % / (2 / C(10, 5)) is 3.15.
    let said = few("5");
    assert!(
        said.contains("if more than 3 of the 9 figures to compare vary"),
        "{said}"
    );
    assert!(!few("8").contains("too few"));
}

#[test]
fn nothing_passes_if_runs_failed_or_the_comparison_was_interrupted() {
    let gate = ["-n", "5", "--fail-if", "wall > 10000%"];
    let folder = folder();
    let count = folder.path().join("count");
    let script = format!("echo x >> {0}; [ $(wc -l < {0}) != 3 ]", count.display());
    let said = compare(&gate, &["sh", "-c", &script]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    let error = text(&said.stderr);
    assert!(error.contains("could not be judged"), "{error}");

    fs::remove_file(&count).unwrap();
    let script = format!("echo x >> {}; sleep 0.05", count.display());
    let more = [
        "-n",
        "1000",
        "--fail-if",
        "wall > 10000%",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let arguments = [&["compare"], &ARMS[..], &more].concat();
    let mut command = superhue(User::Same, &arguments);
    command.stdout(std::process::Stdio::null());
    let mut running = ChildGuard::start(&mut command);
    until("twelve runs have begun", || {
        let lines = fs::read_to_string(&count).unwrap_or_default();
        (lines.lines().count() >= 12).then_some(())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(1));
}

#[test]
fn results_are_exported_and_judged_again() {
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let [report, csv, markdown, csv2, markdown2] =
        ["r.json", "a.csv", "a.md", "b.csv", "b.md"].map(path);
    let said = gated(
        &[
            "--report",
            &report,
            "--export-csv",
            &csv,
            "--export-markdown",
            &markdown,
            "--fail-if",
            "ops < -2%",
        ],
        -10,
    );
    assert_eq!(said.status.code(), Some(4), "{}", text(&said.stderr));
    let from = |options: &[&str]| {
        let arguments = [&["compare", "--from", &report], options].concat();
        output(&mut superhue(User::Same, &arguments))
    };
    // Shows and exports the original conditions; the status is that of the current conditions.
    let again = from(&["--export-csv", &csv2, "--export-markdown", &markdown2]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(text(&again.stdout), text(&said.stdout));
    for (one, other) in [(&csv, &csv2), (&markdown, &markdown2)] {
        let (one, other) = (
            fs::read_to_string(one).unwrap(),
            fs::read_to_string(other).unwrap(),
        );
        assert!(!one.is_empty());
        assert_eq!(one, other);
    }
    assert_eq!(from(&["--fail-if", "ops < -2%"]).status.code(), Some(4));
    assert_eq!(from(&["--fail-if", "ops < -20%"]).status.code(), Some(0));
    assert_eq!(
        from(&["--fail-unless", "ops > -20%", "--json"])
            .status
            .code(),
        Some(0)
    );
    assert_eq!(from(&["--fail-if", "wal < -20%"]).status.code(), Some(2));

    let csv = fs::read_to_string(&csv).unwrap();
    let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let ops: Vec<&str> = csv
        .lines()
        .find(|l| l.starts_with("ops,") && l.contains("kernel"))
        .unwrap()
        .split(',')
        .collect();
    let cell = |name: &str| ops[header.iter().position(|h| *h == name).unwrap()];
    assert_eq!(
        (cell("median"), cell("ratio"), cell("measured")),
        ("90", "0.9", "6")
    );
    assert_eq!(
        (cell("reference"), cell("verdict"), cell("better")),
        ("never", "worse", "higher")
    );
    let markdown = fs::read_to_string(&markdown).unwrap();
    assert!(
        markdown.contains("| kernel | 90 | ±0 % | 0.900 | 0.900 to 0.900 | **worse** |"),
        "{markdown}"
    );
    assert!(
        markdown.contains("- `--fail-if 'ops < -2%'`: FAILED."),
        "{markdown}"
    );
}

#[test]
fn a_scan_runs_every_arm_at_every_value() {
    let folder = folder();
    let prepared = folder.path().join("prepared");
    let prepare = format!("echo {{n}}-{{kind}} >> {}", prepared.display());
    let options = [
        "-n",
        "2",
        "--json",
        "--prepare",
        &prepare,
        "-P",
        "n",
        "0.5",
        "1.5",
        "-D",
        "0.5",
        "--parameter-list",
        "kind",
        "a,b",
        "--metric",
        "n=n ([0-9.]+)",
    ];
    let said = compare(
        &options,
        &["sh", "-c", "echo n {n}; test {kind} != {other}"],
    );
    assert!(said.status.success(), "{}", text(&said.stderr));
    let result: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(result["command"][2], "echo n {n}; test {kind} != {other}");
    let arms = result["arms"].as_array().unwrap();
    assert_eq!(arms.len(), 2 * 3 * 2);
    assert_eq!(arms[0]["parameters"]["n"], "0.5");
    let samples = result["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2 * 12);
    for sample in samples {
        let arm = &arms[usize::try_from(sample["arm"].as_u64().unwrap()).unwrap()];
        let n: f64 = arm["parameters"]["n"].as_str().unwrap().parse().unwrap();
        assert_eq!(
            sample["values"]["n"], n,
            "the value in braces is that of the arm"
        );
    }
    let prepared = fs::read_to_string(prepared).unwrap();
    for value in ["0.5-a", "0.5-b", "1.0-a", "1.0-b", "1.5-a", "1.5-b"] {
        let times = prepared.lines().filter(|line| *line == value).count();
        assert_eq!(times, 4, "{value}: {prepared}");
    }
    // Each value has its own reference, and only the other arm has verdicts.
    for summary in result["summaries"].as_array().unwrap() {
        for (index, arm) in summary["arms"].as_array().unwrap().iter().enumerate() {
            assert_eq!(arm["against"].is_null(), index % 2 == 0, "{index}");
        }
    }
}

#[test]
fn parameters_may_stand_in_options_of_arms() {
    let arguments = [
        "compare",
        "--arm",
        "never",
        "--arm",
        "mine=--pages resident --budget {share}%",
        "-n",
        "1",
        "--json",
        "-L",
        "share",
        "1,5",
        "--",
        "true",
    ];
    let said = output(&mut superhue(User::Same, &arguments));
    let result: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(result["arms"][3]["options"], "--pages resident --budget 5%");
    assert_eq!(result["arms"][3]["name"], "mine");
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    for (options, expected) in [
        (vec!["-P", "n", "1", "3", "-L", "n", "1"], "twice"),
        (vec!["-P", "n", "3", "1"], "exchange"),
        (vec!["-P", "n", "0.5", "1"], "-D 0.25"),
        (vec!["-P", "n", "0", "1000"], "1000 are the most"),
        (vec!["-P", "n", "a", "1"], "no decimal number"),
        (vec!["-L", "n", "1,1"], "twice"),
        (vec!["-L", "m", "1,2"], "would change nothing"),
        (vec!["-L", "a b", "1,2"], "no name"),
        (vec!["-D", "1"], "--parameter-scan"),
    ] {
        let said = compare(&options, &["echo", "{n}"]);
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{options:?}: {error}");
        assert!(error.contains(expected), "{options:?}: {error}");
    }
}

#[test]
fn a_preparation_that_fails_ends_the_comparison() {
    let said = compare(&["-n", "2", "--prepare", "echo no disk; exit 7"], &["true"]);
    assert_eq!(said.status.code(), Some(1));
    let error = text(&said.stderr);
    assert!(
        error.contains("exit status 7") && error.contains("no disk"),
        "{error}"
    );
}

#[test]
fn an_interrupt_ends_a_preparation() {
    let folder = folder();
    let begun = folder.path().join("begun");
    let prepare = format!("touch {}; exec sleep 600", begun.display());
    let arguments = [
        &["compare"],
        &ARMS[..],
        &["-n", "2", "--prepare", &prepare, "--", "true"],
    ]
    .concat();
    let mut command = superhue(User::Same, &arguments);
    command
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    let mut running = ChildGuard::start(&mut command);
    until("the preparation has begun", || {
        Path::new(&begun).exists().then_some(())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(130));
}

/// Returns true if a process runs no more.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.map_or(true, |stat| stat.contains(") Z "))
}

/// Starts a comparison whose preparation or run begins a process that outlives its shell, interrupts it, and waits for the end of both.
fn interrupted(options: &[&str], command: &[&str], left: &Path) {
    let arguments = [&["compare"], &ARMS[..], options, &["--"], command].concat();
    let mut command = superhue(User::Same, &arguments);
    command
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null());
    let mut running = ChildGuard::start(&mut command);
    let pid = until("the process has begun", || {
        let pid = fs::read_to_string(left).ok()?;
        pid.ends_with('\n').then(|| pid.trim().to_owned())
    });
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(130));
    until("nothing is left", || has_ended(&pid).then_some(()));
}

#[test]
fn an_interrupt_leaves_nothing_of_a_preparation() {
    let folder = folder();
    let left = folder.path().join("left");
    let prepare = format!("sleep 600 & echo $! > {}; wait", left.display());
    interrupted(&["-n", "2", "--prepare", &prepare], &["true"], &left);
}

#[test]
fn a_preparation_that_a_signal_ends_has_failed() {
    let said = compare(&["-n", "2", "--prepare", "kill -TERM $$"], &["true"]);
    let error = text(&said.stderr);
    assert_eq!(said.status.code(), Some(1), "{error}");
    assert!(error.contains("killed by signal 15"), "{error}");
}

/// Processes of a run that are no descendants of its command any more: its control group has them.
#[test]
fn a_run_that_takes_too_long_leaves_nothing_in_its_group() {
    let folder = folder();
    let left = folder.path().join("left");
    let command = format!(
        "(setsid sleep 600 & echo $! > {}); exec sleep 600",
        left.display()
    );
    let arguments = [&["compare"], &ARMS[..], &["-n", "1", "--timeout", "2s"]].concat();
    let report = folder.path().join("report.json");
    let rest = [
        "--report",
        report.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &command,
    ];
    let said = output(&mut superhue(User::Same, &[&arguments[..], &rest].concat()));
    let pid = fs::read_to_string(&left).unwrap();
    let error = text(&said.stderr);
    assert!(error.contains("did not end within 2s"), "{error}");
    if !has_group() {
        let pid = rustix::process::Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        let _ = rustix::process::kill_process(pid, Signal::KILL);
        return skip("cgroup", "no control group that counts memory can be made");
    }
    until("nothing is left", || has_ended(pid.trim()).then_some(()));
}

/// Returns true if a run gets a control group of its own here.
fn has_group() -> bool {
    let said = compare(&["-n", "1", "--json"], &["true"]);
    let result: Value = serde_json::from_slice(&said.stdout).unwrap();
    result["samples"][0]["values"]["max_charged"].is_number()
}

#[test]
fn an_expression_that_matches_different_numbers_is_an_error() {
    let program = ["sh", "-c", "echo ops 41; echo ops 42; echo ops 42"];
    let said = compare(&["-n", "2", "--metric", "ops=ops ([0-9]+)"], &program);
    assert_eq!(said.status.code(), Some(1));
    let error = text(&said.stderr);
    for word in ["`ops`", "41 and 42", "ops@last", "^ and $"] {
        assert!(error.contains(word), "{error}");
    }
    for (metric, value) in [
        ("ops@first=ops ([0-9]+)", 41.0),
        ("ops@last=ops ([0-9]+)", 42.0),
        ("ops=ops (42)", 42.0),
    ] {
        let said = compare(&["-n", "1", "--json", "--metric", metric], &program);
        let result: Value = serde_json::from_slice(&said.stdout).unwrap();
        assert_eq!(result["samples"][0]["values"]["ops"], value, "{metric}");
    }
}

/// Commands would inherit the signal mask that superhue blocks for itself, and could not be ended by SIGTERM or Ctrl-C.
#[test]
fn commands_beside_the_measured_one_take_signals() {
    let none_blocked = "grep -q 'SigBlk:.*0000000000000000' /proc/self/status";
    let said = compare(
        &["-n", "1", "--prepare", none_blocked],
        &["sh", "-c", none_blocked],
    );
    assert!(said.status.success(), "{}", text(&said.stderr));
}
