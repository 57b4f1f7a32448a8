//! The thread: prepare -> sleep -> see to what woke it, until told to stop.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use superhue_mailbox::{Aside, ColorSlot};

use super::bell::{Asked, Bell};
use super::survey::Survey;
use super::tools::{Tools, open_own};
use crate::raw::{self, Shared};

/// A program that ends sooner is left alone: making a palette's acquaintance takes longer than it runs.
const HESITATION_NS: i64 = 3_000_000;

/// Pauses between looks at the list of mappings, while it changes and once it does not.
const LIVELY_NS: u64 = 2_000_000;
const CALM_NS: u64 = 100_000_000;

/// Looks are at least this many times their own cost apart.
const APART: u64 = 20;

/// How long the thread goes on without a sign of life from Superhue.
const PATIENCE_NS: u64 = 30_000_000_000;

/// The thread.
pub(super) extern "C" fn run() -> ! {
    raw::close_all();
    super::is_apart();
    let (mailbox, slot) = (super::mailbox(), super::slot());
    slot.thread.store(raw::thread_number(), Relaxed);
    let ended = work(mailbox, slot);
    // Of the program's next one nothing is known yet.
    slot.thread.store(0, Relaxed);
    slot.armed.store(0, Relaxed);
    if let Err(aside) = ended {
        slot.aside.store(aside as u32, Release);
    }
    raw::end_thread()
}

/// Works until Superhue ends (`Ok`), or something else does not let it go on.
fn work(mailbox: Shared, slot: &'static ColorSlot) -> Result<(), Aside> {
    let bell = Bell::hang(slot).ok_or(Aside::NoUserfaultfd)?;
    if let Some(aside) = hesitate(&bell) {
        return Err(aside);
    }
    let mut worker = Worker {
        mailbox,
        slot,
        tools: Tools::new(mailbox, raw::process_number())?,
        survey: Survey::new(open_own(c"/proc/thread-self/maps")?)?,
        pause: LIVELY_NS,
        next_look: 0,
        cpu_before: slot.cpu_ns.load(Relaxed),
        heartbeat: (mailbox.header().heartbeat.load(Relaxed), now_ns()),
    };
    slot.mode.store(worker.tools.mode(), Relaxed);
    // Before the tools go: nobody may ring that is not heard.
    let result = worker.go_on(&bell);
    drop(bell);
    result
}

/// Waits whether the program ends at once; whether it asks to be left alone meanwhile.
fn hesitate(bell: &Bell) -> Option<Aside> {
    let mut reason = None;
    if sleep(&[bell.button().as_fd()], HESITATION_NS) {
        bell.answer(|asked| reason = reason.or(asked.aside));
    }
    reason
}

struct Worker {
    mailbox: Shared,
    slot: &'static ColorSlot,
    tools: Tools,
    survey: Survey,
    pause: u64,
    next_look: u64,
    /// CPU time of former programs of this process.
    cpu_before: u64,
    /// Superhue's last sign of life, and when it was.
    heartbeat: (u32, u64),
}

impl Worker {
    fn go_on(&mut self, bell: &Bell) -> Result<(), Aside> {
        loop {
            self.slot.round.fetch_add(1, Relaxed);
            let begun = now_ns();
            if self.is_over(begun) {
                return Ok(());
            }
            if begun >= self.next_look {
                let happened = self.survey.look(&mut self.tools, self.slot)?;
                self.next_look_after(begun, happened);
            }
            let left = self.next_look.saturating_sub(now_ns());
            let left = i64::try_from(left).unwrap_or(0);
            if sleep(&[bell.button().as_fd()], left) {
                let mut aside = None;
                bell.answer(|asked| aside = aside.or(self.see_to(&asked)));
                if let Some(aside) = aside {
                    return Err(aside);
                }
            }
            self.slot.cpu_ns.store(self.cpu_before + cpu_ns(), Relaxed);
        }
    }

    fn next_look_after(&mut self, begun: u64, happened: bool) {
        self.pause = if happened {
            LIVELY_NS
        } else {
            (self.pause + self.pause / 2).min(CALM_NS)
        };
        let now = now_ns();
        self.next_look = now + self.pause.max((now - begun).saturating_mul(APART));
    }

    /// Does what was asked by a thread that waits for it; a reason to stop, if that was it.
    fn see_to(&mut self, asked: &Asked) -> Option<Aside> {
        if let Some(range) = asked.mapped {
            self.survey.mapped(range, &mut self.tools, self.slot);
        }
        if asked.scan {
            self.next_look = 0;
        }
        if asked.last {
            self.survey.count(self.slot);
        }
        asked.aside
    }

    /// Whether Superhue has ended.
    fn is_over(&mut self, now: u64) -> bool {
        let header = self.mailbox.header();
        let beat = header.heartbeat.load(Relaxed);
        if beat != self.heartbeat.0 {
            self.heartbeat = (beat, now);
        }
        header.closing.load(Acquire) != 0 || now - self.heartbeat.1 > PATIENCE_NS
    }
}

/// Sleeps until a descriptor is readable (true) or the time is over.
fn sleep(descriptors: &[rustix::fd::BorrowedFd<'_>], nanoseconds: i64) -> bool {
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN))
        .collect();
    let time = Timespec {
        tv_sec: nanoseconds / 1_000_000_000,
        tv_nsec: nanoseconds % 1_000_000_000,
    };
    poll(&mut fds, Some(&time)).is_ok_and(|ready| ready > 0)
}

fn nanoseconds(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}

pub(super) fn now_ns() -> u64 {
    nanoseconds(ClockId::Monotonic)
}

/// CPU time of this thread.
pub(super) fn cpu_ns() -> u64 {
    nanoseconds(ClockId::ThreadCPUTime)
}

/// Seccomp filters that this process runs under, by its own word (`Seccomp_filters` of `proc_pid_status(5)`,
/// Linux 5.9); as many as there can be if it does not say.
pub(super) fn seccomp_filters() -> u32 {
    let mut text = [0; 4096];
    let Ok(fd) = usize::try_from(raw::open(c"/proc/self/status", libc::O_RDONLY)) else {
        return u32::MAX;
    };
    let length = raw::read_head(fd, &mut text);
    raw::close(fd);
    let lines = text
        .get(..length)
        .unwrap_or_default()
        .split(|&byte| byte == b'\n');
    let mut values = lines.filter_map(|line| line.strip_prefix(b"Seccomp_filters:"));
    let value = values
        .next()
        .and_then(|value| std::str::from_utf8(value).ok());
    value
        .and_then(|value| value.trim().parse().ok())
        .unwrap_or(u32::MAX)
}

/// An open list of mappings.
pub(super) type Maps = OwnedFd;
