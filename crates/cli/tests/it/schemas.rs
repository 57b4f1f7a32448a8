//! Checks that `docs/schemas` describes every JSON document and every field that the command writes: a schema that is
//! older than the code fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use jsonschema::Validator;
use serde_json::{Value, json};

use crate::support::{
    self, ChildGuard, FILLING, User, folder, output, python, sampled, superhue, text, until,
};

/// Verbs with `--json`, and the file of each.
const DOCUMENTED: [(&str, &str); 18] = [
    ("check", "check"),
    ("run", "run"),
    ("attach", "run"),
    ("compare", "compare"),
    ("compare", "suite"),
    // Checked against its schema in `trial.rs`, too.
    ("trial", "trial"),
    ("bench", "bench"),
    ("lab", "lab"),
    // Kept files in docs/lab are checked against it.
    ("lab", "lab-witness"),
    ("status", "status"),
    // Documents that `advise.rs` makes it print are checked against this, too.
    ("advise", "advise"),
    ("heat", "heat"),
    ("colors", "colors"),
    // Checked against its schema in `colors_plan.rs`.
    ("colors", "plan"),
    ("restore", "restore"),
    ("top", "top"),
    // The documents that these print in `daemon.rs` are checked against theirs.
    ("ctl", "ctl"),
    ("daemon", "daemon-check"),
];

/// Documents of programs of this tree that are not verbs: `scripts/big`.
const OF_SCRIPTS: [&str; 1] = ["big"];

fn docs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

fn schema(name: &str) -> Value {
    let path = docs().join("schemas").join(format!("{name}.schema.json"));
    let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// Returns the faults of a document, by the schema of that name.
fn complaints(validator: &Validator, document: &Value) -> Vec<String> {
    let errors = validator.iter_errors(document);
    errors
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[track_caller]
pub(crate) fn fits(name: &str, document: &Value) {
    let validator = jsonschema::validator_for(&schema(name)).unwrap();
    let complaints = complaints(&validator, document);
    assert!(complaints.is_empty(), "{name}: {complaints:#?}");
}

/// Returns the standard output of a command as JSON; it must succeed.
#[track_caller]
fn said(arguments: &[&str]) -> Value {
    let said = output(&mut superhue(User::Same, arguments));
    // What root's superhue may have left is not visible to others.
    let is_unsure = arguments[0] == "restore" && said.status.code() == Some(3);
    assert!(
        said.status.success() || is_unsure,
        "{arguments:?}: {}",
        text(&said.stderr)
    );
    serde_json::from_slice(&said.stdout).unwrap()
}

/// A process with 16 MiB in memory, until it is dropped.
fn target() -> Option<ChildGuard> {
    let program = format!(
        "{FILLING}\nm = fill(16)\nprint(flush=True)\nimport time\nwhile True:\n m[::4096]\n time.sleep(.01)"
    );
    let mut command = Command::new(python()?);
    command
        .args(["-c", &program])
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let running = ChildGuard::start(&mut command);
    let statm = format!("/proc/{}/statm", running.pid());
    until("the memory is filled", || {
        let statm = fs::read_to_string(&statm).ok()?;
        let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
        (pages > 4096).then_some(())
    });
    Some(running)
}

/// Finds every schema of an object in the document, with its path.
fn objects<'a>(value: &'a Value, at: String, found: &mut Vec<(String, &'a Value)>) {
    match value {
        Value::Object(fields) => {
            if fields.get("properties").is_some_and(Value::is_object) {
                found.push((at.clone(), value));
            }
            for (name, value) in fields {
                objects(value, format!("{at}/{name}"), found);
            }
        }
        Value::Array(values) => {
            for (index, value) in values.iter().enumerate() {
                objects(value, format!("{at}/{index}"), found);
            }
        }
        _ => {}
    }
}

#[test]
fn schemas_are_sound_closed_and_named() {
    let mut files: Vec<String> = fs::read_dir(docs().join("schemas"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".schema.json").map(str::to_owned))
        .collect();
    files.sort();
    let verbs = DOCUMENTED.iter().map(|(_, name)| *name);
    let mut documented: Vec<&str> = verbs.chain(OF_SCRIPTS).collect();
    documented.sort_unstable();
    documented.dedup();
    assert_eq!(files, documented);
    for name in documented {
        let schema = schema(name);
        assert!(jsonschema::meta::is_valid(&schema), "{name}");
        // The daemon's answers are of several kinds, of which the account has the schema's name.
        let names = ["", "/$defs/DaemonAccount"].map(|at| format!("{at}/properties/schema/const"));
        let named = names.iter().find_map(|at| schema.pointer(at));
        assert_eq!(Some(&schema["title"]), named, "{name}");
        let mut found = Vec::new();
        objects(&schema, String::new(), &mut found);
        assert!(!found.is_empty());
        for (at, object) in found {
            assert_eq!(object["additionalProperties"], false, "{name}{at}");
            for (field, schema) in object["properties"].as_object().unwrap() {
                let is_told = schema.get("description").is_some() || schema.get("const").is_some();
                assert!(is_told, "{name}{at}: {field} has no description");
            }
        }
    }
}

#[test]
fn every_verb_that_prints_json_is_documented() {
    let help = text(&output(&mut superhue(User::Same, &["--help"])).stdout);
    let commands = help.split("Commands:").nth(1).unwrap();
    let commands = commands.split("Options:").next().unwrap();
    let verbs: Vec<&str> = commands
        .lines()
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    // Some have several documents.
    let documented: BTreeSet<&str> = DOCUMENTED.iter().map(|(verb, _)| *verb).collect();
    assert!(verbs.len() >= documented.len(), "{verbs:?}");
    for verb in verbs {
        let help = text(&output(&mut superhue(User::Same, &[verb, "--help"])).stdout);
        let is_documented = DOCUMENTED.iter().any(|(known, _)| *known == verb);
        assert_eq!(help.contains("--json"), is_documented, "{verb}");
    }
}

#[test]
fn an_unknown_field_or_a_missing_one_is_noticed() {
    let document = said(&["check", "--json", "page-size"]);
    fits("check", &document);
    let validator = jsonschema::validator_for(&schema("check")).unwrap();
    let mut more = document.clone();
    more["capabilities"][0]["weather"] = json!("rain");
    assert!(!complaints(&validator, &more).is_empty());
    let mut less = document.clone();
    less["capabilities"][0]
        .as_object_mut()
        .unwrap()
        .remove("how");
    assert!(!complaints(&validator, &less).is_empty());
    let mut other = document;
    other["capabilities"][0]["verdict"] = json!("perhaps");
    assert!(!complaints(&validator, &other).is_empty());
}

#[test]
fn verbs_without_a_process() {
    fits("check", &said(&["check", "--json"]));
    fits("restore", &said(&["restore", "--json"]));
    fits("status", &said(&["status", "--json"]));
    fits("top", &said(&["top", "--json", "--interval", "100ms"]));
    let bench = [
        "bench",
        "chase",
        "isolation",
        "--quick",
        "-n",
        "1",
        "--arms",
        "kernel,superpage",
        "--json",
    ];
    // Sizes are fractions of the caches: on a machine that describes none, there is no result.
    if fs::exists("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or(false) {
        fits("bench", &said(&bench));
    } else {
        support::skip("cache-sizes", "sysfs describes no second-level cache");
    }
    let lab = [
        "lab",
        "p0-celeron",
        "p1-rule",
        "--quick",
        "--drawn",
        "-n",
        "2",
        "--json",
    ];
    fits("lab", &said(&lab));
}

#[test]
fn colors_with_and_without_a_verification() {
    let folder = folder();
    let report = folder.path().join("colors.json");
    let report = report.to_str().unwrap();
    let verified = [
        "colors", "--verify", "--quick", "--json", "--report", report,
    ];
    // It depends on the machine whether an oracle is right (status 3 if none is); the document is written in any case.
    let told = output(&mut superhue(User::Same, &verified));
    let document: Value = serde_json::from_slice(&told.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", text(&told.stderr)));
    fits("colors", &document);
    if document["verification"].is_null() {
        support::skip("verify", "no oracle is trusted on this machine");
        return;
    }
    // Shown again, it is the verification alone.
    let again = said(&["colors", "--from", report, "--json"]);
    let mut schema = schema("colors");
    let latency = json!({"$ref": "#/$defs/Latency", "$defs": schema["$defs"].take()});
    let validator = jsonschema::validator_for(&latency).unwrap();
    assert_eq!(complaints(&validator, &again), Vec::<String>::new());
}

#[test]
fn verbs_on_a_process() {
    let Some(target) = target() else { return };
    let pid = target.pid().to_string();
    fits("status", &said(&["status", "--json", &pid]));
    fits("status", &said(&["status", "--json", "--why", &pid]));
    for pages in ["resident", "kernel"] {
        let attach = ["attach", "--for", "300ms", "--json", "--pages", pages, &pid];
        fits("run", &said(&attach));
    }
    let planned = said(&["attach", "--dry-run", "--pages", "resident", "--json", &pid]);
    fits("run", &planned);
    let told = sampled(|time| {
        let heat = ["heat", "--for", time, "--json", &pid];
        output(&mut superhue(User::Same, &heat))
    });
    if told.status.code() == Some(3) {
        support::skip("tracking", "accesses cannot be tracked here");
        return;
    }
    fits("heat", &serde_json::from_slice(&told.stdout).unwrap());
}

#[test]
fn reports_of_runs() {
    let folder = folder();
    let report = folder.path().join("report.json");
    let Some(python) = python() else { return };
    let program = format!("{FILLING}\nm = fill(16)\nimport time; time.sleep(.3)");
    // Root tracks accesses by default; for an ordinary user nothing is collapsed.
    let runs: [(User, &[&str]); 5] = [
        (User::Same, &[]),
        (User::Ordinary, &[]),
        (User::Same, &["--pages", "resident", "--dry-run"]),
        (
            User::Ordinary,
            &["--pages", "resident", "--colors", "spread"],
        ),
        (User::Same, &["--pages", "always", "--colors", "50%"]),
    ];
    for (user, options) in runs {
        let mut arguments = vec!["run", "--quiet", "--report", report.to_str().unwrap()];
        arguments.extend(options);
        arguments.extend(["--", python, "-c", &program]);
        let ended = output(&mut superhue(user, &arguments));
        assert!(
            ended.status.success(),
            "{options:?}: {}",
            text(&ended.stderr)
        );
        fits(
            "run",
            &serde_json::from_slice(&fs::read(&report).unwrap()).unwrap(),
        );
        let _ = fs::remove_file(&report);
    }
    let killed = [
        "run",
        "--quiet",
        "--report",
        report.to_str().unwrap(),
        "--",
        "sh",
        "-c",
        "kill -9 $$",
    ];
    let _ = output(&mut superhue(User::Same, &killed));
    let killed: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(killed["ending"]["how"], "killed");
    fits("run", &killed);
}

#[test]
fn comparisons_of_every_kind() {
    let base = [
        "compare", "--arm", "never", "--arm", "kernel", "--warmup", "0", "--json",
    ];
    let compared = |options: &[&str], command: &[&str]| {
        let arguments = [&base, options, &["--"], command].concat();
        let told = output(&mut superhue(User::Same, &arguments));
        let document = serde_json::from_slice(&told.stdout);
        document.unwrap_or_else(|error| panic!("{error}: {}", text(&told.stderr)))
    };
    fits("compare", &compared(&["-n", "1"], &["true"]));
    let gated = compared(
        &[
            "-n",
            "5",
            "--metric",
            "v=v ([0-9]+)",
            "--fail-if",
            "v < -2%",
            "--fail-unless",
            "wall > -90%",
        ],
        &["echo", "v 1"],
    );
    assert_eq!(gated["gates"].as_array().unwrap().len(), 2);
    fits("compare", &gated);
    let scanned = compared(
        &["-n", "1", "-P", "n", "1", "2", "-L", "k", "a,b"],
        &["echo", "{n}{k}"],
    );
    assert_eq!(scanned["arms"].as_array().unwrap().len(), 8);
    fits("compare", &scanned);
    let folder = folder();
    let count = folder.path().join("count");
    let script = format!("echo x >> {0}; [ $(wc -l < {0}) != 3 ]", count.display());
    let failing = compared(
        &["-n", "5", "--fail-if", "wall > 5%"],
        &["sh", "-c", &script],
    );
    assert!(failing["gates"][0]["why_not_judged"].is_string());
    fits("compare", &failing);
}

/// Returns the comparisons in the document of a suite.
fn comparisons_in(suite: &Value) -> Vec<&Value> {
    let programs = suite["programs"].as_array();
    let held = programs.into_iter().flatten().map(|it| &it["comparison"]);
    held.filter(|comparison| !comparison.is_null()).collect()
}

#[test]
fn a_suite_and_the_comparisons_in_it() {
    let folder = folder();
    let path = folder.path().join("suite.toml");
    let suite = "
        runs = 5
        warmup = 0
        arm = [{ name = 'never', options = '--pages never' }, { name = 'kernel', options = '--pages kernel' },
               { name = 'lost', options = '--env LD_PRELOAD=libno-such.so' }]
        [[program]]
        name = 'one'
        kind = 'shell'
        command = 'echo ops 100 p99 5'
        speed = 'ops=ops ([0-9]+)'
        tail = 'p99:lower=p99 ([0-9]+)'
        [[program]]
        name = 'two'
        kind = 'shell'
        command = 'true'
        [[program]]
        name = 'three'
        kind = 'shell'
        command = 'no-such-program'
        install = 'apt install three'
    ";
    fs::write(&path, suite).unwrap();
    let told = said(&[
        "compare",
        "--suite",
        path.to_str().unwrap(),
        "--json",
        "-n",
        "5",
    ]);
    fits("suite", &told);
    let comparisons = comparisons_in(&told);
    assert_eq!(comparisons.len(), 2);
    for comparison in comparisons {
        fits("compare", comparison);
    }
}

/// The results that are kept with the documentation have the present layout, too.
#[test]
fn kept_results() {
    let verbs = DOCUMENTED.iter().map(|(_, name)| *name);
    let by_title: BTreeMap<String, Validator> = verbs
        .chain(OF_SCRIPTS)
        .map(schema)
        .map(|schema| {
            let title = schema["title"].as_str().unwrap().to_owned();
            (title, jsonschema::validator_for(&schema).unwrap())
        })
        .collect();
    let mut checked = 0;
    for folder in ["results", "results/programs", "lab"] {
        for entry in fs::read_dir(docs().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_none_or(|extension| extension != "json") {
                continue;
            }
            let document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let Some(validator) = document["schema"].as_str().and_then(|s| by_title.get(s)) else {
                continue;
            };
            checked += 1;
            let complaints = complaints(validator, &document);
            assert!(complaints.is_empty(), "{}: {complaints:#?}", path.display());
            for comparison in comparisons_in(&document) {
                let complaints = self::complaints(&by_title["superhue-compare/1"], comparison);
                assert!(complaints.is_empty(), "{}: {complaints:#?}", path.display());
            }
        }
    }
    assert!(checked > 20, "{checked}");
}
