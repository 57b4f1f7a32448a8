//! Ends processes that take too long: SIGTERM, some seconds, SIGKILL.
//!
//! See `pidfd_open(2)`, `pidfd_send_signal(2)`. The code is here because both a comparison and the lab use it, and it must
//! be the same for both.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};

/// Time that programs have between SIGTERM and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(5);

/// Processes that have received SIGTERM. The drop kills those that still exist; it spares another process that has one of the
/// numbers by then.
#[derive(Debug)]
pub struct TerminatingProcesses {
    members: Vec<OwnedFd>,
    since: Instant,
}

impl TerminatingProcesses {
    /// Sends SIGTERM to these processes, all of which must exist: first a child that its parent has not waited for, then
    /// its descendants. If descriptors run out, later processes receive SIGTERM, but no SIGKILL.
    pub fn tell(processes: impl IntoIterator<Item = u32>) -> Self {
        let numbers = processes.into_iter();
        let numbers = numbers.filter_map(|pid| i32::try_from(pid).ok().and_then(Pid::from_raw));
        let mut members = Vec::new();
        for pid in numbers {
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(member) => {
                    let _ = pidfd_send_signal(&member, Signal::TERM);
                    members.push(member);
                }
                Err(_) => {
                    let _ = kill_process(pid, Signal::TERM);
                }
            }
        }
        Self {
            members,
            since: Instant::now(),
        }
    }

    /// Returns the end of the grace period.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.since + GRACE
    }
}

impl Drop for TerminatingProcesses {
    fn drop(&mut self) {
        for member in &self.members {
            let _ = pidfd_send_signal(member, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};
    use std::thread;

    use super::*;

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).spawn().unwrap()
    }

    /// Waits for a child that must end soon, and returns the signal that ended it.
    fn signal_of(child: &mut Child) -> Option<i32> {
        let patience = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = child.try_wait().unwrap() {
                return status.signal();
            }
            assert!(Instant::now() < patience, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn what_does_not_end_when_told_is_killed() {
        // Uses `exec`, so that the shell starts no further process.
        let mut obeys = shell("exec sleep 1000");
        let ready = tempfile::NamedTempFile::new().unwrap();
        let mut deaf = shell(&format!(
            "trap '' TERM; echo deaf >{}; exec sleep 1000",
            ready.path().display()
        ));
        while std::fs::read(ready.path()).unwrap().is_empty() {
            thread::sleep(Duration::from_millis(5));
        }
        let told = Instant::now();
        let overdue = TerminatingProcesses::tell([obeys.id(), deaf.id()]);
        assert_eq!(signal_of(&mut obeys), Some(Signal::TERM.as_raw()));
        assert!(deaf.try_wait().unwrap().is_none());
        assert!(overdue.deadline() >= told + GRACE);
        drop(overdue);
        assert_eq!(signal_of(&mut deaf), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn what_ended_meanwhile_is_left_alone() {
        let mut child = shell("exec sleep 1000");
        let overdue = TerminatingProcesses::tell([child.id(), u32::MAX, 0]);
        assert_eq!(signal_of(&mut child), Some(Signal::TERM.as_raw()));
        assert_eq!(overdue.members.len(), 1);
        // The child was waited for: its number may belong to any process.
        drop(overdue);
    }
}
