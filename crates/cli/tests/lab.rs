//! `superhue lab` from the command line: what it makes, keeps and refuses.

#![allow(
    clippy::unwrap_used,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use std::fs;
use std::process::Output;

use serde_json::Value;
use support::{User, folder, output, superhue, text};

fn lab(arguments: &[&str]) -> Output {
    output(&mut superhue(User::Same, &[&["lab"], arguments].concat()))
}

/// Fails unless superhue exits with `status`, prints nothing, and complains with these words.
#[track_caller]
fn refused(arguments: &[&str], status: i32, words: &[&str]) {
    let said = lab(arguments);
    let complaint = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{complaint}");
    for word in words {
        assert!(complaint.contains(word), "no `{word}` in: {complaint}");
    }
    assert_eq!(text(&said.stdout), "");
}

#[test]
fn figures_are_kept_as_they_are_done() {
    let folder = folder();
    let out = folder.path().join("lab");
    let out = out.to_str().unwrap();
    let arguments = [
        "p0-celeron",
        "p1-rule",
        "--quick",
        "--drawn",
        "-n",
        "2",
        "--json",
        "--output",
        out,
    ];
    let said = lab(&arguments);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let kept = fs::read_to_string(format!("{out}/lab.json")).unwrap();
    assert_eq!(kept, text(&said.stdout));
    let document: Value = serde_json::from_str(&kept).unwrap();
    assert_eq!(document["figures"].as_array().unwrap().len(), 2);
    for name in ["p0-celeron", "p1-rule"] {
        let picture = fs::read_to_string(format!("{out}/{name}.svg")).unwrap();
        assert!(picture.starts_with("<svg") && picture.contains("modelled"));
    }
    // The page is of all figures.
    assert!(!fs::exists(format!("{out}/README.md")).unwrap());
    assert_eq!(text(&lab(&arguments).stdout), kept);
    let picture = format!("{out}/p0-celeron.svg");
    let drawn = fs::read(&picture).unwrap();
    fs::remove_file(&picture).unwrap();
    let json = format!("{out}/lab.json");
    let said = lab(&["--from", &json, "--output", out, "--json"]);
    assert_eq!(text(&said.stdout), kept);
    assert_eq!(fs::read(&picture).unwrap(), drawn);
    fs::write(&json, kept.replacen("p1-rule", "../../x", 1)).unwrap();
    refused(&["--from", &json, "--output", out], 1, &[&json, "../../x"]);
    fs::write(&json, kept.replacen("superhue-lab/1", "superhue-lab/9", 1)).unwrap();
    refused(&["--from", &json], 1, &["superhue-lab/9"]);
}

#[test]
fn nonsense_is_refused() {
    refused(&["p9-nothing"], 2, &["p9-nothing", "--list"]);
    refused(&["--machine", "zen"], 2, &["FIGURE"]);
    refused(
        &["p1-pairs", "--machine", "celeron-900", "--drawn"],
        2,
        &["two cores"],
    );
    refused(
        &["p0-celeron", "--machine", "/nonexistent.toml"],
        1,
        &["/nonexistent.toml", "--list"],
    );
    let folder = folder();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let machine = path("mine.toml");
    fs::write(&machine, "name = \"x\"\ncores = \"many\"\n").unwrap();
    refused(
        &["p0-celeron", "--machine", &machine],
        2,
        &["mine.toml:2: cores:"],
    );
    let frames = path("unpatched-aged-base.frames");
    fs::write(&frames, "superhue-frames/1 off,aged,base\ndraw small 1 0\n").unwrap();
    let here = folder.path().to_str().unwrap();
    refused(
        &["p0-celeron", "--frames", here],
        1,
        &[&frames, "died", "kernel/frames"],
    );
    refused(
        &["--witness", here],
        1,
        &["unpatched-aged-base.counts", "witness/run"],
    );
    refused(&["p0-celeron", "--witness", here], 2, &["--witness"]);
    // A file where the folder should be.
    refused(
        &["p0-celeron", "--drawn", "--output", &frames],
        1,
        &[&frames],
    );
}

#[test]
fn the_list_has_figures_and_machines() {
    let said = text(&lab(&["--list"]).stdout);
    for words in ["p0-celeron", "P0 table 2", "p3-stride", "zen", "core2-duo"] {
        assert!(said.contains(words), "{words}");
    }
}
