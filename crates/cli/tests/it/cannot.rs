//! System calls that Superhue gives up: a long-running verb forbids itself the calls that could stop or change a
//! program, and a verb that starts a user's command passes no such filter on to it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::Signal;
use superhue::sys::self_filter::FORBIDDEN;

use crate::support::daemon::{Machine, OFF};
use crate::support::{
    self, ChildGuard, User, copy_program, folder, is_root, output, python, skip, sticky_folder,
    superhue, text, until,
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A thread's filters in the kernel: the mode (2 is a filter), their number, and whether it can gain no privileges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    mode: u32,
    filters: u32,
    no_new_privileges: bool,
}

impl Limits {
    /// Parses a file like `/proc/PID/status`. `None` for a thread that has ended, and before Linux 5.9.
    fn of(status: &str) -> Option<Self> {
        let number = |name: &str| -> Option<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            line.trim().parse().ok()
        };
        Some(Self {
            mode: number("Seccomp:")?,
            filters: number("Seccomp_filters:")?,
            no_new_privileges: number("NoNewPrivs:")? == 1,
        })
    }

    /// Returns the limits of this process: containers and machines for tests may have filters of their own.
    fn ours() -> Option<Self> {
        let ours = Self::of(&fs::read_to_string("/proc/thread-self/status").unwrap());
        if ours.is_none() {
            skip(
                "seccomp",
                "this kernel does not say how many filters there are",
            );
        }
        ours
    }
}

/// Waits until `pid` runs superhue, and has limits of its own; then all its threads must.
fn assert_limited(pid: u32, ours: Limits, what: &str) {
    let threads = || -> Vec<Limits> {
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            return Vec::new();
        };
        threads
            .flatten()
            .filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok())
            .filter_map(|status| Limits::of(&status))
            .collect()
    };
    until(&format!("{what} is limited"), || {
        let mut found = threads().into_iter();
        found.any(|one| one.filters > ours.filters).then_some(())
    });
    // From then on every thread is limited, older ones included. They are read again: in the read that showed the first
    // limited thread, others may still be from just before.
    let found = threads();
    assert!(!found.is_empty(), "{what}");
    for one in &found {
        assert_eq!(one.mode, 2, "{what}: {found:?}");
        assert_eq!(one.filters, ours.filters + 1, "{what}: {found:?}");
        assert!(one.no_new_privileges, "{what}: {found:?}");
    }
}

fn users() -> Vec<User> {
    if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Same]
    }
}

#[test]
fn attach_forbids_itself() {
    let Some(ours) = Limits::ours() else { return };
    for user in users() {
        let mut sleep = Command::new("sleep");
        user.run(sleep.arg("1000"));
        let sleeper = ChildGuard::start(&mut sleep);
        let pid = sleeper.pid().to_string();
        let mut command = superhue(user, &["attach", "--pages", "kernel", &pid]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut attached = ChildGuard::start(&mut command);
        assert_limited(attached.pid(), ours, "attach");
        // It may not wait for signals yet, so that this one may kill it. A shell lets background commands ignore SIGINT.
        attached.signal(Signal::TERM);
        attached.wait();
    }
}

/// If the first thread has too small a stack, a second one does the work.
#[test]
fn a_first_thread_that_only_waits_is_forbidden_too() {
    let Some(ours) = Limits::ours() else { return };
    let sleeper = ChildGuard::start(Command::new("sleep").arg("1000"));
    let mut command = Command::new("sh");
    command
        .args(["-c", "ulimit -s 512 && exec \"$@\"", "sh"])
        .arg(support::installed().join("superhue"))
        .args(["attach", "--pages", "kernel", &sleeper.pid().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut attached = ChildGuard::start(&mut command);
    // A supervised process does the work.
    let worker = until("there are two threads in its child", || {
        let first = attached.pid();
        let children = fs::read_to_string(format!("/proc/{first}/task/{first}/children")).ok()?;
        let mut children = children.split_whitespace();
        let has_two = |pid: &&str| {
            let threads = fs::read_dir(format!("/proc/{pid}/task"));
            threads.is_ok_and(|threads| threads.count() > 1)
        };
        children.find(has_two)?.parse().ok()
    });
    assert_limited(worker, ours, "attach with a small stack");
    // It may not wait for signals yet, so that this one may kill it. A shell lets background commands ignore SIGINT.
    attached.signal(Signal::TERM);
    attached.wait();
}

#[test]
fn the_daemon_forbids_itself() {
    let Some(ours) = Limits::ours() else { return };
    let machine = Machine::new(OFF);
    let daemon = machine.start();
    machine.is_up();
    assert_limited(daemon.pid(), ours, "daemon");
}

#[test]
fn track_forbids_itself() {
    let Some(ours) = Limits::ours() else { return };
    let folder = sticky_folder();
    let socket = folder.path().join("socket");
    let mut command = superhue(User::Same, &["track", "--socket"]);
    command.arg(&socket).stderr(Stdio::piped());
    let mut service = ChildGuard::start(&mut command);
    let is_there = until("it serves, or says why not", || {
        match service.0.try_wait().unwrap() {
            Some(_) => Some(false),
            None => socket.exists().then_some(true),
        }
    });
    if !is_there {
        let mut said = String::new();
        std::io::Read::read_to_string(&mut service.0.stderr.take().unwrap(), &mut said).unwrap();
        return skip("tracking", said.trim());
    }
    assert_limited(service.pid(), ours, "track");
}

#[test]
fn top_forbids_itself() {
    let (Some(ours), Some(python)) = (Limits::ours(), python()) else {
        return;
    };
    // In a terminal of its own it runs until it is ended.
    let mut command = Command::new(python);
    command
        .args([
            "-c",
            "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) != 0)",
        ])
        .arg(support::installed().join("superhue"))
        .arg("top")
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    let mut terminal = ChildGuard::start(&mut command);
    let top = until("top has begun", || {
        let children = format!("/proc/{0}/task/{0}/children", terminal.pid());
        let children = fs::read_to_string(children).unwrap();
        let child: u32 = children.split_whitespace().next()?.parse().ok()?;
        let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        (name.trim() == "superhue").then_some(child)
    });
    assert_limited(top, ours, "top");
    std::io::Write::write_all(terminal.0.stdin.as_mut().unwrap(), b"q").unwrap();
    assert!(terminal.wait().success());
}

/// Returns the limits of `command`, which prints its own.
fn told(command: &mut Command) -> Limits {
    let said = output(command);
    assert!(said.status.success(), "{}", text(&said.stderr));
    let found = Limits::of(&text(&said.stdout));
    found.unwrap_or_else(|| panic!("{}{}", text(&said.stdout), text(&said.stderr)))
}

#[test]
fn commands_of_users_inherit_nothing() {
    let Some(ours) = Limits::ours() else { return };
    let status = "/proc/self/status";
    for user in users() {
        let run = ["run", "--quiet", "--pages", "resident", "--", "cat", status];
        assert_eq!(told(&mut superhue(user, &run)), ours, "run ({user:?})");
        let folder = folder();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let copy = |name: &str| format!("cat {status} >{}", at(name));
        let (command, prepared) = (copy("command"), copy("prepared"));
        let mut compare = superhue(
            user,
            &[
                "compare", "--arm", "kernel", "--arm", "resident", "-n", "1", "--warmup", "0",
            ],
        );
        compare.args(["--prepare", &prepared, "--", "sh", "-c", &command]);
        let said = output(&mut compare);
        assert!(said.status.success(), "{}", text(&said.stderr));
        for name in ["command", "prepared"] {
            let told = Limits::of(&fs::read_to_string(at(name)).unwrap());
            assert_eq!(told, Some(ours), "{name} of compare ({user:?})");
        }
    }
    let (sleeper, folder) = (
        ChildGuard::start(Command::new("sleep").arg("1000")),
        folder(),
    );
    let file = folder.path().join("metric");
    // The metric is tried before anything else, and its failure ends the trial.
    let metric = format!("cat {status} >{}; exit 7", file.display());
    let mut trial = superhue(User::Same, &["trial", "--metric", &metric]);
    let said = output(trial.arg(sleeper.pid().to_string()));
    if said.status.code() == Some(3) {
        return skip("trial", text(&said.stderr).trim());
    }
    let told = Limits::of(&fs::read_to_string(&file).unwrap_or_default());
    assert_eq!(told, Some(ours), "{}", text(&said.stderr));
}

/// `setuid` programs below `run` still gain their privileges.
#[test]
fn a_setuid_program_of_a_user_gains_its_privileges() {
    use std::os::unix::fs::{PermissionsExt, chown};
    if !is_root() {
        return skip("root", "making a set-user-ID program needs root");
    }
    let folder = folder();
    let id = folder.path().join("id");
    copy_program(Path::new("/usr/bin/id"), &id);
    chown(&id, Some(0), Some(0)).unwrap();
    fs::set_permissions(&id, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut plain = Command::new(&id);
    User::Ordinary.run(&mut plain);
    let plain = text(&output(&mut plain).stdout);
    if !plain.contains("euid=0") {
        return skip(
            "setuid",
            "the temporary folder does not honour such programs",
        );
    }
    let mut under = superhue(User::Ordinary, &["run", "--quiet", "--"]);
    assert_eq!(text(&output(under.arg(&id)).stdout), plain);
}

/// The units forbid the same calls: for other programs that may run there, and until superhue forbids them itself.
#[test]
fn the_units_forbid_the_same() {
    let names: Vec<&str> = FORBIDDEN.iter().map(|call| call.name).collect();
    let wanted = format!("SystemCallFilter=~{}", names.join(" "));
    for unit in ["superhue.service", "superhue-track.service"] {
        let path = root().join("packaging/systemd").join(unit);
        let text = fs::read_to_string(&path).unwrap();
        let filters: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("SystemCallFilter="))
            .collect();
        // The last line wins.
        assert_eq!(filters.last(), Some(&wanted.as_str()), "{unit}");
        // Without this call superhue could not install its filter: before systemd 254 no group of calls contains it.
        assert!(
            filters
                .iter()
                .any(|line| line.split([' ', '=']).any(|word| word == "seccomp")),
            "{unit}"
        );
        for line in [
            "SystemCallErrorNumber=EPERM",
            "SystemCallArchitectures=native",
            "NoNewPrivileges=yes",
        ] {
            assert!(text.lines().any(|found| found == line), "{unit}: {line}");
        }
    }
}

/// Runs `scripts/lint-calls`, which `make lint` runs, on a tree; returns true if it finds nothing wrong, and its output.
fn lint(tree: &Path) -> (bool, String) {
    let said = output(Command::new(root().join("scripts/lint-calls")).arg(tree));
    (
        said.status.success(),
        text(&said.stdout) + &text(&said.stderr),
    )
}

#[test]
fn the_tree_holds_no_such_call_and_the_lint_would_find_one() {
    if python().is_none() {
        return;
    }
    assert_eq!(lint(&root()), (true, String::new()));
    let tree = folder();
    // Each call in a file of its own, on the second line.
    let write = |files: &[(&str, &str)]| -> Vec<String> {
        let numbered = files.iter().enumerate();
        let written = numbered.map(|(number, (name, line))| {
            let name = name.replace('N', &number.to_string());
            let path = tree.path().join(&name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("fn f() {{}}\n{line}\n")).unwrap();
            name
        });
        written.collect()
    };
    // Words in prose, privileges of that name, and the attack programs are no calls.
    write(&[
        (
            "crates/x/src/goodN.rs",
            "// Not by ptrace(2), nor by process_vm_writev(2).",
        ),
        (
            "crates/x/src/goodN.rs",
            "let needed = CapabilitySet::SYS_PTRACE;",
        ),
        ("crates/x/src/goodN.rs", "\"setcap cap_sys_ptrace+ep\""),
        ("crates/x/tests/goodN.rs", "libc::ptrace(1)"),
        (
            "scripts/torture.d/goodN.c",
            "ptrace(PTRACE_SEIZE, pid, 0, 0);",
        ),
        ("docs/goodN.md", "ptrace"),
        ("kernel/goodN.c", "ptrace(1);"),
    ]);
    assert_eq!(lint(tree.path()), (true, String::new()));
    let wrong = [
        ("crates/x/src/N.rs", "unsafe { libc::ptrace(16, 1) };"),
        ("crates/x/src/N.rs", "libc::syscall(libc::SYS_ptrace, 1);"),
        ("crates/x/src/N.rs", "let request = PTRACE_SEIZE;"),
        ("crates/x/N.rs", "call(\"process_vm_writev\");"),
        ("crates/x/src/N.rs", "libc::SYS_pidfd_getfd"),
        ("python/N.py", "LIBC.ptrace(16, pid, 0, 0)"),
        ("python/N.py", "LIBC.process_vm_writev(pid)"),
        ("examples/N.c", "syscall(__NR_process_vm_readv, 1);"),
        ("crates/x/bpf/N.bpf.c", "bpf_probe_write_user(to, from, 8);"),
        (
            "crates/x/src/N.rs",
            "File::open(roots.of_process(pid, \"mem\"))",
        ),
        (
            "crates/x/src/N.rs",
            "File::create(format!(\"/proc/{pid}/mem\"))",
        ),
        ("python/N.py", "open(f'/proc/{pid}/mem', 'r+b')"),
        (
            "crates/ground/procfs/src/process/zeroes.rs",
            "File::options().write(true)",
        ),
    ];
    let written = write(&wrong);
    let (is_clean, said) = lint(tree.path());
    assert!(!is_clean);
    for (name, (_, line)) in written.iter().zip(wrong) {
        assert!(said.contains(&format!("{name}:2: ")), "{line}: {said}");
    }
    assert_eq!(said.lines().count(), wrong.len(), "{said}");
    // Tests may call what they test against; the code behind them may not.
    let tree = folder();
    let mixed = tree.path().join("crates/x/src/mixed.rs");
    fs::create_dir_all(mixed.parent().unwrap()).unwrap();
    let text = "#[cfg(test)]\nmod tests;\n#[cfg(test)]\nmod inner {\n    fn f() { libc::ptrace(1) }\n}\nfn g() { libc::ptrace(2) }\n";
    fs::write(mixed, text).unwrap();
    let (_, said) = lint(tree.path());
    assert!(said.contains("mixed.rs:7: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}
