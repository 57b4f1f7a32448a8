//! The daemon's metrics as served to Prometheus, and to hostile clients.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use superhue_daemon::metrics::FAMILIES;

use crate::support::daemon::{Machine, OFF, Slice};
use crate::support::{self, ChildGuard, FILLING, TEST_TIMEOUT, text, until};

const GET: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n";

/// A port that was free a moment ago.
fn free() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

fn settings(address: impl std::fmt::Display, rules: &str) -> String {
    format!("[daemon]\nmetrics = \"{address}\"\n\n{rules}")
}

/// A daemon that serves at a port of its own.
fn serving(rules: &str) -> (Machine, ChildGuard, SocketAddr) {
    loop {
        let port = free();
        let machine = Machine::new(&settings(port, rules));
        let daemon = machine.start();
        if machine.is_up()["metrics"]["error"].is_null() {
            return (machine, daemon, port);
        }
    }
}

fn connect(port: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&port, TEST_TIMEOUT).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream
}

fn whole(mut stream: impl Read) -> String {
    let mut told = Vec::new();
    let _ = stream.read_to_end(&mut told);
    String::from_utf8(told).unwrap()
}

/// Returns the answer to a request.
fn ask(port: SocketAddr, request: &[u8]) -> String {
    let mut stream = connect(port);
    stream.write_all(request).unwrap();
    whole(stream)
}

fn scrape(port: SocketAddr) -> String {
    let told = ask(port, GET);
    assert!(told.starts_with("HTTP/1.1 200 OK\r\n"), "{told}");
    told.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Values by series.
fn series(page: &str) -> BTreeMap<&str, f64> {
    let lines = page.lines().filter(|line| !line.starts_with('#'));
    let mut all = BTreeMap::new();
    for line in lines {
        let (name, value) = line.rsplit_once(' ').unwrap();
        let before = all.insert(name, value.parse().unwrap());
        assert_eq!(before, None, "{name} is told twice");
    }
    all
}

/// Returns the value of a series, once `what` holds for it.
fn value(port: SocketAddr, name: &str, what: impl Fn(f64) -> bool) -> f64 {
    until(name, || {
        thread::sleep(Duration::from_millis(50));
        let page = scrape(port);
        series(&page).get(name).copied().filter(|&it| what(it))
    })
}

/// A process with memory that can be collapsed.
fn server(mebibytes: u32) -> Command {
    let script = format!(
        "{FILLING}\nimport time\nmemory = fill({mebibytes})\nwhile True: time.sleep(0.2); assert whole(memory)"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &script]);
    command
}

#[test]
fn every_metric_is_served_and_documented() {
    let (machine, _daemon, port) = serving(OFF);
    let page = scrape(port);
    // Both show the same moment if they come within a second of each other.
    until("ctl prints what is served", || {
        let printed = text(&machine.ctl(&["metrics"]).stdout);
        (printed == scrape(port)).then_some(())
    });
    let openmetrics = text(&machine.ctl(&["metrics", "--openmetrics"]).stdout);
    assert!(openmetrics.ends_with("# EOF\n"), "{openmetrics}");
    assert!(openmetrics.contains("# UNIT superhue_cpu_seconds seconds\n"));
    let json = machine.json("metrics").unwrap();
    assert!(json["text"].as_str().unwrap().contains("superhue_rules 1"));

    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/metrics.md");
    let guide = fs::read_to_string(guide).unwrap();
    let rows: Vec<&str> = guide
        .lines()
        .filter(|line| line.starts_with("| `superhue_"))
        .collect();
    let mut told = Vec::new();
    let mut help = None;
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let family = FAMILIES.iter().find(|family| family.name() == name);
            let family = family.unwrap_or_else(|| panic!("{name} is served and unknown"));
            let labels: Vec<String> = family.labels.iter().map(|it| format!("`{it}`")).collect();
            let (named, help) = help.unwrap();
            assert_eq!(named, name);
            told.push(format!(
                "| `{name}` | {kind} | {} | {help} |",
                labels.join(", ")
            ));
        }
    }
    assert_eq!(told.len(), FAMILIES.len());
    assert!(
        rows == told,
        "docs/guide/metrics.md has to have this table:\n{}\n",
        told.join("\n")
    );
}

#[test]
fn a_squatted_port_and_a_new_address_do_not_end_the_daemon() {
    let squatter = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = squatter.local_addr().unwrap();
    let machine = Machine::new(&settings(taken, OFF));
    let _daemon = machine.start();
    let status = machine.status(|status| status["metrics"]["error"].is_string());
    let error = status["metrics"]["error"].as_str().unwrap();
    assert!(error.contains("another program listens there"), "{error}");
    assert!(machine.log().contains("cannot be served"));
    assert!(text(&machine.ctl(&["status"]).stdout).contains("tried again"));
    // The path of the socket is a user's file.
    let path = machine.at("run/metrics.sock");
    fs::write(&path, "precious").unwrap();
    machine.write("superhue.toml", &settings(path.display(), OFF));
    let told = machine.ctl(&["reload"]);
    assert!(told.status.success(), "the rules are taken all the same");
    assert!(text(&told.stdout).contains("is no socket: remove it"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
    // The daemon takes the path within a while, without a reload.
    machine.status(|status| status["metrics"]["error"].is_null());
    assert!(over(&path).contains("superhue_rules 1\n"));
    // An address that others can reach needs a second setting; the old address is still served.
    machine.write("superhue.toml", &settings("0.0.0.0:9119", OFF));
    let refused = machine.ctl(&["reload"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("superhue.toml:2:11: `0.0.0.0:9119` can be reached"));
    until("the refusal is counted", || {
        let page = over(&path);
        (series(&page)["superhue_config_last_reload_successful"] == 0.0
            && series(&page)["superhue_config_reloads_total{result=\"refused\"}"] == 1.0)
            .then_some(())
    });
    machine.write("superhue.toml", OFF);
    assert!(machine.ctl(&["reload"]).status.success());
    assert!(!path.exists(), "served nowhere any more");
}

fn over(path: &Path) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(GET).unwrap();
    whole(stream).split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[test]
fn who_is_silent_slow_or_too_loud_holds_nobody_up() {
    let (machine, daemon, port) = serving(OFF);
    let silent: Vec<TcpStream> = (0..1000).map(|_| connect(port)).collect();
    assert!(scrape(port).contains("superhue_rules 1\n"));
    machine.is_up();
    let begun = Instant::now();
    let mut slow = connect(port);
    for byte in &GET[..20] {
        slow.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(1));
    }
    let flood = thread::spawn(move || {
        let mut stream = connect(port);
        let mut sent = stream.write(b"GET /metrics HTTP/1.1\r\nA: ").unwrap();
        while sent < 10_000_000 {
            match stream.write(&[b'x'; 65_536]) {
                Ok(more) => sent += more,
                Err(_) => break,
            }
        }
    });
    let knocking = thread::spawn(move || {
        for _ in 0..2000 {
            drop(TcpStream::connect_timeout(&port, TEST_TIMEOUT));
        }
    });
    assert!(scrape(port).contains("superhue_rules 1\n"));
    assert!(machine.ctl(&["status"]).status.success());
    // A client has ten seconds, which may expire on a very busy machine.
    let _ = slow.write_all(&GET[20..]);
    let told = whole(slow);
    let took = begun.elapsed();
    assert!(
        told.contains("superhue_rules 1\n") || took >= Duration::from_secs(10),
        "{told} after {took:?}"
    );
    flood.join().unwrap();
    knocking.join().unwrap();
    for (request, status) in [
        (&b"HEAD /metrics HTTP/1.1\r\n\r\n"[..], "200"),
        (
            b"POST /metrics HTTP/1.1\r\nContent-Length: 1\r\n\r\nx",
            "405",
        ),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", "404"),
        (b"GET /metrics HTTP/9.9\r\n\r\n", "400"),
        (b"\0\0\0\0\r\n\r\n", "400"),
        (&[GET, GET, GET].concat(), "200"),
    ] {
        let told = ask(port, request);
        assert!(told.starts_with(&format!("HTTP/1.1 {status} ")), "{told}");
        assert_eq!(told.matches("HTTP/1.1").count(), 1, "{told}");
    }
    drop(silent);
    let descriptors = format!("/proc/{}/fd", daemon.pid());
    until("all are let go", || {
        let open = fs::read_dir(&descriptors).unwrap().count();
        (open < 30).then_some(())
    });
}

#[test]
fn ten_thousand_rules_are_told_in_bounded_space() {
    let rule = |n: usize| format!("[[rule]]\nname = \"r{n}\"\nuser = \"{n}\"\npages = \"off\"\n");
    // A rule has the name under which all others are summed up.
    let rules: String = (1..9999).map(rule).collect();
    let rules = format!("{}{rules}", OFF.replace("all", "other"));
    let machine = Machine::new(&format!("[daemon]\nmetrics-services = 3\n{rules}"));
    let _daemon = machine.start();
    machine.is_up();
    let page = until("the rule has processes", || {
        let page = text(&machine.ctl(&["metrics"]).stdout);
        page.contains("superhue_rule_processes{rule=\"other\"} ")
            .then_some(page)
    });
    assert_eq!(series(&page)["superhue_rules"], 9999.0);
    assert!(page.len() < 100_000, "{}", page.len());
}

#[test]
fn names_of_services_are_told_as_they_are() {
    let Some(slice) = Slice::new("names") else {
        return;
    };
    let rules = format!(
        "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/**\"\npages = \"kernel\"\n",
        slice.name()
    );
    let (_machine, _daemon, port) = serving(&rules);
    let mut running = Vec::new();
    for name in [
        &b"quote\"d"[..],
        b"back\\slash\\n",
        b"broken\xff\xfe",
        b"{le=\"1\"} 7 # EOF",
        "größe".as_bytes(),
    ] {
        let name = OsStr::from_bytes(name);
        let folder = slice.0.join(name);
        fs::create_dir(&folder).unwrap();
        let server = ChildGuard::start(server(4).stdin(std::process::Stdio::null()));
        let moved = fs::write(folder.join("cgroup.procs"), server.pid().to_string());
        moved.unwrap();
        running.push(server);
    }
    for service in [
        "quote\\\"d",
        "back\\\\slash\\\\n",
        "{le=\\\"1\\\"} 7 # EOF",
        "größe",
        // Two bytes that are no text have a character each, which is escaped.
        "broken\\\\u{10ffff}\\\\u{10fffe}",
    ] {
        let path = format!("/{}/{service}", slice.name());
        let name = format!("superhue_service_processes{{rule=\"mine\",service=\"{path}\"}}");
        value(port, &name, |count| count == 1.0);
    }
    drop(running);
    for entry in fs::read_dir(&slice.0).unwrap().flatten() {
        if entry.path().is_dir() {
            until("the cgroup is empty", || fs::remove_dir(entry.path()).ok());
        }
    }
}

#[test]
fn counters_go_on_over_reloads_and_restarts_of_services() {
    let Some(slice) = Slice::new("counters") else {
        return;
    };
    if !support::collapse_works() {
        return;
    }
    let rules = |pages: &str| {
        format!(
            "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/a*.service\"\npages = \"{pages}\"\nbudget = \"90%\"\n",
            slice.name()
        )
    };
    let (machine, mut daemon, port) = serving(&rules("resident"));
    let of_service =
        "superhue_service_collapses_total{rule=\"mine\",service=\"a.service\"}".to_owned();
    let of_rule = "superhue_rule_collapses_total{rule=\"mine\"}";
    let mut service = slice.service("a.service", &mut server(32));
    let first = value(port, &of_service, |done| done >= 8.0);
    assert!(value(port, of_rule, |_| true) >= first);
    let seconds = "superhue_rule_collapse_duration_seconds_count{rule=\"mine\"}";
    assert!(value(port, seconds, |_| true) >= first);
    service.signal(Signal::KILL);
    service.wait();
    slice.end("a.service");
    let mut service = slice.service("a.service", &mut server(32));
    let second = value(port, &of_service, |done| done >= first + 8.0);
    // Another policy starts another watch, which counts from 0.
    machine.write("superhue.toml", &settings(port, &rules("always")));
    assert!(machine.ctl(&["reload"]).status.success());
    for name in [&of_service, of_rule] {
        assert!(value(port, name, |_| true) >= second, "{name}");
    }
    service.signal(Signal::KILL);
    service.wait();
    slice.end("a.service");
    let _service = slice.service("a.service", &mut server(32));
    value(port, &of_service, |done| done > second);
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success());
}
