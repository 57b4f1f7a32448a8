//! A program to be visited: threads that check every word they wrote, and waits that must not end early.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use superhue_model::ProcessId;

/// What takes longer has come to a stand.
pub const PATIENCE: Duration = Duration::from_secs(120);

const VARIABLE: &str = "SUPERHUE_VISIT_TARGET";
const CLONER: &str = "cloner";

/// A running one.
pub struct Target {
    child: Child,
    output: BufReader<ChildStdout>,
    pub id: ProcessId,
    /// Where its memory starts.
    pub start: u64,
    /// Where the kernel reads and writes the restartable sequence of its first thread; 0 if it has none.
    pub rseq: u64,
}

impl Target {
    /// Starts one with so many MiB.
    pub fn start(mib: usize) -> Self {
        Self::start_as(&mib.to_string())
    }

    /// Starts one that does nothing but make processes, each of which is to be traced by whoever traces it.
    pub fn start_cloner() -> Self {
        Self::start_as(CLONER)
    }

    fn start_as(what: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "target", "--nocapture"])
            .env(VARIABLE, what)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (start, rseq) = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "no target");
            if let Some((_, addresses)) = line.split_once("memory at ") {
                let mut addresses = addresses.split_whitespace();
                let mut next = || addresses.next().unwrap().parse().unwrap();
                break (next(), next());
            }
        };
        let pid = child.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1;
        let start_ticks = fields.split_whitespace().nth(19).unwrap().parse().unwrap();
        let id = ProcessId { pid, start_ticks };
        Self {
            child,
            output,
            id,
            start,
            rseq,
        }
    }

    /// What a visit could leave: mappings (their names and rights), descriptors, threads, the signals held back and handled.
    pub fn traces(&self) -> Vec<String> {
        let pid = self.id.pid;
        let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
        let mut traces: Vec<String> = maps.lines().map(str::to_owned).collect();
        for folder in ["fd", "task"] {
            let names = fs::read_dir(format!("/proc/{pid}/{folder}")).unwrap();
            let mut names: Vec<_> = names.map(|name| name.unwrap().file_name()).collect();
            names.sort();
            traces.push(format!("{folder}: {names:?}"));
            if folder == "task" {
                for tid in names {
                    let status = format!("/proc/{pid}/task/{}/status", tid.display());
                    let status = fs::read_to_string(status).unwrap();
                    let kept = ["Sig", "TracerPid", "Cap", "Seccomp", "VmLck", "NoNewPrivs"];
                    let lines = status.lines().filter(|line| {
                        kept.iter().any(|name| line.starts_with(name)) && !line.starts_with("SigQ")
                    });
                    traces.extend(lines.map(str::to_owned));
                }
            }
        }
        traces
    }

    /// Sees that its traces are what they were.
    pub fn assert_untouched(&self, before: &[String]) {
        let now = self.traces();
        let differences: Vec<_> = (before.iter().filter(|line| !now.contains(line)))
            .chain(now.iter().filter(|line| !before.contains(line)))
            .collect();
        assert!(differences.is_empty(), "{differences:#?}");
    }

    /// Kills it, and sees that its end is told to who waits for it.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        let ended = self.waited_for();
        assert!(ended, "it cannot be waited for: {:#?}", self.traces());
    }

    /// Waits for its end; false if that does not come.
    fn waited_for(&mut self) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return true;
            }
            thread::sleep(Duration::from_millis(1));
        }
        false
    }

    /// Kills visiting processes some times, each in the middle of a visit: the code is inside and works. (At either end of a
    /// visit, for some microseconds, the program could not be saved.) How many.
    pub fn kill_visitors_inside(&self, stop: &AtomicBool) -> u32 {
        use rustix::process::{Pid, Signal, kill_process};
        let pid = self.id.pid;
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        let mut killed = 0;
        let begun = Instant::now();
        // On one CPU hardly a visit is met.
        while killed < 6 && !stop.load(Relaxed) && begun.elapsed() < PATIENCE {
            if killed > 0 && begun.elapsed() > PATIENCE / 6 {
                break;
            }
            let field = |status: &str, name: &str| -> String {
                let mut lines = status.lines();
                let found = lines.find_map(|line| line.strip_prefix(name));
                found.unwrap_or_default().trim().to_owned()
            };
            let tracer = field(&read(format!("/proc/{pid}/status")), "TracerPid:");
            let Some(visitor) = tracer.parse().ok().and_then(Pid::from_raw) else {
                continue;
            };
            // For a moment, while who traced it lets go, the kernel names the parent instead: us.
            let ours = std::process::id().to_string();
            if field(&read(format!("/proc/{tracer}/status")), "Tgid:") == ours {
                continue;
            }
            // It stands still while we look.
            if kill_process(visitor, Signal::STOP).is_err() {
                continue;
            }
            thread::sleep(Duration::from_millis(2));
            let maps = read(format!("/proc/{pid}/maps"));
            let is_code =
                |line: &str| line.contains(" r-xp ") && line.split_whitespace().nth(4) == Some("0");
            let has_code = maps
                .lines()
                .any(|line| is_code(line) && !line.contains('['));
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
            let goes = tasks.flatten().any(|task| {
                let status = read(format!("{}/status", task.path().display()));
                !status.is_empty() && !field(&status, "State:").starts_with('t')
            });
            let traced = field(&read(format!("/proc/{pid}/status")), "TracerPid:") == tracer;
            let works = has_code && goes && traced;
            let signal = if works { Signal::KILL } else { Signal::CONT };
            let _ = kill_process(visitor, signal);
            killed += u32::from(works);
            // The next one begins.
            thread::sleep(Duration::from_millis(if works { 300 } else { 1 }));
        }
        killed
    }

    /// Ends it, and sees that it saw nothing.
    pub fn finish(self) {
        let seen = self.end();
        assert_eq!(seen, (0, 0, 0), "bad, eintr, early");
    }

    /// Ends it, and sees that its memory is right. Who traces and is killed has waits end with `EINTR`.
    pub fn finish_after_kills(self) {
        let (bad, _, early) = self.end();
        assert_eq!((bad, early), (0, 0), "bad, early");
    }

    fn end(mut self) -> (u64, u64, u64) {
        drop(self.child.stdin.take());
        let ended = self.waited_for();
        assert!(ended, "it does not end: {:#?}", self.traces());
        let status = self.child.wait().unwrap();
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        assert!(status.success(), "{status}: {said}");
        let line = said.lines().find(|line| line.contains("loops")).unwrap();
        let number = |name: &str| -> u64 {
            let rest = line.split_once(name).unwrap().1;
            rest.split_whitespace().next().unwrap().parse().unwrap()
        };
        assert!(number("loops") > 0, "{line}");
        (number("bad"), number("eintr"), number("early"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        // Not for ever: who can no longer be waited for fails his test, and does not hold up the others.
        self.waited_for();
    }
}

const PAGE_WORDS: usize = 512;
const WRITERS: usize = 6;

/// What a target counts.
#[derive(Default)]
struct Counts {
    begun: AtomicU64,
    stop: AtomicBool,
    loops: AtomicU64,
    bad: AtomicU64,
    eintr: AtomicU64,
    early: AtomicU64,
}

/// Is a target, if this process was started as one.
pub fn be_one() {
    let Ok(wanted) = std::env::var(VARIABLE) else {
        return;
    };
    if wanted == CLONER {
        make_traced_processes();
    }
    let mib: usize = wanted.parse().unwrap();
    let length = (mib << 20) / 8 + PAGE_WORDS;
    let words: Vec<AtomicU64> = (0..length).map(|_| AtomicU64::new(0)).collect();
    let skip = words.as_ptr().align_offset(4096);
    let words: &'static [AtomicU64] = &words.leak()[skip..];
    let counts: &'static Counts = Box::leak(Box::default());
    let mut threads: Vec<_> = (0..WRITERS)
        .map(|id| thread::spawn(move || write(words, id, counts)))
        .collect();
    threads.push(thread::spawn(move || wait_for_events(counts)));
    threads.push(thread::spawn(move || sleep(counts)));
    // All at work, with all that they allocate for themselves.
    while counts.begun.load(Relaxed) < threads.len() as u64 {
        thread::sleep(Duration::from_millis(1));
    }
    println!("\nmemory at {} {}", words.as_ptr() as usize, own_rseq());
    let mut rest = Vec::new();
    let _ = std::io::stdin().read_to_end(&mut rest);
    counts.stop.store(true, Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    let of = |count: &AtomicU64| count.load(Relaxed);
    println!(
        "\nloops {} bad {} eintr {} early {}",
        of(&counts.loops),
        of(&counts.bad),
        of(&counts.eintr),
        of(&counts.early)
    );
    std::process::exit(0);
}

/// Where the C library has the restartable sequence of the calling thread (glibc 2.35).
fn own_rseq() -> u64 {
    // SAFETY: a look for a name.
    let offset = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    if offset.is_null() {
        return 0;
    }
    let thread: u64;
    // SAFETY: the first word of a thread's own block points to that block; the offset is a `ptrdiff_t`.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly));
        thread.wrapping_add_signed(offset.cast::<i64>().read())
    }
}

/// Processes made with `CLONE_PTRACE` that end at once. One that does not is counted as bad.
fn make_traced_processes() -> ! {
    static STOP: AtomicBool = AtomicBool::new(false);
    println!("\nmemory at 0 0");
    thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        STOP.store(true, Relaxed);
    });
    let (mut loops, mut bad) = (0, 0);
    while !STOP.load(Relaxed) && bad == 0 {
        let flags = (libc::CLONE_PTRACE | libc::SIGCHLD) as libc::c_ulong;
        // SAFETY: a copy of the process, on a copy of the stack, that calls nothing but `_exit`.
        let child = unsafe { libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0) };
        if child == 0 {
            // SAFETY: the end.
            unsafe { libc::_exit(0) };
        }
        let child = rustix::process::Pid::from_raw(i32::try_from(child).unwrap()).unwrap();
        let begun = Instant::now();
        while let Ok(None) =
            rustix::process::waitpid(Some(child), rustix::process::WaitOptions::NOHANG)
        {
            if begun.elapsed() > Duration::from_secs(5) {
                let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
                bad += 1;
                break;
            }
            thread::yield_now();
        }
        loops += 1;
    }
    println!("\nloops {loops} bad {bad} eintr 0 early 0");
    std::process::exit(0);
}

/// Every sixth page: a word at either end, which says how often it was written.
fn write(words: &[AtomicU64], id: usize, counts: &Counts) {
    let mut round = 0_u64;
    while !counts.stop.load(Relaxed) {
        round += 1;
        for page in (id..words.len() / PAGE_WORDS).step_by(WRITERS) {
            let first = &words[page * PAGE_WORDS];
            let last = &words[page * PAGE_WORDS + PAGE_WORDS - 1];
            let sum = |round: u64| round.wrapping_mul(31).wrapping_add(page as u64);
            let (a, b) = (first.load(Relaxed), last.load(Relaxed));
            if round > 1 && (a != round - 1 || b != sum(round - 1)) {
                counts.bad.fetch_add(1, Relaxed);
            }
            first.store(round, Relaxed);
            last.store(sum(round), Relaxed);
        }
        if round == 1 {
            counts.begun.fetch_add(1, Relaxed);
        }
        counts.loops.fetch_add(1, Relaxed);
    }
}

/// A wait that ends with `EINTR` whatever interrupts it, if nobody begins it again.
fn wait_for_events(counts: &Counts) {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let timeout = rustix::time::Timespec {
        tv_sec: 0,
        tv_nsec: 30_000_000,
    };
    counts.begun.fetch_add(1, Relaxed);
    while !counts.stop.load(Relaxed) {
        let begun = Instant::now();
        let mut events = Vec::with_capacity(1);
        let buffer = rustix::buffer::spare_capacity(&mut events);
        match rustix::event::epoll::wait(&epoll, buffer, Some(&timeout)) {
            Err(rustix::io::Errno::INTR) => drop(counts.eintr.fetch_add(1, Relaxed)),
            _ if begun.elapsed() < Duration::from_millis(29) => {
                counts.early.fetch_add(1, Relaxed);
            }
            _ => {}
        }
    }
}

fn sleep(counts: &Counts) {
    counts.begun.fetch_add(1, Relaxed);
    while !counts.stop.load(Relaxed) {
        let begun = Instant::now();
        let time = rustix::time::Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        match rustix::thread::nanosleep(&time) {
            rustix::thread::NanosleepRelativeResult::Ok => {
                if begun.elapsed() < Duration::from_millis(20) {
                    counts.early.fetch_add(1, Relaxed);
                }
            }
            _ => drop(counts.eintr.fetch_add(1, Relaxed)),
        }
    }
}
