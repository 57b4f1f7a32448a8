//! Waits of programs that visits have begun again with their whole timeouts.
//!
//! Such a wait must end all the same: a process is left alone while a thread is still in a call that was put off for long
//! enough. Whether it is tells the number of times that the thread has given up its CPU: once for the call.

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use superhue_model::ProcessId;

use crate::stop::{Again, Timeout};

/// A wait is put off for no longer than this, or half of its timeout.
const LONGEST: Duration = Duration::from_secs(1);

/// A timeout that is not known is put off for so long, and taken to be over after a minute.
const SHORT: Duration = Duration::from_millis(100);
const MINUTE: Duration = Duration::from_secs(60);

/// How soon it is looked again whether a thread has gone on.
const LOOK: Duration = Duration::from_millis(50);

/// Processes remembered.
const MOST: usize = 256;

/// Of each process, the waits that were begun again and may not be over yet.
#[derive(Debug, Default)]
pub(crate) struct Waits(HashMap<ProcessId, Vec<Wait>>);

#[derive(Debug)]
struct Wait {
    tid: u32,
    switches: u64,
    /// When it was begun again first, and for how long that may be done.
    since: Instant,
    put_off: Duration,
    /// When it ends by itself.
    until: Instant,
}

impl Waits {
    /// How long a process must be left alone, so that a wait can end.
    pub(crate) fn rest(&mut self, process: ProcessId) -> Option<Duration> {
        let now = Instant::now();
        let waits = self.0.get_mut(&process)?;
        waits.retain(|wait| now < wait.until && wait.is_same(process.pid));
        let due = waits.iter().filter(|wait| now >= wait.since + wait.put_off);
        due.map(|wait| (wait.until - now).min(LOOK)).max()
    }

    /// Notes what was begun again just now.
    pub(crate) fn note(&mut self, process: ProcessId, begun_again: &[Again]) {
        if begun_again.is_empty() {
            return;
        }
        if self.0.len() >= MOST {
            self.0.clear();
        }
        let now = Instant::now();
        let waits = self.0.entry(process).or_default();
        for again in begun_again {
            let (put_off, whole) = match again.timeout {
                Timeout::Never => continue,
                Timeout::After(timeout) => ((timeout / 2).min(LONGEST), timeout.min(MINUTE * 60)),
                Timeout::Unknown => (SHORT, MINUTE),
            };
            let Some(switches) = switches(process.pid, again.tid) else {
                continue;
            };
            let known = waits.iter().position(|wait| wait.tid == again.tid);
            let known = known.map(|at| waits.swap_remove(at));
            waits.push(Wait {
                tid: again.tid,
                switches,
                since: known.map_or(now, |known| known.since),
                put_off,
                until: now + whole,
            });
        }
    }
}

impl Wait {
    /// Whether the thread has not been seen to go on: since it was let go it has gone to sleep once at most.
    fn is_same(&self, pid: u32) -> bool {
        switches(pid, self.tid).is_some_and(|switches| switches <= self.switches + 1)
    }
}

/// How often a thread has given up its CPU by itself.
fn switches(pid: u32, tid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/task/{tid}/status")).ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_wait_is_put_off_for_a_while_and_then_let_end() {
        let process = ProcessId {
            pid: std::process::id(),
            start_ticks: 0,
        };
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let waiter = thread::spawn(move || {
            let _ = tell.send(rustix::thread::gettid().as_raw_nonzero().get());
            // Asleep in one call until it is told.
            let _ = ends.recv();
            thread::sleep(Duration::from_millis(1));
            thread::sleep(Duration::from_millis(1));
            let _ = ends.recv();
        });
        let tid = told.recv().map(i32::cast_unsigned).unwrap_or(0);
        let state = || fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
        while !state().is_ok_and(|stat| stat.contains(") S ")) {
            thread::yield_now();
        }
        let again = Again {
            tid,
            timeout: Timeout::After(Duration::from_secs(3000)),
        };
        let mut waits = Waits::default();
        assert_eq!(waits.rest(process), None);
        waits.note(process, &[again]);
        let wait = waits
            .0
            .get_mut(&process)
            .and_then(|waits| waits.first_mut());
        if let Some(wait) = wait {
            assert_eq!(wait.put_off, LONGEST);
            wait.put_off = Duration::ZERO;
        }
        assert_eq!(waits.rest(process), Some(LOOK));
        assert_eq!(waits.rest(process), Some(LOOK), "as long as it waits");
        let _ = end.send(());
        while waits.rest(process).is_some() {
            thread::sleep(Duration::from_millis(1));
        }
        drop(end);
        assert!(waiter.join().is_ok());
    }
}
