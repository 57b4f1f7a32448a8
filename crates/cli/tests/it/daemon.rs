//! `superhue daemon` and `superhue ctl` from an administrator's view.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use superhue_testing::shared;

use crate::support::daemon::{Machine, OFF, Slice, documented, rule};
use crate::support::{
    self, ChildGuard, FILLING, TEST_TIMEOUT, User, is_root, skip, superhue, text,
};

#[test]
fn a_wrong_configuration_is_told_by_line_and_column() {
    let machine = Machine::new("[[rule]]\nname = \"a\"\nany = true\nbudget = \"5 apples\"\n");
    machine.write("conf.d/b.toml", "[[rule]]\nnmae = \"b\"\n");
    let mut check = machine.command(&["daemon", "--check", "--config"]);
    let output = check.arg(machine.at("etc")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let told = text(&output.stderr);
    assert!(told.contains("etc/superhue.toml:4:10: "), "{told}");
    assert!(
        told.contains("conf.d/b.toml:2:1: unknown field `nmae`"),
        "{told}"
    );
    let json = check.arg("--json").output().unwrap();
    assert_eq!(json.status.code(), Some(2));
    let json = documented("daemon-check", &json.stdout);
    assert_eq!(json["problems"][0]["line"], 4);
    // The daemon prints the same, and does not serve.
    let mut daemon = machine.start();
    assert_eq!(daemon.wait().code(), Some(2));
    assert!(machine.log().contains("etc/superhue.toml:4:10: "));
    assert!(!machine.at("run").exists(), "nothing is left behind");
}

#[test]
fn a_check_says_what_rules_match_and_which_do_not() {
    let machine = Machine::new("[[rule]]\nname = \"none\"\nuser = \"no-such-user\"\n");
    machine.write("conf.d/all.toml", OFF);
    let _other = ChildGuard::start(Command::new("sleep").arg("100"));
    let mut check = machine.command(&["daemon", "--check", "--config"]);
    let output = check.arg(machine.at("etc")).output().unwrap();
    assert!(output.status.success());
    assert!(text(&output.stderr).contains("rule `none`: there is no user"));
    let told = text(&output.stdout);
    assert!(
        told.contains("any = true") && told.contains("off (left alone)"),
        "{told}"
    );
}

#[test]
fn reloads_are_taken_or_refused_as_a_whole() {
    let machine = Machine::new(OFF);
    let daemon = machine.start();
    assert_eq!(machine.is_up()["rules_total"], 1);
    machine.write("conf.d/b.toml", "[[rule]]\nname = \"b\"\nuser = 5\n");
    let refused = machine.ctl(&["reload"]);
    assert_eq!(refused.status.code(), Some(1));
    let told = text(&refused.stderr);
    assert!(told.contains("conf.d/b.toml:3:8: "), "{told}");
    let status = machine.status(|status| status["config"]["refused"] == 1);
    assert_eq!(status["rules_total"], 1, "the rules before it stay");
    assert!(
        status["config"]["error"]
            .as_str()
            .unwrap()
            .contains("b.toml:3:8")
    );
    machine.write("conf.d/b.toml", "[[rule]]\nname = \"b\"\nuser = \"5\"\n");
    daemon.signal(Signal::HUP);
    let status = machine.status(|status| status["config"]["reloads"] == 1);
    assert_eq!(
        (&status["rules_total"], &status["config"]["error"]),
        (&2.into(), &Value::Null)
    );
    let rules = machine.json("rules").unwrap();
    assert_eq!(rules["rules"][1]["conditions"], "user = \"5\"");
}

#[test]
fn rules_without_a_process_are_listed() {
    let machine = Machine::new("[[rule]]\nname = \"idle\"\nexecutable = \"no-such-program\"\n");
    machine.write("conf.d/all.toml", OFF);
    let _daemon = machine.start();
    let status = machine.status(|status| rule(status, "all")["processes"].as_u64() > Some(0));
    let names: Vec<&Value> = (status["rules"].as_array().unwrap().iter())
        .map(|rule| &rule["name"])
        .collect();
    assert_eq!(names, ["idle", "all"], "in the order of the rules");
    assert_eq!(rule(&status, "idle")["processes"], 0);
    assert_eq!(rule(&status, "idle")["watch"], Value::Null);
    let told = text(&machine.ctl(&["status"]).stdout);
    assert!(
        told.lines().any(|line| line.starts_with(" idle ")),
        "{told}"
    );
}

#[test]
fn ctl_why_prints_the_reason() {
    let machine = Machine::new("[[rule]]\nname = \"not\"\nexecutable = \"no-such-program\"\n");
    machine.write("conf.d/all.toml", OFF);
    let _daemon = machine.start();
    machine.is_up();
    let other = ChildGuard::start(Command::new("sleep").arg("100"));
    let told = text(&machine.ctl(&["why", &other.pid().to_string()]).stdout);
    assert!(told.contains("not not: it executes another file"), "{told}");
    assert!(told.contains("rule all: off (left alone)"), "{told}");
    let gone = machine.ctl(&["why", "4194304"]);
    assert_eq!(gone.status.code(), Some(1));
    assert!(text(&gone.stderr).contains("there is no process 4194304"));
}

#[test]
fn being_paused_and_the_socket_outlive_a_kill() {
    let machine = Machine::new(OFF);
    for round in 0..3 {
        let mut daemon = machine.start();
        let pid = daemon.pid();
        let status = machine.status(|status| status["pid"] == pid);
        assert_eq!(status["paused"], round > 0, "{round}");
        assert!(machine.ctl(&["pause"]).status.success());
        // A second one does not take the socket away.
        let second = machine
            .command(&["daemon", "--config"])
            .arg(machine.at("etc"))
            .output()
            .unwrap();
        assert_eq!(second.status.code(), Some(1));
        assert!(
            text(&second.stderr).contains("is in use"),
            "{}",
            text(&second.stderr)
        );
        daemon.signal(Signal::KILL);
        daemon.wait();
        assert!(machine.at("run/ctl.sock").exists());
        let dead = machine.ctl(&["status"]);
        assert_eq!(dead.status.code(), Some(1));
        assert!(text(&dead.stderr).contains("no daemon listens at"));
    }
    let mut daemon = machine.start();
    machine.is_up();
    assert!(machine.ctl(&["resume"]).status.success());
    assert_eq!(
        machine.status(|status| status["paused"] == false)["paused"],
        false
    );
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.wait().code(), Some(0));
    assert!(!machine.at("run/ctl.sock").exists() && !machine.at("run/ctl.sock.paused").exists());
}

#[test]
fn a_squatted_socket_is_left_alone() {
    let machine = Machine::new(OFF);
    fs::create_dir(machine.at("run")).unwrap();
    fs::write(machine.at("run/ctl.sock"), "precious").unwrap();
    let mut daemon = machine.start();
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(machine.log().contains("is no socket"), "{}", machine.log());
    assert_eq!(fs::read(machine.at("run/ctl.sock")).unwrap(), b"precious");
    fs::remove_file(machine.at("run/ctl.sock")).unwrap();
    fs::set_permissions(machine.at("run"), fs::Permissions::from_mode(0o777)).unwrap();
    let mut daemon = machine.start();
    assert_eq!(daemon.wait().code(), Some(1));
    assert!(
        machine.log().contains("others may write to it"),
        "{}",
        machine.log()
    );
}

#[test]
fn who_may_not_ask_is_told_so() {
    if !is_root() {
        return skip("root", "only root can be somebody else");
    }
    let machine = Machine::new(OFF);
    let _daemon = machine.start();
    machine.is_up();
    let socket = machine.at("run/ctl.sock");
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o007, 0);
    let mut other = superhue(User::Ordinary, &["ctl", "status", "--socket"]);
    let output = other.arg(&socket).output().unwrap();
    assert_eq!(output.status.code(), Some(3));
    assert!(text(&output.stderr).contains("members of the group `superhue`"));
}

#[test]
fn those_who_flood_or_fall_silent_hold_nobody_up() {
    let machine = Machine::new(OFF);
    let _daemon = machine.start();
    machine.is_up();
    let socket = machine.at("run/ctl.sock");
    let silent: Vec<UnixStream> = (0..20)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    let path = socket.clone();
    let flood = thread::spawn(move || {
        for _ in 0..500 {
            let Ok(mut stream) = UnixStream::connect(&path) else {
                continue;
            };
            let _ = stream.write_all(&[b'['; 100_000]);
        }
    });
    let refused = |status: &Value| status["own"]["requests_refused"].as_u64() > Some(100);
    flood.join().unwrap();
    machine.status(refused);
    drop(silent);
}

#[test]
fn systemd_is_told_of_every_step() {
    let machine = Machine::new(OFF);
    let told = UnixDatagram::bind(machine.at("notify")).unwrap();
    told.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut command = machine.command(&["daemon", "--config"]);
    command
        .arg(machine.at("etc"))
        .env("NOTIFY_SOCKET", machine.at("notify"));
    let mut daemon =
        ChildGuard::start(command.env("WATCHDOG_USEC", "400000").stderr(Stdio::null()));
    let next = |wanted: &str| {
        let mut buffer = [0; 4096];
        loop {
            let bytes = told.recv(&mut buffer).unwrap();
            let message = text(&buffer[..bytes]);
            if message.contains(wanted) {
                return message;
            }
        }
    };
    assert!(next("READY=1").contains("STATUS=1 rule\n"));
    next("WATCHDOG=1");
    next("WATCHDOG=1");
    daemon.signal(Signal::HUP);
    assert!(next("RELOADING=1").contains("MONOTONIC_USEC="));
    next("READY=1");
    daemon.signal(Signal::TERM);
    next("STOPPING=1");
    assert!(daemon.wait().success());
}

/// A command that keeps memory of a service in use, and ends if the memory changes.
fn server() -> Command {
    let script = format!(
        "{FILLING}\nimport time\nmemory = fill(16)\nwhile True: time.sleep(0.2); assert whole(memory)"
    );
    // Elsewhere on the path it may be a script, whose processes come and go in the service while it starts.
    let mut command = Command::new(support::python().unwrap_or("python3"));
    command
        .args(["-c", &script])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[test]
fn a_service_is_managed_again_after_every_restart() {
    let Some(slice) = Slice::new("restart") else {
        return;
    };
    let rules = format!(
        "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/a*.service\"\npages = \"resident\"\nbudget = \"50%\"\n",
        slice.name()
    );
    let machine = Machine::new(&rules);
    let _daemon = machine.start();
    machine.is_up();
    let mut longest = Duration::ZERO;
    for round in 0..10 {
        let mut service = slice.service("a.service", &mut server());
        let pid = service.pid();
        let begun = Instant::now();
        let status = machine.status(|status| {
            let processes = rule(status, "mine")["watch"]["processes"].as_array();
            processes.is_some_and(|all| all.iter().any(|process| process["pid"] == pid))
        });
        let services = &rule(&status, "mine")["watch"]["services"];
        assert!(services["a.service"].is_object(), "{services}");
        longest = longest.max(begun.elapsed());
        // Still intact, and not held up permanently.
        assert!(service.0.try_wait().unwrap().is_none(), "{round}");
        service.signal(Signal::KILL);
        service.wait();
        slice.end("a.service");
    }
    // A timing decides nothing here; it is only printed.
    println!("managed again after at most {longest:?}");
    let status = machine.status(|status| rule(status, "mine")["processes"] == 0);
    let watch = &rule(&status, "mine")["watch"];
    // The command python3 may be a script that starts others first.
    assert!(watch["processes_seen"].as_u64() >= Some(10), "{watch}");
}

#[test]
fn a_reload_forgets_nothing_of_rules_that_stay_and_a_kill_nothing_that_runs() {
    let Some(slice) = Slice::new("reload") else {
        return;
    };
    let mine = format!(
        "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/**\"\npages = \"kernel\"\n",
        slice.name()
    );
    let machine = Machine::new(&mine);
    let mut daemon = machine.start();
    let service = slice.service("a.service", &mut server());
    let pid = service.pid();
    let managed = |status: &Value| {
        let process = &rule(status, "mine")["watch"]["processes"][0];
        process["pid"] == pid
    };
    let looks = |status: &Value| {
        rule(status, "mine")["watch"]["own"]["looks"]
            .as_u64()
            .unwrap()
    };
    let before = machine.status(|status| managed(status) && looks(status) >= 8);
    machine.write(
        "superhue.toml",
        &format!("{OFF}{mine}").replace("any = true", "user = \"77777\""),
    );
    assert!(machine.ctl(&["reload"]).status.success());
    let after = machine.status(|status| status["config"]["reloads"] == 1 && managed(status));
    assert!(looks(&after) >= looks(&before), "the watch goes on");
    let seen = |status: &Value| rule(status, "mine")["watch"]["processes_seen"].clone();
    assert_eq!(seen(&after), seen(&before), "its process has not left it");
    daemon.signal(Signal::KILL);
    daemon.wait();
    let daemon = machine.start();
    let again = daemon.pid();
    machine.status(|status| status["pid"] == again && managed(status));
}

#[test]
fn a_rule_gives_a_service_colors() {
    let _shared = shared();
    let Some(slice) = Slice::new("colors") else {
        return;
    };
    let machine = Machine::new(&format!(
        "[[rule]]\nname = \"mine\"\ncgroup = \"/{}/**\"\npages = \"kernel\"\ncolors = \"spread\"\n",
        slice.name()
    ));
    let mut daemon = machine.start();
    let mut service = slice.service("a.service", &mut server());
    // Measuring colors takes a while on a busy machine.
    machine.status(|status| {
        let watch = &rule(status, "mine")["watch"];
        watch["trouble"].is_string() || watch["colors"].is_object()
    });
    let status = machine.status(|status| {
        let watch = &rule(status, "mine")["watch"];
        let colors = &watch["colors"];
        let cannot = watch["trouble"].is_string() || colors["without"].is_string();
        cannot || colors["recolored_pages"].as_u64() > Some(0)
    });
    let watch = &rule(&status, "mine")["watch"];
    let said = text(&machine.ctl(&["status"]).stdout);
    if let Some(reason) = [&watch["trouble"], &watch["colors"]["without"]]
        .iter()
        .find_map(|it| it.as_str())
    {
        skip("colors", reason);
        assert!(said.contains(reason), "{said}");
    } else {
        assert_eq!(watch["colors"]["request"], "spread", "{watch}");
        assert!(said.contains("pages recolored"), "{said}");
    }
    // The program checks its memory five times a second.
    thread::sleep(Duration::from_millis(500));
    assert!(service.0.try_wait().unwrap().is_none(), "it goes on");
    daemon.signal(Signal::TERM);
    assert!(daemon.wait().success(), "{}", machine.log());
    thread::sleep(Duration::from_millis(500));
    assert!(service.0.try_wait().unwrap().is_none(), "and after it");
}

#[test]
fn a_read_only_configuration_is_enough() {
    if !is_root() {
        return skip("root", "a read-only mount takes CAP_SYS_ADMIN");
    }
    let machine = Machine::new(OFF);
    let socket = machine.at("run/ctl.sock");
    let script = format!(
        "mount -t tmpfs none /etc && mkdir /etc/superhue && cp {0}/etc/superhue.toml /etc/superhue/ \
         && mount -o remount,ro /etc && exec {1} daemon --socket {2}",
        machine.folder.path().display(),
        support::installed().join("superhue").display(),
        socket.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
    let log = fs::File::create(machine.at("log")).unwrap();
    let mut daemon = ChildGuard::start(command.stdin(Stdio::null()).stderr(log));
    let deadline = Instant::now() + TEST_TIMEOUT;
    while machine.json("status").is_none() {
        if daemon.0.try_wait().unwrap().is_some() {
            let log = machine.log();
            assert!(log.contains("unshare") || log.contains("mount"), "{log}");
            return skip("mount", &log);
        }
        assert!(Instant::now() < deadline, "{}", machine.log());
        thread::sleep(Duration::from_millis(10));
    }
    assert!(machine.ctl(&["pause"]).status.success());
    assert!(machine.ctl(&["reload"]).status.success());
}
