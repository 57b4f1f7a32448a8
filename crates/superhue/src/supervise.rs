//! Stands between a command and its caller so that neither notices.
//!
//! The command stays in Superhue's process group, so keys of the terminal reach it directly, and
//! only signals that a process or a timer sent to Superhue are passed on, and the end of the terminal. When the command stops, Superhue
//! stops too, so that a shell's job control sees what it would see without Superhue; when one of the two
//! is continued, so is the other.

use std::time::Duration;

use superhue_sys::process::{
    ChildEvent, Signal, SignalSet, Usage, child_event, is_session_leader, send_signal, stop_with,
};

/// Signals that a thread raises by an error of its own, and that Rust's runtime handles: it names the thread whose stack overflowed.
const OWN: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Signals of timers. A timer that the caller set before it executed superhue (`alarm(2)`) was meant for the command.
const TIMERS: [i32; 3] = [libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF];

/// Signals by which users and service managers end programs.
pub(crate) const INTERRUPTS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// Ending of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Exited(i32),
    Killed(i32),
}

/// Result of one step of supervision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SupervisionEvent {
    /// Nothing that matters.
    Nothing,
    /// Superhue received a signal to end (from the terminal or a process); the command received it as well.
    Interrupted,
    /// The command ended.
    Ended(End, Usage),
}

/// Signals that Superhue holds back, and the mask from before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signals {
    watched: SignalSet,
    pub(crate) before: SignalSet,
}

impl Signals {
    /// Blocks all signals in this thread and those that it starts, without those of errors of its own.
    pub(crate) fn hold() -> Self {
        let watched = SignalSet::all().without(&OWN);
        let before = watched.block();
        Self { watched, before }
    }

    /// Takes the signals that have arrived, from processes and from the terminal.
    pub(crate) fn pending(&self) -> Vec<Signal> {
        let next = || self.watched.wait(Duration::ZERO);
        let signals = std::iter::from_fn(next);
        signals
            .filter(|signal| !matches!(signal.number, libc::SIGCHLD | libc::SIGCONT))
            // One of our own writes may have raised SIGPIPE.
            .filter(|signal| signal.sender != Some(std::process::id()))
            .collect()
    }

    /// Lets signals through again.
    pub(crate) fn release(self) {
        self.before.apply();
    }

    /// Lets signals through again, and discards pending interrupts: the runs have ended, and an interrupt must not lose their result.
    pub(crate) fn release_without_interrupts(self) {
        SignalSet::of(&INTERRUPTS).take_repeats();
        self.before.apply();
    }

    /// Waits up to `timeout` for an event of the command `pid` or a signal to Superhue, and handles it.
    pub(crate) fn step(&self, pid: u32, timeout: Duration) -> SupervisionEvent {
        self.step_passing(pid, timeout, true)
    }

    /// Does the same for a command that the caller ends at an interrupt, with all its descendants: it does not receive the interrupt. If it ended of
    /// that first, its descendants would not be found any more.
    pub(crate) fn step_to_end(&self, pid: u32, timeout: Duration) -> SupervisionEvent {
        self.step_passing(pid, timeout, false)
    }

    fn step_passing(&self, pid: u32, timeout: Duration, passes: bool) -> SupervisionEvent {
        if let Some(signal) = self.watched.wait(timeout) {
            let interrupted = is_interrupt(&signal);
            if is_for_command(&signal, pid) && (passes || !interrupted) {
                send_signal(pid, signal.number, signal.value);
                if is_hangup(&signal) {
                    // As the kernel does: a stopped program is to notice.
                    send_signal(pid, libc::SIGCONT, None);
                }
            }
            if interrupted {
                // The command may have ended of it by now. Its SIGCHLD is still pending, so the next step
                // sees that at once; reported now, the end would hide the interrupt.
                return SupervisionEvent::Interrupted;
            }
        }
        // Checked after every signal and timeout: one SIGCHLD may stand for several changes.
        while let Ok(Some((event, usage))) = child_event(pid) {
            match event {
                ChildEvent::Exited(status) => {
                    return SupervisionEvent::Ended(End::Exited(status), usage);
                }
                ChildEvent::Killed(signal) => {
                    return SupervisionEvent::Ended(End::Killed(signal), usage);
                }
                ChildEvent::Continued => {}
                ChildEvent::Stopped(_) => {
                    let goes_on = stop_with(pid);
                    if !goes_on {
                        send_signal(pid, libc::SIGCONT, None);
                    }
                }
            }
        }
        SupervisionEvent::Nothing
    }
}

/// Returns true for a signal by which users and service managers end programs.
pub(crate) fn is_interrupt(signal: &Signal) -> bool {
    INTERRUPTS.contains(&signal.number)
}

/// Returns true for a signal to Superhue that process `pid`, the command, does not receive without its help.
fn is_for_command(signal: &Signal, pid: u32) -> bool {
    // Signals that the command sends to its whole process group have reached the command already.
    let is_known = signal.sender == Some(pid) || signal.sender == Some(std::process::id());
    signal.number != libc::SIGCHLD
        && !is_known
        && (signal.sent_by_process || TIMERS.contains(&signal.number) || is_hangup(signal))
}

/// Returns true for the signal of a terminal that has gone away. The kernel sends it to the leader of the session alone, and that would be the command
/// if it ran without Superhue.
fn is_hangup(signal: &Signal) -> bool {
    signal.number == libc::SIGHUP && !signal.sent_by_process && is_session_leader()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    /// Ctrl-C ends the command in the same moment. If its end hides the interrupt, the interrupt is lost: a comparison
    /// would count a failed run and continue.
    #[test]
    fn an_interrupt_is_told_before_the_end_of_the_command() {
        let signals = Signals::hold();
        #[allow(clippy::zombie_processes, reason = "`step` waits for it")]
        let child = Command::new("true").spawn().unwrap();
        let stat = format!("/proc/{}/stat", child.id());
        let deadline = Instant::now() + Duration::from_secs(60);
        while !std::fs::read_to_string(&stat).unwrap().contains(") Z ") {
            assert!(Instant::now() < deadline, "the child does not end");
            std::thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: the signal is blocked in this thread, which is the one that `raise` sends it to.
        assert_eq!(unsafe { libc::raise(libc::SIGTERM) }, 0);
        let patience = Duration::from_millis(100);
        let mut seen = Vec::new();
        // A SIGCHLD, if another thread of the test program did not take it, comes after both.
        while seen.len() < 2 {
            assert!(Instant::now() < deadline, "{seen:?}");
            seen.extend(
                Some(signals.step(child.id(), patience))
                    .filter(|s| *s != SupervisionEvent::Nothing),
            );
        }
        assert_eq!(seen[0], SupervisionEvent::Interrupted);
        assert!(
            matches!(seen[1], SupervisionEvent::Ended(End::Exited(0), _)),
            "{seen:?}"
        );
        signals.release();
    }
}
