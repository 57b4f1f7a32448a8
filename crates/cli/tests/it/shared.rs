//! Memory that processes share since a fork is not copied to make huge pages.

use std::path::Path;

use crate::support::{User, folder, is_root, output, python, run_reported, skip, superhue, text};

/// 32 MiB, of which each page is mapped by three more processes that read it. Prints the memory of the four right after
/// the forks, and the most of it in as many half seconds as the second argument says; then the part of it that huge pages map, for as many tenths of
/// a second as the first argument says after the three have ended.
const PROGRAM: &str = r"
import ctypes, mmap, os, re, signal, sys, time
HUGE = 2 << 20
m = mmap.mmap(-1, 17 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at:at + 8] = at.to_bytes(8, 'little')
start = ctypes.addressof(ctypes.c_char.from_buffer(m))
def used(pid, name):
    # Of that memory alone: the interpreter's own is copied bit by bit, as each child counts references.
    total, ours = 0, False
    for line in open(f'/proc/{pid}/smaps'):
        if found := re.match(r'([0-9a-f]+)-([0-9a-f]+) ', line):
            ours = int(found[1], 16) < start + len(m) and int(found[2], 16) > start
        elif ours and line.startswith(name + ':'):
            total += int(line.split()[1])
    return total
def read():
    return all(m[at:at + 8] == at.to_bytes(8, 'little') for at in range(0, len(m), 4096))
children = []
for _ in range(3):
    child = os.fork()
    if not child:
        while read(): time.sleep(0.05)
        os._exit(1)
    children.append(child)
everybody = [os.getpid(), *children]
before = sum(used(pid, 'Pss') for pid in everybody)
after = 0
for _ in range(int(sys.argv[2])):
    time.sleep(0.5)
    after = max(after, sum(used(pid, 'Pss') for pid in everybody))
for child in children:
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
huge = 0
for _ in range(int(sys.argv[1])):
    time.sleep(0.1)
    huge = used('self', 'AnonHugePages')
    if huge: break
assert read()
print(before, after, huge)
";

#[test]
fn what_children_share_is_copied_for_nobody() {
    // In parallel: both wait for seconds.
    std::thread::scope(|scope| {
        for user in [User::Same, User::Ordinary] {
            scope.spawn(move || is_copied_for_nobody(user));
        }
    });
}

fn is_copied_for_nobody(user: User) {
    let folder = folder();
    let report = folder.path().join("report.json");
    let Some(python) = python() else { return };
    let is_permitted = user == User::Same && is_root();
    let tenths = if is_permitted { "600" } else { "20" };
    // On a busy machine superhue may not look at the memory within 3 s.
    for halves in ["6", "40"] {
        let program = ["--", python, "-c", PROGRAM, tenths, halves];
        let done = output(&mut run_reported(user, "resident", &report, &program));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let said = text(&done.stdout);
        let numbers: Vec<u64> = said
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let [before, after, huge] = numbers[..] else {
            panic!("{said}");
        };
        assert!(
            after <= before + before / 20,
            "{user:?}: {before} -> {after} KiB\n{}",
            std::fs::read_to_string(&report).unwrap_or_default()
        );
        if !is_permitted {
            skip("sys-nice", "nothing is collapsed for an ordinary user here");
            return;
        }
        let report = std::fs::read_to_string(&report).unwrap();
        let is_told = report.contains("shared copy-on-write with another process");
        if is_told || halves == "40" {
            assert!(is_told, "{report}");
            assert!(huge > 0, "no huge page came back");
            return;
        }
    }
}

/// Four kinds of shared objects of 8 MiB each, mapped aligned by this process and two more. All fill a third of each and read all of it until huge
/// pages map it in each of them, or the given seconds have passed. With `apart` one of the others is the first process of its own user, PID and
/// mount namespaces, and one belongs to another user. Prints the KiB that huge pages map in each, and whether every byte is right.
const OBJECTS: &str = r"
import ctypes, mmap, os, re, signal, sys, tempfile, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.shmat.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
HUGE, SIZE = 2 << 20, 8 << 20
SHIFT, PATIENCE = int(sys.argv[1], 0), int(sys.argv[2])
SHARED, PRIVATE, FIXED, ANONYMOUS, NORESERVE = 1, 2, 16, 32, 0x4000
def place():
    at = libc.mmap(None, SIZE + 2 * HUGE, 0, PRIVATE | ANONYMOUS | NORESERVE, -1, 0)
    return (at + HUGE - 1) // HUGE * HUGE + SHIFT
def shared(fd, flags=0):
    at = place()
    assert libc.mmap(at, SIZE, 3, SHARED | FIXED | flags, fd, 0) == at
    return at
def file(fd):
    os.ftruncate(fd, SIZE)
    return shared(fd)
segment = libc.shmget(0, SIZE, 0o600)
system_v = libc.shmat(segment, place(), 0o40000)
libc.shmctl(segment, 0, None)
tmpfs = tempfile.TemporaryFile(dir='/dev/shm')
places = [file(os.memfd_create('of-a-test')), shared(-1, ANONYMOUS), system_v, file(tmpfs.fileno())]
views = [(ctypes.c_uint64 * (SIZE // 8)).from_address(at) for at in places]
def mapped():
    return int(re.search(r'ShmemPmdMapped:\s+(\d+)', open('/proc/self/smaps_rollup').read())[1])
def work(number):
    for view in views:
        for page in range(number, SIZE // 4096, 3): view[page * 512] = page + 1
    until, huge = time.monotonic() + PATIENCE, 0
    while time.monotonic() < until and huge < len(views) * SIZE >> 10:
        time.sleep(0.1)
        right = all(view[page * 512] in (0, page + 1) for view in views for page in range(SIZE // 4096))
        huge = mapped()
        assert right
    time.sleep(1)
    return mapped()
pipes = []
for number in range(2):
    r, w = os.pipe()
    if not os.fork():
        if 'apart' in sys.argv and number == 0:
            USER, PROCESSES, MOUNTS = 0x10000000, 0x20000000, 0x20000
            assert libc.unshare(USER | PROCESSES | MOUNTS) == 0
            if first := os.fork():
                os._exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
            assert os.getpid() == 1
        elif 'apart' in sys.argv:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        os.write(w, b'%d' % work(number))
        os._exit(0)
    os.close(w)
    pipes.append(r)
own = work(2)
others = [int(os.read(r, 99) or -1) for r in pipes]
right = all(view[page * 512] == page + 1 for view in views for page in range(SIZE // 4096))
print(own, *others, int(right))
";

fn objects(user: User, more: &[&str], report: &Path) -> Option<Vec<u64>> {
    let mut program = vec!["--", python()?, "-c", OBJECTS];
    program.extend(more);
    let done = output(&mut run_reported(user, "resident", report, &program));
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said = text(&done.stdout);
    Some(
        said.split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect(),
    )
}

#[test]
fn shared_objects_are_collapsed_once_for_all_who_map_them() {
    for user in [User::Same, User::Ordinary] {
        let folder = folder();
        let path = folder.path().join("report.json");
        let Some(said) = objects(user, &["0", "50"], &path) else {
            return;
        };
        assert_eq!(said.last(), Some(&1), "a byte is wrong: {said:?}");
        if !(user == User::Same && is_root()) {
            skip("sys-nice", "nothing is collapsed for an ordinary user here");
            continue;
        }
        let report = std::fs::read_to_string(path).unwrap();
        assert_eq!(said[..3], [32 << 10; 3], "{report}");
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let objects = report["objects"].as_array().unwrap();
        let of = |name: &str| {
            let found = objects
                .iter()
                .find(|it| it["name"].as_str().unwrap().contains(name));
            found
                .unwrap_or_else(|| panic!("no {name} in {objects:?}"))
                .clone()
        };
        for name in ["/memfd:of-a-test", "/dev/zero", "/SYSV", "/dev/shm/"] {
            let object = of(name);
            assert_eq!(object["resident_bytes"], 8 << 20, "{object}");
            assert_eq!(object["misaligned_by_bytes"], serde_json::Value::Null);
            // One collapse of a region serves all three.
            let collapsed = object["collapsed"].as_u64().unwrap();
            assert!((4..=8).contains(&collapsed), "{object}");
        }
    }
}

#[test]
fn mappers_may_belong_to_others_and_live_in_other_namespaces() {
    if !is_root() {
        return skip("root", "only root may become another user");
    }
    let folder = folder();
    let path = folder.path().join("report.json");
    let Some(said) = objects(User::Same, &["0", "50", "apart"], &path) else {
        return;
    };
    let report = std::fs::read_to_string(path).unwrap();
    assert_eq!(said, [32 << 10, 32 << 10, 32 << 10, 1], "{report}");
}

#[test]
fn what_is_misaligned_is_left_alone_and_said() {
    let folder = folder();
    let path = folder.path().join("report.json");
    // It takes one or two seconds if nothing interferes, and longer on a busy machine.
    for patience in ["6", "40"] {
        let Some(said) = objects(User::Same, &["0x3000", patience], &path) else {
            return;
        };
        assert_eq!(said, [0, 0, 0, 1]);
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
        let objects = report["objects"].as_array().unwrap();
        for object in objects {
            assert_eq!(object["misaligned_by_bytes"], 0x3000, "{object}");
            assert_eq!(object["collapsed"], 0, "{object}");
        }
        if objects.len() == 4 {
            return;
        }
        assert!(objects.len() < 4 && patience == "6", "{objects:?}");
    }
}

/// A memfd that is punched, truncated, grown, sealed, mapped elsewhere and replaced all the time, while its bytes are checked.
const RESTLESS: &str = r"
import ctypes, fcntl, mmap, os, random, time
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
libc.mmap.restype = libc.mremap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
HUGE, SIZE, PUNCH = 2 << 20, 12 << 20, 3
at = (libc.mmap(None, 4 * SIZE, 0, 2 | 32 | 0x4000, -1, 0) + HUGE - 1) // HUGE * HUGE
dice = random.Random(1)
until, rounds = time.monotonic() + 6, 0
while time.monotonic() < until or rounds < 4:
    fd = os.memfd_create('restless', os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, SIZE)
    assert libc.mmap(at, SIZE, 3, 1 | 16, fd, 0) == at
    view = (ctypes.c_uint64 * (SIZE // 8)).from_address(at)
    expected = [0] * (SIZE // 4096)
    for page in range(SIZE // 4096): view[page * 512] = expected[page] = page + 7
    end = SIZE // 4096
    for step in range(8):
        time.sleep(0.03)
        first = dice.randrange(end)
        count = dice.randrange(1, 700)
        if step % 4 == 0:
            assert libc.fallocate(fd, PUNCH, first * 4096, count * 4096) == 0
            expected[first:first + count] = [0] * len(expected[first:first + count])
        elif step % 4 == 1:
            os.ftruncate(fd, first * 4096 + 1)
            os.ftruncate(fd, SIZE)
            expected[first] &= 0xff
            expected[first + 1:] = [0] * (len(expected) - first - 1)
        elif step % 4 == 2:
            for page in range(first, min(end, first + count)): view[page * 512] = expected[page] = page + step
        elif step == 7:
            # F_ADD_SEALS: neither grown nor shrunk any more.
            fcntl.fcntl(fd, 1033, 2 | 4)
        right = all(view[page * 512] == expected[page] for page in range(end))
        assert right, (rounds, step)
    libc.munmap(at, SIZE)
    os.close(fd)
    rounds += 1
print(rounds)
";

#[test]
fn objects_may_change_in_any_way_meanwhile() {
    let Some(python) = python() else { return };
    std::thread::scope(|scope| {
        for pages in ["resident", "always"] {
            scope.spawn(move || {
                let done = output(&mut superhue(
                    User::Same,
                    &[
                        "run", "--quiet", "--pages", pages, "--", python, "-c", RESTLESS,
                    ],
                ));
                assert!(done.status.success(), "{pages}: {}", text(&done.stderr));
                assert!(text(&done.stdout).trim().parse::<u32>().unwrap() > 3);
            });
        }
    });
}
