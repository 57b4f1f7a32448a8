//! Cache allocation by the hardware: documents of every state, and what `check` and `run` say where the L3 can be divided.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use superhue::CacheAllocationAdvice;
use superhue::procfs::Roots;
use superhue_testing::{is_root, unpack_tree};

use crate::support::{folder, installed, output, skip, text};

const CPUINFO: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu rdt_a cat_l3\n\n";
const FILE_SYSTEMS: &str = "nodev\tproc\nnodev\ttmpfs\nnodev\tresctrl\n";

/// Returns the faults of a document by the part of a schema that describes cache allocation.
fn complaints(schema: &str, document: &Value) -> Vec<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas");
    let schema = fs::read(folder.join(format!("{schema}.schema.json"))).unwrap();
    let mut schema: Value = serde_json::from_slice(&schema).unwrap();
    let part = json!({"$ref": "#/$defs/CacheAllocation", "$defs": schema["$defs"].take()});
    let validator = jsonschema::validator_for(&part).unwrap();
    let errors = validator.iter_errors(document);
    errors.map(|error| error.to_string()).collect()
}

#[test]
fn the_schemas_describe_every_state() {
    let folder = folder();
    let proc = folder.path().join("proc");
    let mut states = Vec::new();
    let mut document = || {
        let advice = CacheAllocationAdvice::read(&Roots::under(folder.path()));
        let document = serde_json::to_value(advice).unwrap();
        for schema in ["check", "status"] {
            assert_eq!(
                complaints(schema, &document),
                Vec::<String>::new(),
                "{document:#}"
            );
        }
        states.push(document["state"].as_str().unwrap().to_owned());
        document
    };
    document();
    unpack_tree("machines/resctrl-intel", folder.path());
    let mounted = document();
    let mask = folder.path().join("sys/fs/resctrl/info/L3/cbm_mask");
    fs::write(mask, "0\n").unwrap();
    assert!(document()["caches"][0]["bits"].is_null());
    fs::create_dir(proc.join("1")).unwrap();
    fs::rename(proc.join("self/mountinfo"), proc.join("1/mountinfo")).unwrap();
    fs::write(proc.join("self/mountinfo"), "").unwrap();
    document();
    fs::remove_file(proc.join("1/mountinfo")).unwrap();
    document();
    fs::write(proc.join("filesystems"), "\text4\n").unwrap();
    document();
    for flags in ["hypervisor", "fpu"] {
        fs::write(proc.join("cpuinfo"), format!("flags\t\t: {flags}\n")).unwrap();
        document();
    }
    assert_eq!(
        states,
        [
            "unknown",
            "mounted",
            "mounted",
            "mounted-elsewhere",
            "not-mounted",
            "not-in-kernel",
            "hidden",
            "not-offered"
        ]
    );

    let mut more = mounted.clone();
    more["caches"][0]["weather"] = json!("rain");
    let mut less = mounted;
    less.as_object_mut().unwrap().remove("groups_left");
    for wrong in [more, less] {
        assert!(!complaints("check", &wrong).is_empty());
    }
}

/// Runs superhue where CPU and kernel can divide the L3 and resctrl is not mounted; `None` if such files cannot be put in place.
fn on_such_a_machine(arguments: &[&str]) -> Option<Output> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    if !is_root() || mounts.contains(" - resctrl ") {
        skip(
            "mount",
            "needs root, and a machine where resctrl is not mounted",
        );
        return None;
    }
    let folder = folder();
    fs::write(folder.path().join("cpuinfo"), CPUINFO).unwrap();
    fs::write(folder.path().join("filesystems"), FILE_SYSTEMS).unwrap();
    let script = "for file in cpuinfo filesystems; do mount --bind \"$0/$file\" /proc/$file || exit 99; done; exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]);
    command.arg(folder.path()).arg(installed().join("superhue"));
    let said = output(command.args(arguments));
    if said.status.code() == Some(99) || text(&said.stderr).contains("unshare") {
        skip("mount", &text(&said.stderr));
        return None;
    }
    Some(said)
}

#[test]
fn check_says_how_to_mount_it() {
    let Some(said) = on_such_a_machine(&["check", "--json", "cache-allocation"]) else {
        return;
    };
    let document: Value = serde_json::from_slice(&said.stdout).unwrap();
    let found = &document["capabilities"][0];
    assert_eq!(
        (&found["id"], &found["verdict"]),
        (&json!("cache-allocation"), &json!("partial"))
    );
    assert_eq!(document["cache_allocation"]["state"], "not-mounted");
    assert_eq!(found["remedy"], document["cache_allocation"]["advice"]);
    let people = on_such_a_machine(&["check", "cache-allocation"]).unwrap();
    let people = text(&people.stdout);
    assert!(
        people.contains("mount -t resctrl resctrl /sys/fs/resctrl"),
        "{people}"
    );
}

#[test]
fn isolation_by_colors_has_one_hint() {
    let hints = |options: &[&str]| {
        let mut arguments = vec!["run", "--dry-run", "--pages", "kernel"];
        arguments.extend(options);
        arguments.extend(["--", "true"]);
        let said = on_such_a_machine(&arguments)?;
        assert!(said.status.success(), "{said:?}");
        Some(text(&said.stderr).matches("hint: resctrl").count())
    };
    let Some(count) = hints(&["--colors", "0-1"]) else {
        return;
    };
    assert_eq!(count, 1);
    for silent in [
        &["--colors", "0-1", "--quiet"][..],
        &["--colors", "0-1", "--json"],
        &["--colors", "spread"],
        &[],
    ] {
        assert_eq!(hints(silent), Some(0), "{silent:?}");
    }
}
