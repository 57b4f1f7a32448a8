//! Memory that programs give back stays given back; superhue leaves alone what cannot be huge, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;

use crate::support::group::Group;
use crate::support::{
    self, ChildGuard, User, collapse_works, compiled, folder, is_root, output, run_reported, skip,
    superhue, text,
};

const MIB: u64 = 1 << 20;

/// Reasons and huge bytes of mappings, by address.
type Windows = BTreeMap<u64, (Vec<String>, u64)>;

fn parts() -> Option<PathBuf> {
    compiled("given-back-parts", include_str!("given_back/parts.c"))
}

fn read(report: &Path) -> Value {
    serde_json::from_slice(&fs::read(report).unwrap()).unwrap()
}

/// Returns a program's marks at each step: pages freed lazily and huge ones, in KiB.
fn marks(said: &[u8]) -> BTreeMap<String, (i64, i64)> {
    let said = text(said);
    assert!(said.contains("ended well"), "{said}");
    let marks = said.lines().filter_map(|line| {
        let mut words = line.strip_prefix("mark ")?.split(' ');
        let name = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some((name, (number()?, number()?)))
    });
    marks.collect()
}

#[test]
fn what_was_freed_lazily_is_not_taken_back() {
    let (Some(parts), true) = (parts(), collapse_works()) else {
        return;
    };
    thread::scope(|scope| {
        for pages in ["resident", "hot", "always"] {
            let parts = &parts;
            scope.spawn(move || {
                let folder = folder();
                let report = folder.path().join("report.json");
                // A budget of 0: resident memory may become huge, memory that was given back may not.
                let mut run = run_reported(User::Same, pages, &report, &["--budget", "0", "--"]);
                run.arg(parts).args(["lazily", "64", "128", "3", "0"]);
                let done = output(&mut run);
                let marks = marks(&done.stdout);
                let (freed, idled) = (marks["freed"].0, marks["idled"].0);
                assert!(freed > 32 * 1024, "{pages}: {marks:?}");
                assert!(idled >= freed * 9 / 10, "{pages}: {marks:?}");
            });
        }
    });
}

#[test]
fn huge_pages_are_split_when_parts_of_them_were_given_back() {
    if !is_root() {
        skip("root", "control groups are made by root");
        return;
    }
    let (Some(parts), true) = (parts(), collapse_works()) else {
        return;
    };
    thread::scope(|scope| {
        // `asked`: huge pages that the kernel has made.
        for (pages, how) in [
            ("resident", "dontneed"),
            ("hot", "unmap"),
            ("resident", "asked"),
            ("resident", "half"),
            ("auto", "remade"),
        ] {
            let parts = &parts;
            scope.spawn(move || {
                let Some(group) = Group::new(&format!("parts-{how}")) else {
                    return;
                };
                let folder = folder();
                let path = folder.path().join("report.json");
                // On a busy machine superhue needs longer to make memory huge, and to split it.
                for idle in ["3", "12", "36"] {
                    // To load a tracker takes tens of times as long in a build without optimization.
                    let more = ["--max-overhead", "20%", "--", "sh", "-c"];
                    let mut run = run_reported(User::Same, pages, &path, &more);
                    run.arg(r#"echo $$ >"$0/cgroup.procs"; exec "$@""#)
                        .arg(&group.folder);
                    run.arg(parts).args([how, "64", "32", idle, "0"]);
                    run.stdout(Stdio::piped()).stderr(Stdio::piped());
                    let mut run = ChildGuard::start(&mut run);
                    let mut said = Vec::new();
                    let mut charged = BTreeMap::new();
                    for line in BufReader::new(run.0.stdout.take().unwrap()).lines() {
                        let line = line.unwrap();
                        if let Some(name) = line.strip_prefix("mark ") {
                            let name = name.split(' ').next().unwrap().to_owned();
                            charged.insert(name, group.charged().unwrap());
                        }
                        writeln!(said, "{line}").unwrap();
                    }
                    assert!(run.wait().success());
                    let marks = marks(&said);
                    assert!(charged["filled"] >= 60 * MIB, "{how}: {charged:?}");
                    let report = read(&path);
                    let splits = &report["splits"];
                    let done = splits["done"].as_u64().unwrap();
                    let returned = splits["returned_bytes"].as_u64().unwrap();
                    // 4 MiB are kept; the process needs some, too. In case `asked`, khugepaged makes memory huge again in its time.
                    let most = if how == "asked" { 48 } else { 16 };
                    let times = if how == "remade" { 2 } else { 1 };
                    let is_small = charged["idled"] <= most * MIB;
                    if idle != "36" && !(is_small && done >= 24 * times && returned >= 40 * MIB) {
                        continue;
                    }
                    assert!(is_small, "{how}: {charged:?} {marks:?}");
                    assert!(done >= 24 * times, "{how}: {splits}");
                    assert!(returned >= 40 * MIB, "{how}: {splits}");
                    let held = report["memory"]["peak_held_seen_bytes"].as_u64();
                    assert!(held.unwrap() > 0);
                    break;
                }
            });
        }
    });
}

#[test]
fn holes_of_shared_memory_do_not_take_the_last_room_of_a_tmpfs() {
    if !is_root() {
        skip("root", "a small tmpfs is mounted by root");
        return;
    }
    let holes = compiled("given-back-holes", include_str!("given_back/holes.c"));
    let (Some(holes), true) = (holes, collapse_works()) else {
        return;
    };
    // On a busy machine superhue needs longer to look at the objects.
    for idle in ["4", "16", "60"] {
        let place = folder();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=64m,huge=advise", "none"])
            .arg(place.path())
            .output();
        if !mounted.is_ok_and(|done| done.status.success()) {
            skip("mount", "no tmpfs can be mounted here");
            return;
        }
        let folder = folder();
        let report = folder.path().join("report.json");
        let mut run = run_reported(User::Same, "resident", &report, &["--budget", "100%", "--"]);
        run.arg(&holes)
            .arg(place.path())
            .args(["56", "17", idle, "15"]);
        let done = output(&mut run);
        let unmounted = Command::new("umount").arg("-l").arg(place.path()).status();
        assert!(unmounted.unwrap().success());
        assert!(
            text(&done.stdout).contains("ended well"),
            "{}",
            text(&done.stdout)
        );
        let report = read(&report);
        let skipped = &report["collapses"]["skipped"];
        let why = "its tmpfs has no room for what a huge page would add";
        if skipped[why].as_u64().is_some_and(|count| count > 0) {
            return;
        }
        assert_ne!(idle, "60", "{skipped}");
    }
}

/// A program with windows of 2 MiB in many states.
struct States {
    program: ChildGuard,
    /// State by address.
    windows: BTreeMap<u64, String>,
    said: BufReader<std::process::ChildStdout>,
}

impl States {
    fn new(program: &Path, seed: u64) -> Self {
        let mut command = Command::new(program);
        command.args([seed.to_string(), "40".to_owned()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = ChildGuard::start(&mut command);
        let mut said = BufReader::new(program.0.stdout.take().unwrap());
        let mut windows = BTreeMap::new();
        loop {
            let mut line = String::new();
            said.read_line(&mut line).unwrap();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["at", address, state] => {
                    let address = address.trim_start_matches("0x");
                    let address = u64::from_str_radix(address, 16).unwrap();
                    windows.insert(address, state.to_owned());
                }
                _ => break,
            }
        }
        assert_eq!(windows.len(), 40);
        Self {
            program,
            windows,
            said,
        }
    }

    /// Returns what `status --why` says.
    fn why(&self) -> Windows {
        let pid = self.program.pid().to_string();
        let done = output(&mut superhue(
            User::Same,
            &["status", "--why", "--json", &pid],
        ));
        let told: Value = serde_json::from_slice(&done.stdout).unwrap();
        let mappings = told["processes"][0]["why"]["mappings"].as_array().unwrap();
        let of = |mapping: &Value| {
            let start = mapping["range"]["start"].as_u64().unwrap();
            let reasons = mapping["reasons"].as_array().unwrap().iter();
            let reasons = reasons.map(|it| it["reason"].as_str().unwrap().to_owned());
            (
                start,
                (reasons.collect(), mapping["huge_bytes"].as_u64().unwrap()),
            )
        };
        mappings.iter().map(of).collect()
    }

    fn end(mut self) {
        drop(self.program.0.stdin.take());
        let mut line = String::new();
        self.said.read_line(&mut line).unwrap();
        assert_eq!(line, "right\n");
        assert!(self.program.wait().success());
    }
}

/// Attaches to the program for three seconds; returns the report.
fn attached(states: &States) -> Value {
    let folder = folder();
    let report = folder.path().join("report.json");
    let pid = states.program.pid().to_string();
    let options = [
        "attach", "--quiet", "--pages", "resident", "--budget", "100%",
    ];
    let mut attach = superhue(User::Same, &options);
    let done = output(
        attach
            .args(["--for", "3s", "--report"])
            .arg(&report)
            .arg(&pid),
    );
    assert!(done.status.success(), "{}", text(&done.stderr));
    read(&report)
}

#[test]
fn what_is_called_possible_becomes_huge_and_nothing_else_is_tried() {
    let states = compiled("given-back-states", include_str!("given_back/states.c"));
    let (Some(states), true) = (states, collapse_works()) else {
        return;
    };
    let runs = support::number("SUPERHUE_TEST_STATES", 3);
    for seed in 1..=runs as u64 {
        let states = States::new(&states, seed);
        let before = states.why();
        // On a busy machine not all of them have their turn at once.
        let mut attempts = (0..5).map(|_| (attached(&states), states.why()));
        let is_whole = |(_, after): &(Value, Windows)| {
            let mut possible = before
                .iter()
                .filter(|(_, (reasons, _))| *reasons == ["possible"]);
            possible.all(|(address, _)| after[address].1 > 0)
        };
        let (report, after) = attempts
            .find(is_whole)
            .unwrap_or_else(|| (attached(&states), states.why()));
        let failed = report["collapses"]["failed"].as_object().unwrap();
        if failed.contains_key("ENOMEM") {
            skip(
                "free-huge-pages",
                "the kernel had none at hand, e.g. because files fill the memory",
            );
            states.end();
            continue;
        }
        assert!(failed.is_empty(), "seed {seed}: {failed:?}");
        for (address, state) in &states.windows {
            let Some((reasons, _)) = before.get(address) else {
                assert!(
                    ["watched"].contains(&state.as_str()),
                    "seed {seed}: {state} is missing"
                );
                continue;
            };
            let huge = after[address].1;
            let is_possible = reasons.iter().any(|reason| reason == "possible");
            assert_eq!(
                huge > 0,
                is_possible,
                "seed {seed}: {address:x} is {state}: {reasons:?}, {huge} bytes huge"
            );
            let expected = match state.as_str() {
                "full" | "holes" | "shared" => "possible",
                "sparse" | "half" => "sparse",
                "lazily" => "freed-lazily",
                "watched" => "userfaultfd",
                "forbidden" => "forbidden",
                other => other,
            };
            assert_eq!(
                reasons[..],
                [expected.to_owned()],
                "seed {seed}: {address:x} is {state}"
            );
        }
        states.end();
    }
}

#[test]
fn hidden_settings_decide_nothing() {
    if !is_root() {
        skip("root", "a mount namespace is made by root");
        return;
    }
    let (Some(parts), true) = (parts(), collapse_works()) else {
        return;
    };
    let folder = folder();
    let report = folder.path().join("report.json");
    let masked = "mount -t tmpfs none /sys/kernel/mm && exec \"$@\"";
    // On a busy machine superhue needs longer to make memory huge.
    for idle in ["1", "12", "36"] {
        let mut run = Command::new("unshare");
        run.args(["-m", "sh", "-c", masked, "sh"]);
        run.arg(support::installed().join("superhue"));
        run.args(["run", "--quiet", "--pages", "resident", "--report"])
            .arg(&report)
            .arg("--");
        run.arg(&parts).args(["dontneed", "32", "512", idle, "0"]);
        let done = output(&mut run);
        if text(&done.stderr).contains("unshare") {
            skip("namespaces", &text(&done.stderr));
            return;
        }
        assert!(done.status.success(), "{}", text(&done.stderr));
        let report = read(&report);
        let notes = report["mechanism"].to_string();
        assert!(notes.contains("hidden"), "{notes}");
        if report["collapses"]["done"].as_u64().unwrap() > 0 {
            return;
        }
        assert_ne!(idle, "36", "{report}");
    }
}
