//! Superpages are split in visits, for a caller who may not from outside.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "tests, of which clippy sees only the functions as such"
)]

mod support;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use superhue::act::{Actuator, Inside, KernelActuator};
use superhue::model::{Action, Effect, Obstacle, Plan, ProcessId, Region, SkipReason, VirtAddr};
use superhue::visit::{Limits, Visited, Visitor, Work};
use support::{Running, User, is_root, may_trace_own, output, python, skip, text, until};

/// Set for the copy of this test that runs as an ordinary user: the program that visits.
const VISITOR: &str = "SUPERHUE_TEST_VISITOR";

/// Superpages of which one page in 16 is used; says where they are, and later whether all is as it was.
const PROGRAM: &str = r"
import ctypes, mmap, sys
HUGE = 2 << 20
m = mmap.mmap(-1, 9 * HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(m))
first = -start % HUGE
libc = ctypes.CDLL(None, use_errno=True)
used = range(first, first + 8 * HUGE, 16 * 4096)
for at in used: m[at:at + 4096] = bytes([at >> 16 & 127 | 1]) * 4096
if libc.madvise(ctypes.c_void_p(start + first), ctypes.c_size_t(8 * HUGE), 25):
    print('NONE', ctypes.get_errno()); sys.exit()
print('%x' % (start + first), flush=True)
sys.stdin.readline()
for at in range(first, first + 8 * HUGE, 4096):
    expected = bytes([at >> 16 & 127 | 1 if at in used else 0]) * 4096
    assert m[at:at + 4096] == expected, at
print('intact')
";

fn huge_kib(pid: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap();
    let line = text.lines().find(|line| line.starts_with("AnonHugePages:"));
    let words = line.unwrap().split_whitespace();
    words.rev().nth(1).unwrap().parse().unwrap()
}

/// Makes visits, without counting them.
struct ByVisits(Visitor);

impl Inside for ByVisits {
    fn visit(&mut self, process: ProcessId, work: &Work) -> Result<Visited, Obstacle> {
        self.0.visit(process, work, Limits::default())
    }

    fn wait_for(&self, process: ProcessId) -> Duration {
        self.0.wait_for(process)
    }
}

fn start_ticks(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(19).unwrap().parse().unwrap()
}

#[test]
fn a_process_is_split_from_inside() {
    let Some(python) = python() else { return };
    let Some(visitor) = env::var_os(VISITOR) else {
        return in_a_copy();
    };
    let mut child = Running::start(
        Command::new(python)
            .args(["-c", PROGRAM])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let Ok(start) = u64::from_str_radix(line.trim(), 16) else {
        return skip("collapse", line.trim());
    };
    assert!(huge_kib(child.pid()) >= 16 << 10);

    // No debugfs in this: visits must do it.
    let inside = ByVisits(Visitor::new(Path::new(&visitor)));
    let mut actuator = KernelActuator::new(Box::new(|_| true), Some(Box::new(inside)));
    let process = ProcessId {
        pid: child.pid(),
        start_ticks: start_ticks(child.pid()),
    };
    let plan = Plan {
        actions: (0..8)
            .map(|index| Action::Split {
                owner: process.into(),
                region: Region::containing(VirtAddr(start + (index << 21))),
            })
            .collect(),
    };
    until("all is split", || {
        for result in actuator.perform(&plan, &|| false).results {
            // Where the CPUs are busy it may not stop in time.
            let passes = matches!(result.effect, Effect::Skipped { reason: SkipReason::Visit(obstacle) } if obstacle.may_pass());
            assert!(passes || result.effect == Effect::Done, "{result:?}");
        }
        (huge_kib(child.pid()) == 0).then_some(())
    });
    // And back.
    let region = plan.actions[0].region();
    let collapse = Plan {
        actions: vec![Action::Collapse {
            owner: process.into(),
            region,
            growth: superhue::model::PageCount(480),
        }],
    };
    until("one is collapsed again", || {
        let effect = actuator.perform(&collapse, &|| false).results[0].effect;
        (effect == Effect::Done).then_some(())
    });
    assert_eq!(huge_kib(child.pid()), 2048);

    child.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "intact\n");
    assert!(child.wait().success());
}

/// Runs this test as an ordinary user.
fn in_a_copy() {
    let visitor = support::installed().join("superhue");
    if !may_trace_own() {
        return skip("ptrace", "kernel.yama.ptrace_scope is not 0");
    }
    let may_nice = rustix::thread::capabilities(None).is_ok_and(|sets| {
        sets.effective
            .contains(rustix::thread::CapabilitySet::SYS_NICE)
    });
    if may_nice && !is_root() {
        return skip("unprivileged", "this user has CAP_SYS_NICE");
    }
    // Copied, since the folder it was built in may be closed to others.
    let folder = support::folder();
    let program = folder.path().join("copy");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(program);
    command
        .args(["--exact", "a_process_is_split_from_inside", "--nocapture"])
        .env(VISITOR, visitor)
        .current_dir("/");
    User::Ordinary.run(&mut command);
    let said = output(&mut command);
    let shown = text(&said.stdout);
    println!("{shown}");
    assert!(
        said.status.success() && shown.contains("1 passed"),
        "{shown}{}",
        text(&said.stderr)
    );
}
