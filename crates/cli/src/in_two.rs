//! A verb that reads other users' processes, split into two processes: one does the work, one supervises it.
//!
//! ```text
//!   superhue status ──fork──> does the work, and writes on its board which process it is busy with
//!        │                         held up by process 7 ──> killed
//!        ├──fork──> which others hold up? reads a little of each process
//!        └──fork──> does the work, but leaves 7 alone: as if it had ended
//!   at the end: \"process 7 was left out\"
//! ```
//!
//! A process can hold up a reader of it for as long as its owner likes (`superhue::held_up`), in ways that only a signal that kills the reader
//! ends. So the reader is a process that can be killed. It is forked before any thread starts, so no state has to be passed to it, and the verb is
//! unaware of it. Without a second process, this one does the work.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal as KernelSignal, getpid, kill_process, pidfd_open,
    set_parent_process_death_signal,
};
use superhue::held_up::{SleepLimits, SleepMonitor};
use superhue::model::counted;
use superhue::procfs::Roots;
use superhue::procfs::process::numbers;
use superhue::sys::busy::{self, BusyBoard};
use superhue::sys::process::{
    ChildEvent, SignalSet, child_event, die_with_parent, fork_alone, is_session_leader,
};

use crate::output::{leave_out, note};
use crate::undo::recover;

/// Signals that are passed on to the process that does the work, and `SIGCHLD`, which reports its changes. Stop signals
/// and signals of the terminal reach it directly.
const WATCHED: [i32; 7] = [
    libc_signal::HUP,
    libc_signal::INT,
    libc_signal::QUIT,
    libc_signal::USR1,
    libc_signal::USR2,
    libc_signal::TERM,
    libc_signal::CHLD,
];

/// Numbers of signals, the same on every architecture that superhue runs on (`signal(7)`).
mod libc_signal {
    pub(super) const HUP: i32 = 1;
    pub(super) const INT: i32 = 2;
    pub(super) const QUIT: i32 = 3;
    pub(super) const USR1: i32 = 10;
    pub(super) const USR2: i32 = 12;
    pub(super) const TERM: i32 = 15;
    pub(super) const CHLD: i32 = 17;
}

/// Time for which one process may hold up a verb that answers once (`ONCE`), a lasting one (`LASTING`), which then loses what it has learned, or one
/// that cannot begin again (`UNIQUE`).
const ONCE: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(100),
    in_files: Duration::from_millis(400),
};
const LASTING: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_secs(1),
    in_files: Duration::from_secs(2),
};

const UNIQUE: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_secs(5),
    in_files: Duration::from_secs(5),
};

/// The same for reading a little of each process, and the time for all of that.
const PROBING: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(15),
    in_files: Duration::from_millis(100),
};
const PROBES: Duration = Duration::from_millis(600);

/// A process is left out if it holds up a second reader for this long. One that held a lock only for lack of CPU time has released it by then.
const AGAIN: SleepLimits = SleepLimits {
    uninterruptible: Duration::from_millis(120),
    in_files: Duration::from_millis(120),
};

/// Most restarts of the verb. If a process holds it up once more, the verb reports that and fails.
const TIMES: usize = 16;

/// Time after which earlier restarts of a lasting verb do not count any more.
const FORGIVEN: Duration = Duration::from_secs(600);

/// Wait for a killed child to be gone, so that what it changed can be undone.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Most processes that are named at the end.
const NAMED: usize = 10;

/// Kind of verb that is supervised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The verb answers once.
    Once,
    /// The verb runs until it is ended.
    Lasting,
    /// The verb cannot begin again: it would lose its result.
    Unique,
}

/// Processes that are left out.
#[derive(Debug, Default)]
struct LeftOut(BTreeMap<u32, Option<OwnedFd>>);

impl LeftOut {
    fn insert(&mut self, process: u32) {
        let pid = i32::try_from(process).ok().and_then(Pid::from_raw);
        let Some(pid) = pid.filter(|_| !self.has(process)) else {
            return;
        };
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => {
                self.0.insert(process, Some(handle));
            }
            // It has ended.
            Err(Errno::SRCH) => {}
            // Its end is not seen, and the number stays.
            Err(_) => {
                self.0.insert(process, None);
            }
        }
    }

    fn has(&self, process: u32) -> bool {
        self.0.contains_key(&process)
    }

    /// Forgets processes that have ended: another process may have the number.
    fn forget_the_dead(&mut self) {
        self.0.retain(|_, handle| {
            handle.as_ref().is_none_or(|handle| {
                let mut ended = [PollFd::new(handle, PollFlags::IN)];
                poll(&mut ended, Some(&Timespec::default())) == Ok(0)
            })
        });
    }

    fn numbers(&self) -> BTreeSet<u32> {
        self.0.keys().copied().collect()
    }
}

/// Returns the kind of the verb in these arguments; `None` for verbs that do not read arbitrary processes.
pub fn kind(
    mut arguments: impl Iterator<Item = std::ffi::OsString>,
    has_terminal: bool,
) -> Option<Kind> {
    let verb = arguments.find(|it| !it.as_encoded_bytes().starts_with(b"-"))?;
    let mut says = |what: &[&str]| arguments.any(|it| what.iter().any(|one| it == *one));
    match verb.to_str()? {
        "status" | "advise" | "restore" => Some(Kind::Once),
        "top" if has_terminal => says(&["--once", "--json"]).then_some(Kind::Once),
        // It looks once, too, unless it records or reads a record.
        "top" => {
            let is_record = |it: std::ffi::OsString| {
                let bytes = it.as_encoded_bytes();
                bytes.starts_with(b"--record") || bytes.starts_with(b"--replay")
            };
            (!arguments.any(is_record)).then_some(Kind::Once)
        }
        "attach" => Some(Kind::Lasting),
        "trial" => Some(Kind::Unique),
        "ctl" => loop {
            let word = arguments.next()?;
            if word == "--socket" {
                arguments.next()?;
            } else if !word.as_encoded_bytes().starts_with(b"-") {
                break (word == "trial").then_some(Kind::Unique);
            }
        },
        _ => None,
    }
}

/// Legacy of earlier attempts: the time when the first began, and the bytes that they charged to a budget. A child inherits it.
static EARLIER: OnceLock<(Instant, AtomicU64)> = OnceLock::new();

/// Returns the time since the first attempt of the verb began, and the bytes that earlier attempts charged to a budget; `None` in the first attempt.
pub fn earlier() -> Option<(Duration, u64)> {
    let (begun, charged) = EARLIER.get()?;
    Some((begun.elapsed(), charged.load(Ordering::Relaxed)))
}

/// Does `work` in a supervised process: `work` runs once in each attempt, and in this process only if no other can be made.
pub fn in_two(kind: Kind, mut work: impl FnMut() -> ExitCode) -> ExitCode {
    let Ok(board) = BusyBoard::new() else {
        return work();
    };
    let own = std::process::id();
    let mut left_out = LeftOut::default();
    // A process that released the reader once is cleared; the next time it is left out.
    let mut cleared = LeftOut::default();
    let watched = SignalSet::of(&WATCHED);
    let before = watched.block();
    let mut patience = match kind {
        Kind::Once => ONCE,
        Kind::Lasting => LASTING,
        Kind::Unique => UNIQUE,
    };
    // The last child that was killed, and whether it is gone.
    let mut last = (0, true);
    let mut restarts = 0;
    let first = Instant::now();
    while restarts <= TIMES {
        let begun = Instant::now();
        left_out.forget_the_dead();
        cleared.forget_the_dead();
        board.clear();
        let child = match fork_alone() {
            Ok(Some(child)) => child,
            Ok(None) => {
                before.apply();
                return child_of(own, &board, left_out.numbers(), &mut work);
            }
            // Not even one more process can be made: do the work here.
            Err(_) => {
                before.apply();
                return work();
            }
        };
        match watch(child, &board, patience, &watched) {
            End::Exited(status) => {
                tell(&left_out);
                return ExitCode::from(u8::try_from(status & 0xff).unwrap_or(1));
            }
            End::Killed(signal) => {
                tell(&left_out);
                undo_for(child, true, kind);
                before.apply();
                end_by(signal);
                return ExitCode::from(u8::try_from(128 + signal).unwrap_or(255));
            }
            End::HeldUp(process, signal) => {
                kill(child, KernelSignal::KILL);
                // A child that cannot be killed is abandoned.
                let is_gone = wait_for(child, Duration::from_millis(20));
                last = (child, is_gone);
                if let Some(signal) = signal {
                    left_out.insert(process);
                    tell(&left_out);
                    undo_for(child, is_gone, kind);
                    before.apply();
                    end_by(signal);
                    return ExitCode::from(u8::try_from(128 + signal).unwrap_or(255));
                }
                if kind == Kind::Unique {
                    undo_for(child, is_gone, kind);
                    note(&format!(
                        "process {process} holds it up (it executes a program, or has its memory locked, and does not go on): given up. \
                         Try again without that process"
                    ));
                    return ExitCode::from(crate::output::FAILED);
                }
                let mut suspects = BTreeSet::from([process]);
                if restarts == 0 || kind == Kind::Once {
                    probe(&board, &left_out, &mut suspects);
                }
                for &process in suspects.iter().filter(|&&suspect| cleared.has(suspect)) {
                    left_out.insert(process);
                }
                suspects.retain(|&suspect| !cleared.has(suspect));
                let holding = still_holding(&suspects);
                for &process in suspects.difference(&holding) {
                    cleared.insert(process);
                }
                for process in holding {
                    left_out.insert(process);
                }
                restarts += 1;
                if kind == Kind::Lasting && begun.elapsed() >= FORGIVEN {
                    (restarts, patience) = (1, LASTING);
                }
                let (_, charged) = EARLIER.get_or_init(|| (first, AtomicU64::new(0)));
                charged.store(board.charged(), Ordering::Relaxed);
                patience.uninterruptible =
                    (patience.uninterruptible / 2).max(patience.in_files / 8);
            }
        }
    }
    tell(&left_out);
    undo_for(last.0, last.1, kind);
    note("too many processes hold it up one after the other: given up");
    ExitCode::from(crate::output::FAILED)
}

/// Undoes what a child that was killed has changed on the machine: it could not do so itself.
fn undo_for(child: u32, is_gone: bool, kind: Kind) {
    if kind == Kind::Once {
        return;
    }
    // As long as it exists, it holds the lock on its journal.
    if is_gone || wait_for(child, LAST_WAIT) {
        recover(false);
    } else {
        note(
            "it could not be ended, and settings that it changed stay: run `superhue restore` later, as root",
        );
    }
}

/// End of a child.
enum End {
    Exited(i32),
    Killed(i32),
    /// The child has not ended: the process of this number holds it up. The signal, if any, is one that should have ended it.
    HeldUp(u32, Option<i32>),
}

fn child_of(
    supervisor: u32,
    board: &BusyBoard,
    left_out: BTreeSet<u32>,
    work: &mut impl FnMut() -> ExitCode,
) -> ExitCode {
    if die_with_parent(supervisor) != Ok(true) {
        return ExitCode::from(crate::output::FAILED);
    }
    superhue::supervised_by(supervisor);
    // The supervisor is superhue, too: no verb reports it, unless an argument names it.
    let is_named = |pid: &u32| std::env::args_os().any(|word| word == *pid.to_string());
    let supervisor = Some(supervisor).filter(|pid| !is_named(pid));
    leave_out(left_out.iter().copied().collect());
    busy::leave_alone(left_out.into_iter().chain(supervisor).collect());
    board.write_here();
    work()
}

/// Supervises a child until it has ended, or is held up.
fn watch(child: u32, board: &BusyBoard, patience: SleepLimits, watched: &SignalSet) -> End {
    let mut minder = SleepMonitor::new(patience);
    let look = (patience.uninterruptible / 3).min(Duration::from_millis(250));
    let mut told = None;
    loop {
        let signal = watched.wait(look);
        while let Ok(Some((event, _))) = child_event(child) {
            match event {
                ChildEvent::Exited(status) => return End::Exited(status),
                ChildEvent::Killed(signal) => return End::Killed(signal),
                ChildEvent::Stopped(_) | ChildEvent::Continued => {}
            }
        }
        if let Some(signal) = signal.filter(|signal| signal.number != libc_signal::CHLD) {
            // Signals of the terminal have already reached the child.
            // The end of the terminal has reached only the leader of the session.
            let is_hangup = signal.number == libc_signal::HUP && is_session_leader();
            if (signal.sent_by_process || is_hangup)
                && signal.sender != Some(child)
                && let Some(number) = KernelSignal::from_named_raw(signal.number)
            {
                kill(child, number);
            }
            let ends = [
                libc_signal::HUP,
                libc_signal::INT,
                libc_signal::QUIT,
                libc_signal::TERM,
            ];
            told = told.or_else(|| Some(signal.number).filter(|number| ends.contains(number)));
        }
        if let Some(held) = minder.look(child, board) {
            return End::HeldUp(held.process, told);
        }
    }
}

/// Finds the other processes that may hold up a reader, by a child that reads a little of each process.
fn probe(board: &BusyBoard, left_out: &LeftOut, suspects: &mut BTreeSet<u32>) {
    let begun = Instant::now();
    let mut after = 0;
    while begun.elapsed() < PROBES {
        board.clear();
        let child = match fork_alone() {
            Ok(Some(child)) => child,
            Ok(None) => {
                let _ = set_parent_process_death_signal(Some(KernelSignal::KILL));
                busy::leave_alone(left_out.numbers().union(suspects).copied().collect());
                board.write_here();
                read_all(after);
                std::process::exit(0);
            }
            Err(_) => return,
        };
        let mut minder = SleepMonitor::new(PROBING);
        loop {
            if wait_for(child, PROBING.uninterruptible / 2) {
                return;
            }
            let held = minder.look(child, board);
            if held.is_some() || begun.elapsed() >= PROBES {
                kill(child, KernelSignal::KILL);
                wait_for(child, Duration::from_millis(20));
                if let Some(held) = held {
                    suspects.insert(held.process);
                    after = held.process;
                }
                break;
            }
        }
    }
}

/// Reads the suspects once more, all at once and each in a child of its own. Returns those that hold up their reader now.
fn still_holding(suspects: &BTreeSet<u32>) -> BTreeSet<u32> {
    let mut holding = BTreeSet::new();
    let mut readers = Vec::new();
    for &suspect in suspects {
        match fork_alone() {
            Ok(Some(reader)) => readers.push((suspect, reader, SleepMonitor::new(AGAIN))),
            Ok(None) => {
                let _ = set_parent_process_death_signal(Some(KernelSignal::KILL));
                read_a_little(&Roots::default(), suspect);
                std::process::exit(0);
            }
            // No child can be made to find out; the suspect held up the verb before.
            Err(_) => {
                holding.insert(suspect);
            }
        }
    }
    let begun = Instant::now();
    // A reader without CPU time is not held up; the wait for it is bounded.
    while !readers.is_empty() && begun.elapsed() < 2 * AGAIN.uninterruptible {
        readers.retain_mut(|(suspect, reader, minder)| {
            if wait_for(*reader, Duration::ZERO) {
                return false;
            }
            if minder.look_at_reader(*reader, *suspect).is_none() {
                return true;
            }
            holding.insert(*suspect);
            kill(*reader, KernelSignal::KILL);
            false
        });
        std::thread::sleep(AGAIN.uninterruptible / 20);
    }
    for (_, reader, _) in readers {
        kill(reader, KernelSignal::KILL);
    }
    holding
}

/// Reads each process in a way that takes all the locks that reading a process takes.
fn read_all(after: u32) {
    let roots = Roots::default();
    let own = u32::try_from(getpid().as_raw_nonzero().get()).unwrap_or(0);
    for pid in numbers(&roots).unwrap_or_default() {
        if pid > after && pid != own {
            read_a_little(&roots, pid);
        }
    }
}

fn read_a_little(roots: &Roots, pid: u32) {
    for name in ["stat", "smaps"] {
        let file = std::fs::File::open(roots.of_process(pid, name));
        let _ = file.and_then(|mut file| file.read(&mut [0; 64]));
    }
}

/// Waits for a child; returns true if it ended within this time.
fn wait_for(child: u32, time: Duration) -> bool {
    let chld = SignalSet::of(&[libc_signal::CHLD]);
    let begun = Instant::now();
    loop {
        match child_event(child) {
            Ok(Some((ChildEvent::Exited(_) | ChildEvent::Killed(_), _))) | Err(_) => return true,
            Ok(_) => {}
        }
        let Some(left) = time.checked_sub(begun.elapsed()) else {
            return false;
        };
        let _ = chld.wait(left);
    }
}

fn kill(child: u32, signal: KernelSignal) {
    // The number stays the child's until the child is reaped.
    if let Some(pid) = i32::try_from(child).ok().and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Ends this process by the signal that ended the child.
fn end_by(signal: i32) {
    if let Some(signal) = KernelSignal::from_named_raw(signal) {
        let _ = kill_process(getpid(), signal);
    }
}

/// Prints the processes that were left out.
fn tell(left_out: &LeftOut) {
    for pid in left_out.0.keys().take(NAMED) {
        note(&format!(
            "process {pid} was left out: it holds up each reader (it executes a program, or has its memory locked, and does not go on)"
        ));
    }
    if let Some(more) = left_out.0.len().checked_sub(NAMED).filter(|&more| more > 0) {
        note(&format!(
            "and {} likewise",
            counted(more as u64, "more process")
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &[&str]) -> Option<Kind> {
        kind(arguments.iter().map(|it| (*it).into()), true)
    }

    #[test]
    fn verbs_that_look_at_everybody_are_watched_over() {
        assert_eq!(of(&["-v", "status", "7"]), Some(Kind::Once));
        assert_eq!(of(&["top", "--once"]), Some(Kind::Once));
        assert_eq!(of(&["attach", "--all"]), Some(Kind::Lasting));
        assert_eq!(of(&["trial", "--all"]), Some(Kind::Unique));
        let with_socket = ["ctl", "--socket", "/run/x", "trial", "redis"];
        assert_eq!(of(&with_socket), Some(Kind::Unique));
        for other in [
            // This verb is supervised only once it has its socket.
            &["track"][..],
            &["top"],
            &["run", "status"],
            &["--help"],
            &[],
            &["daemon", "--check"],
            &["ctl", "status"],
            &["ctl", "why", "trial"],
            &["ctl", "--socket", "trial", "status"],
        ] {
            assert_eq!(of(other), None, "{other:?}");
        }
    }
}
