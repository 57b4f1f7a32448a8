//! A program under `superhue run` behaves byte for byte as without, and nothing is left behind.
//!
//! Every program of the table is run plainly and under every policy, as the user of the tests and as an ordinary one
//! (whose programs are visited), and compared: standard output and error, and the whole wait status.
//! `SUPERHUE_RUNS=1000` repeats the table until that number of runs is done; `SUPERHUE_REPORT=FILE` has the counts
//! written there.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use superhue_testing::alone;

use crate::support::{
    self, TEST_TIMEOUT, User, copy_program, folder, installed, is_root, number, processes_with,
    skip, text, until,
};

/// Programs that need no preparation: a name, and the script for `sh -c`.
const SCRIPTS: &[(&str, &str)] = &[
    ("exit 42", "exit 42"),
    ("pipeline", "seq 1 1000 | grep 7 | sort -rn | head -n 5"),
    ("failing pipeline", "false | true; echo $?; true | false"),
    ("standard error", "echo out; echo err >&2; exit 3"),
    ("killed by TERM", "kill -TERM $$"),
    ("killed by INT", "kill -INT $$"),
    ("killed by HUP", "kill -HUP $$"),
    ("killed by QUIT", "ulimit -c 0; kill -QUIT $$"),
    ("killed by KILL", "kill -KILL $$"),
    ("killed by SEGV", "ulimit -c 0; kill -SEGV $$"),
    ("killed by ABRT", "ulimit -c 0; kill -ABRT $$"),
    ("killed by PIPE", "kill -PIPE $$"),
    ("killed by USR1", "kill -USR1 $$"),
    ("killed by a real-time signal", "kill -40 $$"),
    (
        "a child killed by SEGV",
        "ulimit -c 0; sh -c 'kill -SEGV $$'; echo $?",
    ),
    ("yes into head", "yes | head -n 3"),
    (
        "kill to its own group",
        "trap 'echo caught' USR1; kill -USR1 0; sleep 0.05; echo end",
    ),
    (
        "signals",
        "grep -E '^(Sig(Pnd|Blk|Ign|Cgt)|ShdPnd)' /proc/self/status",
    ),
    (
        "open descriptors",
        "ls /proc/self/fd; for n in 0 1 2; do readlink /proc/self/fd/$n | tr -d 0-9; done",
    ),
    ("folder", "pwd; readlink /proc/self/cwd"),
    ("umask", "umask; umask 077; umask"),
    ("limits", "ulimit -a"),
    (
        "identity",
        "id; grep -E '^(Uid|Gid|Groups|Cap|NoNewPrivs|Seccomp)' /proc/self/status",
    ),
    ("niceness", "nice; nice -n 5 nice"),
    ("processors", "grep _allowed_list /proc/self/status"),
    (
        "scheduling",
        "cat /proc/self/oom_score_adj /proc/self/cgroup; cut -d' ' -f 18,19,41 /proc/self/stat",
    ),
    (
        "group and session",
        "cut -d' ' -f 5-8 /proc/$$/stat | sed 's/^'$$' /self /' | wc -w",
    ),
    (
        "many short processes",
        "i=0; while [ $i -lt 50 ]; do /bin/true || exit 1; i=$((i+1)); done; echo $i",
    ),
    (
        "200 children at once",
        "i=0; while [ $i -lt 200 ]; do sleep 0.02 & i=$((i+1)); done; wait; echo $i",
    ),
    (
        "bounded fork bomb",
        "f() { if [ $1 -gt 0 ]; then f $(($1-1)) & f $(($1-1)) & wait; else echo leaf; fi; }; f 6",
    ),
    // The late line comes after the early one, however long either waits for a CPU.
    (
        "daemon by two forks",
        "f=$(mktemp); ( (until test -s $f; do sleep 0.01; done; rm $f; sleep 0.05; echo late) & ); echo early; echo x >$f",
    ),
    (
        "daemon in a session of its own",
        "f=$(mktemp); setsid sh -c 'until test -s $0; do sleep 0.01; done; rm $0; sleep 0.05; echo late' $f & echo early; echo x >$f",
    ),
    (
        "chain of execs",
        "exec sh -c 'exec sh -c \"exec env | sort\"'",
    ),
    (
        "loader's variables",
        "echo \"[$LD_PRELOAD][$GLIBC_TUNABLES]\"; cat /proc/self/environ | tr '\\0' '\\n' | grep -c ^TMPDIR",
    ),
    (
        "temporary file",
        "f=$(mktemp) && echo x > $f && cat $f && rm $f",
    ),
];

/// Scripts that run the program; `"$@"` is the program, under superhue or not.
const WRAPPED: &[(&str, &str, &str)] = &[
    (
        "closed input",
        r#"exec "$@" <&-"#,
        "ls /proc/self/fd; read x; echo $?",
    ),
    (
        "closed output",
        r#"exec "$@" >&-"#,
        "echo x; echo $? >&2; ls /proc/self/fd >&2",
    ),
    (
        "closed error",
        r#"exec "$@" 2>&-"#,
        "ls /proc/self/fd; echo x >&2; echo $?",
    ),
    (
        "all closed",
        r#""$@" <&- >&- 2>&-; echo $?"#,
        "echo x; exit 9",
    ),
    ("full output", r#""$@" >/dev/full; echo $?"#, "echo x"),
    (
        "ignored PIPE",
        r#"trap "" PIPE; exec "$@""#,
        "grep SigIgn /proc/self/status; yes | head -n 1",
    ),
    (
        "ignored HUP and INT",
        r#"trap "" HUP INT; exec "$@""#,
        "grep SigIgn /proc/self/status; kill -INT $$; echo still here",
    ),
    (
        "inherited descriptors",
        r#"exec 5</etc/passwd 7>/dev/null; exec "$@""#,
        "ls /proc/self/fd; readlink /proc/self/fd/5 /proc/self/fd/7; head -n 1 <&5",
    ),
    ("niceness of the caller", r#"exec nice -n 7 "$@""#, "nice"),
    (
        "limits of the caller",
        r#"ulimit -n 100; ulimit -c 0; umask 027; exec "$@""#,
        "ulimit -n; ulimit -c; umask",
    ),
    ("in a pipeline", r#"seq 1 100 | "$@" | tail -n 2"#, "cat"),
    ("reader that leaves", r#""$@" | head -n 1"#, "yes"),
    ("in the background", r#""$@" & wait $!; echo $?"#, "exit 5"),
    (
        "user's preload",
        r#"LD_PRELOAD=$(ls /lib/*/libm.so.6 /usr/lib/*/libm.so.6 2>/dev/null | head -n 1) exec "$@""#,
        "echo $LD_PRELOAD; grep -c libm.so.6 /proc/self/maps; sh -c 'echo $LD_PRELOAD; env | grep -c LD_PRELOAD'",
    ),
    (
        "user's tunables",
        r#"GLIBC_TUNABLES=glibc.malloc.arena_max=2 exec "$@""#,
        "echo $GLIBC_TUNABLES; env | grep TUNABLES",
    ),
    (
        "order of the environment",
        r#"exec env -i PATH=$PATH Z=1 B=2 LD_PRELOAD= Y=3 A=4 "$@""#,
        "env; exec env",
    ),
    (
        "environment of a child",
        r#"exec env -i PATH=$PATH Z=1 B=2 Y=3 A=4 "$@""#,
        "/usr/bin/env; sh -c /usr/bin/env",
    ),
    ("empty environment", r#"exec env -i "$@""#, "env; echo $?"),
];

/// A program to run: `outer`, if any, is a script that runs it as `"$@"`.
struct Case {
    name: String,
    outer: Option<String>,
    program: Vec<String>,
    input: Option<Vec<u8>>,
}

impl Case {
    fn new(name: &str, program: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            outer: None,
            program: program.iter().map(|&word| word.to_owned()).collect(),
            input: None,
        }
    }
}

/// Observed behaviour of a program.
#[derive(Debug, PartialEq, Eq)]
struct Behaviour {
    output: String,
    error: String,
    /// The wait status without the bit for a core file.
    status: i32,
}

/// State that all runs share.
struct Bench {
    folder: tempfile::TempDir,
    marker: String,
    runs: AtomicUsize,
}

impl Bench {
    fn new() -> Self {
        let folder = folder();
        let marker = format!("SUPERHUE_TEST={}", folder.path().display());
        for name in ["cwd", "tmp"] {
            let path = folder.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        Self {
            folder,
            marker,
            runs: AtomicUsize::new(0),
        }
    }

    /// Runs a case; under superhue if there are options for it.
    fn run(&self, case: &Case, way: Option<RunOptions>, user: User) -> Behaviour {
        let mut words: Vec<String> = Vec::new();
        if let Some(outer) = &case.outer {
            words.extend(["sh", "-c", outer, "sh"].map(str::to_owned));
        }
        if let Some(way) = way {
            words.push(installed().join("superhue").display().to_string());
            words.extend(["run", "--quiet"].map(str::to_owned));
            words.extend(way.iter().map(|&word| word.to_owned()));
            words.push("--".to_owned());
            self.runs.fetch_add(1, Ordering::Relaxed);
        }
        words.extend(case.program.iter().cloned());

        let mut command = Command::new(&words[0]);
        let (name, value) = self.marker.split_once('=').unwrap();
        command
            .args(&words[1..])
            .current_dir(self.folder.path().join("cwd"))
            .env("TMPDIR", self.folder.path().join("tmp"))
            .env(name, value)
            .env_remove("LD_LIBRARY_PATH")
            .stdin(match case.input {
                Some(_) => Stdio::piped(),
                None => Stdio::null(),
            })
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Not the group of the tests, since some programs signal their whole group.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        user.run(&mut command);
        let mut child = command.spawn().unwrap();
        let writer = case.input.clone().map(|input| {
            let mut stdin = child.stdin.take().unwrap();
            // The program may end before it has read everything.
            thread::spawn(move || drop(stdin.write_all(&input)))
        });
        let output = child.wait_with_output().unwrap();
        if let Some(writer) = writer {
            writer.join().unwrap();
        }
        Behaviour {
            output: text(&output.stdout),
            error: text(&output.stderr),
            status: output.status.into_raw() & !0x80,
        }
    }

    /// Returns the files left in the folders that programs and superhue may have written to.
    fn leftover_files(&self) -> Vec<PathBuf> {
        ["cwd", "tmp"]
            .iter()
            .flat_map(|name| entries(&self.folder.path().join(name)))
            .collect()
    }
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder)
        .map(|entries| entries.map(|entry| entry.unwrap().path()).collect())
        .unwrap_or_default()
}

/// Returns superhue's files in folders that all users share.
fn shared_files() -> BTreeSet<PathBuf> {
    ["/dev/shm", "/tmp", "/var/tmp", "/run/superhue/journal"]
        .iter()
        .flat_map(|folder| entries(Path::new(folder)))
        .filter(|path| {
            let path = path.to_string_lossy();
            // The folder of `support::installed` is the tests' own; `lock` stays by design, and so do the color files
            // that all superhues of a user share.
            let shared = ["superhue-tests-", "superhue-palette-", "superhue-sets-"];
            path.contains("superhue")
                && !shared.iter().any(|name| path.contains(name))
                && !path.ends_with("/lock")
        })
        .collect()
}

fn cases(bench: &Bench) -> Vec<Case> {
    let mut cases = vec![
        Case::new("true", &["true"]),
        Case::new("false", &["false"]),
        Case::new("environment", &["env"]),
        Case::new(
            "arguments",
            &["printf", "<%s>", "", "a b", "*", "--", "-n", "\u{fc}"],
        ),
        Case::new("option after the command", &["ls", "--version"]),
    ];
    for (name, script) in SCRIPTS {
        cases.push(Case::new(name, &["sh", "-c", script]));
    }
    for (name, outer, script) in WRAPPED {
        cases.push(Case {
            outer: Some((*outer).to_owned()),
            ..Case::new(name, &["sh", "-c", script])
        });
    }
    for program in [&["env"][..], &["env", "env"], &["sh", "-c", "exec env"]] {
        // An environment that is not sorted, and has variables set to nothing.
        let outer = r#"exec env -i PATH="$PATH" Z=1 B=2 LD_PRELOAD= Y=3 GLIBC_TUNABLES= A=4 "$@""#;
        cases.push(Case {
            outer: Some(outer.to_owned()),
            ..Case::new("order of variables", program)
        });
    }
    for (name, program) in [
        ("input through cat", &["cat"][..]),
        ("input that is not read", &["true"]),
        (
            "input counted by a grandchild",
            &["sh", "-c", "cat | wc -c"],
        ),
    ] {
        let input = (0..300_000_u32).map(|i| b"0123456789\n"[i as usize % 11]);
        cases.push(Case {
            input: Some(input.collect()),
            ..Case::new(name, program)
        });
    }
    cases.extend(static_cases());
    cases.extend(setuid_cases(bench));
    cases
}

fn static_cases() -> Vec<Case> {
    let Some(busybox) = support::static_busybox() else {
        return Vec::new();
    };
    vec![
        Case::new("static", &[busybox, "sh", "-c", "echo static; exit 3"]),
        Case::new("static, killed", &[busybox, "sh", "-c", "kill -TERM $$"]),
        Case::new(
            "static from a shell",
            &[
                "sh",
                "-c",
                "/usr/bin/busybox env | sort; /usr/bin/busybox sh -c 'sh -c env' | sort",
            ],
        ),
    ]
}

fn setuid_cases(bench: &Bench) -> Vec<Case> {
    if !is_root() {
        skip("setuid", "making a set-user-ID program needs root");
        return Vec::new();
    }
    let mut cases = Vec::new();
    for (name, original) in [("id", "/usr/bin/id"), ("env", "/usr/bin/env")] {
        let path = bench.folder.path().join(format!("setuid-{name}"));
        copy_program(original.as_ref(), &path);
        chown(&path, Some(0), Some(0)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let path = path.display().to_string();
        cases.push(Case::new(&format!("setuid {name}"), &[&path]));
        let chained = format!("{path}; sh -c {path}; exec {path}");
        cases.push(Case::new(
            &format!("setuid {name} from a shell"),
            &["sh", "-c", &chained],
        ));
    }
    cases
}

/// Options of `superhue run`.
type RunOptions = &'static [&'static str];

/// All ways of running a program under superhue.
fn ways() -> Vec<(RunOptions, User)> {
    let users = if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Same]
    };
    let ways: [RunOptions; 6] = [
        // The default: `hot` where accesses can be tracked.
        &[],
        &["--pages", "resident"],
        &["--pages", "always"],
        &["--pages", "never"],
        &["--pages", "kernel"],
        &["--colors", "spread"],
    ];
    users
        .iter()
        .flat_map(|&user| ways.map(|way| (way, user)))
        .collect()
}

#[test]
fn programs_behave_alike_with_and_without() {
    let _alone = alone();
    let bench = Bench::new();
    let files_before = shared_files();
    let cases = cases(&bench);
    let ways = ways();
    let table = cases.len() * ways.len();
    let rounds = number("SUPERHUE_RUNS", table).div_ceil(table);

    let plainly = |user: User| -> Vec<Behaviour> {
        let runs = cases.iter().map(|case| bench.run(case, None, user));
        runs.collect()
    };
    let [same, ordinary] = thread::scope(|scope| {
        let users = [User::Same, User::Ordinary].map(|user| scope.spawn(move || plainly(user)));
        users.map(|runs| runs.join().unwrap())
    });

    let next = AtomicUsize::new(0);
    let differences = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism()
            .map_or(1, usize::from)
            .min(8)
        {
            scope.spawn(|| {
                loop {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    if turn >= rounds * table {
                        break;
                    }
                    let case = turn % table / ways.len();
                    let (way, user) = ways[turn % ways.len()];
                    let under = bench.run(&cases[case], Some(way), user);
                    let without = match user {
                        User::Same => &same[case],
                        User::Ordinary => &ordinary[case],
                    };
                    if under != *without {
                        differences.lock().unwrap().push(format!(
                            "{} ({way:?}, {user:?}):\n  without {without:?}\n  under   {under:?}",
                            cases[case].name
                        ));
                    }
                }
            });
        }
    });

    // Daemons end a moment after the program that started them.
    let mut processes = processes_with(&bench.marker);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !processes.is_empty() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
        processes = processes_with(&bench.marker);
    }
    let mut files = bench.leftover_files();
    files.extend(shared_files().difference(&files_before).cloned());
    let differences = differences.into_inner().unwrap();
    let summary = serde_json::json!({
        "schema": "superhue-transparency/1",
        "runs": bench.runs.load(Ordering::Relaxed),
        "programs": cases.len(),
        "ways": ways.len(),
        "differences": differences.len(),
        "leftover_processes": processes.len(),
        "leftover_files": files.len(),
    });
    println!("{summary}");
    if let Ok(path) = std::env::var("SUPERHUE_REPORT") {
        writeln!(File::create(path).unwrap(), "{summary}").unwrap();
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
    assert!(processes.is_empty(), "left behind: {processes:?}");
    assert!(files.is_empty(), "left behind: {files:?}");
}

/// Python ignores a signal that shells cannot: with `SIGCHLD` ignored the kernel keeps no exit statuses of children,
/// which superhue needs.
#[test]
fn a_caller_that_ignores_sigchld_is_no_trouble() {
    let Some(python) = support::python() else {
        return;
    };
    let script = "import os, signal, sys\n\
                  signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n\
                  os.execvp(sys.argv[1], sys.argv[1:])\n";
    let program = ["sh", "-c", "grep SigIgn /proc/self/status; exit 3"];
    let plain = support::output(Command::new(python).args(["-c", script]).args(program));
    let mut under = Command::new(python);
    under
        .args(["-c", script])
        .arg(installed().join("superhue"))
        .args(["run", "--quiet"])
        .args(program);
    let under = support::output(&mut under);
    assert_eq!((under.stdout, under.status), (plain.stdout, plain.status));
    assert_eq!(plain.status.code(), Some(3));
}

/// Checks that the programs of the table do what their names claim.
#[test]
fn what_the_command_closes_nobody_else_holds() {
    let folder = folder();
    let lock = folder.path().join("lock");
    let held = File::create(&lock).unwrap();
    held.lock().unwrap();
    let script = "exec 7>&-; echo ready; exec <&- >&-; exec sleep 600";
    let mut command = Command::new("sh");
    // The shell passes its descriptor 7 on, as a caller of superhue may.
    let start = format!(
        "exec 7>>{}; flock 7; exec {} run --quiet -- sh -c '{script}'",
        lock.display(),
        installed().join("superhue").display()
    );
    drop(held);
    command.args(["-c", &start]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut running = support::ChildGuard::start(&mut command);
    let mut said = String::new();
    let mut output = running.0.stdout.take().unwrap();
    // Ends when the command closes its output, and not when the command ends.
    std::io::Read::read_to_string(&mut output, &mut said).unwrap();
    assert_eq!(said, "ready\n");
    let mut input = running.0.stdin.take().unwrap();
    until("a write fails", || input.write_all(&[0; 4096]).err());
    let again = File::options().append(true).open(&lock).unwrap();
    assert!(again.try_lock().is_ok(), "the lock is still held");
    assert!(
        running.0.try_wait().unwrap().is_none(),
        "it ended by itself"
    );
    // superhue passes it on; a kill would leave the command running.
    let told = Command::new("kill").arg(running.pid().to_string()).status();
    assert!(told.unwrap().success());
    running.0.wait().unwrap();
}

#[test]
fn the_table_itself_is_sound() {
    let bench = Bench::new();
    let by_name = |name: &str| {
        let cases = cases(&bench);
        let case = cases.into_iter().find(|case| case.name == name);
        bench.run(
            &case.unwrap(),
            Some(&["--pages", "resident"]),
            User::Ordinary,
        )
    };
    assert_eq!(by_name("exit 42").status, 42 << 8);
    assert_eq!(by_name("killed by SEGV").status, 11);
    assert_eq!(by_name("killed by PIPE").status, 13);
    assert_eq!(by_name("200 children at once").output, "200\n");
    assert_eq!(by_name("bounded fork bomb").output.lines().count(), 64);
    assert_eq!(by_name("input through cat").output.len(), 300_000);
    assert_eq!(by_name("loader's variables").output, "[][]\n1\n");
    assert_eq!(by_name("kill to its own group").output, "caught\nend\n");
    if is_root() {
        let setuid = by_name("setuid id").output;
        if !setuid.contains("euid=0") {
            skip(
                "setuid",
                "the temporary folder does not honour set-user-ID programs",
            );
        }
    }
    until("nothing is left", || {
        processes_with(&bench.marker).is_empty().then_some(())
    });
}

#[test]
fn a_dry_run_does_not_forbid_huge_pages() {
    for pages in ["never", "resident", "hot", "auto"] {
        let script = "grep -q 'THP_enabled:.1' /proc/self/status && echo allowed";
        let arguments = [
            "run",
            "--dry-run",
            "--quiet",
            "--pages",
            pages,
            "--",
            "sh",
            "-c",
            script,
        ];
        let said = support::output(&mut support::superhue(User::Same, &arguments));
        if said.status.code() == Some(125) {
            // `hot` needs a tracker.
            continue;
        }
        assert_eq!(text(&said.stdout), "allowed\n", "{pages}: {said:?}");
    }
}
