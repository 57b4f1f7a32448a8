//! Search for the process that holds up one of our own: a worker of the daemon, or a verb that looks at everything.
//!
//! ```text
//!   the worker's board (superhue_sys::busy)    thread 12 is busy with process 7
//!   /proc/WORKER/task/12/status                it sleeps, and has slept since the last look: no switch to it in between
//!   /proc/WORKER/task/12/syscall               if it can be woken: in a call on files or memory
//!   ──> 7 holds the worker up
//! ```
//!
//! Both files belong to our own child, whose locks no other process can hold. A thread that has work and no CPU does not sleep, so a busy machine
//! does not look like a worker held up.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use superhue_sys::busy::{BusyBoard, BusyThread};

/// Time that a worker may sleep in a call on one process.
#[derive(Debug, Clone, Copy)]
pub struct SleepLimits {
    /// In an uninterruptible sleep, which only its own end or the worker's ends: on the locks of a process, and in the file systems below it.
    pub uninterruptible: Duration,
    /// In a sleep that a signal would end: in a request to a file system in user space.
    pub in_files: Duration,
}

/// A process that holds a worker up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockingProcess {
    /// Process number.
    pub process: u32,
    /// Time since the first look at this sleep.
    pub lasts: Duration,
}

/// A sleep of a thread, as it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sleep {
    busy: BusyThread,
    /// Number of context switches of the thread so far.
    switches: u64,
}

/// Remembers the sleeps of one worker's threads.
#[derive(Debug)]
pub struct SleepMonitor {
    patience: SleepLimits,
    /// By thread: its sleep, and the time of the first look at it.
    sleeps: BTreeMap<u32, (Sleep, Instant)>,
}

impl SleepMonitor {
    /// Makes one for a worker of which nothing is known yet.
    #[must_use]
    pub const fn new(patience: SleepLimits) -> Self {
        Self {
            patience,
            sleeps: BTreeMap::new(),
        }
    }

    /// Looks at the threads of process `worker`, which writes on `board`. Must be called several times within the patience.
    pub fn look(&mut self, worker: u32, board: &BusyBoard) -> Option<BlockingProcess> {
        self.look_at(worker, &board.busy(), Instant::now())
    }

    /// Looks at `reader`, a process of one thread that does nothing but read `process`.
    pub fn look_at_reader(&mut self, reader: u32, process: u32) -> Option<BlockingProcess> {
        let busy = BusyThread {
            thread: reader,
            process,
            count: 0,
        };
        self.look_at(reader, &[busy], Instant::now())
    }

    fn look_at(
        &mut self,
        worker: u32,
        busy: &[BusyThread],
        now: Instant,
    ) -> Option<BlockingProcess> {
        let mut sleeps = BTreeMap::new();
        let mut found: Option<BlockingProcess> = None;
        for &busy in busy {
            let Some((state, switches)) = state_of(worker, busy.thread) else {
                continue;
            };
            let patience = match state {
                b'D' => self.patience.uninterruptible,
                b'S' if sleeps_in_files(worker, busy.thread) => self.patience.in_files,
                _ => continue,
            };
            let sleep = Sleep { busy, switches };
            let before = self.sleeps.get(&busy.thread);
            let since = before.filter(|(before, _)| *before == sleep);
            let since = since.map_or(now, |&(_, since)| since);
            sleeps.insert(busy.thread, (sleep, since));
            let lasts = now.saturating_duration_since(since);
            if lasts >= patience && found.is_none_or(|found| lasts > found.lasts) {
                found = Some(BlockingProcess {
                    process: busy.process,
                    lasts,
                });
            }
        }
        self.sleeps = sleeps;
        found
    }
}

/// Returns the state of a thread, a letter of `proc_pid_status(5)`, and its context switches.
fn state_of(process: u32, thread: u32) -> Option<(u8, u64)> {
    let text = fs::read(format!("/proc/{process}/task/{thread}/status")).ok()?;
    let mut state = None;
    let mut switches = 0;
    for line in text.split(|&byte| byte == b'\n') {
        if let Some(rest) = line.strip_prefix(b"State:") {
            state = rest.trim_ascii().first().copied();
        } else if line.starts_with(b"voluntary_ctxt") || line.starts_with(b"nonvoluntary_ctxt") {
            let number = line.rsplit(|byte| byte.is_ascii_whitespace()).next()?;
            switches += std::str::from_utf8(number).ok()?.parse::<u64>().ok()?;
        }
    }
    Some((state?, switches))
}

/// Returns true if the call that a thread sleeps in works on files or on memory of other processes, and does not wait for time or for us.
fn sleeps_in_files(process: u32, thread: u32) -> bool {
    const CALLS: [libc::c_long; 9] = [
        libc::SYS_openat,
        libc::SYS_newfstatat,
        libc::SYS_statx,
        libc::SYS_readlinkat,
        libc::SYS_pread64,
        libc::SYS_preadv,
        libc::SYS_getdents64,
        libc::SYS_ioctl,
        libc::SYS_process_madvise,
    ];
    #[cfg(target_arch = "x86_64")]
    const MORE: [libc::c_long; 4] = [
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_readlink,
    ];
    #[cfg(not(target_arch = "x86_64"))]
    const MORE: [libc::c_long; 0] = [];
    let text = fs::read_to_string(format!("/proc/{process}/task/{thread}/syscall"));
    let number = text
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok());
    number.is_some_and(|number: libc::c_long| CALLS.contains(&number) || MORE.contains(&number))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const SLEEP_LIMITS: SleepLimits = SleepLimits {
        uninterruptible: Duration::from_millis(100),
        in_files: Duration::from_secs(1),
    };

    fn wait_for(pid: u32, state: u8) {
        while state_of(pid, pid).is_none_or(|(now, _)| now != state) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn only_a_thread_that_sleeps_in_the_kernel_is_held_up() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
        // Opening a pipe without a writer stands for a file whose server does not answer.
        let mut command = Command::new("cat");
        let waits = superhue_testing::ChildGuard::spawn(command.arg(&fifo).stdout(Stdio::null()));
        let mut command = Command::new("sleep");
        let sleeps = superhue_testing::ChildGuard::spawn(command.arg("60"));
        let mut command = Command::new("sh");
        let works =
            superhue_testing::ChildGuard::spawn(command.args(["-c", "while :; do :; done"]));
        wait_for(waits.pid(), b'S');
        wait_for(sleeps.pid(), b'S');
        while !sleeps_in_files(waits.pid(), waits.pid()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begun = Instant::now();
        for (child, is_held_up) in [(&waits, true), (&sleeps, false), (&works, false)] {
            let mut minder = SleepMonitor::new(SLEEP_LIMITS);
            let busy = [BusyThread {
                thread: child.pid(),
                process: 7,
                count: 3,
            }];
            let pid = child.pid();
            assert_eq!(minder.look_at(pid, &busy, begun), None, "not yet");
            let later = begun + SLEEP_LIMITS.in_files;
            let found = minder.look_at(pid, &busy, later);
            let expected = BlockingProcess {
                process: 7,
                lasts: SLEEP_LIMITS.in_files,
            };
            assert_eq!(found, is_held_up.then_some(expected));
            // The thread has made progress meanwhile.
            let busy = [BusyThread {
                count: 4,
                ..busy[0]
            }];
            assert_eq!(minder.look_at(pid, &busy, later), None);
        }
        let nobody = [BusyThread {
            thread: u32::MAX >> 1,
            process: 7,
            count: 3,
        }];
        let mut minder = SleepMonitor::new(SLEEP_LIMITS);
        assert_eq!(minder.look_at(u32::MAX >> 1, &nobody, begun), None);
    }
}
