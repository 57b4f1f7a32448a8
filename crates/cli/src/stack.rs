//! A stack that is large enough, whatever the caller allows (`ulimit -s`).

use std::process::ExitCode;
use std::thread;

use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use superhue::sys::process::SignalSet;

use crate::output::{FAILED, note};

/// What the first thread is allowed by default nearly everywhere.
const ROOM: u64 = 8 << 20;
/// With less than this there may be too little.
const ENOUGH: u64 = 2 << 20;

/// Calls `work` in the first thread, or in one with room of its own where that has too little.
///
/// A second thread has none of the first one's peculiarities: signals to the process are left to it, and
/// the first one gives up what it may do, which nobody needs any more.
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
    // Giving up is always allowed.
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
