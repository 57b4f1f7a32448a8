//! The agent, in programs of an ordinary user: it collapses from inside what superhue may not from
//! outside, and the program cannot tell.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use std::fs;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use support::{User, collapse_works, folder, output, python, skip, superhue, text};

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
def wait_for(mebibytes, seconds=20):
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

/// Runs `wrap python -c program` under superhue as an ordinary user; `None` if that cannot be.
fn tell(wrap: &[&str], program: &str) -> Option<Told> {
    let python = python()?;
    if !collapse_works() {
        return None;
    }
    let folder = folder();
    let report = folder.path().join("report.json");
    let program = format!("{PRELUDE}{program}");
    let mut arguments = vec!["run", "--quiet", "--report", report.to_str().unwrap(), "--"];
    arguments.extend(wrap);
    arguments.extend([python, "-c", &program]);
    let output = output(&mut superhue(User::Ordinary, &arguments));
    let report = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    Some(Told { output, report })
}

#[test]
fn an_ordinary_users_memory_is_collapsed() {
    let Some(told) = tell(&[], "m = fill(64); print(wait_for(48))") else {
        return;
    };
    assert_eq!(told.said(), "True\n");
    assert!(told.begun() >= 24, "{}", told.report["collapses"]);
    let notes = told.report["mechanism"]["notes"].to_string();
    assert!(notes.contains("agent"), "{notes}");
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
fn it_survives_a_chain_of_execs_and_shows_in_no_environment() {
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
    // The filter ends the process at madvise(.., .., 25): by the agent's thread it would be seen.
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
# SECCOMP_SET_MODE_FILTER with TSYNC: the agent's thread gets it as well.
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

/// The mailbox has 1,023 places; whoever finds none runs without an agent.
#[test]
fn more_processes_than_places_run_all_the_same() {
    let folder = folder();
    let script = "mkfifo gate; exec 3<>gate; i=0; \
        while [ $i -lt 1100 ]; do (read word <&3; exit 0) & i=$((i+1)); done; \
        sh -c 'echo and one more'; yes | head -n 1100 >&3; wait; echo $i; rm gate";
    let mut command = superhue(
        User::Ordinary,
        &["run", "--quiet", "--", "sh", "-c", script],
    );
    let said = output(command.current_dir(folder.path()));
    if text(&said.stderr).contains("fork") {
        return skip(
            "processes",
            "1,100 processes are more than the limits allow",
        );
    }
    assert_eq!(text(&said.stdout), "and one more\n1100\n");
    assert!(said.status.success(), "{said:?}");
}

/// `always` under the system-wide mode `madvise`: memory is huge when it is touched, not later.
#[test]
fn mappings_are_advised_as_they_are_made() {
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if !mode.is_ok_and(|mode| mode.contains("[madvise]")) {
        return skip("madvise", "the system-wide mode is not `madvise`");
    }
    let Some(python) = python() else { return };
    let program = format!("{PRELUDE}\nm = fill(64); print(huge() >= 48)");
    for user in [User::Same, User::Ordinary] {
        let arguments = [
            "run", "--quiet", "--pages", "always", "--", python, "-c", &program,
        ];
        let said = output(&mut superhue(user, &arguments));
        assert_eq!(
            text(&said.stdout),
            "True\n",
            "{user:?}: {}",
            text(&said.stderr)
        );
    }
    let never = [
        "run", "--quiet", "--pages", "never", "--", python, "-c", &program,
    ];
    let said = output(&mut superhue(User::Same, &never));
    assert_eq!(text(&said.stdout), "False\n");
}

/// A ticket that leads nowhere (superhue was killed, or it is another's) is no trouble.
#[test]
fn a_dead_ticket_is_ignored() {
    let agent = support::installed().join("libsuperhue_agent.so");
    for ticket in ["1:99:5", "4000000:3:1", "nonsense", ""] {
        let mut command = Command::new("sh");
        command
            .args(["-c", "env | grep -E 'SUPERHUE|PRELOAD'; echo fine"])
            .env("LD_PRELOAD", &agent)
            .env("SUPERHUE_AGENT", ticket)
            .stdin(Stdio::null());
        User::Ordinary.run(&mut command);
        let said = output(&mut command);
        let loader = "object .* cannot be preloaded";
        assert!(!text(&said.stderr).contains(loader), "{said:?}");
        assert!(text(&said.stdout).ends_with("fine\n"), "{ticket}: {said:?}");
    }
}
