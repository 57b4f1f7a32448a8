//! `run --colors`: programs whose memory is placed by color behave byte for byte as without, whatever they do with
//! their memory, their descriptors and their threads; and the report gives the result.
//!
//! Colors are those that this machine shows; if it shows none, programs run without, and the report records that.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::Value;
use superhue_testing::alone;

use crate::support::{
    ChildGuard, FILLING, User, folder, is_root, lives, output, python, skip, superhue, text, until,
};

/// Common part of the Python programs, besides that.
const PRELUDE: &str = r"
import ctypes, hashlib, os, signal, subprocess, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def lists(n):
    return hashlib.sha256(b''.join(bytes([i % 251]) * (i % 700) for i in range(n))).hexdigest()
";

/// Programs, each of which prints its findings.
const PROGRAMS: &[(&str, &str)] = &[
    (
        "memory",
        "m = fill(24); print(lists(20000)); time.sleep(0.05); print(whole(m))",
    ),
    (
        "memory that comes and goes",
        "for i in range(40):\n m = fill(2, i)\n ok = whole(m, i)\n if i % 3: m.close()\n if not ok: print('lost', i)\nprint(lists(5000))",
    ),
    (
        "memory that grows, shrinks and is given up",
        "m = fill(4)\nm.resize(8 << 20); print(m[5 << 20:(5 << 20) + 16]); m.resize(2 << 20); print(whole(m))\n\
         m.madvise(mmap.MADV_DONTNEED); print(m[:16], m[-16:])",
    ),
    (
        "threads",
        "out = [None] * 8\ndef work(n):\n m = fill(3, n); out[n] = (whole(m, n), lists(2000))\n\
         ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n[t.start() for t in ts]; [t.join() for t in ts]\nprint(out)",
    ),
    (
        "forks",
        "m = fill(8)\nfor i in range(60):\n p = os.fork()\n if p == 0:\n  os._exit(0 if whole(m[:1 << 18]) else 1)\n \
         m[i * 4096 + 100] = 0\n print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]), end=' ')\nprint(whole(m))",
    ),
    (
        "forks that fork",
        "m = fill(4)\ndef go(n):\n if n == 0: return whole(m)\n r, w = os.pipe(); p = os.fork()\n \
         if p == 0:\n  os.write(w, bytes([go(n - 1)])); os._exit(0)\n os.waitpid(p, 0); return os.read(r, 1) == b'\\1' and whole(m)\nprint(go(6))",
    ),
    (
        "forks without libc",
        "m = fill(8)\nfor i in range(20):\n p = libc.syscall(56, signal.SIGCHLD, 0, 0, 0, 0)\n \
         if p == 0: os._exit(0 if whole(m) else 1)\n print(os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]), end=' ')\nprint()",
    ),
    (
        "spawned programs",
        "m = fill(4)\nfor i in range(12): print(subprocess.run(['/bin/echo', str(i)], capture_output=True).stdout)\n\
         print(os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn('/bin/false', ['false'], os.environ), 0)[1]), whole(m))",
    ),
    (
        "a chain of programs",
        "n = int(os.environ.get('LEFT', 5)); m = fill(2); print(n, whole(m), flush=True); os.environ['LEFT'] = str(n - 1)\n\
         if n: os.execv(sys.executable, [sys.executable, '-c', sys.orig_argv[-1]])",
    ),
    (
        "all descriptors closed",
        "os.dup2(1, 60); os.closerange(3, 60); os.closerange(61, 4096)\nm = fill(8); print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:6])\n\
         os.close(0); os.close(1); os.close(2); ok = whole(m)\nos.write(60, b'%d' % ok)",
    ),
    (
        "the next descriptor's number",
        "m = fill(8); time.sleep(0.05); print(os.open('/dev/null', os.O_RDONLY), os.pipe())",
    ),
    (
        "errno stays",
        "bad = 0\nfor i in range(3000):\n ctypes.set_errno(0); libc.close(-1); bad += ctypes.get_errno() != 9; fill(1) if i % 500 == 0 else 0\nprint(bad)",
    ),
    (
        "signals",
        "got = []\nsignal.signal(signal.SIGALRM, lambda *a: got.append(len(bytearray(1 << 19)))); signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)\n\
         m = fill(16); signal.setitimer(signal.ITIMER_REAL, 0); print(whole(m), set(got) <= {1 << 19})",
    ),
    (
        "a userfaultfd of its own",
        "m = fill(4); time.sleep(0.02); fd = libc.syscall(323, 0o2000000 | 1); n = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)\n\
         api = (ctypes.c_uint64 * 3)(0xaa, 0, 0); print(fd >= 0, libc.ioctl(fd, 0xc018aa3f, api))\n\
         at = ctypes.addressof(ctypes.c_char.from_buffer(n)); reg = (ctypes.c_uint64 * 4)(at, 4 << 20, 1, 0)\n\
         print(libc.ioctl(fd, ctypes.c_ulong(0xc020aa00), reg)); rng = (ctypes.c_uint64 * 2)(at, 4 << 20); print(libc.ioctl(fd, ctypes.c_ulong(0x8010aa01), rng)); print(whole(m))",
    ),
    (
        "a seccomp filter",
        // Allows every call except clone and userfaultfd; those end the process.
        "m = fill(4); time.sleep(0.02)\n\
         code = (ctypes.c_uint64 * 5)(0x0000_0000_0000_0020, 0x0000_0143_0001_0015, 0x0000_0010_0000_0015, 0x7fff_0000_0000_0006, 0x8000_0000_0000_0006)\n\
         class P(ctypes.Structure): _fields_ = [('n', ctypes.c_ushort), ('f', ctypes.c_void_p)]\n\
         p = P(4, ctypes.addressof(code)); code[1] = 0x0000_0143_0001_0015; code[2] = 0x7fff_0000_0000_0006; code[3] = 0x8000_0000_0000_0006\n\
         print(libc.prctl(38, 1, 0, 0, 0), libc.prctl(22, 2, ctypes.byref(p), 0, 0)); n = fill(8); print(whole(m), whole(n))",
    ),
    (
        "locked memory",
        "m = fill(2); r = libc.mlockall(3); n = fill(4); print(whole(m), whole(n)); libc.munlockall(); k = fill(2); print(whole(k))",
    ),
    (
        "a limited address space",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 << 20, 600 << 20)); m = fill(32); print(whole(m))\n\
         try: bytearray(2 << 30)\nexcept MemoryError: print('no memory')",
    ),
    (
        "system calls that fill memory",
        "r, w = os.pipe(); t = threading.Thread(target=lambda: [os.write(w, b'x' * 4096) for i in range(3000)]); t.start()\n\
         m = mmap.mmap(-1, 12 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); v = memoryview(m); at = 0\n\
         while at < 3000 * 4096: at += os.readv(r, [v[at:min(at + 65536, 3000 * 4096)]])\nt.join(); print(m[:3000 * 4096] == b'x' * (3000 * 4096))",
    ),
    ("its own end", "m = fill(6); os._exit(7)"),
    ("its own death", "m = fill(6); os.kill(os.getpid(), 9)"),
];

/// Options of `run`.
const WAYS: &[&[&str]] = &[
    &["--colors", "spread", "--pages", "kernel"],
    &["--colors", "0-1", "--pages", "kernel"],
    &["--colors", "spread", "--pages", "resident"],
    &["--pages", "resident"],
];

fn users() -> Vec<User> {
    if is_root() {
        vec![User::Same, User::Ordinary]
    } else {
        vec![User::Ordinary]
    }
}

/// Runs a Python program by itself.
fn plainly(user: User, program: &str) -> Option<Output> {
    let mut command = Command::new(python()?);
    command.args(["-c", &format!("{FILLING}{PRELUDE}{program}")]);
    command.current_dir("/").stdin(Stdio::null());
    user.run(&mut command);
    Some(output(&mut command))
}

/// Runs a Python program under superhue; returns its output, and the report.
fn colored(user: User, options: &[&str], program: &str) -> Option<(Output, Value)> {
    let (python, folder) = (python()?, folder());
    let report = folder.path().join("report.json");
    let program = format!("{FILLING}{PRELUDE}{program}");
    let mut arguments = vec!["run", "--quiet", "--report", report.to_str().unwrap()];
    arguments.extend(options);
    arguments.extend(["--", python, "-c", &program]);
    let mut command = superhue(user, &arguments);
    let output = output(&mut command);
    let report = serde_json::from_slice(&fs::read(&report).unwrap_or_default());
    Some((output, report.unwrap_or_default()))
}

#[test]
fn programs_behave_alike_with_and_without_colors() {
    // Half of the programs in parallel with the other half: they sleep for much of the time.
    let (one, other) = PROGRAMS.split_at(PROGRAMS.len() / 2);
    let differences: Vec<String> = thread::scope(|scope| {
        let halves = [one, other].map(|half| scope.spawn(move || differences_of(half)));
        let found = halves.into_iter().map(|half| half.join().unwrap());
        found.flatten().collect()
    });
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Returns the differences with and without colors, for every user and in every way.
fn differences_of(programs: &[(&str, &str)]) -> Vec<String> {
    let mut differences = Vec::new();
    for user in users() {
        for (name, program) in programs {
            let Some(plain) = plainly(user, program) else {
                return differences;
            };
            for options in WAYS {
                let Some((under, _)) = colored(user, options, program) else {
                    return differences;
                };
                if under != plain {
                    differences.push(format!(
                        "{name} ({user:?}, {options:?}):\n  without {plain:?}\n  under   {under:?}"
                    ));
                }
            }
        }
    }
    differences
}

#[test]
fn the_report_says_who_places_and_by_what() {
    for user in users() {
        for (colors, wanted) in [("spread", None), ("0-1", Some("0-1"))] {
            let options = ["--colors", colors, "--pages", "kernel"];
            let Some((said, report)) = colored(user, &options, "m = fill(8); print(whole(m))")
            else {
                return;
            };
            assert_eq!(text(&said.stdout), "True\n");
            let colors_of = &report["colors"];
            assert_eq!(colors_of["request"], colors, "{report}");
            match colors_of["placement"].as_str().unwrap() {
                // A patched kernel has tests of its own.
                "kernel" => {}
                "recolor" => {
                    assert_eq!(colors_of["oracle"], "measured", "{report}");
                    assert!(colors_of["colors"].as_u64() > Some(1), "{report}");
                    assert!(colors_of["without"].is_null(), "{report}");
                    if let Some(wanted) = wanted {
                        assert_eq!(colors_of["wanted"], wanted, "{report}");
                    }
                }
                "none" => assert!(colors_of["without"].is_string(), "{report}"),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn processes_that_run_already_can_be_asked_for_too() {
    let mut sleep = Command::new("sleep");
    let sleeper = ChildGuard::start(sleep.arg("1000"));
    let pid = sleeper.pid().to_string();
    let arguments = [
        "attach", "--pages", "kernel", "--colors", "spread", "--for", "50ms", "--json", &pid,
    ];
    let said = output(&mut superhue(User::Same, &arguments));
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(report["colors"]["request"], "spread", "{report}");
    let placement = report["colors"]["placement"].as_str().unwrap();
    assert!(["recolor", "none"].contains(&placement), "{report}");
}

#[test]
fn a_program_outlives_superhue() {
    let Some(python) = python() else { return };
    let folder = folder();
    let mark = folder.path().join("mark");
    for user in users() {
        let program = format!(
            "{FILLING}{PRELUDE}m = fill(16); open({mark:?}, 'w').write(str(os.getpid()))\n\
             while os.getppid() == int(sys.argv[1] if len(sys.argv) > 1 else os.environ['BOSS']): time.sleep(0.01)\n\
             n = fill(32); open({mark:?} + '.end', 'w').write(str(whole(m) and whole(n)))",
        );
        let script = format!("BOSS=$PPID exec {python} -c \"$0\"");
        let arguments = [
            "run", "--quiet", "--colors", "spread", "--", "sh", "-c", &script, &program,
        ];
        let mut command = superhue(user, &arguments);
        command.stdout(Stdio::null());
        let running = ChildGuard::start(&mut command);
        let pid = until("the program has begun", || {
            fs::read_to_string(&mark).ok()?.parse().ok()
        });
        running.signal(Signal::KILL);
        let end = mark.with_extension("end");
        let whole = until("the program has ended", || {
            fs::read_to_string(&end)
                .ok()
                .filter(|text| !text.is_empty())
        });
        assert_eq!(whole, "True");
        until("it is gone", || (!lives(pid)).then_some(()));
        fs::remove_file(&mark).unwrap();
        fs::remove_file(&end).unwrap();
    }
}

#[test]
fn nonsense_is_refused_before_anything_starts() {
    for (colors, status) in [("", 2), ("3-1", 2), ("1,1", 2), ("0%", 2)] {
        let arguments = ["run", "--colors", colors, "--", "touch", "/nowhere/at/all"];
        let said = output(&mut superhue(User::Same, &arguments));
        assert_eq!(said.status.code(), Some(status), "{colors}: {said:?}");
    }
}

#[test]
fn colors_that_there_are_not_are_refused() {
    let arguments = ["run", "--strict", "--colors", "65535", "--", "echo", "ran"];
    let said = output(&mut superhue(User::Same, &arguments));
    assert_eq!(text(&said.stdout), "", "{said:?}");
    match said.status.code() {
        Some(2) => {}
        Some(125) => skip("colors", text(&said.stderr).trim()),
        other => panic!("{other:?}: {said:?}"),
    }
}

/// Keeps pages of several kinds in use until it must stop, and checks them: pages of a pipe must show later writes to them.
const KINDS: &str = r"
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None, use_errno=True)
PAGE = 4096
def some(pages, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, fill=True):
    memory = mmap.mmap(-1, pages * PAGE, flags=flags)
    if fill:
        for at in range(0, len(memory), PAGE):
            memory[at:at + 8] = (at + 1).to_bytes(8, 'little')
    return memory
def address(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
plain, shared = some(64), some(32, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
locked, lazy, forked = some(16), some(16), some(16)
assert libc.mlock(ctypes.c_void_p(address(locked)), len(locked)) == 0
lazy.madvise(mmap.MADV_FREE)
child = os.fork()
if child == 0:
    while os.path.exists(sys.argv[1]): time.sleep(0.02)
    os._exit(0 if all(forked[at] == (at + 1) % 256 for at in range(0, len(forked), PAGE)) else 1)
# After the fork: what is shared since one is copied by the next write, pipe or no pipe.
piped = some(16)
class Part(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
reader, writer = os.pipe()
part = Part(address(piped), len(piped))
assert libc.vmsplice(writer, ctypes.byref(part), 1, 0) == len(piped)
print('ready', flush=True)
turns = 0
while os.path.exists(sys.argv[1]):
    for memory in (plain, shared, locked, lazy, piped, forked):
        for at in range(0, len(memory), PAGE):
            memory[at]
    for memory in (plain, shared):
        for at in range(0, len(memory), PAGE):
            assert memory[at:at + 8] == (at + 1).to_bytes(8, 'little'), 'lost'
    if turns % 100 == 0:
        # Where memory is short the kernel drops what was freed.
        for at in range(0, len(lazy), PAGE):
            lazy[at] = 1
        lazy.madvise(mmap.MADV_FREE)
    turns += 1
for at in range(0, len(piped), PAGE):
    piped[at:at + 8] = (at + 7).to_bytes(8, 'little')
seen = os.read(reader, len(piped))
assert all(seen[at:at + 8] == (at + 7).to_bytes(8, 'little') for at in range(0, len(piped), PAGE)), 'another page'
assert all(locked[at] == (at + 1) % 256 for at in range(0, len(locked), PAGE))
assert os.waitpid(child, 0)[1] == 0
print('right')
";

#[test]
fn what_must_not_move_stays_and_all_bytes_too() {
    let _alone = alone();
    if !is_root() {
        return skip("root", "frame numbers and swap are root's");
    }
    let Some(python) = python() else { return };
    let folder = folder();
    let mark = folder.path().join("mark");
    fs::write(&mark, "").unwrap();
    let mut command = Command::new(python);
    command.args(["-c", KINDS]).arg(&mark);
    command.stdout(Stdio::piped());
    let mut program = ChildGuard::start(&mut command);
    let mut lines = BufReader::new(program.0.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = program.pid().to_string();
    let swaps = || fs::read_to_string("/proc/swaps").unwrap();
    // To load a tracker takes more than 1 % of three seconds, most of all in a build without optimization.
    let attach = [
        "attach",
        "--pages",
        "kernel",
        "--colors",
        "50%",
        "--swap",
        "--for",
        "3s",
        "--max-overhead",
        "20%",
        "--json",
        &pid,
    ];
    let reasons = [
        "locked in memory",
        "freed lazily (MADV_FREE)",
        "mapped by other processes too",
        "kept by the kernel",
    ];
    let (mut recolored, mut found) = (0, BTreeSet::new());
    // Each attempt uses the pages that are hot then; on a busy machine it takes a while to find them.
    for _ in 0..20 {
        let said = output(&mut superhue(User::Same, &attach));
        assert!(said.status.success(), "{said:?}");
        let report: Value = serde_json::from_slice(&said.stdout).unwrap();
        let made = report["settings"]["swap_removed"].as_array().unwrap();
        let is_on = |made: &Value| swaps().contains(&format!("{} ", made.as_str().unwrap()));
        assert!(!made.iter().any(is_on), "{report}, {}", swaps());
        let colors = &report["colors"];
        if let Some(why) = colors["without"].as_str() {
            fs::remove_file(&mark).unwrap();
            return skip("measured", why);
        }
        recolored += colors["recoloring"]["recolored_pages"].as_u64().unwrap();
        let left = colors["left_bytes"].as_object().unwrap().keys();
        let is_left = |reason: &str| left.clone().any(|key| key.starts_with(reason));
        found.extend(reasons.into_iter().filter(|reason| is_left(reason)));
        if recolored >= 96 && found.len() == reasons.len() {
            break;
        }
    }
    fs::remove_file(&mark).unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "right");
    assert!(program.wait().success());
    assert!(recolored >= 96, "{recolored}");
    assert_eq!(found, BTreeSet::from(reasons));
}
