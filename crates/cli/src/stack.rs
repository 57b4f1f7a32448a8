//! A stack that is large enough, whatever limit the caller sets (`ulimit -s`).

use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use superhue::sys::process::SignalSet;

use crate::output::{FAILED, note};

/// The usual default limit of the first thread's stack.
const ROOM: u64 = 8 << 20;
/// A smaller stack may be too small.
const ENOUGH: u64 = 2 << 20;

/// Calls `work` in the first thread, or in one with a stack of its own if the first one's is too small.
///
/// The second thread takes the role of the first one: the first one blocks all signals, so that the second one receives
/// those of the process, and drops its capabilities, which it no longer needs.
pub fn with_room(work: fn() -> ExitCode) -> ExitCode {
    let allowed = getrlimit(Resource::Stack).current;
    if allowed.is_none_or(|allowed| allowed >= ENOUGH) {
        return work();
    }
    let before = SignalSet::all().block();
    let size = usize::try_from(ROOM).unwrap_or(usize::MAX);
    let worker = thread::Builder::new()
        .name("superhue".to_owned())
        .stack_size(size)
        .spawn(move || {
            before.apply();
            work()
        });
    let nothing = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    // The kernel always allows dropping capabilities.
    let _ = set_capabilities(None, nothing);
    let result = worker.map(thread::JoinHandle::join);
    if let Ok(Ok(code)) = result {
        return code;
    }
    if let Err(error) = result {
        note(&format!(
            "cannot make a thread with a stack of {} MiB, and `ulimit -s` allows less than {}: {error}",
            ROOM >> 20,
            ENOUGH >> 20
        ));
    }
    ExitCode::from(FAILED)
}
