//! Splitting huge pages of a living process: the memory that returns, and that no byte changes.

use std::env;
use std::fs;
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use superhue_act::{Actuator, KernelActuator};
use superhue_model::{
    Action, BASE_PAGE_SIZE, Effect, Errno, HUGE_PAGE_SIZE, Owner, PageCount, Plan, ProcessId,
    Region, SkipReason, VirtAddr,
};
use superhue_sys::collapse::own_collapse;
use superhue_sys::pagemap::{PAGE_IS_HUGE, PageRegion, pagemap_scan};
use superhue_sys::scratch::Scratch;
use superhue_sys::scratch_child::ScratchChild;
use superhue_sys::split::own_split;
use superhue_testing::{alone, rerun, skip};

const HUGE: usize = HUGE_PAGE_SIZE as usize;
const PAGE: usize = BASE_PAGE_SIZE as usize;

/// Huge pages of the child, number of threads that write to them, and the share of pages in use.
const REGIONS: usize = 16;
const WRITERS: usize = 2;
const ONE_IN: usize = 16;

/// Number of times that all are split, with a collapse in between.
const TIMES: usize = 10;

const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Set for the copy of this test program that is the child.
const CHILD: &str = "SUPERHUE_TEST_SPLIT_CHILD";

/// The child: huge pages of which 1/16 is used, and threads that continue to use it.
///
/// Prints their address, writes until its standard input ends, and then prints whether each read returned the bytes written before.
#[test]
fn child() {
    if env::var_os(CHILD).is_none() {
        return;
    }
    let mut bytes = black_box(vec![0_u8; (REGIONS + 1) * HUGE]);
    let first = bytes.as_ptr().addr().next_multiple_of(HUGE) - bytes.as_ptr().addr();
    let memory = &mut bytes[first..first + REGIONS * HUGE];
    for (index, page) in memory.chunks_mut(PAGE).enumerate().step_by(ONE_IN) {
        write(page, index, 0);
    }
    let start = Region::containing(VirtAddr(memory.as_ptr().addr() as u64));
    for index in 0..REGIONS {
        let at = VirtAddr(start.start().0 + (index * HUGE) as u64);
        // A page may be busy for a moment.
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while let Err(errno) = own_collapse(Region::containing(at)) {
            if Instant::now() > deadline {
                println!("NONE {errno}");
                return;
            }
            thread::yield_now();
        }
    }
    let enough = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = memory
            .chunks_mut(REGIONS / WRITERS * HUGE)
            .map(|part| scope.spawn(|| keep_using(part, &enough)))
            .collect();
        println!("READY {:x}", start.start().0);
        std::io::stdout().flush().unwrap();
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        enough.store(true, Ordering::Relaxed);
        let rounds: Vec<u64> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        println!("INTACT after {rounds:?} rounds");
    });
}

/// Writes a new pattern to the used pages again and again, and checks the last one before each write; in the end checks that the unused pages still
/// hold zeroes. Returns the number of rounds.
fn keep_using(memory: &mut [u8], enough: &AtomicBool) -> u64 {
    let mut round = 0;
    // Up to now they hold the pattern of their place in the whole memory, not in this part.
    for (index, page) in memory.chunks_mut(PAGE).enumerate().step_by(ONE_IN) {
        write(page, index, round);
    }
    loop {
        let last = enough.load(Ordering::Relaxed);
        for (index, page) in memory.chunks_mut(PAGE).enumerate().step_by(ONE_IN) {
            for (word, bytes) in page.chunks_exact(8).enumerate() {
                assert_eq!(bytes, pattern(index, word, round), "page {index}");
            }
            write(page, index, round + 1);
        }
        round += 1;
        if last {
            for (index, page) in memory.chunks(PAGE).enumerate() {
                let is_used = index % ONE_IN == 0;
                assert!(
                    is_used || page.iter().all(|&byte| byte == 0),
                    "page {index} was never written"
                );
            }
            return round;
        }
    }
}

fn write(page: &mut [u8], index: usize, round: u64) {
    for (word, bytes) in page.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&pattern(index, word, round));
    }
}

/// A pattern that differs for each place and round, and is never zero.
fn pattern(page: usize, word: usize, round: u64) -> [u8; 8] {
    let place = (page * PAGE + word) as u64 ^ (round << 40);
    (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1).to_le_bytes()
}

/// A running child.
struct ChildProcess {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    start: u64,
}

impl ChildProcess {
    /// Starts the child; `None`, with a visible skip, where the machine has no free huge pages.
    fn start() -> Option<Self> {
        let mut child = rerun(module_path!(), "child")
            .env(CHILD, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut running = Self {
            out: BufReader::new(child.stdout.take().unwrap()),
            child,
            start: 0,
        };
        let line = running.line_with(&["READY ", "NONE "]);
        let Some((_, start)) = line.split_once("READY ") else {
            skip("collapse", line.trim());
            return None;
        };
        running.start = u64::from_str_radix(start.trim(), 16).unwrap();
        Some(running)
    }

    /// Returns the next line that contains one of these words; the test harness of the child prints, too.
    fn line_with(&mut self, words: &[&str]) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.out.read_line(&mut line).unwrap(),
                0,
                "the child has ended"
            );
            if words.iter().any(|word| line.contains(word)) {
                return line;
            }
        }
    }

    fn id(&self) -> ProcessId {
        ProcessId {
            pid: self.child.id(),
            start_ticks: 0,
        }
    }

    fn plan(&self) -> Plan {
        let regions = (0..REGIONS).map(|index| self.start + (index * HUGE) as u64);
        Plan::of(
            regions
                .map(|start| Action::Split {
                    owner: self.id().into(),
                    region: Region::containing(VirtAddr(start)),
                })
                .collect(),
        )
    }

    /// Ends the child; fails unless every byte it read was right.
    fn must_be_intact(mut self) {
        drop(self.child.stdin.take());
        let said = self.line_with(&["INTACT", "panicked", "FAILED"]);
        assert!(said.contains("INTACT"), "{said}");
        println!("{}", said.trim());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a size in KiB from `smaps`, summed over the mappings that touch the range.
fn smaps(pid: u32, range: std::ops::Range<u64>, field: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let mut inside = false;
    let mut sum = 0;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, end)) = first.split_once('-') {
            let parse = |text| u64::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (parse(start), parse(end)) {
                inside = start < range.end && range.start < end;
            }
        } else if inside && first.strip_suffix(':') == Some(field) {
            sum += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    sum
}

/// Returns true if this kernel frees the zeroes of a huge page that it splits (Linux 6.12).
fn zeroes_return() -> bool {
    let mut scratch = Scratch::in_base_pages(HUGE).unwrap();
    scratch.touch();
    let range = scratch.range();
    let resident = || smaps(std::process::id(), range.start.0..range.end.0, "Rss");
    own_collapse(scratch.region()).is_ok()
        && resident() == 2048
        && own_split(scratch.region()).is_ok()
        && resident() <= 64
}

fn actuator() -> KernelActuator {
    KernelActuator::new(Box::new(|_| true)).with_debugfs("/sys/kernel/debug".into())
}

#[test]
fn splitting_returns_what_is_unused_and_touches_no_byte() {
    let Some(running) = ChildProcess::start() else {
        return;
    };
    let range = running.start..running.start + (REGIONS * HUGE) as u64;
    let pid = running.child.id();
    let huge = || smaps(pid, range.clone(), "AnonHugePages");
    let before = smaps(pid, range.clone(), "Rss");
    assert!(huge() >= (REGIONS as u64) * 2048, "{} KiB", huge());

    let mut actuator = actuator();
    let plan = running.plan();
    let again = Plan::of(
        plan.actions
            .iter()
            .map(|split| Action::Collapse {
                owner: split.owner(),
                region: split.region(),
                growth: PageCount(480),
            })
            .collect(),
    );
    let deadline = Instant::now() + WAIT_TIMEOUT;
    // Back and forth, so that the threads run into as many moments of a split as possible. A split may fail for a moment, for example while the
    // kernel itself inspects the page.
    let mut times = 0;
    while (huge() > 0 || times < TIMES) && Instant::now() < deadline {
        if times > 0 && times < TIMES {
            actuator.perform(&again, &|| false);
        }
        times += 1;
        for result in actuator.perform(&plan, &|| false).results {
            match result.effect {
                Effect::Done => {}
                Effect::Failed {
                    errno: Errno::EPERM | Errno::ENOSYS,
                } => return skip("remote-split", "no CAP_SYS_NICE, or Linux before 5.10"),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(huge(), 0, "still huge pages");
    let returned = before.saturating_sub(smaps(pid, range, "Rss"));
    if zeroes_return() {
        // 15 of 16 pages hold zeroes.
        let unused = (REGIONS * HUGE / 1024 * (ONE_IN - 1) / ONE_IN) as u64;
        assert!(
            returned >= unused * 9 / 10,
            "{returned} of {unused} KiB returned"
        );
    } else {
        skip(
            "split-returns-zeroes",
            "this kernel keeps them (before 6.12)",
        );
    }
    running.must_be_intact();
}

#[test]
fn a_huge_page_that_stays_whole_is_no_success() {
    let Some(running) = ChildProcess::start() else {
        return;
    };
    let mut plan = running.plan();
    plan.actions.truncate(1);
    let effect = |sees: Option<bool>| {
        let mut actuator = actuator().with_sight(Box::new(move |_, _| sees));
        actuator.perform(&plan, &|| false).results[0].effect
    };
    let refused = Effect::Failed {
        errno: Errno::EPERM,
    };
    if effect(None) == refused {
        return skip("remote-split", "no CAP_SYS_NICE");
    }
    assert_eq!(effect(None), Effect::Done);
    assert_eq!(effect(Some(false)), Effect::Done);
    assert_eq!(
        effect(Some(true)),
        Effect::Failed {
            errno: Errno::EBUSY
        }
    );
    running.must_be_intact();
}

/// The kernel may leave whole a huge page that another process maps, too; it still reports success.
#[test]
fn a_huge_page_shared_since_a_fork_is_busy_until_it_is_not() {
    let _alone = alone();
    let mut bytes = black_box(vec![1_u8; 3 * HUGE]);
    let start = bytes.as_ptr().addr().next_multiple_of(HUGE);
    let region = Region::containing(VirtAddr(start as u64));
    if let Err(errno) = own_collapse(region) {
        return skip("collapse", &errno.to_string());
    }
    let pagemap = fs::File::open("/proc/self/pagemap").unwrap();
    let is_huge = move || {
        let mut found = [PageRegion::default()];
        let scanned = pagemap_scan(&pagemap, region.range(), PAGE_IS_HUGE, 0, &mut found);
        scanned.ok().map(|(count, _)| count == 1)
    };
    if is_huge().is_none() {
        return skip("pagemap-scan", "this kernel does not tell huge pages (6.7)");
    }
    let mut actuator = actuator().with_sight(Box::new(move |_, _| is_huge()));
    let plan = Plan::of(vec![Action::Split {
        owner: Owner::Process(ProcessId {
            pid: std::process::id(),
            start_ticks: 0,
        }),
        region,
    }]);
    let mut split = || actuator.perform(&plan, &|| false).results[0].effect;
    // Forked from this process, with a copy of everything.
    let child = ScratchChild::start().unwrap();
    let busy = Effect::Failed {
        errno: Errno::EBUSY,
    };
    assert_eq!(split(), busy);
    drop(child);
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while split() == busy {
        assert!(Instant::now() < deadline, "alone again, and still busy");
        thread::yield_now();
    }
    assert_eq!(split(), Effect::Done);
    bytes[0] = 2;
    assert!(bytes[1..].iter().all(|&byte| byte == 1));
}

#[test]
fn the_dead_are_counted_and_strangers_left_alone() {
    let gone = {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    };
    let plan = |pid| {
        Plan::of(vec![Action::Split {
            owner: Owner::Process(ProcessId {
                pid,
                start_ticks: 0,
            }),
            region: Region::containing(VirtAddr(0x20_0000)),
        }])
    };
    let effect = |actuator: &mut KernelActuator, pid| {
        actuator.perform(&plan(pid), &|| false).results[0].effect
    };
    assert_eq!(effect(&mut actuator(), gone), Effect::Vanished);
    let mut somebody_else = KernelActuator::new(Box::new(|_| false));
    assert_eq!(
        effect(&mut somebody_else, std::process::id()),
        Effect::Vanished
    );
    // No memory is mapped there.
    assert_eq!(
        effect(&mut actuator(), std::process::id()),
        Effect::Failed {
            errno: Errno::ENOMEM
        }
    );
}

/// The kernel also returns `ENOMEM` when it has no free huge page.
#[test]
fn a_collapse_of_what_is_not_mapped_is_told_from_a_lack_of_memory() {
    let plan = Plan::of(vec![Action::Collapse {
        owner: Owner::Process(ProcessId {
            pid: std::process::id(),
            start_ticks: 0,
        }),
        region: Region::containing(VirtAddr(0x20_0000)),
        growth: PageCount(0),
    }]);
    let errno = Errno::ENOMEM;
    let reason = SkipReason::Unmapped;
    for (seen, expected) in [
        (Some(false), Effect::Skipped { reason }),
        (Some(true), Effect::Failed { errno }),
        (None, Effect::Failed { errno }),
    ] {
        let mut actuator = actuator().with_mapped_check(Box::new(move |_, _| seen));
        let outcome = actuator.perform(&plan, &|| false);
        assert_eq!(outcome.results[0].effect, expected, "{seen:?}");
    }
}
