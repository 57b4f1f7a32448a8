//! A survey of the memory of all processes of a machine, repeated at low cost: the data of `superhue top`.
//!
//! ```text
//!   numbers of processes   one directory                     as often as its part of the share pays for
//!   glances (statm)        5 us a process; for any user      all processes in turn
//!   looks (smaps_rollup)   walks the page tables: 50 us to   wanted processes, the largest without a look so far,
//!                          seconds; own processes, or all    processes that changed, and all in turn
//! ```
//!
//! Wanted processes, new processes, and all others each have a part of the share, so that none waits for the others.
//! Every figure has the time at which it was read. A look at one process takes no more than a hundredth of the time, since its memory map is
//! locked for reading meanwhile.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use superhue_heat::Allowance;
use superhue_model::{ByteCount, HUGE_PAGE_SIZE, ProcessId};
use superhue_procfs::cgroup::path_of_process;
use superhue_procfs::process::{
    CpuTicks, MemoryUse, ProcStat, effective_user, memory_use, numbers, resident_now, stat,
};
use superhue_procfs::{ReadError, Roots};

use crate::ceiling::apart;
use crate::cpu::cpu_time;
use crate::targets::{Matches, Population, Targets};

/// Upper bound on processes in a survey: a user who starts more of them must not fill Superhue's memory.
pub const MOST_PROCESSES: usize = 65_536;

/// Share of all time for which a process may have its memory map read: by CPU time, and by the clock, which also runs while other threads
/// have the CPU or the lock.
const OF_ONE: f64 = 0.01;
const OF_ONE_BY_THE_CLOCK: f64 = 0.25;

/// Time that each part may spend in advance, e.g. at the start.
const ADVANCE: Duration = Duration::from_millis(200);

/// Approximate upper bound on the time of one step, however much is left to do.
const MAX_STEP_TIME: Duration = Duration::from_millis(50);

/// The parts of the share: listing processes, wanted processes, new processes, all processes in turn.
const LISTING: f64 = 0.2;
const WANTED: f64 = 0.25;
const NEW: f64 = 0.25;
const TURN_BY_TURN: f64 = 0.3;

/// Intervals until the next look at a process whose size has not changed.
const STEADY_INTERVALS: u32 = 15;

/// State of one process in a survey.
#[derive(Debug, Clone, PartialEq)]
pub struct ProcessEntry {
    /// Identity of the process.
    pub id: ProcessId,
    /// Command name, without control characters.
    pub name: Arc<str>,
    /// Path of its cgroup; empty if unknown.
    pub cgroup: Arc<str>,
    /// Time of the last read of its size, since the survey began, as all times here.
    pub glanced: Duration,
    /// Resident memory then.
    pub resident: ByteCount,
    /// Resident anonymous memory then.
    pub anonymous: ByteCount,
    /// Result of the last look.
    pub look: Look,
    /// Huge pages that its anonymous memory gained (or lost) per second between the last two looks.
    pub gain: Option<f64>,
    /// CPU time between the last two looks that are at least half a second apart, as a share of one CPU.
    pub cpu_share: Option<f64>,
}

/// Result of a look at a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Look {
    /// There was no look yet.
    NotYet,
    /// The caller has no permission.
    Denied,
    /// The memory could not be read, or reading it took too long before.
    Failed,
    /// The memory of the process, and the time of the look.
    Done(Duration, Memory),
}

/// Part of [`MemoryUse`] that the survey keeps from a look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Memory {
    /// Resident.
    pub rss: Option<ByteCount>,
    /// Resident, each page divided by the number of processes that map it.
    pub pss: Option<ByteCount>,
    /// Resident and in no file.
    pub anonymous: Option<ByteCount>,
    /// Anonymous, and mapped by huge pages.
    pub anon_huge: Option<ByteCount>,
}

impl From<MemoryUse> for Memory {
    fn from(all: MemoryUse) -> Self {
        Self {
            rss: all.rss,
            pss: all.pss,
            anonymous: all.anonymous,
            anon_huge: all.anon_huge,
        }
    }
}

impl ProcessEntry {
    /// Returns its memory and the time of the look; `None` if no look succeeded.
    #[must_use]
    pub fn memory(&self) -> Option<(Duration, &Memory)> {
        match &self.look {
            Look::Done(at, memory) => Some((*at, memory)),
            _ => None,
        }
    }
}

/// Least time between two reads of CPU time that are compared: the kernel counts in ticks of 10 ms, 2 % of it.
const CPU_READS_APART: Duration = Duration::from_millis(500);

/// CPU time of a process, read again and again.
#[derive(Debug, Default)]
struct CpuMeter {
    /// Time of the last read, and CPU time until then.
    last: Option<(Duration, Duration)>,
    /// Share of one CPU between the last two reads.
    share: Option<f64>,
}

impl CpuMeter {
    /// Takes the CPU time `total` at the time `at`.
    fn read(&mut self, at: Duration, total: Duration) {
        if let Some((then, before)) = self.last {
            let passed = at.saturating_sub(then);
            if passed < CPU_READS_APART {
                return;
            }
            let used = total.checked_sub(before);
            self.share = used.map(|used| used.as_secs_f64() / passed.as_secs_f64());
        }
        self.last = Some((at, total));
    }
}

/// Returns the CPU time of all threads of a process.
fn cpu_of(stat: &ProcStat) -> Duration {
    let ticks = CpuTicks {
        user_ticks: stat.user_ticks,
        system_ticks: stat.system_ticks,
    };
    ticks.total()
}

/// State of one number in `/proc`.
#[derive(Debug)]
struct PidState {
    /// `None` for processes without memory: kernel threads, zombies.
    process: Option<ProcessEntry>,
    cpu: CpuMeter,
    /// Earliest time of the next look; `due` is the time at which it should happen.
    not_before: Duration,
    due: Duration,
}

/// All processes, and the time at which each is due.
#[derive(Debug)]
pub struct Survey {
    roots: Roots,
    targets: Targets,
    /// The set that `targets` mean, once it was found.
    population: Option<Population>,
    interval: Duration,
    share: f64,
    known: BTreeMap<u32, PidState>,
    /// Start times of the processes that were named by number; another process may have such a number later.
    named: BTreeMap<u32, u64>,
    fresh: Vec<u32>,
    unlisted: u64,
    /// Processes that are never looked at; `shunned` holds processes of which nothing is read.
    avoided: BTreeSet<u32>,
    shunned: BTreeSet<u32>,
    for_wanted: Allowance,
    for_new: Allowance,
    for_others: Allowance,
    next_list: Duration,
    /// Number of the process that had the last glance.
    cursor: u32,
}

/// A process whose files are being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessRead {
    /// Number of the process.
    pub pid: u32,
    /// True for a look at all its memory, false for a read of only its identity and size.
    pub in_full: bool,
}

/// Function that the survey calls with the process that it is about to read, and with `None` after the read.
pub type ReadCallback<'a> = &'a mut dyn FnMut(Option<ProcessRead>);

impl Survey {
    /// Makes a survey of the processes under `roots`. Its figures may be `interval` old; it takes `share` of one CPU's time.
    #[must_use]
    pub fn new(roots: Roots, interval: Duration, share: f64) -> Self {
        let part = |part| Allowance::new(share * part, Duration::ZERO).with_advance(ADVANCE);
        Self {
            roots,
            targets: Targets::All,
            population: None,
            interval,
            share,
            known: BTreeMap::new(),
            named: BTreeMap::new(),
            fresh: Vec::new(),
            unlisted: 0,
            avoided: BTreeSet::new(),
            shunned: BTreeSet::new(),
            for_wanted: part(WANTED),
            for_new: part(NEW),
            for_others: part(TURN_BY_TURN),
            next_list: Duration::ZERO,
            cursor: 0,
        }
    }

    /// Makes the survey one of these processes only. A unit or cgroup that is not there has no process, and is found once it is there.
    #[must_use]
    pub fn about(mut self, targets: Targets) -> Self {
        self.targets = targets;
        self
    }

    /// Makes the survey never look at these processes.
    #[must_use]
    pub fn avoiding(mut self, pids: BTreeSet<u32>) -> Self {
        self.avoided = pids;
        self
    }

    /// Makes the survey read nothing at all of these processes.
    #[must_use]
    pub fn shunning(mut self, pids: BTreeSet<u32>) -> Self {
        self.shunned = pids;
        self
    }

    /// Returns all known processes, by number.
    pub fn processes(&self) -> impl Iterator<Item = &ProcessEntry> {
        self.known
            .values()
            .filter_map(|known| known.process.as_ref())
    }

    /// Returns the number of processes beyond [`MOST_PROCESSES`], of which nothing is known.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.unlisted
    }

    /// Does the work due at the time `at`, processes in `wanted` first. Returns true if the time of a step ran out, so that more may be due.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn step(
        &mut self,
        at: Duration,
        wanted: &[u32],
        told: ReadCallback<'_>,
    ) -> Result<bool, ReadError> {
        let clock = Clock::at(at);
        if at >= self.next_list {
            let begun = cpu_time();
            self.list()?;
            let cost = cpu_time().saturating_sub(begun);
            self.next_list = at + self.interval.max(apart(cost, self.share * LISTING));
        }
        for &pid in wanted {
            let known = self.known.get(&pid);
            if known.is_some_and(|known| at >= known.not_before) {
                if clock.is_over() || !self.for_wanted.covers(clock.now(), Duration::ZERO) {
                    break;
                }
                let cost = self.look(pid, &clock, told);
                self.for_wanted.spend(clock.now(), cost);
            }
        }
        self.see_new(&clock, told);
        self.see_others(&clock, told);
        Ok(clock.is_over())
    }

    /// Looks at all processes at any cost.
    ///
    /// # Errors
    /// Processes cannot be listed.
    pub fn look_at_all(&mut self, at: Duration, told: ReadCallback<'_>) -> Result<(), ReadError> {
        self.list()?;
        let clock = Clock::at(at);
        for pid in std::mem::take(&mut self.fresh) {
            self.enter(pid, clock.now());
        }
        let pids: Vec<u32> = self.known.keys().copied().collect();
        for pid in pids {
            self.glance(pid, clock.now());
            self.look(pid, &clock, told);
        }
        Ok(())
    }

    /// Enters new processes, and looks at processes without a look so far, the largest first.
    fn see_new(&mut self, clock: &Clock, told: ReadCallback<'_>) {
        while let Some(pid) = self.fresh.pop() {
            if clock.is_over() || !self.for_new.covers(clock.now(), Duration::ZERO) {
                self.fresh.push(pid);
                return;
            }
            let begun = cpu_time();
            told(Some(ProcessRead {
                pid,
                in_full: false,
            }));
            self.enter(pid, clock.now());
            told(None);
            let cost = cpu_time().saturating_sub(begun);
            self.for_new.spend(clock.now(), cost);
        }
        let mut never: Vec<(Reverse<ByteCount>, u32)> = (self.processes())
            .filter(|it| it.look == Look::NotYet)
            .map(|it| (Reverse(it.resident), it.id.pid))
            .collect();
        never.sort_unstable();
        for (_, pid) in never {
            if clock.is_over() || !self.for_new.covers(clock.now(), Duration::ZERO) {
                return;
            }
            let cost = self.look(pid, clock, told);
            self.for_new.spend(clock.now(), cost);
        }
    }

    /// Glances at all processes in turn, and looks at processes that have changed.
    fn see_others(&mut self, clock: &Clock, told: ReadCallback<'_>) {
        for pid in self.in_turn(clock.now()) {
            if clock.is_over() || !self.for_others.covers(clock.now(), Duration::ZERO) {
                return;
            }
            let begun = cpu_time();
            told(Some(ProcessRead {
                pid,
                in_full: false,
            }));
            self.glance(pid, clock.now());
            told(None);
            let mut cost = cpu_time().saturating_sub(begun);
            self.cursor = pid;
            let is_due = |known: &PidState| clock.now() >= known.due.max(known.not_before);
            if self.known.get(&pid).is_some_and(is_due) {
                cost += self.look(pid, clock, told);
            }
            self.for_others.spend(clock.now(), cost);
        }
    }

    /// Returns the processes with a due glance, in the order of their numbers from the last one on.
    fn in_turn(&self, at: Duration) -> Vec<u32> {
        let after = self.known.range(self.cursor.saturating_add(1)..);
        let before = self.known.range(..=self.cursor);
        let is_due = |known: &PidState| match &known.process {
            Some(process) => at >= process.glanced + self.interval,
            None => at >= known.due,
        };
        let due = after.chain(before).filter(|(_, known)| is_due(known));
        due.map(|(&pid, _)| pid).collect()
    }

    /// Reads the numbers of all processes.
    fn list(&mut self) -> Result<(), ReadError> {
        let mut numbers: BTreeSet<u32> = numbers(&self.roots)?.into_iter().collect();
        self.narrow(&mut numbers);
        self.known.retain(|pid, _| numbers.contains(pid));
        let new = numbers
            .into_iter()
            .filter(|pid| !self.known.contains_key(pid));
        self.fresh = new.collect();
        let room = MOST_PROCESSES.saturating_sub(self.known.len());
        self.unlisted = self.fresh.len().saturating_sub(room) as u64;
        self.fresh.truncate(room);
        Ok(())
    }

    /// Leaves only the numbers of processes that the survey is about.
    fn narrow(&mut self, numbers: &mut BTreeSet<u32>) {
        match &self.targets {
            Targets::All => {}
            Targets::Processes(pids) => numbers.retain(|pid| pids.contains(pid)),
            Targets::User(user) => {
                numbers.retain(|&pid| effective_user(&self.roots, pid) == Some(*user));
            }
            Targets::Cgroup(_) | Targets::Unit(_) => {
                if self.population.is_none() {
                    let found = Population::of(&self.targets, &self.roots);
                    self.population = found.ok().flatten();
                }
                let found = match self.population.as_ref().map(|set| set.search(&self.roots)) {
                    None => Matches::default(),
                    Some(Ok(found)) => found,
                    // It cannot be read this time: the processes are those of the last time.
                    Some(Err(error)) => {
                        tracing::debug!(%error, "no search");
                        numbers.retain(|pid| self.known.contains_key(pid));
                        return;
                    }
                };
                if found.is_over {
                    // The cgroup is gone; another one may get its path.
                    self.population = None;
                }
                let members = found.members;
                let members: BTreeSet<u32> = members.iter().map(|id| id.pid).collect();
                numbers.retain(|pid| members.contains(pid));
            }
        }
    }

    /// Reads the identity and size of the process with a number.
    fn enter(&mut self, pid: u32, at: Duration) {
        if self.shunned.contains(&pid) {
            self.leave_out(pid);
            return;
        }
        let Ok(stat) = stat(&self.roots, pid) else {
            self.known.remove(&pid);
            return;
        };
        if matches!(self.targets, Targets::Processes(_))
            && *self.named.entry(pid).or_insert(stat.start_ticks) != stat.start_ticks
        {
            self.leave_out(pid);
            return;
        }
        let has_memory = !stat.is_kernel_thread() && !stat.has_ended();
        let resident = has_memory.then(|| resident_now(&self.roots, pid));
        // A process whose size is not known is entered after the next list.
        let Ok(resident) = resident.transpose() else {
            self.known.remove(&pid);
            return;
        };
        let process = resident.map(|resident| {
            let (total, anonymous) = (resident.total.bytes(), resident.anonymous().bytes());
            ProcessEntry {
                id: ProcessId {
                    pid,
                    start_ticks: stat.start_ticks,
                },
                name: stat.comm.into(),
                cgroup: self.cgroup(pid),
                glanced: at,
                resident: total,
                anonymous,
                look: Look::NotYet,
                gain: None,
                cpu_share: None,
            }
        });
        let known = PidState {
            process,
            cpu: CpuMeter::default(),
            not_before: Duration::ZERO,
            due: if has_memory {
                // No look so far: `see_new` takes the largest first.
                Duration::MAX
            } else {
                at + self.interval * STEADY_INTERVALS
            },
        };
        self.known.insert(pid, known);
    }

    /// Enters a process that is not part of the survey: the entry keeps its number from being read again.
    fn leave_out(&mut self, pid: u32) {
        let known = PidState {
            process: None,
            cpu: CpuMeter::default(),
            not_before: Duration::MAX,
            due: Duration::MAX,
        };
        self.known.insert(pid, known);
    }

    fn cgroup(&self, pid: u32) -> Arc<str> {
        if self.shunned.contains(&pid) {
            return Arc::default();
        }
        let path = path_of_process(&self.roots, pid).ok().flatten();
        path.unwrap_or_default().into()
    }

    /// Reads the size of a process. If the size has changed, the number may belong to another process by now.
    fn glance(&mut self, pid: u32, at: Duration) {
        if self.shunned.contains(&pid) {
            return;
        }
        let Some(known) = self.known.get_mut(&pid) else {
            return;
        };
        let Ok(resident) = resident_now(&self.roots, pid) else {
            self.known.remove(&pid);
            return;
        };
        let total = resident.total.bytes();
        let Some(process) = &mut known.process else {
            known.due = at + self.interval * STEADY_INTERVALS;
            if total.0 > 0 {
                self.enter(pid, at);
            }
            return;
        };
        process.glanced = at;
        if process.resident == total {
            return;
        }
        let before = std::mem::replace(&mut process.resident, total);
        process.anonymous = resident.anonymous().bytes();
        let (old, changed) = (process.id.start_ticks, before.0.abs_diff(total.0));
        if changed > before.0 / 64 && known.due != Duration::MAX {
            known.due = at;
        }
        match stat(&self.roots, pid) {
            Ok(stat) if stat.start_ticks == old && !stat.has_ended() => {
                if *stat.comm != *process.name {
                    process.name = stat.comm.into();
                }
            }
            Ok(_) => self.enter(pid, at),
            Err(_) => drop(self.known.remove(&pid)),
        }
    }

    /// Looks at the page tables of a process; returns the CPU time of the look.
    fn look(&mut self, pid: u32, clock: &Clock, told: ReadCallback<'_>) -> Duration {
        let cpu = cpu_time();
        let begun = Instant::now();
        let is_somebody = (self.known.get(&pid)).is_some_and(|known| known.process.is_some());
        if !is_somebody {
            return Duration::ZERO;
        }
        let found = if self.avoided.contains(&pid) {
            None
        } else {
            told(Some(ProcessRead { pid, in_full: true }));
            Some(memory_use(&self.roots, pid))
        };
        let apart = apart(cpu_time().saturating_sub(cpu), OF_ONE)
            .max(apart(begun.elapsed(), OF_ONE_BY_THE_CLOCK));
        let at = clock.now();
        // Read afterwards: if it is the same process now, it was the same during the look.
        let stat = match self.shunned.contains(&pid) {
            true => None,
            false => stat(&self.roots, pid).ok(),
        };
        let cgroup = self.cgroup(pid);
        told(None);
        let Some(known) = self.known.get_mut(&pid) else {
            return Duration::ZERO;
        };
        let (Some(process), Some(stat)) = (&mut known.process, stat) else {
            self.known.remove(&pid);
            return cpu_time().saturating_sub(cpu);
        };
        if stat.start_ticks != process.id.start_ticks {
            self.enter(pid, at);
            return cpu_time().saturating_sub(cpu);
        }
        known.cpu.read(at, cpu_of(&stat));
        process.cpu_share = known.cpu.share;
        if *stat.comm != *process.name {
            process.name = stat.comm.into();
        }
        if cgroup != process.cgroup {
            process.cgroup = cgroup;
        }
        known.not_before = at + self.interval.max(apart);
        known.due = at + self.interval * STEADY_INTERVALS;
        let look = match found {
            Some(Ok(memory)) => Look::Done(at, memory.into()),
            Some(Err(ReadError::Denied { .. })) => Look::Denied,
            Some(Err(ReadError::KernelThread { .. } | ReadError::Vanished { .. })) => {
                self.known.remove(&pid);
                return cpu_time().saturating_sub(cpu);
            }
            Some(Err(_)) | None => Look::Failed,
        };
        process.gain = gained(&process.look, &look);
        process.look = look;
        cpu_time().saturating_sub(cpu)
    }
}

/// Returns huge pages gained per second between two looks.
#[allow(clippy::cast_precision_loss, reason = "byte counts below 2^52")]
fn gained(before: &Look, now: &Look) -> Option<f64> {
    let (Look::Done(then, old), Look::Done(at, new)) = (before, now) else {
        return None;
    };
    let (old, new) = (old.anon_huge?.0, new.anon_huge?.0);
    let seconds = at.saturating_sub(*then).as_secs_f64();
    (seconds > 0.0).then(|| (new as f64 - old as f64) / HUGE_PAGE_SIZE as f64 / seconds)
}

/// Time since the survey began, during a step.
struct Clock {
    at: Duration,
    begun: Instant,
}

impl Clock {
    fn at(at: Duration) -> Self {
        Self {
            at,
            begun: Instant::now(),
        }
    }

    fn now(&self) -> Duration {
        self.at + self.begun.elapsed()
    }

    fn is_over(&self) -> bool {
        self.begun.elapsed() >= MAX_STEP_TIME
    }
}

#[cfg(test)]
mod tests;
