//! Settings of the machine are as before, however superhue ends.
//!
//! `SUPERHUE_KILLS=200` sets how often superhue is killed; `SUPERHUE_REPORT=FILE` has the counts written.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use support::{
    Running, User, is_root, lives, number, output, processes_with, send, skip, superhue, text,
    until,
};

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";
const KNOBS: [&str; 2] = ["enabled", "khugepaged/scan_sleep_millisecs"];

/// The real settings, put back even if the test fails.
struct Settings(Vec<(PathBuf, String)>);

impl Settings {
    /// `None`, said visibly, where settings cannot be changed.
    fn hold() -> Option<Self> {
        if !is_root() {
            skip("settings", "only root may change settings of the machine");
            return None;
        }
        let paths = KNOBS.map(|knob| Path::new(FOLDER).join(knob));
        let read = |path: &PathBuf| Some((path.clone(), chosen(path)?));
        let Some(found) = paths.iter().map(read).collect::<Option<Vec<_>>>() else {
            skip("settings", "this kernel has no superpage settings");
            return None;
        };
        if found
            .iter()
            .any(|(path, value)| fs::write(path, value).is_err())
        {
            skip("settings", "sysfs cannot be written");
            return None;
        }
        Some(Self(found))
    }

    fn are_as_before(&self) -> bool {
        self.0
            .iter()
            .all(|(path, value)| chosen(path).as_ref() == Some(value))
    }
}

impl Drop for Settings {
    fn drop(&mut self) {
        for (path, value) in &self.0 {
            let _ = fs::write(path, value);
        }
    }
}

fn chosen(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let word = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Some(word.map_or(text.trim(), |(word, _)| word).to_owned())
}

/// Small and reproducible: where kills fall need not be good randomness.
fn next(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// All in one test, since it is about settings of which there is one set.
#[test]
fn settings_survive_every_end() {
    let Some(settings) = Settings::hold() else {
        return;
    };
    an_ordinary_end_restores(&settings);
    termination_restores(&settings);
    a_second_one_is_refused(&settings);
    kills_are_undone(&settings);
}

fn an_ordinary_end_restores(settings: &Settings) {
    let script = format!("cat {FOLDER}/enabled; exit 7");
    let ran = output(&mut superhue(
        User::Same,
        &[
            "run",
            "--pages",
            "kernel",
            "--system",
            "enabled=never",
            "--",
            "sh",
            "-c",
            &script,
        ],
    ));
    assert_eq!(ran.status.code(), Some(7));
    assert!(text(&ran.stdout).contains("[never]"), "{ran:?}");
    assert!(text(&ran.stderr).contains("again"), "{ran:?}");
    assert!(settings.are_as_before());
}

fn termination_restores(settings: &Settings) {
    let arguments = [
        "run",
        "--quiet",
        "--pages",
        "kernel",
        "--system",
        "enabled=never",
        "--",
        "sleep",
        "60",
    ];
    let mut running = Running::start(&mut superhue(User::Same, &arguments));
    until("the setting", || (!settings.are_as_before()).then_some(()));
    // The command is there once the setting is; give it the moment to be started.
    until("the command", || {
        let children = format!("/proc/{0}/task/{0}/children", running.pid());
        fs::read_to_string(children)
            .ok()
            .filter(|children| !children.trim().is_empty())
    });
    running.signal(Signal::TERM);
    running.wait();
    assert!(settings.are_as_before());
}

fn a_second_one_is_refused(settings: &Settings) {
    let arguments = [
        "run",
        "--quiet",
        "--pages",
        "kernel",
        "--system",
        "enabled=never",
        "--",
        "sleep",
        "60",
    ];
    let mut first = Running::start(&mut superhue(User::Same, &arguments));
    until("the setting", || (!settings.are_as_before()).then_some(()));
    let second = output(&mut superhue(
        User::Same,
        &[
            "run",
            "--pages",
            "kernel",
            "--system",
            "enabled=always",
            "--",
            "echo",
            "ran",
        ],
    ));
    assert_eq!(
        (second.status.code(), second.stdout.len()),
        (Some(125), 0),
        "{second:?}"
    );
    assert!(
        text(&second.stderr).contains("another superhue"),
        "{second:?}"
    );
    first.signal(Signal::TERM);
    first.wait();
    assert!(settings.are_as_before());
}

fn kills_are_undone(settings: &Settings) {
    let kills = number("SUPERHUE_KILLS", 20);
    let mut random = 1;
    let (mut changed, mut alive) = (0, 0);
    for kill in 0..kills {
        let marker = format!("SUPERHUE_TEST_KILL={}.{kill}", std::process::id());
        let (name, value) = marker.split_once('=').unwrap();
        let enabled = ["enabled=never", "enabled=always"][kill % 2];
        let mut command: Command = superhue(
            User::Same,
            &[
                "run",
                "--quiet",
                "--pages",
                "kernel",
                "--system",
                enabled,
                "--system",
                "khugepaged/scan_sleep_millisecs=4321",
                "--",
                "sleep",
                "60",
            ],
        );
        let mut running = Running::start(command.env(name, value));
        // From before the first write to well after the command was started.
        thread::sleep(Duration::from_micros(next(&mut random) % 20_000));
        running.signal(Signal::KILL);
        running.wait();
        changed += usize::from(!settings.are_as_before());

        // The command, if it came to that, lives and is let live.
        let targets = processes_with(&marker);
        let undo: &[&str] = if kill % 3 == 0 {
            &["run", "--quiet", "--", "true"]
        } else {
            &["restore"]
        };
        let undone = output(&mut superhue(User::Same, undo));
        assert!(undone.status.success(), "{undone:?}");
        assert!(settings.are_as_before(), "kill {kill}: {undone:?}");
        let again = output(&mut superhue(User::Same, &["restore"]));
        assert_eq!(text(&again.stdout), "nothing to restore\n");
        for target in targets {
            assert!(lives(target), "kill {kill}: the command died");
            alive += 1;
            send(target, Signal::KILL);
            until("the end of the command", || (!lives(target)).then_some(()));
        }
    }
    // A kill that never met a changed setting would show nothing.
    assert!(
        changed > 0 && alive > 0,
        "{changed} of {kills} kills met changed settings"
    );
    let leftover = fs::read_dir("/run/superhue/journal")
        .map(|files| {
            files
                .filter(|file| file.as_ref().is_ok_and(|f| f.file_name() != "lock"))
                .count()
        })
        .unwrap_or(0);
    assert_eq!(leftover, 0);
    if let Ok(report) = std::env::var("SUPERHUE_REPORT") {
        let counts = serde_json::json!({
            "kills": kills,
            "met_changed_settings": changed,
            "met_a_running_command": alive,
            "commands_harmed": 0,
            "settings_not_restored": 0,
            "journals_left": leftover,
        });
        fs::write(report, format!("{counts:#}\n")).unwrap();
    }
}
