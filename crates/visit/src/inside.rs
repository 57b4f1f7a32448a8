//! The code inside a stopped program: getting it in, giving it orders, getting it out.
//!
//! ```text
//!   mmap            one call of the thread's own, at a system call instruction of the vdso     (1)
//!   code, home      written through /proc/PID/mem
//!   orders          laid on the desk; the code spins until one comes
//!   munmap          one more call of the thread's own                                         (1)
//!   registers, mask as they were
//! ```
//!
//! From the moment the code runs it finds its own way back should we die. Only at (1), some microseconds each, it would not:
//! that is why visits are made by a process that nobody has a reason to kill.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use superhue_model::Obstacle;
use superhue_sys::ptrace::{self, Registers, Stop};
use superhue_sys::scheduling::{self, Scheduling};

use crate::calls::{MAP_PRIVATE_ANONYMOUS, PROT_EXEC, PROT_READ, SYS_CLOSE, SYS_MMAP, SYS_MUNMAP};
use crate::desk::{
    ANSWER_WORDS, ASKED, AT_ANSWERED, AT_ARGUMENTS, AT_LEFT, AT_RESULT, CODE, DESK, HOME,
    HOME_WORDS, Keep, ORDER, Order, PAPER, PAPER_WORDS, REMAINS, SIZE,
};
use crate::stop::{Stopped, has_ended, to_go_on};
use crate::vmas;

/// An order that takes longer is taken for lost: a collapse may have to make room first, nothing else takes long.
const LOST: Duration = Duration::from_millis(100);
const COLLAPSE_LOST: Duration = Duration::from_secs(2);

/// How long the code may take to begin.
const BEGINNING: Duration = Duration::from_millis(20);

/// `cs` of 64-bit code (`arch/x86/include/asm/segment.h`).
const CODE_SEGMENT: u64 = 0x33;

/// All signals but those that cannot be held back.
const ALL_SIGNALS: u64 = u64::MAX;

/// Flags of the program's that the code must not run under: `std`, single steps, nested tasks, alignment checks.
const FLAGS_NOT_OURS: u64 = 0x400 | 0x100 | 0x4000 | 0x4_0000;

/// `struct rseq` up to `rseq_cs`, and `struct rseq_cs` (`linux/rseq.h`).
const RSEQ_CS: u64 = 8;

/// Where in a program a system call instruction is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gate(u64);

impl Gate {
    /// The vdso's: no text of the program is touched.
    pub(crate) fn find(pid: u32) -> Option<Self> {
        let vdso = vmas::vdso(pid)?;
        let length = (vdso.end - vdso.start).min(1 << 16);
        let mut code = vec![0; usize::try_from(length).ok()?];
        ptrace::read_memory(pid, vdso.start, &mut code).ok()?;
        let at = code.windows(2).position(|bytes| bytes == [0x0f, 0x05])?;
        Some(Self(vdso.start + at as u64))
    }

    /// Whether it still is one.
    pub(crate) fn is_in(self, pid: u32) -> bool {
        let mut bytes = [0; 2];
        ptrace::read_memory(pid, self.0, &mut bytes).is_ok() && bytes == [0x0f, 0x05]
    }
}

/// How an order was carried out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) words: [u64; ANSWER_WORDS],
}

impl Answer {
    /// What the code returned: a count, or a negative error number.
    pub(crate) fn result(&self) -> Result<u64, Errno> {
        let result = self.words[AT_RESULT].cast_signed();
        if (-4095..0).contains(&result) {
            let errno = i32::try_from(-result).unwrap_or(libc::EIO);
            return Err(Errno::from_raw_os_error(errno));
        }
        Ok(result.cast_unsigned())
    }

    pub(crate) const fn argument(&self, at: usize) -> u64 {
        self.words[AT_ARGUMENTS + at]
    }
}

/// Code inside a stopped program, ready for orders.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    base: u64,
    gate: Gate,
    before: Registers,
    mask: u64,
    scheduling: Option<Scheduling>,
    asked: u64,
    /// The thread was sent into the code.
    began: bool,
    /// The code went home by itself, or the thread ended.
    over: bool,
    /// What it has made that is still there.
    mappings: Vec<(u64, u64)>,
    descriptors: Vec<u64>,
}

impl Inside {
    /// Gets the code in, on a thread that can take it.
    ///
    /// # Errors
    /// Why not; the program is as it was.
    pub(crate) fn enter(stopped: &mut Stopped, pid: u32, gate: Gate) -> Result<Self, Obstacle> {
        // It may have executed another program since it was looked at.
        let gate = if gate.is_in(pid) {
            gate
        } else {
            Gate::find(pid).ok_or(Obstacle::NoRoom)?
        };
        let mut refused = Obstacle::Gone;
        let mut candidates: Vec<(u8, u32, Registers)> = Vec::new();
        for tid in stopped
            .threads()
            .iter()
            .filter(|it| it.is_free())
            .map(|it| it.tid)
        {
            match fitness(pid, tid) {
                Ok((fitness, registers)) => candidates.push((fitness, tid, registers)),
                Err(obstacle) => refused = obstacle,
            }
            // Any thread will do: of hundreds a few are looked at.
            if candidates.len() >= 4 || candidates.iter().any(|(fitness, ..)| *fitness == 0) {
                break;
            }
        }
        candidates.sort_unstable_by_key(|(fitness, ..)| *fitness);
        let (_, tid, registers) = candidates.into_iter().next().ok_or(refused)?;
        Self::enter_by(stopped, pid, tid, registers, gate)
    }

    fn enter_by(
        stopped: &mut Stopped,
        pid: u32,
        tid: u32,
        registers: Registers,
        gate: Gate,
    ) -> Result<Self, Obstacle> {
        stopped.stay_away_from(tid);
        let before = outside_rseq(pid, tid, registers);
        let mask = ptrace::signal_mask(tid).map_err(|_| Obstacle::Gone)?;
        let scheduling = hurry(tid);
        // SAFETY: set back by `leave`, or by the code itself.
        unsafe { ptrace::set_signal_mask(tid, ALL_SIGNALS) }.map_err(|_| Obstacle::Gone)?;
        let mut inside = Self {
            pid,
            tid,
            base: 0,
            gate,
            before,
            mask,
            scheduling,
            asked: 0,
            began: false,
            over: false,
            mappings: Vec::new(),
            descriptors: Vec::new(),
        };
        let arguments = [
            0,
            SIZE,
            PROT_READ | PROT_EXEC,
            MAP_PRIVATE_ANONYMOUS,
            u64::MAX,
            0,
        ];
        match inside.call(stopped, SYS_MMAP, arguments) {
            Ok(base) => inside.base = base,
            Err(errno) => {
                inside.restore(stopped);
                return Err(if errno == Errno::SRCH {
                    Obstacle::Gone
                } else {
                    Obstacle::NoRoom
                });
            }
        }
        if inside.furnish().is_err() {
            inside.leave(stopped);
            return Err(Obstacle::NoRoom);
        }
        let mut start = before;
        start.rip = inside.base;
        start.orig_rax = u64::MAX;
        start.eflags &= !FLAGS_NOT_OURS;
        // SAFETY: the code is there, and takes what it needs from its own address.
        let began = unsafe { ptrace::set_registers(tid, &start) };
        if began.and_then(|()| ptrace::go(tid, 0)).is_err() {
            inside.leave(stopped);
            return Err(Obstacle::Gone);
        }
        inside.began = true;
        Ok(inside)
    }

    /// Writes the code, and how it goes home.
    fn furnish(&self) -> std::io::Result<()> {
        let on = to_go_on(&self.before);
        // Without knowing it nothing is set: no such structure is so small.
        let scheduling = self
            .scheduling
            .map_or([1; scheduling::WORDS], |it| it.words());
        let home = [
            on.rax, on.rbx, on.rcx, on.rdx, on.rsi, on.rdi, on.rbp, on.r8, on.r9, on.r10, on.r11,
            on.r12, on.r13, on.r14, on.r15, on.rip, on.rsp, on.eflags, self.mask,
        ];
        let home: Vec<u64> = home.into_iter().chain(scheduling).collect();
        debug_assert_eq!(home.len(), HOME_WORDS);
        let mut image = CODE.to_vec();
        image.resize(usize::try_from(HOME).unwrap_or(0), 0xcc);
        image.extend(home.iter().flat_map(|word| word.to_ne_bytes()));
        let memory = File::options()
            .write(true)
            .open(format!("/proc/{}/mem", self.pid))?;
        memory.write_all_at(&image, self.base)
    }

    /// One system call of the thread's own, at the gate; it stands behind it then.
    fn call(
        &mut self,
        stopped: &mut Stopped,
        number: u64,
        arguments: [u64; 6],
    ) -> Result<u64, Errno> {
        let mut at_gate = self.before;
        at_gate.rip = self.gate.0;
        at_gate.rax = number;
        at_gate.orig_rax = u64::MAX;
        at_gate.eflags &= !FLAGS_NOT_OURS;
        let [rdi, rsi, rdx, r10, r8, r9] = arguments;
        (at_gate.rdi, at_gate.rsi, at_gate.rdx) = (rdi, rsi, rdx);
        (at_gate.r10, at_gate.r8, at_gate.r9) = (r10, r8, r9);
        // SAFETY: two stops follow, before and after the call; the registers are set back before the thread goes on.
        unsafe { ptrace::set_registers(self.tid, &at_gate) }?;
        for _ in 0..2 {
            ptrace::go_to_call(self.tid)?;
            self.wait_for_call(stopped)?;
        }
        let result = ptrace::registers(self.tid)?.rax.cast_signed();
        if (-4095..0).contains(&result) {
            let errno = i32::try_from(-result).unwrap_or(libc::EIO);
            return Err(Errno::from_raw_os_error(errno));
        }
        Ok(result.cast_unsigned())
    }

    fn wait_for_call(&mut self, stopped: &mut Stopped) -> Result<(), Errno> {
        let mut tries = 0;
        loop {
            match ptrace::wait_for(self.tid)? {
                Some(Stop::Call) => return Ok(()),
                Some(Stop::Ended) => {
                    self.over = true;
                    stopped.lost(self.tid);
                    return Err(Errno::SRCH);
                }
                Some(Stop::Signal(signal)) if is_fault(signal) => return Err(Errno::FAULT),
                Some(Stop::Signal(signal)) => {
                    stopped.came(signal);
                    ptrace::go_to_call(self.tid)?;
                }
                Some(Stop::Interrupted | Stop::Group(_)) => ptrace::go_to_call(self.tid)?,
                None if self.was_killed(tries) => {
                    self.over = true;
                    stopped.lost(self.tid);
                    return Err(Errno::SRCH);
                }
                None => stopped.rest_for(self.tid, &mut tries),
            }
        }
    }

    /// Gives the code an order and waits for it.
    ///
    /// # Errors
    /// `ESRCH`: the thread ended. `ETIMEDOUT`: the code went home, because nothing was asked of it for too long. `EFAULT`: its
    /// memory is not what it was. Nothing more should be asked of it then.
    pub(crate) fn order(
        &mut self,
        stopped: &mut Stopped,
        order: Order,
        arguments: &[u64],
        paper: &[u64],
    ) -> Result<Answer, Errno> {
        if self.over || paper.len() > PAPER_WORDS || arguments.len() > 8 {
            return Err(Errno::SRCH);
        }
        let mut words = [0; 9];
        words[0] = order as u64;
        for (word, argument) in words.iter_mut().skip(1).zip(arguments) {
            *word = *argument;
        }
        self.asked += 1;
        if let Err(errno) = self.lay(stopped, &words, paper) {
            self.over = true;
            return Err(errno);
        }
        let lost = match order {
            Order::Advise => COLLAPSE_LOST,
            _ => LOST,
        };
        let answer = self.await_answer(stopped, lost);
        if answer.is_err() {
            self.over = true;
            // Whatever keeps it busy is not to keep others from the CPU.
            self.take_its_time();
        }
        answer
    }

    fn await_answer(&mut self, stopped: &mut Stopped, lost: Duration) -> Result<Answer, Errno> {
        let since = Instant::now();
        let mut tries = 0;
        loop {
            let mut words = [0; ANSWER_WORDS];
            // Before the code has made its desk writable the desk reads as zeroes.
            self.read(0, &mut words)?;
            if words[AT_ANSWERED] == self.asked {
                return Ok(Answer { words });
            }
            if words[AT_LEFT] != 0 || since.elapsed() > lost {
                return Err(Errno::TIMEDOUT);
            }
            // Answers are looked for more often than accidents.
            let accident = if tries % 16 == 15 {
                ptrace::wait_for(self.tid)?
            } else {
                None
            };
            match accident {
                None if self.was_killed(tries) => {
                    stopped.lost(self.tid);
                    return Err(Errno::SRCH);
                }
                None => {}
                Some(Stop::Ended) => {
                    stopped.lost(self.tid);
                    return Err(Errno::SRCH);
                }
                Some(Stop::Signal(signal)) if is_fault(signal) => {
                    // Ours, as it stands in our code: never given to the program. It stands still now.
                    return Err(Errno::FAULT);
                }
                Some(Stop::Signal(signal)) => {
                    stopped.came(signal);
                    ptrace::go(self.tid, 0)?;
                }
                Some(Stop::Interrupted | Stop::Call | Stop::Group(_)) => ptrace::go(self.tid, 0)?,
            }
            stopped.rest_for(self.tid, &mut tries);
        }
    }

    /// A system call made by the code, which remembers what it made.
    ///
    /// # Errors
    /// That of the call; `ESRCH` as [`Self::order`].
    pub(crate) fn system_call(
        &mut self,
        stopped: &mut Stopped,
        number: u64,
        arguments: [u64; 6],
        keep: Keep,
    ) -> Result<u64, Errno> {
        let [a, b, c, d, e, f] = arguments;
        let words = [number, a, b, c, d, e, f, keep as u64];
        let result = self.order(stopped, Order::Call, &words, &[])?.result()?;
        match keep {
            Keep::Mapping => self.mappings.push((result, b)),
            Keep::Descriptor => self.descriptors.push(result),
            Keep::DropDescriptor => self.descriptors.retain(|&descriptor| descriptor != a),
            Keep::Nothing => {}
        }
        Ok(result)
    }

    /// Notes descriptors that the code made by itself.
    pub(crate) fn has_descriptor(&mut self, descriptor: u64) {
        self.descriptors.push(descriptor);
    }

    /// Where the thread goes on afterwards.
    pub(crate) const fn came_from(&self) -> u64 {
        self.before.rip
    }

    /// Whether this is the code itself.
    pub(crate) const fn is_at(&self, start: u64) -> bool {
        self.base == start
    }

    /// The thread no longer goes before others.
    fn take_its_time(&self) {
        if let Some(scheduling) = &self.scheduling {
            // It was so before.
            let _ = scheduling.set(self.tid);
        }
    }

    /// Whether an address is in what was mapped for the visit: memory that was the program's when it was asked for may have
    /// been given back since, and this may lie there now.
    pub(crate) fn owns(&self, address: u64) -> bool {
        let mut mappings = self.mappings.iter().copied().chain([(self.base, SIZE)]);
        mappings.any(|(start, length)| (start..start + length).contains(&address))
    }

    /// Where the paper lies in the program.
    pub(crate) const fn paper(&self) -> u64 {
        self.base + DESK + PAPER
    }

    pub(crate) fn read(&self, offset: u64, words: &mut [u64]) -> Result<(), Errno> {
        let mut bytes = vec![0; words.len() * 8];
        ptrace::read_memory(self.pid, self.base + DESK + offset, &mut bytes)?;
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    /// Lays an order on the desk. The kernel copies the parts in this order: the count that the code waits for comes last.
    fn lay(&self, stopped: &mut Stopped, order: &[u64], paper: &[u64]) -> Result<(), Errno> {
        let desk = self.base + DESK;
        let asked = [self.asked];
        let parts = [
            (desk + PAPER, paper),
            (desk + ORDER, order),
            (desk + ASKED, asked.as_slice()),
        ];
        let (since, mut tries) = (Instant::now(), 0);
        loop {
            // SAFETY: the desk is ours.
            match unsafe { ptrace::write_words(self.pid, &parts) } {
                // The code is on its way to making it writable, or has found that it may not and gone home.
                Err(Errno::FAULT) if self.asked == 1 && since.elapsed() < BEGINNING => {
                    stopped.rest_for(self.tid, &mut tries);
                }
                written => return written,
            }
        }
    }

    /// Takes everything back, and sets the thread where it was; it still stands. False if the code went home by itself, so that
    /// a page of it is left.
    pub(crate) fn leave(mut self, stopped: &mut Stopped) -> bool {
        let has_more = !self.mappings.is_empty() || !self.descriptors.is_empty();
        if has_more && self.order(stopped, Order::Clear, &[], &[]).is_ok() {
            self.mappings.clear();
            self.descriptors.clear();
        }
        if !self.halt(stopped) {
            return true;
        }
        // However its last order went: it may have waited too long for the next one since.
        if self.began && self.has_gone_home() {
            return false;
        }
        for (start, length) in std::mem::take(&mut self.mappings) {
            let _ = self.call(stopped, SYS_MUNMAP, [start, length, 0, 0, 0, 0]);
        }
        for descriptor in std::mem::take(&mut self.descriptors) {
            let _ = self.call(stopped, SYS_CLOSE, [descriptor, 0, 0, 0, 0, 0]);
        }
        if self.base != 0 {
            let _ = self.call(stopped, SYS_MUNMAP, [self.base, SIZE, 0, 0, 0, 0]);
        }
        self.restore(stopped);
        true
    }

    /// Whether the code has taken the thread back by itself, because we did not answer for too long: then it has gone on with
    /// its own work, and nothing of it is ours to set back. What is left is removed another time: a handler that ran on the
    /// way may still return to it.
    fn has_gone_home(&self) -> bool {
        let page = self.base..self.base + REMAINS;
        ptrace::registers(self.tid).is_ok_and(|registers| !page.contains(&registers.rip))
    }

    /// Whether the thread has ended, asked now and then: that of a leader is told only when all others were waited for.
    fn was_killed(&self, tries: u32) -> bool {
        tries % 256 == 255 && has_ended(self.tid)
    }

    /// Has the thread stand still; false if it is no more.
    fn halt(&mut self, stopped: &mut Stopped) -> bool {
        if ptrace::registers(self.tid).is_ok() {
            return true;
        }
        if ptrace::interrupt(self.tid).is_err() {
            stopped.lost(self.tid);
            return false;
        }
        let mut tries = 0;
        loop {
            match ptrace::wait_for(self.tid) {
                Ok(None) if !self.was_killed(tries) => stopped.rest_for(self.tid, &mut tries),
                Ok(None | Some(Stop::Ended)) | Err(_) => {
                    stopped.lost(self.tid);
                    return false;
                }
                Ok(Some(Stop::Signal(signal))) => {
                    stopped.came(signal);
                    return true;
                }
                Ok(Some(_)) => return true,
            }
        }
    }

    /// Registers and mask as they were. The thread stands where signals are looked at before it goes on: there the kernel
    /// begins an interrupted call again, or has it end with `EINTR` if a signal came.
    fn restore(&mut self, stopped: &mut Stopped) {
        self.take_its_time();
        // SAFETY: the program's own.
        let set = unsafe {
            ptrace::set_registers(self.tid, &self.before)
                .and_then(|()| ptrace::set_signal_mask(self.tid, self.mask))
        };
        let stands = set
            .and_then(|()| ptrace::interrupt(self.tid))
            .and_then(|()| ptrace::go(self.tid, 0));
        if stands.is_err() {
            stopped.lost(self.tid);
            return;
        }
        let mut tries = 0;
        loop {
            match ptrace::wait_for(self.tid) {
                Ok(None) if !self.was_killed(tries) => stopped.rest_for(self.tid, &mut tries),
                Ok(Some(Stop::Interrupted | Stop::Call | Stop::Group(_))) => return,
                Ok(Some(Stop::Signal(signal))) => {
                    stopped.came(signal);
                    return;
                }
                Ok(None | Some(Stop::Ended)) | Err(_) => return stopped.lost(self.tid),
            }
        }
    }
}

/// All others wait for this thread: on a busy machine it goes before other programs, where we may say so (nice values would
/// count within its session only, where sessions are scheduled as groups). What it had is returned.
fn hurry(tid: u32) -> Option<Scheduling> {
    let scheduling = Scheduling::of(tid).ok()?;
    if !scheduling.is_real_time() {
        let _ = Scheduling::first().set(tid);
    }
    Some(scheduling)
}

/// Whether a signal says that an instruction could not be carried out.
const fn is_fault(signal: i32) -> bool {
    matches!(
        signal,
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE | libc::SIGTRAP
    )
}

/// How well a thread can take the code (0 is best), with its registers.
fn fitness(pid: u32, tid: u32) -> Result<(u8, Registers), Obstacle> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status"));
    let status = status.map_err(|_| Obstacle::Gone)?;
    let filtered = status.lines().any(|line| {
        let mode = line.strip_prefix("Seccomp:").map(str::trim);
        mode.is_some_and(|mode| mode != "0")
    });
    // A kernel before 6.4 cannot tell.
    if filtered || ptrace::dispatches_calls(tid) == Ok(true) {
        return Err(Obstacle::Seccomp);
    }
    // A shadow stack would have to be set back as well.
    let has_shadow_stack = status.lines().any(|line| {
        let features = line.strip_prefix("x86_Thread_features:");
        features.is_some_and(|features| features.contains("shstk"))
    });
    if has_shadow_stack {
        return Err(Obstacle::NoRoom);
    }
    let registers = ptrace::registers(tid).map_err(|_| Obstacle::Gone)?;
    if registers.cs != CODE_SEGMENT {
        return Err(Obstacle::Foreign);
    }
    // In a call that simply begins again it is disturbed least; in one that the kernel goes on with by what it has
    // remembered (a sleep) nothing we do may sleep, which nothing does.
    let in_call = registers.orig_rax.cast_signed() >= 0;
    Ok((u8::from(!in_call), registers))
}

/// The registers, moved to where a restartable sequence is left if the thread is inside one: the kernel would do the same,
/// but after a visit it would not know any more that it has to (`kernel/rseq.c`, `rseq_ip_fixup`).
fn outside_rseq(pid: u32, tid: u32, mut registers: Registers) -> Registers {
    let word = |address: u64| {
        let mut bytes = [0; 8];
        ptrace::read_memory(pid, address, &mut bytes).ok()?;
        Some(u64::from_ne_bytes(bytes))
    };
    let abort = || {
        let config = ptrace::rseq_config(tid)
            .ok()
            .filter(|config| config.area != 0)?;
        let section = word(config.area + RSEQ_CS).filter(|&section| section != 0)?;
        // `struct rseq_cs`: version and flags, start, length, where to go instead.
        let (start, length) = (word(section + 8)?, word(section + 16)?);
        let abort = word(section + 24)?;
        let is_inside = registers.rip.wrapping_sub(start) < length;
        is_inside.then_some(abort)
    };
    if let Some(abort) = abort() {
        registers.rip = abort;
    }
    registers
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::thread::sleep;

    use rustix::process::{Pid, Signal, kill_process};
    use superhue_testing::Scoped;

    use super::*;
    use crate::look::Stat;

    /// How long anything may take that takes a moment.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < PATIENCE, "in vain until {what}");
            sleep(Duration::from_millis(1));
        }
    }

    /// What a process does, by its letter.
    fn state(pid: u32) -> u8 {
        Stat::of(pid).unwrap().state
    }

    /// A visitor that is held up for longer than the code waits for an order must not set the thread back. Whether it was; `None` if
    /// the machine was so busy that the program did not stop, or the first order did not come, in time.
    fn set_back_after_a_pause() -> Option<bool> {
        let mut child = Scoped::sleeper();
        let pid = child.pid();
        until("it sleeps", || {
            state(pid) == b'S' && Gate::find(pid).is_some()
        });
        let gate = Gate::find(pid).unwrap();
        let set_back = match Stopped::all(pid) {
            Ok(stopped) => set_back_in(stopped, pid, gate),
            Err((Obstacle::Busy | Obstacle::Unstoppable, _)) => {
                until("it has stopped", || ptrace::detach(pid, 0).is_ok());
                None
            }
            Err((obstacle, _)) => panic!("{obstacle:?}"),
        };
        // It has come to no harm.
        until("it sleeps again", || state(pid) == b'S');
        kill_process(Pid::from_child(&child.0), Signal::TERM).unwrap();
        assert_eq!(child.0.wait().unwrap().signal(), Some(libc::SIGTERM));
        set_back
    }

    fn set_back_in(mut stopped: Stopped, pid: u32, gate: Gate) -> Option<bool> {
        let asked = Instant::now();
        let mut inside = Inside::enter(&mut stopped, pid, gate).unwrap();
        let set_back = match inside.order(&mut stopped, Order::Clear, &[], &[]) {
            // The code had no CPU in the time that it has to begin or to answer, or went home as we had none.
            Err(Errno::FAULT) if asked.elapsed() >= BEGINNING => {
                inside.leave(&mut stopped);
                None
            }
            Err(Errno::TIMEDOUT) if asked.elapsed() >= LOST => {
                inside.leave(&mut stopped);
                None
            }
            answer => {
                assert_eq!(answer.unwrap().result(), Ok(0));
                // By itself, and in a call of its own again.
                until("the code has left", || {
                    let mut words = [0; ANSWER_WORDS];
                    let has_left = inside.read(0, &mut words).is_err() || words[AT_LEFT] != 0;
                    has_left && state(pid) == b'S'
                });
                Some(inside.leave(&mut stopped))
            }
        };
        stopped.release();
        set_back
    }

    #[test]
    fn a_thread_that_has_gone_home_is_left_where_it_is() {
        let begun = Instant::now();
        let tries = std::iter::repeat_with(set_back_after_a_pause);
        let mut tries = tries.take_while(|_| begun.elapsed() < PATIENCE);
        assert_eq!(tries.find_map(|set_back| set_back), Some(false));
    }
}
