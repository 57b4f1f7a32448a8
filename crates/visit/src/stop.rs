//! Stopping all threads of a program, and letting them go.
//!
//! Every thread is seized, then all are interrupted, then each is waited for; threads that appear meanwhile are found by
//! listing again until none is new. What a thread was about to be given when it stopped is given to it when it goes on.
//!
//! A call that a stop interrupts is begun again by the kernel for most kinds. Some end with `EINTR` all the same
//! (`epoll_wait`, `semop`, `sigtimedwait`, sockets with timeouts: signal(7)). Where no signal is there to account for that,
//! the call is begun again by us: no program sees `EINTR` because of a visit.

use std::fs;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use superhue_model::{BASE_PAGE_SIZE, Obstacle};
use superhue_sys::ptrace::{self, Registers, Stop};

use crate::look::Stat;

/// How long threads may take to stop.
const BOUND: Duration = Duration::from_millis(10);

/// How long is waited for those that did not stop in time, while the others go on.
const LATE: Duration = Duration::from_secs(2);

/// Waits this short are spun through; the CPU is given up between longer ones.
const SPIN: u32 = 200;

/// The kernel's numbers for calls that are to be begun again (`include/linux/errno.h`), and `EINTR`.
const ERESTARTSYS: i64 = -512;
const ERESTARTNOINTR: i64 = -513;
const ERESTARTNOHAND: i64 = -514;
const ERESTART_RESTARTBLOCK: i64 = -516;
const EINTR: i64 = -4;

/// `restart_syscall(2)`.
const RESTART_SYSCALL: u64 = 219;

/// Calls that wait with a timeout in milliseconds.
const EPOLL_WAIT: u64 = 232;
const EPOLL_PWAIT: u64 = 281;

/// Calls that take a `struct timespec`, by its address, or none.
const RT_SIGTIMEDWAIT: u64 = 128;
const IO_GETEVENTS: u64 = 208;
const SEMTIMEDOP: u64 = 220;
const IO_PGETEVENTS: u64 = 333;
const EPOLL_PWAIT2: u64 = 441;

/// `semop(2)` waits without end.
const SEMOP: u64 = 65;

/// Bytes of a `syscall` instruction.
const CALL_LENGTH: u64 = 2;

/// A stopped thread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Thread {
    pub(crate) tid: u32,
    /// A signal it was about to be given.
    signal: i32,
}

/// A program all of whose threads stand still. Lets go when dropped.
#[derive(Debug)]
pub(crate) struct Stopped {
    threads: Vec<Thread>,
    /// Threads of the kernel's that work on its memory (io_uring, vhost) go on.
    pub(crate) kernel_works: bool,
    /// It was told to stop by a signal while it stood still.
    stop_came: bool,
    begun: Instant,
    begun_again: Vec<Again>,
    /// Where we may run, while we keep off a CPU.
    usual_cpus: Option<CpuSet>,
}

/// A call that was begun again, with the whole of its timeout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Again {
    pub(crate) tid: u32,
    pub(crate) timeout: Timeout,
}

/// For how long a call waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timeout {
    Never,
    After(Duration),
    /// A socket's own (`SO_RCVTIMEO`), or another that is not in the arguments.
    Unknown,
}

/// What letting go came to.
#[derive(Debug)]
pub(crate) struct LetGo {
    /// Since the first thread was told to stop.
    pub(crate) pause: Duration,
    /// Calls begun again.
    pub(crate) begun_again: Vec<Again>,
}

/// Threads of a process that are not ended.
fn list(pid: u32) -> Result<Vec<u32>, Obstacle> {
    let folder = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| Obstacle::Gone)?;
    let names = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(names.collect())
}

/// Whether a thread has ended and is only remembered (a leader that left before the others; who was killed).
pub(crate) fn has_ended(tid: u32) -> bool {
    Stat::of(tid).is_none_or(|stat| matches!(stat.state, b'Z' | b'X'))
}

impl Thread {
    /// Whether it stands without being about to be given a signal.
    pub(crate) const fn is_free(&self) -> bool {
        self.signal == 0
    }
}

impl Stopped {
    /// Stops all threads of `pid`.
    ///
    /// # Errors
    /// Why not all of them were. Those that stopped go on; the others will by [`let_go_of_the_late`].
    pub(crate) fn all(pid: u32) -> Result<Self, (Obstacle, LetGo)> {
        let mut stopped = Self::of(Vec::new());
        match stopped.stop(pid) {
            Ok(()) => Ok(stopped),
            Err(obstacle) => Err((obstacle, stopped.release())),
        }
    }

    fn of(threads: Vec<Thread>) -> Self {
        Self {
            threads,
            kernel_works: false,
            stop_came: false,
            begun: Instant::now(),
            begun_again: Vec::new(),
            usual_cpus: None,
        }
    }

    fn stop(&mut self, pid: u32) -> Result<(), Obstacle> {
        let mut known: Vec<u32> = Vec::new();
        // New threads can only be made by those that still run: each round stops more of them.
        loop {
            let new = list(pid)?.into_iter();
            let new: Vec<u32> = new
                .filter(|tid| known.binary_search(tid).is_err())
                .collect();
            if new.is_empty() {
                break;
            }
            let mut obstacle = None;
            let seized: Vec<u32> = (new.iter().copied())
                .filter(|&tid| match self.seize(pid, tid) {
                    Ok(seized) => seized,
                    Err(why) => {
                        obstacle = obstacle.or(Some(why));
                        false
                    }
                })
                .collect();
            if known.is_empty() {
                self.begun = Instant::now();
            }
            for &tid in &seized {
                // Gone meanwhile: told when waited for.
                let _ = ptrace::interrupt(tid);
            }
            // All of them, even if one speaks against it: what has stopped can be let go.
            for &tid in &seized {
                obstacle = obstacle.or(self.wait_for(tid).err());
            }
            if let Some(obstacle) = obstacle {
                return Err(obstacle);
            }
            known.extend(new);
            known.sort_unstable();
        }
        if self.threads.is_empty() {
            return Err(Obstacle::Gone);
        }
        Ok(())
    }

    /// Seizes a thread; false if that is neither possible nor needed.
    fn seize(&mut self, pid: u32, tid: u32) -> Result<bool, Obstacle> {
        match ptrace::seize(tid) {
            Ok(()) => Ok(true),
            Err(Errno::SRCH) => Ok(false),
            Err(_) if has_ended(tid) => Ok(false),
            Err(_) => match refusal(pid, tid) {
                Obstacle::KernelWorks => {
                    self.kernel_works = true;
                    Ok(false)
                }
                obstacle => Err(obstacle),
            },
        }
    }

    fn wait_for(&mut self, tid: u32) -> Result<(), Obstacle> {
        let mut tries = 0_u32;
        loop {
            match ptrace::wait_for(tid) {
                Ok(None) => {}
                Ok(Some(Stop::Interrupted | Stop::Call)) => {
                    self.threads.push(Thread { tid, signal: 0 });
                    return Ok(());
                }
                Ok(Some(Stop::Signal(signal))) => {
                    self.threads.push(Thread { tid, signal });
                    return Ok(());
                }
                Ok(Some(Stop::Group(_))) => {
                    self.threads.push(Thread { tid, signal: 0 });
                    return Err(Obstacle::Stopped);
                }
                // Reaped, if it was ours to reap.
                Ok(Some(Stop::Ended)) | Err(_) => return Ok(()),
            }
            if self.begun.elapsed() > BOUND {
                // One that could run waits for a CPU.
                let is_runnable = Stat::of(tid).is_some_and(|stat| stat.state == b'R');
                return Err(if is_runnable {
                    Obstacle::Busy
                } else {
                    Obstacle::Unstoppable
                });
            }
            self.rest_for(tid, &mut tries);
        }
    }

    pub(crate) fn threads(&self) -> &[Thread] {
        &self.threads
    }

    /// Pages in which the kernel keeps restartable sequences of the threads. Only while all stand.
    pub(crate) fn rseq_pages(&self) -> Vec<u64> {
        let configs = self.threads.iter().map(|it| ptrace::rseq_config(it.tid));
        let areas = configs.filter_map(|config| config.ok().filter(|config| config.area != 0));
        let pages = areas.flat_map(|config| {
            let last = config.area + u64::from(config.size.max(1)) - 1;
            [config.area, last].map(|at| at & !(BASE_PAGE_SIZE - 1))
        });
        pages.collect()
    }

    /// When the first thread was told to stop.
    pub(crate) const fn began(&self) -> Instant {
        self.begun
    }

    /// Notes a signal that came to a thread while it worked for us, though all that can be were held back.
    pub(crate) const fn came(&mut self, signal: i32) {
        self.stop_came |= signal == libc::SIGSTOP;
    }

    /// Whether the program was told to stop meanwhile, and not to go on again since.
    pub(crate) fn take_stop(&mut self, pid: u32) -> bool {
        std::mem::take(&mut self.stop_came) && !is_pending(pid, libc::SIGCONT)
    }

    /// No longer one of them: it was killed, or has ended.
    pub(crate) fn lost(&mut self, tid: u32) {
        self.threads.retain(|thread| thread.tid != tid);
    }

    /// Lets all go on; [`let_go_of_the_late`] those that do not stand yet.
    pub(crate) fn release(mut self) -> LetGo {
        self.let_go_of_all();
        LetGo {
            pause: self.begun.elapsed(),
            begun_again: std::mem::take(&mut self.begun_again),
        }
    }

    /// Keeps us off the CPU that a thread is on: what it does for us, it does while we wait for it, and taking turns on one CPU
    /// would cost several times as much. Until all go on.
    pub(crate) fn stay_away_from(&mut self, tid: u32) {
        let Some(Stat { cpu, .. }) = Stat::of(tid) else {
            return;
        };
        if sched_getcpu() != cpu {
            return;
        }
        let Some(all) = self.usual_cpus.or_else(|| sched_getaffinity(None).ok()) else {
            return;
        };
        let mut others = all;
        others.unset(cpu);
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            self.usual_cpus = Some(all);
        }
    }

    /// As [`rest`], for a thread: the kernel may have woken it on our CPU, and giving way does not always let it go first.
    pub(crate) fn rest_for(&mut self, tid: u32, tries: &mut u32) {
        rest(tries);
        if *tries == SPIN {
            self.stay_away_from(tid);
        }
    }

    fn let_go_of_all(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            self.begin_again(thread);
            if ptrace::detach(thread.tid, thread.signal).is_err() {
                // Killed, or made another by an exec. It is ours still, and so who waits for its process would wait for
                // us; or it would stand still at its next signal.
                let _ = ptrace::interrupt(thread.tid);
            }
        }
        if let Some(all) = self.usual_cpus.take() {
            let _ = sched_setaffinity(None, &all);
        }
    }

    /// Begins a call again that ends with `EINTR` for no other reason than our stop.
    fn begin_again(&mut self, thread: Thread) {
        let tid = thread.tid;
        let Ok(registers) = ptrace::registers(tid) else {
            return;
        };
        if registers.orig_rax.cast_signed() < 0 || registers.rax.cast_signed() != EINTR {
            return;
        }
        // A handler will run: that is what such a call ends for. What we cannot see may be one.
        if Signals::of(tid).is_none_or(|signals| signals.will_be_handled(thread.signal)) {
            return;
        }
        let Ok(mask) = ptrace::signal_mask(tid) else {
            return;
        };
        let mut again = registers;
        again.rax = registers.orig_rax;
        again.rip = registers.rip.wrapping_sub(CALL_LENGTH);
        // The mask is the one from before the call: a signal that only the call lets through (`epoll_pwait`) waits until it
        // does so again, and then ends it.
        // SAFETY: the thread stands behind the instruction of a call that has done nothing yet; all that the call takes
        // is still in its registers.
        let set = unsafe {
            ptrace::set_registers(tid, &again).and_then(|()| ptrace::set_signal_mask(tid, mask))
        };
        if set.is_ok() {
            let timeout = timeout(tid, &registers);
            self.begun_again.push(Again { tid, timeout });
        }
    }
}

/// Waits for whoever is still traced, and lets each go as soon as it stands: threads that did not stop in time (on a busy machine
/// they wait for their turn), those that were killed (until they are waited for, their process cannot be either), and processes
/// that were made ours by a thread that made them with `CLONE_PTRACE` while we traced it. False if one still does not stand:
/// then only the end of the calling thread lets it go.
pub(crate) fn let_go_of_the_late() -> bool {
    let begun = Instant::now();
    loop {
        match ptrace::wait_for_any() {
            Err(_) => return true,
            Ok(Some((_, Stop::Ended))) => {}
            Ok(Some((tid, stop))) => {
                let signal = if let Stop::Signal(signal) = stop {
                    signal
                } else {
                    0
                };
                Stopped::of(vec![Thread { tid, signal }]).let_go_of_all();
            }
            Ok(None) if begun.elapsed() > LATE => return false,
            Ok(None) => std::thread::sleep(Duration::from_micros(200)),
        }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        self.let_go_of_all();
    }
}

/// How long the call waits that a thread is in.
fn timeout(tid: u32, registers: &Registers) -> Timeout {
    let address = match registers.orig_rax {
        EPOLL_WAIT | EPOLL_PWAIT => {
            // An int: the lower half. Negative is for ever.
            let milliseconds = u32::try_from((registers.r10 & 0xffff_ffff) as i32);
            return milliseconds.map_or(Timeout::Never, |milliseconds| {
                Timeout::After(Duration::from_millis(u64::from(milliseconds)))
            });
        }
        SEMOP => return Timeout::Never,
        RT_SIGTIMEDWAIT => registers.rdx,
        SEMTIMEDOP | EPOLL_PWAIT2 => registers.r10,
        IO_GETEVENTS | IO_PGETEVENTS => registers.r8,
        _ => return Timeout::Unknown,
    };
    if address == 0 {
        return Timeout::Never;
    }
    let mut bytes = [0; 16];
    if ptrace::read_memory(tid, address, &mut bytes).is_err() {
        return Timeout::Unknown;
    }
    let [seconds, nanoseconds] = [&bytes[..8], &bytes[8..]]
        .map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()));
    let nanoseconds = u32::try_from(nanoseconds).unwrap_or(0).min(999_999_999);
    Timeout::After(Duration::new(seconds, nanoseconds))
}

/// Spins a little, then gives the CPU up for ever longer.
fn rest(tries: &mut u32) {
    *tries = tries.saturating_add(1);
    if *tries < SPIN {
        std::hint::spin_loop();
    } else if *tries < 4 * SPIN {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// What `/proc/PID/status` says of a thread's signals, as sets: bit 0 is signal 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Signals {
    /// For it alone, or for any thread of its process.
    pending: u64,
    blocked: u64,
    caught: u64,
}

impl Signals {
    fn of(tid: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
        Self::parse(&status)
    }

    fn parse(status: &str) -> Option<Self> {
        let set = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name))?;
            u64::from_str_radix(line.trim(), 16).ok()
        };
        Some(Self {
            pending: set("SigPnd:")? | set("ShdPnd:")?,
            blocked: set("SigBlk:")?,
            caught: set("SigCgt:")?,
        })
    }

    /// Whether the thread will run a handler when it goes on, given `given` besides. Signals that nobody handles do not
    /// interrupt a call of a thread that is not traced, and must not because it was.
    const fn will_be_handled(self, given: i32) -> bool {
        let given = if given > 0 { 1 << (given - 1) } else { 0 };
        (self.pending & !self.blocked | given) & self.caught != 0
    }
}

/// Whether a signal waits for the process.
fn is_pending(pid: u32, signal: i32) -> bool {
    Signals::of(pid).is_some_and(|signals| signals.pending >> (signal - 1) & 1 == 1)
}

/// Why a thread cannot be seized.
fn refusal(pid: u32, tid: u32) -> Obstacle {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).unwrap_or_default();
    let field = |name: &str| {
        let mut lines = status.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::trim).map(str::to_owned))
    };
    let name = field("Name:").unwrap_or_default();
    if field("TracerPid:").is_some_and(|tracer| tracer != "0") {
        Obstacle::Traced
    } else if name.starts_with("iou-") || name.starts_with("vhost-") {
        Obstacle::KernelWorks
    } else if status.is_empty() {
        Obstacle::Gone
    } else {
        Obstacle::NotPermitted
    }
}

/// Registers with which a thread goes on as if it had never been stopped, without the kernel's help.
pub(crate) fn to_go_on(registers: &Registers) -> Registers {
    let mut on = *registers;
    on.orig_rax = u64::MAX;
    if registers.orig_rax.cast_signed() >= 0 {
        let begin_again = match registers.rax.cast_signed() {
            ERESTARTSYS | ERESTARTNOINTR | ERESTARTNOHAND | EINTR => Some(registers.orig_rax),
            ERESTART_RESTARTBLOCK => Some(RESTART_SYSCALL),
            _ => None,
        };
        if let Some(call) = begin_again {
            on.rax = call;
            on.rip = registers.rip.wrapping_sub(CALL_LENGTH);
        }
    }
    on
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_signal_that_is_handled_ends_a_call() {
        let status = "Name:\tx\nSigPnd:\t0000000000010000\nShdPnd:\t0000000000000200\n\
                      SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\nSigCgt:\t0000000000000200\n";
        let signals = Signals::parse(status).unwrap();
        assert_eq!(signals.pending, 1 << 16 | 1 << 9);
        // SIGUSR1 (10) is caught, SIGCHLD (17) is not.
        assert!(signals.will_be_handled(0));
        let blocked = Signals {
            blocked: 1 << 9,
            ..signals
        };
        assert!(!blocked.will_be_handled(0));
        assert!(!blocked.will_be_handled(libc::SIGCHLD));
        assert!(blocked.will_be_handled(libc::SIGUSR1));
        assert_eq!(Signals::parse("SigPnd:\tnonsense\n"), None);
    }

    #[test]
    fn calls_are_begun_again_by_their_kind() {
        // SAFETY: all zeroes are registers.
        let mut registers = Registers {
            rip: 1002,
            orig_rax: 35,
            ..unsafe { std::mem::zeroed() }
        };
        let mut on = |rax: i64| {
            registers.rax = rax.cast_unsigned();
            let on = to_go_on(&registers);
            (on.rax.cast_signed(), on.rip, on.orig_rax)
        };
        for errno in [ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, EINTR] {
            assert_eq!(on(errno), (35, 1000, u64::MAX));
        }
        assert_eq!(on(ERESTART_RESTARTBLOCK), (219, 1000, u64::MAX));
        assert_eq!(on(7), (7, 1002, u64::MAX));
        assert_eq!(on(-11), (-11, 1002, u64::MAX));
    }

    #[test]
    fn we_keep_off_a_cpu_and_come_back() {
        let tid = rustix::thread::gettid();
        let tid = tid.as_raw_nonzero().get().cast_unsigned();
        let usual = sched_getaffinity(None).unwrap();
        let mut stopped = Stopped::of(Vec::new());
        // Where we are ourselves: we may be moved while we ask.
        let begun = Instant::now();
        loop {
            stopped.stay_away_from(tid);
            let is_enough = usual.count() == 1 || begun.elapsed() > Duration::from_secs(60);
            if stopped.usual_cpus.is_some() || is_enough {
                break;
            }
        }
        if usual.count() > 1 {
            assert_eq!(sched_getaffinity(None).unwrap().count(), usual.count() - 1);
        }
        drop(stopped);
        assert_eq!(sched_getaffinity(None).unwrap(), usual);
    }
}
