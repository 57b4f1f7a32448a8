//! `superhue compare` from the command line: the commands it runs, their order, and how it ends.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{
    self, ChildGuard, User, folder, lives, output, python, superhue, text, until,
};

fn compare(options: &[&str], command: &[&str]) -> Output {
    let mut arguments = vec!["compare"];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    output(&mut superhue(User::Same, &arguments))
}

fn json(said: &Output) -> Value {
    assert!(said.status.success(), "{}", text(&said.stderr));
    serde_json::from_slice(&said.stdout).unwrap()
}

/// A port on which no program listens now.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[test]
fn arms_take_turns_and_every_sample_is_told() {
    let folder = folder();
    let report = folder.path().join("report.json");
    let plot = folder.path().join("plot.svg");
    let options = [
        "--arm",
        "never",
        "--arm",
        "mine=--pages resident --budget 1%",
        "-n",
        "6",
        "--json",
        "--report",
        report.to_str().unwrap(),
        "--plot",
        plot.to_str().unwrap(),
        "--metric",
        "answer@last=answer ([0-9]+)",
    ];
    let said = compare(&options, &["sh", "-c", "echo answer 41; echo answer 42"]);
    let result = json(&said);
    assert_eq!(
        result,
        serde_json::from_slice::<Value>(&fs::read(report).unwrap()).unwrap()
    );
    assert!(fs::read_to_string(plot).unwrap().contains("<svg"));
    assert_eq!(result["interrupted"], false);

    let samples = result["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 2 * (6 + 1));
    let measured: Vec<&Value> = samples.iter().filter(|s| s["warmup"] == false).collect();
    assert_eq!(measured.len(), 12);
    for round in measured.chunks(2) {
        assert_ne!(round[0]["arm"], round[1]["arm"], "both arms in each round");
        assert_eq!(round[0]["round"], round[1]["round"]);
    }
    let firsts: Vec<&Value> = measured.iter().step_by(2).map(|s| &s["arm"]).collect();
    assert!(
        firsts.iter().any(|arm| *arm != firsts[0]),
        "the order is not randomised"
    );
    for sample in measured {
        assert_eq!(
            sample["values"]["answer"], 42.0,
            "the last match was asked for"
        );
        assert!(sample["values"]["wall"].as_f64().unwrap() > 0.0);
        for (metric, value) in sample["values"].as_object().unwrap() {
            // A value that was not measured has a reason.
            assert_eq!(
                value.is_null(),
                sample["missing"].get(metric).is_some(),
                "{metric}"
            );
        }
    }
}

#[test]
fn what_the_kernel_charges_is_measured_and_no_group_is_left() {
    let Some(group) = support::group::Group::new("compare") else {
        return;
    };
    let script = "b = bytearray(96 << 20); print(len(b))";
    let mut command = std::process::Command::new("sh");
    // In a cgroup of its own, so that no other cgroups show below it.
    command
        .args(["-c", r#"echo $$ >"$0/cgroup.procs" && exec "$@""#])
        .arg(&group.folder)
        .arg(superhue(User::Same, &[]).get_program())
        .args([
            "compare", "--arm", "never", "--arm", "kernel", "-n", "2", "--json", "--",
        ])
        .args(["python3", "-c", script]);
    let result = json(&output(&mut command));
    for sample in result["samples"].as_array().unwrap() {
        let charged = sample["values"]["max_charged"].as_f64();
        let charged = charged.unwrap_or_else(|| panic!("{:#}", sample["missing"]));
        let mib = charged / f64::from(1 << 20);
        assert!((96.0..200.0).contains(&mib), "{mib} MiB");
    }
    let left = fs::read_dir(&group.folder).unwrap().flatten();
    let left: Vec<_> = left.filter(|it| it.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn an_arm_has_variables_of_its_own() {
    let arms = [
        "--arm",
        "one=--pages kernel --env ANSWER=41",
        "--arm",
        "two=--pages kernel --env ANSWER=42 --env 'OTHER=a b'",
        "-n",
        "1",
        "--json",
        "--metric",
        "answer=answer ([0-9]+)",
        "--metric",
        "words=words ([0-9]+)",
    ];
    let command = "echo answer $ANSWER; set -- $OTHER; echo words $#";
    let result = json(&compare(&arms, &["sh", "-c", command]));
    let of = |arm: u64, metric: &str| {
        let mut samples = result["samples"].as_array().unwrap().iter();
        let sample = samples.find(|sample| sample["arm"] == arm && sample["warmup"] == false);
        sample.unwrap()["values"][metric].as_f64()
    };
    assert_eq!(of(0, "answer"), Some(41.0));
    assert_eq!(of(1, "answer"), Some(42.0));
    // The other arm does not have the variable.
    assert_eq!(of(0, "words"), Some(0.0));
    assert_eq!(of(1, "words"), Some(2.0));

    for wrong in ["x=--env ANSWER", "x=--env =1"] {
        let said = compare(&["--arm", "never", "--arm", wrong, "-n", "1"], &["true"]);
        assert_eq!(said.status.code(), Some(2));
        assert!(
            text(&said.stderr).contains("NAME=VALUE"),
            "{}",
            text(&said.stderr)
        );
    }
}

#[test]
fn the_seed_alone_decides_the_order() {
    let order = |seed: &str| {
        let options = [
            "--arm", "never", "--arm", "kernel", "-n", "8", "--warmup", "0", "--seed", seed,
            "--json",
        ];
        let samples = json(&compare(&options, &["true"]))["samples"].clone();
        let arms = samples
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s["arm"].as_u64().unwrap());
        arms.collect::<Vec<_>>()
    };
    assert_eq!(order("1"), order("1"));
    assert_ne!(order("1"), order("3"));
}

#[test]
fn an_expression_without_a_match_is_a_gap_with_a_reason() {
    let options = [
        "--arm",
        "never",
        "--arm",
        "kernel",
        "-n",
        "2",
        "--warmup",
        "0",
        "--json",
        "--metric",
        "speed=speed ([0-9]+)",
    ];
    let result = json(&compare(&options, &["echo", "nothing of the kind"]));
    for sample in result["samples"].as_array().unwrap() {
        assert_eq!(sample["failed"], Value::Null);
        assert_eq!(sample["values"]["speed"], Value::Null);
        assert!(
            sample["missing"]["speed"]
                .as_str()
                .is_some_and(|reason| !reason.is_empty())
        );
    }
    let mut shown = options.to_vec();
    shown.retain(|&option| option != "--json");
    let table = text(&compare(&shown, &["echo", "nothing"]).stdout);
    assert!(table.contains("speed"), "{table}");
}

#[test]
fn failing_commands_are_told_and_decide_the_status() {
    let options = [
        "--arm", "never", "--arm", "kernel", "-n", "2", "--warmup", "0",
    ];
    let said = compare(&options, &["sh", "-c", "exit 3"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains("exit status 3"), "{said:?}");
    let said = compare(&options, &["sh", "-c", "kill -SEGV $$"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains("signal 11"), "{said:?}");
    let said = compare(&options, &["no-such-program"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains("no-such-program"), "{said:?}");
    let mut ignoring = options.to_vec();
    ignoring.push("--ignore-failure");
    assert!(compare(&ignoring, &["sh", "-c", "exit 3"]).status.success());
}

/// A run that hangs is ended with every process that it started, even one that ignores the signal.
#[test]
fn what_takes_too_long_is_ended_with_all_that_it_has_started() {
    let folder = folder();
    let (path, pids) = (folder.path().to_str().unwrap(), folder.path().join("pids"));
    // No shell waits for the process that ignores the signal.
    let hangs = format!(
        "(trap '' TERM; exec sleep 600) & echo $! >> {path}/pids; if test -n \"$LATE\"; then sleep 600; fi; kill -9 $!"
    );
    let compared = |timeout: &str| {
        let _ = fs::remove_file(&pids);
        let options = [
            "--arm",
            "never",
            "--arm",
            "late=--env LATE=1",
            "-n",
            "1",
            "--warmup",
            "0",
            "--timeout",
            timeout,
            "--json",
        ];
        let begun = Instant::now();
        let said = compare(&options, &["sh", "-c", &hangs]);
        // As soon as the command itself has ended, superhue does not wait for the rest.
        assert!(begun.elapsed() < Duration::from_secs(300), "{said:?}");
        let told = json(&said);
        let samples = told["samples"].as_array().unwrap();
        [0, 1].map(|arm| {
            let of_arm = samples.iter().find(|sample| sample["arm"] == arm);
            of_arm.unwrap()["failed"].clone()
        })
    };
    // The other arm must be done by then, also on a busy machine.
    let mut tried = ["3s", "20s"].map(|timeout| (timeout, None));
    for (timeout, failed) in &mut tried {
        let failed = failed.insert(compared(timeout));
        if failed[0].is_null() {
            break;
        }
    }
    let (timeout, failed) = tried.iter().rfind(|(_, failed)| failed.is_some()).unwrap();
    let [other, late] = failed.as_ref().unwrap();
    assert_eq!(*other, Value::Null);
    let why = late.as_str().unwrap();
    let expected = format!("it did not end within {timeout}");
    assert!(why.starts_with(&expected), "{why}");
    let pids = fs::read_to_string(&pids).unwrap();
    assert_eq!(pids.lines().count(), 2);
    for pid in pids.lines() {
        let pid = pid.parse().unwrap();
        until("what it has started ends", || (!lives(pid)).then_some(()));
    }

    for wrong in ["0s", "3", "soon"] {
        let said = compare(&["--timeout", wrong], &["true"]);
        assert_eq!(said.status.code(), Some(2), "{wrong}");
    }
}

/// Answers every connection with a word, until SIGTERM.
const SERVER: &str = r"
import signal, socket, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server = socket.create_server(('127.0.0.1', int(sys.argv[1])))
while True:
    client, _ = server.accept()
    try: client.sendall(b'hello\n')
    except OSError: pass
    client.close()
";

/// Counts the answers of that server.
const LOAD: &str = r"
import socket, sys
answers = 0
for _ in range(50):
    with socket.create_connection(('127.0.0.1', int(sys.argv[1]))) as server:
        answers += server.makefile().readline() == 'hello\n'
print('answers', answers)
";

#[test]
fn servers_are_started_loaded_and_stopped() {
    let Some(python) = python() else { return };
    let port = free_port().to_string();
    let folder = folder();
    let load = folder.path().join("load.py");
    fs::write(&load, LOAD).unwrap();
    let load = format!("{python} {} {port}", load.display());
    let ready = format!("tcp:{port}");
    let options = [
        "--arm",
        "never",
        "--arm",
        "resident",
        "-n",
        "3",
        "--warmup",
        "0",
        "--json",
        "--load",
        &load,
        "--ready",
        &ready,
        "--metric",
        "answers=answers ([0-9]+)",
    ];
    let result = json(&compare(&options, &[python, "-c", SERVER, &port]));
    let samples = result["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 6);
    for sample in samples {
        assert_eq!(sample["failed"], Value::Null);
        assert_eq!(sample["values"]["answers"], 50.0);
        let metrics = sample["values"].as_object().unwrap();
        assert!(
            metrics.keys().any(|name| name.contains("server")),
            "{metrics:?}"
        );
    }
    assert!(std::net::TcpStream::connect(("127.0.0.1", port.parse().unwrap())).is_err());
}

#[test]
fn servers_that_do_not_do_their_part() {
    let Some(python) = python() else { return };
    let port = free_port().to_string();
    let ready = format!("tcp:{port}");
    let mut options = vec![
        "--arm", "never", "--arm", "kernel", "-n", "1", "--warmup", "0", "--ready", &ready,
    ];
    let with = |options: &[&str], load: &str, command: &[&str]| {
        let mut all = options.to_vec();
        all.extend(["--load", load]);
        let said = compare(&all, command);
        assert_eq!(said.status.code(), Some(1), "{said:?}");
        text(&said.stderr)
    };
    let impatient = [&options[..], &["--patience", "300ms"]].concat();
    let said = with(&impatient, "true", &["sleep", "60"]);
    assert!(said.contains("does not listen"), "{said}");
    options.extend(["--patience", "60s"]);
    let said = with(&options, "true", &["sh", "-c", "echo out of luck; exit 9"]);
    assert!(
        said.contains("before it was ready") && said.contains("out of luck"),
        "{said}"
    );
    let said = with(&options, "exit 5", &[python, "-c", SERVER, &port]);
    assert!(said.contains("status 5"), "{said}");
    let taken = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    let said = with(&options, "true", &["sleep", "60"]);
    assert!(said.contains("already"), "{said}");
    drop(taken);

    // A load that hangs.
    let folder = folder();
    let pid = folder.path().join("load");
    let load = format!("sleep 600 & echo $! > {}; wait", pid.display());
    // It must have started the other program by then.
    options.extend(["--timeout", "10s"]);
    let said = with(&options, &load, &[python, "-c", SERVER, &port]);
    assert!(said.contains("the load did not end within 10s"), "{said}");
    let pid = fs::read_to_string(pid).unwrap();
    let pid = pid.trim().parse().unwrap();
    until("the load ends", || (!lives(pid)).then_some(()));
}

#[test]
fn an_interrupt_reports_what_is_done() {
    let folder = folder();
    let report = folder.path().join("report.json");
    let count = folder.path().join("count");
    let script = format!("echo x >> {}; sleep 0.05", count.display());
    let arguments = [
        "compare",
        "--arm",
        "never",
        "--arm",
        "kernel",
        "-n",
        "1000",
        "--warmup",
        "0",
        "--report",
        report.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        &script,
    ];
    let mut command = superhue(User::Same, &arguments);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let mut running = ChildGuard::start(&mut command);
    until("six runs have begun", || {
        let lines = fs::read_to_string(&count)
            .unwrap_or_default()
            .lines()
            .count();
        (lines >= 6).then_some(())
    });
    running.signal(Signal::INT);
    let status = running.wait();
    let mut error = String::new();
    std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut error).unwrap();
    assert!(error.contains("interrupted"), "{error}");
    assert_eq!(status.code(), Some(130), "{error}");
    let result: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(result["interrupted"], true);
    let shown = ["compare", "--from", report.to_str().unwrap()];
    assert!(output(&mut superhue(User::Same, &shown)).status.success());
    let samples = result["samples"].as_array().unwrap().len();
    assert!((4..1000).contains(&samples), "{samples}");
}

#[test]
fn interrupted_in_the_first_run_there_is_no_result() {
    let folder = folder();
    let begun = folder.path().join("begun");
    let script = format!("touch {}; exec sleep 60", begun.display());
    for (gate, expected) in [(None, 130), (Some("wall > 5%"), 1)] {
        let _ = fs::remove_file(&begun);
        let mut arguments = vec!["compare", "--arm", "never", "--arm", "kernel"];
        arguments.extend(["-n", "8", "--warmup", "0"]);
        if let Some(gate) = gate {
            arguments.extend(["--fail-if", gate]);
        }
        arguments.extend(["--", "sh", "-c", &script]);
        let mut command = superhue(User::Same, &arguments);
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        let mut running = ChildGuard::start(&mut command);
        until("a run has begun", || begun.exists().then_some(()));
        running.signal(Signal::INT);
        let status = running.wait();
        let mut error = String::new();
        std::io::Read::read_to_string(running.0.stderr.as_mut().unwrap(), &mut error).unwrap();
        assert!(error.contains("nothing was measured"), "{error}");
        assert_eq!(status.code(), Some(expected), "{error}");
    }
}

#[test]
fn a_kept_result_is_shown_and_drawn_again() {
    let folder = folder();
    let report = folder.path().join("report.json");
    let plot = folder.path().join("plot.svg");
    let (report, plot) = (report.to_str().unwrap(), plot.to_str().unwrap());
    let two = ["--arm", "never", "--arm", "kernel", "-n", "2"];
    let said = compare(&[&two[..], &["--report", report]].concat(), &["true"]);
    assert!(said.status.success(), "{said:?}");

    let arguments = ["compare", "--from", report, "--plot", plot];
    let again = output(&mut superhue(User::Same, &arguments));
    assert!(again.status.success(), "{again:?}");
    assert_eq!(text(&again.stdout), text(&said.stdout));
    assert!(fs::read_to_string(plot).unwrap().starts_with("<svg"));
    let png = folder.path().join("plot.png");
    let arguments = ["compare", "--from", report, "--plot", png.to_str().unwrap()];
    assert!(
        output(&mut superhue(User::Same, &arguments))
            .status
            .success()
    );
    assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
    let arguments = ["compare", "--from", report, "--plot", "plot.jpg"];
    let wrong = output(&mut superhue(User::Same, &arguments));
    assert_eq!(wrong.status.code(), Some(2), "{wrong:?}");

    fs::write(report, "{}").unwrap();
    let arguments = ["compare", "--from", report];
    let wrong = output(&mut superhue(User::Same, &arguments));
    assert_eq!(wrong.status.code(), Some(1));
    assert_eq!(text(&wrong.stderr).lines().count(), 1, "{wrong:?}");
}

#[test]
fn a_user_who_may_make_no_huge_pages_reads_so_beside_the_verdict() {
    let mut compare = superhue(
        User::Ordinary,
        &[
            "compare", "-n", "1", "--arm", "kernel", "--arm", "auto", "--", "true",
        ],
    );
    // No daemon acts for the user either.
    let said = output(compare.env("SUPERHUE_USERS_SOCKET", "/nonexistent/users.sock"));
    let notes = text(&said.stderr);
    assert!(said.status.success(), "{notes}");
    assert!(
        notes.contains("superhue makes no huge pages in arm `auto`: that takes CAP_SYS_NICE"),
        "{notes}"
    );
    assert!(
        notes.contains("superhue made no huge pages in arm `auto`, as noted before the first run"),
        "{notes}"
    );
    assert!(!notes.contains("in arm `kernel`"), "{notes}");
}

/// The tables of docs/results are those of the JSON beside them, as this version prints them.
#[test]
fn the_kept_tables_say_what_the_kept_results_say() {
    let results = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/results");
    let mut compared = 0;
    for entry in fs::read_dir(&results).unwrap() {
        let table = entry.unwrap().path();
        let document = table.with_extension("json");
        if table.extension().is_none_or(|it| it != "txt") || !document.exists() {
            continue;
        }
        let start = fs::read_to_string(&document).unwrap();
        let start: String = start.chars().take(200).collect();
        if !["superhue-compare/1", "superhue-suite/1"]
            .iter()
            .any(|it| start.contains(it))
        {
            continue;
        }
        let name = document.to_str().unwrap();
        let said = output(&mut superhue(User::Same, &["compare", "--from", name]));
        assert!(said.status.success(), "{name}: {}", text(&said.stderr));
        assert_eq!(
            text(&said.stdout),
            fs::read_to_string(&table).unwrap(),
            "make it anew: superhue compare --from {name} >{}",
            table.display()
        );
        compared += 1;
    }
    assert!(compared >= 10, "{compared}");
    let folder = folder();
    let made = folder.path().join("record.md");
    let record = results.join("record.json");
    let arguments = [
        "compare",
        "--from",
        record.to_str().unwrap(),
        "--export-markdown",
        made.to_str().unwrap(),
    ];
    assert!(
        output(&mut superhue(User::Same, &arguments))
            .status
            .success()
    );
    assert_eq!(
        fs::read_to_string(made).unwrap(),
        fs::read_to_string(results.join("record.md")).unwrap(),
        "make it anew: superhue compare --from docs/results/record.json --export-markdown docs/results/record.md"
    );
}
