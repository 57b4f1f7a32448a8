//! Stands between a command and its caller so that neither notices.
//!
//! The command stays in Superhue's process group, so keys of the terminal reach it directly, and
//! only signals that a process sent to Superhue are passed on. When the command stops, Superhue
//! stops too, so that a shell's job control sees what it would see without Superhue; when Superhue
//! is continued, so is the command.

use std::time::Duration;

use rustix::process::{Pid, Signal as KernelSignal, kill_process};
use superhue_sys::process::{ChildEvent, SignalSet, Usage, child_event, stop_here};

/// Signals that are passed on, and job control signals that Superhue itself must not act on.
const WATCHED: [i32; 12] = [
    libc::SIGCHLD,
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGTTIN,
    libc::SIGTTOU,
];

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
    /// Blocks the watched signals in this thread and those it starts.
    pub(crate) fn hold() -> Self {
        let watched = SignalSet::of(&WATCHED);
        let before = watched.block();
        Self { watched, before }
    }

    /// Lets signals through again.
    pub(crate) fn release(self) {
        self.before.apply();
    }

    /// Waits up to `timeout` for an event of the command `pid` or a signal to Superhue, and handles it.
    pub(crate) fn step(&self, pid: u32, timeout: Duration) -> SupervisionEvent {
        if let Some(signal) = self.watched.wait(timeout) {
            let interrupted = matches!(
                signal.number,
                libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGQUIT
            );
            // Signals that the command sends to its whole process group have reached the command already.
            let by_command = signal.sender == Some(pid);
            if signal.sent_by_process && !by_command && signal.number != libc::SIGCHLD {
                send(pid, signal.number);
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
                    stop_here();
                    // The SIGCONT that continued Superhue is still pending. Passed on later, it would undo a stop
                    // that comes meanwhile.
                    let _ = SignalSet::of(&[libc::SIGCONT]).wait(Duration::ZERO);
                    send(pid, libc::SIGCONT);
                }
            }
        }
        SupervisionEvent::Nothing
    }
}

/// Sends a signal to a process whose number is still valid: a child that was not waited for yet, or a process that existed just now.
pub(crate) fn send(pid: u32, signal: i32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    if let (Some(pid), Some(signal)) = (pid, KernelSignal::from_named_raw(signal)) {
        let _ = kill_process(pid, signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    /// Ctrl-C ends the command in the same moment. If its end hides the interrupt, the interrupt is lost for good: a
    /// comparison would count a failed run and continue.
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
