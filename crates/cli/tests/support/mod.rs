//! Shared parts of the command's tests: the program itself, users, deadlines, visible skips.

#![allow(
    dead_code,
    clippy::unwrap_used,
    unused_imports,
    reason = "used by tests alone, of which none needs everything"
)]

pub(crate) mod daemon;
pub(crate) mod group;

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
pub(crate) use superhue_testing::{NOBODY, copy_program, is_root, skip};

/// Common code of Python programs: fills memory, and checks it.
pub(crate) const FILLING: &str = r"
import mmap
def fill(mebibytes, seed=1):
    memory = mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), 4096):
        memory[at:at + 8] = (at * seed).to_bytes(8, 'little')
    return memory
def whole(memory, seed=1):
    return all(memory[at:at + 8] == (at * seed).to_bytes(8, 'little') and memory[at + 8:at + 4096] == bytes(4088)
               for at in range(0, len(memory), 4096))
";

/// Deadline for anything that normally takes a moment; on a busy machine, and not optimized, it takes longer.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns a number from the environment, such as a number of repetitions.
pub(crate) fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Returns the folder of a copy of `superhue` that every user can read.
///
/// The build's own folder may be unreadable: it is often in a user's home.
pub(crate) fn installed() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let program = Path::new(env!("CARGO_BIN_EXE_superhue"));
        // Named by user rather than by process: nothing accumulates over many runs of the tests.
        let folder = env::temp_dir().join(format!(
            "superhue-tests-{}",
            rustix::process::geteuid().as_raw()
        ));
        fs::create_dir_all(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        // In one step, since other test programs may be running the existing file.
        let fresh = folder.join(format!("superhue.{}", std::process::id()));
        copy_program(program, &fresh);
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&fresh, folder.join("superhue")).unwrap();
        folder
    })
}

/// User that runs a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum User {
    /// The user that runs the tests.
    Same,
    /// A user without privileges; the same one if the tests are run by such a user.
    Ordinary,
}

impl User {
    pub(crate) fn run(self, command: &mut Command) {
        if self == Self::Ordinary && is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
    }
}

/// `superhue` with arguments, run by `user`, in the root folder, without input.
pub(crate) fn superhue(user: User, arguments: &[&str]) -> Command {
    let mut command = Command::new(installed().join("superhue"));
    command
        .args(arguments)
        .current_dir("/")
        .stdin(Stdio::null());
    user.run(&mut command);
    command
}

/// `superhue run` under a policy, with a report; more options, `--` and the program follow.
pub(crate) fn run_reported(user: User, pages: &str, report: &Path, more: &[&str]) -> Command {
    let mut command = superhue(user, &["run", "--quiet", "--pages", pages, "--report"]);
    command.arg(report).args(more);
    command
}

/// A folder for a test, in which every user may write.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

/// The same, in which no user can replace another's files (like `/tmp`): the service listens in no other.
#[allow(dead_code, reason = "not every test starts a service")]
pub(crate) fn sticky_folder() -> tempfile::TempDir {
    let folder = folder();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    folder
}

/// A child that does not outlive its test.
#[derive(Debug)]
pub(crate) struct ChildGuard(pub(crate) Child);

impl ChildGuard {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        send(self.pid(), signal);
    }

    /// Waits for the end; fails if it takes too long.
    pub(crate) fn wait(&mut self) -> std::process::ExitStatus {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "{} does not end", self.pid());
            thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for ChildGuard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command to its end; fails if it takes too long.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let late =
            ended.recv_timeout(TEST_TIMEOUT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
        if late {
            send(pid, Signal::KILL);
        }
        late
    });
    let output = child.wait_with_output().unwrap();
    drop(done);
    assert!(!watchdog.join().unwrap(), "{command:?} does not end");
    output
}

/// Returns the one line that names the error, with the possible values: other hints of the parser do not count.
pub(crate) fn complaint(said: &Output) -> String {
    let error = text(&said.stderr);
    let hint = |line: &str| {
        ["", "Usage:", "For more information", "  "]
            .iter()
            .any(|start| line.starts_with(start) && (!start.is_empty() || line.is_empty()))
    };
    let lines: Vec<&str> = error.lines().filter(|line| !hint(line)).collect();
    assert_eq!(lines.len(), 1, "not one line: {error:?}");
    let possible = |line: &&str| line.trim_start().starts_with("[possible values:");
    let values = error.lines().find(possible).unwrap_or_default();
    lines[0].to_owned() + values
}

/// Fails unless superhue prints an error with these words, exits with this status, and prints nothing else.
#[track_caller]
pub(crate) fn refused(said: &Output, status: i32, words: &[&str]) {
    let line = complaint(said);
    assert_eq!(said.status.code(), Some(status), "{line}");
    for word in words {
        assert!(line.contains(word), "no `{word}` in: {line}");
    }
    assert_eq!(text(&said.stdout), "");
}

/// Fails if running `options` under `run` starts the command.
#[track_caller]
pub(crate) fn refused_before_the_command(options: &[&str], status: i32, words: &[&str]) {
    let folder = folder();
    let trace = folder.path().join("trace");
    let mut arguments = vec!["run", "--quiet"];
    arguments.extend(options);
    arguments.extend(["--", "touch", trace.to_str().unwrap()]);
    refused(
        &output(&mut superhue(User::Same, &arguments)),
        status,
        words,
    );
    assert!(!trace.exists(), "the command was run with {options:?}");
}

/// Returns the output of `run` with a sufficient time: `heat` ends with an error if no sample is complete in time,
/// which depends on the machine.
pub(crate) fn sampled(run: impl Fn(&str) -> Output) -> Output {
    for time in ["300ms", "4s"] {
        let said = run(time);
        if !text(&said.stderr).contains("none was complete in time") {
            return said;
        }
    }
    run("30s")
}

pub(crate) fn send(pid: u32, signal: Signal) {
    let _ = kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal);
}

/// Waits until `found` finds something; fails if it takes too long.
pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + TEST_TIMEOUT;
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The letter that `/proc/PID/stat` gives a process's state; `None` if there is no such process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Returns true if a process exists and is not dead.
pub(crate) fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Live processes that were started with `NAME=VALUE` (given in that form) in their environment.
pub(crate) fn processes_with(variable: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|&pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment
            .split(|&b| b == 0)
            .any(|entry| entry == variable.as_bytes())
            && lives(pid)
    })
    .collect()
}

/// The Python of the distribution, which every user may execute (unlike one in a user's home).
pub(crate) fn python() -> Option<&'static str> {
    let path = "/usr/bin/python3";
    if !Path::new(path).exists() {
        skip("python", "no /usr/bin/python3");
        return None;
    }
    Some(path)
}

/// Returns the mount point of a cgroup file system: the unified one if there is one.
pub(crate) fn cgroups() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let of_kind = |kind: &str| {
        let line = mounts
            .lines()
            .find(|line| line.contains(&format!(" - {kind} ")))?;
        Some(PathBuf::from(line.split(' ').nth(4)?))
    };
    let mount = of_kind("cgroup2").or_else(|| of_kind("cgroup"));
    if mount.is_none() {
        skip("cgroup", "no cgroup file system is mounted");
    }
    mount
}

/// Returns true if this kernel collapses memory on request, according to `superhue check`.
pub(crate) fn collapse_works() -> bool {
    let said = output(&mut superhue(User::Same, &["check", "--json"]));
    let checked: Value = serde_json::from_slice(&said.stdout).unwrap();
    let works = checked.to_string().contains("collapse")
        && checked["capabilities"]
            .as_array()
            .unwrap()
            .iter()
            .any(|one| one["id"] == "collapse" && one["verdict"] != "no");
    if !works {
        skip(
            "collapse",
            "this kernel does not collapse memory on request",
        );
    }
    works
}

/// Compiles a C program that every user can read; `None`, with a visible skip, where there is no compiler.
pub(crate) fn compiled(name: &str, source: &str) -> Option<PathBuf> {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let program = installed().join(name);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let fresh = installed().join(format!("{name}.{}-{number}", std::process::id()));
    let file = installed().join(format!("{name}.{}-{number}.c", std::process::id()));
    fs::write(&file, source).unwrap();
    let built = Command::new("cc")
        .args(["-O1", "-pthread", "-o"])
        .args([&fresh, &file])
        .output();
    let Ok(built) = built else {
        skip("cc", "no C compiler");
        return None;
    };
    assert!(built.status.success(), "{}", text(&built.stderr));
    // Other tests may be running the existing file: it is replaced, never written to.
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&fresh, &program).unwrap();
    fs::remove_file(&file).unwrap();
    Some(program)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A statically linked busybox.
pub(crate) fn static_busybox() -> Option<&'static str> {
    let path = "/usr/bin/busybox";
    let linked = Command::new("ldd").arg(path).output();
    if Path::new(path).exists() && linked.is_ok_and(|said| !said.status.success()) {
        return Some(path);
    }
    skip(
        "static",
        "no static busybox in /usr/bin (Debian: busybox-static)",
    );
    None
}

/// A cgroup with a freezer, thawed and removed at the end (`cgroups(7)`; `Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst`).
pub(crate) struct Freezer {
    path: PathBuf,
    /// The file to write, the words that freeze and thaw, and the file with the state.
    file: &'static str,
    words: [&'static str; 2],
    state: &'static str,
}

impl Freezer {
    /// Makes one of this version of control groups; `None`, with a visible skip, where that is impossible.
    pub(crate) fn new(version: u8) -> Option<Self> {
        let name = format!("freezer-v{version}");
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let is_one = |line: &&str| match version {
            1 => line.contains(" - cgroup ") && line.ends_with(",freezer"),
            _ => line.contains(" - cgroup2 "),
        };
        let root = mounts.lines().find(is_one);
        let Some(root) = root.and_then(|line| line.split(' ').nth(4)) else {
            skip(&name, "no such control groups are mounted");
            return None;
        };
        let path = Path::new(root).join(format!("superhue-test-freezer-{}", std::process::id()));
        if let Err(error) = fs::create_dir(&path) {
            skip(&name, &error.to_string());
            return None;
        }
        let (file, words, state) = match version {
            1 => ("freezer.state", ["FROZEN", "THAWED"], "freezer.state"),
            _ => ("cgroup.freeze", ["1", "0"], "cgroup.events"),
        };
        let freezer = Self {
            path,
            file,
            words,
            state,
        };
        if !freezer.path.join(freezer.file).exists() {
            skip(&name, "the control groups have no freezer");
            return None;
        }
        Some(freezer)
    }

    /// Moves a process into it.
    pub(crate) fn take(&self, pid: u32) {
        fs::write(self.path.join("cgroup.procs"), pid.to_string()).unwrap();
    }

    /// Freezes or thaws it, and waits for that.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let word = self.words[usize::from(!is_frozen)];
        fs::write(self.path.join(self.file), word).unwrap();
        let wanted = match self.state {
            "cgroup.events" => format!("frozen {word}"),
            _ => word.to_owned(),
        };
        until("it is frozen (or thawed)", || {
            let state = fs::read_to_string(self.path.join(self.state)).unwrap();
            state.contains(&wanted).then_some(())
        });
    }
}

impl Drop for Freezer {
    /// Ends the processes still in it: in a frozen group of version 1 no process can be ended.
    fn drop(&mut self) {
        let _ = fs::write(self.path.join(self.file), self.words[1]);
        let inside = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        for pid in inside.split_whitespace() {
            send(pid.parse().unwrap(), Signal::KILL);
        }
        for _ in 0..1000 {
            if fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
