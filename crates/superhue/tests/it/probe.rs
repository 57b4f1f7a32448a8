//! The probes against the running kernel: as the user who runs the tests, and in environments that
//! take something away: another user, a user namespace, a seccomp filter, no `/proc` and `/sys`.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use superhue::probe::{self, Availability};
use superhue_procfs::Roots;
use superhue_testing::{NOBODY, is_root, skip};

use crate::support::{Report, program};

/// Reports every capability that is not fully available here as skipped; `SUPERHUE_REQUIRE`, with the keys
/// of capabilities that this machine is known to have, turns that into a failure.
#[test]
fn what_this_machine_should_do_it_does() {
    for capability in probe::all(&Roots::default()) {
        let found = &capability.found;
        assert!(!found.is_empty(), "{capability:#?}");
        if capability.availability == Availability::Yes {
            println!("{}: {found}", capability.id);
        } else {
            skip(capability.id, found);
        }
    }
}

/// Checks that verdicts agree with other sources that are reliable about the machine.
#[test]
fn verdicts_agree_with_what_else_is_known() {
    let availability = |id| probe::one(id, &Roots::default()).unwrap().availability;
    if !Path::new("/sys/kernel/mm/page_idle").exists() {
        assert_eq!(availability("page-idle"), Availability::No);
    }
    if !Path::new("/sys/kernel/mm/damon").exists() {
        assert_eq!(availability("damon"), Availability::No);
    }
    if !fs::read_to_string("/proc/self/mounts")
        .unwrap()
        .contains(" debugfs ")
    {
        let split = probe::one("split", &Roots::default()).unwrap();
        assert!(split.found.contains("by debugfs: not mounted"), "{split:?}");
    }
    if !Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        assert_eq!(availability("collapse"), Availability::No);
    }
    // A kernel without any hardware counter lists no CPU event source.
    let has_counters = fs::read_dir("/sys/bus/event_source/devices").is_ok_and(|sources| {
        sources
            .flatten()
            .any(|source| source.path().join("rdpmc").exists())
    });
    if !has_counters {
        assert_ne!(availability("pmu"), Availability::Yes);
    }
}

#[test]
fn one_is_the_same_as_in_all() {
    let all = probe::all(&Roots::default());
    assert!(probe::ids().eq(all.iter().map(|capability| capability.id)));
    for capability in all {
        let one = probe::one(capability.id, &Roots::default()).unwrap();
        // A result of timing may differ on a machine that is busy one moment and idle the next.
        if capability.id == "colors-measured" {
            assert_eq!(one.name, capability.name);
        } else {
            assert_eq!(one.availability, capability.availability, "{one:#?}");
        }
    }
}

#[test]
fn nothing_is_left_behind() {
    let report = Report::of(&mut Command::new(program())).unwrap();
    assert_eq!(
        report.held_before, report.held_after,
        "descriptors, mappings, threads, children"
    );
    assert!(
        report
            .held_before
            .as_array()
            .unwrap()
            .iter()
            .all(serde_json::Value::is_number)
    );
}

#[test]
fn nothing_global_changes() {
    let settings = || {
        [
            "/sys/kernel/mm/transparent_hugepage/enabled",
            "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages",
            "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds",
            "/proc/self/mounts",
        ]
        .map(|path| fs::read_to_string(path).ok())
    };
    let before = settings();
    let _ = probe::all(&Roots::default());
    assert_eq!(settings(), before);
}

#[test]
fn without_proc_and_sys_it_still_answers() {
    let nowhere = tempfile::tempdir().unwrap();
    let roots = Roots::under(nowhere.path());
    let availability = |id| probe::one(id, &roots).unwrap().availability;
    let all = probe::all_with(
        &roots,
        probe::ProbeOptions {
            may_touch_damon: true,
        },
    );
    assert_eq!(all.len(), probe::ids().count());
    // The effect cannot be seen: no claim either way.
    for id in [
        "collapse",
        "remote-collapse",
        "pagemap-scan",
        "pfn",
        "clear-refs",
        "thp-mode",
    ] {
        assert_eq!(availability(id), Availability::Unknown, "{id}");
    }
    assert_eq!(availability("caches"), Availability::Unknown);
    // This needs neither.
    assert_eq!(availability("page-size"), Availability::Yes);
    assert_eq!(
        availability("uffd-move"),
        probe::one("uffd-move", &Roots::default())
            .unwrap()
            .availability
    );
    assert!(
        fs::read_dir(nowhere.path()).unwrap().next().is_none(),
        "nothing was created"
    );
}

#[test]
fn an_ordinary_user_is_told_what_is_missing() {
    if !is_root() {
        return skip("unprivileged", "only root can become somebody else");
    }
    let report = match Report::of(Command::new(program()).uid(NOBODY).gid(NOBODY)) {
        Ok(report) => report,
        Err(reason) => {
            let reason = format!("{reason} (may others reach the target directory?)");
            return skip("unprivileged", &reason);
        }
    };
    assert_eq!(report.verdict("capabilities"), "no");
    report.assert_no("pfn", "hides", "CAP_SYS_ADMIN");
    report.assert_no("remote-collapse", "EPERM", "CAP_SYS_NICE");
    report.assert_no("bpf", "EPERM", "CAP_BPF + CAP_PERFMON");
    // Where root could make swap in memory, the remedy for another user names the capability.
    let swap = probe::one("swap-in-memory", &Roots::default()).unwrap();
    if swap.availability == Availability::Partial && swap.found.contains("can make") {
        report.assert_no("swap-in-memory", "not permitted", "CAP_SYS_ADMIN");
    }
    // Operations on own memory that work for root work without privileges.
    for id in [
        "collapse",
        "thp-mode",
        "thp-per-process",
        "uffd-move",
        "pagemap-scan",
    ] {
        let as_root = probe::one(id, &Roots::default()).unwrap().availability;
        let as_root = serde_json::to_value(as_root).unwrap();
        assert_eq!(
            report.verdict(id),
            as_root.as_str().unwrap(),
            "{id}: {}",
            report.found(id)
        );
    }
    assert_eq!(report.held_before, report.held_after);
}

#[test]
fn root_of_a_user_namespace_is_told_that_it_is_not_root() {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user"]).arg(program());
    let report = match Report::of(&mut command) {
        Ok(report) => report,
        Err(reason) => return skip("user-namespace", &reason),
    };
    assert!(
        report
            .found("capabilities")
            .contains("this user namespace only"),
        "{report:#?}"
    );
    report.assert_no("remote-collapse", "EPERM", "outside this user namespace");
    report.assert_no("bpf", "EPERM", "outside this user namespace");
    report.assert_no("pfn", "hides", "outside this user namespace");
}

#[test]
fn a_filter_that_kills_is_reported_and_not_run_into() {
    let report = match Report::of(Command::new(program()).args(["--forbid", "kill"])) {
        Ok(report) => report,
        Err(reason) => return skip("seccomp", &reason),
    };
    for id in ["bpf", "pmu", "remote-collapse", "uffd-move"] {
        report.assert_no(id, "kills the caller", "a seccomp profile that allows");
    }
    assert_eq!(report.held_before, report.held_after);
}

#[test]
fn a_filter_that_refuses_is_named_in_the_remedy() {
    let report = match Report::of(Command::new(program()).args(["--forbid", "eperm"])) {
        Ok(report) => report,
        Err(reason) => return skip("seccomp", &reason),
    };
    for id in ["bpf", "pmu", "remote-collapse", "uffd-move"] {
        report.assert_no(id, "EPERM", "a seccomp profile that allows");
    }
}

/// Needs no debugfs and, from inside, no capability.
#[test]
fn a_huge_page_is_split_by_advice() {
    let split = probe::one("split", &Roots::default()).unwrap();
    if probe::one("collapse", &Roots::default())
        .unwrap()
        .availability
        != Availability::Yes
    {
        return skip("collapse", "no huge page to split");
    }
    let inside = "from inside: split, bytes intact";
    assert!(split.found.contains(inside), "{}", split.found);
    if probe::one("remote-collapse", &Roots::default())
        .unwrap()
        .availability
        == Availability::Yes
    {
        assert_eq!(split.availability, Availability::Yes, "{}", split.found);
    }
    if !is_root() {
        return skip("unprivileged", "only root can become somebody else");
    }
    match Report::of(Command::new(program()).uid(NOBODY).gid(NOBODY)) {
        Ok(report) => {
            assert!(report.found("split").contains(inside));
            assert!(report.found("split").contains("from outside: EPERM"));
            assert_eq!(report.verdict("split"), "partial");
            assert!(report.remedy("split").contains("CAP_SYS_NICE"));
        }
        Err(reason) => skip("unprivileged", &reason),
    }
}

#[test]
fn a_huge_page_is_split_where_debugfs_is_mounted() {
    let mut command = Command::new("unshare");
    // A mount namespace of its own, which ends with the command.
    let script = "mount -t debugfs none /sys/kernel/debug && exec \"$0\"";
    command.args(["--mount", "sh", "-c", script]).arg(program());
    match Report::of(&mut command) {
        Ok(report) if report.found("split").ends_with("EPERM") => {
            skip("split-in-namespace", "the kernel is locked down");
        }
        Ok(report) => {
            let found = report.found("split");
            assert!(
                found.ends_with("by debugfs: split, bytes intact"),
                "{found}"
            );
        }
        Err(reason) => skip("split-in-namespace", &reason),
    }
}

#[test]
fn a_program_barred_from_huge_pages_is_told_so() {
    let report = match Report::of(Command::new(program()).arg("--barred")) {
        Ok(report) => report,
        Err(reason) => return skip("thp-per-process", &reason),
    };
    report.assert_no(
        "collapse",
        "PR_SET_THP_DISABLE",
        "parent without that setting",
    );
    report.assert_no(
        "thp-mode",
        "PR_SET_THP_DISABLE",
        "parent without that setting",
    );
    // The ban is on this process only.
    let elsewhere = probe::one("remote-collapse", &Roots::default())
        .unwrap()
        .availability;
    let elsewhere = serde_json::to_value(elsewhere).unwrap();
    assert_eq!(
        report.verdict("remote-collapse"),
        elsewhere.as_str().unwrap()
    );
}
