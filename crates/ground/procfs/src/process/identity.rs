//! Which process a number means, beyond the reuse of that number.
//!
//! A PID may be given to another process as soon as its owner has been waited for. The start time
//! does not come back: PID and start time together name one process for as long as the machine
//! runs. Whoever reads several files of a process compares identities before and after; when they
//! agree, everything between came from that one process.

use superhue_model::ProcessId;

use crate::{ReadError, Roots};

use super::stat::stat;

/// The identity of the process that has the number `pid` now. A zombie still has one.
///
/// Reads `/proc/PID/stat`, which anyone may read unless `/proc` is mounted `hidepid=`.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process (or it is hidden); others as for
/// [`stat`].
pub fn identify(roots: &Roots, pid: u32) -> Result<ProcessId, ReadError> {
    let start_ticks = stat(roots, pid)?.start_ticks;
    Ok(ProcessId { pid, start_ticks })
}

/// Makes sure that numbers in `/proc` mean the processes that system calls know by them. They do not
/// in a PID namespace that was entered without a `/proc` of its own.
///
/// # Errors
/// [`ReadError::ForeignProc`] if they mean others. Where it cannot be told nothing is wrong yet.
pub fn numbers_are_ours(roots: &Roots) -> Result<(), ReadError> {
    match std::fs::read_link(roots.proc.join("self")) {
        Ok(link) if link.as_os_str() != std::process::id().to_string().as_str() => {
            let proc = roots.proc.clone();
            Err(ReadError::ForeignProc { proc })
        }
        _ => Ok(()),
    }
}

/// Whether `id` still exists and has not exited: one that nobody waited for yet keeps its number. `false` too when it cannot be
/// looked up any more.
#[must_use]
pub fn still_runs(roots: &Roots, id: ProcessId) -> bool {
    stat(roots, id.pid).is_ok_and(|now| now.start_ticks == id.start_ticks && !now.is_zombie())
}

/// Whether `id` still exists. `false` too when it cannot be looked up any more.
#[must_use]
pub fn still_is(roots: &Roots, id: ProcessId) -> bool {
    identify(roots, id.pid).is_ok_and(|now| now == id)
}
