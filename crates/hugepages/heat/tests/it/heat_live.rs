//! The trackers `idle` and `damon` on a live kernel, watching this very process.
//!
//! Few machines allow that: few kernels have idle page tracking, and a machine has only one DAMON. `make vm-test` runs them where no test is
//! skipped.

use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs};

use superhue_heat::{
    DamonCleanup, DamonTracker, IdleTracker, Reading, RegionBits, Scope, TrackError, Tracker,
    end_left_damon,
};
use superhue_model::{ProcessId, Region, VirtAddr, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::identify;
use superhue_sys::collapse::own_collapse;
use superhue_sys::thp::{ThpSwitch, set_thp_switch};
use superhue_testing::{ChildGuard, alone, rerun, skip};

const PAGE: usize = 4096;
const HUGE: usize = 512 * PAGE;
/// Time limit for steps that normally take a moment.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// Whole regions of base pages, all touched.
struct Memory {
    bytes: Vec<u8>,
    offset: usize,
    regions: usize,
}

impl Memory {
    fn touched(regions: usize) -> Self {
        let mut memory = Self::untouched(regions);
        for page in 0..regions * 512 {
            memory.touch(page);
        }
        memory
    }

    fn untouched(regions: usize) -> Self {
        set_thp_switch(ThpSwitch::Never).unwrap();
        // The kernel zeroes the memory at the first touch, which comes later.
        let bytes = vec![0; (regions + 1) * HUGE];
        let offset = bytes.as_ptr().addr().next_multiple_of(HUGE) - bytes.as_ptr().addr();
        Self {
            bytes,
            offset,
            regions,
        }
    }

    fn range(&self) -> VirtRange {
        let start = (self.bytes.as_ptr().addr() + self.offset) as u64;
        VirtRange::new(
            VirtAddr(start),
            VirtAddr(start + (self.regions * HUGE) as u64),
        )
        .unwrap()
    }

    fn region(&self, index: usize) -> Region {
        Region::containing(VirtAddr(self.range().start.0 + (index * HUGE) as u64))
    }

    fn touch(&mut self, page: usize) {
        let byte = &mut self.bytes[self.offset + page * PAGE];
        *byte = black_box(*byte).wrapping_add(1);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let _ = set_thp_switch(ThpSwitch::System);
    }
}

fn own() -> ProcessId {
    identify(&Roots::default(), std::process::id()).unwrap()
}

fn idle(scope: Scope) -> Option<IdleTracker> {
    match IdleTracker::new(&Roots::default(), scope) {
        Ok(tracker) => Some(tracker),
        Err(error) => {
            skip("page-idle", &error.to_string());
            None
        }
    }
}

fn pages(reading: Reading) -> Vec<RegionBits> {
    match reading {
        Reading::Pages(pages) => pages,
        Reading::Ranges(_) => panic!("the bitmap knows pages"),
    }
}

/// Pages chosen without a pattern that a processor or a kernel could guess.
fn is_chosen(page: usize) -> bool {
    (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}

#[test]
fn idle_sees_exactly_the_base_pages_that_were_touched() {
    let _alone = alone();
    let Some(mut tracker) = idle(Scope::Anonymous) else {
        return;
    };
    const REGIONS: usize = 16;
    let mut memory = Memory::touched(REGIONS);
    // New pages wait for the LRU lists in batches of up to 31 on each CPU.
    let may_lack = 31 * thread::available_parallelism().unwrap().get() as u64;
    for round in 0..3 {
        let armed = tracker.arm(own()).unwrap();
        let start = Instant::now();
        for page in (0..REGIONS * 512).filter(|&page| is_chosen(page + round)) {
            memory.touch(page);
        }
        let found = pages(tracker.read(own(), &[memory.range()]).unwrap());
        println!(
            "32 MiB of base pages: armed in {:?}, read in {:?}, flushed: {}",
            armed.took + armed.elsewhere,
            start.elapsed(),
            armed.flushed
        );
        let known: u64 = found.iter().map(|bits| bits.resident().0).sum();
        let all = (REGIONS * 512) as u64;
        assert!(known + may_lack >= all, "{known} of {all} pages are known");
        for bits in &found {
            assert!(!bits.huge);
            let index = (bits.region.start().0 - memory.range().start.0) as usize / HUGE;
            for page in bits.present.iter() {
                let expected = is_chosen(index * 512 + page + round);
                let found = bits.accessed.contains(page);
                // Without a flush, touches that the TLB served go unseen.
                if armed.flushed || found {
                    assert_eq!(
                        found, expected,
                        "round {round}, region {index}, page {page}"
                    );
                }
            }
        }
    }
}

#[test]
fn idle_sees_a_huge_page_as_one_and_memory_that_is_new() {
    let _alone = alone();
    let Some(mut tracker) = idle(Scope::All) else {
        return;
    };
    let mut memory = Memory::untouched(3);
    for page in 0..1024 {
        memory.touch(page);
    }
    set_thp_switch(ThpSwitch::System).unwrap();
    if let Err(errno) = own_collapse(memory.region(0)) {
        return skip("collapse", &format!("own memory: {errno}"));
    }
    set_thp_switch(ThpSwitch::Never).unwrap();
    tracker.arm(own()).unwrap();
    let of = |tracker: &mut IdleTracker, region: Region| {
        let found = pages(tracker.read(own(), &[region.range()]).unwrap());
        found.first().copied()
    };
    let cold = of(&mut tracker, memory.region(0)).unwrap();
    assert!(cold.huge);
    assert_eq!((cold.resident().0, cold.accessed.len().0), (512, 0));
    assert_eq!(of(&mut tracker, memory.region(2)), None);

    memory.touch(77);
    memory.touch(1024 + 5);
    let hot = of(&mut tracker, memory.region(0)).unwrap();
    // Only if the TLB was flushed, the touches must show.
    if tracker.arm(own()).unwrap().flushed {
        assert_eq!(hot.accessed.len().0, 512);
    }
    // A page that came after arming counts as touched, unless it is on no LRU list yet.
    tracker.arm(own()).unwrap();
    for page in 1024 + 6..1024 + 512 {
        memory.touch(page);
    }
    let new = of(&mut tracker, memory.region(2)).unwrap();
    assert!(new.accessed.len().0 > 256, "{:?}", new.accessed.len());

    // A collapse brings a frame without a mark: its state is unknown, and it must not look hot.
    tracker.arm(own()).unwrap();
    set_thp_switch(ThpSwitch::System).unwrap();
    own_collapse(memory.region(1)).unwrap();
    assert_eq!(of(&mut tracker, memory.region(1)), None);
}

#[test]
fn idle_notices_processes_that_end_or_execute() {
    let _alone = alone();
    let Some(mut tracker) = idle(Scope::Anonymous) else {
        return;
    };
    follows_a_process(&mut tracker);
}

/// Arms a shell, lets it execute another program, and ends that program.
fn follows_a_process(tracker: &mut dyn Tracker) {
    let mut shell = Command::new("sh");
    shell
        .args(["-c", "read word; exec sleep 1000"])
        .stdin(Stdio::piped());
    let mut child = ChildGuard(shell.spawn().unwrap());
    let process = identify(&Roots::default(), child.pid()).unwrap();
    let everything = [VirtRange::new(VirtAddr(0x1000), VirtAddr(1 << 47)).unwrap()];
    until("the shell waits", || state(child.pid()) == Some('S'));
    tracker.arm(process).unwrap();
    tracker.read(process, &everything).unwrap();
    child.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
    until("it sleeps", || {
        fs::read(format!("/proc/{}/cmdline", process.pid))
            .is_ok_and(|line| line.starts_with(b"sleep"))
    });
    let error = tracker.read(process, &everything).unwrap_err();
    assert!(matches!(error, TrackError::Replaced(_)), "{error}");

    tracker.arm(process).unwrap();
    tracker.read(process, &everything).unwrap();
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    for error in [
        tracker.read(process, &everything).unwrap_err(),
        tracker.arm(process).unwrap_err(),
    ] {
        let error_text = error.to_string();
        assert!(
            matches!(error, TrackError::Read(error) if error.is_vanished())
                || error_text.contains("replaced"),
            "{error_text}"
        );
    }
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn damon() -> Option<DamonTracker> {
    match DamonTracker::new(&Roots::default()) {
        Ok(tracker) => Some(tracker),
        Err(error) => {
            skip("damon-vaddr", &error.to_string());
            None
        }
    }
}

fn kdamonds() -> String {
    let path = "/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    fs::read_to_string(path).unwrap().trim().to_owned()
}

/// Returns the mean rate over a range, which DAMON covers whole.
fn rate_over(reading: &Reading, range: VirtRange) -> f64 {
    let Reading::Ranges(rates) = reading else {
        panic!("DAMON knows ranges")
    };
    let inside = rates.iter().map(|rate| {
        let start = rate.range.start.max(range.start).0;
        let end = rate.range.end.min(range.end).0;
        end.saturating_sub(start) as f64 * f64::from(rate.rate)
    });
    inside.fold(0.0, |sum, part| sum + part) / range.len().0 as f64
}

#[test]
fn damon_finds_the_hot_third() {
    let _alone = alone();
    let Some(mut tracker) = damon() else { return };
    const REGIONS: usize = 48;
    let mut memory = Memory::touched(REGIONS);
    let third = |index: u64| {
        let start = memory.range().start.0;
        let length = memory.range().len().0 / 3;
        VirtRange::new(
            VirtAddr(start + index * length),
            VirtAddr(start + (index + 1) * length),
        )
        .unwrap()
    };
    let (all, thirds) = (memory.range(), [third(0), third(1), third(2)]);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for page in REGIONS * 512 / 3..REGIONS * 512 / 3 * 2 {
                    memory.touch(page);
                }
                // A short sleep makes the scheduler switch, and the TLB forget, now and then.
                thread::sleep(Duration::from_micros(100));
            }
        });
        let found = watch_until(&mut tracker, all, |reading| {
            let rates = thirds.map(|third| rate_over(reading, third));
            println!("thirds of 96 MiB: {rates:.2?}");
            rates[1] > 0.5 && rates[0] < 0.1 && rates[2] < 0.1
        });
        done.store(true, Ordering::Relaxed);
        assert!(found, "DAMON does not find the hot third");
    });
    drop(tracker);
    assert_eq!(kdamonds(), "0");
}

fn watch_until(
    tracker: &mut DamonTracker,
    range: VirtRange,
    mut is_enough: impl FnMut(&Reading) -> bool,
) -> bool {
    let deadline = Instant::now() + STEP_TIMEOUT;
    while Instant::now() < deadline {
        let armed = tracker.arm(own()).unwrap();
        let start = Instant::now();
        let reading = tracker.read(own(), &[range]).unwrap();
        let Reading::Ranges(ranges) = &reading else {
            return false;
        };
        println!(
            "armed in {:?} (with the kdamond's own time), {} ranges read in {:?}",
            armed.took,
            ranges.len(),
            start.elapsed()
        );
        if is_enough(&reading) {
            return true;
        }
    }
    false
}

#[test]
fn damon_notices_processes_that_end_or_execute() {
    let _alone = alone();
    let Some(mut tracker) = damon() else { return };
    follows_a_process(&mut tracker);
    drop(tracker);
    assert_eq!(kdamonds(), "0");
}

const HOLDER: &str = "SUPERHUE_TEST_HOLDS_DAMON";

/// No test by itself: the next test starts and kills it.
#[test]
fn holder() {
    if env::var_os(HOLDER).is_none() {
        return;
    }
    let mut tracker = DamonTracker::new(&Roots::default()).unwrap();
    tracker.arm(own()).unwrap();
    println!("\nholding");
    std::io::stdout().flush().unwrap();
    thread::sleep(STEP_TIMEOUT);
}

#[test]
fn damon_is_taken_back_from_a_superhue_that_was_killed() {
    let _alone = alone();
    let Some(tracker) = damon() else { return };
    drop(tracker);
    for by_another in [true, false] {
        let mut command = rerun(module_path!(), "holder");
        command.env(HOLDER, "1").stdout(Stdio::piped());
        let mut child = ChildGuard::spawn(&mut command);
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holding"));

        // While the holder lives, it has DAMON.
        let error = DamonTracker::new(&Roots::default()).unwrap_err();
        assert!(
            error
                .to_string()
                .contains(&format!("process {}", child.pid())),
            "{error}"
        );
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        assert_ne!(kdamonds(), "0");
        if by_another {
            drop(DamonTracker::new(&Roots::default()).unwrap());
        } else {
            let ended = end_left_damon(&Roots::default()).unwrap();
            assert!(matches!(ended, DamonCleanup::Ended(_)), "{ended:?}");
        }
        assert_eq!(kdamonds(), "0");
    }

    // Kdamonds that another user set up stay.
    fs::write("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "1").unwrap();
    let error = DamonTracker::new(&Roots::default()).unwrap_err();
    assert!(matches!(error, TrackError::Foreign { .. }), "{error}");
    assert_eq!(kdamonds(), "1");
    fs::write("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", "0").unwrap();
}
