//! Swap of our own on the real machine: made, used, undone; killed at any moment; with programs that have no room for their pages.
//!
//! `SUPERHUE_KILLS=200` sets the number of kills.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use superhue_act::{Journal, RestoreReport, SwapError, SwapInUse};
use superhue_model::{ByteCount, VirtRange};
use superhue_procfs::Roots;
use superhue_procfs::process::page_words;
use superhue_procfs::system::{Zram, read_swaps, read_zrams};
use superhue_sys::cgroup::groups;
use superhue_sys::scratch::Scratch;
use superhue_sys::seccomp::RiskyCall;
use superhue_sys::swap::swap_off;
use superhue_testing::{Answer, ChildGuard, forbid, rerun, skip};

/// Tells a copy of this program its task, and the folder of its journal.
const CHILD: &str = "SUPERHUE_TEST_SWAP_CHILD";
const FOLDER: &str = "SUPERHUE_TEST_SWAP_FOLDER";

const MIB: u64 = 1 << 20;

/// Limit of waiting for things that should be quick.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

/// A zram device: its number, and its disk sequence number, which is its alone.
type Device = (u32, Option<u64>);

/// A machine on which no other test makes swap meanwhile, and a journal of the test's own.
///
/// Other programs may make and remove devices at any time, so the tests look only for devices known to be ours.
struct Bench {
    folder: tempfile::TempDir,
    /// Devices that were made.
    made: RefCell<Vec<Device>>,
    _alone: File,
}

impl Bench {
    /// Takes the lock; `None`, with a visible skip, where no swap can be made.
    fn new() -> Option<Self> {
        let roots = Roots::default();
        if let Err(error) = SwapInUse::may_make(&roots) {
            skip("zram", &error.to_string());
            return None;
        }
        // One test at a time, in all test programs.
        let alone = File::create(std::env::temp_dir().join("superhue-swap-tests.lock")).unwrap();
        rustix::fs::flock(&alone, rustix::fs::FlockOperation::LockExclusive).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("run")).unwrap();
        Some(Self {
            folder,
            made: RefCell::default(),
            _alone: alone,
        })
    }

    /// Returns true if these areas are on and no other; else skips visibly.
    fn is_alone_with(&self, ours: &[&Path]) -> bool {
        let areas = read_swaps(&Roots::default()).unwrap();
        let is_alone = areas.iter().all(|area| ours.contains(&&*area.path));
        if !is_alone {
            skip("no-swap", "other swap is on, to which pages may go");
        }
        is_alone
    }

    fn journal(&self) -> Journal {
        journal(self.folder.path())
    }

    fn make(&self) -> (SwapInUse, PathBuf) {
        let swap = SwapInUse::make(&self.journal()).unwrap();
        let path = swap.own().unwrap();
        self.made.borrow_mut().push(device(&path));
        (swap, path)
    }

    /// Returns the text of the journals.
    fn journal_text(&self) -> String {
        let entries = fs::read_dir(self.folder.path().join("run/journal"));
        let paths = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().path());
        // Without a file that was still being written.
        paths
            .filter(|path| path.extension().is_some_and(|end| end == "json"))
            .map(|path| fs::read_to_string(path).unwrap())
            .collect()
    }

    /// Returns the journalled device, if there is one and it still exists.
    fn left(&self) -> Option<Device> {
        let journal: serde_json::Value = serde_json::from_str(&self.journal_text()).ok()?;
        let device = &journal["entries"][0]["zram"]["device"];
        let number = u32::try_from(device["number"].as_u64()?).unwrap();
        let device = (number, device["disk_sequence"].as_u64());
        zrams().contains(&device).then_some(device)
    }

    fn journals(&self) -> usize {
        let entries = fs::read_dir(self.folder.path().join("run/journal"));
        let names = entries
            .into_iter()
            .flatten()
            .map(|entry| entry.unwrap().file_name());
        names.filter(|name| name != "lock").count()
    }

    /// Asserts that nothing is left: neither device, nor swap, nor journal.
    fn is_as_before(&self) {
        let zrams = zrams();
        let left = self
            .made
            .borrow()
            .iter()
            .find(|device| zrams.contains(device))
            .copied();
        assert_eq!((left, self.journals()), (None, 0));
    }

    /// Starts a copy of this program for the task `what`; its output can be read.
    fn child(&self, what: &str) -> (ChildGuard, BufReader<impl Read>) {
        let mut child = rerun(module_path!(), "child")
            .env(CHILD, what)
            .env(FOLDER, self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        (ChildGuard(child), output)
    }
}

impl Drop for Bench {
    /// A test that fails leaves nothing on the machine either.
    fn drop(&mut self) {
        let _ = self.journal().recover();
    }
}

fn journal(folder: &Path) -> Journal {
    Journal::at(folder.join("run/journal"), &Roots::default())
}

fn zrams() -> Vec<Device> {
    let zrams = read_zrams(&Roots::default()).unwrap().into_iter();
    zrams
        .map(|zram| (zram.number, zram.disk_sequence))
        .collect()
}

/// Returns the device at this path.
fn device(path: &Path) -> Device {
    let name = path.file_name().unwrap().to_str().unwrap();
    let number = name.strip_prefix("zram").unwrap().parse().unwrap();
    let zram = Zram::read(&Roots::default(), number).unwrap();
    (number, zram.disk_sequence)
}

fn is_on(path: &Path) -> bool {
    let areas = read_swaps(&Roots::default()).unwrap();
    areas.iter().any(|area| area.path == path)
}

/// Returns the number of swapped pages in the range.
fn swapped(range: VirtRange) -> usize {
    let mut bytes = vec![0; usize::try_from(range.len().0 / 4096 * 8).unwrap()];
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    pagemap
        .read_exact_at(&mut bytes, range.start.0 / 4096 * 8)
        .unwrap();
    page_words(&bytes).filter(|word| word.is_swapped()).count()
}

fn wait_for(output: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    while !line.contains(word) {
        line.clear();
        assert_ne!(output.read_line(&mut line).unwrap(), 0, "no `{word}`");
    }
    line
}

/// Waits until `is_so` returns true.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(
            begun.elapsed() < WAIT_TIMEOUT,
            "{what}: not within {WAIT_TIMEOUT:?}"
        );
        thread::sleep(Duration::from_millis(5));
    }
}

/// Tasks of the copies of this program.
#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let journal = journal(Path::new(&std::env::var(FOLDER).unwrap()));
    println!("begun");
    match what.as_str() {
        "make and undo" => loop {
            let _swap = SwapInUse::make(&journal).unwrap();
            let mut memory = Scratch::untouched(64 * 4096).unwrap();
            memory.fill(1);
            memory.page_out().unwrap();
            // Without this pause swap would be on for a moment only.
            thread::sleep(Duration::from_millis(20));
        },
        "hold" => {
            let swap = SwapInUse::make(&journal).unwrap();
            println!("on {}", swap.own().unwrap().display());
            thread::sleep(WAIT_TIMEOUT * 10);
        }
        "fill" => {
            // Waits until the parent has put it into its group.
            let mut line = String::new();
            BufReader::new(File::open(std::env::var("SUPERHUE_TEST_SWAP_GO").unwrap()).unwrap())
                .read_line(&mut line)
                .unwrap();
            let mut memory = Scratch::untouched(30 * MIB as usize).unwrap();
            memory.fill(3);
            println!("filled");
            thread::sleep(WAIT_TIMEOUT * 10);
            assert!(memory.is_intact(3));
        }
        _ => panic!("what is `{what}`?"),
    }
}

#[test]
fn pages_go_out_to_one_of_our_own_and_come_back() {
    let Some(bench) = Bench::new() else { return };
    let (swap, path) = bench.make();
    let areas = read_swaps(&Roots::default()).unwrap();
    let area = areas.iter().find(|area| area.path == path).unwrap();
    assert!(area.size.0 > 63 * MIB, "{area:?}");
    assert!(
        area.priority < 0 || !bench.is_alone_with(&[&path]),
        "{area:?}"
    );
    let zram = Zram::read(&Roots::default(), area.zram.unwrap()).unwrap();
    assert_eq!(zram.used.unwrap().limit, ByteCount(68 * MIB));
    assert!(swap.describe().contains(path.to_str().unwrap()));

    let used = || {
        let areas = read_swaps(&Roots::default()).unwrap().into_iter();
        areas.fold(0, |sum, area| sum + area.used.0)
    };
    let before = used();
    let mut memory = Scratch::untouched(64 * 4096).unwrap();
    memory.fill(9);
    memory.page_out().unwrap();
    assert_eq!(swapped(memory.range()), 64);
    assert!(used() > before || !bench.is_alone_with(&[&path]));
    assert!(memory.is_intact(9));
    assert_eq!(swapped(memory.range()), 0);

    // Pages that are out at the end come back, too.
    memory.page_out().unwrap();
    let report = swap.finish();
    assert_eq!(report.swap_removed, std::slice::from_ref(&path));
    assert_eq!(report.left.len(), 0, "{report:?}");
    assert!(memory.is_intact(9) && !is_on(&path));
    bench.is_as_before();
}

/// A generator of the same numbers in every run of the tests (Knuth's linear congruential generator).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

#[test]
fn killed_at_any_moment() {
    let Some(bench) = Bench::new() else { return };
    let kills = std::env::var("SUPERHUE_KILLS").ok();
    let kills: u32 = kills.and_then(|kills| kills.parse().ok()).unwrap_or(30);
    let mut random = Random(7);
    let (mut devices, mut on, mut unnamed) = (0, 0, 0_usize);
    let mut turn = 0;
    while turn < kills || (on == 0 && turn < 6 * kills) {
        let (mut child, mut output) = bench.child("make and undo");
        wait_for(&mut output, "begun");
        // One turn takes some 100 ms, and more on a busy machine: if no kill has met swap that is on, further kills come later.
        let latest = 200_000_u64 << (turn / kills);
        thread::sleep(Duration::from_micros(random.below(latest)));
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        let left = bench.left();
        devices += u32::from(left.is_some());
        if let Some((number, _)) = left {
            on += u32::from(is_on(Path::new(&format!("/dev/zram{number}"))));
        }
        let had_journal = bench.journals() > 0;
        let is_unnamed = bench.journal_text().contains("\"device\": null");
        bench.made.borrow_mut().extend(left);

        let report = bench.journal().recover().unwrap();
        assert!(report.left.is_empty(), "turn {turn}: {report:?}");
        assert!(had_journal || report.swap_removed.is_empty());
        if is_unnamed {
            unnamed += report.swap_removed.len();
        } else {
            let removed = usize::from(left.is_some());
            assert_eq!(report.swap_removed.len(), removed, "turn {turn}");
        }
        bench.is_as_before();
        let again = bench.journal().recover().unwrap();
        assert_eq!(again, RestoreReport::default());
        turn += 1;
    }
    println!(
        "{turn} kills: {devices} left a device, {on} of them with swap on, {unnamed} before it was known which"
    );
    assert!(devices > 0 && on > 0, "no kill met a device");
}

#[test]
fn the_next_one_undoes_what_a_killed_one_left_and_makes_its_own() {
    let Some(bench) = Bench::new() else { return };
    let (mut child, mut output) = bench.child("hold");
    let line = wait_for(&mut output, "on /dev/");
    let first = device(Path::new(line.trim().split_once("on ").unwrap().1));
    bench.made.borrow_mut().push(first);
    // As long as the child lives, its swap stays.
    let alive = bench.journal().recover().unwrap();
    assert_eq!((alive.in_use, alive.swap_removed.len()), (1, 0));
    let (second, path) = bench.make();
    assert!(zrams().contains(&first));
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let (third, _) = bench.make();
    assert!(!zrams().contains(&first), "that of the dead is gone");
    assert!(is_on(&path));
    drop((second, third));
    bench.is_as_before();
}

#[test]
fn what_is_on_is_found_or_one_is_made() {
    let Some(bench) = Bench::new() else { return };
    if !bench.is_alone_with(&[]) {
        return;
    }
    let find = || SwapInUse::find(&Roots::default());
    let first = SwapInUse::find_or_make(&bench.journal(), true).unwrap();
    let found = find().unwrap();
    // If the second one used the first one's swap, it would have none when the first one ends.
    let second = SwapInUse::find_or_make(&bench.journal(), true).unwrap();
    let own = [&first, &found, &second].map(SwapInUse::own);
    let paths: Vec<&Path> = own.iter().flatten().map(PathBuf::as_path).collect();
    if !bench.is_alone_with(&paths) {
        return;
    }
    assert_eq!(own.each_ref().map(Option::is_some), [true, false, true]);
    drop((first, second));
    if bench.is_alone_with(&[]) {
        assert_eq!(found.room().unwrap(), ByteCount(0));
        assert!(matches!(find(), Err(SwapError::None)));
    }
    assert_eq!(bench.journals(), 0);
}

#[test]
fn what_somebody_else_does_to_it_is_no_error() {
    let Some(bench) = Bench::new() else { return };
    // Switches it off; also resets it; also removes it.
    for steps in 1..=3 {
        let (swap, path) = bench.make();
        let name = path.file_name().unwrap().to_str().unwrap();
        swap_off(&path).unwrap();
        if steps > 1 {
            let reset = Path::new("/sys/block").join(name).join("reset");
            until("it can be reset", || fs::write(&reset, "1").is_ok());
        }
        if steps > 2 {
            let number = name.strip_prefix("zram").unwrap();
            fs::write("/sys/class/zram-control/hot_remove", number).unwrap();
        }
        assert!(!is_on(&path));
        let report = swap.finish();
        assert!(report.left.is_empty(), "{report:?}");
        assert_eq!(report.swap_removed.len(), usize::from(steps < 3));
        bench.is_as_before();
    }
}

/// A control group of some memory, below that of the tests.
struct Group(PathBuf);

impl Group {
    fn new(limit: u64) -> Option<Self> {
        let roots = Roots::default();
        let own = groups(&roots.proc, &roots.sys, "self")?
            .into_iter()
            .next()?;
        let group = Self(own.join(format!("superhue-swap-{}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        let names = ["memory.max", "memory.limit_in_bytes"];
        let limit = limit.to_string();
        let is_limited = names.iter().any(|name| {
            group.0.join(name).exists() && fs::write(group.0.join(name), &limit).is_ok()
        });
        is_limited.then_some(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let begun = Instant::now();
        while fs::remove_dir(&self.0).is_err() && begun.elapsed() < WAIT_TIMEOUT {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_program_that_has_no_room_to_take_its_pages_back_lives_on() {
    let Some(bench) = Bench::new() else { return };
    let Some(group) = Group::new(20 * MIB) else {
        return skip(
            "cgroup-memory",
            "no group can be made whose memory is bounded",
        );
    };
    let (swap, path) = bench.make();
    let go = bench.folder.path().join("go");
    let user = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &go, rustix::fs::FileType::Fifo, user, 0).unwrap();
    let mut child = rerun(module_path!(), "child")
        .env(CHILD, "fill")
        .env(FOLDER, bench.folder.path())
        .env("SUPERHUE_TEST_SWAP_GO", &go)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.stdout.take().unwrap();
    let (mut child, mut output) = (ChildGuard(child), BufReader::new(output));
    wait_for(&mut output, "begun");
    fs::write(group.0.join("cgroup.procs"), child.pid().to_string()).unwrap();
    fs::write(&go, "go\n").unwrap();
    wait_for(&mut output, "filled");

    // 10 MiB of it are out, since its group may have 20.
    if !bench.is_alone_with(&[&path]) {
        child.0.kill().unwrap();
        child.0.wait().unwrap();
        return;
    }
    let report = swap.finish();
    let reason = &report.left.first().unwrap().reason;
    assert!(
        reason.starts_with("cannot take back") && reason.contains("control group"),
        "{reason}"
    );
    assert!(is_on(&path) && bench.journals() == 1);
    assert!(child.0.try_wait().unwrap().is_none(), "it was ended");

    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let report = bench.journal().recover().unwrap();
    assert_eq!(
        (report.swap_removed.len(), report.left.len()),
        (1, 0),
        "{report:?}"
    );
    bench.is_as_before();
}

#[test]
fn a_filter_that_kills_is_not_run_into() {
    let Some(_bench) = Bench::new() else { return };
    // In a thread of its own: a filter cannot be removed.
    let told = thread::spawn(|| {
        forbid(RiskyCall::Swapon.number(), Answer::Kill)?;
        Ok::<_, String>(SwapInUse::may_make(&Roots::default()))
    });
    match told.join().unwrap() {
        Ok(told) => {
            let told = told.unwrap_err().to_string();
            assert!(
                told.contains("swapon(2)") && told.contains("@swap"),
                "{told}"
            );
        }
        Err(reason) => skip("seccomp", &reason),
    }
}

#[test]
fn who_may_not_is_told_what_it_takes() {
    if superhue_testing::is_root() {
        return skip("no-root", "root may make a zram");
    }
    let folder = tempfile::tempdir().unwrap();
    match SwapInUse::find_or_make(&journal(folder.path()), true) {
        Ok(swap) => assert_eq!(swap.own(), None),
        Err(error @ SwapError::Denied) => assert!(error.to_string().contains("CAP_SYS_ADMIN")),
        Err(error) => assert!(matches!(error, SwapError::NoZram { .. }), "{error}"),
    }
}
