//! The tracker `ptwalk` against processes whose touched pages are known.

mod target;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use superhue_heat::{PtwalkTracker, RegionBits, Scope, TrackError, Tracker};
use superhue_model::{ProcessId, VirtRange};
use superhue_procfs::{Roots, process};
use superhue_testing::{only, skip};

use target::{ARENA, Target, attempts, mapped, pages, range, read, tracker};

const PAGES_PER_MIB: u64 = 256;

/// Pages of 64 MiB by pattern.
fn patterns() -> Vec<(&'static str, BTreeSet<u64>)> {
    let all = 64 * PAGES_PER_MIB;
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    vec![
        ("none", BTreeSet::new()),
        ("sequential", (0..all / 2).collect()),
        ("strided", (0..all).step_by(7).collect()),
        ("random", (0..3000).map(|_| next() % all).collect()),
        // Squared twice, so that most accesses fall on few pages.
        (
            "skewed",
            (0..3000)
                .map(|_| {
                    let part = (next() % (1 << 20)) as f64 / f64::from(1 << 20);
                    (part.powi(4) * all as f64) as u64
                })
                .collect(),
        ),
        ("all", (0..all).collect()),
    ]
}

/// Returns the pages that must be found: those touched, and all of a huge page with a touched page.
fn expected(touched: &BTreeSet<u64>, found: &[RegionBits], memory: VirtRange) -> BTreeSet<u64> {
    let mut expected = touched.clone();
    for bits in found.iter().filter(|bits| bits.huge) {
        let first = (bits.region.start().0 - memory.start.0) / 4096;
        if touched.range(first..first + 512).next().is_some() {
            expected.extend(first..first + 512);
        }
    }
    expected
}

#[test]
fn every_touched_page_is_seen_and_no_other() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    for (kind, huge_pages) in [("base", 0), ("huge", 32), ("half", 16)] {
        let mut target = Target::start();
        let memory = target.map(64, kind);
        for (name, touched) in patterns() {
            let mut missed = Vec::new();
            for _ in 0..attempts() {
                target.arm(&mut tracker);
                target.touch(touched.iter().copied());
                let mut found = read(&mut tracker, target.id, &mapped(target.id)).unwrap();
                found.retain(|bits| memory.contains(&bits.region.range()));
                let huge = found.iter().filter(|bits| bits.huge).count();
                if huge != huge_pages {
                    let reason = format!("{huge} of 32 regions are huge pages ({kind})");
                    return skip("ptwalk-huge-pages", &reason);
                }
                let present = pages(&found, memory, |bits| bits.present);
                assert!(present.into_iter().eq(0..64 * PAGES_PER_MIB), "{name}");
                let accessed = pages(&found, memory, |bits| bits.accessed);
                let accessed: BTreeSet<u64> = accessed.into_iter().collect();
                let expected = expected(&touched, &found, memory);
                let extra = accessed.difference(&expected).count() as u64;
                assert!(
                    extra * 1000 <= 64 * PAGES_PER_MIB,
                    "{kind}, {name}: {extra} pages too many"
                );
                missed.push(expected.difference(&accessed).count());
                if missed.ends_with(&[0]) {
                    break;
                }
            }
            assert!(
                missed.ends_with(&[0]),
                "{kind}, {name}: {missed:?} pages were missed"
            );
        }
    }
}

#[test]
fn parent_and_child_are_told_apart() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(4, "base");
    let parent = target.id;
    let accessed = |tracker: &mut PtwalkTracker, id| {
        let found = read(tracker, id, &[memory]).unwrap();
        pages(&found, memory, |bits| bits.accessed)
    };
    let mut samples = Vec::new();
    for _ in 0..attempts() {
        target.arm(&mut tracker);
        target.touch([5]);
        let child = u32::try_from(target.order("fork")).unwrap();
        let child = process::identify(&Roots::default(), child).unwrap();
        // Accesses of one process do not show in the page tables of the other, although they share memory now.
        target.id = child;
        target.arm(&mut tracker);
        target.touch([9]);
        samples.push((
            accessed(&mut tracker, parent),
            accessed(&mut tracker, child),
        ));
        tracker.release(child);
        target.id = parent;
        target.tell("leave");
        if samples.ends_with(&[(vec![5], vec![9])]) {
            return;
        }
        let is_right = |(parent, child): &(Vec<u64>, Vec<u64>)| {
            parent.iter().all(|&page| page == 5) && child.iter().all(|&page| page == 9)
        };
        assert!(samples.iter().all(is_right), "{samples:?}");
    }
    panic!("{samples:?}");
}

/// The translations of such pages never leave the TLB by themselves.
#[test]
fn a_small_hot_set_in_a_tight_loop_is_seen() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(16, "base");
    target.order("loop 100 400");
    let mut missed = 0;
    for _ in 0..20 {
        let armed = tracker.arm(target.id).unwrap();
        if !armed.flushed {
            return skip("ptwalk-flush", "this kernel has soft-dirty tracking");
        }
        // One lap may have begun before the flush.
        target.order("laps 2");
        let found = read(&mut tracker, target.id, &[memory]).unwrap();
        let accessed = pages(&found, memory, |bits| bits.accessed);
        assert!(
            accessed.iter().all(|page| (100..500).contains(page)),
            "{accessed:?}"
        );
        // A page on its way to another frame would be absent, which another user's DAMON does not explain.
        let present = pages(&found, memory, |bits| bits.present);
        let present = present.iter().filter(|page| (100..500).contains(*page));
        assert_eq!(present.count(), 400);
        missed += 400 - accessed.len();
    }
    // None, where no other user clears accessed bits. Without a flush most of them are missed.
    assert!(missed < attempts(), "{missed} of 20 times 400 pages");
    target.order("stop");
}

#[test]
fn memory_that_is_gone_or_never_was_is_not_reported() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(8, "base");
    let asked = range(memory.start.0 - (2 << 20), (8 << 20) + (3 << 20));
    tracker.arm(target.id).unwrap();
    target.touch(0..2048);
    target.order("unmap 512 300");
    target.order("noaccess 1024 512");
    // The range includes the guards on both sides, which were never accessible.
    let found = read(&mut tracker, target.id, &[asked]).unwrap();
    let present = pages(&found, asked, |bits| bits.present);
    let guard = 512;
    let expected = (0..512).chain(812..2048).map(|page| page + guard);
    assert!(present.iter().copied().eq(expected), "{}", present.len());
    // The result is clipped to the requested ranges, also inside a region.
    let some = [
        range(memory.start.0 + 3 * 4096, 4096),
        range(memory.start.0 + 9 * 4096, 8192),
    ];
    let found = read(&mut tracker, target.id, &some).unwrap();
    assert_eq!(pages(&found, memory, |bits| bits.present), [3, 9, 10]);
    assert_eq!(read(&mut tracker, target.id, &[]).unwrap(), []);
}

#[test]
fn the_shared_page_of_zeroes_is_no_memory() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let start = target.order("zeroes");
    tracker.arm(target.id).unwrap();
    target.touch(0..512);
    let found = read(&mut tracker, target.id, &[range(start, 2 << 20)]).unwrap();
    assert_eq!(found, []);
}

#[test]
fn files_are_watched_when_asked_to() {
    let (Some(mut anonymous), Some(mut all)) = (tracker(Scope::Anonymous), tracker(Scope::All))
    else {
        return;
    };
    let target = Target::start();
    let files = || {
        let maps = process::named_maps(&Roots::default(), target.id.pid).unwrap();
        let code = maps
            .into_iter()
            .filter(|one| one.label() == "ptwalk-target");
        code.map(|one| one.vma.range).collect::<Vec<_>>()
    };
    assert!(!files().is_empty());
    anonymous.arm(target.id).unwrap();
    assert_eq!(read(&mut anonymous, target.id, &files()).unwrap(), []);
    all.arm(target.id).unwrap();
    assert!(!read(&mut all, target.id, &files()).unwrap().is_empty());
}

fn is_vanished(error: &TrackError) -> bool {
    matches!(error, TrackError::Read(error) if error.is_vanished())
}

#[test]
fn a_process_that_ends_or_executes_is_told_apart() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(4, "base");
    let never = tracker.read(target.id, &[memory]).unwrap_err();
    assert!(matches!(never, TrackError::Replaced(_)), "{never}");

    tracker.arm(target.id).unwrap();
    target.tell("exec");
    target.order("ready");
    let replaced = tracker.read(target.id, &[memory]).unwrap_err();
    assert!(matches!(replaced, TrackError::Replaced(_)), "{replaced}");
    let memory = target.map(4, "base");
    tracker.arm(target.id).unwrap();
    assert_eq!(read(&mut tracker, target.id, &[memory]).unwrap().len(), 2);

    let stranger = ProcessId {
        start_ticks: target.id.start_ticks + 5,
        ..target.id
    };
    assert!(is_vanished(&tracker.arm(stranger).unwrap_err()));

    // Dead, but not waited for: a zombie; then no process at all.
    tracker.arm(target.id).unwrap();
    target.signal(Signal::KILL);
    let deadline = Instant::now() + Duration::from_secs(60);
    while process::stat(&Roots::default(), target.id.pid).is_ok_and(|stat| !stat.is_zombie()) {
        assert!(Instant::now() < deadline);
        thread::yield_now();
    }
    let zombie = tracker.read(target.id, &[memory]).unwrap_err();
    assert!(is_vanished(&zombie), "{zombie}");
    assert!(is_vanished(&tracker.arm(target.id).unwrap_err()));
    target.child.wait().unwrap();
    assert!(is_vanished(&tracker.arm(target.id).unwrap_err()));
    tracker.release(target.id);
    assert!(is_vanished(&tracker.arm(target.id).unwrap_err()));
}

#[test]
fn a_thread_of_the_kernel_is_named() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let roots = Roots::default();
    let Ok(stat) = process::stat(&roots, 2) else {
        return skip("ptwalk-kthread", "no process 2");
    };
    if !stat.is_kernel_thread() {
        return skip("ptwalk-kthread", "process 2 is no thread of the kernel");
    }
    let id = process::identify(&roots, 2).unwrap();
    let error = tracker.arm(id).unwrap_err().to_string();
    assert!(error.contains("kernel thread"), "{error}");
}

#[test]
fn a_stopped_process_can_be_read() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(4, "base");
    target.arm(&mut tracker);
    target.touch([5]);
    target.signal(Signal::STOP);
    let found = read(&mut tracker, target.id, &[memory]).unwrap();
    assert_eq!(pages(&found, memory, |bits| bits.accessed), [5]);
    tracker.arm(target.id).unwrap();
    let found = read(&mut tracker, target.id, &[memory]).unwrap();
    assert_eq!(pages(&found, memory, |bits| bits.accessed), []);
}

/// A cgroup of version 2, removed when dropped.
struct Cgroup(PathBuf);

impl Cgroup {
    fn new() -> Result<Self, String> {
        for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
            // Where both versions are mounted, the first is a plain folder that holds them.
            if !PathBuf::from(root).join("cgroup.procs").exists() {
                continue;
            }
            let path = PathBuf::from(format!("{root}/superhue-test-{}", std::process::id()));
            if fs::create_dir(&path).is_ok() {
                let cgroup = Self(path);
                if cgroup.0.join("cgroup.freeze").exists() {
                    return Ok(cgroup);
                }
            }
        }
        Err("no cgroup with a freezer can be made".to_owned())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.0.join("cgroup.freeze"), "0");
        let _ = fs::write(self.0.join("cgroup.kill"), "1");
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn a_frozen_process_can_be_read() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(4, "base");
    let cgroup = match Cgroup::new() {
        Ok(cgroup) => cgroup,
        Err(why) => return skip("ptwalk-freezer", &why),
    };
    if let Err(why) = fs::write(cgroup.0.join("cgroup.procs"), target.id.pid.to_string()) {
        return skip("ptwalk-freezer", &why.to_string());
    }
    target.arm(&mut tracker);
    target.touch([9]);
    fs::write(cgroup.0.join("cgroup.freeze"), "1").unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !fs::read_to_string(cgroup.0.join("cgroup.events"))
        .unwrap()
        .contains("frozen 1")
    {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    let found = read(&mut tracker, target.id, &[memory]).unwrap();
    assert_eq!(pages(&found, memory, |bits| bits.accessed), [9]);
    tracker.arm(target.id).unwrap();
    assert_eq!(read(&mut tracker, target.id, &[memory]).unwrap().len(), 2);
}

/// Walks a process that changes its memory as fast as it can; `target.c` defines what may be there. Runs for some seconds, and until the process
/// was seen to have memory, or `each` returned true for an error.
fn walk_chaos(order: &str, mut each: impl FnMut(&TrackError) -> bool) -> Option<u64> {
    let mut tracker = tracker(Scope::Anonymous)?;
    let mut target = Target::start();
    target.order(order);
    // Far around the arena, where the process never maps memory.
    let asked = [range(ARENA - (1 << 40), 2 << 40)];
    let begun = Instant::now();
    let (mut samples, mut is_enough) = (0, false);
    while begun.elapsed() < Duration::from_secs(if is_enough { 3 } else { 60 }) {
        let reading = tracker
            .arm(target.id)
            .and_then(|_| read(&mut tracker, target.id, &asked));
        let found = match reading {
            Ok(found) => found,
            Err(error) => {
                is_enough |= each(&error);
                continue;
            }
        };
        samples += u64::from(!found.is_empty());
        is_enough |= samples > 0;
        for bits in found {
            let start = bits.region.start().0;
            assert!(start >= ARENA, "{bits:?} was never mapped");
            let slot = (start - ARENA) >> 21;
            assert!(
                slot < 64 && slot.is_multiple_of(2),
                "{bits:?} was never mapped"
            );
            if slot.is_multiple_of(4) {
                assert!(!bits.huge, "{bits:?} was never huge");
                let never = bits.present.iter().find(|page| page % 4 != 0);
                assert_eq!(never, None, "{bits:?} was never touched");
            }
        }
    }
    assert!(
        target.child.try_wait().unwrap().is_none(),
        "the target died"
    );
    Some(samples)
}

#[test]
fn a_process_that_changes_furiously_is_walked_unharmed() {
    if let Some(samples) = walk_chaos("chaos", |error| panic!("{error}")) {
        assert!(samples > 0, "it was never seen to have memory");
    }
}

#[test]
fn a_process_that_executes_furiously_is_walked_unharmed() {
    let mut replaced = 0;
    let samples = walk_chaos("chaos-exec", |error| {
        // Between its old memory and its new one it has no mappings for a moment.
        assert!(
            matches!(error, TrackError::Replaced(_)) || is_vanished(error),
            "{error}"
        );
        replaced += u64::from(!is_vanished(error));
        !is_vanished(error)
    });
    assert!(
        samples.is_none_or(|samples| samples + replaced > 0),
        "only missing memory was ever seen"
    );
}

#[test]
fn processes_that_die_while_they_are_walked_do_no_harm() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    for round in 0..20 {
        let mut target = Target::start();
        let memory = target.map(16, "base");
        tracker.arm(target.id).unwrap();
        if round % 2 == 0 {
            target.tell("leave");
        } else {
            target.signal(Signal::KILL);
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let error = loop {
            match read(&mut tracker, target.id, &[memory]) {
                Ok(_) => assert!(Instant::now() < deadline),
                Err(error) => break error,
            }
        };
        assert!(is_vanished(&error), "{error}");
        tracker.release(target.id);
    }
}

/// The tests below run this one by itself, in other circumstances.
#[test]
fn it_tracks_a_child_of_its_own() {
    let Some(mut tracker) = tracker(Scope::Anonymous) else {
        return;
    };
    let mut target = Target::start();
    let memory = target.map(2, "base");
    let is_seen = (0..attempts()).any(|_| {
        target.arm(&mut tracker);
        target.touch([3]);
        let found = read(&mut tracker, target.id, &[memory]).unwrap();
        pages(&found, memory, |bits| bits.accessed) == [3]
    });
    assert!(is_seen);
    println!("TRACKED");
}

/// Returns the output of the test above when `program` runs it.
fn run_by(program: &[&str]) -> String {
    let (first, rest) = program.split_first().unwrap();
    let output = Command::new(first)
        .args(rest)
        .arg(std::env::current_exe().unwrap())
        .args(only(module_path!(), "it_tracks_a_child_of_its_own"))
        .env_remove("SUPERHUE_REQUIRE")
        .output();
    match output {
        Ok(output) => {
            String::from_utf8_lossy(&output.stdout).into_owned()
                + &String::from_utf8_lossy(&output.stderr)
        }
        Err(error) => error.to_string(),
    }
}

/// Returns the running kernel's major and minor version.
fn release() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut number = || numbers.next().unwrap().parse().unwrap();
    (number(), number())
}

/// Returns true if these tests can run programs in other circumstances.
fn is_privileged() -> bool {
    let is = rustix::process::geteuid().is_root() && tracker(Scope::Anonymous).is_some();
    if !is {
        skip("ptwalk-root", "not root, or no tracker");
    }
    is
}

#[test]
fn numbers_are_those_of_the_callers_pid_namespace() {
    if !is_privileged() {
        return;
    }
    let said = run_by(&["unshare", "--pid", "--fork", "--mount-proc"]);
    if said.contains("unshare") {
        return skip("ptwalk-namespace", &said);
    }
    // BPF programs know the numbers of a PID namespace from Linux 6.13 on.
    let expected = match release() >= (6, 13) {
        true => "TRACKED",
        false => "PID namespace of its own",
    };
    assert!(said.contains(expected), "{said}");
    let said = run_by(&["unshare", "--pid", "--fork"]);
    assert!(said.contains("belongs to another PID namespace"), "{said}");
}

#[test]
fn two_capabilities_suffice_and_each_is_needed() {
    if !is_privileged() {
        return;
    }
    let with = |capabilities: &str| {
        let bounding = format!("--bounding-set=-all{capabilities}");
        let inherited = format!("--inh-caps=-all{capabilities}");
        run_by(&["setpriv", &bounding, &inherited])
    };
    let said = with(",+bpf,+perfmon");
    if said.contains("setpriv: ") {
        return skip("ptwalk-setpriv", &said);
    }
    assert!(said.contains("TRACKED"), "{said}");
    let said = with(",+perfmon");
    assert!(said.contains("or with CAP_BPF"), "{said}");
    let said = with(",+bpf");
    assert!(said.contains("or with CAP_PERFMON"), "{said}");
    let said = with("");
    assert!(said.contains("or with CAP_BPF and CAP_PERFMON"), "{said}");
}

#[test]
fn two_trackers_in_two_threads_do_not_mix_their_answers() {
    if tracker(Scope::Anonymous).is_none() {
        return;
    }
    thread::scope(|scope| {
        for page in [11, 222] {
            scope.spawn(move || {
                let mut tracker = PtwalkTracker::new(&Roots::default(), Scope::Anonymous).unwrap();
                let mut target = Target::start();
                let memory = target.map(4, "base");
                let mut missed = 0;
                for _ in 0..50 {
                    target.arm(&mut tracker);
                    target.touch([page]);
                    let found = read(&mut tracker, target.id, &[memory]).unwrap();
                    let accessed = pages(&found, memory, |bits| bits.accessed);
                    assert!(accessed.iter().all(|&found| found == page), "{accessed:?}");
                    missed += usize::from(accessed.is_empty());
                }
                // Another user's DAMON clears one of some thousand pages, now and then.
                assert!(missed < attempts(), "{missed} of 50");
            });
        }
    });
}
