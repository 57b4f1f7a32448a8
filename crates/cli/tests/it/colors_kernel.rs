//! Messages of `--placement` and related options on a kernel without page coloring, where nothing else may change.
//!
//! For a kernel with page coloring, `kernel/superhue/superhue` has the tests.

use std::path::Path;

use serde_json::Value;

use crate::support::{User, output, skip, superhue, text};

/// Returns true if this kernel has page coloring.
fn is_patched() -> bool {
    let patched = Path::new("/proc/page_color").exists();
    if patched {
        skip("stock-kernel", "this kernel has page coloring");
    }
    patched
}

fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let said = output(&mut superhue(User::Same, arguments));
    let (out, err) = (text(&said.stdout), text(&said.stderr));
    (said.status.code(), out, err)
}

#[test]
fn the_kernel_cannot_be_asked_for() {
    if is_patched() {
        return;
    }
    for strict in [&[][..], &["--strict"]] {
        let mut arguments = vec!["run", "--colors", "spread", "--placement", "kernel"];
        arguments.extend(strict);
        arguments.extend(["--", "true"]);
        let (status, _, err) = run(&arguments);
        assert_eq!(status, Some(125), "{err}");
        assert!(err.contains("no page coloring"), "{err}");
    }
}

/// A kernel with page coloring cannot color a process that already runs.
#[test]
fn the_kernel_cannot_be_asked_for_what_runs_already() {
    let own = std::process::id().to_string();
    let arguments = [
        "attach",
        "--pages",
        "kernel",
        "--colors",
        "spread",
        "--placement",
        "kernel",
        &own,
    ];
    let (status, _, err) = run(&arguments);
    assert_eq!(status, Some(3), "{err}");
    assert!(err.contains("run already"), "{err}");
}

#[test]
fn wrong_placements_are_wrong_usage() {
    let (status, _, err) = run(&[
        "run",
        "--colors",
        "spread",
        "--placement",
        "Kernel",
        "--",
        "true",
    ]);
    assert_eq!(status, Some(2));
    assert!(err.contains("auto, kernel, recolor"), "{err}");
}

#[test]
fn swap_is_for_colors() {
    for verb in [
        &["run", "--swap", "--", "true"][..],
        &["attach", "--swap", "1"],
    ] {
        let (status, _, err) = run(verb);
        assert_eq!(status, Some(2));
        assert!(err.contains("--colors"), "{err}");
    }
    let (status, _, err) = run(&["run", "--quiet", "--colors", "off", "--swap", "--", "true"]);
    assert_eq!(status, Some(0), "{err}");
}

#[test]
fn the_capability_is_missing_and_says_what_to_do() {
    if is_patched() {
        return;
    }
    let (status, out, _) = run(&["check", "--json", "colors-kernel"]);
    assert_eq!(status, Some(3));
    let document: Value = serde_json::from_str(&out).unwrap();
    let found = &document["capabilities"][0];
    assert_eq!(
        (found["id"].as_str(), found["verdict"].as_str()),
        (Some("colors-kernel"), Some("no"))
    );
    assert!(
        found["remedy"].as_str().unwrap().contains("kernel/"),
        "{found}"
    );
}

#[test]
fn status_says_nothing_of_colors() {
    if is_patched() {
        return;
    }
    let own = std::process::id().to_string();
    let (status, out, _) = run(&["status", "--json", &own]);
    assert_eq!(status, Some(0));
    let document: Value = serde_json::from_str(&out).unwrap();
    assert!(document.get("page_coloring").is_none());
    assert!(document["cache_allocation"]["found"].is_string());
    assert!(document["processes"][0].get("colors").is_none());
    let (_, out, _) = run(&["status", &own]);
    assert!(
        !out.contains("oloring") && !out.contains("Colors of"),
        "{out}"
    );
}

#[test]
fn the_oracle_is_listed_only_if_asked_for() {
    if is_patched() {
        return;
    }
    let (status, out, err) = run(&["colors", "--oracle", "kernel", "--json"]);
    assert_eq!(status, Some(3), "{err}");
    assert!(err.contains("no page coloring"), "{err}");
    let document: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(document["oracles"][0]["name"], "kernel");
    assert!(document.get("kernel").is_none());
}
