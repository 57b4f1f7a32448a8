//! `superhue status --why`: memory of every kind, made by real programs, with the reason why it is not huge.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{ChildGuard, User, is_root, output, python, skip, superhue, text};

const MIB: u64 = 1 << 20;

/// System calls that Python lacks, and memory at fixed addresses.
const CALLS: &str = r"
import ctypes, mmap, os, signal, sys
signal.alarm(300)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MIB = 1 << 20
SHARED, PRIVATE, ANONYMOUS, FIXED = 1, 2, 0x20, 0x10
def place(address, size, flags=PRIVATE | ANONYMOUS, descriptor=-1, protection=3):
    found = libc.mmap(address, size, protection, flags | FIXED, descriptor, 0)
    assert found == address, ctypes.get_errno()
    return address
def fill(address, size, step=4096):
    for at in range(address, address + size, step): ctypes.memset(at, 1, 8)
def wait(word='ready'):
    print(word, flush=True)
    sys.stdin.read()
";

/// Memory for each reason, 8 MiB at 16 GiB times the number of the reason.
const KINDS: &str = r"
def at(number): return number << 34
queue = os.open('/dev/shm/why-of-tests-%d' % os.getpid(), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
os.unlink('/dev/shm/why-of-tests-%d' % os.getpid())
os.ftruncate(queue, 8 * MIB)
fill(place(at(1) + 0x16f000, 8 * MIB, SHARED, queue), 8 * MIB)
ring = os.memfd_create('ring')
os.ftruncate(ring, 8 * MIB)
fill(place(at(2), 8 * MIB, SHARED, ring), 8 * MIB)
fill(place(at(3) + 0x1000, 8 * MIB, SHARED, ring), 8 * MIB)
fill(place(at(4) + 0x2000, 8 * MIB, SHARED | ANONYMOUS), 8 * MIB)
text = os.open('/usr/bin/python3', os.O_RDONLY)
place(at(5), 4 * MIB, PRIVATE, text, 1)
for page in range(at(5), at(5) + 4 * MIB, 4096): ctypes.string_at(page, 1)
fill(place(at(6), 8 * MIB), 8 * MIB)
assert libc.mprotect(at(6), 8 * MIB, 1) == 0
place(at(7), 8 * MIB)
assert libc.madvise(at(7), 8 * MIB, 15) == 0
fill(at(7), 8 * MIB)
fill(place(at(8), 8 * MIB), 8 * MIB)
child = os.fork()
if child == 0:
    sys.stdin.read()
    os._exit(0)
place(at(9), 8 * MIB)
libc.prctl(41, 1, 0, 0, 0)
fill(at(9), 8 * MIB, 16384)
place(at(10), 8 * MIB)
fill(at(10), 8 * MIB)
libc.prctl(41, 0, 0, 0, 0)
fill(place(at(11) + 0x1000, MIB), MIB)
place(at(12), 8 * MIB)
fill(at(12), 8 * MIB)
watched = 'watched'
uffd = libc.syscall(323, 1)
api = (ctypes.c_uint64 * 3)(0xaa, 0, 0)
register = (ctypes.c_uint64 * 4)(at(12), 8 * MIB, 1, 0)
if uffd < 0 or libc.ioctl(uffd, 0xc018aa3f, api) or libc.ioctl(uffd, 0xc020aa00, register): watched = 'unwatched'
wait(watched)
os.waitpid(child, 0)
";

/// A program that has announced that it is ready, and ends when its input does.
struct ReadyProgram {
    running: ChildGuard,
    said: String,
}

fn make(user: User, program: &str) -> Option<ReadyProgram> {
    let mut command = Command::new(python()?);
    command.args(["-c", &format!("{CALLS}{program}")]);
    Some(started(user, &mut command))
}

fn started(user: User, command: &mut Command) -> ReadyProgram {
    command
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    user.run(command);
    let mut running = ChildGuard::start(command);
    let said = first_line(&mut running.0);
    ReadyProgram { running, said }
}

fn first_line(child: &mut Child) -> String {
    let mut line = String::new();
    let stdout = child.stdout.as_mut().unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Returns the result of `status --why --json` for a process, after checking its sums.
fn why(user: User, pid: u32) -> Value {
    let said = output(&mut superhue(
        user,
        &["status", "--why", "--json", &pid.to_string()],
    ));
    assert!(said.status.success(), "{}", text(&said.stderr));
    let document: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(document["schema"], "superhue-status/1");
    assert!(document["huge_pages"].is_object());
    let why = document["processes"][0]["why"].clone();
    let number = |value: &Value| value.as_u64().unwrap();
    let sum = |value: &Value| {
        let of = value["reasons"].as_array().unwrap().iter();
        of.map(|reason| number(&reason["bytes"])).sum::<u64>() + number(&value["huge_bytes"])
    };
    assert_eq!(number(&why["resident_bytes"]), sum(&why));
    let mut resident = 0;
    for mapping in why["mappings"].as_array().unwrap() {
        assert_eq!(
            number(&mapping["resident_bytes"]),
            sum(mapping),
            "{mapping}"
        );
        resident += number(&mapping["resident_bytes"]);
    }
    assert_eq!(number(&why["resident_bytes"]), resident);
    why
}

/// Returns the reasons of the mappings in the 16 GiB from `number` times 16 GiB, with MiB and regions of each.
fn of(why: &Value, number: u64) -> Vec<(String, f64, u64)> {
    let mut found = Vec::new();
    for mapping in why["mappings"].as_array().unwrap() {
        if mapping["range"]["start"].as_u64().unwrap() >> 34 == number {
            for reason in mapping["reasons"].as_array().unwrap() {
                found.push((
                    reason["reason"].as_str().unwrap().to_owned(),
                    reason["bytes"].as_f64().unwrap() / MIB as f64,
                    reason["regions"].as_u64().unwrap(),
                ));
            }
        }
    }
    found
}

fn is_always() -> bool {
    let is_set = |file: &str, words: &[&str]| {
        let mode = fs::read_to_string(Path::new("/sys/kernel/mm/transparent_hugepage").join(file));
        mode.is_ok_and(|mode| words.iter().any(|word| mode.contains(word)))
    };
    let always = is_set("enabled", &["[always]"])
        || is_set("shmem_enabled", &["[always]", "[within_size]", "[force]"]);
    if always {
        skip("base-pages", "the kernel makes huge pages by itself here");
    }
    always
}

#[test]
fn each_kind_of_memory_has_its_reason() {
    if is_always() {
        return;
    }
    for user in [User::Same, User::Ordinary] {
        let Some(made) = make(user, KINDS) else {
            return;
        };
        let why = why(user, made.running.pid());
        let expect = |number, reasons: &[(&str, f64, u64)]| {
            let reasons: Vec<_> = reasons
                .iter()
                .map(|&(reason, mib, regions)| (reason.to_owned(), mib, regions))
                .collect();
            assert_eq!(of(&why, number), reasons, "{number}");
        };
        // Three of the four regions are whole if the mapping begins inside a region.
        let edge = |by: u64| {
            let at_the_edges = 2.0;
            assert!(by < 2 * MIB);
            [("misaligned", 6.0, 3), ("not-whole", at_the_edges, 2)]
        };
        expect(1, &edge(0x16_f000));
        expect(2, &[("possible", 8.0, 4)]);
        expect(3, &edge(0x1000));
        expect(4, &edge(0x2000));
        if fs::metadata("/usr/bin/python3").unwrap().len() >= 4 * MIB {
            expect(5, &[("file", 4.0, 2)]);
        } else {
            skip("large-file", "/usr/bin/python3 is smaller than 4 MiB");
        }
        expect(6, &[("read-only", 8.0, 4)]);
        expect(7, &[("forbidden", 8.0, 4)]);
        expect(8, &[("copy-on-write", 8.0, 4)]);
        expect(9, &[("sparse", 2.0, 4)]);
        expect(10, &[("possible", 8.0, 4)]);
        expect(11, &[("not-whole", 1.0, 1)]);
        if made.said == "watched" {
            expect(12, &[("userfaultfd", 8.0, 4)]);
        } else {
            skip("userfaultfd", "this user may have none");
        }

        let mappings = why["mappings"].as_array().unwrap();
        let mapping = |number: u64| {
            let is_it =
                |mapping: &&Value| mapping["range"]["start"].as_u64().unwrap() >> 34 == number;
            mappings.iter().find(is_it).unwrap()
        };
        assert_eq!(mapping(1)["misaligned_by"], 0x16_f000);
        assert_eq!(mapping(1)["backing"], "tmpfs");
        assert_eq!(mapping(3)["misaligned_by"], 0x1000);
        assert_eq!(mapping(4)["backing"], "shared-memory");
        assert_eq!(mapping(8)["shared_with"], 1.0);
        assert_eq!(mapping(8)["reasons"][0]["copied_bytes"], 8 * MIB);
        assert_eq!(mapping(9)["reasons"][0]["growth_bytes"], 6 * MIB);

        let pid = made.running.pid().to_string();
        let said = output(&mut superhue(user, &["status", "--why", &pid]));
        let said = text(&said.stdout);
        for words in [
            "Kernel: enabled=",
            "shmem_enabled=",
            "huge pages are allowed for it",
            "misaligned by 0x16f000",
            "shared with 1 other since a fork: 8.0 MiB to copy",
            "forbidden by the program, or a thread's stack (MADV_NOHUGEPAGE)",
            "huge=advise",
            &format!("superhue attach {pid}"),
            &format!("superhue heat {pid}"),
        ] {
            assert!(said.contains(words), "{words}: {said}");
        }
    }
}

#[test]
fn a_process_may_have_them_switched_off() {
    let program = "libc.prctl(41, 1, 0, 0, 0)\nfill(place(9 << 34, 8 * MIB), 8 * MIB)\nwait()";
    let Some(made) = make(User::Same, program) else {
        return;
    };
    let found = of(&why(User::Same, made.running.pid()), 9);
    assert_eq!(found, [("disabled".to_owned(), 8.0, 4)]);
    let pid = made.running.pid().to_string();
    let said = output(&mut superhue(User::Same, &["status", "--why", &pid]));
    assert!(text(&said.stdout).contains("switched off for it (PR_SET_THP_DISABLE)"));
}

#[test]
fn what_is_huge_is_no_reason() {
    let program = "place(9 << 34, 8 * MIB)\nfill(9 << 34, 8 * MIB)\n\
                   wait('huge' if libc.madvise(9 << 34, 4 * MIB, 25) == 0 else 'not')";
    let Some(made) = make(User::Same, program) else {
        return;
    };
    if made.said != "huge" || is_always() {
        return skip(
            "collapse",
            "this kernel does not collapse memory on request",
        );
    }
    let why = why(User::Same, made.running.pid());
    assert_eq!(of(&why, 9), [("possible".to_owned(), 4.0, 2)]);
    assert!(why["huge_bytes"].as_u64().unwrap() >= 4 * MIB);
}

#[test]
fn sixty_thousand_mappings_are_all_there() {
    let program = r"
count = 60000
place(9 << 34, count * 8192)
for number in range(count): ctypes.memset((9 << 34) + number * 8192, 1, 1)
for number in range(0, count, 2): made = libc.mprotect((9 << 34) + number * 8192, 8192, 1)
wait('all' if made == 0 else 'some')
";
    let Some(made) = make(User::Same, program) else {
        return;
    };
    if made.said != "all" {
        return skip("max-map-count", "vm.max_map_count allows fewer mappings");
    }
    let found = of(&why(User::Same, made.running.pid()), 9);
    assert_eq!(found.len(), 60_000);
    let said = output(&mut superhue(
        User::Same,
        &["status", "--why", &made.running.pid().to_string()],
    ));
    assert!(text(&said.stdout).lines().count() < 60, "too long to read");
}

#[test]
fn workloads_have_their_reasons() {
    let workload = Path::new(env!("CARGO_BIN_EXE_superhue")).with_file_name("superhue-workload");
    if !workload.exists() {
        return skip(
            "workloads",
            "build them first: cargo build -p superhue-workloads",
        );
    }
    if is_always() {
        return;
    }
    let cases: [(&[&str], &str); 2] = [
        (
            &[
                "hold",
                "--size",
                "64M",
                "--resident",
                "100%",
                "--seconds",
                "60",
            ],
            "possible",
        ),
        (
            &[
                "hold",
                "--size",
                "64M",
                "--resident",
                "10%",
                "--seconds",
                "60",
            ],
            "sparse",
        ),
    ];
    for (arguments, expected) in cases {
        let mut command = Command::new(&workload);
        let made = started(User::Same, command.args(arguments));
        let found = why(User::Same, made.running.pid());
        assert_eq!(
            found["reasons"][0]["reason"], expected,
            "{arguments:?} {}",
            made.said
        );
    }
}

/// Fails unless superhue prints an error with these words, exits with this status, and prints nothing else.
fn refused(user: User, arguments: &[&str], status: i32, words: &[&str]) {
    let said = output(&mut superhue(user, arguments));
    let line = text(&said.stderr);
    assert_eq!(said.status.code(), Some(status), "{line}");
    assert!(said.stdout.is_empty(), "{}", text(&said.stdout));
    for word in words {
        assert!(line.contains(word), "{word}: {line}");
    }
}

#[test]
fn what_cannot_be_looked_at_is_said_with_what_to_do() {
    refused(User::Same, &["status", "--why"], 2, &["--why", "PID"]);
    refused(User::Same, &["status", "--why", "0"], 2, &["0"]);
    refused(
        User::Same,
        &["status", "--why", "4194305"],
        1,
        &["4194305", "does not exist"],
    );
    if fs::read("/proc/2/cmdline").is_ok_and(|words| words.is_empty()) {
        refused(User::Same, &["status", "--why", "2"], 1, &["kernel thread"]);
    } else {
        skip(
            "kernel-thread",
            "no kernel thread is to be seen (container)",
        );
    }
    if !is_root() {
        return skip("root", "others' processes are made by root here");
    }
    let sleeper = ChildGuard::start(Command::new("sleep").arg("60"));
    let pid = sleeper.pid().to_string();
    refused(
        User::Ordinary,
        &["status", "--why", &pid],
        3,
        &["CAP_SYS_PTRACE"],
    );
}
