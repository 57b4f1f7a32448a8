//! Identity of a process, beyond the reuse of its PID.
//!
//! The kernel may reuse a PID as soon as the parent has waited for the process. Start times
//! do not repeat: PID and start time together identify one process until the next
//! boot. A caller that reads several files of a process compares identities before and after. If they
//! agree, all files came from that one process.

use superhue_model::ProcessId;

use crate::{ReadError, Roots};

use super::stat::stat;

/// Returns the identity of the process that has the number `pid` now. A zombie still has one.
///
/// Reads `/proc/PID/stat`, which every user may read unless `/proc` is mounted `hidepid=`.
///
/// # Errors
/// [`ReadError::Vanished`] when there is no such process (or it is hidden); others as for
/// [`stat`].
pub fn identify(roots: &Roots, pid: u32) -> Result<ProcessId, ReadError> {
    let start_ticks = stat(roots, pid)?.start_ticks;
    Ok(ProcessId { pid, start_ticks })
}

/// Checks that PIDs in `/proc` are those of the caller's PID namespace. They are not
/// in a namespace that was entered without a `/proc` of its own.
///
/// # Errors
/// [`ReadError::ForeignProc`] if they belong to another namespace. An unreadable `/proc/self` is no error here.
pub fn numbers_are_ours(roots: &Roots) -> Result<(), ReadError> {
    match std::fs::read_link(roots.proc.join("self")) {
        Ok(link) if link.as_os_str() != std::process::id().to_string().as_str() => {
            let proc = roots.proc.clone();
            Err(ReadError::ForeignProc { proc })
        }
        _ => Ok(()),
    }
}

/// Returns true if `id` still exists and has not exited: a process that its parent has not waited for keeps its number. Returns
/// `false` also if the process cannot be looked up any more.
#[must_use]
pub fn still_runs(roots: &Roots, id: ProcessId) -> bool {
    stat(roots, id.pid).is_ok_and(|now| now.start_ticks == id.start_ticks && !now.is_zombie())
}

/// Returns true if `id` still exists. Returns `false` also if the process cannot be looked up any more.
#[must_use]
pub fn still_is(roots: &Roots, id: ProcessId) -> bool {
    identify(roots, id.pid).is_ok_and(|now| now == id)
}
