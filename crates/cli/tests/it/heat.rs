//! `superhue heat`: from kept documents, of live processes, and with wrong input.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::{
    self, ChildGuard, User, folder, is_root, output, python, sampled, skip, superhue, text, until,
};

fn run(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, arguments))
}

/// Fails unless superhue prints one line of its own with these words, exits with `status`, and prints nothing else.
#[track_caller]
fn refused(said: &Output, status: i32, words: &[&str]) {
    let error = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{error}");
    for word in words {
        assert!(error.contains(word), "no `{word}` in: {error}");
    }
    assert!(!error.contains("panicked"), "{error}");
    assert_eq!(text(&said.stdout), "");
}

/// Two samples of four pages of heap and a huge page.
fn document() -> Value {
    json!({
        "schema": "superhue-heat/1",
        "process": { "pid": 4711, "name": "server", "command": ["server", "--all"] },
        "tracker": { "name": "ptwalk", "why": "the first choice, and it works here", "scope": "all" },
        "watched": {
            "samples": 2, "seconds": 0.2, "elapsed_seconds": 0.2, "shortest_interval_seconds": 0.1,
            "longest_interval_seconds": 0.1, "ended": "duration"
        },
        "hot_set": {
            "resident_bytes": 2_113_536, "bytes_50": 4096, "bytes_90": 2_097_152,
            "bytes_99": 2_101_248,
            "points": [{ "bytes": 4096, "share": 0.5 }, { "bytes": 2_101_248, "share": 1.0 }]
        },
        "cost": { "own_cpu_seconds": 0.001, "own_cpu_share": 0.005, "target_slowdown": 0.001 },
        "mappings": [
            {
                "start": 0x1000, "end": 0x5000, "name": "[heap]", "permissions": "rw-p",
                "base_bytes": 0x4000, "huge_bytes": 0,
                "runs": [{ "start": 0x1000, "end": 0x2000, "count": 2 },
                         { "start": 0x2000, "end": 0x5000, "count": 0 }]
            },
            {
                "start": 0x20_0000, "end": 0x40_0000, "name": null, "permissions": "rw-p",
                "base_bytes": 0, "huge_bytes": 0x20_0000,
                "runs": [{ "start": 0x20_0000, "end": 0x40_0000, "count": 1 }]
            }
        ],
        "series": {
            "columns": [{ "from_seconds": 0.0, "to_seconds": 0.1, "samples": 1 },
                        { "from_seconds": 0.1, "to_seconds": 0.2, "samples": 1 }],
            "bands": [
                { "label": "[heap]", "mappings": 1, "bytes": 0x4000, "huge_bytes": 0,
                  "segments": [[0x1000, 0x5000]], "rows": 4, "cells": ["z000", "z000"] },
                { "label": "anonymous", "mappings": 1, "bytes": 0x20_0000, "huge_bytes": 0x20_0000,
                  "segments": [[0x20_0000, 0x40_0000]], "rows": 2, "cells": ["zz", "00"] }
            ]
        }
    })
}

fn keep(folder: &Path, document: &Value) -> String {
    let path = folder.join("heat.json");
    fs::write(&path, document.to_string()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn kept_documents_are_shown_and_drawn_again() {
    let folder = folder();
    let kept = keep(folder.path(), &document());
    let said = run(&["heat", "--from", &kept]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let table = text(&said.stdout);
    for line in [
        "  4 KiB    16 KiB        2  1000-5000 rw-p [heap]\n",
        "2.00 MiB        1  200000-400000 rw-p\n",
        "50 % of the sampled accesses go to 4 KiB",
    ] {
        assert!(table.contains(line), "no {line:?} in:\n{table}");
    }
    let said = run(&["heat", "--from", &kept, "--list-pages"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let table = text(&said.stdout);
    for line in [
        "1000-5000 rw-p [heap]  (16 KiB in 4 KiB pages)\n  1000-2000 : 2\n  2000-5000 : 0\n",
        "200000-400000 rw-p  (2.00 MiB in 2 MiB pages)\n  200000-400000 : 1\n",
        "50 % of the sampled accesses go to 4 KiB",
        "0.50 % of a CPU",
    ] {
        assert!(table.contains(line), "no {line:?} in:\n{table}");
    }

    let printed: Value =
        serde_json::from_slice(&run(&["heat", "--from", &kept, "--json"]).stdout).unwrap();
    assert_eq!(printed, document());

    let (svg, png) = (folder.path().join("a.svg"), folder.path().join("a.png"));
    let paths = [svg.to_str().unwrap(), png.to_str().unwrap()];
    let said = run(&[
        "heat", "--from", &kept, "--plot", paths[0], "--plot", paths[1],
    ]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(text(&said.stdout), "");
    let drawn = fs::read_to_string(svg).unwrap();
    assert!(drawn.starts_with("<svg ") && drawn.ends_with("</svg>\n"));
    assert!(drawn.contains("[heap]") && drawn.contains("2 MiB"));
    let drawn = fs::read(png).unwrap();
    assert!(
        drawn.starts_with(b"\x89PNG\r\n\x1a\n") && drawn.len() > 10_000,
        "{}",
        drawn.len()
    );
}

#[test]
fn wrong_files_are_refused_and_nothing_is_left() {
    let folder = folder();
    let plot = folder.path().join("picture.svg");
    let plot = plot.to_str().unwrap();
    let mut other = document();
    other["schema"] = json!("superhue-heat/9");
    let mut damaged = document();
    damaged["series"]["bands"][0]["cells"][1] = json!("z0");
    for (document, words) in [
        (other, ["superhue-heat/9", "superhue-heat/1"]),
        (damaged, ["damaged", "[heap]"]),
        (json!({}), ["no heat document", "schema"]),
        (json!("x"), ["no heat document", "heat.json"]),
    ] {
        let kept = keep(folder.path(), &document);
        refused(&run(&["heat", "--from", &kept, "--plot", plot]), 1, &words);
        assert!(!Path::new(plot).exists());
    }
    refused(&run(&["heat", "--from", "/nowhere"]), 1, &["/nowhere"]);
    refused(
        &run(&["heat", "--from", "/proc/self/mem"]),
        1,
        &["/proc/self/mem"],
    );
    let kept = keep(folder.path(), &document());
    let nowhere = "/nowhere/a.svg";
    refused(
        &run(&["heat", "--from", &kept, "--plot", nowhere]),
        1,
        &[nowhere],
    );
}

#[test]
fn wrong_usage_is_told() {
    for (arguments, words) in [
        (&["heat"][..], "PID"),
        (&["heat", "0"], "0"),
        (&["heat", "-1"], "-1"),
        (&["heat", "1", "--plot", "a.jpg"], ".png"),
        (&["heat", "1", "--plot", "svg"], ".png"),
        (&["heat", "1", "--for", "0s"], "1ms"),
        (&["heat", "1", "--interval", "1"], "not a time"),
        (&["heat", "1", "--tracker", "guess"], "ptwalk"),
        (&["heat", "1", "--max-overhead", "0"], "percentage"),
        (&["heat", "1", "--max-overhead", "101%"], "percentage"),
        (&["heat", "1", "--max-stall", "5s"], "100us"),
        (&["heat", "1", "--from", "x"], "--from"),
        (
            &["heat", "--from", "x", "--max-stall", "1ms"],
            "--max-stall",
        ),
        (&["heat", "1", "--follow", "--json"], "--json"),
        (&["heat", "1", "--follow"], "terminal"),
        (
            &["heat", "1", "--interval", "2s", "--for", "1s"],
            "no sample",
        ),
    ] {
        refused(&run(arguments), 2, &[words]);
    }
}

#[test]
fn processes_that_cannot_be_watched() {
    refused(
        &run(&["heat", "4194305"]),
        1,
        &["4194305", "does not exist"],
    );
    if fs::read("/proc/2/cmdline").is_ok_and(|words| words.is_empty()) {
        refused(&run(&["heat", "2"]), 1, &["2", "kernel thread"]);
    } else {
        skip(
            "kernel-thread",
            "no kernel thread is to be seen (container)",
        );
    }
    if !is_root() {
        return skip(
            "root",
            "whose processes others may not watch is seen only by root",
        );
    }
    let sleeper = ChildGuard::start(Command::new("sleep").arg("60"));
    let pid = sleeper.pid().to_string();
    let said = output(&mut superhue(User::Ordinary, &["heat", &pid]));
    refused(&said, 3, &[&pid, "CAP_SYS_PTRACE"]);
    // A user may read a process of its own, but accessed bits need more.
    let mut own = Command::new("sleep");
    User::Ordinary.run(own.arg("60"));
    let own = ChildGuard::start(&mut own);
    let said = output(&mut superhue(
        User::Ordinary,
        &["heat", &own.pid().to_string()],
    ));
    refused(&said, 3, &["no tracker works here"]);
}

/// Returns true if accesses can be tracked here, by trying it.
fn tracks(pid: u32) -> bool {
    let said = sampled(|time| {
        run(&[
            "heat",
            &pid.to_string(),
            "--for",
            time,
            "--tracker",
            "ptwalk",
            "--max-overhead",
            "100%",
            "--json",
        ])
    });
    if said.status.code() == Some(3) {
        skip("ptwalk", text(&said.stderr).trim());
        return false;
    }
    assert!(said.status.success(), "{}", text(&said.stderr));
    true
}

#[test]
fn a_process_that_a_sample_would_hold_up_for_long_is_refused() {
    let Some(python) = python() else { return };
    // 16 MiB are 4,096 base pages, of which each takes 20 ns at least.
    let program = "m = bytearray(b'x') * (16 << 20)\nprint(flush=True)\nwhile True: m[0] = 1";
    let mut command = Command::new(python);
    let mut child = ChildGuard::start(command.args(["-c", program]).stdout(Stdio::piped()));
    let mut ready = [0];
    child
        .0
        .stdout
        .take()
        .unwrap()
        .read_exact(&mut ready)
        .unwrap();
    if !tracks(child.pid()) {
        return;
    }
    let pid = child.pid().to_string();
    let heat = |stall: &str| {
        let begins = ["heat", &pid, "--tracker", "ptwalk", "--json"];
        sampled(|time| run(&[&begins[..], &["--for", time, "--max-stall", stall]].concat()))
    };
    let said = heat("100us");
    refused(
        &said,
        1,
        &["would keep it from mapping memory", "--max-stall 0"],
    );
    let said = heat("0");
    assert!(said.status.success(), "{}", text(&said.stderr));
}

#[test]
fn a_live_process_shows_what_it_touches() {
    let Some(python) = python() else { return };
    let folder = folder();
    let ready = folder.path().join("ready");
    // 64 pages that are touched all the time, and 512 that are never touched again.
    let program = format!(
        "import mmap\n\
         m = mmap.mmap(-1, 576 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
         m.madvise(15)\n\
         for i in range(576): m[i * 4096] = 1\n\
         open({:?}, 'w').close()\n\
         while True:\n  for i in range(64): m[i * 4096] = 2\n",
        ready.to_str().unwrap()
    );
    let child = ChildGuard::start(Command::new(python).args(["-c", &program]));
    until("the program is ready", || ready.exists().then_some(()));
    if !tracks(child.pid()) {
        return;
    }
    let report = folder.path().join("heat.json");
    let png = folder.path().join("heat.png");
    let pid = child.pid().to_string();
    // The memory map, as runs of pages: 64 touched in nearly every sample, next to 512 in none. Another monitor of the
    // machine (DAMON) may have cleared the mark of a page in some sample, and the program may have had no CPU in some:
    // with more samples that matters less.
    let mut heat = Value::Null;
    for time in ["2s", "8s", "30s"] {
        let said = run(&[
            "heat",
            &pid,
            "--for",
            time,
            "--interval",
            "100ms",
            "--max-overhead",
            "100%",
            "--report",
            report.to_str().unwrap(),
            "--plot",
            png.to_str().unwrap(),
        ]);
        let is_last = time == "30s";
        if !said.status.success() && !is_last {
            continue;
        }
        assert!(said.status.success(), "{}", text(&said.stderr));
        assert!(text(&said.stdout).contains("tracker   ptwalk"));
        assert!(fs::read(&png).unwrap().starts_with(b"\x89PNG"));
        heat = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        let samples = heat["watched"]["samples"].as_u64().unwrap();
        assert!(samples >= 1, "{samples}");
        let runs: Vec<(u64, u64)> = (heat["mappings"].as_array().unwrap().iter())
            .flat_map(|mapping| mapping["runs"].as_array().unwrap())
            .map(|run| {
                let number = |name: &str| run[name].as_u64().unwrap();
                ((number("end") - number("start")) / 4096, number("count"))
            })
            .collect();
        let untouched = (runs.iter())
            .position(|run| *run == (512, 0))
            .unwrap_or_else(|| panic!("no 512 pages without a touch: {runs:?}"));
        let pages_before = (runs[..untouched].iter().rev())
            .take_while(|(_, count)| *count > samples / 2)
            .map(|(pages, _)| pages)
            .sum::<u64>();
        if pages_before >= 64 {
            break;
        }
        assert!(!is_last, "{pages_before} of {samples} {runs:?}");
    }
    let bands = heat["series"]["bands"].as_array().unwrap();
    assert!(!bands.is_empty() && bands.iter().any(|band| band["label"] == "[stack]"));

    ends_meanwhile(child, &pid);
}

/// Memory that is touched at random shows less in samples than there is; memory that is touched all the time shows whole.
#[test]
fn a_hot_set_reports_the_share_that_its_samples_missed() {
    let Some(python) = python() else { return };
    let folder = folder();
    let ready = folder.path().join("ready");
    // The share is no number without two samples.
    let watched = |touch: &str, time: &str| {
        let _ = fs::remove_file(&ready);
        let program = format!(
            "import mmap, random, time\n\
             m = mmap.mmap(-1, 8192 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
             m.madvise(15)\n\
             for i in range(8192): m[i * 4096] = 1\n\
             open({:?}, 'w').close()\n\
             while True:\n  {touch}\n",
            ready.to_str().unwrap()
        );
        let child = ChildGuard::start(Command::new(python).args(["-c", &program]));
        until("the program is ready", || ready.exists().then_some(()));
        if !tracks(child.pid()) {
            return None;
        }
        let pid = child.pid().to_string();
        let said = run(&[
            "heat",
            &pid,
            "--anonymous",
            "--for",
            time,
            "--interval",
            "50ms",
            "--max-overhead",
            "100%",
            "--json",
        ]);
        println!("{}", text(&said.stderr));
        let heat: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
        let share = heat["watched"]["unseen_share"].as_f64();
        let share = share.filter(|_| heat["watched"]["samples"].as_u64() > Some(1));
        Some(share.unwrap_or(f64::NAN))
    };
    // About 5 of 8192 pages in each sample, others each time.
    let sparse = "m[random.randrange(8192) * 4096] = 2; time.sleep(0.01)";
    let dense = "for i in range(64): m[i * 4096] = 2";
    let mut shares = Vec::new();
    // On a busy machine there are few samples in a short time, and the program has no CPU in some.
    for time in ["3s", "12s", "40s"] {
        let Some(sparse) = watched(sparse, time) else {
            return;
        };
        let dense = watched(dense, time).unwrap();
        if dense < 0.2 && sparse > dense {
            return;
        }
        shares.push((sparse, dense));
    }
    panic!("{shares:?}");
}

/// Checks a process that ends while it is watched: its samples are shown.
fn ends_meanwhile(mut child: ChildGuard, pid: &str) {
    let mut command = superhue(
        User::Same,
        &[
            "--verbose",
            "heat",
            pid,
            "--for",
            "60s",
            "--interval",
            "50ms",
            "--max-overhead",
            "100%",
            "--json",
        ],
    );
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut watching = ChildGuard::start(command.stderr(Stdio::piped()));
    let said = BufReader::new(watching.0.stderr.take().unwrap());
    let mut lines = said.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("sampled")), "never sampled");
    child.0.kill().unwrap();
    child.wait();
    let rest: Vec<String> = lines.collect();
    let mut document = String::new();
    let mut shown = watching.0.stdout.take().unwrap();
    shown.read_to_string(&mut document).unwrap();
    assert!(watching.0.wait().unwrap().success(), "{rest:?}");
    let heat: Value = serde_json::from_str(&document).unwrap();
    assert_eq!(heat["watched"]["ended"], "exited");
}

/// Runs superhue in a terminal of its own, ends it, and prints what it wrote and its status.
const TERMINAL: &str = r#"
import fcntl, os, pty, select, signal, struct, sys, termios, time
how, command = sys.argv[1], sys.argv[2:]
child, terminal = pty.fork()
if child == 0:
    os.environ["TERM"] = "xterm-256color"
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    os.execv(command[0], command)
said, sent, deadline = b"", False, time.monotonic() + 60
while time.monotonic() < deadline:
    if select.select([terminal], [], [], 0.1)[0]:
        try:
            said += os.read(terminal, 65536)
        except OSError:
            break
    if b"ends" in said and not sent:
        sent = True
        if how == "q":
            os.write(terminal, b"q")
        elif how == "control-c":
            os.write(terminal, b"")
        else:
            os.kill(child, signal.SIGTERM)
sys.stdout.buffer.write(said)
sys.stdout.flush()
if not sent:
    os.kill(child, signal.SIGKILL)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print("STATUS", status)
"#;

#[test]
fn the_terminal_is_restored_however_following_ends() {
    let Some(python) = python() else { return };
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    if !tracks(sleeper.pid()) {
        return;
    }
    let program = support::installed().join("superhue");
    for how in ["q", "control-c", "SIGTERM"] {
        let mut command = Command::new(python);
        command
            .args(["-c", TERMINAL, how])
            .arg(&program)
            .args([
                "heat",
                "--follow",
                "--interval",
                "50ms",
                "--max-overhead",
                "100%",
            ])
            .arg(sleeper.pid().to_string());
        let said = output(&mut command);
        let screen = text(&said.stdout);
        assert!(
            screen.contains("\u{1b}[?1049h"),
            "{how}: {screen:?} {}",
            text(&said.stderr)
        );
        let restored = screen.rsplit("\u{1b}[?1049l").next().unwrap();
        assert!(
            screen.contains("\u{1b}[?1049l") && restored.len() < 400,
            "{how}: {screen:?}"
        );
        // The status is 1 if no sample was complete yet.
        assert!(
            restored.contains("STATUS 0") || restored.contains("no sample"),
            "{how}: {restored:?}"
        );
    }
}
