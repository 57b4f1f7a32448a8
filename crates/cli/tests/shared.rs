//! Memory that processes share since a fork is not copied for the sake of superpages.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use support::{User, folder, is_root, may_trace_own, output, python, skip, superhue, text};

/// 32 MiB, of which each page is mapped by three more processes that read it. What the four of them use is said right after the
/// forks and 3 s later; then how much of it superpages map, up to 20 s after the three have ended.
const PROGRAM: &str = r"
import mmap, os, re, signal, time
HUGE = 2 << 20
m = mmap.mmap(-1, 17 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for at in range(0, len(m), 4096): m[at:at + 8] = at.to_bytes(8, 'little')
def rollup(pid, name):
    return int(re.search(name + r':\s+(\d+)', open(f'/proc/{pid}/smaps_rollup').read())[1])
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
before = sum(rollup(pid, 'Pss') for pid in everybody)
after = 0
for _ in range(6):
    time.sleep(0.5)
    after = max(after, sum(rollup(pid, 'Pss') for pid in everybody))
for child in children:
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
huge = 0
for _ in range(200):
    time.sleep(0.1)
    huge = rollup('self', 'AnonHugePages')
    if huge: break
assert read()
print(before, after, huge)
";

#[test]
fn what_children_share_is_copied_for_nobody() {
    for user in [User::Same, User::Ordinary] {
        let folder = folder();
        let report = folder.path().join("report.json");
        let Some(python) = python() else { return };
        let arguments = [
            "run",
            "--quiet",
            "--pages",
            "resident",
            "--report",
            report.to_str().unwrap(),
            "--",
            python,
            "-c",
            PROGRAM,
        ];
        let done = output(&mut superhue(user, &arguments));
        assert!(done.status.success(), "{}", text(&done.stderr));
        let said = text(&done.stdout);
        let numbers: Vec<u64> = said
            .split_whitespace()
            .map(|n| n.parse().unwrap())
            .collect();
        let [before, after, huge] = numbers[..] else {
            panic!("{said}");
        };
        assert!(after <= before + before / 20, "{before} -> {after} KiB");
        if !(user == User::Same && is_root() || may_trace_own()) {
            skip("visits", "nothing is collapsed for an ordinary user here");
            continue;
        }
        let report = std::fs::read_to_string(report).unwrap();
        assert!(
            report.contains("shared copy-on-write with another process"),
            "{report}"
        );
        assert!(huge > 0, "no superpage came back");
    }
}
