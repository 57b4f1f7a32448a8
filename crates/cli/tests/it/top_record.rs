//! `superhue top --record` and `--replay`: what is read back, what ends a recorder, what is refused. And the CPU time of processes.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, lchown, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::{
    self, ChildGuard, User, folder, installed, is_root, output, python, refused, skip,
    sticky_folder, superhue, text, until,
};
use crate::top::in_terminal;

/// Entries of a record, without its header.
fn entries(path: &Path) -> usize {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().count().saturating_sub(1)
}

/// Starts a recorder of this test's process.
fn recorder(path: &Path) -> ChildGuard {
    let own = std::process::id().to_string();
    let arguments = ["top", "services", &own, "--interval", "100ms"];
    let mut command = superhue(User::Same, &arguments);
    command.args(["--max-overhead", "100%"]);
    command.args(["--socket", "/nowhere/ctl.sock", "--record"]);
    ChildGuard::start(command.arg(path).stderr(Stdio::null()))
}

/// Makes a record with at least `snapshots` snapshots, and ends it by `signal`.
fn record(path: &Path, snapshots: usize, signal: Signal) -> std::process::ExitStatus {
    let before = entries(path);
    let mut recorder = recorder(path);
    until("there are snapshots", || {
        (entries(path) >= before + snapshots).then_some(())
    });
    recorder.signal(signal);
    recorder.wait()
}

/// Returns the document of a time.
fn document(path: &Path, more: &[&str]) -> Value {
    let mut command = superhue(User::Same, &["top", "--json", "--replay"]);
    let told = output(command.arg(path).args(more));
    assert!(told.status.success(), "{}", text(&told.stderr));
    serde_json::from_slice(&told.stdout).unwrap()
}

#[test]
fn a_record_is_replayed_as_table_and_document() {
    let folder = folder();
    let path = folder.path().join("top.rec");
    // More than a second of them.
    let status = record(&path, 20, Signal::TERM);
    assert!(status.success(), "a signal is the only end: {status}");
    let (first, last) = (document(&path, &["--at", "+0s"]), document(&path, &[]));
    let time = |document: &Value| document["recorded_at_seconds"].as_f64().unwrap();
    assert!(time(&first) < time(&last));
    let at = format!("@{}", time(&last).floor());
    assert!(time(&document(&path, &["--at", &at])) >= time(&first));
    let schema = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/top.schema.json");
    let schema: Value = serde_json::from_slice(&fs::read(schema).unwrap()).unwrap();
    for document in [&first, &last] {
        let faults = jsonschema::validator_for(&schema).unwrap();
        let faults: Vec<String> = faults
            .iter_errors(document)
            .map(|it| it.to_string())
            .collect();
        assert!(faults.is_empty(), "{faults:?}");
    }
    let own = std::process::id();
    let processes = last["processes"].as_array().unwrap();
    assert!(processes.iter().any(|it| it["pid"] == own), "this test");
    let mut command = superhue(User::Same, &["top", "processes", "--replay"]);
    let told = output(command.arg(&path));
    let shown = text(&told.stdout);
    assert!(told.status.success(), "{}", text(&told.stderr));
    for word in [
        "PROCESS",
        "CPU",
        "AGE",
        "replay   ",
        " UTC, snapshot ",
        "none listens",
    ] {
        assert!(shown.contains(word), "no `{word}`: {shown}");
    }
    for outside in ["1999-01-01T00:00", "+1000h", "-1000h", "@0"] {
        let mut command = superhue(User::Same, &["top", "--once", "--at", outside, "--replay"]);
        refused(
            &output(command.arg(&path)),
            1,
            &["is not in the record, which has ", "UTC"],
        );
    }
}

#[test]
fn a_killed_recorder_leaves_a_record_that_goes_on() {
    let folder = folder();
    let path = folder.path().join("top.rec");
    assert!(!record(&path, 2, Signal::KILL).success());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o077, 0, "it has what /proc shows to its owner only");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 5]).unwrap();
    let before = document(&path, &[])["recorded_at_seconds"]
        .as_f64()
        .unwrap();
    assert!(record(&path, 3, Signal::INT).success());
    let after = document(&path, &[])["recorded_at_seconds"]
        .as_f64()
        .unwrap();
    assert!(after > before);
    let told = output(superhue(User::Same, &["top", "--once", "--replay"]).arg(&path));
    assert_eq!(text(&told.stderr), "", "nothing is damaged");
}

#[test]
fn one_recorder_at_a_time() {
    let folder = folder();
    let path = folder.path().join("top.rec");
    let _first = recorder(&path);
    until("it records", || (entries(&path) > 0).then_some(()));
    let second = output(superhue(User::Same, &["top", "--record"]).arg(&path));
    refused(&second, 1, &["another program records to it"]);
}

#[test]
fn what_is_no_record_is_refused_and_stays() {
    let folder = folder();
    let path = folder.path().join("it");
    for (contents, words) in [
        ("precious\n", &["is no record"][..]),
        (
            "{\"schema\":\"superhue-top-record/2\"}\n",
            &["newer superhue"],
        ),
    ] {
        fs::write(&path, contents).unwrap();
        for verb in ["--record", "--replay"] {
            let told = output(superhue(User::Same, &["top", verb]).arg(&path));
            refused(&told, 1, words);
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
    }
    fs::write(&path, "").unwrap();
    let replay = |path: &Path| output(superhue(User::Same, &["top", "--replay"]).arg(path));
    refused(&replay(&path), 1, &["it has no snapshot"]);
    refused(
        &replay(&folder.path().join("none")),
        1,
        &["there is no such file"],
    );
    refused(&replay(folder.path()), 1, &["no regular file"]);
    for device in ["/dev/null", "/dev/full"] {
        let told = output(&mut superhue(User::Same, &["top", "--record", device]));
        refused(&told, 1, &["no regular file"]);
    }
    let it = path.to_str().unwrap();
    for wrong in [
        &["--record", it, "--replay", it][..],
        &["--record", it, "--interval", "0"],
        &["--record", it, "--interval", "1ms"],
        &["--record", it, "--once"],
        &["--record", it, "--json"],
        &["--record", it, "--record-limit", "100k"],
        &["--record-limit", "1M"],
        &["--record-limit", "1M", "--once"],
        &["--record-limit", "1M", "--replay", it],
        &["--at", "10:30", "--record", it],
        &["--at", "10:30", "--all"],
        &["--at", "10:30"],
        &["--replay", it, "--at", "noon"],
        &["--replay", it, "--track"],
        &["--replay", it, "--all"],
        &["--replay", it, "--interval", "1s"],
    ] {
        let told = output(superhue(User::Same, &["top"]).args(wrong));
        assert_eq!(told.status.code(), Some(2), "{wrong:?}: {told:?}");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
}

#[test]
fn links_of_others_are_not_followed() {
    if !is_root() {
        return skip("root", "giving links away needs it");
    }
    let folder = sticky_folder();
    for name in ["top.rec", "top.rec.1"] {
        let (link, victim) = (folder.path().join(name), folder.path().join("victim"));
        fs::write(&victim, "").unwrap();
        symlink(&victim, &link).unwrap();
        lchown(&link, Some(65533), None).unwrap();
        let path = folder.path().join("top.rec");
        let told = output(superhue(User::Same, &["top", "--record"]).arg(&path));
        refused(&told, 1, &["a link of another user"]);
        assert_eq!(fs::read(&victim).unwrap(), b"");
        fs::remove_file(&link).unwrap();
    }
}

#[test]
fn a_full_disk_ends_it_and_keeps_what_is_there() {
    if !is_root() {
        return skip("root", "a small file system is mounted by root");
    }
    let folder = folder();
    let mut sleeper = Command::new("sleep");
    let sleeper = ChildGuard::start(sleeper.arg("1000"));
    let script = "mount -t tmpfs -o size=16k none \"$1\" || exit 9\n\
                  \"$2\" top services \"$3\" --record \"$1/f\" --interval 100ms --record-limit 1G --max-overhead 100%; echo $?\n\
                  tail -c 1 \"$1/f\" | od -An -c\n\
                  \"$2\" top --replay \"$1/f\" --json";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]);
    command.arg(folder.path()).arg(installed().join("superhue"));
    let told = output(command.arg(sleeper.pid().to_string()));
    if told.status.code() == Some(9) {
        return skip("mount", "no tmpfs can be mounted");
    }
    let (said, error) = (text(&told.stdout), text(&told.stderr));
    let mut lines = said.splitn(3, '\n');
    assert_eq!(lines.next(), Some("1"), "{error}");
    assert_eq!(
        lines.next().map(str::trim),
        Some("\\n"),
        "no part of an entry"
    );
    for word in [
        "cannot write the record",
        "it has the snapshots until",
        "make room",
    ] {
        assert!(error.contains(word), "no `{word}`: {error}");
    }
    let document: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(document["processes"][0]["pid"], sleeper.pid());
}

#[test]
fn keys_step_through_a_record() {
    let folder = folder();
    let path = folder.path().join("top.rec");
    record(&path, 5, Signal::TERM);
    let count = entries(&path);
    let at = |number: usize| format!("snapshot {number} of {count}");
    let steps = json!([
        ["wait", at(count)],
        ["wait", "SERVICE"],
        ["key", "b"],
        ["wait", at(count - 1)],
        ["key", "n"],
        ["wait", at(count)],
        ["key", "B"],
        ["wait", at(1)],
        ["key", "N"],
        ["wait", at(count)],
        ["key", "B"],
        ["wait", at(1)],
        ["key", "g-0s"],
        ["wait", "time (UTC): -0s_"],
        ["key", "\r"],
        ["wait", at(count)],
        ["key", "g1999-01-01T00:00\r"],
        ["wait", "is not in the record"],
        ["key", "p"],
        ["wait", "PROCESS"],
        ["key", "\r"],
        ["wait", "a record has no mappings"],
        ["key", "q"],
    ]);
    let arguments = ["top", "--replay", path.to_str().unwrap()];
    if let Some(told) = in_terminal(&arguments, &steps, true) {
        assert_eq!(told["status"], 0, "{}", told["said"]);
    }
}

#[test]
fn a_busy_process_has_a_share_and_an_idle_one_has_0() {
    let Some(python) = python() else { return };
    let mut busy = Command::new(python);
    let busy = ChildGuard::start(busy.args(["-c", "while True: pass"]));
    let idle = ChildGuard::start(Command::new("sleep").arg("1000"));
    let pids = [busy.pid(), idle.pid()].map(|pid| pid.to_string());
    let share = |told: &Value, pid: u32| {
        let processes = told["processes"].as_array().unwrap();
        let found = processes.iter().find(|it| it["pid"] == pid);
        found.and_then(|it| it["cpu_share"].as_f64())
    };
    // On a busy machine the busy process may have no CPU between two reads, the idle one may still start, and superhue may wait for a CPU between
    // the clock and a read.
    let (told, of_busy) = until("the busy process has a share", || {
        let mut command = superhue(User::Same, &["top", "--json", "processes"]);
        let told = output(command.args(&pids));
        let told: Value = serde_json::from_slice(&told.stdout).unwrap();
        let of_busy = share(&told, busy.pid())?;
        // It has one thread.
        let is_right = of_busy > 0.0 && of_busy < 1.5 && share(&told, idle.pid()) == Some(0.0);
        if !is_right {
            println!("{told}");
        }
        is_right.then_some((told, of_busy))
    });
    let services = told["services"].as_array().unwrap();
    let all: f64 = services
        .iter()
        .filter_map(|it| it["cpu_share"].as_f64())
        .sum();
    assert!((all - of_busy).abs() < 1e-9, "{told}");
    support::send(busy.pid(), Signal::KILL);
}
