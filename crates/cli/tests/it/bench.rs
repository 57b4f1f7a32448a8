//! `superhue bench` from the command line: its measurements, its files, its refusals. No figure decides anything here.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::support::{User, folder, output, skip, superhue, text};

fn bench(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, &[&["bench"], arguments].concat()))
}

/// Fails unless superhue exits with `status`, prints nothing, and prints an error with these words.
#[track_caller]
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let said = bench(arguments);
    let complaint = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{complaint}");
    for word in words {
        assert!(complaint.contains(word), "no `{word}` in: {complaint}");
    }
    assert_eq!(text(&said.stdout), "");
}

/// Returns true if this machine describes its caches; without that there are no sizes to take fractions of.
fn caches_are_known() -> bool {
    let known = fs::exists("/sys/devices/system/cpu/cpu0/cache/index2/size").unwrap_or(false);
    if !known {
        skip("cache-sizes", "sysfs describes no second-level cache");
    }
    known
}

#[test]
fn wrong_input_is_refused_before_anything_is_measured() {
    refused(&[], 2, &["WORKLOAD"]);
    refused(
        &["sort"],
        2,
        &["`sort` is no workload", "chase", "isolation"],
    );
    refused(
        &["chase", "--arms", "kernel,colours"],
        2,
        &["colours", "superpage"],
    );
    refused(&["chase", "--arms", "kernel,kernel"], 2, &["twice"]);
    refused(&["chase", "--allocations", "0"], 2, &["--allocations"]);
    refused(
        &["chase", "--quick", "--cpu", "100000"],
        2,
        &["--cpu", "CPU 100000", "only"],
    );
    refused(&["chase", "--list"], 2, &["--list"]);
    refused(
        &["chase", "--output", "/proc/none/here"],
        1,
        &["/proc/none/here"],
    );
    refused(&["--from", "/nonexistent.json"], 1, &["/nonexistent.json"]);
    refused(&["--from", "x.json", "--quick"], 2, &["--from"]);
}

#[test]
fn what_is_no_result_is_not_shown() {
    let folder = folder();
    let path = folder.path().join("x.json");
    for (content, word) in [
        ("", "not a result"),
        ("{}", "schema is missing"),
        (r#"{"schema": "superhue-compare/1"}"#, "superhue-compare/1"),
        (r#"{"schema": "superhue-bench/1"}"#, "missing field"),
    ] {
        fs::write(&path, content).unwrap();
        refused(&["--from", path.to_str().unwrap()], 1, &["x.json", word]);
    }
}

#[test]
fn the_list_names_workloads_and_arms() {
    let said = bench(&["--list"]);
    assert!(said.status.success());
    for name in [
        "chase",
        "gather",
        "copy",
        "transpose-load",
        "transpose-store",
        "fft",
        "product",
        "isolation",
        "both",
    ] {
        assert!(text(&said.stdout).contains(&format!("  {name} ")), "{name}");
    }
}

#[test]
fn every_sample_is_written_and_drawn_again_from_what_was_written() {
    if !caches_are_known() {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let arguments = [
        "chase",
        "isolation",
        "--quick",
        "-n",
        "2",
        "--arms",
        "kernel",
        "--json",
        "--output",
    ];
    let said = bench(&[&arguments[..], &[folder.path().to_str().unwrap()]].concat());
    assert!(said.status.success(), "{}", text(&said.stderr));
    let result: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(result["schema"], "superhue-bench/1");
    let points = result["sweeps"][0]["points"].as_array().unwrap();
    assert!(points.len() >= 4);
    for point in points {
        assert_eq!(point["arms"][0]["arm"], "kernel");
        let samples = point["arms"][0]["samples"].as_array().unwrap();
        assert!(
            samples.len() == 2
                && samples
                    .iter()
                    .all(|passes| passes.as_array().unwrap().len() == 3)
        );
        let size = point["bytes"].as_u64().unwrap();
        assert_eq!(point["arms"][0]["pages"]["dealt"], 2 * size.div_ceil(4096));
    }
    assert!(
        !result["isolation"]["cases"][0]["rounds"][0]
            .as_array()
            .unwrap()
            .is_empty()
    );

    let drawn = fs::read(at("colors-chase.svg")).unwrap();
    fs::remove_file(at("colors-chase.svg")).unwrap();
    let written = at("colors-chase.json");
    let again = [
        "--from",
        written.to_str().unwrap(),
        "--output",
        folder.path().to_str().unwrap(),
    ];
    let said = bench(&again);
    assert!(said.status.success(), "{}", text(&said.stderr));
    assert!(text(&said.stdout).contains("kernel"));
    assert_eq!(fs::read(at("colors-chase.svg")).unwrap(), drawn);
    assert!(at("colors-isolation.json").exists() && at("colors-isolation.svg").exists());
}

#[test]
fn pages_of_a_colored_arm_are_placed() {
    if !caches_are_known() {
        return;
    }
    let said = bench(&[
        "gather",
        "--quick",
        "-n",
        "1",
        "--arms",
        "kernel,colored",
        "--json",
    ]);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let result: Value = serde_json::from_slice(&said.stdout).unwrap();
    if result["colors"].is_null() {
        let reason = result["skipped"][0]["reason"].as_str().unwrap();
        return skip("colors", reason);
    }
    for point in result["sweeps"][0]["points"].as_array().unwrap() {
        let pages = &point["arms"][1]["pages"];
        let placed = pages["placed"].as_u64().unwrap();
        let all = placed + pages["dealt"].as_u64().unwrap();
        assert_eq!(all, point["bytes"].as_u64().unwrap().div_ceil(4096));
        // Beside other load a color cannot always be measured; such pages are left to the kernel, and counted.
        let refused = pages["refused"].as_object().unwrap().values();
        let refused: u64 = refused.map(|pages| pages.as_u64().unwrap()).sum();
        assert!(placed > 0 || refused > 0, "{pages}");
    }
}
