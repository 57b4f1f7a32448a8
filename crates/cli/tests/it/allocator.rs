//! `run --allocator ask` changes one variable of the command's environment, and only where that helps.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{User, folder, output, python, skip, static_busybox, superhue, text};

/// Allocates 128 MiB in pieces of 1,000 bytes, which come from the heap, and uses all of it.
const HEAP: &str = "kept = [bytes([i % 251 + 1]) * 1000 for i in range(128 << 10)]";

/// The environment that commands of these tests start with: nothing of the caller's that concerns allocators.
const UNSET: [&str; 5] = [
    "GLIBC_TUNABLES",
    "LD_PRELOAD",
    "MALLOC_CONF",
    "MIMALLOC_LARGE_OS_PAGES",
    "JDK_JAVA_OPTIONS",
];

/// Runs a command under `run` with these options and variables; returns its output and the report.
fn run(options: &[&str], set: &[(&str, &str)], command: &[&str]) -> (String, Value) {
    let folder = folder();
    let report = folder.path().join("report.json");
    let mut words = vec!["run", "--quiet", "--report", report.to_str().unwrap()];
    words.extend(options);
    words.push("--");
    words.extend(command);
    let mut run = superhue(User::Same, &words);
    UNSET.iter().for_each(|name| {
        run.env_remove(name);
    });
    run.envs(set.iter().copied());
    let done = output(&mut run);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
    (text(&done.stdout), report)
}

/// Returns true under the mode in which a request has an effect; otherwise skips visibly.
fn is_madvise() -> bool {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    let is_madvise = mode.is_ok_and(|mode| mode.contains("[madvise]"));
    if !is_madvise {
        skip(
            "thp-madvise",
            "the system-wide mode of huge pages is not `madvise`",
        );
    }
    is_madvise
}

fn variables(environment: &str) -> BTreeSet<String> {
    environment.lines().map(str::to_owned).collect()
}

#[test]
fn the_command_gets_one_variable_and_only_on_request() {
    if !is_madvise() {
        return;
    }
    let (plain, report) = run(&[], &[], &["env"]);
    assert!(report["allocator"].is_null());
    let (asked, report) = run(&["--allocator", "ask"], &[], &["env"]);
    let (plain, asked) = (variables(&plain), variables(&asked));
    let added: Vec<_> = asked.difference(&plain).collect();
    assert_eq!(added, ["GLIBC_TUNABLES=glibc.malloc.hugetlb=1"]);
    assert!(plain.is_subset(&asked));
    assert_eq!(report["allocator"]["asked"]["variable"], "GLIBC_TUNABLES");
    assert_eq!(report["allocator"]["asked"]["allocator"]["name"], "glibc");
}

#[test]
fn what_the_user_has_set_stays() {
    if !is_madvise() {
        return;
    }
    let set = [("GLIBC_TUNABLES", "glibc.malloc.arena_max=2")];
    let (environment, report) = run(&["--allocator", "ask"], &set, &["env"]);
    assert!(variables(&environment).contains("GLIBC_TUNABLES=glibc.malloc.arena_max=2"));
    assert!(report["allocator"]["asked"].is_null());
    assert!(report["allocator"]["not_asked_because"].is_string());
}

/// Neither can take a request: one has no loader, the other has more rights than its caller.
#[test]
fn static_and_privileged_programs_keep_their_environment() {
    let folder = folder();
    let privileged = folder.path().join("env");
    superhue_testing::copy_program(Path::new("/usr/bin/env"), &privileged);
    fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
    let privileged = [privileged.to_str().unwrap()];
    let busybox = static_busybox().map(|busybox| vec![busybox, "env"]);
    for command in busybox.iter().map(Vec::as_slice).chain([&privileged[..]]) {
        let (environment, report) = run(&["--allocator", "ask"], &[], command);
        assert!(!environment.contains("GLIBC_TUNABLES"), "{command:?}");
        assert!(report["allocator"]["asked"].is_null(), "{command:?}");
    }
}

/// The heap of a program that asks comes in huge pages: a five-hundredth of the page faults, were it not for the rest of the program.
#[test]
fn a_heap_that_asks_takes_few_page_faults() {
    let Some(python) = python().filter(|_| is_madvise()) else {
        return;
    };
    let faults = |allocator: &str| {
        let options = ["--pages", "kernel", "--allocator", allocator];
        let (_, report) = run(&options, &[], &[python, "-c", HEAP]);
        report["cpu"]["minor_faults"].as_u64().unwrap()
    };
    let (plain, asked) = (faults("leave"), faults("ask"));
    assert!(plain > 30_000, "{plain}");
    assert!(asked < plain / 2, "{asked} of {plain}");
}

#[test]
fn under_never_nothing_is_asked() {
    let (environment, report) = run(&["--pages", "never", "--allocator", "ask"], &[], &["env"]);
    assert!(!environment.contains("GLIBC_TUNABLES"));
    assert!(report["allocator"]["not_asked_because"].is_string());
}
