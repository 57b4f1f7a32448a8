//! `superhue compare --suite`: the programs it runs, leaves out and keeps, and how it continues.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use rustix::process::Signal;
use serde_json::Value;

use crate::support::{ChildGuard, User, folder, output, superhue, text, until};

/// A suite in a folder of its own.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new(suite: &str) -> Self {
        let scratch = Self(folder());
        scratch.write(suite);
        scratch
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn path(&self, name: &str) -> String {
        self.at(name).to_str().unwrap().to_owned()
    }

    fn write(&self, suite: &str) {
        let suite = suite.replace("FOLDER", self.0.path().to_str().unwrap());
        fs::write(self.at("suite.toml"), suite).unwrap();
    }

    fn run(&self, options: &[&str]) -> Output {
        let suite = self.path("suite.toml");
        let arguments = [&["compare", "--suite", &suite], options].concat();
        output(&mut superhue(User::Same, &arguments))
    }

    /// Number of times a program of the suite was run: it writes a line into this file.
    fn lines(&self, name: &str) -> usize {
        let text = fs::read_to_string(self.at(name));
        text.unwrap_or_default().lines().count()
    }

    fn report(&self) -> Value {
        read(&self.at("report.json"))
    }
}

fn read(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// A program's entry.
fn program<'a>(suite: &'a Value, name: &str) -> &'a Value {
    let mut programs = suite["programs"].as_array().unwrap().iter();
    programs.find(|program| program["name"] == name).unwrap()
}

fn samples(suite: &Value, name: &str) -> usize {
    let samples = &program(suite, name)["comparison"]["samples"];
    samples.as_array().map_or(0, Vec::len)
}

const ARMS: &str = "
[[arm]]
name = 'never'
options = '--pages never'
[[arm]]
name = 'kernel'
options = '--pages kernel --env MORE=1'
";

/// Two programs: one shows the speed of an arm by its environment, one has its wall time.
const TWO: &str = r#"
title = "Two programs"
runs = 6
most-runs = 6
warmup = 0
prepare = "echo x >> FOLDER/usually"
[[arm]]
name = "never"
options = "--pages never"
[[arm]]
name = "kernel"
options = "--pages kernel --env MORE=1"
[[program]]
name = "counting"
kind = "database"
setup = "echo x >> FOLDER/setups"
prepare = "echo x >> FOLDER/prepared"
command = '''sh -c 'echo x >> FOLDER/counted; echo "ops 10$MORE"; echo "p99 5"' '''
speed = "ops=ops ([0-9]+)"
tail = "p99:lower=p99 ([0-9]+)"
[[program]]
name = "nothing"
kind = "compiler"
command = "sh -c 'echo x >> FOLDER/idled'"
"#;

#[test]
fn two_programs_make_one_table() {
    let scratch = Scratch::new(TWO);
    let (report, markdown, csv, plot) = (
        scratch.path("report.json"),
        scratch.path("table.md"),
        scratch.path("table.csv"),
        scratch.path("plot.svg"),
    );
    let files = [
        "--plot",
        &plot,
        "--report",
        &report,
        "--export-markdown",
        &markdown,
        "--export-csv",
        &csv,
    ];
    let said = scratch.run(&files);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let table = text(&said.stdout);
    for expected in [
        "Two programs\n2 of 2 programs measured, 6 runs of each arm",
        "counting (database, by ops)",
        "nothing (compiler, by wall time)",
        "10.1x",
        "faster",
        "1.000x same",
    ] {
        assert!(table.contains(expected), "{expected}:\n{table}");
    }
    assert_eq!(scratch.lines("setups"), 1);
    assert_eq!(
        (scratch.lines("prepared"), scratch.lines("counted")),
        (12, 12)
    );
    assert_eq!(scratch.lines("idled"), 12);
    assert_eq!(
        scratch.lines("usually"),
        12,
        "but for the one that has its own"
    );

    let suite = scratch.report();
    assert_eq!(suite["schema"], "superhue-suite/1");
    assert_eq!(suite["unfinished"], Value::Null);
    let rows = &program(&suite, "counting")["rows"];
    assert_eq!(rows[1]["speed"]["decision"], "better");
    assert_eq!(rows[1]["tail"]["decision"], "same");
    assert_eq!(rows[0]["speed"]["decision"], "reference");
    // Programs take turns by rounds; within each, the arms run in random order.
    let records = program(&suite, "counting")["comparison"]["samples"].clone();
    let firsts: Vec<u64> = (records.as_array().unwrap().chunks(2))
        .map(|round| round[0]["arm"].as_u64().unwrap())
        .collect();
    assert!(firsts.contains(&0) && firsts.contains(&1), "{firsts:?}");
    assert!(
        fs::read_to_string(&csv)
            .unwrap()
            .contains("counting,database,kernel,speed,ops,")
    );
    assert!(
        fs::read_to_string(&markdown)
            .unwrap()
            .contains("| **faster** |")
    );
    let drawn = fs::read_to_string(&plot).unwrap();
    assert!(drawn.contains("10.10x"), "{drawn}");

    // The same command again runs nothing, and shows the same; so does --from.
    let again = scratch.run(&["--report", &report]);
    assert_eq!(text(&again.stdout), table);
    assert_eq!(scratch.lines("counted") + scratch.lines("setups"), 13);
    let shown = output(&mut superhue(User::Same, &["compare", "--from", &report]));
    assert_eq!(text(&shown.stdout), table);
    let gated = ["compare", "--from", &report, "--fail-if", "wall > 1%"];
    let gated = output(&mut superhue(User::Same, &gated));
    assert_eq!(gated.status.code(), Some(2), "{gated:?}");

    // More runs are added to the existing ones.
    let more = scratch.run(&["--report", &report, "-n", "8", "--only", "count"]);
    assert!(more.status.success(), "{}", text(&more.stderr));
    let suite = scratch.report();
    assert_eq!(
        (samples(&suite, "counting"), samples(&suite, "nothing")),
        (16, 12)
    );
    assert_eq!((scratch.lines("counted"), scratch.lines("idled")), (16, 12));
}

#[test]
fn what_is_not_there_is_left_out_with_what_brings_it() {
    let suite = format!(
        "runs = 1\nmost-runs = 1\nwarmup = 0\ntimeout = '20s'\n{ARMS}\
         [[arm]]\nname = 'lost'\noptions = '--env LD_PRELOAD=libno-such-allocator.so.9'\ninstall = 'apt install lost'\n\
         [[program]]\nname = 'there'\nkind = 'shell'\ncommand = 'true'\n\
         [[program]]\nname = 'missing'\nkind = 'shell'\ncommand = 'no-such-program 1'\ninstall = 'apt install missing'\n\
         [[program]]\nname = 'half'\nkind = 'shell'\ncommand = 'true'\ntry = 'echo no module; exit 3'\ninstall = 'pip install half'\n\
         [[program]]\nname = 'unprepared'\nkind = 'shell'\ncommand = 'true'\nsetup = 'echo no disk; false'\n\
         [[program]]\nname = 'failing'\nkind = 'shell'\ncommand = 'false'\n\
         [[program]]\nname = 'hanging'\nkind = 'shell'\ncommand = 'sleep 600'\n"
    );
    let scratch = Scratch::new(&suite);
    let report = scratch.path("report.json");
    let said = scratch.run(&["--report", &report]);
    let error = text(&said.stderr);
    // What is missing is left out, and what failed is a failure.
    assert_eq!(said.status.code(), Some(1), "{error}");
    assert!(
        error.contains("gave up on failing, hanging; see"),
        "{error}"
    );
    let table = text(&said.stdout);
    for expected in [
        "1 of 6 programs measured, 1 run of each arm",
        "hanging not measured: it did not end within 20s",
        "arm `lost` left out",
        "(apt install lost)",
        "missing not measured: there is no program `no-such-program` here (apt install missing)",
        "last line of output: no module (pip install half)",
        "unprepared not measured: the setup `echo no disk; false` failed (exit status 1); last line of output: no disk",
        "failing not measured: exit status 1",
    ] {
        assert!(table.contains(expected), "{expected}:\n{table}");
    }
    assert!(error.contains("missing left out"), "{error}");
    let suite = scratch.report();
    assert_eq!(
        program(&suite, "there")["rows"].as_array().unwrap().len(),
        2
    );
    assert_eq!(program(&suite, "failing")["comparison"], Value::Null);
    assert_eq!(suite["arms"][2]["name"], "lost");
    assert!(suite["arms"][2]["skipped"].is_string());

    // A failed program is tried again next time: it may be installed by then.
    let now = suite_with(&scratch, "no-such-program 1", "true");
    scratch.write(&now);
    let said = scratch.run(&["--report", &report, "--only", "missing"]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert_eq!(samples(&scratch.report(), "missing"), 2);

    // No other arm replaces a missing reference.
    let said = scratch.run(&["--arm", "lost", "--arm", "never"]);
    assert_eq!(said.status.code(), Some(1));
    let error = text(&said.stderr);
    assert!(
        error.contains("the first arm") && error.contains("apt install lost"),
        "{error}"
    );

    // Without a run there is no result.
    let said = scratch.run(&["--only", "half"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(
        text(&said.stderr).contains("nothing was measured"),
        "{said:?}"
    );
}

fn suite_with(scratch: &Scratch, from: &str, to: &str) -> String {
    let text = fs::read_to_string(scratch.at("suite.toml")).unwrap();
    assert!(text.contains(from));
    text.replace(from, to)
}

#[test]
fn wrong_suites_are_told_with_their_place_and_run_nothing() {
    let scratch = Scratch::new("");
    let ran = scratch.at("ran");
    let program = format!(
        "[[program]]\nname = 'a'\nkind = 'x'\ncommand = 'touch {}'\n",
        ran.display()
    );
    let with = |top: &str, more: &str| format!("{top}{ARMS}{program}{more}");
    // The arms begin in the line after `top`, and end in their seventh.
    for (suite, place, expected) in [
        (with("rnus = 3", ""), "1:1", "unknown field `rnus`"),
        (with("", "colour = 1\n"), "12:1", "unknown field `colour`"),
        (with("runs = 'three'", ""), "1:8", "invalid type"),
        (with("runs = 0", ""), "1:8", "a number from 1"),
        (
            with("runs = 4\nmost-runs = 3", ""),
            "2:13",
            "less than runs",
        ),
        (with("smallest = 'three'", ""), "1:12", "no percentage"),
        (with("seed = -1", ""), "1:8", "from 0"),
        (with("timeout = '3'", ""), "1:11", ""),
        (with("title = ", ""), "1:9", ""),
        (with("", "load = 'x'\n"), "12:8", "ready"),
        (with("", "ready = 'tcp:1'\n"), "12:9", "needs a load"),
        (
            with("", "load = 'x'\nready = 'udp:1'\n"),
            "13:9",
            "tcp:PORT",
        ),
        (with("", "patience = '1s'\n"), "12:12", "needs a load"),
        (with("", "speed = 'ops=('\n"), "12:9", "not valid"),
        (with("", "speed = 'wall=x'\n"), "12:9", "built-in"),
        (
            with("", "speed = 'a=x'\ntail = 'a=y'\n"),
            "13:8",
            "this name already",
        ),
        (with("", &program), "13:8", "another program is called `a`"),
        (
            with("", "[[arm]]\nname = 'never'\noptions = ''\n"),
            "13:8",
            "another arm",
        ),
        (
            with("", "[[arm]]\nname = 'c'\noptions = '--bugdet 1%'\n"),
            "14:11",
            "--bugdet",
        ),
        (
            with("", "[[arm]]\nname = 'c'\n"),
            "12:1",
            "missing field `options`",
        ),
        (
            with("", "[[program]]\nname = 'b'\nkind = 'x'\ncommand = ' '\n"),
            "15:11",
            "no command",
        ),
        (
            with(
                "",
                "[[program]]\nname = 'b'\nkind = 'x'\ncommand = \"a 'b\"\n",
            ),
            "15:11",
            "quot",
        ),
        (
            format!("[[arm]]\nname = 'a'\noptions = ''\n{program}"),
            "1:1",
            "two arms",
        ),
        (ARMS.to_owned(), "1:1", "no program"),
        (String::new(), "1:1", "two arms"),
    ] {
        scratch.write(&suite);
        let report = scratch.path("report.json");
        let said = scratch.run(&["--report", &report]);
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{suite}\n{error}");
        let told = format!("suite.toml:{place}: ");
        assert!(
            error.contains(&told) && error.contains(expected),
            "{told}{expected}: {error}"
        );
        assert_eq!(error.lines().count(), 1, "{error}");
        assert!(!Path::new(&report).exists());
    }
    for (options, expected) in [
        (
            vec!["--only", "b"],
            "no program has that in its name; there are a",
        ),
        (
            vec!["--arm", "hot", "--arm", "never"],
            "there are never, kernel",
        ),
        (vec!["--arm", "never"], "at least two arms"),
        (vec!["--arm", "never", "--arm", "never"], "given twice"),
        (vec!["--fail-if", "wall > 1%"], "cannot be used with"),
        (vec!["--seed", "4"], "cannot be used with"),
        (vec!["--for", "never"], "never"),
        (vec!["true"], "cannot be used with"),
    ] {
        scratch.write(&with("", ""));
        let said = scratch.run(&options);
        assert_eq!(said.status.code(), Some(2), "{options:?}: {said:?}");
        assert!(
            text(&said.stderr).contains(expected),
            "{options:?}: {said:?}"
        );
    }
    let lonely = output(&mut superhue(
        User::Same,
        &["compare", "--only", "a", "true"],
    ));
    assert_eq!(lonely.status.code(), Some(2));
    let nowhere = ["compare", "--suite", "/nonexistent/suite.toml"];
    let nowhere = output(&mut superhue(User::Same, &nowhere));
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    assert!(!ran.exists());
}

/// A report of another kind, or of another suite, stays as it is.
#[test]
fn a_report_that_does_not_fit_is_left_alone() {
    let scratch = Scratch::new(TWO);
    let report = scratch.path("report.json");
    let refused = |expected: &str| {
        let before = fs::read(&report).unwrap();
        let ran = scratch.lines("counted");
        let said = scratch.run(&["--report", &report]);
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{expected}: {error}");
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(fs::read(&report).unwrap(), before, "{expected}");
        assert_eq!(scratch.lines("counted"), ran, "{expected}");
        assert!(!scratch.at("report.json.part").exists());
    };
    for other in ["{}", "nonsense", r#"{"schema": "superhue-compare/1"}"#] {
        fs::write(&report, other).unwrap();
        refused("no result of a suite");
    }
    // An empty file holds nothing.
    fs::write(&report, "").unwrap();
    let said = scratch.run(&["--report", &report, "-n", "1"]);
    assert!(said.status.success(), "{}", text(&said.stderr));

    for (from, to, expected) in [
        (
            "echo \"p99 5\"",
            "echo \"p99 6\"",
            "another command or metric",
        ),
        (
            "speed = \"ops=ops",
            "speed = \"ops:lower=ops",
            "another command or metric",
        ),
        ("--env MORE=1", "--env MORE=2", "other arms (never, kernel)"),
        ("warmup = 0", "warmup = 1", "another warm-up or seed"),
        (
            "warmup = 0",
            "warmup = 0\ntimeout = \"9s\"",
            "another timeout, ready, patience or ignore-failure",
        ),
        (
            "kind = \"database\"",
            "kind = \"database\"\nignore-failure = true",
            "another timeout, ready, patience or ignore-failure",
        ),
        (
            "name = \"nothing\"",
            "name = \"another\"",
            "holds `nothing`, which the suite lacks",
        ),
    ] {
        let before = fs::read_to_string(scratch.at("suite.toml")).unwrap();
        scratch.write(&suite_with(&scratch, from, to));
        refused(expected);
        scratch.write(&before);
    }
    // A report of another machine does not fit either.
    let elsewhere = fs::read_to_string(&report).unwrap();
    let kernel = scratch.report()["programs"][0]["comparison"]["machine"]["kernel"].clone();
    let kernel = format!("\"kernel\": {kernel}");
    assert!(elsewhere.contains(&kernel));
    fs::write(&report, elsewhere.replace(&kernel, "\"kernel\": \"1.0\"")).unwrap();
    refused("another machine (kernel 1.0, not");

    let nowhere = scratch.run(&["--report", "/dev/null/report.json"]);
    assert_eq!(nowhere.status.code(), Some(1), "{nowhere:?}");
    let folder = scratch.run(&["--report", scratch.0.path().to_str().unwrap()]);
    assert_eq!(folder.status.code(), Some(1), "{folder:?}");
}

/// Runs are continued under the same settings of the machine and rights, as far as the earlier ones are known.
#[test]
fn a_session_under_other_settings_does_not_continue_a_report() {
    let scratch = Scratch::new(&format!(
        "runs = 1\nmost-runs = 1\nwarmup = 0\n{ARMS}\
         [[arm]]\nname = 'auto'\noptions = '--pages auto'\n\
         [[program]]\nname = 'one'\nkind = 'shell'\ncommand = 'true'\n"
    ));
    let report = scratch.path("report.json");
    let first = scratch.run(&["--report", &report]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let whole = scratch.report();
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = whole.clone();
        change(&mut changed);
        fs::write(&report, changed.to_string()).unwrap();
        scratch.run(&["--report", &report, "-n", "2"])
    };
    fn machine(suite: &mut Value) -> &mut Value {
        &mut suite["programs"][0]["comparison"]["machine"]
    }
    let refused = |said: &Output, expected: &str| {
        let error = text(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{expected}: {error}");
        assert!(error.contains(expected), "{expected}: {error}");
        assert_eq!(samples(&scratch.report(), "one"), 3, "{expected}");
    };
    let said = with(&|suite| machine(suite)["thp_defrag"] = "sometimes".into());
    refused(
        &said,
        "under other settings (mode of defragmentation sometimes, not ",
    );
    let said = with(&|suite| machine(suite)["cpus"] = "0-4095".into());
    refused(&said, "under other settings (CPUs 0-4095, not ");
    let said = with(&|suite| {
        let khugepaged = &mut machine(suite)["khugepaged"];
        *khugepaged = serde_json::json!({"pages_to_scan": -1});
    });
    refused(
        &said,
        "under other settings (khugepaged's pages_to_scan -1, not ",
    );
    let said = with(&|suite| {
        let obstacle = &mut suite["arms"][2]["obstacle"];
        *obstacle = match obstacle.is_null() {
            true => "of the earlier session".into(),
            false => Value::Null,
        };
    });
    refused(&said, "is of arm `auto` with");
    assert!(text(&said.stderr).contains(" superhue's huge pages, which it makes "));

    // Older results have less. The facts of the first session stay.
    let said = with(&|suite| {
        let arms = suite["arms"].as_array_mut().unwrap();
        for arm in arms {
            arm.as_object_mut().unwrap().remove("obstacle");
        }
        let plan = suite["programs"][0]["plan"].as_object_mut().unwrap();
        assert!(plan.remove("settings").is_some());
        let facts = machine(suite).as_object_mut().unwrap();
        for name in [
            "cpus",
            "thp_enabled",
            "thp_defrag",
            "khugepaged",
            "memory_bytes",
        ] {
            assert!(facts.remove(name).is_some(), "{name}");
        }
    });
    assert!(said.status.success(), "{}", text(&said.stderr));
    let mut after = scratch.report();
    assert_eq!(samples(&after, "one"), 6);
    assert_eq!(machine(&mut after)["thp_enabled"], Value::Null);
}

#[test]
fn arms_without_huge_pages_are_named_beside_the_table() {
    let scratch = Scratch::new(&format!(
        "runs = 1\nmost-runs = 1\nwarmup = 0\n{ARMS}\
         [[arm]]\nname = 'auto'\noptions = '--pages auto'\n\
         [[program]]\nname = 'one'\nkind = 'shell'\ncommand = 'true'\n"
    ));
    let suite = scratch.path("suite.toml");
    fs::set_permissions(scratch.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = |options: &[&str]| {
        let arguments = [&["compare", "--suite", &suite], options].concat();
        let mut command = superhue(User::Ordinary, &arguments);
        // No daemon acts for the user either.
        output(command.env("SUPERHUE_USERS_SOCKET", "/nonexistent/users.sock"))
    };
    let said = run(&[]);
    let (notes, table) = (text(&said.stderr), text(&said.stdout));
    assert!(said.status.success(), "{notes}");
    let before = "superhue makes no huge pages in arm `auto`: that takes CAP_SYS_NICE";
    let after = "superhue made no huge pages in arm `auto`: that takes CAP_SYS_NICE";
    assert!(notes.contains(before), "{notes}");
    assert!(table.contains(after), "{table}");
    assert!(!(notes + &table).contains("pages in arm `kernel`"));

    let said = run(&["--json"]);
    assert!(text(&said.stderr).contains(after), "{said:?}");
    let kept: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(kept["arms"][1]["obstacle"], Value::Null);
    assert!(kept["arms"][2]["obstacle"].is_string(), "{kept}");
    fs::write(scratch.at("report.json"), &said.stdout).unwrap();
    let report = scratch.path("report.json");
    let shown = output(&mut superhue(User::Same, &["compare", "--from", &report]));
    assert!(text(&shown.stdout).contains(after), "{shown:?}");
}

/// Slow enough to be interrupted in the middle.
const SLOW: &str = "
runs = 300
most-runs = 300
warmup = 0
[[program]]
name = 'one'
kind = 'shell'
command = '''sh -c 'echo x >> FOLDER/one; sleep 0.05' '''
[[program]]
name = 'two'
kind = 'shell'
command = '''sh -c 'echo x >> FOLDER/two; sleep 0.05' '''
";

/// After an interrupt or a kill, finished runs are kept, and the suite continues.
#[test]
fn what_is_done_is_kept() {
    let scratch = Scratch::new(&format!("{SLOW}{ARMS}"));
    let (suite, report) = (scratch.path("suite.toml"), scratch.path("report.json"));
    let mut known = 0;
    for signal in [Signal::INT, Signal::KILL, Signal::TERM] {
        let arguments = ["compare", "--suite", &suite, "--report", &report];
        let mut command = superhue(User::Same, &arguments);
        command
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped());
        let mut running = ChildGuard::start(&mut command);
        let ran = || scratch.lines("one") + scratch.lines("two");
        let before = ran();
        until("ten runs have begun", || {
            (ran() >= before + 10).then_some(())
        });
        running.signal(signal);
        let status = running.wait();
        let result = scratch.report();
        let done = samples(&result, "one") + samples(&result, "two");
        assert!(done > known && done < 1200, "{signal:?}: {known}, {done}");
        // Programs take turns.
        assert!(samples(&result, "one").abs_diff(samples(&result, "two")) <= 2);
        if signal != Signal::KILL {
            assert_eq!(status.code(), Some(130));
            let why = result["unfinished"].as_str().unwrap();
            assert!(why.starts_with("interrupted; 2 of 2 programs"), "{why}");
        }
        if signal == Signal::INT {
            // Only the run that was cut off is lost.
            assert!(done + 1 >= ran(), "{done} of {}", ran());
        }
        known = done;
    }
    // On a busy machine the time may be up before a run begins.
    let mut done = known;
    for (time, most) in [("100ms", 10), ("2s", 50)] {
        let said = scratch.run(&["--report", &report, "--for", time]);
        assert!(said.status.success(), "{}", text(&said.stderr));
        assert!(text(&said.stderr).contains("the time is up"), "{said:?}");
        let result = scratch.report();
        let why = result["unfinished"].as_str().unwrap();
        assert!(why.starts_with("the time is up"), "{why}");
        done = samples(&result, "one") + samples(&result, "two");
        assert!(done < known + most, "{known}, {done}");
        if done > known {
            break;
        }
    }
    assert!(done > known, "{known}, {done}");
}

/// The time ends no run. A signal that ends one is an interrupt, also when the time is up.
#[test]
fn an_interrupt_after_the_time_is_an_interrupt() {
    let scratch = Scratch::new(&format!(
        "title = 'Long'\nruns = 2\nmost-runs = 2\nwarmup = 0\n{ARMS}\
         [[program]]\nname = 'long'\nkind = 'x'\ncommand = \"sh -c 'echo x >> FOLDER/began; exec sleep 600'\"\n"
    ));
    let (suite, report) = (scratch.path("suite.toml"), scratch.path("report.json"));
    let arguments = [
        "compare", "--suite", &suite, "--report", &report, "--for", "2s",
    ];
    let mut command = superhue(User::Same, &arguments);
    command
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null());
    let mut running = ChildGuard::start(&mut command);
    until("the program runs", || {
        (scratch.lines("began") > 0).then_some(())
    });
    std::thread::sleep(std::time::Duration::from_secs(3));
    running.signal(Signal::TERM);
    assert_eq!(running.wait().code(), Some(130));
}

/// Rounds are added while an interval is wide, and no longer.
#[test]
fn noise_decides_how_many_rounds_there_are() {
    let scratch = Scratch::new(&format!(
        "runs = 5\nmost-runs = 9\nwarmup = 0\nsmallest = '3%'\n{ARMS}\
         [[program]]\nname = 'steady'\nkind = 'x'\ncommand = 'echo ops 100'\nspeed = 'ops=ops ([0-9]+)'\n\
         [[program]]\nname = 'noisy'\nkind = 'x'\nspeed = 'ops=ops ([0-9]+)'\n\
         command = '''sh -c 'echo x >> FOLDER/n; n=$(wc -l < FOLDER/n); echo ops $((100 + n * n % 7 * 20))' '''\n"
    ));
    let report = scratch.path("report.json");
    let said = scratch.run(&["--report", &report]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let suite = scratch.report();
    assert_eq!(
        (samples(&suite, "steady"), samples(&suite, "noisy")),
        (10, 18)
    );
    let noisy = &program(&suite, "noisy")["rows"][1]["speed"]["decision"];
    assert_eq!(noisy, "undecided");
    assert_eq!(
        program(&suite, "steady")["rows"][1]["speed"]["decision"],
        "same"
    );
}

/// A suite too long for one machine: each program has one machine, and the table names it.
#[test]
fn programs_that_are_done_may_be_of_another_machine() {
    let scratch = Scratch::new(TWO);
    let report = scratch.path("report.json");
    let first = scratch.run(&["--report", &report, "--only", "counting"]);
    assert!(first.status.success(), "{}", text(&first.stderr));
    let there = fs::read_to_string(&report).unwrap();
    let kernel = scratch.report()["programs"][0]["comparison"]["machine"]["kernel"].clone();
    let elsewhere = there.replace(&format!("\"kernel\": {kernel}"), "\"kernel\": \"1.0\"");
    assert_ne!(elsewhere, there);
    fs::write(&report, &elsewhere).unwrap();
    let second = scratch.run(&["--report", &report]);
    assert!(second.status.success(), "{}", text(&second.stderr));
    let table = text(&second.stdout);
    assert!(table.contains("; on 2 machines"), "{table}");
    assert!(table.contains("Linux 1.0: counting\n"), "{table}");
    assert_eq!(scratch.lines("counted"), 12, "none was run again");
    assert_eq!(scratch.lines("idled"), 12);
    let of =
        |name: &str| program(&scratch.report(), name)["comparison"]["machine"]["kernel"].clone();
    assert_eq!((of("counting"), of("nothing")), ("1.0".into(), kernel));

    // More runs would make it a program of two machines.
    let more = scratch.run(&["--report", &report, "-n", "7"]);
    assert_eq!(more.status.code(), Some(2), "{more:?}");
    assert!(text(&more.stderr).contains("choose other programs with --only"));
}

/// The suite of the project itself can be read, and has the documented size.
#[test]
fn the_record_is_a_suite() {
    let record = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/record.toml");
    let arguments = [
        "compare",
        "--suite",
        record,
        "--only",
        "nothing of the kind",
    ];
    let said = output(&mut superhue(User::Same, &arguments));
    assert_eq!(said.status.code(), Some(2));
    let error = text(&said.stderr);
    let names = error.split("there are ").nth(1).unwrap_or_default();
    assert_eq!(names.split(", ").count(), 31, "{error}");
    for name in [
        "postgres",
        "java HashMap",
        "gcc -O2",
        "sklearn forest",
        "sparse touches",
    ] {
        assert!(names.contains(name), "{error}");
    }
    let arguments = ["compare", "--suite", record, "--arm", "?"];
    let error = text(&output(&mut superhue(User::Same, &arguments)).stderr);
    let names = error.split("there are ").nth(1).unwrap_or_default();
    assert_eq!(names.split(", ").count(), 10, "{error}");
}
