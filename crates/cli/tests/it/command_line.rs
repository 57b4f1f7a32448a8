//! The command line as a new user meets it: examples that work, tables that fit, one way to name processes, files that are whole or not there.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};

use crate::support::{
    self, ChildGuard, NOBODY, User, copy_program, folder, installed, is_root, output, python, skip,
    superhue, text,
};

fn run(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, arguments))
}

fn parsed(said: &Output) -> Value {
    serde_json::from_slice(&said.stdout).unwrap_or_else(|_| panic!("{said:?}"))
}

/// The verbs in the help of superhue.
fn verbs() -> Vec<String> {
    let help = text(&run(&["--help"]).stdout);
    let commands = help.split("Commands:").nth(1).unwrap();
    let lines = commands.lines().skip(1);
    let lines = lines.take_while(|line| line.starts_with("  ") || line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names
        .filter(|name| *name != "help")
        .map(str::to_owned)
        .collect()
}

/// The commands at the end of a help.
fn examples(verb: &str) -> Vec<String> {
    let help = text(&run(&[verb, "--help"]).stdout);
    let end = help.split("\nExamples:\n").nth(1).unwrap_or_default();
    let commands = end.lines().filter_map(|line| line.strip_prefix("      "));
    commands.map(str::to_owned).collect()
}

#[test]
fn every_help_ends_with_three_examples_that_work_as_printed() {
    let verbs = verbs();
    assert!(verbs.len() >= 15, "{verbs:?}");
    // Examples that change nothing, take little time, and need no service.
    let harmless = [
        "superhue check",
        "superhue status",
        "superhue lab --list",
        "superhue bench --list",
        "superhue restore",
        "superhue top --once",
        "superhue top --json",
    ];
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", installed().display());
    let mut tried = 0;
    for verb in &verbs {
        let examples = examples(verb);
        assert!(examples.len() >= 3, "{verb}: {examples:?}");
        for example in examples {
            if !harmless.iter().any(|start| example.starts_with(start)) {
                continue;
            }
            tried += 1;
            let said = output(Command::new("sh").args(["-c", &example]).env("PATH", &path));
            // A machine may lack what `check` checks.
            let fits = |code: i32| code == 0 || (code == 3 && verb == "check");
            assert!(said.status.code().is_some_and(fits), "{example}: {said:?}");
        }
    }
    assert!(tried >= 8, "{tried}");
}

/// Runs superhue in a terminal of `$1` columns, and prints what it wrote there.
const TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
columns, command = int(sys.argv[1]), sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    os.execv(command[0], command)
said = b""
while True:
    try:
        part = os.read(terminal, 65536)
    except OSError:
        break
    if not part:
        break
    said += part
os.waitpid(child, 0)
sys.stdout.buffer.write(said.replace(b"\r\n", b"\n"))
"#;

/// Output of superhue on a terminal.
fn in_terminal(columns: usize, arguments: &[&str], environment: &[(&str, &str)]) -> Option<String> {
    let mut command = Command::new(python()?);
    command
        .args(["-c", TERMINAL, &columns.to_string()])
        .arg(installed().join("superhue"))
        .args(arguments)
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .envs(environment.iter().copied());
    let said = output(&mut command);
    assert!(said.status.success(), "{said:?}");
    Some(text(&said.stdout))
}

/// Removes colors.
fn plain(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        all + part.split_once('m').map_or("", |(_, rest)| rest)
    })
}

#[test]
fn tables_fit_the_terminal() {
    let me = std::process::id().to_string();
    let folder = folder();
    let kept = folder.path().join("heat.json");
    fs::write(&kept, heat_document().to_string()).unwrap();
    let kept = kept.to_str().unwrap();
    let verbs: [&[&str]; 9] = [
        &["check"],
        &["check", "page-size"],
        &["status"],
        &["status", &me],
        &["status", "--why", &me],
        &["advise", "--for", "100ms", "--footprint", "16M", &me],
        &["top", "--once", "--interval", "100ms"],
        &["top", "objects", "--once", "--interval", "100ms"],
        &["heat", "--from", kept],
    ];
    for arguments in verbs {
        for columns in [80, 40] {
            let Some(said) = in_terminal(columns, arguments, &[]) else {
                return;
            };
            let said = plain(&said);
            // Notes and commands to copy stay whole.
            let is_whole =
                |line: &&str| !line.starts_with("superhue: ") && !line.contains("superhue trial ");
            let wide = said
                .lines()
                .filter(is_whole)
                .find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{arguments:?} in {columns} columns: {said}");
            assert!(said.lines().count() > 1, "{arguments:?}: {said}");
        }
    }
    // All columns are there without a terminal, and with --wide.
    let titles = |said: &str| {
        let line = said.lines().find(|line| line.contains("PID")).unwrap();
        line.split_whitespace().count()
    };
    let everything = titles(&text(&run(&["status", &me]).stdout));
    let narrow = in_terminal(40, &["status", &me], &[]).unwrap();
    let wide = in_terminal(40, &["status", "--wide", &me], &[]).unwrap();
    assert!(titles(&narrow) < everything, "{narrow}");
    assert_eq!(titles(&wide), everything, "{wide}");
}

/// Returns the path of a kept result of `compare`.
fn kept_result(name: &str) -> String {
    format!("{}/../../docs/results/{name}", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn tables_of_compare_fit_the_terminal() {
    for (name, shown) in [
        (
            "dense.json",
            ["always", "better", "1.521", "1.459 to 1.603"],
        ),
        (
            "record.json",
            ["hot", "undecided", "1.082x", "1.018 to 1.140"],
        ),
    ] {
        let path = kept_result(name);
        for columns in [40, 50, 59, 80] {
            let Some(said) = in_terminal(columns, &["compare", "--from", &path], &[]) else {
                return;
            };
            let wide = said.lines().find(|line| line.chars().count() > columns);
            assert_eq!(wide, None, "{name} in {columns} columns: {said}");
            for text in shown {
                assert!(
                    said.contains(text),
                    "{name} in {columns} columns: {text}: {said}"
                );
            }
        }
    }
}

#[test]
fn colors_are_for_terminals_that_want_them() {
    let arguments = ["check", "page-size"];
    let Some(said) = in_terminal(80, &arguments, &[]) else {
        return;
    };
    assert!(said.contains('\u{1b}'), "{said}");
    for variable in [("NO_COLOR", "1"), ("TERM", "dumb")] {
        let said = in_terminal(80, &arguments, &[variable]).unwrap();
        assert!(!said.contains('\u{1b}'), "{variable:?}: {said}");
    }
    // An empty value does not count (no-color.org).
    let said = in_terminal(80, &arguments, &[("NO_COLOR", "")]).unwrap();
    assert!(said.contains('\u{1b}'), "{said}");
    assert!(!text(&run(&arguments).stdout).contains('\u{1b}'));
}

/// Two sleeping processes of a name that no other process has, those of other tests of this program included.
fn sleepers(folder: &Path, user: User) -> (String, Vec<ChildGuard>) {
    static TURN: AtomicU32 = AtomicU32::new(0);
    let turn = TURN.fetch_add(1, Ordering::Relaxed);
    let name = format!("nap{}-{turn}", std::process::id());
    let program = folder.join(&name);
    copy_program(Path::new("/usr/bin/sleep"), &program);
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let start = |_| {
        let mut command = Command::new(&program);
        user.run(command.arg("600").current_dir("/"));
        ChildGuard::start(&mut command)
    };
    let children: Vec<ChildGuard> = (0..2).map(start).collect();
    for child in &children {
        support::until("it has its name", || {
            let comm = fs::read_to_string(format!("/proc/{}/comm", child.pid()));
            comm.is_ok_and(|comm| comm.trim() == name).then_some(())
        });
    }
    (name, children)
}

/// The numbers in the list `processes` of a document.
fn pids(document: &Value) -> BTreeSet<u64> {
    let processes = document["processes"].as_array().unwrap();
    processes
        .iter()
        .map(|process| process["pid"].as_u64().unwrap())
        .collect()
}

#[test]
fn processes_are_named_in_one_way_in_every_verb() {
    let folder = folder();
    let (name, children) = sleepers(folder.path(), User::Same);
    let both: BTreeSet<u64> = children.iter().map(|child| child.pid().into()).collect();
    let one = children[0].pid().to_string();
    assert_eq!(pids(&parsed(&run(&["status", "--json", &name]))), both);
    let top = ["top", "processes", &name, "--json", "--interval", "100ms"];
    assert_eq!(pids(&parsed(&run(&top))), both);
    let advice = [
        "advise",
        "--json",
        "--for",
        "100ms",
        "--footprint",
        "16M",
        &name,
    ];
    assert_eq!(pids(&parsed(&run(&advice))), both);
    let attach = ["attach", "--dry-run", "--for", "50ms", "--json", &name];
    assert_eq!(parsed(&run(&attach))["processes"]["seen"], 2);
    // A number beside a name; the same process twice is one.
    let (mixed, twice) = (
        ["status", "--json", &one, &name],
        ["status", "--json", &one, &one],
    );
    assert_eq!(pids(&parsed(&run(&mixed))), both);
    assert_eq!(pids(&parsed(&run(&twice))).len(), 1);
    let wrong: [(&[&str], i32); 11] = [
        (&["status", "no-such-name"], 1),
        (&["heat", "no-such-name"], 1),
        (&["top", "processes", "no-such-name", "--once"], 1),
        (&["top", "services", "--unit", "no-such-unit", "--once"], 1),
        (&["trial"], 2),
        (&["heat"], 2),
        // One process at a time, and a family of one root.
        (&["heat", &one, "1"], 2),
        (&["trial", &name], 2),
        (&["status", "--unit", "a", &one], 2),
        (&["heat", "--cgroup", "a", "--all"], 2),
        (&["trial", "--all", "--no-follow"], 2),
    ];
    for (arguments, status) in wrong {
        let said = run(arguments);
        assert_eq!(said.status.code(), Some(status), "{arguments:?}: {said:?}");
        assert!(said.stdout.is_empty(), "{arguments:?}: {said:?}");
    }
}

#[test]
fn processes_of_a_user_are_named_alike() {
    if !is_root() {
        return skip("root", "processes of another user are started by root");
    }
    let folder = folder();
    let (_, children) = sleepers(folder.path(), User::Ordinary);
    let theirs: BTreeSet<u64> = children.iter().map(|child| child.pid().into()).collect();
    let user = NOBODY.to_string();
    for arguments in [
        &["status", "--json", "--user", &user][..],
        &["top", "--json", "--interval", "100ms", "--user", &user],
        &[
            "advise",
            "--json",
            "--for",
            "100ms",
            "--footprint",
            "16M",
            "--user",
            &user,
        ],
    ] {
        let found = pids(&parsed(&run(arguments)));
        assert!(found.is_superset(&theirs), "{arguments:?}: {found:?}");
        assert!(!found.contains(&1), "{arguments:?}: {found:?}");
    }
}

/// A `/proc` that hides processes of other users: there is nothing to show, and that is an error.
#[test]
fn a_proc_that_hides_processes_is_no_empty_machine() {
    // A user of no other test, so that no process is its own.
    let script = "mount -t proc -o hidepid=2 proc /proc || exit 77; \
                  exec setpriv --reuid 64322 --regid 64322 --clear-groups \"$@\"";
    let hidden = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", script, "sh"]);
        output(command.arg(installed().join("superhue")).args(arguments))
    };
    for arguments in [&["status"][..], &["status", "--json"]] {
        let said = hidden(arguments);
        if !is_root() || said.status.code() == Some(77) {
            return skip("hidepid", "may not mount a proc of my own");
        }
        assert_eq!(said.status.code(), Some(3), "{said:?}");
        assert!(said.stdout.is_empty(), "{said:?}");
    }
}

/// The least that `heat --from` takes.
fn heat_document() -> Value {
    json!({
        "schema": "superhue-heat/1",
        "process": { "pid": 4711, "name": "server", "command": ["server", "--all"] },
        "tracker": { "name": "ptwalk", "why": "the first choice, and it works here", "scope": "all" },
        "watched": {
            "samples": 2, "seconds": 0.2, "elapsed_seconds": 0.2, "shortest_interval_seconds": 0.1,
            "longest_interval_seconds": 0.1, "ended": "duration", "unseen_share": 0.25
        },
        "hot_set": { "resident_bytes": 16384, "bytes_50": 4096, "bytes_90": 4096, "bytes_99": 4096,
                     "points": [{ "bytes": 4096, "share": 1.0 }] },
        "cost": null,
        "mappings": [{
            "start": 0x1000, "end": 0x5000, "name": "/usr/lib/a-library-with-a-long-name/lib-with-a-long-name.so.1.2.3",
            "permissions": "rw-p", "base_bytes": 0x4000, "huge_bytes": 0,
            "runs": [{ "start": 0x1000, "end": 0x2000, "count": 2 },
                     { "start": 0x2000, "end": 0x5000, "count": 0 }]
        }],
        "series": {
            "columns": [{ "from_seconds": 0.0, "to_seconds": 0.1, "samples": 1 },
                        { "from_seconds": 0.1, "to_seconds": 0.2, "samples": 1 }],
            "bands": [{ "label": "a", "mappings": 1, "bytes": 0x4000, "huge_bytes": 0,
                        "segments": [[0x1000, 0x5000]], "rows": 4, "cells": ["z000", "z000"] }]
        }
    })
}

/// Runs `line` of a shell, in which `$0` is superhue, with a full disk at `$1`.
fn on_full_disk(line: &str, kept: &Path) -> Option<(Output, tempfile::TempDir)> {
    let folder = folder();
    let disk = folder.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let script = format!(
        "mount -t tmpfs -o size=64k none \"$1\" || exit 77; echo old >\"$1/old.json\"; cp \"$1/old.json\" \"$1/old.png\"; \
         dd if=/dev/zero of=\"$1/filling\" bs=4k 2>/dev/null; {line}; status=$?; \
         ls -A \"$1\" >\"$2/names\"; cat \"$1/old.json\" \"$1/old.png\" >\"$2/kept\"; exit $status"
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]);
    command.arg(installed().join("superhue"));
    let said = output(command.arg(&disk).arg(folder.path()).arg(kept));
    if !is_root() || said.status.code() == Some(77) {
        skip("full-disk", "may not mount a small file system");
        return None;
    }
    Some((said, folder))
}

#[test]
fn a_full_disk_leaves_files_as_they_were() {
    let kept = folder();
    let kept = kept.path().join("heat.json");
    fs::write(&kept, heat_document().to_string()).unwrap();
    let [dense, record] = ["dense.json", "record.json"].map(kept_result);
    for line in [
        format!(
            "\"$0\" compare --from '{dense}' --plot \"$1/new.png\" --export-csv \"$1/old.json\""
        )
        .as_str(),
        format!("\"$0\" compare --from '{record}' --plot \"$1/old.png\"").as_str(),
        "\"$0\" heat --from \"$3\" --plot \"$1/new.png\" --plot \"$1/new.svg\"",
        "\"$0\" heat --from \"$3\" --plot \"$1/old.png\"",
        "\"$0\" heat --from \"$3\" --plot \"$1/old.png\" --json",
        "\"$0\" attach --dry-run --for 50ms --json --report \"$1/new.json\" $$",
        "\"$0\" attach --dry-run --for 50ms --quiet --report \"$1/old.json\" $$",
        "\"$0\" attach --dry-run --for 50ms --quiet --report \"$1/new.json\" $$",
        "\"$0\" compare -n 2 --arm never --arm kernel --report \"$1/old.json\" --plot \"$1/new.png\" -- true",
    ] {
        let Some((said, folder)) = on_full_disk(line, &kept) else {
            return;
        };
        assert_eq!(said.status.code(), Some(1), "{line}: {said:?}");
        // The result itself is not lost with the file.
        let is_printed = text(&said.stdout).contains("\"schema\"");
        assert_eq!(is_printed, line.contains("--json"), "{line}: {said:?}");
        let names = fs::read_to_string(folder.path().join("names")).unwrap();
        let names: Vec<&str> = names.lines().collect();
        assert_eq!(names, ["filling", "old.json", "old.png"], "{line}");
        let kept = fs::read_to_string(folder.path().join("kept")).unwrap();
        assert_eq!(kept, "old\nold\n", "{line}");
        // Every file that could not be written is named.
        let error = text(&said.stderr);
        for file in ["new.png", "new.svg", "old.json", "new.json", "old.png"] {
            assert_eq!(line.contains(file), error.contains(file), "{line}: {error}");
        }
    }
}

/// Returns what bash completes after `words`, of which the last is being typed.
fn completed(words: &[&str]) -> Vec<String> {
    let script = text(&run(&["completions", "bash"]).stdout);
    let program = format!(
        "{script}\nCOMP_WORDS=(\"$@\")\nCOMP_CWORD=$(($# - 1))\n\
         _superhue_values superhue \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"\n\
         printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    );
    let mut command = Command::new("bash");
    let said = output(
        command
            .args(["--norc", "-c", &program, "bash", "superhue"])
            .args(words),
    );
    assert!(said.status.success(), "{said:?}");
    assert_eq!(text(&said.stderr), "", "{words:?}");
    let found = text(&said.stdout);
    found.lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_processes_users_capabilities_and_the_command_behind_two_dashes() {
    let folder = folder();
    let (name, children) = sleepers(folder.path(), User::Same);
    let pid = children[0].pid().to_string();
    let has = |words: &[&str], wanted: &str| {
        let found = completed(words);
        assert!(
            found.iter().any(|one| one == wanted),
            "{words:?}: {found:?}"
        );
    };
    for verb in ["status", "heat", "attach", "advise", "trial"] {
        has(&[verb, &name[..4]], &name);
        has(&[verb, &pid[..1]], &pid);
        has(&[verb, "--user", "roo"], "root");
        has(&[verb, "--un"], "--unit");
    }
    has(&["ctl", "why", &name[..4]], &name);
    has(&["top", "processes", &name[..4]], &name);
    has(&["status", "--user", "=", "roo"], "root");
    has(&["check", "page-s"], "page-size");
    has(&["run", "--pages", "res"], "resident");
    has(&["run", "--", "sl"], "sleep");
    for words in [
        &["run", "--", "sleep", "--pag"][..],
        &["compare", "--", "x", "--ar"],
    ] {
        let found = completed(words);
        assert!(!found.iter().any(|one| one.starts_with("--")), "{found:?}");
    }
}

/// Any user chooses the names of processes: completion compares them and evaluates none.
#[test]
fn a_process_with_an_evil_name_is_not_evaluated() {
    let folder = folder();
    let trace = PathBuf::from(format!("/tmp/e{}", std::process::id() % 10_000));
    let name = format!("$(>{})", trace.display());
    assert!(name.len() <= 15, "{name}");
    let program = folder.path().join("evil");
    copy_program(Path::new("/usr/bin/sleep"), &program);
    let python = python();
    let Some(python) = python else { return };
    let set = format!(
        "import ctypes, time\nctypes.CDLL(None).prctl(15, {name:?}.encode())\ntime.sleep(600)"
    );
    let evil = ChildGuard::start(Command::new(python).args(["-c", &set]));
    support::until("it has its name", || {
        let comm = fs::read_to_string(format!("/proc/{}/comm", evil.pid()));
        comm.is_ok_and(|comm| comm.trim() == name).then_some(())
    });
    let found = completed(&["status", ""]);
    assert!(!found.contains(&name), "{found:?}");
    assert!(!found.is_empty());
    assert!(!trace.exists(), "it was evaluated");
    // By its name it can be meant all the same.
    let shown = parsed(&run(&["status", "--json", &name]));
    assert_eq!(pids(&shown), BTreeSet::from([evil.pid().into()]));
}

#[test]
fn metrics_have_one_name_for_a_command_and_one_for_an_expression() {
    for option in ["--metric-regex", "--metric"] {
        let said = run(&[
            "compare",
            "--arm",
            "never",
            "--arm",
            "kernel",
            "-n",
            "2",
            "--warmup",
            "0",
            "--json",
            option,
            "answer=answer ([0-9]+)",
            "--",
            "echo",
            "answer 42",
        ]);
        let result = parsed(&said);
        assert_eq!(result["samples"][0]["values"]["answer"], 42.0, "{option}");
    }
    let me = std::process::id().to_string();
    for option in ["--metric-command", "--metric"] {
        // The expression belongs to a command.
        let both = run(&["trial", "--metric-regex", "(", option, "echo 1", &me]);
        assert_eq!(both.status.code(), Some(2), "{option}: {both:?}");
        let alone = run(&["trial", "--metric-regex", "(.*)", &me]);
        assert_eq!(alone.status.code(), Some(2), "{alone:?}");
    }
}

#[test]
fn check_begins_with_a_verdict() {
    let all = parsed(&run(&["check", "--json"]));
    let words = |field: &str| all["verdict"][field].as_array().unwrap().len();
    assert_eq!(words("works") + words("fails"), 5, "{}", all["verdict"]);
    let sentence = all["verdict"]["sentence"].as_str().unwrap();
    let first = text(&run(&["check"]).stdout);
    assert_eq!(first.lines().next(), Some(sentence));
    // What is named is judged, in the document as by the exit status.
    for capability in all["capabilities"].as_array().unwrap() {
        let id = capability["id"].as_str().unwrap();
        let said = run(&["check", "--json", id]);
        let named = parsed(&said);
        let fails = capability["verdict"] == "no";
        let expected = if fails { json!([id]) } else { json!([]) };
        assert_eq!(named["verdict"]["fails"], expected, "{id}");
        assert_eq!(said.status.code(), Some(if fails { 3 } else { 0 }), "{id}");
    }
    assert_eq!(run(&["check", "no-such-capability"]).status.code(), Some(2));
}
