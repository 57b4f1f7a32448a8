//! Visits to programs of an ordinary user: what superhue may not collapse from outside is collapsed inside, and the
//! program cannot tell.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use support::{
    Running, User, collapse_works, folder, is_root, may_trace_own, output, python, skip,
    static_busybox, superhue, text, until,
};

/// What the Python programs below have in common.
const PRELUDE: &str = r"
import ctypes, mmap, os, subprocess, sys, time
def fill(mebibytes):
    memory = mmap.mmap(-1, mebibytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    for at in range(0, len(memory), 4096):
        memory[at] = 1
    return memory
def huge():
    for line in open('/proc/self/smaps_rollup'):
        if line.startswith('AnonHugePages:'):
            return int(line.split()[1]) >> 10
def wait_for(mebibytes, seconds=60):
    deadline = time.time() + seconds
    while huge() < mebibytes and time.time() < deadline:
        time.sleep(0.02)
    return huge() >= mebibytes
";

/// What a Python program said, and superhue's report about it.
struct Told {
    output: Output,
    report: Value,
}

impl Told {
    fn said(&self) -> String {
        assert!(self.output.status.success(), "{:?}", self.output);
        text(&self.output.stdout)
    }

    fn done(&self) -> u64 {
        self.report["collapses"]["done"].as_u64().unwrap()
    }

    /// Collapses that the program may have seen: those that Superhue knows of, and those whose
    /// process was gone before it could say that they were done.
    fn begun(&self) -> u64 {
        self.done() + self.report["collapses"]["vanished"].as_u64().unwrap()
    }
}

/// Runs `command` under superhue; `None` if that cannot be.
fn tell_of(user: User, options: &[&str], command: &[&str]) -> Option<Told> {
    if !collapse_works() {
        return None;
    }
    let folder = folder();
    let report = folder.path().join("report.json");
    let mut arguments = vec!["run", "--quiet", "--report", report.to_str().unwrap()];
    arguments.extend(options);
    arguments.push("--");
    arguments.extend(command);
    let mut command = superhue(user, &arguments);
    // Not the group of the tests: a program signals its whole group.
    let output = output(command.process_group(0));
    let report = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    Some(Told { output, report })
}

/// Runs `wrap python -c program` under superhue as an ordinary user; `None` if that cannot be.
fn tell(wrap: &[&str], program: &str) -> Option<Told> {
    let program = format!("{PRELUDE}{program}");
    let mut command = wrap.to_vec();
    command.extend([python()?, "-c", &program]);
    tell_of(User::Ordinary, &[], &command)
}

#[test]
fn an_ordinary_users_memory_is_collapsed_in_visits() {
    let program = "m = fill(64); print(wait_for(48))
print(os.listdir('/proc/self/task') == [str(os.getpid())], 'superhue' in open('/proc/self/maps').read())";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(
        told.said(),
        "True\nTrue False\n",
        "and nothing is left inside"
    );
    assert!(told.begun() >= 24, "{}", told.report["collapses"]);
    let notes = told.report["mechanism"]["notes"].to_string();
    assert!(notes.contains("visits"), "{notes}");
    let visits = &told.report["visits"];
    assert!(visits["count"].as_u64().unwrap() >= 1, "{visits}");
    let pause = |name: &str| visits[name].as_f64().unwrap();
    assert!(pause("median_pause_seconds") > 0.0, "{visits}");
    assert!(pause("longest_pause_seconds") <= pause("paused_seconds"));
}

#[test]
fn with_the_capability_nobody_is_visited() {
    if !is_root() {
        return skip("root", "it has CAP_SYS_NICE");
    }
    let Some(python) = python() else { return };
    let program = format!("{PRELUDE}m = fill(64); print(wait_for(48))");
    let options = ["--pages", "resident"];
    let Some(told) = tell_of(User::Same, &options, &[python, "-c", &program]) else {
        return;
    };
    assert_eq!(told.said(), "True\n");
    assert!(told.begun() >= 24, "{}", told.report["collapses"]);
    assert!(told.report["visits"].is_null(), "{}", told.report["visits"]);
}

#[test]
fn statically_linked_programs_are_visited_too() {
    let Some(busybox) = static_busybox() else {
        return;
    };
    let program = r#"BEGIN {
        for (i = 0; i < 300000; i++) a[i] = sprintf("%064d", i)
        f = "/proc/self/smaps_rollup"
        for (n = 0; n < 1200; n++) {
            while ((getline line < f) > 0) {
                split(line, w, " ")
                if (w[1] == "AnonHugePages:" && w[2] > 0) { print "huge"; exit }
            }
            close(f); system("sleep 0.05")
        }
        print "none"
    }"#;
    let command = [busybox, "awk", program];
    let Some(told) = tell_of(User::Ordinary, &["--pages", "resident"], &command) else {
        return;
    };
    assert_eq!(told.said(), "huge\n");
    assert!(told.begun() > 0, "{}", told.report["collapses"]);
}

#[test]
fn a_process_that_is_debugged_is_left_alone() {
    let program = "
libc = ctypes.CDLL(None, use_errno=True)
r, w = os.pipe()
told, tell = os.pipe()
pid = os.fork()
if pid == 0:
    os.read(r, 1)
    m = fill(16); os.write(tell, b'x'); os.read(r, 1); os._exit(7 if huge() else 3)
assert libc.ptrace(0x4206, pid, 0, 0) == 0
os.write(w, b'x')
os.read(told, 1)
# Who is not debugged is visited meanwhile.
n = fill(16); print(wait_for(12)); time.sleep(1)
os.write(w, b'x')
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "True\n3\n");
    let left = told.report["processes"]["left_alone"].to_string();
    assert!(left.contains("debugger"), "{}", told.report);
}

/// Nothing of theirs was started by superhue.
#[test]
fn an_ordinary_user_attaches_to_processes_of_his_own() {
    let Some(python) = python() else { return };
    if !collapse_works() {
        return;
    }
    if !may_trace_own() {
        return skip("ptrace", "kernel.yama.ptrace_scope is not 0");
    }
    let program = format!("{PRELUDE}m = fill(64); print(wait_for(48, 60), flush=True)");
    let mut command = Command::new(python);
    command.args(["-c", &program]).stdout(Stdio::piped());
    User::Ordinary.run(&mut command);
    let mut process = Running::start(&mut command);
    let pid = process.pid().to_string();
    let folder = folder();
    let report = folder.path().join("report.json");
    let arguments = ["attach", "--pages", "resident", "--report"];
    let mut command = superhue(User::Ordinary, &arguments);
    command.args([report.to_str().unwrap(), &pid]);
    let mut attached = Running::start(&mut command);
    let mut told = String::new();
    let mut out = process.0.stdout.take().unwrap();
    std::io::Read::read_to_string(&mut out, &mut told).unwrap();
    assert!(process.wait().success());
    assert!(attached.wait().success());
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    assert_eq!(told, "True\n", "{report}");
    assert!(report["collapses"]["done"].as_u64() > Some(0), "{report}");
    assert!(report["visits"]["count"].as_u64() > Some(0), "{report}");
}

/// A killed superhue leaves the program as it was.
#[test]
fn a_program_outlives_superhue() {
    let Some(python) = python() else { return };
    let folder = folder();
    let (mark, end) = (folder.path().join("mark"), folder.path().join("end"));
    let program = format!(
        "{PRELUDE}
m = fill(16); open({mark:?}, 'w').write('x')
while os.path.exists({mark:?}): time.sleep(0.01)
n = fill(16); open({end:?}, 'w').write(str(all(memory[at] == 1 for memory in (m, n) for at in range(0, len(m), 4096))))"
    );
    let arguments = ["run", "--quiet", "--", python, "-c", &program];
    let running = Running::start(&mut superhue(User::Ordinary, &arguments));
    until("it has begun", || mark.exists().then_some(()));
    thread::sleep(Duration::from_millis(50));
    running.signal(rustix::process::Signal::KILL);
    fs::remove_file(&mark).unwrap();
    let whole = until("it has ended", || {
        fs::read_to_string(&end)
            .ok()
            .filter(|text| !text.is_empty())
    });
    assert_eq!(whole, "True");
}

#[test]
fn forked_children_are_served_too() {
    let program = "
read, write = os.pipe()
for _ in range(3):
    if os.fork() == 0:
        m = fill(16)
        os.write(write, b'%d\\n' % wait_for(12))
        os._exit(0)
for _ in range(3): os.wait()
print(os.read(read, 100).decode().split())";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "['1', '1', '1']\n");
    assert!(told.begun() >= 18, "{}", told.report["collapses"]);
}

#[test]
fn closing_every_descriptor_does_it_no_harm() {
    let program = "
os.closerange(3, 4096)
assert os.open('/dev/null', os.O_RDONLY) == 3
m = fill(16)
print(wait_for(12))";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "True\n");
}

#[test]
fn programs_are_visited_after_a_chain_of_execs_and_it_shows_in_no_environment() {
    let program = "
print([name for name in os.environ if 'SUPERHUE' in name or name in ('LD_PRELOAD', 'GLIBC_TUNABLES')])
m = fill(16)
print(wait_for(12))";
    for wrap in [
        &["sh", "-c", "exec \"$@\"", "sh"][..],
        &["sh", "-c", "\"$@\"; exit $?", "sh"],
        &["env", "-i", "A=b"],
        &["nice", "env", "sh", "-c", "exec \"$@\"", "sh"],
    ] {
        let Some(told) = tell(wrap, program) else {
            return;
        };
        assert_eq!(told.said(), "[]\nTrue\n", "{wrap:?}");
    }
}

/// Superhue and whoever makes its visits are in the command's process group.
#[test]
fn a_program_may_signal_its_whole_group() {
    let program = "
import signal
for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, lambda *_: None)
    m = fill(16); seen = wait_for(12)
    os.killpg(0, number)
    n = fill(16); print(seen, wait_for(24))
    m.close(); n.close()";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "True True\n".repeat(4));
}

#[test]
fn children_of_python_are_served_however_they_are_started() {
    let program = "
code = sys.argv[1] if len(sys.argv) > 1 else None
child = 'import sys; exec(sys.stdin.read())'
source = PRELUDE + 'm = fill(16); sys.exit(0 if wait_for(12) else 5)'
print(subprocess.run([sys.executable, '-c', child], input=source.encode()).returncode)
open_read, open_write = os.pipe()
os.write(open_write, source.encode()); os.close(open_write)
pid = os.posix_spawn(sys.executable, [sys.executable, '-c', child], os.environ,
                     file_actions=[(os.POSIX_SPAWN_DUP2, open_read, 0)])
print(os.waitpid(pid, 0)[1])";
    let program = format!("PRELUDE = {PRELUDE:?}\n{program}");
    let Some(told) = tell(&[], &program) else {
        return;
    };
    assert_eq!(told.said(), "0\n0\n");
}

#[test]
fn programs_with_a_seccomp_filter_are_left_alone() {
    // The filter ends the process at madvise(.., .., 25).
    let program = "
import platform, struct
if platform.machine() != 'x86_64':
    print('survived'); sys.exit()
libc = ctypes.CDLL(None, use_errno=True)
def op(code, k, true=0, false=0): return struct.pack('HBBI', code, true, false, k)
steps = [op(0x20, 0), op(0x15, 28, 0, 3), op(0x20, 32), op(0x15, 25, 0, 1),
         op(0x06, 0x80000000), op(0x06, 0x7fff0000)]
code = ctypes.create_string_buffer(b''.join(steps))
class Program(ctypes.Structure):
    _fields_ = [('length', ctypes.c_ushort), ('filter', ctypes.c_void_p)]
program = Program(len(steps), ctypes.addressof(code))
assert libc.prctl(38, 1, 0, 0, 0) == 0
# SECCOMP_SET_MODE_FILTER, for all threads.
assert libc.syscall(317, 1, 1, ctypes.byref(program)) == 0
m = fill(16)
wait_for(2, 2)
print('survived')";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "survived\n");
    assert_eq!(told.done(), 0);
    let skipped = told.report["collapses"]["skipped"].to_string();
    assert!(skipped.contains("seccomp"), "{}", told.report["collapses"]);
}

#[test]
fn storms_of_short_processes_pass() {
    let program = "
for i in range(150):
    assert subprocess.run(['/bin/true']).returncode == 0
    assert os.spawnv(os.P_WAIT, '/bin/sh', ['sh', '-c', 'exit 3']) == 3
    pid = os.posix_spawn('/bin/false', ['false'], os.environ)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    assert os.system('exit 4') == 4 << 8
print('done')";
    let Some(told) = tell(&[], program) else {
        return;
    };
    assert_eq!(told.said(), "done\n");
}

/// `always` where the system-wide mode is another: memory is huge soon after it is touched.
#[test]
fn always_collapses_what_the_kernel_does_not_give() {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if mode.is_ok_and(|mode| mode.contains("[always]")) {
        return skip("madvise", "the system-wide mode is `always`");
    }
    let Some(python) = python() else { return };
    let program = format!("{PRELUDE}\nm = fill(64); print(wait_for(48))");
    for user in [User::Same, User::Ordinary] {
        let command = [python, "-c", &program];
        let Some(told) = tell_of(user, &["--pages", "always"], &command) else {
            return;
        };
        assert_eq!(told.said(), "True\n", "{user:?}");
        let notes = told.report["mechanism"]["notes"].to_string();
        assert!(notes.contains("--system enabled=always"), "{notes}");
    }
}
