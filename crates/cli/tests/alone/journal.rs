//! Killed at any moment while the machine's settings are changed, superhue leaves a journal that can restore them; and
//! the command lives.
//!
//! `SUPERHUE_KILLS=200` sets the number of kills; `SUPERHUE_REPORT=FILE` has the counts written there.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::RwLockWriteGuard;
use std::thread;
use std::time::{Duration, Instant};

use ::superhue::act::{Journal, SwapInUse};
use ::superhue::procfs::Roots;
use rustix::process::Signal;
use superhue_testing::{alone, rerun};

use crate::support::{
    self, ChildGuard, TEST_TIMEOUT, User, is_root, lives, number, output, processes_with, send,
    skip, superhue, text, until,
};

const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// The machine's huge page settings; whatever happens in a test, they are restored at its end.
struct SavedSettings {
    settings: BTreeMap<PathBuf, String>,
    _alone: RwLockWriteGuard<'static, ()>,
}

impl SavedSettings {
    /// Saves them; `None`, with a visible skip, where settings may not be changed.
    fn take() -> Option<Self> {
        let enabled = Path::new(FOLDER).join("enabled");
        if !is_root() || File::options().write(true).open(&enabled).is_err() {
            skip(
                "settings",
                "may not change the system's settings (root, writable sysfs)",
            );
            return None;
        }
        let alone = alone();
        Some(Self {
            settings: settings(),
            _alone: alone,
        })
    }
}

impl Drop for SavedSettings {
    fn drop(&mut self) {
        for (path, value) in &self.settings {
            if read(path).as_ref() != Some(value) {
                let _ = fs::write(path, value);
            }
        }
    }
}

/// Returns the chosen word of a setting, or the whole text if there is no choice.
fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let chosen = text
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    Some(chosen.map_or(text.trim(), |(word, _)| word).to_owned())
}

/// Returns every writable setting below the folder, without counters.
fn settings() -> BTreeMap<PathBuf, String> {
    use std::os::unix::fs::PermissionsExt;
    [FOLDER.to_owned(), format!("{FOLDER}/khugepaged")]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap())
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let about = entry.metadata().unwrap();
            about.is_file() && about.permissions().mode() & 0o200 != 0
        })
        .filter_map(|entry| Some((entry.path(), read(&entry.path())?)))
        .collect()
}

fn journals() -> Vec<PathBuf> {
    fs::read_dir("/run/superhue/journal")
        .map(|entries| {
            entries
                .map(|entry| entry.unwrap().path())
                .collect::<Vec<_>>()
        })
        .unwrap_or_default()
        .into_iter()
        .filter(|path| !path.ends_with("lock"))
        .collect()
}

/// A generator of the same numbers in every run of the tests (Knuth's linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

fn other_mode(now: &str) -> &'static str {
    if now == "never" {
        "enabled=madvise"
    } else {
        "enabled=never"
    }
}

#[test]
fn settings_hold_meanwhile_and_are_put_back() {
    let Some(saved) = SavedSettings::take() else {
        return;
    };
    let mode = read(&Path::new(FOLDER).join("enabled")).unwrap();
    let wanted = other_mode(&mode);
    let script = format!("cat {FOLDER}/enabled; exit 3");
    let said = output(&mut superhue(
        User::Same,
        &[
            "run", "--quiet", "--system", wanted, "--", "sh", "-c", &script,
        ],
    ));
    let (_, word) = wanted.split_once('=').unwrap();
    assert!(
        text(&said.stdout).contains(&format!("[{word}]")),
        "{said:?}"
    );
    assert_eq!(said.status.code(), Some(3));
    assert_eq!(settings(), saved.settings);
    assert!(journals().is_empty());

    // Another superhue may not change the same setting meanwhile; one that changes nothing may run.
    let first = ChildGuard::start(&mut superhue(
        User::Same,
        &["run", "--quiet", "--system", wanted, "--", "sleep", "60"],
    ));
    until("the setting is changed", || {
        (settings() != saved.settings).then_some(())
    });
    let second = ["run", "--quiet", "--system", "enabled=always", "--", "true"];
    let said = output(&mut superhue(User::Same, &second));
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    assert!(text(&said.stderr).contains("another superhue"), "{said:?}");
    let said = output(&mut superhue(User::Same, &["run", "--quiet", "--", "true"]));
    assert!(said.status.success(), "{said:?}");
    let said = output(&mut superhue(User::Same, &["restore"]));
    assert!(text(&said.stdout).contains("still run"), "{said:?}");
    assert_ne!(settings(), saved.settings);

    first.signal(Signal::TERM);
    until("the setting is put back", || {
        (settings() == saved.settings && journals().is_empty()).then_some(())
    });
}

#[test]
fn what_somebody_else_has_set_since_is_left_alone() {
    let Some(saved) = SavedSettings::take() else {
        return;
    };
    let path = Path::new(FOLDER).join("khugepaged/pages_to_scan");
    let mut running = ChildGuard::start(&mut superhue(
        User::Same,
        &[
            "run",
            "--quiet",
            "--system",
            "khugepaged/pages_to_scan=1234",
            "--",
            "sleep",
            "60",
        ],
    ));
    until("the setting is changed", || {
        (read(&path)? == "1234").then_some(())
    });
    fs::write(&path, "4321").unwrap();
    running.signal(Signal::TERM);
    running.wait();
    assert_eq!(read(&path).unwrap(), "4321");
    assert!(journals().is_empty());
    drop(saved);
}

/// In a namespace of its own, where `/run` is empty: with an open umask, and with a file that an ordinary user has put there.
#[test]
fn an_ordinary_user_can_neither_see_nor_block_the_journal() {
    let Some(saved) = SavedSettings::take() else {
        return;
    };
    let program = r#"
        mount -t tmpfs -o mode=755 none /run || exit 99
        nobody="setpriv --reuid=65534 --regid=65534 --clear-groups"
        run() { "$0" run --quiet --system khugepaged/pages_to_scan=1234 -- "$@"; }
        umask 000
        run stat -c '%a %n' /run/superhue /run/superhue/journal /run/superhue/journal/lock
        run $nobody ls /run/superhue/journal 2>/dev/null && echo seen
        $nobody "$0" restore || echo failed
        # From before, when the folder was open: a lock that others hold.
        rm /run/superhue/journal/lock
        chmod 755 /run/superhue/journal
        (umask 022; : > /run/superhue/journal/lock)
        $nobody sh -c 'exec 9</run/superhue/journal/lock; flock 9; echo; exec sleep 60' > /run/held &
        until [ -s /run/held ]; do sleep 0.01; done
        run echo ran
        "$0" restore
        kill $!
        # A folder that somebody else has made.
        rm -r /run/superhue
        mkdir -m 777 /run/superhue
        $nobody mkdir /run/superhue/journal
        run echo ran || echo refused
        "$0" run --quiet -- echo unhindered
    "#;
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", program]);
    command.arg(support::installed().join("superhue"));
    let said = output(&mut command);
    if said.status.code() == Some(99) || text(&said.stdout).is_empty() {
        return skip("mount namespaces", &text(&said.stderr));
    }
    let words = text(&said.stdout);
    let lines: Vec<&str> = words.lines().collect();
    assert_eq!(
        lines,
        [
            "755 /run/superhue",
            "700 /run/superhue/journal",
            "600 /run/superhue/journal/lock",
            "nothing of yours to restore",
            "failed",
            "ran",
            "nothing to restore",
            "refused",
            "unhindered",
        ],
        "{said:?}"
    );
    assert!(
        text(&said.stderr).contains("belongs to user 65534"),
        "{said:?}"
    );
    assert_eq!(settings(), saved.settings);
}

/// Work of a copy of this program for the test below.
#[test]
fn child() {
    if std::env::var_os("SUPERHUE_TEST_SWAP_CHILD").is_none() {
        return;
    }
    let swap = SwapInUse::make(&Journal::default()).unwrap();
    println!("made {}", swap.own().unwrap().display());
    thread::sleep(TEST_TIMEOUT * 10);
}

/// The test looks for its own devices one by one: other programs may make some meanwhile.
#[test]
fn swap_that_a_killed_superhue_left_is_removed() {
    if let Err(error) = SwapInUse::may_make(&Roots::default()) {
        return skip("zram", &error.to_string());
    }
    let Some(_saved) = SavedSettings::take() else {
        return;
    };
    for options in [&[][..], &["--json"]] {
        let mut child = rerun(module_path!(), "child")
            .env("SUPERHUE_TEST_SWAP_CHILD", "1")
            .stdin(std::process::Stdio::null())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let made = lines
            .map_while(Result::ok)
            .find_map(|line| Some(line.split_once("made ")?.1.to_owned()));
        let path = made.unwrap();
        let is_on = || fs::read_to_string("/proc/swaps").unwrap().contains(&path);
        let said = output(&mut superhue(User::Same, &["restore"]));
        assert!(text(&said.stdout).contains("still run"), "{said:?}");
        assert!(is_on());
        child.kill().unwrap();
        child.wait().unwrap();

        let mut arguments = vec!["restore"];
        arguments.extend(options);
        let said = output(&mut superhue(User::Same, &arguments));
        assert!(said.status.success() && !is_on(), "{said:?}");
        if options.is_empty() {
            let expected =
                format!("{path}, swap in memory that a killed superhue had left, was removed\n");
            assert_eq!(text(&said.stdout), expected);
        } else {
            let document: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
            assert_eq!(document["swap_removed"], serde_json::json!([path]));
        }
        assert!(journals().is_empty());
    }
}

#[test]
fn killed_at_any_moment() {
    let Some(saved) = SavedSettings::take() else {
        return;
    };
    let mode = saved.settings[&Path::new(FOLDER).join("enabled")].clone();
    let kills = number("SUPERHUE_KILLS", 20);
    let mut random = Random(1);
    let mut counts = BTreeMap::from([("changed", 0), ("journals", 0), ("targets", 0)]);
    let mut deaths = 0;
    let mut wrong = 0;

    // Time until the command runs: kills are spread over moments before and after that.
    let begun = Instant::now();
    drop(killed(
        &mode,
        0,
        TEST_TIMEOUT,
        "SUPERHUE_TEST=journal-first",
    ));
    let span = begun
        .elapsed()
        .clamp(Duration::from_millis(5), Duration::from_millis(100));
    output(&mut superhue(User::Same, &["restore"]));
    assert_eq!(settings(), saved.settings);

    for turn in 0..kills {
        let marker = format!("SUPERHUE_TEST=journal-{}-{turn}", std::process::id());
        let micros = u64::try_from(span.as_micros()).unwrap() * 3 / 2;
        // The first kill comes once the command runs: on a machine that has become slower, all others may come before a change.
        let delay = match turn {
            0 => TEST_TIMEOUT,
            _ => Duration::from_micros(random.below(micros)),
        };
        let target = killed(&mode, turn, delay, &marker);
        *counts.get_mut("changed").unwrap() += usize::from(settings() != saved.settings);
        *counts.get_mut("journals").unwrap() += usize::from(!journals().is_empty());
        let lived = target.as_ref().map(|target| lives(target.0));
        *counts.get_mut("targets").unwrap() += usize::from(lived.is_some());
        deaths += usize::from(lived == Some(false));
        // By `restore`, or by the next superhue at its start.
        let arguments: &[&str] = match turn % 3 {
            0 => &["restore"],
            1 => &["run", "--quiet", "--", "true"],
            _ => &[
                "run",
                "--quiet",
                "--system",
                "khugepaged/defrag=0",
                "--",
                "true",
            ],
        };
        let said = output(&mut superhue(User::Same, arguments));
        assert!(said.status.success(), "{said:?}");
        let as_before = settings() == saved.settings && journals().is_empty();
        wrong += usize::from(!as_before);
        assert!(
            as_before,
            "turn {turn} after {delay:?}: {:?}, {:?}",
            settings(),
            journals()
        );
        // A second restore is harmless; and the target lived on through all of it.
        let again = output(&mut superhue(User::Same, &["restore"]));
        assert_eq!(text(&again.stdout), "nothing to restore\n");
        deaths += usize::from(target.is_some_and(|target| !lives(target.0)));
    }
    let summary = serde_json::json!({
        "schema": "superhue-kills/1",
        "kills": kills,
        "found_changed": counts["changed"],
        "found_journalled": counts["journals"],
        "targets_running": counts["targets"],
        "targets_died": deaths,
        "settings_wrong_afterwards": wrong,
    });
    println!("{summary}");
    if let Ok(path) = std::env::var("SUPERHUE_REPORT") {
        writeln!(File::create(path).unwrap(), "{summary}").unwrap();
    }
    assert_eq!(deaths, 0);
    assert!(
        counts["changed"] > 0,
        "no kill met a changed setting: {summary}"
    );
}

/// A target that is killed at the end of its turn.
struct Target(u32);

impl Drop for Target {
    fn drop(&mut self) {
        send(self.0, Signal::KILL);
    }
}

/// Starts superhue with changed settings and kills it after `delay`, or once the command runs if that is much sooner;
/// returns the command's process if it was started.
fn killed(mode: &str, turn: usize, delay: Duration, marker: &str) -> Option<Target> {
    let modes: Vec<String> = ["always", "never", "madvise"]
        .into_iter()
        .filter(|&word| word != mode)
        .map(|word| format!("enabled={word}"))
        .collect();
    let (name, value) = marker.split_once('=').unwrap();
    let mut arguments = vec!["run", "--quiet", "--system", &modes[turn % 2]];
    if turn % 4 > 1 {
        arguments.extend(["--system", "khugepaged/scan_sleep_millisecs=4999"]);
    }
    arguments.extend(["--", "sleep", "60"]);
    let mut running = ChildGuard::start(superhue(User::Same, &arguments).env(name, value));
    // Superhue itself and, between fork and exec, its child carry the marker too.
    let target = || {
        processes_with(marker).into_iter().find(|&pid| {
            let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            words.starts_with(b"sleep\0")
        })
    };
    if delay == TEST_TIMEOUT {
        until("the command runs", target);
    } else {
        thread::sleep(delay);
    }
    running.signal(Signal::KILL);
    running.wait();
    // A child caught between fork and exec becomes the command in a moment.
    until("a child has become the command", || {
        let all = processes_with(marker);
        (all.is_empty() || target().is_some()).then_some(())
    });
    target().map(Target)
}
