//! The command as a user sees it: output lines, exit statuses, bounds.

use std::process::Command;

fn workload(line: &str) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_superhue-workload"));
    let output = command.args(line.split_whitespace()).output().unwrap();
    (
        output.status.code().unwrap(),
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

/// Runs a command that must succeed with exactly these lines, in this order. Returns their values.
fn lines(line: &str, names: &[&str]) -> Vec<f64> {
    let (status, stdout, stderr) = workload(line);
    assert_eq!(status, 0, "{line}: {stderr}");
    let pairs: Vec<_> = stdout.lines().map(|l| l.split_once(' ').unwrap()).collect();
    let found: Vec<_> = pairs.iter().map(|(name, _)| *name).collect();
    assert_eq!(found, names, "{line}");
    pairs.iter().map(|(_, n)| n.parse().unwrap()).collect()
}

const DENSE: [&str; 7] = [
    "fill_seconds",
    "coverage_at_95_seconds",
    "coverage",
    "throughput_mops",
    "latency_ns",
    "coverage_end",
    "rss_bytes",
];

#[test]
fn dense_measures() {
    for extra in ["", "--dependent", "--threads 2"] {
        let line = format!("dense --size 16M --settle 0s --seconds 0.1 {extra}");
        let values = lines(&line, &DENSE);
        assert!((0.0..=1.0).contains(&values[2]));
        assert!(values[3] > 0.0 && values[4] > 0.0);
        assert!(values[6] >= f64::from(16 << 20));
    }
}

#[test]
fn dense_leaves_collapsing_to_khugepaged() {
    if !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists() {
        return superhue_testing::skip("thp", "this kernel has no transparent huge pages");
    }
    // The fill must have made base pages even where the system's setting is `always`. khugepaged may have begun before
    // the look, but is not fast enough to be done with 32 regions.
    let line = "dense --size 64M --settle 0s --seconds 0 --khugepaged";
    let values = lines(line, &DENSE);
    assert!(values[1].is_nan(), "settled at once");
    assert!(values[2] < 0.95);
}

#[test]
fn sparse_uses_what_it_says() {
    let names = [
        "used_bytes",
        "fill_seconds",
        "throughput_mops",
        "latency_ns",
        "rss_bytes",
    ];
    let values = lines("sparse --size 64M --per-region 8K --seconds 0.1", &names);
    assert_eq!(values[0], f64::from(32 * 8192));
    assert!(values[4] >= values[0]);
}

#[test]
fn hold_grow_and_churn_end_by_themselves() {
    let names = ["touched_bytes", "fill_seconds", "rss_bytes"];
    let values = lines("hold --size 32M --resident 50% --seconds 0", &names);
    assert_eq!(values[0], f64::from(16 << 20));
    let values = lines("hold --size 4M --huge --seconds 0", &names);
    assert_eq!(values[0], f64::from(4 << 20));
    let names = ["steps", "step_fill_seconds", "coverage", "rss_bytes"];
    let values = lines("grow --step 1M --every 1ms --to 8M", &names);
    assert_eq!(values[0], 8.0);
    let names = ["rounds", "throughput_mib_per_second"];
    assert!(lines("churn --size 4M --seconds 0", &names)[0] >= 1.0);
}

#[test]
fn stalls_probes_while_memory_is_renewed() {
    let names = [
        "parts",
        "probes",
        "longest_ms",
        "largest_window_ms",
        "windows",
        "window_ms_p99",
        "window_ms_p999",
        "windows_over_10ms",
        "held_up_share",
    ];
    let run = |seconds: f64| {
        let line = format!("stalls --size 16M --part 4M --every 50ms --seconds {seconds}");
        lines(&line, &names)
    };
    // On a busy machine the probe may get no CPU for as long as a short run.
    let mut runs = [0.35, 3.0, 30.0].into_iter().map(run);
    let values = runs
        .find(|values| values[0] >= 1.0 && values[1] >= 1.0)
        .unwrap();
    assert!(values[2] <= values[3] + 1e-6);
    assert!(values[4] >= 1.0 && values[5] <= values[6]);
    assert!((0.0..=1.0).contains(&values[8]));
    let (status, _, stderr) = workload("stalls --size 4M --part 16M");
    assert_eq!(status, 1);
    assert!(stderr.contains("more than all"), "{stderr}");
}

#[test]
fn verify_and_tree_find_memory_intact() {
    let names = ["checked_bytes", "passes", "mismatches"];
    let values = lines("verify --size 8M --seconds 0 --threads 2", &names);
    assert!(values[0] >= f64::from(8 << 20));
    assert_eq!(values[2], 0.0);
    let names = ["processes", "failed"];
    let values = lines(
        "tree --children 3 --depth 2 --seconds 0.1 --size 1M",
        &names,
    );
    assert_eq!(values, [13.0, 0.0]);
}

/// The value of a number in a line of JSON.
fn field(line: &str, name: &str) -> f64 {
    let (_, rest) = line.split_once(&format!("\"{name}\":")).unwrap();
    let end = rest.find([',', '}']).unwrap();
    rest[..end].parse().unwrap()
}

#[test]
fn pattern_times_sets_of_sixteen_passes() {
    for (order, range) in [("sequential", 24), ("random", 24), ("skewed --scatter", 8)] {
        let line = format!("pattern --size 24M --passes 80 --order {order}");
        let (status, stdout, stderr) = workload(&line);
        assert_eq!(status, 0, "{stderr}");
        let lines: Vec<_> = stdout.lines().collect();
        let (summary, sets) = lines.split_last().unwrap();
        assert_eq!(sets.len(), 5, "80 passes");
        let mut before = 0.0;
        for (number, set) in (1..).zip(sets) {
            assert_eq!(field(set, "set"), f64::from(number));
            assert!(field(set, "gib_per_second") > 0.0);
            assert!(field(set, "at_seconds") > before);
            before = field(set, "at_seconds");
        }
        assert_eq!(field(summary, "passes"), 80.0);
        assert_eq!(field(summary, "range_bytes"), f64::from(range << 20));
        assert!(field(summary, "median_gib_per_second") > 0.0);
        assert!(field(summary, "median_rss_bytes") >= f64::from(range << 20));
    }
    let (_, stdout, _) = workload("pattern --size 2M --seconds 0");
    assert_eq!(stdout.lines().count(), 2, "the set under way is finished");
}

#[test]
fn moving_moves() {
    let line = "moving --size 8M --hot 2M --period 200ms --seconds 0.9 --lines 8";
    let (status, stdout, stderr) = workload(line);
    assert_eq!(status, 0, "{stderr}");
    let lines: Vec<_> = stdout.lines().collect();
    let (summary, slices) = lines.split_last().unwrap();
    assert!(slices.iter().all(|s| field(s, "gib_per_second") > 0.0));
    let windows: Vec<_> = slices.iter().map(|slice| field(slice, "window")).collect();
    assert!(windows.is_sorted());
    // Five windows, or fewer on a machine that stalls for a while.
    assert!((1.0..=5.0).contains(&field(summary, "windows")));
    // Four regions with a fifth of the pages missing, with or without huge pages.
    assert_eq!(field(summary, "kept_bytes"), f64::from(4 * 410 * 4096));
    let (median, peak) = ("median_rss_bytes", "peak_rss_bytes");
    assert!(field(summary, median) >= field(summary, "kept_bytes"));
    assert!(field(summary, peak) >= field(summary, median));
}

#[test]
fn paced_keeps_its_pace() {
    for (order, rate) in [("random", 1000.0), ("sweep", 1e6)] {
        let line = format!("paced --size 4M --order {order} --rate {rate} --seconds 0.5");
        let (status, stdout, stderr) = workload(&line);
        assert_eq!(status, 0, "{stderr}");
        let lines: Vec<_> = stdout.lines().collect();
        let (summary, slices) = lines.split_last().unwrap();
        assert!(!slices.is_empty());
        // The rate is never higher; it is lower if the machine is busy.
        for slice in slices {
            assert!(field(slice, "pages_per_second") <= rate, "{slice}");
        }
        assert_eq!(field(summary, "kept_bytes"), f64::from(2 * 410 * 4096));
        let round = 2.0 * 410.0 / rate;
        assert!((field(summary, "round_seconds") - round).abs() < 1e-9);
    }
    let (_, stdout, _) = workload("paced --size 4M --seconds 0");
    let (slice, summary) = stdout.split_once('\n').unwrap();
    assert!(field(slice, "pages_per_second") > 0.0);
    assert!(summary.contains(r#""round_seconds":null"#));
}

#[test]
fn waste_and_unhelped_measure() {
    let names = [
        "fill_seconds",
        "freed_bytes",
        "expected_bytes",
        "throughput_mops",
        "rss_bytes",
    ];
    let line = "waste --size 16M --hot 4M --free 0.25 --settle 10ms --seconds 0";
    let values = lines(line, &names);
    assert_eq!(values[1], f64::from(3 << 20));
    assert_eq!(values[2], f64::from(13 << 20));
    assert!(values[3] > 0.0);
    let names = ["throughput_mops", "rss_bytes"];
    let values = lines("unhelped --size 8M --seconds 0", &names);
    assert!(values[0] > 0.0 && values[1] >= f64::from(8 << 20));
}

#[test]
fn garbage_is_a_usage_error() {
    for line in [
        "",
        "unknown",
        "dense --size",
        "dense --size garbage",
        "dense --size -1",
        "dense --size 99999999999999999999G",
        "dense --seconds -1",
        "dense --seconds 1e9",
        "dense --settle 3",
        "dense --threads 0",
        "sparse --per-region 3M",
        "hold --resident half",
        "grow --step 4K --to 1T --every 1s",
        "verify --threads 257",
        "tree --children 1000 --depth 9",
        "pattern --order backwards",
        "pattern --passes 15",
        "pattern --passes 16 --seconds 1",
        "pattern --lines 0",
        "pattern --lines 65",
        "pattern --skew-fill 513",
        "moving --size 2M --hot 4M",
        "moving --period 10ms",
        "waste --size 2M --hot 4M",
        "moving --free 1.5",
        "paced --rate 0",
        "paced --order backwards",
        "waste --free 2",
        "unhelped --size 1",
        "load",
        "load mysql --port 1 --requests 1",
        "load redis --port 1",
        "load redis --port 0 --requests 1",
        "load redis --port 70000 --requests 1",
        "load redis --port 1 --requests 1 --seconds 1",
        "load redis --port 1 --requests 1 --host 192.0.2.1",
        "load redis --port 1 --requests 1 --read-ratio 2",
        "load redis --port 1 --requests 1 --connections 0",
        "load redis --port 1 --requests 1 --pid 0",
        "load redis --port 1 --requests 1 --pid 1 -- true",
        "load redis --port 1 --requests 1 --warmup 1",
        "load redis --port 1 --requests 1 --pipeline 100 --value-size 100K",
    ] {
        let (status, stdout, stderr) = workload(line);
        assert_eq!(status, 2, "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
        assert!(!stderr.is_empty(), "{line}");
    }
}

#[test]
fn failure_is_not_a_usage_error() {
    for (line, says) in [
        ("hold --size 16T", "lower the size"),
        (
            "load redis --port 1 --requests 1 -- /nonexistent/server",
            "cannot start",
        ),
        ("load redis --port 1 --requests 1 -- false", "ended at once"),
    ] {
        let (status, stdout, stderr) = workload(line);
        assert_eq!(status, 1, "{line}: {stderr}");
        assert_eq!(stdout, "", "{line}");
        assert!(stderr.contains(says), "{line}: {stderr}");
    }
}
