//! Superhue never pushes a control group to its limit.

use std::fs;
use std::process::Command;
use std::thread;

use serde_json::Value;

use crate::support::group::Group;
use crate::support::{
    User, collapse_works, folder, is_root, output, python, run_reported, skip, text,
};

/// Enters the group given first. Fills 48 MiB, and 8 pages in each of 1024 regions: huge pages for all would take 2 GiB. A part
/// follows a second later. Then it stands still while it is watched: for the given seconds, and with `huge` until some of it is
/// huge, at most half a minute more.
const PROGRAM: &str = r"
import mmap, os, sys, time
open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid()))
HUGE = 2 << 20
def fresh(regions):
    return mmap.mmap(-1, (regions + 1) * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
full, sparse = fresh(23), fresh(1024)
pages = [(full, at) for at in range(0, len(full), 4096)]
pages += [(sparse, region + page) for region in range(0, len(sparse), HUGE) for page in range(0, 32768, 4096)]
def fill(some):
    for memory, at in some: memory[at:at + 8] = (at + 1).to_bytes(8, 'little')
fill(pages[:-1000])
time.sleep(1.5)
fill(pages[-1000:])
time.sleep(float(sys.argv[2]))
def huge():
    lines = [line.split() for line in open('/proc/self/smaps_rollup') if line.startswith('AnonHugePages:')]
    return int(lines[0][1])
until = time.monotonic() + 30
while 'huge' in sys.argv and not huge() and time.monotonic() < until: time.sleep(0.1)
assert all(memory[at:at + 8] == (at + 1).to_bytes(8, 'little') for memory, at in pages)
print('whole')
";

#[test]
fn a_program_that_just_fits_its_group_is_not_pushed_to_the_limit() {
    if !is_root() {
        skip("root", "control groups are made by root");
        return;
    }
    let Some(python) = python() else { return };
    let plainly = |group: &Group| {
        let folder = group.folder.to_str().unwrap();
        let mut command = Command::new(python);
        let done = output(command.args(["-c", PROGRAM, folder, "0"]));
        assert_eq!(text(&done.stdout), "whole\n", "{}", text(&done.stderr));
    };
    let Some(group) = Group::new("measured") else {
        return;
    };
    plainly(&group);
    let Some(needed) = group.peak() else {
        skip("cgroup-peak", "the kernel does not tell what a group used");
        return;
    };
    let limit = needed + needed / 10;
    // In parallel, as they mostly wait.
    thread::scope(|scope| {
        // A group that grows is checked again after 1, 2 and 4 s. If the first look finds it filling and the third sees
        // the later part, the fourth, after 7 s, finds it calm.
        for (pages, still) in [("never", "4"), ("always", "9"), ("resident", "9")] {
            scope.spawn(move || just_fits(python, limit, pages, still));
        }
    });
}

/// Runs [`PROGRAM`] with `pages` in a group of its own that may use `limit` bytes; it stands still for `still` seconds.
fn just_fits(python: &str, limit: u64, pages: &str, still: &str) {
    let group = Group::new(pages).unwrap();
    group.set_limit(limit);
    let folder = folder();
    let report = folder.path().join("report.json");
    // Leaves the control group as the only bound.
    let unbounded = ["--budget", "100%", "--"];
    let mut run = run_reported(User::Same, pages, &report, &unbounded);
    run.args([python, "-c", PROGRAM])
        .arg(&group.folder)
        .arg(still);
    if pages != "never" {
        run.arg("huge");
    }
    let done = output(&mut run);
    assert!(done.status.success(), "{pages}: {}", text(&done.stderr));
    assert_eq!(text(&done.stdout), "whole\n", "{pages}");
    let events = group.events();
    assert!(!events.is_empty());
    println!("{pages}: {events:?}, {:?} of {limit}", group.peak());
    assert!(
        events.iter().all(|(_, count)| *count == 0),
        "{pages}: {events:?}"
    );
    let report: Value = serde_json::from_slice(&fs::read(report).unwrap()).unwrap();
    let collapses = &report["collapses"];
    println!("{pages}: {collapses}");
    if pages == "never" || report["mechanism"]["collapses"] != true {
        return;
    }
    if pages == "always" {
        let reasons = collapses["skipped"].to_string();
        assert!(
            reasons.contains("its control group has no room"),
            "{collapses}"
        );
    }
    // With more CPUs the kernel's batches alone exceed the remaining memory.
    if thread::available_parallelism().unwrap().get() <= 16 {
        assert!(collapses["done"].as_u64() > Some(0), "{collapses}");
    }
}

/// Fills 32 MiB in one go, and stands still until some of it is huge, at most half a minute.
const FILLED: &str = r"
import mmap, time
memory = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(memory), 4096): memory[at] = 1
def huge():
    lines = [line.split() for line in open('/proc/self/smaps_rollup') if line.startswith('AnonHugePages:')]
    return int(lines[0][1])
until = time.monotonic() + 30
while not huge() and time.monotonic() < until: time.sleep(0.05)
";

/// The default bound on stalls does not apply to a program that has just been started; one that a user gives does.
#[test]
fn a_chosen_bound_on_stalls_has_no_exemption() {
    let Some(python) = python() else { return };
    if !collapse_works() {
        return;
    }
    let folder = folder();
    let stall = |more: &[&str]| {
        let path = folder.path().join("report.json");
        let mut run = run_reported(User::Same, "resident", &path, more);
        let done = output(run.args([python, "-c", FILLED]));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let report: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        assert!(report["collapses"]["done"].as_u64() > Some(0), "{report}");
        report["collapses"]["stall"].clone()
    };
    let usual = stall(&["--"]);
    assert_eq!(usual["max_seconds"], 0.01, "{usual}");
    assert_eq!(usual["bounded_seconds"], 0.0, "{usual}");
    assert!(usual["unbounded_seconds"].as_f64() > Some(0.0), "{usual}");
    let chosen = stall(&["--max-stall", "10ms", "--"]);
    assert_eq!(chosen["max_seconds"], 0.01, "{chosen}");
    assert!(chosen["bounded_seconds"].as_f64() > Some(0.0), "{chosen}");
    assert_eq!(chosen["unbounded_seconds"], 0.0, "{chosen}");
    let none = stall(&["--max-stall", "0", "--"]);
    assert_eq!(none["max_seconds"], Value::Null, "{none}");
    assert_eq!(none["bounded_seconds"], 0.0, "{none}");
}
