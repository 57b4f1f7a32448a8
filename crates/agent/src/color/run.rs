//! The thread: prepare -> sleep -> see to what woke it, until told to stop.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{ClockId, clock_gettime};
use superhue_mailbox::{Aside, COLOR_STRICT, COLOR_SUPERPAGES, ColorSlot, WISH_ADVISE};
use superhue_model::{BASE_PAGE_SIZE, VirtAddr, VirtRange};

use super::bell::{Asked, Bell};
use super::count::Doubt;
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

/// Counting walks the page tables: 1 ms per GiB.
const COUNT_NS: u64 = 250_000_000;

/// Pages that could not be moved are tried again this often.
const PARDON_NS: u64 = 5_000_000_000;

/// A pool is given back when nothing has happened for so long.
const IDLE_NS: u64 = 2_000_000_000;

/// CPU time for moving that is there at once; more has to be earned.
const ADVANCE_NS: u64 = 1_000_000_000;

/// With what a program ends that cannot have what `--strict` demands: "superhue failed".
const STRICT_STATUS: usize = 125;

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
    let mut worker = Worker::new(mailbox, slot)?;
    // Before the tools go: nobody may ring that is not heard.
    let result = worker.go_on(&bell);
    let strict = mailbox.color().flags.load(Relaxed) & COLOR_STRICT != 0;
    if strict && worker.tools.sees_faults() && result == Err(Aside::Refuted) {
        // What the program touches from now on would be of any color.
        end_strictly(slot, Aside::Refuted);
    }
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

/// Ends the program, which would rather end than go on like this.
fn end_strictly(slot: &ColorSlot, why: Aside) {
    slot.aside.store(why as u32, Release);
    raw::end_process(STRICT_STATUS);
}

struct Worker {
    mailbox: Shared,
    slot: &'static ColorSlot,
    tools: Tools,
    survey: Survey,
    doubt: Doubt,
    pause: u64,
    next_look: u64,
    next_count: u64,
    next_pardon: u64,
    begun: u64,
    /// CPU time that went into moving what was there before.
    moving: u64,
    /// When anything happened last.
    stirred: u64,
    /// CPU time of former programs of this process.
    cpu_before: u64,
    /// Superhue's last sign of life, and when it was.
    heartbeat: (u32, u64),
}

impl Worker {
    fn new(mailbox: Shared, slot: &'static ColorSlot) -> Result<Self, Aside> {
        let pid = raw::process_number();
        let now = now_ns();
        Ok(Self {
            mailbox,
            slot,
            tools: Tools::new(mailbox, pid)?,
            survey: Survey::new(spares_superpages(mailbox))?,
            doubt: Doubt::new(now ^ u64::from(pid)),
            pause: LIVELY_NS,
            next_look: 0,
            next_count: 0,
            next_pardon: now + PARDON_NS,
            begun: now,
            moving: 0,
            stirred: now,
            cpu_before: slot.cpu_ns.load(Relaxed),
            heartbeat: (mailbox.header().heartbeat.load(Relaxed), now),
        })
    }

    fn go_on(&mut self, bell: &Bell) -> Result<(), Aside> {
        self.slot
            .mode
            .store(if self.tools.sees_faults() { 1 } else { 2 }, Relaxed);
        loop {
            self.slot.round.fetch_add(1, Relaxed);
            let now = now_ns();
            if self.is_over(now) {
                return Ok(());
            }
            if now >= self.next_look {
                let happened = self.survey.look(&mut self.tools, self.slot)?;
                self.next_look_after(now, happened);
            }
            let moved = self.move_some()?;
            self.count_if_due()?;
            self.slot.cpu_ns.store(self.cpu_before + cpu_ns(), Relaxed);
            let left = if moved {
                0
            } else {
                self.next_look.saturating_sub(now_ns())
            };
            self.wait(bell, i64::try_from(left).unwrap_or(0))?;
        }
    }

    /// Sleeps until there is something to do, or so long, and sees to what came.
    fn wait(&mut self, bell: &Bell, nanoseconds: i64) -> Result<(), Aside> {
        let faults = self.tools.faults().unwrap_or(bell.button().as_fd());
        if !sleep(&[bell.button().as_fd(), faults], nanoseconds) {
            return Ok(());
        }
        let mut aside = None;
        bell.answer(|asked| aside = aside.or(self.see_to(&asked)));
        if let Some(aside) = aside {
            return Err(aside);
        }
        let served = self.tools.serve().map_err(|_| Aside::Broken)?;
        let placed = served.placed_at.len() as u64;
        self.slot.faults.fetch_add(placed, Relaxed);
        self.slot.placed.fetch_add(placed, Relaxed);
        let uncolored = served.pages.refused.values().map(|pages| pages.0).sum();
        self.slot.uncolored.fetch_add(uncolored, Relaxed);
        super::count::note(&served.pages, self.slot);
        for page in served.placed_at {
            let end = VirtAddr(page.0 + BASE_PAGE_SIZE);
            self.survey.known.insert(VirtRange { start: page, end });
        }
        if !served.waiting.is_empty() {
            let why = if served.drifted {
                Aside::Refuted
            } else {
                Aside::Strict
            };
            end_strictly(self.slot, why);
        }
        if served.drifted {
            return Err(Aside::Refuted);
        }
        if placed > 0 {
            // A program that fills memory soon maps more.
            self.stirred = now_ns();
            self.next_look = self.next_look.min(self.stirred + LIVELY_NS);
        }
        Ok(())
    }

    fn next_look_after(&mut self, begun: u64, happened: bool) {
        let now = now_ns();
        if happened {
            self.pause = LIVELY_NS;
            self.stirred = now;
        } else {
            self.pause = (self.pause + self.pause / 2).min(CALM_NS);
        }
        self.next_look = now + self.pause.max((now - begun).saturating_mul(APART));
    }

    /// Moves a piece of what was there before, if there is one and it may cost that.
    fn move_some(&mut self) -> Result<bool, Aside> {
        if !self.tools.sees_faults() {
            return Ok(false);
        }
        let effort = u64::from(self.mailbox.color().effort.load(Relaxed));
        let earned = (now_ns() - self.begun) / 100 * effort;
        if self.moving > ADVANCE_NS + earned {
            return Ok(false);
        }
        let before = cpu_ns();
        let moved = self.survey.move_some(&mut self.tools, self.slot)?;
        self.moving += cpu_ns() - before;
        Ok(moved)
    }

    /// Counts now and then, makes sure, and lets go of what nobody needs.
    fn count_if_due(&mut self) -> Result<(), Aside> {
        let now = now_ns();
        if now < self.next_count {
            return Ok(());
        }
        let pool = self.tools.pool_held();
        if now - self.stirred > IDLE_NS && pool > 0 {
            self.tools.release_pool();
            self.slot.released.fetch_add(pool, Relaxed);
        } else if now - self.stirred < IDLE_NS {
            self.doubt
                .test(&mut self.survey, &mut self.tools, self.slot)?;
        }
        if now >= self.next_pardon {
            self.survey.forgive(self.slot);
            self.next_pardon = now + PARDON_NS;
        }
        self.survey.count(&mut self.tools, self.slot);
        let counted = now_ns();
        self.next_count = counted + COUNT_NS.max((counted - now) * APART);
        Ok(())
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
            let _ = self.survey.look(&mut self.tools, self.slot);
            let _ = self
                .doubt
                .test(&mut self.survey, &mut self.tools, self.slot);
            self.survey.count(&mut self.tools, self.slot);
            self.slot.cpu_ns.store(self.cpu_before + cpu_ns(), Relaxed);
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

/// Whether whole aligned 2 MiB are to be left to superpages: all colors are wanted, and the kernel, or `--pages always`,
/// fills every mapping with them. An armed mapping never gets one by itself.
fn spares_superpages(mailbox: Shared) -> bool {
    if mailbox.color().flags.load(Relaxed) & COLOR_SUPERPAGES == 0 {
        return false;
    }
    if mailbox.wishes() & WISH_ADVISE != 0 {
        return true;
    }
    let get = libc::PR_GET_THP_DISABLE as usize;
    // SAFETY: asks for a number.
    if unsafe { raw::syscall(libc::SYS_prctl, [get, 0, 0, 0, 0, 0]) } != 0 {
        return false;
    }
    let path = c"/sys/kernel/mm/transparent_hugepage/enabled";
    let mut text = [0; 64];
    let Ok(file) = open_own(path) else {
        return false;
    };
    let length = rustix::io::read(&file, &mut text).unwrap_or(0);
    text.get(..length)
        .is_some_and(|text| text.starts_with(b"[always]"))
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

/// An open file about this process.
pub(super) type Descriptor = OwnedFd;
