//! The load generator against a server in this process, for both protocols.

mod fake;

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use clap::Parser;
use superhue_workloads::load::protocol::Protocol;
use superhue_workloads::{Report, load};

use fake::ServerFaults;

const BOTH: [Protocol; 2] = [Protocol::Memcached, Protocol::Redis];

#[derive(Parser)]
#[command(args_override_self = true)]
struct Cli {
    #[command(flatten)]
    options: load::LoadOptions,
}

/// Runs a load of 200 small items, populated, with `extra` options. Returns its report and result.
fn run(protocol: Protocol, port: u16, extra: &[&str]) -> (String, anyhow::Result<()>) {
    let name = match protocol {
        Protocol::Memcached => "memcached",
        Protocol::Redis => "redis",
    };
    let port = port.to_string();
    let fixed = [
        "load",
        name,
        "--port",
        &port,
        "--items",
        "200",
        "--value-size",
        "100",
    ];
    let options = Cli::parse_from(fixed.iter().chain(extra)).options;
    let mut text = Vec::new();
    let result = load::run(&options, &mut Report::new(&mut text));
    (String::from_utf8(text).unwrap(), result)
}

/// The number on the line `name`.
fn value(report: &str, name: &str) -> f64 {
    let line = report.lines().find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then_some(value)
    });
    line.unwrap_or_else(|| panic!("no {name} in {report}"))
        .parse()
        .unwrap()
}

#[test]
fn every_item_is_stored_and_every_request_answered() {
    for protocol in BOTH {
        let (address, counts) = fake::start(protocol, ServerFaults::default());
        let (report, result) = run(
            protocol,
            address.port(),
            &[
                "--requests",
                "1003",
                "--connections",
                "3",
                "--pipeline",
                "7",
            ],
        );
        result.unwrap();
        assert_eq!(counts.sets.load(Relaxed), 200);
        assert_eq!(counts.gets.load(Relaxed), 1003);
        assert_eq!(value(&report, "hits"), 1003.0);
        for zero in ["misses", "errors", "wrong"] {
            assert_eq!(value(&report, zero), 0.0, "{zero}");
        }
        assert!(value(&report, "populate_seconds") > 0.0);
        assert!(value(&report, "throughput_ops") > 0.0);
        let [p50, p99, p999] = ["p50_us", "p99_us", "p999_us"].map(|name| value(&report, name));
        assert!(0.0 < p50 && p50 <= p99 && p99 <= p999, "{report}");
    }
}

#[test]
fn replies_in_pieces_are_put_together() {
    for protocol in BOTH {
        for fragment in [1, 3, 50] {
            let manners = ServerFaults {
                fragment,
                ..ServerFaults::default()
            };
            let (address, _) = fake::start(protocol, manners);
            let (report, result) = run(protocol, address.port(), &["--requests", "100"]);
            result.unwrap();
            assert_eq!(value(&report, "hits"), 100.0);
        }
    }
}

#[test]
fn values_larger_than_the_first_buffer_arrive() {
    for protocol in BOTH {
        let (address, _) = fake::start(protocol, ServerFaults::default());
        let (report, result) = run(
            protocol,
            address.port(),
            &[
                "--requests",
                "9",
                "--items",
                "3",
                "--value-size",
                "300000",
                "--pipeline",
                "2",
            ],
        );
        result.unwrap();
        assert_eq!(value(&report, "hits"), 9.0);
    }
}

#[test]
fn misses_are_counted() {
    for protocol in BOTH {
        let manners = ServerFaults {
            forget_every: 2,
            ..ServerFaults::default()
        };
        let (address, _) = fake::start(protocol, manners);
        let (report, result) = run(
            protocol,
            address.port(),
            &["--requests", "500", "--theta", "0"],
        );
        result.unwrap();
        let (hits, misses) = (value(&report, "hits"), value(&report, "misses"));
        assert_eq!(hits + misses, 500.0);
        assert!(hits > 100.0 && misses > 100.0, "{report}");
        // The server has no items under the keys of another seed.
        let other = ["--requests", "10", "--no-populate", "--seed", "2"];
        let (report, result) = run(protocol, address.port(), &other);
        result.unwrap();
        assert_eq!(value(&report, "misses"), 10.0);
        assert!(!report.contains("populate_seconds"));
    }
}

#[test]
fn refusals_are_counted_and_fail_the_run() {
    // memcached refuses a whole line of ten, Redis one request.
    for (protocol, refused) in [(Protocol::Memcached, 10.0), (Protocol::Redis, 1.0)] {
        let manners = ServerFaults {
            error_every: 205,
            ..ServerFaults::default()
        };
        let (address, _) = fake::start(protocol, manners);
        // 200 requests populate; of the next ones, the fifth is refused.
        let extra = [
            "--requests",
            "100",
            "--connections",
            "1",
            "--pipeline",
            "10",
        ];
        let (report, result) = run(protocol, address.port(), &extra);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("the first: "), "{error}");
        assert_eq!(value(&report, "errors"), refused);
        assert_eq!(value(&report, "hits"), 100.0 - refused);
    }
}

#[test]
fn an_item_that_is_refused_ends_the_run() {
    for protocol in BOTH {
        let manners = ServerFaults {
            error_every: 150,
            ..ServerFaults::default()
        };
        let (address, _) = fake::start(protocol, manners);
        let (report, result) = run(protocol, address.port(), &["--requests", "100"]);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("refused an item: "), "{error}");
        assert_eq!(report, "");
    }
}

#[test]
fn wrong_values_are_counted_and_fail_the_run() {
    for protocol in BOTH {
        let manners = ServerFaults {
            corrupt_every: 10,
            ..ServerFaults::default()
        };
        let (address, _) = fake::start(protocol, manners);
        let (report, result) = run(protocol, address.port(), &["--requests", "100"]);
        assert!(result.unwrap_err().to_string().starts_with("10 values"));
        assert_eq!(value(&report, "wrong"), 10.0);
        assert_eq!(value(&report, "hits"), 90.0);
    }
}

#[test]
fn a_server_that_goes_away_or_babbles_is_named() {
    for protocol in BOTH {
        for (manners, says) in [
            (
                ServerFaults {
                    hang_up_after: 250,
                    ..ServerFaults::default()
                },
                ["closed the connection", "does not"],
            ),
            (
                ServerFaults {
                    babble: true,
                    ..ServerFaults::default()
                },
                ["does not speak", "does not speak"],
            ),
            (
                ServerFaults {
                    repeat: true,
                    ..ServerFaults::default()
                },
                // The message depends on whether both replies arrive together.
                ["more replies than", "values were not"],
            ),
        ] {
            let (address, _) = fake::start(protocol, manners);
            let (_, result) = run(protocol, address.port(), &["--requests", "5000"]);
            let error = format!("{:#}", result.unwrap_err());
            assert!(says.iter().any(|text| error.contains(text)), "{error}");
        }
    }
}

#[test]
fn writes_are_mixed_in_as_asked() {
    for protocol in BOTH {
        let (address, counts) = fake::start(protocol, ServerFaults::default());
        let (report, result) = run(
            protocol,
            address.port(),
            &["--requests", "2000", "--read-ratio", "0.75"],
        );
        result.unwrap();
        let gets = counts.gets.load(Relaxed);
        assert_eq!(counts.sets.load(Relaxed) - 200 + gets, 2000);
        assert!(gets.abs_diff(1500) < 100, "{gets} of 2000 read");
        assert_eq!(value(&report, "hits"), gets as f64);
    }
}

#[test]
fn a_load_may_be_bounded_by_time() {
    let (address, _) = fake::start(Protocol::Redis, ServerFaults::default());
    let start = std::time::Instant::now();
    let (report, result) = run(Protocol::Redis, address.port(), &["--seconds", "100ms"]);
    result.unwrap();
    assert!(value(&report, "hits") > 0.0);
    assert!(start.elapsed() >= Duration::from_millis(100));
}

#[test]
fn nobody_listening_is_said_plainly() {
    // A port that was free a moment ago.
    let port = {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.local_addr().unwrap().port()
    };
    let (_, result) = run(Protocol::Redis, port, &["--requests", "1"]);
    let error = format!("{:#}", result.unwrap_err());
    assert!(error.contains("is the server running?"), "{error}");
}

#[test]
fn a_server_that_runs_already_is_measured_by_its_number() {
    // The server runs in this process.
    let pid = std::process::id().to_string();
    let (address, counts) = fake::start(Protocol::Memcached, ServerFaults::default());
    let extra = [
        "--requests",
        "500",
        "--pid",
        &pid,
        "--warmup",
        "20ms",
        "--zipf",
        "0.5",
    ];
    let (report, result) = run(Protocol::Memcached, address.port(), &extra);
    result.unwrap();
    assert_eq!(value(&report, "hits"), 500.0, "of the measurement alone");
    assert!(counts.gets.load(Relaxed) > 500, "the warmup asks too");
    assert!(value(&report, "server_cpu_us") >= 0.0);
    assert!(value(&report, "server_rss_bytes") > 0.0);
    let (_, result) = run(
        Protocol::Memcached,
        address.port(),
        &["--requests", "1", "--pid", "4194304"],
    );
    assert!(result.unwrap_err().to_string().contains("/proc/4194304"));
}

#[test]
fn what_goes_wrong_in_the_warmup_counts() {
    let manners = ServerFaults {
        corrupt_every: 1,
        ..ServerFaults::default()
    };
    let (address, _) = fake::start(Protocol::Memcached, manners);
    let extra = ["--requests", "0", "--warmup", "20ms"];
    let (_, result) = run(Protocol::Memcached, address.port(), &extra);
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("not those of their key")
    );
}
