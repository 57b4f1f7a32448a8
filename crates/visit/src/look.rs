//! A look at a process before it is stopped: is there anything that speaks against a visit?

use std::collections::HashMap;
use std::fs;
use std::time::{Duration, Instant};

use superhue_model::{Obstacle, ProcessId};
use superhue_sys::ptrace::same_memory;

use crate::vmas;

/// Who shares memory with whom is asked this often at most: it takes a look at every process, and at all mappings.
const SHARED_MEMORY_KNOWN_FOR: Duration = Duration::from_millis(500);

/// Looks at processes before they are stopped.
#[derive(Debug, Default)]
pub(crate) struct Looker {
    /// Processes whose memory nobody shared nor worked on, and when that was seen.
    alone: HashMap<ProcessId, Instant>,
}

impl Looker {
    /// Whether `id` may be stopped.
    ///
    /// # Errors
    /// What speaks against it.
    pub(crate) fn look(&mut self, id: ProcessId) -> Result<(), Obstacle> {
        let stat = Stat::of(id.pid).ok_or(Obstacle::Gone)?;
        if stat.start_ticks != id.start_ticks || matches!(stat.state, b'Z' | b'X') {
            return Err(Obstacle::Gone);
        }
        match stat.state {
            b'T' => return Err(Obstacle::Stopped),
            b't' => return Err(Obstacle::Traced),
            // Waits for a device, or for the child of a vfork.
            b'D' => return Err(Obstacle::Unstoppable),
            _ => {}
        }
        let status = fs::read_to_string(format!("/proc/{}/status", id.pid));
        let status = status.map_err(|_| Obstacle::Gone)?;
        let tracer = status
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        if tracer.is_some_and(|tracer| tracer.trim() != "0") {
            return Err(Obstacle::Traced);
        }
        if transfers(id.pid) {
            return Err(Obstacle::Transfers);
        }
        self.shares_memory(id)
    }

    fn shares_memory(&mut self, id: ProcessId) -> Result<(), Obstacle> {
        self.alone
            .retain(|_, seen| seen.elapsed() < SHARED_MEMORY_KNOWN_FOR);
        if self.alone.contains_key(&id) {
            return Ok(());
        }
        let size = size_of(id.pid).ok_or(Obstacle::Gone)?;
        let folder = fs::read_dir("/proc").map_err(|_| Obstacle::NotPermitted)?;
        let numbers = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let shared = numbers
            .filter(|&other: &u32| other != id.pid)
            // Who has the same memory has as much of it.
            .filter(|&other| size_of(other).as_ref() == Some(&size))
            .any(|other| same_memory(id.pid, other) == Ok(true));
        if shared {
            return Err(Obstacle::SharedMemory);
        }
        // Pages may be on their way to a device, and a stop has `io_getevents` return with fewer events than were asked for.
        if vmas::has_aio(id.pid) {
            return Err(Obstacle::KernelWorks);
        }
        self.alone.insert(id, Instant::now());
        Ok(())
    }
}

/// Whether a thread sleeps in a call that tells less than was asked for when it is stopped, and a program that knows of no signals
/// may not look: a write to a pipe or a stream that has gone half of its way (`pipe_write`), a read that is to wait for all.
fn transfers(pid: u32) -> bool {
    let Ok(folder) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    folder.flatten().any(|thread| {
        let call = fs::read_to_string(thread.path().join("syscall"));
        call.is_ok_and(|call| is_transfer(&call))
    })
}

/// `number arguments stack instruction`; `running` of who does.
fn is_transfer(call: &str) -> bool {
    /// Shorter ones go whole or not at all (`PIPE_BUF`).
    const WHOLE: u64 = 4096;
    let mut fields = call.split_ascii_whitespace();
    let number: Option<i64> = fields.next().and_then(|number| number.parse().ok());
    let arguments: Vec<u64> = fields
        .map_while(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .collect();
    let argument = |at: usize| arguments.get(at).copied().unwrap_or(0);
    let waits_for_all = |flags: u64| flags & libc::MSG_WAITALL.cast_unsigned() as u64 != 0;
    match number {
        Some(libc::SYS_write | libc::SYS_sendto) => argument(2) > WHOLE,
        Some(
            libc::SYS_writev
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_splice
            | libc::SYS_vmsplice,
        ) => true,
        Some(libc::SYS_recvfrom) => waits_for_all(argument(3)),
        Some(libc::SYS_recvmsg) => waits_for_all(argument(2)),
        Some(libc::SYS_recvmmsg) => true,
        _ => false,
    }
}

/// Pages of address space, as `statm` has them first.
fn size_of(pid: u32) -> Option<Vec<u8>> {
    let text = fs::read(format!("/proc/{pid}/statm")).ok()?;
    let size = text.split(|byte| *byte == b' ').next()?;
    // Kernel threads have none.
    (size != b"0").then(|| size.to_vec())
}

/// What `/proc/PID/stat` says of a process, or of a thread by its number.
pub(crate) struct Stat {
    /// The letter that stands for it.
    pub(crate) state: u8,
    start_ticks: u64,
    /// The CPU that it is on, or was last.
    pub(crate) cpu: usize,
}

impl Stat {
    pub(crate) fn of(pid: u32) -> Option<Self> {
        let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
        // The name may hold anything, parentheses too.
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(text.get(name_end + 2..)?).ok()?;
        let mut fields = rest.split_ascii_whitespace();
        let state = *fields.next()?.as_bytes().first()?;
        // Field 22 of the line; the state is field 3.
        let start_ticks = fields.nth(18)?.parse().ok()?;
        // Field 39.
        let cpu = fields.nth(16)?.parse().ok()?;
        Some(Self {
            state,
            start_ticks,
            cpu,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_are_known_by_their_calls() {
        let write = |length: u64| format!("1 0x3 0x7f00 {length:#x} 0x0 0x0 0x0 0x7ffc 0x7f01\n");
        assert!(!is_transfer("running\n"));
        assert!(!is_transfer("-1 0x7ffc 0x7f01\n"));
        assert!(!is_transfer(&write(4096)));
        assert!(is_transfer(&write(4097)));
        assert!(is_transfer(
            "45 0x3 0x7f00 0x10000 0x100 0x0 0x0 0x7ffc 0x7f01"
        ));
        assert!(!is_transfer(
            "45 0x3 0x7f00 0x10000 0x40 0x0 0x0 0x7ffc 0x7f01"
        ));
    }

    #[test]
    fn we_are_found_and_a_number_used_again_is_not() {
        let pid = std::process::id();
        let stat = Stat::of(pid).unwrap();
        let id = ProcessId {
            pid,
            start_ticks: stat.start_ticks,
        };
        // Other tests start programs, by vfork: these share our memory until they have had a CPU, and who waits for
        // them, or for a page of the program to be read, cannot be stopped.
        let begun = Instant::now();
        let ours = loop {
            let look = Looker::default().look(id);
            if look.is_ok() || begun.elapsed() > Duration::from_secs(60) {
                break look;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert_eq!(ours, Ok(()));
        let other = ProcessId {
            pid,
            start_ticks: stat.start_ticks + 1,
        };
        assert_eq!(Looker::default().look(other), Err(Obstacle::Gone));
        let none = ProcessId {
            pid: 0,
            start_ticks: 0,
        };
        assert_eq!(Looker::default().look(none), Err(Obstacle::Gone));
    }
}
