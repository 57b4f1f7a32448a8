//! Runs the driver: its document is complete even if a step fails, it keeps its time limit, and it leaves no processes behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use superhue_testing::{copy_program, write_script};

/// Folder with a copy of this program, whose processes are recognized by the folder, and with other programs beside it.
struct Folder(tempfile::TempDir);

impl Folder {
    /// Writes two scripts that replace `superhue` and `superhue-workload`.
    fn new(superhue: &str, workload: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        copy_program(
            env!("CARGO_BIN_EXE_superhue-big").as_ref(),
            &folder.path().join("big"),
        );
        for (name, script) in [("superhue", superhue), ("superhue-workload", workload)] {
            write_script(script, &folder.path().join(name));
        }
        Self(folder)
    }

    fn out(&self) -> PathBuf {
        self.0.path().join("big.json")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.0.path().join("big"));
        command
            .arg("--out")
            .arg(self.out())
            .args(words)
            .current_dir(self.0.path())
            .env_clear()
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn document(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out()).unwrap()).unwrap()
    }

    /// Returns the command lines of processes that work in the folder, as all descendants of the command do.
    fn left(&self) -> Vec<String> {
        let own = self.0.path().canonicalize().unwrap();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let inside = entries
            .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == own));
        inside
            .map(|entry| fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default())
            .collect()
    }

    /// Waits until killed processes are gone, and asserts that none is left.
    fn is_left_alone(&self) {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.left().is_empty() {
            assert!(Instant::now() < until, "{:?}", self.left());
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn step<'a>(document: &'a Value, name: &str) -> &'a Value {
    document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["name"] == name)
        .unwrap()
}

#[test]
fn a_step_that_cannot_do_anything_does_not_keep_others_from_it() {
    let folder = Folder::new("exit 3", "echo no such thing >&2; exit 1");
    let ended = folder
        .command(&[
            "--seconds",
            // Far more than it takes: on a busy machine a step must not be cut.
            "120",
            "--memory",
            "300M",
            "--only",
            "shootdown,programs,collapse",
        ])
        .status()
        .unwrap();
    assert!(ended.success());
    let document = folder.document();
    assert_eq!(document["schema"], "superhue-big/1");
    assert_eq!(document["is_complete"], true);
    assert!(document["machine"]["usable_bytes"].as_u64().unwrap() <= 300 << 20);
    assert!(document["machine"]["checks_missing"].is_string());
    let failed = step(&document, "programs");
    assert_eq!(failed["outcome"], "failed");
    assert!(
        failed["why"].as_str().unwrap().contains("no such thing"),
        "{failed}"
    );
    // The steps keep their own order, whatever the order of `--only`.
    let names: Vec<&Value> = document["steps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|step| &step["name"])
        .collect();
    assert_eq!(names, ["shootdown", "collapse", "programs"]);
    let passes = step(&document, "shootdown");
    assert_eq!(passes["outcome"], "done", "{passes}");
    assert!(
        passes["ended_seconds"].as_f64().unwrap() <= failed["started_seconds"].as_f64().unwrap()
    );
    folder.is_left_alone();
}

#[test]
fn what_hangs_is_ended_with_all_that_it_started() {
    let folder = Folder::new(
        "sleep 1000 & sleep 1000",
        "sleep 1000 & setsid sleep 1001 & sleep 1000",
    );
    let begun = Instant::now();
    // The step begins only if 3 s are left after the facts, whose command hangs as well.
    let ended = folder
        .command(&["--seconds", "12", "--memory", "1G", "--only", "programs"])
        .status()
        .unwrap();
    assert!(ended.success());
    // Far below the thousand seconds that the scripts sleep.
    assert!(begun.elapsed() < Duration::from_secs(120));
    let document = folder.document();
    assert!(["cut", "failed"].contains(&step(&document, "programs")["outcome"].as_str().unwrap()));
    folder.is_left_alone();
}

#[test]
fn killed_or_interrupted_it_keeps_what_it_had() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let folder = Folder::new("exit 3", "exec sleep 1000");
        let mut running = folder
            .command(&["--seconds", "600", "--memory", "256M", "--only", "programs"])
            .spawn()
            .unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        while !(folder.out().exists() && folder.document()["steps"][0]["outcome"] == "running") {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(20));
        }
        let pid = rustix::process::Pid::from_child(&running);
        rustix::process::kill_process(
            pid,
            rustix::process::Signal::from_named_raw(signal).unwrap(),
        )
        .unwrap();
        assert!(!running.wait().unwrap().success());
        let document = folder.document();
        let (complete, outcome) = if signal == libc::SIGTERM {
            (true, "cut")
        } else {
            (false, "running")
        };
        assert_eq!(
            (&document["is_complete"], &document["steps"][0]["outcome"]),
            (&complete.into(), &outcome.into())
        );
        folder.is_left_alone();
    }
}

#[test]
fn wrong_words_are_refused() {
    let folder = Folder::new("exit 3", "exit 3");
    for words in [
        ["--seconds", "0"],
        ["--only", "nothing"],
        ["--memory", "much"],
    ] {
        assert_eq!(
            folder
                .command(&words)
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .code(),
            Some(2),
            "{words:?}"
        );
        assert!(!folder.out().exists());
    }
    let nowhere = Path::new("/proc/no/big.json").to_str().unwrap();
    assert_eq!(
        folder.command(&["--out", nowhere]).status().unwrap().code(),
        Some(2)
    );
    let mut command = Command::new(folder.0.path().join("big"));
    assert_eq!(
        command
            .args(["--out", nowhere, "--seconds", "5"])
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .code(),
        Some(1)
    );
}
