//! `superhue advise`: its advice on programs whose memory and accesses are known. It leaves the programs as they are.
//!
//! The size of a gain decides no test: it is a timing. The tests check that a gain is reported, and for which processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use superhue_testing::shared;

use crate::support::{
    ChildGuard, User, collapse_works, folder, is_root, output, python, skip, superhue, text,
};

const MIB: u64 = 1 << 20;

/// Memory in base pages; part of it is touched all the time, in an order that misses the TLB.
const BUSY: &str = r"
import ctypes, mmap, os, signal, sys
signal.alarm(300)
libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)
size = int(sys.argv[1]) << 20
m = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, size, 4096): m[at] = at // 4096 % 251
libc.prctl(41, 0, 0, 0, 0)
print('ready', flush=True)
if sys.argv[2] == 'sleep': sys.stdin.read()
at = 0
while True:
    at = (at + 4096 * 7919) % size
    assert m[at] == at // 4096 % 251
";

fn target(mib: u64, how: &str) -> Option<ChildGuard> {
    let mut command = Command::new(python()?);
    command
        .args(["-c", BUSY, &mib.to_string(), how])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut running = ChildGuard::start(&mut command);
    let mut line = String::new();
    BufReader::new(running.0.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert_eq!(line, "ready\n");
    Some(running)
}

fn advice(user: User, arguments: &[&str]) -> Value {
    let mut all = vec!["advise", "--json"];
    all.extend(arguments);
    let told = output(&mut superhue(user, &all));
    assert!(
        told.status.success(),
        "{arguments:?}: {}",
        text(&told.stderr)
    );
    let document: Value = serde_json::from_slice(&told.stdout).unwrap();
    let schema =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas/advise.schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let complaints: Vec<String> = validator
        .iter_errors(&document)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
    document
}

/// Returns the huge bytes of a process, as the kernel reports them.
fn huge(pid: u32) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = rollup
        .lines()
        .find(|line| line.starts_with("AnonHugePages:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn the_gain_of_an_idle_process_is_not_known() {
    let _shared = shared();
    let Some(target) = target(32, "sleep") else {
        return;
    };
    let begun = Instant::now();
    let told = advice(User::Same, &["--for", "2s", &target.pid().to_string()]);
    // Less than half a second is too little for a watch.
    assert!(begun.elapsed() >= Duration::from_millis(1500));
    let process = &told["processes"][0];
    assert_eq!(
        (&process["verdict"], &process["no_gain"]),
        (&"unknown".into(), &Value::Null)
    );
    let because = process["because"].as_str().unwrap();
    assert!(because.contains("under load"), "{because}");
    assert_eq!(process["state"], "idle", "{process:#}");
    assert!(process["estimate"].is_null() && process["try"].as_array().unwrap().is_empty());
    let possible = process["possible_bytes"].as_u64().unwrap();
    assert!((28 * MIB..40 * MIB).contains(&possible), "{possible}");
}

#[test]
fn who_touches_its_memory_is_watched_and_left_as_it_is() {
    let _shared = shared();
    let Some(mut target) = target(64, "busy") else {
        return;
    };
    let pid = target.pid();
    let before = huge(pid);
    // The number of looks in that time depends on the machine.
    let mut told = Value::Null;
    for time in ["2s", "8s", "30s"] {
        let arguments = ["--for", time, "--footprint", "64M", &pid.to_string()];
        told = advice(User::Same, &arguments);
        let windows = told["processes"][0]["watched"]["windows"].as_u64();
        if windows >= Some(10) || !told["machine"]["tracker_unknown_because"].is_null() {
            break;
        }
    }
    let (machine, process) = (&told["machine"], &told["processes"][0]);
    if process["watched"].is_null() {
        let why = [
            &machine["tracker_unknown_because"],
            &process["unknown_because"],
        ];
        assert!(why.iter().any(|why| why.is_string()), "{process:#}");
        assert_eq!(process["verdict"], "unknown");
        skip("tracking", &format!("{why:?}"));
        return;
    }
    let pages = process["watched"]["pages"].as_u64().unwrap();
    assert!((60 * 256..80 * 256).contains(&pages), "{process:#}");
    assert!(
        process["watched"]["windows"].as_u64().unwrap() >= 10,
        "{process:#}"
    );
    // All of its memory is touched within a second or so, and none twice: it is not hot.
    let touched = process["hot_100ms_bytes"].as_u64().unwrap();
    assert!(touched > 4 * MIB, "{process:#}");
    // An estimate needs a processor that reports its TLBs, and memory to measure a miss with.
    let lacking = [
        &machine["tlb_unknown_because"],
        &machine["walks_unknown_because"],
    ];
    if let Some(why) = lacking.iter().find_map(|why| why.as_str()) {
        assert!(process["estimate"].is_null(), "{process:#}");
        assert_eq!(process["verdict"], "unknown");
        let said = process["unknown_because"].as_str().unwrap();
        assert!(said.contains(why), "{said}: {why}");
    } else {
        let gain = &process["estimate"]["gain"];
        let bound = |name| gain[name].as_f64().unwrap();
        let [low, likely, high] = ["low", "likely", "high"].map(bound);
        assert!(
            0.0 <= low && low <= likely && likely <= high && high <= 0.9,
            "{gain}"
        );
    }
    assert_eq!(huge(pid), before, "advice made or split huge pages");
    // A failed assertion of its own would have ended it.
    assert!(target.0.try_wait().unwrap().is_none());
}

#[test]
fn huge_pages_are_told_and_stay_whole() {
    let _shared = shared();
    if !collapse_works() {
        return;
    }
    let Some(target) = target(64, "busy") else {
        return;
    };
    let pid = target.pid().to_string();
    let attach = [
        "attach",
        "--pages",
        "always",
        "--max-stall",
        "0",
        "--for",
        "2s",
        &pid,
    ];
    let attached = output(&mut superhue(User::Same, &attach));
    let before = huge(target.pid());
    if !attached.status.success() || before < 50 << 10 {
        skip("collapse", &text(&attached.stderr));
        return;
    }
    let told = advice(User::Same, &["--for", "1s", &pid]);
    let process = &told["processes"][0];
    assert!(
        process["huge_bytes"].as_u64().unwrap() >= 50 * MIB,
        "{process:#}"
    );
    assert_eq!(
        (&process["verdict"], &process["no_gain"]),
        (&"no-gain".into(), &"huge".into()),
        "{process:#}"
    );
    assert_eq!(huge(target.pid()), before);
}

#[test]
fn an_ordinary_user_hears_what_can_be_said() {
    let _shared = shared();
    if !is_root() {
        skip("root", "who is root is told apart from who is not");
        return;
    }
    let Some(target) = target(16, "busy") else {
        return;
    };
    let pid = target.pid().to_string();
    let mut command = superhue(User::Ordinary, &["advise", "--json", "--for", "500ms"]);
    let told = output(&mut command);
    assert!(told.status.success(), "{}", text(&told.stderr));
    let told = advice(User::Ordinary, &["--for", "500ms", &pid]);
    let process = &told["processes"][0];
    assert!(
        process["estimate"].is_null() && process["rss_bytes"].is_u64(),
        "{process:#}"
    );
    assert_eq!(process["verdict"], "unknown");
    assert!(process["unknown_because"].is_string(), "{process:#}");
}

#[test]
fn all_processes_are_told_within_the_time() {
    let _shared = shared();
    let Some(target) = target(32, "busy") else {
        return;
    };
    let pids = |told: &Value| -> Vec<u64> {
        let processes = told["processes"].as_array().unwrap().iter();
        processes
            .map(|process| process["pid"].as_u64().unwrap())
            .collect()
    };
    // A process that holds up the reader is left out, also one that merely waits for a CPU while it holds a lock.
    let mut told = Value::Null;
    for _ in 0..5 {
        told = advice(User::Same, &["--for", "1s", "--footprint", "64M"]);
        if pids(&told).contains(&target.pid().into()) {
            break;
        }
    }
    let pids = pids(&told);
    assert!(pids.contains(&target.pid().into()), "{pids:?}");
    let processes = told["processes"].as_array().unwrap();
    for process in processes {
        assert!(
            !process["because"].as_str().unwrap().is_empty(),
            "{process:#}"
        );
        // Every estimate is of a watched process; a watched process without an estimate has a reason.
        assert!(
            process["estimate"].is_null() || !process["watched"].is_null(),
            "{process:#}"
        );
        let is_without = process["estimate"].is_null() && !process["watched"].is_null();
        assert!(
            !is_without || process["unknown_because"].is_string(),
            "{process:#}"
        );
    }
    let people = output(&mut superhue(
        User::Same,
        &["advise", "--for", "500ms", &target.pid().to_string()],
    ));
    let people = text(&people.stdout);
    let is_reach_known = !told["machine"]["tlb_reach_base_bytes"].is_null();
    let said = if is_reach_known {
        ["The TLB reaches", "estimated share"]
    } else {
        ["GAIN is not known", "superhue trial"]
    };
    assert!(said.iter().all(|said| people.contains(said)), "{people}");
}

#[test]
fn who_is_not_there_is_an_error() {
    let _shared = shared();
    for (arguments, words) in [
        (["advise", "4194304"].as_slice(), "4194304"),
        (&["advise", "--unit", "no-such-unit"], "no-such-unit"),
        (&["advise", "--cgroup", "no/such/cgroup"], "no/such/cgroup"),
    ] {
        let told = output(&mut superhue(User::Same, arguments));
        let error = text(&told.stderr);
        assert!(
            matches!(told.status.code(), Some(1 | 3)),
            "{arguments:?}: {}: {error}",
            told.status
        );
        assert!(error.contains(words), "{error}");
    }
    for arguments in [
        ["advise", "0"].as_slice(),
        &["advise", "--for", "0s"],
        &["advise", "--footprint", "4k"],
        &["advise", "--tlb", "0,1536"],
        &["advise", "--tlb", "1536,64"],
        &["check", "--tlb", "guess"],
    ] {
        assert_eq!(
            output(&mut superhue(User::Same, arguments)).status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

#[test]
fn the_tlb_that_the_user_gives_is_the_one_that_counts() {
    let _shared = shared();
    let given = "48,1024:512";
    let own = std::process::id().to_string();
    for arguments in [
        ["check", "--json", "--tlb", given].as_slice(),
        &["advise", "--json", "--tlb", given, "--for", "100ms", &own],
    ] {
        let told = output(&mut superhue(User::Same, arguments));
        assert!(told.status.success(), "{}", text(&told.stderr));
        let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
        let tlb = told.get("tlb").unwrap_or(&told["machine"]["tlb"]);
        assert_eq!(tlb["source"], "given", "{tlb}");
        assert_eq!(tlb["base"], serde_json::json!({"first": 48, "last": 1024}));
        assert_eq!(tlb["huge"], serde_json::json!({"first": null, "last": 512}));
        if arguments[0] == "advise" {
            let machine = &told["machine"];
            assert_eq!(machine["tlb_reach_base_bytes"], 4 * MIB);
            assert_eq!(machine["tlb_reach_huge_bytes"], 1024 * MIB);
        }
    }
    let people = output(&mut superhue(User::Same, &["check", "--tlb", given]));
    let people = text(&people.stdout);
    assert!(
        people.contains("1024 entries reach 4.0 MiB (given by --tlb)"),
        "{people}"
    );
}

/// A measurement of this machine, whatever the processor reports: its outcome is no matter of this test, its place is.
#[test]
fn a_measured_tlb_is_kept_in_the_folder_of_caches() {
    let _shared = shared();
    let folder = folder();
    // Root keeps it in /var/cache, which is the machine's.
    let mut check = superhue(User::Ordinary, &["check", "--json", "--tlb", "measure"]);
    let told = output(check.env("XDG_CACHE_HOME", folder.path()));
    let told: Value = serde_json::from_str(&text(&told.stdout)).unwrap();
    let is_known = told["tlb"]["source"] == "measured";
    assert_eq!(
        is_known,
        told["tlb"]["unknown_because"].is_null(),
        "{told:#}"
    );
    assert_eq!(folder.path().join("superhue/tlb.json").exists(), is_known);
}
